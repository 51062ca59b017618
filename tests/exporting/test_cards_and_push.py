"""Model cards of exports, and their way to the hub."""

import contextlib
import hashlib
import io
import json
import os
import re
from contextlib import chdir
from typing import Any

import pytest
import torch
import yaml
from PIL import Image

import pretrainkit as pk
from pretrainkit.config.loader import flatten
from pretrainkit.exporting.card import write_card
from pretrainkit.files.hub import Hub, StoredFile
from pretrainkit.recipes.registry import find_recipe
from pretrainkit.running.configs import load_config
from pretrainkit.running.publish import push_export
from support.command_line import refused, succeed
from support.hub_server import served_hub
from support.page_data import copy, part, put, put_jsonl
from support.remedies import followed

pytestmark = pytest.mark.slow

pytest.importorskip("transformers")


@pytest.mark.parametrize(("run", "task"), [("bert", "fill-mask"), ("t5", "text-generation"), ("glue_run", None)])
def test_the_card_states_the_numbers_of_the_run_and_its_snippet_runs(run, task, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if run == "glue_run":
        copy("bert", tmp_path / "bert")
        copy("glue", tmp_path / "glue")
        words = "data.max_seq_length=32 data.batch_size=4 num_steps=2 precision.compute=float32"
        succeed("finetune", "rte", "--from", "bert", "--data", "glue=glue", "--out", "run", *words.split(), "-q")
        task = "text-classification"
    else:
        copy(run, tmp_path / "run")
    succeed("export", "run", "--out", "mine", "--license", "apache-2.0")
    card = (tmp_path / "mine/README.md").read_text("utf-8")
    _, header, body = card.split("---\n", 2)
    values = yaml.safe_load(header)
    assert values["license"] == "apache-2.0"
    assert values["library_name"] == "transformers"
    assert values["pipeline_tag"] == task
    provenance = json.loads((tmp_path / "run/provenance.json").read_bytes())
    summary = json.loads((tmp_path / "run/summary.json").read_bytes())
    assert f"| fingerprint | {provenance['data']['fingerprint']} |" in body
    assert f"| loss | {summary['valid_loss']:.4f} |" in body
    accuracy = "masked_lm_accuracy" if run == "bert" else "accuracy"
    share = summary[f"valid_{accuracy}"] / (100 if run == "glue_run" else 1)
    assert f"| {accuracy} | {100 * share:.3g}\u00a0% |" in body
    assert f"with {summary['parameters']:,} parameters" in body
    assert ("| initial weights | `bert` |" in body) == (run == "glue_run")
    assert str(tmp_path) not in card
    (snippet,) = re.findall(r"```python\n(.*?)```", body, re.DOTALL)
    with contextlib.redirect_stdout(io.StringIO()):
        exec(compile(snippet, "card", "exec"), {})


@pytest.mark.parametrize("encoder", ["bert", "t5"])
@pytest.mark.parametrize("kind", ["classes", "numbers"])
def test_the_snippet_of_a_classifier_prints_what_the_run_predicts(encoder, kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    copy(encoder, tmp_path / "encoder")
    labels = {"classes": ("good", "bad", "neither"), "numbers": (0.5, 2, 9)}[kind]
    put_jsonl(
        tmp_path / "rows.jsonl", [{"text": f"Number {number}.", "label": labels[number % 3]} for number in range(24)]
    )
    words = f"data.texts=text data.kind={kind} data.batch_size=8 num_steps=2 precision.compute=float32"
    data = ("data.train=rows.jsonl", "data.valid=rows.jsonl")
    succeed("finetune", "own", "--from", "encoder", *data, *words.split(), "data.num_epochs=null", "--out", "run", "-q")
    put_jsonl(tmp_path / "new.jsonl", [{"text": "Some text."}])
    succeed("predict", "run", "--input", "new.jsonl", "--out", "answers.jsonl")
    succeed("export", "run", "--out", "mine")
    (snippet,) = re.findall(r"```python\n(.*?)```", (tmp_path / "mine/README.md").read_text("utf-8"), re.DOTALL)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(snippet, "card", "exec"), {})
    answer = json.loads((tmp_path / "answers.jsonl").read_text())
    if kind == "classes":
        assert printed.getvalue().strip() == answer["label"]
    else:
        assert float(printed.getvalue()) == pytest.approx(answer["value"], abs=1e-4)


@pytest.mark.parametrize("kind", ["tags", "qa"])
def test_the_snippets_for_tags_and_answers_print_what_the_run_predicts(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    copy("bert", tmp_path / "encoder")
    words, texts = ["Some", "text", "."], {"question": "Who came?", "context": "Ann came."}
    if kind == "tags":
        rows = [{"words": words, "tags": ["DET", "NOUN", "PUNCT"]}, {"words": ["Some"], "tags": ["NOUN"]}]
    else:
        rows = [{**texts, "answers": {"text": ["Ann"], "answer_start": [0]}}]
    put_jsonl(tmp_path / "rows.jsonl", rows * 8)
    data = ("data.train=rows.jsonl", "data.valid=rows.jsonl", "data.max_seq_length=32")
    more = ["data.spans.stride=4", "data.spans.max_question_length=16"] * (kind == "qa")
    quick = "num_steps=60 data.num_epochs=null data.batch_size=8 optimizer.peak_lr=1e-2 precision.compute=float32"
    succeed("finetune", kind, "--from", "encoder", *data, *quick.split(), *more, "--out", "run", "-q")
    put_jsonl(tmp_path / "new.jsonl", [{"words": words} if kind == "tags" else texts])
    succeed("predict", "run", "--input", "new.jsonl", "--out", "answers.jsonl")
    answer = json.loads((tmp_path / "answers.jsonl").read_text())
    succeed("export", "run", "--out", "mine")
    (snippet,) = re.findall(r"```python\n(.*?)```", (tmp_path / "mine/README.md").read_text("utf-8"), re.DOTALL)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(snippet, "card", "exec"), {})
    if kind == "tags":
        assert printed.getvalue().strip() == str(answer["tags"])
    else:
        assert printed.getvalue().strip() == answer["answer"] == "Ann"


def card_of(preset, reader, folder):
    """Export an untrained model, and return its card."""
    config = load_config(preset, ["model.text.vocab_size=9999"] if preset == "clip/tiny" else [])
    recipe = find_recipe(config.recipe)
    recipe.export_huggingface(config, recipe.build_model(config), reader, folder)
    write_card(folder, config, None, name=folder.name)
    return (folder / "README.md").read_text("utf-8")


def test_the_snippet_of_a_card_for_images_runs_and_turns_photographs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    card = card_of("clip/tiny", part("tokenizer"), tmp_path / 'my "own" model')
    assert "pretrainkit evaluate 'my \"own\" model' data.valid=DATA" in card
    (snippet,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    pixels = []
    for name, turns in (("photo.png", 0), ("turned.png", 1)):
        photo = Image.linear_gradient("L").rotate(-90 * turns)
        exif = photo.getexif()
        exif[0x0112] = 8 if turns else 1  # to be turned by 90 degrees against the clock
        photo.save(name, exif=exif)
        names: dict[str, Any] = {}
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(snippet.replace("photo.png", name), "card", "exec"), names)
        pixels.append(names["inputs"]["pixel_values"])
    assert torch.equal(*pixels)


def test_the_card_of_a_model_of_rendered_text_offers_no_code_of_transformers(tmp_path):
    """ViTMAE of transformers needs square pictures, and attends to blank patches."""
    card = card_of("pixel/tiny-grid", part("renderer"), tmp_path / "mine")
    assert "library_name: pretrainkit" in card
    assert "```python" not in card
    assert "pretrainkit evaluate mine data.valid=DATA" in card


def test_the_card_names_the_checkpoint_that_a_run_started_from(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    copy("bert", tmp_path / "first")
    (checkpoint,) = sorted((tmp_path / "first/checkpoints").glob("step-*"))[-1:]
    config = tmp_path / "first/config.yaml"
    for number, place in enumerate((["first"], ["first", f"init.step={int(checkpoint.name[5:])}"], [str(checkpoint)])):
        start = [f"init_from={place[0]}", *place[1:], "num_steps=1"]
        pk.train(pk.load_config(str(config), start), tmp_path / f"run-{number}", device="cpu")
        pk.export(tmp_path / f"run-{number}", "safetensors", tmp_path / f"out-{number}")
    cards = [(tmp_path / f"out-{number}/README.md").read_text("utf-8") for number in range(3)]
    assert "| initial weights | `first` |" in cards[0]
    assert f"| initial weights | `first`, step {int(checkpoint.name[5:]):,} |" in cards[1]
    assert f"| initial weights | `first, {checkpoint.name}` |" in cards[2]


def test_cells_of_a_card_may_have_any_name_and_no_number(tmp_path):
    copy("bert", tmp_path / "run")
    summary = tmp_path / "run/summary.json"
    summary.write_text(json.dumps({**json.loads(summary.read_bytes()), "valid_a|b": None}))
    pk.export(tmp_path / "run", "safetensors", tmp_path / "out")
    assert "| a\\|b | not finite |" in (tmp_path / "out/README.md").read_text("utf-8")


def test_an_export_of_our_own_names_no_path_of_the_machine_and_trains_on(tmp_path):
    copy("bert", tmp_path / "run")
    started = ["init_from=run", "num_steps=1", "data.valid=[]"]
    with chdir(tmp_path):
        pk.train(pk.load_config("run/config.yaml", started), "second", device="cpu")
        pk.export("second", "safetensors", "out")
    tree = yaml.safe_load((tmp_path / "out/config.yaml").read_text("utf-8"))
    texts = [value for value in flatten(tree).values() if isinstance(value, str)]
    assert not [text for text in texts if os.path.isabs(text)]
    assert (tree["data"]["train"], tree["data"]["valid"], tree["init_from"]) == ([], [], None)
    data = pk.load_config(tmp_path / "run/config.yaml").data.train[0].path
    words = [f"init_from={tmp_path / 'out'}", f"data.train={data}", "num_steps=1"]
    pk.train(pk.load_config(tmp_path / "out/config.yaml", words), tmp_path / "third", device="cpu")


def test_a_card_without_a_run_has_no_numbers_and_no_licence(tmp_path):
    copy("bert", tmp_path / "run")
    pk.export(tmp_path / "run", "safetensors", tmp_path / "first")
    pk.export(tmp_path / "first", "safetensors", tmp_path / "second")
    first, second = ((tmp_path / name / "README.md").read_text("utf-8") for name in ("first", "second"))
    assert "## Evaluation" in first
    assert "## Evaluation" not in second
    assert "license:" not in second
    assert "library_name: pretrainkit" in second
    assert "pretrainkit evaluate first data.valid=" in first
    assert "hf download" not in first


@pytest.mark.parametrize("format", ["huggingface", "safetensors"])
def test_an_export_that_ends_at_its_card_leaves_no_folder_that_the_next_one_refuses(format, tmp_path, monkeypatch):
    copy("bert", tmp_path / "run")

    def end(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("pretrainkit.exporting.card.write_card", end)
        with pytest.raises(KeyboardInterrupt):
            pk.export(tmp_path / "run", format, tmp_path / "out")
    pk.export(tmp_path / "run", format, tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == {"run", "out"}


def test_changed_files_of_an_export_are_pushed_in_one_commit(tmp_path):
    pytest.importorskip("huggingface_hub")
    words = ("export", str(part("bert")), "--push", "someone/model", "--revision", "trial", "--json", "--license")
    with served_hub(tmp_path, failures=[503]) as hub:
        done = hub.command(*words, "mit")
        assert done.returncode == 0, done.stderr
        assert len(hub.commits) == 1
        assert json.loads(done.stdout)["files"].keys() == hub.stored.keys()
        assert {"README.md", "config.json", "model.safetensors", "pretrainkit.json"} <= hub.stored.keys()
        assert b'from_pretrained("someone/model")' in hub.stored["README.md"]
        assert b"hf download someone/model --local-dir model\npretrainkit evaluate model" in hub.stored["README.md"]
        changed = hub.command(*words, "apache-2.0")
        assert list(json.loads(changed.stdout)["files"]) == ["README.md"]


class Shelf(Hub):
    """Replaces a hub: its files, and what was sent."""

    def __init__(self):
        self.sent = []

    def existing_files(self):
        return {"same.txt": StoredFile(4, None, hashlib.sha1(b"blob 4\0same", usedforsecurity=False).hexdigest())}

    files = existing_files

    def add(self, files, message):
        self.sent.append(sorted(files))


def test_a_dry_run_lists_missing_files_and_sends_nothing(tmp_path):
    for name, text in (("same.txt", "same"), ("sub/new.txt", "new!!")):
        put(tmp_path / name, text)
    shelf = Shelf()
    assert push_export(tmp_path, shelf, dry_run=True) == {"sub/new.txt": 5}
    assert not shelf.sent
    assert push_export(tmp_path, shelf) == {"sub/new.txt": 5}
    assert shelf.sent == [["sub/new.txt"]]


def test_a_file_that_exists_is_not_overwritten(tmp_path):
    (tmp_path / "taken.npz").touch()
    words = ("export", part("t5"), "--format", "t5x", "--out")
    message = refused(*words, tmp_path / "taken.npz")
    assert "choose another --out" in followed(message, "files/outputs.py: … exists / choose another --out")
    succeed(*words, tmp_path / "other.npz")


def test_options_of_a_push_are_refused_without_it(tmp_path):
    run = part("bert")
    for words in (["--revision", "x"], ["--public"], ["--dry-run"]):
        message = refused("export", run, "--out", tmp_path / "out", *words)
        assert f"{words[0]} has an effect only with --push" in message
    assert "add --out FOLDER" in refused("export", run)

"""From text to an evaluated, exported model, with the commands of README.md."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import pretrainkit as pk
from pretrainkit.tokenizers.load import load_tokenizer
from support.command_line import NO_DROPOUT, TINY, pretrainkit, refused, succeed
from support.remedies import followed
from support.whole_runs import assert_exports_are_the_run


def evaluation(*words: object) -> dict[str, float]:
    return json.loads(succeed("evaluate", *words, "--json"))


@pytest.fixture(scope="module")
def exports(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("exports")
    for name in ("huggingface", "safetensors"):
        succeed("export", finished, "--format", name, "--out", folder / name)
    return {name: folder / name for name in ("huggingface", "safetensors")}


def test_a_run_folder_has_the_documented_files(finished: Path) -> None:
    names = {path.name for path in finished.iterdir()}
    assert {"config.yaml", "provenance.json", "metrics.jsonl", "eval.jsonl", "events.jsonl", "checkpoints"} <= names
    assert sorted(path.name for path in (finished / "checkpoints").glob("step-*")) == [
        "step-00000001",  # fact 38: after the first update, at every multiple, after the last
        "step-00000004",
        "step-00000008",
        "step-00000012",
    ]
    assert {"sentencepiece.model", "tokenizer.json"} <= {path.name for path in (finished / "tokenizer").iterdir()}
    assert not list(finished.rglob(".incomplete*"))


def test_an_export_holds_model_config_and_tokenizer(exports: dict[str, Path]) -> None:
    """Fact 38, for the folder that is handed on."""
    names = {path.name for path in exports["huggingface"].iterdir()}
    assert {"config.json", "model.safetensors", "sentencepiece.model", "tokenizer.json"} <= names


def test_training_lowers_the_loss(made: Path, finished: Path) -> None:
    lines = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, 13))
    assert lines[-1]["loss"] < lines[0]["loss"] - 0.2
    valid = json.loads((finished / "eval.jsonl").read_text().splitlines()[-1])
    assert valid["step"] == 12
    assert valid["masked_lm_loss"] < json.loads((finished / "summary.json").read_text())["uniform_loss"]


def test_evaluate_equals_the_last_evaluation_of_training(finished: Path) -> None:
    recorded = json.loads((finished / "eval.jsonl").read_text().splitlines()[-1])
    again = evaluation(finished)
    assert again == {name: recorded[name] for name in again}


def test_the_average_of_the_weights_is_evaluated_and_exported_if_requested(
    finished: Path, finished_without_dropout: Path, exports: dict[str, Path], tokens: Path, tmp_path: Path
) -> None:
    recorded = json.loads((finished / "eval.jsonl").read_text().splitlines()[-1])
    averaged = evaluation(finished, "--averaged")
    assert averaged == {name: recorded[f"ema_{name}"] for name in averaged}
    assert averaged["loss"] != recorded["loss"]
    succeed("export", finished, "--format", "safetensors", "--averaged", "--out", tmp_path / "averaged")
    assert evaluation(tmp_path / "averaged", f"data.valid={tokens}/valid") == averaged
    assert succeed("generate", finished, "Bada <mask>.", "--averaged")
    assert "ema_decay" in refused("evaluate", finished_without_dropout, "--averaged")
    assert "an export" in refused("evaluate", exports["safetensors"], "--averaged")


def test_evaluate_reads_runs_checkpoints_and_exports_alike(
    finished: Path, exports: dict[str, Path], tokens: Path
) -> None:
    of_run = evaluation(finished)
    assert evaluation(finished / "checkpoints" / "step-00000012") == of_run
    assert evaluation(exports["safetensors"], f"data.valid={tokens}/valid") == of_run
    assert evaluation(finished / "checkpoints" / "step-00000004") != of_run


def test_an_import_of_an_export_evaluates_as_the_run(
    finished: Path, exports: dict[str, Path], tokens: Path, tmp_path: Path
) -> None:
    succeed("import", exports["huggingface"], "--out", tmp_path / "back")
    words = (f"data.valid={tokens}/valid", "--num-examples", 20)
    of_run = evaluation(finished, *words)
    assert evaluation(exports["huggingface"], *words) == of_run
    assert evaluation(tmp_path / "back", *words) == of_run
    other = ("data.max_seq_length=24", "objective.valid_masking_rate=0.3", *words)
    assert evaluation(exports["huggingface"], *other) == evaluation(finished, *other) != of_run


@pytest.mark.parametrize("format", ["huggingface", "safetensors"])
def test_an_export_is_the_run(finished_without_dropout: Path, tmp_path: Path, format: str) -> None:
    assert_exports_are_the_run(finished_without_dropout, tmp_path, "bert", format)


OTHER_BERTS = {
    "bert/modern-tiny": ["objective.masking_rate=0.3", "objective.valid_masking_rate=0.3", "model.local_window=8"],
    "bert/tiny": ["objective.sentence_pair=next", "objective.mask_unit=whole_word", "objective.max_predictions=null"],
    "bert/base": [],
    "bert/modern-mini": ["model.local_window=8"],
    "bert/recipe-a": ["data.microbatch_tokens=null", "model.vocab_size=700"],
    "bert/recipe-b": [
        "data.microbatch_tokens=null",
        "model.vocab_size=700",
        "objective.mask_share=0.7",
        "objective.keep_share=0.2",
    ],
}
"""Presets of each family, with settings that held-out losses depend on."""


@pytest.mark.parametrize("preset", OTHER_BERTS)
def test_an_export_of_another_objective_is_the_run(
    settings: list[str], tmp_path: Path, preset: str, transformers
) -> None:
    short = ["num_steps=2", "evaluate.every_steps=null", "checkpoint.asynchronous=false", "data.microbatch_size=null"]
    pk.train(pk.load_config(preset, [*settings[1:], *short, *OTHER_BERTS[preset]]), tmp_path / "run")
    exported = assert_exports_are_the_run(tmp_path / "run", tmp_path, "bert")
    theirs = transformers.AutoTokenizer.from_pretrained(exported)
    own = load_tokenizer(tmp_path / "run" / "tokenizer")
    texts = ["Bada koli, bada.", "Über naïve  東京 🙂"]
    expected = [[own.special.cls, *own.encode(text), own.special.sep] for text in texts]
    assert [theirs(text)["input_ids"] for text in texts] == expected
    assert theirs.model_max_length == 32


@pytest.mark.parametrize("kind", [("wordpiece", "--lowercase"), ("wordpiece",), ("bpe",)], ids=" ".join)
def test_an_export_with_another_vocabulary_is_the_run(
    made: Path, tmp_path: Path, kind: tuple[str, ...], transformers
) -> None:
    """BERT's with and without case, and RoBERTa's: ids and what is filled in are those of the run."""
    data, short = made / "data", ["num_steps=2", "evaluate.every_steps=null", "checkpoint.asynchronous=false"]
    sizes = ("--vocab-size", 500, "--sentences-from", data / "corpus" / "train" / "*.jsonl")
    succeed("tokenizer", "train", data / "words.tsv", "--kind", *kind, *sizes, "--out", tmp_path / "words")
    succeed("tokenizer", "encode", data / "corpus", "--tokenizer", tmp_path / "words", "--out", tmp_path / "tokens")
    tokens = [f"data.{split}={tmp_path}/tokens/{split}" for split in ("train", "valid")]
    pk.train(pk.load_config("bert/tiny", [*tokens, *TINY, *NO_DROPOUT, *short]), tmp_path / "run")
    exported = assert_exports_are_the_run(tmp_path / "run", tmp_path, "bert")
    theirs, own = transformers.AutoTokenizer.from_pretrained(exported), load_tokenizer(tmp_path / "words")
    for text in ("Bada koli, bada.", "Über naïve  東京 🙂", "tab\tand\nnew"):
        assert theirs(text)["input_ids"] == [own.special.cls, *own.encode(text), own.special.sep]
    texts = [pk.open_model(path).generate(["Bada <mask> bada."]) for path in (tmp_path / "run", exported)]
    assert texts[0] == texts[1]


def test_an_export_reports_which_positions_were_trained(
    settings: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The table has more rows than the run had tokens; an import of a foreign model has no such message."""
    pk.train(pk.load_config(settings[0], [*settings[1:], "num_steps=2"]), tmp_path / "run")
    exported = pk.export(tmp_path / "run", "huggingface", tmp_path / "export")
    message = "positions from 32 to 511 were not trained by this run: give the model at most 32 tokens"
    assert message in caplog.text
    assert json.loads((exported / "pretrainkit.json").read_text())["trained_length"] == 32
    imported = pk.import_model(exported, "bert", tmp_path / "imported")
    caplog.clear()
    again = pk.export(imported, "huggingface", tmp_path / "again")
    assert message in caplog.text
    assert json.loads((again / "tokenizer_config.json").read_text())["model_max_length"] == 32
    (exported / "pretrainkit.json").unlink()
    about = json.loads((exported / "tokenizer_config.json").read_text()) | {"model_max_length": 77}
    (exported / "tokenizer_config.json").write_text(json.dumps(about))
    caplog.clear()
    pk.export(pk.import_model(exported, "bert", tmp_path / "foreign"), "huggingface", tmp_path / "third")
    assert "not trained" not in caplog.text
    assert json.loads((tmp_path / "third" / "tokenizer_config.json").read_text())["model_max_length"] == 77
    assert json.loads((tmp_path / "third" / "pretrainkit.json").read_text())["trained_length"] is None


def test_a_changed_config_of_a_folder_is_used(
    exports: dict[str, Path], tokens: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    changed = shutil.copytree(exports["huggingface"], tmp_path / "changed")
    path = changed / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"hidden_act": "relu"}))
    opened = pk.open_model(changed)
    assert opened.config.model.activation == "relu"
    assert opened.config.data.max_seq_length == 32
    assert "was changed after the export" in caplog.text
    (changed / "pretrainkit.json").write_text("{")
    assert "pretrainkit.json cannot be read" in refused("evaluate", changed, f"data.valid={tokens}/valid")


def test_evaluating_a_foreign_folder_states_the_settings_that_it_takes(
    exports: dict[str, Path], tokens: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """If these settings are given, they replace the stated ones: stated settings that are given back change nothing."""
    foreign = shutil.copytree(exports["huggingface"], tmp_path / "foreign")
    (foreign / "pretrainkit.json").unlink()
    words = [f"data.valid={tokens}/valid"]
    found = pk.evaluate(foreign, overrides=words)
    stated = next(record.getMessage() for record in caplog.records if "no settings of its training" in record.msg)
    assert "data.max_seq_length=128" in stated
    assert "objective.valid_masking_rate=0.15" in stated
    settings = [word for word in stated.split() if word.startswith(("data.", "objective."))]
    assert pk.evaluate(foreign, overrides=[*words, *settings]) == found
    changed = ["data.max_seq_length=32", "objective.valid_masking_rate=0.5", "precision.compute=float32"]
    assert pk.evaluate(foreign, overrides=[*words, *changed]) != found


def test_an_objective_of_another_model_is_refused_in_evaluation(exports: dict[str, Path], tokens: Path) -> None:
    words = ("evaluate", exports["huggingface"], f"data.valid={tokens}/valid")
    assert "is for a model with other layers" in refused(*words, "objective.sentence_order=false")
    assert "cannot be set for a trained model" in refused(*words, "model.hidden_dropout=0.3")


def test_load_model_gives_equal_outputs_for_run_checkpoint_and_exports(
    finished: Path, exports: dict[str, Path]
) -> None:
    weights = pk.load_model(finished).state_dict()
    for path in (finished / "checkpoints" / "step-00000012", exports["safetensors"], exports["huggingface"]):
        other = pk.load_model(path).state_dict()
        assert other.keys() == weights.keys()
        for name, value in weights.items():
            assert torch.equal(other[name], value), f"{path}: {name}"
    earlier = pk.load_model(finished / "checkpoints" / "step-00000004").state_dict()
    assert any(not torch.equal(earlier[name], weights[name]) for name in weights)


def test_transformers_has_the_predictions_of_the_run(
    finished: Path, exports: dict[str, Path], made: Path, transformers
) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(exports["huggingface"])
    theirs = transformers.BertForPreTraining.from_pretrained(exports["huggingface"]).eval()
    sentence = (made / "my_text" / "part-0.txt").read_text().splitlines()[0]
    words = sentence.split()
    prompt = " ".join([words[0], "<mask>", *words[2:]])
    inputs = tokenizer(prompt, return_tensors="pt")
    position = int((inputs["input_ids"][0] == tokenizer.mask_token_id).nonzero())
    with torch.no_grad():
        logits = theirs(**inputs).prediction_logits[0, position]
    best = [tokenizer.decode([index]).strip() for index in logits.topk(3).indices.tolist()]

    row = json.loads(succeed("generate", finished, prompt, "--top", 3, "--json"))
    ours = [answer["piece"].strip() for answer in row["masks"][0]]
    assert ours == best


def test_generate_answers_from_runs_and_exports_alike(finished: Path, exports: dict[str, Path]) -> None:
    answers = {succeed("generate", path, "Bada <mask> koli.", "--top", 2) for path in (finished, *exports.values())}
    assert len(answers) == 1
    assert "<mask>" not in answers.pop()


def test_a_folder_with_its_sentencepiece_model_alone_answers_like_the_whole_one(
    exports: dict[str, Path], tmp_path: Path
) -> None:
    good, alone = exports["huggingface"], tmp_path / "alone"
    shutil.copytree(good, alone)
    (alone / "tokenizer.json").unlink()
    succeed("import", alone, "--out", tmp_path / "ours")
    words = ("the cat <mask> here", "--json")
    assert succeed("generate", tmp_path / "ours", *words) == succeed("generate", good, *words)


def test_a_tokenizer_of_another_model_is_refused_for_text(exports: dict[str, Path], made: Path, tmp_path: Path) -> None:
    good, broken, ours, fixed = exports["huggingface"], tmp_path / "broken", tmp_path / "ours", tmp_path / "fixed"
    shutil.copytree(good, broken)
    more = tmp_path / "larger"
    succeed("tokenizer", "train", made / "data" / "words.tsv", "--vocab-size", 900, "--out", more)
    assert "pieces, but the model reads" in refused("import", good, "--tokenizer", more, "--out", ours)
    assert not ours.exists()
    for name in ("tokenizer.json", "sentencepiece.model"):
        shutil.copy(more / name, broken / name)
    succeed("import", broken, "--out", ours)
    message = refused("generate", ours, "the cat <mask> here")
    advice = followed(message, "recipes/bert/generate.py: the tokenizer")
    words = advice.partition("pretrainkit ")[2].split()
    own = {"MODEL": str(broken), "FOLDER": str(made / "data" / "tokenizer"), "DIR": str(fixed)}
    succeed(*(own.get(word, word) for word in words))
    assert "the cat" in succeed("generate", fixed, "the cat <mask> here")


def test_init_from_starts_with_the_weights_of_a_run_checkpoint_or_export(
    settings: list[str], finished: Path, exports: dict[str, Path], tmp_path: Path
) -> None:
    trained = pk.load_model(finished).state_dict()
    seen = []
    for number, path in enumerate((finished, finished / "checkpoints" / "step-00000012", exports["huggingface"])):
        # The learning rate of update 0 is 0: after one step the weights are still those it started with.
        words = [word for word in settings if not word.startswith("num_steps")]
        out = tmp_path / str(number)
        succeed("train", *words, "num_steps=2", "checkpoint.every_steps=1", f"init_from={path}", "--out", out)
        started = pk.load_model(out / "checkpoints" / "step-00000001").state_dict()
        for name, value in trained.items():
            assert torch.equal(started[name], value), f"{path}: {name}"
        seen.append((out / "metrics.jsonl").read_text().splitlines()[0].split('"grad_norm"')[0])
    assert len(set(seen)) == 1


def test_report_is_one_page_with_the_last_loss(finished: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    succeed("report", finished, "--out", page)
    text = page.read_text(encoding="utf-8")
    assert text.count("<html") == 1
    assert "http://" not in text.replace("http://www.w3.org", "")
    value = json.loads((finished / "eval.jsonl").read_text().splitlines()[-1])["masked_lm_loss"]
    assert f"{value:.3f}"[:4] in text


def test_a_model_may_have_more_rows_than_there_are_pieces(settings: list[str], tmp_path: Path) -> None:
    """Such a model is `bert/base` on a smaller vocabulary; the additional ids are never predicted."""
    more = ["model.vocab_size=4000", "num_steps=2", "seed=3"]
    words = [word for word in settings if not word.startswith("num_steps")]
    succeed("train", *words, *more, "--out", tmp_path / "run")
    assert json.loads((tmp_path / "run" / "samples.json").read_text())
    row = json.loads(succeed("generate", tmp_path / "run", "Bada <mask>.", "--top", 4000, "--json"))
    assert len(row["masks"][0]) == 700


def test_an_export_is_never_written_over_something(finished: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "precious").write_text("mine")
    assert "precious" not in refused("export", finished, "--out", tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["precious"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_unknown_export_formats_are_named(finished: Path, tmp_path: Path) -> None:
    assert "huggingface, safetensors" in refused("export", finished, "--format", "onnx", "--out", tmp_path / "x")
    assert not list(tmp_path.iterdir())


def test_json_output_is_json_and_nothing_else(settings: list[str], tmp_path: Path) -> None:
    out = succeed("train", *settings, "num_steps=3", "--json", "--out", tmp_path / "run")
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["step"] for row in rows if row["event"] == "metrics"] == [1, 2, 3]
    assert rows[0]["event"] == "started"
    assert {"finished", "evaluation"} <= {row["event"] for row in rows}


def test_the_python_api_of_the_readme(settings: list[str], finished: Path, tmp_path: Path) -> None:
    config = pk.load_config(settings[0], settings[1:])
    batch = next(pk.batches(config))
    assert all(isinstance(array, np.ndarray) for array in batch.values())
    pk.train(config.model_copy(update={"num_steps": 2}), tmp_path / "run")
    model = pk.load_model(tmp_path / "run")
    assert isinstance(model, torch.nn.Module)
    assert not model.training
    assert pk.export(tmp_path / "run", "huggingface", tmp_path / "exported") == tmp_path / "exported"
    assert (tmp_path / "exported" / "model.safetensors").is_file()


def test_help_needs_no_torch_and_lists_all_verbs() -> None:
    answer = pretrainkit("--help")
    assert answer.code == 0
    for verb in ("corpus", "tokenizer", "train", "resume", "evaluate", "generate", "export", "import", "report"):
        assert f"\n  {verb} " in answer.out

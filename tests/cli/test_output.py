"""Output for machines: --json, YAML that reads back, and the list of recipes with a broken recipe."""

import io
import json
import math
import sys

import pytest

import pretrainkit
from pretrainkit.cli.main import main
from pretrainkit.cli.options import print_json
from pretrainkit.cli.progress import JsonWatcher
from pretrainkit.config.loader import flatten
from pretrainkit.recipes import registry
from pretrainkit.recipes.registry import Recipes, find_recipe


def presets() -> list[str]:
    return [f"bert/{name}" for name in find_recipe("bert").presets]


@pytest.mark.parametrize("preset", presets())
@pytest.mark.parametrize("options", [[], ["--plain"]], ids=["documented", "plain"])
def test_config_show_reads_back(cli, tmp_path, preset, options):
    result = cli("config", "show", preset, "data.train=a,b", "seed=7", *options)
    assert result.code == 0
    path = tmp_path / "shown.yaml"
    path.write_text(result.out, encoding="utf-8")
    assert pretrainkit.load_config(path) == pretrainkit.load_config(preset, ["data.train=a,b", "seed=7"])


def test_config_show_as_json_is_the_config(cli):
    result = cli("config", "show", "bert/tiny", "--json")
    assert json.loads(result.out) == Recipes().preset("bert/tiny").model_dump(mode="json")


def test_a_part_of_a_config_is_shown_alone(cli):
    shown = json.loads(cli("config", "show", "bert/tiny", "--under", "optimizer", "--json").out)
    assert shown == Recipes().preset("bert/tiny").optimizer.model_dump(mode="json")
    assert cli("config", "show", "bert/tiny", "--under", "optimizer.peak_lr").out.strip() == str(shown["peak_lr"])


def test_every_value_has_an_origin(cli, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("extends: bert/tiny\noptimizer: {beta2: 0.95}\n", encoding="utf-8")
    result = cli("config", "show", str(path), "seed=3", "--origins")
    lines = {line.split(maxsplit=1)[0]: line for line in result.out.splitlines()}
    assert set(lines) == set(flatten(Recipes().preset("bert/tiny").model_dump(mode="json")))
    assert lines["seed"].endswith("command line")
    assert lines["optimizer.beta2"].endswith(f"file {path}")
    assert lines["optimizer.beta1"].endswith("preset bert/tiny")


def test_the_schema_is_json(cli):
    schema = json.loads(cli("config", "schema", "bert").out)
    assert {"extends", "model", "data"} <= schema["properties"].keys()


def test_recipes_lists_every_preset_with_a_line(cli):
    (row,) = [row for row in json.loads(cli("recipes", "--json").out) if row["recipe"] == "bert"]
    assert list(row["presets"]) == presets()
    assert all(row["presets"].values())
    text = cli("recipes").out
    assert all(preset in text for preset in presets())


def test_json_of_corpus_and_tokenizer_verbs(cli, tmp_path):
    text = tmp_path / "text.txt"
    animals, deeds = ("cat", "dog", "owl", "fox", "hen", "cow"), ("ran", "sat", "saw us", "slept", "fled", "ate")
    text.write_text("".join(f"The {animal} {deed}.\n\n" for animal in animals for deed in deeds))
    corpus, words, folder, tokens = (str(tmp_path / name) for name in ("corpus", "words.tsv", "tokenizer", "tokens"))

    shards = cli("corpus", "shards", str(text), "--out", corpus, "--heldout", "0.4", "--num-shards", "1", "--json")
    manifests = json.loads(shards.out)
    assert sum(manifests[split]["num_documents"] for split in ("train", "valid")) == 36
    stats = json.loads(cli("corpus", "stats", str(text), "--json").out)
    assert stats["num_documents"] == 36
    counted = json.loads(cli("corpus", "count-words", f"{corpus}/train/*.jsonl", "--out", words, "--json").out)
    assert counted["num_distinct_words"] > 3
    made = cli("tokenizer", "train", words, "--kind", "bpe", "--vocab-size", "280", "--out", folder, "--json")
    manifest = json.loads(made.out)
    encoded = json.loads(
        cli(
            "tokenizer", "encode", corpus, "--tokenizer", folder, "--out", tokens, "--splitter", "newline", "--json"
        ).out
    )
    assert encoded["train"]["tokenizer"]["fingerprint"] == manifest["fingerprint"]
    shown = json.loads(cli("tokenizer", "inspect", f"{tokens}/train", "--json").out)
    assert shown["num_tokens"] == encoded["train"]["num_tokens"]
    pieces = json.loads(cli("tokenizer", "show", "The cat", "--tokenizer", folder, "--json").out)
    assert len(pieces["ids"]) == len(pieces["pieces"])


@pytest.fixture
def broken_plugin(tmp_path, monkeypatch):
    """An installed package whose recipe cannot be imported."""
    installed = tmp_path / "shaky-1.0.dist-info"  # what pip writes
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: shaky\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text(f"[{registry.GROUP}]\nshaky = no_such_package.recipe:RECIPE\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    registry.entries.cache_clear()
    yield
    registry.entries.cache_clear()


@pytest.mark.usefixtures("broken_plugin")
def test_a_broken_plugin_is_listed_as_broken(cli):
    rows = {row["recipe"]: row for row in json.loads(cli("recipes", "--json").out)}
    assert "No module named 'no_such_package'" in rows["shaky"]["broken"]
    assert "presets" in rows["bert"]
    text = cli("recipes").out
    assert "shaky: BROKEN" in text
    assert "bert/tiny" in text


@pytest.mark.usefixtures("broken_plugin")
@pytest.mark.parametrize("words", [["config", "show", "shaky/small"], ["train", "shaky/small"]])
def test_a_broken_plugin_fails_when_it_is_named(cli, words):
    result = cli(*words)
    assert result.code == 2
    assert "recipe 'shaky' (no_such_package.recipe:RECIPE) is broken" in result.err
    assert "Traceback" not in result.err


@pytest.mark.usefixtures("broken_plugin")
def test_a_broken_plugin_does_not_keep_others_from_working(cli, tmp_path):
    assert "did you mean bert/tiny" in cli("train", "bert-tiny").err
    assert "no recipe reads" not in cli("import", str(tmp_path), "--out", str(tmp_path / "out")).err
    assert "shaky" not in cli("finetune", "cola", "--from", str(tmp_path)).err


def test_printed_json_has_no_nan(capsys):
    JsonWatcher().logged(3, {"loss": math.nan, "lr": 0.5})
    assert json.loads(capsys.readouterr().out) == {"event": "metrics", "step": 3, "loss": None, "lr": 0.5}
    print_json([{"a": {"b": (math.inf, 1)}}])
    assert json.loads(capsys.readouterr().out) == [{"a": {"b": [None, 1]}}]


@pytest.mark.parametrize(("encoding", "shown"), [("utf-8", "ü"), ("ascii", "\\u00fc")])
def test_printed_json_escapes_characters_that_cannot_be_shown(monkeypatch, encoding, shown):
    for value in ("ü", "ü\udce9"):  # the second has a byte of a path that is not UTF-8
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding=encoding))
        print_json(value)
        raw = sys.stdout.buffer.getvalue().decode()
        assert json.loads(raw) == value
        assert value != "ü" or shown in raw


def test_text_with_characters_that_cannot_be_shown_is_printed(monkeypatch, tmp_path):
    folder = tmp_path / "ü"
    folder.mkdir()
    (folder / "config.yaml").write_text("recipe: bert\n", "utf-8")
    (folder / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n')
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    monkeypatch.setattr(sys, "argv", ["pretrainkit", "runs", str(tmp_path)])
    with pytest.raises(SystemExit) as end:
        main()
    sys.stdout.flush()
    assert not end.value.code
    assert b"\\xfc" in sys.stdout.buffer.getvalue()

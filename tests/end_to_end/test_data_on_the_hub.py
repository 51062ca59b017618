"""Data of our commands on a server that speaks as the Hugging Face hub does: uploaded, and read from there."""

import json
import re
import shutil

import pytest
import yaml

from pretrainkit.errors import DataError
from pretrainkit.files.hub import Hub
from pretrainkit.files.sources import find_sources, find_splits, hub_splits
from pretrainkit.running.publish import push_data
from pretrainkit.tokenizers.encode import EncodeSettings, encode_corpus
from pretrainkit.tokenizers.shards import TokenShards
from support.command_line import refused, succeed
from support.hub_server import ServedHub, served_hub
from support.pair_sets import png, write_samples
from support.remedies import followed

pytestmark = pytest.mark.slow

datasets = pytest.importorskip("datasets")
pytest.importorskip("huggingface_hub")

LINES = EncodeSettings(splitter="newline")
TEXTS = {
    "train": [f"the first word of row {row}\nand the second line of it" for row in range(60)],
    "validation": [f"a word that is held out in row {row}" for row in range(9)],
    "test": ["never read"],
}


def ran(hub: ServedHub, *words: object) -> str:
    done = hub.command(*map(str, words))
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder of `datasets`, one of its parquet files as on the hub, a corpus and token shards of it."""
    folder = tmp_path_factory.mktemp("made")
    rows = datasets.DatasetDict({name: datasets.Dataset.from_dict({"text": texts}) for name, texts in TEXTS.items()})
    rows.save_to_disk(str(folder / "saved"))
    for name in TEXTS:
        rows[name].to_parquet(str(folder / f"published/data/{name}-00000-of-00001.parquet"))
    with served_hub(folder) as hub:
        training = folder / "published/data/train-00000-of-00001.parquet"
        ran(hub, "corpus", "count-words", training, "--out", folder / "words.tsv")
        ran(hub, "tokenizer", "train", folder / "words.tsv", "--out", folder / "tokenizer")
        ran(hub, "corpus", "shards", training, "--out", folder / "corpus", "--num-shards", 2)
    encode_corpus([folder / "saved"], folder / "tokenizer", folder / "tokens", LINES, workers=1)
    return folder


def test_token_shards_are_uploaded_with_a_card_and_come_back_whole(made, tmp_path):
    words = ("data", "push", made / "tokens", "someone/set", "--license", "cc-by-4.0")
    with served_hub(tmp_path, failures=[503]) as hub:
        would = json.loads(ran(hub, *words, "--dry-run", "--json"))
        assert not hub.stored
        sent = json.loads(ran(hub, *words, "--json", "--revision", "trial"))
        assert would["files"] == sent["files"]
        assert "nothing has changed" in ran(hub, *words)
    assert list(sent["files"])[-1] == "README.md"
    assert len(hub.commits) > 1
    for path, content in hub.stored.items():
        (tmp_path / "back" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "back" / path).write_bytes(content)
    card = hub.stored["README.md"].decode()
    header = yaml.safe_load(card.split("---")[1])
    assert header == {"license": "cc-by-4.0", "tags": ["pretrainkit"], "viewer": False}
    for split, num_documents in (("train", 60), ("valid", 9)):
        shards = TokenShards.open(tmp_path / "back" / split, verify=True)
        assert shards.num_documents == num_documents
        assert f"| {shards.num_tokens:,} |" in card
        assert f"`{shards.fingerprint}`" in card
        assert (tmp_path / "back" / split / "tokenizer").is_dir()
    inspected, trained = re.findall(r"^pretrainkit (.+)$", card, re.MULTILINE)
    assert "documents" in succeed(*inspected.replace("data/train", str(tmp_path / "back/train")).split())
    assert trained == "train PRESET data.train=data/train"


def test_a_corpus_is_uploaded_and_a_card_of_the_author_is_kept(made, tmp_path):
    shutil.copytree(made / "corpus", tmp_path / "corpus")
    (tmp_path / "corpus/.work").mkdir()
    (tmp_path / "corpus/.work/part").write_text("not finished")
    with served_hub(tmp_path) as hub:
        ran(hub, "data", "push", tmp_path / "corpus", "someone/set")
        assert "documents as shuffled JSON lines" in hub.stored["README.md"].decode()
        (tmp_path / "corpus/README.md").write_text("# Mine")
        ran(hub, "data", "push", tmp_path / "corpus", "someone/set")
    assert hub.stored.pop("README.md") == b"# Mine"
    whole = (path for path in (made / "corpus").rglob("*") if path.is_file())
    assert sorted(hub.stored) == sorted(str(path.relative_to(made / "corpus")) for path in whole)


@pytest.mark.parametrize(("kind", "column"), [("corpus", "text"), ("pairs", "txt")])
def test_the_header_of_a_card_names_the_files_of_each_split_for_datasets(kind, column, made, tmp_path):
    if kind == "corpus":
        shutil.copytree(made / "corpus", tmp_path / "set")
    else:
        write_samples(tmp_path / "0.tar", ({"png": png(number), "txt": b"a caption"} for number in range(9)))
        succeed("data", "pack", tmp_path / "0.tar", "--heldout", 0.3, "--out", tmp_path / "set")
    (tmp_path / "set/train").rename(tmp_path / "set/not a-word")
    manifests = {path.parent.name: json.loads(path.read_bytes()) for path in tmp_path.glob("set/*/manifest.json")}
    with served_hub(tmp_path) as hub:
        ran(hub, "data", "push", tmp_path / "set", "someone/set")
    for path, content in hub.stored.items():
        (tmp_path / "back" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "back" / path).write_bytes(content)
    assert "'data/not a-word'" in hub.stored["README.md"].decode()
    loaded = datasets.load_dataset(str(tmp_path / "back"), cache_dir=str(tmp_path / "cache"))
    for name, folder in (("not_a_word", "not a-word"), ("valid", "valid")):
        assert column in loaded[name].column_names
        assert len(loaded[name]) == manifests[folder].get("num_documents", manifests[folder].get("num_pairs"))


def test_data_that_are_not_whole_are_not_uploaded(made, tmp_path):
    shutil.copytree(made / "tokens", tmp_path / "tokens")
    next((tmp_path / "tokens/valid").glob("tokens-*")).unlink()
    with pytest.raises(DataError, match="is missing"):
        push_data(tmp_path / "tokens", Hub("someone/set"))
    with pytest.raises(DataError, match="there is no folder"):
        push_data(tmp_path / "absent", Hub("someone/set"))
    (tmp_path / "tokens/valid/manifest.json").unlink()
    with pytest.raises(DataError, match="no finished data"):
        push_data(tmp_path / "tokens/valid", Hub("someone/set"))


def test_without_network_the_hub_is_one_message(made, tmp_path):
    with served_hub(tmp_path) as hub:
        hub.environment["HF_HUB_OFFLINE"] = "1"
        done = hub.command("data", "push", str(made / "tokens"), "someone/set", "--dry-run")
    assert done.returncode == 1
    assert "HF_HUB_OFFLINE is set\n  unset it" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_data_set_of_the_hub_is_encoded_and_rendered_as_its_files_are(made, tmp_path, latin_font):
    """The library requests the splits from the server, and reads files over HTTP."""
    published = {path.relative_to(made / "published"): path for path in (made / "published").rglob("*.parquet")}
    with served_hub(tmp_path) as hub:
        hub.stored.update({str(name): path.read_bytes() for name, path in published.items()})
        there = "hf://datasets/someone/set"
        words = ("--tokenizer", made / "tokenizer", "--splitter", "newline", "--out", tmp_path / "tokens")
        ran(hub, "tokenizer", "encode", there, *words)
        ran(hub, "corpus", "count-words", there, "--out", tmp_path / "words.tsv")
        drawing = ("--renderer", latin_font, "--max-patches", 30, "--json", "--out")
        rendered = json.loads(ran(hub, "render", there, *drawing, tmp_path / "rows"))
        local = json.loads(ran(hub, "render", made / "saved", *drawing, tmp_path / "local"))
    for split in ("train", "valid"):
        assert TokenShards.open(tmp_path / "tokens" / split).fingerprint == (
            TokenShards.open(made / "tokens" / split).fingerprint
        )
    assert (tmp_path / "words.tsv").read_bytes() == (made / "words.tsv").read_bytes()
    assert rendered.keys() == local.keys() == {"train", "valid"}
    for split, num_documents in (("train", 60), ("valid", 9)):
        assert rendered[split]["num_documents"] == num_documents
        assert rendered[split]["fingerprint"] == local[split]["fingerprint"]


def test_folders_that_datasets_saved_are_read_by_split(made, caplog):
    splits = find_splits([made / "saved"])
    assert {name: [path.name for path in paths] for name, paths in splits.items()} == {
        "train": ["train"],
        "valid": ["validation"],
    }
    assert "only train and validation will be read, not test" in caplog.text
    assert [source.format for source in find_sources([made / "saved/train"])] == ["arrow"]
    with pytest.raises(DataError, match="contains several splits") as error:
        find_sources([made / "saved"])
    assert str(made / "saved/train") in str(error.value)


def test_a_missing_configuration_or_split_is_reported(monkeypatch):
    class Builder:
        def __init__(self, name, config, revision):
            self.config = self
            self.data_files = {"test": ["hf://datasets/someone/set@1/test.parquet"]}
            if config is None:
                raise ValueError("Config name is missing. Please pick one among the available configs: ['en', 'de']")

    monkeypatch.setattr(datasets, "load_dataset_builder", Builder)
    with pytest.raises(DataError, match="pick one among") as error:
        hub_splits("hf://datasets/someone/set")
    assert "name a configuration (hf://datasets/someone/set:CONFIGURATION)" in str(error.value)
    with pytest.raises(DataError, match="has no split named train") as error:
        find_sources(["hf://datasets/someone/set@main:en"])
    assert "corpus hub --split NAME" in followed(error.value, "files/sources.py: … has no split named train")
    assert hub_splits("hf://datasets/someone/set/data/train.parquet") == {}


def test_rows_are_uploaded_or_kept_and_never_both(made, tmp_path, latin_font):
    words = ("render", made / "saved/train", "--renderer", latin_font, "--max-patches", 30)
    both = refused(*words, "--push", "someone/set", "--out", tmp_path / "rows")
    assert "data push FOLDER USER/NAME" in followed(both, "cli/render.py: --push uploads rows without keeping them")
    split = refused(*words, "--out", tmp_path / "rows", "--split", "test")
    assert "leave out --split" in followed(split, "cli/render.py: --split … has an effect only if CORPUS")
    unused = refused(*words, "--out", tmp_path / "rows", "--public")
    assert "leave out --public" in followed(unused, "cli/render.py: … has an effect only with --push")
    succeed(*words, "--out", tmp_path / "rows")
    with served_hub(tmp_path) as hub:
        ran(hub, "data", "push", tmp_path / "rows", "someone/set")
        assert "data/train-00000-of-00001.parquet" in hub.stored

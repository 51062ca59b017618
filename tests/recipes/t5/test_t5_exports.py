"""Exports of every family of T5: the run, and the ids of the run, in transformers too."""

import json
import logging
from collections import Counter
from pathlib import Path

import pytest

import pretrainkit
from pretrainkit.errors import InputError
from pretrainkit.recipes.t5.recipe import RECIPE
from pretrainkit.recipes.t5.texts import encode
from pretrainkit.tasks.vocabulary import ByteVocabulary
from pretrainkit.tasks.vocabulary_folder import open_vocabulary, save_vocabulary
from pretrainkit.tokenizers.encode import encode_corpus
from pretrainkit.tokenizers.load import load_tokenizer
from pretrainkit.tokenizers.train import TokenizerSettings, train_tokenizer
from support.whole_runs import assert_exports_are_the_run

SHAPE = (
    *("model.hidden_size=16", "model.num_heads=2", "model.head_size=8", "model.intermediate_size=24"),
    *("model.num_encoder_layers=1", "model.num_decoder_layers=1"),
    *("data.input_length=64", "data.target_length=24", "data.batch_size=4", "data.microbatch_size=null", "num_steps=2"),
    *("checkpoint.asynchronous=false", "precision.compute=float32", "evaluate.num_examples=8"),
    *("schedule.num_warmup_steps=1",),
)
TEXTS = [f"the {animal} {verb} behind the {place} {number}" for number in range(12) for animal in ("cat", "dog")
         for verb in ("walks", "sleeps", "sings") for place in ("old house", "river")]  # fmt: skip
PROBES = ["the cat walks", "Über <b>naïve</b> dogs;  東京 🙂", "x"]


def tokens_of(root: Path, settings: TokenizerSettings) -> Path:
    counts = Counter(word for text in TEXTS for word in text.split())
    (root / "words.tsv").write_text("".join(f"{word}\t{count}\n" for word, count in counts.items()), encoding="utf-8")
    train_tokenizer([root / "words.tsv"], root / "tokenizer", settings, as_many_as_possible=True)
    for split, part in (("train", TEXTS[:100]), ("valid", TEXTS[100:])):
        folder = root / "corpus" / split
        folder.mkdir(parents=True)
        lines = (json.dumps({"text": ". ".join(part[number : number + 4])}) for number in range(0, len(part), 4))
        (folder / "part.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    encode_corpus([root / "corpus"], root / "tokenizer", root / "tokens", workers=1)
    return root / "tokens"


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Token shards of a vocabulary with sentinels."""
    return tokens_of(tmp_path_factory.mktemp("t5"), TokenizerSettings(vocab_size=290, layout="t5"))


SLOW = pytest.param("mt5-small", marks=pytest.mark.slow)  # its vocabulary is a quarter of a million pieces


@pytest.mark.parametrize("preset", ["tiny", "mini", "1.0-small", "1.1-small", "1.1-base-nano", SLOW, "umt5-small"])
def test_an_export_is_the_run_and_reads_its_ids(tokens: Path, tmp_path: Path, transformers, preset: str) -> None:
    data = [f"data.train={tokens}/train", f"data.valid={tokens}/valid", "model.vocab_size=512"]
    if preset == "mt5-small":
        data[-1] = "model.vocab_size=250112"  # by which transformers distinguishes it from T5 1.1
    pretrainkit.train(pretrainkit.load_config(f"t5/{preset}", [*SHAPE, *data]), tmp_path / "run")
    exported = assert_exports_are_the_run(tmp_path / "run", tmp_path, "t5")
    values = json.loads((exported / "config.json").read_text())
    assert values["model_type"] == {"mt5-small": "mt5", "umt5-small": "umt5"}.get(preset, "t5")
    theirs = transformers.AutoTokenizer.from_pretrained(exported)
    vocabulary = open_vocabulary(tmp_path / "run" / "tokenizer")
    assert [theirs(text)["input_ids"] for text in PROBES] == [[*vocabulary.encode(text), 1] for text in PROBES]
    hidden = "the cat <extra_id_0> behind the <extra_id_7>"
    assert theirs(hidden)["input_ids"] == [*encode(hidden, vocabulary), 1]
    assert vocabulary.sentinel_ids[7] in encode(hidden, vocabulary)
    assert theirs.model_max_length == 64


@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "unigram"])
def test_a_run_on_shards_of_a_tokenizer_of_bert_is_used_and_exported(tmp_path: Path, transformers, kind: str) -> None:
    """Texts of such shards end with [SEP] and have no [CLS]. Only byte-level BPE keeps line ends."""
    tokens = tokens_of(tmp_path, TokenizerSettings(kind=kind, vocab_size=310))
    data = [f"data.train={tokens}/train", f"data.valid={tokens}/valid", "model.vocab_size=512"]
    pretrainkit.train(pretrainkit.load_config("t5/tiny", [*SHAPE, *data]), tmp_path / "run")
    exported = assert_exports_are_the_run(tmp_path / "run", tmp_path, "t5")
    theirs = transformers.AutoTokenizer.from_pretrained(exported)
    vocabulary = open_vocabulary(tmp_path / "run" / "tokenizer")
    assert vocabulary.eos_id == load_tokenizer(tmp_path / "tokenizer").special.sep
    hidden = "the cat <extra_id_0> behind\n\tthe <extra_id_7>"
    assert [theirs(text)["input_ids"] for text in PROBES] == [
        [*vocabulary.encode(text), vocabulary.eos_id] for text in PROBES
    ]
    assert theirs(hidden)["input_ids"] == [*encode(hidden, vocabulary), vocabulary.eos_id]
    assert sorted(theirs("x")) == ["attention_mask", "input_ids"]
    pretrainkit.generate(tmp_path / "run", [hidden])
    assert vocabulary.decode(vocabulary.encode("the cat")) == "the cat"  # metrics compare it with the target
    assert (vocabulary.decode(vocabulary.encode("a\n\tb")) == "a\n\tb") == (kind == "bpe")


@pytest.mark.parametrize("format", ["t5x", "safetensors"])
def test_files_of_the_original_and_of_ours_are_the_run(tokens: Path, tmp_path: Path, format: str) -> None:
    data = [f"data.train={tokens}/train", f"data.valid={tokens}/valid", "model.vocab_size=512"]
    pretrainkit.train(pretrainkit.load_config("t5/1.1-small", [*SHAPE, *data]), tmp_path / "run")
    assert_exports_are_the_run(tmp_path / "run", tmp_path, "t5", format, name="export.npz")


DECODER = ("model.kind=decoder_only", "model.num_encoder_layers=null", "data.target_length=64")
ENCODER = ("model.kind=encoder_only", "model.num_decoder_layers=null", "data.target_length=64")


@pytest.mark.parametrize(
    ("stack", "denoising"), [(DECODER, "full_lm"), (DECODER, "prefix_lm"), (ENCODER, "mass_style")]
)
def test_a_model_of_one_stack_is_exported_as_the_message_advises(
    tokens: Path, tmp_path: Path, stack: tuple[str, ...], denoising: str
) -> None:
    """transformers has no such T5."""
    data = [f"data.train={tokens}/train", f"data.valid={tokens}/valid", "model.vocab_size=512"]
    words = [*SHAPE, *data, *stack, f"data.denoising.name={denoising}"]
    pretrainkit.train(pretrainkit.load_config("t5/1.1-small", words), tmp_path / "run")
    with pytest.raises(InputError, match="use --format safetensors"):
        pretrainkit.export(tmp_path / "run", "huggingface", tmp_path / "none")
    assert_exports_are_the_run(tmp_path / "run", tmp_path, "t5", "safetensors")


def test_an_export_of_a_mixture_of_denoisers_is_the_run(tokens: Path, tmp_path: Path, transformers) -> None:
    data = [f"data.train={tokens}/train", f"data.valid={tokens}/valid", "model.vocab_size=512"]
    words = [*SHAPE, *data, "data.denoising.name=ul2", "data.target_length=64", "data.packing=true"]
    pretrainkit.train(pretrainkit.load_config("t5/1.1-small", words), tmp_path / "run")
    assert_exports_are_the_run(tmp_path / "run", tmp_path, "t5")


def test_a_run_on_tasks_of_bytes_is_exported_with_the_tokenizer_of_bytes(
    module: str, tmp_path: Path, transformers, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a missing or wrong tokenizer, transformers read garbage without a message."""
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    task = [f"data.modules={module}", "data.task=t5_source_copy", "evaluate.infer=null"]
    pretrainkit.train(pretrainkit.load_config("t5/byt5-small", [*SHAPE, *task]), tmp_path / "run")
    exported = assert_exports_are_the_run(tmp_path / "run", tmp_path, "t5")
    assert "Token indices sequence length" not in caplog.text  # of texts that only compare the tokenizers
    theirs = transformers.AutoTokenizer.from_pretrained(exported)
    assert type(theirs).__name__ == "ByT5Tokenizer"
    assert [theirs(text)["input_ids"] for text in PROBES] == [[*(b + 3 for b in text.encode()), 1] for text in PROBES]
    opened = pretrainkit.open_model(tmp_path / "imported")
    assert RECIPE.input_ids(opened.config, opened.tokenizer, PROBES) == [theirs(text)["input_ids"] for text in PROBES]
    assert "reads" not in caplog.text


@pytest.mark.parametrize("num", [0, 1, 5, 100])
def test_sentinels_of_bytes_have_the_same_ids_in_transformers_and_back(tmp_path: Path, transformers, num: int) -> None:
    vocabulary = ByteVocabulary(num)
    assert save_vocabulary(vocabulary, tmp_path / "saved")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")
    first, last = vocabulary.sentinel_ids[0], vocabulary.sentinel_ids[-1]
    text = f"a<extra_id_0>é<extra_id_{len(vocabulary.sentinel_ids) - 1}>"
    assert theirs(text)["input_ids"] == [100, first, 198, 172, last, 1]
    assert open_vocabulary(tmp_path / "saved") == vocabulary
    theirs.save_pretrained(tmp_path / "again")
    assert open_vocabulary(tmp_path / "again") == vocabulary


def test_the_sentinels_that_transformers_adds_to_the_released_byt5_are_none_of_its_own(
    tmp_path: Path, transformers
) -> None:
    transformers.ByT5Tokenizer().save_pretrained(tmp_path / "released")
    assert open_vocabulary(tmp_path / "released") == ByteVocabulary()


def test_a_tokenizer_that_transformers_reads_otherwise_is_named(
    tokens: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = [f"data.train={tokens}/train", f"data.valid={tokens}/valid", "model.vocab_size=512", "num_steps=1"]
    pretrainkit.train(pretrainkit.load_config("t5/tiny", [*SHAPE, *data]), tmp_path / "run")
    path = tmp_path / "run" / "tokenizer" / "tokenizer.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    content["normalizer"] = {"type": "Lowercase"}
    path.write_text(json.dumps(content), encoding="utf-8")
    pretrainkit.export(tmp_path / "run", "huggingface", tmp_path / "export")
    assert 'AutoTokenizer reads "The quick brown fox' in caplog.text

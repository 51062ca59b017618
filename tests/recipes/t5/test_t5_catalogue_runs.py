"""Runs on named tasks: the origin of their vocabulary, and its copy in the run."""

import json
import shutil

import numpy as np
import pytest

import pretrainkit
from pretrainkit.errors import ConfigError, DataError
from pretrainkit.recipes.t5.source import bind, open_source
from pretrainkit.recipes.t5.task_source import registry_of
from pretrainkit.tasks.task import REGISTRY, Feature, add_task
from pretrainkit.tasks.vocabulary import ByteVocabulary, SentencePieceVocabulary
from pretrainkit.tasks.vocabulary_folder import open_vocabulary
from pretrainkit.tokenizers.train import TokenizerSettings, train_tokenizer

WORDS = ("the", "cat", "sat", "on", "a", "mat", "and", "looked", "at", "dogs", "with", "nine", "blue", "eyes")


def text(number):
    return " ".join(np.random.default_rng(number).choice(WORDS, 12))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("named")
    for split, num in (("train", 40), ("dev", 8)):
        rows = [f"{n}\t{text(n)}\t{text(n + 1)}\tentailment" for n in range(num)]
        for name in ("RTE", "WNLI"):
            (root / "glue" / name).mkdir(parents=True, exist_ok=True)
            (root / "glue" / name / f"{split}.tsv").write_text("index\tsentence1\tsentence2\tlabel\n" + "\n".join(rows))
    (root / "c4/en").mkdir(parents=True)
    for split, num in (("train", 60), ("validation", 12)):
        lines = [json.dumps({"text": text(n)}) for n in range(num)]
        (root / "c4/en" / f"{split}.jsonl").write_text("\n".join(lines))
    counts = "".join(f"{word}\t{50 + n}\n" for n, word in enumerate(WORDS))
    (root / "words.tsv").write_text(counts)
    return root


@pytest.fixture(scope="module")
def tokenizer(folder):
    train_tokenizer([folder / "words.tsv"], folder / "tokenizer", TokenizerSettings(layout="t5", vocab_size=280))
    return folder / "tokenizer"


def config_of(folder, *words):
    return pretrainkit.load_config(
        "t5/tiny",
        [
            "num_steps=2",
            "data.batch_size=4",
            "data.input_length=32",
            "data.target_length=16",
            "evaluate.num_examples=4",
            f"data.task_folders={folder}",
            *words,
        ],
    )


def test_a_run_keeps_the_tokenizer_and_hands_it_on(folder, tokenizer, tmp_path):
    own = tmp_path / "own"
    shutil.copytree(tokenizer, own)
    first = config_of(folder, "data.task=c4_v020_unsupervised", f"data.tokenizer={own}")
    pretrainkit.train(first, tmp_path / "first")
    shutil.rmtree(own)
    assert pretrainkit.resume(tmp_path / "first", ["num_steps=3"])
    second = bind(config_of(folder, "data.task=glue_rte_v002", f"init_from={tmp_path / 'first'}"))
    assert second.data.tokenizer == str(tmp_path / "first" / "tokenizer")
    pretrainkit.train(second, tmp_path / "second")
    assert (tmp_path / "second" / "tokenizer" / "sentencepiece.model").is_file()
    vocabulary = registry_of(second).get_task("glue_rte_v002").features["inputs"].vocabulary
    assert vocabulary == SentencePieceVocabulary(tokenizer, extra_ids=100)
    assert pretrainkit.evaluate(tmp_path / "second", overrides=["data.task=glue_rte_v002"])
    with pytest.raises(ConfigError, match="have different vocabularies"):
        bind(config_of(folder, "data.task=glue_rte_v002", f"init_from={tmp_path / 'first'}", "data.tokenizer=bytes"))


def test_a_model_of_bytes_hands_on_bytes(folder, tmp_path):
    pretrainkit.train(config_of(folder, "data.task=glue_rte_v002", "data.tokenizer=bytes"), tmp_path / "bytes")
    config = bind(config_of(folder, "data.task=glue_rte_v002", f"init_from={tmp_path / 'bytes'}"))
    assert config.data.tokenizer == "bytes"
    batch = open_source(config, "train").build(np_records(1))
    assert bytes((batch["encoder_input_tokens"][0][:15] - 3).astype(np.uint8)) == b"rte sentence1: "


def np_records(num):
    from pretrainkit.data.source import Records

    zeros = np.zeros(num, np.int64)
    return Records(zeros, zeros, np.arange(num), zeros.astype(np.uint64))


def test_new_noise_of_the_runs_objective_in_every_epoch(folder, tokenizer):
    words = ("data.task=c4_v020_unsupervised", f"data.tokenizer={tokenizer}")
    spans = open_source(bind(config_of(folder, *words)), "train")
    prefix = open_source(
        bind(config_of(folder, *words, "data.denoising.name=prefix_lm", "data.target_length=31")), "train"
    )
    assert spans.fingerprint != prefix.fingerprint
    records = np_records(4)
    again = type(records)(records.source, records.epoch + 1, records.index, records.key)
    inputs = [spans.build(one)["encoder_input_tokens"] for one in (records, records, again)]
    np.testing.assert_array_equal(inputs[0], inputs[1])
    assert not np.array_equal(inputs[0], inputs[2])
    assert (prefix.build(records)["encoder_input_tokens"] < 280).all()
    with pytest.raises(ConfigError, match="name=ul2 has 7 denoisers, but a task of text supports only one"):
        bind(config_of(folder, *words, "data.denoising.name=ul2", "data.denoising.num_sentinels=100"))


def test_packed_prefix_language_models_fill_their_rows(folder, tokenizer):
    name = "data.task=c4_prefix_lm_objective_{}_architecture"
    words = (f"data.tokenizer={tokenizer}", "data.target_length=32")
    pairs = bind(config_of(folder, *words, name.format("encoder_decoder")))
    batch = open_source(pairs, "train").build(np_records(3))
    assert {key: batch[f"{key}_segment_ids"].max() for key in ("encoder", "decoder")} == {"encoder": 2, "decoder": 2}
    for key in ("encoder_input_tokens", "decoder_target_tokens"):
        assert batch[key].shape == (3, 32)
        assert (batch[key] > 0).all()
    alone = ("model.kind=decoder_only", "model.num_encoder_layers=null")
    rows = open_source(bind(config_of(folder, *words, *alone, name.format("decoder"))), "train").build(np_records(3))
    assert ((rows["decoder_loss_weights"] > 0).sum(axis=1) >= 1).all()
    assert len(set((rows["decoder_target_tokens"] > 0).sum(axis=1).tolist())) == 1
    with pytest.raises(ConfigError, match="pairs already fill their rows"):
        bind(config_of(folder, *words, name.format("encoder_decoder"), "data.packing=true"))
    with pytest.raises(ConfigError, match="use c4_prefix_lm_objective_decoder_architecture"):
        bind(config_of(folder, *words, *alone, name.format("encoder_decoder")))


@pytest.mark.parametrize(
    ("words", "error", "message"),
    [
        (
            ("data.task=glue_rte_v002",),
            ConfigError,
            r"leaves its vocabulary to the run, but none is configured\n.*bytes",
        ),
        (("data.task=glue_rte_v002", "data.tokenizer=nowhere"), DataError, "nowhere has no tokenizer"),
        (("data.task=glue_cola_v002", "data.tokenizer=bytes"), DataError, "no data of glue/cola in"),
        (("data.task=glue_rte_v002", "data.task_folders.gleu=x"), ConfigError, r"data named 'gleu'.*\n.*: glue"),
        (("data.train=x", "data.tokenizer=bytes"), ConfigError, r"data\.tokenizer=bytes has an effect only with data"),
    ],
)
def test_missing_settings_are_reported_before_anything_is_computed(folder, words, error, message):
    with pytest.raises(error, match=message):
        pretrainkit.train(config_of(folder, *words), folder / "never")
    assert not (folder / "never").exists()


@pytest.mark.parametrize(
    ("words", "unread"),
    [
        (("data.task=c4_v220_prefix_lm", "data.denoising.noise_density=0.3"), ["data.denoising.noise_density"]),
        (("data.task=c4_v220_prefix_lm", "data.denoising.num_sentinels=7"), []),
        (("data.task=c4_v020_unsupervised", "data.denoising.name=prefix_lm", "data.denoising.group_size=3"), []),
        (("data.task=t5_runs_own",), ["data.tokenizer"]),
    ],
)
def test_settings_that_no_task_leaves_to_the_run_are_named(folder, tokenizer, caplog, words, unread):
    own = {name: Feature(ByteVocabulary()) for name in ("inputs", "targets")}
    add_task(REGISTRY.get_task("glue_rte_v002").replace(name="t5_runs_own", features=own))
    try:
        bind(config_of(folder, f"data.tokenizer={tokenizer}", *words))
    finally:
        REGISTRY.remove("t5_runs_own")
    told = [message.split(" ")[0].split("=")[0] for message in caplog.messages if "has no effect" in message]
    assert told == unread


def test_vocabularies_by_their_kind_of_name(tokenizer, tmp_path):
    assert open_vocabulary("bytes") == ByteVocabulary()
    assert open_vocabulary("bytes", 7) == ByteVocabulary(7)
    assert open_vocabulary(tokenizer).size == 380
    assert open_vocabulary(tokenizer, 5).sentinel_ids == tuple(range(284, 279, -1))
    (tmp_path / "run").mkdir()
    shutil.copytree(tokenizer, tmp_path / "run" / "tokenizer")
    checkpoint = tmp_path / "run" / "checkpoints" / "step-00000001"
    checkpoint.mkdir(parents=True)
    assert open_vocabulary(tmp_path / "run") == open_vocabulary(checkpoint) == open_vocabulary(tokenizer)
    shutil.move(tmp_path / "run" / "tokenizer" / "sentencepiece.model", tmp_path / "spiece.model")
    assert open_vocabulary(tmp_path) == open_vocabulary(tmp_path / "spiece.model") == open_vocabulary(tokenizer)
    only_json = open_vocabulary(tmp_path / "run")
    assert (only_json.size, only_json.encode("the cat")) == (380, open_vocabulary(tokenizer).encode("the cat"))
    (tmp_path / "byt5").mkdir()
    (tmp_path / "byt5" / "tokenizer_config.json").write_text('{"tokenizer_class": "ByT5Tokenizer"}')
    assert open_vocabulary(tmp_path / "byt5") == ByteVocabulary()

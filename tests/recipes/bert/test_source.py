"""The source as the loader uses it: acceptance facts 19, 23 and 28, slices of batches, mixtures, and wrong input."""

import dataclasses
import logging
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretrainkit.data.loader import Loader
from pretrainkit.data.order import Order
from pretrainkit.data.source import Records
from pretrainkit.errors import ConfigError, DataError
from pretrainkit.recipes.bert.config import (
    BertDataConfig,
    BertModelConfig,
    BertObjectiveConfig,
    BertRun,
    ModernModelConfig,
)
from pretrainkit.recipes.bert.recipe import RECIPE
from pretrainkit.recipes.bert.source import BertSource, bind, open_source
from pretrainkit.tokenizers.shard_writer import write_shards
from pretrainkit.tokenizers.special import SpecialIds
from pretrainkit.training.optimizers.config import OptimizerConfig
from support.remedies import followed

SPECIAL = SpecialIds(unk=256, cls=257, sep=258, mask=259, pad=260)
VOCAB_SIZE = 3000


def documents_of(num: int, seed: int = 0, mean_sentence: int = 14, mean_sentences: int = 20) -> list[list[np.ndarray]]:
    """Documents of random sentences of ids 261 and more."""
    rng = np.random.default_rng(seed)
    return [
        [
            rng.integers(261, VOCAB_SIZE, rng.geometric(1 / mean_sentence))
            for _ in range(rng.geometric(1 / mean_sentences))
        ]
        for _ in range(num)
    ]


def shards_of(folder: Path, documents: list, num_shards: int = 3, **options) -> str:
    parts = [documents[shard::num_shards] for shard in range(num_shards)]
    write_shards(folder, parts, **({"vocab_size": VOCAB_SIZE, "special": SPECIAL} | options))
    return str(folder)


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("shards")
    return {
        "a": shards_of(root / "a", documents_of(60)),
        "b": shards_of(root / "b", documents_of(25, seed=1, mean_sentence=40), num_shards=1),
        "valid": shards_of(root / "valid", documents_of(10, seed=2)),
    }


def run_of(train, valid=(), objective=None, model=None, **data) -> BertRun:
    small = {"hidden_size": 64, "num_layers": 1, "num_heads": 1, "intermediate_size": 64}
    return BertRun(
        num_steps=10,
        model=model or BertModelConfig(**small),
        objective=BertObjectiveConfig(**(objective or {})),
        data=BertDataConfig(
            **({"train": train, "valid": valid, "batch_size": 16, "batching": "rows", "chunking": "sabertooth"} | data)
        ),
        optimizer=OptimizerConfig(peak_lr=1e-3),
    )


def open_bound(config: BertRun, split="train") -> BertSource:
    return open_source(bind(config), split)


def records_of(source: BertSource, num: int, seed: int = 0) -> Records:
    return Order(source.sizes, seed=seed).records(np.arange(num))


def sentences_in(documents: list) -> set[bytes]:
    return {np.asarray(sentence, np.int32).tobytes() for document in documents for sentence in document}


def restored(batch: dict[str, np.ndarray]) -> np.ndarray:
    ids = batch["input_ids"].copy()
    row, slot = np.nonzero(batch["masked_lm_weights"])
    ids[row, batch["masked_lm_positions"][row, slot]] = batch["masked_lm_ids"][row, slot]
    return ids


def test_fact_19_rows_are_spans_of_one_document_without_control_tokens(tmp_path):
    # Token i of the corpus has id 300 + i, so an id reveals its position.
    lengths = [[len(sentence) for sentence in document] for document in documents_of(60)]
    num_tokens = sum(map(sum, lengths))
    ids = iter(np.split(np.arange(300, 300 + num_tokens), np.cumsum([n for document in lengths for n in document])))
    documents = [[next(ids) for _ in document] for document in lengths]
    document_of = np.repeat(np.arange(60), [sum(document) for document in lengths])
    source = open_bound(run_of(shards_of(tmp_path, documents, vocab_size=100_000)))
    batch = source.build(records_of(source, sum(source.sizes)))
    for row, length, label in zip(restored(batch), batch["lengths"], batch["next_sentence_label"], strict=True):
        assert length <= 128
        assert row[0] == 257
        assert row[length - 1] == 258
        assert (row[length:] == 260).all()
        segments = np.split(row[1 : length - 1], np.flatnonzero(row[1 : length - 1] == 258))
        segments = [segments[0], *(segment[1:] for segment in segments[1:])]
        assert 1 <= len(segments) <= 2
        for segment in segments:
            assert len(segment) >= 1
            assert (np.diff(segment) == 1).all()
        assert len(set(document_of[np.concatenate(segments) - 300])) == 1
        assert (segments[0][0] > segments[-1][0]) == bool(label)


def test_fact_23_lanes_read_on_in_their_document_from_step_to_step(folders):
    source = open_bound(run_of(folders["a"], order="lanes", batch_size=8))
    order = Order(source.sizes, seed=0, mode="lanes", batch_size=8, document_sizes=source.document_sizes)
    loader = Loader(source, order, batch_size=8)
    document_of = np.repeat(np.arange(len(source.document_sizes[0])), source.document_sizes[0])
    num_continued = 0
    for step in range(sum(source.sizes) // 8 - 1):  # a lane ends with its epoch
        now, after = (loader.global_records(s).index for s in (step, step + 1))
        is_last = np.append(document_of[1:] != document_of[:-1], True)[now]
        assert (after[~is_last] == now[~is_last] + 1).all()
        num_continued += int((~is_last).sum())
    assert num_continued > 80


def test_fact_28_the_next_epoch_has_other_masks_but_evaluation_does_not(folders):
    config = bind(run_of(folders["a"], folders["valid"]))
    for split, is_equal in (("train", False), ("valid", True)):
        source = open_source(config, split)
        size = sum(source.sizes)
        one, two = (Order(source.sizes, seed=0, mode="sequential").records(np.arange(n, n + 16)) for n in (0, size))
        assert (one.index == two.index).all()
        first, second = source.build(one), source.build(two)
        assert (first["masked_lm_positions"].tolist() == second["masked_lm_positions"].tolist()) == is_equal
        other_seed = source.build(Order(source.sizes, seed=5, mode="sequential").records(np.arange(16)))
        assert (first["input_ids"].tolist() == other_seed["input_ids"].tolist()) == is_equal


def test_evaluation_always_masks_15_percent(folders):
    config = run_of(folders["a"], folders["valid"], {"masking_rate": 0.4, "max_predictions": None})
    train, valid = (open_bound(config, split) for split in ("train", "valid"))
    for source, rate in ((train, 0.4), (valid, 0.15)):
        batch = source.build(records_of(source, 16))
        assert batch["masked_lm_weights"].sum(axis=1).tolist() == [int(rate * n) for n in batch["lengths"]]
        assert batch["masked_lm_ids"].shape == (16, 51)


SETTINGS = {
    "rows": {},
    "packed": {"batching": "packed"},
    "lossless": {"chunking": "lossless"},
    "whole span": {"objective": {"mask_unit": "span"}},
    "no order": {"objective": {"sentence_order": False}},
    "short": {"max_seq_length": 32},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_batch_is_the_same_however_it_is_cut(folders, name):
    source = open_bound(run_of([folders["a"], folders["b"]], **SETTINGS[name]))
    records = records_of(source, 64)
    assert len(set(records.source.tolist())) == 2
    whole = source.build(records)
    assert source.lengths(records).tolist() == whole["lengths"].tolist()
    parts = [source.build(records.take(slice(row, row + 1))) for row in range(64)]
    for key, array in whole.items():
        if key == "cu_seqlens":
            assert np.diff(array).tolist() == [int(part[key][1]) for part in parts]
            continue
        joined = [part[key] for part in parts]
        if key == "masked_lm_positions" and "cu_seqlens" in whole:
            joined = [positions + begin for positions, begin in zip(joined, whole["cu_seqlens"], strict=False)]
        assert np.concatenate(joined).tolist() == array.tolist()


@settings(max_examples=15)
@given(seed=st.integers(0, 2**32), num=st.integers(0, 40))
def test_a_mixture_holds_the_examples_of_its_components(folders, seed, num):
    both = open_bound(run_of([folders["a"], folders["b"]]))
    records = records_of(both, num, seed)
    mixed = both.build(records)
    for number, name in enumerate("ab"):
        alone = open_bound(run_of([folders[name]]))
        own = np.flatnonzero(records.source == number)
        part = records.take(own)
        single = alone.build(Records(np.zeros_like(part.source), part.epoch, part.index, part.key))
        for key, array in single.items():
            assert array.tolist() == mixed[key][own].tolist()


def test_changing_one_option_leaves_the_other_draws_alone(folders):
    def batch(**objective):
        source = open_bound(run_of(folders["a"], objective=objective))
        return source.build(records_of(source, 64))

    base, more = batch(), batch(masking_rate=0.1)
    assert (base["next_sentence_label"] == more["next_sentence_label"]).all()
    assert (restored(base) == restored(more)).all()
    for objective in (
        {"mask_share": 1.0, "random_share": 0.0, "keep_share": 0.0},
        {"random_replacement": "whole_vocabulary_compat"},
    ):
        other = batch(**objective)
        assert (base["masked_lm_positions"] == other["masked_lm_positions"]).all()
        assert (restored(base) == restored(other)).all()
    is_mask = base["input_ids"] == SPECIAL.mask
    assert (other["input_ids"][is_mask] == SPECIAL.mask).all()


def test_the_draws_never_change(folders):
    """Golden: another version of the code or of NumPy must not change what a seed means."""
    source = open_bound(run_of(folders["a"]))
    records = Records(*(np.array([value]) for value in (0, 0, 3)), np.array([12345], np.uint64))
    batch = source.build(records)
    assert batch["lengths"].tolist() == [99]
    assert batch["next_sentence_label"].tolist() == [0]
    expected = [1, 2, 12, 20, 26, 27, 28, 50, 52, 65, 80, 88, 89, 92]
    assert batch["masked_lm_positions"][0].tolist() == expected + [0] * 6


def test_packed_equals_rows(folders):
    rows, packed = (open_bound(run_of([folders["a"], folders["b"]], batching=b)) for b in ("rows", "packed"))
    records = records_of(rows, 100)
    assert rows.fingerprint == packed.fingerprint
    r, p = rows.build(records), packed.build(records)
    is_real = np.arange(128) < r["lengths"][:, None]
    assert (r["input_ids"][is_real] == p["input_ids"]).all()
    assert (r["token_type_ids"][is_real] == p["token_type_ids"]).all()
    assert (r["next_sentence_label"] == p["next_sentence_label"]).all()
    assert (r["masked_lm_ids"][r["masked_lm_weights"] > 0] == p["masked_lm_ids"]).all()


def test_lossless_shows_every_token_of_the_corpus_once(folders):
    source = open_bound(run_of(folders["a"], chunking="lossless"))
    assert source.lost_share == 0
    ids = restored(source.build(records_of(source, sum(source.sizes))))
    expected = np.bincount(np.concatenate([s for d in documents_of(60) for s in d]), minlength=VOCAB_SIZE)
    assert np.bincount(ids[ids >= 261], minlength=VOCAB_SIZE).tolist() == expected.tolist()


def test_the_share_of_lost_tokens_equals_a_count(folders):
    source = open_bound(run_of(folders["b"]))
    ids = restored(source.build(records_of(source, sum(source.sizes))))
    num_tokens = sum(len(s) for d in documents_of(25, seed=1, mean_sentence=40) for s in d)
    assert source.summary()["tokens"] == num_tokens
    assert source.lost_share == pytest.approx(1 - (ids >= 261).sum() / num_tokens)
    assert source.lost_share > 0.05
    batch = source.build(records_of(source, sum(source.sizes)))
    assert source.summary()["mean_length"] == pytest.approx(batch["lengths"].mean())
    share = batch["masked_lm_weights"].sum() / batch["lengths"].sum()
    assert source.summary()["predicted_token_share"] == pytest.approx(share)


def test_capacity_gives_fixed_shapes_even_to_empty_microbatches(folders):
    source = open_bound(run_of(folders["a"], batching="packed", microbatch_tokens=512))
    loader = Loader(source, Order(source.sizes, seed=0), batch_size=16, microbatch_tokens=512)
    microbatches = [m for step in range(3) for m in loader.step(step)] + [source.build(records_of(source, 0))]
    assert {(len(m["input_ids"]), len(m["masked_lm_ids"])) for m in microbatches} == {(512, 76)}
    for m in microbatches:
        assert (m["input_ids"][m["cu_seqlens"][-1] :] == 260).all()
    assert sum(len(m["lengths"]) for m in microbatches) == 48


def test_the_fingerprint_follows_the_examples(folders):
    base = run_of(folders["a"])
    changed = [
        run_of(folders["b"]),
        run_of(folders["a"], max_seq_length=64),
        run_of(folders["a"], chunking="lossless"),
        run_of(folders["a"], objective={"masking_rate": 0.12}),
        run_of(folders["a"], objective={"random_replacement": "whole_vocabulary_compat"}),
        run_of(folders["a"], objective={"swap_probability": 0.2}),
        run_of(folders["a"], objective={"mask_unit": "span"}),
    ]
    fingerprints = [open_bound(config).fingerprint for config in [base, *changed]]
    assert len(set(fingerprints)) == len(fingerprints)
    assert open_bound(run_of(folders["a"], batch_size=8)).fingerprint == fingerprints[0]


def test_the_fingerprint_follows_the_ids_of_random_replacements(folders):
    """They change when the shards lose their copy of the tokenizer: then single bytes are not recognized."""
    source = open_bound(run_of(folders["a"]))
    fewer = dataclasses.replace(source.masking, replacement_ids=source.masking.replacement_ids[1:])
    other = BertSource(source.config, "train", source.components, fewer)
    assert other.fingerprint != source.fingerprint


def test_a_source_survives_pickling(folders):
    import pickle

    source = open_bound(run_of(folders["a"]))
    records = records_of(source, 8)
    again = pickle.loads(pickle.dumps(source))
    assert again.build(records)["input_ids"].tolist() == source.build(records)["input_ids"].tolist()


def test_bind_takes_the_vocabulary_size_from_the_data(folders):
    assert bind(run_of(folders["a"])).model.vocab_size == VOCAB_SIZE
    modern = ModernModelConfig(
        vocab_size=3008, hidden_size=64, num_layers=1, num_heads=1, intermediate_size=64, max_positions=256
    )
    assert bind(run_of(folders["a"], model=modern)).model.vocab_size == 3008


def test_held_out_documents_in_training_data_are_refused(folders, tmp_path):
    leak = shards_of(tmp_path / "leak", documents_of(4, seed=2)[1:3] + documents_of(3, seed=9))
    with pytest.raises(DataError, match="2 of the 5 different documents") as caught:
        bind(run_of([folders["a"], folders["valid"]], leak))
    assert "--heldout" in str(caught.value)


def test_other_tokenizers_and_sizes_are_refused(folders, tmp_path):
    other = shards_of(tmp_path / "other", documents_of(3, seed=3), vocab_size=4000)
    with pytest.raises(DataError, match="different tokenizers") as caught:
        bind(run_of([folders["a"], other]))
    assert folders["a"] in str(caught.value)
    assert other in str(caught.value)
    small = BertModelConfig(vocab_size=1000, hidden_size=64, num_layers=1, num_heads=1, intermediate_size=64)
    with pytest.raises(ConfigError, match=r"vocab_size is 1000.*3000 pieces"):
        bind(run_of(folders["a"], model=small))
    with pytest.raises(ConfigError, match=r"max_seq_length 600 is more than model\.max_positions 512"):
        bind(run_of(folders["a"], max_seq_length=600))


@pytest.mark.parametrize(
    "special",
    [SpecialIds(unk=0, cls=257, sep=257, mask=259, pad=260), SpecialIds(unk=0, cls=1, sep=2, mask=3, pad=VOCAB_SIZE)],
)
def test_a_tokenizer_without_the_control_tokens_is_refused(tmp_path, special):
    folder = shards_of(tmp_path / "broken", documents_of(3), special=special)
    with pytest.raises(DataError, match="control tokens"):
        bind(run_of(folder))


def test_missing_and_empty_data_is_refused(folders, tmp_path):
    with pytest.raises(DataError, match=r"data\.train"):
        bind(run_of(()))
    with pytest.raises(DataError, match="token shards"):
        bind(run_of(str(tmp_path / "nowhere")))
    empty = shards_of(tmp_path / "empty", [])
    with pytest.raises(DataError, match="no tokens"):
        open_bound(run_of(empty))
    with pytest.raises(DataError, match=r"data\.valid"):
        open_bound(run_of(folders["a"]), "valid")


def test_examples_of_one_sentence_are_reported_unless_the_order_is_not_trained(folders, tmp_path, caplog):
    single = shards_of(tmp_path / "single", [[sentence] for document in documents_of(9) for sentence in document])
    with caplog.at_level(logging.WARNING):
        for train, objective in (
            (folders["a"], {}),
            (single, {"sentence_order": False}),
            (single, {}),
        ):
            config = bind(run_of(train, objective=objective))
            RECIPE.check_new_run(config, open_source(config, "train"))
    (message,) = caplog.messages
    assert message.startswith("100 % of the training examples have only one sentence")
    advice = followed(message, "recipes/bert/source.py: … % of the training examples have only one sentence")
    assert "objective.sentence_order=false" in advice


@pytest.mark.parametrize(("word_length", "num_reports"), [(5, 0), (200, 1)])
def test_words_that_are_too_long_to_be_hidden_whole_are_reported(folders, caplog, word_length, num_reports):
    source = open_bound(run_of(folders["a"]))
    is_start = np.arange(VOCAB_SIZE) % word_length == 0
    source.masking = dataclasses.replace(source.masking, is_word_start=is_start)
    with caplog.at_level(logging.WARNING):
        source.report_long_words()
    assert len(caplog.messages) == num_reports
    for message in caplog.messages:
        assert "a word has" in message
        advice = followed(message, "recipes/bert/source.py: objective.mask_unit=whole_word: a word has … tokens")
        assert "objective.mask_unit=token" in advice

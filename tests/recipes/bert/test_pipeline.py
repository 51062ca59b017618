"""From raw text to batches: corpus, words, tokenizer, shards, source, and back to text."""

import json
from pathlib import Path

import numpy as np
import pytest

from pretrainkit.data.order import Order
from pretrainkit.data.source import Records
from pretrainkit.recipes.bert.config import BertDataConfig, BertModelConfig, BertObjectiveConfig, BertRun
from pretrainkit.recipes.bert.sample import readable, sample
from pretrainkit.recipes.bert.source import BertSource, bind, open_source
from pretrainkit.tokenizers.encode import EncodeSettings, encode_corpus
from pretrainkit.tokenizers.load import Tokenizer, load_tokenizer
from pretrainkit.tokenizers.train import TokenizerSettings, train_tokenizer
from pretrainkit.training.optimizers.config import OptimizerConfig

SYLLABLES = ["ba", "co", "di", "fu", "ga", "hel", "in", "jo", "kar", "lum", "mi", "nor", "pe", "qua", "ri", "so"]


def made_up_documents(num: int) -> list[list[str]]:
    """Documents of lines, one sentence each, of words of one to four syllables."""
    rng = np.random.default_rng(0)

    def word() -> str:
        return "".join(rng.choice(SYLLABLES, rng.integers(1, 5)))

    vocabulary = [word() for _ in range(300)]
    return [
        [" ".join(rng.choice(vocabulary, rng.integers(3, 30))) + "." for _ in range(rng.integers(1, 40))]
        for _ in range(num)
    ]


def make_shards(root: Path, documents: list[list[str]], vocab_size: int) -> tuple[str, Tokenizer]:
    words: dict[str, int] = {}
    for document in documents:
        for token in " ".join(document).split():
            words[token] = words.get(token, 0) + 1
    (root / "words.tsv").write_text("".join(f"{w}\t{n}\n" for w, n in words.items()), encoding="utf-8")
    train_tokenizer([root / "words.tsv"], root / "tokenizer", TokenizerSettings(vocab_size=vocab_size))
    lines = [json.dumps({"text": "\n".join(document)}) for document in documents]
    (root / "text.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    encode_corpus(
        [root / "text.jsonl"], root / "tokenizer", root / "shards", EncodeSettings(splitter="newline"), workers=1
    )
    return str(root / "shards"), load_tokenizer(root / "tokenizer")


def open_run(folder: str, objective: dict | None = None, **data) -> BertSource:
    config = BertRun(
        num_steps=1,
        model=BertModelConfig(hidden_size=64, num_layers=1, num_heads=1, intermediate_size=64),
        objective=BertObjectiveConfig(**(objective or {})),
        data=BertDataConfig(**({"train": folder, "batch_size": 8, "batching": "rows"} | data)),
        optimizer=OptimizerConfig(peak_lr=1e-3),
    )
    return open_source(bind(config), "train")


def records_of(source: BertSource, num: int, seed: int = 0) -> Records:
    return Order(source.sizes, seed=seed).records(np.arange(num))


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> tuple[str, Tokenizer, list[list[str]]]:
    documents = made_up_documents(60)
    folder, tokenizer = make_shards(tmp_path_factory.mktemp("text"), documents, 420)
    return folder, tokenizer, documents


def test_every_example_is_text_of_one_document(made):
    folder, tokenizer, documents = made
    texts = [" ".join(document) for document in documents]
    source = open_run(folder)
    assert source.special.mask == 259
    num = sum(source.sizes)
    batch = source.build(records_of(source, num))
    orders = set()
    for row in range(num):
        example = readable(batch, row, tokenizer)
        segments = example["truth"].split(" | ")
        orders.add((len(segments), example["order"]))
        assert any(all(segment in text for segment in segments) for text in texts)
        assert example["shown"].count("<mask>") <= batch["masked_lm_weights"][row].sum()
    assert orders == {(1, ""), (2, "swapped"), (2, "as written")}


def test_rows_and_packed_read_the_same(made):
    folder, tokenizer, _ = made
    rows, packed = (open_run(folder, batching=batching) for batching in ("rows", "packed"))
    records = records_of(rows, 20)
    one, two = rows.build(records), packed.build(records)
    for row in range(20):
        assert readable(one, row, tokenizer) == readable(two, row, tokenizer)


@pytest.mark.parametrize("batching", ["rows", "packed"])
def test_samples_mark_all_predicted_places_by_position(made, batching, monkeypatch):
    """Some show a random or the true piece, and some are beside each other, so texts cannot be compared."""
    folder, _, _ = made
    source = open_run(folder, batching=batching)
    config = source.config.changed(data=source.config.data.changed(valid=source.config.data.train))
    source = open_source(config, "valid")
    right: list[bool] = []

    def answers(config, model, batch, num_pieces):
        truth = batch["masked_lm_ids"][batch["masked_lm_weights"] > 0]
        is_right = np.arange(len(truth)) % 3 == 0
        right.extend(is_right.tolist())
        return np.where(is_right, truth, 40), None

    monkeypatch.setattr("pretrainkit.recipes.bert.sample._answers", answers)
    cells = [{name: cell for name, (cell,) in one.items()} for one in sample(config, None, source, 5)]
    assert [mark[2] for one in cells for mark in one["predicted"]["marks"]] == right
    for one in cells:
        words = {name: [cell["text"][begin:end] for begin, end, _ in cell["marks"]] for name, cell in one.items()}
        is_right = [predicted == true for predicted, true in zip(words["predicted"], words["truth"], strict=True)]
        assert is_right == [mark[2] for mark in one["predicted"]["marks"]]
        assert len(words["masked"]) == len(is_right) > words["masked"].count("<mask>")
        assert words["masked"].count("<mask>") == one["masked"]["text"].count("<mask>")


def test_random_replacements_are_learned_pieces(made):
    folder, _, _ = made
    objective = {"mask_share": 0.0, "random_share": 1.0, "keep_share": 0.0}
    source = open_run(folder, objective)
    batch = source.build(records_of(source, sum(source.sizes)))
    row, slot = np.nonzero(batch["masked_lm_weights"])
    drawn = batch["input_ids"][row, batch["masked_lm_positions"][row, slot]]
    assert drawn.min() == 261
    assert len(np.unique(drawn)) > 100
    everything = open_run(folder, objective | {"random_replacement": "whole_vocabulary_compat"})
    batch = everything.build(records_of(everything, sum(source.sizes)))
    drawn = batch["input_ids"][row, batch["masked_lm_positions"][row, slot]]
    assert drawn.min() < 100


def test_whole_words_are_hidden_whole(made):
    folder, tokenizer, _ = made
    source = open_run(folder, {"mask_unit": "whole_word", "mask_share": 1.0, "random_share": 0.0, "keep_share": 0.0})
    batch = source.build(records_of(source, 50))
    is_start = tokenizer.is_word_start()
    for row in range(50):
        used = batch["masked_lm_weights"][row] > 0
        ids, length = batch["input_ids"][row], batch["lengths"][row]
        truth = ids.copy()
        truth[batch["masked_lm_positions"][row, used]] = batch["masked_lm_ids"][row, used]
        # No word has hidden and shown pieces, but one that had to be cut where nothing else fitted.
        goes_on = ~is_start[truth[1:length]] & (truth[: length - 1] != 257) & (truth[: length - 1] != 258)
        is_hidden = ids[:length] == 259
        cut = goes_on & (is_hidden[1:] != is_hidden[:-1])
        assert not cut.any() or used.sum() <= 4


@pytest.mark.parametrize("chunking", ["sabertooth", "lossless"])
def test_real_prose(sample_data, tmp_path, chunking):
    import zstandard

    path = sample_data / "books" / "novels_valid.jsonl.zst"
    if not path.is_file():
        pytest.skip(f"sample data not present: {path.name}")
    with zstandard.open(path, "rt", encoding="utf-8") as file:
        text = json.loads(file.readline())["text"][:150_000]
    chapters = [text[start : start + 15_000] for start in range(0, len(text), 15_000)]
    documents = [[sentence + "." for sentence in " ".join(chapter.split()).split(". ")] for chapter in chapters]
    folder, tokenizer = make_shards(tmp_path, documents, 1500)
    source = open_run(folder, chunking=chunking)
    figures = source.summary()
    assert figures["documents"] == 10
    assert (figures["lost_token_share"] == 0) == (chunking == "lossless")
    assert 0.13 < figures["predicted_token_share"] <= 0.15
    batch = source.build(records_of(source, 64))
    normal = " ".join(" ".join(document) for document in documents)
    for row in range(64):
        for segment in readable(batch, row, tokenizer)["truth"].split(" | "):
            assert segment[:40] in normal


def test_rows_packed_and_fixed_shapes_give_the_same_loss(made):
    import torch

    from pretrainkit.recipes.bert.recipe import RECIPE

    folder, _, _ = made
    layouts = ({"batching": "rows"}, {"batching": "packed"}, {"batching": "packed", "microbatch_tokens": 4096})
    model, losses = None, []
    for layout in layouts:
        source = open_run(folder, **layout)
        torch.manual_seed(0)
        model = model or RECIPE.build_model(source.config).eval()
        batch = {name: torch.from_numpy(array) for name, array in source.build(records_of(source, 16)).items()}
        with torch.no_grad():
            found = RECIPE.build_objective(source.config).losses(model, batch)
        losses.append([float(part) for name in sorted(found) for part in found[name]])
    np.testing.assert_allclose(losses[1:], [losses[0]] * 2, rtol=1e-6)

"""`data check` of a config of every recipe: examples are those of training, copies are counted, and broken data are
named."""

import base64
import io
import itertools
import json
import re
import shutil
import time

import numpy as np
import pytest

import pretrainkit
from pretrainkit.errors import DataError
from pretrainkit.recipes.image_tokenizer.source import ImageSource
from pretrainkit.recipes.pixel import sample as pixel_sample
from pretrainkit.report.data_page import render_data
from pretrainkit.running import data_check
from pretrainkit.tokenizers.load import load_tokenizer
from support import remedies
from support.command_line import succeed
from support.glue_toys import BAD, GOOD
from support.page_data import FOURM, PIXEL, TOKENIZER, part, put_conllu, put_pairs, put_squad, texts
from support.pair_sets import make_tokenizer
from support.tokenizer_data import write_images

PIL = pytest.importorskip("PIL.Image", reason="Pillow is not installed: pip install 'pretrainkit[vision]'")


def checked(preset, *settings, num=2, deep=False):
    return pretrainkit.check_data(pretrainkit.load_config(preset, list(settings)), num=num, deep=deep)


def pixels(value):
    """Return the pixels of the only picture of a cell, which must be a PNG."""
    (item,) = value
    kind, _, content = item["image"].partition(",")
    assert kind == "data:image/png;base64"
    return np.asarray(PIL.open(io.BytesIO(base64.b64decode(content))))


def rendered(found):
    """The page of a check, which shows its results."""
    page = render_data(vars(found), "mine.yaml", "recipe")
    assert len(page) < 2_000_000
    assert "src=" not in page.replace('src="data:image/png', "")
    assert "left out a picture" not in page
    return page


@pytest.fixture
def tokens():
    return [f"data.train={part('tokens')}/train", f"data.valid={part('tokens')}/valid", "num_steps=2"]


def test_masked_words_are_shown_with_their_targets(tokens):
    found = checked("bert/mini", *tokens, "data.max_seq_length=32", num=12)
    assert len(found.examples) == 12
    for example in found.examples:
        targets = example["targets"].split(" · ")
        assert example["masked"].count("<mask>") == sum(" (" not in target for target in targets)
        assert example["example"].startswith(f"{part('tokens')}/train ")
    assert "<mark>&lt;mask&gt;</mark>" in rendered(found)
    assert sum(found.lengths["counts"]) == 4096 // 32 * 32
    assert sum(found.languages["counts"].values()) <= 500
    assert re.match(
        r"\d+ of \d+ held-out examples, compared with 1,\d+ of 1,\d+ training", found.figures["held-out copies"]
    )


def test_without_a_copy_of_the_tokenizer_ids_are_shown(tokens, tmp_path):
    shutil.copytree(part("tokens") / "train", tmp_path / "train")
    shutil.rmtree(tmp_path / "train" / "tokenizer")
    found = checked("bert/mini", f"data.train={tmp_path / 'train'}", "num_steps=2", num=1)
    assert re.fullmatch(r"\d+( \d+)*", found.examples[0]["input ids"])
    assert found.languages == {}


def test_spans_and_their_sentinels_are_shown():
    found = checked("t5/tiny", f"data.train={part('t5_tokens')}/train", "num_steps=2")
    example = found.examples[0]
    assert re.findall(r"<extra_id_\d+>", example["inputs"]) == re.findall(r"<extra_id_\d+>", example["targets"])
    assert "<mark>&lt;extra_id_0&gt;</mark>" in rendered(found)


def test_rows_of_rendered_text_are_shown_with_grey_masks(tmp_path, monkeypatch):
    pytest.importorskip("freetype", reason="needs the package freetype-py to draw text")
    monkeypatch.setenv("PRETRAINKIT_CACHE", str(tmp_path / "cache"))
    for name, num in (("train", 40), ("valid", 10)):
        (tmp_path / f"{name}.txt").write_text("\n\n".join(texts(num)), "utf-8")
    data = (f"data.train={tmp_path}/train.txt", f"data.valid={tmp_path}/valid.txt", f"data.renderer={part('renderer')}")
    found = checked("pixel/tiny", *data, *PIXEL.split(), "num_steps=2")
    num, of, num_held_out = found.figures["held-out copies"].split()[:3]
    assert (of, num) == ("of", num_held_out)
    assert found.languages["counts"]
    for example in found.examples:
        assert example["text"].split()[0] in (tmp_path / "train.txt").read_text("utf-8")
        original, masked = pixels(example["original"]), pixels(example["masked"])
        is_hidden = (original != masked).any(-1)
        assert (masked[is_hidden] == pixel_sample._HIDDEN).all()
        num_hidden = int(example["hidden"].split()[0])
        assert is_hidden.sum() == num_hidden * 16**2 > 0
    rendered(found)


def test_rows_of_pictures_alone_have_unknown_languages(tmp_path):
    pytest.importorskip("freetype", reason="needs the package freetype-py to draw text")
    (tmp_path / "text.txt").write_text("\n\n".join(texts(20)), "utf-8")
    words = ["render", tmp_path / "text.txt", "--renderer", part("renderer"), "--max-patches", "36", "--out"]
    succeed(*words, tmp_path / "rows")
    data = (*PIXEL.split(), "num_steps=2")
    found = checked("pixel/tiny", f"data.train={tmp_path}/rows/train", *data)
    assert found.figures["languages"].startswith("unknown: the examples are pictures without their text")
    assert "unknown: the examples are pictures" in rendered(found)
    advice = re.search(r"pretrainkit (render --column text) ", found.figures["languages"])[1].split()
    succeed(*words, tmp_path / "both", *advice[1:])
    found = checked("pixel/tiny", f"data.train={tmp_path}/both/train", *data)
    assert found.languages["counts"]
    assert found.examples[0]["text"]


@pytest.fixture
def pairs(tmp_path):
    put_pairs(tmp_path / "pairs")
    tokenizer = make_tokenizer(tmp_path / "tokenizer")
    return [f"data.train={tmp_path}/pairs", f"data.valid={tmp_path}/pairs", f"data.tokenizer={tokenizer}"]


@pytest.mark.parametrize("erasing", [False, True])
def test_augmented_images_are_shown_with_the_tokens_of_their_captions(pairs, erasing):
    crops = "{op: random_resize_crop, size: 64}" + ", {op: random_erasing}" * erasing
    normalize = ["data.normalize=[[0.5,0.5,0.5],[0.3,0.3,0.3]]"] * erasing
    found = checked(
        "clip/tiny", *pairs, "num_steps=2", "data.batch_size=8", f"data.train_transforms=[{crops}]", *normalize
    )
    for example in found.examples:
        assert pixels(example["image"]).shape == (64, 64, 3)
        count, first, *_, last = example["caption"].split()
        assert (int(count[1:-1]), first, last) == (len(example["caption"].split()) - 1, "[CLS]", "[SEP]")
    rendered(found)


def test_inputs_and_targets_of_modalities_are_shown_apart():
    rooms = part("rooms")
    data = (f"data.train={rooms}/train", f"data.valid={rooms}/valid", f"data.tokenizer={part('words')}")
    found = checked("fourm/tiny", *data, *FOURM.split(), "num_steps=2", num=6)
    sides = {name.rpartition(" ")[2] for example in found.examples for name in example if name != "example"}
    assert sides == {"input", "target"}
    both = [example for example in found.examples if {"depth@64 input", "depth@64 target"} <= example.keys()]
    assert both
    for example in both:
        shown = [(pixels(example[f"depth@64 {side}"]) != (150, 175, 205)).any(-1) for side in ("input", "target")]
        assert not (shown[0] & shown[1]).any()
    assert any("[S_1]" in example.get("caption input", "") for example in found.examples)
    rendered(found)


def test_images_are_shown_as_they_are_read(tmp_path):
    data = [f"data.train={write_images(tmp_path / 'train', 8, 0)}", "model.image_size=16", *TOKENIZER.split()]
    config = pretrainkit.load_config("image_tokenizer/tiny", [*data, "num_steps=2"])
    found = pretrainkit.check_data(config)
    batch = next(pretrainkit.batches(config))
    for image, example in zip(batch["image"], found.examples, strict=False):
        np.testing.assert_array_equal(pixels(example["image"]).transpose(2, 0, 1), image)
    assert len(found.examples) == 2
    assert found.lengths == {}
    rendered(found)


def test_labelled_texts_are_shown_with_tokens_and_label():
    folders = json.dumps({"glue": str(part("glue"))})
    settings = (f"data.task_folders={folders}", f"init_from={part('bert')}", "data.max_seq_length=32", "num_steps=2")
    found = checked("glue/sst2", *settings)
    for example in found.examples:
        words = {*example["texts"].split()}
        assert example["label"] == str(int(bool(words & {*GOOD})))
        assert bool(words & {*BAD}) != bool(words & {*GOOD})
        assert re.match(r"\[\d+\] \S+ ", example["tokens"])
    rendered(found)


@pytest.mark.parametrize(
    ("preset", "name", "put", "label"),
    [
        ("tags", "s.conllu", put_conllu, "DET NOUN VERB DET NOUN"),
        ("parse", "s.conllu", put_conllu, r"the ← det \w+; \w+ ← nsubj \w+; \w+ ← root \(root\); .*"),
        ("qa", "s.json", put_squad, r"The dog|The cat|\(no answer\)"),
    ],
)
def test_words_and_questions_are_shown_with_their_answers(tmp_path, preset, name, put, label):
    put(tmp_path / name)
    windows = ["data.spans.stride=4", "data.spans.max_question_length=8"] * (preset == "qa")
    data = [f"data.train={tmp_path / name}", f"data.valid={tmp_path / name}", f"init_from={part('bert')}"]
    settings = ["data.max_seq_length=32", "data.batch_size=4", "num_steps=2", *windows]
    found = checked(f"glue/{preset}", *data, *settings)
    for example in found.examples:
        assert example["label"] in rendered(found)
        assert re.fullmatch(label, example["label"])
        assert example.get("words", example.get("question", "")).split()[0] in ("the", "Who")
    num, _, num_held_out = found.figures["held-out copies"].split()[:3]
    assert num == num_held_out


def test_copies_of_held_out_images_are_counted_and_named(tmp_path):
    train, valid = (write_images(tmp_path / name, num, num) for name, num in (("train", 8), ("valid", 5)))
    shutil.copy(train / "rgb" / "0000" / "00003.png", valid / "rgb" / "0000" / "00001.png")
    data = [f"data.train={train}", f"data.valid={valid}", "model.image_size=16", *TOKENIZER.split(), "num_steps=2"]
    found = checked("image_tokenizer/tiny", *data)
    first, example = found.figures["held-out copies"].split("\n")
    assert first == "1 of 5 held-out examples, compared with 8 of 8 training examples"
    assert example == f"held out: {valid}/rgb/0000/00001.png, training: {train}/rgb/0000/00003.png"
    assert any("remove them" in note for note in found.notes)
    assert first in rendered(found)


def test_a_deep_check_names_every_record_that_cannot_be_read(tmp_path):
    train = write_images(tmp_path / "train", 8, 0)
    for number in (2, 5):
        (train / "rgb" / "0000" / f"{number:05d}.png").write_bytes(b"no image")
    found = checked("image_tokenizer/tiny", f"data.train={train}", *TOKENIZER.split(), "num_steps=2", deep=True)
    assert [re.search(r"0000\d", problem)[0] for problem in found.problems] == ["00002", "00005"]
    assert "2 problems" in rendered(found)


def test_a_deep_check_compares_the_checksums_of_token_shards(tokens, tmp_path):
    shutil.copytree(part("tokens") / "train", tmp_path / "train")
    (shard, *_) = (tmp_path / "train").glob("tokens-*.bin")
    content = bytearray(shard.read_bytes())
    content[10] ^= 1
    shard.write_bytes(content)
    for preset in ("bert/mini", "t5/tiny"):
        found = checked(preset, f"data.train={tmp_path / 'train'}", "num_steps=2", deep=True)
        assert [shard.name in problem for problem in found.problems] == [True]
        sound = checked(preset, *tokens, "num_steps=2", deep=True)
        num_read = sound.figures["training examples"] + sound.figures["held-out examples"]
        assert (sound.problems, sound.figures["broken records"]) == ([], f"none: all {num_read:,} examples were read")


def test_damaged_tokens_end_in_one_message_and_a_deep_check_names_their_shard(tokens, tmp_path):
    shutil.copytree(part("tokens") / "train", tmp_path / "train")
    (shard, *_) = (tmp_path / "train").glob("tokens-*.bin")
    shard.write_bytes(b"\xf0" * shard.stat().st_size)
    with pytest.raises(DataError, match="is damaged: token") as caught:
        checked("bert/mini", f"data.train={tmp_path / 'train'}", "num_steps=2")
    assert "pretrainkit tokenizer encode" in str(caught.value)
    with pytest.raises(DataError) as of_another_tokenizer:
        load_tokenizer(tmp_path / "train" / "tokenizer").decode([61_680])
    assert "--deep" in remedies.followed(of_another_tokenizer.value, "tokenizers/load.py: id")
    found = checked("bert/mini", f"data.train={tmp_path / 'train'}", "num_steps=2", deep=True)
    assert any(shard.name in problem for problem in found.problems)


def test_a_deep_check_names_bad_pairs(pairs, tmp_path):
    for number in range(7):
        (tmp_path / "pairs" / "train" / f"{number:04d}.png").write_bytes(b"no image")
    found = checked("clip/tiny", *pairs, "num_steps=2", deep=True)
    assert [problem.count("broken image") for problem in found.problems] == [1] * 6
    assert found.problems[5].endswith("2 more in data.train with the problem: broken image")


def test_lengths_of_padded_examples_are_those_of_their_real_tokens(pairs):
    """The captions of the set have different lengths; the source gives each example 32 slots."""
    found = checked("clip/tiny", *pairs, "num_steps=2", "data.max_length=32")
    longest = re.search(r"longest (\d+) tokens", found.figures["example lengths"])
    assert longest is not None
    assert int(longest[1]) < 32


def test_a_slow_first_example_does_not_end_the_count_of_lengths(tmp_path, monkeypatch):
    train = write_images(tmp_path / "train", 8, 0)
    build, numbers = ImageSource.build, itertools.count()

    def slow_at_first(source, records):
        if next(numbers) == 1:  # the one before checks the config
            time.sleep(0.2)
        return build(source, records)

    monkeypatch.setattr(ImageSource, "build", slow_at_first)
    monkeypatch.setattr(data_check, "_COUNTING_SECONDS", 0.1)
    found = checked("image_tokenizer/tiny", f"data.train={train}", *TOKENIZER.split(), "num_steps=2")
    assert "(of 1 examples)" not in found.figures["example lengths"]


def test_large_examples_are_left_out_of_the_page(tmp_path):
    train = write_images(tmp_path / "train", 8, 0)
    found = checked("image_tokenizer/tiny", f"data.train={train}", *TOKENIZER.split(), "num_steps=2")
    found.examples.extend([{"text": "x" * 100_000}] * 40)
    assert "more examples are left out, because they are large" in rendered(found)

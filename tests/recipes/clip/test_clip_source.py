"""Pairs as the loader uses them: slices of batches, bad rows, and what is refused before a run."""

import gzip
import io
import logging
import re
import shlex
import zlib
from collections import Counter

import numpy as np
import pytest
from typer.testing import CliRunner

from pretrainkit.api import load_config, train
from pretrainkit.cli.main import app
from pretrainkit.data.loader import Loader
from pretrainkit.data.order import Order
from pretrainkit.data.source import Records
from pretrainkit.errors import ConfigError, DataError
from pretrainkit.exporting.torchvision_shim import import_torchvision
from pretrainkit.images.ops import RandomErasing, RandomResizeCrop
from pretrainkit.recipes.clip.config import ClipRun
from pretrainkit.recipes.clip.pairs import REASONS, BadImage, BadRows
from pretrainkit.recipes.clip.source import ClipSource, bind, open_source
from support.pair_sets import as_json, caption, make_tokenizer, png, rows, write_csv_set, write_samples
from support.remedies import followed


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return make_tokenizer(tmp_path_factory.mktemp("tokenizer") / "tokenizer")


@pytest.fixture(scope="module")
def two_sets(tmp_path_factory):
    """A set of 24 pairs of 12 images and one of 10 of 10, with held-out pairs."""
    root = tmp_path_factory.mktemp("sets")
    for name, num_images, num_captions in (("one", 12, 2), ("two", 10, 1)):
        write_csv_set(root / name, "train", rows(num_images, num_captions))
        write_csv_set(root / name, "valid", rows(4, num_captions, first=20))
    return root / "one", root / "two"


def run_of(tokenizer, train, valid=(), **data) -> ClipRun:
    """A run on images of 16 x 16; not bound."""
    size = {"op": "random_resize_crop", "size": 16}, {"op": "resize", "size": 16}
    data = {
        "train": [path if isinstance(path, dict) else {"path": str(path)} for path in train],
        "valid": [path if isinstance(path, dict) else {"path": str(path)} for path in valid],
        "tokenizer": str(tokenizer),
        "batch_size": 4,
        "train_transforms": [size[0]],
        "valid_transforms": [size[1]],
        **data,
    }
    return load_config(
        {
            "extends": "clip/tiny",
            "model": {"image": {"image_size": 16, "patch_size": 8}},
            "data": data,
        }
    )


def opened(tokenizer, train, split="train", **data) -> ClipSource:
    return open_source(bind(run_of(tokenizer, train, **data)), split)


def all_records(source: ClipSource, epoch: int = 0) -> Records:
    order = Order(source.sizes, seed=0)
    num = sum(source.sizes)
    return order.records(np.arange(epoch * num, (epoch + 1) * num))


def same(first, second) -> bool:
    return first.keys() == second.keys() and all(np.array_equal(first[name], second[name]) for name in first)


# ---- batches ----


def test_a_batch_has_its_records_in_any_slices(tokenizer, two_sets):
    source = opened(tokenizer, two_sets, text_augment={"probability": 0.3}, pad_captions="max_length")
    records = all_records(source)
    whole = source.build(records)
    assert whole["image"].dtype == np.uint8
    assert whole["image"].shape == (34, 3, 16, 16)
    assert whole["input_ids"].shape == (34, 25)
    parts = [source.build(records.take(slice(start, start + 7))) for start in range(0, 34, 7)]
    assert same(whole, {name: np.concatenate([part[name] for part in parts]) for name in whole})
    reversed_rows = source.build(records.take(np.arange(33, -1, -1)))
    assert same(whole, {name: values[::-1] for name, values in reversed_rows.items()})


def test_epochs_differ_in_training_and_never_in_evaluation(tokenizer, two_sets):
    run = bind(run_of(tokenizer, two_sets, two_sets, text_augment={"probability": 0.5}))
    train, valid = open_source(run, "train"), open_source(run, "valid")

    def row(source, key):
        one = np.zeros(1, np.int64)
        return source.build(Records(one, one, one, np.array([key], np.uint64)))

    assert same(row(train, 1), row(train, 1))
    assert not np.array_equal(row(train, 1)["image"], row(train, 2)["image"])
    assert same(row(valid, 1), row(valid, 2))


@pytest.mark.parametrize(("workers", "num"), [("threads", 2), ("processes", 1)])
def test_any_workers_prepare_the_same_batches(tokenizer, two_sets, workers, num):
    source = opened(tokenizer, two_sets, text_augment={})
    order = Order(source.sizes, seed=0)
    expected = Loader(source, order, batch_size=8)
    loader = Loader(source, order, batch_size=8, microbatch_size=4, workers=workers, num_workers=num)
    for prepared in loader.iterate(0, 4):
        for number, part in enumerate(prepared.microbatches):
            alone = source.build(expected.global_records(prepared.step).take(slice(4 * number, 4 * number + 4)))
            assert same(part, alone)


def test_groups_are_equal_for_rows_of_one_image_or_caption_and_for_no_others(tokenizer, tmp_path):
    told = rows(6, 2)
    told[5]["caption"] = told[0]["caption"]
    other = [{**row, "image_id": row["image_id"] if n > 1 else 7} for n, row in enumerate(rows(6, 2))]
    sets = [write_csv_set(tmp_path / "a", "train", told), write_csv_set(tmp_path / "b", "train", other)]
    source = opened(tokenizer, sets)
    batch = source.build(Order(source.sizes, seed=0, mode="sequential").records(np.arange(24)))
    images = [(row // 12, (told if row < 12 else other)[row % 12]["image_id"]) for row in range(24)]
    captions = [(told if row < 12 else other)[row % 12]["caption"] for row in range(24)]
    for values, groups in ((images, batch["image_group"]), (captions, batch["caption_group"])):
        numbers = {value: n for n, value in enumerate(dict.fromkeys(values))}
        wanted = np.array([numbers[value] for value in values])
        np.testing.assert_array_equal(groups[:, None] == groups, wanted[:, None] == wanted)


def jpeg(number, size=(431, 320)):
    """A photograph's spectrum, and large enough that training decodes a part of it."""
    from PIL import Image

    small = np.random.default_rng(number).integers(0, 256, (40, 54, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(small).resize(size, Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
    return file.getvalue()


@pytest.mark.parametrize("kernel", ["bilinear", "bicubic"])
def test_evaluation_decodes_files_like_torchvision_bit_for_bit(tokenizer, two_sets, tmp_path, kernel):
    try:
        import_torchvision()
    except ImportError:
        pytest.skip("torchvision is not installed: pip install 'pretrainkit[vision]'")
    import torch
    import torchvision.transforms as reference
    from PIL import Image

    from pretrainkit.recipes.clip.held_out import Inputs, pair_sets
    from pretrainkit.recipes.clip.model import DualEncoder

    folder = write_csv_set(tmp_path / "photos", "valid", rows(4, 1, first=40))
    files = sorted((folder / "valid").iterdir())
    for number, file in enumerate(files):
        file.write_bytes(jpeg(number))
    shorter = {"op": "resize_shorter", "size": 16, "interpolation": kernel}
    ops = [shorter, {"op": "center_crop", "size": 16}]
    color = ((0.481, 0.458, 0.408), (0.269, 0.261, 0.276))
    run = bind(run_of(tokenizer, two_sets, [folder], valid_transforms=ops, normalize=color))
    theirs = reference.Compose(
        [
            reference.Resize(16, reference.InterpolationMode(kernel)),
            reference.CenterCrop(16),
            reference.ToTensor(),
            reference.Normalize(*color),
        ]
    )
    expected = torch.stack([theirs(Image.open(file).convert("RGB")) for file in files])
    source = open_source(run, "valid")
    model, every = DualEncoder(run).eval(), np.arange(4)
    for batch in (
        source.build(Order(source.sizes, seed=0, mode="sequential").records(every)),
        pair_sets(run)[0].images(every),
        Inputs(run).files(files)(every),
    ):
        assert torch.equal(model.normalized(torch.from_numpy(batch["image"])), expected)


def test_held_out_sets_are_scored_by_their_ids_beyond_32_bits(tokenizer, two_sets):
    """Fact 2, up to retrieval."""
    from pretrainkit.recipes.clip.held_out import pair_sets

    first, second = pair_sets(bind(run_of(tokenizer, two_sets, two_sets)))
    assert first.image_ids_N.tolist() == [2**40 + 20 + n // 2 for n in range(8)]
    assert second.image_ids_N.tolist() == [2**40 + 20 + n for n in range(4)]


def test_erased_boxes_are_normalized_floats_and_the_rest_is_the_uint8_image(tokenizer, two_sets):
    crop = RandomResizeCrop(size=16).model_dump()
    erasing = RandomErasing(probability=1.0, fill="const").model_dump()
    half = ((0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
    plain = opened(tokenizer, two_sets)
    erased = opened(tokenizer, two_sets, train_transforms=[crop, erasing], normalize=half)
    pixels = plain.build(all_records(plain))["image"]
    floats = erased.build(all_records(erased))["image"]
    assert floats.dtype == np.float32
    is_box = (floats == 0).all(axis=1, keepdims=True)
    assert 0.02 < is_box.mean() < 0.34
    expected = np.where(is_box, 0, (pixels / 255 - 0.5) / 0.25)
    np.testing.assert_allclose(floats, expected, atol=1e-5)


def test_the_fingerprint_depends_on_everything_that_batches_depend_on(tokenizer, two_sets):
    base = opened(tokenizer, two_sets)
    assert opened(tokenizer, two_sets, num_workers=7, batch_size=2).fingerprint == base.fingerprint
    others = [
        opened(tokenizer, two_sets[:1]),
        opened(tokenizer, two_sets, max_length=9),
        opened(tokenizer, two_sets, text_augment={}),
        opened(tokenizer, two_sets, train_transforms=[{"op": "resize", "size": 16}]),
    ]
    assert len({base.fingerprint, *(other.fingerprint for other in others)}) == 5


def test_the_summary_states_sizes_and_remainders(tokenizer, two_sets):
    summary = opened(tokenizer, two_sets).summary()
    assert [(s["name"], s["pairs"], s["batches"], s["remainder"]) for s in summary["sets"]] == [
        ("one", 24, 6, 0),
        ("two", 10, 2, 2),
    ]
    assert (summary["examples"], summary["batches"], summary["remainder"]) == (34, 8, 2)


# ---- bad rows ----


@pytest.fixture
def spoilt(tmp_path):
    """Write a set of 300 pairs: one without an image, one with a broken image, and one without a caption."""
    told = rows(300, 1)
    told[30]["caption"] = ""
    folder = write_csv_set(tmp_path / "spoilt", "train", told)
    (folder / "train" / "0010.png").unlink()
    (folder / "train" / "0020.png").write_bytes(png(20)[:200])
    return folder


def test_a_pass_over_a_set_with_three_bad_rows_finishes_and_reports_each_reason(tokenizer, spoilt, caplog):
    """Fact 8."""
    source = opened(tokenizer, [spoilt])
    order = Order(source.sizes, seed=0)
    with caplog.at_level(logging.WARNING):
        batches = [step.microbatches[0] for step in Loader(source, order, batch_size=30).iterate(0, 20)]
    for epoch in (batches[:10], batches[10:]):
        reasons = Counter(REASONS[reason] for batch in epoch for reason in batch["bad"])
        assert reasons == {"good": 297, "missing image": 1, "broken image": 1, "empty caption": 1}
    assert len(caplog.records) == 3  # each is named once
    assert any("set spoilt, row 10 (0010.png): missing image" in record.message for record in caplog.records)


def test_a_bad_row_is_replaced_by_one_of_its_set_which_only_its_key_decides(tokenizer, spoilt, two_sets):
    source = opened(tokenizer, [two_sets[0], spoilt])

    def replaced(key):
        one = np.ones(1, np.int64)
        return source.build(Records(one, one * 0, one * 10, np.array([key], np.uint64)))

    assert same(replaced(1), replaced(1))
    groups = {int(replaced(key)["image_group"][0]) for key in range(40)}
    assert len(groups) > 30
    of_set = source.build(
        Records(*(np.full(300, n, np.int64) for n in (1, 0)), np.arange(300), np.arange(300, dtype=np.uint64))
    )
    assert groups <= set(of_set["image_group"].tolist())


def test_every_reason_is_a_metric_of_the_objective(tokenizer, two_sets):
    from pretrainkit.recipes.clip.objective import ClipObjective

    run = bind(run_of(tokenizer, two_sets))
    source = open_source(run, "train")
    batch = source.build(all_records(source))
    batch["bad"][: len(REASONS)] = np.arange(len(REASONS))
    notes = ClipObjective(run).cost(batch).notes
    assert notes == {f"bad_{reason.replace(' ', '_')}": 1 for reason in REASONS[1:]}


def test_an_image_that_claims_to_be_enormous_is_oversized(tokenizer, tmp_path):
    folder = write_csv_set(tmp_path / "s", "train", rows(20, 1))
    small = png(0)
    header = small[12:16] + (60_000).to_bytes(4, "big") * 2 + small[24:29]
    content = small[:12] + header + zlib.crc32(header).to_bytes(4, "big") + small[33:]
    (folder / "train" / "0003.png").write_bytes(content)
    source = opened(tokenizer, [folder], max_bad_fraction=1.0)
    batch = source.build(Order(source.sizes, seed=0, mode="sequential").records(np.arange(20)))
    assert [REASONS[reason] for reason in batch["bad"][2:5]] == ["good", "oversized image", "good"]


def test_bad_rows_stop_a_run_that_does_not_replace_and_every_evaluation(tokenizer, spoilt):
    source = opened(tokenizer, [spoilt], on_bad_sample="error")
    with pytest.raises(DataError, match=r"set spoilt, row \d+ \(00.0\.png\): .*\n  data.on_bad_sample is error"):
        source.build(all_records(source))
    told = rows(8, 1)
    told[3]["caption"] = ""
    write_csv_set(spoilt, "valid", [{**row, "image": f"9{row['image'][1:]}"} for row in told])
    held_out = open_source(run_of(tokenizer, [spoilt], [spoilt]), "valid")
    with pytest.raises(DataError, match=r"row 3 \(9003\.png\): empty caption: there is no text\n  evaluation needs"):
        held_out.build(all_records(held_out))


def test_more_bad_rows_than_allowed_end_the_run_with_their_reasons(tokenizer, spoilt):
    source = opened(tokenizer, [spoilt], max_bad_fraction=0.007)
    with pytest.raises(DataError) as error:
        source.build(all_records(source))
    told = str(error.value)
    for part in ("1 of 300 images (missing image)", "1 of 300 images (broken image)", "1 of 300 captions (empty)"):
        assert part in told
    assert "a share of 0.01, which is more than data.max_bad_fraction=0.007" in told
    allowed = re.search(r"data\.max_bad_fraction=(\S+)$", told)
    source = opened(tokenizer, [spoilt], max_bad_fraction=float(allowed[1]))
    assert source.build(all_records(source))["bad"].any()


def test_a_broken_image_with_five_captions_is_one_bad_image(tokenizer, tmp_path):
    folder = write_csv_set(tmp_path / "s", "train", rows(100, 5))
    (folder / "train" / "0020.png").write_bytes(png(20)[:200])
    source = opened(tokenizer, [folder], max_bad_fraction=0.01)
    assert Counter(source.build(all_records(source))["bad"].tolist())[REASONS.index("broken image")] == 5
    (folder / "train" / "0021.png").write_bytes(png(21)[:200])
    with pytest.raises(
        DataError, match=r"2 of 100 images \(broken image\); this is a share of 0\.02, which is more than"
    ):
        source.build(all_records(source))


# ---- archives that break off ----


def samples_of(num, first=0):
    """Return samples as img2dataset writes them: an image, its caption and its metadata."""
    return [
        {
            "png": png(number),
            "txt": caption(number).encode(),
            "json": as_json(caption=caption(number), key=f"{number:05d}", status="success", width=20, height=16),
        }
        for number in range(first, first + num)
    ]


@pytest.fixture
def torn(tmp_path):
    """Two archives as img2dataset leaves them where it is stopped: the second breaks off, without its tables."""
    folder = tmp_path / "torn"
    for shard in (0, 1):
        write_samples(folder / f"{shard:05d}.tar", samples_of(8, 8 * shard))
    (folder / "00000_stats.json").write_text('{"count": 9, "status_dict": {"success": 8, "HTTP Error 404": 1}}')
    (folder / "00001_stats.json").write_text('{"count": ')
    whole = (folder / "00001.tar").read_bytes()
    (folder / "00001.tar").write_bytes(whole[: len(whole) // 2])
    return folder


def test_the_readable_part_of_a_torn_archive_is_used_and_counted(tokenizer, torn, caplog):
    with caplog.at_level(logging.WARNING):
        source = opened(tokenizer, [torn], max_bad_fraction=0.5)
    (pairs,) = source.sets
    assert 8 < len(pairs) < 16
    assert [pairs.caption(row) for row in range(len(pairs))] == [caption(number) for number in range(len(pairs))]
    assert not source.build(all_records(source))["bad"].any()
    left_out = source.summary()["sets"][0]["left_out"]
    assert any(reason.startswith("file that cannot be read completely, such as 00001.tar") for reason in left_out)
    (line,) = [record.getMessage() for record in caplog.records]
    assert "1 file cannot be read completely, such as 00001.tar: " in line
    assert line.endswith(f"; the {len(pairs)} readable pairs are used")


def test_a_torn_archive_stops_a_run_that_does_not_replace(tokenizer, torn):
    with pytest.raises(DataError, match=r"data\.train=.*1 file cannot be read completely") as error:
        opened(tokenizer, [torn], on_bad_sample="error")
    advice = followed(error.value, "recipes/clip/checks.py: … / …, or use the readable part")
    advised = re.search(r"use the readable part: data\.(\w+)=(\w+) data\.(\w+)=(\S+)$", advice)
    assert opened(tokenizer, [torn], **{advised[1]: advised[2], advised[3]: float(advised[4])}).sizes


def test_the_missing_part_of_a_torn_archive_counts_as_bad(tokenizer, torn):
    with pytest.raises(DataError, match=r"1 file cannot be read") as error:
        opened(tokenizer, [torn])
    advice = followed(error.value, "recipes/clip/checks.py: … / about")
    lost, share = re.search(
        r"about (\d+) pairs are lost, a share of (\S+), which is more than data\.max_bad", advice
    ).groups()
    allowed = float(re.search(r"allow more: data\.max_bad_fraction=(\S+)$", advice)[1])
    source = opened(tokenizer, [torn], max_bad_fraction=allowed)
    assert source.sizes == (16 - int(lost),)
    assert float(share) == pytest.approx(int(lost) / 16, rel=0.05)
    # A bad image comes on top of it.
    (pairs,) = source.sets
    with pytest.raises(DataError, match=rf"about {lost} pairs \(unreadable file\); this is a share of"):
        BadRows(pairs, (int(lost) + 0.5) / 16).add(0, BadImage("broken image", "it breaks off"))
    BadRows(pairs, (int(lost) + 2) / 16).add(0, BadImage("broken image", "it breaks off"))


def test_an_archive_of_the_last_pairs_lacks_nothing_because_it_is_small(tokenizer, tmp_path):
    """It lacks only its sample that cannot be read."""
    samples = samples_of(2, 200)
    samples[1]["json"] = samples[1]["json"][:20]
    write_samples(tmp_path / "set" / "00000.tar", samples_of(200))
    write_samples(tmp_path / "set" / "00001.tar", samples)
    (pairs,) = opened(tokenizer, [tmp_path / "set"]).sets
    assert (len(pairs), pairs.num_lost) == (201, 1)


def test_an_invalid_json_file_costs_only_its_sample(tokenizer, tmp_path):
    samples = samples_of(6)
    samples[2]["json"] = samples[2]["json"][:20]
    source = opened(tokenizer, [write_samples(tmp_path / "a.tar", samples)], max_bad_fraction=0.2)
    assert source.sizes == (5,)
    assert "00002.json is not JSON" in source.sets[0].torn[0]


def test_captions_that_are_not_utf8_cost_only_their_samples(tokenizer, tmp_path):
    samples = samples_of(8)
    text = samples[0]["txt"].decode()
    for number, encoding in enumerate(("utf-8-sig", "utf-16", "utf-16-le")):
        samples[number]["txt"] = text.encode(encoding)
    samples[3]["txt"] = "café".encode("latin-1")
    source = opened(tokenizer, [write_samples(tmp_path / "a.tar", samples)], max_bad_fraction=0.5)
    (pairs,) = source.sets
    assert (len(pairs), pairs.caption(0)) == (5, text)
    assert [problem.partition(": ")[2] for problem in pairs.torn] == [
        "00001.txt is not UTF-8: it has zeros, as UTF-16 has",
        "00002.txt is not UTF-8: it has zeros, as UTF-16 has",
        "00003.txt is not UTF-8: 'utf-8' codec can't decode byte 0xe9 in position 3: unexpected end of data",
    ]


def test_a_set_of_archives_of_which_none_can_be_read_is_refused_with_the_reason(tokenizer, tmp_path):
    whole = write_samples(tmp_path / "a.tar", samples_of(2)).read_bytes()
    (tmp_path / "a.tar").write_bytes(gzip.compress(whole))
    with pytest.raises(DataError, match=r"holds no image-text pairs\n  1 left out: file that cannot be read .*a\.tar"):
        opened(tokenizer, [tmp_path / "a.tar"])


@pytest.mark.parametrize("damage", ["torn archive", "broken image", "broken image, csv"])
def test_held_out_pairs_that_cannot_be_read_are_reported_before_training(
    tokenizer, two_sets, tmp_path, damage, monkeypatch
):
    """The advice is followed as it is written."""
    monkeypatch.chdir(tmp_path)
    if damage == "broken image, csv":
        folder = write_csv_set(tmp_path / "held out", "valid", rows(8, 2, first=60))
        (folder / "valid" / "0063.png").write_bytes(png(63)[:200])
    else:
        folder, samples = tmp_path / "held out", samples_of(8, first=60)
        if damage == "broken image":
            samples[3]["png"] = samples[3]["png"][:200]
        path = write_samples(folder / "valid" / "00000.tar", samples)
        if damage == "torn archive":
            path.write_bytes(path.read_bytes()[:9000])
    run = run_of(tokenizer, two_sets, [folder])
    with pytest.raises(DataError, match=r"such as .*00") as error:
        train(run, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    if damage == "torn archive":
        followed(error.value, "recipes/clip/checks.py: … / evaluation needs every row")
    advice = re.search(r"leave out bad rows: pretrainkit (.+)\n  and then data\.valid=(\w+)", str(error.value))
    result = CliRunner().invoke(app, shlex.split(advice[1]))
    assert result.exit_code == 0, result.output
    run = run_of(tokenizer, two_sets, [advice[2]])
    short = load_config(run.model_dump(mode="json"), ["num_steps=1", "schedule.num_warmup_steps=0"])
    assert any(name.endswith("RSUM") for name in train(short, tmp_path / "run"))


def test_broken_images_of_classes_are_reported_before_training(tokenizer, two_sets, tmp_path):
    for number in range(4):
        place = tmp_path / "classes" / "ab"[number % 2] / f"{number}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(png(number)[: 200 if number == 3 else None])
    run = run_of(tokenizer, two_sets)
    classes = {"classification": [{"path": str(tmp_path / "classes")}]}
    run = load_config(run.model_dump(mode="json") | {"evaluate": run.evaluate.model_dump(mode="json") | classes})
    with pytest.raises(DataError, match=r"1 of 4 images of evaluate\.classification.*\n  .*b/3\.png: "):
        train(run, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_set_without_any_image_ends_the_run_at_once(tokenizer, tmp_path):
    folder = write_csv_set(tmp_path / "s", "train", rows(20, 1))
    for path in (folder / "train").iterdir():
        path.unlink()
    source = opened(tokenizer, [folder], max_bad_fraction=1.0)
    with pytest.raises(DataError, match="100 rows drawn one after another are all bad"):
        source.build(all_records(source))


# ---- what is refused before a run ----


def test_the_vocabulary_comes_from_the_tokenizer(tokenizer, two_sets):
    assert bind(run_of(tokenizer, two_sets)).model.text.vocab_size == 80


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_length": 40}, "data.max_length is 40 tokens, but the text tower has 32 positions"),
        ({"train_transforms": [{"op": "resize", "size": 32}]}, "makes images of 32 x 32 pixels, but .* is 16"),
        ({"valid_transforms": [{"op": "resize_shorter", "size": 16}]}, "data.valid_transforms: .*different sizes"),
        ({"text_augment": {"mask_share": 0.8, "random_share": 0.5}}, "sum to more than 1"),
        ({"batch_size": 16, "order": "debias"}, "data.batch_size is 16, but two has 10 pairs: too few for a batch"),
        ({"batch_size": 40}, "data.batch_size is 40, but one has 24 pairs, two has 10 pairs: too few for a batch"),
    ],
)
def test_settings_that_do_not_fit_are_refused_with_the_numbers(tokenizer, two_sets, changes, message):
    with pytest.raises(ConfigError, match=message):
        bind(run_of(tokenizer, two_sets, **changes))


@pytest.mark.parametrize("damage", ["no caption", "no image"])
def test_held_out_rows_that_cannot_be_used_are_refused_before_training(tokenizer, two_sets, tmp_path, damage):
    told = rows(8, 1, first=50)
    if damage == "no caption":
        told[3]["caption"] = " "
    folder = write_csv_set(tmp_path / "s", "valid", told)
    if damage == "no image":
        (folder / "valid" / "0053.png").unlink()
    run = run_of(tokenizer, two_sets, [folder])
    with pytest.raises(DataError, match=r"1 of 8 held-out rows .*row 3 \(0053\.png\)"):
        bind(run)
    bind(run.model_copy(update={"evaluate": run.evaluate.model_copy(update={"num_examples": 3})}))


def test_a_tokenizer_is_given_by_its_folder(tokenizer, two_sets):
    file = next(tokenizer.iterdir())
    with pytest.raises(DataError, match=rf"is a file\n.*data\.tokenizer={re.escape(str(tokenizer))}"):
        bind(run_of(file, two_sets))


def test_sets_of_several_caption_keys_are_also_distinguished(tokenizer, tmp_path):
    folder = write_csv_set(tmp_path / "s", "train", rows(8, 1))
    drawn = {"path": str(folder), "caption_key": {"caption": 3, "image": 1}}
    bind(run_of(tokenizer, [drawn]))
    with pytest.raises(ConfigError, match=r"lists .* 2 times"):
        bind(run_of(tokenizer, [drawn, drawn]))


def test_small_sets_may_wrap(tokenizer, two_sets):
    bind(run_of(tokenizer, two_sets, batch_size=16, order="debias", small_set="wrap"))


def test_a_tokenizer_of_more_pieces_than_the_tower_has_is_refused(tokenizer, two_sets):
    run = run_of(tokenizer, two_sets)
    text = run.model.text.model_copy(update={"vocab_size": 50})
    small = run.model_copy(update={"model": run.model.model_copy(update={"text": text})})
    with pytest.raises(ConfigError, match=r"has embeddings for 50 pieces, but the tokenizer in .* has 80"):
        bind(small)


def test_sets_that_could_not_be_distinguished_are_refused(tokenizer, two_sets, tmp_path):
    write_csv_set(tmp_path / "one", "valid", rows(4, 1, first=30))
    valid = [two_sets[0], tmp_path / "one"]
    with pytest.raises(ConfigError, match=r"2 sets of data\.valid are called 'one'"):
        bind(run_of(tokenizer, two_sets, valid))
    named = [{"path": str(valid[0])}, {"path": str(valid[1]), "name": "another"}]
    bind(run_of(tokenizer, two_sets, named))
    with pytest.raises(ConfigError, match=r"data\.train lists .*one 2 times"):
        bind(run_of(tokenizer, [two_sets[0], two_sets[0]]))


def test_held_out_images_that_are_trained_on_are_refused_whatever_their_captions(tokenizer, tmp_path):
    folder = write_csv_set(tmp_path / "s", "train", rows(6, 2))
    write_csv_set(folder, "valid", [{**row, "caption": "new"} for row in rows(3, 2, first=5)])
    with pytest.raises(
        DataError, match=r"1 of the 3 images of data.valid=.* are also in data.train=.*, such as 0005\.png"
    ):
        bind(run_of(tokenizer, [folder], [folder]))


def test_held_out_images_may_share_names_with_others_and_are_warned_about_when_captions_agree(
    tokenizer, tmp_path, caplog
):
    folder = write_csv_set(tmp_path / "s", "train", rows(6, 1))
    told = rows(3, 1)
    write_csv_set(folder, "valid", [{**told[0]}, {**told[1], "caption": "another"}, told[2]])
    for number in range(3):
        (folder / "valid" / f"{number:04d}.png").write_bytes(png(90 + number))
    with caplog.at_level(logging.WARNING):
        bind(run_of(tokenizer, [folder], [folder]))
    assert "2 images of data.valid=" in caplog.text


def test_the_same_pairs_are_not_held_out_under_another_name(tokenizer, two_sets):
    with pytest.raises(DataError, match="has the same pairs as"):
        bind(run_of(tokenizer, two_sets[1:], [{"path": str(two_sets[1]), "split": "train"}]))

"""Rows to batches: stored or drawn, whole or packed, each row's mask is a function of its record."""

import json
import pickle

import numpy as np
import pytest
from typer.testing import CliRunner

from pretrainkit.cli.main import app_of
from pretrainkit.data.loader import Loader
from pretrainkit.data.order import Order
from pretrainkit.data.source import Records
from pretrainkit.errors import ConfigError, DataError
from pretrainkit.recipes.pixel.presets import PRESETS
from pretrainkit.recipes.pixel.recipe import RECIPE
from pretrainkit.recipes.pixel.rows import ParquetTable, renderer_folder
from pretrainkit.recipes.pixel.source import bind, open_source
from pretrainkit.rendering import Renderer, RendererConfig, save_renderer
from pretrainkit.rendering.documents import find_documents
from pretrainkit.rendering.prerender import RenderSettings, prerender
from support.remedies import followed
from support.toy_words import WORDS

pytest.importorskip("freetype")
pyarrow = pytest.importorskip("pyarrow")
pytest.importorskip("pyarrow.parquet")

MAX_PATCHES = 40


@pytest.fixture(scope="module")
def renderer(latin_font):
    return Renderer(RendererConfig(font_file=latin_font, max_seq_length=MAX_PATCHES))


def write_corpus(path, seed):
    rng = np.random.default_rng(seed)
    texts = [" ".join(rng.choice(WORDS, rng.integers(5, 400))) for _ in range(30)]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("text") / "documents.jsonl", 0)


@pytest.fixture(scope="module")
def folders(corpus, renderer, tmp_path_factory):
    """The same rows as pictures and as text."""
    out = tmp_path_factory.mktemp("rows")
    for name, with_pixels in (("pictures", True), ("text", False)):
        prerender(find_documents([corpus]), renderer, out / name, RenderSettings(with_pixels=with_pixels))
    return {name: out / name / "train" for name in ("pictures", "text")}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PRETRAINKIT_CACHE", str(tmp_path / "cache"))


def run_config(train, valid=(), objective=None, **data):
    config = PRESETS["tiny"]()
    fields = {"train": train, "valid": valid, "max_patches": MAX_PATCHES, "batch_size": 8} | data
    new = type(config.data).model_validate(config.data.model_dump() | fields)
    changes = {"data": new, "objective": config.objective.model_copy(update=objective or {})}
    return config.model_copy(update=changes)


def records(source, rows, seed=0):
    rows = np.asarray(rows, np.int64)
    keys = np.random.default_rng(seed).integers(0, 2**63, len(rows)).astype(np.uint64)
    return Records(np.zeros_like(rows), np.zeros_like(rows), rows, keys)


def equal(a, b):
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


def test_text_drawn_on_the_way_gives_the_batches_of_stored_pictures(folders):
    stored, drawn = (open_source(run_config(str(folders[name])), "train") for name in ("pictures", "text"))
    chosen = records(stored, [0, 5, 3, 17, 5])
    assert stored.sizes == drawn.sizes
    assert equal(stored.build(chosen), drawn.build(chosen))


def test_plain_text_is_cut_once_and_gives_the_same_rows(folders, corpus, latin_font, cache):
    config = run_config(str(corpus), renderer=latin_font)
    plain, stored = open_source(config, "train"), open_source(run_config(str(folders["pictures"])), "train")
    chosen = records(stored, [1, 2, 9])
    assert plain.sizes == stored.sizes
    assert equal(plain.build(chosen), stored.build(chosen))
    made = plain.components[0].table.paths[0]
    stamp = made.stat().st_mtime_ns
    assert open_source(config, "train").components[0].table.paths[0] == made
    assert made.stat().st_mtime_ns == stamp
    assert renderer_folder(config.data) == made.parent / "renderer"


def test_pixels_are_those_of_the_renderer_and_white_after_the_end_patch(folders, renderer):
    source = open_source(run_config(str(folders["pictures"])), "train")
    (file,) = folders["text"].glob("*.parquet")
    texts = pyarrow.parquet.read_table(file)["text"].to_pylist()
    component = source.components[0]
    rows = [0, int(component.num_patches_N.argmin()), 4]
    examples = source.examples(records(source, rows))
    longest = int(component.num_patches_N[rows].max()) + 1
    assert examples.pixels.shape == (3, 16, longest * 16)
    for row, pixels in zip(rows, examples.pixels, strict=True):
        whole = renderer(texts[component.kept_N[row]]).pixel_values
        assert np.array_equal(pixels, whole[:, : longest * 16])


@pytest.mark.parametrize("region", ["text", "canvas"])
def test_masks_do_not_depend_on_the_other_rows_of_a_batch(folders, region):
    source = open_source(run_config(str(folders["text"]), objective={"mask_region": region}), "train")
    lengths = source.components[0].num_patches_N
    rows = np.array([int(lengths.argmin()), int(lengths.argmax()), 2, 3])
    chosen = records(source, rows)
    together = source.examples(chosen)
    for place in range(len(rows)):
        alone = source.examples(chosen.take(np.array([place])))
        used = alone.is_masked_BN.shape[1]
        assert np.array_equal(alone.is_masked_BN[0], together.is_masked_BN[place, :used])


def test_every_epoch_draws_new_masks_but_held_out_rows_never_change(folders):
    for split, is_equal in (("train", False), ("valid", True)):
        path = str(folders["text"])
        source = open_source(run_config(path, path), split)
        first, second = (source.examples(records(source, range(10), seed)).is_masked_BN for seed in (0, 1))
        assert np.array_equal(first, second) == is_equal


def test_short_rows_are_left_out(folders):
    """Fact 35."""
    all_rows = open_source(run_config(str(folders["text"]), min_text_patches=0), "train").components[0].num_patches_N
    source = open_source(run_config(str(folders["text"]), min_text_patches=22), "train")
    assert 0 < (all_rows < 22).sum() == len(all_rows) - source.sizes[0]
    assert source.components[0].num_patches_N.min() >= 22
    assert source.summary()["left_out"] == (all_rows < 22).sum()
    with pytest.raises(DataError, match="min_text_patches"):
        open_source(run_config(str(folders["text"]), min_text_patches=40), "train")


def test_sets_are_mixed_by_rows_as_the_published_weights_are():
    """Fact 36: 5 400 000 and 11 446 535 rows without weights are 0.3205 and 0.6795 of the examples."""
    sizes = (5_400_000, 11_446_535)
    drawn = Order(sizes, seed=0).records(np.arange(20_000, dtype=np.int64)).source
    assert np.bincount(drawn) / len(drawn) == pytest.approx([0.3205, 0.6795], abs=0.01)
    assert np.array(sizes) / sum(sizes) == pytest.approx([0.3205, 0.6795], abs=5e-5)


def test_held_out_rows_and_training_rows_are_all_rows_once(folders):
    config = run_config(str(folders["text"]), held_out_share=0.2, min_text_patches=0)
    train, valid = (open_source(config, split).components[0].kept_N for split in ("train", "valid"))
    assert len(valid)
    assert sorted([*train, *valid]) == list(range(len(train) + len(valid)))
    assert bind(config) == config


def test_any_workers_give_the_same_steps(folders):
    source = open_source(run_config(str(folders["text"])), "train")
    steps = []
    for kind, num in (("threads", 0), ("threads", 3), ("processes", 1)):
        loader = Loader(
            source, Order(source.sizes, seed=1), batch_size=8, microbatch_size=4, workers=kind, num_workers=num
        )
        steps.append([batch for step in loader.iterate(0, 3) for batch in step.microbatches])
    for other in steps[1:]:
        assert all(equal(a, b) for a, b in zip(steps[0], other, strict=True))


def test_a_source_can_be_pickled_after_use(folders):
    for name in folders:
        source = open_source(run_config(str(folders[name])), "train")
        chosen = records(source, [3, 1])
        before = source.build(chosen)
        assert equal(pickle.loads(pickle.dumps(source)).build(chosen), before)


def test_the_fingerprint_changes_with_settings_of_examples(folders):
    path = str(folders["text"])
    variants = [
        run_config(path),
        run_config(path, min_text_patches=3),
        run_config(path, objective={"mask_ratio": 0.5}),
        run_config(str(folders["pictures"])),
    ]
    assert len({open_source(config, "train").fingerprint for config in variants}) == len(variants)
    unchanged = run_config(path, pad_to=8, objective={"normalize_target": False})
    assert open_source(unchanged, "train").fingerprint == open_source(variants[0], "train").fingerprint


def test_files_in_the_published_layout_are_rows(folders, tmp_path):
    """Names after "of" are not trusted, other splits are left out."""
    (file,) = folders["pictures"].glob("*.parquet")
    table = pyarrow.parquet.read_table(file)
    (tmp_path / "data").mkdir()
    for index, part in enumerate((table[:40], table[40:])):
        pyarrow.parquet.write_table(part, tmp_path / f"data/train-{index:05d}-of-00003.parquet")
    pyarrow.parquet.write_table(table[:5], tmp_path / "data/test-00000-of-00001.parquet")
    published = open_source(run_config(str(tmp_path)), "train")
    stored = open_source(run_config(str(folders["pictures"])), "train")
    chosen = records(stored, [0, 50, 20])
    assert published.sizes == stored.sizes
    assert equal(published.build(chosen), stored.build(chosen))


def test_published_rows_in_large_groups_are_written_in_smaller_ones_as_advised(folders, tmp_path, caplog):
    (file,) = folders["pictures"].glob("*.parquet")
    table = pyarrow.parquet.read_table(file)
    (tmp_path / "large").mkdir()
    pyarrow.parquet.write_table(
        pyarrow.concat_tables([table] * (1 + 128 // len(table))), tmp_path / "large/train-00000-of-00001.parquet"
    )
    before = open_source(run_config(str(tmp_path / "large")), "train")
    advice = followed(caplog.messages[-1], "recipes/pixel/rows.py: … has … rows per row group")
    words = advice.partition("pretrainkit render ")[2].replace("FOLDER", str(tmp_path / "small")).split()
    result = CliRunner().invoke(app_of("render"), words)
    assert result.exit_code == 0, result.output
    caplog.clear()
    after = open_source(run_config(str(tmp_path / "small")), "train")
    assert not caplog.messages
    assert equal(before.build(records(before, [0, 9])), after.build(records(after, [0, 9])))


def test_data_that_do_not_fit_are_refused_before_a_training(folders, corpus, cache):
    path = str(folders["pictures"])
    with pytest.raises(ConfigError, match="rows of 40 patches"):
        bind(run_config(path, max_patches=30))
    with pytest.raises(DataError, match="held_out_share"):
        bind(run_config(path, path))
    with pytest.raises(ConfigError, match="only used without data"):
        bind(run_config(path, path, held_out_share=0.1))
    with pytest.raises(DataError, match="no renderer is given"):
        bind(run_config(str(corpus)))
    with pytest.raises(DataError, match="does not exist"):
        bind(run_config(path + "-gone"))
    small_patches = run_config(path)
    small_patches = small_patches.model_copy(update={"model": small_patches.model.model_copy(update={"patch_size": 8})})
    with pytest.raises(ConfigError, match="patches of 16 pixels"):
        bind(small_patches)


def test_a_run_keeps_the_renderer_of_its_data(folders):
    config = run_config(str(folders["pictures"]))
    assert RECIPE.tokenizer_folder(config) == folders["pictures"] / "renderer"


def test_sets_of_different_renderers_and_kinds_are_mixed_with_a_warning(folders, latin_font, tmp_path, caplog):
    other = Renderer(RendererConfig(font_file=latin_font, max_seq_length=MAX_PATCHES, font_size=7))
    prerender(find_documents([write_corpus(tmp_path / "more.jsonl", 1)]), other, tmp_path / "rows")
    paths = (str(folders["text"]), str(tmp_path / "rows/train"))
    config = bind(run_config(",".join(paths)))
    assert "different renderers" in caplog.text
    mixed = open_source(config, "train")
    chosen = Records(np.array([0, 1, 0]), np.zeros(3, np.int64), np.array([2, 2, 5]), np.arange(3, dtype=np.uint64))
    together = mixed.examples(chosen)
    for place in range(3):
        component = mixed.components[chosen.source[place]]
        (strip,) = component.strips(chosen.index[place : place + 1])
        assert np.array_equal(together.pixels[place, :, : strip.shape[1]], strip)


def test_a_batch_without_examples_can_be_built(folders):
    source = open_source(run_config(str(folders["text"])), "train")
    assert source.build(records(source, []))["lengths"].shape == (0,)


def test_text_of_short_documents_is_remarked_on_once(latin_font, tmp_path, cache, caplog):
    (tmp_path / "book.txt").write_text("a short paragraph of some words\n\n" * 200)
    config = run_config(str(tmp_path / "book.txt"), renderer=latin_font, min_text_patches=3, held_out_share=0.2)
    bind(config)
    for split in ("train", "valid"):
        open_source(config, split)
    assert caplog.text.count("--format book") == 1


def test_a_renderer_is_refused_that_did_not_draw_the_rows(folders, renderer, latin_font, tmp_path):
    """The run would keep it as the model's, and fine-tuning would draw with it."""
    save_renderer(renderer, tmp_path / "same")
    save_renderer(Renderer(renderer.config.model_copy(update={"font_size": 7.0})), tmp_path / "other")
    for name in ("pictures", "text"):
        rows = str(folders[name])
        for same in (latin_font, tmp_path / "same", folders[name] / "renderer"):
            bind(run_config(rows, min_text_patches=2, held_out_share=0.1, renderer=str(same)))
        with pytest.raises(DataError, match=r"data\.renderer=.*other .* is not the renderer"):
            bind(run_config(rows, min_text_patches=2, held_out_share=0.1, renderer=str(tmp_path / "other")))


def test_a_folder_above_rendered_rows_is_named_as_such(folders):
    above = folders["pictures"].parent
    with pytest.raises(DataError, match=rf"contains folders of rendered rows\n  name {above}/train"):
        open_source(run_config(str(above)), "train")


def test_a_table_without_lengths_is_refused(tmp_path):
    path = tmp_path / "rows.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a"]}), path)
    with pytest.raises(DataError, match="has no column 'num_patches'") as caught:
        ParquetTable([path]).column("num_patches")
    assert "pretrainkit render" in followed(caught.value, "recipes/pixel/rows.py: … has no column")

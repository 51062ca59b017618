"""Training text in other fonts, sizes and colours, and other settings of a mixture and a loss."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from pretrainkit.data.source import Records
from pretrainkit.errors import ConfigError, DataError
from pretrainkit.recipes.pixel.batch import pack
from pretrainkit.recipes.pixel.config import PixelAugmentConfig
from pretrainkit.recipes.pixel.model import build
from pretrainkit.recipes.pixel.objective import TERM, PixelObjective
from pretrainkit.recipes.pixel.presets import PRESETS
from pretrainkit.recipes.pixel.recipe import RECIPE
from pretrainkit.recipes.pixel.source import bind, open_source
from pretrainkit.rendering import Renderer, RendererConfig
from pretrainkit.rendering.documents import find_documents
from pretrainkit.rendering.prerender import RenderSettings, prerender
from support.toy_words import WORDS

pytest.importorskip("freetype")
pytest.importorskip("pyarrow")

MAX_PATCHES = 24


@pytest.fixture(scope="module")
def folders(tmp_path_factory, latin_font):
    """The same rows as pictures and as text, and fewer others."""
    place, rng = tmp_path_factory.mktemp("looks"), np.random.default_rng(0)
    renderer = Renderer(RendererConfig(font_file=latin_font, max_seq_length=MAX_PATCHES))
    for name, num in (("many", 40), ("few", 5)):
        texts = [" ".join(rng.choice(WORDS, 60)) for _ in range(num)]
        (place / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    made = {"pictures": ("many", True), "text": ("many", False), "few": ("few", False)}
    for name, (corpus, with_pixels) in made.items():
        documents = find_documents([place / f"{corpus}.jsonl"])
        prerender(documents, renderer, place / name, RenderSettings(with_pixels=with_pixels))
    return {name: str(place / name / "train") for name in made}


def run_config(train, objective=None, **data):
    config = PRESETS["tiny"]()
    fields = {"train": train, "max_patches": MAX_PATCHES, "batch_size": 8} | data
    new = type(config.data).model_validate(config.data.model_dump() | fields)
    changed = config.objective.model_copy(update=objective or {})
    return config.model_copy(update={"data": new, "objective": changed})


def source_of(train, split="train", **augment):
    return open_source(run_config(train, augment=augment, valid=train if split == "valid" else ()), split)


def records(rows, seed=0):
    rows = np.asarray(rows, np.int64)
    keys = np.random.default_rng(seed).integers(0, 2**63, len(rows)).astype(np.uint64)
    return Records(np.zeros_like(rows), np.zeros_like(rows), rows, keys)


def test_a_row_in_another_size_equals_a_drawing_in_that_size(folders, latin_font):
    source = source_of(folders["text"], sizes=[6.0])
    chosen = records(np.arange(40) % len(source.components[0]))
    own = open_source(run_config(folders["text"]), "train")
    texts = own.components[0].table.values("text", own.components[0].kept_N[chosen.index])
    small, usual = (
        Renderer(RendererConfig(font_file=latin_font, font_size=size, max_seq_length=MAX_PATCHES)) for size in (6, 8)
    )
    examples = source.examples(chosen)
    drawn_by = {"small": 0, "usual": 0}
    for text, num, pixels in zip(texts, examples.num_text_patches_B, examples.pixels, strict=True):
        own_columns = {"small": small.columns(text), "usual": usual.columns(text)}
        strip = pixels[:, : (num + 1) * 16].T
        (name,) = [name for name, columns in own_columns.items() if np.array_equal(columns, strip)]
        drawn_by[name] += 1
    assert min(drawn_by.values()) > 8
    assert np.array_equal(source.lengths(chosen), examples.num_text_patches_B + 1)


def test_a_look_follows_from_the_key_of_a_record_and_changes_with_the_epoch(folders):
    source = source_of(folders["text"], sizes=[6.0, 7.0], inks=["navy"], papers=["#ffffcc"])
    chosen = records(np.arange(8))
    together = source.examples(chosen)
    for place in range(8):
        alone = source.examples(chosen.take(np.array([place]))).pixels[0]
        assert np.array_equal(alone, together.pixels[place][:, : alone.shape[1]])
    copy = pickle.loads(pickle.dumps(source))
    assert np.array_equal(copy.examples(chosen).pixels, together.pixels)
    again = source.examples(records(np.arange(8), seed=1))
    assert not np.array_equal(again.num_text_patches_B, together.num_text_patches_B)


def test_pictures_are_recoloured_from_paper_to_ink(folders):
    plain = open_source(run_config(folders["pictures"]), "train").examples(records([0])).pixels[0]
    source = source_of(folders["pictures"], inks=["#ff0000"], papers=["#0000ff"])
    seen = set()
    for seed in range(40):
        pixels = source.examples(records([0], seed)).pixels[0]
        assert pixels.shape == (*plain.shape, 3)
        ink, paper = (tuple(pixels[plain == grey][0].tolist()) for grey in (0, 255))
        seen.add((ink, paper))
        middle = pixels[plain == 128]
        if ink == (255, 0, 0) and paper == (0, 0, 255) and len(middle):
            assert middle[0].tolist() == [127, 0, 128]
    assert seen == {(ink, paper) for ink in ((0, 0, 0), (255, 0, 0)) for paper in ((255, 255, 255), (0, 0, 255))}


def test_greys_stay_grey(folders):
    assert source_of(folders["pictures"], inks=["#404040"]).examples(records([0, 1])).pixels.ndim == 3


def test_held_out_text_is_never_varied(folders):
    plain, varied = source_of(folders["text"], "valid"), source_of(folders["text"], "valid", sizes=[6], inks=["red"])
    chosen = records(np.arange(6))
    assert np.array_equal(plain.examples(chosen).pixels, varied.examples(chosen).pixels)
    assert plain.fingerprint == varied.fingerprint
    assert source_of(folders["text"]).fingerprint != source_of(folders["text"], sizes=[6]).fingerprint


def test_no_share_varies_nothing(folders):
    chosen = records(np.arange(6))
    plain, none = source_of(folders["text"]), source_of(folders["text"], sizes=[6], share=0)
    assert np.array_equal(plain.examples(chosen).pixels, none.examples(chosen).pixels)


def test_text_that_cannot_be_drawn_is_refused_before_training(folders, tmp_path):
    with pytest.raises(ConfigError, match=r"pictures, and data.augment cannot change their font\n.*--text-only"):
        bind(run_config(folders["pictures"], augment={"sizes": [6]}))
    bind(run_config(folders["text"], valid=folders["pictures"], augment={"sizes": [6]}))
    with pytest.raises(ConfigError, match="font_size 90"):
        bind(run_config(folders["text"], augment={"sizes": [90]}))
    with pytest.raises(DataError, match=r"absent\.ttf"):
        bind(run_config(folders["text"], augment={"fonts": [str(tmp_path / "absent.ttf")]}))
    with pytest.raises(ValidationError, match="puce"):
        PixelAugmentConfig(inks=("puce",))


def test_another_font_keeps_the_renderers_own_for_missing_characters(folders, latin_font, tmp_path):
    (tmp_path / "other.ttf").write_bytes(Path(latin_font).read_bytes() + b"other")
    source = source_of(folders["text"], fonts=[str(tmp_path / "other.ttf")])
    plain = source_of(folders["text"])
    chosen = records(np.arange(6))
    assert np.array_equal(source.examples(chosen).pixels, plain.examples(chosen).pixels)  # the same letters
    assert source.fingerprint != plain.fingerprint


def shares(config):
    source = open_source(config, "train")
    order = RECIPE.build_order(config, source)
    return np.bincount(order.records(np.arange(4000)).source, minlength=2) / 4000, source.sizes


def test_temperature_brings_small_sets_more_often(folders):
    both = f"{folders['text']},{folders['few']}"
    plain, sizes = shares(run_config(both))
    flat, _ = shares(run_config(both, temperature=4.0))
    expected = np.array(sizes) ** 0.25
    assert plain[1] == pytest.approx(sizes[1] / sum(sizes), abs=0.02)
    assert flat == pytest.approx(expected / expected.sum(), abs=0.01)
    weighted = [{"path": folders["text"], "weight": 1}, {"path": folders["few"], "weight": 1}]
    with pytest.raises(ConfigError, match=r"data\.temperature=4\.0 is only read without weights"):
        bind(run_config(weighted, temperature=4.0))


def test_blank_patches_have_the_configured_weight():
    torch.manual_seed(0)
    pixels = np.full((1, 16, 6 * 16), 255, np.uint8)
    pixels[:, 4:9, 3:40] = np.random.default_rng(0).integers(0, 255, (5, 37), dtype=np.uint8)
    is_masked = np.ones((1, 6), bool)
    is_masked[0, 0] = False
    batch = {name: torch.from_numpy(array) for name, array in pack(pixels, np.array([5]), is_masked).items()}
    model = build(PRESETS["tiny"]().model).eval()
    found = {}
    for weight in (1.0, 0.5, 0.0):
        objective = PixelObjective(run_config((), {"blank_weight": weight}))
        found[weight] = objective.losses(model, batch)[TERM]
        assert torch.equal(objective.weights(batch)[TERM], found[weight].weight)
    assert [found[weight].weight.item() for weight in (1.0, 0.5, 0.0)] == [5, 3.5, 2]
    halfway = (found[1.0].total + found[0.0].total) / 2
    assert torch.allclose(found[0.5].total, halfway)
    assert not torch.allclose(found[0.0].total, found[1.0].total)

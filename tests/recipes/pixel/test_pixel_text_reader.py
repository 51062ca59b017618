"""Labelled texts to patches: single texts, pairs, words, windows of contexts; and tokenized text cleaned up."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from pretrainkit.errors import ConfigError, DataError, MissingPackageError
from pretrainkit.recipes.pixel.config import PixelRun, PixelTextConfig
from pretrainkit.recipes.pixel.presets import tiny
from pretrainkit.recipes.pixel.recipe import RECIPE
from pretrainkit.recipes.pixel.text_reader import PixelReader, clean_up, open_reader
from pretrainkit.rendering import Renderer, RendererConfig, load_renderer, save_renderer
from pretrainkit.rendering.pango_library import pango_library

pytest.importorskip("freetype", reason="needs the package freetype-py to draw text")

WORDS = ["a", "small", "moonlight", "sea", "of", "words", "was", "seen", "by", "nobody"]
PUBLISHED = {
    "background_color": "white",
    "dpi": 120,
    "font_color": "black",
    "font_file": "GoNotoCurrent.ttf",
    "font_size": 8,
    "fonts_list": None,
    "max_seq_length": 529,
    "pad_size": 3,
    "pixels_per_patch": 16,
    "rgb": False,
    "text_renderer_type": "PangoCairoTextRenderer",
}
"""The published models' text_renderer_config.json."""
CONTEXT = " ".join(f"{word}{number}" for number in range(12) for word in WORDS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    fonts = pytest.importorskip("PIL.ImageFont")
    place = tmp_path_factory.mktemp("renderer")
    font = place.with_name("latin.ttf")
    font.write_bytes(fonts.load_default(12).font_bytes)
    save_renderer(Renderer(RendererConfig(font_file=str(font))), place)
    return place


@pytest.fixture(scope="module", params=["own", "published"])
def reader(folder: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> PixelReader:
    """Reader of one of our folders, or of a folder like those of the published models, which is drawn like by the
    original's Pango."""
    if request.param == "own":
        return open_reader(tiny(), folder)
    try:
        pango_library()
    except MissingPackageError as error:
        pytest.skip(str(error).splitlines()[0])
    published = tmp_path_factory.mktemp("published")
    shutil.copy(next(folder.glob("*.ttf")), published / "GoNotoCurrent.ttf")
    (published / "text_renderer_config.json").write_text(json.dumps(PUBLISHED), "utf-8")
    return open_reader(tiny(), published)


def patches_of(batch: dict[str, np.ndarray], row: int) -> np.ndarray:
    """Return the patches of one example, without its class token, (U, P, P)."""
    begin, end = batch["cu_seqlens"][row : row + 2]
    assert not batch["patches"][begin].any()
    assert batch["positions"][begin:end].tolist() == list(range(end - begin))
    return batch["patches"][begin + 1 : end].reshape(-1, 16, 16)


def test_examples_equal_drawings_of_the_renderer(reader: PixelReader) -> None:
    texts = ["one", "", "a longer text with words", "x" * 400]
    read = reader.read([texts], 40)
    batch = read.build(np.array([3, 0, 2, 1]))
    drawn = [reader._canvas(40)(text) for text in texts]
    assert read.lengths().tolist() == [1 + encoding.num_used_patches for encoding in drawn]
    assert batch["lengths"].tolist() == read.lengths()[[3, 0, 2, 1]].tolist()
    for row, number in enumerate([3, 0, 2, 1]):
        assert (patches_of(batch, row) == drawn[number].patches).all()


def test_no_examples_make_an_empty_batch(reader: PixelReader) -> None:
    batch = reader.read([["one"]], 40).build(np.empty(0, np.int64))
    assert batch["patches"].shape == (0, 256)
    assert batch["cu_seqlens"].tolist() == [0]


def test_pairs_have_a_black_patch_between_and_one_behind(reader: PixelReader) -> None:
    read = reader.read([["one", "first"], ["two", "a second"]], 40)
    batch = read.build(np.arange(2))
    for row in range(2):
        patches = patches_of(batch, row)
        black = np.flatnonzero((patches == 0).all((1, 2)))
        assert len(black) == 2
        assert black[1] == len(patches) - 1
        assert batch["second_begins"][row] == 1 + black[0] + 1


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [(3, 3, "neither"), (3, 60, "second"), (60, 3, "first"), (60, 60, "both")],
)
def test_the_longer_text_of_a_pair_loses_its_end(reader: PixelReader, first: int, second: int, expected: str) -> None:
    texts = " ".join(["moon"] * first), " ".join(["seas"] * second)
    room = 30
    alone = [int(reader.read([[text]], 500).lengths()[0]) - 2 for text in texts]
    patches = patches_of(reader.read([[texts[0]], [texts[1]]], room).build(np.arange(1)), 0)
    black = np.flatnonzero((patches == 0).all((1, 2)))
    kept = int(black[0]), len(patches) - 2 - int(black[0])
    assert len(patches) <= room
    is_cut = [own < whole for own, whole in zip(kept, alone, strict=True)]
    assert is_cut == [expected in ("first", "both"), expected in ("second", "both")]
    if expected == "both":
        assert abs(kept[0] - kept[1]) <= 1


def test_words_begin_in_the_slots_that_word_starts_returns(reader: PixelReader) -> None:
    read = reader.read_words([WORDS[:4], WORDS], 200)
    for index, words in enumerate([WORDS[:4], WORDS]):
        starts = read.word_starts(index)
        encoding = reader._canvas(200)(words)
        assert starts.tolist() == [1 + start for start in encoding.word_starts]
        assert starts[0] == 1
        assert starts[-1] == read.lengths()[index] - 1
        own = patches_of(read.build(np.array([index])), 0)
        assert (own == encoding.patches).all()
    assert read.num_cut().tolist() == [0, 0]


def test_words_that_do_not_fit_are_counted(reader: PixelReader) -> None:
    whole = reader.read_words([WORDS], 200)
    room = int(whole.word_starts(0)[4])
    read = reader.read_words([WORDS, WORDS[:2]], room)
    assert read.num_cut().tolist() == [len(WORDS) - len(read.word_starts(0)) + 1, 0]
    assert 0 < read.num_cut()[0] < len(WORDS)
    assert read.lengths()[0] == room + 1
    assert (read.word_starts(0)[:4] == whole.word_starts(0)[:4]).all()
    assert (read.word_starts(0)[:-1] < room).all()


def test_an_example_without_words_is_refused(reader: PixelReader) -> None:
    with pytest.raises(DataError, match="example 1 has no words"):
        reader.read_words([["a"], []], 20)


def test_windows_cover_each_context_and_have_offsets(reader: PixelReader) -> None:
    pairs = [("what was seen?", CONTEXT), ("who?", "nobody at all"), ("who saw the moon? " * 9, CONTEXT)]
    read = reader.read_passages(pairs, 60, 16, 20)
    example = read.example_of()
    assert example.tolist() == sorted(example)
    assert set(example) == {0, 1, 2}
    assert (example == 1).sum() == 1
    for number, (_, context) in enumerate(pairs):
        windows = np.flatnonzero(example == number)
        seen = np.zeros(len(context), np.int64)
        for window in windows.tolist():
            offsets = read.offsets(window)
            assert len(offsets) == read.lengths()[window] <= 61
            assert (offsets[read.no_answer_slot(window)] == -1).all()
            spans = offsets[offsets[:, 0] >= 0]
            assert (spans[:, 0] < spans[:, 1]).all()
            assert (np.diff(spans[:, 0]) >= 0).all()
            inside = np.zeros(len(context), np.bool_)
            for first, after in spans:
                inside[first:after] = True
            seen += inside
        assert (seen > 0).all()
        if len(windows) > 1:
            assert (seen > 1).any()


@pytest.mark.filterwarnings("ignore:no font has")
@pytest.mark.parametrize("question", ["שלום עולם", "who saw the moon?"])
def test_windows_of_right_to_left_text_cover_it(reader: PixelReader, question: str) -> None:
    words = [f"אבג{'ד' * (number % 5)}" for number in range(60)]
    context = " ".join(words) + " in 1914, moon"
    read = reader.read_passages([(question, context)], 60, 16, 20)
    offsets = np.concatenate([read.offsets(window) for window in range(len(read.example_of()))])
    assert len(read.example_of()) > 2
    assert set(range(len(context))) == {place for first, after in offsets.tolist() for place in range(first, after)}


def test_offsets_point_at_the_patch_that_shows_a_character(reader: PixelReader) -> None:
    """Another character there changes that patch, or the one before if the character crosses their border."""
    context = "moon and sea and mill"
    place = context.index("mill")
    read = reader.read_passages([("who?", context), ("who?", context[:place] + "MOON")], 60, 4, 20)
    spans = read.offsets(0)
    slot = int(np.flatnonzero((spans[:, 0] <= place) & (place < spans[:, 1]))[0])
    one, other = (patches_of(read.build(np.array([row])), 0) for row in range(2))
    changed = np.flatnonzero((one[: len(other)] != other[: len(one)]).any((1, 2)))
    assert changed[0] + 1 in (slot - 1, slot)


def test_questions_are_cut(reader: PixelReader) -> None:
    long = "who saw the moon " * 20
    read = reader.read_passages([(long, "nobody"), ("who?", CONTEXT), ("who saw?", "nobody")], 60, 4, 10)
    assert set(read.example_of()[read.has_cut_question()]) == {0}
    black = np.flatnonzero((patches_of(read.build(np.arange(1)), 0) == 0).all((1, 2)))
    assert black[0] <= 10


def test_white_space_around_a_context_is_not_drawn(reader: PixelReader) -> None:
    bare, spaced = (reader.read_passages([("who?", text)], 60, 4, 10) for text in (CONTEXT, f"\n  {CONTEXT} \n"))
    assert (patches_of(bare.build(np.arange(2)), 1) == patches_of(spaced.build(np.arange(2)), 1)).all()
    bare_offsets, spaced_offsets = bare.offsets(1), spaced.offsets(1)
    assert (spaced_offsets == np.where(bare_offsets >= 0, bare_offsets + 3, -1)).all()


def test_a_stride_without_room_is_refused(reader: PixelReader) -> None:
    with pytest.raises(ConfigError, match="has no room for new context"):
        reader.read_passages([("who?", CONTEXT)], 30, 28, 20)
    assert len(reader.read_passages([("who?", CONTEXT)], 30, 8, 20).example_of()) > 1


def test_colours_make_three_numbers_of_a_pixel(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRETRAINKIT_CACHE", str(tmp_path))
    run = with_text(renderer={"rgb": True, "font_color": "red"})
    config, place = RECIPE.as_text_encoder(run, folder, 40)
    assert place is not None
    assert place != folder
    batch = RECIPE.text_reader(config, place).read([["red"]], 40).build(np.arange(1))
    assert batch["patches"].shape == (batch["lengths"][0], 768)
    end = batch["patches"][-1].reshape(256, 3)
    assert (end == [255, 0, 0]).all()


def with_text(**text: object) -> PixelRun:
    return tiny().model_copy(update={"text": PixelTextConfig(**text)})


def test_a_changed_renderer_is_kept_with_its_fonts(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRETRAINKIT_CACHE", str(tmp_path))
    fallback = tmp_path / "more.ttf"
    fallback.write_bytes(Path(load_renderer(folder).config.font_file).read_bytes())
    run = with_text(renderer={"font_size": 7, "fallback_fonts": [str(fallback)]})
    _, place = RECIPE.as_text_encoder(run, folder, 40)
    fallback.unlink()
    kept = load_renderer(place)
    assert kept.config.font_size == 7
    assert len(kept.config.fallback_fonts) == 1
    fingerprints = {open_reader(tiny(), Path(where)).fingerprint for where in (folder, place)}
    assert len(fingerprints) == 2


def test_unknown_settings_of_a_renderer_are_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="colour"):
        RECIPE.as_text_encoder(with_text(renderer={"colour": 1}), folder, 40)


def test_patches_of_another_size_are_refused(folder: Path) -> None:
    run = tiny()
    other = run.model_copy(update={"model": run.model.model_copy(update={"patch_size": 8})})
    with pytest.raises(DataError, match="patches of 16 pixels"):
        open_reader(other, folder)


def test_a_reader_follows_the_length_of_its_model(folder: Path) -> None:
    config, place = RECIPE.as_text_encoder(tiny(), folder, 256)
    assert place == folder
    assert config.model.max_patches == 256
    assert config.model.grid_width is None
    assert RECIPE.text_reader(config, folder).max_positions == 256


@pytest.mark.parametrize(
    ("given", "expected"),
    [  # of glue_strip_spaces of the original
        ("He came , saw ; and left .", "He came, saw ; and left."),
        ("I do n't know ( really ) , it 's 5 % !", "I don't know (really), it's 5 %!"),
        ('She said : " go on " , and went .', 'She said :"go on", and went.'),
        ("`` go on '' , he said", "`` go on'', he said"),
        ("' no ' and \" yes \"", "'no'and\"yes\""),
        ("plain words", "plain words"),
        ("don't, it's (fine)", "don't, it's (fine)"),
        ("no # 5 [ or 6 / 7 ]", "no# 5 [or 6/ 7]"),
    ],
)
def test_tokenized_text_is_cleaned_up_as_in_the_original(given: str, expected: str) -> None:
    assert clean_up(given) == expected


def test_cleaning_up_is_a_choice(folder: Path) -> None:
    text = "He came , saw ."
    lengths = {}
    for is_clean in (False, True):
        reader = open_reader(with_text(clean_up=is_clean), folder)
        lengths[is_clean] = reader.read([[text]], 80).build(np.arange(1))["patches"]
    plain = open_reader(tiny(), folder).read([[clean_up(text)]], 80).build(np.arange(1))["patches"]
    assert not np.array_equal(lengths[False], lengths[True])
    assert np.array_equal(lengths[True], plain)

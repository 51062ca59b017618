"""The Pango engine: what Pango and Cairo draw, with no font or rule of the host."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pretrainkit.rendering import FontOptions, Renderer, RendererConfig
from pretrainkit.rendering.pango_engine import PangoEngine
from pretrainkit.rendering.pango_library import FORMAT_A8, pango_library

pytestmark = pytest.mark.usefixtures("has_pango")

LATIN = [
    "My cat loves oatmeal. fi AV office",
    "jjj fff ff j (a) [b] {c} \"quoted\" 'it' - 3,14 & 100 % @home",
    "To: AVATAR, Wo. Ty. LT - yes; no! 1914 1918 why?",
    "wide",
    "two words",
    "1914 1918 1922",
    "  spaces   inside  and around  ",
]
SCRIPTS = [
    "e\u0301a\u0302\u0303 x\u0323 \u0301",
    "שלום עולם abc 123",
    "مرحبا بالعالم 123 (abc)",
    "漢字かな交じり文 한국어",
    "สวัสดีครับ ຂ້ອຍ",
    "नमस्ते दुनिया যেহেতু ગુજરાતી ਪੰਜਾਬੀ தமிழ் ಕನ್ನಡ",
    "བཀྲ་ཤིས ကမ្ဘာ့ ខ្មែរ ދިވެހި",
    "emoji 😀 \U0001f468\u200d\U0001f469",
    "\ue000 private, tab\there",
]


def pango(font: str, **fields: object) -> Renderer:
    return Renderer(RendererConfig(**({"engine": "pango", "font_file": font, "on_missing": "ignore"} | fields)))


def drawn_by_cairo(engine: PangoEngine, text: str, num_columns: int) -> np.ndarray:
    """uint8 (16, X): the whole layout drawn at once where the original puts it."""
    ink = np.zeros((16, num_columns), np.uint8)
    engine._set_text(text, None)
    with engine._drawing(ink, FORMAT_A8, num_columns, 2, 16 / 2 - engine._size()[1] / 2 - 2) as drawing:
        pango_library().pango_cairo_show_layout(drawing, engine._layout)
    return 255 - ink


def differing(renderer: Renderer, texts: list[str]) -> list[str]:
    found = []
    for text in texts:
        mine = renderer.columns(text)[:-16].T
        if not np.array_equal(mine, drawn_by_cairo(renderer.engine, text, mine.shape[1])):
            found.append(text)
    return found


@pytest.mark.parametrize("hint_style", ["none", "slight", "medium", "full"])
def test_every_pixel_is_cairos_in_a_latin_font(latin_font, hint_style):
    assert differing(pango(latin_font, parity=True, font_options=FontOptions(hint_style=hint_style)), LATIN) == []


@pytest.mark.parametrize("main", ["NotoSans-Regular.otf", "PanScriptMerged-Regular.ttf"])
def test_every_pixel_is_cairos_in_many_scripts(fonts, main):
    renderer = pango(str(fonts / main), fallback_fonts=(str(fonts),), parity=True)
    assert differing(renderer, LATIN + SCRIPTS) == []


@pytest.mark.parametrize("antialias", ["gray", "none"])
@pytest.mark.parametrize("hint_metrics", [True, False])
def test_options_of_rasterizing_are_carried_out(noto, antialias, hint_metrics):
    options = FontOptions(antialias=antialias, hint_metrics=hint_metrics)
    renderer = pango(noto, parity=True, font_options=options)
    assert differing(renderer, LATIN) == []
    assert len(np.unique(renderer.columns(LATIN[0]))) > 2 or antialias == "none"


def test_lines_put_together_from_words_are_the_lines_shaped_as_a_whole(noto, sample_data):
    book = sorted((sample_data / "books" / "txt").glob("*.txt"))[0]
    words = book.read_text(encoding="utf-8").split()[:8000]
    lines = [" ".join(words[start : start + 160]) for start in range(0, len(words), 160)]
    fast, whole = pango(noto), pango(noto, font_options=FontOptions(keep_words=False))
    num_fast = sum(fast.engine._words.line(line) is not None for line in lines)
    assert num_fast > 0.8 * len(lines)
    assert [line for line in lines if not np.array_equal(fast.columns(line), whole.columns(line))] == []


def test_only_text_of_independent_words_is_assembled_from_words(latin_font):
    words = pango(latin_font).engine._words
    assert words.line("three plain words") is not None
    for text in (
        "two words",
        "1914 1918 1922",
        "a  b c",
        " a b c",
        "a b c ",
        "a שלום c",
        "a e\u0301 c",
        "a\tb c d",
        "a 😀 c",
    ):
        assert words.line(text) is None, text


def test_published_layout_of_noto_sans(noto):
    renderer = pango(noto, parity=True)
    assert renderer("My cat loves oatmeal.").num_text_patches == 9
    assert renderer(["My", "cat", "loves", "oatmeal", "."]).word_starts == (0, 2, 4, 7, 11, 12)
    assert renderer("x" * 700).num_text_patches == 307


def test_newlines_of_running_text_and_pairs_are_spaces_in_the_original_too(noto):
    renderer = pango(noto, parity=True)
    assert np.array_equal(renderer.columns("one\ntwo"), renderer.columns("one two"))
    assert np.array_equal(renderer.columns(("one\ntwo", "x")), renderer.columns(("one two", "x")))
    assert not np.array_equal(renderer.columns(["one\ntwo", "x"]), renderer.columns(["one two", "x"]))


def test_fallback_fonts_do_not_move_the_line_by_default(fonts, noto):
    mixed = "line with ကမ္ဘာ့"
    moved, fixed = (pango(noto, fallback_fonts=(str(fonts),), parity=parity) for parity in (True, False))
    plain = fixed.columns("line with ")[:40]
    assert np.array_equal(fixed.columns(mixed)[:40], plain)
    assert not np.array_equal(moved.columns(mixed)[:40], plain)


def test_right_to_left_text_reads_from_the_right(fonts, noto):
    renderer = pango(noto, fallback_fonts=(str(fonts / "NotoSerifHebrew-Regular.otf"),))
    encoding = renderer("אבג דהו", return_offset_mapping=True)
    firsts = [first for first, after in encoding.offset_mapping[: encoding.num_text_patches] if after]
    assert firsts == sorted(firsts, reverse=True)
    assert np.array_equal(renderer.columns("ab"), renderer("ab", rtl=False).columns_XP)


def test_a_right_to_left_text_that_is_too_long_loses_its_end_not_its_beginning(fonts, noto):
    renderer = pango(noto, fallback_fonts=(str(fonts / "NotoSerifHebrew-Regular.otf"),), max_seq_length=12)
    encoding = renderer("שלום עולם " * 30, return_offset_mapping=True)
    shown = [span for span in encoding.offset_mapping if span[1]]
    assert min(first for first, _ in shown) == 0
    assert max(after for _, after in shown) < 300


def test_fonts_are_tried_in_the_order_given(fonts, noto):
    naskh, nastaliq = (str(fonts / name) for name in ("NotoNaskhArabic-Regular.otf", "NotoNastaliqUrdu-Regular.otf"))
    alone = pango(noto, fallback_fonts=(naskh,)).columns("سلام")
    assert np.array_equal(pango(noto, fallback_fonts=(naskh, nastaliq)).columns("سلام"), alone)
    assert not np.array_equal(pango(noto, fallback_fonts=(nastaliq, naskh)).columns("سلام"), alone)


def page_in_another_process(font: str, **environment: str) -> str:
    code = (
        "import sys\nfrom pretrainkit.rendering import Renderer, RendererConfig\n"
        "from pretrainkit.rendering.identity import page_sha256\n"
        "print(page_sha256(Renderer(RendererConfig(engine='pango', font_file=sys.argv[1]))))"
    )
    command = [sys.executable, "-W", "ignore", "-c", code, font]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | environment, timeout=60)
    return done.stdout.strip()


def test_nothing_of_the_host_changes_a_pixel(latin_font, tmp_path):
    rules = tmp_path / "fonts.conf"
    rules.write_text(
        "<fontconfig><dir>/usr/share/fonts</dir><match target='pattern'>"
        "<edit name='hintstyle' mode='assign'><const>hintnone</const></edit>"
        "<edit name='antialias' mode='assign'><bool>false</bool></edit></match></fontconfig>"
    )
    plain = page_in_another_process(latin_font)
    for environment in ({"FONTCONFIG_FILE": str(rules)}, {"LANG": "ja_JP.UTF-8", "LC_ALL": "ja_JP.UTF-8"}):
        assert page_in_another_process(latin_font, **environment) == plain


def test_the_other_engine_does_not_change_drawings_of_pango(latin_font):
    pytest.importorskip("freetype")
    code = (
        "import sys\nfrom pretrainkit.rendering import Renderer, RendererConfig\n"
        "from pretrainkit.rendering.identity import describe\n"
        "for engine in sys.argv[2:]:\n"
        "    found = describe(Renderer(RendererConfig(engine=engine, font_file=sys.argv[1])))\n"
        "    if engine == 'pango': print(found)"
    )
    command = [sys.executable, "-W", "ignore", "-c", code, latin_font]
    orders = ["pango"], ["freetype", "pango"]
    found = [subprocess.run([*command, *order], capture_output=True, text=True, check=True).stdout for order in orders]
    assert found[0] == found[1] != ""


def test_pictures_in_colour_fonts_are_scaled_and_keep_their_colours():
    emoji = Path("/usr/share/fonts/truetype/noto/NotoColorEmoji.ttf")
    if not emoji.is_file():
        pytest.skip("no colour font: install fonts-noto-color-emoji")
    renderer = pango(str(emoji), rgb=True)
    encoding = renderer("\u2764\ufe0f")
    reds = (encoding.columns_XP[..., 0] > 200) & (encoding.columns_XP[..., 2] < 120)
    assert reds.sum() > 20
    assert encoding.num_text_patches <= 2


def test_words_are_kept_only_up_to_a_number(latin_font, monkeypatch):
    monkeypatch.setattr("pretrainkit.rendering.pango_engine._KEPT_WORDS", 3)
    monkeypatch.setattr("pretrainkit.rendering.pango_words._KEPT", 3)
    renderer = pango(latin_font)
    words = [f"w{number}" for number in range(20)]
    assert np.array_equal(renderer.columns(words), pango(latin_font).columns(words))
    assert np.array_equal(renderer.columns(" ".join(words)), pango(latin_font).columns(" ".join(words)))
    assert len(renderer.engine._kept) <= 4


def files_of(renderer: Renderer, text: str) -> list[tuple[str, int]]:
    """Name of the font's file and number of glyphs of each run of a text."""
    library = pango_library()
    found = []
    for run in renderer.engine.runs_of(renderer.engine.lines([text])._shaped[0]):
        name = ctypes.c_char_p()
        library.FcPatternGetString(library.pango_fc_font_get_pattern(run.font), b"file", 0, ctypes.byref(name))
        found.append((Path(name.value.decode()).stem, len(run.glyphs_G)))
    return found


@pytest.fixture
def symbol_fonts(drawn_font, tmp_path):
    """Fonts that both have scissors and a thumb; only the emoji font has a skin tone, which changes the thumb."""
    emoji = drawn_font(tmp_path / "emoji.ttf", "Emoji", "😀✂👍🏽\ufe0f", weight=700, pairs="👍🏽")
    symbols = drawn_font(tmp_path / "symbols.ttf", "Symbols", "✂👍★")  # Fontconfig itself prefers a regular one
    return emoji, symbols


def test_emoji_come_from_the_first_fallback_font_that_has_them(latin_font, symbol_fonts):
    emoji, symbols = symbol_fonts
    emoji_first = pango(latin_font, fallback_fonts=(emoji, symbols))
    assert files_of(emoji_first, "👍🏽") == [("emoji", 1)]
    assert {name for name, _ in files_of(emoji_first, "😀✂\ufe0f✂👍")} == {"emoji"}
    assert files_of(emoji_first, "★") == [("symbols", 1)]
    symbols_first = pango(latin_font, fallback_fonts=(symbols, emoji))
    assert {name for name, _ in files_of(symbols_first, "✂\ufe0f✂👍")} == {"symbols"}
    assert files_of(symbols_first, "😀") == [("emoji", 1)]


def test_the_main_font_comes_first_though_a_fallback_of_its_family_is_regular(drawn_font, tmp_path):
    bold = drawn_font(tmp_path / "bold.ttf", "Same", "abc", weight=700)
    regular = drawn_font(tmp_path / "regular.ttf", "Same", "abcd")
    assert files_of(pango(bold, fallback_fonts=(regular,)), "abcd") == [("bold", 3), ("regular", 1)]

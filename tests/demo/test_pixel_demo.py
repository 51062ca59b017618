"""The PIXEL demo: sentences follow from their grammar, the score of guessing is reported, a font is required."""

import json
import tomllib
from collections import Counter
from itertools import islice, pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrainkit.cli.demo import demo as demo_command
from pretrainkit.demo import pixel as demo
from pretrainkit.demo.sentences import TAGS, as_text, paragraphs, sentences
from pretrainkit.errors import InputError

ROOT = Path(__file__).parents[2]


@given(seed=st.integers(0, 2**31))
def test_sentences_depend_on_their_seed_alone_and_agree(seed: int) -> None:
    found = list(islice(sentences(seed), 8))
    assert found == list(islice(sentences(seed), 8))
    assert found != list(islice(sentences(seed + 1), 8))
    for sentence in found:
        words = [word for word, _ in sentence]
        assert {tag for _, tag in sentence} <= set(TAGS)
        assert words[0][0].isupper()
        assert sentence[-1] == (".", "PUNCT")
        assert as_text(sentence).endswith(words[-2] + ".")
        for (word, _), (following, _) in pairwise(sentence):
            if word.lower() in ("a", "an"):
                assert (word.lower() == "an") == (following[0] in "aeiou")


def test_some_words_are_of_several_kinds() -> None:
    tags: dict[str, Counter[str]] = {}
    for sentence in islice(sentences(0), 500):
        for word, tag in sentence:
            tags.setdefault(word, Counter())[tag] += 1
    assert {"walk", "answer", "light"} <= {word for word, found in tags.items() if len(found) > 1}
    assert len(tags) < 120


def test_paragraphs_are_running_text() -> None:
    found = list(paragraphs(0, 3, num_sentences=4))
    assert len(found) == 3
    assert all(text.count(".") == 4 for text in found)


def test_the_task_reports_the_score_of_guessing(tmp_path: Path) -> None:
    majority, by_word = demo.write_task(tmp_path / "task")
    train, held_out = (
        [json.loads(line) for line in (tmp_path / f"task/{name}.jsonl").read_text("utf-8").splitlines()]
        for name in ("train", "validation")
    )
    assert (len(train), len(held_out)) == (demo.NUM_TAGGED, demo.NUM_HELD_OUT)
    assert not {tuple(row["words"]) for row in train} & {tuple(row["words"]) for row in held_out}
    counts = Counter(tag for row in train for tag in row["tags"])
    asked = [tag for row in held_out for tag in row["tags"]]
    assert majority == pytest.approx(100 * asked.count(counts.most_common(1)[0][0]) / len(asked))
    assert majority < by_word < 100


def test_without_a_font_the_demo_names_the_option_for_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(demo, "installed_font", lambda: None)
    with pytest.raises(InputError, match=r"--font FILE\.ttf, or: pip install 'pretrainkit\[demo\]'"):
        demo.run_demo(tmp_path / "demo", 200)
    assert not (tmp_path / "demo").exists()


def test_the_font_of_the_demo_is_in_a_package_that_make_installs() -> None:
    """`make demo` and `make test` install the extra dev, which holds demo."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    assert any(name.startswith("matplotlib") for name in extras["demo"])
    assert any("demo" in name for name in extras["dev"])
    assert ".[dev]" in (ROOT / "Makefile").read_text("utf-8")
    assert "\nmatplotlib==" in (ROOT / "constraints.txt").read_text("utf-8")
    pytest.importorskip("matplotlib", reason="needs the extra demo")
    assert demo.default_font().name == "DejaVuSansMono.ttf"


def test_scripts_are_drawn_and_the_renderer_is_kept(tmp_path: Path) -> None:
    pytest.importorskip("freetype", reason="needs the package freetype-py to draw text")
    fonts = pytest.importorskip("PIL.ImageFont")
    (tmp_path / "latin.ttf").write_bytes(fonts.load_default(12).font_bytes)
    demo.write_renderer(tmp_path / "latin.ttf", tmp_path)
    from pretrainkit.rendering import load_renderer

    assert load_renderer(tmp_path / "renderer").config.strategy == "words"
    assert (tmp_path / "scripts.png").stat().st_size > 1000


def test_only_the_demo_of_pixel_takes_a_font() -> None:
    with pytest.raises(InputError, match="--font is only for the demo pixel"):
        demo_command(words=["t5"], font=Path("x.ttf"))

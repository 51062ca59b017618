from pathlib import Path

from typer.testing import CliRunner

from pretrainkit.cli.corpus import app
from pretrainkit.corpus import shards
from pretrainkit.files import spans
from pretrainkit.files.sources import find_sources
from support.wiki_dumps import HEAD, page


def redirects(pairs, first=1):
    return "".join(
        page(title, f"#REDIRECT [[{target}]]", number=first + number, redirect=target)
        for number, (title, target) in enumerate(pairs)
    )


def run(dump, out, *options):
    return CliRunner().invoke(app, ["wikipedia", str(dump), "--out", str(out), "--redirects", *options])


def write_dump(folder):
    pairs = [
        ("Colour", "Color"),
        ("B", "C"),
        ("A", "B"),
        ("X", "Y"),
        ("Y", "X"),
        ("Self", "Self"),
        ("R & B", "Ünder_line#S"),
    ]
    text = redirects(pairs) + page("Color", "Color is a thing.", number=50) + page("C", "C is a letter.", number=51)
    (folder / "dump.xml").write_text(HEAD + text + redirects([("Late", "A")], 60) + "</mediawiki>")
    return folder / "dump.xml"


EXPECTED = "A\tC\nB\tC\nColour\tColor\nLate\tC\nR & B\tÜnder line\n"


def test_redirects_lead_to_articles_and_circles_are_dropped(tmp_path):
    result = run(write_dump(tmp_path), tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert "5 redirects and their targets" in result.output
    assert (tmp_path / "out/_redirects.tsv").read_text() == EXPECTED
    assert not (tmp_path / "out/.redirects").exists()
    assert all(Path(source.address).name.startswith("part-") for source in find_sources([tmp_path / "out"]))
    again = run(write_dump(tmp_path), tmp_path / "out2")
    assert again.exit_code == 0
    assert (tmp_path / "out2/_redirects.tsv").read_text() == EXPECTED


def test_spans_of_a_dump_and_a_broken_attempt_change_nothing(tmp_path, monkeypatch):
    dump = write_dump(tmp_path)
    for module in (shards, spans):
        monkeypatch.setattr(module, "group_sources", spans_of)

    def broken(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shards, "write_manifests", broken)
        assert run(dump, tmp_path / "out").exit_code != 0
    (tmp_path / "out/.redirects/of-another-dump.tsv").write_text("Other\tThing\n")
    assert run(dump, tmp_path / "out").exit_code == 0
    assert (tmp_path / "out/_redirects.tsv").read_text() == EXPECTED


def spans_of(sources):
    """Every stretch of 700 bytes is a task of its own."""
    return [[(index, part)] for index, source in enumerate(sources) for part in spans.cut_large(source, 700)]

"""The sources of the documentation site: `make docs` builds it from them, and fails on links that lead nowhere."""

import shlex
import types
from pathlib import Path

import pytest

from support.page_runner import blocks_of, cells_of, make_pages

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site() -> types.ModuleType:
    return make_pages()


def test_every_page_is_in_the_navigation_and_everything_public_is_documented(site, tmp_path):
    site.make(tmp_path)
    listed = {link for _, link in site.ITEM.findall((tmp_path / "index.md").read_text("utf-8"))}
    assert {*site.pages().values()} - {"index.md"} <= listed
    assert "`--max-restarts" in (tmp_path / "reference/cli/train.md").read_text("utf-8")
    generate = (tmp_path / "reference/cli/generate.md").read_text("utf-8")
    assert r"write \<mask\> in place of a word" in generate
    assert generate.index("**CLIP**") < generate.index("`--images FOLDER`") < generate.index("**T5**")
    assert "`optimizer.peak_lr`" in (tmp_path / "reference/settings/run.md").read_text("utf-8")
    assert "`data.max_seq_length`" in (tmp_path / "reference/settings/bert.md").read_text("utf-8")
    assert "pretrainkit.train" in (tmp_path / "reference/api/pretrainkit.md").read_text("utf-8")


def test_names_without_documentation_are_detected(site):
    class Documented:
        """A class."""

        def method(self) -> None:
            pass

        @property
        def size(self) -> int:
            return 1

        def _hidden(self) -> None:
            pass

    def function() -> None:
        pass

    assert list(site.undocumented(function, "f")) == ["f"]
    assert list(site.undocumented(Documented, "D")) == ["D.method", "D.size"]


def test_a_link_out_of_the_site_is_refused(site, tmp_path):
    page = ROOT / "docs" / "index.md"
    addresses = {page: "index.md"}
    with pytest.raises(SystemExit, match="leads out of the site"):
        site.copied(page, addresses, tmp_path)


def test_long_commands_are_folded_without_a_change_for_the_shell(site):
    commands = [
        line
        for page in site.pages()
        for block in blocks_of(page)
        if block.language == "bash"
        for line in block.text.splitlines()
        if len(line) > site.MAX_COMMAND
    ]
    assert len(commands) > 20
    for command in commands:
        written = site.folded(command)
        assert shlex.split(written.replace("\\\n", ""), comments=True) == shlex.split(command, comments=True)
    assert site.folded(f"pretrainkit train {'x' * 80} --out runs/mine   # a comment") == (
        f"# a comment\npretrainkit train \\\n    {'x' * 80} \\\n    --out runs/mine"
    )


@pytest.mark.parametrize("page", sorted((ROOT / "docs/tutorials").glob("*.md")), ids=lambda page: page.stem)
def test_a_tutorial_becomes_a_notebook_with_all_of_its_code(site, page):
    written = [cell["source"] for cell in site.notebook(page)["cells"]]
    assert page.read_text("utf-8").startswith(written[0])
    runs = [block.text for block in blocks_of(page) if block.language in ("bash", "python", "yaml")]
    assert [block.text for block in cells_of(page)] == [f"{site.ENVIRONMENT}", *runs]

"""Options from the fields of a settings class."""

import re
from dataclasses import dataclass
from typing import Annotated, Literal

import pytest
import typer
from typer.testing import CliRunner

from pretrainkit.cli.settings_options import changed, with_settings


@dataclass(frozen=True, kw_only=True)
class Cooking:
    """Settings of cooking."""

    dish: Literal["soup", "stew"] = "soup"
    """soup: thin. stew: thick."""
    num_plates: int = 4
    """Number of guests; this line
    continues."""
    spices: Annotated[tuple[str, ...], typer.Option(metavar="SPICE")] = ()
    """Makes it hot."""
    is_hot: bool = False
    """Bring it to the table at once."""
    cook: str | None = None
    """Person at the stove; None: whoever is there."""
    oven: int = 200
    """Nothing for the command line."""


@pytest.fixture
def asked():
    """A command, and what it got."""
    app, got = typer.Typer(add_completion=False, rich_markup_mode=None), []

    @app.command()
    @with_settings
    def command(
        name: str,
        cooking: Annotated[
            type[Cooking],
            "dish",
            "loud",
            changed("num_plates", "--plates", default=2, min=1),
            "spices",
            "is_hot",
            "cook",
        ],
        loud: Annotated[bool, typer.Option("--loud", help="Say it.")] = False,
    ) -> None:
        got.append((name, cooking(oven=250), loud))

    def call(*words: str):
        result = CliRunner().invoke(app, list(words))
        return result, got

    return call


def test_fields_that_are_not_given_have_their_defaults(asked):
    _, got = asked("lunch")
    assert got == [("lunch", Cooking(num_plates=2, oven=250), False)]


def test_options_become_fields(asked):
    words = ["--dish", "stew", "--plates", "3", "--spices", "salt", "--spices", "chili", "--is-hot", "--cook", "me"]
    _, got = asked("lunch", *words, "--loud")
    cooking = Cooking(dish="stew", num_plates=3, spices=("salt", "chili"), is_hot=True, cook="me", oven=250)
    assert got == [("lunch", cooking, True)]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--dish", "cake"], "'cake' is not one of 'soup', 'stew'"),
        (["--plates", "0"], r"greater than or equal to 1|not in the range x>=1"),  # which of them depends on typer
        (["--oven", "3"], "No such option"),
        (["--no-is-hot"], "No such option"),
    ],
)
def test_a_value_that_no_field_takes_is_refused(asked, words, said):
    result, got = asked("lunch", *words)
    assert result.exit_code == 2
    assert re.search(said, result.output)
    assert got == []


def test_help_is_the_text_under_the_field_in_the_given_order(asked):
    text = " ".join(asked("--help")[0].output.split())
    found = [
        text.index(part) for part in ("soup: thin. stew: thick.", "Say it.", "continues", "SPICE", "left out: who")
    ]
    assert found == sorted(found)
    assert "Nothing for the command line" not in text

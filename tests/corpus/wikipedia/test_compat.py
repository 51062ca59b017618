"""WikiExtractor's text, by facts known about it."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretrainkit.corpus.wikipedia.compat import wikiextractor_text


@pytest.mark.parametrize(
    ("wikitext", "text"),
    [
        ("''x''", '"x"'),
        ("'''x'''", "x"),
        ("'''''x'''''", "x"),
        ("[[lamp]]s", "lamps"),
        ("[[a|b|c]]", "c"),
        ("[http://e.org t]", "t"),
        ("a [http://e.org]", "a "),
        ("{{convert|100|C|F}}", ""),
        ("[[Star Trek: Voyager|Voyager]]", ""),
        ("[[File:a.jpg|thumb|with [[a link]]]]text", "text"),
        ("{{#if:x|yes|no}}", "yes"),
        ("{{lc:ABC}}", "abc"),
        ("{{#ifeq:1|01|t|f}}", "f"),
        ("{{#expr: 3*4}}", "12"),
        ("{{#switch:b|a=1|b|c=2|#default=3}}", "2"),
        ("<math>a</math> and <math>b</math> <code>x</code>", "formula_1 and formula_2 codice_1"),
        ("H<sub>2</sub>O", "HO"),
        ("5&nbsp;km", "5\u00a0km"),
        ("a<ref>b</ref> c<ref name=x/> d<br>e<br/>f", "a c d<br>ef"),
        ("== H ==\n first\n second\n* item\n:indented\n(in parentheses)\ntext", " first\ntext"),
        ("a\n{| class=x\n| b\n|}\nc", "a\n\nc"),
        ("one....... two", "one... two"),
        ("{{Foo}} lost", ""),
        ("unclosed {{a and [[b", "unclosed {{a and [[b"),
    ],
)
def test_the_text_is_that_of_wikiextractor(wikitext, text):
    assert wikiextractor_text(wikitext, "T") == text


@settings(max_examples=100)
@given(st.lists(st.sampled_from(["{{", "}}", "[[", "]]", "|", "{|", "|}", "<ref>", "</ref>", "'''", "\n", "a", ":"])))
def test_any_markup_gives_text(signs):
    assert isinstance(wikiextractor_text("".join(signs), "T"), str)


@pytest.mark.parametrize("sign", ["{{", "[[a|", "<ref>", "<!--", "'''", "{|", "[http://a ", "<math>", "{{[["])
def test_unclosed_markup_is_read_in_a_moment(sign):
    start = time.process_time()
    wikiextractor_text(sign * 20_000, "T")
    assert time.process_time() - start < 2


@pytest.mark.parametrize("text", ["[http://" + "a" * 30_000, "[http://" + "a&" * 15_000, "=" * 30_000, "'" * 30_000])
def test_one_long_piece_of_markup_is_read_in_a_moment(text):
    start = time.process_time()
    wikiextractor_text(text, "T")
    assert time.process_time() - start < 1

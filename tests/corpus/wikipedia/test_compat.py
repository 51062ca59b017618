"""Text as WikiExtractor writes it, by the recorded facts."""

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from pretrainkit.cli.corpus import app
from pretrainkit.corpus.wikipedia.compat import wikiextractor_text
from pretrainkit.corpus.wikipedia.options import Extraction
from support.wiki_dumps import HEAD, TAIL, page


@pytest.mark.parametrize(
    ("wikitext", "text"),
    [
        ("''x''", '"x"'),
        ("'''x'''", "x"),
        ("'''''x'''''", "x"),
        ("''\"x\"''", '""x""'),
        ('""double""', '""double""'),
        ("''''x''''", "'x'"),
        ("[[lamp]]s", "lamps"),
        ("[[a|b|c]]", "b|c"),
        ("[[a|b|c [[d]]]]", "c [[d]]"),
        ("[[A|[[B]]]]", "[[B]]"),
        ("[[ a ]] [[b| c ]]", ""),
        ("[[:Category:X]][[:X]]", ""),
        ("[[w:a]] [[fr:b]] [[wikt:c|d]]", "w:a d"),
        ("[[Star Trek: Voyager|Voyager]]", ""),
        ("[[File:a.jpg|thumb|with [[a link]]]]text", "text"),
        ("[http://e.org t]", "t"),
        ("a [http://e.org]", "a "),
        ("a [http://e.org],, b", "a , b"),
        ("[http://e.org a [[b]] c]", "a b c"),
        ("[http://e.org http://e.org/x/a.png]", ""),
        ("[tel:1 x] [tel://1 y] [git:a z]", "x y [git:a z]"),
        ("{{convert|100|C|F}}", ""),
        ("{{#if:x|yes|no}}", "yes"),
        ("{{#if:|yes|no}} {{#if:x}}", "no "),
        ("{{ #if: x | yes }}", "yes"),
        ("{{#if :x|yes}}", ""),
        ("{{lc:ABC}}{{UC:def}}", "abcDEF"),
        ("{{lc:A|B}}", "a"),
        ("{{#ifeq:1|01|t|f}}", "f"),
        ("{{#ifeq:a|{{lc:A}}|t|f}}", "f"),
        ("{{#ifeq:||t|f}}", ""),
        ("{{#switch:b|a=1|b|c=2|#default=3}}", "2"),
        ("{{#switch: q | a = 1 | 3}}", ""),
        ("{{#switch:q|a=1|#default=3}}", "3"),
        ("{{#switch:a{{!}}b|a{{!}}b|=1}}", "1"),
        ("{{#expr: 3*4}} {{#expr:4/2}} {{#expr:1/3}}", "12 2.0 0.3333333333333333"),
        ("{{#expr:1/0}}", "1/0"),
        ("{{#expr:2^3}} {{#expr:7 mod 4}} {{#expr:1 = 1}} {{#expr:floor(2.5)}} {{#expr: 1 and 0}}", "1 3 True 2 0"),
        ("{{#expr:2 round 1}} {{#expr:five}}", "2 round 1 five"),
        ("{{#iferror:{{#expr:1/0}}|bad|good}}", "bad"),
        ("{{#iferror:{{#expr:1/1}}|bad}}", "1.0"),
        ("{{#iferror:error <x|bad|good}}", "good"),
        ("{{#ifexist:a|b|c}} {{#ifexist:a|b}}", "c "),
        ("{{int:007}} {{int:x}}", "7 "),
        ("{{urlencode:a b/é&}}", "a%20b/%C3%A9%26amp%3B"),
        ("{{lcfirst:ABC}} {{ucfirst:abc}}", "aBC Abc"),
        ("{{PAGENAME}} {{SUBPAGENAME}} {{NAMESPACENUMBER}}", "B/c c 0"),
        ("{{subst:lc:ABC}}", "abc"),
        ("{{{arg|default}}}", ""),
        ("a {{{1}}} b", "a b"),
        ("{{{{lc:A}}}}", ""),
        ("unclosed {{a and [[b", "unclosed {{a and [[b"),
        ("{{a [[b|c]]\n\n{{d}} e", ""),
        ("[[a]] [[b [[c]]", "a [[b [[c]]"),
        ("&copy &copy; &amp;copy; &#65; &#x41; &#X41; &hellip;&apos;", "&copy © &copy; A A &#X41; …&apos;"),
        ("&amp;nbsp;|", "&nbsp;|"),
        ("5&nbsp;km", "5\u00a0km"),
        ("<math>a</math> <math>b</math> <math>a</math> <code>x</code>", "formula_1 formula_2 formula_1 codice_1"),
        ("< math >a</math><math x=1>b</ MATH >", "formula_1formula_2"),
        (
            '<syntaxhighlight lang="c">a &lt; b</syntaxhighlight> <syntaxhighlight>c</syntaxhighlight>',
            "a &lt; b <syntaxhighlight>c</syntaxhighlight>",
        ),
        ("H<sub>2</sub>O", "HO"),
        ("a<ref>b</ref> c<ref name=x/> d<br>e<br/>f", "a c d<br>ef"),
        ('a<ref name="x/y">b</ref> c', 'a<ref name="x/y">b</ref> c'),
        ("a<small>b c<small>d</small> e", "a e"),
        ("a<small>b</small><small>c</small> d", "a d"),
        ("a <!-- b --> c <!-- d", "a c <!-- d"),
        ("<b>x</b> <del>y</del> <nowiki>[[z]]</nowiki> < ref >w</ref>", "x <del>y</del> <nowiki>z</nowiki> "),
        ("== H ==\n first\n second\n* item\n:indented\n(in parentheses)\ntext", " first\n(in parentheses)\ntext"),
        ("(a) and (b)\n...\n-\nx", "x"),
        ("* a\n b\n c", " b"),
        ("* a\n\n\nb", "b"),
        ("== A ==\n* a\nb\nc", "b\nc"),
        ("++T++\n++?++", "T.\n?"),
        ("a\n{| class=x\n| b\n|}\nc", "a\n\nc"),
        ("a\n{| class=x\n| b\n\nc", "a\n\nc"),
        ("one....... two", "one... two"),
        ("a << b >> c", "a « b » c"),
        ("a\n--\nb", "a\nb"),
        ("{{Foo}} lost", ""),
        ("x\n==== T? ====\ny", "x\ny"),
    ],
)
def test_the_text_is_that_of_wikiextractor(wikitext, text):
    assert wikiextractor_text(wikitext, "A:B/c", quotes_are_escaped=True) == text


@pytest.mark.parametrize(
    ("wikitext", "plain", "escaped"),
    [
        ('""double""', '"double"', '""double""'),
        ("''\"x\"''", '"x"', '""x""'),
        ('[http://a.b/"c d]', '"c d', "d"),
    ],
)
def test_quotes_are_seen_where_the_dump_has_them_as_they_are(tmp_path, wikitext, plain, escaped):
    """The original reads the XML unchanged, too: MediaWiki writes `&quot;`, other programs do not."""
    xml = page("T", wikitext)
    texts = []
    for name, each in (("escaped", xml), ("plain", xml.replace("&quot;", '"'))):
        (tmp_path / f"{name}.xml").write_text(HEAD + each + TAIL)
        command = ["wikipedia", str(tmp_path / f"{name}.xml"), "--num-shards", "1", "--compat", "wikiextractor"]
        assert CliRunner().invoke(app, [*command, "--out", str(tmp_path / name)]).exit_code == 0
        texts.append(json.loads((tmp_path / name / "part-00000-of-00001.jsonl").read_text())["text"].rstrip("\n"))
    assert texts == [escaped, plain]
    assert wikiextractor_text(wikitext, "T") == plain


PAGE = (
    "a\n== B ==\n* c\n** d\n# e\n# f\n; g : h\ni\n=== J! ===\n"
    '{|\n! style="width:5%;" | k\n|-\n| l || m\n|}\nn [[o|p]]\n: q\n'
)


@pytest.mark.parametrize(
    ("kept", "text"),
    [
        ([], "a\ni\n\nn p\n"),
        (["sections"], "a\ni\n\nSection::::B.\nSection::::J!\nn p\n"),
        (
            ["lists"],
            "a\nBULLET::::- c\nBULLET::::- d\nBULLET::::2. e\nBULLET::::1. f\nBULLET::::- g : h\ni\n\nn p\n",
        ),
        (["tables"], "a\ni\n  k\nn p\n"),
        (
            ["sections", "lists", "tables"],
            "a\nSection::::B.\nBULLET::::- c\nBULLET::::- d\nBULLET::::2. e\nBULLET::::1. f\nBULLET::::- g : h\ni\n"
            "Section::::J!\n  k\nn p\n",
        ),
    ],
)
def test_titles_lists_and_tables_are_kept_as_wikiextractor_keeps_them(kept, text):
    assert wikiextractor_text(PAGE, "T", Extraction(**dict.fromkeys(kept, True))) == text


def test_the_command_keeps_titles_lists_and_tables_with_compat(tmp_path):
    (tmp_path / "dump.xml").write_text(HEAD + page("T", PAGE) + TAIL)
    command = ["wikipedia", str(tmp_path / "dump.xml"), "--num-shards", "1", "--compat", "wikiextractor"]
    texts = {}
    for options in ([], ["--sections"], ["--lists"], ["--tables"], ["--sections", "--lists", "--tables"]):
        out = tmp_path / "-".join(["out", *options])
        assert CliRunner().invoke(app, [*command, "--out", str(out), *options]).exit_code == 0
        [line] = (out / "part-00000-of-00001.jsonl").read_text().splitlines()
        texts[tuple(options)] = json.loads(line)["text"]
    for options, text in texts.items():
        kept = Extraction(**{option.removeprefix("--"): True for option in options})
        assert text == wikiextractor_text(PAGE, "T", kept, quotes_are_escaped=True)
    assert len(set(texts.values())) == len(texts)


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

"""Wikitext to text: visible text stays, markup is removed, and no markup is slow."""

import re
import time
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretrainkit.corpus.wikipedia.clean import TEX_SIGNS, Cleaner
from pretrainkit.corpus.wikipedia.compat import FUNCTIONS, wikiextractor_text
from pretrainkit.corpus.wikipedia.elements import SUBSCRIPTS, SUPERSCRIPTS
from pretrainkit.corpus.wikipedia.options import Extraction
from pretrainkit.corpus.wikipedia.site import parse_site
from support.wiki_dumps import HEAD

SITE = parse_site(HEAD)


def clean(text, **options):
    return Cleaner(SITE, Extraction(**options)).clean(text, "A Title")


@pytest.mark.parametrize(
    ("wikitext", "text"),
    [
        ("''x'' and '''y''' and '''''z'''''", "x and y and z"),
        ("L'''amour''", "L'amour"),
        ("[[lamp]]s by [[Thomas Edison|Edison]]", "lamps by Edison"),
        ("[[Star Trek: Voyager]] and [[Star Trek: Voyager|Voyager]]", "Star Trek: Voyager and Voyager"),
        ("a [[:Category:Towns]] [[Category:Towns]][[Kategorie:Orte]][[de:Ding]] b", "a Category:Towns b"),
        ("a[[File:x.jpg|thumb|with [[a link]] and {{lang|fr|mots}}]] b", "a b"),
        ("a [[wikt:word|word]], [[s:Poem]]", "a word, Poem"),
        ("[http://e.org t] and [http://e.org] end", "t and end"),
        ("see http://e.org now", "see http://e.org now"),
        ("one<ref>{{cite|x=[[y]]}}</ref> two<ref name=a /> three<!-- no -->.", "one two three."),
        ("H<sub>2</sub>O, 10<sup>-6</sup>, 19<sup>th</sup>", "H₂O, 10⁻⁶, 19th"),
        ("5&nbsp;km &amp;c &lt;ref>", "5 km &c <ref>"),
        ("<nowiki>[[not]] {{a}} ''link''</nowiki>!", "[[not]] {{a}} ''link''!"),
        ("so <math>\\alpha \\times 2</math> is", "so α × 2 is"),
        ("{{Infobox|a=b\n|c={{d|e}}\n}}\nText", "Text"),
        ("{{Foo}} Text stays", "Text stays"),
        ("Boston ({{IPA|x}}; {{lang-fr|Ville}}) is", "Boston (Ville) is"),
        ("x ({{IPA|x}}) y ({{IPA|x}}, born)", "x y (born)"),
        ("one\ntwo\n\nthree<br>four", "one two\nthree\nfour"),
        ("__TOC__a {{CURRENTYEAR}}b", "a b"),
        ("a\n{|\n| b\n{|\n| c\n|}\n|}\nd", "a\nd"),
        ("{{PAGENAME}} is {{lc:ABC}} {{#if: x |yes|no}} {{#ifeq:1|2|t|f}}", "A Title is abc yes f"),
    ],
)
def test_markup_becomes_the_visible_text(wikitext, text):
    assert clean(wikitext) == text


GREEK = (
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho sigma tau upsilon phi chi "
    "psi omega digamma"
).split()
VARIANTS = {
    "varepsilon": "GREEK SMALL LETTER EPSILON",
    "vartheta": "GREEK THETA SYMBOL",
    "varkappa": "GREEK KAPPA SYMBOL",
    "varpi": "GREEK PI SYMBOL",
    "varrho": "GREEK RHO SYMBOL",
    "varsigma": "GREEK SMALL LETTER FINAL SIGMA",
    "varphi": "GREEK SMALL LETTER PHI",
} | {
    f"var{name}": f"GREEK CAPITAL LETTER {name.upper().replace('MBDA', 'MDA')}"
    for name in "Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega".split()
}
UNICODE_SIGNS = {
    "times": "MULTIPLICATION SIGN", "div": "DIVISION SIGN", "cdot": "MIDDLE DOT", "pm": "PLUS-MINUS SIGN",
    "mp": "MINUS-OR-PLUS SIGN", "circ": "RING OPERATOR", "bullet": "BULLET", "oplus": "CIRCLED PLUS",
    "otimes": "CIRCLED TIMES", "ast": "ASTERISK OPERATOR", "dagger": "DAGGER",
    "leq": "LESS-THAN OR EQUAL TO", "le": "LESS-THAN OR EQUAL TO", "geq": "GREATER-THAN OR EQUAL TO",
    "ge": "GREATER-THAN OR EQUAL TO", "neq": "NOT EQUAL TO", "ne": "NOT EQUAL TO", "lt": "LESS-THAN SIGN",
    "gt": "GREATER-THAN SIGN", "ll": "MUCH LESS-THAN", "gg": "MUCH GREATER-THAN", "approx": "ALMOST EQUAL TO",
    "equiv": "IDENTICAL TO", "sim": "TILDE OPERATOR", "simeq": "ASYMPTOTICALLY EQUAL TO",
    "cong": "APPROXIMATELY EQUAL TO", "propto": "PROPORTIONAL TO", "infty": "INFINITY", "to": "RIGHTWARDS ARROW",
    "rightarrow": "RIGHTWARDS ARROW", "leftarrow": "LEFTWARDS ARROW", "gets": "LEFTWARDS ARROW",
    "leftrightarrow": "LEFT RIGHT ARROW", "mapsto": "RIGHTWARDS ARROW FROM BAR",
    "Rightarrow": "RIGHTWARDS DOUBLE ARROW", "Leftarrow": "LEFTWARDS DOUBLE ARROW",
    "Leftrightarrow": "LEFT RIGHT DOUBLE ARROW", "in": "ELEMENT OF", "notin": "NOT AN ELEMENT OF",
    "subset": "SUBSET OF", "subseteq": "SUBSET OF OR EQUAL TO", "supset": "SUPERSET OF",
    "supseteq": "SUPERSET OF OR EQUAL TO", "cup": "UNION", "cap": "INTERSECTION", "emptyset": "EMPTY SET",
    "setminus": "SET MINUS", "forall": "FOR ALL", "exists": "THERE EXISTS", "neg": "NOT SIGN", "lnot": "NOT SIGN",
    "land": "LOGICAL AND", "wedge": "LOGICAL AND", "lor": "LOGICAL OR", "vee": "LOGICAL OR",
    "sum": "N-ARY SUMMATION", "prod": "N-ARY PRODUCT", "int": "INTEGRAL", "oint": "CONTOUR INTEGRAL",
    "partial": "PARTIAL DIFFERENTIAL", "nabla": "NABLA", "hbar": "PLANCK CONSTANT OVER TWO PI", "ell": "SCRIPT SMALL L",
    "Re": "BLACK-LETTER CAPITAL R", "Im": "BLACK-LETTER CAPITAL I", "aleph": "ALEF SYMBOL", "prime": "PRIME",
    "perp": "UP TACK", "parallel": "PARALLEL TO", "mid": "DIVIDES", "angle": "ANGLE",
    "langle": "MATHEMATICAL LEFT ANGLE BRACKET", "rangle": "MATHEMATICAL RIGHT ANGLE BRACKET",
    "ldots": "HORIZONTAL ELLIPSIS", "dots": "HORIZONTAL ELLIPSIS", "dotsc": "HORIZONTAL ELLIPSIS",
    "cdots": "MIDLINE HORIZONTAL ELLIPSIS", "dotsb": "MIDLINE HORIZONTAL ELLIPSIS",
}  # fmt: skip


def test_letters_and_signs_of_formulas_are_those_of_unicode():
    for name in GREEK:
        unicode_name = {"lambda": "lamda"}.get(name, name).upper()
        small = unicodedata.lookup(f"GREEK SMALL LETTER {unicode_name}")
        assert clean(f"x <math>\\{name}</math> y") == f"x {small} y"
        assert clean(f"x <math>\\{name.capitalize()}</math> y") == f"x {small.upper()} y"
    for name, unicode_name in (VARIANTS | UNICODE_SIGNS).items():
        assert clean(f"x <math>\\{name}</math> y") == f"x {unicodedata.lookup(unicode_name)} y", name


def test_every_sign_of_the_table_is_tested_or_is_letters():
    named = {name for greek in GREEK for name in (greek, greek.capitalize())} | set(VARIANTS) | set(UNICODE_SIGNS)
    others = {name: sign for name, sign in TEX_SIGNS.items() if name not in named}
    assert {name for name, sign in others.items() if sign.strip()} == {
        name for name, sign in others.items() if sign == name and name.isalpha()
    }


@pytest.mark.parametrize(
    "start",
    ["<br> ", "<br /> <!-- no -->", "<ref>x</ref> ", "<small> ", "<!-- no --> ", "&nbsp;", "\u00a0 ", "\t", "{{nbsp}}",
     "{{Foo}} ", "__NOTOC__ ", "'' ", "[http://e.org] ", "<p> ", "<nowiki/> ", "<i id=a></i> ", "[[File:a.jpg]] "],
)  # fmt: skip
def test_a_line_that_begins_with_markup_and_a_space_is_text(start):
    assert clean(f"Born in Town.\n\n{start}He moved.") == "Born in Town.\nHe moved."
    assert clean(f"{start}He moved.") == "He moved."


def test_text_behind_a_line_break_and_a_space_stays():
    wikitext = "Born in 1900 in Town.<br> He later moved to the city.<br />\n He died there."
    assert clean(wikitext) == "Born in 1900 in Town.\nHe later moved to the city."
    assert clean("Before.\n{| class=x\n| cell\n|} After the table.") == "Before.\nAfter the table."
    assert clean("a\n preformatted\nb") == "a\nb"


@pytest.mark.parametrize(
    ("tex", "text"),
    [
        ("e^{i\\pi} + 1", "e^{iπ} + 1"),
        ("\\Delta\\omega \\ge 90^\\circ, 45^{\\circ}", "Δω ≥ 90°, 45°"),
        ("f \\circ g", "f ∘ g"),
        ("\\tan\\theta \\approx \\arcsin x", "tanθ ≈ arcsin x"),
        ("\\unknown{x} \\frac{1}{2}", "\\unknown{x} \\frac{1}{2}"),
    ],
)
def test_formulas_are_read_with_their_letters(tex, text):
    assert clean(f"so <math>{tex}</math> is") == f"so {text} is"


@pytest.mark.parametrize(
    ("wikitext", "text"),
    [
        ("{{convert|10|km|mi}}", "10 kilometres (6.2 mi)"),
        ("{{Convert|1|mi|km|adj=on}} road", "1-mile (1.6 km) road"),
        ("{{convert|5|to|7|ft|m}}", "5 to 7 feet (1.5 to 2.1 m)"),
        ("{{convert|6|ft|2|in|m}} tall", "6 feet 2 inches (1.88 m) tall"),
        ("{{cvt|100|C|F}}", "100 °C (212 °F)"),
        ("{{convert|1500|sqmi|km2|abbr=on}}", "1,500 sq mi (3,900 km²)"),
        ("{{formatnum:1234567.5}}", "1,234,567.5"),
        ("{{val|1234.5|e=6|u=kg}}", "1,234.5 × 10^6 kg"),
        ("{{lang|de|Haus}} {{nowrap|a b}} {{transl|ru|dom}} {{abbr|ca.|circa}}", "Haus a b dom ca."),
        ("{{circa|1900}} {{frac|1|2}} {{sfrac|3|1|4}}", "c. 1900 1⁄2 3 1⁄4"),
        ("{{birth date|1900|2|3}}; {{dob|1900|2|3|df=y}}", "February 3, 1900; 3 February 1900"),
        ("{{as of|2001|5}}, {{as of|2001|lc=y}}", "As of May 2001, as of 2001"),
        ("{{unité|1234,5|km}}", "1,234.5 km"),
        ("{{nihongo|Tokyo|東京|Tōkyō}}", "Tokyo (東京, Tōkyō)"),
        ("{{#expr: 3*4}} {{#if:x|yes|no}} {{#ifeq:1|01|t|f}} {{lc:ABC}}", "12 yes t abc"),
        ("[[Category:X]] short", "short"),
        ("[[File:x.jpg|thumb|A [[cap]]tion]] Short.", "Short."),
        ("such as {{IPA|/a/}} or {{IPAblink|ɛ}}; Rome ({{IPA|/ˈroʊm/, at home}})", "such as /a/ or [ɛ]; Rome"),
        ("a{{!}}b {{=}} c", "a|b = c"),
    ],
)  # fmt: skip
def test_templates_that_are_text_are_expanded(wikitext, text):
    assert clean(wikitext) == text


def test_titles_lists_and_tables_are_extracted_if_requested():
    text = (
        "Lead.\n== One ==\n=== Two ===\nText.\n== Empty ==\n== Three =="
        "\n* item ''a''\n** b\n{|\n! x !! y\n|-\n| 1 || style=a | [[z]]\n|}"
    )
    assert clean(text) == "Lead.\nText."
    assert clean(text, sections=True) == "Lead.\nOne\nTwo\nText."
    assert clean(text, lists=True) == "Lead.\nText.\n- item a\n- b"
    assert clean(text, tables=True) == "Lead.\nText.\nx | y\n1 | z"
    assert clean(text, sections=True, lists=True).splitlines()[-3:] == ["Three", "- item a", "- b"]


def test_terms_stay_with_their_definitions():
    wikitext = (
        "Lead.\n; [[Term|A term]] : a ''definition''\n;Another: short\n; Third\n: on a line of its own\n"
        ": and a formula\n; 12:30 news\n; Title\n* item\n: pointer"
    )
    assert clean(wikitext) == "Lead.\nA term: a definition\nAnother: short\nThird: on a line of its own"
    assert clean(wikitext, lists=True).splitlines()[1:4] == ["A term: a definition", "Another: short", "Third"]


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_the_reader_knows_every_function_that_the_compatible_one_knows(name):
    """One call shows it: a function that is not known gives nothing."""
    arguments = {
        "#if": "x|yes", "#ifeq": "1|1|yes", "#iferror": "yes", "#ifexist": "Page||yes", "#switch": "a|a=yes",
        "#expr": "3*4", "int": "12", "urlencode": "a/b",
    }  # fmt: skip
    call = f"{{{{{name}:{arguments.get(name, 'Word')}}}}}"
    assert wikiextractor_text(call, "T")
    assert clean(call)


@pytest.mark.parametrize(
    ("wikitext", "text"),
    [
        ("{{#switch:b|a=one|b=two|#default=three}}", "two"),
        ("{{#switch: q | a = 1 | #default = d }}", "d"),
        ("{{#switch:q|a=1|last}}", "last"),
        ("{{#switch:a|a|b=both|c=no}}", "both"),
        ("{{#switch:01|1=number}}", "number"),
        ("{{#switch:{{lc:B}}|a=one|b={{uc:two}} = 2}}", "TWO = 2"),
        ("a{{#switch:q|a=1}}.", "a."),
        ("{{#if:x|1 = 1|no}}", "1 = 1"),
        ("{{#if:|a=b|c=d}} {{#if:|yes}}", "c=d"),
        ("{{#ifeq:1|01|same|other}}", "same"),
        ("{{#ifeq:a|A|same|other}}", "other"),
        ("{{#iferror:{{#expr:1/0}}|bad|good}}", "bad"),
        ("{{#iferror:{{#expr:1/2}}|bad}}", "0.5"),
        ("{{#iferror:x|bad|good}}", "good"),
        ("{{#expr:1/0}}a", "a"),
        ("{{#expr:7 div 2}}", "3.5"),
        ("{{#expr: -7 mod 3}} {{#expr:2^3}} {{#expr:-2^2}} {{#expr:2.5e2}} {{#expr:5-2-1}}", "-1 8 4 250 2"),
        ("{{#expr: 2*pi round 3}} {{#expr:2.5 round 0}} {{#expr:1234 round -2}}", "6.283 3 1200"),
        ("{{#expr:floor(2.7)}} {{#expr:trunc 2.7}} {{#expr: 2 > 1 and not 0}} {{#expr:1 <> 1}}", "2 2 1 0"),
        ("{{#expr:1 +}}{{#expr:(1}}{{#expr:1 2}}{{#expr:10^400}}{{#expr:(0-1)^.5}}{{#expr:foo}}a", "a"),
        ("{{#iferror:{{#expr:foo}}|bad|good}}", "bad"),
        (
            "{{#ifexpr: 2 > 1 | yes | no}} {{#ifexpr:1=2|yes|no}} {{#ifexpr:|yes|no}} {{#ifexpr:1/0|yes|no}}",
            "yes no no",
        ),
        ("{{#ifexist:Page|[[Page]]|no page}}", "no page"),
        ("{{#ifexist:Page|[[Page]]}}", "Page"),
        ("{{urlencode:a b/c}}", "a+b%2Fc"),
        ("{{int:12}}{{NAMESPACENUMBER}}", "120"),
        ("{{subst:uc:a}} {{safesubst:#if:x|y}} {{subst:PAGENAME}}", "A y A Title"),
    ],
)
def test_functions_have_the_results_of_mediawiki(wikitext, text):
    assert clean(wikitext) == text


@pytest.mark.parametrize(
    ("wikitext", "text"),
    [
        ("one, [http://x.y], two", "one, two"),
        ("one, [http://x.y] [http://x.z]; two", "one; two"),
        ("one, {{Foo}}, {{Foo}}, two", "one, two"),
        ("one,<ref>x</ref>, two,<ref>y</ref>", "one, two,"),
        ("one, [http://x.y].", "one."),
        ("one, . . . two, ... three", "one,... two, ... three"),
    ],
)
def test_removed_markup_leaves_one_sign(wikitext, text):
    assert clean(wikitext) == text


def test_references_to_characters_end_with_a_semicolon():
    assert clean("http://e.org?a=1&copy=2&sect=3 &notit; &copy; &eacute; &#65;&#x42;&#X43; R&D") == (
        "http://e.org?a=1&copy=2&sect=3 &notit; © é ABC R&D"
    )


def test_raised_and_lowered_signs_are_those_of_unicode():
    for table in (SUPERSCRIPTS, SUBSCRIPTS):
        for sign, shifted in table.items():
            assert unicodedata.normalize("NFKC", chr(shifted)) == chr(sign).replace("-", "−")
            assert unicodedata.decomposition(chr(shifted)).startswith(("<super>", "<sub>"))


def test_attributes_of_cells_are_not_text():
    rows = '|-\n| colspan="5" {{Main}} || bgcolor=white colspan=\'3\' {{x}} || width=5 z || x = 5 || style="a" | b'
    assert clean("{|\n" + rows + "\n|}", tables=True) == "z | x = 5 | b"
    assert clean("{|\n|-\n|" + " id=a" * 50_000 + " b\n|}", tables=True) == "b"


@pytest.mark.parametrize("opening", ["{{a|", "[[a|", "{|\n", "<ref>", "<!--", "[[File:", "<math>", "{{{", "<div"])
def test_an_opening_without_an_end_swallows_no_paragraph(opening):
    assert clean(f"one\n\n{opening} two\n\nthree is here\n\nfour").endswith("three is here\nfour")


ATTACKS = {
    "deep templates": lambda n: "{{nowrap|" * n + "x" + "}}" * n,
    "deep links": lambda n: "[[a|" * n + "]]" * n,
    "unclosed braces": lambda n: "{{" * n,
    "unclosed brackets": lambda n: "[[a|" * n,
    "braces around brackets": lambda n: "{{[[" * n + "}}" * n,
    "unclosed tables": lambda n: "\n{|" * n,
    "unclosed elements": lambda n: "<ref>a" * n,
    "unclosed comments": lambda n: "<!--" * n,
    "angles": lambda n: "<a " * n,
    "quotes": lambda n: "'" * n,
    "spaces": lambda n: (" " * 50 + "x") * (n // 10) + " " * n,
    "addresses": lambda n: "[http://a " * n,
    "a long address": lambda n: "[http://" + "a" * n,
    "switches": lambda n: "__" + "A" * n,
    "a long title": lambda n: "[[a" + " " * n + "(|]]",
    "parentheses": lambda n: "( , " * n + " )" * n,
    "headings": lambda n: "=" * n + "\n" + "== a" * n,
    "entities": lambda n: "&" * n,
    "braces": lambda n: "{" * n + "}" * n,
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_malicious_markup_takes_time_in_proportion_to_its_length(attack):
    def seconds(n):
        start = time.process_time()
        clean(ATTACKS[attack](n))
        return time.process_time() - start

    # The least of some: a collection of garbage takes longer than either.
    small, large = (min(seconds(length) for _ in range(3)) for length in (1000, 16_000))
    # Sixteen times the length, with room for a busy machine; the square of it would be 256 times.
    assert large < max(80 * small, 0.15)


SIGNS = """{{ }} [[ ]] {| |} | || = '' ''' <ref> </ref> <nowiki> </nowiki> <!-- --> <br> * == : ; # & &nbsp; [http://a ]
convert|1|km File: a b {{{ }}} <math> </math> ( ) , . __TOC__ <sup> 2 </sup> <"""
MARKUP = st.sampled_from(["\n", "\U000f0020", "\U000f0101", *SIGNS.split()])


@settings(max_examples=150)
@given(st.lists(MARKUP | st.text(max_size=3), max_size=40).map("".join), st.booleans())
def test_any_text_is_cleaned_into_lines_without_blank_ones(text, everything):
    lines = clean(text, sections=everything, lists=everything, tables=everything)
    assert lines == "" or all(line.strip() for line in lines.split("\n"))


MARKUP = [
    "<br>", "<br/>", "<p>", "<ref>gone</ref>", "<ref name=gone/>", "<!-- gone -->", "<small>", "</small>", "<nowiki/>",
    "{{Gone}}", "{{nbsp}}", "{{Gone|gone\n|gone}}", "[[File:gone.jpg|thumb|gone [[gone]]]]", "[[Category:Gone]]", "''",
    "'''", "&nbsp;", "&ndash;", "__NOTOC__", "[http://gone.org]", "<math>x</math>", "\u00a0", "\t", ", ", "\n\n", "\n",
    "<br> ", "</ref> ", "<div>", "</div> ", "{{#if:x|", "{{#switch:a|a=", "{{nowrap|", "[[Gone|", "[http://gone.org ",
]  # fmt: skip
CLOSED_BY = {"{{#if:x|": "}}", "{{#switch:a|a=": "}}", "{{nowrap|": "}}", "[[Gone|": "]]", "[http://gone.org ": "]"}


@settings(max_examples=300)
@given(st.lists(st.sampled_from(MARKUP), min_size=1, max_size=12))
def test_no_word_of_a_paragraph_is_lost(markup):
    """The general law: words that a reader sees, whatever markup is around them, are in the text, in order."""
    pieces = [f"{sign}Word{place} {CLOSED_BY.get(sign, '')}" for place, sign in enumerate(markup)]
    text = clean("".join(pieces))
    assert re.findall(r"Word\d+", text) == [f"Word{place}" for place in range(len(markup))]
    assert "gone" not in text.lower()


def test_text_without_markup_is_kept():
    text = "A sentence, with signs; and (brackets).\nAnother: “quoted” – 5 % of 3·2."
    assert clean(text.replace("\n", "\n\n")) == text

"""Expansion of frequent templates without their definitions; all others expand to "".

The definitions differ from dump to dump, but the meaning of these templates does not. Nothing here depends on the
clock: `{{CURRENTYEAR}}` and ages expand to "".
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import quote_plus

from pretrainkit.corpus.wikipedia.arithmetic import evaluate
from pretrainkit.corpus.wikipedia.elements import ERROR, guard
from pretrainkit.corpus.wikipedia.measures import convert, group_digits
from pretrainkit.corpus.wikipedia.site import Site

Arguments = dict[str, str]
"""Name, or position from "1", to trimmed text."""

_MAX_SOUND = 6
"""Maximum length of a single sound, including its brackets."""
_RAISED, _LOWERED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"), str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")
_MONTHS = "January February March April May June July August September October November December".split()


@dataclass(frozen=True)
class Call:
    """One use of a template."""

    name: str
    arguments: Arguments
    language: str
    """Language code of the Wikipedia edition."""
    title: str
    """Title of the page."""

    def get(self, *names: str) -> str:
        """Return the first of these arguments that is not empty, or ""."""
        return next((value for name in names if (value := self.arguments.get(name))), "")

    def places(self) -> list[str]:
        """Return the positional arguments up to the first missing number."""
        positional: list[str] = []
        while (value := self.arguments.get(str(len(positional) + 1))) is not None:
            positional.append(value)
        return positional


Expansion = Callable[[Call], str]


def read_arguments(parts: list[str]) -> Arguments:
    """Parse the parts between the pipes: `name=value`, or a positional argument. The last of equal names counts."""
    arguments: Arguments = {}
    place = 0
    for part in parts:
        name, equals, value = part.partition("=")
        if not equals:
            place += 1
            name, value = str(place), part
        arguments[name.strip()] = value.strip()
    return arguments


def _convert(call: Call) -> str:
    """Expand `convert`. With `adj=mid` the last argument is a word after the unit."""
    places = call.places()
    named = {name: value for name, value in call.arguments.items() if not name.isdecimal()}
    if named.get("adj") == "mid" and len(places) > 2 and not places[-1][-1:].isdigit():
        named["_middle"] = places.pop()
    return convert(tuple(places), tuple(named.items()), is_short=call.name == "cvt")


def _val(call: Call) -> str:
    if not (places := call.places()):
        return ""
    number = group_digits(places[0], call.language or "en")
    if len(places) > 1 and places[1]:
        number += f" ± {places[1]}" if places[1][0].isdigit() else f" {places[1]}"
    if power := call.get("e"):
        number += f" × 10^{power}"
    unit, per = call.get("u", "ul"), call.get("up", "upl")
    return call.get("p") + number + (f" {unit}" if unit else "") + (f"/{per}" if per else "") + call.get("s")


def _first(call: Call) -> str:
    return call.get("1")


def _second(call: Call) -> str:
    return call.get("2", "1")


def _circa(call: Call) -> str:
    first, second = call.get("1"), call.get("2")
    return f"c. {first} – c. {second}" if second else f"c. {first}".rstrip()


def _date(call: Call) -> str:
    places = [place for place in call.places() if place]
    is_day_first = call.get("df", "dmy") in ("y", "yes", "true", "1") or call.language not in ("en", "")
    if not places:
        return ""
    if not re.fullmatch(r"\d{1,4}", places[0]):
        return places[0]
    year, *rest = places[:3]
    try:
        month = _MONTHS[int(rest[0]) - 1] if rest else ""
    except (ValueError, IndexError):
        month = rest[0]
    if not month:
        return year
    if len(rest) < 2 or not rest[1].isdigit():
        return f"{month} {year}"
    day = str(int(rest[1]))
    return f"{day} {month} {year}" if is_day_first else f"{month} {day}, {year}"


def _as_of(call: Call) -> str:
    word = "since" if call.get("since") else "as of"
    word = word if call.get("lc", "lowercase") else word.capitalize()
    return call.get("alt") or f"{word} {_date(call)}".rstrip()


def _fraction(call: Call) -> str:
    match call.places():
        case [below]:
            return f"1⁄{below}"
        case [above, below]:
            return f"{above}⁄{below}"
        case [whole, above, below, *_]:
            return f"{whole} {above}⁄{below}"
    return ""


def _french_measure(call: Call) -> str:
    if not (places := call.places()):
        return ""
    number = group_digits(places[0].replace(",", ".").replace(" ", ""), call.language or "fr")
    power = f" × 10^{call.get('e')}" if call.get("e") else ""
    return " ".join([number + power, *places[1:]]).strip()


def _listed(call: Call) -> str:
    items = [item.strip("*# \n") for place in call.places() for item in place.split("\n*")]
    return ", ".join(item for item in items if item)


def _nihongo(call: Call) -> str:
    english, native, roman = call.get("1"), call.get("2"), call.get("3")
    inside = ", ".join(word for word in (native, roman) if word)
    return f"{english} ({inside})" if english and inside else english or inside


def _money(sign: str) -> Expansion:
    return lambda call: sign + group_digits(call.get("1"), "en")


def _constant(text: str) -> Expansion:
    return lambda call: text


def _sound(call: Call) -> str:
    """Return a single sound, `[a]` or `/a/`. Longer texts are pronunciations of words and are dropped."""
    sound = call.get("1")
    if not sound or len(sound) > _MAX_SOUND:
        return ""
    linked = {"ipablink": f"[{sound}]", "ipaslink": f"/{sound}/"}
    return linked.get(call.name, sound if sound[0] in "/[" else "")


def _are_equal(first: str, second: str) -> bool:
    """True if both texts are equal, or are equal numbers."""
    if first == second:
        return True
    try:
        return float(first) == float(second)
    except ValueError:
        return False


def _if_error(call: Call) -> str:
    shown = "2" if ERROR in call.get("1") else "3" if "3" in call.arguments else "1"
    return call.get(shown)


def _switch(call: Call) -> str:
    """Return the first equal case (cases without `=` fall through), a last case without `=`, or `#default`."""
    value, *cases = call.places()
    default, falls_through = "", False
    for number, case in enumerate(cases, 1):
        name, equals, result = (part.strip() for part in case.partition("="))
        falls_through = falls_through or _are_equal(value, name)
        if not equals and number == len(cases):
            return name
        if equals and falls_through:
            return result
        if equals and name == "#default":
            default = result
    return default


def _expression(call: Call) -> str:
    try:
        return evaluate(call.get("1"))
    except (ZeroDivisionError, ValueError):
        return ERROR


def _if_expression(call: Call) -> str:
    value = _expression(call)
    return value if value == ERROR else call.get("2" if value not in ("", "0") else "3")


_BY_FUNCTION: list[tuple[Expansion, str]] = [
    (
        _first,
        "nowrap; nobr; nowr; j; nobreak; small; smaller; big; larger; large; midsize; strong; em; b; i; u; s; bold; "
        "italic; italics; mvar; math; var; code; tt; kbd; samp; sc; smallcaps; sc2; caps; vanchor; visible anchor; "
        "not a typo; typo; proper name; linktext; ill; interlanguage link; interlanguage link multi; flag; "
        "flagcountry; flagu; sic; as written; abbr; abbrv; tooltip; keypress; key press; key; highlight; "
        "mono; monospace; script; nts; ntsh; longitem; normal; roman; hebrew; unicode; polytonic; resize; nobold; "
        "align; underline; overline; "
        "native phrase; bigger; lsj; no italic; noitalic; iast; iso 15919; pie; anchored; strikethrough; "
        "tlit; asiantitle",
    ),
    (_second, "color; colour; font color; fontcolor; script/hebrew; angbr ipa; translation; nativename; native name"),
    (lambda call: next(filter(None, reversed(call.places())), ""), "transl; transliteration; transliterated; lang-rus"),
    (lambda call: call.get("2", "text", "1"), "lang; langue; lang-text"),
    (lambda call: f"⟨{call.get('1')}⟩", "angbr; angle bracket; angular brackets"),
    (_convert, "convert; cvt; conv"),
    (_val, "val"),
    (lambda call: group_digits(call.get("1"), call.language), "formatnum; formatnum:; num; nombre; numero"),
    (_circa, "circa; c.; ca.; ca; около"),
    (
        _date,
        "birth date; bda; birth date and age; birth-date; death date; death date and age; dob; dod; start date; "
        "end date; film date; dts; date; birth year and age; birth year; launch date; "
        "birth-date and age; start date and age",
    ),
    (_as_of, "as of; asof"),
    (_fraction, "frac; fraction; sfrac; tfrac; nicefrac"),
    (_french_measure, "unité; unite"),
    (_listed, "hlist; plainlist; unbulleted list; ubl; ubt; flatlist; flat list; plain list; csv"),
    (
        lambda call: f"\n{text}\n" if (text := call.get("1", "text", "quote")) else "",
        "quote; blockquote; cquote; bquote; quotation; rquote; quote box2; poemquote; цитат; citation bloc",
    ),
    (_nihongo, "nihongo; nihongo2; nihongo3; nihongo foot; nihongo krt"),
    (
        lambda call: f"{call.name.upper()} {call.get('1')}".rstrip(),
        "uss; hms; hmcs; hmas; rms; usns; uscgc; hmnzs; sms; mv; ms",
    ),
    (lambda call: " ".join(filter(None, map(call.get, "12"))), "ship; sclass; sclass2; sclass-; sclass2-"),
    (_money("$"), "us$; usd; us dollar"),
    (_money("€"), "€; eur; euro"),
    (_money("£"), "£; gbp; pound sterling"),
    (_money("₹"), "₹; inr; indian rupee"),
    (_money("¥"), "¥; jpy"),
    (_money("A$"), "aud; a$"),
    (_money("C$"), "cad; c$"),
    (
        lambda call: "".join(place.translate(_LOWERED) if place.isdigit() else place for place in call.places()),
        "chem; chem2; chemical formula",
    ),
    (lambda call: f" × 10^{call.get('1')}", "e; x10^"),
    (lambda call: "".join(call.places()).translate(_RAISED), "sup; superscript"),
    (lambda call: "".join(call.places()).translate(_LOWERED), "sub; subscript; su"),
    (_sound, "ipa; ipablink; ipaslink"),
    (lambda call: call.get("2" if call.get("1") else "3"), "#if:"),
    (lambda call: call.get("3" if _are_equal(call.get("1"), call.get("2")) else "4"), "#ifeq:"),
    (_if_error, "#iferror:"),
    # Other pages are unknown here: take the text for a missing page, or else the other text.
    (lambda call: call.get("3", "2"), "#ifexist:"),
    (_switch, "#switch:"),
    (_expression, "#expr:"),
    (_if_expression, "#ifexpr:"),
    (lambda call: quote_plus(call.get("1")), "urlencode:"),
    (lambda call: number if (number := call.get("1")).isdecimal() else "", "int:"),
    (lambda call: call.get("1").lower(), "lc:"),
    (lambda call: call.get("1").upper(), "uc:"),
    (lambda call: call.get("1")[:1].lower() + call.get("1")[1:], "lcfirst:"),
    (lambda call: call.get("1")[:1].upper() + call.get("1")[1:], "ucfirst:"),
    (lambda call: call.title, "pagename; fullpagename; basepagename; subpagename; rootpagename"),
    (_constant("0"), "namespacenumber"),
    (_constant(guard("|")), "!; pipe; vertical bar"),
    (_constant(guard("=")), "=; equals"),
    (_constant(guard("[")), "!(; bracket left"),
    (_constant(guard("]")), ")!; bracket right"),
    (_constant("\u00a0"), "nbsp; spaces; space; nb5; nb10; zwsp; nbsp2; sp; thinsp; thin space; hair space; hsp"),
    (_constant(" – "), "spaced ndash; snd; spnd; sndash; spaced en dash; ndash; dash; –"),
    (_constant("—"), "mdash; em dash; —"),
    (_constant(" · "), "·; dot; middot; bullet; •; interpunct"),
    (_constant("'"), "'; apostrophe; single+single"),
    (_constant("'s"), "'s; 's-"),
    (_constant('"'), "\"; ''"),
    (_constant(" '"), " '; '-"),
    (_constant("−"), "minus; −"),
    (_constant("×"), "times"),
    (_constant("±"), "±"),
    (_constant("°"), "deg; degree"),
    (_constant("π"), "pi; π"),
    (_constant("♯"), "sharp; music sharp"),
    (_constant("♭"), "flat; music flat"),
    (_constant("\n"), "br; break; crlf; clear; -; clr"),
]

_EXPANSIONS: dict[str, Expansion] = {name: expansion for expansion, names in _BY_FUNCTION for name in names.split("; ")}


def _normal(name: str) -> str:
    return " ".join(name.replace("_", " ").split()).casefold()


class Templates:
    """Expands the templates of one page."""

    def __init__(self, site: Site) -> None:
        self._language = site.language.partition("-")[0]
        self._prefixes = site.template_prefixes | {"subst", "safesubst"}
        self.title = ""

    def expand(self, content: str) -> str:
        """Return the text of the template call between the braces; "" for an unknown template."""
        head, *parts = content.split("|")
        name = _normal(head)
        for _ in range(3):  # a name may have several prefixes, such as {{subst:Template:Name}}
            before, colon, _rest = name.partition(":")
            if not colon:
                break
            if before not in self._prefixes:
                if function := _EXPANSIONS.get(before + colon):
                    places = enumerate([head.partition(":")[2], *parts], 1)
                    arguments = {
                        str(place): text.strip() for place, text in places
                    }  # "=" does not separate a name here
                    return function(Call(before + colon, arguments, self._language, self.title))
                break
            head = head.partition(":")[2]
            name = _normal(head)
        expansion = _EXPANSIONS.get(name)
        if expansion is None and name.startswith(("lang-", "langx")):  # their argument is text in that language
            expansion = _second if name == "langx" else _first
        return expansion(Call(name, read_arguments(parts), self._language, self.title)) if expansion else ""

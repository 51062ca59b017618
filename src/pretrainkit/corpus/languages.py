"""In which language, or at least in which script, a text is written."""

import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable

_LOOKED_AT = 1000
"""Characters of a text."""
_FEW = 20
"""Letters below which a text is not judged."""
UNKNOWN = "unknown"
_SCRIPTS = {"Cjk": "Han", "Hiragana": "Kana", "Katakana": "Kana", "Canadian": "Canadian syllabics", "Modifier": ""}


def script_of(text: str) -> str:
    """The script of most of its letters, such as "Latin", "Cyrillic" or "Han"; "unknown" where there are few."""
    counts: Counter[str] = Counter()
    for sign, count in Counter(text[:_LOOKED_AT]).items():
        if sign.isalpha():
            word = unicodedata.name(sign, "").partition(" ")[0].capitalize()
            counts[_SCRIPTS.get(word, word)] += count
    del counts[""]
    if counts["Kana"]:  # Japanese writes in both
        counts["Kana"] += counts.pop("Han", 0)
    return counts.most_common(1)[0][0] if counts.total() >= _FEW else UNKNOWN


def classifier() -> Callable[[str], str] | None:
    """A function from a text to the code of its language, such as "en"; None: py3langid is not installed."""
    try:
        import py3langid
    except ImportError:
        return None

    def language_of(text: str) -> str:
        start = text[:_LOOKED_AT]
        return str(py3langid.classify(start)[0]) if sum(map(str.isalpha, start)) >= _FEW else UNKNOWN

    return language_of


def language_counts(texts: Iterable[str]) -> tuple[str, dict[str, int]]:
    """What was counted ("language" or "script"), and how many texts are written in each, the most frequent first."""
    language_of = classifier()
    counts = Counter(map(language_of or script_of, texts))
    ordered = dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
    return ("language" if language_of else "script"), ordered

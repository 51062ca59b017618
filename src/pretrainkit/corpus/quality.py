"""Rules that separate running text from other content of the web and of encyclopedias.

Source of the rules and their limits: Rae et al. 2021 (Gopher), https://arxiv.org/abs/2112.11446, appendix A1, in the
form that works for any language: its English stop words are an option. White space separates words.
"""

from collections import Counter
from dataclasses import dataclass

from pretrainkit.errors import DataError

_STOP_WORDS = frozenset({"the", "be", "to", "of", "and", "that", "have", "with"})


@dataclass(frozen=True, kw_only=True)
class Quality:
    """Limits of a document. A document beyond any limit is dropped and counted under the name of the rule."""

    min_words: int = 50
    """Drop documents with fewer words."""
    max_words: int = 100_000
    """Drop documents with more words."""
    mean_word_lengths: tuple[float, float] = (3.0, 10.0)
    """Minimum and maximum average number of characters per word."""
    max_symbol_share: float = 0.1
    """Maximum number of the symbols #, … and ... per word."""
    max_bullet_share: float = 0.9
    """Maximum share of lines that begin with a bullet."""
    max_ellipsis_share: float = 0.3
    """Maximum share of lines that end with an ellipsis."""
    min_alphabetic_share: float = 0.8
    """Minimum share of words that contain a letter."""
    max_duplicate_line_share: float = 0.3
    """Maximum share of lines that repeat an earlier line of the document."""
    min_stop_words: int = 0
    """Minimum number of the eight English stop words that must occur: 2 as in Gopher, 0 for any language."""

    def __post_init__(self) -> None:
        if self.min_words < 0 or self.max_words < self.min_words:
            raise DataError(
                f"no document can have at least {self.min_words} and at most {self.max_words} words\n"
                "  give a minimum of at least 0, and a maximum that is not smaller"
            )

    def problem(self, text: str) -> str | None:
        """Return the name of the first rule that a document breaks, or None if it breaks no rule."""
        words = text.split()
        num = len(words)
        if num < self.min_words:
            return "too_few_words"
        if num > self.max_words:
            return "too_many_words"
        if not num:
            return None
        low, high = self.mean_word_lengths
        mean = sum(map(len, words)) / num
        if not low <= mean <= high:
            return "words_too_short" if mean < low else "words_too_long"
        symbols = text.count("#") + text.count("...") + text.count("…")
        if symbols / num > self.max_symbol_share:
            return "too_many_symbols"
        if sum(any(map(str.isalpha, word)) for word in words) / num < self.min_alphabetic_share:
            return "too_few_letters"
        if self.min_stop_words and len(_STOP_WORDS & {word.lower() for word in words}) < self.min_stop_words:
            return "too_few_stop_words"
        lines = [line for line in text.split("\n") if line.strip()]
        num = len(lines)
        if sum(line.lstrip().startswith(("•", "- ", "* ", "–")) for line in lines) / num > self.max_bullet_share:
            return "too_many_bullets"
        if sum(line.rstrip().endswith(("...", "…")) for line in lines) / num > self.max_ellipsis_share:
            return "too_many_ellipses"
        if 1 - len(Counter(lines)) / num > self.max_duplicate_line_share:
            return "too_many_repeated_lines"
        return None

"""Rules that tell running text from the rest of the web and of encyclopedias.

Source of the rules and their limits: Rae et al. 2021 (Gopher), https://arxiv.org/abs/2112.11446, appendix A1, in the
form that language-neutral rules allow: its English stop words are an option. Words are runs of other than white space.
"""

from collections import Counter
from dataclasses import dataclass

from pretrainkit.errors import DataError

_STOP_WORDS = frozenset({"the", "be", "to", "of", "and", "that", "have", "with"})


@dataclass(frozen=True, kw_only=True)
class Quality:
    """Limits; a document beyond any of them is left out, and counted under its name."""

    min_words: int = 50
    """Documents with fewer words go."""
    max_words: int = 100_000
    """Documents with more words go."""
    mean_word_lengths: tuple[float, float] = (3.0, 10.0)
    """Characters per word on average, least and most."""
    max_symbol_share: float = 0.1
    """Of # and … per word."""
    max_bullet_share: float = 0.9
    """Of lines that begin with a bullet."""
    max_ellipsis_share: float = 0.3
    """Of lines that end with an ellipsis."""
    min_alphabetic_share: float = 0.8
    """Of words with a letter."""
    max_duplicate_line_share: float = 0.3
    """Of lines that occurred before in the document."""
    min_stop_words: int = 0
    """English stop words, of eight, that must occur; 2 as in Gopher, 0 for any language."""

    def __post_init__(self) -> None:
        if self.min_words < 0 or self.max_words < self.min_words:
            raise DataError(
                f"from {self.min_words} to {self.max_words} words fits no document\n"
                "  give a least number of words that is not negative, and a most that is not smaller"
            )

    def problem(self, text: str) -> str | None:
        """The first rule that a document breaks; None: it is kept."""
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
            return "too_many_lines_again"
        return None

"""How a text encoder wants its texts. Torch-free.

What an encoder reads is counted in slots: tokens with the control tokens around them, or patches of rendered text.
Nothing is padded: slots of a batch lie one after another.

Dimensions: N examples, B examples of a batch, S slots of an example, W words of an example.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pretrainkit.errors import InputError

Ids = NDArray[np.int32]
Ints = NDArray[np.int64]


class ReadExamples(ABC):
    """Texts as an encoder reads them, with random access: in memory, or made when a batch asks for them."""

    @abstractmethod
    def lengths(self) -> Ints:
        """(N,) slots of each example, with all that stands around its texts."""

    @abstractmethod
    def build(self, index_B: Ints) -> dict[str, np.ndarray]:
        """Return the batch of these examples under the names that the encoder knows; always with `cu_seqlens` (B + 1,),
        `lengths` (B,) and `slot_numbers`, 0, 1, ... of the longest example: how many there are is known without asking
        the device. Of pairs also `second_begins` (B,), the slot within the example at which the second text begins. All
        int32. `index_B` may be empty."""


class ReadWords(ReadExamples):
    """Texts that were given word by word."""

    @abstractmethod
    def word_starts(self, index: int) -> Ints:
        """(W + 1,) the first slot, within the example, of each word that is read, and the slot behind the last one."""

    @abstractmethod
    def num_cut(self) -> Ints:
        """(N,) words at the end of each example that are not read, as they do not fit."""


class ReadPassages(ReadExamples):
    """Windows of contexts, each behind its question; a long context has several, which overlap."""

    cuts_words: bool = False
    """Whether a slot may hold parts of several words, so that answers are to be rounded to whole ones."""

    @abstractmethod
    def example_of(self) -> Ints:
        """(N,) the number of the pair that each window belongs to, ascending."""

    @abstractmethod
    def has_cut_question(self) -> NDArray[np.bool_]:
        """(N,) whether the window shows a question without its end, which did not fit."""

    @abstractmethod
    def offsets(self, window: int) -> Ints:
        """(S, 2) where each slot begins and ends in its context, in characters; -1 in slots that show none of it."""

    @abstractmethod
    def no_answer_slot(self, window: int) -> int:
        """The slot that stands for an answer which is not in the window."""


class TextReader(ABC):
    """Texts to what an encoder reads."""

    fingerprint: str
    """Changes whenever what is read could."""
    max_positions: int | None
    """Most slots that the encoder can read; None: any number."""

    @abstractmethod
    def read(self, texts: Sequence[Sequence[str]], max_length: int) -> ReadExamples:
        """Read one text of all examples, or the first texts of all pairs and then the second ones, into at most
        `max_length` slots each. What is too long is cut at its end, of a pair the longer text."""

    def read_words(self, words: Sequence[Sequence[str]], max_length: int) -> ReadWords:
        """Read the words of each example into at most `max_length` slots. Words that do not fit are left out as a
        whole, and all behind them."""
        raise InputError("this encoder reads no texts word by word\n  give another one, such as a BERT")

    def read_passages(
        self, pairs: Sequence[tuple[str, str]], max_length: int, stride: int, max_first: int
    ) -> ReadPassages:
        """Read (question, context) pairs in windows of at most `max_length` slots, each of which repeats `stride` slots
        of the context of the one before. Questions are cut at their end after `max_first` slots. Raises ConfigError
        where a window has no room for more than it repeats."""
        raise InputError(
            "this encoder does not say where its slots stand in a text\n  give another one, such as a BERT"
        )

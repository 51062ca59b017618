"""Conversion of texts to the inputs of a text encoder, without torch.

The unit of an input is a slot: a token, which may be a control token, or a patch of rendered text. Batches have no
padding: they are the concatenated slots of their examples.

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
    """Encoder inputs of texts with random access, either in memory or created on demand."""

    @abstractmethod
    def lengths(self) -> Ints:
        """Return (N,) the number of slots of each example, with control tokens."""

    @abstractmethod
    def build(self, index_B: Ints) -> dict[str, np.ndarray]:
        """Return the batch of these examples by the encoder's names of inputs. It always has `cu_seqlens` (B + 1,),
        `lengths` (B,) and `slot_numbers`, 0, 1, ... of the longest example, whose shape gives the maximum length
        without a device sync. Pairs also have `second_begins` (B,), the first slot of the second text within its
        example. All arrays are int32. `index_B` may be empty."""


class ReadWords(ReadExamples):
    """Texts that are split into words."""

    @abstractmethod
    def word_starts(self, index: int) -> Ints:
        """Return (W + 1,) the first slot of each word that is read, and the slot after the last word."""

    @abstractmethod
    def num_cut(self) -> Ints:
        """Return (N,) the number of words cut from the end of each example because they do not fit."""


class ReadPassages(ReadExamples):
    """Windows of contexts, each after its question; a long context has several overlapping windows."""

    cuts_words: bool = False
    """True if a slot may hold parts of several words; answers are then rounded to whole words."""

    @abstractmethod
    def example_of(self) -> Ints:
        """Return (N,) the index of each window's pair, ascending."""

    @abstractmethod
    def has_cut_question(self) -> NDArray[np.bool_]:
        """Return (N,) True for windows whose question was cut because it did not fit."""

    @abstractmethod
    def offsets(self, window: int) -> Ints:
        """Return (S, 2) start and end of each slot in its context, in characters; -1 for slots outside the context."""

    @abstractmethod
    def no_answer_slot(self, window: int) -> int:
        """Return the slot that represents "no answer in this window"."""


class TextReader(ABC):
    """Converts texts to the inputs of an encoder."""

    fingerprint: str
    """Hash of everything that affects the inputs."""
    max_positions: int | None
    """Maximum number of slots of an example; None: no limit."""

    @abstractmethod
    def read(self, texts: Sequence[Sequence[str]], max_length: int) -> ReadExamples:
        """Convert examples to at most `max_length` slots each. `texts` has one list of texts, or two for pairs: the
        first and the second texts. Long texts are cut at their end; in a pair, the longer text is cut."""

    def read_words(self, words: Sequence[Sequence[str]], max_length: int) -> ReadWords:
        """Convert the words of each example to at most `max_length` slots. The first word that does not fit completely
        and all later words are dropped."""
        raise InputError("this encoder cannot read texts word by word\n  use another encoder, such as BERT")

    def read_passages(
        self, pairs: Sequence[tuple[str, str]], max_length: int, stride: int, max_first: int
    ) -> ReadPassages:
        """Convert (question, context) pairs to windows of at most `max_length` slots. Each window repeats the last
        `stride` context slots of the previous window. Questions are cut after `max_first` slots. Raises ConfigError if
        a window cannot hold more than `stride` context slots."""
        raise InputError(
            "this encoder cannot map its slots to positions in a text\n  use another encoder, such as BERT"
        )

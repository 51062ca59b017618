"""Encoders that read ids of a tokenizer: texts with control tokens around them. Torch-free.

Dimensions: N examples, B examples of a batch, T tokens of a batch, M tokens of all texts, S tokens of an example, W
words.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pretrainkit.data.subsets import slots
from pretrainkit.errors import ConfigError
from pretrainkit.recipes.text_reader import Ids, Ints, ReadExamples, ReadPassages, ReadWords, TextReader

Encoded = tuple[Ids, Ints]
"""(M,) the ids of all texts one after another, and (N,) how many each has; no control tokens."""


@dataclass(frozen=True)
class ControlTokens:
    """What stands around texts."""

    before: tuple[int, ...] = ()
    """Ids in front of the first text, such as [CLS]."""
    between: tuple[int, ...] = ()
    """Ids between the two texts of a pair, such as [SEP]; they count to the first."""
    after: tuple[int, ...] = ()
    """Ids behind the last text."""

    def count(self, *, is_pair: bool) -> int:
        """Control tokens of an example."""
        return len(self.before) + len(self.after) + (len(self.between) if is_pair else 0)


@dataclass(frozen=True)
class TokenReader(TextReader):
    """A tokenizer and its control tokens."""

    encode: Callable[[Sequence[str]], Encoded]
    control: ControlTokens
    fingerprint: str
    max_positions: int | None = None
    word_prefix: str = ""
    """In front of all words but the first, where the tokenizer tells by a space that a word begins."""
    unknown: int | None = None
    """The id of a word that has no tokens, such as one of invisible characters; None: words are not read."""
    encode_with_offsets: Callable[[Sequence[str]], tuple[Ids, Ints, Ints]] | None = None
    """As `encode`, and (M, 2) where each token begins and ends in its text, in characters; None: passages are not
    read."""

    def read(self, texts: Sequence[Sequence[str]], max_length: int) -> "TokenExamples":
        is_pair = len(texts) == 2
        found = [self.encode(column) for column in texts]
        room = max_length - self.control.count(is_pair=is_pair)
        kept = pair_lengths(found[0][1], found[1][1], room) if is_pair else (np.minimum(found[0][1], room),)
        texts_read = [
            TokenTexts(ids, np.cumsum(lengths) - lengths, own) for (ids, lengths), own in zip(found, kept, strict=True)
        ]
        return TokenExamples(tuple(texts_read), self.control)

    def read_words(self, words: Sequence[Sequence[str]], max_length: int) -> "TokenWords":
        if self.unknown is None:
            return super().read_words(words, max_length)  # type: ignore[return-value]  # it raises
        spelled = [self.word_prefix * (place > 0) + word for one in words for place, word in enumerate(one)]
        ids, sizes = with_filler(*self.encode(spelled), self.unknown)
        num_words = np.fromiter(map(len, words), np.int64, len(words))
        ends = np.concatenate([[0], np.cumsum(sizes)])
        room = max_length - self.control.count(is_pair=False)
        first_words = np.cumsum(num_words) - num_words
        # `ends` has a 0 in front, so the entry of a word is where it begins.
        begins = ends[first_words]
        # Of each example as many words as end within its room.
        last_words = np.searchsorted(ends, begins + room, side="right") - 1
        kept = np.minimum(last_words - first_words, num_words)
        texts = TokenTexts(ids, begins, ends[first_words + kept] - begins)
        return TokenWords((texts,), self.control, ends, first_words, kept, num_words)

    def read_passages(
        self, pairs: Sequence[tuple[str, str]], max_length: int, stride: int, max_first: int
    ) -> "TokenPassages":
        if self.encode_with_offsets is None:
            return super().read_passages(pairs, max_length, stride, max_first)  # type: ignore[return-value]  # it raises
        # Many questions share a context, which is read once.
        contexts = list(dict.fromkeys(context for _, context in pairs))
        ids, sizes, offsets_M2 = self.encode_with_offsets(contexts)
        begins = np.cumsum(sizes) - sizes
        number = {context: index for index, context in enumerate(contexts)}
        context_N = np.fromiter((number[context] for _, context in pairs), np.int64, len(pairs))
        question_ids, question_sizes = self.encode([question for question, _ in pairs])
        question_begins, is_cut_N = np.cumsum(question_sizes) - question_sizes, question_sizes > max_first
        question_sizes = np.minimum(question_sizes, max_first)
        room_N = max_length - self.control.count(is_pair=True) - question_sizes
        if len(pairs) and room_N.min() <= stride:
            raise ConfigError(
                f"a window of {max_length} tokens with a question of {int(question_sizes.max())} has room for "
                f"{int(room_N.min())} of the context, of which it repeats {stride}\n"
                "  use longer windows, shorter questions or a smaller stride"
            )
        begin_W, size_W, example_W = windows_of(sizes[context_N], room_N, stride)
        question = TokenTexts(question_ids, question_begins[example_W], question_sizes[example_W])
        context = TokenTexts(ids, begins[context_N][example_W] + begin_W, size_W)
        return TokenPassages((question, context), self.control, offsets_M2, example_W, is_cut_N[example_W])


def ids_of_singles(reader: TextReader, texts: Sequence[str]) -> list[list[int]]:
    """What an encoder reads of each text alone, uncut: its ids with the control tokens around them."""
    assert isinstance(reader, TokenReader)
    ids, lengths = reader.encode(texts)
    parts = np.split(ids, np.cumsum(lengths)[:-1])
    return [[*reader.control.before, *part.tolist(), *reader.control.after] for part in parts]


@dataclass(frozen=True)
class TokenTexts:
    """One text of every example: a stretch of ids each, which may overlap."""

    ids: Ids
    """(M,) int32."""
    begins: Ints
    """(N,)"""
    sizes: Ints
    """(N,)"""

    def of(self, index: int) -> Ids:
        """The ids of an example."""
        begin = self.begins[index]
        return self.ids[begin : begin + self.sizes[index]]


@dataclass(frozen=True)
class TokenExamples(ReadExamples):
    """Single texts or pairs, all of them in memory."""

    texts: tuple[TokenTexts, ...]
    """The first text of every example and, of pairs, the second."""
    control: ControlTokens

    def lengths(self) -> Ints:
        added = self.control.count(is_pair=len(self.texts) == 2)
        return np.stack([text.sizes for text in self.texts]).sum(axis=0) + added

    def build(self, index_B: Ints) -> dict[str, np.ndarray]:
        """Return `input_ids`, `token_type_ids` (0, and 1 from the second text of a pair on) and `positions` (T,) int32,
        and what `ReadExamples.build` says."""
        examples = [self._example(int(index)) for index in index_B]
        firsts = np.array([first for _, first in examples], np.int64)
        lengths = np.array([len(ids) for ids, _ in examples], np.int64)
        types = np.tile(np.array([0, 1], np.int32), len(examples))
        of_pairs = {"second_begins": firsts.astype(np.int32)} if len(self.texts) == 2 else {}
        return of_pairs | {
            "input_ids": np.concatenate([ids for ids, _ in examples]) if examples else np.empty(0, np.int32),
            # 0 1 0 1 ..., each as often as the example has tokens of that type.
            "token_type_ids": np.repeat(types, np.stack([firsts, lengths - firsts], axis=1).ravel()),
            "positions": slots(lengths).astype(np.int32),
            "cu_seqlens": np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32),
            "lengths": lengths.astype(np.int32),
            "slot_numbers": np.arange(lengths.max(initial=0), dtype=np.int32),
        }

    def _example(self, index: int) -> tuple[Ids, int]:
        """(ids, how many of them have type 0)."""
        control, texts = self.control, [text.of(index) for text in self.texts]
        if len(texts) == 1:
            ids = np.concatenate([control.before, texts[0], control.after])
            return ids.astype(np.int32), len(ids)
        ids = np.concatenate([control.before, texts[0], control.between, texts[1], control.after])
        return ids.astype(np.int32), len(control.before) + len(texts[0]) + len(control.between)


@dataclass(frozen=True)
class TokenWords(TokenExamples, ReadWords):
    """Texts that were given word by word."""

    ends: Ints
    """(words + 1,) among the ids: 0, and where each word of all examples ends."""
    first_words: Ints
    """(N,) the number of each example's first word."""
    kept: Ints
    """(N,) words that are read."""
    num_words: Ints
    """(N,) words that there are."""

    def word_starts(self, index: int) -> Ints:
        first = self.first_words[index]
        ends = self.ends[first : first + self.kept[index] + 1]
        return ends - ends[0] + len(self.control.before)

    def num_cut(self) -> Ints:
        return self.num_words - self.kept


@dataclass(frozen=True)
class TokenPassages(TokenExamples, ReadPassages):
    """Windows of contexts, each behind its question."""

    places: Ints
    """(M, 2) where each token of all contexts begins and ends, in characters."""
    pair_numbers: Ints
    """(N,) of each window."""
    is_cut: NDArray[np.bool_]
    """(N,) whether the question of a window is."""

    def example_of(self) -> Ints:
        return self.pair_numbers

    def has_cut_question(self) -> NDArray[np.bool_]:
        return self.is_cut

    def offsets(self, window: int) -> Ints:
        question, context = self.texts
        before = len(self.control.before) + int(question.sizes[window]) + len(self.control.between)
        begin, size = int(context.begins[window]), int(context.sizes[window])
        found = np.full((before + size + len(self.control.after), 2), -1, np.int64)
        found[before : before + size] = self.places[begin : begin + size]
        return found

    def no_answer_slot(self, window: int) -> int:
        """The first control token; where none stands in front, the last one."""
        return 0 if self.control.before else int(self.lengths()[window]) - 1


def pair_lengths(first: Ints, second: Ints, room: int) -> tuple[Ints, Ints]:
    """(N,) tokens of first and second texts, and what is left of each when the longer one (of equal ones the second)
    loses its last token until both together have `room`."""
    half = room - room // 2
    fits = first + second <= room
    # A text shorter than its half stays whole; of two longer ones the first gets the odd token.
    kept_first = np.minimum(first, np.maximum(half, room - second))
    kept_second = np.minimum(second, room - kept_first)
    return np.where(fits, first, kept_first), np.where(fits, second, kept_second)


def windows_of(sizes: Ints, rooms: Ints, stride: int) -> tuple[Ints, Ints, Ints]:
    """Stretches that cover texts of `sizes` (N,) tokens, each repeating the last `stride` tokens of the one before,
    with at most `rooms` (N,) tokens, more than `stride`. Of every window of all texts, in order: where it begins in its
    text, its tokens, the number of its text."""
    # A stretch after the first adds rooms - stride tokens: the excess sizes - rooms over that, rounded up.
    counts = 1 + np.maximum(0, -((rooms - sizes) // (rooms - stride)))
    example = np.repeat(np.arange(len(sizes)), counts)
    begins = slots(counts) * (rooms - stride)[example]
    return begins, np.minimum(rooms[example], sizes[example] - begins), example


def with_filler(ids: Ids, sizes: Ints, filler: int) -> Encoded:
    """Words that have no ids get the id `filler`."""
    missing = np.flatnonzero(sizes == 0)
    if not len(missing):
        return ids, sizes
    places = np.cumsum(sizes)[missing]  # where the word would begin; `insert` counts in the array as it was
    return np.insert(ids, places, filler).astype(np.int32), np.maximum(sizes, 1)

"""Text readers for encoders of token ids, with control tokens around the texts. Imports no torch.

Dimensions: N examples, B examples of a batch, T tokens of a batch, M tokens of all texts, S tokens of an example, W
words.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pretrainkit.data.subsets import slots
from pretrainkit.errors import ConfigError, DataError
from pretrainkit.recipes.text_reader import Ids, Ints, ReadExamples, ReadPassages, ReadWords, TextReader

Encoded = tuple[Ids, Ints]
"""(M,) concatenated ids of all texts and (N,) the number of ids per text, without control tokens."""


@dataclass(frozen=True)
class ControlTokens:
    """Control tokens around the texts of an example."""

    before: tuple[int, ...] = ()
    """Ids before the first text, such as [CLS]."""
    between: tuple[int, ...] = ()
    """Ids between the two texts of a pair, such as [SEP]; they belong to the first text."""
    after: tuple[int, ...] = ()
    """Ids after the last text."""

    def count(self, *, is_pair: bool) -> int:
        """Return the number of control tokens of an example."""
        return len(self.before) + len(self.after) + (len(self.between) if is_pair else 0)


@dataclass(frozen=True)
class TokenReader(TextReader):
    """Text reader with a tokenizer and its control tokens."""

    encode: Callable[[Sequence[str]], Encoded]
    control: ControlTokens
    fingerprint: str
    max_positions: int | None = None
    word_prefix: str = ""
    """Prefix of all words except the first, for tokenizers that mark the start of a word by a space."""
    unknown: int | None = None
    """Id for words without tokens, such as invisible characters; None: `read_words` is not supported."""
    encode_with_offsets: Callable[[Sequence[str]], tuple[Ids, Ints, Ints]] | None = None
    """Like `encode`, also with (M, 2) start and end of each token in its text, in characters; None: `read_passages` is
    not supported."""
    num_ids: int | None = None
    """Number of ids that the encoder reads; None: any."""

    def _known(self, *texts: "TokenTexts") -> tuple["TokenTexts", ...]:
        """Return the texts. Raises DataError if one has an id that the encoder does not read."""
        control = (*self.control.before, *self.control.between, *self.control.after)
        largest = max([*control, *(int(text.ids.max(initial=0)) for text in texts)])
        if self.num_ids is not None and largest >= self.num_ids:
            raise DataError(
                f"the tokenizer gives the id {largest}, but the encoder reads ids below {self.num_ids}\n"
                "  use the encoder's own tokenizer: data.tokenizer=FOLDER, or copy its files beside the encoder"
            )
        return texts

    def read(self, texts: Sequence[Sequence[str]], max_length: int) -> "TokenExamples":
        is_pair = len(texts) == 2
        encoded = [self.encode(column) for column in texts]
        max_tokens = max_length - self.control.count(is_pair=is_pair)
        first = encoded[0][1]
        kept = pair_lengths(first, encoded[1][1], max_tokens) if is_pair else (np.minimum(first, max_tokens),)
        texts_read = [
            TokenTexts(ids, np.cumsum(lengths) - lengths, own)
            for (ids, lengths), own in zip(encoded, kept, strict=True)
        ]
        return TokenExamples(self._known(*texts_read), self.control)

    def read_words(self, words: Sequence[Sequence[str]], max_length: int) -> "TokenWords":
        if self.unknown is None:
            return super().read_words(words, max_length)  # type: ignore[return-value]  # it raises
        spelled = [self.word_prefix * (place > 0) + word for example in words for place, word in enumerate(example)]
        ids, sizes = with_filler(*self.encode(spelled), self.unknown)
        num_words = np.fromiter(map(len, words), np.int64, len(words))
        ends = np.concatenate([[0], np.cumsum(sizes)])
        max_tokens = max_length - self.control.count(is_pair=False)
        first_words = np.cumsum(num_words) - num_words
        # `ends` starts with 0, so entry i is the start of word i.
        begins = ends[first_words]
        # Keep the words of each example that end within `max_tokens`.
        last_words = np.searchsorted(ends, begins + max_tokens, side="right") - 1
        kept = np.minimum(last_words - first_words, num_words)
        texts = TokenTexts(ids, begins, ends[first_words + kept] - begins)
        return TokenWords(self._known(texts), self.control, ends, first_words, kept, num_words)

    def read_passages(
        self, pairs: Sequence[tuple[str, str]], max_length: int, stride: int, max_first: int
    ) -> "TokenPassages":
        if self.encode_with_offsets is None:
            return super().read_passages(pairs, max_length, stride, max_first)  # type: ignore[return-value]  # it raises
        # Encode each context once, because many questions share it.
        contexts = list(dict.fromkeys(context for _, context in pairs))
        ids, sizes, offsets_M2 = self.encode_with_offsets(contexts)
        begins = np.cumsum(sizes) - sizes
        number = {context: index for index, context in enumerate(contexts)}
        context_N = np.fromiter((number[context] for _, context in pairs), np.int64, len(pairs))
        question_ids, question_sizes = self.encode([question for question, _ in pairs])
        question_begins, is_cut_N = np.cumsum(question_sizes) - question_sizes, question_sizes > max_first
        question_sizes = np.minimum(question_sizes, max_first)
        max_context_N = max_length - self.control.count(is_pair=True) - question_sizes
        if len(pairs) and max_context_N.min() <= stride:
            raise ConfigError(
                f"a window of {max_length} tokens with a question of {int(question_sizes.max())} can hold "
                f"{int(max_context_N.min())} tokens of the context, of which it repeats {stride}\n"
                "  choose a larger data.max_seq_length, or a smaller data.spans.stride or "
                "data.spans.max_question_length"
            )
        begin_W, size_W, example_W = windows_of(sizes[context_N], max_context_N, stride)
        question = TokenTexts(question_ids, question_begins[example_W], question_sizes[example_W])
        context = TokenTexts(ids, begins[context_N][example_W] + begin_W, size_W)
        return TokenPassages(self._known(question, context), self.control, offsets_M2, example_W, is_cut_N[example_W])


def ids_of_singles(reader: TextReader, texts: Sequence[str]) -> list[list[int]]:
    """Return the ids of each text as a single example, uncut, with control tokens."""
    assert isinstance(reader, TokenReader)
    ids, lengths = reader.encode(texts)
    parts = np.split(ids, np.cumsum(lengths)[:-1])
    return [[*reader.control.before, *part.tolist(), *reader.control.after] for part in parts]


@dataclass(frozen=True)
class TokenTexts:
    """One text of every example, as a span of ids; spans may overlap."""

    ids: Ids
    """(M,) int32 ids of all texts."""
    begins: Ints
    """(N,) start of each span."""
    sizes: Ints
    """(N,) length of each span."""

    def of(self, index: int) -> Ids:
        """Return the ids of an example."""
        begin = self.begins[index]
        return self.ids[begin : begin + self.sizes[index]]


@dataclass(frozen=True)
class TokenExamples(ReadExamples):
    """Single texts or pairs in memory."""

    texts: tuple[TokenTexts, ...]
    """First texts of all examples and, for pairs, the second texts."""
    control: ControlTokens

    def lengths(self) -> Ints:
        added = self.control.count(is_pair=len(self.texts) == 2)
        return np.stack([text.sizes for text in self.texts]).sum(axis=0) + added

    def build(self, index_B: Ints) -> dict[str, np.ndarray]:
        """Return `input_ids`, `token_type_ids` (1 for the second text of a pair, else 0) and `positions`, (T,) int32,
        and the arrays of `ReadExamples.build`."""
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
        """Return (ids, number of ids of type 0)."""
        control, texts = self.control, [text.of(index) for text in self.texts]
        if len(texts) == 1:
            ids = np.concatenate([control.before, texts[0], control.after])
            return ids.astype(np.int32), len(ids)
        ids = np.concatenate([control.before, texts[0], control.between, texts[1], control.after])
        return ids.astype(np.int32), len(control.before) + len(texts[0]) + len(control.between)


@dataclass(frozen=True)
class TokenWords(TokenExamples, ReadWords):
    """Texts that are split into words."""

    ends: Ints
    """(words + 1,) 0, and the end of each word of all examples in the ids."""
    first_words: Ints
    """(N,) index of each example's first word."""
    kept: Ints
    """(N,) number of words that are read."""
    num_words: Ints
    """(N,) number of words before cutting."""

    def word_starts(self, index: int) -> Ints:
        first = self.first_words[index]
        ends = self.ends[first : first + self.kept[index] + 1]
        return ends - ends[0] + len(self.control.before)

    def num_cut(self) -> Ints:
        return self.num_words - self.kept


@dataclass(frozen=True)
class TokenPassages(TokenExamples, ReadPassages):
    """Windows of contexts, each after its question."""

    places: Ints
    """(M, 2) start and end of each token in its context, in characters."""
    pair_numbers: Ints
    """(N,) index of each window's pair."""
    is_cut: NDArray[np.bool_]
    """(N,) True for windows with a cut question."""

    def example_of(self) -> Ints:
        return self.pair_numbers

    def has_cut_question(self) -> NDArray[np.bool_]:
        return self.is_cut

    def offsets(self, window: int) -> Ints:
        question, context = self.texts
        before = len(self.control.before) + int(question.sizes[window]) + len(self.control.between)
        begin, size = int(context.begins[window]), int(context.sizes[window])
        offsets_S2 = np.full((before + size + len(self.control.after), 2), -1, np.int64)
        offsets_S2[before : before + size] = self.places[begin : begin + size]
        return offsets_S2

    def no_answer_slot(self, window: int) -> int:
        """Return the slot of the first control token, or the last slot if the text has no control tokens before it."""
        return 0 if self.control.before else int(self.lengths()[window]) - 1


def pair_lengths(first: Ints, second: Ints, max_tokens: int) -> tuple[Ints, Ints]:
    """Return the numbers of tokens, (N,) each, to keep of the first and of the second texts. The longer text (if equal,
    the second) loses its last token until both together have at most `max_tokens`."""
    half = max_tokens - max_tokens // 2
    fits = first + second <= max_tokens
    # A text shorter than its half is not cut; if both are longer, the first gets the odd token.
    kept_first = np.minimum(first, np.maximum(half, max_tokens - second))
    kept_second = np.minimum(second, max_tokens - kept_first)
    return np.where(fits, first, kept_first), np.where(fits, second, kept_second)


def windows_of(sizes: Ints, max_sizes: Ints, stride: int) -> tuple[Ints, Ints, Ints]:
    """Return windows that cover texts of `sizes` (N,) tokens, as (start in the text, size, index of the text), in
    order. A window has at most `max_sizes` (N,) tokens, more than `stride`, and repeats the last `stride` tokens of the
    previous window of its text."""
    # A window after the first adds max_sizes - stride tokens: divide the excess sizes - max_sizes by that, round up.
    counts = 1 + np.maximum(0, -((max_sizes - sizes) // (max_sizes - stride)))
    example = np.repeat(np.arange(len(sizes)), counts)
    begins = slots(counts) * (max_sizes - stride)[example]
    return begins, np.minimum(max_sizes[example], sizes[example] - begins), example


def with_filler(ids: Ids, sizes: Ints, filler: int) -> Encoded:
    """Insert the id `filler` for words without ids."""
    missing = np.flatnonzero(sizes == 0)
    if not len(missing):
        return ids, sizes
    places = np.cumsum(sizes)[missing]  # start of the missing word; `insert` uses indices of the original array
    return np.insert(ids, places, filler).astype(np.int32), np.maximum(sizes, 1)

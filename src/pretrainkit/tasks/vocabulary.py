"""Vocabularies of tasks: text to ids and back, with sentinels, compared by content and never by where they lie.

Making one reads no file; the model is loaded when it is first used, and again in every process it is sent to.

Source of the ids: T5's vocabularies, https://arxiv.org/abs/1910.10683, and ByT5's, https://arxiv.org/abs/2105.13626.
"""

# What a vocabulary says is an attribute; those from files find it out when it is first read, by cached properties.
# mypy: disable-error-code="override"

import hashlib
import json
import struct
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np

from pretrainkit.errors import ConfigError, DataError, InputError
from pretrainkit.tokenizers.offsets import Placed, byte_offsets, huggingface_offsets, sentencepiece_offsets

_SENTENCEPIECE_NAMES = ("sentencepiece.model", "spiece.model", "tokenizer.model")
_BYTE_OFFSET = 3
_NUM_BYTES = 256
_NUM_NEVER_USED_BYTES = 11
"""0xF5 to 0xFF do not occur in UTF-8, so that their ids can serve as sentinels."""


class Vocabulary(ABC):
    """Text to ids and back. Equal vocabularies have equal content, wherever they were loaded from."""

    size: int
    """Number of ids, sentinels included. A model may have more rows."""
    pad_id: int
    """Fills rows; 0 in all vocabularies of T5."""
    eos_id: int
    """Ends a sequence; 1 in all vocabularies of T5."""
    unk_id: int
    """Stands for what has no id; 2 in all vocabularies of T5."""
    sentinel_ids: tuple[int, ...]
    """Ids that stand for hidden runs, in the order they are used: as a rule from the last id downwards."""
    fingerprint: str
    """32 hexadecimal digits of everything that decides ids."""
    word_prefix: str = ""
    """What stands in front of a word behind another for it to be seen as one."""

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """Ids of a text, without EOS."""

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text, without EOS."""
        return [self.encode(text) for text in texts]

    def encode_with_offsets(self, texts: Sequence[str]) -> Placed:
        """Ids of all texts, without EOS, and where they stand in them."""
        raise InputError(
            f"{type(self).__name__} does not say where tokens stand in a text\n  use a SentencePiece model, "
            "a tokenizer.json or bytes"
        )

    def decode(self, ids: Iterable[int]) -> str:
        """Text of `ids` up to the first EOS; ids outside the vocabulary are read as UNK."""
        before_end = takewhile(self.eos_id.__ne__, map(int, ids))
        return self._decode([index if 0 <= index < self.size else self.unk_id for index in before_end])

    @abstractmethod
    def _decode(self, ids: list[int]) -> str:
        """Text of ids that are all below `size`."""

    def describe(self) -> str:
        """Describe the vocabulary in one line, for messages."""
        return (
            f"{type(self).__name__} of {self.size:,} ids with {len(self.sentinel_ids)} sentinels, "
            f"fingerprint {self.fingerprint[:12]}"
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Vocabulary):
            return NotImplemented
        return self is other or self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        return hash(self.fingerprint)


class PickledUnloaded:
    """What cached properties hold, such as a model from a file, stays behind when an object is pickled."""

    def __getstate__(self) -> dict[str, Any]:
        kinds = type(self).__mro__
        lazy = {name for kind in kinds for name, value in vars(kind).items() if isinstance(value, cached_property)}
        return {name: value for name, value in vars(self).items() if name not in lazy}


class SentencePieceVocabulary(PickledUnloaded, Vocabulary):
    """A SentencePiece model, with `extra_ids` sentinels behind its pieces.

    Those added are `▁<extra_id_N>`, in reverse: the last id of the vocabulary is `<extra_id_0>`. In text they are found
    at the start of a word only. A model's own have these names, with or without `▁`, and any ids.
    """

    def __init__(self, path: str | Path, extra_ids: int = 0) -> None:
        """`path`: a SentencePiece model or a folder with one, such as `pretrainkit tokenizer train` makes. `extra_ids`:
        sentinels to add; a model that already has `<extra_id_0>` needs none."""
        _check_extra_ids(extra_ids)
        self.path, self.extra_ids = Path(path), extra_ids

    @cached_property
    def _content(self) -> bytes:
        """The model with the sentinels in it. Repeated fields of a protocol buffer may simply be appended."""
        path = self.path
        if path.is_dir():
            path = next((path / name for name in _SENTENCEPIECE_NAMES if (path / name).is_file()), path)
        try:
            content = path.read_bytes()
        except OSError as error:
            raise DataError(
                f"{self.path} holds no SentencePiece model: {error.strerror}\n"
                f"  name the file, or a folder with one of {', '.join(_SENTENCEPIECE_NAMES)}"
            ) from error
        from sentencepiece.sentencepiece_model_pb2 import ModelProto  # type: ignore[attr-defined]

        added = ModelProto()
        for index in reversed(range(self.extra_ids)):
            added.pieces.add(piece=f"▁<extra_id_{index}>", score=0.0, type=ModelProto.SentencePiece.USER_DEFINED)
        return content + added.SerializeToString()

    @cached_property
    def _model(self) -> Any:
        import sentencepiece

        try:
            model = sentencepiece.SentencePieceProcessor(model_proto=self._content)
        except RuntimeError as error:
            raise DataError(f"{self.path} is not a SentencePiece model: {str(error)[:200]}") from error
        if model.eos_id() < 0:
            raise DataError(
                f"the SentencePiece model {self.path} has no EOS piece\n  train it with one: text-to-text tasks need it"
            )
        return model

    @cached_property
    def size(self) -> int:
        return int(self._model.vocab_size())

    @cached_property
    def pad_id(self) -> int:
        return max(0, int(self._model.pad_id()))

    @cached_property
    def eos_id(self) -> int:
        return int(self._model.eos_id())

    @cached_property
    def unk_id(self) -> int:
        return int(self._model.unk_id())

    @cached_property
    def sentinel_ids(self) -> tuple[int, ...]:
        found: list[int] = []
        for number in range(self.size):
            ids = (self._model.piece_to_id(f"{prefix}<extra_id_{number}>") for prefix in ("▁", ""))
            index = next((index for index in ids if index != self.unk_id), None)
            if index is None:
                break
            found.append(index)
        return tuple(found)

    @cached_property
    def fingerprint(self) -> str:
        """Of pieces, scores, kinds and normaliser. A model with sentinels in its file equals the same model to which
        they are added here, so scores of user-defined pieces, which decide nothing, do not count."""
        state = hashlib.blake2b(digest_size=16)
        model = self._model
        for index in range(self.size):
            kinds = (model.IsControl, model.IsUnknown, model.IsByte, model.IsUnused)
            kind = [int(is_kind(index)) for is_kind in kinds]
            piece = model.id_to_piece(index)
            score = 0.0 if piece.lstrip("▁").startswith("<extra_id_") else model.get_score(index)
            state.update(f"{piece}\n{kind}\n".encode() + struct.pack("<f", score))
        state.update(repr((self.pad_id, self.eos_id, self.unk_id)).encode())
        for number, value in _model_settings(self._content):
            state.update(repr((number, value)).encode())
        return state.hexdigest()

    def encode(self, text: str) -> list[int]:
        return self._model.encode(text, out_type=int)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return self._model.encode(list(texts), out_type=int)

    def encode_with_offsets(self, texts: Sequence[str]) -> Placed:
        return sentencepiece_offsets(self._model, texts)

    def _decode(self, ids: list[int]) -> str:
        return self._model.decode(ids)


class ByteVocabulary(Vocabulary):
    """ByT5's: the bytes of UTF-8 behind pad 0, EOS 1 and UNK 2.

    Without extra ids the sentinels count down from 258, as in the released models, and reuse the ids of the 11 bytes
    that UTF-8 never uses.
    """

    pad_id, eos_id, unk_id = 0, 1, 2
    word_prefix = " "

    def __init__(self, extra_ids: int = 0) -> None:
        _check_extra_ids(extra_ids)
        self.extra_ids, self.size = extra_ids, _BYTE_OFFSET + _NUM_BYTES + extra_ids
        num_sentinels = extra_ids or _NUM_NEVER_USED_BYTES
        self.sentinel_ids = tuple(range(self.size - 1, self.size - 1 - num_sentinels, -1))
        self.fingerprint = _digest(["bytes", extra_ids])

    def encode(self, text: str) -> list[int]:
        return [byte + _BYTE_OFFSET for byte in text.encode()]

    def encode_with_offsets(self, texts: Sequence[str]) -> Placed:
        return byte_offsets(texts, _BYTE_OFFSET)

    def _decode(self, ids: list[int]) -> str:
        kept = bytes(index - _BYTE_OFFSET for index in ids if _BYTE_OFFSET <= index < _BYTE_OFFSET + _NUM_BYTES)
        return kept.decode(errors="ignore")


class TokenizerJsonVocabulary(PickledUnloaded, Vocabulary):
    """A `tokenizer.json` of Hugging Face. Control pieces spelled out in a text are text, sentinels are sentinels."""

    def __init__(
        self,
        path: str | Path,
        extra_ids: int = 0,
        *,
        pad: str = "<pad>",
        eos: str = "</s>",
        unk: str = "<unk>",
        sentinels: Sequence[str] = (),
    ) -> None:
        """
        Args:
            path: `tokenizer.json`, or a folder with one.
            extra_ids: Ids to add behind the vocabulary as sentinels; text never encodes to them.
            pad: Piece that fills rows.
            eos: Piece that ends a sequence.
            unk: Piece for what has no id; where there is none, that of `pad` serves.
            sentinels: Pieces of the vocabulary that serve as sentinels, in the order of use. Default: `<extra_id_0>`,
                `<extra_id_1>`, … as far as there are such.
        """
        _check_extra_ids(extra_ids)
        if extra_ids and sentinels:
            raise ConfigError("give extra_ids or sentinels, not both: it would not be clear which are used first")
        self.path, self.extra_ids, self.sentinels = Path(path), extra_ids, tuple(sentinels)
        self.pad, self.eos, self.unk = pad, eos, unk

    @cached_property
    def _bytes(self) -> bytes:
        path = self.path / "tokenizer.json" if self.path.is_dir() else self.path
        try:
            return path.read_bytes()
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror}\n  name a tokenizer.json") from error

    @cached_property
    def _model(self) -> Any:
        import tokenizers

        try:
            model = tokenizers.Tokenizer.from_str(self._bytes.decode())
        except Exception as error:  # the library raises bare Exception
            raise DataError(f"{self.path} is not a tokenizer.json: {str(error)[:200]}") from error
        model.no_padding()
        model.no_truncation()
        return model

    @cached_property
    def _ids(self) -> dict[str, int]:
        return self._model.get_vocab()

    def _id_of(self, piece: str, role: str) -> int:
        if piece not in self._ids:
            raise DataError(f"{self.path} has no piece {piece!r}\n  name its {role} piece by {role}=...")
        return self._ids[piece]

    @cached_property
    def _base_size(self) -> int:
        return max(self._ids.values(), default=-1) + 1

    @cached_property
    def size(self) -> int:
        return self._base_size + self.extra_ids

    @cached_property
    def pad_id(self) -> int:
        return self._id_of(self.pad, "pad")

    @cached_property
    def eos_id(self) -> int:
        return self._id_of(self.eos, "eos")

    @cached_property
    def unk_id(self) -> int:
        return self._ids.get(self.unk, self.pad_id)

    @cached_property
    def sentinel_ids(self) -> tuple[int, ...]:
        if self.extra_ids:
            return tuple(range(self.size - 1, self._base_size - 1, -1))
        if self.sentinels:
            return tuple(self._id_of(piece, "sentinels") for piece in self.sentinels)
        found: list[int] = []
        while (piece := f"<extra_id_{len(found)}>") in self._ids:
            found.append(self._ids[piece])
        return tuple(found)

    @cached_property
    def fingerprint(self) -> str:
        content = json.loads(self._bytes)
        roles = [self.pad_id, self.eos_id, self.unk_id, self.extra_ids, self.sentinel_ids]
        return _digest(["tokenizer.json", {k: v for k, v in content.items() if k not in _NOT_OF_IDS}, roles])

    def encode(self, text: str) -> list[int]:
        return self._model.encode(text, add_special_tokens=False).ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [encoding.ids for encoding in self._model.encode_batch_fast(list(texts), add_special_tokens=False)]

    def encode_with_offsets(self, texts: Sequence[str]) -> Placed:
        return huggingface_offsets(self._model, texts)

    @cached_property
    def word_prefix(self) -> str:
        return " " if "ByteLevel" in json.dumps(json.loads(self._bytes).get("pre_tokenizer")) else ""

    def _decode(self, ids: list[int]) -> str:
        known = [index for index in ids if index < self._base_size and index != self.pad_id]
        return self._model.decode(known, skip_special_tokens=False)


_NOT_OF_IDS = ("version", "truncation", "padding", "post_processor", "decoder")
"""Sections of a tokenizer.json that do not change the ids of a text."""


class PassThroughVocabulary(Vocabulary):
    """For features that are ids or numbers already. `encode` takes ids spelled out, "3 14 15"."""

    pad_id = unk_id = 0
    sentinel_ids = ()

    def __init__(self, size: int, eos_id: int = 1) -> None:
        """`size`: ids are below this."""
        self.size, self.eos_id = size, eos_id
        self.fingerprint = _digest(["pass-through", size, eos_id])

    def encode(self, text: str) -> list[int]:
        try:
            ids = [int(word) for word in text.split()]
        except ValueError as error:
            raise DataError(f"{text[:80]!r} is not a row of ids, which this vocabulary needs: {error}") from error
        if wrong := [index for index in ids if not 0 <= index < self.size]:
            raise DataError(f"id {wrong[0]} is outside a vocabulary of {self.size} ids")
        return ids

    def _decode(self, ids: list[int]) -> str:
        return " ".join(map(str, ids))


@dataclass(frozen=True)
class Feature:
    """A named sequence that a task yields."""

    vocabulary: Vocabulary
    add_eos: bool = True
    """The steps that append EOS do so."""
    required: bool = True
    """Every example has it."""
    dtype: str = "int32"
    """NumPy's name."""
    rank: int = 1
    """Dimensions; 1 is a sequence."""

    @cached_property
    def numpy_dtype(self) -> np.dtype:
        return np.dtype(self.dtype)


def check_equal(task_name: str, of_task: Vocabulary, of_model: Vocabulary) -> None:
    """Raises ConfigError with both descriptions where a task's vocabulary is not that of the model."""
    if of_task != of_model:
        raise ConfigError(
            f"task {task_name!r} and the model have different vocabularies\n"
            f"  task:  {of_task.describe()}\n"
            f"  model: {of_model.describe()}\n"
            "  give both the same tokenizer and the same number of extra ids"
        )


def _check_extra_ids(extra_ids: int) -> None:
    if extra_ids < 0:
        raise ConfigError(f"extra_ids is {extra_ids}; it is a number of sentinels, at least 0")


def _digest(content: Any) -> str:
    text = json.dumps(content, sort_keys=True, ensure_ascii=False)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _model_settings(content: bytes) -> Iterator[tuple[str, Any]]:
    """What a ModelProto says besides its pieces and decides ids: the algorithm, and the normaliser but for its name.
    Numbers of fields, and values as they are stored: texts as bytes, truth values as integers."""
    from sentencepiece.sentencepiece_model_pb2 import ModelProto  # type: ignore[attr-defined]

    proto = ModelProto.FromString(content)
    of_trainer = ("model_type", "treat_whitespace_as_suffix", "byte_fallback")
    fields = [("trainer", *given) for given in proto.trainer_spec.ListFields() if given[0].name in of_trainer]
    fields += [("normalizer", *given) for given in proto.normalizer_spec.ListFields() if given[0].name != "name"]
    for spec, field, value in fields:
        stored = value.encode() if isinstance(value, str) else value
        yield f"{spec} {field.number}", stored if isinstance(stored, bytes) else int(stored)

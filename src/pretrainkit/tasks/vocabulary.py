"""Vocabularies of tasks: conversion between text and ids, with sentinels; compared by content.

Creating one reads no file; the model is loaded at its first use, and again in every process that gets the vocabulary.

Source of the ids: T5's vocabularies, https://arxiv.org/abs/1910.10683, and ByT5's, https://arxiv.org/abs/2105.13626.
"""

# Properties of a vocabulary are attributes; for vocabularies from files they are cached properties.
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
from pretrainkit.tokenizers.folder import read_tokenizer_json
from pretrainkit.tokenizers.load import open_sentencepiece
from pretrainkit.tokenizers.offsets import Placed, byte_offsets, huggingface_offsets, sentencepiece_offsets

_SENTENCEPIECE_NAMES = ("sentencepiece.model", "spiece.model", "tokenizer.model")
_BYTE_OFFSET = 3
_NUM_BYTES = 256
_NUM_NEVER_USED_BYTES = 11
"""0xF5 to 0xFF do not occur in UTF-8, so that their ids can serve as sentinels."""


class Vocabulary(ABC):
    """Conversion between text and ids. Vocabularies with the same content are equal, even from different files."""

    size: int
    """Number of ids, including sentinels. A model may have more rows."""
    pad_id: int
    """Id that fills rows; 0 in all vocabularies of T5."""
    eos_id: int
    """Id that ends a sequence; 1 in all vocabularies of T5."""
    unk_id: int
    """Id of unknown text; 2 in all vocabularies of T5."""
    sentinel_ids: tuple[int, ...]
    """Ids that replace hidden spans, in the order of use: usually from the last id downwards."""
    fingerprint: str
    """32 hexadecimal digits: a hash of everything that determines ids."""
    word_prefix: str = ""
    """Prefix of a word that follows another word, so that it is encoded as a word."""

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, without EOS."""

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text, without EOS."""
        return [self.encode(text) for text in texts]

    def encode_with_offsets(self, texts: Sequence[str]) -> Placed:
        """Return the ids of all texts, without EOS, and their positions in the texts."""
        raise InputError(
            f"{type(self).__name__} does not support positions of tokens in a text\n  use a SentencePiece model, "
            "a tokenizer.json or bytes"
        )

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of `ids` up to the first EOS; ids outside the vocabulary are read as UNK."""
        before_end = takewhile(self.eos_id.__ne__, map(int, ids))
        return self._decode([index if 0 <= index < self.size else self.unk_id for index in before_end])

    @abstractmethod
    def _decode(self, ids: list[int]) -> str:
        """Return the text of `ids` that are all below `size`."""

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
    """An object whose pickle omits cached properties, such as a model from a file."""

    def __getstate__(self) -> dict[str, Any]:
        kinds = type(self).__mro__
        lazy = {name for kind in kinds for name, value in vars(kind).items() if isinstance(value, cached_property)}
        return {name: value for name, value in vars(self).items() if name not in lazy}


class SentencePieceVocabulary(PickledUnloaded, Vocabulary):
    """A SentencePiece model, with `extra_ids` sentinels after its pieces.

    Added sentinels are named `▁<extra_id_N>`, in reverse: the last id of the vocabulary is `<extra_id_0>`. In text they
    are recognized only at the start of a word. A model's own sentinels have these names, with or without `▁`, and any
    ids."""

    def __init__(self, path: str | Path, extra_ids: int = 0) -> None:
        """`path`: a SentencePiece model or a folder with one, such as from `pretrainkit tokenizer train`. `extra_ids`:
        sentinels to add; a model that already has `<extra_id_0>` needs none."""
        _check_extra_ids(extra_ids)
        self.path, self.extra_ids = Path(path), extra_ids

    @cached_property
    def _content(self) -> bytes:
        """The model including the sentinels. Repeated fields of a protocol buffer can be appended."""
        path = self.path
        if path.is_dir():
            path = next((path / name for name in _SENTENCEPIECE_NAMES if (path / name).is_file()), path)
        try:
            content = path.read_bytes()
        except OSError as error:
            raise DataError(
                f"{self.path} has no SentencePiece model: {error.strerror}\n"
                f"  pass the file, or a folder with one of {', '.join(_SENTENCEPIECE_NAMES)}"
            ) from error
        from sentencepiece.sentencepiece_model_pb2 import ModelProto  # type: ignore[attr-defined]

        added = ModelProto()
        for index in reversed(range(self.extra_ids)):
            added.pieces.add(piece=f"▁<extra_id_{index}>", score=0.0, type=ModelProto.SentencePiece.USER_DEFINED)
        return content + added.SerializeToString()

    @cached_property
    def _model(self) -> Any:
        model, _ = open_sentencepiece(self._content, self.path, "use a .model file that SentencePiece has written")
        if model.eos_id() < 0:
            raise DataError(
                f"the SentencePiece model {self.path} has no EOS piece\n  train it with EOS: text-to-text tasks need it"
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
        sentinels: list[int] = []
        for number in range(self.size):
            ids = (self._model.piece_to_id(f"{prefix}<extra_id_{number}>") for prefix in ("▁", ""))
            index = next((index for index in ids if index != self.unk_id), None)
            if index is None:
                break
            sentinels.append(index)
        return tuple(sentinels)

    @cached_property
    def fingerprint(self) -> str:
        """Hash of pieces, scores, kinds and normalizer. Scores of user-defined pieces have no effect and are left out,
        so that a model file with sentinels equals the same model with added sentinels."""
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
    """ByT5's vocabulary: the bytes of UTF-8 after pad 0, EOS 1 and UNK 2.

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
    """A Hugging Face `tokenizer.json`. Names of control pieces in a text are text, names of sentinels are sentinels."""

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
        """Define the vocabulary.

        Args:
            path: `tokenizer.json`, or a folder with one.
            extra_ids: Ids to add after the vocabulary as sentinels; text is never encoded to them.
            pad: Piece that fills rows.
            eos: Piece that ends a sequence.
            unk: Piece of unknown text; if it does not exist, `pad` is used.
            sentinels: Pieces of the vocabulary that serve as sentinels, in the order of use. Default: `<extra_id_0>`,
                `<extra_id_1>`, … as far as they exist.
        """
        _check_extra_ids(extra_ids)
        if extra_ids and sentinels:
            raise ConfigError("extra_ids and sentinels are both set, but only one is allowed; leave one of them out")
        self.path, self.extra_ids, self.sentinels = Path(path), extra_ids, tuple(sentinels)
        self.pad, self.eos, self.unk = pad, eos, unk

    @cached_property
    def _bytes(self) -> bytes:
        path = self.path / "tokenizer.json" if self.path.is_dir() else self.path
        try:
            return read_tokenizer_json(path)
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror}\n  pass a tokenizer.json") from error

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
            raise DataError(f"{self.path} has no piece {piece!r}\n  set its {role} piece with {role}=...")
        return self._ids[piece]

    def is_complete(self) -> bool:
        """True if the pieces `pad` and `eos` exist."""
        return {self.pad, self.eos} <= self._ids.keys()

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
        ids: list[int] = []
        while (piece := f"<extra_id_{len(ids)}>") in self._ids:
            ids.append(self._ids[piece])
        return tuple(ids)

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

    @cached_property
    def _adds_space(self) -> bool:
        """True if byte-level pieces put a space before a text, which is then not part of it."""
        return bool(self.word_prefix) and self.encode("a") == self.encode(" a")

    def _decode(self, ids: list[int]) -> str:
        known = [index for index in ids if index < self._base_size and index != self.pad_id]
        text: str = self._model.decode(known, skip_special_tokens=False)
        return text.removeprefix(" ") if self._adds_space else text


_NOT_OF_IDS = ("version", "truncation", "padding", "post_processor", "decoder")
"""Sections of a tokenizer.json that do not change the ids of a text."""


class PassThroughVocabulary(Vocabulary):
    """Vocabulary of features that are already ids or numbers. `encode` takes written ids, such as "3 14 15"."""

    pad_id = unk_id = 0
    sentinel_ids = ()

    def __init__(self, size: int, eos_id: int = 1) -> None:
        """`size`: upper bound of the ids."""
        self.size, self.eos_id = size, eos_id
        self.fingerprint = _digest(["pass-through", size, eos_id])

    def encode(self, text: str) -> list[int]:
        try:
            ids = [int(word) for word in text.split()]
        except ValueError as error:
            raise DataError(
                f"{text[:80]!r} is not a row of ids, such as '3 14 15': {error}\n"
                "  write ids there, or use another vocabulary"
            ) from error
        if wrong := [index for index in ids if not 0 <= index < self.size]:
            raise DataError(
                f"id {wrong[0]} is outside a vocabulary of {self.size} ids\n  correct it, or increase the size"
            )
        return ids

    def _decode(self, ids: list[int]) -> str:
        return " ".join(map(str, ids))


@dataclass(frozen=True)
class Feature:
    """A named sequence that a task yields."""

    vocabulary: Vocabulary
    add_eos: bool = True
    """True if steps that append EOS apply to it."""
    required: bool = True
    """True if every example must have it."""
    dtype: str = "int32"
    """NumPy's name of the dtype."""
    rank: int = 1
    """Number of dimensions; 1 is a sequence."""

    @cached_property
    def numpy_dtype(self) -> np.dtype:
        return np.dtype(self.dtype)


def check_equal(task_name: str, of_task: Vocabulary, of_model: Vocabulary) -> None:
    """Raise ConfigError with both descriptions if the vocabularies of a task and the model differ."""
    if of_task != of_model:
        raise ConfigError(
            f"task {task_name!r} and the model have different vocabularies\n"
            f"  task:  {of_task.describe()}\n"
            f"  model: {of_model.describe()}\n"
            "  use the same tokenizer and the same number of extra ids for both"
        )


def _check_extra_ids(extra_ids: int) -> None:
    if extra_ids < 0:
        raise ConfigError(f"extra_ids is {extra_ids}; it must be a number of sentinels, at least 0")


def _digest(content: Any) -> str:
    text = json.dumps(content, sort_keys=True, ensure_ascii=False)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _model_settings(content: bytes) -> Iterator[tuple[str, Any]]:
    """Yield the settings of a ModelProto that determine ids, without pieces: the algorithm, and the normalizer without
    its name. Fields are numbers, and values are as stored: texts as bytes, truth values as integers."""
    from sentencepiece.sentencepiece_model_pb2 import ModelProto  # type: ignore[attr-defined]

    proto = ModelProto.FromString(content)
    used = ("model_type", "treat_whitespace_as_suffix", "byte_fallback")
    fields = [("trainer", *item) for item in proto.trainer_spec.ListFields() if item[0].name in used]
    fields += [("normalizer", *item) for item in proto.normalizer_spec.ListFields() if item[0].name != "name"]
    for spec, field, value in fields:
        stored = value.encode() if isinstance(value, str) else value
        yield f"{spec} {field.number}", stored if isinstance(stored, bytes) else int(stored)

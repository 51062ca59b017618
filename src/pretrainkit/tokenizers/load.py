"""Load any tokenizer folder: one of pretrainkit, or one of Hugging Face with only `tokenizer.json`.

By default, control pieces such as `<mask>` that are spelled out in a text do not become control ids.

Dimensions: V pieces of the vocabulary.
"""

import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from itertools import chain, groupby
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pretrainkit.errors import DataError
from pretrainkit.files.manifest import read_object
from pretrainkit.tokenizers import folder as files
from pretrainkit.tokenizers.offsets import Placed, huggingface_offsets, sentencepiece_offsets
from pretrainkit.tokenizers.special import SpecialIds

Ids = NDArray[np.int32]
ControlPieces = Literal["text", "ids"]
"""Reading of control pieces that are spelled out in a text: as ordinary text, or as their ids as in AutoTokenizer."""
_BYTE = re.compile("<0x[0-9A-F]{2}>")
_PRINTED_BYTES = (*range(33, 127), *range(161, 173), *range(174, 256))
_OTHER_BYTES = sorted({*range(256)}.difference(_PRINTED_BYTES))
_BYTES_OF = {chr(byte): bytes([byte]) for byte in _PRINTED_BYTES}
_BYTES_OF |= {chr(256 + number): bytes([byte]) for number, byte in enumerate(_OTHER_BYTES)}
"""Maps the characters that stand for bytes in pieces of byte-level BPE to the bytes, as GPT-2 does."""
_ROLES: dict[str, tuple[str, ...]] = {
    "unk": ("[UNK]", "<unk>"),
    "cls": ("[CLS]", "<s>", "<cls>"),
    "sep": ("[SEP]", "</s>", "<sep>"),
    "mask": ("[MASK]", "<mask>"),
    "pad": ("[PAD]", "<pad>"),
}


class Tokenizer(ABC):
    """Conversion of text to ids and back."""

    kind: str
    """unigram, wordpiece, bpe or wordlevel."""
    vocab_size: int
    """All ids are smaller than this."""
    special: SpecialIds
    fingerprint: str
    """Hash that changes whenever the ids could change."""
    folder: Path
    is_special: NDArray[np.bool_]
    """(V,) True for control pieces."""
    is_byte: NDArray[np.bool_]
    """(V,) True for pieces that represent one byte of a character outside the vocabulary."""
    _begins_word: NDArray[np.bool_]
    """(V,) True where the text form of a piece marks the beginning of a word."""
    _pieces: list[str]
    _is_byte_level = False

    @abstractmethod
    def _encode(self, texts: list[str], num_threads: int) -> list[list[int]]:
        """Return the ids of each text."""

    def encode_flat(self, texts: Sequence[str], num_threads: int = 1) -> tuple[Ids, NDArray[np.int64]]:
        """Return the int32 ids of all texts, concatenated, and the (texts,) int64 number of ids of each text.

        No id is a control id, except `unk` if there are no byte pieces. Texts must not have lone surrogates. Python's
        lock is released.
        """
        # SentencePiece can return an array per text itself, but that takes a quarter more time than lists.
        ids = self._encode(list(texts), num_threads)
        lengths = np.fromiter(map(len, ids), np.int64, len(ids))
        return np.fromiter(chain.from_iterable(ids), np.int32, int(lengths.sum())), lengths

    def encode_batch(self, texts: Sequence[str], num_threads: int = 1) -> list[Ids]:
        """Return the int32 ids of each text; see `encode_flat`."""
        flat, lengths = self.encode_flat(texts, num_threads)
        ends = np.cumsum(lengths)
        return [flat[begin:end] for begin, end in zip((ends - lengths).tolist(), ends.tolist())]

    @abstractmethod
    def encode_with_offsets(self, texts: Sequence[str]) -> Placed:
        """Encode like `encode_flat`. Also return (tokens, 2) int64: where each token begins and ends in its text, in
        characters."""

    @property
    def word_prefix(self) -> str:
        """The text to put before a word that follows another one, so that the tokenizer begins a new word."""
        return ""

    @abstractmethod
    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids; control ids are left out."""

    def readable(self, ids: Sequence[int]) -> str:
        """Return the text of ids like `decode`, with the bytes of incomplete characters as numbers, such as \\xe2."""
        text = self.decode(ids)
        if "\ufffd" not in text:
            return text
        parts: list[str] = []
        kept = (index for index in ids if not self.is_special[index])
        for is_bytes, group in groupby(kept, key=lambda index: self._is_byte_level or bool(self.is_byte[index])):
            run = list(group)
            if is_bytes:
                parts.append(b"".join(map(self._bytes, run)).decode("utf-8", errors="backslashreplace"))
            else:  # decoding drops the space before the first word
                parts.append(" " * bool(parts and self._begins_word[run[0]]) + self.decode(run))
        return "".join(parts)

    def _bytes(self, index: int) -> bytes:
        """Return the bytes of a piece of byte-level BPE, or the byte of a byte piece."""
        piece = self._pieces[index]
        if self._is_byte_level:
            return b"".join(_BYTES_OF.get(character, character.encode()) for character in piece)
        return bytes([int(piece[1:-1], 16)])

    def pieces(self) -> list[str]:
        """Return the text form of every id, V in all."""
        return self._pieces

    def encode(self, text: str) -> Ids:
        """Return the int32 ids of one text; see `encode_flat`."""
        return self.encode_batch([text])[0]

    def is_word_start(self) -> NDArray[np.bool_]:
        """(V,) True where a piece begins a word or is a control piece; other pieces continue a word."""
        return self._begins_word | self.is_special

    def marks_words(self) -> bool:
        """True if some pieces show that they begin a word. Letters, and BPE after a split at spaces, have no mark."""
        return bool(self._begins_word[~self.is_special].any())

    def learned_ids(self) -> Ids:
        """Return the ids that may replace a token at random: neither control nor byte pieces."""
        return np.flatnonzero(~(self.is_special | self.is_byte)).astype(np.int32)


def open_sentencepiece(content: bytes, name: str | Path, fix: str) -> tuple[Any, list[str]]:
    """Return the `SentencePieceProcessor` of a model, and its pieces. Raises DataError with `name` and the advice `fix`
    if the content is not a model."""
    import sentencepiece

    try:
        model = sentencepiece.SentencePieceProcessor()
        model.LoadFromSerializedProto(content)
        return model, model.id_to_piece(list(range(model.vocab_size())))
    except (RuntimeError, UnicodeDecodeError) as error:  # a piece, or the library's message, may not be UTF-8
        raise DataError(f"{name} is not a SentencePiece model: {str(error)[:200]}\n  {fix}") from error


class SentencePieceTokenizer(Tokenizer):
    """A SentencePiece model, run by SentencePiece's C++ library."""

    def __init__(self, folder: Path, special: SpecialIds | None) -> None:
        path = folder / files.MODEL
        name = f"the tokenizer in {folder} is broken: {path.name}"
        self._model, self._pieces = open_sentencepiece(path.read_bytes(), name, files.RESTORE)
        self.folder, self.kind = folder, "unigram"
        self.fingerprint = files.model_fingerprint(folder)
        self.vocab_size = len(self._pieces)
        ids = list(range(self.vocab_size))
        self.is_special = np.array(self._model.IsControl(ids)) | np.array(self._model.IsUnknown(ids))
        self.is_byte = np.array(self._model.IsByte(ids))
        self._begins_word = np.array([piece.startswith("▁") for piece in self._pieces])
        self.special = special or _special_ids(dict(zip(self._pieces, ids)), folder)

    def _encode(self, texts: list[str], num_threads: int) -> list[list[int]]:
        return self._model.encode(texts, out_type=int, num_threads=num_threads)

    def encode_with_offsets(self, texts: Sequence[str]) -> Placed:
        return sentencepiece_offsets(self._model, texts)

    def decode(self, ids: Iterable[int]) -> str:
        ids = [int(index) for index in ids]
        if unknown := [index for index in ids if not 0 <= index < self.vocab_size]:
            raise DataError(
                f"id {unknown[0]} is not among the {self.vocab_size} ids of {self.folder}: the tokens are damaged, or "
                "of another tokenizer\n  find damaged shards of a config: pretrainkit data check CONFIG --deep"
            )
        return self._model.decode([index for index in ids if not self.is_special[index]])


class HuggingFaceTokenizer(Tokenizer):
    """A `tokenizer.json`, run by the `tokenizers` library."""

    def __init__(self, folder: Path, special: SpecialIds | None, control_pieces: ControlPieces = "text") -> None:
        import tokenizers

        path = folder / files.TOKENIZER_JSON
        try:
            content_read = files.read_tokenizer_json(path)
            self._model = tokenizers.Tokenizer.from_buffer(content_read)
            # An unassigned character: this fails if there is no piece for unknown text.
            self._model.encode("\u0378", add_special_tokens=False)
            content = json.loads(content_read)
        except BaseException as error:  # the library raises bare Exception, and a panic is not even an Exception
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            raise _broken(folder, f"{path.name} cannot be read: {str(error)[:200]}") from error
        self._model.encode_special_tokens = control_pieces == "text"
        self._model.no_padding()
        self._model.no_truncation()
        self.folder, self.kind = folder, str(content["model"].get("type", "")).lower()
        self.fingerprint = files.model_fingerprint(folder)
        vocabulary = self._model.get_vocab()
        self._pieces = files.pieces_by_id(vocabulary, folder)
        self.vocab_size = len(self._pieces)
        self._is_byte_level = "ByteLevel" in json.dumps(content.get("pre_tokenizer"))
        self.special = special or _special_ids(vocabulary, folder)
        named = {token["content"] for token in content.get("added_tokens", []) if token.get("special")}
        roles = set(self.special.as_dict().values())
        self.is_special = np.array([piece in named or index in roles for index, piece in enumerate(self._pieces)])
        has_bytes = content["model"].get("byte_fallback")
        self.is_byte = np.array([bool(has_bytes and _BYTE.fullmatch(piece)) for piece in self._pieces])
        if self.kind == "wordlevel":  # pieces are words, or letters, which decoding joins without spaces
            piece = np.flatnonzero(~self.is_special)[:1].tolist()
            self._begins_word = np.full(self.vocab_size, self.decode(piece * 2) != self.decode(piece) * 2)
        elif self.kind == "wordpiece":
            self._begins_word = np.array([not piece.startswith("##") for piece in self._pieces])
        else:
            mark = "Ġ" if self._is_byte_level else "▁"
            self._begins_word = np.array([piece.startswith(mark) for piece in self._pieces])

    def _encode(self, texts: list[str], num_threads: int) -> list[list[int]]:
        # The library has one thread pool per process. The environment sets its size when it is first used.
        os.environ["TOKENIZERS_PARALLELISM"] = "true" if num_threads > 1 else "false"
        if num_threads > 1:
            os.environ.setdefault("RAYON_NUM_THREADS", str(num_threads))
        return [encoding.ids for encoding in self._model.encode_batch_fast(texts, add_special_tokens=False)]

    def encode_with_offsets(self, texts: Sequence[str]) -> Placed:
        return huggingface_offsets(self._model, texts)

    @property
    def word_prefix(self) -> str:
        return " " if self._is_byte_level else ""

    def decode(self, ids: Iterable[int]) -> str:
        return self._model.decode([int(index) for index in ids], skip_special_tokens=True)


def load_tokenizer(folder: str | os.PathLike[str], control_pieces: ControlPieces = "text") -> Tokenizer:
    """Load the tokenizer in `folder`: one of pretrainkit, or any with `tokenizer.json` and BERT's control pieces.

    `control_pieces` determines how control pieces that are spelled out in a text are read. Raises DataError if there is
    no tokenizer, its files are broken or do not match, or a control piece is missing.
    """
    path = Path(folder)
    manifest_path = path / "manifest.json"
    special = None
    fingerprint = files.model_fingerprint(path)
    if manifest_path.is_file():
        try:
            manifest: dict[str, Any] = json.loads(manifest_path.read_bytes())
            special = SpecialIds.from_dict(manifest["special"], str(manifest_path))
            expected, size = manifest["fingerprint"], manifest["vocab_size"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise _broken(path, f"manifest.json is not the manifest of a tokenizer: {error!r}") from error
        if expected != fingerprint:
            raise _broken(path, f"the model has fingerprint {fingerprint}, but manifest.json has {expected}")
    is_sentencepiece = (path / files.MODEL).is_file()
    tokenizer: Tokenizer
    if is_sentencepiece and control_pieces == "text":
        tokenizer = SentencePieceTokenizer(path, special)
    elif is_sentencepiece and not (path / files.TOKENIZER_JSON).is_file():
        raise DataError(
            f"the tokenizer in {path} has no {files.TOKENIZER_JSON}, and SentencePiece reads control pieces as text\n"
            "  leave out --control-pieces ids, or give a folder of: pretrainkit tokenizer train"
        )
    else:
        tokenizer = HuggingFaceTokenizer(path, special, control_pieces)
    if special is not None:
        ids = special.as_dict().values()
        if tokenizer.vocab_size != size or not all(0 <= index < size for index in ids):
            raise _broken(path, f"the model has {tokenizer.vocab_size} pieces, but manifest.json has {size}")
    return tokenizer


def _special_ids(ids: dict[str, int], folder: Path) -> SpecialIds:
    """Look up the special ids by the names in the JSON files for `transformers`, else by the usual names."""
    roles = dict(_ROLES)
    for name in ("special_tokens_map.json", files.CONFIG_JSON):
        if (folder / name).is_file():
            content = read_object(folder / name, files.RESTORE)
            for role in _ROLES:
                token = content.get(f"{role}_token")
                if text := token.get("content") if isinstance(token, dict) else token:
                    roles[role] = (str(text),)
    special_ids = {}
    for role, names in roles.items():
        index = next((ids[name] for name in names if name in ids), None)
        if index is None:
            raise DataError(
                f"the tokenizer in {folder} has no {role} piece ({', '.join(names)})\n"
                "  masked language models need unk, cls, sep, mask and pad; train one with: pretrainkit tokenizer train"
            )
        special_ids[role] = index
    return SpecialIds(**special_ids)


def _broken(folder: Path, problem: str) -> DataError:
    return DataError(f"the tokenizer in {folder} is broken: {problem}\n  {files.RESTORE}")

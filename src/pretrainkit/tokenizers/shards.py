"""Token shards: encoded documents on disk, memory-mapped, with random access by document, sentence and token.

One folder contains four files of little-endian numbers without a header for every shard, a manifest, and a copy of the
tokenizer:

    tokens-00000-of-00004.bin     uint16 where the vocabulary has at most 65536 pieces, else uint32
    sentences-00000-of-00004.bin  int64, cumulative tokens: where each sentence ends within the shard
    documents-00000-of-00004.bin  int64, cumulative sentences: where each document ends within the shard
    hashes-00000-of-00004.bin     uint64, `text_hash` of each document, to prove that held-out data does not overlap
    manifest.json  tokenizer/

A *global* token offset counts over the token files of all shards in order. Documents and sentences are numbered alike.

Dimensions: B rows, W width of a row.
"""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrainkit.errors import DataError
from pretrainkit.files.manifest import expected_form, file_sha256
from pretrainkit.tokenizers.special import SpecialIds

PARTS = {"tokens": "", "sentences": "<i8", "documents": "<i8", "hashes": "<u8"}
"""Kinds of files of a shard and their dtypes. The dtype of the tokens depends on the vocabulary."""
TOKENIZER_FOLDER = "tokenizer"
FORMAT = "pretrainkit token shards 1"
_TEXT = (".txt", ".jsonl", ".json", ".parquet", ".csv", ".tsv", ".zst", ".gz", ".xz", ".bz2", ".md")
_REBUILD = "make the shards again: pretrainkit tokenizer encode CORPUS --tokenizer DIR --out FOLDER"
_MAX_WINDOW = 2048
"""Width of a row in tokens up to which copying whole windows is faster than copying each span in Python."""


def token_dtype(vocab_size: int) -> np.dtype:
    """Return uint16 if every id fits, else uint32; little endian."""
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


def part_sizes(entry: Mapping[str, Any], dtype: np.dtype) -> dict[str, int]:
    """Return the sizes in bytes of a shard's files, computed from its entry in the manifest."""
    counts = {part: entry[f"num_{'documents' if part == 'hashes' else part}"] for part in PARTS}
    return {part: count * np.dtype(PARTS[part] or dtype).itemsize for part, count in counts.items()}


def part_name(part: str, shard: int, num_shards: int) -> str:
    """Return the name of a file, such as `tokens-00000-of-00004.bin`."""
    return f"{part}-{shard:05d}-of-{num_shards:05d}.bin"


class TokenShards:
    """A folder of token shards, created by `open`. Pickles are small: the receiving process maps the files again."""

    def __init__(self, folder: Path, manifest: dict[str, Any]) -> None:
        """Store unchecked values; use `open`, which checks both."""
        self.folder = folder
        self.manifest = manifest
        self.fingerprint: str = manifest["fingerprint"]
        """Hash that changes whenever tokens or boundaries change."""
        self.vocab_size: int = manifest["tokenizer"]["vocab_size"]
        self.special = SpecialIds.from_dict(manifest["tokenizer"]["special"], str(folder / "manifest.json"))
        self.dtype = np.dtype(manifest["dtype"])
        self.num_shards = len(manifest["shards"])
        # (num_shards + 1,) int64 global number of each shard's first token, sentence and document, and the total.
        self.token_begins, self.sentence_begins, self.document_begins = (
            np.cumsum([0, *(shard[f"num_{part}"] for shard in manifest["shards"])], dtype=np.int64)
            for part in ("tokens", "sentences", "documents")
        )
        self.num_tokens, self.num_sentences, self.num_documents = (
            int(begins[-1]) for begins in (self.token_begins, self.sentence_begins, self.document_begins)
        )

    @classmethod
    def open(cls, folder: str | os.PathLike[str], *, verify: bool = False) -> "TokenShards":
        """Open the shards in `folder`, an output of `pretrainkit tokenizer encode` with a `manifest.json`.

        `verify`: also read every file and compare its sha256 (about 0.7 s per GB and core). Raises DataError if the
        manifest or files are missing, or files do not match the manifest.
        """
        if "://" in str(folder):
            raise DataError(
                f"{folder} is an address, and token shards are read from a folder of this machine\n"
                f"  encode the texts there: pretrainkit tokenizer encode {quote(str(folder))} "
                "--tokenizer DIR --out FOLDER"
            )
        path = Path(folder)
        with expected_form(path / "manifest.json", _REBUILD):
            shards = cls(path, _manifest(path))
            problems = [problem for shard in range(shards.num_shards) for problem in shards._problems(shard, verify)]
        if problems:
            raise DataError(f"{path} does not match its manifest\n  " + "\n  ".join([*problems, _REBUILD]))
        return shards

    @property
    def tokenizer_folder(self) -> Path:
        """Folder of the tokenizer that made the tokens."""
        return self.folder / TOKENIZER_FOLDER

    def tokens(self, shard: int) -> NDArray[np.unsignedinteger]:
        """Return the (tokens,) uint16 or uint32 ids of a shard, mapped read-only."""
        return self._maps["tokens"][shard]

    def sentence_ends(self, shard: int) -> NDArray[np.int64]:
        """Return the (sentences,) cumulative token counts within the shard."""
        return self._maps["sentences"][shard]

    def document_ends(self, shard: int) -> NDArray[np.int64]:
        """Return the (documents,) cumulative sentence counts within the shard."""
        return self._maps["documents"][shard]

    def boundaries(self, shard: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return `sentence_ends` and `document_ends` of a shard after reading both. Raises DataError if they are
        damaged: each value must be at least the one before, and the last one in range."""
        ends = {"sentences": self.sentence_ends(shard), "documents": self.document_ends(shard)}
        limits = {"sentences": len(self.tokens(shard)), "documents": len(ends["sentences"])}
        for part, values in ends.items():
            if len(values) and (values[0] < 0 or values[-1] > limits[part] or (values[1:] < values[:-1]).any()):
                raise self._damaged(part, shard)
        return ends["sentences"], ends["documents"]

    def _damaged(self, part: str, shard: int) -> DataError:
        return DataError(f"{self._path(part, shard)} is damaged: its numbers do not increase\n  {_REBUILD}")

    def document_hashes(self, shard: int) -> NDArray[np.uint64]:
        """Return the (documents,) uint64 hashes of the texts of a shard's documents."""
        return self._maps["hashes"][shard]

    def document(self, index: int) -> list[NDArray[np.unsignedinteger]]:
        """Return the sentences of the document with global number `index`. Raises IndexError if there is none."""
        shard, own = _locate(index, self.document_begins, "document")
        ends = self.document_ends(shard)
        first, after = int(ends[own - 1]) if own else 0, int(ends[own])
        if not 0 <= first <= after <= len(self.sentence_ends(shard)):
            raise self._damaged("documents", shard)
        return [self._sentence(shard, sentence) for sentence in range(first, after)]

    def sentence(self, index: int) -> NDArray[np.unsignedinteger]:
        """Return the ids of the sentence with global number `index`. Raises IndexError if there is none."""
        return self._sentence(*_locate(index, self.sentence_begins, "sentence"))

    def gather(
        self, starts: NDArray[np.int64], lengths: NDArray[np.integer], width: int, pad: int
    ) -> NDArray[np.unsignedinteger]:
        """Return rows of tokens from any offsets: (B, width) in the dtype of the files, uint16 or uint32.

        Args:
            starts: (B,) global offsets of the first tokens.
            lengths: (B,) tokens to take, at most `width`.
            pad: Id that fills a row after its tokens.

        Raises:
            ValueError: A row is longer than `width` or reaches outside the tokens.
        """
        starts, lengths = self._checked(starts, lengths)
        if lengths.max(initial=0) > width:
            raise ValueError(f"a row of {lengths.max()} tokens does not fit into width {width}")
        rows = self._windows(starts, lengths, width)
        if lengths.min(initial=width) < width:
            narrow: Any = np.int16 if width < 1 << 15 else np.int64  # a quarter of the bytes to compare
            is_padding = np.arange(width, dtype=narrow) >= lengths.astype(narrow)[:, None]
            np.copyto(rows, np.asarray(pad).astype(self.dtype), where=is_padding)
        if rows.max(initial=0) >= self.vocab_size:
            self._require_pieces(starts, lengths)
        return rows

    def gather_flat(self, starts: NDArray[np.int64], lengths: NDArray[np.integer]) -> NDArray[np.unsignedinteger]:
        """Return spans of tokens from any offsets, concatenated: (sum of lengths,) in the dtype of the files, uint16 or
        uint32. `starts` are (B,) global offsets of the first tokens, `lengths` (B,) numbers of tokens. Raises
        ValueError if a span reaches outside the tokens."""
        starts, lengths = self._checked(starts, lengths)
        width = int(lengths.max(initial=0))
        if width <= _MAX_WINDOW:
            # Copying whole windows and masking takes half the time of an index per token, even with much waste.
            is_wanted = np.arange(width, dtype=np.int16) < lengths.astype(np.int16)[:, None]
            tokens = self._windows(starts, lengths, width)[is_wanted]
        else:
            spans = zip(starts.tolist(), lengths.tolist(), strict=True)
            tokens = np.concatenate([self._span(start, length) for start, length in spans])
        if tokens.max(initial=0) >= self.vocab_size:
            self._require_pieces(starts, lengths)
        return tokens

    def _require_pieces(self, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> None:
        """Raise DataError if a token of these spans is not in the vocabulary."""
        for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
            wrong = np.flatnonzero(self._span(start, length) >= self.vocab_size)
            if len(wrong):
                shard, own = _locate(start + int(wrong[0]), self.token_begins, "token")
                raise DataError(
                    f"{self._path('tokens', shard)} is damaged: token {own} is {self.tokens(shard)[own]}, but the "
                    f"vocabulary has {self.vocab_size} pieces\n  {_REBUILD}"
                )

    def _windows(self, starts: NDArray[np.int64], lengths: NDArray[np.int64], width: int) -> NDArray:
        """Return (B, width): the tokens from each start. Values beyond a row's length are undefined."""
        rows = np.empty((len(starts), width), self.dtype)
        if rows.size == 0:
            return rows
        shard_of_row = np.searchsorted(self.token_begins[1:-1], starts, side="right")
        # Sort the rows by shard; the rows between two edges are of one shard.
        order = np.argsort(shard_of_row, kind="stable")
        sorted_shards = shard_of_row[order]
        edges = [0, *(np.flatnonzero(np.diff(sorted_shards)) + 1).tolist(), len(order)]
        own = starts - self.token_begins[shard_of_row]
        # Windows that would reach beyond the end of their shard are copied one by one below.
        last = (np.diff(self.token_begins) - width)[shard_of_row]
        late = np.flatnonzero(own > last)
        np.minimum(own, last, out=own)
        for shard, begin, end in zip(sorted_shards[edges[:-1]].tolist(), edges[:-1], edges[1:], strict=True):
            tokens, of_shard = self._maps["tokens"][shard], order[begin:end]
            if len(tokens) >= width:
                # With a view of overlapping windows, NumPy copies whole rows instead of using an index per token.
                shape, strides = (len(tokens) - width + 1, width), tokens.strides * 2
                rows[of_shard] = np.ndarray(shape, self.dtype, tokens, strides=strides)[own[of_shard]]
        for row in late.tolist():
            rows[row, : lengths[row]] = self._span(int(starts[row]), int(lengths[row]))
        return rows

    def _span(self, start: int, length: int) -> NDArray:
        """Return the tokens from `start` to `start + length`, which may be in several shards."""
        pieces = [np.empty(0, self.dtype)]
        while length:
            shard = int(np.searchsorted(self.token_begins, start, side="right")) - 1
            own = start - int(self.token_begins[shard])
            piece = self.tokens(shard)[own : own + length]
            start, length = start + len(piece), length - len(piece)
            pieces.append(piece)
        return pieces[1] if len(pieces) == 2 else np.concatenate(pieces)

    def _checked(
        self, starts: NDArray[np.int64], lengths: NDArray[np.integer]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        begins, sizes = np.asarray(starts, np.int64), np.asarray(lengths, np.int64)
        if len(begins) and (begins.min() < 0 or sizes.min() < 0 or (begins + sizes).max() > self.num_tokens):
            raise ValueError(
                f"starts {begins.min()}…{begins.max()} with up to {sizes.max()} tokens reach outside the "
                f"{self.num_tokens} tokens of {self.folder}"
            )
        return begins, sizes

    def _sentence(self, shard: int, own: int) -> NDArray[np.unsignedinteger]:
        ends = self.sentence_ends(shard)
        return self.tokens(shard)[int(ends[own - 1]) if own else 0 : int(ends[own])]

    @cached_property
    def _maps(self) -> dict[str, list[NDArray]]:
        return {part: [self._map(part, shard) for shard in range(self.num_shards)] for part in PARTS}

    def _map(self, part: str, shard: int) -> NDArray:
        path, dtype = self._path(part, shard), np.dtype(PARTS[part] or self.dtype)
        if path.stat().st_size == 0:  # empty files cannot be mapped
            return np.empty(0, dtype)
        # A plain ndarray view, because slicing an np.memmap takes four times as long.
        return np.asarray(np.memmap(path, dtype, "r"))

    def _path(self, part: str, shard: int) -> Path:
        return self.folder / part_name(part, shard, self.num_shards)

    def _problems(self, shard: int, verify: bool) -> list[str]:
        """Return the problems of a shard's files, one line each."""
        entry, problems = self.manifest["shards"][shard], []
        for part, size in part_sizes(entry, self.dtype).items():
            path = self._path(part, shard)
            if not path.is_file():
                problems.append(f"{path.name} is missing")
            elif path.stat().st_size != size:
                problems.append(f"{path.name} has {path.stat().st_size} bytes instead of {size}: truncated or replaced")
            elif verify and (digest := file_sha256(path)) != entry["sha256"][part]:
                problems.append(f"{path.name} has sha256 {digest} instead of {entry['sha256'][part]}")
        if not problems:
            for part, over in (("sentences", "tokens"), ("documents", "sentences")):
                ends, count = self._map(part, shard), entry[f"num_{over}"]
                if (int(ends[-1]) if len(ends) else 0) != count:
                    problems.append(f"{self._path(part, shard).name} does not end at {count}, the number of {over}")
        return problems

    def __reduce__(self) -> tuple[type["TokenShards"], tuple[Path, dict[str, Any]]]:
        return TokenShards, (self.folder, self.manifest)


def broken_shards(folders: Iterable[str]) -> list[str]:
    """Read every file of token shards, and return a message for each folder that does not match its manifest."""
    problems = []
    for folder in folders:
        try:
            TokenShards.open(folder, verify=True)
        except DataError as error:
            problems.append(str(error))
    return problems


def refuse_different_tokenizers(shards: Sequence[TokenShards]) -> None:
    """Raise DataError if token shards were made with different tokenizers."""
    first = shards[0]
    for other in shards[1:]:
        if other.manifest["tokenizer"] != first.manifest["tokenizer"]:
            names = [
                f"{each.manifest['tokenizer']['fingerprint'][:12]} with {each.vocab_size} pieces"
                for each in (first, other)
            ]
            raise DataError(
                f"{first.folder} and {other.folder} were made with different tokenizers ({names[0]}; {names[1]})\n"
                "  encode both with the same one: pretrainkit tokenizer encode"
            )


def refuse_shared_documents(train: Sequence[TokenShards], valid: Sequence[TokenShards]) -> None:
    """Raise DataError if a held-out document is also in the training data.

    Only the hashes of the held-out documents are kept in memory, because they are fewer.
    """
    for held_out in valid:
        hashes = np.unique(np.concatenate([held_out.document_hashes(shard) for shard in range(held_out.num_shards)]))
        for shards in train if len(hashes) else ():
            is_shared = np.zeros(len(hashes), np.bool_)
            for shard in range(shards.num_shards):
                trained = shards.document_hashes(shard)
                # If a hash is in the sorted array, it is at its insertion point. That may be past the last index.
                nearest = np.minimum(np.searchsorted(hashes, trained), len(hashes) - 1)
                is_shared[nearest[hashes[nearest] == trained]] = True
            if is_shared.any():
                raise DataError(
                    f"{is_shared.sum()} of the {len(hashes)} different documents of data.valid={held_out.folder} are "
                    f"also in data.train={shards.folder}, so a loss on them would be meaningless\n"
                    "  hold documents out when you make the corpus, which keeps all copies of a text in one split: "
                    "pretrainkit corpus shards --heldout 0.01"
                )


def _locate(index: int, begins: NDArray[np.int64], unit: str) -> tuple[int, int]:
    """Return (shard, number within the shard) of a global number. Raises IndexError if it is out of range."""
    if not 0 <= index < begins[-1]:
        raise IndexError(f"{unit} {index} of {begins[-1]}")
    shard = int(np.searchsorted(begins, index, side="right")) - 1
    return shard, index - int(begins[shard])


def _text_in(path: Path) -> str | None:
    """Return `path` if it is a file of raw text or a folder that `datasets` saved (its first split if it has several),
    or a pattern of text files if it is their folder, else None."""
    if path.is_file():
        return str(path) if path.suffix in _TEXT else None
    if (path / "dataset_dict.json").is_file():
        splits = sorted((file.parent for file in path.glob("*/state.json")), key=lambda split: split.name != "train")
        return str(splits[0]) if splits else None
    if (path / "dataset_info.json").is_file():
        return str(path)
    suffixes = [file.suffix for file in sorted(path.iterdir()) if file.suffix in _TEXT] if path.is_dir() else []
    return str(path / f"*{suffixes[0]}") if suffixes else None


def _is_corpus(folder: Path) -> DataError:
    return DataError(
        f"{folder} is a corpus of text, not token shards\n"
        f"  encode it: pretrainkit tokenizer encode {quote(str(folder))} --tokenizer DIR --out FOLDER"
    )


def _manifest(folder: Path) -> dict[str, Any]:
    path = folder / "manifest.json"
    try:
        content = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError) as error:
        inside = [name for name in ("train", "valid") if (folder / name / "manifest.json").is_file()]
        if inside and b'"num_tokens"' not in (folder / inside[0] / "manifest.json").read_bytes():
            raise _is_corpus(folder) from error
        advice = f"name one of the folders in it: {', '.join(str(folder / name) for name in inside)}"
        if not folder.exists():
            advice = f"give the path of the token shards, or {_REBUILD}"
            place = "" if folder.is_absolute() else f" in {Path.cwd()}"
            raise DataError(f"there is no folder {folder}{place}\n  {advice}") from error
        if not inside and (text := _text_in(folder)) is not None:
            raise DataError(
                f"{folder} is text, not token shards\n  make them, and train on data.train=tokens/train:\n"
                f"  pretrainkit corpus shards {quote(text)} --out corpus\n"
                "  pretrainkit corpus count-words 'corpus/train/*.jsonl' --out words.tsv\n"
                "  pretrainkit tokenizer train words.tsv --out tokenizer\n"
                "  pretrainkit tokenizer encode corpus --tokenizer tokenizer --splitter newline --out tokens"
            ) from error
        raise DataError(
            f"{folder} has no token shards: there is no manifest.json\n  {advice if inside else _REBUILD}"
        ) from error
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {error}\n  {_REBUILD}") from error
    if isinstance(content, dict) and content.get("kind") == "corpus":
        raise _is_corpus(folder)
    kind = content.get("format") if isinstance(content, dict) else None
    if kind != FORMAT:
        raise DataError(f"{folder} has no token shards: the kind of its manifest is {kind or 'unknown'}\n  {_REBUILD}")
    with expected_form(path, _REBUILD):
        dtype, shards = np.dtype(content["dtype"]), content["shards"]
        is_whole = dtype == token_dtype(content["tokenizer"]["vocab_size"]) and isinstance(content["fingerprint"], str)
        is_whole &= all(shard[f"num_{over}"] >= 0 for shard in shards for over in ("tokens", "sentences", "documents"))
        is_whole &= all(set(shard["sha256"]) == set(PARTS) for shard in shards) and len(shards) > 0
    if not is_whole:
        raise DataError(f"{path} is inconsistent\n  {_REBUILD}")
    return content

"""The vocabulary of a run from a tokenizer folder, a model, or `bytes`."""

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from pretrainkit.errors import DataError
from pretrainkit.tasks.vocabulary import ByteVocabulary, SentencePieceVocabulary, TokenizerJsonVocabulary, Vocabulary
from pretrainkit.tokenizers.folder import copy_tokenizer
from pretrainkit.tokenizers.load import load_tokenizer

BYTES = "bytes"
"""ByT5's vocabulary, which needs no files."""
NUM_SENTINELS = 100
"""Number of sentinels that T5 adds to a tokenizer without any."""
_SENTENCEPIECE = ("sentencepiece.model", "spiece.model", "tokenizer.model")
_JSON = "tokenizer.json"
_CONFIG_NAME = "tokenizer_config.json"
_BYT5 = "ByT5Tokenizer"


def open_vocabulary(place: str | Path, num_sentinels: int | None = None) -> Vocabulary:
    """Return the vocabulary at `place`. Raises DataError if there is none.

    Args:
        place: A tokenizer folder (pretrainkit's, or a Hugging Face one with spiece.model or tokenizer.json), a run or
            export with a `tokenizer/`, a SentencePiece model, a tokenizer.json, or `bytes`.
        num_sentinels: Ids after the vocabulary for sentinels; None: the tokenizer's pieces `<extra_id_0>` and so on if
            it has them (or a tokenizer.json adds them to a SentencePiece model), else 100 (for bytes: the 11 that text
            never uses).
    """
    if str(place) == BYTES:
        return ByteVocabulary(num_sentinels or 0)
    path = tokenizer_place(Path(place))
    if path.is_dir() and is_byt5(path):
        return ByteVocabulary(num_sentinels or _extra_bytes(path))
    is_json = path.name == _JSON or (path.is_dir() and not any((path / name).is_file() for name in _SENTENCEPIECE))
    kind: Callable[..., Vocabulary] = _json_vocabulary if is_json else SentencePieceVocabulary
    plain = kind(path)
    if num_sentinels is None and not plain.sentinel_ids:
        return kind(path, NUM_SENTINELS) if is_json else _with_sentinels(path)
    if num_sentinels is None:
        return plain
    if is_json and plain.sentinel_ids == tuple(range(plain.size - 1, plain.size - 1 - num_sentinels, -1)):
        return plain  # the file of an export contains them
    return kind(path, num_sentinels)


def _json_vocabulary(path: Path, extra_ids: int = 0) -> TokenizerJsonVocabulary:
    """Return the vocabulary of a tokenizer.json. Without T5's control pieces, texts end with the `sep` piece of BERT,
    as in token shards."""
    plain = TokenizerJsonVocabulary(path, extra_ids)
    if not plain.is_complete() and path.is_dir():
        with suppress(DataError):  # then the piece that is missing is reported where it is needed
            tokenizer = load_tokenizer(path)
            names, special = tokenizer.pieces(), tokenizer.special
            own = {"pad": names[special.pad], "eos": names[special.sep], "unk": names[special.unk]}
            return TokenizerJsonVocabulary(path, extra_ids, **own)
    return plain


def _with_sentinels(path: Path) -> Vocabulary:
    """Return a SentencePiece model with the sentinels of a tokenizer.json beside it, or else 100."""
    added = TokenizerJsonVocabulary(path)
    if not (path / _JSON).is_file() or not added.sentinel_ids:
        return SentencePieceVocabulary(path, NUM_SENTINELS)
    behind = SentencePieceVocabulary(path, len(added.sentinel_ids))
    return behind if behind.sentinel_ids == added.sentinel_ids else added


def tokenizer_place(path: Path) -> Path:
    """Return the location of `path`'s tokenizer: `path`, `tokenizer/` of a run or export, or beside the checkpoints.
    Raises DataError if there is none."""
    run_folders = [path.parent.parent / "tokenizer"] if path.parent.name == "checkpoints" else []
    for place in (path, path / "tokenizer", *run_folders):
        if place.is_file() or any((place / name).is_file() for name in (*_SENTENCEPIECE, _JSON)) or is_byt5(place):
            return place
    raise DataError(
        f"{path} has no tokenizer: no file {', '.join((*_SENTENCEPIECE, _JSON))}\n"
        "  create one with pretrainkit tokenizer train --layout t5, or use the folder of a T5 of Hugging Face, or bytes"
    )


def save_vocabulary(vocabulary: Vocabulary, out: Path) -> bool:
    """Write the new folder `out`, from which `open_vocabulary` and transformers read the same ids. Return False for a
    vocabulary without files."""
    if isinstance(vocabulary, ByteVocabulary):
        out.mkdir()
        write_byte_tokenizer(vocabulary, out)
        return True
    if isinstance(vocabulary, (SentencePieceVocabulary, TokenizerJsonVocabulary)):
        copy_tokenizer(vocabulary.path if vocabulary.path.is_dir() else vocabulary.path.parent, out)
        return any((out / name).is_file() for name in (*_SENTENCEPIECE, _JSON))
    return False


def write_byte_tokenizer(vocabulary: ByteVocabulary, folder: Path) -> None:
    """Write the settings of a tokenizer of bytes into a folder."""
    (folder / _CONFIG_NAME).write_text(json.dumps(_byte_tokenizer(vocabulary), indent=2) + "\n", "utf-8")


def _byte_tokenizer(vocabulary: ByteVocabulary) -> dict[str, Any]:
    """Return the tokenizer_config.json of `ByT5Tokenizer`. Every sentinel is listed, as ours count down from the last
    id, while those that transformers adds automatically count up."""
    named = {vocabulary.pad_id: "<pad>", vocabulary.eos_id: "</s>", vocabulary.unk_id: "<unk>"}
    named |= {index: f"<extra_id_{number}>" for number, index in enumerate(vocabulary.sentinel_ids)}
    plain = dict.fromkeys(("lstrip", "normalized", "rstrip", "single_word"), False)
    return {
        "tokenizer_class": _BYT5,
        "pad_token": "<pad>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "extra_ids": 0,
        "added_tokens_decoder": {
            str(index): {"content": name, **plain, "special": True} for index, name in sorted(named.items())
        },
    }


def is_byt5(folder: Path) -> bool:
    """Return True if the folder has the settings of a tokenizer of bytes."""
    return _tokenizer_config(folder).get("tokenizer_class") == _BYT5


def _extra_bytes(folder: Path) -> int:
    """Return the number of sentinels after the bytes, as `save_vocabulary` wrote them: the first one is the last id.
    The released ByT5's, which transformers adds from 259 up, were never trained."""
    tokens = _tokenizer_config(folder).get("added_tokens_decoder", {})
    first = next((int(index) for index, token in tokens.items() if token.get("content") == "<extra_id_0>"), 0)
    is_last = all(int(index) <= first for index in tokens)
    return max(0, first + 1 - ByteVocabulary().size) if is_last else 0


def _tokenizer_config(folder: Path) -> dict[str, Any]:
    try:
        return json.loads((folder / _CONFIG_NAME).read_bytes())
    except (OSError, ValueError):
        return {}

"""The vocabulary of a run from what names it: a tokenizer folder, a model, or `bytes`."""

import json
from pathlib import Path

from pretrainkit.data.vocabulary import ByteVocabulary, SentencePieceVocabulary, TokenizerJsonVocabulary, Vocabulary
from pretrainkit.errors import DataError

BYTES = "bytes"
"""ByT5's vocabulary, which needs no files."""
NUM_SENTINELS = 100
"""Of T5: added to a tokenizer that has none of its own."""
_SENTENCEPIECE = ("sentencepiece.model", "spiece.model", "tokenizer.model")
_JSON = "tokenizer.json"


def open_vocabulary(place: str | Path, num_sentinels: int | None = None) -> Vocabulary:
    """The vocabulary that `place` names.

    Args:
        place: A tokenizer folder (ours, or a Hugging Face one with spiece.model or tokenizer.json), a run or export
            that has one in `tokenizer/`, a SentencePiece model, a tokenizer.json, or `bytes`.
        num_sentinels: Ids behind the vocabulary for sentinels; None: the tokenizer's own where it has pieces named
            `<extra_id_0>` and so on, else 100 (of bytes: the 11 that text never uses).

    Raises:
        DataError: There is nothing of the kind.
    """
    if str(place) == BYTES:
        return ByteVocabulary(num_sentinels or 0)
    path = tokenizer_place(Path(place))
    if path.is_dir() and _is_byt5(path):
        return ByteVocabulary(num_sentinels or 0)
    is_json = path.name == _JSON or (path.is_dir() and not any((path / name).is_file() for name in _SENTENCEPIECE))
    kind = TokenizerJsonVocabulary if is_json else SentencePieceVocabulary
    plain = kind(path)
    if num_sentinels is None:
        return plain if plain.sentinel_ids else kind(path, NUM_SENTINELS)
    return kind(path, num_sentinels)


def tokenizer_place(path: Path) -> Path:
    """Where the tokenizer of `path` lies: in it, in `tokenizer/` of a run or export, or beside the checkpoints.

    Raises:
        DataError: Nowhere.
    """
    for place in (path, path / "tokenizer", path.parent.parent / "tokenizer"):
        if place.is_file() or any((place / name).is_file() for name in (*_SENTENCEPIECE, _JSON)) or _is_byt5(place):
            return place
    raise DataError(
        f"{path} holds no tokenizer: {', '.join((*_SENTENCEPIECE, _JSON))} are not there\n"
        "  make one with pretrainkit tokenizer train --layout t5, name the folder of a T5 of Hugging Face, or bytes"
    )


def _is_byt5(folder: Path) -> bool:
    path = folder / "tokenizer_config.json"
    try:
        return json.loads(path.read_bytes()).get("tokenizer_class") == "ByT5Tokenizer"
    except (OSError, ValueError):
        return False

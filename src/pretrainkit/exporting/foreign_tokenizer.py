"""Tokenizers beside models of transformers: what lies in a folder, its form as `tokenizer.json`, and what
`AutoTokenizer` makes of it. Torch-free; transformers is imported where it has to read something.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pretrainkit.data.line_index import cache_folder
from pretrainkit.errors import DataError
from pretrainkit.exporting.folder import new_folder
from pretrainkit.rendering.folder import is_renderer
from pretrainkit.tokenizers.folder import CONFIG_JSON, MODEL, TOKENIZER_JSON

_VOCABULARIES: Mapping[str, Callable[[Path], set[str]]] = {
    "vocab.txt": lambda path: {line.rstrip("\r\n") for line in path.open(encoding="utf-8", newline="\n")} - {""},
    "vocab.json": lambda path: set(json.loads(path.read_bytes())),
    "spiece.model": lambda path: _sentencepieces(path),
    "tokenizer.model": lambda path: _sentencepieces(path),
}
"""Files that a vocabulary may consist of where there is no tokenizer.json, and the pieces of each."""
_OTHERS = ("merges.txt", "added_tokens.json", "special_tokens_map.json", CONFIG_JSON, "config.json")


def tokenizer_beside(folder: Path) -> Path | None:
    """The folder of the tokenizer, or renderer, of a model that transformers wrote to `folder`: that folder itself, or
    a copy in the user's cache with the `tokenizer.json` that it lacks. None: there is none. Raises DataError where
    there is one in a form that cannot be read."""
    about = _json(folder / CONFIG_JSON)
    is_own = is_renderer(folder) or about.get("tokenizer_class") == "ByT5Tokenizer"
    if is_own or any((folder / name).is_file() for name in (TOKENIZER_JSON, MODEL)):
        return folder
    names = [name for name in _VOCABULARIES if (folder / name).is_file()]
    return _converted(folder, names) if names else None


def _converted(folder: Path, names: list[str]) -> Path:
    """A copy with a `tokenizer.json`, made by transformers' own conversion; made once for each content."""
    files = [folder / name for name in (*names, *_OTHERS) if (folder / name).is_file()]
    digest = hashlib.blake2b(digest_size=16)
    for path in files:
        digest.update(f"{path.name} {path.stat().st_size}\n".encode() + path.read_bytes())
    out = cache_folder() / "tokenizers" / digest.hexdigest()
    if out.is_dir():
        return out
    found = _auto_tokenizer(folder)
    if not getattr(found, "is_fast", False):
        raise _unreadable(folder, names, f"{type(found).__name__} has no form as a {TOKENIZER_JSON}")
    pieces = found.get_vocab().keys()
    for name in names:
        try:
            own = _VOCABULARIES[name](folder / name)
        except (RuntimeError, ValueError, AttributeError) as error:  # of SentencePiece and of JSON
            raise _unreadable(folder, names, f"{name} is damaged: {error}") from error
        if lost := own - pieces:
            raise _unreadable(folder, names, f"transformers reads {len(lost)} pieces of {name} as text")
    with new_folder(out) as aside:
        for path in files:
            if path.name != "config.json":
                shutil.copyfile(path, aside / path.name)
        found.save_pretrained(str(aside))
    return out


def _auto_tokenizer(folder: Path) -> Any:
    """Raises DataError where transformers is missing or cannot read it."""
    from pretrainkit.exporting.torchvision_shim import import_transformers

    is_said = "tokenizer_class" in _json(folder / CONFIG_JSON) or "model_type" in _json(folder / "config.json")
    is_bert = not is_said and (folder / "vocab.txt").is_file()  # as it was published, a list of pieces alone
    try:
        transformers = import_transformers()
        kind = transformers.BertTokenizerFast if is_bert else transformers.AutoTokenizer
        return kind.from_pretrained(str(folder), local_files_only=True)
    except Exception as error:  # of the library, or of the parsers of each kind of file
        names = [name for name in _VOCABULARIES if (folder / name).is_file()]
        raise _unreadable(folder, names, f"{type(error).__name__}: {str(error).strip().splitlines()[0]}") from error


def _unreadable(folder: Path, names: list[str], reason: str) -> DataError:
    return DataError(
        f"the tokenizer in {folder} ({', '.join(names) or 'no file of pieces'}) cannot be read: {reason}\n"
        f"  put its {TOKENIZER_JSON} there, or import the model with --tokenizer FOLDER"
    )


def difference_of_ids(folder: Path, expected: Mapping[str, list[int]]) -> str | None:
    """The first text that `AutoTokenizer` reads from `folder` as other ids than expected, described in one line; None:
    there is none, or transformers is not installed."""
    try:
        found = _auto_tokenizer(folder)
    except DataError as error:
        return None if isinstance(error.__cause__, ImportError) else str(error).splitlines()[0]
    for text, ids in expected.items():
        # verbose=False: no warning of texts beyond the trained length, which no model sees here
        if (theirs := list(found(text, verbose=False)["input_ids"])) != ids:
            return f"AutoTokenizer reads {text!r} as {_shown(theirs)}, the model was trained on {_shown(ids)}"
    return None


def _shown(ids: list[int]) -> str:
    return f"[{', '.join(map(str, ids[:8]))}{', ...' if len(ids) > 8 else ''}]"


def _sentencepieces(path: Path) -> set[str]:
    import sentencepiece

    model = sentencepiece.SentencePieceProcessor(model_file=str(path))
    return {model.id_to_piece(index) for index in range(model.vocab_size()) if not model.is_unused(index)}


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}

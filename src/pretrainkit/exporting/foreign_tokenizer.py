"""Tokenizers beside models of transformers: find them, convert them to `tokenizer.json`, and compare ids with those of
`AutoTokenizer`. Imports no torch; transformers is imported only when needed.
"""

import hashlib
import json
import re
import shutil
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pretrainkit.data.line_index import cache_folder
from pretrainkit.errors import DataError
from pretrainkit.files.outputs import new_folder
from pretrainkit.rendering.folder import is_renderer
from pretrainkit.tokenizers.folder import (
    CONFIG_JSON,
    MODEL,
    TOKENIZER_JSON,
    read_tokenizer_json,
    require_own_pieces,
    transformers_settings,
    write_json,
)

_VOCABULARIES: Mapping[str, Callable[[Path], set[str]]] = {
    "vocab.txt": lambda path: {line.rstrip("\r\n") for line in path.open(encoding="utf-8", newline="\n")} - {""},
    "vocab.json": lambda path: set(json.loads(path.read_bytes())),
    "spiece.model": lambda path: _sentencepieces(path),
    "tokenizer.model": lambda path: _sentencepieces(path),
}
"""Vocabulary files of folders without a tokenizer.json, each with a function that returns its pieces."""
_ROLES = "special_tokens_map.json"
_SIDES = ("padding_side", "truncation_side")
_OTHERS = ("merges.txt", "added_tokens.json", _ROLES, CONFIG_JSON, "config.json")


@dataclass(frozen=True)
class TokenizerChanges:
    """Changes of a tokenizer of transformers."""

    cleaning: Literal["lower", "canonicalize"] | None = None
    """Cleaning of texts before they are encoded, as in open_clip. lower: fold them to lower case; canonicalize: also
    remove ASCII punctuation, of which an underscore becomes a space; None: no cleaning, or that of the tokenizer."""
    pad_id: int | None = None
    """Id that fills rows; None: that of the tokenizer."""
    pads_end: bool = False
    """True if the end token of a text becomes a pad token, as in CLIPA."""


def tokenizer_beside(folder: Path) -> Path | None:
    """Return the folder of the tokenizer or renderer of a transformers model in `folder`: that folder itself, or a copy
    in the user's cache with the missing `tokenizer.json`. Return None if the model has neither. Raises DataError if
    the tokenizer cannot be read."""
    about = _json(folder / CONFIG_JSON)
    is_own = is_renderer(folder) or about.get("tokenizer_class") == "ByT5Tokenizer"
    if is_own or (folder / TOKENIZER_JSON).is_file():
        return folder
    if (folder / MODEL).is_file():
        return folder if (folder / "manifest.json").is_file() else _with_json(folder)
    names = [name for name in _VOCABULARIES if (folder / name).is_file()]
    return _converted(folder, names) if names else None


def left_sides(folder: Path) -> list[str]:
    """Return the settings of a tokenizer that pad or cut texts at their beginning."""
    about = _json(folder / CONFIG_JSON)
    return [name for name in _SIDES if about.get(name) == "left"]


def with_right_sides(about: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a tokenizer that pads and cuts texts at their end, as in our trainings."""
    sides = {name: "right" for name in _SIDES if about.get(name) == "left"}
    return {**about, **sides}


def changed_tokenizer(folder: Path, changes: TokenizerChanges, out: Path) -> Path:
    """Write a copy of a tokenizer with these changes to the new folder `out`, and return it."""
    from tokenizers import Regex, Tokenizer, normalizers, processors

    if not (folder / TOKENIZER_JSON).is_file():
        raise _unreadable(folder, [], f"it has no {TOKENIZER_JSON}, which is needed for {changes}")
    model = Tokenizer.from_buffer(read_tokenizer_json(folder / TOKENIZER_JSON))
    about = _json(folder / CONFIG_JSON) | _json(folder / _ROLES)
    about["tokenizer_class"] = "PreTrainedTokenizerFast"  # other classes replace the file's normalizer
    if changes.cleaning is not None:
        punctuation = (("_", " "), (Regex(f"[{re.escape(string.punctuation)}]"), ""))
        steps: list[Any] = []
        if changes.cleaning == "canonicalize":
            steps += [normalizers.Replace(*pair) for pair in punctuation]
        steps += [normalizers.Lowercase(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()]
        model.normalizer = normalizers.Sequence([*steps, *([model.normalizer] if model.normalizer else [])])
    if changes.pad_id is not None:
        about["pad_token"] = model.id_to_token(changes.pad_id)
    if changes.pads_end:
        first, *_, _ = model.encode("a").tokens
        pad = about.get("pad_token", "[PAD]")
        pad = pad["content"] if isinstance(pad, dict) else pad
        ids = [(token, model.token_to_id(token)) for token in (first, pad)]
        model.post_processor = processors.TemplateProcessing(single=f"{first} $A {pad}", special_tokens=ids)
    with new_folder(out) as aside:
        if (folder / "added_tokens.json").is_file():
            shutil.copyfile(folder / "added_tokens.json", aside / "added_tokens.json")
        model.save(str(aside / TOKENIZER_JSON))
        (aside / CONFIG_JSON).write_text(json.dumps(about, indent=2, ensure_ascii=False) + "\n", "utf-8")
    return out


def _with_json(folder: Path) -> Path:
    """Return a cached copy of a tokenizer of Sabertooth with the missing `tokenizer.json`, without which transformers
    gives other ids. Tokenizers of another layout are returned unchanged."""
    from pretrainkit.tokenizers.unigram import TOKENS, is_of_sabertooth

    if not is_of_sabertooth(model := (folder / MODEL).read_bytes()):
        return folder
    from pretrainkit.tokenizers.unigram_json import tokenizer_json

    out = cache_folder() / "tokenizers" / hashlib.blake2b(model, digest_size=16).hexdigest()
    if out.is_dir():
        return out
    with new_folder(out) as aside:
        (aside / MODEL).write_bytes(model)
        (aside / TOKENIZER_JSON).write_text(tokenizer_json(model), "utf-8")
        write_json(aside / CONFIG_JSON, transformers_settings(TOKENS))
    return out


def _converted(folder: Path, names: list[str]) -> Path:
    """Return a cached copy with a `tokenizer.json`, which transformers converts once for each content."""
    files = [folder / name for name in (*names, *_OTHERS) if (folder / name).is_file()]
    digest = hashlib.blake2b(digest_size=16)
    for path in files:
        digest.update(f"{path.name} {path.stat().st_size}\n".encode() + path.read_bytes())
    out = cache_folder() / "tokenizers" / digest.hexdigest()
    if out.is_dir():
        return out
    tokenizer = _auto_tokenizer(folder)
    if not getattr(tokenizer, "is_fast", False):
        raise _unreadable(folder, names, f"{type(tokenizer).__name__} cannot be converted to a {TOKENIZER_JSON}")
    pieces = tokenizer.get_vocab().keys()
    for name in names:
        try:
            own = _VOCABULARIES[name](folder / name)
        except (RuntimeError, ValueError, AttributeError) as error:  # raised by SentencePiece and JSON
            raise _unreadable(folder, names, f"{name} is damaged: {error}") from error
        if lost := own - pieces:
            raise _unreadable(folder, names, f"transformers does not recognize {len(lost)} pieces of {name}")
    with new_folder(out) as aside:
        for path in files:
            if path.name != "config.json":
                shutil.copyfile(path, aside / path.name)
        try:
            tokenizer.save_pretrained(str(aside))
        except (ValueError, TypeError) as error:  # a piece or a setting that JSON in UTF-8 cannot represent
            raise _unreadable(folder, names, _beginning(error)) from error
    return out


def _auto_tokenizer(folder: Path) -> Any:
    """Load a tokenizer with transformers. Raises DataError if transformers is missing or cannot read the folder."""
    from pretrainkit.exporting.torchvision_shim import import_transformers

    about = _json(folder / CONFIG_JSON)
    has_type = "tokenizer_class" in about or "model_type" in _json(folder / "config.json")
    is_bert = not has_type and (folder / "vocab.txt").is_file()  # BERT was published with only a list of pieces
    try:
        transformers = import_transformers()
        require_own_pieces(about)
        kind = transformers.BertTokenizerFast if is_bert else transformers.AutoTokenizer
        return kind.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except Exception as error:  # any type: the library and its parsers raise many
        names = [name for name in _VOCABULARIES if (folder / name).is_file()]
        raise _unreadable(folder, names, f"{type(error).__name__}: {_beginning(error)}") from error


def _beginning(error: Exception) -> str:
    """Return the first line of a message; if it introduces a list, the whole sentence."""
    message = str(error).strip()
    first = message.partition("\n")[0].strip()
    if not first.endswith(":"):
        return first
    return re.split(r"(?<=\.)\s", " ".join(message.split()), maxsplit=1)[0]


def _unreadable(folder: Path, names: list[str], reason: str) -> DataError:
    return DataError(
        f"the tokenizer in {folder} ({', '.join(names) or 'no file of pieces'}) cannot be read: {reason}\n"
        f"  put its {TOKENIZER_JSON} there, or import the model with --tokenizer FOLDER"
    )


def difference_of_ids(
    folder: Path, expected: Mapping[str, list[int]], origin: str = "the model was trained on"
) -> str | None:
    """Describe in one line the first text whose ids from `AutoTokenizer` differ from `expected`, which `origin` names.
    Return None if all ids agree or transformers is not installed."""
    try:
        tokenizer = _auto_tokenizer(folder)
    except DataError as error:
        return None if isinstance(error.__cause__, ImportError) else str(error).splitlines()[0]
    for text, ids in expected.items():
        # verbose=False: no warning about texts beyond the trained length; no model reads them here
        if (theirs := list(tokenizer(text, verbose=False)["input_ids"])) != ids:
            return f"AutoTokenizer reads {text!r} as {_shown(theirs)}, {origin} {_shown(ids)}"
    return None


def _shown(ids: list[int]) -> str:
    return f"[{', '.join(map(str, ids[:8]))}{', ...' if len(ids) > 8 else ''}]"


def _sentencepieces(path: Path) -> set[str]:
    import sentencepiece

    model = sentencepiece.SentencePieceProcessor(model_file=str(path))
    return {model.id_to_piece(index) for index in range(model.vocab_size()) if not model.is_unused(index)}


def _json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}

"""The folder of a tokenizer: complete or absent, with a manifest.

tokenizer.json  tokenizer_config.json     loaded by `transformers.AutoTokenizer.from_pretrained(folder)`
special_tokens_map.json                   only in some folders from elsewhere: names of the control pieces
spiece.model  tokenizer.model             only in some folders from elsewhere: SentencePiece models of T5, mT5, Llama
sentencepiece.model  sentencepiece.vocab  unigram only; used for encoding
punkt.json                                Punkt parameters, if they were trained
manifest.json                             kind, vocabulary size, special ids, settings, fingerprints
"""

import hashlib
import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pretrainkit.errors import DataError
from pretrainkit.files.manifest import atomic_file, explained_write_errors, write_text
from pretrainkit.files.outputs import new_folder
from pretrainkit.tokenizers.punkt import PunktParameters

MODEL = "sentencepiece.model"
VOCAB = "sentencepiece.vocab"
TOKENIZER_JSON = "tokenizer.json"
CONFIG_JSON = "tokenizer_config.json"
PUNKT_JSON = "punkt.json"
FORMAT = "pretrainkit tokenizer 1"
RESTORE = "restore the folder from a copy, or train the tokenizer again"
_MOST_UNUSED = 1 << 20
"""Number of ids without a piece that a vocabulary may have, in addition to one for each of its pieces."""
_OF_OTHERS = ("special_tokens_map.json", "spiece.model", "tokenizer.model")
_FILES = (MODEL, VOCAB, TOKENIZER_JSON, CONFIG_JSON, PUNKT_JSON, *_OF_OTHERS, "manifest.json")
"""All files of a tokenizer; see the module docstring."""


def refuse_existing(out: Path) -> None:
    """Raise DataError unless `out` is absent or an empty folder."""
    with explained_write_errors(out):
        is_taken = out.exists() and not (out.is_dir() and not any(out.iterdir()))
    if is_taken:
        raise DataError(f"{out} already exists\n  remove it or name another --out; a tokenizer is never overwritten")


def copy_tokenizer(origin: Path, out: Path, punkt: PunktParameters | None = None) -> None:
    """Copy the files of a tokenizer from `origin` to the folder `out`, all or none, and write `punkt` if given.

    Other files, such as the weights in a model's folder, are not copied. Raises RunError if the disk is full, and
    DataError if the folder cannot be written.
    """
    shutil.rmtree(out, ignore_errors=True)
    refuse_existing(out)
    with new_folder(out) as aside:
        for name in _FILES:
            if (origin / name).is_file() and not (name == PUNKT_JSON and punkt):
                with open(origin / name, "rb") as source, atomic_file(aside / name) as target:
                    shutil.copyfileobj(source, target)
        if punkt is not None:
            punkt.save(aside / PUNKT_JSON)


_TAIL = r"Tokenizer(Fast)?"
_FOLDING = re.compile(f"(Bert|DistilBert|Electra|MobileBert|MPNet|Funnel|LayoutLM|SqueezeBert|Lxmert|Splinter){_TAIL}")
_SPACED = re.compile(f"(Roberta|GPT2|Bart|Longformer|LED|Deberta|CodeGen|Mvp|Whisper|GPTNeoX){_TAIL}")
"""Classes of transformers that change a `tokenizer.json` when they load it."""
_FOLDS: dict[str, tuple[str, bool | None]] = {
    "lowercase": ("do_lower_case", True),
    "strip_accents": ("strip_accents", None),
    "handle_chinese_chars": ("tokenize_chinese_chars", True),
}
"""Maps settings of the normalizer of BERT to their names in `tokenizer_config.json` and to the defaults there."""


def require_own_pieces(settings: Mapping[str, Any]) -> None:
    """Raise ValueError if a tokenizer_config.json names a file with pieces, which transformers would read anywhere."""
    for name in ("vocab", "merges"):
        if isinstance(settings.get(name), str):
            raise ValueError(f"{CONFIG_JSON} sets {name} to {settings[name]!r}, which may be a file of another folder")


def read_tokenizer_json(path: Path) -> bytes:
    """Return the content of a `tokenizer.json` as transformers reads it: the classes of BERT fold case and accents, and
    those of RoBERTa put a space before a text, as the `tokenizer_config.json` beside it says, whatever the file says.

    Tokenizers of ours and those without such a conflict are returned unchanged.
    """
    content, config = path.read_bytes(), path.with_name(CONFIG_JSON)
    if path.with_name("manifest.json").is_file() or not config.is_file():
        return content
    try:
        about, values = json.loads(config.read_bytes()), json.loads(content)
        kind = about.get("tokenizer_class") or ""
        normalizer, splitter = values.get("normalizer") or {}, values.get("pre_tokenizer") or {}
        wanted: dict[str, Any] = {}
        if _FOLDING.fullmatch(kind) and normalizer.get("type") == "BertNormalizer":
            changed, wanted = normalizer, {ours: about.get(name, usual) for ours, (name, usual) in _FOLDS.items()}
        elif _SPACED.fullmatch(kind) and splitter.get("type") == "ByteLevel":
            changed, wanted = splitter, {"add_prefix_space": about.get("add_prefix_space", False)}
    except (ValueError, AttributeError, TypeError):  # damaged files, which their readers report
        return content
    if all(changed.get(name) == value for name, value in wanted.items()):
        return content
    changed |= wanted
    return json.dumps(values).encode()


def transformers_settings(tokens: Mapping[str, str]) -> dict[str, Any]:
    """Return the content of `tokenizer_config.json` for control tokens by role."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{f"{role}_token": piece for role, piece in tokens.items()},
        # Without cls, all segments have the same type.
        "model_input_names": ["input_ids", *(["token_type_ids"] if "cls" in tokens else []), "attention_mask"],
        "clean_up_tokenization_spaces": False,
    }


def pieces_by_id(vocabulary: Mapping[str, int], folder: Path) -> list[str]:
    """Return the piece of each id of a vocabulary, "" for ids without one. Raises DataError, which names `folder`, if
    most ids would have none."""
    size = max(vocabulary.values(), default=-1) + 1
    if size > _MOST_UNUSED + 2 * len(vocabulary):  # it would take memory for each of them
        raise DataError(
            f"the tokenizer in {folder} is broken: it has {len(vocabulary)} pieces, but an id of {size - 1}\n"
            f"  {RESTORE}"
        )
    pieces = [""] * size
    for piece, index in vocabulary.items():
        pieces[index] = piece
    return pieces


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def model_fingerprint(folder: Path) -> str:
    """Return a 128-bit hash in hex of the file that decides the ids. Raises DataError if there is no such file."""
    for name in (MODEL, TOKENIZER_JSON):
        path = folder / name
        if path.is_file():
            content = read_tokenizer_json(path) if name == TOKENIZER_JSON else path.read_bytes()
            return hashlib.blake2b(content, digest_size=16).hexdigest()
    raise DataError(
        f"{folder} holds no tokenizer: neither {MODEL} nor {TOKENIZER_JSON}\n"
        "  make one with: pretrainkit tokenizer train words.tsv --out DIR"
    )

"""The folder of a tokenizer: whole or absent, with a manifest.

tokenizer.json  tokenizer_config.json     what `transformers.AutoTokenizer.from_pretrained(folder)` loads
special_tokens_map.json                   only in some folders of others: names of the control pieces
spiece.model  tokenizer.model             only in some folders of others: SentencePiece models of T5 and mT5, Llama
sentencepiece.model  sentencepiece.vocab  unigram only; what we encode with
punkt.json                                Punkt parameters, where they were trained
manifest.json                             kind, vocabulary size, special ids, settings, fingerprints
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pretrainkit.errors import DataError
from pretrainkit.files.manifest import atomic_file, explained_write_errors, sync
from pretrainkit.tokenizers.punkt import PunktParameters

MODEL = "sentencepiece.model"
VOCAB = "sentencepiece.vocab"
TOKENIZER_JSON = "tokenizer.json"
CONFIG_JSON = "tokenizer_config.json"
PUNKT_JSON = "punkt.json"
FORMAT = "pretrainkit tokenizer 1"
_OF_OTHERS = ("special_tokens_map.json", "spiece.model", "tokenizer.model")
_FILES = (MODEL, VOCAB, TOKENIZER_JSON, CONFIG_JSON, PUNKT_JSON, *_OF_OTHERS, "manifest.json")
"""All that a tokenizer is; see the top of the file."""


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """A folder beside `out` that takes its name when the block ends well; an error removes it. Raises DataError where
    `out` exists already, or nothing can be written there."""
    refuse_existing(out)
    aside = out.with_name(f".{out.name}.partial")
    with explained_write_errors(out):
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        try:
            yield aside
            if out.is_dir():
                out.rmdir()
            os.replace(aside, out)
            sync(out.parent)
        except BaseException:  # also Ctrl-C and what the caller raises: half a folder is never left; it is raised on
            shutil.rmtree(aside, ignore_errors=True)
            raise


def refuse_existing(out: Path) -> None:
    """DataError if `out` is anything but an empty folder or absent."""
    with explained_write_errors(out):
        is_taken = out.exists() and not (out.is_dir() and not any(out.iterdir()))
    if is_taken:
        raise DataError(f"{out} exists already\n  remove it or name another --out; a tokenizer is never overwritten")


def copy_tokenizer(origin: Path, out: Path, punkt: PunktParameters | None = None) -> None:
    """Copies what makes a tokenizer from `origin` to the folder `out`, whole or not at all, with `punkt` where
    given. Other files, such as the weights in the folder of a model, stay behind. Raises RunError where the disk is
    full, and DataError where the folder cannot be written."""
    shutil.rmtree(out, ignore_errors=True)
    with new_folder(out) as aside:
        for name in _FILES:
            if (origin / name).is_file() and not (name == PUNKT_JSON and punkt):
                with open(origin / name, "rb") as source, atomic_file(aside / name) as target:
                    shutil.copyfileobj(source, target)
        if punkt is not None:
            punkt.save(aside / PUNKT_JSON)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    with atomic_file(path) as file:
        file.write(json.dumps(content, indent=2, ensure_ascii=False).encode() + b"\n")


def model_fingerprint(folder: Path) -> str:
    """128 bits in hex of the file that decides the ids. Raises DataError where there is no such file."""
    for name in (MODEL, TOKENIZER_JSON):
        path = folder / name
        if path.is_file():
            return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
    raise DataError(
        f"{folder} holds no tokenizer: neither {MODEL} nor {TOKENIZER_JSON}\n"
        "  make one with: pretrainkit tokenizer train words.tsv --out DIR"
    )

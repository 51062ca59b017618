"""The tokenizer of a run: a copy beside its weights, which must equal the tokenizer of the data."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from shlex import quote

from pretrainkit.errors import DataError, InputError
from pretrainkit.files.outputs import new_folder
from pretrainkit.recipes.capabilities import KeepsTokenizer
from pretrainkit.recipes.recipe import Recipe, tokenizer_beside
from pretrainkit.running.opened import Opened
from pretrainkit.training.data_config import SourceConfig
from pretrainkit.training.folder import RunFolder
from pretrainkit.training.run import RunConfig

_ENDINGS = ("safetensors", "bin", "pt", "pth", "ckpt", "h5", "msgpack", "ot", "onnx")
_NOT_OF_TOKENIZERS = (".*", "onnx", "pretrainkit.json", *(f"*.{ending}" for ending in _ENDINGS))
"""Files of models, which may be in the same folder as a tokenizer."""


def require_same_tokenizer(opened: Opened, path: str | Path, sources: Iterable[SourceConfig]) -> None:
    """Raise DataError for token shards of another tokenizer than the model's. Nothing is checked unless copies of both
    tokenizers exist."""
    from pretrainkit.tokenizers.folder import model_fingerprint

    if opened.tokenizer is None or (own := _hash_of_ids(opened.tokenizer)) is None:
        return
    for source in sources:
        folder = Path(source.path) / "tokenizer"
        if _hash_of_ids(folder) not in (None, own):
            theirs, ours = (model_fingerprint(place)[:12] for place in (folder, opened.tokenizer))
            raise DataError(
                f"{source.path} was made with another tokenizer ({theirs}) than the model in {path} ({ours})\n"
                "  encode the text with the model's: "
                f"pretrainkit tokenizer encode CORPUS --tokenizer {quote(str(opened.tokenizer))} --out FOLDER"
            )


def require_ids_of_model(config: RunConfig, tokenizer: Path | None) -> None:
    """Raise InputError for a tokenizer with ids beyond the model's embeddings."""
    from pretrainkit.tasks.vocabulary_folder import is_byt5, open_vocabulary
    from pretrainkit.tokenizers.load import load_tokenizer

    size = getattr(config.model, "vocab_size", None)  # image models have no vocabulary
    if tokenizer is None or size is None:
        return
    num_pieces = open_vocabulary(tokenizer).size if is_byt5(tokenizer) else load_tokenizer(tokenizer).vocab_size
    if num_pieces > size:
        raise InputError(
            f"the tokenizer {tokenizer} has {num_pieces} pieces, but the model reads {size}\n"
            "  use the folder of the tokenizer that the model was trained with"
        )


def keep_tokenizer(folder: RunFolder, origin: Path | None) -> None:
    """Copy the tokenizer of the training data into the run, so that the run stays usable without the data."""
    target = folder.path / "tokenizer"
    if origin is not None and origin.is_dir() and not target.exists():
        with new_folder(target) as aside:  # the source may be the folder of a whole model
            shutil.copytree(origin, aside, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*_NOT_OF_TOKENIZERS))


def tokenizer_folder(recipe: Recipe, config: RunConfig) -> Path | None:
    """Return the folder of the tokenizer that encoded the data of a run. Raises DataError if it no longer exists."""
    return recipe.tokenizer_folder(config) if isinstance(recipe, KeepsTokenizer) else tokenizer_beside(config)


def with_tokenizer(recipe: Recipe, config: RunConfig, tokenizer: Path) -> RunConfig:
    """Return the config with the copy of the tokenizer beside a model, wherever the original is."""
    return recipe.with_tokenizer(config, tokenizer) if isinstance(recipe, KeepsTokenizer) else config


def with_kept_tokenizer(recipe: Recipe, config: RunConfig, folder: RunFolder) -> RunConfig:
    """Return the config with the run's own copy of its tokenizer if the original no longer exists."""
    kept = folder.path / "tokenizer"
    try:
        tokenizer_folder(recipe, config)
    except DataError:
        if not kept.is_dir():
            raise
        return with_tokenizer(recipe, config, kept.resolve())
    return config


def usable_tokenizer(folder: Path) -> Path:
    """Return the folder, or a copy of it with a tokenizer.json; for `bytes` that of ByT5's tokenizer. Raises DataError
    if it contains neither a tokenizer nor a renderer."""
    from pretrainkit.data.line_index import cache_folder
    from pretrainkit.exporting.foreign_tokenizer import tokenizer_beside
    from pretrainkit.tasks.vocabulary import ByteVocabulary
    from pretrainkit.tasks.vocabulary_folder import BYTES, write_byte_tokenizer

    if str(folder) == BYTES and not folder.exists():
        folder = cache_folder() / "tokenizers" / BYTES
        if not folder.is_dir():
            with new_folder(folder) as aside:
                write_byte_tokenizer(ByteVocabulary(), aside)
    tokenizer = tokenizer_beside(folder)
    if tokenizer is None:
        raise DataError(
            f"{folder} is not the folder of a tokenizer\n  use one with tokenizer.json, sentencepiece.model, "
            "vocab.txt or spiece.model; or the folder of a renderer, with text_renderer_config.json"
        )
    return tokenizer


def _hash_of_ids(folder: Path) -> str | None:
    """Return a hash of what decides the ids in token shards. An export of a T5 has other control tokens around a text
    than the tokenizer.json of its shards, and sentinels."""
    from pretrainkit.tokenizers.folder import MODEL, TOKENIZER_JSON, model_fingerprint, read_tokenizer_json

    path = folder / TOKENIZER_JSON
    if (folder / MODEL).is_file():
        return model_fingerprint(folder)
    if not path.is_file():
        return None
    import tokenizers

    try:
        content = json.loads(tokenizers.Tokenizer.from_buffer(read_tokenizer_json(path)).to_str())
    except Exception:  # the library raises bare Exception; who reads the tokenizer reports that it is damaged
        return model_fingerprint(folder)
    added = [token for token in content.pop("added_tokens") if not token["content"].startswith("<extra_id_")]
    kept = {name: value for name, value in content.items() if name not in ("post_processor", "padding", "truncation")}
    return hashlib.blake2b(json.dumps([kept, added], sort_keys=True).encode(), digest_size=16).hexdigest()

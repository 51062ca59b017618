"""Checks that settings, tokenizer and sets of pairs match each other. They run before anything is computed."""

import json
import logging
from collections import Counter
from collections.abc import Sequence
from shlex import quote
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from pretrainkit.errors import ConfigError, DataError
from pretrainkit.images.ops import CenterCrop, Resize, ResizeShorter
from pretrainkit.recipes.clip.captions import CaptionTokenizer, find_folder
from pretrainkit.recipes.clip.config import ClipDataConfig, ClipRun, set_name
from pretrainkit.recipes.clip.pairs import BadImage, Pairs, Split, rounded_up, whole_numbers
from pretrainkit.recipes.clip.pixels import PixelReader

Tower = Literal["image", "text"]
_logger = logging.getLogger(__name__)


def image_problems(config: ClipRun) -> list[str]:
    """Return a problem for each list of transforms whose images the image tower cannot read."""
    problems = []
    wanted = config.model.image.image_size
    for field in ("train_transforms", "valid_transforms"):
        try:
            size = PixelReader(getattr(config.data, field), config.data.normalize).size
        except ConfigError as error:
            problems += [f"data.{field}: {problem}" for problem in error.problems]
            continue
        if wanted is not None and size != wanted:
            problems.append(
                f"data.{field} makes images of {size} x {size} pixels, but model.image.image_size is {wanted}\n"
                f"  set the size of its last resize or crop to {wanted}, or model.image.image_size={size}"
            )
    return problems


def text_problems(config: ClipRun, tokenizer: CaptionTokenizer) -> list[str]:
    """Return the problems if the text tower does not support the tokenizer or the caption length."""
    text, max_length = config.model.text, config.data.max_length
    if text.kind == "transformer":
        size: int | None = text.vocab_size
        longest: int | None = text.max_positions
    elif text.architecture is not None:
        size, longest = text.architecture.get("vocab_size"), text.architecture.get("max_position_embeddings")
    else:
        about = (tokenizer.folder if config.data.tokenizer is None else find_folder(text.name)) / "config.json"
        content = json.loads(about.read_bytes()) if about.is_file() else {}
        size, longest = content.get("vocab_size"), content.get("max_position_embeddings")
    problems = []
    if size is not None and size < tokenizer.vocab_size:
        problems.append(
            f"the text tower has embeddings for {size} pieces, but the tokenizer in {tokenizer.folder} has "
            f"{tokenizer.vocab_size}\n  use the tokenizer that belongs to the tower, or a larger "
            "model.text.vocab_size (null: the number of pieces of the tokenizer)"
        )
    if longest is not None and max_length > longest:
        problems.append(
            f"data.max_length is {max_length} tokens, but the text tower has {longest} positions\n"
            f"  set data.max_length={longest} or less"
        )
    num_control = len(tokenizer.prefix) + len(tokenizer.suffix)
    if max_length <= num_control:
        problems.append(
            f"data.max_length={max_length} leaves no space for text: the tokenizer adds {num_control} control tokens\n"
            f"  set data.max_length={num_control + 1} or more"
        )
    return problems


def name_problems(data: ClipDataConfig) -> list[str]:
    """Return problems: held-out sets with the same name, whose metrics would have the same name, and training sets that
    are listed twice."""
    problems = []
    for name, count in Counter(set_name(source) for source in data.valid).items():
        if count > 1:
            problems.append(
                f"{count} sets of data.valid are called {name!r}, so their metrics would have the same names\n"
                "  give them names: data.valid='[{path: ..., name: ...}, ...]'"
            )
    listed = Counter((source.path, source.model_dump_json(exclude={"weight", "name"})) for source in data.train)
    for (path, _), count in listed.items():
        if count > 1:
            problems.append(
                f"data.train lists {path} {count} times\n  list it once, with a larger weight to use it more often"
            )
    return problems


def size_problems(data: ClipDataConfig, train: Sequence[Pairs]) -> list[str]:
    """Return a problem if sets are too small to fill a batch without repeated pairs."""
    if data.small_set == "wrap":
        return []
    if data.order != "shuffle":
        small = [pairs for pairs in train if len(pairs) < data.batch_size]
    else:
        has_weights = any(source.weight is not None for source in data.train)  # the loader then checks each set
        small = list(train) if not has_weights and sum(map(len, train)) < data.batch_size else []
    if not small:
        return []
    sizes = ", ".join(f"{pairs.name} has {len(pairs):,} pairs" for pairs in small)
    largest = min(map(len, small)) if data.order != "shuffle" else sum(map(len, small))
    return [
        f"data.batch_size is {data.batch_size:,}, but {sizes}: too few for a batch\n"
        f"  set data.batch_size={largest} or less, leave the set out, or set data.small_set=wrap to let pairs occur "
        "several times in a batch"
    ]


def cached_towers(config: ClipRun) -> tuple[list[Tower], list[str]]:
    """Return the towers whose features `data.cache_frozen` stores, and the settings that prevent it for the others."""
    data, towers, obstacles = config.data, list[Tower](), list[str]()
    moving = [op.op for op in data.train_transforms if not isinstance(op, Resize | ResizeShorter | CenterCrop)]
    if config.model.image.trainable:
        obstacles.append("model.image.trainable=true")
    elif moving:
        obstacles.append(f"data.train_transforms has {', '.join(moving)}, which is random")
    elif config.objective.mixup is not None:
        obstacles.append("objective.mixup mixes images")
    else:
        towers.append("image")
    if config.model.text.trainable:
        obstacles.append("model.text.trainable=true")
    elif data.text_augment is not None:
        obstacles.append("data.text_augment changes captions")
    elif any(isinstance(source.caption_key, dict) for source in data.train):
        obstacles.append("data.train draws from several captions")
    else:
        towers.append("text")
    return towers, obstacles


def check_cache(config: ClipRun) -> None:
    """Raise ConfigError if `data.cache_frozen` would store nothing."""
    if not config.data.cache_frozen:
        return
    towers, obstacles = cached_towers(config)
    if not towers:
        raise ConfigError(
            f"data.cache_frozen=true, but no tower has features that stay the same: {'; '.join(obstacles)}\n"
            "  freeze one (model.image.trainable=false) and give it fixed inputs (only resize, resize_shorter or "
            "center_crop), or leave out the cache"
        )


def check_held_out(train: Sequence[Pairs], valid: Sequence[Pairs]) -> None:
    """Raise DataError if a held-out image is in the training data.

    Files of the same name are compared byte by byte. If only name and caption are the same (an image stored again, or
    meaningless names), the log warns.
    """
    for held_out in valid:
        for trained in train:
            if held_out.fingerprint == trained.fingerprint:
                raise DataError(
                    f"data.valid={held_out.path} has the same pairs as data.train={trained.path}, so metrics on it "
                    "would be meaningless\n  hold out other pairs, or name another split of the set"
                )
            if held_out.has_names and trained.has_names:
                _check_images(trained, held_out)


def check_torn(pairs: Pairs, split: Split, on_bad_sample: str, max_bad_fraction: float = 0.0) -> None:
    """Check a set for truncated archives and unreadable captions. In training, the readable part is used if
    `on_bad_sample` allows it and at most the share `max_bad_fraction` of the set is lost. Raises DataError otherwise.
    """
    if not pairs.torn:
        return
    files = "file" if len(pairs.torn) == 1 else "files"
    problem = f"data.{split}={pairs.path}: {len(pairs.torn)} {files} cannot be read completely, such as {pairs.torn[0]}"
    again = "download or create it again (a compressed file must be unpacked)"
    if split == "valid":
        raise DataError(
            f"{problem}\n  evaluation needs every row: {again}\n  to leave out bad rows: "
            f"{packing(pairs.path, len(pairs.torn))}\n  and then data.valid=PACKED"
        )
    share = pairs.lost_share
    allow = f"data.max_bad_fraction={rounded_up(share)}"
    if on_bad_sample == "error":
        more = f" {allow}" if share > max_bad_fraction else ""
        raise DataError(f"{problem}\n  {again}, or use the readable part: data.on_bad_sample=replace{more}")
    if share > max_bad_fraction:
        raise DataError(
            f"{problem}\n  about {pairs.num_lost:,} pairs are lost, a share of {share:.2g}, which is more than "
            f"data.max_bad_fraction={max_bad_fraction:g}\n  {again}, or allow more: {allow}"
        )
    _logger.warning("%s; the %s readable pairs are used", problem, f"{len(pairs):,}")


def packing(path: str, num_bad: int) -> str:
    """Return the command that writes held-out data without the bad rows."""
    return f"pretrainkit data pack {quote(path)} --split valid --max-bad {num_bad} --out PACKED"


def check_whole(valid: Sequence[Pairs], num_examples: int | None) -> None:
    """Raise DataError if a held-out caption is empty or the file of an image is missing.

    Evaluation needs every row, and these problems are found early because they need no decoding. Only the first
    `num_examples` rows of each set are checked; None: all.
    """
    for pairs in valid:
        bad = []
        for row in range(len(pairs) if num_examples is None else min(num_examples, len(pairs))):
            if not pairs.caption(row):
                bad.append(f"{pairs.describe(row)}: it has no caption")
            elif pairs.lacks_image(row):
                bad.append(f"{pairs.describe(row)}: there is no such image")
        if bad:
            raise DataError(
                f"{len(bad):,} of {len(pairs):,} held-out rows cannot be used, such as {bad[0]}\n"
                "  evaluation needs every row: fix or remove them; to list all bad rows, use pretrainkit data "
                f"check {quote(pairs.path)}"
            )


def _check_images(trained: Pairs, held_out: Pairs) -> None:
    valid_row: dict[str, int] = {}
    for row, name in enumerate(held_out.image_names.to_pylist()):
        valid_row.setdefault(name, row)
    names = pa.array(list(valid_row), pa.large_string())
    places = pc.index_in(trained.image_names.cast(pa.large_string()), value_set=names).combine_chunks()
    known = whole_numbers(pc.indices_nonzero(places.is_valid())).tolist()
    trained_row = {trained.image_names[row].as_py(): row for row in reversed(known)}  # keep the first row of each name
    equal = [
        name
        for name, row in valid_row.items()
        if name in trained_row and _is_same_image(trained, trained_row[name], held_out, row)
    ]
    if equal:
        raise DataError(
            f"{len(equal):,} of the {len(names):,} images of data.valid={held_out.path} are also in "
            f"data.train={trained.path}, such as {equal[0]}, so metrics on them would be meaningless\n"
            "  hold out whole images, with all their captions"
        )
    pairs = {(trained.image_names[row].as_py(), trained.caption(row)) for row in known}
    alike = [name for name, row in valid_row.items() if (name, held_out.caption(row)) in pairs]
    if alike:
        _logger.warning(
            "%d images of data.valid=%s have the same name and caption as an image in data.train=%s, such as %s; if "
            "the images are the same, metrics on them are meaningless",
            *(len(alike), held_out.path, trained.path, alike[0]),
        )


def _is_same_image(trained: Pairs, trained_row: int, held_out: Pairs, row: int) -> bool:
    try:
        if trained.image_bytes(trained_row) != held_out.image_bytes(row):
            return False
        return trained.read_image(trained_row) == held_out.read_image(row)
    except BadImage:
        return False

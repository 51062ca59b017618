"""Proposal of a CLIP project from images with captions."""

from __future__ import annotations

import math
import os
import re
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from pretrainkit.corpus.survey import LeftOut
from pretrainkit.errors import DataError, MissingSplitError
from pretrainkit.recipes.clip.checks import check_held_out
from pretrainkit.recipes.clip.config import ClipSourceConfig
from pretrainkit.recipes.clip.loose_pairs import LoosePairs, find_loose_pairs
from pretrainkit.recipes.clip.open_pairs import open_pairs
from pretrainkit.recipes.clip.pairs import Pairs
from pretrainkit.recipes.clip.scan import scan
from pretrainkit.recipes.proposal import Decision, ProjectRequest, Proposal, RawData, Stage
from pretrainkit.recipes.recipe import Split
from pretrainkit.recipes.text_projects import length_decisions

CAPTIONS, WORDS, TOKENIZER = "data/captions.jsonl", "data/words.tsv", "data/tokenizer"
_HELDOUT_SHARE, _HELDOUT_IMAGES, _MOST_SHARE = 0.05, (50, 1_000), 0.2
"""Usual share of held-out images, their minimum and maximum number, and the maximum share."""
_LARGE_PAIRS, _LARGE_HOURS = 1_000_000, 24.0
_LONG_WORDS = 15
"""If more than 5 % of the captions have more words than this, the text tower reads 32 tokens instead of 25."""
_VOCABULARIES = ((20_000, 8_000), (500_000, 16_000), (math.inf, 32_000))
"""(limit, pieces): the usual number of pieces of a vocabulary for fewer pairs than the limit."""


@dataclass(frozen=True)
class PairSet:
    """A set of pairs and its statistics."""

    name: str
    path: str
    """Path for commands, which run in the project."""
    raw: tuple[str, str]
    """Link in the project, and the folder that it points to."""
    facts: dict[Split, dict[str, Any]]
    """Statistics of each split; only "train" if nothing is held out."""
    captions: list[str]
    """Captions in training."""
    loose: LoosePairs | None
    left_out: tuple[LeftOut, ...]

    @property
    def num_bad(self) -> int:
        """Number of bad images, empty captions and truncated files, which `data pack` must be allowed to leave out."""
        bad = [entry for facts in self.facts.values() for entry in facts["bad"].values()]
        return sum(entry["count"] for entry in bad)


def propose(request: ProjectRequest) -> Proposal:
    """Return the proposal. Raises DataError if there are no images with captions."""
    sets = list[PairSet]()
    for path in request.data:
        sets.append(_find(path, {pair_set.name for pair_set in sets}, request))
    raw = list[RawData]()
    num_pairs = sum(pair_set.facts["train"]["pairs"] for pair_set in sets)
    num_images = sum(pair_set.facts["train"]["images"] for pair_set in sets)
    stages, paths, heldout = list[Stage](), list[str](), list[Decision]()
    for pair_set in sets:
        if "valid" in pair_set.facts and not pair_set.num_bad:
            paths.append(pair_set.path)
            raw.append(RawData(*pair_set.raw))
            heldout.append(_held_out(pair_set, "the set has held-out images", len(sets)))
            continue
        out = "data/pairs" if len(sets) == 1 else f"data/{pair_set.name}"
        allowed = ("--max-bad", str(pair_set.num_bad)) if pair_set.num_bad else ()
        share: tuple[str, ...] = ()
        if "valid" in pair_set.facts:
            heldout.append(_held_out(pair_set, "the set has held-out images", len(sets)))
        else:
            decision = _held_out_share(pair_set, len(sets))
            heldout.append(decision)
            share = ("--heldout", repr(decision.value))
        command = ("data", "pack", pair_set.path, *share, *allowed, "--out", out)
        stages.append(Stage(f"Pack the pairs of {pair_set.name} into archives", command, unless=out))
        paths.append(out)
        raw.append(RawData(*pair_set.raw, unless=out))
    words = [len(caption.split()) for pair_set in sets for caption in pair_set.captions]
    distinct = {word for pair_set in sets for caption in pair_set.captions for word in caption.split()}
    usual = next(pieces for limit, pieces in _VOCABULARIES if num_pairs < limit)
    reachable = 2 * len({*"".join(distinct)}) + len(distinct) // 2
    vocab_size = max(100, min(usual, reachable))
    reason = f"usual for {num_pairs:,} captions" if vocab_size == usual else f"for {len(distinct):,} different words"
    train = ("tokenizer", "train", WORDS, "--kind", "wordpiece", "--vocab-size", str(vocab_size), "--out", TOKENIZER)
    stages += [
        Stage("Collect the captions", ("data", "captions", *paths, "--out", CAPTIONS), unless=CAPTIONS),
        Stage("Count words", ("corpus", "count-words", CAPTIONS, "--out", WORDS)),
        Stage("Train a vocabulary", train, unless=f"{TOKENIZER}/manifest.json"),
    ]
    is_large = request.has_accelerator and num_pairs >= _LARGE_PAIRS and request.hours >= _LARGE_HOURS
    compute = f"{request.hours:g} hours on {request.device} and {num_pairs:,} pairs"
    preset, usual_batch = ("clip/vit-b-32", 4096) if is_large else ("clip/tiny", 128)
    batch_size = min(usual_batch, 2 ** int(math.log2(max(4, num_pairs // 4))))
    has_several = num_pairs > num_images
    decisions = [
        *heldout,
        Decision("vocabulary", vocab_size, f"{reason}; WordPiece", is_setting=False),
        Decision("preset", preset, f"{compute}: {_why(is_large)}", is_setting=False),
        Decision("data.train", paths, "sets of pairs to train on"),
        Decision("data.valid", paths, "the same sets; their held-out parts are used"),
        Decision("data.tokenizer", TOKENIZER, "vocabulary of the captions"),
        Decision("data.batch_size", batch_size, f"larger batches teach more; there are {num_pairs:,} pairs"),
    ]
    if not is_large:
        crop = {"op": "random_resize_crop", "size": 64, "scale": [0.5, 1.0]}
        decisions.append(
            Decision("data.train_transforms", [crop], "crops of at least half the image still show what captions name")
        )
        long = float(np.percentile(words, 95)) > _LONG_WORDS
        length = 32 if long else 25
        reason = f"5 % of the captions have more than {np.percentile(words, 95):.0f} words"
        decisions.append(Decision("data.max_length", length, f"{reason}; the maximum length, in tokens"))
    if has_several:
        reason = f"{num_pairs:,} pairs of {num_images:,} images: pairs of the same image are not negatives"
        decisions.append(Decision("objective.duplicates", "ignore", reason))
    left_out = [part for pair_set in sets for part in (*pair_set.left_out, *_bad(pair_set))]
    return Proposal(
        preset=preset,
        facts={pair_set.name: _described(pair_set) for pair_set in sets},
        left_out=tuple(left_out),
        decisions=(*decisions, *length_decisions(request)),
        stages=tuple(stages),
        export_format="huggingface",
        raw=tuple(raw),
        write_files=lambda folder: _write_tables(folder, sets),
    )


def _why(is_large: bool) -> str:
    return "enough for 151 M parameters" if is_large else "two small towers on images of 64 x 64 pixels"


def _find(path: str, names: Collection[str], request: ProjectRequest) -> PairSet:
    """Open a set in whatever form it has, and look at all of it. Its name will differ from the other `names`. Raises
    DataError if it has no pairs."""
    name = re.sub(r"\W+", "-", Path(path).name.partition(".")[0]) or "set"
    if name in names:
        name = next(f"{name}-{number}" for number in count(2) if f"{name}-{number}" not in names)
    try:
        opened: dict[Split, Pairs] = {"train": open_pairs(ClipSourceConfig(path=path), "train")}
    except DataError as error:
        if not os.path.isdir(path):
            raise DataError(f"{path} is not a set of image-text pairs\n  {error}") from error
        if not isinstance(error, MissingSplitError):
            raise
        return _find_loose(find_loose_pairs(path), name, request)
    try:
        valid = open_pairs(ClipSourceConfig(path=path), "valid")
        if valid.fingerprint != opened["train"].fingerprint:
            opened["valid"] = valid
    except MissingSplitError:
        pass  # nothing is held out yet
    if "valid" in opened:
        check_held_out([opened["train"]], [opened["valid"]])
    facts = {split: _scanned(pairs, path, request) for split, pairs in opened.items()}
    skipped = {reason: count for pairs in opened.values() for reason, count in pairs.skipped.items()}
    left_out = tuple(LeftOut(f"entries: {reason}", count, (path,)) for reason, count in skipped.items())
    train = opened["train"]
    link = f"raw/{name}"
    inside, folder = (link, path) if os.path.isdir(path) else (f"{link}/{Path(path).name}", os.path.dirname(path))
    return PairSet(name, inside, (link, folder), facts, _captions(train), None, left_out)


def _find_loose(loose: LoosePairs, name: str, request: ProjectRequest) -> PairSet:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "train").symlink_to(loose.folder, target_is_directory=True)
        _write_table(Path(folder), loose)
        pairs = open_pairs(ClipSourceConfig(path=folder, name=name), "train")
        facts = _scanned(pairs, loose.folder, request)
        raw = (f"raw/{name}/train", loose.folder)
        return PairSet(name, f"raw/{name}", raw, {"train": facts}, _captions(pairs), loose, loose.left_out)


def _scanned(pairs: Pairs, path: str, request: ProjectRequest) -> dict[str, Any]:
    """Return the statistics of a split. Raises DataError if no image can be read."""
    facts = scan(pairs, progress=request.progress)
    if not facts["width"]:
        reasons = "".join(
            f"\n  {entry['count']:,} {why}: {entry['examples'][0]}" for why, entry in facts["bad"].items()
        )
        raise DataError(f"{path}: none of the {facts['images']:,} images can be read{reasons}")
    return facts


def _captions(pairs: Pairs) -> list[str]:
    return [text for text in map(pairs.caption, range(len(pairs))) if text]


def _write_tables(folder: Path, sets: Sequence[PairSet]) -> None:
    for pair_set in sets:
        if pair_set.loose is not None:
            _write_table(folder / pair_set.path, pair_set.loose)


def _write_table(folder: Path, loose: LoosePairs) -> None:
    """Write the table of a set whose folder has a link to the images."""
    (folder / "train_anno.csv").write_text(loose.table(), encoding="utf-8")


def _held_out_share(pair_set: PairSet, num_sets: int) -> Decision:
    """Decide on the share of images to hold out. Raises DataError if there is only one image."""
    num_images = pair_set.facts["train"]["images"]
    if num_images < 2:
        raise DataError(f"{pair_set.path}: one image cannot be both trained on and held out\n  give more images")
    least, most = _HELDOUT_IMAGES
    wanted = min(max(_HELDOUT_SHARE * num_images, least), most, max(1, _MOST_SHARE * num_images))
    share = max(1, round(wanted)) / num_images
    share = math.ceil(share * 1e4) / 1e4
    reason = f"about {max(1, round(wanted)):,} of {num_images:,} images, at least one; with all their captions"
    return Decision(_name_of("held-out share", pair_set, num_sets), share, reason, is_setting=False)


def _held_out(pair_set: PairSet, reason: str, num_sets: int) -> Decision:
    name = _name_of("held-out images", pair_set, num_sets)
    return Decision(name, pair_set.facts["valid"]["images"], reason, is_setting=False)


def _name_of(name: str, pair_set: PairSet, num_sets: int) -> str:
    return name if num_sets == 1 else f"{name} of {pair_set.name}"


def _described(pair_set: PairSet) -> str:
    train = pair_set.facts["train"]
    width, height = train["width"], train["height"]
    sides = f"; half of the images have at least {width['median']:.0f} x {height['median']:.0f} pixels" if width else ""
    held_out = f", {pair_set.facts['valid']['images']:,} held-out images" if "valid" in pair_set.facts else ""
    return f"{train['pairs']:,} pairs of {train['images']:,} images{held_out}{sides}"


def _bad(pair_set: PairSet) -> list[LeftOut]:
    return [
        LeftOut(f"rows of {pair_set.name} ({split}): {reason}", entry["count"], tuple(entry["examples"][:2]))
        for split, facts in pair_set.facts.items()
        for reason, entry in facts["bad"].items()
    ]

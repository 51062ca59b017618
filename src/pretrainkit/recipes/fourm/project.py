"""Proposal of a 4M project from folders of aligned files, one for each modality."""

from __future__ import annotations

import hashlib
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from pretrainkit.corpus.survey import LeftOut
from pretrainkit.data.aligned_samples import read_map, require_same_view
from pretrainkit.errors import DataError
from pretrainkit.images.decode import IMAGE_SUFFIXES, open_image
from pretrainkit.recipes.fourm.modality import Modality
from pretrainkit.recipes.fourm.presets import tiny_modalities
from pretrainkit.recipes.fourm.readers import JSON_SUFFIXES, boxes_of, texts_of
from pretrainkit.recipes.proposal import Decision, ProjectRequest, Proposal, RawData, Stage
from pretrainkit.recipes.text_projects import training_decisions

RAW, WORDS, TOKENIZER = "raw", "data/words.tsv", "data/tokenizer"
SOURCE = f"{RAW}/source"
"""Link to the folder of data."""
CAPTIONS, CLASSES = f"{RAW}/captions.txt", f"{RAW}/classes.txt"
_FOLDERS = {
    "rgb": ("rgb", "image", "images", "img", "photos", "photo"),
    "depth": ("depth", "depths"),
    "seg": ("seg", "semseg", "segmentation", "classes", "masks", "labels"),
    "caption": ("caption", "captions", "text", "texts"),
    "det": ("det", "boxes", "detection", "detections"),
}
"""Usual names of the folder of each modality."""
_SUFFIXES = {
    "rgb": IMAGE_SUFFIXES,
    "depth": (".png", ".npy"),
    "seg": (".png",),
    "caption": (".txt", *JSON_SUFFIXES),
    "det": JSON_SUFFIXES,
}
_DESCRIPTIONS = {
    "rgb": "photographs, read as pixels, predicted as the colours of patches",
    "depth": "depth of patches, in 64 steps",
    "seg": "the most frequent class of each patch",
    "caption": "captions",
    "det": "boxes with classes",
}
_SPLITS = ("train", "valid")
_HELDOUT_SHARE, _LEAST_HELDOUT, _MOST_HELDOUT = 0.05, 8, 256
_MOST_SHARE = 0.2
_NUM_SENTINELS, _NUM_NUMBERS, _NUM_CONTROLS = 50, 4_000, 4
_MOST_PASSES = 200
"""Maximum number of passes over the data. It is larger than for text, because each pass draws new inputs and
targets."""
_OTHER_CLASS = 255


@dataclass
class Facts:
    """Facts about the files of all samples."""

    captions: list[str] = field(default_factory=list)
    classes: Counter[str] = field(default_factory=Counter)
    """Names of the classes of boxes."""
    largest_class: int = 0
    """Largest number in class maps, except 255."""


@dataclass(frozen=True)
class Aligned:
    """Samples with a file of each modality."""

    folders: dict[str, str]
    """Name of the folder of each modality."""
    samples: dict[str, dict[str, Path]]
    """Files of each sample by modality; the outer key is that of the sample."""
    left_out: list[LeftOut]


def propose(request: ProjectRequest) -> Proposal:
    """Return the proposal for a folder of data. Raises DataError if it has no aligned folders or too few samples."""
    if len(request.data) != 1 or not os.path.isdir(request.data[0]):
        raise DataError(
            f"{', '.join(request.data)}: aligned files must be in one folder, with a folder for each modality\n"
            f"  pass that folder; its folders have names such as {', '.join(_FOLDERS)}"
        )
    root = Path(request.data[0])
    has_splits = all((root / split).is_dir() for split in _SPLITS)
    facts = Facts()
    train = _aligned(root / "train" if has_splits else root, facts, request)
    if has_splits:
        valid = _aligned(root / "valid", Facts(), request, train.folders)
        parts = {"train": train.samples, "valid": valid.samples}
        left_out, held_out = [*train.left_out, *valid.left_out], f"the folder valid has {len(valid.samples):,} samples"
    else:
        parts = _split(train.samples)
        left_out = train.left_out
        held_out = (
            f"{len(parts['valid']):,} of {len(train.samples):,} samples, by a hash of their files: about 5 %, at least "
            "one"
        )
    modalities = _modalities(train.folders, facts)
    has_text = any(modality.kind == "sequence" for modality in modalities)
    decisions = [
        Decision("held-out samples", len(parts["valid"]), held_out, is_setting=False),
        Decision("preset", "fourm/tiny", _why(request), is_setting=False),
        Decision(
            "model.modalities",
            [modality.model_dump(mode="json", exclude_defaults=True) for modality in modalities],
            "; ".join(f"{train.folders[kind]}: {_DESCRIPTIONS[kind]}" for kind in train.folders),
        ),
        *training_decisions(request, RAW, 32, len(parts["train"]), _MOST_PASSES),
    ]
    stages: list[Stage] = []
    if has_text:
        vocabulary = _vocabulary(facts)
        decisions += [vocabulary, Decision("data.tokenizer", TOKENIZER, "vocabulary of captions and boxes")]
        classes = ("--classes", CLASSES) if facts.classes else ()
        train_words = (
            *("tokenizer", "train", WORDS, "--kind", "multimodal", "--lowercase"),
            *("--sentinels", str(_NUM_SENTINELS), *classes, "--vocab-size", str(vocabulary.value), "--out", TOKENIZER),
        )
        stages = [
            Stage("Count words", ("corpus", "count-words", CAPTIONS, "--out", WORDS)),
            Stage("Train a vocabulary", train_words, unless=f"{TOKENIZER}/manifest.json"),
        ]
    return Proposal(
        preset="fourm/tiny",
        facts={
            "samples": f"{sum(map(len, parts.values())):,} with a file of each modality",
            "modalities": ", ".join(
                f"{kind} (folder {name})" if kind != name else name for kind, name in train.folders.items()
            ),
        },
        left_out=tuple(left_out),
        decisions=tuple(decisions),
        stages=tuple(stages),
        export_format="safetensors",
        raw=(RawData(SOURCE, str(root)),),
        write_files=lambda folder: _write(folder, root, parts, facts),
    )


def _why(request: ProjectRequest) -> str:
    more = "; the larger presets need image tokenizers (docs/tutorials/fourm.md)" if request.has_accelerator else ""
    return f"needs no image tokenizers, and learns in {request.hours:g} hours on {request.device}{more}"


def _aligned(root: Path, facts: Facts, request: ProjectRequest, expected: Mapping[str, str] | None = None) -> Aligned:
    """Read all files below a folder. Raises DataError if it has fewer than two modalities or two complete samples."""
    names = sorted(entry.name for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    by_kind = {kind: name for name in names for kind, usual in _FOLDERS.items() if name.lower() in usual}
    folders = {kind: by_kind[kind] for kind in _FOLDERS if kind in by_kind}
    if expected is not None and folders.keys() != expected.keys():
        raise DataError(
            f"{root} has the modalities {', '.join(folders) or 'none'}, but the training data has "
            f"{', '.join(expected)}\n  give both folders the same modalities"
        )
    if len(folders) < 2 or "rgb" not in folders:
        existing = f"its folders are {', '.join(names)}" if names else "it has no folders"
        raise DataError(
            f"{root} has no photographs with another modality; {existing}\n"
            "  it needs a folder rgb, and at least one of "
            f"{', '.join(kind for kind in _FOLDERS if kind != 'rgb')}, with files of the same names"
        )
    unknown = [name for name in names if name not in folders.values()]
    left_out = (
        [LeftOut(f"folders of unknown modalities in {root}", len(unknown), tuple(unknown[:3]))] if unknown else []
    )
    files = {kind: dict(_files(root / name, _SUFFIXES[kind])) for kind, name in folders.items()}
    all_keys = sorted(set().union(*files.values()))
    complete = [key for key in all_keys if all(key in by_key for by_key in files.values())]
    if len(complete) < len(all_keys):
        lacking = next(key for key in all_keys if key not in set(complete))
        left_out.append(LeftOut(f"samples of {root} that lack a modality", len(all_keys) - len(complete), (lacking,)))
    request.progress.stage(f"reading {root.name}", len(complete), "sample")
    samples, broken = dict[str, dict[str, Path]](), list[str]()
    for key in complete:
        request.progress.advance(1)
        paths = {kind: by_key[key] for kind, by_key in files.items()}
        try:
            sizes = dict[str, tuple[int, int]]()
            for kind, path in paths.items():
                content = _READ[kind](path.read_bytes(), str(path), facts)
                if content is not None:
                    sizes[kind] = content.shape[:2]
                    require_same_view(str(path), sizes[kind], str(paths["rgb"]), sizes["rgb"])
        except DataError as error:
            broken.append(str(error).partition("\n")[0])
        else:
            samples[key] = paths
    if broken:
        left_out.append(LeftOut(f"samples of {root} with a broken file", len(broken), tuple(broken[:3])))
    if len(samples) < 2:
        reasons = "".join(f"\n  left out: {item.count:,} {item.kind}, such as {item.examples[0]}" for item in left_out)
        raise DataError(
            f"{root} has {len(samples)} usable samples{reasons}\n"
            "  provide at least two, with a file of the same name in each folder"
        )
    return Aligned(folders, samples, left_out)


def _files(folder: Path, suffixes: tuple[str, ...]) -> Iterator[tuple[str, Path]]:
    """Yield the key of each file (its path in the folder without the suffix) and its path."""
    for place, _, names in os.walk(folder, followlinks=True):
        for name in sorted(names):
            if suffix := _suffix_of(name, suffixes):
                path = Path(place, name)
                yield str(path.relative_to(folder))[: -len(suffix)], path


def _suffix_of(name: str, suffixes: tuple[str, ...]) -> str:
    """Return the longest of `suffixes` that a file name has; "" if it has none of them."""
    return max((suffix for suffix in suffixes if name.lower().endswith(suffix)), key=len, default="")


def _read_seg(content: bytes, name: str, facts: Facts) -> NDArray[Any]:
    classes = read_map(content, name)
    inside = classes[classes != _OTHER_CLASS]
    facts.largest_class = max(facts.largest_class, int(inside.max(initial=0)))
    return classes


def _read_caption(content: bytes, name: str, facts: Facts) -> None:
    facts.captions += texts_of(content, name)


def _read_boxes(content: bytes, name: str, facts: Facts) -> None:
    facts.classes.update(boxes_of(content, name))


_READ: Mapping[str, Callable[[bytes, str, Facts], NDArray[Any] | None]] = {
    "rgb": lambda content, name, facts: open_image(content, name=name).decode(),
    "depth": lambda content, name, facts: read_map(content, name),
    "seg": _read_seg,
    "caption": _read_caption,
    "det": _read_boxes,
}
"""Functions that decode a file of each modality and add facts about it. They return the pixels of images and maps, and
raise DataError for broken files."""


def _split(samples: dict[str, dict[str, Path]]) -> dict[str, dict[str, dict[str, Path]]]:
    """Hold out the samples whose photographs have the lowest hashes, so that copies are in the same split. Raises
    DataError if all photographs are equal."""
    hashes = {key: hashlib.blake2b(files["rgb"].read_bytes(), digest_size=8).digest() for key, files in samples.items()}
    different = sorted(set(hashes.values()))
    if len(different) < 2:
        raise DataError(
            f"all {len(samples):,} photographs are equal, so none can be held out\n  provide different photographs"
        )
    num_held_out = min(
        max(_HELDOUT_SHARE * len(different), _LEAST_HELDOUT), _MOST_HELDOUT, _MOST_SHARE * len(different)
    )
    threshold = different[max(1, int(num_held_out)) - 1]
    return {
        "train": {key: files for key, files in samples.items() if hashes[key] > threshold},
        "valid": {key: files for key, files in samples.items() if hashes[key] <= threshold},
    }


def _modalities(folders: Mapping[str, str], facts: Facts) -> list[Modality]:
    """Return the modalities of fourm/tiny that the data has. Their folders are those of the project."""
    kept = [modality for modality in tiny_modalities() if modality.path in folders]
    # Classes are numbered from 0; the last number replaces 255.
    num_classes = facts.largest_class + 2
    return [m.model_copy(update={"vocab_size": num_classes}) if m.path == "seg" else m for m in kept]


def _vocabulary(facts: Facts) -> Decision:
    # Letters, each punctuation mark, and no accents, as the tokenizer cuts texts.
    texts = (unicodedata.normalize("NFD", line.lower()) for line in _lines(facts))
    plain = ("".join(char for char in text if unicodedata.category(char) != "Mn") for text in texts)
    words = {word for text in plain for word in re.findall(r"[^\W_]+|[^\w\s]|_", text)}
    fixed = _NUM_CONTROLS + _NUM_SENTINELS + _NUM_NUMBERS + len(facts.classes)
    # A letter is one piece at the beginning of words, and another one inside.
    letters = len({word[0] for word in words}) + len({letter for word in words for letter in word[1:]})
    pieces = letters + len([word for word in words if len(word) > 1]) // 2
    return Decision(
        "vocabulary",
        fixed + pieces,
        f"{pieces:,} pieces for {len(words):,} words of {'captions' if facts.captions else 'class names'}, "
        f"{_NUM_NUMBERS:,} numbers of boxes, {len(facts.classes):,} classes, {_NUM_SENTINELS} sentinels, "
        f"{_NUM_CONTROLS} control pieces",
        is_setting=False,
    )


def _lines(facts: Facts) -> Sequence[str]:
    """Return the texts on which the vocabulary is trained: captions, or without any the names of classes."""
    return facts.captions or sorted(facts.classes)


def _write(folder: Path, root: Path, parts: Mapping[str, Mapping[str, Mapping[str, Path]]], facts: Facts) -> None:
    """Write folders with links to the files of all used samples, and the texts for the vocabulary."""
    for split, samples in parts.items():
        for key, files in samples.items():
            for kind, path in files.items():
                link = folder / RAW / split / kind / f"{key}{_suffix_of(path.name, _SUFFIXES[kind])}"
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(os.path.relpath(folder / SOURCE / path.relative_to(root), link.parent))
    if lines := _lines(facts):
        text = "\n\n".join(" ".join(line.split()) for line in lines)
        (folder / CAPTIONS).write_text(f"{text}\n", encoding="utf-8")
    if facts.classes:
        (folder / CLASSES).write_text("\n".join(sorted(facts.classes)) + "\n", encoding="utf-8")

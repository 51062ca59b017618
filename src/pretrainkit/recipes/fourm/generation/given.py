"""What people give to generate from, as tokens of a model: texts, files, or whole samples of its data. What is known of
examples while others of their modalities are generated, and its rows in a batch.

Dimensions: B examples, P places of an image, C, H, W channels, height and width, L vectors of E numbers.
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrainkit import rng
from pretrainkit.data.aligned_crops import Part, centre_square, stored_part
from pretrainkit.data.aligned_samples import CROP_SETTINGS, Samples, read_array
from pretrainkit.errors import DataError, InputError
from pretrainkit.recipes.fourm.batch import HostBatch, continuous, filled_rows
from pretrainkit.recipes.fourm.config import FourMRun
from pretrainkit.recipes.fourm.generation.plan import inputs_named, require_inputs
from pretrainkit.recipes.fourm.modality import Modality
from pretrainkit.recipes.fourm.model import FourM
from pretrainkit.recipes.fourm.readers import Chunks, Content, Request, reader_of
from pretrainkit.recipes.fourm.sequences import Ids
from pretrainkit.recipes.fourm.source import UNKNOWN_SIZE, FourMSource, set_name
from pretrainkit.recipes.fourm.text import TextVocabulary

_READERS = rng.stream_key(0, "fourm", "generation", "readers")


@dataclass(frozen=True)
class File:
    """A file of one modality."""

    content: bytes
    name: str
    """For messages."""


@dataclass(frozen=True)
class Example:
    """Given texts and files by a name of a modality."""

    key: str
    """For names of files."""
    values: Mapping[str, str | File]
    truth: Mapping[str, File] = field(default_factory=dict)
    """Files of a sample of data, by whole name of a modality, whether they are given or not."""
    crop_settings: File | None = None
    """Of a sample whose tokens were made before."""
    data_set: str | None = None
    """Name of the data set of a sample."""


def from_words(words: Sequence[str]) -> dict[str, str]:
    """Return `NAME=VALUE` words of a command line by name. Raises InputError where one is written otherwise, or comes
    twice."""
    found: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise InputError(
                f"--from {word}: there is nothing to read\n"
                "  write NAME=TEXT or NAME=FILE, as in rgb=photo.png; a NAME alone goes with --from-data"
            )
        if name in found:
            raise InputError(f"--from {name} comes twice\n  leave one out")
        found[name] = value
    return found


def value_of(name: str, value: str, modalities: Sequence[Modality]) -> str | File:
    """Return the text for sequences, unless it names a file that they are read from; else the file. Raises DataError
    where the file cannot be read, InputError where the model reads nothing of that name."""
    kinds = require_inputs(name, [modalities])
    suffixes = {suffix for modality in kinds for suffix in reader_of(modality).suffixes}
    path, has_suffix = Path(value), value.lower().endswith(tuple(suffixes))
    is_text = all(modality.kind == "sequence" for modality in kinds)
    if is_text and not (has_suffix and path.is_file()):
        return value
    fix = f"  give one that ends in {', '.join(sorted(suffixes))}"
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"--from {name}={value}: the file cannot be read: {error.strerror or error}\n{fix}") from error
    if not has_suffix:
        raise DataError(f"--from {name}={value}: {kinds[0].name} is not read from such files\n{fix}")
    return File(content, value)


def data_examples(source: FourMSource, indices: Sequence[tuple[int, int]], names: Container[str]) -> list[Example]:
    """Samples of data sets, by number of the set and of the sample in it. `names`: whole names of the modalities that
    are given; a sample may lack some."""
    found = []
    for number, index in indices:
        one = source.sets[number]
        files = {
            source.modalities[place].name: _file(one.samples, folder, index) for place, folder in one.folders.items()
        }
        has_parts = CROP_SETTINGS in one.samples.folders
        crops = _file(one.samples, CROP_SETTINGS, index) if has_parts else None
        given = {name: file for name, file in files.items() if name in names}
        key = one.samples.keys[index].replace("/", "_")
        key = f"{number}_{key}" if len(source.sets) > 1 else key
        found.append(Example(key, given, files, crops, set_name(one.config)))
    return found


def _file(samples: Samples, folder: str, index: int) -> File:
    return File(samples.read(folder, index), samples.name(folder, index))


@dataclass
class Known:
    """Contents of examples that are known so far."""

    num: int
    """B."""
    contents: dict[str, list[NDArray[Any] | None]] = field(default_factory=dict)
    """By name of a modality, one for each example; None: nothing is known. Image: int32 (P,), -1 where a place is open.
    Sequence: int32 ids, a sentinel where something is missing. Pixels: uint8 (C, H, W). Vectors: float32 (L, E)."""

    def of(self, name: str) -> list[NDArray[Any] | None]:
        """Contents of one modality."""
        return self.contents.get(name, [None] * self.num)

    def names(self) -> list[str]:
        """Modalities of which something is known."""
        return [name for name, values in self.contents.items() if any(value is not None for value in values)]

    def take(self, rows: Sequence[int]) -> "Known":
        """The examples of `rows`, in new lists of the same arrays."""
        return Known(len(rows), {name: [values[row] for row in rows] for name, values in self.contents.items()})


_DTYPES = {"image": np.int32, "pixels": np.uint8, "vectors": np.float32}


@dataclass(frozen=True)
class Link:
    """One model of a chain, which reads examples as its config says."""

    config: FourMRun
    model: FourM
    vocabulary: TextVocabulary | None

    @property
    def modalities(self) -> tuple[Modality, ...]:
        return self.config.model.modalities

    def known(self, examples: Sequence[Example]) -> Known:
        """Return what the model knows of examples. Raises DataError where a file is broken, InputError where a text is
        too long, or its sentinels have no order."""
        found = Known(len(examples))
        for modality in self.modalities:
            contents = [self._content(example, modality) for example in examples] if modality.is_input else []
            if any(content is not None for content in contents):
                found.contents[modality.name] = contents
        return found

    def truth(self, example: Example, modality: Modality) -> Ids | None:
        """Return an image or a sequence that a sample of data has; None: it has none."""
        same_key = (one for name, one in example.truth.items() if name.partition("@")[0] == modality.key)
        file = example.truth.get(modality.name) or next(same_key, None)
        if file is None:
            return None
        return self._array(self._read(file, modality, example), modality, may_cut=True)

    def _content(self, example: Example, modality: Modality) -> NDArray[Any] | None:
        value = self._value(example, modality)
        if value is None:
            return None
        if isinstance(value, File):
            return self._array(self._read(value, modality, example), modality, may_cut=True)
        return self._array(value, modality, may_cut=False)

    def _value(self, example: Example, modality: Modality) -> str | File | None:
        named = (value for name, value in example.values.items() if modality in inputs_named(name, self.modalities))
        return next(named, None)

    def _read(self, file: File, modality: Modality, example: Example) -> Content:
        drawn_from, part = rng.generator(_READERS), self._part(example)
        request = Request(modality, part, drawn_from, is_training=False, data=self.config.data, name=file.name)
        return reader_of(modality).read(file.content, request)

    def _part(self, example: Example) -> Part:
        files = {**example.truth, **{name: one for name, one in example.values.items() if isinstance(one, File)}}
        size = None
        for name, file in files.items():
            for modality in inputs_named(name, self.modalities):
                size = size or reader_of(modality).image_size(file.content, file.name)
        if example.crop_settings is not None:
            settings = example.crop_settings
            return stored_part(read_array(settings.content, settings.name), 0, size, settings.name)
        return centre_square(*(size or UNKNOWN_SIZE))

    def _array(self, content: Content, modality: Modality, *, may_cut: bool) -> NDArray[Any]:
        """As in `Known.contents`. Files that are too long are cut, as in training; texts of people are refused."""
        if modality.kind != "sequence":
            values = np.asarray(content, _DTYPES[modality.kind])
            return values.reshape(modality.max_tokens) if modality.kind == "image" else values
        vocabulary = self.vocabulary
        assert vocabulary is not None
        if isinstance(content, str):
            return self._text(content, modality, vocabulary, may_cut=may_cut)
        if isinstance(content, Chunks):
            ids = [token for words in content.words for token in vocabulary.encode_words(words)]
        else:
            ids = vocabulary.encode_words(content) if isinstance(content, list) else np.asarray(content).tolist()
        return np.array([*ids, vocabulary.eos][: modality.max_tokens], np.int32)

    def _text(self, text: str, modality: Modality, vocabulary: TextVocabulary, *, may_cut: bool) -> Ids:
        ids = vocabulary.encode([text])[0]
        first, sentinels = vocabulary.sentinels[1], set(vocabulary.sentinels)
        holes = [token for token in ids if token in sentinels]
        if holes != list(range(first, first + len(holes))):
            raise InputError(
                f"--from {modality.name}: what is missing in {text!r} is not numbered in order\n"
                "  write [S_1] in the first place, [S_2] in the second, …"
            )
        # A text that ends in a hole has its end mark in it.
        ids = ids if holes and ids[-1] == holes[-1] else [*ids, vocabulary.eos]
        if len(ids) > modality.max_tokens and not may_cut:
            raise InputError(
                f"--from {modality.name}: the text has {len(ids)} tokens with its end mark, but {modality.name} has at "
                f"most {modality.max_tokens}: {text if len(text) <= 60 else text[:57] + '…'!r}\n  give a shorter one"
            )
        return np.array(ids[: modality.max_tokens], np.int32)


View = frozenset[str]
"""Names of modalities that are hidden."""


def encoder_rows(
    known: Known, rows: Sequence[int], views: Sequence[View], modalities: Sequence[Modality], sentinel: int
) -> HostBatch:
    """Return the encoder's half of a batch: for each view all of `rows`, view by view. A hidden image is away; of a
    hidden sequence a sentinel is left (the id `sentinel`), as in training where all of it is to be predicted."""
    found = [
        [
            (number, *tokens)
            for number, modality in enumerate(modalities)
            if modality.is_input and (tokens := _tokens(known, row, modality, modality.name in view, sentinel))
        ]
        for view in views
        for row in rows
    ]
    whole = {name: values * len(views) for name, values in known.take(rows).contents.items()}
    return filled_rows("encoder", found) | continuous(modalities, len(found), whole)


def _tokens(known: Known, row: int, modality: Modality, is_hidden: bool, sentinel: int) -> tuple[Ids, Ids] | None:
    """Positions and ids of what the encoder sees of a modality; None: nothing is known of it."""
    given = known.of(modality.name)[row]
    if given is None:
        return None
    if modality.kind in ("image", "pixels"):
        ids = given if modality.kind == "image" else np.arange(modality.max_tokens, dtype=np.int32)
        seen = np.flatnonzero((ids >= 0) & (not is_hidden)).astype(np.int32)
        return seen, ids[seen]
    # The ids of vectors are their numbers, and -1 is zeros.
    hidden, whole = (sentinel, given) if modality.kind == "sequence" else (-1, np.arange(len(given)))
    ids = np.array([hidden], np.int32) if is_hidden else np.asarray(whole, np.int32)
    positions = np.arange(len(ids), dtype=np.int32)
    return np.where(positions < modality.max_length, positions, 0).astype(np.int32), ids


def decoder_rows(places: Sequence[NDArray[np.integer]], number: int, num_views: int) -> HostBatch:
    """Return the decoder's half: for each view, the same places of image modality `number`, ascending for each
    example."""
    return filled_rows("decoder", [[(number, own, np.zeros_like(own))] for own in places] * num_views)

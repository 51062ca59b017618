"""Inputs of generation: texts, files or samples of data, converted to the tokens of a model.

The module also stores the known contents of examples during generation, and converts them to rows of a batch.

Dimensions: B examples, P patches of an image, C, H, W channels, height and width, L vectors of E numbers.
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
from pretrainkit.recipes.fourm.readers import Chunks, Content, Request, read_file, reader_of
from pretrainkit.recipes.fourm.sequences import Ids
from pretrainkit.recipes.fourm.source import UNKNOWN_SIZE, FourMSource, set_name
from pretrainkit.recipes.fourm.text import TextVocabulary

_READERS = rng.stream_key(0, "fourm", "generation", "readers")


@dataclass(frozen=True)
class File:
    """File of one modality."""

    content: bytes
    name: str
    """Name of the file in messages."""


@dataclass(frozen=True)
class Example:
    """Example to generate from: its input texts and files."""

    key: str
    """Name of the example in file names."""
    values: Mapping[str, str | File]
    """Input texts and files by a name of a modality."""
    truth: Mapping[str, File] = field(default_factory=dict)
    """All files of a sample of data by full name of a modality, both inputs and others."""
    crop_settings: File | None = None
    """Crop settings of a sample whose tokens are stored in files."""
    data_set: str | None = None
    """Name of the data set that the sample is from."""


def from_words(words: Sequence[str]) -> dict[str, str]:
    """Return the values of `NAME=VALUE` arguments by name. Raises InputError if one has another form or if a name is
    repeated."""
    values: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise InputError(
                f"--from {word} has no value\n"
                "  write NAME=TEXT or NAME=FILE, as in rgb=photo.png; a NAME alone works only with --from-data"
            )
        if name in values:
            raise InputError(f"--from {name} is given more than once\n  keep one of them")
        values[name] = value
    return values


def value_of(name: str, value: str, modalities: Sequence[Modality]) -> str | File:
    """Return the text or the file that `value` means. It is a text for sequences, unless it names an existing file with
    a suffix of their reader. Raises DataError if the file cannot be read, and InputError if the model has no input of
    that name."""
    kinds = require_inputs(name, [modalities])
    suffixes = {suffix for modality in kinds for suffix in reader_of(modality).suffixes}
    path, has_suffix = Path(value), value.lower().endswith(tuple(suffixes))
    is_text = all(modality.kind == "sequence" for modality in kinds)
    if is_text and not (has_suffix and path.is_file()):
        return value
    fix = f"  use a file that ends in {', '.join(sorted(suffixes))}"
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"--from {name}={value}: the file cannot be read: {error.strerror or error}\n{fix}") from error
    if not has_suffix:
        raise DataError(f"--from {name}={value}: {kinds[0].name} cannot be read from a file of this type\n{fix}")
    return File(content, value)


def data_examples(source: FourMSource, indices: Sequence[tuple[int, int]], names: Container[str]) -> list[Example]:
    """Return samples of data sets as examples. `indices`: index of the data set and of the sample in it. `names`: full
    names of the input modalities; a sample may lack some of them."""
    examples = []
    for number, index in indices:
        sample_set = source.sets[number]
        files = {
            source.modalities[place].name: _file(sample_set.samples, folder, index)
            for place, folder in sample_set.folders.items()
        }
        has_parts = CROP_SETTINGS in sample_set.samples.folders
        crops = _file(sample_set.samples, CROP_SETTINGS, index) if has_parts else None
        inputs = {name: file for name, file in files.items() if name in names}
        key = sample_set.samples.keys[index].replace("/", "_")
        key = f"{number}_{key}" if len(source.sets) > 1 else key
        examples.append(Example(key, inputs, files, crops, set_name(sample_set.config)))
    return examples


def _file(samples: Samples, folder: str, index: int) -> File:
    return File(samples.read(folder, index), samples.name(folder, index))


@dataclass
class Known:
    """Contents of B examples that are known so far."""

    num: int
    """Number of examples, B."""
    contents: dict[str, list[NDArray[Any] | None]] = field(default_factory=dict)
    """Contents of each example by name of a modality; None: unknown. Image: int32 (P,), -1 for an open patch. Sequence:
    int32 ids, a sentinel for each missing part. Pixels: uint8 (C, H, W). Vectors: float32 (L, E)."""

    def of(self, name: str) -> list[NDArray[Any] | None]:
        """Return the contents of one modality, one for each example."""
        return self.contents.get(name, [None] * self.num)

    def names(self) -> list[str]:
        """Return the names of modalities with a known content in any example."""
        return [name for name, values in self.contents.items() if any(value is not None for value in values)]

    def take(self, rows: Sequence[int]) -> "Known":
        """Return the examples of `rows`, in new lists of the same arrays."""
        return Known(len(rows), {name: [values[row] for row in rows] for name, values in self.contents.items()})


_DTYPES = {"image": np.int32, "pixels": np.uint8, "vectors": np.float32}


@dataclass(frozen=True)
class Link:
    """Model of a chain, with the config that says how it reads examples."""

    config: FourMRun
    model: FourM
    vocabulary: TextVocabulary | None

    @property
    def modalities(self) -> tuple[Modality, ...]:
        return self.config.model.modalities

    def known(self, examples: Sequence[Example]) -> Known:
        """Return the contents of examples that the model reads. Raises DataError if a file is broken, and InputError if
        a text is too long or if its sentinels are not numbered in order."""
        known = Known(len(examples))
        for modality in self.modalities:
            contents = [self._content(example, modality) for example in examples] if modality.is_input else []
            if any(content is not None for content in contents):
                known.contents[modality.name] = contents
        return known

    def truth(self, example: Example, modality: Modality) -> Ids | None:
        """Return the true tokens of a target from the sample's own file; None: the sample has no such file."""
        same_key = (file for name, file in example.truth.items() if name.partition("@")[0] == modality.key)
        true_file = example.truth.get(modality.name) or next(same_key, None)
        if true_file is None:
            return None
        return self._array(self._read(true_file, modality, example), modality, may_cut=True)

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
        generator, part = rng.generator(_READERS), self._part(example)
        request = Request(modality, part, generator, is_training=False, data=self.config.data, name=file.name)
        return read_file(reader_of(modality), file.content, request)

    def _part(self, example: Example) -> Part:
        files = {**example.truth, **{name: v for name, v in example.values.items() if isinstance(v, File)}}
        size = None
        for name, file in files.items():
            for modality in inputs_named(name, self.modalities):
                size = size or reader_of(modality).image_size(file.content, file.name)
        if example.crop_settings is not None:
            settings = example.crop_settings
            return stored_part(read_array(settings.content, settings.name), 0, size, settings.name)
        return centre_square(*(size or UNKNOWN_SIZE))

    def _array(self, content: Content, modality: Modality, *, may_cut: bool) -> NDArray[Any]:
        """Return a content in the form of `Known.contents`. Sequences that are too long are cut if `may_cut`, as files
        in training; otherwise they are refused."""
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
        first_sentinel, sentinels = vocabulary.sentinels[1], set(vocabulary.sentinels)
        missing = [token for token in ids if token in sentinels]
        if missing != list(range(first_sentinel, first_sentinel + len(missing))):
            raise InputError(
                f"--from {modality.name}: the missing parts in {text!r} are not numbered in order\n"
                "  write [S_1] for the first missing part, [S_2] for the second, …"
            )
        # If the end of a text is missing, its end mark is missing, too.
        ids = ids if missing and ids[-1] == missing[-1] else [*ids, vocabulary.eos]
        if len(ids) > modality.max_tokens and not may_cut:
            raise InputError(
                f"--from {modality.name}: the text has {len(ids)} tokens with its end mark, but {modality.name} has at "
                f"most {modality.max_tokens}: {text if len(text) <= 60 else text[:57] + '…'!r}\n  use a shorter text"
            )
        return np.array(ids[: modality.max_tokens], np.int32)


View = frozenset[str]
"""Names of the modalities that are hidden in a pass of the encoder."""


def encoder_rows(
    known: Known, rows: Sequence[int], views: Sequence[View], modalities: Sequence[Modality], sentinel: int
) -> HostBatch:
    """Return the encoder part of a batch: all of `rows` for each view, view after view. A hidden image has no tokens. A
    hidden sequence has only the token `sentinel`, as in training if the complete sequence is a target."""
    pieces = [
        [
            (number, *tokens)
            for number, modality in enumerate(modalities)
            if modality.is_input and (tokens := _tokens(known, row, modality, modality.name in view, sentinel))
        ]
        for view in views
        for row in rows
    ]
    contents = {name: values * len(views) for name, values in known.take(rows).contents.items()}
    return filled_rows("encoder", pieces) | continuous(modalities, len(pieces), contents)


def _tokens(known: Known, row: int, modality: Modality, is_hidden: bool, sentinel: int) -> tuple[Ids, Ids] | None:
    """Return positions and ids of the tokens that the encoder sees of a modality; None: its content is unknown."""
    content = known.of(modality.name)[row]
    if content is None:
        return None
    if modality.kind in ("image", "pixels"):
        ids = content if modality.kind == "image" else np.arange(modality.max_tokens, dtype=np.int32)
        visible = np.flatnonzero((ids >= 0) & (not is_hidden)).astype(np.int32)
        return visible, ids[visible]
    # The ids of vectors are their indices; -1 means a vector of zeros.
    hidden, whole = (sentinel, content) if modality.kind == "sequence" else (-1, np.arange(len(content)))
    ids = np.array([hidden], np.int32) if is_hidden else np.asarray(whole, np.int32)
    positions = np.arange(len(ids), dtype=np.int32)
    return np.where(positions < modality.max_length, positions, 0).astype(np.int32), ids


def decoder_rows(places: Sequence[NDArray[np.integer]], number: int, num_views: int) -> HostBatch:
    """Return the decoder part of a batch: for each view the same `places` (patches) of image modality `number`,
    ascending for each example."""
    return filled_rows("decoder", [[(number, own, np.zeros_like(own))] for own in places] * num_views)

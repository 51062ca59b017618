"""Data of the 4M recipe: it reads aligned files and builds masked batches (see `batch.py`) of any records in any order.

Dimensions: B samples, P patches of an image.
"""

import hashlib
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from shlex import quote
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrainkit import rng
from pretrainkit.data.aligned_crops import Part, centre_square, draw_part, stored_part
from pretrainkit.data.aligned_samples import (
    CROP_SETTINGS,
    Samples,
    folders_of,
    is_stream,
    open_samples,
    read_array,
    require_same_view,
)
from pretrainkit.data.source import BatchSource, Records
from pretrainkit.errors import ConfigError, DataError
from pretrainkit.recipes.fourm.batch import HostBatch, continuous, with_places
from pretrainkit.recipes.fourm.config import FourMRun, FourMSetConfig
from pretrainkit.recipes.fourm.masking import Contents, Masking
from pretrainkit.recipes.fourm.mixtures import Bound
from pretrainkit.recipes.fourm.modality import Modality, as_setting
from pretrainkit.recipes.fourm.readers import Chunks, Content, Request, read_file, reader_of
from pretrainkit.recipes.fourm.sequences import Ids, Ragged, spans
from pretrainkit.recipes.fourm.text import TextVocabulary
from pretrainkit.recipes.recipe import Split
from pretrainkit.workers.processes import Progress, available_cores

_VALID = rng.stream_key(0, "fourm", "valid")
_CHECK = rng.stream_key(0, "fourm", "data check")
_CHECKED_AT_ONCE = 64
_PART, _MASKS, _READERS = range(3)
"""Random streams of an example's key."""
UNKNOWN_SIZE = (224, 224)
"""(height, width) that is assumed for samples without an image. Parts are scaled to each file."""


@dataclass(frozen=True)
class Sample:
    """Contents of the files of one sample, before masking."""

    key: str
    part: Part
    contents: Mapping[int, Content]
    """Contents by index of the modality."""


class SampleSet:
    """Data set with the modalities of a model."""

    def __init__(
        self, config: FourMSetConfig, samples: Samples, run: FourMRun, present: Sequence[int], masking: Masking
    ) -> None:
        """`run`: bound config. `present`: indices of the modalities that the data set has. `masking`: for this data
        set."""
        self.config, self.samples, self.masking, self.data = config, samples, masking, run.data
        self.modalities, self.present = run.model.modalities, tuple(present)
        self.folders = {number: folder_of(config, self.modalities[number]) for number in present}
        self._readers = {number: reader_of(self.modalities[number]) for number in present}

    def read(self, index: int, key: int, *, is_training: bool) -> Sample:
        """Read a sample, cropped and serialized. Raises DataError if a file is missing or broken."""
        files = {number: self.samples.read(folder, index) for number, folder in self.folders.items()}
        part = self._part(index, self.size(index, files), rng.fold_one(key, _PART), is_training=is_training)
        contents = {
            number: self.read_file(number, index, content, part, key, is_training=is_training)
            for number, content in files.items()
        }
        return Sample(self.samples.keys[index], part, contents)

    def read_file(self, number: int, index: int, content: bytes, part: Part, key: int, *, is_training: bool) -> Content:
        """Return modality `number` of a sample, read from the content of its file. Raises DataError if the file is
        broken."""
        request = Request(
            modality=self.modalities[number],
            part=part,
            rng=rng.generator(rng.fold_one(rng.fold_one(key, _READERS), number)),
            is_training=is_training,
            data=self.data,
            name=self.samples.name(self.folders[number], index),
        )
        return read_file(self._readers[number], content, request)

    def parts(self, index: int, size: tuple[int, int] | None) -> list[Part]:
        """Return all parts of a sample for which tokens are stored; without stored parts, the part that evaluation
        uses. Raises DataError if the file of the parts is broken."""
        if CROP_SETTINGS not in self.samples.folders:
            return [centre_square(*(size or UNKNOWN_SIZE))]
        name = self.samples.name(CROP_SETTINGS, index)
        table = read_array(self.samples.read(CROP_SETTINGS, index), name)
        # A broken table counts as one part, which `stored_part` refuses.
        num = max(len(table), 1) if table.ndim else 1
        return [stored_part(table, number, size, name) for number in range(num)]

    def _part(self, index: int, size: tuple[int, int] | None, key: int, *, is_training: bool) -> Part:
        parts = self.parts(index, size)
        if is_training and CROP_SETTINGS in self.samples.folders:
            fitting = [part for part in parts if self.data.crop.flip > 0 or not part.is_flipped] or parts[:1]
            return fitting[int(rng.generator(key).integers(len(fitting)))]
        if not is_training or size is None or any(reader.is_of_parts for reader in self._readers.values()):
            return parts[0]
        return draw_part(self.data.crop, *size, rng.generator(key))

    def size(self, index: int, files: Mapping[int, bytes]) -> tuple[int, int] | None:
        """Return (height, width) of the first image of a sample. All images and maps of a sample show the same view,
        maybe at different resolutions. Raises DataError if one has another shape."""
        first_size, first_name = None, ""
        for number, content in files.items():
            name = self.samples.name(self.folders[number], index)
            own_size = self._readers[number].image_size(content, name)
            if own_size is None:
                continue
            if first_size is None:
                first_size, first_name = own_size, name
            else:
                require_same_view(name, own_size, first_name, first_size)
        return first_size


class FourMSource(BatchSource):
    """All samples of all data sets. Parts, draws of readers and masks are functions of the records' keys. The split
    "valid" ignores these keys, so that evaluations of different runs and steps are comparable."""

    def __init__(
        self, config: FourMRun, split: Split, sets: Sequence[SampleSet], vocabulary: TextVocabulary | None
    ) -> None:
        """`config`: bound config. `sets`: its data sets in order."""
        self.data, self.masking, self.modalities = config.data, config.masking, config.model.modalities
        self.split, self.sets, self.vocabulary = split, tuple(sets), vocabulary

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of samples of each data set."""
        return tuple(len(sample_set.samples) for sample_set in self.sets)

    @cached_property
    def fingerprint(self) -> str:
        """Digest of file names, of a few contents, and of every setting that a batch depends on."""
        # The user's readers may have moved with the data.
        modalities = [m.model_copy(update={"reader": m.reader.rpartition("/")[2]}) for m in self.modalities]
        parts = [self.split, self.masking.model_dump_json(), *(m.model_dump_json() for m in modalities)]
        parts += [self.data.model_dump_json(include=_FIELDS_OF_EXAMPLES)]
        for sample_set in self.sets:
            settings = sample_set.config.model_dump_json(exclude={"path", "weight"})
            parts += [sample_set.samples.fingerprint, str(sample_set.present), settings]
        parts.append("" if self.vocabulary is None else self.vocabulary.fingerprint)
        return hashlib.blake2b("\n".join(parts).encode(), digest_size=16).hexdigest()

    def summary(self) -> dict[str, Any]:
        """Return facts about the data for logs and the report."""
        sets = [
            {
                "name": set_name(sample_set.config),
                "samples": len(sample_set.samples),
                "modalities": [self.modalities[number].name for number in sample_set.present],
            }
            for sample_set in self.sets
        ]
        return super().summary() | {"sets": sets}

    def lengths(self, records: Records) -> NDArray[np.int64]:
        """Return the maximum number of slots of each example, (B,), because the draws are not known yet."""
        return np.full(len(records), self.masking.num_input_tokens + self.masking.num_target_tokens, np.int64)

    def build(self, records: Records) -> HostBatch:
        keys, samples = self.keys(records), self.samples(records)
        whole = {
            modality.name: [sample.contents.get(number) for sample in samples]
            for number, modality in enumerate(self.modalities)
            if modality.kind in ("pixels", "vectors")
        }
        out = continuous(self.modalities, len(samples), whole)
        for number, sample_set in enumerate(self.sets):
            rows = np.flatnonzero(records.source == number)
            if not len(rows) and (len(records) or number):  # the first set provides the arrays of an empty batch
                continue
            contents = self.contents([samples[place] for place in rows.tolist()])
            masked = sample_set.masking(contents, rng.fold(keys[rows], _MASKS))
            for name, values in masked.items():
                if name not in out:
                    out[name] = np.zeros((len(records), *values.shape[1:]), values.dtype)
                out[name][rows] = values
        return with_places(out, self.modalities)

    def samples(self, records: Records) -> list[Sample]:
        """Return the samples of records, read from their files."""
        keys = self.keys(records).tolist()
        return [
            self.sets[source].read(index, key, is_training=self.split == "train")
            for source, index, key in zip(records.source.tolist(), records.index.tolist(), keys, strict=True)
        ]

    def contents(self, samples: Sequence[Sample]) -> Contents:
        """Return the tokens of samples. A modality that a sample lacks has no tokens, or zeros if it is an image."""
        images: dict[int, Ids] = {}
        sequences: dict[int, Ragged] = {}
        for number, modality in enumerate(self.modalities):
            values = [sample.contents.get(number) for sample in samples]
            if modality.kind == "image":
                images[number] = _images(values, modality, samples)
            elif modality.kind == "vectors":
                lengths = np.array([0 if value is None else len(np.asarray(value)) for value in values], np.int64)
                # The id of a vector is its index in `vectors/NAME`.
                sequences[number] = Ragged(spans(np.zeros_like(lengths), lengths).astype(np.int32), lengths)
            elif modality.kind == "sequence":
                sequences[number] = self._sequences(values, modality, samples)
        return Contents(len(samples), images, sequences)

    def keys(self, records: Records) -> rng.Keys:
        """Return the random keys of examples, (B,). All random choices depend on them."""
        return records.key if self.split == "train" else records.held_out_keys(_VALID)

    def _sequences(self, contents: Sequence[Content | None], modality: Modality, samples: Sequence[Sample]) -> Ragged:
        vocabulary = self.vocabulary
        assert vocabulary is not None
        strings = [content for content in contents if isinstance(content, str)]
        texts = iter(vocabulary.encode(strings) if strings else ())
        ids: list[int] = []
        units: list[int] = []
        lengths = np.zeros(len(contents), np.int64)
        is_chunked = any(isinstance(content, Chunks) for content in contents)
        for row, content in enumerate(contents):
            begin = len(ids)
            if isinstance(content, Chunks):
                chunks = [*map(vocabulary.encode_words, content.words), [vocabulary.eos]]
                num_fitting = bisect_right(list(accumulate(map(len, chunks))), modality.max_tokens)
                for number, chunk in enumerate(chunks[:num_fitting]):
                    ids += chunk
                    units += [number] * len(chunk)
            elif content is not None:
                if isinstance(content, str):
                    text_ids = next(texts)
                else:
                    is_words = isinstance(content, list)
                    text_ids = (
                        vocabulary.encode_words(content)
                        if is_words
                        else _ids(content, modality, vocabulary, samples[row])
                    )
                ids += [*text_ids, vocabulary.eos][: modality.max_tokens]
                if is_chunked:
                    units += range(len(ids) - begin)
            lengths[row] = len(ids) - begin
        return Ragged(np.array(ids, np.int32), lengths, np.array(units, np.int32) if is_chunked else None)


_FIELDS_OF_EXAMPLES = {"crop", "aligned_captions", "min_box_score", "max_boxes", "box_order", "min_box_visibility"}


def _ids(values: Content, modality: Modality, vocabulary: TextVocabulary, sample: Sample) -> list[int]:
    ids = np.asarray(values)
    if ids.ndim != 1 or ids.dtype.kind not in "iu" or (len(ids) and not 0 <= ids.min() <= ids.max() < vocabulary.size):
        raise DataError(
            f"the reader of {modality.name} returned {ids.dtype} {ids.shape}{_bounds(ids)} for sample {sample.key}; "
            f"the ids of the vocabulary are 0 to {vocabulary.size - 1}\n"
            f"  correct the reader {modality.reader}, or the sample"
        )
    checked: list[int] = ids.tolist()
    return checked


def _images(contents: Sequence[Content | None], modality: Modality, samples: Sequence[Sample]) -> Ids:
    """Return tokens (B, P), with zeros for samples without content."""
    size, vocab_size = modality.max_tokens, modality.vocab_size
    assert vocab_size is not None
    nothing = np.zeros(size, np.int32)
    rows = [nothing if ids is None else np.asarray(ids) for ids in contents]
    if all(row.shape == nothing.shape for row in rows):
        stacked = np.stack(rows) if rows else np.zeros((0, size), np.int32)
        if not stacked.size or (stacked.min() >= 0 and stacked.max() < vocab_size):
            return stacked.astype(np.int32, copy=False)
    wrong, key = next(
        (row, sample.key)
        for row, sample in zip(rows, samples, strict=True)
        if row.shape != nothing.shape or row.min() < 0 or row.max() >= vocab_size
    )
    raise DataError(
        f"the reader of {modality.name} returned {wrong.shape}{_bounds(wrong)} for sample {key}; "
        f"({size},) tokens from 0 to {vocab_size - 1} are needed\n"
        f"  correct the reader {modality.reader}, or the sample"
    )


def _bounds(ids: NDArray[Any]) -> str:
    return f" from {ids.min()} to {ids.max()}" if ids.size else ""


def set_name(config: FourMSetConfig) -> str:
    """Return the name of a data set."""
    return config.name or config.path.rstrip("/").rpartition("/")[2] or config.path


def folder_of(config: FourMSetConfig, modality: Modality) -> str:
    """Return the folder of a modality in a data set."""
    return config.folders.get(modality.name, config.folders.get(modality.key, modality.path))


def open_source(config: FourMRun, split: Split) -> FourMSource:
    """Open the data of a split; `config` is bound. Raises ConfigError if the mixture does not fit the data, and
    DataError if the config names no data or if the data are broken."""
    configs = config.data.train if split == "train" else config.data.valid
    if not configs:
        raise DataError(f"data.{split} names no data\n  set data.{split}=FOLDER")
    vocabulary = open_vocabulary(config)
    return FourMSource(config, split, [open_set(settings, config, vocabulary) for settings in configs], vocabulary)


def open_vocabulary(config: FourMRun) -> TextVocabulary | None:
    """Open the text vocabulary; return None for a model without sequences. Raises DataError if the config names no text
    tokenizer, or if the tokenizer has too few sentinels."""
    tokenizer, sequences = (
        config.data.tokenizer,
        [modality for modality in config.model.modalities if modality.kind == "sequence"],
    )
    if not sequences:
        return None
    if tokenizer is None:
        raise DataError(
            f"{', '.join(modality.name for modality in sequences)}: sequences need a text tokenizer\n"
            "  set data.tokenizer=FOLDER: a trained model needs the tokenizer it was trained with; for a new model, "
            "make one with: pretrainkit tokenizer train words.tsv --kind multimodal --out FOLDER"
        )
    vocabulary = TextVocabulary(tokenizer)
    longest = max(modality.max_tokens for modality in sequences)
    needed = (longest + 1) // 2 + 2  # at most every second token starts a hidden span; one more for the end, and [S_0]
    if len(vocabulary.sentinels) < needed:
        raise DataError(
            f"sequences of {longest} tokens may need {needed} sentinels, but {tokenizer} has "
            f"{len(vocabulary.sentinels)}\n  make a tokenizer with more sentinels, or reduce the length of the modality"
        )
    return vocabulary


def with_vocabulary(config: FourMRun, vocabulary: TextVocabulary | None) -> FourMRun:
    """Return the config with the size of the vocabulary in all sequences."""
    size = {"vocab_size": None if vocabulary is None else vocabulary.size}
    modalities = config.model.modalities
    sized = tuple(
        modality.model_copy(update=size) if modality.kind == "sequence" else modality for modality in modalities
    )
    return config.changed(model={"modalities": sized})


def open_set(config: FourMSetConfig, run: FourMRun, vocabulary: TextVocabulary | None) -> SampleSet:
    """Open one data set. Raises ConfigError if the mixture does not fit it or if it names a modality that the model
    lacks, and DataError if it is missing or broken."""
    modalities, masking = run.model.modalities, run.masking
    names = [modality.name for modality in modalities]
    known = {*names, *(modality.key for modality in modalities)}
    unknown = [name for name in (*(config.modalities or ()), *config.folders) if name not in known]
    if unknown:
        raise ConfigError(
            f"data set {set_name(config)} names {', '.join(unknown)}, which the model does not have\n"
            f"  its modalities are {', '.join(names)}"
        )
    folders, expected = folders_of(config.path), [folder_of(config, modality) for modality in modalities]
    present = [
        number
        for number, (modality, folder) in enumerate(zip(modalities, expected, strict=True))
        if (
            folder in folders
            if config.modalities is None
            else modality.name in config.modalities or modality.key in config.modalities
        )
    ]
    if not present:
        splits = () if is_stream(config.path) else sorted(folders)
        candidates = [path for name in splits if folders_of(path := f"{config.path}/{name}") & {*expected}]
        existing = f"its folders are {', '.join(sorted(folders))}" if folders else "it has no folders"
        if candidates:
            raise DataError(
                f"{config.path} has no modality of the model: {existing}\n"
                f"  use one of them: data.train={quote(candidates[0])}"
            )
        raise DataError(
            f"{config.path} has no modality of the model: {existing}, but the model reads {', '.join(expected)}\n"
            "  name the folder of each modality: data.train='[{path: ..., folders: {MODALITY: FOLDER}}]'"
        )
    missing = sorted({expected[number] for number in present} - folders)
    if missing:
        raise DataError(
            f"{config.path} has no folder {', '.join(missing)}\n  its folders are {', '.join(sorted(folders))}"
        )
    suffixes = {expected[number]: reader_of(modalities[number]).suffixes for number in present}
    if CROP_SETTINGS in folders:
        suffixes[CROP_SETTINGS] = (".npy",)
    samples = open_samples(config.path, suffixes)
    mixture = Bound(config.mixture or masking.mixture, modalities, [names[number] for number in present])
    first_sentinel = vocabulary.sentinels[1] if vocabulary else 0
    return SampleSet(config, samples, run, present, Masking(masking, modalities, mixture, first_sentinel))


def bind(config: FourMRun) -> FourMRun:
    """Return the config with the size of the text vocabulary in all sequences, and check it against the first sample of
    every data set. Raises ConfigError or DataError if settings and data do not fit each other."""
    data = config.data
    if not data.train:
        raise DataError("there is nothing to train on: data.train names no data\n  set data.train=FOLDER")
    problems = config.problems()
    if problems:
        raise ConfigError(problems)
    config = with_vocabulary(config, open_vocabulary(config))
    if shared := {s.path for s in data.train} & {s.path for s in data.valid}:
        raise DataError(
            f"data.valid names data of data.train: {', '.join(sorted(shared))}\n  use other data for one of them"
        )
    splits: tuple[Split, ...] = ("train", "valid") if data.valid else ("train",)
    for split in splits:
        source = open_source(config, split)
        source.build(Records.of_first_epoch([0] * len(source.sets), np.arange(len(source.sets))))
    return config


def absent_modalities(source: FourMSource) -> str | None:
    """Return an error message if the mixture uses a modality that no training data set has; None otherwise. Modalities
    that no component of the mixture uses may be absent."""
    present = {number for sample_set in source.sets for number in sample_set.present}
    mixture = Bound(source.masking.mixture, source.modalities, [modality.name for modality in source.modalities])
    is_drawn_D = (mixture.inputs_KD + mixture.targets_KD).any(axis=0)
    absent = [m for number, m in enumerate(source.modalities) if number not in present and is_drawn_D[number]]
    if not absent:
        return None
    others = [source.modalities[number] for number in sorted(present)]
    missing = ", ".join(f"{modality.name} (folder {modality.path})" for modality in absent)
    return (
        f"no data set of data.train has {missing}, so the model would not learn it\n"
        f"  name its folder: 'data.train=[{{path: FOLDER, folders: {{{absent[0].name}: NAME}}}}]'\n"
        f"  or leave it out of the model: 'model.modalities={as_setting(others)}'"
    )


def check_files(config: FourMRun, progress: Progress) -> list[str]:
    """Read every file of all data sets as training and evaluation do, with all stored parts. Return error messages with
    names of files: absent modalities, broken or truncated files, NaN, ids out of range, different shapes. The config is
    not bound: data that do not fit it are reported, too. Raises ConfigError or DataError if the text tokenizer is
    missing or does not fit."""
    vocabulary = open_vocabulary(config)
    config, data, problems = with_vocabulary(config, vocabulary), config.data, list[str]()
    splits: tuple[tuple[Split, tuple[FourMSetConfig, ...]], ...] = (("train", data.train), ("valid", data.valid))
    for split, named in splits:
        sets = []
        for settings in named:
            try:
                sets.append(open_set(settings, config, vocabulary))
            except (ConfigError, DataError) as error:
                problems.append(f"{set_name(settings)} of data.{split}: {error}")
        if not sets:
            continue
        source = FourMSource(config, split, sets, vocabulary)
        is_whole = len(sets) == len(named)  # otherwise a data set that did not open may have the absent modalities
        if split == "train" and is_whole and (absent := absent_modalities(source)):
            problems.append(absent)
        problems += _broken_files(source, progress)
    return problems


def _broken_files(source: FourMSource, progress: Progress) -> Iterator[str]:
    with ThreadPoolExecutor(available_cores()) as pool:
        for number, sample_set in enumerate(source.sets):
            progress.stage(
                f"reading {set_name(sample_set.config)} of data.{source.split}", len(sample_set.samples), "sample"
            )
            for start in range(0, len(sample_set.samples), _CHECKED_AT_ONCE):
                indices = range(start, min(start + _CHECKED_AT_ONCE, len(sample_set.samples)))
                for messages in pool.map(
                    lambda index, number=number: _broken_files_of_sample(source, number, index), indices
                ):
                    yield from messages
                progress.advance(len(indices))


def _broken_files_of_sample(source: FourMSource, number: int, index: int) -> list[str]:
    """Return error messages for the files of a sample."""
    sample_set, problems, files = source.sets[number], list[str](), dict[int, bytes]()
    for modality, folder in sample_set.folders.items():
        try:
            files[modality] = sample_set.samples.read(folder, index)
        except DataError as error:
            problems.append(str(error))
    try:
        parts = sample_set.parts(index, sample_set.size(index, files))
    except DataError as error:
        problems.append(str(error))
        parts = [centre_square(*UNKNOWN_SIZE)]
    for modality, content in files.items():
        try:
            for part in parts:
                read = sample_set.read_file(modality, index, content, part, _CHECK, is_training=False)
                source.contents([Sample(sample_set.samples.keys[index], part, {modality: read})])
        except DataError as error:
            problems.append(str(error))
    return list(dict.fromkeys(problems))

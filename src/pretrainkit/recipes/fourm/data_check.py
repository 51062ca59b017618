"""Every file of the data of a run, read once before anything is trained."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from pretrainkit import rng
from pretrainkit.data.aligned_crops import centre_square
from pretrainkit.errors import ConfigError, DataError
from pretrainkit.recipes.fourm.config import FourMRun, FourMSetConfig
from pretrainkit.recipes.fourm.source import (
    UNKNOWN_SIZE,
    FourMSource,
    Sample,
    absent_modalities,
    open_set,
    open_vocabulary,
    set_name,
    with_vocabulary,
)
from pretrainkit.recipes.recipe import Split
from pretrainkit.workers.processes import Progress, available_cores

_KEY = rng.stream_key(0, "fourm", "data check")
_SAMPLES_AT_ONCE = 64


def check_files(config: FourMRun, progress: Progress) -> list[str]:
    """Read every file of all data sets as training and evaluation do, with all stored parts.

    The config is not bound: data that do not fit it are reported, too.

    Returns:
        What cannot be used: absent modalities, broken or truncated files, NaN, ids out of range, shapes that do not
        fit each other. Each names its file.

    Raises:
        ConfigError, DataError: The text tokenizer is missing or does not fit.
    """
    vocabulary = open_vocabulary(config)
    config, data, problems = with_vocabulary(config, vocabulary), config.data, list[str]()
    splits: tuple[tuple[Split, tuple[FourMSetConfig, ...]], ...] = (("train", data.train), ("valid", data.valid))
    for split, named in splits:
        sets = []
        for one in named:
            try:
                sets.append(open_set(one, config, vocabulary))
            except (ConfigError, DataError) as error:
                problems.append(f"{set_name(one)} of data.{split}: {error}")
        if not sets:
            continue
        source = FourMSource(config, split, sets, vocabulary)
        is_whole = len(sets) == len(named)  # else a set that did not open may have what the others lack
        if split == "train" and is_whole and (absent := absent_modalities(source)):
            problems.append(absent)
        problems += _problems(source, progress)
    return problems


def _problems(source: FourMSource, progress: Progress) -> Iterator[str]:
    with ThreadPoolExecutor(available_cores()) as pool:
        for number, one in enumerate(source.sets):
            progress.stage(f"reading {set_name(one.config)} of data.{source.split}", len(one.samples), "sample")
            for start in range(0, len(one.samples), _SAMPLES_AT_ONCE):
                indices = range(start, min(start + _SAMPLES_AT_ONCE, len(one.samples)))
                for found in pool.map(lambda index, number=number: _of_sample(source, number, index), indices):
                    yield from found
                progress.advance(len(indices))


def _of_sample(source: FourMSource, number: int, index: int) -> list[str]:
    """What is wrong with the files of a sample."""
    one, problems, files = source.sets[number], list[str](), dict[int, bytes]()
    for modality, folder in one.folders.items():
        try:
            files[modality] = one.samples.read(folder, index)
        except DataError as error:
            problems.append(str(error))
    try:
        parts = one.parts(index, files)
    except DataError as error:
        problems.append(str(error))
        parts = [centre_square(*UNKNOWN_SIZE)]
    for modality, content in files.items():
        try:
            for part in parts:
                found = one.read_file(modality, index, content, part, _KEY, is_training=False)
                source.contents([Sample(one.samples.keys[index], part, {modality: found})])
        except DataError as error:
            problems.append(str(error))
    return list(dict.fromkeys(problems))

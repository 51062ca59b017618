"""Held-out sets of a config, and CLIP's metrics on them: zero-shot retrieval for sets of pairs, and zero-shot
classification for folders of classes.

Dimensions: N rows, I images, T captions, C classes, P templates, B rows of a batch, D width of the embeddings.

Every distinct image and every caption is embedded exactly once, in evaluation mode, on any number of ranks. Embeddings
are float32 as in ZeroVL, unless `evaluate.precision` is set. With FSDP2 on a GPU, the blocks always compute in the
number format of the training.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from shlex import quote

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pretrainkit.dist.devices import has_float64
from pretrainkit.dist.env import World
from pretrainkit.dist.parallelize import gather_root_weights, unwrap
from pretrainkit.errors import ConfigError, DataError
from pretrainkit.eval.evaluator import BuildRows, embed_rows, evaluation_mode
from pretrainkit.eval.imagenet import cifar_templates, imagenet_names, imagenet_templates
from pretrainkit.eval.retrieval import (
    Rows,
    accuracies,
    captions_of,
    class_vectors,
    first_of_each,
    first_of_each_up_to,
    retrieval,
)
from pretrainkit.images.class_folders import class_names
from pretrainkit.recipes.capabilities import Evaluator
from pretrainkit.recipes.clip.captions import CaptionTokenizer, tokenizer_folder
from pretrainkit.recipes.clip.checks import check_torn, packing, text_problems
from pretrainkit.recipes.clip.class_images import open_class_images
from pretrainkit.recipes.clip.config import ClassificationConfig, ClipEvaluateConfig, ClipRun, class_set_name, set_name
from pretrainkit.recipes.clip.folder_pairs import read_file
from pretrainkit.recipes.clip.open_pairs import open_pairs
from pretrainkit.recipes.clip.pairs import BadImage, Pairs
from pretrainkit.recipes.clip.pixels import PixelReader, looked_at
from pretrainkit.rng import fold, stream_key
from pretrainkit.training.objective import HostBatch
from pretrainkit.training.precision import Precision

_IMAGES = stream_key(0, "clip", "held-out images")
_NUM_NAMED = 5
"""Number of broken files of a folder that a message lists."""


@dataclass(frozen=True)
class PairSet:
    """Held-out pairs of images and captions."""

    name: str
    """Name of the set in metrics."""
    image_ids_N: NDArray[np.int64]
    """Image id of each row. Rows of the same image have the same id."""
    images: BuildRows
    """Function of row numbers that returns a batch with `image`."""
    captions: BuildRows
    """Function of row numbers that returns a batch with `input_ids` and `num_tokens`."""
    texts: Callable[[NDArray[np.int64]], list[str]]
    """Function of row numbers that returns the captions as text."""


@dataclass(frozen=True)
class ClassSet:
    """Held-out images with classes, and captions for each class."""

    name: str
    """Name of the set in metrics."""
    labels_I: NDArray[np.int64]
    """Class of each image."""
    num_classes: int
    """Number of classes, C."""
    num_templates: int
    """Number of templates, P. Caption c * P + p is class c in template p."""
    images: BuildRows
    """Function of row numbers that returns a batch with `image`."""
    captions: BuildRows
    """Function of caption numbers that returns a batch with `input_ids` and `num_tokens`."""


def pair_sets(config: ClipRun) -> list[PairSet]:
    """Open the sets of `data.valid`. Raises DataError if a set or the tokenizer is missing or broken, ConfigError if
    two sets have the same name."""
    if not config.data.valid:
        return []
    inputs, sets = Inputs(config), []
    names = _distinct([set_name(source) for source in config.data.valid], "data.valid")
    for name, source in zip(names, config.data.valid, strict=True):
        pairs = open_pairs(source, "valid")
        check_torn(pairs, "valid", "error")
        sets.append(inputs.pairs(pairs, name))
    return sets


def class_sets(config: ClipRun) -> list[ClassSet]:
    """Open the folders of `evaluate.classification`.

    Raises:
        DataError: A folder, or the names of its classes, are missing.
        InputError: A template has no {} for the class name.
        ConfigError: Two folders have the same name.
    """
    wanted = config.evaluate.classification
    if not wanted:
        return []
    inputs = Inputs(config)
    names = _distinct([class_set_name(classes) for classes in wanted], "evaluate.classification")
    return [inputs.classes(classes, name) for name, classes in zip(names, wanted, strict=True)]


class Inputs:
    """Builds the inputs of the towers. Every image and caption is needed, so a bad one raises DataError."""

    def __init__(self, config: ClipRun, pixels: PixelReader | None = None) -> None:
        """Raise ConfigError if captions and model do not match.

        pixels: Reader of images; None: the reader with the transforms of evaluation.
        """
        data = config.data
        self._pixels = pixels or PixelReader(data.valid_transforms, data.normalize, is_exact=True)
        self._tokenizer, self._max_length = CaptionTokenizer(tokenizer_folder(config)), data.max_length
        if problems := text_problems(config, self._tokenizer):
            raise ConfigError(problems)
        self._num_columns = data.max_length if data.pad_captions == "max_length" else None

    def captions(self, texts: Sequence[str]) -> HostBatch:
        """Return `input_ids` and `num_tokens` of texts, cut to `data.max_length`."""
        return self._tokenizer.encode(texts, self._max_length, num_columns=self._num_columns)

    def images(self, read: Callable[[int], bytes], describe: Callable[[int], str]) -> BuildRows:
        """Return a function of row numbers that returns a batch with `image`. `read` returns the content of a row's
        file, `describe` its name in messages."""
        reader = self._pixels

        def build(rows: NDArray[np.int64]) -> HostBatch:
            image = np.empty((len(rows), 3, reader.size, reader.size), reader.dtype)
            for out, row, key in zip(image, rows.tolist(), fold(_IMAGES, rows), strict=True):
                try:
                    reader(read(row), np.random.default_rng(int(key)), out)
                except BadImage as error:
                    raise _bad(describe(row), str(error)) from error
            return {"image": image}

        return build

    def files(self, files: Sequence[Path]) -> BuildRows:
        """Return a function of indices of `files` that returns a batch with `image`."""
        return self.images(_reader(files), lambda row: str(files[row]))

    def pairs(self, pairs: Pairs, name: str = "") -> PairSet:
        """Return the inputs of a set of pairs."""

        def texts(rows: NDArray[np.int64]) -> list[str]:
            captions = [pairs.caption(row) for row in rows.tolist()]
            if "" in captions:
                raise _bad(pairs.describe(int(rows[captions.index("")])), "it has no caption")
            return captions

        images = self.images(pairs.read_image, pairs.describe)
        return PairSet(name, pairs.image_ids, images, lambda rows: self.captions(texts(rows)), texts)

    def classes(self, wanted: ClassificationConfig, name: str) -> ClassSet:
        """Return the inputs of a set of images with classes."""
        images = open_class_images(wanted)
        if wanted.suite == "imagenet":
            names, templates = imagenet_names(images.imagenet_classes), imagenet_templates()
        else:
            templates = cifar_templates() if wanted.suite == "cifar" else templates_of(wanted)
            names = class_names(images.classes, Path(wanted.class_names) if wanted.class_names else None)
        captions = captions_of(names, templates)
        return ClassSet(
            name=name,
            labels_I=images.labels_N,
            num_classes=len(names),
            num_templates=len(templates),
            images=self.images(images.read, images.describe),
            captions=lambda rows: self.captions([captions[row] for row in rows.tolist()]),
        )


def _reader(files: Sequence[Path]) -> Callable[[int], bytes]:
    return lambda row: read_file(files[row])


def check_images(config: ClipRun, world: World) -> None:
    """Decode every held-out image before the training starts. All ranks must call this together; each image is decoded
    by one of them. Raises DataError on all ranks if an image cannot be decoded."""
    problems = []
    for source in config.data.valid:
        pairs = open_pairs(source, "valid")
        rows = first_of_each(pairs.image_ids[: config.evaluate.num_examples])
        if bad := _undecodable(pairs.read_image, rows, config, world):
            row, reason = bad[0]
            problems.append(
                f"{len(bad):,} of {len(rows):,} images of data.valid={source.path} cannot be used, such as "
                f"{pairs.describe(row)}: {reason}\n  evaluation needs every row: fix or remove them; to list all, use "
                f"pretrainkit data check {quote(source.path)}\n  to leave out bad rows: "
                f"{packing(source.path, len(bad))}\n  and then data.valid=PACKED"
            )
    for classes in config.evaluate.classification:
        images = open_class_images(classes)
        num_images = len(images.labels_N)
        if bad := _undecodable(images.read, np.arange(num_images), config, world):
            names = "".join(f"\n  {images.describe(row)}: {reason}" for row, reason in bad[:_NUM_NAMED])
            problems.append(
                f"{len(bad):,} of {num_images:,} images of evaluate.classification={classes.path} cannot be used:"
                f"{names}\n  replace or remove them"
            )
    if problems:
        raise DataError("\n".join(problems))


def _undecodable(
    read: Callable[[int], bytes], rows: NDArray[np.int64], config: ClipRun, world: World
) -> list[tuple[int, str]]:
    """Return the rows whose image cannot be used, each with the reason."""
    mine = rows[world.rank :: world.world_size].tolist()
    results = zip(mine, looked_at(read, mine, max(config.data.num_workers, 1)), strict=True)
    bad = [(row, str(error)) for row, error in results if isinstance(error, BadImage)]
    return sorted((row, reason) for part in world.gather_objects(bad) for row, reason in part)


def _distinct(names: list[str], field: str) -> list[str]:
    if len(set(names)) < len(names):
        raise ConfigError(
            f"two sets of {field} have the same name: {', '.join(names)}\n"
            f"  rename one, and its metrics with it: {field}='[{{path: ..., name: NAME}}, ...]'"
        )
    return names


def _bad(row: str, reason: str) -> DataError:
    return DataError(
        f"{row}: {reason}\n  every row is needed here: fix or remove it; for a set of pairs, pretrainkit data "
        "check lists all bad rows"
    )


def templates_of(wanted: ClassificationConfig) -> list[str]:
    """Return the templates of a set, from its settings or its file. Raises DataError if the file cannot be read."""
    if wanted.templates_file is None:
        return list(wanted.templates)
    try:
        lines = Path(wanted.templates_file).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise DataError(
            f"cannot read templates from {wanted.templates_file}: {reason}\n  check the path; the file must be UTF-8"
        ) from None
    return [line.strip() for line in lines if line.strip()]


Towers = Callable[[BuildRows, int], Tensor]
"""Function of (build, number of rows) that returns embeddings: `embed` with a model."""


def build_evaluator(config: ClipRun, world: World, precision: Precision) -> Evaluator:
    """Return a function that computes the metrics of a model on `data.valid` and `evaluate.classification`; all ranks
    call it together. Raises DataError if a held-out image cannot be decoded: before training, and not only at the first
    evaluation."""
    pairs, classes = pair_sets(config), class_sets(config)
    check_images(config, world)
    autocast = precision.autocast if config.evaluate.precision == "as_training" else nullcontext
    num_threads = config.data.loader_workers[1]
    return lambda model: held_out_metrics(
        model, pairs, classes, config.evaluate, world=world, autocast=autocast, num_threads=num_threads
    )


def held_out_metrics(
    model: nn.Module,
    pairs: Sequence[PairSet],
    classes: Sequence[ClassSet],
    config: ClipEvaluateConfig,
    *,
    world: World,
    autocast: Callable[[], AbstractContextManager[None]] = nullcontext,
    num_threads: int = 0,
) -> dict[str, float]:
    """Compute the metrics of a model. All ranks must call this together.

    Returns:
        Metrics by name, the same on all ranks. For each set of pairs `<set>_I2T-R@1` ... `<set>_T2I-R@10` in percent
        and their sum `<set>_RSUM`; the mean over sets `RSUM`; for each folder of classes `<folder>_zeroshot_acc1`,
        `_acc5` and `_mean_per_class_recall` in percent; and `temperature`.
    """
    towers = partial(
        embed, model, batch_size=config.batch_size, world=world, autocast=autocast, num_threads=num_threads
    )
    metrics: dict[str, float] = {"RSUM": 0.0} if pairs else {}  # first, because it is the main number of a report
    with evaluation_mode(model), torch.no_grad():
        gather_root_weights(model)
        metrics["temperature"] = 1 / float(unwrap(model).logit_scale())  # type: ignore[operator]
        for pair_set in pairs:
            values = _retrieval(towers, pair_set, config, world)
            metrics |= {f"{pair_set.name}_{name}": value for name, value in values.items()}
        if pairs:
            metrics["RSUM"] = float(np.mean([metrics[f"{pair_set.name}_RSUM"] for pair_set in pairs]))
        for class_set in classes:
            values = _classification(towers, class_set, config, world)
            metrics |= {f"{class_set.name}_zeroshot_{name}": value for name, value in values.items()}
    return metrics


_BENCHMARK = {
    "zeroshot_classification": {
        "acc1": "zeroshot_acc1",
        "acc5": "zeroshot_acc5",
        "mean_per_class_recall": "zeroshot_mean_per_class_recall",
    },
    "zeroshot_retrieval": {"image_retrieval_recall@5": "T2I-R@5", "text_retrieval_recall@5": "I2T-R@5"},
}
"""Maps tasks and columns of CLIP_benchmark to the ends of our names."""


def benchmark_rows(config: ClipRun, metrics: Mapping[str, float], model: str) -> list[dict[str, str | float]]:
    """Return a row for each held-out set with the columns of CLIP_benchmark, where metrics are shares of 1."""
    sets = [(class_set_name(classes), "zeroshot_classification") for classes in config.evaluate.classification]
    sets += [(set_name(source), "zeroshot_retrieval") for source in config.data.valid]
    rows: list[dict[str, str | float]] = []
    for name, task in sets:
        values = {column: metrics.get(f"{name}_{end}") for column, end in _BENCHMARK[task].items()}
        known = {column: value / 100 for column, value in values.items() if value is not None}
        rows.append({"dataset": name, "model": model, "pretrained": model, "task": task, **known})
    return rows


def embed(
    model: nn.Module,
    build: BuildRows,
    num_rows: int,
    *,
    batch_size: int,
    world: World,
    autocast: Callable[[], AbstractContextManager[None]] = nullcontext,
    num_threads: int = 0,
) -> Tensor:
    """Return the embeddings (N, D) of the images or captions that `build` returns for row numbers. All ranks must call
    this together."""

    def forward(batch: Mapping[str, Tensor]) -> Tensor:
        with autocast():
            (vectors_BD,) = model(**batch).values()
        return vectors_BD

    vectors_ND = embed_rows(build, forward, num_rows, batch_size=batch_size, world=world, num_threads=num_threads)
    # Scores are computed in float64.
    return vectors_ND if has_float64(vectors_ND.device) else vectors_ND.cpu()


def _retrieval(towers: Towers, pairs: PairSet, config: ClipEvaluateConfig, world: World) -> dict[str, float]:
    text_rows = first_of_each_up_to(pairs.image_ids_N[: config.num_examples], config.max_captions_per_image)
    text_ids = pairs.image_ids_N[text_rows]
    first_N = first_of_each(text_ids)
    image_rows = text_rows[first_N]
    image_ID = towers(lambda rows: pairs.images(image_rows[rows]), len(image_rows))
    text_TD = towers(lambda rows: pairs.captions(text_rows[rows]), len(text_rows))
    return retrieval(
        Rows(image_ID, text_ids[first_N]),
        Rows(text_TD, text_ids),
        num_folds=config.num_folds,
        with_ranks=config.ranks,
        megabytes=config.scores_megabytes,
        world=world,
    )


def _classification(towers: Towers, classes: ClassSet, config: ClipEvaluateConfig, world: World) -> dict[str, float]:
    num_captions = classes.num_classes * classes.num_templates
    text_CPD = towers(classes.captions, num_captions).unflatten(0, (classes.num_classes, -1))
    image_ID = towers(classes.images, len(classes.labels_I))
    return accuracies(
        image_ID, classes.labels_I, class_vectors(text_CPD), megabytes=config.scores_megabytes, world=world
    )

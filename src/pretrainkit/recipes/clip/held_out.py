"""Held-out sets of a config and CLIP's metrics on them: zero-shot retrieval on sets of pairs, and zero-shot
classification of class folders.

Dimensions: N rows, I images, T captions, C classes, P templates, B rows of a batch, D width of the embeddings.

Every distinct image and every caption is embedded exactly once, in evaluation mode, whatever the number of ranks.
Embeddings are float32 unless `evaluate.precision` says otherwise, as in ZeroVL; with FSDP2 on a GPU the blocks compute
in the training's number format all the same.
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
"""Broken files of a folder that a message names."""


@dataclass(frozen=True)
class PairSet:
    name: str
    """In the names of metrics."""
    image_ids_N: NDArray[np.int64]
    """Image id of each row; rows of one image have the same id."""
    images: BuildRows
    """Rows to a batch with `image`."""
    captions: BuildRows
    """Rows to a batch with `input_ids` and `num_tokens`."""
    texts: Callable[[NDArray[np.int64]], list[str]]
    """Rows to captions, for people."""


@dataclass(frozen=True)
class ClassSet:
    """Images with a class, and captions for each class."""

    name: str
    """In the names of metrics."""
    labels_I: NDArray[np.int64]
    """The class of each image."""
    num_classes: int
    """C."""
    num_templates: int
    """P; caption c * P + p is class c in template p."""
    images: BuildRows
    """Rows to a batch with `image`."""
    captions: BuildRows
    """Captions to a batch with `input_ids` and `num_tokens`."""


def pair_sets(config: ClipRun) -> list[PairSet]:
    """Open the sets of `data.valid`. Raises DataError where a set, or the tokenizer, is missing or broken; ConfigError
    where two sets have the same name."""
    if not config.data.valid:
        return []
    inputs, found = Inputs(config), []
    names = _distinct([set_name(source) for source in config.data.valid], "data.valid")
    for name, source in zip(names, config.data.valid, strict=True):
        pairs = open_pairs(source, "valid")
        check_torn(pairs, "valid", "error")
        found.append(inputs.pairs(pairs, name))
    return found


def class_sets(config: ClipRun) -> list[ClassSet]:
    """Open the folders of `evaluate.classification`. Raises DataError where a folder, or the names of its classes, are
    missing; InputError where a template has no place for a name; ConfigError where two folders have the same name."""
    wanted = config.evaluate.classification
    if not wanted:
        return []
    inputs, names = Inputs(config), _distinct([class_set_name(one) for one in wanted], "evaluate.classification")
    return [inputs.classes(one, name) for name, one in zip(names, wanted, strict=True)]


class Inputs:
    """Inputs of the towers for images and captions, all of which are needed: a bad one raises DataError."""

    def __init__(self, config: ClipRun, pixels: PixelReader | None = None) -> None:
        """`pixels`: None: images are read as evaluation sees them. Raises ConfigError if captions and model do not fit
        each other."""
        data = config.data
        self._pixels = pixels or PixelReader(data.valid_transforms, data.normalize, is_exact=True)
        self._tokenizer, self._max_length = CaptionTokenizer(tokenizer_folder(config)), data.max_length
        if problems := text_problems(config, self._tokenizer):
            raise ConfigError(problems)
        self._num_columns = data.max_length if data.pad_captions == "max_length" else None

    def captions(self, texts: Sequence[str]) -> HostBatch:
        """`input_ids` and `num_tokens`, cut to `data.max_length`."""
        return self._tokenizer.encode(texts, self._max_length, num_columns=self._num_columns)

    def images(self, read: Callable[[int], bytes], describe: Callable[[int], str]) -> BuildRows:
        """Rows to a batch with `image`, given the content of each row's file and what messages call it."""
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
        """Rows of `files` to a batch with `image`."""
        return self.images(_reader(files), lambda row: str(files[row]))

    def pairs(self, pairs: Pairs, name: str = "") -> PairSet:
        def texts(rows: NDArray[np.int64]) -> list[str]:
            found = [pairs.caption(row) for row in rows.tolist()]
            if "" in found:
                raise _bad(pairs.describe(int(rows[found.index("")])), "it has no caption")
            return found

        images = self.images(pairs.read_image, pairs.describe)
        return PairSet(name, pairs.image_ids, images, lambda rows: self.captions(texts(rows)), texts)

    def classes(self, wanted: ClassificationConfig, name: str) -> ClassSet:
        found = open_class_images(wanted)
        if wanted.suite == "imagenet":
            names, templates = imagenet_names(found.imagenet_classes), imagenet_templates()
        else:
            templates = cifar_templates() if wanted.suite == "cifar" else _templates(wanted)
            names = class_names(found.classes, Path(wanted.class_names) if wanted.class_names else None)
        captions = captions_of(names, templates)
        return ClassSet(
            name=name,
            labels_I=found.labels_N,
            num_classes=len(names),
            num_templates=len(templates),
            images=self.images(found.read, found.describe),
            captions=lambda rows: self.captions([captions[row] for row in rows.tolist()]),
        )


def _reader(files: Sequence[Path]) -> Callable[[int], bytes]:
    return lambda row: read_file(files[row])


def check_images(config: ClipRun, world: World) -> None:
    """Decode every held-out image before a training depends on it: a collective, each image on one rank. Raises
    DataError on every rank where some cannot be decoded."""
    problems = []
    for source in config.data.valid:
        pairs = open_pairs(source, "valid")
        rows = first_of_each(pairs.image_ids[: config.evaluate.num_examples])
        if bad := _undecodable(pairs.read_image, rows, config, world):
            row, reason = bad[0]
            problems.append(
                f"{len(bad):,} of {len(rows):,} images of data.valid={source.path} cannot be used, such as "
                f"{pairs.describe(row)}: {reason}\n  evaluation must see every row: fix or remove them; all are "
                f"listed by pretrainkit data check {quote(source.path)}\n  to leave out what is bad: "
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
    """Rows whose image cannot be used, and why."""
    mine = rows[world.rank :: world.world_size].tolist()
    found = zip(mine, looked_at(read, mine, max(config.data.num_workers, 1)), strict=True)
    bad = [(row, str(error)) for row, error in found if isinstance(error, BadImage)]
    return sorted((row, reason) for part in world.gather_objects(bad) for row, reason in part)


def _distinct(names: list[str], field: str) -> list[str]:
    if len(set(names)) < len(names):
        raise ConfigError(
            f"two sets of {field} have the same name: {', '.join(names)}\n"
            f"  metrics are named by it: give one another, as in {field}='[{{path: ..., name: NAME}}, ...]'"
        )
    return names


def _bad(what: str, reason: str) -> DataError:
    return DataError(
        f"{what}: {reason}\n  every row is needed here: fix or remove it; in a set of pairs, pretrainkit data "
        "check lists all bad rows"
    )


def _templates(wanted: ClassificationConfig) -> list[str]:
    if wanted.templates_file is None:
        return list(wanted.templates)
    try:
        lines = Path(wanted.templates_file).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise DataError(f"cannot read templates from {wanted.templates_file}: {error.strerror or error}") from None
    return [line.strip() for line in lines if line.strip()]


Towers = Callable[[BuildRows, int], Tensor]
"""`embed` with a model."""


def build_evaluator(config: ClipRun, world: World, precision: Precision) -> Evaluator:
    """Return a function of the model, on every rank: its metrics on `data.valid` and `evaluate.classification`. Raises
    DataError where a held-out image cannot be decoded, before training and not at its first evaluation."""
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
    """Metrics by name, the same on all ranks; a collective.

    Returns:
        For each set of pairs `<set>_I2T-R@1` ... `<set>_T2I-R@10` and `<set>_RSUM` (percent, and their sum); `RSUM`,
        the mean over sets; for each folder of classes `<folder>_zeroshot_acc1`, `_acc5` and
        `_mean_per_class_recall` (percent); `temperature`.
    """
    towers = partial(
        embed, model, batch_size=config.batch_size, world=world, autocast=autocast, num_threads=num_threads
    )
    metrics: dict[str, float] = {"RSUM": 0.0} if pairs else {}  # the headline of a report
    with evaluation_mode(model), torch.no_grad():
        gather_root_weights(model)
        metrics["temperature"] = 1 / float(unwrap(model).logit_scale())  # type: ignore[operator]
        for pair_set in pairs:
            found = _retrieval(towers, pair_set, config, world)
            metrics |= {f"{pair_set.name}_{name}": value for name, value in found.items()}
        if pairs:
            metrics["RSUM"] = float(np.mean([metrics[f"{pair_set.name}_RSUM"] for pair_set in pairs]))
        for class_set in classes:
            found = _classification(towers, class_set, config, world)
            metrics |= {f"{class_set.name}_zeroshot_{name}": value for name, value in found.items()}
    return metrics


_BENCHMARK = {
    "zeroshot_classification": {
        "acc1": "zeroshot_acc1",
        "acc5": "zeroshot_acc5",
        "mean_per_class_recall": "zeroshot_mean_per_class_recall",
    },
    "zeroshot_retrieval": {"image_retrieval_recall@5": "T2I-R@5", "text_retrieval_recall@5": "I2T-R@5"},
}
"""Tasks and columns of CLIP_benchmark to the ends of our names."""


def benchmark_rows(config: ClipRun, metrics: Mapping[str, float], model: str) -> list[dict[str, str | float]]:
    """Return a row for each held-out set with the columns of CLIP_benchmark, whose metrics are shares of 1."""
    sets = [(class_set_name(one), "zeroshot_classification") for one in config.evaluate.classification]
    sets += [(set_name(one), "zeroshot_retrieval") for one in config.data.valid]
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
    """The embeddings (N, D) of images or of captions, whichever `build` makes of rows: a collective."""

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
    which = first_of_each(text_ids)
    image_rows = text_rows[which]
    image_ID = towers(lambda rows: pairs.images(image_rows[rows]), len(image_rows))
    text_TD = towers(lambda rows: pairs.captions(text_rows[rows]), len(text_rows))
    return retrieval(
        Rows(image_ID, text_ids[which]),
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

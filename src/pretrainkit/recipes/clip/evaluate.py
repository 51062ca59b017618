"""Held-out metrics of CLIP: zero-shot retrieval on sets of pairs and zero-shot classification of class folders.

Dimensions: N rows, I images, T captions, C classes, P templates, B rows of a batch, D width of the embeddings.

Every distinct image and every caption is embedded exactly once, in evaluation mode, whatever the number of ranks.
Embeddings are float32 unless `evaluate.precision` says otherwise, as in ZeroVL; with FSDP2 on a GPU the blocks compute
in the training's number format all the same.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from pretrainkit.dist.devices import has_float64
from pretrainkit.dist.env import World
from pretrainkit.dist.parallelize import gather_root_weights, unwrap
from pretrainkit.eval.classification import accuracies, class_vectors
from pretrainkit.eval.embed import BuildRows, embed_rows
from pretrainkit.eval.evaluator import evaluation_mode
from pretrainkit.eval.retrieval import Rows, first_of_each, first_of_each_up_to, retrieval
from pretrainkit.recipes.capabilities import Evaluator
from pretrainkit.recipes.clip.config import ClipEvaluateConfig, ClipRun
from pretrainkit.recipes.clip.held_out import ClassSet, PairSet, check_images, class_sets, pair_sets
from pretrainkit.training.precision import Precision

Towers = Callable[[BuildRows, int], Tensor]
"""`embed` with a model."""


def build_evaluator(config: ClipRun, world: World, precision: Precision) -> Evaluator:
    """A function of the model, on every rank: its metrics on `data.valid` and `evaluate.classification`.

    Raises:
        DataError: A held-out image cannot be decoded: found here, not by the first evaluation of a training.
    """
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
        the mean over sets; for each folder of classes `<folder>_zeroshot_acc1` and `_acc5` (percent); `temperature`.
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

"""Zero-shot classification: the class whose captions an image is nearest to.

Dimensions: N images, C classes, P templates, D width of the embeddings.

Source: Radford et al. 2021, section 3.1.4, https://arxiv.org/abs/2103.00020.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from pretrainkit.dist.env import World
from pretrainkit.errors import InputError
from pretrainkit.eval.retrieval import ALONE, Rows, normalised, ranks, recall

BLANK = "{}"
"""Where the name of the class goes in a template."""


def captions_of(class_names: Sequence[str], templates: Sequence[str]) -> list[str]:
    """One caption for each class and template, class by class.

    Raises:
        InputError: No template, or one without a blank for the name.
    """
    if not templates:
        raise InputError(f"there is no template for captions\n  give one with {BLANK} for the name of the class")
    if wrong := [template for template in templates if BLANK not in template]:
        raise InputError(f"a template has no place for the name of the class: {wrong[0]!r}\n  write {BLANK} there")
    return [template.replace(BLANK, name) for name in class_names for template in templates]


def class_vectors(text_CPD: Tensor) -> Tensor:
    """(C, D): the captions of each class normalised, averaged over the templates, and normalised again; float32."""
    return normalised(normalised(text_CPD.float()).mean(dim=1))


def accuracies(
    image_ND: Tensor, label_N: NDArray[np.int64], class_CD: Tensor, *, megabytes: int = 64, world: World = ALONE
) -> dict[str, float]:
    """`acc1`, and `acc5` where there are more than five classes: the percentage of images whose class is the nearest,
    or among the five nearest. Of equally near classes the first one counts as nearer.

    Args:
        image_ND: Embeddings, on every rank all of them.
        label_N: Rows of `class_CD`, which are from `class_vectors`.
        megabytes, world: As in `retrieval`.
    """
    num_classes = len(class_CD)
    classes = Rows(class_CD, np.arange(num_classes))
    rank_N = ranks(Rows(image_ND, label_N), classes, megabytes=megabytes, world=world)
    return {f"acc{k}": recall(rank_N, k) for k in (1, 5) if k == 1 or num_classes > k}

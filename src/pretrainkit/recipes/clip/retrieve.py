"""Retrieval of images by captions and of captions by images, in a folder or, for the report, in held-out pairs.

Dimensions: Q prompts, N or I images, T captions, D width of the embeddings.
"""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from pretrainkit.dist.env import World
from pretrainkit.errors import InputError
from pretrainkit.eval.evaluator import evaluation_mode
from pretrainkit.eval.retrieval import first_of_each, first_of_each_up_to, nearest
from pretrainkit.images.class_folders import image_files
from pretrainkit.images.pillow import thumbnail
from pretrainkit.recipes.clip.config import ClipRun
from pretrainkit.recipes.clip.held_out import Inputs, PairSet, embed
from pretrainkit.recipes.clip.model import DualEncoder
from pretrainkit.tasks.rates import spread

_NUM_IMAGES = 100
"""Number of images to search: enough to make right answers meaningful, and few enough for a large model on a CPU."""
_CAPTIONS_PER_IMAGE = 5
_NUM_NEAREST = 5


def retrieved_pairs(model: nn.Module, pairs: PairSet, num: int, batch_size: int = 64) -> list[dict[str, Any]]:
    """Answer `num` queries, half of them images and half captions, among images spread evenly over a held-out set.

    Returns:
        A dict per query for the report: `query`, `found` (nearest first, each with `is_right`) and `truth`.
        Pictures are small data URIs.
    """
    ids_N = pairs.image_ids_N
    image_rows = first_of_each(ids_N)
    image_rows = image_rows[spread(len(image_rows), _NUM_IMAGES)]
    text_rows = first_of_each_up_to(ids_N, _CAPTIONS_PER_IMAGE)
    text_rows = text_rows[np.isin(ids_N[text_rows], ids_N[image_rows])]
    text_ids, image_ids = ids_N[text_rows], ids_N[image_rows]
    device = next(model.parameters()).device
    towers = partial(embed, model, batch_size=batch_size, world=World(device=device))
    with evaluation_mode(model), torch.no_grad():
        image_ID = towers(lambda rows: pairs.images(image_rows[rows]), len(image_rows))
        text_TD = towers(lambda rows: pairs.captions(text_rows[rows]), len(text_rows))

    def picture(image: int) -> dict[str, str]:
        return {"image": thumbnail(pairs.images(image_rows[image : image + 1])["image"][0])}

    def text(caption: int) -> dict[str, str]:
        return {"text": pairs.texts(text_rows[caption : caption + 1])[0]}

    directions: tuple[tuple[Any, ...], ...] = (
        (image_ID, image_ids, (num + 1) // 2, lambda image: [picture(image)], text_TD, text_ids, text),
        (text_TD, text_ids, num // 2, lambda caption: text(caption)["text"], image_ID, image_ids, picture),
    )
    samples: list[dict[str, Any]] = []
    for from_ND, own_ids, num_queries, show_query, to_GD, their_ids, show in directions:
        queries = spread(len(own_ids), num_queries)
        nearest_QK = nearest(from_ND[queries], to_GD, _NUM_NEAREST)[0].tolist()
        for query, nearest_K in zip(queries, nearest_QK, strict=True):
            is_right = their_ids == own_ids[query]
            samples.append(
                {
                    "query": show_query(query),
                    "found": [{**show(i), "is_right": bool(is_right[i])} for i in nearest_K],
                    "truth": [show(i) for i in np.flatnonzero(is_right).tolist()],
                }
            )
    return samples


def find_images(
    config: ClipRun,
    model: DualEncoder,
    tokenizer: Path,
    prompts: list[str],
    *,
    images: str | Path | None = None,
    top: int = 5,
) -> list[dict[str, Any]]:
    """Find the `top` images in a folder and its subfolders whose embeddings are nearest to that of each prompt. Raises
    InputError if no folder is given, DataError if it does not exist or has no images.

    Returns:
        A dict per prompt: "prompt"; "images", a list of {"image": path, "score": cosine}, best first; and "text", the
        same as lines.
    """
    if images is None:
        raise InputError("there are no images to search\n  give a folder of images: --images FOLDER")
    if not prompts:
        return []
    config = config.changed(data={"tokenizer": str(tokenizer)})
    files = image_files(Path(images))
    inputs = Inputs(config)
    device = next(model.parameters()).device
    batch_size, num_threads = config.evaluate.batch_size, config.data.loader_workers[1]
    towers = partial(embed, model, batch_size=batch_size, world=World(device=device), num_threads=num_threads)
    with evaluation_mode(model), torch.no_grad():
        image_ND = towers(inputs.files(files), len(files))
        text_QD = towers(lambda rows: inputs.captions([prompts[row] for row in rows.tolist()]), len(prompts))
    index_QK, score_QK = nearest(text_QD, image_ND, top)
    answers = []
    for prompt, index_K, score_K in zip(prompts, index_QK.tolist(), score_QK.tolist(), strict=True):
        matches = [{"image": str(files[index]), "score": score} for index, score in zip(index_K, score_K, strict=True)]
        lines = [f"  {match['score']:6.3f}  {match['image']}" for match in matches]
        answers.append({"prompt": prompt, "images": matches, "text": "\n".join([prompt, *lines])})
    return answers

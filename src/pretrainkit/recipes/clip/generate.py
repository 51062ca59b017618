"""Finding images by what they show. Dimensions: Q prompts, N images, D width of the embeddings."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from pretrainkit.dist.env import World
from pretrainkit.errors import InputError
from pretrainkit.eval.evaluator import evaluation_mode
from pretrainkit.eval.retrieval import nearest
from pretrainkit.images.class_folders import image_files
from pretrainkit.recipes.clip.config import ClipRun
from pretrainkit.recipes.clip.evaluate import Embed
from pretrainkit.recipes.clip.held_out import caption_batches, image_batches
from pretrainkit.recipes.clip.model import DualEncoder


def find_images(
    config: ClipRun,
    model: DualEncoder,
    tokenizer: Path,
    prompts: list[str],
    *,
    images: str | Path | None = None,
    top: int = 5,
) -> list[dict[str, Any]]:
    """The `top` images of a folder (and of those below it) whose embeddings are nearest to that of each prompt.

    Returns:
        Per prompt: "prompt"; "images", a list of {"image": path, "score": cosine}, best first; "text", the same in
        lines.

    Raises:
        InputError: No folder was named, it holds no images, or there is no prompt.
    """
    if images is None:
        raise InputError("there are no images to search\n  give a folder of images: --images FOLDER")
    if not prompts:
        return []
    config = config.with_data(tokenizer=str(tokenizer))
    files = image_files(Path(images))
    encode = caption_batches(config)
    device = next(model.parameters()).device
    embed = Embed(model, config.evaluate.batch_size, World(device=device), nullcontext, config.data.loader_workers[1])
    with evaluation_mode(model), torch.no_grad():
        image_ND = embed.images(image_batches(config, files), len(files))
        text_QD = embed.captions(lambda rows: encode([prompts[row] for row in rows.tolist()]), len(prompts))
    index_QK, score_QK = nearest(text_QD, image_ND, top)
    answers = []
    for prompt, index_K, score_K in zip(prompts, index_QK.tolist(), score_QK.tolist(), strict=True):
        found = [{"image": str(files[index]), "score": score} for index, score in zip(index_K, score_K, strict=True)]
        lines = [f"  {one['score']:6.3f}  {one['image']}" for one in found]
        answers.append({"prompt": prompt, "images": found, "text": "\n".join([prompt, *lines])})
    return answers

"""Read the characters of reconstructed pictures by comparing them with the renderer's own glyphs.

Dimensions: B texts, N patches of a row, P pixels per side of a patch, K hidden patches, M characters to read, A
candidates for them, S pixels of a character.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from pretrainkit.data.order import Order
from pretrainkit.errors import DataError, MissingPackageError
from pretrainkit.eval.evaluator import evaluation_mode
from pretrainkit.recipes.pixel.batch import pack
from pretrainkit.recipes.pixel.config import PixelRun
from pretrainkit.recipes.pixel.rows import renderer_folder
from pretrainkit.recipes.pixel.sample import true_scale
from pretrainkit.recipes.pixel.source import PixelSource
from pretrainkit.rendering.folder import load_renderer
from pretrainkit.rendering.page import Page
from pretrainkit.rendering.parts import RunningPart, WordsPart
from pretrainkit.rendering.renderer import Renderer
from pretrainkit.training.precision import Precision

NUM_TEXTS = 128
"""Maximum number of held-out texts in which characters are read."""
Hidden = tuple[str, NDArray[np.float32], NDArray[np.float32]]
"""A hidden character, and its columns in the true and in the reconstructed picture, (P, S / P)."""


def read_characters(config: PixelRun, model: nn.Module, source: PixelSource, precision: Precision) -> dict[str, float]:
    """Return the shares of hidden characters that are read correctly; no metrics if texts or renderer are unknown.

    A character counts if all of its columns are in hidden patches. Its candidates are the characters of the same width
    in these texts, and the one with the highest correlation is read.

    Returns:
        character_accuracy: In the reconstructed pictures.
        readable_accuracy: In the true pictures. Characters may look alike, or their glyphs depend on the neighbours.
        most_frequent_accuracy: If the most frequent character of each width is guessed.
    """
    folder = renderer_folder(config.data)
    if folder is None:
        return {}
    try:
        renderer = load_renderer(folder).opened()
    except (DataError, MissingPackageError):  # another machine drew the rows
        return {}
    hidden: dict[int, list[Hidden]] = defaultdict(list)
    seen: dict[int, set[str]] = defaultdict(set)
    order = Order(source.sizes, seed=0)
    num, size = min(NUM_TEXTS, config.evaluate.num_examples, sum(source.sizes)), config.evaluate.batch_size
    for begin in range(0, num, size):
        records = order.records(np.arange(begin, min(begin + size, num)))
        examples = source.examples(records)
        (B, N), P = examples.is_masked_BN.shape, config.model.patch_size
        is_hidden_BN = examples.is_masked_BN & (np.arange(N) <= examples.num_text_patches_B[:, None])
        batch = pack(examples.pixels, examples.num_text_patches_B, is_hidden_BN, pad_to=config.data.pad_to)
        on_device = {name: torch.from_numpy(array).to(precision.device) for name, array in batch.items()}
        with evaluation_mode(model), torch.no_grad(), precision.autocast():
            predicted_KF = model(on_device, N).float().cpu()
        drawn_KF = true_scale(config, torch.from_numpy(batch["target_patches"]), predicted_KF)[: is_hidden_BN.sum()]
        true_BPX = _grey(examples.pixels, is_color=examples.pixels.ndim == 4)
        drawn_BPX = true_BPX.copy()
        drawn_BPX.reshape(B, P, N, P).swapaxes(1, 2)[is_hidden_BN] = drawn_KF.view(-1, P, P, 3).mean(-1).numpy()
        for row, (component, index) in enumerate(zip(records.source.tolist(), records.index.tolist(), strict=True)):
            text, _ = source.components[component].stored(index)
            if not text:
                continue
            page = Page(renderer, text)
            painted_XP = page.paint()
            painted_PX = _grey(painted_XP, is_color=painted_XP.ndim == 3).T
            if not np.array_equal(painted_PX, true_BPX[row, :, : painted_PX.shape[1]]):
                continue  # another renderer drew it
            for character, left, right, ink in letters(page):
                seen[right - left].add(character)
                if is_hidden_BN[row, ink // P : -(-right // P)].all():
                    hidden[right - left].append(
                        (character, true_BPX[row, :, left:right], drawn_BPX[row, :, left:right])
                    )
    read = np.array(
        [score for width, several in hidden.items() for score in _scores(renderer, sorted(seen[width]), several)]
    )
    if not len(read):
        return {}
    names = ("character_accuracy", "readable_accuracy", "most_frequent_accuracy")
    return dict(zip(names, read.mean(0).tolist(), strict=True))


def letters(page: Page) -> Iterator[tuple[str, int, int, int]]:
    """Yield each visible character that is drawn whole: its first column, the one after its last, and the first one
    that may have ink. Bigrams are left out."""
    for part in page.parts:
        if not isinstance(part, (RunningPart, WordsPart)):
            continue
        texts = part.drawn if isinstance(part, WordsPart) else [part.text]
        for index, (text, column) in enumerate(zip(texts, part.columns_N.tolist(), strict=True)):
            edges_T2 = np.sort(part.lines.edges(index), axis=1) + column
            for character, left, right in zip(text, np.floor(edges_T2[:, 0]), np.ceil(edges_T2[:, 1]), strict=True):
                if not character.isspace() and 0 <= left < right <= part.end:
                    yield character, int(left), int(right), max(int(left), column)


def _scores(renderer: Renderer, candidates: list[str], hidden: list[Hidden]) -> NDArray[np.bool_]:
    """Return whether each character is read correctly: reconstructed, true, and guessed, bool (M, 3)."""
    characters, true, drawn = zip(*hidden, strict=True)
    width, truth_M = true[0].shape[1], np.array(characters)
    glyphs_AS = np.stack([_centred(_glyph(renderer, candidate, width)) for candidate in candidates])
    read = [
        np.array(candidates)[(np.stack([_centred(picture) for picture in pictures]) @ glyphs_AS.T).argmax(1)]
        for pictures in (drawn, true)
    ]
    return (
        np.stack([*read, np.full(len(truth_M), Counter(characters).most_common(1)[0][0])], axis=1) == truth_M[:, None]
    )


def _glyph(renderer: Renderer, character: str, width: int) -> NDArray[np.float32]:
    """Draw a character alone, float32 (P, S / P)."""
    lines = renderer.engine.lines([character], is_words=renderer.config.strategy == "words")
    canvas_XP = np.empty((width, renderer.geometry.patch, *((3,) if renderer.config.rgb else ())), np.uint8)
    lines.paint(canvas_XP, [-round(lines.edges(0).min())])  # a text begins with its ink, a character before it
    return _grey(canvas_XP, is_color=canvas_XP.ndim == 3).T


def _grey(pixels: NDArray[np.uint8], *, is_color: bool) -> NDArray[np.float32]:
    """Return the mean of the three colours in the last dimension, or the values if there is none; white is 1."""
    return np.asarray(pixels.mean(-1) if is_color else pixels, np.float32) / np.float32(255)


def _centred(picture: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the pixels with mean 0 and length 1, or zeros if all are equal; float32 (S,)."""
    centred_S = picture.ravel() - picture.mean()
    return np.asarray(centred_S / max(float(np.linalg.norm(centred_S)), 1e-6), np.float32)

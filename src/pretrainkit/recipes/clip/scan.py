"""Check of every image and caption of a set, for `pretrainkit data check`.

Dimensions: N rows, M different images.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrainkit.recipes.clip.captions import CaptionTokenizer
from pretrainkit.recipes.clip.pairs import REASONS, BadImage, Pairs
from pretrainkit.recipes.clip.pixels import looked_at
from pretrainkit.workers.processes import Progress, Quiet, available_cores

_NUM_EXAMPLES = 5
_AT_ONCE = 4096
"""Number of captions that are encoded at once."""


def scan(
    pairs: Pairs,
    *,
    size: int | None = None,
    batch_size: int | None = None,
    tokenizer: CaptionTokenizer | None = None,
    max_length: int | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Return statistics and problems of a set, as JSON values. Every image is decoded once.

    Args:
        size: Count images whose shorter side is less than this, in pixels.
        batch_size: Report the number of whole batches of this size, and the remainder.
        tokenizer: Report the lengths of captions in tokens, and count those of more than `max_length` tokens.
        workers: Number of threads; None: one per core.

    Returns:
        Statistics by name. `bad` maps each reason to {count of rows, count of images (if about images), examples}.
    """
    first_row_M, image_N = np.unique(pairs.image_ids, return_index=True, return_inverse=True)[1:]
    problems, sizes_M2 = _look(pairs, first_row_M, workers or available_cores(), progress or Quiet())
    captions = [pairs.caption(row) for row in range(len(pairs))]
    bad = _bad_rows(pairs, problems, first_row_M, np.bincount(image_N), captions)
    if pairs.torn:
        bad["unreadable file"] = {"count": len(pairs.torn), "examples": list(pairs.torn[:_NUM_EXAMPLES])}
    report: dict[str, Any] = {
        "set": pairs.name,
        "path": pairs.path,
        "fingerprint": pairs.fingerprint,
        "pairs": len(pairs),
        "images": len(first_row_M),
        "different_captions": len(set(captions)),
        "duplicate_pairs": len(captions) - len(set(zip(image_N.tolist(), captions))),
        "left_out": pairs.skipped,
        "bad": bad,
        "captions_per_image": _figures(np.bincount(image_N)),
    }
    is_whole_M = sizes_M2[:, 0] > 0
    report |= {"width": _figures(sizes_M2[is_whole_M, 0]), "height": _figures(sizes_M2[is_whole_M, 1])}
    if size is not None:
        report["smaller_images"] = int((sizes_M2[is_whole_M].min(axis=1) < size).sum())
    if batch_size is not None:
        report |= {"batches": len(pairs) // batch_size, "remainder": len(pairs) % batch_size}
    if tokenizer is not None:
        ids = (tokenizer.encode_bare(captions[at : at + _AT_ONCE]) for at in range(0, len(captions), _AT_ONCE))
        lengths = np.array([len(bare) for part in ids for bare in part], np.int64)
        lengths += len(tokenizer.prefix) + len(tokenizer.suffix)
        report["caption_tokens"] = _figures(lengths)
        if max_length is not None:
            report["cut_captions"] = int((lengths > max_length).sum())
    return report


def _look(
    pairs: Pairs, rows_M: NDArray[np.int64], num_threads: int, progress: Progress
) -> tuple[dict[int, BadImage], NDArray[np.int64]]:
    """Return the problem of each bad image, and (M, 2) width and height of the others, 0 for bad ones."""
    problems: dict[int, BadImage] = {}
    sizes_M2 = np.zeros((len(rows_M), 2), np.int64)
    progress.stage(f"checking {pairs.name}", len(rows_M), "image")
    for image, result in enumerate(looked_at(pairs.read_image, rows_M.tolist(), num_threads)):
        if isinstance(result, BadImage):
            problems[image] = result
        else:
            sizes_M2[image] = result
        progress.advance(1)
    return problems, sizes_M2


def _bad_rows(
    pairs: Pairs,
    problems: dict[int, BadImage],
    first_row_M: NDArray[np.int64],
    num_captions_M: NDArray[np.int64],
    captions: Iterable[str],
) -> dict[str, dict[str, Any]]:
    """Return the entries of `bad`. An image is listed once, even if it has several captions."""
    no_text = BadImage("empty caption", "there is no text")
    bad: dict[str, dict[str, Any]] = {}
    for reason in REASONS:
        images = [image for image, problem in problems.items() if problem.reason == reason]
        examples = [(int(first_row_M[image]), problems[image]) for image in images]
        entry: dict[str, Any] = {"count": int(num_captions_M[images].sum()), "images": len(images)}
        if reason == no_text.reason:
            examples = [(row, no_text) for row, caption in enumerate(captions) if not caption]
            entry = {"count": len(examples)}
        if examples:
            bad[reason] = entry | {
                "examples": [pairs.explain(row, problem) for row, problem in examples[:_NUM_EXAMPLES]]
            }
    return bad


def _figures(values: NDArray[np.integer]) -> dict[str, float]:
    if not len(values):
        return {}
    median, high = np.percentile(values, [50, 95])
    return {
        "smallest": int(values.min()),
        "median": float(median),
        "mean": round(float(values.mean()), 3),
        "p95": float(high),
        "largest": int(values.max()),
    }

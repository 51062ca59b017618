"""Rendering of text to pictures, and conversion of pictures to tokens."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from pretrainkit.errors import InputError
from pretrainkit.recipes.capabilities import DecodeOptions, ImageCodec, ImageTokenOptions, TokenizesImages
from pretrainkit.recipes.registry import able
from pretrainkit.running.opened import open_model

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pretrainkit.rendering import Renderer
    from pretrainkit.rendering.config import RendererOptions
    from pretrainkit.rendering.prerender import RenderSettings
    from pretrainkit.workers.processes import Progress


def open_renderer(source: str | Path, max_patches: int | None = None, **changes: Unpack[RendererOptions]) -> Renderer:
    """Return a renderer of texts, pairs of texts and lists of words: `renderer("some text").pixel_values` has the
    pixels. See docs/rendering.md. Raises DataError if there is no renderer or it renders differently than before, and
    ConfigError for an unknown field or value.

    Args:
        source: Folder of a renderer (as beside exported models and rendered rows), a .ttf or .otf font for the
            published settings, or NAME or NAME@REVISION of a model on the hub, whose weights are not downloaded.
        max_patches: Patches of a canvas; None: the number in the source, or 529.
        changes: Fields of `RendererConfig` to change, such as `engine="pango"`.
    """
    from pretrainkit.rendering import folder

    return folder.open_renderer(source, max_patches, **changes)


def render(
    corpus: str | Path | Sequence[str | Path],
    renderer: Renderer | str | Path,
    out: str | Path,
    settings: RenderSettings | None = None,
    *,
    format: str = "auto",
    text_key: str = "text",
    workers: int | None = None,
    progress: Progress | None = None,
) -> dict[str, dict[str, Any]]:
    """Render documents to parquet files, `out/train` and, if the corpus has held-out documents, `out/valid`. The same
    call resumes an interrupted one. Raises DataError if input cannot be used, or `out` contains something else.

    Args:
        corpus: Folder of `pretrainkit corpus shards`; or files, globs, addresses, such as
            `hf://datasets/NAME` of a data set of the hub.
        renderer: A renderer, or a source for `open_renderer`.
        out: Folder to create or to complete.
        settings: How to fill rows; None: as full as whole words allow, with pictures.
        format: How to read files: auto, jsonl, text, book, wiki, parquet or articles.
        text_key: Key or column of the text.
        workers: Number of processes; None: all cores. The files do not depend on it.

    Returns:
        The manifest of each split.
    """
    from pretrainkit.rendering import Renderer
    from pretrainkit.rendering.documents import find_documents
    from pretrainkit.rendering.prerender import prerender

    inputs = [corpus] if isinstance(corpus, str | Path) else list(corpus)
    documents = find_documents(inputs, format, text_key)
    drawn_by = renderer if isinstance(renderer, Renderer) else open_renderer(renderer)
    return prerender(documents, drawn_by, out, settings, workers=workers, progress=progress)


def open_image_tokenizer(
    path: str | Path, *, device: str | None = None, averaged: bool = False, batch_size: int = 64
) -> ImageCodec:
    """Open a trained image tokenizer: `codec.encode(images)` returns ids, `codec.decode(ids)` returns images. Raises
    InputError if it is a model of another recipe.

    Args:
        path: A run, checkpoint or export of a recipe that turns images into tokens.
        averaged: Use the averaged weights that `ema_decay` keeps.
        batch_size: Images per forward pass.
    """
    return _image_tokenizer(path, device=device, averaged=averaged, batch_size=batch_size)[1]


def decode_tokens(
    path: str | Path,
    ids: NDArray[np.integer],
    *,
    device: str | None = None,
    averaged: bool = False,
    **options: Unpack[DecodeOptions],
) -> NDArray[Any]:
    """Decode ids to images in the format of files: uint8 (B, H, W, 3) for colours and normals, uint8 (B, H, W) for
    grey, masks and classes (255 for none), float32 (B, H, W) for depth without scale, (B, C, H, W) for features.

    `path` is a run, checkpoint or export of an image tokenizer; `ids` are integers (B, tokens), row by row. Raises
    DataError if they are not ids of this tokenizer.
    """
    return open_image_tokenizer(path, device=device, averaged=averaged).decode(ids, **options)


def tokenize_images(
    path: str | Path,
    folder_or_tars: str | Path,
    *,
    device: str | None = None,
    averaged: bool = False,
    batch_size: int = 64,
    progress: Progress | None = None,
    **settings: Unpack[ImageTokenOptions],
) -> dict[str, Any]:
    """Write the tokens of a data set's images beside them. The same call resumes an interrupted one. Raises DataError
    if images are missing or broken, or existing tokens were made with other settings.

    Args:
        folder_or_tars: A folder with a folder for each modality, or tar files as in `ROOT/[rgb]/{00..09}.tar`.
        settings: Parts of images to tokenize, and the place of the tokens.

    Returns:
        The manifest, with the numbers of files `written` and `kept`.
    """
    recipe, codec, fingerprint = _image_tokenizer(path, device=device, averaged=averaged, batch_size=batch_size)
    return recipe.write_image_tokens(codec, str(folder_or_tars), fingerprint, settings, progress)


def _image_tokenizer(
    path: str | Path, *, device: str | None, averaged: bool, batch_size: int
) -> tuple[TokenizesImages[Any], ImageCodec, str]:
    """Return the recipe, the tokenizer, and the fingerprint of its weights."""
    from pretrainkit.dist.env import init_world
    from pretrainkit.dist.weights import weights_fingerprint

    opened = open_model(path, averaged=averaged)
    recipe = able(opened.recipe, TokenizesImages)
    with init_world(device) as world:
        codec = recipe.image_codec(opened.model, world.device, batch_size)
        return recipe, codec, weights_fingerprint(opened.model)


def image_decoder(word: str) -> tuple[str, ImageCodec]:
    """Parse `NAME=RUN`, a modality and its image tokenizer."""
    name, equals, path = word.partition("=")
    if not equals:
        raise InputError(f"invalid image tokenizer {word!r}\n  write NAME=RUN, as in tok_rgb@224=runs/rgb")
    return name, open_image_tokenizer(path)

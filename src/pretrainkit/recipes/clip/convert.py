"""Conversion of models to folders of transformers and back. Models of our own towers become `CLIPModel`, those that
project only texts `SiglipModel`, others `VisionTextDualEncoderModel`.

A folder has `config.json`, `model.safetensors`, tokenizer files, and `preprocessor_config.json` if it can express the
transforms of evaluation. transformers is imported only for towers that need it anyway.

Dimensions: D width of a tower, E width of the embeddings.
"""

import json
import logging
import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from torch import Tensor, nn

from pretrainkit.errors import CheckpointError, InputError
from pretrainkit.exporting.published_files import read_saved
from pretrainkit.exporting.settings import SETTINGS
from pretrainkit.exporting.transformers_folder import new_transformers_folder, read_config
from pretrainkit.images.ops import CenterCrop, ImageTransform, RandomResizeCrop, Resize, ResizeShorter
from pretrainkit.images.transforms import compose
from pretrainkit.recipes.clip.captions import CaptionTokenizer, read_settings
from pretrainkit.recipes.clip.config import (
    ClipRun,
    HuggingFaceTextConfig,
    ProjectionConfig,
    TemperatureConfig,
    TextTransformerConfig,
    TimmConfig,
    VitConfig,
)
from pretrainkit.recipes.clip.dual_layout import CLIP, DUAL, check_equal, dual_folder, read_dual
from pretrainkit.recipes.clip.model import DualEncoder
from pretrainkit.recipes.clip.presets import vit_b_16
from pretrainkit.recipes.clip.siglip_layout import NAFLEX, SIGLIP, read_siglip, siglip_folder
from pretrainkit.recipes.clip.towers import Color

logger = logging.getLogger(__name__)

_OTHER_FILES = frozenset({"config.json", "model.safetensors", "preprocessor_config.json", "manifest.json", SETTINGS})
"""Files of a tokenizer's folder that are not copied beside a model."""
_PROCESSORS = {CLIP: "CLIPProcessor", SIGLIP: "SiglipProcessor", DUAL: "VisionTextDualEncoderProcessor"}
_RESAMPLING = {"bilinear": 2, "bicubic": 3}
"""Numbers of Pillow's filters."""


def write_huggingface(config: ClipRun, model: nn.Module, tokenizer: Path | None, out: Path) -> None:
    """Write a folder for `from_pretrained`, with tokenizer and image processor. Raises InputError if transformers
    cannot compute the same embeddings, `out` exists or cannot be written, or there is no tokenizer."""
    _require_supported(config)
    words = tokenizer_of_export(tokenizer)
    dual_encoder = cast(DualEncoder, model)
    is_siglip = config.model.projection.kind == "text_only"
    values, tensors = (siglip_folder if is_siglip else dual_folder)(config, dual_encoder, words)
    with new_transformers_folder(out, values, tensors) as folder:
        _write_processor(config, dual_encoder, folder, _PROCESSORS[values["model_type"]])
        write_tokenizer(words, config.data.max_length, folder)
        if values["model_type"] == DUAL:
            check_equal(config, dual_encoder, folder)


def tokenizer_of_export(folder: Path | None) -> CaptionTokenizer:
    """Load the tokenizer of a model that is exported. Raises InputError if there is none."""
    if folder is None:
        raise InputError(
            "there is no tokenizer beside the model, which is needed to find the end of captions\n"
            "  import the model with the tokenizer of its training: pretrainkit import ... --tokenizer FOLDER"
        )
    return CaptionTokenizer(folder)


def _require_supported(config: ClipRun) -> None:
    """Raise InputError if the model has parts that transformers does not support in dual encoders."""
    reasons = []
    if config.model.projection.kind in ("residual", "text_mlp", "image_bias"):
        reasons.append(f"model.projection.kind={config.model.projection.kind}")
    if not config.model.projection.normalize:
        reasons.append("model.projection.normalize=false")
    if config.objective.loss == "siglip" and config.model.projection.kind != "text_only":
        reasons.append("the bias of the logits of objective.loss=siglip")
    if reasons:
        raise InputError(
            f"the dual encoders of transformers do not support {' and '.join(reasons)}\n  use --format safetensors"
        )


def write_tokenizer(tokenizer: CaptionTokenizer, max_length: int, folder: Path) -> None:
    """Write the tokenizer's files, with settings that make a processor of transformers cut captions at the same length
    as training."""
    for path in tokenizer.folder.iterdir():
        if path.is_file() and path.name not in _OTHER_FILES:
            shutil.copyfile(path, folder / path.name)
    path = folder / "tokenizer_config.json"
    about = json.loads(path.read_text("utf-8")) if path.is_file() else _usual_settings(tokenizer)
    if not (folder / "tokenizer.json").is_file():
        tokenizer.save(folder / "tokenizer.json")
    _write_json(path, {**about, "model_max_length": max_length, "truncation": True})


def _usual_settings(tokenizer: CaptionTokenizer) -> dict[str, Any]:
    """Return settings for a tokenizer without settings, such as a list of pieces."""
    ids = {"pad_token": tokenizer.pad_id, "mask_token": tokenizer.mask_id}
    ids |= {"cls_token": next(iter(tokenizer.prefix), None), "sep_token": next(iter(tokenizer.suffix[-1:]), None)}
    tokens = {role: tokenizer.pieces[index] for role, index in ids.items() if index is not None}
    return {"tokenizer_class": "PreTrainedTokenizerFast", **tokens}


def _write_processor(config: ClipRun, model: DualEncoder, folder: Path, processor_class: str) -> None:
    """Write `preprocessor_config.json`; if it cannot express the transforms of evaluation, only warn."""
    crop: CenterCrop | None = None
    match ops := config.data.valid_transforms:
        case [Resize() as resize]:  # with only ResizeShorter, images would have different shapes
            pass
        case [Resize() | ResizeShorter() as resize, CenterCrop() as crop]:
            _warn_of_crop(resize.size, crop.size)
        case _:
            logger.warning(
                "no preprocessor_config.json was written: transformers cannot express data.valid_transforms (%s)\n"
                "  it supports resize or resize_shorter, then optionally center_crop",
                ", ".join(op.op for op in ops) or "none",
            )
            return
    if isinstance(resize, Resize):
        size = {"height": resize.size, "width": resize.size}
    else:
        size = {"shortest_edge": resize.size}
    mean, deviation = model.mean_and_deviation
    _write_json(
        folder / "preprocessor_config.json",
        {
            "image_processor_type": f"{'Siglip' if processor_class == _PROCESSORS[SIGLIP] else 'CLIP'}ImageProcessor",
            "processor_class": processor_class,
            "do_convert_rgb": True,
            "do_resize": True,
            "size": size,
            "resample": _RESAMPLING[resize.interpolation],
            "do_center_crop": crop is not None,
            "crop_size": None if crop is None else {"height": crop.size, "width": crop.size},
            "do_rescale": True,
            "rescale_factor": 1 / 255,
            "do_normalize": True,
            "image_mean": list(mean),
            "image_std": list(deviation),
        },
    )


def _warn_of_crop(size: int, crop_size: int) -> None:
    """Warn if transformers starts its crop at another pixel than torchvision and this recipe. If half a pixel is left
    on each side, transformers rounds down, not to an even number. It also pads smaller images on the other side."""
    more = size - crop_size
    if more % 4 == 3 or (more < 0 and more % 2):
        logger.warning(
            "crops of %d from %d pixels are shifted by one pixel in transformers, so that its processor gives other "
            "pixels\n  for the same pixels, use sizes in data.valid_transforms that differ by an even number",
            *(crop_size, size),
        )


def _transforms_of(values: Mapping[str, Any], image_size: int) -> tuple[ImageTransform, ...]:
    """Return the transforms of a `preprocessor_config.json`; those of CLIP if it is empty."""
    size = values.get("size", image_size)
    kernel: Any = {number: name for name, number in _RESAMPLING.items()}.get(values.get("resample", 3))
    if kernel is None:
        raise CheckpointError(
            f"preprocessor_config.json has resample {values['resample']}\n  this recipe supports 2 and 3"
        )
    resize: ImageTransform
    if isinstance(size, Mapping) and "height" in size:
        if size["height"] != size["width"]:
            raise CheckpointError(
                f"preprocessor_config.json has size {size}, which is not a square\n  set the same height and width"
            )
        resize = Resize(size=size["height"], interpolation=kernel)
    else:
        resize = ResizeShorter(size=size["shortest_edge"] if isinstance(size, Mapping) else size, interpolation=kernel)
    if not values.get("do_center_crop", True):
        return (resize,)
    crop = values.get("crop_size") or image_size
    return (resize, CenterCrop(size=crop["height"] if isinstance(crop, Mapping) else crop))


def read_huggingface(folder: Path) -> tuple[ClipRun, dict[str, Tensor]]:
    """Return a complete config (clip/vit-b-16 with the settings of the folder) and the state dict of its model. Raises
    CheckpointError if a file is missing or broken, or the model has parts that this recipe does not support."""
    values, _ = read_config(folder, dict)
    tensors = read_saved(folder)
    kind = values.get("model_type")
    if kind not in (CLIP, DUAL, SIGLIP, NAFLEX):
        raise CheckpointError(
            f"config.json has model_type {kind!r}\n  the clip recipe reads {CLIP!r}, {SIGLIP!r} and {DUAL!r}"
        )
    processor = read_settings(folder / "preprocessor_config.json")
    image: VitConfig | TimmConfig
    text: TextTransformerConfig | HuggingFaceTextConfig
    try:
        if kind in (SIGLIP, NAFLEX):
            image, text, width, state = read_siglip(values, tensors)
            projection = ProjectionConfig(kind="text_only", dim=width)
            square = {"height": image.image_size, "width": image.image_size}
            processor = {"size": square, "do_center_crop": False, **_without_none(processor)}
        else:
            image, text, state = read_dual(values, tensors)
            projection = ProjectionConfig(dim=values.get("projection_dim", 512))
    except KeyError as error:
        raise CheckpointError(f"{folder} has no tensor or setting {error}\n  copy the folder again") from None
    has_colors = "image_mean" in processor
    run = imported_run(
        image,
        text,
        projection,
        state,
        transforms=_transforms_of(processor, image.image_size or 224),
        normalize=(tuple(processor["image_mean"]), tuple(processor["image_std"])) if has_colors else None,
        longest=read_settings(folder / "tokenizer_config.json").get("model_max_length"),
    )
    return run, state


def _without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def imported_run(
    image: VitConfig | TimmConfig,
    text: TextTransformerConfig | HuggingFaceTextConfig,
    projection: ProjectionConfig,
    state: Mapping[str, Tensor],
    *,
    transforms: tuple[ImageTransform, ...],
    normalize: tuple[Color, Color] | None,
    longest: int | None = None,
) -> ClipRun:
    """Return a complete config for an imported model: clip/vit-b-16 with its parts.

    Args:
        state: The weights. They include the temperature. If they have a bias of the logits, the loss is siglip.
        transforms: Transforms of evaluation.
        normalize: Mean and deviation of the images; None: those of the image tower.
        longest: Maximum number of tokens of a caption in its tokenizer; None: only the text tower has a limit.
    """
    base = vit_b_16()
    temperature = math.exp(-state["temperature.log_scale"].item())
    size = compose(transforms).size
    updates: dict[str, Any] = {"train_transforms": (RandomResizeCrop(size=size, scale=(0.9, 1.0)),)}
    updates |= {"valid_transforms": transforms, "normalize": normalize or base.data.normalize}
    lengths = [base.data.max_length, longest if isinstance(longest, int) else None]
    if isinstance(text, TextTransformerConfig):
        lengths.append(text.max_positions)
        if text.attends_padding:  # it must read rows of the same length as in training
            lengths = [text.max_positions]
            updates["pad_captions"] = "max_length"
    updates["max_length"] = min(filter(None, lengths))
    smallest = min(temperature, base.model.temperature.smallest)
    model = {
        "image": image,
        "text": text,
        "projection": projection,
        "temperature": TemperatureConfig(value=temperature, smallest=smallest),
    }
    objective = {"loss": "siglip"} if "logit_bias" in state else {}
    return base.changed(data=updates, model=model, objective=objective)


def _write_json(path: Path, values: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2) + "\n", "utf-8")

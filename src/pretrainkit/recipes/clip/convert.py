"""Conversion of models to folders of transformers and back. Models of our own towers become `CLIPModel`, those that
project only texts `SiglipModel`, others `VisionTextDualEncoderModel`.

A folder has `config.json`, `model.safetensors`, tokenizer files, and `preprocessor_config.json` if it can express the
transforms of evaluation. transformers is imported only for towers that need it anyway.

Dimensions: D width of a tower, E width of the embeddings.
"""

import json
import logging
import math
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from torch import Tensor, nn

from pretrainkit.errors import CheckpointError, InputError
from pretrainkit.exporting.foreign_tokenizer import with_right_sides
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
from pretrainkit.recipes.clip.dual_layout import (
    CLIP,
    DUAL,
    LEGACY_EOS,
    check_equal,
    dual_folder,
    end_token,
    read_dual,
)
from pretrainkit.recipes.clip.model import DualEncoder
from pretrainkit.recipes.clip.presets import HALF, OPENAI, vit_b_16
from pretrainkit.recipes.clip.siglip_layout import NAFLEX, SIGLIP, read_siglip, siglip_folder
from pretrainkit.recipes.clip.towers import Color

logger = logging.getLogger(__name__)

_OTHER_FILES = frozenset({"config.json", "model.safetensors", "preprocessor_config.json", "manifest.json", SETTINGS})
"""Files of a tokenizer's folder that are not copied beside a model."""
_PROCESSORS = {CLIP: "CLIPProcessor", SIGLIP: "SiglipProcessor", DUAL: "VisionTextDualEncoderProcessor"}
_RESAMPLING = {"bilinear": 2, "bicubic": 3}
"""Numbers of Pillow's filters."""
_HALF = {"image_mean": HALF[0], "image_std": HALF[1]}
_CLIP = {"do_center_crop": True, "resample": 3, "image_mean": OPENAI[0], "image_std": OPENAI[1]}
_IMAGE_PROCESSORS: dict[str, dict[str, Any]] = {
    "CLIP": _CLIP,
    "Bit": _CLIP,
    "Siglip": {"do_center_crop": False, "resample": 3, **_HALF},
    "ViT": {"do_center_crop": False, "resample": 2, **_HALF},
}
"""Defaults in transformers by the beginning of the class name."""
_PROCESSOR_FILE = "preprocessor_config.json"
_NESTED_FILE, _NESTED = "processor_config.json", "image_processor"
"""Place of the same settings in transformers 5, which is read first."""


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
        # SigLIP reads padding, too. With a mask of its tokens, it would compute other embeddings.
        inputs = {"model_input_names": ["input_ids"]} if is_siglip else {}
        write_tokenizer(words, config.data.max_length, folder, **inputs)
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


def write_tokenizer(tokenizer: CaptionTokenizer, max_length: int, folder: Path, **settings: Any) -> None:
    """Write the tokenizer's files, with settings that make a processor of transformers cut captions at the same length
    as training, and with other `settings`."""
    for path in tokenizer.folder.iterdir():
        if path.is_file() and path.name not in _OTHER_FILES:
            shutil.copyfile(path, folder / path.name)
    path = folder / "tokenizer_config.json"
    about = json.loads(path.read_text("utf-8")) if path.is_file() else _usual_settings(tokenizer)
    if not (folder / "tokenizer.json").is_file():
        tokenizer.save(folder / "tokenizer.json")
    _write_json(path, {**with_right_sides(about), "model_max_length": max_length, "truncation": True, **settings})


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
        folder / _PROCESSOR_FILE,
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


def _read_processor(folder: Path, kind: str) -> dict[str, Any]:
    """Return the settings of a folder's image processor, with the defaults of its class or else of `kind`. Raises
    CheckpointError for a class with another pipeline."""
    values = read_settings(folder / _NESTED_FILE).get(_NESTED) or read_settings(folder / _PROCESSOR_FILE)
    values = {name: value for name, value in values.items() if value is not None}
    full = values.get("image_processor_type") or values.get("feature_extractor_type") or f"{kind}ImageProcessor"
    kind = re.sub("(ImageProcessor(Fast|Pil)?|FeatureExtractor)$", "", full)
    if kind not in _IMAGE_PROCESSORS:
        raise CheckpointError(
            f"the image processor of {folder} is a {full}, which this recipe does not support\n"
            f"  it supports {', '.join(f'{name}ImageProcessor' for name in _IMAGE_PROCESSORS)}: save one of these with "
            "the settings of the training there"
        )
    return {"image_processor_type": kind, **_IMAGE_PROCESSORS[kind], **values}


def _transforms_of(values: Mapping[str, Any], image_size: int) -> tuple[ImageTransform, ...]:
    """Return the transforms of an image processor."""
    is_square = values["image_processor_type"] in ("Siglip", "ViT")
    size = values.get("size", image_size)
    if isinstance(size, int):
        size = {"height": size, "width": size} if is_square else {"shortest_edge": size}
    kernel: Any = {number: name for name, number in _RESAMPLING.items()}.get(values["resample"])
    if kernel is None:
        raise CheckpointError(f"{_PROCESSOR_FILE} has resample {values['resample']}\n  this recipe supports 2 and 3")
    resize: ImageTransform
    if size.keys() == {"height", "width"}:
        if size["height"] != size["width"]:
            raise CheckpointError(
                f"{_PROCESSOR_FILE} has size {size}, which is not a square\n  set the same height and width"
            )
        resize = Resize(size=size["height"], interpolation=kernel)
    elif size.keys() == {"shortest_edge"}:
        resize = ResizeShorter(size=size["shortest_edge"], interpolation=kernel)
    else:
        raise CheckpointError(
            f"{_PROCESSOR_FILE} has size {size}\n  this recipe supports height with width, or shortest_edge alone"
        )
    resizes = [resize] if values.get("do_resize", True) else []
    if not values["do_center_crop"]:
        if not resizes:
            raise CheckpointError(
                f"{_PROCESSOR_FILE} has do_resize False and do_center_crop False, so that images keep their sizes\n"
                "  set do_resize or do_center_crop to true"
            )
        return (resize,)
    crop = values.get("crop_size") or image_size
    return (*resizes, CenterCrop(size=crop["height"] if isinstance(crop, Mapping) else crop))


def _colors_of(values: Mapping[str, Any]) -> tuple[Color, Color]:
    """Return mean and deviation of an image processor, for pixels from 0 to 1."""
    white = 255 * values.get("rescale_factor", 1 / 255) if values.get("do_rescale", True) else 255
    colors: Any = ((0.0,) * 3, (1.0,) * 3)
    if values.get("do_normalize", True):
        colors = values["image_mean"], values["image_std"]
    return cast(Any, tuple(tuple(part / white for part in color) for color in colors))


def read_huggingface(folder: Path) -> tuple[ClipRun, dict[str, Tensor]]:
    """Return a complete config (clip/vit-b-16 with the settings of the folder) and the state dict of its model. Raises
    CheckpointError if a file is missing or broken, or the model has parts that this recipe does not support."""
    values, _ = read_config(folder, dict)
    tensors = read_saved(folder)
    kind = values.get("model_type")
    if kind not in (CLIP, DUAL, SIGLIP, NAFLEX):
        raise CheckpointError(
            f"config.json has model_type {kind!r}\n"
            f"  the clip recipe reads models with both towers: {CLIP!r}, {SIGLIP!r} and {DUAL!r}"
        )
    processor = _read_processor(folder, "Siglip" if kind == SIGLIP else "CLIP")
    tokenizer = read_settings(folder / "tokenizer_config.json")
    for side in ("padding_side", "truncation_side"):
        if tokenizer.get(side) == "left":
            raise CheckpointError(
                f"{folder}/tokenizer_config.json has {side} 'left', but this recipe pads and cuts captions at their "
                f"end\n  if the model was trained so, too, set {side} to 'right'"
            )
    image: VitConfig | TimmConfig
    text: TextTransformerConfig | HuggingFaceTextConfig
    try:
        if kind in (SIGLIP, NAFLEX):
            image, text, width, state = read_siglip(values, tensors)
            projection = ProjectionConfig(kind="text_only", dim=width)
        else:
            image, text, state = read_dual(values, tensors)
            projection = ProjectionConfig(dim=values.get("projection_dim", 512))
            if kind == CLIP:
                _require_end_token(end_token(values), folder)
    except KeyError as error:
        raise CheckpointError(f"{folder} has no tensor or setting {error}\n  copy the folder again") from None
    run = imported_run(
        image,
        text,
        projection,
        state,
        transforms=_transforms_of(processor, image.image_size or 224),
        normalize=_colors_of(processor),
        longest=tokenizer.get("model_max_length"),
    )
    return run, state


def _require_end_token(end: int | None, folder: Path) -> None:
    """Raise CheckpointError if the tokenizer in a folder does not end captions with the token that transformers reads;
    see `end_token`. Ours reads the last token."""
    if not (folder / "tokenizer.json").is_file():
        return
    tokenizer = CaptionTokenizer(folder)
    last = tokenizer.suffix[-1] if tokenizer.suffix else None
    if last == (tokenizer.vocab_size - 1 if end is None else end):
        return
    read = f"with text_config.eos_token_id {LEGACY_EOS}, transformers reads captions at their highest id"
    if end is not None:
        read = f"text_config.eos_token_id is {end}, at which transformers reads captions"
    raise CheckpointError(
        f"{folder}/config.json: {read}, but its tokenizer ends captions with {last}\n"
        "  put the tokenizer of the training there, or correct eos_token_id"
    )


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

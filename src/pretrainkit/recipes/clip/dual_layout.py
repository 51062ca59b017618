"""Our models as `CLIPModel`, or with towers of timm or transformers as `VisionTextDualEncoderModel`, both ways.

The latter reads the *pooled* caption, which BERT makes with a dense layer and a tanh; ours is the hidden state itself.
With s x identity as the dense layer, tanh(s x) is s x to within (s x)^2 / 3, and the projection is divided by s. s is a
power of two, so that both scalings are exact.

Dimensions: B examples, T tokens, D width of a tower, E width of the embeddings.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from pretrainkit.errors import CheckpointError, InputError
from pretrainkit.exporting.torchvision_shim import import_transformers
from pretrainkit.recipes.clip import clip_layout as clip
from pretrainkit.recipes.clip.captions import CaptionTokenizer
from pretrainkit.recipes.clip.config import ClipRun, HuggingFaceTextConfig, TextTransformerConfig, TimmConfig, VitConfig
from pretrainkit.recipes.clip.foreign_towers import PUBLISHED, HuggingFaceTower, TimmTower, registered
from pretrainkit.recipes.clip.model import DualEncoder

State = Mapping[str, Tensor]

CLIP, DUAL = "clip", "vision-text-dual-encoder"
_CLIP_VISION, _CLIP_TEXT = "clip_vision_model", "clip_text_model"
POOLER_SCALE = 2.0**-16
_POOLER = "pooler.dense"
_ALLOWED = 1e-4
"""Largest difference of an entry of an embedding of length 1 that the check of an export lets pass."""


def dual_folder(
    config: ClipRun, model: DualEncoder, tokenizer: CaptionTokenizer
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """`config.json` and tensors: of a `CLIPModel` where both towers are our own.

    Raises:
        InputError: A tower has no equal there.
    """
    image, text = config.model.image, config.model.text
    found = clip.projections(model)
    vision, words = (clip.without_prefix(f"{name}.encoder.", model.state_dict()) for name in ("image", "text"))
    if isinstance(image, VitConfig):
        vision_values = clip.vision_values(image)
        vision = clip.to_transformers(vision, image)
    else:
        vision_values = _timm_values(image, cast(TimmTower, model.image))
        vision = clip.with_prefix("timm_model.", vision)
    if isinstance(text, TextTransformerConfig):
        text_values = clip.text_values(text, tokenizer)
        words = clip.to_transformers(words, text)
    else:
        text_values, words = _with_pooler(text, cast(HuggingFaceTower, model.text), words)
        found["text_projection.weight"] = found["text_projection.weight"] / POOLER_SCALE
    width = {"projection_dim": config.model.projection.dim}
    if is_clip := isinstance(image, VitConfig) and isinstance(text, TextTransformerConfig):
        vision_values, text_values = vision_values | width, text_values | width
    values = {
        "model_type": CLIP if is_clip else DUAL,
        "architectures": ["CLIPModel" if is_clip else "VisionTextDualEncoderModel"],
        **width,
        "logit_scale_init_value": math.log(1 / config.model.temperature.value),
        "vision_config": vision_values,
        "text_config": text_values,
    }
    return values, {**clip.with_prefix("vision_model.", vision), **clip.with_prefix("text_model.", words), **found}


def _timm_values(config: TimmConfig, tower: TimmTower) -> dict[str, Any]:
    published = tower.encoder.pretrained_cfg
    name, stored = registered(tower.config)
    arguments = {key: value for key, value in tower.arguments.items() if key != "patch_drop_rate"}
    return {
        "model_type": "timm_wrapper",
        "architecture": name,
        "model_args": {**stored, **config.options, **arguments},
        "do_pooling": True,
        "hidden_size": tower.width,
        "num_classes": 0,
        "label_names": [],
        "pretrained_cfg": {name: published[name] for name in PUBLISHED},
    }


def _with_pooler(
    config: HuggingFaceTextConfig, tower: HuggingFaceTower, state: dict[str, Tensor]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The settings and tensors of the encoder with a pooler that passes on the first token, times `POOLER_SCALE`."""
    transformers = import_transformers()
    with torch.device("meta"):
        names = transformers.AutoModel.from_config(tower.encoder.config).state_dict().keys() - state.keys()
    if names != {f"{_POOLER}.weight", f"{_POOLER}.bias"} or config.pool_token != 0:
        raise InputError(
            f"VisionTextDualEncoderModel reads the pooled caption, which {type(tower.encoder).__name__} does not make "
            f"from token {config.pool_token}\n  use --format safetensors"
        )
    state[f"{_POOLER}.weight"] = torch.eye(tower.width) * POOLER_SCALE
    state[f"{_POOLER}.bias"] = torch.zeros(tower.width)
    return tower.encoder.config.to_dict(), state


@torch.no_grad()
def check_equal(config: ClipRun, model: DualEncoder, folder: Path) -> None:
    """Load the folder with transformers and compare embeddings of random inputs.

    Raises:
        InputError: They differ, so a tower means something else there.
    """
    theirs = import_transformers().VisionTextDualEncoderModel.from_pretrained(folder).eval()
    generator = torch.Generator().manual_seed(0)
    image, text = config.model.image, config.model.text
    side = image.image_size or cast(TimmTower, model.image).encoder.pretrained_cfg["input_size"][-1]
    pixels = torch.randn(2, 3, side, side, generator=generator)
    rows = text.vocab_size if isinstance(text, TextTransformerConfig) else theirs.config.text_config.vocab_size
    ids = torch.randint(0, rows or 1, (2, 5), generator=generator)
    if isinstance(text, TextTransformerConfig):
        # The end token at the end and nowhere else: transformers reads the first one that it finds.
        ids[:, -1] = theirs.config.text_config.eos_token_id
        ids[:, :-1] = torch.where(ids[:, :-1] == ids[:, -1:], 0, ids[:, :-1])
    was_training = model.training
    ours = model.eval()(pixels, ids)
    model.train(was_training)
    pooled = {
        "image": theirs.visual_projection(theirs.vision_model(pixel_values=pixels)[1]),
        "text": theirs.text_projection(theirs.text_model(input_ids=ids, attention_mask=torch.ones_like(ids))[1]),
    }
    for name, features in pooled.items():
        embeddings = features / features.norm(dim=-1, keepdim=True)
        is_alike = embeddings.shape == ours[name].shape
        difference = (ours[name] - embeddings).abs().max().item() if is_alike else math.inf
        if not difference < _ALLOWED:
            tower = type(getattr(model, name).encoder).__name__
            raise InputError(
                f"transformers computes other {name} embeddings (up to {difference:.2g} apart) with {tower}: "
                "its pooling cannot be expressed\n  use --format safetensors"
            )


def read_dual(
    values: Mapping[str, Any], tensors: State
) -> tuple[VitConfig | TimmConfig, TextTransformerConfig | HuggingFaceTextConfig, dict[str, Tensor]]:
    """Our towers and their tensors; "text_projection.linear.weight" is the factor of that projection.

    Raises:
        CheckpointError: A tower is of another kind, or its pooler is one that ours lack.
    """
    vision, words = (clip.without_prefix(prefix, tensors) for prefix in ("vision_model.", "text_model."))
    if values["model_type"] == CLIP:  # whose parts need not say what they are
        vision_values = {"model_type": _CLIP_VISION, **(values.get("vision_config") or {})}
        text_values = {"model_type": _CLIP_TEXT, **(values.get("text_config") or {})}
    else:
        vision_values, text_values = dict(values["vision_config"]), dict(values["text_config"])
    state = {"text_projection.linear.weight": torch.ones(())}
    image: VitConfig | TimmConfig
    text: TextTransformerConfig | HuggingFaceTextConfig
    if vision_values["model_type"] == _CLIP_VISION:
        image = clip.vision_config(vision_values)
        state |= clip.with_prefix("image.encoder.", clip.from_transformers(vision, image))
    elif vision_values["model_type"] == "timm_wrapper":
        options = dict(vision_values.get("model_args") or {})
        size = options.pop("img_size", None)
        image = TimmConfig(name=vision_values["architecture"], pretrained=False, image_size=size, options=options)
        state |= clip.with_prefix("image.encoder.", clip.without_prefix("timm_model.", vision))
    else:
        raise CheckpointError(
            f"config.json has a vision tower of model_type {vision_values['model_type']!r}\n"
            "  this recipe reads 'clip_vision_model' and 'timm_wrapper'"
        )
    if text_values["model_type"] == _CLIP_TEXT:
        text = clip.text_config(text_values)
        state |= clip.with_prefix("text.encoder.", clip.from_transformers(words, text))
    else:
        state["text_projection.linear.weight"] = torch.tensor(_pooler_scale(words))
        text = HuggingFaceTextConfig(name=text_values["model_type"], pretrained=False, architecture=text_values)
        state |= clip.with_prefix("text.encoder.", words)
    return image, text, state


def _pooler_scale(words: dict[str, Tensor]) -> float:
    """Takes the pooler out; it must be one that passes on the first token, times a small number."""
    weight, bias = words.pop(f"{_POOLER}.weight"), words.pop(f"{_POOLER}.bias")
    scale = weight[0, 0].item()
    is_identity = torch.equal(weight, torch.eye(len(weight)) * scale) and not bias.any()
    if not is_identity or not 0 < scale <= POOLER_SCALE:
        raise CheckpointError(
            "the text tower has a pooler with a tanh, which this recipe lacks\n"
            "  train with the tower alone: model.text_model.save_pretrained('WORDS') in transformers, and then "
            "'model.text={kind: huggingface, name: WORDS}'"
        )
    return scale

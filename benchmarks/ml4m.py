"""Access to the original of 4M, apple/ml-4m, for benchmarks: its model, its training step and its masking.

    git clone https://github.com/apple/ml-4m ml-4m && pip install einops && export ML4M=ml-4m

The complete package needs OpenCV, albumentations, diffusers and timm. This module runs only the files that it loads.
They need four short functions of other files, which this module replaces.
"""

import hashlib
import importlib
import os
import random
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pretrainkit.recipes.fourm.config import FourMModelConfig
from pretrainkit.recipes.fourm.mixtures import KEEPS, Bound
from pretrainkit.recipes.fourm.modality import Modality
from pretrainkit.recipes.fourm.model import PIXEL_DEVIATION, PIXEL_MEAN
from pretrainkit.training.optimizers.config import OptimizerConfig

VARIABLE = "ML4M"
Views = dict[str, dict[str, Tensor]]
"""Batch of the original: tensor, input_mask, target_mask and decoder_attention_mask by modality."""
_TYPES = {"pixels": "img", "image": "img", "sequence": "seq", "vectors": "seq_emb"}


def find_sources() -> Path | None:
    """Return the folder in the environment variable ML4M, or None if it is not set."""
    folder = os.environ.get(VARIABLE)
    if folder is None:
        return None
    if not (Path(folder) / "fourm" / "models" / "fm.py").is_file():
        raise SystemExit(f"{VARIABLE}={folder} has no fourm/models/fm.py: use the folder of apple/ml-4m")
    return Path(folder).resolve()


def sources() -> Path:
    """Return the folder of the original; exit with a message if ML4M is not set."""
    folder = find_sources()
    if folder is None:
        raise SystemExit(
            f"the original is missing: git clone https://github.com/apple/ml-4m, pip install einops, {VARIABLE}=ml-4m"
        )
    return folder


def load(name: str) -> Any:
    """Return a module of the original, such as models.fm."""
    root = sources() / "fourm"
    if "fourm" not in sys.modules:
        _register("fourm", [root])
        _register("fourm.models", [root / "models"])
        _register("fourm.data", [root / "data"])
        _register("fourm.data.modality_info", MODALITY_INFO={})
        _register("fourm.data.modality_transforms", get_transform_key=lambda name: name.split("@")[0])
        _register(
            "fourm.utils",
            [root / "utils"],
            to_2tuple=lambda value: value if isinstance(value, tuple) else (value, value),
            generate_uint15_hash=lambda text: int(hashlib.sha256(text.encode()).hexdigest(), 16) % (1 << 15),
        )
        _register("fourm.utils.timm", [root / "utils" / "timm"])
        _register("fourm.utils.tokenizer", get_sentinel_to_id_mapping=_sentinels)
    return importlib.import_module(f"fourm.{name}")


def _register(name: str, folders: Sequence[Path] = (), **content: Any) -> None:
    module = ModuleType(name)
    module.__path__ = [str(folder) for folder in folders]
    module.__dict__.update(content)
    sys.modules[name] = module


def _sentinels(tokenizer: Any) -> dict[int, int]:
    words = tokenizer.get_vocab().items()
    return {int(word[3:-1]): number for word, number in words if word.startswith("[S_")}


def make_model(config: FourMModelConfig) -> nn.Module:
    """Return the original's model with this architecture and new weights. The names of its weights are those of
    `to_original`."""
    fm, plain = load("models.fm"), load("models.fm_utils")
    # The original samples from a dictionary view, which Python refuses since 3.11.
    fm.random = SimpleNamespace(sample=lambda items, num: random.sample(list(items), num))
    info = {m.name: {"id": m.id, "type": _TYPES[m.kind], "max_tokens": m.max_tokens} for m in config.modalities}
    model: nn.Module = fm.FourM(
        {m.name: _encoder_embedding(m, config) for m in config.modalities if m.is_input},
        {m.name: _decoder_embedding(m, config) for m in config.modalities if m.is_target},
        info,
        dim=config.hidden_size,
        encoder_depth=config.num_encoder_layers,
        decoder_depth=config.num_decoder_layers,
        num_heads=config.num_heads,
        qkv_bias=config.biases,
        proj_bias=config.biases,
        mlp_bias=config.biases,
        act_layer=nn.SiLU if config.gated else nn.GELU,
        gated_mlp=config.gated,
        qk_norm=config.query_key_norm,
        norm_layer=partial(plain.LayerNorm, eps=config.layer_norm_epsilon, bias=config.biases),
    )
    return model


def make_optimizer(model: nn.Module, settings: OptimizerConfig) -> torch.optim.Optimizer:
    """Return the optimizer of the original's training script."""
    arguments = SimpleNamespace(
        opt="adamw",
        lr=settings.peak_lr,
        weight_decay=settings.weight_decay,
        opt_eps=settings.epsilon,
        opt_betas=[settings.beta1, settings.beta2],
    )
    with redirect_stdout(sys.stderr):  # it prints all parameter groups
        optimizer: torch.optim.Optimizer = load("utils.optim_factory").create_optimizer(arguments, model)
    return optimizer


def make_scaler() -> Any:
    """Return the original's helper for backward pass, clipping and update; without loss scaling, as for float32."""
    return load("utils.native_scaler").NativeScalerWithGradNormCount(enabled=False)


def _encoder_embedding(modality: Modality, config: FourMModelConfig) -> nn.Module:
    embeddings = load("models.encoder_embeddings")
    match modality.kind:
        case "pixels":
            options = {"num_channels": modality.num_channels}
            return _image(embeddings.ImageEncoderEmbedding, modality, **options)
        case "image":
            return _image(embeddings.ImageTokenEncoderEmbedding, modality, vocab_size=modality.vocab_size)
        case "sequence":
            embedding: nn.Module = embeddings.SequenceEncoderEmbedding(modality.vocab_size, modality.max_length)
        case "vectors":
            embedding = embeddings.SequenceEmbEncoderEmbedding(
                max_length=modality.max_length, orig_emb_dim=modality.vector_width, use_bottleneck=False
            )
    return embedding


def _decoder_embedding(modality: Modality, config: FourMModelConfig) -> nn.Module:
    embeddings = load("models.decoder_embeddings")
    options = {"vocab_size": modality.vocab_size, "share_embedding": config.tied_logits}
    if modality.kind == "image":
        return _image(embeddings.ImageTokenDecoderEmbedding, modality, **options)
    embedding: nn.Module = embeddings.SequenceDecoderEmbedding(max_length=modality.max_length, **options)
    return embedding


def _image(embedding_class: Any, modality: Modality, **options: Any) -> nn.Module:
    embedding: nn.Module = embedding_class(
        patch_size=modality.patch_size,
        image_size=modality.image_size,
        sincos_pos_emb=not modality.has_learned_positions,
        **options,
    )
    return embedding


def to_views(batch: Mapping[str, np.ndarray], modalities: Sequence[Modality]) -> Views:
    """Convert a batch of ours to the original's form. Rows must have one example each."""
    views: Views = {}
    for number, modality in enumerate(modalities):
        rows = [_view(batch, row, number, modality) for row in range(len(batch["encoder_length"]))]
        views[modality.name] = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    return views


def _view(batch: Mapping[str, np.ndarray], row: int, number: int, modality: Modality) -> dict[str, Tensor]:
    sides = []
    for side, names in (("encoder", ("position", "ids")), ("decoder", ("position", "ids", "target"))):
        slots = np.flatnonzero(batch[f"{side}_modality"][row, : batch[f"{side}_length"][row]] == number)
        sides.append([torch.from_numpy(batch[f"{side}_{name}"][row, slots]).long() for name in names])
    (input_places, input_ids), (target_places, previous, target_ids) = sides
    is_image = modality.kind in ("pixels", "image")
    size = modality.max_tokens if is_image else 2 * (modality.max_tokens + 1)
    input_mask, target_mask = torch.ones(size, dtype=torch.bool), torch.ones(size, dtype=torch.bool)
    attention = torch.zeros(size, dtype=torch.int)
    if is_image:
        values = torch.zeros(size, dtype=torch.long)
        values[input_places], values[target_places] = input_ids, target_ids
        input_mask[input_places], target_mask[target_places] = False, False
        attention[target_places[:1]] = len(target_ids)
        if modality.kind == "pixels":
            values = _standardized(batch[f"pixels/{modality.name}"][row])
    else:
        input_mask[: len(input_ids)] = False
        if modality.kind == "vectors":
            vectors = torch.from_numpy(batch[f"vectors/{modality.name}"][row])
            values = vectors.new_zeros(size, vectors.shape[1])
            values[: len(input_ids)] = vectors[input_ids] * (input_ids >= 0)[:, None]
        else:
            values = torch.zeros(size, dtype=torch.long)
            values[: len(input_ids)] = input_ids
            if len(target_ids):
                places = slice(modality.max_tokens, modality.max_tokens + len(target_ids) + 1)
                values[places] = torch.cat((previous, target_ids[-1:]))
                target_mask[places], attention[places] = False, 1
    return {"tensor": values, "input_mask": input_mask, "target_mask": target_mask, "decoder_attention_mask": attention}


def _standardized(pixels: np.ndarray) -> Tensor:
    mean, deviation = (torch.tensor(values)[:, None, None] for values in (PIXEL_MEAN, PIXEL_DEVIATION))
    return (torch.from_numpy(pixels).float() / 255 - mean) / deviation


def make_masking(modalities: Sequence[Modality], bound: Bound, num_tokens: int, tokenizer: Any) -> Any:
    """Return the original's masking of one sample, with budgets of `num_tokens` for inputs and for targets."""
    info = {
        modality.name: {
            "type": _TYPES[modality.kind],
            "min_tokens": 0,
            "max_tokens": modality.max_tokens,
            "input_alphas": bound.inputs_KD[:, number].tolist(),
            "target_alphas": bound.targets_KD[:, number].tolist(),
            "keep": [KEEPS[keep] for keep in bound.keep_KD[:, number].tolist()],
        }
        for number, modality in enumerate(modalities)
    }
    return load("data.masking").UnifiedMasking(
        info, tokenizer, num_tokens, num_tokens, sampling_weights=bound.weights_K.tolist()
    )

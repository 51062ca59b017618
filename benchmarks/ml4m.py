"""The original of 4M, apple/ml-4m, as far as benchmarks need it: its model, its step and its masking.

    git clone https://github.com/apple/ml-4m ml-4m && pip install einops && export ML4M=ml-4m

Its package imports what training on images needs (OpenCV, albumentations, diffusers, timm); only the files below are
run, and what they take of the others is four short functions, which are given to them here.
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
"""What the original reads: by modality tensor, input_mask, target_mask and decoder_attention_mask."""
_TYPES = {"pixels": "img", "image": "img", "sequence": "seq", "vectors": "seq_emb"}


def find_sources() -> Path | None:
    """The folder that the environment names; None where it names none."""
    given = os.environ.get(VARIABLE)
    if given is None:
        return None
    if not (Path(given) / "fourm" / "models" / "fm.py").is_file():
        raise SystemExit(f"{VARIABLE}={given} has no fourm/models/fm.py: give the folder of apple/ml-4m")
    return Path(given).resolve()


def sources() -> Path:
    """The same; ends the program where there are none."""
    found = find_sources()
    if found is None:
        raise SystemExit(
            f"the original is missing: git clone https://github.com/apple/ml-4m, pip install einops, {VARIABLE}=ml-4m"
        )
    return found


def load(name: str) -> Any:
    """A module of the original, such as models.fm."""
    root = sources() / "fourm"
    if "fourm" not in sys.modules:
        _offer("fourm", [root])
        _offer("fourm.models", [root / "models"])
        _offer("fourm.data", [root / "data"])
        _offer("fourm.data.modality_info", MODALITY_INFO={})
        _offer("fourm.data.modality_transforms", get_transform_key=lambda name: name.split("@")[0])
        _offer(
            "fourm.utils",
            [root / "utils"],
            to_2tuple=lambda value: value if isinstance(value, tuple) else (value, value),
            generate_uint15_hash=lambda text: int(hashlib.sha256(text.encode()).hexdigest(), 16) % (1 << 15),
        )
        _offer("fourm.utils.timm", [root / "utils" / "timm"])
        _offer("fourm.utils.tokenizer", get_sentinel_to_id_mapping=_sentinels)
    return importlib.import_module(f"fourm.{name}")


def _offer(name: str, folders: Sequence[Path] = (), **content: Any) -> None:
    module = ModuleType(name)
    module.__path__ = [str(folder) for folder in folders]
    module.__dict__.update(content)
    sys.modules[name] = module


def _sentinels(tokenizer: Any) -> dict[int, int]:
    words = tokenizer.get_vocab().items()
    return {int(word[3:-1]): number for word, number in words if word.startswith("[S_")}


def make_model(config: FourMModelConfig) -> nn.Module:
    """Its model of that architecture, freshly initialised; weights come by the names of `to_original`."""
    fm, plain = load("models.fm"), load("models.fm_utils")
    # It samples from a view of a dictionary, which Python refuses from 3.11 on.
    fm.random = SimpleNamespace(sample=lambda items, num: random.sample(list(items), num))
    info = {m.name: {"id": m.id, "type": _TYPES[m.kind], "max_tokens": m.max_tokens} for m in config.modalities}
    found: nn.Module = fm.FourM(
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
    return found


def make_optimizer(model: nn.Module, settings: OptimizerConfig) -> torch.optim.Optimizer:
    """What its script trains with."""
    arguments = SimpleNamespace(
        opt="adamw",
        lr=settings.peak_lr,
        weight_decay=settings.weight_decay,
        opt_eps=settings.epsilon,
        opt_betas=[settings.beta1, settings.beta2],
    )
    with redirect_stdout(sys.stderr):  # it prints all groups
        found: torch.optim.Optimizer = load("utils.optim_factory").create_optimizer(arguments, model)
    return found


def make_scaler() -> Any:
    """What its script calls for backward pass, clipping and update; without a scale, as for float32."""
    return load("utils.native_scaler").NativeScalerWithGradNormCount(enabled=False)


def _encoder_embedding(modality: Modality, config: FourMModelConfig) -> nn.Module:
    its = load("models.encoder_embeddings")
    match modality.kind:
        case "pixels":
            given = {"num_channels": modality.num_channels}
            return _image(its.ImageEncoderEmbedding, modality, **given)
        case "image":
            return _image(its.ImageTokenEncoderEmbedding, modality, vocab_size=modality.vocab_size)
        case "sequence":
            found: nn.Module = its.SequenceEncoderEmbedding(modality.vocab_size, modality.max_length)
        case "vectors":
            found = its.SequenceEmbEncoderEmbedding(
                max_length=modality.max_length, orig_emb_dim=modality.vector_width, use_bottleneck=False
            )
    return found


def _decoder_embedding(modality: Modality, config: FourMModelConfig) -> nn.Module:
    its = load("models.decoder_embeddings")
    given = {"vocab_size": modality.vocab_size, "share_embedding": config.tied_logits}
    if modality.kind == "image":
        return _image(its.ImageTokenDecoderEmbedding, modality, **given)
    found: nn.Module = its.SequenceDecoderEmbedding(max_length=modality.max_length, **given)
    return found


def _image(kind: Any, modality: Modality, **given: Any) -> nn.Module:
    found: nn.Module = kind(
        patch_size=modality.patch_size,
        image_size=modality.image_size,
        sincos_pos_emb=not modality.has_learned_positions,
        **given,
    )
    return found


def to_views(batch: Mapping[str, np.ndarray], modalities: Sequence[Modality]) -> Views:
    """What it reads in the place of a batch of ours whose rows hold one example each."""
    found: Views = {}
    for number, modality in enumerate(modalities):
        rows = [_view(batch, row, number, modality) for row in range(len(batch["encoder_length"]))]
        found[modality.name] = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    return found


def _view(batch: Mapping[str, np.ndarray], row: int, number: int, modality: Modality) -> dict[str, Tensor]:
    sides = []
    for side, names in (("encoder", ("position", "ids")), ("decoder", ("position", "ids", "target"))):
        own = np.flatnonzero(batch[f"{side}_modality"][row, : batch[f"{side}_length"][row]] == number)
        sides.append([torch.from_numpy(batch[f"{side}_{name}"][row, own]).long() for name in names])
    (given_places, given_ids), (asked_places, previous, asked) = sides
    is_image = modality.kind in ("pixels", "image")
    size = modality.max_tokens if is_image else 2 * (modality.max_tokens + 1)
    input_mask, target_mask = torch.ones(size, dtype=torch.bool), torch.ones(size, dtype=torch.bool)
    attention = torch.zeros(size, dtype=torch.int)
    if is_image:
        values = torch.zeros(size, dtype=torch.long)
        values[given_places], values[asked_places] = given_ids, asked
        input_mask[given_places], target_mask[asked_places] = False, False
        attention[asked_places[:1]] = len(asked)
        if modality.kind == "pixels":
            values = _standardized(batch[f"pixels/{modality.name}"][row])
    else:
        input_mask[: len(given_ids)] = False
        if modality.kind == "vectors":
            vectors = torch.from_numpy(batch[f"vectors/{modality.name}"][row])
            values = vectors.new_zeros(size, vectors.shape[1])
            values[: len(given_ids)] = vectors[given_ids] * (given_ids >= 0)[:, None]
        else:
            values = torch.zeros(size, dtype=torch.long)
            values[: len(given_ids)] = given_ids
            if len(asked):
                places = slice(modality.max_tokens, modality.max_tokens + len(asked) + 1)
                values[places] = torch.cat((previous, asked[-1:]))
                target_mask[places], attention[places] = False, 1
    return {"tensor": values, "input_mask": input_mask, "target_mask": target_mask, "decoder_attention_mask": attention}


def _standardized(pixels: np.ndarray) -> Tensor:
    mean, deviation = (torch.tensor(values)[:, None, None] for values in (PIXEL_MEAN, PIXEL_DEVIATION))
    return (torch.from_numpy(pixels).float() / 255 - mean) / deviation


def make_masking(modalities: Sequence[Modality], bound: Bound, num_tokens: int, tokenizer: Any) -> Any:
    """Its masking of one sample, with `num_tokens` for inputs and for targets."""
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

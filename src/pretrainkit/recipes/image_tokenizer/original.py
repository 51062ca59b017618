"""Read and write files of published tokenizers: weights as safetensors, with the config in the header or in a file.

Source: the released code and the hub format of `apple/ml-4m`. The released weights have their own
licence; this module does not download them. docs/image-tokenizers.md maps the original's settings to ours.
"""

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from pretrainkit.errors import CheckpointError, InputError
from pretrainkit.recipes.image_tokenizer.coders import grid_table
from pretrainkit.recipes.image_tokenizer.diffusion import UVIT_GRID
from pretrainkit.recipes.image_tokenizer.model import ImageTokenizer
from pretrainkit.recipes.image_tokenizer.model_config import (
    DOMAINS,
    CodebookConfig,
    Domain,
    ImageTokenizerModelConfig,
    MemcodesConfig,
    MLPCoderConfig,
    NoiseConfig,
    UNetConfig,
    UViTConfig,
    ViTCoderConfig,
)

_VITS = {"s": (512, 8, 8), "b": (768, 12, 12), "l": (1024, 24, 16)}
"""Maps sizes of the original to width, number of layers and number of heads."""
_UVITS = {"b": (768, 12, 12), "l": (1024, 24, 16), "h": (1280, 32, 16)}
_VECTORS = ("DINOv2-B14-global", "ImageBind-H14-global", "human_poses")
"""Published domains with one vector per image. Their files have the image size of the images behind the vectors."""
_PREDICTIONS = {
    "sample": ("image", "prediction"),
    "epsilon": ("noise", "prediction"),
    "v_prediction": ("velocity", "prediction"),
    "v_prediction-epsilon_loss": ("velocity", "noise"),
}
_REVIVALS = {"batch_random": "latents", "linde_buzo_gray": "split"}
_SCHEDULES = {"linear": "linear", "squaredcos_cap_v2": "squared_cosine", "shifted_cosine": "shifted_cosine"}
_SECOND_NAME = ("downsample_mid.conv.", "downsample_mid.Conv2d_0.")
"""A layer of UViT that has two names in the original. Files have the second name, the first, or both."""
_TABLE_ROUNDING = 1e-2
"""Tolerance of positions, which files may have in bfloat16."""
State = Mapping[str, Tensor]
_NAMES: Mapping[str, Mapping[str, str]] = {
    "": {
        "class_table": "cls_emb",
        "to_latents": "quant_proj",
        "from_codes": "post_quant_proj",
        "quantizer": "quantize",
        "codes_KD": "_codebook.embed",
        "use_K": "_codebook.cluster_size",
        "sums_KD": "_codebook.embed_avg",
        "is_ready": "_codebook.initted",
        "codes_HKE": "codes",
        "keys_HEE": "to_k.weight",
        "values_HEE": "to_v.weight",
    },
    "vit": {
        "layers": "blocks",
        "attention_norm": "norm1",
        "attention.qkv": "attn.qkv",
        "attention.out": "attn.proj",
        "feed_forward_norm": "norm2",
        "feed_forward.up": "mlp.fc1",
        "feed_forward.down": "mlp.fc2",
        "last_mlp.norm": "norm_mlp",
        "last_mlp.up": "post_mlp.fc1",
        "last_mlp.down": "post_mlp.fc2",
        "encoder.patch": "encoder.proj",
        "decoder.out": "decoder.out_proj",
        "convolutions": "out_conv",
        "convolution": "dwconv",
        "up": "pwconv1",
        "down": "pwconv2",
        "scale": "gamma",
    },
    "mlp": {
        "first": "linear_in",
        "last": "linear_out",
        r"layers.(\d+).norm": r"layernorms.\1",
        r"layers.(\d+).up": r"blocks.\1.block.0",
        r"layers.(\d+).down": r"blocks.\1.block.2",
    },
    "unet": {
        "time_1": "time_embed.0",
        "time_2": "time_embed.2",
        "decoder.out": "decoder.out.2",
        "decoder.norm": "decoder.out.0",
        # Convolutions that halve the resolution are called `op` in their stage; the first convolution has no such name.
        r"down.(?!0.0)(\d+.\d+).(weight|bias)": r"down.\1.op.\2",
        "down": "input_blocks",
        "middle": "middle_block",
        "up": "output_blocks",
        "norm_1": "in_layers.0",
        "convolution_1": "in_layers.2",
        "time": "emb_layers.1",
        "norm_2": "out_layers.0",
        "convolution_2": "out_layers.3",
        "skip": "skip_connection",
        r"(\d+).out": r"\1.proj_out",
        "convolution": "conv",
    },
    "uvit": {
        r"(down|up).(\d+).(\d+)": r"\1_blocks.\2.resnets.\3",
        r"halves.(\d+)": r"down_blocks.\1.downsamplers.0.conv",
        r"doubles.(\d+).convolution": r"up_blocks.\1.upsamplers.0.conv",
        "patch": "conv_in",
        "norm": "conv_norm_out",
        "norm_1": "norm1",
        "convolution_1": "conv1",
        "time": "time_emb_proj",
        "norm_2": "norm2",
        "convolution_2": "conv2",
        "skip": "conv_shortcut",
        r"layers.(\d+)": r"mid_block.mid_block.\1",
        "attention_norm": "norm1",
        "feed_forward_norm": "norm2",
        "qkv": "attn.qkv",
        "out": "attn.proj",
        "up": "mlp.fc1",
        "down": "mlp.fc2",
        "modulation": "adaLN_modulation",
        "gate": "adaLN_gate",
        "time_1": "time_embedding.linear_1",
        "time_2": "time_embedding.linear_2",
        "halve_middle": "downsample_mid.conv",
        "double_middle.convolution": "upsample_mid.conv",
        "told": "mid_block.mid_cond_proj",
        "into": "mid_block.mid_proj_in",
        "back": "mid_block.mid_proj_out",
        "mask_token": "mid_block.mask_token",
        "pixels": "conv_out",
    },
}
"""Renaming rules by the kind of a coder ("": all other parts). A rule is a pattern of whole dot-separated components of
our name, and the original's replacement. Rules are applied in this order."""


def config_of(config: ImageTokenizerModelConfig) -> dict[str, Any]:
    """Return the original's config of a tokenizer. Raises InputError if the original cannot express it."""
    quantizer, decoder = config.quantizer, config.decoder
    values: dict[str, Any] = {
        "image_size": config.image_size,
        "n_channels": config.domain.num_channels,
        "n_labels": config.domain.num_classes,
        "enc_type": _coder_name(config.encoder, "enc"),
        "dec_type": _coder_name(decoder, "dec"),
        "patch_proj": config.domain.kind != "features",
        "post_mlp": isinstance(config.encoder, ViTCoderConfig) and config.encoder.has_last_mlp,
        "patch_size": config.patch_size,
        "codebook_size": config.vocab_size,
        "num_codebooks": quantizer.num_heads,
        "latent_dim": quantizer.width,
        "freeze_enc": config.is_encoder_frozen,
        "undo_std": False,
    }
    if isinstance(quantizer, CodebookConfig):
        values |= {
            "quant_type": "lucid",
            "norm_codes": quantizer.distance == "cosine",
            "norm_latents": quantizer.normalizes_latents,
            "sync_codebook": False,
            "ema_decay": quantizer.decay,
            "code_replacement_policy": _theirs(_REVIVALS, quantizer.revival) or "batch_random",
            "commitment_weight": quantizer.commitment_weight,
            "kmeans_init": quantizer.first_codes == "kmeans",
        }
    elif isinstance(quantizer, MemcodesConfig):
        values["quant_type"] = "memcodes"
    else:
        raise InputError(f"the original has no quantizer {quantizer.kind!r}\n  use --format safetensors")
    for key, coder in (("image_size_enc", config.encoder), ("image_size_dec", decoder)):
        if isinstance(coder, ViTCoderConfig) and coder.position_grid is not None:
            values[key] = coder.position_grid * config.patch_size
    if isinstance(decoder, ViTCoderConfig):
        values["out_conv"] = decoder.num_output_convolutions > 0
    if isinstance(decoder, UNetConfig | UViTConfig):
        values |= _noise_values(decoder.noise)
    return values


def model_of(values: Mapping[str, Any]) -> ImageTokenizerModelConfig:
    """Convert a config of the original to ours. The domain is guessed from the number of channels; the user may correct
    it. Raises CheckpointError if the config has unknown parts."""
    labels, channels = values.get("n_labels"), int(values.get("n_channels", 3))
    has_patches = bool(values.get("patch_proj", True))
    post_mlp, enc_type = bool(values.get("post_mlp", False)), str(values.get("enc_type", "vit_b_enc"))
    patch_size, is_vector = int(values.get("patch_size", 16)), "MLP" in enc_type
    return ImageTokenizerModelConfig(
        domain=_domain(channels, labels, is_features=not has_patches, is_vector=is_vector),
        image_size=patch_size if is_vector else int(values.get("image_size", 224)),
        patch_size=patch_size,
        encoder=_coder(enc_type, values, has_last_mlp=post_mlp),
        quantizer=_quantizer(values),
        decoder=_coder(str(values.get("dec_type", "vit_b_dec")), values, has_last_mlp=post_mlp),
        is_encoder_frozen=bool(values.get("freeze_enc", False)),
    )


def _domain(channels: int, labels: Any, *, is_features: bool, is_vector: bool) -> Domain:
    if labels is None and not (is_features or is_vector):
        return DOMAINS["rgb"] if channels == 3 else DOMAINS["depth"]
    kind, num_classes = ("features", None) if labels is None else ("classes", int(labels))
    guessed = Domain(name=kind, kind=kind, num_channels=channels, num_classes=num_classes)  # type: ignore[arg-type]
    ignored = {"name", "folder"}
    same = (
        domain
        for domain in DOMAINS.values()
        if domain.model_dump(exclude=ignored) == guessed.model_dump(exclude=ignored)
        and is_vector == (domain.name in _VECTORS)
    )
    return next(same, guessed)


def _quantizer(values: Mapping[str, Any]) -> CodebookConfig | MemcodesConfig:
    size, width = int(values.get("codebook_size", 16384)), int(values.get("latent_dim", 32))
    heads, kind = int(values.get("num_codebooks", 1)), values.get("quant_type", "lucid")
    if kind == "memcodes":
        return MemcodesConfig(size=size, width=width, num_heads=heads)
    if kind != "lucid" or heads != 1:
        raise CheckpointError(
            f"the config has quant_type={kind} with num_codebooks={heads}, which is not supported\n"
            "  supported quantizers: memcodes, and lucid with one codebook"
        )
    return CodebookConfig(
        size=size,
        width=width,
        distance="cosine" if values.get("norm_codes", True) else "euclidean",
        normalizes_latents=bool(values.get("norm_latents", False)),
        decay=float(values.get("ema_decay", 0.99)),
        commitment_weight=float(values.get("commitment_weight", 1.0)),
        revival=_ours(_REVIVALS, "code_replacement_policy", values.get("code_replacement_policy", "batch_random")),
        first_codes="kmeans" if values.get("kmeans_init", False) else "random",
    )


def _theirs(names: Mapping[str, Any], ours: Any) -> str | None:
    """Return the original's name of one of our values, or None if it has none."""
    return next((theirs for theirs, own in names.items() if own == ours), None)


def _ours(names: Mapping[str, Any], key: str, theirs: Any) -> Any:
    """Return our value of a setting of the original. Raises CheckpointError if there is none."""
    if theirs not in names:
        raise CheckpointError(f"the config has {key}={theirs}, which is not supported\n  give --config with the model")
    return names[theirs]


def _coder_name(coder: Any, side: str) -> str:
    if isinstance(coder, ViTCoderConfig):
        size = _theirs(_VITS, (coder.hidden_size, coder.num_layers, coder.num_heads))
        if size is not None:
            return f"vit_{size}_{side}"
    if isinstance(coder, MLPCoderConfig):
        expansion = "" if coder.expansion == 4 else f"-E_{coder.expansion}"
        return f"BottleneckMLP/B_{coder.num_blocks}-Wi_{coder.width}{expansion}"
    if isinstance(coder, UNetConfig) and coder == UNetConfig(noise=coder.noise):
        return "unet_patched"
    if isinstance(coder, UViTConfig) and coder.patch_size == 4 and coder.widths == (128, 256) and coder.num_blocks == 2:
        size = _theirs(_UVITS, (coder.hidden_size, coder.num_layers, coder.num_heads))
        if size is not None:
            return f"uvit_{size}_p4_f{16 if coder.halves_before_middle else 8}"
    raise InputError(f"the original has no {side}oder like {coder}\n  use --format safetensors")


def _coder(name: str, values: Mapping[str, Any], *, has_last_mlp: bool) -> Any:
    parts = name.split("_")
    if name.startswith("vit_") and parts[1] in _VITS:
        width, layers, heads = _VITS[parts[1]]
        return ViTCoderConfig(
            hidden_size=width,
            num_layers=layers,
            num_heads=heads,
            has_last_mlp=has_last_mlp,
            num_output_convolutions=2 if parts[-1] == "dec" and values.get("out_conv", False) else 0,
            position_grid=_position_grid(values, f"image_size_{parts[-1]}"),
        )
    if name.startswith("BottleneckMLP/"):
        numbers = dict(part.split("_") for part in name.removeprefix("BottleneckMLP/").split("-"))
        return MLPCoderConfig(
            width=int(numbers["Wi"]), num_blocks=int(numbers["B"]), expansion=int(numbers.get("E", 4))
        )
    if name == "unet_patched":
        return UNetConfig(noise=_noise(values))
    for size, (width, layers, heads) in _UVITS.items():
        if name in (f"uvit_{size}_p4_f16", f"uvit_{size}_p4_f8") and values.get("conditioning", "concat") == "concat":
            return UViTConfig(
                noise=_noise(values),
                hidden_size=width,
                num_layers=layers,
                num_heads=heads,
                halves_before_middle=name.endswith("f16"),
                dropout=float(values.get("dec_transformer_dropout", 0.2)),
            )
    raise CheckpointError(f"the config names {name}, which is not supported\n  give --config with the model")


def _position_grid(values: Mapping[str, Any], key: str) -> int | None:
    """Return the grid of a position table whose image size differs from that of the images, or None."""
    size, own = values.get(key), values.get("image_size", 224)
    return None if size in (None, own) else int(size) // int(values.get("patch_size", 16))


def _noise(values: Mapping[str, Any]) -> NoiseConfig:
    schedule, _, shift = str(values.get("beta_schedule", "squaredcos_cap_v2")).partition(":")
    prediction, loss = _ours(_PREDICTIONS, "prediction_type", values.get("prediction_type", "v_prediction"))
    return NoiseConfig(
        num_times=int(values.get("num_train_timesteps", 1000)),
        schedule=_ours(_SCHEDULES, "beta_schedule", schedule),
        shift=float(shift or 1.0),
        ends_in_noise=bool(values.get("zero_terminal_snr", True)),
        prediction=prediction,
        loss=loss,
        dropout=float(values.get("cls_free_guidance_dropout", 0.0)),
        masks_places=bool(values.get("masked_cfg", False)),
    )


def _noise_values(noise: NoiseConfig) -> dict[str, Any]:
    schedule = _theirs(_SCHEDULES, noise.schedule)
    return {
        "num_train_timesteps": noise.num_times,
        "beta_schedule": f"{schedule}:{noise.shift}" if schedule == "shifted_cosine" else schedule,
        "zero_terminal_snr": noise.ends_in_noise,
        "prediction_type": _theirs(_PREDICTIONS, (noise.prediction, noise.loss)),
        "cls_free_guidance_dropout": noise.dropout,
        "masked_cfg": noise.masks_places,
        "conditioning": "concat",
    }


def original_name(name: str, config: ImageTokenizerModelConfig) -> str:
    """Return the original's name of one of our tensors. Raises CheckpointError if the original has no such part."""
    part = name.partition(".")[0]
    coders = {"encoder": config.encoder, "decoder": config.decoder}
    kind = coders[part].kind if part in coders else ""
    if kind not in _NAMES:
        raise CheckpointError(f"the original has no {part} of kind {kind!r}\n  use --format safetensors")
    for ours, theirs in _NAMES[kind].items():
        name = re.sub(rf"(?<![^.]){ours}(?![^.])", theirs, name)
    return name


def to_original(model: ImageTokenizer) -> dict[str, Tensor]:
    """Return the original's state dict, which also contains the position tables."""
    config = model.config
    state = {original_name(name, config): tensor for name, tensor in model.state_dict().items()}
    if "quantize._codebook.initted" in state:
        state["quantize._codebook.initted"] = state["quantize._codebook.initted"].float().reshape(1)
    first, second = _SECOND_NAME
    state |= {name.replace(first, second): tensor for name, tensor in state.items() if first in name}
    return state | _positions(config)


def from_original(tensors: State, config: ImageTokenizerModelConfig) -> dict[str, Tensor]:
    """Convert a state dict of the original to ours, for a model with this config. Raises CheckpointError if tensors are
    missing or unexpected."""
    with torch.device("meta"):
        names = list(ImageTokenizer(config).state_dict())
    theirs = {name: original_name(name, config) for name in names}
    first, second = _SECOND_NAME
    tensors = {name.replace(second, first): tensor for name, tensor in tensors.items()}
    tables = _positions(config)
    extra = {name for name in tensors if name.startswith("pipeline.")} | tables.keys()
    missing = sorted(set(theirs.values()) - tensors.keys())
    unexpected = sorted(tensors.keys() - set(theirs.values()) - extra)
    if missing or unexpected:
        raise CheckpointError(
            "the file does not match the config of the tokenizer\n"
            f"  missing: {', '.join(missing[:4]) or 'none'}\n  unexpected: {', '.join(unexpected[:4]) or 'none'}\n"
            "  give --config with the model of this file"
        )
    for name, table in tables.items():
        _require_table(name, tensors.get(name, table), table)
    state = {name: tensors[other] for name, other in theirs.items()}
    if "quantizer.is_ready" in state:
        state["quantizer.is_ready"] = state["quantizer.is_ready"].reshape(()).bool()
    return state


def _require_table(name: str, table: Tensor, expected: Tensor) -> None:
    """Raise CheckpointError if a table of positions in a file is not the one that the model computes."""
    is_same_grid = table.shape == expected.shape
    if not is_same_grid and name.endswith(".pos_emb"):
        part = name.partition(".")[0]
        raise CheckpointError(
            f"{name} has positions of {table.shape[-1]} x {table.shape[-1]} patches, but those of the config have "
            f"{expected.shape[-1]} x {expected.shape[-1]}\n  set model.{part}.position_grid={table.shape[-1]} in the "
            "file that is given with --config"
        )
    if not is_same_grid or not torch.allclose(table, expected, atol=_TABLE_ROUNDING):
        raise CheckpointError(
            f"{name} has other values than the fixed positions: it was learned, which is not supported\n"
            "  use a tokenizer with fixed positions, as published ones have"
        )


def _positions(config: ImageTokenizerModelConfig) -> dict[str, Tensor]:
    tables = {}
    for part, coder in (("encoder", config.encoder), ("decoder", config.decoder)):
        if coder.kind == "vit":
            grid = coder.position_grid or config.grid
            tables[f"{part}.pos_emb"] = grid_table(grid, grid, coder.hidden_size)
        elif coder.kind == "uvit":
            tables[f"{part}.mid_block.mid_pos_emb"] = grid_table(UVIT_GRID, UVIT_GRID, coder.hidden_size)
    return tables

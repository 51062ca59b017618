"""Import the original's YAML configs of tokenizers.

Keys and defaults are those of `run_training_vqvae.py` and `run_training_divae.py` of `apple/ml-4m`. An unknown key is
an error. A key without a counterpart is an error if it would change the result, and otherwise a note.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pretrainkit.config.loader import parse_override
from pretrainkit.config.yaml import parse_yaml
from pretrainkit.data.aligned_crops import CropConfig
from pretrainkit.errors import CheckpointError, ConfigError
from pretrainkit.recipes.exchange import ImportedConfig, checked_keys
from pretrainkit.recipes.image_tokenizer.config import (
    ImageTokenizerDataConfig,
    ImageTokenizerObjectiveConfig,
    ImageTokenizerRun,
    PerceptualConfig,
    Reconstruction,
)
from pretrainkit.recipes.image_tokenizer.model_config import (
    DOMAINS,
    CodebookConfig,
    Domain,
    ImageTokenizerModelConfig,
)
from pretrainkit.training.evaluate_config import EvaluateConfig
from pretrainkit.training.optimizers.config import OptimizerConfig, ScheduleConfig
from pretrainkit.training.run import CheckpointConfig, PrecisionConfig

_SHARED: dict[str, Any] = {
    "patch_size": 16, "input_size_min": 224, "input_size_max": 512, "resolution_step": 32, "input_size_enc": None,
    "input_size_dec": None,
    "encoder_type": "vit_s_enc", "post_mlp": True, "encoder_ckpt": None, "full_ckpt": None, "freeze_enc": False,
    "loss_fn": "mse", "quantizer_type": "lucid", "codebook_size": 8192, "latent_dim": 32, "norm_codes": True,
    "norm_latents": False, "codebook_weight": 1.0, "quantizer_ema_decay": 0.8, "coef_ema_dead_code": 4.0,
    "code_replacement_policy": "batch_random", "commitment_weight": 1.0, "kmeans_init": False, "batch_size": 256,
    "epochs": 100, "opt": "adamw", "opt_eps": 1e-8, "opt_betas": [0.9, 0.95], "clip_grad": None, "skip_grad": None,
    "weight_decay": 0.05, "weight_decay_end": None, "blr": 1e-4, "min_lr": 0.0, "warmup_epochs": 5, "warmup_steps": -1,
    "dtype": "float16", "model_ema": True, "model_ema_decay": 0.9999, "model_ema_update_freq": 1, "hflip": 0.5,
    "domain": "rgb", "mask_value": None, "data_path": None, "eval_data_path": None,
    "imagenet_default_mean_and_std": False, "standardize_surface_normals": False, "min_crop_scale": 0.8,
    "num_eval_metrics_samples": None, "eval_freq": 1, "step_eval": False, "seed": 0, "num_workers": 10,
}  # fmt: skip
_VQ = _SHARED | {
    "decoder_type": "vit_b_dec", "out_conv": False, "num_codebooks": 1, "mask_size": 64, "percept_loss_type": None,
    "percept_loss_blocks": "blocks.2-blocks.5-blocks.8-blocks.11", "percept_loss_distance": "cosine",
    "percept_loss_weight": 0.0,
}  # fmt: skip
_DIFFUSION = _SHARED | {
    "decoder_type": "unet_cat", "patch_size_dec": 4, "dec_transformer_dropout": 0.2, "num_train_timesteps": 1000,
    "prediction_type": "sample", "beta_schedule": "linear", "zero_terminal_snr": True, "cls_free_guidance_dropout": 0.2,
    "masked_cfg": True, "masked_cfg_low": 0, "masked_cfg_high": None, "conditioning": "concat",
    "resolution_cond": False, "warmup_epochs": 40,
}  # fmt: skip
_WITHOUT_EFFECT = frozenset(
    {"run_name", "output_dir", "device", "pin_mem", "find_unused_params", "show_user_warnings", "momentum", "warmup_lr"}
    | {"dtype_percept", "model_ema_force_cpu", "cache_datasets", "dist_eval"}
    | {"batch_size_eval", "save_ckpt_freq", "epoch_eval", "input_size_eval", "eval_metrics_freq", "eval_image_log_freq"}
    | {"num_logged_images", "eval_only", "no_inception", "log_codebook_usage", "resume", "auto_resume", "start_epoch"}
    | {"log_wandb", "wandb_project", "wandb_entity", "wandb_run_name", "wandb_tags", "clip_sample", "thresholding"}
    | {"eval_noise_schedule", "num_eval_timesteps", "eval_res_cond", "use_wds", "wds_n_repeats", "dataset_size"}
    | {"wds_shuffle_buffer_tar", "wds_shuffle_buffer_repeat", "s3_endpoint", "s3_data_endpoint", "s3_path"}
    | {"s3_save_dir", "s3_multipart_chunksize_mb", "s3_multipart_threshold_mb", "dist_url"}
)
"""Keys that do not affect the examples, the model or its updates. The original's warm-up starts at 0 whatever the value
of `warmup_lr`."""
KEYS = frozenset(_VQ) | frozenset(_DIFFUSION) | _WITHOUT_EFFECT
_REQUIRED: dict[str, tuple[Any, ...]] = {
    "opt": ("adamw",),
    "hflip": (0.5,),
    "skip_grad": (None,),
    "encoder_ckpt": (None,),
    "model_ema_update_freq": (1,),
    "mask_value": (None,),
    "standardize_surface_normals": (False,),
    "patch_size_dec": (4,),
    "masked_cfg_low": (0,),
    "masked_cfg_high": (None,),
    "resolution_cond": (False,),
}
"""Keys with a restricted range, and their values that have a counterpart here."""
_LOSSES: dict[str, Reconstruction] = {
    "mse": "mse",
    "l1": "l1",
    "smooth_l1": "smooth_l1",
    "cross_entropy": "cross_entropy",
    "binary_cross_entropy": "binary_cross_entropy",
    "cosine_1d": "cosine_channels",
}
_PRECISIONS = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}
_MODEL_KEYS = {
    "enc_type": "encoder_type",
    "dec_type": "decoder_type",
    "quant_type": "quantizer_type",
    "ema_decay": "quantizer_ema_decay",
    "image_size_enc": "input_size_enc",
    "image_size_dec": "input_size_dec",
}
"""Maps the name of a setting in the model's constructor to its name in the training script."""


_CONTROL_NET = "input_size_sd"
"""A key that only configs of VQControlNet have."""


def import_config(path: Path, settings: Iterable[str], nproc: int) -> ImportedConfig:
    """Import the config of a tokenizer. Raises ConfigError if the file cannot be read, a key is unknown, or a value has
    no counterpart.

    Args:
        settings: Overrides of the file, KEY=VALUE.
        nproc: Number of GPUs. The original's batch size is per GPU.
    """
    try:
        file_values = parse_yaml(path.read_text("utf-8"), str(path))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}\n  give a config of the original") from None
    if not isinstance(file_values, dict):
        raise ConfigError(f"{path} is not a mapping\n  give a config of the original")
    for setting in settings:
        parts, value = parse_override(setting)
        file_values[".".join(parts)] = value
    if _CONTROL_NET in file_values:
        raise ConfigError(
            f"{path} is a config of VQControlNet, whose decoder is Stable Diffusion: this recipe does not support it\n"
            "  give the config of a tokenizer with another decoder, such as divae/rgb/ViTB-UNetP4_16k_224_predx0.yaml"
        )
    is_diffusion = str(file_values.get("decoder_type", "vit")).startswith(("unet", "uvit"))
    values, ignored = checked_keys(file_values, _DIFFUSION if is_diffusion else _VQ, _WITHOUT_EFFECT, str(path))
    problems = [
        f"{path}: {key}={values[key]} has no counterpart\n  possible: {', '.join(map(str, possible))}"
        for key, possible in _REQUIRED.items()
        if key in values and values[key] not in possible
    ]
    problems += [
        f"{path}: unknown value {key}={values[key]}\n  possible: {', '.join(allowed)}"
        for key, allowed in (("domain", DOMAINS), ("loss_fn", _LOSSES))
        if values[key] not in allowed
    ]
    if values["imagenet_default_mean_and_std"] and values["domain"] == "rgb":
        problems.append(f"{path}: images are always scaled to -1 to 1\n  set imagenet_default_mean_and_std=false")
    if values["weight_decay_end"] not in (None, values["weight_decay"]):
        problems.append(f"{path}: weight_decay_end has no counterpart\n  leave it out")
    of_features = values["domain"] in DOMAINS and DOMAINS[values["domain"]].kind == "features"
    smallest, largest = values["input_size_min"], values["input_size_max"]
    if of_features and "MLP" not in values["encoder_type"] and smallest != largest:
        problems.append(f"{path}: features of several sizes have no counterpart\n  set input_size_min={largest}")
    if problems:
        raise ConfigError(problems)
    domain, notes = DOMAINS[values["domain"]], list[str]()
    if domain.kind == "features":
        notes.append(f"features are read from .npy files in the folder {domain.path}, not computed from images")
    model = _model(values, domain, path)
    config = _run(values, model, nproc, notes)
    if not values["full_ckpt"]:
        return ImportedConfig(config, notes, without_effect=ignored)
    folder = str(Path(values["full_ckpt"]).with_suffix(""))
    command = ("import", values["full_ckpt"], "--format", "4m-tokenizer", "--out", folder)
    config = config.model_copy(update={"init_from": folder})
    return ImportedConfig(config, notes, without_effect=ignored, weights_command=command)


def _model(values: Mapping[str, Any], domain: Domain, path: Path) -> ImageTokenizerModelConfig:
    from pretrainkit.recipes.image_tokenizer.original import model_of

    constructor_values = {ours: values[theirs] for ours, theirs in _MODEL_KEYS.items()}
    constructor_values |= {
        "n_channels": domain.num_channels,
        "n_labels": domain.num_classes,
        "image_size": values["input_size_max"],
    }
    constructor_values |= {"patch_proj": domain.kind != "features"}
    size = str(values["codebook_size"]).replace("_", "")
    if not size.isdecimal():
        raise ConfigError(f"{path}: codebook_size={size} is not a valid number\n  give a number such as 8192")
    try:
        model = model_of({**values, **constructor_values, "codebook_size": int(size)})
    except CheckpointError as error:
        raise ConfigError(f"{path}: {str(error).splitlines()[0]}\n  change the setting") from error
    changes: dict[str, Any] = {"domain": domain}
    if domain.kind == "mask":
        changes["image_size"] = values["mask_size"]
    if isinstance(model.quantizer, CodebookConfig):
        changes["quantizer"] = model.quantizer.changed(revival_coefficient=values["coef_ema_dead_code"])
    return model.model_copy(update=changes)


def _run(
    values: Mapping[str, Any], model: ImageTokenizerModelConfig, nproc: int, notes: list[str]
) -> ImageTokenizerRun:
    batch_size, epochs = values["batch_size"] * nproc, values["epochs"]
    sizes: dict[str, Any] = {}
    if values["input_size_min"] < model.image_size == values["input_size_max"]:
        sizes = {"min_image_size": values["input_size_min"], "image_size_step": values["resolution_step"]}
    peak = values["blr"] * batch_size / 256
    num_warmup_epochs = max(0, values["warmup_epochs"])
    warmup: dict[str, Any] = {"warmup_share": num_warmup_epochs / epochs} if num_warmup_epochs else {}
    if values["warmup_steps"] > 0:
        warmup = {"num_warmup_steps": values["warmup_steps"] - 1}
    every = values["eval_freq"] if values["step_eval"] else 10_000
    notes.append(f"checkpoints are written and held-out images evaluated every {every:,} steps")
    weight, network = values.get("percept_loss_weight", 0.0), values.get("percept_loss_type")
    perceptual = PerceptualConfig()
    if weight:
        perceptual = PerceptualConfig(
            weight=weight,
            network="lpips_vgg" if network == "lpips" else str(network),
            **({} if network == "lpips" else _features(values)),
        )
    samples = values["num_eval_metrics_samples"]
    return ImageTokenizerRun(
        seed=values["seed"],
        num_steps=None,
        model=model,
        objective=ImageTokenizerObjectiveConfig(
            reconstruction=_LOSSES[values["loss_fn"]],
            commitment_scale=values["codebook_weight"],
            perceptual=perceptual,
        ),
        data=ImageTokenizerDataConfig(
            train=values["data_path"] or (),
            valid=values["eval_data_path"] or (),
            batch_size=batch_size,
            num_epochs=epochs,
            crop=CropConfig(scale=(values["min_crop_scale"], 1.0), flip=float(values["hflip"])),
            **sizes,
            num_workers=values["num_workers"],
        ),
        optimizer=OptimizerConfig(
            peak_lr=peak,
            beta1=values["opt_betas"][0],
            beta2=values["opt_betas"][1],
            epsilon=values["opt_eps"],
            weight_decay=values["weight_decay"],
            max_grad_norm=values["clip_grad"] or 0.0,
        ),
        schedule=ScheduleConfig(name="cosine", floor=values["min_lr"] / peak, **warmup),
        ema_decay=values["model_ema_decay"] if values["model_ema"] else None,
        precision=PrecisionConfig(compute=_PRECISIONS.get(values["dtype"], values["dtype"])),
        checkpoint=CheckpointConfig(every_steps=every),
        evaluate=EvaluateConfig(every_steps=every, **({"num_examples": samples} if samples else {})),
    )


def _features(values: Mapping[str, Any]) -> dict[str, Any]:
    blocks = str(values["percept_loss_blocks"]).split("-")
    return {
        "blocks": tuple(int(block.removeprefix("blocks.")) for block in blocks),
        "distance": values["percept_loss_distance"],
    }

"""Import of the original's YAML files (main, data, alphas) as our configs. This module does not import torch.

Keys and defaults are those of `run_training_4m.py` and `run_training_4m_fsdp.py` of `apple/ml-4m`. Unknown keys are
errors. A key without a counterpart is an error if it would change the result, and a note otherwise.
"""

import logging
import math
import os
import re
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pretrainkit.config.loader import parse_override
from pretrainkit.config.yaml import parse_yaml
from pretrainkit.data.aligned_crops import CropConfig
from pretrainkit.errors import ConfigError
from pretrainkit.recipes.exchange import ImportedConfig, checked_keys
from pretrainkit.recipes.fourm.config import (
    SIZES,
    FourMDataConfig,
    FourMObjectiveConfig,
    FourMRun,
    FourMSetConfig,
    LengthConfig,
    MaskingConfig,
    Variant,
    published_model,
)
from pretrainkit.recipes.fourm.mixtures import PUBLISHED, Component
from pretrainkit.recipes.fourm.modality import Modality, published
from pretrainkit.training.evaluate_config import EvaluateConfig
from pretrainkit.training.optimizers.config import OptimizerConfig, ParameterGroup, ScheduleConfig
from pretrainkit.training.run import CheckpointConfig, ParallelConfig, PrecisionConfig

_log = logging.getLogger(__name__)
_BILLION = 1_000_000_000
_VARIANTS: dict[str, Variant] = {"gelu": "gelu", "swiglu_nobias": "swiglu", "swiglu_qknorm_nobias": "swiglu-qknorm"}
_MODEL = re.compile(rf"fm_({'|'.join(SIZES)})_\d+e_\d+d_({'|'.join(_VARIANTS)})")
_DEFAULTS: dict[str, Any] = {
    "seed": 0, "num_workers": 10, "batch_size": 256, "accum_iter": 1, "epochs": 100, "total_tokens": -1,
    "epoch_size": None, "warmup_epochs": 10, "warmup_steps": -1, "warmup_tokens": -1, "cooldown_epochs": 10,
    "cooldown_steps": -1, "cooldown_tokens": -1, "frozen_model_epochs": 0, "frozen_model_tokens": 0,
    "frozen_embedding_domain": None, "frozen_model_blr": -1, "save_ckpt_freq": 20, "eval_freq": 10,
    "model": "fm_base_12e_12d_swiglu_nobias", "patch_size": 16, "input_size": 224, "num_register_tokens": 0,
    "dtype": "bfloat16", "num_input_tokens": 128, "num_target_tokens": 128, "min_input_tokens": None,
    "min_target_tokens": None, "loss_type": "mod", "finetune": "", "use_act_checkpoint": False, "opt": "adamw",
    "opt_eps": 1e-8, "opt_betas": [0.9, 0.95], "weight_decay": 0.05, "weight_decay_end": None, "blr": 1e-4,
    "min_blr": 0.0, "scheduler": "cosine", "clip_grad": None, "skip_grad": None, "skip_nan_grad": False,
    "data_config": None, "text_tokenizer_path": None,
}  # fmt: skip
_WITHOUT_EFFECT = frozenset(
    {"run_name", "output_dir", "device", "pin_mem", "rlimit", "print_all", "show_user_warnings", "find_unused_params"}
    | {"dist_url", "s3_endpoint", "s3_data_endpoint", "s3_multipart_chunksize_mb", "s3_multipart_threshold_mb"}
    | {"s3_max_io_queue", "s3_save_dir", "compute_grad_norm", "momentum", "dist_eval", "fixed_eval", "eval", "resume"}
    | {"fixed_eval_input_tokens", "fixed_eval_target_tokens", "fixed_eval_batch_size", "auto_resume", "start_epoch"}
    | {"log_wandb", "wandb_project", "wandb_entity", "wandb_run_name", "tokenizer_path"}
)
"""Keys without effect on the examples, the model and its updates."""
GENERATION = ("target_domains", "sr_target_domains")
"""Keys that only a generation config has, for the first model and for super-resolution."""
_MODELS, _TOKENIZER = ("model", "sr_model"), "_tok_id"
_MODELS_WITHOUT_EFFECT = frozenset({"image_size", "image_size_metrics", "detokenizer_steps", "text_tok_path"})
"""Keys of files with the models of a generation; those of tokenizers end in `_TOKENIZER`."""
KEYS = (
    frozenset(_DEFAULTS)
    | _WITHOUT_EFFECT
    | {*GENERATION, "temps", "sr_temps", "top_p", "sr_top_p", *_MODELS, *_MODELS_WITHOUT_EFFECT}
    | {f"{name}{_TOKENIZER}" for name in ("rgb", "depth", "normal", "semseg", "clip")}
)
"""Known keys of main configs and of generation configs."""
_WITH_OTHERS = frozenset(
    {"cooldown_epochs", "cooldown_steps", "cooldown_tokens", "frozen_embedding_domain", "frozen_model_blr"}
)
"""Keys of schedules and frozen phases that are not supported. The original, too, ignores these keys for a cosine
schedule without a frozen phase."""
_REQUIRED: dict[str, tuple[Any, ...]] = {
    "patch_size": (16,),
    "input_size": (224,),
    "opt": ("adamw",),
    "weight_decay_end": (None,),
    "scheduler": ("cosine",),
    "skip_grad": (None,),
    "frozen_model_epochs": (0,),
    "frozen_model_tokens": (0,),
}
"""Keys with their supported values; other values have no counterpart."""
_BUDGETS = ("num_input_tokens", "num_target_tokens", "min_input_tokens", "min_target_tokens")
_SET_DEFAULTS: dict[str, Any] = {
    "type": "multimodal", "in_domains": "", "out_domains": "", "input_alphas": None, "target_alphas": None,
    "alphas_config": None, "min_input_tokens": None, "num_input_tokens": None, "min_target_tokens": None,
    "num_target_tokens": None, "data_path": "", "modality_name_map": None, "aligned_captions": True,
    "tok_train_aug": True, "hflip": None, "crop_scale": None, "crop_ratio": None,
}  # fmt: skip
_TYPES = ("multimodal", "huggingface")
_ABSENT = {"all2allmix-oldmod_rgb2all_capbias_v0.yaml": "mod7-all2allmix-rgb2all-capbias"}
"""Files that published configs name but the release lacks, with the mixtures that replace them."""
_SET_WITHOUT_EFFECT = frozenset(
    {"use_wds", "wds_n_repeats", "wds_shuffle_buffer_tar", "wds_shuffle_buffer_repeat", "main_augment_domain"}
    | {"shuffle_buffer_load", "pre_shuffle", "max_samples"}
)

_PLAN: dict[str, Any] = {
    "cond_domains": "caption-det", "target_domains": "tok_clip-tok_normal-tok_rgb", "tokens_per_target": "196-196-196",
    "autoregression_schemes": "maskgit-maskgit-maskgit", "decoding_steps": "25-25-25",
    "token_decoding_schedules": "cosine-cosine-cosine", "temps": "5.0-1.0-1.0",
    "temp_schedules": "linear-linear-linear", "cfg_scales": "4.0-4.0-4.0",
    "cfg_schedules": "constant-constant-constant", "cfg_grow_conditioning": True, "top_p": 0.0, "top_k": 0.0,
    "num_variations": 1, "seed": 0,
}  # fmt: skip
_SUPER_RESOLUTION_PLAN = {
    "cond_domains": None, "target_domains": "tok_clip@448-tok_rgb@448", "tokens_per_target": "784",
    "autoregression_schemes": "maskgit", "decoding_steps": "8", "token_decoding_schedules": "cosine", "temps": "1.0",
    "temp_schedules": "linear", "cfg_scales": "4.0", "cfg_schedules": "constant",
}  # fmt: skip
_SHARED_BY_TARGETS = ("num_variations", "seed")
_PREFIX = "sr_"
"""Prefix of the keys of a plan for super-resolution."""


def is_generation_config(content: Mapping[str, Any]) -> bool:
    """Return True for a generation config of the original (`settings_base`, `settings_sr`)."""
    return not content.keys().isdisjoint(GENERATION)


def generation_plan(content: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the plan of a generation config of the original, as `--plan` reads it.

    Keys and defaults are those of `run_generation.py`, with the prefix `sr_` for super-resolution. Raises ConfigError
    for unknown keys, values without a counterpart, and lists of a wrong length."""
    is_super_resolution = "target_domains" not in content
    if is_super_resolution or f"{_PREFIX}target_domains" not in content:
        prefix = _PREFIX if is_super_resolution else ""
    else:
        raise ConfigError(
            f"{where} has targets of two models\n"
            "  split it into two files: one with the keys that start with sr_, one with the others"
        )
    defaults = _PLAN | (_SUPER_RESOLUTION_PLAN if is_super_resolution else {})
    named = {key if key in _SHARED_BY_TARGETS else prefix + key: value for key, value in defaults.items()}
    known, _ = checked_keys(content, named, frozenset({"name", "sr_name"}), where)
    values = {key.removeprefix(prefix): value for key, value in known.items()}
    targets = _domains(values["target_domains"])
    lists = {key: _repeated(prefix + key, values[key], targets, where) for key in _LISTS}
    if other := [schedule for schedule in lists["cfg_schedules"] if schedule != "constant"]:
        raise ConfigError(f"{where}: {prefix}cfg_schedules={other[0]} has no counterpart\n  possible: constant")
    if values["cond_domains"]:
        _log.warning("%s: %scond_domains is ignored; pass conditions by --from or as prompts", where, prefix)
    plan = [
        _target(name, {key: entries[number] for key, entries in lists.items()}, values, where)
        for number, name in enumerate(targets)
    ]
    shared = {key: values[key] for key in _SHARED_BY_TARGETS}
    return {"targets": plan, "grow_conditions": values["cfg_grow_conditioning"], **shared}


_LISTS = (
    *("tokens_per_target", "autoregression_schemes", "decoding_steps", "token_decoding_schedules", "temps"),
    *("temp_schedules", "cfg_scales", "cfg_schedules"),
)


def _repeated(key: str, value: Any, targets: list[str], where: str) -> list[str]:
    """Return one value for each target. A single value applies to all targets."""
    values = str(value).split("-")
    if len(values) not in (1, len(targets)):
        raise ConfigError(
            f"{where}: {key}={value} has {len(values)} values for {len(targets)} targets\n"
            "  give one value for each target, or one for all"
        )
    return values if len(values) == len(targets) else values * len(targets)


def _target(name: str, entries: Mapping[str, str], values: Mapping[str, Any], where: str) -> dict[str, Any]:
    try:
        numbers = {key: float(entries[key]) for key in ("temps", "cfg_scales")}
        num_tokens = int(entries["tokens_per_target"])
    except ValueError as error:
        raise ConfigError(f"{where}: {name}: {error}\n  use numbers, separated by - for several targets") from None
    scheme = entries["autoregression_schemes"]
    target: dict[str, Any] = {
        "modality": name,
        "scheme": scheme,
        "temperature": numbers["temps"],
        "guidance": numbers["cfg_scales"],
        "top_p": values["top_p"],
        "top_k": values["top_k"],
    }
    if scheme == "autoregressive":
        return target | {"max_tokens": num_tokens}
    try:
        expected = published(name).max_tokens
    except ConfigError:  # a user's own modality
        expected = num_tokens
    if num_tokens != expected:
        raise ConfigError(
            f"{where}: tokens_per_target is {num_tokens} for {name}, which has {expected} tokens\n"
            "  all tokens of an image are generated: use their number"
        )
    return target | {
        "num_steps": int(entries["decoding_steps"]),
        "schedule": entries["token_decoding_schedules"],
        "temperature_schedule": entries["temp_schedules"],
    }


def import_config(path: Path, settings: Iterable[str], nproc: int) -> ImportedConfig:
    """Import a main config with the data and alphas that it names. For a generation config, return the command. Raises
    ConfigError if a file cannot be read, a key is unknown, or a value has no counterpart.

    Args:
        path: Main config. Paths in it are relative to the working folder, to the config's folder or to a parent of it.
        settings: Changes of the main config, KEY=VALUE.
        nproc: Number of GPUs; the original's batch size is for one GPU.
    """
    content = _read(path)
    for setting in settings:
        parts, value = parse_override(setting)
        content[".".join(parts)] = value
    if is_generation_config(content):
        generation_plan(content, str(path))
        return ImportedConfig(None, [], command=("generate", "imported", "--plan", str(path)))
    if _MODELS[1] in content or any(key.endswith(_TOKENIZER) for key in content):
        return _models_of_generation(content, str(path))
    values, ignored = checked_keys(content, _DEFAULTS, _WITHOUT_EFFECT, str(path))
    ignored |= {
        key: "belongs to a schedule or a frozen phase that is not supported" for key in content if key in _WITH_OTHERS
    }
    notes: list[str] = []
    problems = [
        f"{path}: {key}={values[key]} has no counterpart\n  possible: {', '.join(map(str, possible))}"
        for key, possible in _REQUIRED.items()
        if values[key] not in possible
    ]
    model_match = _MODEL.fullmatch(str(values["model"]))
    if model_match is None:
        problems.append(
            f"{path}: there is no model {values['model']!r}\n"
            f"  names have the form fm_SIZE_..._VARIANT, with the sizes {', '.join(SIZES)}"
        )
    if "epochs" in content and values["epochs"] > 0 and values["total_tokens"] > 0:
        problems.append(
            f"{path}: epochs={values['epochs']} and total_tokens={values['total_tokens']} both set the length\n"
            "  set one of them to -1"
        )
    if values["data_config"] is None:
        problems.append(f"{path} has no data_config\n  set data_config=FILE")
    if problems or model_match is None:
        raise ConfigError(problems)
    modalities, data, masking = _data(values, path, nproc, notes, ignored)
    model = published_model(model_match[1], modalities, _VARIANTS[model_match[2]])
    model = model.model_copy(update={"num_registers": values["num_register_tokens"]})
    config = _run(values, notes, {"model": model, "masking": masking, "data": data})
    if not values["finetune"]:
        return ImportedConfig(config, notes, without_effect=ignored)
    folder = str(Path(values["finetune"]).with_suffix(""))
    command = ("import", values["finetune"], "--recipe", "fourm", "--format", "4m", "--out", folder)
    config = config.model_copy(update={"init_from": folder})
    return ImportedConfig(config, notes, without_effect=ignored, weights_command=command)


def _models_of_generation(content: Mapping[str, Any], where: str) -> ImportedConfig:
    """Return the command that imports the model of a file with the models and tokenizers of a generation (its `model`),
    and notes with the commands for the others."""
    without_effect = _WITHOUT_EFFECT | _MODELS_WITHOUT_EFFECT
    values, ignored = checked_keys(
        content,
        dict.fromkeys((*_MODELS, *(key for key in content if key.endswith(_TOKENIZER)))),
        without_effect,
        where,
    )
    commands = []
    for key, place in values.items():
        if place is not None:
            source, format = str(place), "4m" if key in _MODELS else "4m-tokenizer"
            name = source if os.path.exists(source) else f"hf-hub:{source}"
            commands.append(
                ("import", name, "--format", format, "--out", Path(source).name.removesuffix(".safetensors"))
            )
    if not commands:
        raise ConfigError(f"{where} names no model\n  give the file that names it, such as 4m-b_mod7+sr_4m-l_mod7.yaml")
    notes = [f"another model or tokenizer: pretrainkit {shlex.join(command)}" for command in commands[1:]]
    return ImportedConfig(None, notes, command=commands[0], without_effect=ignored)


def _run(values: Mapping[str, Any], notes: list[str], parts: Mapping[str, Any]) -> FourMRun:
    """Return the config. `parts`: its model, masking and data."""
    epoch, batch_size = values["epoch_size"], parts["data"].batch_size
    step_tokens = batch_size * (values["num_input_tokens"] + values["num_target_tokens"])
    per_epoch = max(1, epoch // batch_size) if epoch else None
    if per_epoch is None and (values["total_tokens"] <= 0 or values["warmup_tokens"] <= 0):
        raise ConfigError("epoch_size is missing, so the length of an epoch is unknown\n  set epoch_size=EXAMPLES")
    length = LengthConfig(
        num_tokens=_tokens(values["total_tokens"]),
        num_epoch_examples=epoch if values["total_tokens"] > 0 else None,
        num_warmup_tokens=_tokens(values["warmup_tokens"]),
    )
    num_warmup = 0
    if length.num_warmup_tokens is None:
        in_epochs = max(0, values["warmup_epochs"]) * (per_epoch or 0)
        num_warmup = max(0, (values["warmup_steps"] if values["warmup_steps"] >= 0 else in_epochs) - 1)
    peak = values["blr"] * batch_size / 256
    interval = {key: (values[key] * per_epoch if per_epoch else 1000) for key in ("save_ckpt_freq", "eval_freq")}
    if values["loss_type"] == "token":
        notes.append(
            "loss_type=token becomes objective.loss=token_compat; objective.loss=token would weight all tokens equally"
        )
    notes.append(f"a step has {batch_size} examples with {step_tokens} slots over all ranks and microbatches")
    return FourMRun(
        **parts,
        seed=values["seed"],
        num_steps=None if length.num_tokens else values["epochs"] * (per_epoch or 0),
        length=length,
        objective=FourMObjectiveConfig(loss="token_compat" if values["loss_type"] == "token" else "modality"),
        optimizer=OptimizerConfig(
            peak_lr=peak,
            beta1=values["opt_betas"][0],
            beta2=values["opt_betas"][1],
            epsilon=values["opt_eps"],
            weight_decay=values["weight_decay"],
            max_grad_norm=values["clip_grad"] or 0.0,
            groups=(ParameterGroup(pattern="mask_token", weight_decay=values["weight_decay"]),),
        ),
        schedule=ScheduleConfig(name="cosine", num_warmup_steps=num_warmup, floor=values["min_blr"] / values["blr"]),
        max_skipped_steps=100 if values["skip_nan_grad"] else 0,
        precision=PrecisionConfig(compute=values["dtype"]),
        parallel=ParallelConfig(activation_checkpointing=values["use_act_checkpoint"]),
        checkpoint=CheckpointConfig(every_steps=max(1, interval["save_ckpt_freq"])),
        evaluate=EvaluateConfig(every_steps=max(1, interval["eval_freq"])),
    )


def _data(
    values: Mapping[str, Any], path: Path, nproc: int, notes: list[str], ignored: dict[str, str]
) -> tuple[tuple[Modality, ...], FourMDataConfig, MaskingConfig]:
    file = _find(str(values["data_config"]), path)
    content = _read(file)
    training = content.get("train", {})
    named: dict[str, Any] = dict(training.get("datasets") or {})
    weights = training.get("weights") or [None] * len(named)
    if len(weights) != len(named) or not named:
        raise ConfigError(
            f"{file}: {len(weights)} weights for {len(named)} data sets\n  give one weight for each data set"
        )
    sets, inputs, targets, crops = [], set[str](), set[str](), list[CropConfig]()
    for (name, fields), weight in zip(named.items(), weights, strict=True):
        settings, unused = checked_keys(fields, _SET_DEFAULTS, _SET_WITHOUT_EFFECT, f"{file}: {name}")
        sets.append(_set(name, settings, weight, values, file, notes))
        ignored |= {f"{name}.{key}": why for key, why in unused.items()}
        crops += _crop(name, settings, file)
        inputs |= set(_domains(settings["in_domains"]))
        targets |= set(_domains(settings["out_domains"]))
    if any(crop != crops[0] for crop in crops):
        raise ConfigError(
            f"{file}: data sets are cropped in different ways\n"
            "  set the same hflip, crop_scale and crop_ratio in all data sets with images"
        )
    valid = []
    for name, fields in ((content.get("val") or {}).get("datasets") or {}).items():
        # Keys that it leaves out have the values of the training set with the same name.
        settings, _ = checked_keys(
            {**named.get(name, {}), **fields}, _SET_DEFAULTS, _SET_WITHOUT_EFFECT, f"{file}: val: {name}"
        )
        valid.append(_set(name, settings, None, values, file, []))
    modalities = tuple(
        published(name).model_copy(update={"is_input": name in inputs, "is_target": name in targets})
        for name in sorted(inputs | targets)
    )
    micro = values["batch_size"]
    data = FourMDataConfig(
        train=tuple(sets),
        valid=tuple(valid),
        crop=crops[0] if crops else CropConfig(),
        tokenizer=values["text_tokenizer_path"],
        batch_size=micro * nproc * values["accum_iter"],
        microbatch_size=micro if values["accum_iter"] > 1 else None,
        num_workers=values["num_workers"],
        aligned_captions=all(settings.get("aligned_captions", True) for settings in named.values()),
    )
    budget = {key: values[key] for key in _BUDGETS}
    assert sets[0].mixture is not None
    notes.append("further draws fill empty slots; masking.unused=pad leaves them empty, as in the original")
    return modalities, data, MaskingConfig(**budget, mixture=sets[0].mixture)


def _set(
    name: str,
    settings: Mapping[str, Any],
    weight: float | None,
    values: Mapping[str, Any],
    file: Path,
    notes: list[str],
) -> FourMSetConfig:
    if settings["type"] not in _TYPES:
        raise ConfigError(f"{file}: {name} has the unknown type {settings['type']!r}\n  possible: {', '.join(_TYPES)}")
    if settings["type"] == "huggingface":
        notes.append(
            f"{file}: {name}: texts are read as captions from folders or tar files, not by `datasets`: write such "
            "files and set data.train[].path"
        )
    for key in _BUDGETS:
        of_run, default = values[key], values[key.replace("min_", "num_")]
        if settings[key] is not None and settings[key] != (default if of_run is None else of_run):
            raise ConfigError(f"{file}: {name} has {key}={settings[key]}, but the run has {of_run}\n  make them equal")
    inputs, targets = _domains(settings["in_domains"]), _domains(settings["out_domains"])
    if settings["alphas_config"]:
        alphas = str(settings["alphas_config"])
        try:
            mixture = _mixture(_read(_find(alphas, file)), inputs, targets)
        except ConfigError:
            known = _ABSENT.get(alphas.rpartition("/")[2])
            if known is None:
                raise
            notes.append(f"{file}: {name}: the release lacks {alphas}; the mixture {known} replaces it")
            mixture = PUBLISHED[known]
    else:
        mixture = (
            Component(
                inputs=_alphas(settings["input_alphas"], inputs), targets=_alphas(settings["target_alphas"], targets)
            ),
        )
    return FourMSetConfig(
        path=settings["data_path"],
        name=name,
        weight=weight,
        modalities=tuple(sorted({*inputs, *targets})),
        folders={modality: folder for folder, modality in (settings["modality_name_map"] or {}).items()},
        mixture=mixture,
    )


def _crop(name: str, settings: Mapping[str, Any], file: Path) -> list[CropConfig]:
    """Return the crop settings of a data set; an empty list without images, or with tokens of stored parts."""
    domains = [*_domains(settings["in_domains"]), *_domains(settings["out_domains"])]
    if all("@" not in domain for domain in domains):
        return []
    named = [key for key in ("hflip", "crop_scale", "crop_ratio") if settings[key] is not None]
    if any(domain.startswith("tok_") or domain == "sam_instance" for domain in domains):
        if named:
            raise ConfigError(
                f"{file}: {name} has {', '.join(named)}, but its tokens belong to stored parts\n  leave them out"
            )
        if not settings["tok_train_aug"]:
            raise ConfigError(
                f"{file}: {name} has tok_train_aug={settings['tok_train_aug']}, which has no counterpart\n"
                "  create its tokens with --crops 1 and leave out the key"
            )
        return []
    if len(named) < 3:
        raise ConfigError(f"{file}: {name} needs hflip, crop_scale and crop_ratio\n  set all three")
    return [CropConfig(scale=settings["crop_scale"], ratio=settings["crop_ratio"], flip=float(settings["hflip"]))]


def _mixture(content: Mapping[str, Any], inputs: list[str], targets: list[str]) -> tuple[Component, ...]:
    alphas = content.get("alphas_mixture", content)
    num = len(next(iter(alphas.values()))["input_alphas"])
    weights = content.get("sampling_weights") or [1.0] * num

    def row(names: list[str], key: str, number: int) -> dict[str, Any]:
        return {name: alphas[name][key][number] for name in names if name in alphas and key in alphas[name]}

    return tuple(
        Component(
            weight=weights[number],
            inputs=row(inputs, "input_alphas", number),
            targets=row([name for name in targets if name not in ("rgb@224", "t5_caption")], "target_alphas", number),
            keep=row(inputs, "keep", number),
        )
        for number in range(num)
    )


def _alphas(alphas: Any, names: list[str]) -> dict[str, float]:
    """Return the concentration of each name, from one value for all or one for each in the order of their names."""
    values = [float(value) for value in str(alphas if alphas is not None else 1.0).split("-")]
    if len(values) == 1:
        values *= len(names)
    if len(values) != len(names):
        raise ConfigError(
            f"alphas {alphas!r}: {len(values)} values for {len(names)} modalities\n  give one value for each modality"
        )
    return dict(zip(sorted(names), values, strict=True))


def _domains(value: str) -> list[str]:
    return [name for name in value.split("-") if name]


def _tokens(billions: float) -> int | None:
    return math.ceil(billions * _BILLION) if billions > 0 else None


def _find(name: str, beside: Path) -> Path:
    for folder in (Path(), *beside.absolute().parents):
        for candidate in (folder / name, folder / f"{name}.yaml"):
            if os.path.isfile(candidate):
                return candidate
    raise ConfigError(
        f"{beside} names {name}, which is neither in the working folder nor in its own folder or a parent of it\n"
        "  use the full path"
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        content = parse_yaml(path.read_text("utf-8"), str(path))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}\n  use a config of the original") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path} contains no settings\n  use a config of the original")
    return content

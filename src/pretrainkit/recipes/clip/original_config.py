"""Import of ZeroVL's YAML files as configs of ours. Imports no torch.

The keys and defaults are those of ZeroVL's last public version (https://github.com/zerovl/ZeroVL). An unknown key is an
error. A key without a counterpart is an error if it would change the result, and otherwise a note.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pretrainkit.config.explain import explain, nearest
from pretrainkit.config.loader import flatten, nested, parse_override
from pretrainkit.config.yaml import parse_yaml, read_text
from pretrainkit.errors import ConfigError
from pretrainkit.images import ops
from pretrainkit.images.ops import ImageTransform
from pretrainkit.recipes.clip.config import ClipRun
from pretrainkit.recipes.exchange import ImportedConfig

_SAME: dict[str, tuple[Any, str]] = {
    "log.interval_train": (1, "log.every_steps"),
    "wandb.project": ("your_proj", "log.project"),
    "ckpt.step_interval": (2000, "checkpoint.every_steps"),
    "optim.lr.init": (1e-4, "optimizer.peak_lr"),
    "data.train_type": ("sequential", "data.order"),
    "data.num_workers": (8, "data.num_workers"),
    "model.max_length": (25, "data.max_length"),
    "model.syncbn": (True, "model.image.sync_batch_norm"),
    "model.freeze_cnn_bn": (False, "model.image.freeze_batch_norm"),
    "model.image_encoder.tag": ("vit_base_patch16_224_in21k", "model.image.name"),
    "model.image_encoder.pretrained": (True, "model.image.pretrained"),
    "model.image_encoder.trainable": (True, "model.image.trainable"),
    "model.text_encoder.tag": ("bert-base-uncased", "model.text.name"),
    "model.text_encoder.pretrained": (True, "model.text.pretrained"),
    "model.text_encoder.trainable": (True, "model.text.trainable"),
    "model.text_encoder.target_token_idx": (0, "model.text.pool_token"),
    "model.projection.dim": (512, "model.projection.dim"),
    "model.projection.image_projector_trainable": (True, "model.projection.image_trainable"),
    "model.projection.text_projector_trainable": (True, "model.projection.text_trainable"),
    "loss.temperature.value": (0.02, "model.temperature.value"),
}
"""Maps keys to their value in the `clip` task and to our field with the same meaning."""

DEFAULTS: dict[str, Any] = {key: default for key, (default, _) in _SAME.items()} | {
    "epoch": None,
    "seed": None,
    "runner.name": "clip",
    "runner.val_interval": 1,
    "runner.val_interval_steps": -1,
    "dist.fp16": True,
    "wandb.enable": False,
    "ckpt.dir": "./output",
    "ckpt.external_resume": None,
    "optim.name": "torch.optim.AdamW",
    "optim.lr.name": "cosine_schedule_with_warmup",
    "optim.lr.warmup_proportion": 0.025,
    "optim.lr.warmup_epoch": None,
    "data.exp_name": "test",
    "data.train_steps": None,
    "data.val_steps": None,
    "data.train_name": ["cc"],
    "data.valid_name": ["f30k", "coco"],
    "data.data_path": "./data/",
    "data.batch_size": 128,
    "data.batch_size_train": 128,
    "data.batch_size_val": 256,
    "data.enable_valid": True,
    "transforms.input_size": 224,
    "transforms.train_transforms": ["resize"],
    "transforms.valid_transforms": ["resize"],
    "transforms.resize.size": 224,
    "transforms.resize_bicubic.size": 224,
    "transforms.random_crop.size": 224,
    "transforms.center_crop.size": 224,
    "transforms.random_resize_crop.size": 224,
    "transforms.random_resize_crop.scale": [0.6, 1.0],
    "transforms.normalize.mean": [0.485, 0.456, 0.406],
    "transforms.normalize.std": [0.229, 0.224, 0.225],
    "transforms.random_erasing.reprob": 0.0,
    "transforms.random_erasing.remode": "pixel",
    "transforms.random_erasing.recount": 1,
    "transforms.color_jitter": 0.4,
    "transforms.color_distortion.strength": 1.0,
    "transforms.gaussian_blur.p": 0.5,
    "transforms.gaussian_blur.radius_min": 0.1,
    "transforms.gaussian_blur.radius_max": 2.0,
    "model.projection.name": "simple",
    "model.projection.complex_projection.drop_out": 0.1,
    "loss.name": "NCE",
    "loss.global_reduce": True,
    "loss.smoothing": 0.0,
    "loss.group_size": -1,
    "loss.nce_loss.gather_backward": False,
    "loss.mixup.beta": 0.1,
    "loss.temperature.name": "constant",
}
"""Maps keys that matter here to their value in the `clip` task."""

WHOLE_MAPPINGS: dict[str, Any] = {
    "optim.param": {"betas": (0.9, 0.98), "eps": 1e-6, "weight_decay": 0.1},
    "optim.grad_clip": {},
    "optim.param_group_rules": {},
    "optim.lr.param": {"num_cycles": 0.5},
    "dist.param": {},
}
"""Keys whose mapping a file replaces completely."""

MUST_STAY: dict[str, tuple[Any, ...]] = {
    "data.name": ("local", "parquet"),
    "model.name": ("clip",),
    "model.pool.name": ("identity",),
    "model.image_encoder.name": ("timm_modelzoo",),
    "model.text_encoder.name": ("huggingface_modelzoo",),
    "model.image_encoder.vit.only_cls_token": (True,),
    "model.pretrain_prefix_change_list": ([],),
    "loss.extra_losses": ([],),
    "ckpt.only_load_image_encoder": (False,),
    "ckpt.only_load_text_encoder": (False,),
    "inference": (False,),
}
"""Keys without a counterpart here, with the values that change nothing. The first value is the default."""

_UNUSED = (
    *("mae_seed", "runner.log_interval", "dist.enable_adasum", "dist.enable_adascale"),
    *("transforms.random_augment.N", "transforms.random_augment.M", "transforms.mixup", "transforms.cutmix"),
    *("transforms.cutmix_minmax", "transforms.mixup_prob", "transforms.mixup_switch_prob", "transforms.mixup_mode"),
    "model.text_encoder.only_cls_token",
)
WITHOUT_EFFECT = {
    **dict.fromkeys(_UNUSED, "ZeroVL does not use it"),
    "runner.stable_random": "dropout is always replayed exactly, without seeding global generators",
    "dist.name": "training is data parallel; for another strategy, set parallel.strategy",
    "dist.param": "it is for apex only",
    "log.interval_val": "evaluations are logged completely",
    "wandb.entity": "set WANDB_ENTITY in the environment",
    "wandb.train_record_keys": "all metrics are logged",
    "ckpt.filename": "checkpoints have their own folder",
    "ckpt.auto_resume": "to resume, use train --resume or pretrainkit resume RUN",
    "ckpt.soft_resume": "weights must always fit the model",
    "data.single_eval": "every row is scored exactly once on any number of ranks",
    "data.cuda_eval": "scores are computed on the device of the model",
    "model.interpolate_pos_embed": "positions are interpolated when a weight file is imported for another size",
    "model.image_encoder.embedding_dim": "it follows from the encoder",
    "model.text_encoder.embedding_dim": "it follows from the encoder",
    "loss.triplet_loss.margin": "it is for the triplet loss only, which ZeroVL cannot build",
    "loss.triplet_loss.reduce_mode": "it is for the triplet loss only, which ZeroVL cannot build",
}
"""Keys without effect here, with the reason."""

PROBE_MUST_STAY: dict[str, tuple[Any, ...]] = {
    "model.name": ("clip", "linear_prob"),
    "data.name": ("parquet", "imagenet_local", "local"),
    "data.train_steps": (None, -1, 0),
    "data.val_steps": (None, -1, 0),
    "ckpt.only_load_image_encoder": (False, True),
    "optim.name": ("LARS",),
    "optim.param": ({"momentum": 0.9, "weight_decay": 0.0}, {"momentum": 0.9, "weight_decay": 0}),
    "optim.grad_clip": ({},),
    "optim.param_group_rules": ({},),
    "optim.lr.name": ("cosine_schedule_with_warmup",),
    "optim.lr.param": ({"num_cycles": 0.5}, {}),
    "optim.lr.warmup_proportion": (0.1111,),
    "optim.lr.warmup_epoch": (None,),
    "transforms.train_transforms": (["random_resize_crop", "autoaug"],),
    "transforms.random_resize_crop.size": (224,),
    "transforms.random_resize_crop.scale": ([0.08, 1.0], (0.08, 1.0)),
    "transforms.random_erasing.reprob": (0.0,),
    "transforms.valid_transforms": (["resize", "center_crop"],),
    "transforms.resize.size": (256,),
    "transforms.center_crop.size": (224,),
    "transforms.input_size": (224,),
    "model.image_encoder.trainable": (False,),
}
"""Values with which `pretrainkit probe` computes the same. Other values need its Python function, or have no
counterpart."""

_NORMALIZED = {
    "clip/zerovl-100m": ([0.5, 0.5, 0.5], [0.5, 0.5, 0.5]),
    "clip/zerovl-14m": ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
}
"""Mean and deviation of colors in the presets for published weights."""

SCHEDULES: dict[str, Any] = {
    "cosine_schedule_with_warmup": "cosine",
    "cosine_schedule_with_warmup_min_lr_scale": "cosine",
    "linear_schedule_with_warmup": "linear",
    "constant_schedule": "constant",
    "constant_schedule_with_warmup": "constant",
}
_NAMES = (
    (r"_encoder\b(?:\\?\.model){0,2}", r"\\.encoder"),
    (r"(?:\bmodel\\?\.){2}", r"encoder\\."),
    (r"\bmodule\\?\.", ""),
    (r"\bloss\\?\.temperature", "temperature"),
)
"""Parts of patterns for ZeroVL's names of parameters, and their replacements for our names."""
OPTIMIZERS = ("adamw", "lars", "sgd")


def import_config(path: Path, settings: Iterable[str] = (), nproc: int = 1) -> ImportedConfig:
    """Read a file of ZeroVL's `clip` or `linear_prob` task. The latter becomes a command of ours.

    Args:
        path: YAML file. Its only supported tag is `!!python/tuple`.
        settings: Overrides `dotted.key=value`, as on ZeroVL's command line.
        nproc: Number of ranks. ZeroVL's microbatch sizes are for all ranks together, ours are for one rank.

    Raises:
        ConfigError: A key is unknown, or a value has no counterpart. The message lists all of them.
    """
    given = [_read(path), *({".".join(parts): _literal(value)} for parts, value in map(parse_override, settings))]
    is_probe = any(key.startswith("model.classifier") for tree in given for key in flatten(tree))
    values: dict[str, Any] = {key: fine[0] for key, fine in MUST_STAY.items()} | dict.fromkeys(WITHOUT_EFFECT)
    values |= {**DEFAULTS, **WHOLE_MAPPINGS, **({"model.classifier.num_classes": 512} if is_probe else {})}
    problems = [problem for tree in given for problem in _lay(tree, values)]
    problems += [
        f"{path}: {key}={values[key]!r} is not a mapping\n  write it as {key}={{NAME: VALUE}}"
        for key in WHOLE_MAPPINGS
        if not isinstance(values[key], Mapping)
    ]
    if problems:
        raise ConfigError(problems)
    if is_probe:  # the learning rate of a probe is that of its schedule
        values["optim.param"] = {key: value for key, value in values["optim.param"].items() if key != "lr"}
        values["data.batch_size"] = _first(values["data.batch_size"])
    must_stay = MUST_STAY | (PROBE_MUST_STAY if is_probe else {})
    problems += [
        f"{path}: {key}={values[key]!r} has no counterpart\n  supported: {' or '.join(map(repr, fine))}"
        for key, fine in must_stay.items()
        if values[key] not in fine
    ]
    if problems:
        raise ConfigError(problems)
    written = [f"{key}." for key in flatten(given[0])]
    ignored = {key: why for key, why in WITHOUT_EFFECT.items() if any(name.startswith(f"{key}.") for name in written)}
    _require_epochs(values)
    notes: list[str] = []
    if is_probe:
        if not (weights_command := _probe_weights_command(values)):
            notes.append("transforms.normalize: images are normalized with the mean and deviation of the encoder")
        if "vit" not in values["model.image_encoder.tag"] and not values["model.freeze_cnn_bn"]:
            notes.append("model.freeze_cnn_bn: batch norm of the frozen encoder always computes as in evaluation")
        return ImportedConfig(None, notes, _probe_command(values), ignored, weights_command)
    try:
        config = _convert(values, nproc)
    except ValidationError as error:
        raise ConfigError([f"{path}: {problem}" for problem in explain(error, ClipRun)]) from None
    dropout = "model.projection.complex_projection.drop_out"
    if config.model.projection.kind == "linear" and values[dropout] != DEFAULTS[dropout]:
        notes.append(f"{dropout}: only the complex projection has dropout")
    notes.append(f"ckpt.dir: give the run's folder with --out {values['ckpt.dir']}/{values['data.exp_name']}")
    if values["runner.name"] == "clip_bsgs":
        if not values["loss.nce_loss.gather_backward"]:
            notes.append("loss.nce_loss.gather_backward: accumulation always uses the true gradient, also in ZeroVL")
        if not values["loss.global_reduce"]:
            notes.append("loss.global_reduce: accumulation always compares the pairs of all ranks, also in ZeroVL")
        if smoothing := values["loss.smoothing"]:
            notes.append(
                "loss.smoothing: ZeroVL ignores it with runner.name=clip_bsgs; to use it: "
                f"objective.label_smoothing={smoothing}"
            )
    if frozen := [key for key in ("image", "text") if not values[f"model.{key}_encoder.trainable"]]:
        notes.append(
            f"model.{frozen[0]}_encoder.trainable: a frozen tower has no dropout and keeps its batch-norm statistics; "
            "in ZeroVL it has dropout and the statistics of each batch"
        )
    if values["dist.fp16"]:
        notes.append(
            "dist.fp16: becomes bfloat16 if the hardware supports it; for ZeroVL's format: precision.compute=float16"
        )
    for name, rule in values["optim.param_group_rules"].items():
        if (pattern := _translated(name, rule["regex"])) != rule["regex"]:
            notes.append(
                f"optim.param_group_rules.{name}: {rule['regex']} becomes {pattern} for our names of parameters"
            )
    return ImportedConfig(config, notes, without_effect=ignored, weights_command=_weights_command(values))


def _probe_command(v: Mapping[str, Any]) -> tuple[str, ...]:
    """Return our command for a linear probe. Classes, normalization and image size follow from the data and the
    model."""
    model = _weights_folder(v["ckpt.external_resume"])
    if model is None:
        if not v["model.image_encoder.pretrained"]:
            raise ConfigError(
                "model.image_encoder.pretrained=False without ckpt.external_resume: the encoder has random weights\n"
                "  give ckpt.external_resume=FILE, or model.image_encoder.pretrained=True"
            )
        model = f"timm:{v['model.image_encoder.tag']}"
    settings = ("--method", "linear", "--epochs", v["epoch"], "--batch-size", v["data.batch_size"])
    return (
        *("probe", str(model), "--images", str(v["data.data_path"])),
        *map(str, settings),
        *("--lr", str(v["optim.lr.init"]), "--threads", str(v["data.num_workers"])),
    )


def _probe_weights_command(v: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the command that imports the weights of a probe, with the preset that normalizes images like the file."""
    command, colors = _weights_command(v), (v["transforms.normalize.mean"], v["transforms.normalize.std"])
    if not command:
        return ()
    for preset, known in _NORMALIZED.items():
        if all(list(own) == list(values) for own, values in zip(colors, known, strict=True)):
            return (*command, "--config", preset)
    raise ConfigError(
        f"transforms.normalize.mean={colors[0]} with std={colors[1]} has no counterpart\n  supported: "
        + ", ".join(f"mean={mean} with std={std}" for mean, std in _NORMALIZED.values())
    )


def _require_epochs(v: Mapping[str, Any]) -> None:
    if v["epoch"] is None:
        raise ConfigError("epoch is not set\n  ZeroVL has no default for it: give epoch=20 or another number")


def _read(path: Path) -> Mapping[str, Any]:
    tree = parse_yaml(read_text(path), str(path), tuples=True)
    if not isinstance(tree, Mapping):
        raise ConfigError(
            f"{path} does not contain a mapping of settings\n  name a config of the original, such as clip.yaml"
        )
    return tree


def _lay(tree: Mapping[str, Any], values: dict[str, Any], prefix: str = "") -> list[str]:
    """Override `values`, which has dotted keys, by nested settings. Return a problem for each key unknown to ZeroVL."""
    problems: list[str] = []
    for name, value in tree.items():
        key = f"{prefix}{name}"
        if key in values:
            values[key] = value
        elif isinstance(value, Mapping) and any(known.startswith(f"{key}.") for known in values):
            problems += _lay(value, values, f"{key}.")
        elif whole := next((known for known in WHOLE_MAPPINGS if key.startswith(f"{known}.")), None):
            values[whole] = _with(values[whole], key.removeprefix(f"{whole}.").split("."), value)
        else:
            near = nearest(key, dict.fromkeys(values, ""))
            problems.append(f"ZeroVL has no key {key!r}" + (f"\n  closest: {near}" if near else ""))
    return problems


def _with(tree: Any, parts: Sequence[str], value: Any) -> dict[str, Any]:
    """Return a copy of nested mappings with another value at the path `parts`."""
    known, name = tree if isinstance(tree, Mapping) else {}, parts[0]
    return {**known, name: _with(known.get(name), parts[1:], value) if len(parts) > 1 else value}


def _literal(value: Any) -> Any:
    """Return None for Python's word for it, which ZeroVL's command line reads."""
    return None if value == "None" else value


def _first(size: Any) -> Any:
    """Return the first of several batch sizes, the only one that ZeroVL uses."""
    return size[0] if isinstance(size, (list, tuple)) else size


def _convert(v: dict[str, Any], nproc: int) -> ClipRun:
    is_accumulating = _choice(v, "runner.name", {"clip": False, "clip_bsgs": True})
    is_mixed = _choice(v, "loss.name", {"NCE": False, "MixUpNCE": True})
    projection = _choice(v, "model.projection.name", {"simple": "linear", "complex": "residual"})
    train_steps, valid_batch_size = v["data.train_steps"], _first(v["data.batch_size_val"])
    has_fixed_steps = train_steps is not None and train_steps >= 1
    every_steps = v["runner.val_interval_steps"] if v["runner.val_interval_steps"] > 0 else None
    if every_steps is None and has_fixed_steps:
        every_steps = train_steps * v["runner.val_interval"]
    root, group_size = Path(v["data.data_path"]), v["loss.group_size"]
    is_vit = "vit" in v["model.image_encoder.tag"]
    is_gathered = v["loss.global_reduce"] or is_accumulating
    fields: dict[str, Any] = {ours: v[theirs] for theirs, (_, ours) in _SAME.items()} | {
        "seed": v["seed"] or 0,
        "num_steps": train_steps * v["epoch"] if has_fixed_steps else None,
        "init_from": _weights_folder(v["ckpt.external_resume"]),
        "model.image.kind": "timm",
        # ZeroVL builds encoders without "vit" in their name for images of any size, and averages their features.
        "model.image.image_size": v["transforms.input_size"] if is_vit else None,
        "model.image.options": {} if is_vit else {"global_pool": "avg"},
        "model.text.kind": "huggingface",
        "model.projection.kind": projection,
        "model.projection.normalize": projection == "linear",
        "model.temperature.kind": _choice(
            v, "loss.temperature.name", {"constant": "constant", "parameter": "parameter"}
        ),
        "model.temperature.smallest": 0.001,
        "model.temperature.largest": 0.5,
        "model.temperature.project_back": False,
        # ZeroVL's accumulation always computes the true gradient over all ranks, without smoothing. Its loss within one
        # rank has the true gradient too.
        "objective.gather": is_gathered,
        "objective.gather_gradient": v["loss.nce_loss.gather_backward"] or is_accumulating or not is_gathered,
        "objective.label_smoothing": 0.0 if is_accumulating else v["loss.smoothing"],
        "objective.gather_group_size": group_size if group_size > 0 else None,
        "objective.mixup": {"beta": v["loss.mixup.beta"]} if is_mixed else None,
        "data.train": [{"path": str(root / name)} for name in _names(v["data.train_name"])],
        "data.valid": [{"path": str(root / name)} for name in _names(v["data.valid_name"]) if v["data.enable_valid"]],
        "data.batch_size": _first(v["data.batch_size"]),
        "data.microbatch_size": _per_rank(v["data.batch_size_train"], nproc) if is_accumulating else None,
        "data.num_epochs": None if has_fixed_steps else v["epoch"],
        "data.train_transforms": _transforms(v, "transforms.train_transforms", is_training=True),
        "data.valid_transforms": _transforms(v, "transforms.valid_transforms", is_training=False),
        "data.normalize": (v["transforms.normalize.mean"], v["transforms.normalize.std"]),
        "data.text_augment": {},
        "precision.compute": "auto" if v["dist.fp16"] else "float32",
        "log.to": ["wandb"] if v["wandb.enable"] else [],
        "evaluate.every_steps": every_steps,
        "evaluate.every_epochs": None if every_steps else v["runner.val_interval"],
        "evaluate.batch_size": _per_rank(valid_batch_size, nproc),
        "evaluate.num_examples": _valid_steps(v) * valid_batch_size or None,
        **_optimizer(v),
        **_schedule(v),
    }
    if projection == "residual":
        fields["model.projection.dropout"] = v["model.projection.complex_projection.drop_out"]
    return ClipRun.model_validate(nested(fields))


def _optimizer(v: dict[str, Any]) -> dict[str, Any]:
    name = v["optim.name"].rpartition(".")[2].lower()
    if name not in OPTIMIZERS:
        raise ConfigError(f"optim.name={v['optim.name']!r} has no counterpart\n  supported: {', '.join(OPTIMIZERS)}")
    param, clip = dict(v["optim.param"]), dict(v["optim.grad_clip"])
    beta1, beta2 = param.pop("betas", (0.9, 0.999))
    settings: dict[str, Any] = {"beta1": beta1, "beta2": beta2, "epsilon": param.pop("eps", 1e-8)}
    if name != "adamw":
        settings = {"momentum": param.pop("momentum", 0.0), "nesterov": param.pop("nesterov", False)}
    settings["weight_decay"] = param.pop("weight_decay", 0.01 if name == "adamw" else 0.0)
    settings["max_grad_norm"] = clip.pop("max_norm", 0.0)
    if clip.pop("norm_type", 2) != 2:
        raise ConfigError(
            "optim.grad_clip.norm_type has no counterpart\n  only 2 is supported: gradients are clipped by their 2-norm"
        )
    unknown = [f"optim.param.{key}" for key in param] + [f"optim.grad_clip.{key}" for key in clip]
    if unknown:
        raise ConfigError([f"{key} has no counterpart\n  leave it out" for key in unknown])
    groups = [_group(name, rule, v["optim.lr.init"]) for name, rule in v["optim.param_group_rules"].items()]
    settings |= {"name": name, "decay_mask": "all", "groups": groups}
    return {f"optimizer.{field}": value for field, value in settings.items()}


def _group(name: str, rule: Mapping[str, Any], peak_lr: float) -> dict[str, Any]:
    if not (isinstance(rule, Mapping) and isinstance(rule.get("regex"), str)):
        raise ConfigError(f"optim.param_group_rules.{name} has no regex\n  write it as {{regex: PATTERN, param: {{}}}}")
    param = dict(rule.get("param", {}))
    group = {"pattern": _translated(name, rule["regex"]), "weight_decay": param.pop("weight_decay", None)}
    group["lr_scale"] = param.pop("lr") / peak_lr if "lr" in param else None
    if param:
        raise ConfigError(f"optim.param_group_rules.{name}.param has {sorted(param)}, which have no counterpart")
    return group


def _translated(name: str, regex: str) -> str:
    """Convert a pattern for ZeroVL's names of parameters to our names, which have one level less in both towers. Raises
    ConfigError if it contains parts of names that we do not have."""
    pattern = regex
    for theirs, ours in _NAMES:
        pattern = re.sub(theirs, ours, pattern)
    if left := re.findall(r"\w*_encoder\w*|\bmodel\b|\bmodule\b|\bloss\b", pattern):
        raise ConfigError(
            f"optim.param_group_rules.{name}.regex={regex!r} names {left[0]!r}, which has no counterpart\n"
            "  parameters are called image.encoder.…, text.encoder.…, image_projection.…, text_projection.… and "
            "temperature.…: write the pattern for these, or leave the rule out and add it to optimizer.groups"
        )
    return pattern


def _weights_command(v: Mapping[str, Any]) -> tuple[str, ...]:
    file, folder = v["ckpt.external_resume"], _weights_folder(v["ckpt.external_resume"])
    if file is None or file == folder:  # already a folder
        return ()
    return ("import", file, "--recipe", "clip", "--format", "zerovl", "--out", str(folder))


def _weights_folder(file: str | None) -> str | None:
    """Return the folder for the imported weights of a file of ZeroVL: the path of the file without its extension."""
    return None if file is None else str(Path(file).with_suffix(""))


def _schedule(v: dict[str, Any]) -> dict[str, Any]:
    theirs, name, param = v["optim.lr.name"], _choice(v, "optim.lr.name", SCHEDULES), dict(v["optim.lr.param"])
    if param.pop("num_cycles", 0.5) != 0.5:
        raise ConfigError(
            "optim.lr.param.num_cycles has no counterpart\n  only 0.5 is supported: the cosine decreases once"
        )
    floor = param.pop("min_lr_scale", 0.01 if theirs.endswith("min_lr_scale") else 0.0)
    if param:
        raise ConfigError(f"optim.lr.param has {sorted(param)}, which have no counterpart")
    share = v["optim.lr.warmup_proportion"]
    if v["optim.lr.warmup_epoch"] is not None:
        share = v["optim.lr.warmup_epoch"] / v["epoch"]
    warmup_share = None if theirs == "constant_schedule" else share
    return {"schedule.name": name, "schedule.floor": floor, "schedule.warmup_share": warmup_share}


def _transforms(v: dict[str, Any], key: str, *, is_training: bool) -> tuple[ImageTransform, ...]:
    transforms: dict[str, ImageTransform] = {
        "resize": ops.Resize(size=v["transforms.resize.size"]),
        "resize_bicubic": ops.ResizeShorter(size=v["transforms.resize_bicubic.size"]),
        "center_crop": ops.CenterCrop(size=v["transforms.center_crop.size"]),
        "random_crop": ops.RandomCrop(size=v["transforms.random_crop.size"]),
        "random_flip": ops.RandomFlip(),
        "random_resize_crop": ops.RandomResizeCrop(
            size=v["transforms.random_resize_crop.size"], scale=tuple(v["transforms.random_resize_crop.scale"])
        ),
        "autoaug": ops.AutoAugment(),
        "color_distortion": ops.ColorDistortion(strength=v["transforms.color_distortion.strength"]),
        "color_jitter": ops.ColorJitter(amount=v["transforms.color_jitter"]),
        "gaussian_blur": ops.GaussianBlur(
            probability=v["transforms.gaussian_blur.p"],
            radius=(v["transforms.gaussian_blur.radius_min"], v["transforms.gaussian_blur.radius_max"]),
        ),
    }
    unknown = [name for name in v[key] if name not in transforms]
    if unknown:
        raise ConfigError(f"{key} names {unknown}, which do not exist\n  give one of: {', '.join(transforms)}")
    chosen = [transforms[name] for name in v[key]]
    if is_training and v["transforms.random_erasing.reprob"] > 0:
        chosen.append(
            ops.RandomErasing(
                probability=v["transforms.random_erasing.reprob"],
                fill=v["transforms.random_erasing.remode"],
                max_boxes=v["transforms.random_erasing.recount"],
            )
        )
    return tuple(chosen)


def _choice(v: dict[str, Any], key: str, choices: Mapping[str, Any]) -> Any:
    if v[key] not in choices:
        raise ConfigError(f"{key}={v[key]!r} has no counterpart\n  supported: {', '.join(choices)}")
    return choices[v[key]]


def _valid_steps(v: Mapping[str, Any]) -> int:
    """Return the number of batches of each held-out set to evaluate on; 0: all."""
    steps = v["data.val_steps"] or 0
    if not isinstance(steps, int):
        raise ConfigError(
            f"data.val_steps={steps} has no counterpart\n  give one number for all sets, or null for whole sets"
        )
    return max(0, steps)


def _names(value: Any) -> list[str]:
    return value.split(",") if isinstance(value, str) else list(value)


def _per_rank(size: int, nproc: int) -> int:
    if size % nproc:
        raise ConfigError(
            f"a batch of {size} cannot be split equally over {nproc} ranks\n"
            f"  give --nproc a divisor of {size}: the number of GPUs of the original's training"
        )
    return size // nproc

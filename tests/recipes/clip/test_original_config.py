"""ZeroVL's YAML files become configs of ours, one to one; nothing in them is passed over in silence."""

import json
import re
import shlex
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from pretrainkit.api import import_config as import_file
from pretrainkit.api import load_config, train
from pretrainkit.cli.main import app
from pretrainkit.config.yaml import dump_yaml
from pretrainkit.errors import ConfigError, DataError, InputError
from pretrainkit.recipes.clip import presets
from pretrainkit.recipes.clip.config import ClipRun, TemperatureConfig
from pretrainkit.recipes.clip.original import to_original
from pretrainkit.recipes.clip.original_config import DEFAULTS, MUST_STAY, WITHOUT_EFFECT, import_config
from pretrainkit.recipes.exchange import ReadsConfigs
from pretrainkit.recipes.registry import recipes_able
from pretrainkit.running.initial import load_initial
from support.clip_models import random_model, run_config, tiny_bert, tiny_timm
from support.remedies import followed

DGA = Path(__file__).with_name("zerovl_yaml") / "zerovl_dga.yaml"
BASELINE = ["runner.name=clip", "runner.val_interval_steps=100", "data.train_type=shuffle", "data.batch_size=1024"]
BASELINE += ["loss.name=NCE"]
HALF = ["transforms.normalize.mean=[0.5,0.5,0.5]", "transforms.normalize.std=[0.5,0.5,0.5]"]
LEARNED = ["loss.temperature.name=parameter"]


def config_of(*arguments, rules=None) -> ClipRun:
    if rules is not None:  # as on ZeroVL's command line, where a backslash is one
        arguments = (arguments[0], [*arguments[1], f"optim.param_group_rules={json.dumps(rules)}"])
    imported = import_config(*arguments)
    assert isinstance(imported.config, ClipRun)
    return imported.config


def without_paths(run):
    """Remove values that a preset cannot know: data, and the name of the encoder, which changed since."""
    data = run.data.model_copy(update={"train": (), "valid": (), "num_workers": 2})
    tree = run.model_copy(update={"data": data}).model_dump(mode="json")
    tree["model"]["image"].pop("name"), tree["model"]["image"].pop("sync_batch_norm")
    return tree


@pytest.mark.parametrize(
    ("settings", "preset", "nproc"),
    [
        ([], presets.zerovl_dga, 8),
        (BASELINE, presets.zerovl, 8),
        (BASELINE + LEARNED, presets.zerovl_14m, 8),
        (BASELINE + LEARNED + HALF, presets.zerovl_100m, 8),
    ],
    ids=["zerovl_dga", "zerovl", "zerovl_14m_eval", "zerovl_100m_eval"],
)
def test_the_files_equal_our_presets(settings, preset, nproc):
    config = config_of(DGA, [*settings, "wandb.project=pretrainkit"], nproc)
    assert without_paths(config) == without_paths(preset())
    assert config.problems(nproc) == []


def test_every_key_is_converted_or_named_as_without_effect():
    """Each key either changes the config or the notes when it is set to something else."""
    other = {bool: lambda v: not v, int: lambda v: v + 8, float: lambda v: v / 2 + 0.1, str: lambda v: v + "x"}
    unread = []
    for key, default in DEFAULTS.items():
        if key in WITHOUT_EFFECT or key in MUST_STAY or key.endswith("_name") or type(default) not in other:
            continue
        word = f"{key}={str(other[type(default)](default)).lower()}"
        extra = [word]
        if key.startswith(("transforms.gaussian", "transforms.color", "transforms.random", "transforms.resize")):
            names = "resize_bicubic,random_crop,random_resize_crop,color_distortion,gaussian_blur,color_jitter"
            extra.append(f"transforms.train_transforms=[{names}]")
        if key.startswith("transforms.random_erasing") and not key.endswith("reprob"):
            extra.append("transforms.random_erasing.reprob=0.5")
        if key.endswith("remode"):
            extra[0] = f"{key}=const"
        if key == "loss.nce_loss.gather_backward":
            extra = [f"{key}=false", "runner.name=clip"]
        reference = config_of(DGA, extra[1:])
        try:
            imported = import_config(DGA, extra)
        except ConfigError:
            continue  # refused with a message: not ignored either
        if imported.config == reference and not any(
            key in note or str(other[type(default)](default)) in note for note in imported.notes
        ):
            unread.append(key)
    assert unread == []


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("data.bacth_size=8", ["data.bacth_size", "data.batch_size"]),
        ("loss.name=Triplet", ["loss.name='Triplet'", "MixUpNCE"]),
        ("loss.extra_losses=[x]", ["loss.extra_losses"]),
        ("optim.lr.param={num_cycles: 2}", ["num_cycles"]),
        ("optim.grad_clip={max_norm: 1.0, norm_type: 1}", ["norm_type"]),
        ("optim.param={lookahead: 3}", ["optim.param.lookahead"]),
        ("transforms.train_transforms=[resize,resiez]", ["resiez"]),
        ("model.pool.name=gpo", ["model.pool.name='gpo'"]),
    ],
)
def test_settings_without_a_counterpart_are_refused_by_name(word, expected):
    with pytest.raises(ConfigError) as error:
        import_config(DGA, [word])
    assert all(part in str(error.value) for part in expected), str(error.value)


def test_lists_may_be_given_unquoted_and_an_integer_for_a_float():
    config = config_of(DGA, ["data.train_name=[sbu,cc3m,vg]", "loss.temperature.value=1"])
    assert [source.path for source in config.data.train] == ["data/sbu", "data/cc3m", "data/vg"]
    assert config.model.temperature.value == 1.0


def test_warm_up_in_epochs_wins_over_the_share():
    config = config_of(DGA, ["optim.lr.warmup_epoch=1"])
    assert config.schedule.warmup_share == 1 / 20


def test_steps_of_an_epoch_may_be_fixed():
    config = config_of(DGA, ["data.train_steps=100", "runner.val_interval=3"])
    assert (config.num_steps, config.data.num_epochs) == (2000, None)
    assert (config.evaluate.every_steps, config.evaluate.every_epochs) == (300, None), "epochs of 100 steps"


def test_evaluation_may_be_limited_to_the_first_batches():
    config = config_of(DGA, ["data.val_steps=3", "data.batch_size_val=[512]"], 8)
    assert (config.evaluate.num_examples, config.evaluate.batch_size) == (1536, 64)
    assert config_of(DGA, ["data.val_steps=-1"]).evaluate.num_examples is None
    with pytest.raises(ConfigError, match=r"data\.val_steps=\[3, 4\] has no counterpart\n  give one number"):
        import_config(DGA, ["data.val_steps=[3,4]"])


def test_overrides_may_name_a_value_in_a_mapping_and_none():
    words = ["optim.param.weight_decay=0.2", "optim.lr.param.min_lr_scale=0.3", "optim.grad_clip.max_norm=2"]
    words += ["optim.param_group_rules.x.regex=bias", "optim.param_group_rules.x.param.weight_decay=0.1"]
    config = config_of(DGA, [*words, "ckpt.external_resume=None", "optim.lr.warmup_epoch=None"])
    optimizer = config.optimizer
    assert (optimizer.weight_decay, optimizer.beta2, optimizer.max_grad_norm) == (0.2, 0.98, 2.0)
    assert [(group.pattern, group.weight_decay) for group in optimizer.groups] == [("bias", 0.1)]
    assert (config.schedule.floor, config.init_from) == (0.3, None)
    assert config_of(DGA).optimizer.max_grad_norm == 0


def test_accumulation_ignores_what_it_ignores_in_zerovl():
    words = ["loss.smoothing=0.1", "loss.global_reduce=False", "loss.nce_loss.gather_backward=False"]
    imported = import_config(DGA, words)
    assert imported.config.objective == config_of(DGA).objective
    assert all(any(note.startswith(word.partition("=")[0]) for note in imported.notes) for word in words)
    objective = config_of(DGA, [*words, "runner.name=clip"]).objective
    assert (objective.label_smoothing, objective.gather) == (0.1, False)


def test_a_frozen_tower_has_a_note():
    tower = "model.text_encoder.trainable"
    (note,) = set(import_config(DGA, [f"{tower}=False"]).notes) - set(import_config(DGA).notes)
    assert note.startswith(f"{tower}: a frozen tower has no dropout")


def test_a_loss_within_a_rank_has_its_whole_gradient():
    words = ["runner.name=clip", "loss.nce_loss.gather_backward=False"]
    assert not config_of(DGA, words).objective.gather_gradient
    assert config_of(DGA, [*words, "loss.global_reduce=False"]).objective.gather_gradient


def test_encoders_without_vit_in_their_name_have_any_size_and_average_their_features():
    image = config_of(DGA).model.image
    assert (image.image_size, image.options) == (224, {})
    for tag in ("deit_tiny_patch16_224", "resnet50"):
        image = config_of(DGA, [f"model.image_encoder.tag={tag}"]).model.image
        assert (image.image_size, image.options) == (None, {"global_pool": "avg"})


def test_rules_for_parameters_become_groups():
    rules = "optim.param_group_rules={no_decay: {regex: 'bias|cls_token', param: {weight_decay: 0.0}}}"
    config = config_of(DGA, [rules])
    assert [(g.pattern, g.weight_decay, g.lr_scale) for g in config.optimizer.groups] == [("bias|cls_token", 0.0, None)]


def test_no_other_python_tag_is_read(tmp_path):
    path = tmp_path / "evil.yaml"
    path.write_text("epoch: !!python/object/apply:os.getcwd []\n")
    with pytest.raises(ConfigError, match="not valid YAML"):
        import_config(path)


PROBES_REFUSED = {
    "optim.lr.warmup_proportion=0.5": "",
    "optim.lr.warmup_epoch=5": "",
    "optim.lr.param={num_cycles: 1.5}": "",
    "optim.grad_clip={max_norm: 1.0}": "",
    "optim.param_group_rules={a: {regex: bias, param: {weight_decay: 0.1}}}": "",
    "data.train_steps=10": "",
    "data.val_steps=10": "",
    "epoch=null": "epoch is not set",
    "model.image_encoder.trainable=True": "",
    "transforms.input_size=384": "",
    "transforms.random_resize_crop.size=192": "",
    "transforms.resize.size=224": "",
    "transforms.center_crop.size=192": "",
    "transforms.random_erasing.reprob=0.5": "",
}
"""Maps settings of a probe that have no counterpart to the message; an empty one: the name of the setting."""


def test_fact_35_the_file_of_the_linear_probe_becomes_a_command(tmp_path):
    path = tmp_path / "imagenet.yaml"
    path.write_text(
        "epoch: 90\n"
        "data: {name: imagenet_local, data_path: ./imagenet, batch_size: 16384, num_workers: 4,\n"
        "  batch_size_val: 16384, train_name: [imagenet1k], valid_name: [imagenet1k]}\n"
        "optim: {name: LARS, param: {momentum: 0.9, weight_decay: 0.0},\n"
        "  lr: {name: cosine_schedule_with_warmup, init: 6.4, warmup_proportion: 0.1111}}\n"
        "model: {classifier: {num_classes: 1000}, image_encoder: {trainable: false}}\n"
        "wandb: {train_record_keys: [loss, lr, train_acc1, train_acc5]}\n"
        "ckpt: {external_resume: zerovl_100m, only_load_image_encoder: true}\n"
        "transforms: {train_transforms: [random_resize_crop, autoaug], valid_transforms: [resize, center_crop],\n"
        "  random_resize_crop: {size: 224, scale: [0.08, 1.0]}, resize: {size: 256},\n"
        "  normalize: {mean: [0.5, 0.5, 0.5], std: [0.5, 0.5, 0.5]}}\n"
    )
    imported = import_config(path)
    assert imported.config is None
    words = "probe zerovl_100m --images ./imagenet --method linear --epochs 90 --batch-size 16384 --lr 6.4"
    assert " ".join(imported.command) == f"{words} --threads 4"
    for word, message in PROBES_REFUSED.items():
        with pytest.raises(ConfigError, match=re.escape(message or word.partition("=")[0])):
            import_config(path, [word])
    with pytest.raises(ConfigError, match=r"normalize\.mean=\[0, 0, 0\] with std=\[0\.5, 0\.5, 0\.5\] has no"):
        import_config(path, ["ckpt.external_resume=x.pth", "transforms.normalize.mean=[0,0,0]"])
    published = import_config(path, ["ckpt.external_resume=None"])
    assert published.command[1] == "timm:vit_base_patch16_224_in21k"
    assert published.notes[0].startswith("transforms.normalize: ")
    notes = import_config(path, ["ckpt.external_resume=None", "model.image_encoder.tag=resnet50"]).notes
    assert notes[1].startswith("model.freeze_cnn_bn: ")
    random = ["ckpt.external_resume=None", "model.image_encoder.pretrained=False"]
    with pytest.raises(ConfigError) as error:
        import_config(path, random)
    advised = followed(error.value, "recipes/clip/original_config.py: model.image_encoder.pretrained=False without")
    for word in re.search(r"give (\S+), or (\S+)", advised).groups():
        import_config(path, [*random, word])


def test_a_file_of_a_probe_has_the_defaults_of_zerovl(tmp_path):
    path = tmp_path / "imagenet.yaml"
    path.write_text("epoch: 90\nmodel: {classifier: {num_classes: 1000}}\n")
    with pytest.raises(ConfigError) as error:
        import_config(path)
    assert {
        "optim.name='torch.optim.AdamW'",
        "model.image_encoder.trainable=True",
        "transforms.resize.size=224",
    } <= set(re.findall(r"\S+=\S+(?= has no)", str(error.value)))


# ---- the command ----


def command(*words):
    """Return the result of `pretrainkit WORDS`."""
    return CliRunner().invoke(app, list(map(str, words)))


PROBE = """
runner: {name: linear_prob, val_interval: 2, val_interval_steps: -1}
epoch: 90
ckpt: {external_resume: ./ckpts/zerovl_100m.pth, only_load_image_encoder: true}
optim:
  name: LARS
  param: {lr: 0.001, momentum: 0.9, weight_decay: 0.0}
  lr: {name: cosine_schedule_with_warmup, init: 6.4, warmup_proportion: 0.1111, param: {num_cycles: 0.5}}
data: {name: imagenet_local, train_steps: -1, data_path: ./data/ILSVRC, batch_size: 16384, num_workers: 2}
transforms:
  train_transforms: [random_resize_crop, autoaug]
  valid_transforms: [resize, center_crop]
  random_resize_crop: {size: 224, scale: [0.08, 1.0]}
  resize: {size: 256}
  normalize: {mean: [0.5, 0.5, 0.5], std: [0.5, 0.5, 0.5]}
model: {name: linear_prob, classifier: {num_classes: 1000}, image_encoder: {trainable: false}}
loss: {name: CrossEntropy}
"""


def test_the_keys_of_a_file_decide_its_reader(tmp_path):
    ours = tmp_path / "ours.yaml"
    found = command("config", "import", DGA, "--nproc", 8, "--out", ours)
    assert found.exit_code == 0, found.output
    assert load_config(ours).recipe == "clip"
    assert command("config", "check", ours, "--nproc", 8).exit_code == 0
    (tmp_path / "probe.yaml").write_text(PROBE)
    found = command("config", "import", tmp_path / "probe.yaml")
    assert found.exit_code == 0, found.output
    assert "pretrainkit probe ckpts/zerovl_100m --images ./data/ILSVRC" in found.stdout
    assert (
        "import ./ckpts/zerovl_100m.pth --recipe clip --format zerovl --out ckpts/zerovl_100m --config " in found.stderr
    )


def test_ranks_that_do_not_divide_the_batch_are_refused_with_numbers_that_do():
    with pytest.raises(ConfigError) as error:
        import_file(DGA, nproc=3)
    advised = followed(error.value, "recipes/clip/original_config.py: a batch of")
    (size,) = re.findall(r"give --nproc a divisor of (\d+)", advised)
    assert int(size) % 4 == 0
    assert command("config", "import", DGA, "--nproc", 4).exit_code == 0


def test_a_file_of_nobody_is_refused_with_those_that_are_read(tmp_path):
    (tmp_path / "x.yaml").write_text("lr: 1\n")
    with pytest.raises(InputError, match=r"of a known kind; its keys: lr\n.*ZeroVL \(--recipe clip\), 4M"):
        import_file(tmp_path / "x.yaml")
    (tmp_path / "x.yaml").write_text("extends: clip/tiny\n")
    with pytest.raises(InputError, match="is a config of pretrainkit\n") as error:
        import_file(tmp_path / "x.yaml")
    advised = re.search(r"use it directly: pretrainkit (.+)$", str(error.value))
    assert command(*shlex.split(advised[1])).exit_code == 0


def test_configs_in_python_are_not_run(tmp_path):
    path = tmp_path / "pretraining.py"
    path.write_text("raise SystemExit(3)\n")
    with pytest.raises(InputError, match=r"is a Python program, which is not run\n") as error:
        import_file(path)
    advised = followed(error.value, "running/exchange.py: … is a Python program")
    assert command(*shlex.split(advised.partition("pretrainkit ")[2])).exit_code == 0


def test_the_help_names_every_system_whose_files_are_read():
    shown = " ".join(command("config", "import", "--help").output.replace("│", " ").split())
    systems = [recipe.reads_configs_of for recipe in recipes_able(ReadsConfigs).values()]
    assert len(systems) == 4
    assert all(system in shown for system in systems)


def test_the_notes_that_matter_come_first_and_all_others_are_one(tmp_path):
    lines = command("config", "import", DGA, "--out", tmp_path / "x.yaml").stderr.splitlines()
    assert [line.partition(":")[2].split(":")[0].strip() for line in lines[:-1]] == ["ckpt.dir", "dist.fp16"]
    assert lines[-1].startswith("note: 11 keys have no effect here: runner.stable_random, dist.name, dist.param, ")
    ignored = import_file(DGA).without_effect
    assert ignored["data.single_eval"] == "every row is scored exactly once on any number of ranks"


@pytest.mark.parametrize("value", ["x", "[1, 2]", "{x: {param: {}}}", "{x: 3}"])
def test_rules_of_another_shape_are_refused(value):
    with pytest.raises(ConfigError, match=r"optim\.param_group_rules.*\n  write it as"):
        import_config(DGA, [f"optim.param_group_rules={value}"])


# ---- rules for parameters and weights to start from ----

RULES = [
    r"bias|mask_token|cls_token|pos_embed|norm1\.weight|norm\.weight|norm2\.weight|LayerNorm\.weight",
    r"image_encoder",
    r"^text_encoder\.model\.model\.embeddings",
    r"image_encoder.model.model.blocks.[01].",
    r"^module\.image_encoder\.model\.model\.patch_embed",
    r"(image|text)_encoder\..*bias$",
    r"model\.model\.encoder\.layer\.1\.",
    r"loss\.temperature|_projection",
]


def test_patterns_of_rules_find_the_same_parameters(timm, transformers, tmp_path):
    towers = tiny_timm(), tiny_bert(tmp_path / "bert")
    model = random_model(run_config(*towers, temperature=TemperatureConfig(kind="parameter", value=0.02)))
    ours = [name for name, _ in model.named_parameters()]
    theirs = dict(zip(ours, to_original(model), strict=True))
    for rule in RULES:
        config = config_of(DGA, [], rules={"x": {"regex": rule, "param": {"weight_decay": 0.0}}})
        (group,) = config.optimizer.groups
        found = {name for name in ours if re.search(group.pattern, name)}
        prefixes = ("", "module.")  # of one process, and of several
        assert found == {name for name in ours if any(re.search(rule, prefix + theirs[name]) for prefix in prefixes)}, (
            group.pattern
        )
        assert found


@pytest.mark.parametrize("rule", [r"loss\.scale", r"image_encoders\.x", r"model\.blocks"])
def test_patterns_that_our_names_cannot_express_are_refused(rule):
    with pytest.raises(ConfigError, match=r"x\.regex=.* which has no counterpart\n  parameters are called image\.enc"):
        config_of(DGA, [], rules={"x": {"regex": rule}})


def test_a_run_starts_from_weights_of_zerovl_as_the_notes_describe(timm, transformers, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = run_config(tiny_timm(), tiny_bert(tmp_path / "bert")).model
    noted = command("config", "import", DGA, "ckpt.external_resume=ckpts/weights.pth", "--out", "ours.yaml")
    assert isinstance(command("config", "check", "ours.yaml").exception, DataError), "the weights are not there yet"
    assert load_config(tmp_path / "ours.yaml").init_from == "ckpts/weights"
    small = load_config(tmp_path / "ours.yaml").model_copy(update={"model": model})
    (tmp_path / "ours.yaml").write_text(dump_yaml(small.model_dump(mode="json")))
    weights = random_model(run_config(tiny_timm(), tiny_bert(tmp_path / "bert")))
    (tmp_path / "ckpts").mkdir()
    torch.save({"state_dict": to_original(weights)}, tmp_path / "ckpts" / "weights.pth")
    (advised,) = re.findall(r"that this command imports: pretrainkit (.+)", noted.stderr)
    found = command(*shlex.split(advised))
    assert found.exit_code == 0, found.output
    assert command("config", "check", "ours.yaml").exit_code == 0
    started = random_model(small)
    load_initial(started, load_config(tmp_path / "ours.yaml"))
    assert torch.equal(started.text_projection.linear.weight, weights.text_projection.linear.weight)


def test_a_file_of_weights_is_refused_before_training_with_the_setting_that_reads_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.pth").write_bytes(b"1")
    found = command("config", "check", "clip/zerovl-14m", "init_from=x.pth")
    assert "init_from=x.pth is a file, not a run" in str(found.exception)
    with pytest.raises(
        DataError, match=r"import x\.pth --recipe clip --format zerovl --out WEIGHTS\n  and then set init_f"
    ):
        train(load_config("clip/zerovl-14m", ["init_from=x.pth"]), tmp_path / "run")

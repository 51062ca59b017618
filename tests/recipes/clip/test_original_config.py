"""ZeroVL's YAML files become configs of ours, one to one; nothing in them is passed over in silence."""

from pathlib import Path

import pytest

from pretrainkit.errors import ConfigError
from pretrainkit.recipes.clip import presets
from pretrainkit.recipes.clip.config import ClipRun
from pretrainkit.recipes.clip.original_config import DEFAULTS, MUST_STAY, WITHOUT_EFFECT, import_config

DGA = Path(__file__).with_name("zerovl_yaml") / "zerovl_dga.yaml"
BASELINE = ["runner.name=clip", "runner.val_interval_steps=100", "data.train_type=shuffle", "data.batch_size=1024"]
BASELINE += ["loss.name=NCE", "loss.nce_loss.gather_backward=false"]
HALF = ["transforms.normalize.mean=[0.5,0.5,0.5]", "transforms.normalize.std=[0.5,0.5,0.5]"]
LEARNED = ["loss.temperature.name=parameter"]


def config_of(*arguments) -> ClipRun:
    imported = import_config(*arguments)
    assert isinstance(imported.config, ClipRun)
    return imported.config


def without_paths(run):
    """What a preset cannot know: data, and the name of the encoder, which changed since."""
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
def test_what_has_no_counterpart_is_refused_by_name(word, expected):
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
    config = config_of(DGA, ["data.train_steps=100"])
    assert (config.num_steps, config.data.num_epochs) == (2000, None)


def test_rules_for_parameters_become_groups():
    rules = "optim.param_group_rules={no_decay: {regex: 'bias|cls_token', param: {weight_decay: 0.0}}}"
    config = config_of(DGA, [rules])
    assert [(g.pattern, g.weight_decay, g.lr_scale) for g in config.optimizer.groups] == [("bias|cls_token", 0.0, None)]


def test_no_other_python_tag_is_read(tmp_path):
    path = tmp_path / "evil.yaml"
    path.write_text("epoch: !!python/object/apply:os.getcwd []\n")
    with pytest.raises(ConfigError, match="not valid YAML"):
        import_config(path)


def test_fact_35_the_file_of_the_linear_probe_becomes_a_command(tmp_path):
    path = tmp_path / "imagenet.yaml"
    path.write_text(
        "epoch: 90\n"
        "data: {name: imagenet_local, data_path: ./imagenet, batch_size: 16384, num_workers: 4,\n"
        "  batch_size_val: 16384, train_name: [imagenet1k], valid_name: [imagenet1k]}\n"
        "optim: {name: LARS, param: {momentum: 0.9, weight_decay: 0.0},\n"
        "  lr: {name: cosine_schedule_with_warmup, init: 6.4, warmup_proportion: 0.1111}}\n"
        "model: {classifier: {num_classes: 1000}}\n"
        "wandb: {train_record_keys: [loss, lr, train_acc1, train_acc5]}\n"
        "ckpt: {external_resume: zerovl_100m, only_load_image_encoder: true}\n"
        "transforms: {train_transforms: [random_resize_crop, autoaug], valid_transforms: [resize, center_crop],\n"
        "  random_resize_crop: {size: 224, scale: [0.08, 1.0]},\n"
        "  normalize: {mean: [0.5, 0.5, 0.5], std: [0.5, 0.5, 0.5]}}\n"
    )
    imported = import_config(path)
    assert imported.config is None
    words = "pretrainkit probe zerovl_100m --data ./imagenet --method linear --epochs 90 --batch-size 16384 --lr 6.4"
    assert " ".join(imported.command) == f"{words} --threads 4"
    with pytest.raises(ConfigError, match=r"optim\.lr\.warmup_proportion=0\.5 has no counterpart"):
        import_config(path, ["optim.lr.warmup_proportion=0.5"])

"""ZeroVL's YAML files become configs of ours, one to one; nothing in them is passed over in silence."""

from pathlib import Path

import pytest

from pretrainkit.errors import ConfigError
from pretrainkit.recipes.clip import presets
from pretrainkit.recipes.clip.original_config import DEFAULTS, MUST_STAY, WITHOUT_EFFECT, import_config

DGA = Path(__file__).with_name("zerovl_yaml") / "zerovl_dga.yaml"
BASELINE = ["runner.name=clip", "runner.val_interval_steps=100", "data.train_type=shuffle", "data.batch_size=1024"]
BASELINE += ["loss.name=NCE", "loss.nce_loss.gather_backward=false"]
HALF = ["transforms.normalize.mean=[0.5,0.5,0.5]", "transforms.normalize.std=[0.5,0.5,0.5]"]
LEARNED = ["loss.temperature.name=parameter"]


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
    config, _ = import_config(DGA, [*settings, "wandb.project=pretrainkit"], nproc)
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
        reference, _ = import_config(DGA, extra[1:])
        try:
            changed, notes = import_config(DGA, extra)
        except ConfigError:
            continue  # refused with a message: not ignored either
        if changed == reference and not any(
            key in note or str(other[type(default)](default)) in note for note in notes
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
    config, _ = import_config(DGA, ["data.train_name=[sbu,cc3m,vg]", "loss.temperature.value=1"])
    assert [source.path for source in config.data.train] == ["data/sbu", "data/cc3m", "data/vg"]
    assert config.model.temperature.value == 1.0


def test_warm_up_in_epochs_wins_over_the_share():
    config, _ = import_config(DGA, ["optim.lr.warmup_epoch=1"])
    assert config.schedule.warmup_share == 1 / 20


def test_steps_of_an_epoch_may_be_fixed():
    config, _ = import_config(DGA, ["data.train_steps=100"])
    assert (config.num_steps, config.data.num_epochs) == (2000, None)


def test_rules_for_parameters_become_groups():
    rules = "optim.param_group_rules={no_decay: {regex: 'bias|cls_token', param: {weight_decay: 0.0}}}"
    config, _ = import_config(DGA, [rules])
    assert [(g.pattern, g.weight_decay, g.lr_scale) for g in config.optimizer.groups] == [("bias|cls_token", 0.0, 1.0)]


def test_no_other_python_tag_is_read(tmp_path):
    path = tmp_path / "evil.yaml"
    path.write_text("epoch: !!python/object/apply:os.getcwd []\n")
    with pytest.raises(ConfigError, match="not valid YAML"):
        import_config(path)

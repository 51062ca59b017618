"""Values of a preset give way to those that the user overrides; only values that a user wrote can conflict."""

import re
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

import pytest
from pydantic import BaseModel

import pretrainkit as pk
from pretrainkit.api import check_config, resolve_config
from pretrainkit.config.base import ReadBy, shown
from pretrainkit.config.explain import config_classes_in, tag_of
from pretrainkit.errors import ConfigError
from pretrainkit.recipes.registry import entries
from pretrainkit.running.configs import recorded_config

MUST_SUPPLY = {
    # The new choice has fields that nobody can guess.
    ("schedule.name", "factors"): "schedule.factors",
    ("schedule.name", "wsd"): "schedule.num_decay_steps",  # of a run whose length is in passes over the data
    ("model.encoder.kind", "*"): "model.encoder.",
    ("model.decoder.kind", "*"): "model.decoder",
    ("model.quantizer.kind", "*"): "model.quantizer.",
    ("model.domain.kind", "classes"): "num_classes",
    ("model.domain.kind", "*"): "use vit or conv",  # an encoder of features
    ("data.kind", "classes"): "data.texts=",
    ("data.kind", "numbers"): "data.texts=",
    ("checkpoint.keep_best.mode", "*"): "checkpoint.keep_best.metric",
    ("evaluate.early_stopping.mode", "*"): "evaluate.early_stopping.metric",
    ("evaluate.before_training", "true"): "data.valid",
    ("evaluate.infer.decoding.method", "*"): "set data.task",
    # The setting itself is the problem.
    ("init.restore", "*"): "init.restore",
    ("init.averaged", "*"): "init.averaged",
    ("init.missing", "*"): "init.missing",
    ("init.unexpected", "*"): "init.unexpected",
    ("init.data", "*"): "init.data",
    ("objective.perceptual.is_measured", "true"): "objective.perceptual",
    ("model.domain.kind", "mask"): "model.decoder.kind=vit",
    ("model.domain.kind", "features"): "features",  # which a diffusion decoder does not make
    ("model.decoder.noise.masks_places", "true"): "model.decoder.noise.dropout",
    # What a decoder makes decides the architecture, which is the user's.
    ("data.denoising.name", "lm"): "model.kind=decoder_only",
    ("data.denoising.name", "full_lm"): "model.kind=decoder_only",
}
"""(Choice, value or *) to what the message names, which the user must give besides."""


def choices(config_class: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, list[Any]]]:
    """Dotted path and values of every field that is a choice: names, booleans and members of unions."""
    for name, info in config_class.model_fields.items():
        path, members = f"{prefix}{name}", config_classes_in(info.annotation)
        if (tag := tag_of(members)) is not None:
            yield f"{path}.{tag[0]}", list(tag[1])
        elif not members and len(values := _values(info.annotation)) > 1:
            yield path, values
        for member in members:
            yield from choices(member, f"{path}.")


def _values(annotation: Any) -> list[Any]:
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    if annotation is bool:
        return [True, False]
    is_container = get_origin(annotation) in (tuple, list, dict)
    return [] if is_container else [value for part in get_args(annotation) for value in _values(part)]


def presets(recipe: str, *, all_of_them: bool) -> list[str]:
    """Those that choose alike are alike here: one of each, or all."""
    loaded = entries()[recipe].load()
    names = dict[Any, str]()
    for name, make in loaded.presets.items():
        tree = make().model_dump(mode="json")
        chosen = tuple(str(_at(tree, path)) for path, _ in dict(choices(loaded.config_class)).items())
        names.setdefault(name if all_of_them else chosen, name)
    return list(names.values())


def _at(tree: Any, path: str) -> Any:
    for part in path.split("."):
        tree = tree.get(part) if isinstance(tree, dict) else None
    return tree


def problems(source: str, words: list[str]) -> list[str]:
    try:
        return pk.load_config(source, words).problems()
    except ConfigError as error:
        return error.problems


def check_every_choice(recipe: str, preset: str) -> None:
    source = f"{recipe}/{preset}"
    usual = problems(source, [])  # such as a table of one's own without its columns
    for path, values in dict(choices(entries()[recipe].load().config_class)).items():
        for value in map(shown, values):
            known = [MUST_SUPPLY[key] for key in ((path, value), (path, "*")) if key in MUST_SUPPLY]
            for problem in problems(source, [f"{path}={value}"]):
                parent = path.rpartition(".")[0]
                is_own = f"given:   {parent}={{" in problem and "exists only with" in problem  # another member
                is_own |= problem.startswith(f"{path}={value} ") or f"given:   {path}={value}" in problem
                is_known = any(name in problem for name in known)
                assert problem in usual or is_own or is_known, (source, f"{path}={value}", problem)


ALIKE = [(recipe, preset) for recipe in entries() for preset in presets(recipe, all_of_them=False)]


@pytest.mark.parametrize(("recipe", "preset"), ALIKE)
def test_every_choice_can_be_overridden_alone(recipe: str, preset: str) -> None:
    check_every_choice(recipe, preset)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", entries())
def test_every_choice_of_all_other_presets_can_be_overridden_alone(recipe: str) -> None:
    for preset in presets(recipe, all_of_them=True):
        if (recipe, preset) not in ALIKE:
            check_every_choice(recipe, preset)


def marked(config: BaseModel, prefix: str = "") -> Iterator[tuple[str, ReadBy]]:
    for name, info in type(config).model_fields.items():
        if (mark := next((mark for mark in info.metadata if isinstance(mark, ReadBy)), None)) is not None:
            yield f"{prefix}{name}", mark
        if isinstance(value := getattr(config, name), BaseModel):
            yield from marked(value, f"{prefix}{name}.")


EXAMPLES = {
    "optimizer.adafactor": ("optimizer.adafactor.decay_rate", "0.7"),
    "schedule.factors": ("schedule.factors", "[constant]"),
    "data.spans": ("data.spans.stride", "7"),
    "data.texts": ("data.texts", "[a]"),
    "data.label": ("data.label", "a"),
    "parallel.shard_ranks": ("parallel.shard_ranks", "2"),
    "model.grid_width": ("model.grid_width", "7"),
    "data.packed_rows": ("data.packed_rows", "7"),
    "data.microbatch_tokens": ("data.microbatch_tokens", "4096"),
    "objective.mixup": ("objective.mixup", "{}"),
    "objective.gather_group_size": ("objective.gather_group_size", "7"),
    "objective.cumulative_span_weights": ("objective.cumulative_span_weights", "null"),
}
"""Values other than the default, where no rule below gives one."""


@pytest.mark.parametrize("source", ["bert/tiny", "t5/micro", "pixel/tiny", "clip/tiny", "glue/own", "fourm/tiny"])
def test_a_repeated_setting_is_an_error_that_names_the_line_and_whose_fixes_work(source: str, tmp_path) -> None:
    config = pk.load_config(source)
    recipe_class = type(config)
    for field, mark in marked(config):
        parent = field.rpartition(".")[0]
        choice = f"{parent}.{mark.field}"
        values = dict(choices(recipe_class))[choice]
        other = next((value for value in values if value not in mark.values), None)
        if other is None:
            continue
        path, value = EXAMPLES.get(field) or (field, _another(recipe_class, field))
        file = tmp_path / "mine.yaml"
        steps = path.split(".")
        nested = "".join(f"{'  ' * depth}{step}:\n" for depth, step in enumerate(steps))[:-1] + f" {value}\n"
        file.write_text(f"extends: {source}\n{nested}", encoding="utf-8")
        words = [f"{choice}={shown(other)}"]
        resolved = resolve_config(file, words)
        with pytest.raises(ConfigError, match=re.escape(path)) as caught:
            check_config(resolved.config, 1, resolved.origins)
        (problem,) = [text for text in caught.value.problems if text.startswith(f"{path}=")]
        assert f"{path} (line {len(steps) + 1} of file {file})" in problem
        assert f"{choice} (command line)" in problem
        fix = problem.partition("or set ")[2].split()[0]
        assert not any(text.startswith(f"{path}=") for text in problems(str(file), [*words, fix]))
        default = problem.partition("which is ")[2].partition(", or set")[0]
        assert not any(text.startswith(f"{path}=") for text in problems(str(file), [*words, default]))
        file.write_text(f"extends: {source}\n", encoding="utf-8")  # leave it out
        assert not any(text.startswith(f"{path}=") for text in problems(str(file), words))


def _another(config_class: type[BaseModel], field: str) -> str:
    """A value of a field besides its default."""
    for part in field.split(".")[:-1]:
        (config_class,) = config_classes_in(config_class.model_fields[part].annotation)[:1]
    info = config_class.model_fields[field.rpartition(".")[2]]
    options = [value for value in _values(info.annotation) if value != info.default]
    return shown(options[0] if options else (info.default or 1) / 2 if isinstance(info.default, float) else 7)


@pytest.mark.parametrize(
    ("source", "word", "path", "value"),
    [
        ("pixel/tiny", "model.positions=grid", "model.rotary_theta", 10_000.0),
        ("t5/1.1-base", "schedule.name=cosine", "schedule.factors", []),
        ("bert/tiny", "optimizer.name=sgd", "optimizer.beta2", 0.999),
        ("t5/micro", "model.kind=encoder_only", "model.num_decoder_layers", None),
        ("bert/tiny", "num_steps=5", "schedule.num_warmup_steps", 0),
        ("bert/tiny", "data.max_seq_length=256", "objective.max_predictions", 39),
        ("fourm/b-7", "num_steps=5", "length.num_tokens", None),
        ("pixel/base", "objective.masking=random", "objective.max_span_length", 6),
        ("clip/zerovl-dga", "data.order=shuffle", "data.debias_draw", "random"),
        ("t5/1.1-base", "optimizer.name=adamw", "optimizer.peak_lr", 0.1),  # x 0.01 of the schedule
        ("t5/1.1-base", "optimizer.name=adamw", "optimizer.max_grad_norm", 1.0),
        ("t5/1.1-base", "schedule.name=cosine", "optimizer.peak_lr", 0.01),
        ("t5/1.1-base", "schedule.num_warmup_steps=100", "optimizer.peak_lr", 1.0),
        ("bert/base", "optimizer.name=lion", "optimizer.peak_lr", 1e-5),
        ("bert/base", "schedule.name=cosine", "optimizer.peak_lr", 1e-4),
        ("t5/micro", "optimizer.scale_by_parameter_rms=false", "optimizer.peak_lr", 2e-3),
    ],
)
def test_a_value_that_gave_way_has_a_reason(source: str, word: str, path: str, value: Any) -> None:
    resolved = resolve_config(source, [word])
    assert resolved.config.problems() == []
    assert _at(resolved.config.model_dump(mode="json"), path) == value
    origin = resolved.origins[path]
    if value != _at(pk.load_config(source).model_dump(mode="json"), path):
        assert f"because {word.partition('=')[0]} was overridden (command line)" in origin


def test_another_member_of_a_union_keeps_common_fields_and_those_of_the_user(tmp_path) -> None:
    resolved = resolve_config("bert/mini", ["model.local_window=64", "model.arch=modern"])
    assert (resolved.config.model.hidden_size, resolved.config.model.local_window) == (256, 64)
    assert resolved.origins["model.hidden_size"] == "preset bert/mini"
    assert resolved.origins["model.layer_norm_epsilon"].startswith("default, because model.arch was overridden")
    file = tmp_path / "mine.yaml"
    file.write_text("extends: bert/mini\nmodel:\n  type_vocab_size: 3\n  num_layers: 3\n")
    with pytest.raises(
        ConfigError, match=r"line 3 of file .*mine.yaml\)\n  the field exists only with model.arch=bert"
    ):
        resolve_config(file, ["model.arch=modern"])
    file.write_text("extends: bert/mini\nmodel:\n  num_layers: 3\n")
    assert resolve_config(file, ["model.arch=modern"]).config.model.num_layers == 3


def test_a_file_of_the_user_conflicts_as_the_command_line_does(tmp_path) -> None:
    base, mine = tmp_path / "base.yaml", tmp_path / "mine.yaml"
    base.write_text("extends: bert/tiny\nschedule:\n  num_warmup_steps: 40\n")
    mine.write_text("extends: base.yaml\nnum_steps: 5\n")
    (problem,) = resolve_config(mine).config.problems()
    assert "num_warmup_steps 40 is more than num_steps 5" in problem
    fix = problem.partition("such as ")[2].partition(",")[0]
    assert resolve_config(mine, [fix]).config.problems() == []


def test_a_learning_rate_that_the_user_wrote_stays(tmp_path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("extends: t5/1.1-base\noptimizer: {peak_lr: 0.5}\n")
    assert pk.load_config(file, ["optimizer.name=adamw"]).optimizer.peak_lr == 0.5
    assert pk.load_config("bert/tiny", ["optimizer.name=lion", "optimizer.peak_lr=0.1"]).optimizer.peak_lr == 0.1


def test_an_adjusted_value_is_never_refused() -> None:
    (problem,) = pk.load_config("bert/tiny", ["model.max_positions=4"]).problems()
    assert "model.max_positions 4" in problem


def test_an_unused_setting_of_a_user_stops_a_run_and_a_recorded_one_does_not() -> None:
    tree = pk.load_config("bert/tiny", ["objective.sentence_order=false"]).model_dump(mode="json")
    tree["objective"]["swap_probability"] = 0.25  # as a release wrote that did not look at it
    resolved = recorded_config(tree)
    assert resolved.config.problems() == []
    assert resolved.config.objective.swap_probability == 0.5
    (problem,) = recorded_config(tree, ["objective.swap_probability=0.75"]).config.problems()
    assert "objective.swap_probability=0.75 has an effect only with objective.sentence_order=true" in problem
    assert recorded_config(tree, ["objective.sentence_order=true"]).config.objective.swap_probability == 0.25

import importlib
import importlib.util
import json
import pkgutil
from collections.abc import Mapping
from typing import Annotated, Literal

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import Field, PositiveInt

import pretrainkit.recipes
from pretrainkit.config.base import Config
from pretrainkit.config.docs import field_types, json_schema, scalar, to_commented_yaml
from pretrainkit.config.yaml import parse_yaml
from pretrainkit.training.data_config import DataConfig, SourceConfig
from pretrainkit.training.evaluate_config import EvaluateConfig
from pretrainkit.training.optimizers.config import OptimizerConfig, ScheduleConfig
from pretrainkit.training.run import (
    CheckpointConfig,
    LogConfig,
    ParallelConfig,
    PrecisionConfig,
    RunConfig,
)


class SmallModel(Config):
    """One architecture."""

    arch: Literal["small"] = "small"
    """Tells the architectures apart."""
    width: PositiveInt = 8
    """Width of the model,
    in units."""


class WideModel(Config):
    """Another architecture."""

    arch: Literal["wide"] = "wide"
    """Tells the architectures apart."""
    widths: tuple[PositiveInt, ...] = (1, 2)
    """Widths of the layers, first to last."""


class ToyObjective(Config):
    """Values that are hard to write in YAML."""

    note: str = ""
    """Any text, kept as it is."""
    switch: Literal["on", "off", "1e-4", "null"] = "on"
    """Words that look like something else."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Two numbers, first and second moment."""
    rate: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Share of things, or none of them."""
    rates: Mapping[str, float] = Field(default_factory=dict)
    """Share of each thing by its name."""
    is_odd: bool = False
    """True if something is odd here."""


class ToyData(DataConfig):
    """Data of the toy recipe."""

    max_length: PositiveInt = 16
    """Longest example in tokens."""


class ToyRun(RunConfig):
    """A run of the toy recipe."""

    recipe: Literal["toy"] = "toy"
    """Name of the recipe of this run."""
    model: Annotated[SmallModel | WideModel, Field(discriminator="arch")]
    """The architecture of the model."""
    objective: ToyObjective = ToyObjective()
    """Target of the prediction."""
    data: ToyData
    """Data of the model."""


TRICKY = r"""
on|no|yes|1e-4|1_000|0x1f|0o7|.5|1.|null|~| a|a |a: b|a #b|- a|'|"
12:30:45|=|<<|2026-11-21|[x|{|&a|*a|!x|%|@|`|a,b"""
texts = st.text(st.characters(codec="utf-8"), max_size=12) | st.sampled_from(
    [
        *TRICKY.replace("\n", "|").split("|"),
        "",
        "|",
        "\n",
        "\x85",
        "\ufeff",
        "\u2028",
        "\x7f",
        "\U00018cd6",
        "s3://bucket/x y",
    ]
)
shares = st.floats(0, 1)
positive = st.floats(1e-12, 1e12)
counts = st.integers(1, 10**12)
sources = st.lists(st.builds(SourceConfig, path=texts, weight=st.none() | positive), max_size=3).map(tuple)
runs = st.builds(
    ToyRun,
    seed=st.integers(0, 2**63),
    num_steps=counts,
    init_from=st.none() | texts,
    model=st.builds(SmallModel, width=counts) | st.builds(WideModel, widths=st.lists(counts, max_size=3).map(tuple)),
    objective=st.builds(
        ToyObjective,
        note=texts,
        switch=st.sampled_from(["on", "off", "1e-4", "null"]),
        betas=st.tuples(st.floats(allow_nan=False, allow_infinity=False), shares),
        rate=st.none() | st.floats(1e-300, 0.999),
        rates=st.dictionaries(texts, positive, max_size=3),
        is_odd=st.booleans(),
    ),
    data=st.builds(ToyData, train=sources, valid=sources, batch_size=counts, microbatch_size=st.none() | counts),
    optimizer=st.builds(OptimizerConfig, peak_lr=positive, epsilon=positive, beta1=shares, clip=st.just("norm")),
    schedule=st.builds(ScheduleConfig, floor=shares, num_warmup_steps=st.integers(0, 10**9)),
    ema_decay=st.none() | st.floats(1e-9, 0.9999999),
    precision=st.builds(PrecisionConfig),
    parallel=st.builds(ParallelConfig, compile=st.sampled_from(["auto", "on", "off"])),
    checkpoint=st.builds(CheckpointConfig, every_steps=counts, keep_every_steps=st.none() | counts),
    log=st.builds(LogConfig, to=st.lists(st.sampled_from(["tensorboard", "wandb", "mlflow"])), project=texts),
    evaluate=st.builds(EvaluateConfig, every_steps=st.none() | counts),
)


def toy(**changes):
    return ToyRun(
        num_steps=100,
        model=SmallModel(),
        data=ToyData(batch_size=8),
        optimizer=OptimizerConfig(peak_lr=1e-4),
        **changes,
    )


@settings(max_examples=60, deadline=None)
@given(runs)
@example(
    ToyRun(
        num_steps=1,
        model=SmallModel(width=1),
        optimizer=OptimizerConfig(peak_lr=1.0),
        data=ToyData(valid=(SourceConfig(path="\xa0"),), batch_size=1),
    )
)
def test_commented_yaml_loads_back_to_the_same_config_with_both_readers(run):
    written = to_commented_yaml(run)
    for tree in (parse_yaml(written, "written"), yaml.safe_load(written)):
        assert tree == run.model_dump(mode="json")
        assert ToyRun.model_validate(tree) == run


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda sub: st.lists(sub, max_size=3) | st.dictionaries(texts, sub, max_size=3),
    max_leaves=8,
)


@settings(deadline=None)
@given(json_values)
def test_a_value_is_one_line_and_reads_back_with_its_type(value):
    written = scalar(value)
    assert "\n" not in written
    for read in (parse_yaml(f"a: {written}", "a")["a"], yaml.safe_load(f"a: {written}")["a"]):
        assert read == value
        assert type(read) is type(value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1e-4, "0.0001"),
        (1e-6, "1.0e-06"),
        (1.5e20, "1.5e+20"),
        (3.0, "3.0"),
        ("runs/a-b.c", "runs/a-b.c"),
        ("on", '"on"'),
        (None, "null"),
    ],
)
def test_values_are_written_plainly(value, expected):
    assert scalar(value) == expected


def test_comments_hold_documentation_and_type():
    lines = to_commented_yaml(toy()).splitlines()
    above = lines[: lines.index("num_steps: 100")]
    assert above[-2].startswith("# Number of optimizer updates; null:")
    assert above[-1].endswith("(whole number > 0 | null)")
    assert lines[lines.index("  width: 8") - 1] == "  # Width of the model, in units. (whole number > 0)"
    assert lines[lines.index("optimizer:") - 1] == "# Optimizer."
    assert max(map(len, lines)) <= 120


def test_items_of_a_list_are_explained_once():
    data = ToyData(batch_size=8, train=({"path": "a"}, {"path": "b", "weight": 2.0}))
    written = to_commented_yaml(toy().model_copy(update={"data": data}))
    assert written.count("Folder of token shards") == 1
    assert parse_yaml(written, "written")["data"]["train"] == [
        {"path": "a", "weight": None},
        {"path": "b", "weight": 2.0},
    ]


def test_types_are_words():
    assert field_types(OptimizerConfig)["name"] == "adamw | lamb | sgd | lars | adafactor | lion | muon"
    assert field_types(OptimizerConfig)["beta1"] == "number >= 0 and <= 1"
    assert field_types(ToyData)["train"] == "text | list of (text | {path, weight})"
    assert field_types(ToyData)["microbatch_size"] == "whole number > 0 | null"
    assert field_types(WideModel)["widths"] == "list of whole number > 0"
    assert field_types(ToyObjective)["betas"] == "[number, number]"
    assert field_types(ToyRun)["recipe"] == "always toy"
    assert field_types(ToyRun)["objective"] == "settings"


def test_the_schema_is_that_of_a_difference():
    schema = json_schema(ToyRun)
    assert "extends" in schema["properties"]
    assert "required" not in json.dumps({k: v for k, v in schema.items() if k != "$defs"})
    assert all("required" not in part for part in schema["$defs"].values())
    assert "oneOf" not in json.dumps(schema)
    assert schema["additionalProperties"] is False
    assert schema["$defs"]["OptimizerConfig"]["properties"]["peak_lr"]["description"] == "Learning rate after warm-up."


def all_config_classes() -> set[type[Config]]:
    """Every config class of the package, with those of all recipes."""
    for package in pkgutil.iter_modules(pretrainkit.recipes.__path__):
        name = f"pretrainkit.recipes.{package.name}.config"
        if package.ispkg and importlib.util.find_spec(name) is not None:
            importlib.import_module(name)
    found, todo = set(), [Config]
    while todo:
        for sub in todo.pop().__subclasses__():
            if sub.__module__.startswith("pretrainkit.") and sub not in found:
                found.add(sub)
                todo.append(sub)
    return found


def test_every_field_of_every_config_class_is_documented():
    classes = all_config_classes()
    assert {RunConfig, OptimizerConfig, SourceConfig} <= classes
    missing = [
        f"{c.__name__}.{name}"
        for c in classes
        for name, info in c.model_fields.items()
        if len(info.description or "") < 10
    ]
    assert missing == []
    assert [c.__name__ for c in classes if not c.__doc__] == []


def test_every_preset_of_every_recipe_is_written_and_read_back():
    for package in pkgutil.iter_modules(pretrainkit.recipes.__path__):
        name = f"pretrainkit.recipes.{package.name}.presets"
        if not package.ispkg or importlib.util.find_spec(name) is None:
            continue
        for preset in importlib.import_module(name).PRESETS.values():
            config = preset()
            tree = parse_yaml(to_commented_yaml(config), "written")
            assert type(config).model_validate(tree) == config

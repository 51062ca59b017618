"""Presets, YAML files and overrides become checked configs; all errors are reported together."""

from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrainkit.config.base import Config
from pretrainkit.config.explain import fields_under, nearest
from pretrainkit.config.loader import flatten, parse_override, resolve
from pretrainkit.config.yaml import dump_yaml, parse_yaml
from pretrainkit.errors import ConfigError
from pretrainkit.training.data_config import DataConfig
from pretrainkit.training.optimizers.config import OptimizerConfig
from pretrainkit.training.run import RunConfig


class Model(Config):
    """A model of nothing."""

    hidden_size: int = 4
    """Width of the residual stream."""


class ToyRun(RunConfig):
    """A recipe with as little as possible."""

    recipe: Literal["toy"] = "toy"
    """Its name."""
    model: Model = Model()
    """The architecture."""
    objective: Model = Model()
    """Nothing."""


class Catalog:
    """One preset."""

    def preset(self, name):
        if name != "toy/small":
            raise ConfigError(f"there is no preset {name!r}")
        return ToyRun(num_steps=10, data=DataConfig(batch_size=8), optimizer=OptimizerConfig(peak_lr=1e-3))

    def config_class(self, recipe):
        return ToyRun


def test_override_wins_and_is_reported():
    resolved = resolve("toy/small", ["optimizer.peak_lr=1e-4", "parallel.compile=on"], Catalog())
    assert resolved.config.optimizer.peak_lr == 1e-4
    assert resolved.config.parallel.compile == "on"  # not YAML 1.1's True
    assert resolved.origins["optimizer.peak_lr"] == "command line"
    assert resolved.origins["optimizer.beta1"] == "preset toy/small"


def test_paths_become_sources():
    config = resolve("toy/small", ["data.train=a,b", "data.valid=[{path: c, weight: 2}]"], Catalog()).config
    assert [s.path for s in config.data.train] == ["a", "b"]
    assert config.data.valid[0].weight == 2


def test_later_extends_wins_and_files_are_relative_to_the_file(tmp_path):
    (tmp_path / "long.yaml").write_text("extends: toy/small\nnum_steps: 50\nseed: 3\n")
    (tmp_path / "mine.yaml").write_text("extends: [toy/small, long.yaml]\nseed: 7\n")
    resolved = resolve(tmp_path / "mine.yaml", [], Catalog())
    assert (resolved.config.num_steps, resolved.config.seed) == (50, 7)
    assert resolved.origins["num_steps"].endswith("long.yaml")
    assert resolved.origins["seed"].endswith("mine.yaml")


def test_all_problems_at_once_with_the_nearest_names():
    words = ["optimizer.learning_rate=1e-4", "num_step=3", "model.hidden_size=abc", "data.batch_size=-1", "nonsense"]
    with pytest.raises(ConfigError) as caught:
        resolve("toy/small", words, Catalog())
    text = str(caught.value)
    assert len(caught.value.problems) == 5
    assert "optimizer has no field 'learning_rate'" in text
    assert "write: optimizer.peak_lr=0.0001" in text
    assert "closest: num_steps" in text
    assert "model.hidden_size" in text
    assert "given:   data.batch_size=-1" in text
    assert "cannot read 'nonsense'" in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("extends: toy/small\nseed: 1\nseed: 2\n", "given twice"),
        ("model: {{size: 1}}\n", "line 1: {'size': 1} cannot be a key"),
        ("extends: toy/other\n", "no preset 'toy/other'"),
        ("extends: mine.yaml\n", "extends itself"),
        ("num_steps: 3\n", "no recipe is named"),
        ("- a\n- b\n", "does not contain a mapping"),
        ("a: [\n", "not valid YAML"),
    ],
)
def test_wrong_files(tmp_path, text, message):
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        resolve(tmp_path / "mine.yaml", [], Catalog())


def test_missing_file():
    with pytest.raises(ConfigError, match=r"no config file nowhere\.yaml"):
        resolve("nowhere.yaml", [], Catalog())


def test_resolved_config_resolves_to_itself():
    config = resolve("toy/small", ["data.train=a", "schedule.num_warmup_steps=2"], Catalog()).config
    tree = parse_yaml(dump_yaml(config.model_dump(mode="json")), "round trip")
    assert resolve(tree, [], Catalog()).config == config


def test_batch_that_no_rank_count_divides():
    config = resolve("toy/small", ["data.batch_size=4096", "data.microbatch_size=64"], Catalog()).config
    assert config.problems(world_size=8) == []
    (problem,) = config.problems(world_size=24)
    assert "4096 examples cannot be split over 24 ranks" in problem
    config = resolve("toy/small", ["data.batch_size=1024", "data.microbatch_size=48"], Catalog()).config
    (problem,) = config.problems(world_size=4)
    assert "data.batch_size=960 or 1152" in problem


scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-(10**9), 10**9), st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), max_size=20),
    st.sampled_from(["on", "off", "yes", "no", "null", "1e-4", "~", "0x10", "1_000", "12:30"]),
)  # fmt: skip


@given(st.dictionaries(st.from_regex(r"[a-z]{1,6}", fullmatch=True), st.one_of(scalars, st.lists(scalars, max_size=3))))
def test_yaml_round_trip(tree):
    assert parse_yaml(dump_yaml(tree), "round trip") == tree


@given(value=st.floats(allow_nan=False, allow_infinity=False))
def test_floats_survive_the_command_line(value):
    assert parse_override(f"a.b={value!r}") == (["a", "b"], value)


def test_nearest_looks_at_words_of_the_documentation():
    known = fields_under(ToyRun)
    assert nearest("optimizer.lr", known) == "optimizer.peak_lr"
    assert nearest("optimizer.learning_rate", known) == "optimizer.peak_lr"
    assert nearest("model.hiden_size", known) == "model.hidden_size"
    assert nearest("zzzz.qqqq", known) is None


def test_flatten_keeps_lists_whole():
    assert flatten({"a": {"b": [1, {"c": 2}]}, "d": {}}) == {"a.b": [1, {"c": 2}], "d": {}}


class Other(Config):
    """Another member of a union."""

    kind: Literal["other"] = "other"
    """Tells the members apart."""
    depth: int
    """Only here."""


class First(Config):
    """A member of a union."""

    kind: Literal["first"] = "first"
    """Tells the members apart."""
    width: int = 1
    """Only here."""


class UnionRun(ToyRun):
    """A recipe with a choice of models."""

    model: First | Other = First()
    """One of two."""


class UnionCatalog(Catalog):
    """One preset of it."""

    def preset(self, name):
        return UnionRun(**super().preset(name).model_dump(exclude={"model"}))

    def config_class(self, recipe):
        return UnionRun


def test_another_member_of_a_union_replaces_the_first_whole():
    config = resolve("toy/small", ["model={kind: other, depth: 3}", "model.depth=4"], UnionCatalog()).config
    assert config.model == Other(depth=4)
    assert resolve("toy/small", ["model.width=5"], UnionCatalog()).config.model == First(width=5)

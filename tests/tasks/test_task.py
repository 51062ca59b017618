"""Tasks, mixtures and their registry: refusals, look-ups, and examples as a pure function."""

import pickle
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrainkit.data.order import Order
from pretrainkit.errors import ConfigError, DataError
from pretrainkit.tasks.preprocessors import append_eos, append_eos_after_trim, format_strings, keep_if, rekey, tokenize
from pretrainkit.tasks.rates import Proportional, UniMax, proportional, unimax
from pretrainkit.tasks.sources import FunctionSource
from pretrainkit.tasks.steps import CacheMarker, FlatMap, Regroup
from pretrainkit.tasks.task import Feature, Mixture, Task, TaskRegistry, metric_kind, nearest
from pretrainkit.tasks.vocabulary import ByteVocabulary, PassThroughVocabulary
from support.remedies import followed

FEATURES = {"targets": Feature(ByteVocabulary()), "inputs": Feature(ByteVocabulary())}


def rows(split, *, number):
    return [{"text": f"{split} {index}", "number": index} for index in range(number)]


def source(number=6, splits=("train", "validation")):
    return FunctionSource(partial(rows, number=number), splits)


def task(name="copy", number=6, **changes):
    steps = (format_strings(inputs="{text}", targets="{number}"), tokenize(), CacheMarker(), append_eos)
    return Task(**{"name": name, "source": source(number), "features": FEATURES, "preprocessors": steps} | changes)


def noisy(example, rng):
    return example | {"noise": int(rng.integers(1 << 60))}


def two_halves(example):
    return [example | {"half": half} for half in range(2)]


def is_even(example):
    return example["number"] % 2 == 0


class Pairs(Regroup):
    """Every two examples laid end to end."""

    def regroup(self, examples, *, lengths, features):
        return [
            {name: np.concatenate([examples[i][name], examples[i + 1][name]]) for name in features}
            for i in range(0, len(examples) - 1, 2)
        ]


def test_an_example_has_its_features_with_eos_and_its_original_text():
    example = task().bind("validation").example(3)
    assert example["inputs"].dtype == np.int32
    assert example["inputs"].tolist() == [*ByteVocabulary().encode("validation 3"), 1]
    assert ByteVocabulary().decode(example["targets"]) == "3"
    assert example["inputs_pretokenized"] == "validation 3"


def test_features_are_sorted_and_trimmed_to_their_lengths_after_the_steps():
    made = task()
    assert list(made.features) == ["inputs", "targets"]
    example = made.bind("train", {"inputs": 5, "targets": 3}).example(1)
    assert ByteVocabulary().decode(example["inputs"]) == "train"
    assert len(example["inputs"]) == 5


@given(seed=st.integers(0, 2**40), index=st.integers(0, 5), epoch=st.integers(0, 1000))
def test_noise_is_a_function_of_seed_epoch_and_index_alone(seed, index, epoch):
    made = task(preprocessors=(*task().preprocessors, noisy))
    first, again = (made.bind("train", seed=seed) for _ in range(2))
    for other in range(3):
        first.example(other, other)
    noise = again.example(index, epoch)["noise"]
    assert first.example(index, epoch)["noise"] == noise
    assert first.example(index, epoch + 1)["noise"] != noise
    assert first.example((index + 1) % 6, epoch)["noise"] != noise
    assert made.bind("train", seed=seed + 1).example(index, epoch)["noise"] != noise


def test_two_random_steps_and_two_tasks_draw_different_noise():
    def another(example, rng):
        return example | {"more": int(rng.integers(1 << 60))}

    steps = (*task().preprocessors, noisy, another)
    example = task(preprocessors=steps).bind("train").example(0)
    assert example["noise"] != example["more"]
    assert task("other", preprocessors=steps).bind("train").example(0)["noise"] != example["noise"]


def test_a_bound_task_can_be_pickled():
    bound = task(preprocessors=(keep_if(is_even), *task().preprocessors, noisy)).bind("train", seed=3)
    copy = pickle.loads(pickle.dumps(bound))
    assert len(copy) == 3
    assert [example["noise"] for example in copy] == [example["noise"] for example in bound]


def test_filters_and_multiplying_steps_are_indexed():
    steps = (keep_if(is_even), FlatMap(two_halves), keep_if(lambda e: (e["number"], e["half"]) != (2, 0)))
    bound = task(preprocessors=(*steps, *task().preprocessors)).bind("train")
    found = [(example["number"], example["half"]) for example in bound]
    assert found == [(0, 0), (0, 1), (2, 1), (4, 0), (4, 1)]
    assert bound[-1]["half"] == 1
    with pytest.raises(IndexError):
        bound[5]


def test_examples_do_not_share_their_dict():
    bound = task().bind("train")
    bound.example(0)["inputs_pretokenized"] = "changed"
    assert bound.example(0)["inputs_pretokenized"] == "train 0"


def test_regrouping_steps_make_other_examples_by_index():
    steps = (format_strings(inputs="{text}", targets="{number}"), tokenize(), CacheMarker(), Pairs(), append_eos)
    bound = task(preprocessors=steps).bind("train")
    assert len(bound) == 3
    assert ByteVocabulary().decode(bound.example(1)["inputs"]) == "train 2train 3"
    with pytest.raises(ConfigError, match="'Pairs' cannot follow the random step 'noisy'"):
        task(preprocessors=(*steps[:3], noisy, Pairs())).bind("train")


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ((CacheMarker(), CacheMarker()), "has 2 cache markers"),
        ((append_eos_after_trim, CacheMarker()), "'append_eos_after_trim' depends on lengths"),
        ((append_eos_after_trim, keep_if(is_even)), "'append_eos_after_trim' depends on lengths"),
        ((CacheMarker(), keep_if(is_even)), "'is_even' filters or multiplies"),
        ((Pairs(), CacheMarker()), "'Pairs' must be after the cache marker"),
    ],
)
def test_steps_that_do_not_fit_together_are_refused_when_the_task_is_defined(steps, message):
    with pytest.raises(ConfigError, match=message):
        task(preprocessors=steps)


def test_a_random_step_before_the_marker_is_reported(caplog):
    task(preprocessors=(noisy, CacheMarker()))
    assert "its random step noisy comes before the cache marker" in caplog.text


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ((rekey({"inputs": "nothing"}),), "'Rekey' failed for example 0: no key 'nothing'"),
        ((rekey({"inputs": "text"}), tokenize()), "lacks the feature 'targets'"),
        ((rekey({"inputs": "text", "targets": "text"}),), "'inputs' of example 0 of train is <U7 of rank 0"),
        ((rekey({"inputs": "number", "targets": "number"}),), "rank 0, but it is declared as int32 of rank 1"),
    ],
)
def test_an_example_that_does_not_match_its_features_is_refused(steps, message):
    with pytest.raises(DataError, match=message):
        task(preprocessors=steps).bind("train").example(0)


def test_a_feature_that_is_not_required_may_be_absent():
    features = FEATURES | {"answers": Feature(PassThroughVocabulary(9), required=False)}
    assert "answers" not in task(features=features).bind("train").example(0)


def test_an_unknown_split_and_a_missing_required_cache_are_refused():
    with pytest.raises(DataError, match="there is no split 'test'\n  its splits are: train, validation"):
        task().bind("test")
    needing = task(preprocessors=(tokenize(), CacheMarker(required=True)))
    with pytest.raises(DataError, match=r"needs a cache of 'train'.*\n  create it: pretrainkit tasks cache copy"):
        needing.bind("train")


@pytest.mark.parametrize("name", ["", "a b", "a/b", "a-b"])
def test_names_are_words(name):
    with pytest.raises(ConfigError, match="is not a valid name of a task or mixture"):
        task(name)
    assert task("glue:cola.v2#x").name == "glue:cola.v2#x"


def test_metrics_are_distinguished_by_their_parameters():
    assert metric_kind(lambda targets, predictions, digits=2: {}) == "predictions"
    assert metric_kind(lambda targets, predictions, digits=2, **options: {}) == "predictions"
    assert metric_kind(lambda targets, scores: {}) == "scores"
    assert metric_kind(lambda targets, predictions, aux_values: {}) == "predictions and values"
    with pytest.raises(
        ConfigError, match=r"task 'copy': a metric takes .*\n  this metric takes \(predictions, targets\)"
    ):
        task(metrics=(lambda predictions, targets: {},))


# --- registry ---------------------------------------------------------------------------------------------------


def registry(*entries):
    made = TaskRegistry()
    for entry in entries:
        made.add(entry)
    return made


def test_making_and_adding_tasks_reads_nothing(tmp_path):
    def explode(split):
        raise AssertionError

    known = registry(task("a", source=FunctionSource(explode, ["train"])), Mixture("m", ["a"], proportional()))
    assert known.names() == ("a", "m")


def test_an_unknown_name_is_refused_with_the_nearest_by_edits():
    known = registry(task("glue_cola_v002"), task("glue_sst2_v002"), task("wmt_de"), task("xsum"), task("glue_colla"))
    with pytest.raises(
        ConfigError, match=r"no task or mixture 'glue_cola'\n  the nearest names are: glue_colla, glue_cola_v002, "
    ):
        known.get("glue_cola")
    assert nearest("kitten", ["sitting", "kit", "mitten"]) == ["mitten", "kit", "sitting"]
    with pytest.raises(ConfigError, match="no task is registered"):
        registry().get("x")


def test_names_are_given_once_and_a_mixture_comes_before_a_task(caplog):
    known = registry(task("a"), Mixture("m", ["a"], 1.0), task("m"))
    with pytest.raises(ConfigError, match="there is already a task 'a'"):
        known.add(task("a"))
    assert isinstance(known.get("m"), Mixture)
    assert "the mixture is used" in caplog.text
    known.remove("m")
    assert known.names() == ("a",)
    known.reset()
    assert known.names() == ()


def test_a_mixture_cannot_contain_itself():
    registry = TaskRegistry()
    registry.add(task("copy"))
    registry.add(Mixture("all", ["copy"], default_rate=1.0))
    for name, member in (("copy", "copy"), ("copy", "all")):
        with pytest.raises(ConfigError, match="mixture 'copy' would contain itself"):
            registry.add(Mixture(name, [member], default_rate=1.0))
    assert registry.rates("all") == {"copy": 1.0}


def test_members_of_a_mixture_must_exist_and_have_the_same_features():
    known = registry(task("a"), task("b", features={"targets": Feature(ByteVocabulary())}))
    with pytest.raises(ConfigError, match=r"mixture 'm': there is no task or mixture 'c'"):
        known.add(Mixture("m", ["a", "c"], 1))
    with pytest.raises(ConfigError, match=r"different output features\n  a: inputs, targets\n  b: targets"):
        known.add(Mixture("m", ["a", "b"], 1))
    assert known.names() == ("a", "b")


def test_members_of_a_mixture_must_have_equal_vocabularies_when_it_is_used():
    other = {name: Feature(ByteVocabulary(extra_ids=7)) for name in ("inputs", "targets")}
    known = registry(task("a"), task("b", features=other), Mixture("m", ["a", "b"], 1))
    with pytest.raises(ConfigError, match=r"different vocabularies\n  a: ByteVocabulary of 259 ids.*\n  b: .*266 ids"):
        known.bind("m", "train")


def test_members_of_a_mixture_may_be_given_as_they_are():
    inner = Mixture("inner", [task("a"), (task("b"), 3)], 1)
    outer = Mixture("outer", [(inner, 2), "a"], 2)
    assert outer.pairs == (("inner", 2), ("a", None))
    assert registry(task("a"), task("b"), inner, outer).rates("outer") == {"a": 2.5, "b": 1.5}


@pytest.mark.parametrize("member", [("a",), ("a", "2"), ("a", 2, 3), 7, None])
def test_an_invalid_member_of_a_mixture_is_refused_when_it_is_defined(member):
    with pytest.raises(ConfigError, match=r"mixture 'm' has the invalid member .*\n  use a name, or \(name, rate\)"):
        Mixture("m", ["b", member], 1)


@pytest.mark.parametrize("rate", [-1, float("nan"), float("inf")])
def test_a_rate_is_a_number_from_0_up(rate):
    with pytest.raises(ConfigError, match="it must be a number from 0 up"):
        Mixture("m", [("a", rate)])


def test_a_mixture_needs_a_rate_for_every_member():
    with pytest.raises(ConfigError, match="no rate for 'a' and no default_rate"):
        Mixture("m", ["a"])
    with pytest.raises(ConfigError, match="contains 'a' twice"):
        Mixture("m", ["a", ("a", 2)], 1)
    with pytest.raises(ConfigError, match="the rate of 'a' is -1; it must be a number from 0 up"):
        Mixture("m", [("a", -1)])


# --- rates ------------------------------------------------------------------------------------------------------


def test_nested_mixtures_hand_their_rate_on_in_proportion():
    inner = Mixture("inner", [("a", 1), ("b", 3)])
    outer = Mixture("outer", [("inner", 2), ("c", 2), ("a", 0.5)])
    known = registry(task("a"), task("b"), task("c"), inner, outer)
    assert known.rates("outer") == {"a": 1.0, "b": 1.5, "c": 2.0}
    assert known.rates("inner") == {"a": 1, "b": 3}
    assert known.rates("a") == {"a": 1.0}


def test_rates_in_proportion_have_a_limit_and_a_temperature():
    rate = proportional(maximum=200_000, temperature=5)
    assert isinstance(rate, Proportional)
    assert [rate.of(size) for size in (100, 10_000, 4_000_000)] == pytest.approx([2.5119, 6.3096, 11.4870], abs=1e-4)
    known = registry(
        task("a", 4), task("b", 9), Mixture("m", ["a", ("b", proportional(temperature=2))], proportional(scale=10))
    )
    assert known.rates("m") == {"a": 40.0, "b": 3.0}


def test_the_rate_of_a_mixture_within_a_mixture_is_a_number():
    known = registry(task("a"), Mixture("inner", ["a"], 1), Mixture("outer", ["inner"], proportional()))
    with pytest.raises(ConfigError, match="the rate of the mixture 'inner' must be a number"):
        known.rates("outer")


def test_a_rate_may_be_a_function_of_the_task_and_its_sizes():
    known = registry(task("a", 4), Mixture("m", [("a", lambda task, sizes: len(task.name) + sizes.examples(task))]))
    assert known.rates("m") == {"a": 5.0}


def test_a_rate_function_that_fails_is_named_with_its_task():
    registry = TaskRegistry()
    registry.add(task("copy"))
    registry.add(Mixture("all", [("copy", lambda task, sizes: 1 / 0)]))
    with pytest.raises(ConfigError, match=r"'all': the rate function of 'copy' failed\n.*division by zero"):
        registry.rates("all")


@given(amounts=st.lists(st.floats(1, 1e6), min_size=1, max_size=8), budget=st.floats(1, 1e7), epochs=st.floats(0.1, 4))
def test_unimax_spends_the_budget_as_evenly_as_the_cap_allows(amounts, budget, epochs):
    shares = unimax(amounts, budget, epochs)
    caps = [amount * epochs for amount in amounts]
    assert sum(shares) == pytest.approx(min(budget, sum(caps)))
    assert all(share <= cap * (1 + 1e-9) for share, cap in zip(shares, caps, strict=True))
    even = max(shares)
    assert all(share == pytest.approx(min(even, cap)) for share, cap in zip(shares, caps, strict=True))


def test_unimax_is_a_rate_for_all_members_without_one():
    members = ["small", "large", ("fixed", 7.0)]
    known = registry(task("small", 10), task("large", 1000), task("fixed"), Mixture("m", members, UniMax(100, 2)))
    assert known.rates("m") == {"small": 20.0, "large": 80.0, "fixed": 7.0}


@given(
    rates=st.lists(st.integers(1, 9), min_size=4, max_size=4), outer=st.lists(st.floats(0.1, 9), min_size=2, max_size=2)
)
def test_the_rates_of_a_mixture_add_up_to_those_of_its_members(rates, outer):
    inner = [Mixture("x", [("a", rates[0]), ("b", rates[1])]), Mixture("y", [("b", rates[2]), ("c", rates[3])])]
    whole = Mixture("m", list(zip(("x", "y"), outer, strict=True)))
    found = registry(task("a"), task("b"), task("c"), *inner, whole).rates("m")
    assert sum(found.values()) == pytest.approx(sum(outer))
    assert found["a"] == pytest.approx(outer[0] * rates[0] / (rates[0] + rates[1]))


def test_members_without_the_split_are_left_out_and_those_of_rate_0_not_trained_on(caplog):
    known = registry(task("a"), task("b", source=source(splits=["validation"])), task("c"))
    known.add(Mixture("m", [("a", 1), ("b", 2), ("c", 0)]))
    assert known.rates("m") == {"a": 1.0, "c": 0.0}
    assert "task b has no split train" in caplog.text
    assert [bound.name for bound in known.bind("m", "train").tasks] == ["a"]
    assert set(known.task_names("m")) == {"a", "b", "c"}
    with pytest.raises(ConfigError, match="no task of mixture 'm' has the split 'test'"):
        known.rates("m", split="test")


def test_the_shares_of_20_000_draws_are_the_rates():
    known = registry(task("a", 50), task("b", 70), task("c", 90))
    known.add(Mixture("inner", [("a", 1), ("b", 3)]))
    known.add(Mixture("outer", [("inner", 2), ("c", 2), ("a", 0.5)]))
    bound = known.bind("outer", "train", seed=1)
    order = Order(bound.sizes, seed=1, weights=bound.weights)
    drawn = order.records(np.arange(20_000))
    shares = np.bincount(drawn.source) / 20_000
    expected = {"a": 1.0 / 4.5, "b": 1.5 / 4.5, "c": 2.0 / 4.5}
    assert shares == pytest.approx([expected[part.name] for part in bound.tasks], abs=0.015)
    example = bound.example(*(int(column[7]) for column in (drawn.source, drawn.index, drawn.epoch)))
    assert set(example) >= {"inputs", "targets"}


def words(*lengths):
    """A task of examples of this many tokens, half of them inputs."""
    texts = [{"inputs": "a" * (length // 2), "targets": "b" * (length - length // 2)} for length in lengths]
    name = f"words{sum(lengths)}"
    return Task(name, FunctionSource(lambda split: texts, ["train"]), FEATURES, [tokenize()])


def test_rates_of_tokens_give_each_task_its_share_of_the_tokens():
    registry = TaskRegistry()
    short, long = words(4, 4), words(30, 50)
    for task in (short, long):
        registry.add(task)
    registry.add(Mixture("inner", [(short.name, 1), (long.name, 1)]))
    registry.add(Mixture("tokens", [(short.name, 1), (long.name, 3)], rates_of="tokens"))
    rates = registry.rates("tokens")
    assert rates[short.name] * 4 * 3 == pytest.approx(rates[long.name] * 40)
    registry.add(Mixture("outer", [("inner", 1), (short.name, 1)], rates_of="tokens"))
    rates = registry.rates("outer")
    inner_share_of_short = (
        0.5 / 22
    )  # an example of the inner mixture has 22 tokens, and is a short one every other time
    assert rates[short.name] == pytest.approx(inner_share_of_short + 1 / 4)
    assert rates[long.name] == pytest.approx(0.5 / 22)
    cut = registry.rates("tokens", lengths={"inputs": 5, "targets": 5})
    assert cut[short.name] * 4 * 3 == pytest.approx(cut[long.name] * 10)


def test_rates_of_tokens_are_refused_where_they_mean_nothing():
    with pytest.raises(ConfigError, match="UniMax returns rates of examples"):
        Mixture("bad", ["a"], default_rate=UniMax(100), rates_of="tokens")
    registry = TaskRegistry()
    registry.add(words(0, 0))
    registry.add(Mixture("empty", [("words0", 1)], rates_of="tokens"))
    with pytest.raises(DataError, match="neither inputs nor targets") as error:
        registry.rates("empty")
    assert "rates_of='examples'" in followed(error.value, "tasks/rates.py: the first examples")
    registry.add(Mixture("examples", [("words0", 1)], rates_of="examples"))
    assert registry.rates("examples") == {"words0": 1}


def forgetful(example):
    example.get("number")


def twice_forgetful(example):
    return [forgetful(example), example]


@pytest.mark.parametrize(
    "steps",
    [(forgetful, noisy), (forgetful, CacheMarker()), (CacheMarker(), forgetful), (FlatMap(twice_forgetful),)],
    ids=["without a cache", "before the marker", "behind it", "several"],
)
def test_a_step_that_gives_no_example_is_named(steps):
    with pytest.raises(DataError, match=r"its step '(twice_)?forgetful' failed for example 0: .* it returned None"):
        task(preprocessors=steps).bind("train").example(0)

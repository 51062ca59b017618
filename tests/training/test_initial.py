"""Weights that a new model takes from a checkpoint: all by default, or those that the config selects."""

import re

import pytest

from pretrainkit.config.base import architecture
from pretrainkit.errors import CheckpointError
from pretrainkit.recipes.registry import entries, find_recipe
from pretrainkit.training.initial import plan_initial
from pretrainkit.training.run import InitConfig

MODEL = {"embedding": (8, 4), "encoder.0.w": (4, 4), "encoder.1.w": (4, 4), "head": (4, 8)}


def plan(given, wanted=None, **config):
    return plan_initial(wanted or MODEL, given, InitConfig(**config), "init_from=x")


def message(given, wanted=None, **config):
    with pytest.raises(CheckpointError) as error:
        plan(given, wanted, **config)
    return str(error.value)


def test_equal_names_and_shapes_are_taken_over_as_they_are():
    found = plan(MODEL)
    assert found.sources == {name: name for name in MODEL}
    assert (found.drawn, found.ignored) == ((), ())


def test_all_differences_are_named_in_one_message_with_a_fix():
    given = {"embedding": (6, 4), "encoder.0.w": (4, 4), "encoder.1.w": (4, 4), "other": (1,)}
    text = message(given)
    assert "missing in the checkpoint: head" in text
    assert "the model does not have: other" in text
    assert "embedding: [6, 4] in the checkpoint, [8, 4] in the model" in text
    for advice in ("init.grow", "init.missing=random", "init.unexpected=ignore"):
        assert advice in text


def test_missing_tensors_are_drawn_and_unexpected_ones_ignored_if_configured():
    given = {"embedding": (8, 4), "encoder.0.w": (4, 4), "old": (1,)}
    found = plan(given, missing="random", unexpected="ignore")
    assert set(found.sources) == {"embedding", "encoder.0.w"}
    assert set(found.drawn) == {"encoder.1.w", "head"}
    assert found.ignored == ("old",)


def test_patterns_rename_with_groups():
    given = {"embedding": (8, 4), "block_0/kernel": (4, 4), "block_1/kernel": (4, 4), "head": (4, 8)}
    found = plan(given, rename=[{"pattern": r"encoder\.(\d)\.w", "to": r"block_\1/kernel"}])
    assert found.sources["encoder.1.w"] == "block_1/kernel"


def test_two_tensors_may_read_one_and_names_can_be_exchanged():
    given = {"embedding": (8, 4), "encoder.0.w": (4, 4), "head": (4, 8)}
    found = plan(given, rename=[{"pattern": r"encoder\.\d\.w", "to": "encoder.0.w"}])
    assert found.sources["encoder.0.w"] == found.sources["encoder.1.w"] == "encoder.0.w"
    swap = [{"pattern": r"encoder\.0\.w", "to": "encoder.1.w"}, {"pattern": r"encoder\.1\.w", "to": "encoder.0.w"}]
    assert plan(MODEL, rename=swap).sources["encoder.0.w"] == "encoder.1.w"


def test_the_source_of_a_renamed_tensor_is_not_read_under_its_own_name():
    text = message(MODEL, rename=[{"pattern": r"encoder\.1\.w", "to": "encoder.0.w"}])
    assert "missing in the checkpoint: encoder.0.w" in text
    assert "the model does not have: encoder.1.w" in text


def test_a_pattern_without_a_name_draws_its_tensors_again_whatever_their_shape():
    found = plan(MODEL | {"head": (2, 2)}, rename=[{"pattern": "head"}])
    assert found.drawn == ("head",)


@pytest.mark.parametrize("config", [{"rename": [{"pattern": "nothing", "to": "head"}]}, {"grow": ["emb"]}])
def test_a_pattern_that_fits_no_whole_name_is_an_error(config):
    assert "matches no tensor of the model" in message(MODEL, **config)


def test_a_renamed_tensor_that_the_checkpoint_lacks_is_named():
    assert "nowhere (for head)" in message(MODEL, rename=[{"pattern": "head", "to": "nowhere"}], unexpected="ignore")


def test_tables_may_grow_if_configured_but_never_shrink():
    assert plan(MODEL | {"embedding": (6, 4)}, grow=["embedding"]).sources["embedding"] == "embedding"
    assert "[9, 4] in the checkpoint" in message(MODEL | {"embedding": (9, 4)}, grow=["embedding"])


def test_equal_shapes_that_compute_other_things_are_refused_unless_tensors_may_differ():
    architectures = ({"num_heads": 4}, {"num_heads": 2})
    with pytest.raises(CheckpointError, match=r"model\.num_heads: 2 in the checkpoint, 4 in the model"):
        plan_initial(MODEL, MODEL, InitConfig(), "init_from=x", architectures)
    plan_initial(MODEL, MODEL, InitConfig(missing="random"), "init_from=x", architectures)


def test_settings_of_training_and_files_are_not_compared_as_architecture():
    """Rates of dropout, initial values and the names of folders, in every preset of every recipe."""
    training_only = re.compile(r"drop|initial|init_|folder|reader|guidance|temperature\.value|quantizer\.temperature")
    for name, entry in entries().items():
        for preset, make in entry.load().presets.items():
            model = make().model
            if getattr(getattr(model, "temperature", None), "kind", None) == "constant":
                continue
            found = [path for path in architecture(model) if training_only.search(path)]
            assert found == [], f"{name}/{preset}"


def test_modalities_are_compared_one_by_one_without_where_their_files_are():
    model = find_recipe("fourm").presets["tiny"]().model

    def changed(**update):
        first, *others = model.modalities
        return architecture(model.model_copy(update={"modalities": (first.model_copy(update=update), *others)}))

    own = architecture(model)
    assert changed(folder="elsewhere", reader="mine.py:READER") == own
    other = changed(vocab_size=12345)
    assert [path for path, value in other.items() if own[path] != value] == ["modalities.0.vocab_size"]

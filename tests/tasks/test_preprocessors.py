"""Steps of tasks: positions of EOS, trimming, and results for texts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrainkit.errors import ConfigError
from pretrainkit.tasks.preprocessors import (
    append_eos,
    append_eos_after_trim,
    format_strings,
    rekey,
    tokenize,
    tokenize_and_append_eos,
    truncate_inputs_left,
)
from pretrainkit.tasks.sources import FunctionSource
from pretrainkit.tasks.task import Feature, Task
from pretrainkit.tasks.vocabulary import ByteVocabulary, PassThroughVocabulary

IDS = PassThroughVocabulary(1000)
FEATURES = {"inputs": Feature(IDS), "targets": Feature(IDS, add_eos=False)}


def ids(length):
    return list(range(10, 10 + length))


def through(length, *steps, lengths):
    source = FunctionSource(
        lambda split: [{"inputs": ids(length), "targets": ids(length)}], ["train"], version=str(length)
    )
    return Task("t", source, FEATURES, steps).bind("train", lengths).example(0)


@pytest.mark.parametrize("step", [append_eos, append_eos_after_trim])
def test_eos_fits_behind_seven_tokens_of_eight(step):
    assert through(7, step, lengths={"inputs": 8, "targets": 8})["inputs"].tolist() == [*ids(7), 1]


def test_eos_takes_the_place_of_the_last_token_or_is_trimmed_away():
    lengths = {"inputs": 8, "targets": 8}
    assert through(8, append_eos_after_trim, lengths=lengths)["inputs"].tolist() == [*ids(7), 1]
    assert through(8, append_eos, lengths=lengths)["inputs"].tolist() == ids(8)


def test_a_feature_without_eos_is_trimmed_by_the_task_not_by_the_step():
    assert append_eos_after_trim({"targets": ids(9)}, FEATURES, {"targets": 4})["targets"] == ids(9)
    assert through(9, append_eos_after_trim, lengths={"inputs": 8, "targets": 4})["targets"].tolist() == ids(4)


@given(length=st.integers(0, 30), limit=st.integers(1, 30))
def test_after_trim_the_last_token_is_always_eos_and_the_others_are_the_first(length, limit):
    made = append_eos_after_trim({"inputs": ids(length)}, FEATURES, {"inputs": limit})["inputs"].tolist()
    assert made == [*ids(min(length, limit - 1)), 1]
    assert append_eos_after_trim({"inputs": ids(length)}, FEATURES, None)["inputs"].tolist() == [*ids(length), 1]


@given(length=st.integers(0, 30), limit=st.integers(1, 30))
def test_truncating_left_keeps_the_end_and_room_for_eos(length, limit):
    lengths = {"inputs": limit, "targets": limit}
    made = through(length, truncate_inputs_left("inputs", "targets"), append_eos_after_trim, lengths=lengths)
    kept = min(length, limit - 1)
    assert made["inputs"].tolist() == [*ids(length)[length - kept :], 1]
    assert made["targets"].tolist() == ids(length)[max(0, length - limit) :]


def test_truncating_left_after_eos_keeps_all_tokens_that_fit():
    made = through(9, append_eos, truncate_inputs_left(), lengths={"inputs": 8, "targets": 8})
    assert made["inputs"].tolist() == [*ids(9)[2:], 1]


def test_rekey_takes_the_named_keys_only():
    assert rekey({"inputs": None, "targets": "text"})({"text": "a", "meta": 1}) == {"inputs": "", "targets": "a"}


def test_format_strings_keep_the_other_keys():
    made = format_strings(inputs="translate {src} to {{x}}: {n:.1f}")({"src": "a", "n": 2.26})
    assert made == {"src": "a", "n": 2.26, "inputs": "translate a to {x}: 2.3"}
    with pytest.raises(ValueError, match="'n' is null"):
        format_strings(inputs="{src} {n}")({"src": "a", "n": None})
    with pytest.raises(ConfigError, match="has a field without a name"):
        format_strings(inputs="{}")
    with pytest.raises(ConfigError, match=r"pattern inputs='\{a'"):
        format_strings(inputs="{a")


def test_tokenize_keeps_the_text_and_leaves_ids_alone():
    features = {"inputs": Feature(ByteVocabulary()), "targets": Feature(ByteVocabulary())}
    example = {"inputs": "ab", "targets": np.array([5], np.int32)}
    made = tokenize()(example, features)
    assert made["inputs"].tolist() == [100, 101]
    assert made["inputs_pretokenized"] == "ab"
    assert made["targets"] is example["targets"]
    assert "inputs_pretokenized" not in tokenize(keep_text=False)(example, features)
    assert tokenize_and_append_eos(example, features)["inputs"].tolist() == [100, 101, 1]

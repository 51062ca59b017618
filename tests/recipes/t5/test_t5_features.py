"""Feature converters and packing, by SeqIO's worked examples and by laws."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretrainkit.errors import DataError
from pretrainkit.recipes.t5.features import (
    best_fit,
    best_fit_rows,
    encoder,
    encoder_decoder,
    few_sizes,
    language_model,
    lay_out,
    num_packed_rows,
    one_per_row,
    prefix_language_model,
)
from pretrainkit.recipes.t5.ragged import ragged
from support.t5_runs import run_of

INPUTS = ragged([[7, 8, 5, 1], [8, 4, 9, 3, 1]])
TARGETS = ragged([[3, 9, 1], [4, 1]])


@pytest.mark.parametrize("packer", [best_fit, best_fit_rows(1)])
def test_the_worked_example_of_packing_token_for_token(packer):
    found = encoder_decoder(INPUTS, TARGETS, 10, 7, packer=packer)
    assert {name: array.tolist() for name, array in found.items()} == {
        "encoder_input_tokens": [[7, 8, 5, 1, 8, 4, 9, 3, 1, 0]],
        "encoder_segment_ids": [[1, 1, 1, 1, 2, 2, 2, 2, 2, 0]],
        "encoder_positions": [[0, 1, 2, 3, 0, 1, 2, 3, 4, 0]],
        "decoder_target_tokens": [[3, 9, 1, 4, 1, 0, 0]],
        "decoder_input_tokens": [[0, 3, 9, 0, 4, 0, 0]],
        "decoder_loss_weights": [[1, 1, 1, 1, 1, 0, 0]],
        "decoder_segment_ids": [[1, 1, 1, 2, 2, 0, 0]],
        "decoder_positions": [[0, 1, 2, 0, 1, 0, 0]],
    }
    for name, array in found.items():
        assert array.dtype == (np.float32 if name.endswith("weights") else np.int32)


def test_without_packing_each_example_has_a_row_and_no_number():
    found = encoder_decoder(INPUTS, TARGETS, 6, 4)
    assert {name: array.tolist() for name, array in found.items()} == {
        "encoder_input_tokens": [[7, 8, 5, 1, 0, 0], [8, 4, 9, 3, 1, 0]],
        "decoder_target_tokens": [[3, 9, 1, 0], [4, 1, 0, 0]],
        "decoder_input_tokens": [[0, 3, 9, 0], [0, 4, 0, 0]],
        "decoder_loss_weights": [[1, 1, 1, 0], [1, 1, 0, 0]],
    }


def test_prefix_language_models_as_seqio_documents_them():
    # Its text has a prefix of 2 look ahead from 2 places and one of 3 from 4; the code has one place more than tokens.
    inputs, targets = ragged([[9, 4, 6], [3, 2]]), ragged([[3, 9, 2, 1], [4]])
    found = prefix_language_model(inputs, targets, 15, packer=best_fit)
    assert {name: array.tolist()[0] for name, array in found.items()} == {
        "decoder_target_tokens": [9, 4, 6, 3, 9, 2, 1, 3, 2, 4, 0, 0, 0, 0, 0],
        "decoder_input_tokens": [0, 9, 4, 6, 3, 9, 2, 0, 3, 2, 0, 0, 0, 0, 0],
        "decoder_loss_weights": [0, 0, 0, 1, 1, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0],
        "decoder_positions": [0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 0, 0, 0, 0, 0],
        "decoder_segment_ids": [1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 0, 0, 0, 0, 0],
        "decoder_causal_attention": [1, 1, 1, 1, 0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0],
    }


def test_an_example_that_has_a_row_to_itself_is_number_1():
    found = encoder_decoder(INPUTS, ragged([[3, 9, 0], [4, 1]]), 6, 4, packer=one_per_row)
    assert found["encoder_segment_ids"].tolist() == [[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 0]]
    assert found["decoder_segment_ids"].tolist() == [[1, 1, 1, 0], [1, 1, 0, 0]]
    assert found["decoder_positions"].tolist() == [[0, 1, 2, 0], [0, 1, 0, 0]]


def test_examples_may_fill_a_row_to_its_last_slot():
    lengths = {"inputs": np.array([4, 5]), "targets": np.array([3, 2])}
    assert best_fit(lengths, {"inputs": 9, "targets": 5}).num_rows == 1
    assert best_fit(lengths, {"inputs": 9, "targets": 4}).num_rows == 2
    assert best_fit(lengths, {"inputs": 8, "targets": 5}).num_rows == 2


def test_language_models_predict_all_of_a_text():
    found = language_model(TARGETS, 4)
    assert found["decoder_target_tokens"].tolist() == [[3, 9, 1, 0], [4, 1, 0, 0]]
    assert found["decoder_loss_weights"].sum() == 5
    assert not any(name.startswith("encoder") for name in found)


def test_an_encoder_predicts_the_masked_tokens():
    found = encoder(ragged([[5, 90, 7], [90, 2]]), ragged([[5, 6, 7], [8, 2]]), 4, mask_id=90)
    assert found["encoder_loss_weights"].tolist() == [[0, 1, 0, 0], [1, 0, 0, 0]]
    assert found["encoder_target_tokens"].tolist() == [[5, 6, 7, 0], [8, 2, 0, 0]]
    with pytest.raises(DataError, match="example 1 has 5 input tokens and 2 target tokens"):
        encoder(INPUTS, ragged([[1, 2, 3, 4], [1, 2]]), 9, mask_id=90)


def test_an_empty_sequence_never_meets_another_example():
    inputs, targets = ragged([[5, 1], [], [6, 7, 1], [8, 1]]), ragged([[11, 1], [12, 1], [], [13, 1]])
    found = encoder_decoder(inputs, targets, 12, 12, packer=best_fit)
    row_inputs, row_targets = found["encoder_input_tokens"][0], found["decoder_target_tokens"][0]
    for number in range(1, 5):
        mine = row_inputs[found["encoder_segment_ids"][0] == number].tolist()
        said = row_targets[found["decoder_segment_ids"][0] == number].tolist()
        assert mine == inputs[number - 1].tolist()
        assert said == targets[number - 1].tolist()


def test_ids_0_survive_inside_and_are_refused_where_they_would_be_padding():
    inputs, targets = ragged([[5, 0, 0, 6, 1]]), ragged([[0, 4, 0]])
    found = encoder_decoder(inputs, targets, 6, 4, packer=best_fit)
    assert found["encoder_segment_ids"].tolist() == [[1, 1, 1, 1, 1, 0]]
    assert found["decoder_loss_weights"].tolist() == [[1, 1, 1, 0]]
    assert found["encoder_input_tokens"].tolist() == [[5, 0, 0, 6, 1, 0]]
    with pytest.raises(DataError, match="targets of example 0 end with id 0"):
        encoder_decoder(inputs, targets, 6, 4)
    for last in ([0], [3, 0]):
        with pytest.raises(DataError, match="targets of example 2 end with id 0"):
            language_model(ragged([[5, 1], [], last]), 4)


def test_long_texts_keep_each_token_in_its_slot():
    # Texts of 128 tokens or more on average are copied as a whole.
    texts = [np.arange(1, 1 + length) for length in (300, 1, 0, 250, 199)]
    alone, packed = [(0, 0), (1, 0), (2, 0), (3, 0), (4, 0)], [(0, 0), (1, 0), (0, 300), (1, 1), (2, 0)]
    for packer, places in ((None, alone), (best_fit, packed)):
        found = language_model(ragged(texts), 300, packer=packer)
        assert np.count_nonzero(found["decoder_target_tokens"]) == found["decoder_loss_weights"].sum() == 750
        for text, (row, begin) in zip(texts, places, strict=True):
            slots = slice(begin, begin + len(text))
            assert found["decoder_target_tokens"][row, slots].tolist() == text.tolist()
            assert found["decoder_input_tokens"][row, slots].tolist() == (text - 1).tolist()


def test_rows_without_a_token_are_not_needed():
    config = run_of(["train", "", "valid"], data={"packing": True, "input_length": 4, "target_length": 4})
    inputs, targets = ragged([[5, 6, 1]] * 17), ragged([[7, 1]] * 17)
    assert len(lay_out(config, inputs, targets, mask_id=-1)["encoder_input_tokens"]) == 18  # rounded up
    assert num_packed_rows(config, inputs, targets) == 17


def test_examples_that_do_not_fit_a_row_are_refused_with_their_size():
    with pytest.raises(DataError, match="the inputs of example 1 have 5 tokens, more than the 4 slots"):
        encoder_decoder(INPUTS, TARGETS, 4, 4)
    with pytest.raises(DataError, match="need 2 rows"):
        encoder_decoder(INPUTS, TARGETS, 8, 4, packer=best_fit_rows(1))
    padded = encoder_decoder(INPUTS, TARGETS, 8, 4, packer=best_fit_rows(5))
    assert padded["encoder_input_tokens"].shape == (5, 8)


@settings(max_examples=60)
@given(
    sizes=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 9)), min_size=1, max_size=60),
    is_one=st.booleans(),
)
def test_packed_examples_are_whole_and_never_overlap(sizes, is_one):
    lengths = {"inputs": np.array([a for a, _ in sizes]), "targets": np.array([b for _, b in sizes])}
    widths = {"inputs": 20, "targets": 9}
    if is_one:
        lengths.pop("targets")
    placement = best_fit(lengths, widths)
    for name, own in lengths.items():
        used = np.zeros((placement.num_rows, widths[name]), int)
        for example, length in enumerate(own):
            begin = placement.offset[name][example]
            used[placement.row[example], begin : begin + length] += 1
            assert begin + length <= widths[name]
        assert used.max(initial=0) <= 1
        assert used.sum() == own.sum()
        np.testing.assert_array_equal(np.diff(used, axis=1) <= 0, True)
    pairs = set(zip(placement.row.tolist(), placement.number.tolist(), strict=True))
    assert len(pairs) == len(sizes)


def test_best_fit_needs_hardly_more_rows_than_the_tokens_fill():
    rng = np.random.default_rng(0)
    lengths = {"inputs": rng.integers(10, 300, 500), "targets": rng.integers(1, 60, 500)}
    widths = {"inputs": 512, "targets": 114}
    num_rows = best_fit(lengths, widths).num_rows
    least = max(-(-int(lengths[name].sum()) // widths[name]) for name in widths)
    assert least <= num_rows < 1.06 * least


@given(st.integers(1, 5000))
def test_rows_come_in_few_numbers_and_cost_an_eighth_at_most(num):
    rounded = few_sizes(num)
    assert num <= rounded <= num * 9 / 8
    assert few_sizes(rounded) == rounded
    assert len({few_sizes(one) for one in range(num, 2 * num)}) <= 9

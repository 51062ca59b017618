"""Streams, model and loss: what padding, neighbours and microbatches must not change, and facts 21 to 26."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pretrainkit.nn.cuda.attention import VarlenLayout
from pretrainkit.recipes.pixel import model as inputs
from pretrainkit.recipes.pixel.batch import pack
from pretrainkit.recipes.pixel.model import PixelForPretraining, build, position_table
from pretrainkit.recipes.pixel.objective import PixelObjective, target_pixels
from support.pixel_batches import batch_of, pictures, small_model, small_run

LENGTHS = st.lists(st.integers(2, 16), min_size=1, max_size=5)


@pytest.fixture(scope="module")
def model() -> PixelForPretraining:
    torch.manual_seed(0)
    return build(small_model()).eval()


def predicted(model: PixelForPretraining, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    with torch.no_grad():
        return model(batch, 16)[batch["target_weights"] > 0]


@given(lengths=LENGTHS, seed=st.integers(0, 1000), pad_to=st.sampled_from([1, 4, 32]), colors=st.sampled_from([0, 3]))
def test_streams_hold_every_real_patch_once(lengths: list[int], seed: int, pad_to: int, colors: int) -> None:
    pixels, num_text, is_masked = pictures(seed, lengths, colors=colors)
    batch = pack(pixels, num_text, is_masked, pad_to=pad_to)
    for name in ("visible_patches", "positions", "target_patches"):
        assert len(batch[name]) % pad_to == 0
    blocks = pixels.reshape(len(lengths), 4, 16, 4, -1).swapaxes(1, 2).reshape(len(lengths), 16, -1)
    row_of = np.searchsorted(batch["starts"], np.arange(len(batch["positions"])), "right") - 1
    seen = []
    for kind, slots in (("visible", batch["visible_slots"]), ("target", batch["target_slots"])):
        is_used = (
            batch["target_weights"] > 0 if kind == "target" else np.arange(len(slots)) < batch["visible_starts"][-1]
        )
        for patch, slot in zip(batch[f"{kind}_patches"][is_used], slots[is_used], strict=True):
            row, position = row_of[slot], batch["positions"][slot]
            if position:
                assert (patch == blocks[row, position - 1]).all()
                assert is_masked[row, position - 1] == (kind == "target")
                seen.append((row, position))
    assert sorted(seen) == [(row, place + 1) for row, length in enumerate(lengths) for place in range(length)]


@settings(max_examples=20)
@given(lengths=LENGTHS, seed=st.integers(0, 1000))
def test_neighbours_and_padding_change_nothing(model: PixelForPretraining, lengths: list[int], seed: int) -> None:
    pixels, num_text, is_masked = pictures(seed, lengths)
    whole = predicted(model, batch_of(seed, lengths))
    padded = predicted(model, batch_of(seed, lengths, pad_to=8))
    alone = torch.cat(
        [
            predicted(model, {k: torch.from_numpy(v) for k, v in pack(*one).items()})
            for one in zip(pixels[:, None], num_text[:, None], is_masked[:, None], strict=True)
        ]
    )
    torch.testing.assert_close(whole, padded)
    torch.testing.assert_close(whole, alone)


def test_hidden_patches_are_not_seen(model: PixelForPretraining) -> None:
    pixels, num_text, is_masked = pictures(0, [16, 9])
    changed = pixels.reshape(2, 4, 16, 4).copy()
    changed.swapaxes(1, 2)[is_masked] = 7
    changed = changed.reshape(pixels.shape)
    changed[1, :, 9 * 4 :] = 3
    batches = [{k: torch.from_numpy(v) for k, v in pack(p, num_text, is_masked).items()} for p in (pixels, changed)]
    assert not torch.equal(batches[0]["target_patches"], batches[1]["target_patches"])
    assert torch.equal(predicted(model, batches[0]), predicted(model, batches[1]))


def test_grey_text_is_text_in_three_equal_colors(model: PixelForPretraining) -> None:
    pixels, num_text, is_masked = pictures(1, [16, 5])
    objective = PixelObjective(small_run())
    found = []
    for one in (pixels, np.repeat(pixels[..., None], 3, -1)):
        batch = {k: torch.from_numpy(v) for k, v in pack(one, num_text, is_masked).items()}
        found.append(objective.metrics(model, batch))
    for name, value in found[0].items():
        torch.testing.assert_close(value, found[1][name], msg=name)


def test_one_batch_is_the_same_in_microbatches(model: PixelForPretraining) -> None:
    pixels, num_text, is_masked = pictures(3, [16, 3, 9, 12])
    objective = PixelObjective(small_run())

    def total(rows: slice) -> torch.Tensor:
        packed = pack(pixels[rows], num_text[rows], is_masked[rows])
        batch = {k: torch.from_numpy(v) for k, v in packed.items()}
        loss = objective.losses(model, batch)["masked_patch_loss"]
        assert float(loss.weight) == float(objective.weights(batch)["masked_patch_loss"])
        return torch.stack(loss)

    torch.testing.assert_close(total(slice(0, 4)), total(slice(0, 1)) + total(slice(1, 4)))


def test_a_batch_without_texts_has_no_loss_and_every_gradient(model: PixelForPretraining) -> None:
    pixels, num_text, is_masked = pictures(0, [4])
    batch = {k: torch.from_numpy(v) for k, v in pack(pixels[:0], num_text[:0], is_masked[:0]).items()}
    loss = PixelObjective(small_run()).losses(model, batch)["masked_patch_loss"]
    model.zero_grad()
    loss.total.backward()
    assert (float(loss.total.detach()), float(loss.weight)) == (0, 0)
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters() if p.requires_grad)
    assert PixelObjective(small_run()).cost({k: v.numpy() for k, v in batch.items()}).examples == 0


def test_the_layout_of_gpus_gives_the_same(model: PixelForPretraining, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = batch_of(5, [16, 3, 9], pad_to=8)
    expected = predicted(model, batch)
    monkeypatch.setattr(inputs, "stream_layout", VarlenLayout)
    torch.testing.assert_close(predicted(model, batch), expected)


@pytest.mark.parametrize("colors", [1, 3])
def test_targets_are_standardized_by_the_unbiased_variance(colors: int) -> None:
    rng = np.random.default_rng(0)
    patches = torch.from_numpy(rng.integers(0, 256, (3, 16 * colors), np.uint8))
    patches[2] = 255
    found = target_pixels(patches, 4, is_normalized=True).expand(-1, -1, 3).flatten(1)
    wanted = (patches.float() / 255).unflatten(1, (16, -1)).expand(-1, -1, 3).flatten(1)
    wanted = (wanted - wanted.mean(1, keepdim=True)) / (wanted.var(1, keepdim=True) + 1e-6).sqrt()
    torch.testing.assert_close(found, wanted)
    assert not found[2].any()


def test_loss_is_the_mean_over_hidden_patches_of_texts(model: PixelForPretraining) -> None:
    batch = batch_of(2, [16, 4])
    loss = PixelObjective(small_run()).losses(model, batch)["masked_patch_loss"]
    target = target_pixels(batch["target_patches"], 4, is_normalized=True).expand(-1, -1, 3).flatten(1)
    torch.testing.assert_close(loss.mean(), (predicted(model, batch) - target).square().mean(1).mean())


def test_position_table_has_the_published_values() -> None:
    table = position_table(529, 768, 23)
    assert table.shape == (530, 768)
    assert not table[0].any()
    assert torch.equal(table[1], torch.tensor([0.0, 1.0]).repeat_interleave(192).repeat(2))
    torch.testing.assert_close(table[2, [0, 192, 384]], torch.tensor([0.841471, 0.540302, 0.0]))
    torch.testing.assert_close(table[24, [0, 384]], torch.tensor([0.0, 0.841471]))
    torch.testing.assert_close(position_table(900, 768, 23)[:530], table)


def test_initial_weights_are_those_of_the_original() -> None:
    torch.manual_seed(0)
    encoder = build(small_model(hidden_size=256, num_heads=4, patch_size=8)).encoder
    values = 8 * 8 * 3
    assert encoder.patch.weight.abs().max() <= (6 / (values + 256)) ** 0.5
    assert abs(float(encoder.patch.weight.std()) - (2 / (values + 256)) ** 0.5) < 1e-3
    assert 0.9 * values**-0.5 < float(encoder.patch.bias.abs().max()) <= values**-0.5
    assert abs(float(encoder.layers[0].feed_forward.up.weight.std()) - 0.02) < 1e-3
    assert abs(float(encoder.class_token.std()) - 0.02) < 4e-3
    assert not encoder.layers[0].attention.qkv.bias.any()
    assert torch.equal(encoder.position_embedding, position_table(16, 256, 4))


def test_dropout_acts_in_training_alone() -> None:
    torch.manual_seed(0)
    model = build(small_model(hidden_dropout=0.5, attention_dropout=0.5))
    batch = batch_of(0, [16, 16])
    first, second = predicted(model, batch), predicted(model, batch)
    assert not torch.equal(first, second)
    model.eval()
    assert torch.equal(predicted(model, batch), predicted(model, batch))

"""The encoder under another head: equal to that of pretraining without masks, poolings as formulas, and fact 41."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pretrainkit.nn.cuda.attention import VarlenLayout
from pretrainkit.recipes.pixel import text_encoder
from pretrainkit.recipes.pixel.batch import pack
from pretrainkit.recipes.pixel.config import PixelRun, PixelTextConfig
from pretrainkit.recipes.pixel.model import PixelForPretraining, build, position_table
from pretrainkit.recipes.pixel.text_encoder import PixelTextEncoder, build_text_encoder, encoder_flops
from pretrainkit.recipes.pixel.text_reader import stream
from support.pixel_batches import pictures, small_run

LENGTHS = st.lists(st.integers(2, 16), min_size=1, max_size=5)
POOLINGS = ("mean", "max", "cls", "pma:4")


@pytest.fixture(scope="module")
def trained() -> PixelForPretraining:
    torch.manual_seed(0)
    return build(small_run().model).eval()


def run_with(**text: object) -> PixelRun:
    run = small_run()
    return run.model_copy(update={"text": PixelTextConfig(**text)})


def encoder_of(trained: PixelForPretraining, **text: object) -> PixelTextEncoder:
    torch.manual_seed(1)
    return build_text_encoder(run_with(**text), trained).eval()


def texts(seed: int, lengths: list[int], *, colors: int = 0) -> dict[str, Tensor]:
    pixels, _, _ = pictures(seed, lengths, colors=colors)
    strips = [picture[:, : length * 4].swapaxes(0, 1) for picture, length in zip(pixels, lengths, strict=True)]
    return {k: torch.from_numpy(v) for k, v in stream(strips, 4, has_color=bool(colors)).items()}


@settings(max_examples=20)
@given(lengths=LENGTHS, seed=st.integers(0, 1000), colors=st.sampled_from([0, 3]))
def test_without_masks_it_has_the_features_of_pretraining(
    trained: PixelForPretraining, lengths: list[int], seed: int, colors: int
) -> None:
    pixels, num_text, is_masked = pictures(seed, lengths, colors=colors)
    seen = {k: torch.from_numpy(v) for k, v in pack(pixels, num_text, np.zeros_like(is_masked)).items()}
    with torch.no_grad():
        expected = trained.encoder(seen, 16)
        found = encoder_of(trained).tokens(texts(seed, lengths, colors=colors), 16)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("changed", [{"positions": "rotary"}, {"pixel_zero": "white"}])
def test_models_of_every_kind_have_the_features_of_pretraining(changed: dict[str, str]) -> None:
    run = small_run(**changed)
    model = build(run.model).eval()
    pixels, num_text, is_masked = pictures(0, [9, 16])
    seen = {k: torch.from_numpy(v) for k, v in pack(pixels, num_text, np.zeros_like(is_masked)).items()}
    encoder = build_text_encoder(run, model).eval()
    assert ("position_embedding" in dict(encoder.named_parameters())) == (run.model.positions == "grid")
    with torch.no_grad():
        torch.testing.assert_close(encoder.tokens(texts(0, [9, 16]), 16), model.encoder(seen, 16))


def by_hand(encoder: PixelTextEncoder, own: Tensor, pooling: str) -> Tensor:
    """The vector of one text from its hidden states, (S, D), class token first."""
    head = encoder.pooling
    if pooling == "cls":
        return torch.tanh(head.dense(own[0]))
    x = own[1:]
    if pooling in ("mean", "max"):
        x = torch.nn.functional.gelu(head.dense(x))
    x = head.norm(x)
    if pooling == "mean":
        return x.mean(0)
    if pooling == "max":
        return x.amax(0)
    attention = head.attention
    keys, values = attention.keys_and_values(x).chunk(2, dim=1)
    parts = []
    for k, v, q in zip(keys.chunk(4, 1), values.chunk(4, 1), attention.query.chunk(4), strict=True):
        parts.append(torch.softmax(k @ q / q.shape[0] ** 0.5, 0) @ v)
    return attention.out(torch.cat(parts))


@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_pooling_is_that_of_each_text_alone(trained: PixelForPretraining, pooling: str) -> None:
    encoder = encoder_of(trained, pooling=pooling)
    if pooling.startswith("pma"):
        torch.nn.init.normal_(encoder.pooling.attention.query, std=3.0)
    batch = texts(3, [2, 16, 7])
    with torch.no_grad():
        found, states = encoder(batch, 16), encoder.tokens(batch, 16)
        expected = [by_hand(encoder, own, pooling) for own in states.split(batch["lengths"].tolist())]
        both = encoder.vectors_and_tokens(batch, 16)
    torch.testing.assert_close(found, torch.stack(expected))
    torch.testing.assert_close(both, (found, states))


@pytest.mark.parametrize("pooling", [*POOLINGS, "pma_padded:4"])
def test_every_weight_learns_but_fixed_positions(trained: PixelForPretraining, pooling: str) -> None:
    encoder = encoder_of(trained, pooling=pooling, train_positions=False)
    encoder.zero_grad()
    encoder(texts(0, [5, 9]), 16).square().sum().backward()
    without = {name for name, weight in encoder.named_parameters() if weight.grad is None}
    assert without == {"position_embedding"}


@pytest.mark.parametrize("pooling", [*POOLINGS, "pma_padded:4"])
def test_no_texts_give_zero_gradients(trained: PixelForPretraining, pooling: str) -> None:
    encoder = encoder_of(trained, pooling=pooling)
    for found in (encoder(texts(0, []), 16), encoder.tokens(texts(0, []), 16)):
        assert found.shape == (0, 16)
    encoder.zero_grad()
    encoder(texts(0, []), 16).sum().backward()
    assert all(weight.grad is not None and not weight.grad.any() for weight in encoder.parameters())


def test_positions_are_trained_apart_from_the_trained_model(trained: PixelForPretraining) -> None:
    encoder = encoder_of(trained)
    assert encoder.position_embedding.requires_grad
    assert not trained.encoder.position_embedding.requires_grad
    with torch.no_grad():
        encoder.position_embedding.add_(1)
    assert torch.equal(trained.encoder.position_embedding, position_table(16, 16, 4))


def test_shortening_to_256_keeps_rows_0_to_256() -> None:
    run = small_run(max_patches=529)
    shorter = run.model_copy(update={"model": run.model.model_copy(update={"max_patches": 256, "grid_width": 23})})
    model = build(run.model)
    with torch.no_grad():
        model.encoder.position_embedding.add_(torch.randn_like(model.encoder.position_embedding))
    table = build_text_encoder(shorter, model).position_embedding
    assert table.shape == (257, 16)
    assert torch.equal(table, model.encoder.position_embedding[:257])


def test_longer_tables_continue_by_their_formula() -> None:
    run = small_run(max_patches=25)
    longer = run.model_copy(update={"model": run.model.model_copy(update={"max_patches": 100, "grid_width": 5})})
    table = build_text_encoder(longer, build(run.model)).position_embedding
    assert torch.equal(table.detach(), position_table(100, 16, 5))


def test_dropout_on_embeddings_is_the_hidden_dropout_unless_configured(trained: PixelForPretraining) -> None:
    run = small_run(hidden_dropout=0.2)
    assert build_text_encoder(run, build(run.model)).embedding_dropout_rate == 0.2
    noisy = encoder_of(trained, embedding_dropout=0.5, pooling="cls").train()
    batch = texts(0, [9])
    assert not torch.equal(noisy(batch, 16), noisy(batch, 16))
    assert torch.equal(noisy.eval()(batch, 16), noisy(batch, 16))


@pytest.mark.parametrize("pooling", ["mean", "pma:2"])
def test_patches_are_dropped_before_they_are_pooled(pooling: str) -> None:
    run = small_run(hidden_dropout=0.2).model_copy(update={"text": PixelTextConfig(pooling=pooling)})
    encoder = build_text_encoder(run, build(run.model))
    assert encoder.pooling.dropout_rate == 0.2
    assert encoder.pooled_dropout_rate == 0
    as_bert = run.model_copy(update={"text": PixelTextConfig(pooling="cls")})
    assert build_text_encoder(as_bert, build(run.model)).pooled_dropout_rate == 0.2


def test_on_meta_it_has_no_values() -> None:
    with torch.device("meta"):
        encoder = build_text_encoder(small_run(), build(small_run().model))
    assert all(weight.is_meta for weight in encoder.parameters())


def test_gpu_layout_gives_the_same_states(trained: PixelForPretraining, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, batch = encoder_of(trained), texts(5, [4, 12])
    found = encoder(batch, 16)
    monkeypatch.setattr(text_encoder, "stream_layout", lambda starts, longest, num: VarlenLayout(starts, longest, num))
    torch.testing.assert_close(encoder(batch, 16), found)


@pytest.mark.parametrize("pooling", ["average", "pma", "pma:0", "mean:2"])
def test_unknown_poolings_are_refused(pooling: str) -> None:
    with pytest.raises(ValueError, match="invalid pooling"):
        PixelTextConfig(pooling=pooling)


def test_cost_is_that_of_the_matrix_products() -> None:
    run = small_run()
    weights = sum(w.numel() for n, w in build(run.model).encoder.layers.named_parameters() if w.dim() == 2)
    per_token = 6 * (weights + run.model.patch_values * 16)
    assert encoder_flops(run, np.array([3, 5])) == per_token * 8 + 12 * 2 * 16 * (9 + 25)

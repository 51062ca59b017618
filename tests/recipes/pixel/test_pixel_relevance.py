"""Relevance of patches for an answer, where it is known."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pretrainkit.errors import InputError
from pretrainkit.recipes.pixel.config import PixelTextConfig
from pretrainkit.recipes.pixel.model import build
from pretrainkit.recipes.pixel.relevance import RecordedAttention, explain, relevance, rollout
from pretrainkit.recipes.pixel.text_encoder import PixelTextEncoder, build_text_encoder
from pretrainkit.recipes.pixel.text_reader import stream
from pretrainkit.rendering import Renderer, RendererConfig
from support.pixel_batches import small_run

TOLD = 5
"""The one token with a value."""


def attended(num: int = 9) -> tuple[Tensor, RecordedAttention]:
    """Return the outputs (T,) of one layer of two heads that look everywhere: only token TOLD has a value."""
    torch.manual_seed(0)
    qkv_T3HK = torch.randn(num, 3, 2, 4)
    qkv_T3HK[:, 2] = 0
    qkv_T3HK[TOLD, 2] = 1
    attention = RecordedAttention()
    return attention.attend(qkv_T3HK.requires_grad_(), window=None, dropout_rate=0.0).sum((1, 2)), attention


def test_relevance_finds_the_one_token_that_has_a_value() -> None:
    outputs_T, attention = attended()
    found = relevance(outputs_T[0], attention.probabilities)[0]
    assert found[TOLD] > 0
    assert found[[i for i in range(1, 9) if i != TOLD]].abs().max() == 0
    outputs_T, attention = attended()
    against = relevance(-outputs_T[0], attention.probabilities)[0]
    assert against[1:].abs().max() == 0


def test_rollout_is_attention_and_the_token_itself() -> None:
    _, attention = attended()
    total = rollout(attention.probabilities * 2)
    torch.testing.assert_close(total.sum(1), torch.ones(9))
    step = (attention.probabilities[0].mean(0) + torch.eye(9)) / 2
    torch.testing.assert_close(total, (step @ step).detach())


class Headed(nn.Module):
    """Two answers about a text."""

    def __init__(self, encoder: PixelTextEncoder) -> None:
        super().__init__()
        self.encoder, self.head = encoder, nn.Linear(encoder.width, 2)

    def forward(self, batch: dict[str, Tensor], max_length: int) -> tuple[Tensor]:
        return (self.head(self.encoder(batch, max_length)),)


def headed(pooling: str) -> Headed:
    torch.manual_seed(0)
    run = small_run().model_copy(update={"text": PixelTextConfig(pooling=pooling)})
    return Headed(build_text_encoder(run, build(run.model))).eval()


@pytest.fixture(scope="module")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> Renderer:
    pytest.importorskip("freetype", reason="needs the package freetype-py to draw text")
    fonts = pytest.importorskip("PIL.ImageFont")
    font = tmp_path_factory.mktemp("font") / "latin.ttf"
    font.write_bytes(fonts.load_default(12).font_bytes)
    size = small_run().model.patch_size
    return Renderer(
        RendererConfig(font_file=str(font), pixels_per_patch=size, font_size=2, pad_size=1, max_seq_length=16)
    )


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_an_explained_answer_is_the_answer_and_has_a_weight_for_each_patch(pooling: str, renderer: Renderer) -> None:
    model = headed(pooling)
    found = explain(model, model.encoder, renderer, "a moon")
    num = len(found.columns_XP) // renderer.config.pixels_per_patch
    assert found.relevance_N.shape == found.rollout_N.shape == (num,)
    assert (found.relevance_N >= 0).all()
    assert found.target == found.answer_C.argmax()
    again = explain(model, model.encoder, renderer, "a moon", target=1 - found.target)
    assert np.array_equal(again.answer_C, found.answer_C)
    assert not np.array_equal(again.relevance_N, found.relevance_N)
    assert np.array_equal(again.rollout_N, found.rollout_N)
    with pytest.raises(InputError, match="there is no class 2: the model has 2"):
        explain(model, model.encoder, renderer, "a moon", target=2)


def test_recording_changes_no_answer_and_ends(renderer: Renderer) -> None:
    model = headed("mean")
    strip = renderer.columns("a moon")
    P = renderer.config.pixels_per_patch
    batch = {name: torch.from_numpy(array) for name, array in stream([strip], P, has_color=False).items()}
    found = explain(model, model.encoder, renderer, "a moon")
    with torch.no_grad():
        plain = model(batch, len(strip) // P)[0][0].numpy()
    assert np.allclose(found.answer_C, plain, atol=1e-5)


def test_the_picture_is_red_where_the_weight_is(renderer: Renderer) -> None:
    model = headed("mean")
    found = explain(model, model.encoder, renderer, "a moon")
    P, weight_N = renderer.config.pixels_per_patch, np.zeros(len(found.relevance_N))
    weight_N[1] = 3
    picture = found.picture(weight_N).astype(int)
    is_red = (picture[..., 0] > picture[..., 1]).any(0).reshape(-1, P).any(1)
    assert is_red.tolist() == [index == 1 for index in range(len(weight_N))]

"""Rotary positions, and paper as the embedding's zero: options of our own beside the published model."""

from pathlib import Path

import pytest
import torch

from pretrainkit.errors import ConfigError, InputError
from pretrainkit.nn.cuda.attention import VarlenLayout
from pretrainkit.recipes.pixel import model as pixel_model
from pretrainkit.recipes.pixel.batch import pack
from pretrainkit.recipes.pixel.config import PixelRun
from pretrainkit.recipes.pixel.convert import (
    from_huggingface_state,
    to_huggingface_state,
    with_length,
    write_huggingface,
)
from pretrainkit.recipes.pixel.model import PixelForPretraining, build
from pretrainkit.running.configs import check_config
from support.pixel_batches import batch_of, pictures, small_model, small_run


def made(**settings: object) -> PixelForPretraining:
    torch.manual_seed(0)
    return build(small_model(initializer_range=0.3, **settings)).eval()


def drawn(model: PixelForPretraining, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    with torch.no_grad():
        return model(batch, 16)[batch["target_weights"] > 0]


def test_rotary_models_have_no_tables_and_other_lengths_need_none() -> None:
    config = small_model(positions="rotary", decoder_num_heads=2, decoder_hidden_size=12)
    state = build(config).state_dict()
    assert not any("position" in name for name in state)
    longer, same = with_length(state, config, 40)
    assert longer.max_patches == 40
    assert same.keys() == state.keys()
    build(longer).load_state_dict(same)


def test_rotary_positions_are_relative() -> None:
    model = made(positions="rotary", decoder_num_heads=2)
    batch = batch_of(0, [16, 5])
    # Tokens of one text turned by the same angle, the class token too, see each other as before.
    shifted = {**batch, "visible_positions": batch["visible_positions"] + 3, "positions": batch["positions"] + 3}
    with torch.no_grad():
        embedded = model.encoder.embed(batch["visible_patches"], batch["visible_positions"])
        model.encoder.embed = lambda *_: embedded  # type: ignore[method-assign]
        torch.testing.assert_close(model(batch, 16), model(shifted, 16), atol=1e-4, rtol=1e-4)
    # But their order counts.
    other = {**batch, "positions": batch["positions"].flip(0), "visible_positions": batch["visible_positions"]}
    assert not torch.allclose(drawn(model, batch), drawn(model, other), atol=1e-3)


def test_rotary_models_do_not_see_neighbours_or_padding() -> None:
    model = made(positions="rotary", decoder_num_heads=2)
    whole = drawn(model, batch_of(1, [16, 3, 9]))
    torch.testing.assert_close(whole, drawn(model, batch_of(1, [16, 3, 9], pad_to=8)))
    rows = zip(*(part[:, None] for part in pictures(1, [16, 3, 9])), strict=True)
    alone = [drawn(model, {name: torch.from_numpy(array) for name, array in pack(*row).items()}) for row in rows]
    torch.testing.assert_close(whole, torch.cat(alone))


@pytest.mark.parametrize("positions", ["grid", "rotary"])
def test_the_layout_of_gpus_gives_the_same_with_any_positions(positions: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = made(positions=positions, decoder_num_heads=2)
    batch = batch_of(5, [16, 3, 9], pad_to=8)
    expected = drawn(model, batch)
    monkeypatch.setattr(pixel_model, "stream_layout", VarlenLayout)
    torch.testing.assert_close(drawn(model, batch), expected)


def test_rotary_models_are_refused_by_the_export(tmp_path: Path) -> None:
    run = small_run(positions="rotary", decoder_num_heads=2)
    with pytest.raises(InputError, match=r"model\.positions=rotary has no Hugging Face form"):
        write_huggingface(build(run.model).state_dict(), run, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("colors", [0, 3])
def test_paper_as_zero_is_the_published_model_after_an_exact_change(colors: int) -> None:
    ours = made(pixel_zero="white")
    published = small_model()
    theirs = build(published).eval()
    theirs.load_state_dict(from_huggingface_state(to_huggingface_state(ours.state_dict(), ours.config), published))
    assert not torch.equal(ours.encoder.patch.weight, theirs.encoder.patch.weight)
    batch = batch_of(3, [16, 7], colors=colors)
    torch.testing.assert_close(drawn(ours, batch), drawn(theirs, batch), atol=1e-4, rtol=1e-4)


def test_blank_patches_have_the_bias_alone_where_paper_is_zero() -> None:
    encoder = made(pixel_zero="white", positions="rotary", decoder_num_heads=2).encoder
    blank = torch.full((1, 16), 255, dtype=torch.uint8)
    torch.testing.assert_close(encoder.embed(blank, torch.tensor([4]))[0], encoder.patch.bias)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"positions": "rotary", "grid_width": 4}, "model.grid_width=4 has an effect only with model.positions=grid"),
        ({"rotary_theta": 100.0}, "model.rotary_theta=100.0 has an effect only with model.positions=rotary"),
        ({"positions": "rotary", "decoder_hidden_size": 12, "decoder_num_heads": 4}, "heads of width 3"),
    ],
)
def test_settings_of_positions_that_are_not_read_are_refused(settings: dict[str, object], told: str) -> None:
    run: PixelRun = small_run(**settings)
    with pytest.raises(ConfigError, match=told):
        check_config(run, 1)

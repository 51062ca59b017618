"""The vector of an example that the head receives."""

import pytest
import torch

from pretrainkit import api
from pretrainkit.errors import InputError
from pretrainkit.recipes.glue.model import pooled, pooled_width
from support.glue_toys import QUICK, write_encoder

X_TD = torch.randn(9, 3, generator=torch.Generator().manual_seed(0))
BATCH = {"cu_seqlens": torch.tensor([0, 5, 9], dtype=torch.int32)}
PAIRS = BATCH | {"second_begins": torch.tensor([2, 3], dtype=torch.int32)}


def test_one_vector_of_an_example():
    first, second = X_TD[:5], X_TD[5:]
    for pooling, expected in {
        "cls": [first[0], second[0]],
        "mean": [first.mean(0), second.mean(0)],
        "max": [first.amax(0), second.amax(0)],
        "texts": [first.mean(0), second.mean(0)],
    }.items():
        torch.testing.assert_close(pooled(X_TD, BATCH, pooling), torch.stack(expected))


def test_the_texts_of_a_pair_are_compared():
    for row, (u, v) in enumerate([(X_TD[:2], X_TD[2:5]), (X_TD[5:8], X_TD[8:])]):
        u, v = u.mean(0), v.mean(0)
        expected = torch.cat([u, v, (u - v).abs(), u * v])
        torch.testing.assert_close(pooled(X_TD, PAIRS, "texts")[row], expected)
    assert pooled(X_TD, PAIRS, "mean").shape == (2, 3)


@pytest.mark.parametrize("is_pair", [False, True])
def test_the_head_has_the_width_of_its_input(is_pair):
    for pooling in (None, "cls", "mean", "max", "texts"):
        width = pooled_width(3, pooling, is_pair=is_pair)
        assert width == (pooled(X_TD, PAIRS if is_pair else BATCH, pooling).shape[1] if pooling else 3)


@pytest.mark.parametrize("task", ["sst2", "stsb"])
@pytest.mark.parametrize("is_modern", [False, True])
def test_a_model_that_compares_texts_trains_and_answers_again(task, is_modern, glue, tmp_path):
    encoder = write_encoder(tmp_path / "encoder", is_modern=is_modern)
    more = [f"init_from={encoder}", f"data.task_folders.glue={glue}", "model.pooling=texts", "data.num_epochs=1"]
    metrics = api.train(api.load_config(f"glue/{task}", [*QUICK, *more]), tmp_path / "run", device="cpu")
    assert api.load_model(tmp_path / "run").head.weight.shape == ((1, 64) if task == "stsb" else (2, 16))
    again = api.evaluate(tmp_path / "run", device="cpu")
    assert again["loss"] == pytest.approx(metrics["valid_loss"])
    with pytest.raises(InputError, match="pooling=texts, but transformers only has"):
        api.export(tmp_path / "run", "huggingface", tmp_path / "out")

"""Figures of blocks, spikes of the loss, and the device's memory."""

import json
import math
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from pretrainkit import api
from pretrainkit.dist.devices import Utilization, memory_in_use
from pretrainkit.report.curves import other_charts
from pretrainkit.report.run_folder import read_run
from pretrainkit.training.diagnostics import Diagnostics, Spikes
from pretrainkit.training.folder import RunFolder
from support.page_data import BERT, QUICK, copy


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])
        self.head = nn.Linear(3, 1)

    def blocks(self) -> list[nn.Module]:
        return list(self.layers)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def test_figures_of_blocks_are_those_of_their_parameters_and_outputs():
    torch.manual_seed(0)
    model = Model()
    diagnostics = Diagnostics(model)
    x = torch.randn(5, 3)
    with torch.no_grad():
        first = model.layers[0](x).abs().max().item()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(x).square().sum().backward()
    norms = [p.grad.norm().item() for p in model.parameters()]
    weights = [p.detach().clone() for p in model.parameters()]
    diagnostics.before_update()
    optimizer.step()
    diagnostics.after_update()
    figures = diagnostics.metrics()
    assert set(figures) == {
        *(f"{kind}/{name}" for kind in ("grad_norm", "update_ratio") for name in ("layers.0", "layers.1", "rest")),
        *(f"activation_max/layers.{i}" for i in range(2)),
    }
    assert figures["grad_norm/layers.0"] == pytest.approx(math.hypot(*norms[:2]), rel=1e-6)
    assert figures["grad_norm/rest"] == pytest.approx(math.hypot(*norms[4:]), rel=1e-6)
    new = [p.detach() for p in model.parameters()]
    change = torch.cat([(a - b).flatten() for a, b in zip(new[:2], weights[:2], strict=True)]).norm()
    size = torch.cat([part.flatten() for part in new[:2]]).norm()
    assert figures["update_ratio/layers.0"] == pytest.approx((change / size).item(), rel=1e-5)
    assert figures["activation_max/layers.0"] == pytest.approx(first, rel=1e-6)
    # Evaluation does not count, and each logged step starts again.
    model.eval()(1000 * x)
    model.train()(0 * x)
    diagnostics.before_update()
    diagnostics.after_update()
    assert diagnostics.metrics()["activation_max/layers.0"] == pytest.approx(model.layers[0].bias.abs().max().item())
    assert diagnostics.metrics()["update_ratio/layers.0"] == 0


@given(losses=st.lists(st.floats(1.9, 2.1), min_size=20, max_size=60), height=st.floats(5, 1e6))
def test_a_loss_far_above_the_earlier_ones_is_a_spike_and_noise_is_not(losses, height):
    spikes = Spikes(8.0)
    for loss in losses:
        spikes.describe(loss)
    assert spikes.describe(height) is not None
    assert Spikes(8.0, losses).describe(height) is not None  # as after a resume
    assert Spikes(0.0, losses).describe(height) is None
    assert Spikes(8.0, losses[:19]).describe(height) is None
    assert spikes.describe(0.0) is None
    assert spikes.describe(math.nan) is None


def test_normal_noise_has_hardly_any_spikes():
    spikes, rng = Spikes(8.0), np.random.default_rng(0)
    assert not any(spikes.describe(loss) for loss in rng.normal(3, 0.2, 20_000).tolist())


@pytest.fixture
def tokens(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    copy("tokens", tmp_path / "tokens")
    return ["data.train=tokens/train", *BERT.split(), *QUICK.split()]


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_run_with_diagnostics_has_the_same_losses_and_a_chart_for_each_family(tokens, tmp_path):
    words = [*tokens, "num_steps=4", "log.every_steps=2", "optimizer.layer_decay=0.8"]
    plain = api.train(api.load_config("bert/mini", words), tmp_path / "plain")
    seen = api.train(api.load_config("bert/mini", [*words, "log.diagnostics=true"]), tmp_path / "seen")
    assert seen["loss"] == plain["loss"]
    assert not [name for name in plain if "/" in name]
    families = {name.partition("/")[0] for name in seen if "/" in name}
    assert families == {"grad_norm", "update_ratio", "activation_max", "lr"}
    assert all(0 < value < 1 for name, value in seen.items() if name.startswith("update_ratio/"))
    assert len({value for name, value in seen.items() if name.startswith("lr/")}) > 1
    titles = [chart.title for chart in other_charts([read_run(tmp_path / "seen")])]
    assert titles[-4:] == [
        "Gradient norm by block",
        "Update-to-weight ratio by block",
        "Largest activation by block",
        "Learning rate by its factor",
    ]


def test_every_run_records_its_device_and_its_memory(tokens, tmp_path):
    metrics = api.train(api.load_config("bert/mini", [*tokens, "num_steps=2"]), tmp_path / "run")
    provenance = RunFolder(tmp_path / "run").provenance()
    assert (provenance["device"], provenance["ranks"], provenance["precision"]) == ("CPU", 1, "float32")
    assert provenance["processor"]
    if sys.platform == "linux":
        assert 0.05 < metrics["memory_gib"] <= metrics["memory_peak_gib"] < 100
        assert memory_in_use(torch.device("cpu")) is not None
    assert 0 <= metrics["utilization_share"] <= 1
    assert Utilization(torch.device("meta")).read() is None


def test_a_spike_is_an_event_and_keeps_the_ids_of_its_records(tokens, tmp_path, monkeypatch):
    monkeypatch.setattr(Spikes, "describe", lambda self, loss: "loss 99, 12 deviations above the median 2")
    api.train(api.load_config("bert/mini", [*tokens, "num_steps=2", "log.every_steps=2"]), tmp_path / "run")
    (spike,) = [event for event in lines(tmp_path / "run" / "events.jsonl") if event["event"] == "spike"]
    assert spike["step"] == 2
    assert spike["text"].startswith("loss 99, 12 deviations above the median 2; gradient norm ")
    row = json.loads((tmp_path / "run" / "spike-step-2.json").read_text())
    config = api.load_config(tmp_path / "run" / "config.yaml")
    assert len(row["records"]) == config.data.batch_size
    assert set(row["losses"]) >= {"loss", "masked_lm_loss"}

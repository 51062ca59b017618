"""A third party's recipes, one per kind of objective: no file of pretrainkit knows them.

`SORTING` is separable: say for each number of an example how many of the others are smaller. `PAIRING` is coupled:
find the example of the batch that is the same numbers, seen through another matrix.

Dimensions: B examples, F numbers of an example, D embedding width.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from pretrainkit.config.base import Config
from pretrainkit.data.source import BatchSource, Records
from pretrainkit.recipes.recipe import Recipe, Split
from pretrainkit.training.data_config import DataConfig
from pretrainkit.training.objective import (
    Batch,
    Cost,
    CoupledObjective,
    Embedded,
    HostBatch,
    LossSum,
    SeparableObjective,
)
from pretrainkit.training.optimizers.config import OptimizerConfig
from pretrainkit.training.run import RunConfig

NUM_EXAMPLES = 37
NUM_FEATURES = 6


class ToyModelConfig(Config):
    """A small network."""

    width: int = 8
    """Width of its hidden layer."""
    dropout: float = 0.0
    """On its hidden layer."""


class ToyObjectiveConfig(Config):
    """Nothing to choose."""


class Numbers(BatchSource):
    """Examples computed from their index alone, and noise from their key; the path of the data is only a name."""

    @property
    def sizes(self) -> tuple[int, ...]:
        return (NUM_EXAMPLES,)

    @property
    def fingerprint(self) -> str:
        return "numbers"

    def summary(self) -> dict[str, float]:
        return {"examples": NUM_EXAMPLES}

    def lengths(self, records: Records) -> NDArray[np.int64]:
        return np.full(len(records), NUM_FEATURES, np.int64)

    def build(self, records: Records) -> dict[str, np.ndarray]:
        x_BF = np.sin(records.index[:, None] * 1.7 + np.arange(NUM_FEATURES) ** 2)
        noise_B = (records.key >> np.uint64(40)).astype(np.float64) / 2**24
        return {
            "index": records.index,
            "epoch": records.epoch,
            "x": (x_BF + 0.01 * noise_B[:, None]).astype(np.float32),
        }


class Network(nn.Module):
    def __init__(self, width: int, dropout: float, num_outputs: int) -> None:
        super().__init__()
        self.body = nn.Linear(NUM_FEATURES, width)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(width, num_outputs)
        self.log_scale = nn.Parameter(torch.tensor([1.0]))

    def forward(self, x_BF: Tensor) -> Tensor:
        return self.head(self.dropout(torch.tanh(self.body(x_BF))))

    def blocks(self) -> list[nn.Module]:
        return [self.body]


class Sorting(SeparableObjective):
    @property
    def scales(self) -> dict[str, float]:
        return {"rank_loss": 1.0, "scale_loss": 0.1}

    def weights(self, batch: Batch) -> dict[str, Tensor]:
        return {
            "rank_loss": torch.tensor(float(batch["x"].numel())),
            "scale_loss": torch.tensor(float(len(batch["x"]))),
        }

    def losses(self, model: nn.Module, batch: Batch) -> dict[str, LossSum]:
        x_BF = batch["x"]
        rank_BF = (x_BF[:, :, None] > x_BF[:, None, :]).sum(-1).float()
        weights = self.weights(batch)
        error = (model(x_BF) - rank_BF).square().sum()
        spread = (x_BF.std(-1) - getattr(model, "module", model).log_scale.exp()).square().sum()
        return {
            "rank_loss": LossSum(error, weights["rank_loss"]),
            "scale_loss": LossSum(spread, weights["scale_loss"]),
        }

    def metrics(self, model: nn.Module, batch: Batch) -> dict[str, LossSum]:
        return self.losses(model, batch)

    def cost(self, batch: HostBatch) -> Cost:
        return Cost(examples=len(batch["x"]), tokens=batch["x"].size, slots=batch["x"].size, flops=0.0)


class Pairing(CoupledObjective):
    @property
    def scales(self) -> dict[str, float]:
        return {"pair_loss": 1.0}

    def embed(self, model: nn.Module, batch: Batch) -> Embedded:
        # One call for both views: a wrapper's hooks see one forward pass per backward pass.
        here_BD, there_BD = F.normalize(model(torch.cat([batch["x"], batch["x"].flip(-1)])), dim=-1).chunk(2)
        return Embedded({"here": here_BD, "there": there_BD}, {})

    def loss_from(
        self, model: nn.Module, vectors: dict[str, Tensor], labels: dict[str, Tensor], rows: slice
    ) -> dict[str, LossSum]:
        scale = getattr(model, "module", model).log_scale.exp()
        logits = scale * vectors["here"][rows] @ vectors["there"].T
        target = torch.arange(len(vectors["here"]), device=logits.device)[rows]
        total = F.cross_entropy(logits, target, reduction="sum")
        return {"pair_loss": LossSum(total, torch.tensor(float(len(target))))}

    def metrics(self, model: nn.Module, batch: Batch) -> dict[str, LossSum]:
        return self.loss_from(model, *self.embed(model, batch), slice(0, len(batch["x"])))

    def cost(self, batch: HostBatch) -> Cost:
        return Cost(examples=len(batch["x"]), tokens=batch["x"].size, slots=batch["x"].size, flops=0.0)


class ToyRun(RunConfig):
    """A run of one of the toy recipes."""

    model: ToyModelConfig = ToyModelConfig()
    """The network."""
    objective: ToyObjectiveConfig = ToyObjectiveConfig()
    """The task."""


class Toy(Recipe):
    def __init__(self, name: str, summary: str, objective: type[Sorting] | type[Pairing], num_outputs: int) -> None:
        self.name, self.summary, self._objective, self._num_outputs = name, summary, objective, num_outputs

    @property
    def config_class(self) -> type[RunConfig]:
        return ToyRun

    @property
    def presets(self) -> Mapping[str, Callable[[], RunConfig]]:
        return {"small": self._small}

    def _small(self) -> RunConfig:
        """Six steps of eight examples."""
        return ToyRun(
            recipe=self.name,
            num_steps=6,
            data=DataConfig(batch_size=8, train=({"path": "numbers"},)),
            optimizer=OptimizerConfig(peak_lr=1e-2),
        )

    def bind(self, config: Any) -> Any:
        return config

    def open_data(self, config: Any, split: Split) -> BatchSource:
        return Numbers()

    def build_model(self, config: Any) -> nn.Module:
        return Network(config.model.width, config.model.dropout, self._num_outputs)

    def build_objective(self, config: Any) -> Sorting | Pairing:
        return self._objective()


SORTING = Toy("support.sixth_recipe:SORTING", "Ranks of numbers.", Sorting, NUM_FEATURES)
PAIRING = Toy("support.sixth_recipe:PAIRING", "Pairs of views.", Pairing, 4)

"""The recipe as the rest of the house sees it. Torch-free to import."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pretrainkit.recipes.image_tokenizer.config import ImageTokenizerRun
from pretrainkit.recipes.image_tokenizer.presets import PRESETS
from pretrainkit.training.recipe import Evaluator, Recipe, Split

if TYPE_CHECKING:
    from torch import nn

    from pretrainkit.data.source import BatchSource
    from pretrainkit.dist.env import World
    from pretrainkit.recipes.image_tokenizer.objective import ImageTokenizerObjective
    from pretrainkit.training.precision import Precision


class ImageTokenizer(Recipe):
    """Images as a few discrete tokens each, and back."""

    name = "image_tokenizer"
    summary = "VQ-VAE and FSQ, with convolutions, transformers or diffusion: images and maps to tokens and back."

    @property
    def config_class(self) -> type[ImageTokenizerRun]:
        return ImageTokenizerRun

    @property
    def presets(self) -> Mapping[str, Callable[[], ImageTokenizerRun]]:
        return PRESETS

    def bind(self, config: ImageTokenizerRun) -> ImageTokenizerRun:
        from pretrainkit.recipes.image_tokenizer.source import bind

        return bind(config)

    def open_data(self, config: ImageTokenizerRun, split: Split) -> BatchSource:
        from pretrainkit.recipes.image_tokenizer.source import open_source

        return open_source(config, split)

    def has_own_vocabulary(self, config: ImageTokenizerRun) -> bool:
        return True

    def build_model(self, config: ImageTokenizerRun) -> nn.Module:
        from pretrainkit.recipes.image_tokenizer.model import build

        return build(config.model)

    def build_objective(self, config: ImageTokenizerRun) -> ImageTokenizerObjective:
        from pretrainkit.recipes.image_tokenizer.objective import ImageTokenizerObjective

        return ImageTokenizerObjective(config)

    def build_evaluator(self, config: ImageTokenizerRun, world: World, precision: Precision) -> Evaluator:
        from pretrainkit.recipes.image_tokenizer.evaluate import build_evaluator

        return build_evaluator(config, world, precision)

    def sample(self, config: ImageTokenizerRun, model: Any, source: BatchSource, num: int) -> list[dict[str, Any]]:
        """Images beside what their tokens give."""
        from pretrainkit.recipes.image_tokenizer.sample import sample

        return sample(config, model, source, num)

    def baselines(self, config: ImageTokenizerRun) -> dict[str, float]:
        """What is lost where every image is the mean of the training images."""
        from pretrainkit.recipes.image_tokenizer.baseline import mean_image_errors

        return mean_image_errors(config)


RECIPE = ImageTokenizer()

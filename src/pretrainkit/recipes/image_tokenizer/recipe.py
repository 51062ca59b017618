"""The recipe's interface to the rest of pretrainkit. Importing it does not import torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pretrainkit.eval.directions import DIRECTIONS, FALLS, RISES
from pretrainkit.recipes.capabilities import (
    Evaluates,
    Evaluator,
    KeepsTokenizer,
    PlansWithoutData,
    ShowsExamples,
    StoredRecord,
    TokenizesImages,
)
from pretrainkit.recipes.exchange import ImportedConfig, ImportedModel, ReadsConfigs, ReadsFiles, WritesFiles
from pretrainkit.recipes.image_tokenizer.config import ImageTokenizerRun
from pretrainkit.recipes.image_tokenizer.presets import PRESETS
from pretrainkit.recipes.recipe import Recipe, Split

if TYPE_CHECKING:
    import torch
    from torch import nn

    from pretrainkit.data.source import BatchSource, Records
    from pretrainkit.dist.env import World
    from pretrainkit.recipes.image_tokenizer.codec import ImageCodec
    from pretrainkit.recipes.image_tokenizer.objective import ImageTokenizerObjective
    from pretrainkit.training.objective import HostBatch
    from pretrainkit.training.precision import Precision
    from pretrainkit.training.watch import Sample
    from pretrainkit.workers.processes import Progress


class ImageTokenizer(
    Recipe[ImageTokenizerRun],
    PlansWithoutData[ImageTokenizerRun],
    KeepsTokenizer[ImageTokenizerRun],
    Evaluates[ImageTokenizerRun],
    ReadsConfigs[ImageTokenizerRun],
    ReadsFiles[ImageTokenizerRun],
    TokenizesImages[ImageTokenizerRun],
    WritesFiles[ImageTokenizerRun],
    ShowsExamples[ImageTokenizerRun],
):
    """The recipe of image tokenizers."""

    name = "image_tokenizer"
    summary = "VQ-VAE and FSQ, with convolutions, transformers or diffusion: images and maps to tokens and back."

    config_class = ImageTokenizerRun

    presets: ClassVar[Mapping[str, Callable[[], ImageTokenizerRun]]] = PRESETS
    directions: ClassVar[Mapping[str, str]] = {
        **DIRECTIONS,
        **dict.fromkeys(("mae", "mse", "lpips", "perceptual_distance"), FALLS),
        **dict.fromkeys(("psnr", "ssim", "ms_ssim", "iou", "cosine_similarity", "codebook_usage"), RISES),
    }

    def bind(self, config: ImageTokenizerRun) -> ImageTokenizerRun:
        from pretrainkit.recipes.image_tokenizer.source import bind

        bound = bind(config)
        if bound.objective.perceptual.is_used:
            from pretrainkit.recipes.image_tokenizer.losses import Perceptual

            Perceptual(bound.objective.perceptual).require()
        return bound

    def without_data(self, config: ImageTokenizerRun) -> tuple[ImageTokenizerRun, str]:
        return config, f"images of model.image_size={config.model.image_size} pixels"

    def assumed_batch(self, config: ImageTokenizerRun, num_examples: int) -> HostBatch:
        from pretrainkit.recipes.image_tokenizer.source import assumed_batch

        return assumed_batch(config, num_examples)

    def open_data(self, config: ImageTokenizerRun, split: Split) -> BatchSource:
        from pretrainkit.recipes.image_tokenizer.source import open_source

        return open_source(config, split)

    def tokenizer_folder(self, config: ImageTokenizerRun) -> None:
        """Return None: the model itself is the tokenizer."""

    def with_tokenizer(self, config: ImageTokenizerRun, tokenizer: Path) -> ImageTokenizerRun:
        return config

    def has_own_vocabulary(self, config: ImageTokenizerRun) -> bool:
        return True

    def show_examples(self, config: ImageTokenizerRun, source: Any, records: Records) -> list[Sample]:
        from pretrainkit.recipes.image_tokenizer.evaluate import show_examples

        return show_examples(config, source, records)

    def stored_records(self, config: ImageTokenizerRun, source: Any, records: Records) -> list[StoredRecord]:
        from pretrainkit.recipes.image_tokenizer.evaluate import stored_records

        return stored_records(source, records)

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
        """Return pictures of images and of their reconstructions."""
        from pretrainkit.recipes.image_tokenizer.evaluate import sample

        return sample(config, model, source, num)

    reads_configs_of = "4M's tokenizers"

    @property
    def keys_of_other_configs(self) -> frozenset[str]:
        from pretrainkit.recipes.image_tokenizer.original_yaml import KEYS

        return KEYS

    def import_config(self, path: Path, settings: Iterable[str], nproc: int) -> ImportedConfig:
        from pretrainkit.recipes.image_tokenizer.original_yaml import import_config

        return import_config(path, settings, nproc)

    file_formats = ("4m-tokenizer",)

    def import_file(self, path: Path, format: str, config: ImageTokenizerRun | None) -> ImportedModel:
        """Import a published file. Without `config`, the config is image_tokenizer/rgb with the file's model, and its
        data are missing."""
        from pretrainkit.exporting.published_files import read_published
        from pretrainkit.files.manifest import expected_form
        from pretrainkit.recipes.image_tokenizer.original import from_original, model_of

        tensors, header = read_published(path, "enc_type", needs_config=config is None)
        base = config or PRESETS["rgb"]()
        with expected_form(path, "pass the config of the model with --config"):
            model = model_of(header) if config is None else config.model
        return ImportedModel(base.model_copy(update={"model": model}), from_original(tensors, model))

    export_formats = ("4m-tokenizer",)

    def export_file(
        self, config: ImageTokenizerRun, model: Any, tokenizer: Path | None, format: str, out: Path, *, name: str
    ) -> None:
        """Write a .safetensors file with the published tensor names and the config in its header."""
        from pretrainkit.exporting.published_files import write_published
        from pretrainkit.recipes.image_tokenizer.original import config_of, to_original

        write_published(out, to_original(model), config_of(model.config))

    def image_codec(self, model: Any, device: torch.device, batch_size: int) -> ImageCodec:
        from pretrainkit.recipes.image_tokenizer.codec import ImageCodec

        return ImageCodec(model, device, batch_size)

    def write_image_tokens(
        self, codec: Any, place: str, fingerprint: str, settings: Mapping[str, Any], progress: Progress | None
    ) -> dict[str, Any]:
        from pretrainkit.recipes.image_tokenizer.token_files import write_tokens

        return write_tokens(codec, place, fingerprint, settings, progress)

    def baselines(self, config: ImageTokenizerRun) -> dict[str, float]:
        """Return the errors of the mean of the training images as a prediction of every held-out image."""
        from pretrainkit.recipes.image_tokenizer.evaluate import mean_image_errors

        return mean_image_errors(config)


RECIPE = ImageTokenizer()

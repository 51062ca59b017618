"""The recipe's interface to the rest of pretrainkit. Importing it does not import torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pretrainkit.errors import ConfigError
from pretrainkit.recipes.capabilities import (
    CorruptsWords,
    EncodesText,
    Evaluates,
    FitsWeights,
    KeepsTokenizer,
    PlansWithoutData,
    ShowsExamples,
    StartsProjects,
    StoredRecord,
)
from pretrainkit.recipes.exchange import (
    ComparesWithHuggingFace,
    ConvertsClassifiers,
    ImportedTextClassifier,
    ReadsHuggingFace,
    TextClassifier,
    WritesHuggingFace,
)
from pretrainkit.recipes.pixel.config import PixelRun
from pretrainkit.recipes.pixel.presets import PRESETS, base
from pretrainkit.recipes.recipe import Recipe, Split

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor, nn

    from pretrainkit.data.source import BatchSource, Records
    from pretrainkit.dist.env import World
    from pretrainkit.recipes.pixel.objective import PixelObjective
    from pretrainkit.recipes.pixel.source import PixelSource
    from pretrainkit.recipes.proposal import ProjectRequest, Proposal
    from pretrainkit.recipes.text_encoder import TextEncoder
    from pretrainkit.recipes.text_reader import TextReader
    from pretrainkit.training.objective import HostBatch
    from pretrainkit.training.precision import Precision
    from pretrainkit.training.watch import Evaluation, Sample


class Pixel(
    Recipe[PixelRun],
    PlansWithoutData[PixelRun],
    StartsProjects[PixelRun],
    KeepsTokenizer[PixelRun],
    EncodesText[PixelRun],
    ConvertsClassifiers[PixelRun],
    FitsWeights[PixelRun],
    ReadsHuggingFace[PixelRun],
    WritesHuggingFace[PixelRun],
    ComparesWithHuggingFace[PixelRun],
    CorruptsWords[PixelRun],
    Evaluates[PixelRun],
    ShowsExamples[PixelRun],
):
    """The recipe of masked autoencoders of rendered text."""

    name = "pixel"
    summary = "PIXEL: text as pictures, without a tokenizer; the model reconstructs hidden patches."

    config_class = PixelRun
    chooses_pooling = True
    converts_parsers = True

    presets: ClassVar[Mapping[str, Callable[[], PixelRun]]] = PRESETS
    samples_on_cpu = True

    def bind(self, config: PixelRun) -> PixelRun:
        from pretrainkit.recipes.pixel.source import bind

        return bind(config)

    def without_data(self, config: PixelRun) -> tuple[PixelRun, str]:
        return config, f"texts that fill data.max_patches={config.data.max_patches} patches, black on white"

    def assumed_batch(self, config: PixelRun, num_examples: int) -> HostBatch:
        from pretrainkit.recipes.pixel.source import assumed_batch

        return assumed_batch(config, num_examples)

    reads = "text, and fonts if others than the installed one are wanted"

    def propose(self, request: ProjectRequest) -> Proposal:
        from pretrainkit.recipes.pixel.project import propose

        return propose(request)

    def open_data(self, config: PixelRun, split: Split) -> PixelSource:
        from pretrainkit.recipes.pixel.source import open_source

        return open_source(config, split)

    def tokenizer_folder(self, config: PixelRun) -> Path | None:
        """Return the folder of the renderer, which takes the place of a tokenizer; None if it is unknown."""
        from pretrainkit.recipes.pixel.rows import renderer_folder

        return renderer_folder(config.data)

    def with_tokenizer(self, config: PixelRun, tokenizer: Path) -> PixelRun:
        """Return the config with the renderer that the run kept."""
        return config.changed(data={"renderer": str(tokenizer)})

    def has_own_vocabulary(self, config: PixelRun) -> bool:
        return True

    def show_examples(self, config: PixelRun, source: Any, records: Records) -> list[Sample]:
        from pretrainkit.recipes.pixel.sample import show_examples

        return show_examples(config, source, records)

    def stored_records(self, config: PixelRun, source: Any, records: Records) -> list[StoredRecord]:
        from pretrainkit.recipes.pixel.sample import stored_records

        return stored_records(source, records)

    def build_model(self, config: PixelRun) -> nn.Module:
        from pretrainkit.recipes.pixel.model import build

        return build(config.model)

    def build_objective(self, config: PixelRun) -> PixelObjective:
        from pretrainkit.recipes.pixel.objective import PixelObjective

        return PixelObjective(config)

    def sample(self, config: PixelRun, model: Any, source: BatchSource, num: int) -> list[dict[str, Any]]:
        from pretrainkit.recipes.pixel.sample import sample

        return sample(config, model, source, num)

    def more_evaluations(
        self, config: PixelRun, world: World, precision: Precision, folder: Path | None
    ) -> Sequence[Evaluation]:
        """Return the evaluation that reads hidden characters, after the last update only."""
        from pretrainkit.recipes.pixel.reading import read_characters
        from pretrainkit.training.watch import Evaluation

        source = self.open_data(config, "valid")
        return [Evaluation(lambda model, tag: read_characters(config, model, source, precision), None)]

    def text_reader(self, config: PixelRun, tokenizer: Path) -> TextReader:
        from pretrainkit.recipes.pixel.text_reader import open_reader

        return open_reader(config, tokenizer)

    def as_text_encoder(
        self, config: PixelRun, tokenizer: Path | None, max_length: int
    ) -> tuple[PixelRun, Path | None]:
        """Set the length of position tables to `max_length`. A font, or a renderer with changed settings, becomes a
        renderer folder in the cache."""
        from pretrainkit.recipes.pixel.text_reader import changed_renderer

        model, data, text = config.model, config.data, config.text
        if tokenizer is not None and (text.renderer or tokenizer.is_file()):
            tokenizer = changed_renderer(tokenizer, text.renderer)
        grid_width = model.position_grid_width if model.positions == "grid" else None
        config = config.changed(
            model={"max_patches": max_length, "grid_width": grid_width},
            data={"max_patches": min(data.max_patches, max_length)},
            text={"renderer": {}},
        )
        return config, tokenizer

    def build_text_encoder(self, config: PixelRun, model: Any) -> TextEncoder:
        from pretrainkit.recipes.pixel.text_encoder import build_text_encoder

        return build_text_encoder(config, model)

    def fitted_weights(
        self, config: PixelRun, given: PixelRun, weights: Mapping[str, Tensor]
    ) -> tuple[PixelRun, Mapping[str, Tensor]]:
        """Cut position tables, or extend them by their formula. Rotary positions have no table."""
        from pretrainkit.recipes.pixel.convert import with_length

        model, trained = config.model, given.model
        if model.positions != trained.positions:
            return given, weights
        if model.positions == "grid" and model.position_grid_width != trained.position_grid_width:
            raise ConfigError(
                f"init_from has a position grid of width {trained.position_grid_width}, but that of "
                f"model.max_patches={model.max_patches} is {model.position_grid_width}\n"
                f"  set model.grid_width={trained.position_grid_width}, which keeps the learned positions"
            )
        if model.max_patches != trained.max_patches:
            trained, weights = with_length(weights, trained, model.max_patches)
        return given.changed(model=trained.changed(grid_width=model.grid_width)), weights

    def fitted_text_encoder(
        self, config: PixelRun, given: PixelRun, weights: Mapping[str, Tensor], fresh: Mapping[str, Tensor]
    ) -> Mapping[str, Tensor]:
        from pretrainkit.recipes.pixel.text_encoder import fitted_state

        return fitted_state(config, given, weights, fresh)

    def export_text_classifier(
        self, config: PixelRun, model: TextClassifier, tokenizer: Path | None, out: Path
    ) -> None:
        from pretrainkit.recipes.pixel.convert_classifier import write_classifier

        write_classifier(model, config, out, renderer=tokenizer)

    def import_text_classifier(self, folder: Path, pooling: str | None = None) -> ImportedTextClassifier:
        from pretrainkit.recipes.pixel.convert_classifier import read_classifier

        return read_classifier(folder, pooling)

    def assumed_texts(self, config: PixelRun, num_examples: int, length: int) -> HostBatch:
        """Return a batch of texts with a class token and patches of zeros."""
        import numpy as np

        from pretrainkit.recipes.pixel.text_reader import stream

        side = config.model.patch_size
        return stream([np.zeros(((length - 1) * side, side, 3), np.uint8)] * num_examples, side, has_color=True)

    def text_encoder_flops(self, config: PixelRun, lengths_B: np.ndarray) -> float:
        from pretrainkit.recipes.pixel.text_encoder import encoder_flops

        return encoder_flops(config, lengths_B)

    huggingface_types = ("pixel", "vit_mae")

    def export_huggingface(self, config: PixelRun, model: nn.Module, tokenizer: Path | None, out: Path) -> None:
        from pretrainkit.recipes.pixel.convert import write_huggingface

        is_vit_mae = config.model.decoder_norm_epsilon == config.model.layer_norm_epsilon
        kind = "vit_mae" if is_vit_mae else "pixel"
        write_huggingface(model.state_dict(), config, out, renderer=tokenizer, model_type=kind)

    def import_huggingface(self, folder: Path) -> tuple[PixelRun, Mapping[str, Any]]:
        """Import a published model. The config is that of pixel/base with the model of the folder, without data
        paths."""
        from pretrainkit.recipes.pixel.convert import read_huggingface

        model, objective, state = read_huggingface(folder)
        config = base()
        data = {"max_patches": min(config.data.max_patches, model.max_patches)}
        return config.changed(model=model, data=data, objective=objective), state

    def carried_weights(self, carried: PixelRun, weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Convert imported weights, which are always for black as 0, to the config's `pixel_zero`."""
        from pretrainkit.recipes.pixel.convert import patch_for_zero

        return patch_for_zero(weights, carried.model.pixel_zero)

    def difference_from_huggingface(self, config: PixelRun, model: Any, folder: Path) -> float:
        from pretrainkit.recipes.pixel.convert import difference_from_huggingface

        return difference_from_huggingface(config, model, folder)

    def write_noisy(self, source: Path, out: Path, attack: Any, severity: float, **settings: Any) -> int:
        from pretrainkit.recipes.pixel.noise import write_noisy

        return write_noisy(source, out, attack, severity, **settings)


RECIPE = Pixel()

"""Interface of the recipe to the rest of pretrainkit. Importing it does not import torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pretrainkit.errors import DataError
from pretrainkit.recipes.capabilities import (
    ChecksFiles,
    EncodesImages,
    Generates,
    KeepsTokenizer,
    PlansWithoutData,
    ShowsExamples,
    StartsProjects,
    StoredRecord,
)
from pretrainkit.recipes.exchange import ImportedConfig, ImportedModel, ReadsConfigs, ReadsFiles, WritesFiles
from pretrainkit.recipes.fourm.config import FourMRun
from pretrainkit.recipes.fourm.presets import PRESETS
from pretrainkit.recipes.recipe import Recipe, Split

if TYPE_CHECKING:
    from torch import nn

    from pretrainkit.data.source import BatchSource, Records
    from pretrainkit.eval.probe import ImageEncoder
    from pretrainkit.recipes.fourm.objective import FourMObjective
    from pretrainkit.recipes.proposal import ProjectRequest, Proposal
    from pretrainkit.training.objective import HostBatch
    from pretrainkit.training.watch import Sample
    from pretrainkit.workers.processes import Progress


class FourM(
    Recipe[FourMRun],
    PlansWithoutData[FourMRun],
    StartsProjects[FourMRun],
    ChecksFiles[FourMRun],
    KeepsTokenizer[FourMRun],
    Generates[FourMRun],
    EncodesImages[FourMRun],
    ReadsConfigs[FourMRun],
    ReadsFiles[FourMRun],
    WritesFiles[FourMRun],
    ShowsExamples[FourMRun],
):
    """4M: predict tokens of many modalities from other tokens."""

    name = "fourm"
    summary = "4M: predict any modality from any other, by masked modelling of their tokens."

    config_class = FourMRun

    presets: ClassVar[Mapping[str, Callable[[], FourMRun]]] = PRESETS

    def bind(self, config: FourMRun) -> FourMRun:
        from pretrainkit.recipes.fourm.source import bind

        return bind(config.in_steps())

    def without_data(self, config: FourMRun) -> tuple[FourMRun, str]:
        masking = config.masking
        return config.in_steps(), (
            f"all slots filled (masking.num_input_tokens={masking.num_input_tokens}, masking.num_target_tokens="
            f"{masking.num_target_tokens}), evenly from all modalities"
        )

    def assumed_batch(self, config: FourMRun, num_examples: int) -> HostBatch:
        from pretrainkit.recipes.fourm.batch import assumed_batch

        return assumed_batch(config, num_examples)

    reads = "aligned files: a folder for each modality, such as rgb, depth, seg, caption, det"

    def propose(self, request: ProjectRequest) -> Proposal:
        from pretrainkit.recipes.fourm.project import propose

        return propose(request)

    def open_data(self, config: FourMRun, split: Split) -> BatchSource:
        from pretrainkit.recipes.fourm.source import open_source

        return open_source(config, split)

    def check_new_run(self, config: FourMRun, source: BatchSource) -> None:
        """Refuse data that lack a modality of the model, unless the run starts from a trained model."""
        from pretrainkit.recipes.fourm.source import FourMSource, absent_modalities

        assert isinstance(source, FourMSource)
        if config.init_from is None and (absent := absent_modalities(source)):
            raise DataError(absent)

    def check_files(self, config: FourMRun, progress: Progress) -> list[str]:
        from pretrainkit.recipes.fourm.source import check_files

        return check_files(config, progress)

    def tokenizer_folder(self, config: FourMRun) -> Path | None:
        return None if config.data.tokenizer is None else Path(config.data.tokenizer)

    def with_tokenizer(self, config: FourMRun, tokenizer: Path) -> FourMRun:
        return config.model_copy(update={"data": config.data.model_copy(update={"tokenizer": str(tokenizer)})})

    def has_own_vocabulary(self, config: FourMRun) -> bool:
        return all(modality.kind != "sequence" for modality in config.model.modalities)

    def show_examples(self, config: FourMRun, source: Any, records: Records) -> list[Sample]:
        from pretrainkit.recipes.fourm.examples import show_examples

        return show_examples(source, records)

    def stored_records(self, config: FourMRun, source: Any, records: Records) -> list[StoredRecord]:
        from pretrainkit.recipes.fourm.examples import stored_records

        return stored_records(source, records)

    def build_model(self, config: FourMRun) -> nn.Module:
        from pretrainkit.recipes.fourm.model import build

        return build(config.model)

    def build_objective(self, config: FourMRun) -> FourMObjective:
        from pretrainkit.recipes.fourm.objective import FourMObjective

        return FourMObjective(config)

    def sample(self, config: FourMRun, model: Any, source: BatchSource, num: int) -> list[dict[str, Any]]:
        from pretrainkit.recipes.fourm.generation.generate import sample

        return sample(config, model, source, num)

    generate_options = (
        *("inputs", "to", "plan", "settings", "seed", "temperature", "top_k", "top_p", "num"),
        *("from_data", "out", "then", "image_decoders", "batch_size"),
    )

    def generate(
        self, config: FourMRun, model: Any, tokenizer: Any, prompts: list[str], **options: Any
    ) -> list[dict[str, Any]]:
        """Generate from captions (`prompts`) and other inputs; see `generation.generate.generate`."""
        from pretrainkit.recipes.fourm.generation.generate import generate

        return generate(config, model, tokenizer, prompts, **options)

    def image_encoder(self, config: FourMRun, model: Any) -> ImageEncoder:
        """Return the encoder of images alone; its feature is the mean of the output over all patches."""
        from pretrainkit.eval.probe import ImageEncoder
        from pretrainkit.recipes.fourm.model import ImageTower

        tower = ImageTower.of(model)
        assert tower.modality.image_size is not None
        return ImageEncoder(tower, tower.features, tower.modality.image_size)

    reads_configs_of = "4M"

    @property
    def keys_of_other_configs(self) -> frozenset[str]:
        from pretrainkit.recipes.fourm.original_yaml import KEYS

        return KEYS

    def import_config(self, path: Path, settings: Iterable[str], nproc: int) -> ImportedConfig:
        from pretrainkit.recipes.fourm.original_yaml import import_config

        return import_config(path, settings, nproc)

    file_formats = ("4m",)

    def import_file(self, path: Path, format: str, config: FourMRun | None) -> ImportedModel:
        """Import a published file. Without `config`, the result has the config of fourm/b-7 with the model of the file
        and without data."""
        from pretrainkit.exporting.published_files import read_published
        from pretrainkit.files.manifest import expected_form
        from pretrainkit.recipes.fourm.original import from_original, model_of

        tensors, header = read_published(path, "domains_in", needs_config=config is None)
        base = config or PRESETS["b-7"]()
        with expected_form(path, "pass the config of the model with --config"):
            model = model_of(header, tensors) if config is None else config.model
        return ImportedModel(base.model_copy(update={"model": model}), from_original(tensors, model))

    export_formats = ("4m",)

    def export_file(
        self, config: FourMRun, model: Any, tokenizer: Path | None, format: str, out: Path, *, name: str
    ) -> None:
        """Write a .safetensors file with the published names, and with the config in its header."""
        from pretrainkit.exporting.published_files import write_published
        from pretrainkit.recipes.fourm.original import config_of, to_original

        write_published(out, to_original(model), config_of(model.config))


RECIPE = FourM()

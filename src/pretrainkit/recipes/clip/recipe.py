"""The recipe clip: its interface to the rest of pretrainkit. Importing it does not import torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pretrainkit.recipes.capabilities import (
    CachesFeatures,
    ChecksFiles,
    EncodesImages,
    Evaluates,
    Evaluator,
    FitsWeights,
    Generates,
    KeepsTokenizer,
    PlansWithoutData,
    ReadsPairs,
    ShowsExamples,
    StartsProjects,
    StoredRecord,
)
from pretrainkit.recipes.clip.config import ClipRun
from pretrainkit.recipes.clip.presets import PRESETS
from pretrainkit.recipes.exchange import (
    ImportedConfig,
    ImportedModel,
    ReadsConfigs,
    ReadsFiles,
    ReadsHuggingFace,
    TellsIds,
    WritesFiles,
    WritesHuggingFace,
)
from pretrainkit.recipes.recipe import Recipe, Split

if TYPE_CHECKING:
    from torch import Tensor, nn

    from pretrainkit.data.order import Order
    from pretrainkit.data.source import BatchSource, Records
    from pretrainkit.dist.env import World
    from pretrainkit.eval.probe import ImageEncoder
    from pretrainkit.recipes.clip.objective import ClipObjective
    from pretrainkit.recipes.clip.pairs import Pairs
    from pretrainkit.recipes.proposal import ProjectRequest, Proposal
    from pretrainkit.training.objective import HostBatch
    from pretrainkit.training.precision import Precision
    from pretrainkit.training.watch import Sample
    from pretrainkit.workers.processes import Progress


class Clip(
    Recipe[ClipRun],
    PlansWithoutData[ClipRun],
    StartsProjects[ClipRun],
    CachesFeatures[ClipRun],
    KeepsTokenizer[ClipRun],
    Evaluates[ClipRun],
    FitsWeights[ClipRun],
    Generates[ClipRun],
    EncodesImages[ClipRun],
    TellsIds[ClipRun],
    ReadsConfigs[ClipRun],
    ReadsHuggingFace[ClipRun],
    ReadsPairs[ClipRun],
    WritesHuggingFace[ClipRun],
    ReadsFiles[ClipRun],
    WritesFiles[ClipRun],
    ChecksFiles[ClipRun],
    ShowsExamples[ClipRun],
):
    """CLIP: contrastive training of an image tower and a text tower."""

    name = "clip"
    summary = "CLIP, SigLIP and ZeroVL: contrast images and texts, with very large batches on little hardware."

    config_class = ClipRun

    presets: ClassVar[Mapping[str, Callable[[], ClipRun]]] = PRESETS

    def check_files(self, config: ClipRun, progress: Progress) -> list[str]:
        from pretrainkit.recipes.clip.examples import check_files

        return check_files(config, progress)

    def bind(self, config: ClipRun) -> ClipRun:
        from pretrainkit.recipes.clip.source import bind

        return bind(config)

    def without_data(self, config: ClipRun) -> tuple[ClipRun, str]:
        from pretrainkit.recipes.clip.source import without_data

        return without_data(config)

    def assumed_batch(self, config: ClipRun, num_examples: int) -> HostBatch:
        from pretrainkit.recipes.clip.source import assumed_batch

        return assumed_batch(config, num_examples)

    reads = "images with captions: folders, tables, tars"

    def propose(self, request: ProjectRequest) -> Proposal:
        from pretrainkit.recipes.clip.project import propose

        return propose(request)

    def open_data(self, config: ClipRun, split: Split) -> BatchSource:
        from pretrainkit.recipes.clip.source import open_source

        return open_source(config, split)

    def build_order(self, config: ClipRun, source: BatchSource) -> Order:
        from pretrainkit.recipes.clip.source import build_order

        return build_order(config, source.sizes)

    def with_cached_features(
        self, config: ClipRun, source: Any, model: Callable[[], Any], cache: Path, world: World, precision: Precision
    ) -> BatchSource:
        """Replace the inputs of frozen towers by cached features if `data.cache_frozen` is set."""
        if not config.data.cache_frozen:
            return source
        from pretrainkit.recipes.clip.cached_features import with_cached_features

        return with_cached_features(config, source, model, cache, world, precision)

    def build_evaluator(self, config: ClipRun, world: World, precision: Precision) -> Evaluator:
        from pretrainkit.recipes.clip.held_out import build_evaluator

        return build_evaluator(config, world, precision)

    def metric_rows(self, config: ClipRun, metrics: Mapping[str, float], model: str) -> list[dict[str, str | float]]:
        """Return rows with the columns of CLIP_benchmark."""
        from pretrainkit.recipes.clip.held_out import benchmark_rows

        return benchmark_rows(config, metrics, model)

    def tokenizer_folder(self, config: ClipRun) -> Path | None:
        from pretrainkit.recipes.clip.captions import tokenizer_folder

        return tokenizer_folder(config)

    def fitted_weights(
        self, config: ClipRun, given: ClipRun, weights: Mapping[str, Tensor]
    ) -> tuple[ClipRun, Mapping[str, Tensor]]:
        """Convert the temperature to the kind in `config`, add or remove the bias of the logits for the loss, and give
        the timm encoder the name in `config`."""
        from pretrainkit.recipes.clip.architecture import with_name_of
        from pretrainkit.recipes.clip.model import with_bias_of, with_kind_of

        model, weights = with_kind_of(config.model, given.model, weights)
        return given.changed(model=with_name_of(config.model, model)), with_bias_of(config.objective, weights)

    def show_examples(self, config: ClipRun, source: Any, records: Records) -> list[Sample]:
        from pretrainkit.recipes.clip.examples import show_examples

        return show_examples(config, source, records)

    def stored_records(self, config: ClipRun, source: Any, records: Records) -> list[StoredRecord]:
        from pretrainkit.recipes.clip.examples import stored_records

        return stored_records(source, records)

    def build_model(self, config: ClipRun) -> nn.Module:
        from pretrainkit.recipes.clip.model import DualEncoder

        return DualEncoder(config)

    def build_objective(self, config: ClipRun) -> ClipObjective:
        from pretrainkit.recipes.clip.objective import ClipObjective

        return ClipObjective(config)

    def sample(self, config: ClipRun, model: nn.Module, source: BatchSource, num: int) -> list[dict[str, Any]]:
        """Return retrieved pairs of the first held-out set."""
        from pretrainkit.recipes.clip.held_out import pair_sets
        from pretrainkit.recipes.clip.retrieve import retrieved_pairs

        return retrieved_pairs(model, pair_sets(config)[0], num, config.evaluate.batch_size)

    def with_tokenizer(self, config: ClipRun, tokenizer: Path) -> ClipRun:
        return config.changed(data={"tokenizer": str(tokenizer)})

    def input_ids(self, config: ClipRun, tokenizer: Path, texts: Sequence[str]) -> list[list[int]]:
        from pretrainkit.recipes.clip.captions import CaptionTokenizer

        words = CaptionTokenizer(tokenizer)
        return [[*words.prefix, *ids, *words.suffix] for ids in words.encode_bare(texts)]

    def carried_weights(self, carried: ClipRun, weights: Mapping[str, Any]) -> Mapping[str, Any]:
        """Convert the logarithm of the logit scale, which transformers stores, to the kind of temperature in
        `carried`."""
        from pretrainkit.recipes.clip.model import with_temperature

        return with_temperature(weights, carried.model.temperature.kind)

    @property
    def generate_options(self) -> tuple[str, ...]:
        return ("images", "top")

    def image_encoder(self, config: ClipRun, model: Any) -> ImageEncoder:
        """Return the image tower without projection, for images of the size in evaluation. The features of a vision
        transformer with `pool: cls` are its class token."""
        from pretrainkit.eval.probe import ImageEncoder
        from pretrainkit.images.transforms import compose

        def encode(image_B3HW: Tensor) -> Tensor:
            return model.image(model.normalized(image_B3HW))

        return ImageEncoder(model.image, encode, compose(config.data.valid_transforms).size)

    def published_image_encoder(self, name: str) -> ImageEncoder | None:
        from pretrainkit.recipes.clip.foreign_towers import timm_encoder

        return timm_encoder(name.removeprefix("timm:")) if name.startswith("timm:") else None

    def generate(
        self, config: ClipRun, model: Any, tokenizer: Path, prompts: list[str], **options: Any
    ) -> list[dict[str, Any]]:
        """Return the images of a folder that match each caption best. Options: images (the folder), top (their
        number)."""
        from pretrainkit.recipes.clip.retrieve import find_images

        return find_images(config, model, tokenizer, prompts, **options)

    reads_configs_of = "ZeroVL"

    def open_pairs(
        self, path: str, split: Split, *, format: str, image_key: str | None, caption_key: str | None
    ) -> Pairs:
        from pretrainkit.recipes.clip.config import ClipSourceConfig
        from pretrainkit.recipes.clip.open_pairs import open_pairs

        given = {"path": path, "format": format, "image_key": image_key, "caption_key": caption_key}
        return open_pairs(ClipSourceConfig.model_validate(given), split)

    def scan_pairs(self, pairs: Pairs, *, tokenizer: str | None, **settings: Any) -> dict[str, Any]:
        from pretrainkit.recipes.clip.captions import CaptionTokenizer, find_folder
        from pretrainkit.recipes.clip.scan import scan

        words = None if tokenizer is None else CaptionTokenizer(find_folder(tokenizer))
        return scan(pairs, tokenizer=words, **settings)

    def require_held_out(self, train: Sequence[Pairs], valid: Sequence[Pairs]) -> None:
        from pretrainkit.recipes.clip.checks import check_held_out

        check_held_out(train, valid)

    def pack_pairs(
        self,
        parts: Mapping[Split, Pairs],
        out: Path,
        *,
        shard_bytes: int,
        max_bad: int,
        heldout: float,
        progress: Progress,
    ) -> dict[str, dict[str, Any]]:
        from pretrainkit.recipes.clip.pack import pack

        return pack(parts, out, shard_bytes=shard_bytes, max_bad=max_bad, heldout=heldout, progress=progress)

    def write_captions(self, sets: Sequence[Pairs], out: Path) -> int:
        from pretrainkit.recipes.clip.pack import write_captions

        return write_captions(sets, out)

    @property
    def keys_of_other_configs(self) -> frozenset[str]:
        from pretrainkit.recipes.clip.original_config import DEFAULTS, MUST_STAY, WITHOUT_EFFECT

        return frozenset(key.partition(".")[0] for key in (*DEFAULTS, *WITHOUT_EFFECT, *MUST_STAY))

    def import_config(self, path: Path, settings: Iterable[str], nproc: int) -> ImportedConfig:
        from pretrainkit.recipes.clip.original_config import import_config

        return import_config(path, settings, nproc)

    _TOWERS = ("clip_text_model", "clip_vision_model", "siglip_text_model", "siglip_vision_model")  # refused by name
    huggingface_types = ("clip", "siglip", "siglip2", "vision-text-dual-encoder", *_TOWERS)

    def export_huggingface(self, config: ClipRun, model: nn.Module, tokenizer: Path | None, out: Path) -> None:
        from pretrainkit.recipes.clip.convert import write_huggingface

        write_huggingface(config, model, tokenizer, out)

    def import_huggingface(self, folder: Path) -> tuple[ClipRun, Mapping[str, Any]]:
        from pretrainkit.recipes.clip.convert import read_huggingface

        return read_huggingface(folder)

    file_formats = ("zerovl", "openclip", "openai")

    def import_file(self, path: Path, format: str, config: ClipRun | None) -> ImportedModel:
        """Read a weight file. For zerovl, the default config is clip/zerovl-14m, and the temperature is constant if the
        file has none. For openclip and openai, the architecture follows from the files and the shapes of tensors."""
        if format != "zerovl":
            from pretrainkit.recipes.clip.open_clip_layout import read_open_clip

            return read_open_clip(path, config, is_openai=format == "openai")
        from pretrainkit.recipes.clip.original import import_original

        return ImportedModel(*import_original(path, PRESETS["zerovl-14m"]() if config is None else config))

    export_formats = ("openclip", "zerovl")
    folder_formats = ("openclip",)

    def export_file(
        self, config: ClipRun, model: Any, tokenizer: Path | None, format: str, out: Path, *, name: str
    ) -> None:
        if format == "zerovl":
            from pretrainkit.recipes.clip.original import write_original

            write_original(model, out)
        else:
            from pretrainkit.recipes.clip.open_clip_layout import write_open_clip

            write_open_clip(config, model, tokenizer, out, name)


RECIPE = Clip()

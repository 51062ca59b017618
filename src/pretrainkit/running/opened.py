"""Trained models, from run folders, checkpoints and exports."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pretrainkit.config.base import architecture
from pretrainkit.errors import CheckpointError, DataError, InputError
from pretrainkit.exporting.class_names import read_by_head
from pretrainkit.exporting.settings import REST, ROUNDED, SETTINGS, is_rounded, read_settings
from pretrainkit.files.manifest import expected_form, read_object
from pretrainkit.recipes.capabilities import BuildsOnEncoder, Generates, Infers, KeepsTokenizer, Scores
from pretrainkit.recipes.exchange import ReadsHuggingFace
from pretrainkit.recipes.recipe import Recipe
from pretrainkit.recipes.registry import able, find_recipe, recipe_of_huggingface, recipes_able
from pretrainkit.running.configs import load_config
from pretrainkit.training.checkpoints.files import folder_name, newest_valid, read_checkpoint
from pretrainkit.training.folder import RunFolder

if TYPE_CHECKING:
    from torch import Tensor, nn

    from pretrainkit.training.run import RunConfig

_log = logging.getLogger(__name__)
_COPY_AGAIN = "copy the folder again"


@dataclass(frozen=True)
class Opened:
    """A trained model with everything that is needed to use it."""

    model: nn.Module
    """The model in evaluation mode, float32, on the CPU."""
    config: RunConfig
    """Its recipe's config, bound to its data."""
    recipe: Recipe
    tokenizer: Path | None
    """Folder of its tokenizer, if there is one beside the model."""

    def generate(self, prompts: Iterable[str], **options: Any) -> list[dict[str, Any]]:
        """Return the model's answer to each prompt; see `pretrainkit.api.generate`."""
        if isinstance(self.recipe, Infers) and not isinstance(self.recipe, Generates):
            raise InputError(
                f"a model of recipe {self.recipe.name!r} answers rows, not prompts\n"
                "  use pretrainkit predict RUN --input FILE --out ANSWERS.jsonl"
            )
        recipe = able(self.recipe, Generates)
        for name in options:
            if name not in recipe.generate_options:
                raise InputError(
                    f"recipe {self.recipe.name!r} has no option {name!r} for generation\n"
                    f"  its options are {', '.join(recipe.generate_options)}"
                )
        return recipe.generate(self.config, self.model, self.tokenizer_or_none(), list(prompts), **options)

    def score(self, pairs: Iterable[tuple[str, str]]) -> list[float]:
        """Return the log-probability of the second text of each pair, given the first."""
        return able(self.recipe, Scores).score(self.config, self.model, self.tokenizer_or_none(), list(pairs))

    def tokenizer_or_none(self) -> Path | None:
        """Return the folder of its tokenizer; None if it needs none. Raises DataError if it is missing."""
        needs_none = isinstance(self.recipe, KeepsTokenizer) and self.recipe.has_own_vocabulary(self.config)
        if self.tokenizer is None and not needs_none:
            raise DataError(
                "there is no tokenizer beside the model\n"
                "  copy the folder of the tokenizer that it was trained with to RUN/tokenizer; or, for a folder of "
                "transformers: pretrainkit import EXPORT --tokenizer TOKENIZER --out FOLDER"
            )
        return self.tokenizer


class ReadModel(NamedTuple):
    """Contents of the folder of a trained model."""

    config: Any
    weights: Mapping[str, Any]
    tokenizer: Path | None
    """Folder of the tokenizer or renderer, if there is one."""

    def opened(self, path: str | Path) -> Opened:
        """Return the model. `path` is its folder, for messages."""
        recipe = find_recipe(self.config.recipe)
        return Opened(with_weights(recipe, self.config, self.weights, path), self.config, recipe, self.tokenizer)


def open_model(
    path: str | Path,
    *,
    step: int | None = None,
    recipe: str | None = None,
    averaged: bool = False,
    pooling: str | None = None,
    tokenizer: Path | None = None,
) -> Opened:
    """Open the model of a run folder, a checkpoint folder, or an export, with everything that is needed to use it.
    Raises CheckpointError or DataError if it is missing, damaged, not one of these, or has no averaged weights.

    Args:
        step: Run folder: load this checkpoint instead of the newest valid one.
        recipe: Hugging Face folder: the recipe that reads it; None: the recipe that knows its `model_type`.
        averaged: Run or checkpoint: load the averaged weights that `ema_decay` keeps.
        pooling: Hugging Face folder of a classifier: how it computes one vector of a text, if it does not define this.
        tokenizer: Hugging Face folder: the folder of its tokenizer; None: beside the model, if there is one.
    """
    path = existing_folder(path)
    return read_model(path, step, recipe, averaged, pooling, tokenizer).opened(path)


def load_model(path: str | Path) -> nn.Module:
    """Return the trained model of a run, checkpoint or export: a plain `nn.Module` in evaluation mode on the CPU."""
    return open_model(path).model


def read_model(
    path: Path,
    step: int | None,
    recipe: str | None,
    averaged: bool,
    pooling: str | None = None,
    tokenizer: Path | None = None,
) -> ReadModel:
    """Read the folder of a trained model; the arguments are those of `open_model`."""
    from pretrainkit.dist.weights import require_same_architecture
    from pretrainkit.exporting.foreign_tokenizer import left_sides, tokenizer_beside
    from pretrainkit.exporting.native import WEIGHTS
    from pretrainkit.exporting.safetensors import read_tensors
    from pretrainkit.exporting.transformers_folder import parts_beside_encoder
    from pretrainkit.training.checkpoints.checkpoint import read_weights

    is_export = (path / "config.json").is_file() or (path / WEIGHTS).is_file()
    if averaged and is_export:
        raise CheckpointError(f"{path} is an export with one set of weights\n  use the run that it came from")
    if (path / "config.json").is_file():  # an export to Hugging Face, or a folder of transformers
        settings = read_settings(path / SETTINGS)
        if parts := parts_beside_encoder(path):
            _log.warning(
                "%s is a model of sentence-transformers, of which only the encoder is read, without %s\n"
                "  model.pooling chooses how fine-tuning pools the vectors of tokens; prompts are a part of your texts",
                *(path, ", ".join(parts)),
            )
        own = None if settings is None else settings.config.get("recipe")
        reader = find_recipe(recipe or own or recipe_of_export(path))
        able_reader = able(reader, ReadsHuggingFace)
        # Where a number is expected, a config.json may have anything; --debug shows where it failed.
        with expected_form(path / "config.json", _COPY_AGAIN):
            if pooling is None:
                config, weights = able_reader.import_huggingface(path)
            elif isinstance(reader, BuildsOnEncoder):
                config, weights = reader.import_classifier(path, pooling)
            else:
                raise InputError(
                    f"recipe {reader.name!r} has no option for pooling\n"
                    f"  leave --pooling out, or use --recipe {next(iter(recipes_able(BuildsOnEncoder)))}"
                )
        if settings is not None and reader.name == own:
            carried = load_config(settings.config)
            if settings.has_own_model:
                config, weights = carried, able_reader.carried_weights(carried, weights)
            else:
                _log.warning(
                    "%s/config.json was changed after the export: it defines the model, and all other settings are "
                    "those of the run, in %s",
                    *(path, SETTINGS),
                )
                config = carried.changed(model=config.model)
            weights = _with_rest(weights, path)
        tokenizer = tokenizer or tokenizer_beside(path)
        if settings is None and tokenizer is not None and (sides := left_sides(tokenizer)):
            _log.warning(
                "the tokenizer in %s has %s 'left', but this recipe pads and cuts texts at their end, also in exports",
                *(tokenizer, " and ".join(sides)),
            )
        return ReadModel(config, weights, tokenizer)
    if (path / WEIGHTS).is_file():  # our own export
        config = load_config(RunFolder(path).config_tree())
        return ReadModel(config, read_tensors(path), _existing(path / "tokenizer"))
    run, checkpoint = checkpoint_of(path, step)
    config = load_config(run.config_tree())
    weights = read_weights(checkpoint)
    saved = read_checkpoint(checkpoint).meta.get("architecture", {})
    require_same_architecture(architecture(config.model), saved, f"checkpoint {checkpoint}")
    if averaged:
        weights |= read_weights(checkpoint, "ema.")
    return ReadModel(config, weights, _existing(run.path / "tokenizer"))


def _existing(folder: Path) -> Path | None:
    """Return the folder; None if it does not exist or is empty."""
    return folder if folder.is_dir() and any(folder.iterdir()) else None


def _with_rest(weights: Mapping[str, Tensor], path: Path) -> dict[str, Tensor]:
    """Add tensors and last digits that the format could not store. Weights that were trained since then are kept."""
    from pretrainkit.exporting.safetensors import read_tensors

    result = dict(weights)
    rest = read_tensors(path, REST) if (path / f"{REST}.safetensors").is_file() else {}
    for name, tensor in rest.items():
        own = result.get(name.removeprefix(ROUNDED))
        if not name.startswith(ROUNDED) or (own is not None and is_rounded(own, tensor)):
            result[name.removeprefix(ROUNDED)] = tensor
    return result


def checkpoint_of(path: Path, step: int | None) -> tuple[RunFolder, Path]:
    """Return (run, checkpoint) of a run folder, where None means the newest step, or of a checkpoint in it."""
    from pretrainkit.exporting.native import WEIGHTS

    if not path.is_dir():
        raise DataError(f"there is no folder {path}\n  use a run or a checkpoint (RUN/checkpoints/step-…)")
    if (path / WEIGHTS).is_file():
        raise CheckpointError(
            f"{path} contains weights alone\n  use a run, or a checkpoint in it (RUN/checkpoints/step-…)"
        )
    is_checkpoint = (path / "meta.json").is_file()
    run = RunFolder(path.parent.parent if is_checkpoint else path)
    checkpoint = path if is_checkpoint else newest_valid(run.checkpoints)
    if step is not None:
        checkpoint = run.checkpoints / folder_name(step)
    if checkpoint is None or not checkpoint.is_dir():
        run.config_tree()  # raises if this is not a run
        raise CheckpointError(
            f"{path} has no valid checkpoint{'' if step is None else f' of step {step}'}\n"
            "  train it further, or use a complete checkpoint or an export"
        )
    return run, checkpoint


def existing_folder(path: str | Path) -> Path:
    """Return the path. Raises DataError if the folder does not exist."""
    if not Path(path).is_dir():
        raise DataError(f"there is no folder {path}\n  use a run, a checkpoint (RUN/checkpoints/step-…) or an export")
    return Path(path)


def empty_model(recipe: Recipe, config: RunConfig, device: str) -> nn.Module:
    """Return the model of a config on a device, with allocated but uninitialized memory."""

    from pretrainkit.dist.devices import to_device

    return to_device(model_on_meta(recipe, config), device)


def model_on_meta(recipe: Recipe, config: RunConfig) -> nn.Module:
    """Return the model of a config with parameters that have no memory. Tables that are computed have their values."""
    import torch

    with torch.device("meta"):
        return recipe.build_model(config)


def with_weights(recipe: Recipe, config: RunConfig, weights: Mapping[str, Any], path: str | Path) -> nn.Module:
    """Return the model of a config in evaluation mode on the CPU, with the weights that came from `path`."""
    from pretrainkit.dist.devices import to_device
    from pretrainkit.dist.weights import require_same_tensors

    with expected_form(f"the config of {path}", _COPY_AGAIN):
        model = model_on_meta(recipe, config)
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items() if name in weights}
    require_same_tensors(expected, {name: tuple(weights[name].shape) for name in expected}, str(path))
    model = to_device(model, "cpu")  # after the comparison: a damaged config may ask for more than the memory
    missing, unexpected = model.load_state_dict(dict(weights), strict=False)
    if missing or unexpected:
        raise CheckpointError(
            f"the weights in {path} do not fit recipe {config.recipe!r}\n"
            f"  missing: {missing[:4]}\n  unexpected: {unexpected[:4]}\n"
            f"  its config or its weights were changed: {_COPY_AGAIN}"
        )
    return model.eval()


def recipe_of_export(folder: Path) -> str:
    """Return the name of the recipe that reads a Hugging Face folder."""
    content = read_object(folder / "config.json", _COPY_AGAIN)
    with expected_form(folder / "config.json", _COPY_AGAIN):
        has_head = read_by_head(content) is not None
    if has_head and (readers := recipes_able(BuildsOnEncoder)):
        return next(iter(readers))
    return recipe_of_huggingface(content.get("model_type"), str(folder))

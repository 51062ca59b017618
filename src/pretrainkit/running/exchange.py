"""Import and export of weights in formats of other projects."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from shlex import quote
from tempfile import TemporaryDirectory
from typing import Any

from pretrainkit.config.yaml import parse_yaml, read_text
from pretrainkit.errors import ConfigError, DataError, InputError
from pretrainkit.exporting.settings import (
    REST,
    ROUNDED,
    SETTINGS,
    is_rounded,
    read_settings,
    settings_beside,
    write_settings,
)
from pretrainkit.files.manifest import expected_form
from pretrainkit.files.outputs import new_file, new_folder
from pretrainkit.recipes.exchange import (
    ComparesWithHuggingFace,
    ImportedConfig,
    ImportedModel,
    ReadsConfigs,
    ReadsFiles,
    ReadsHuggingFace,
    TellsIds,
    WritesFiles,
    WritesHuggingFace,
)
from pretrainkit.recipes.registry import able, find_recipe, recipes_able
from pretrainkit.running.configs import load_config
from pretrainkit.running.kept_tokenizer import require_ids_of_model, usable_tokenizer
from pretrainkit.running.opened import Opened, open_model, with_weights
from pretrainkit.training.run import RunConfig

_log = logging.getLogger(__name__)

PROBES = (
    "The quick brown fox, it's 1,024 years old; isn't it? (No.)",
    "Über naïve Ärzte: DON'T  panic\t– 東京 и Москва 🙂!",
    "a",
    "unbelievably antidisestablishmentarianism http://x.y/z_1#q @you",
)
"""Texts that an export's tokenizer must encode like the model's tokenizer."""


def import_config(
    path: str | Path, recipe: str | None = None, settings: Iterable[str] = (), nproc: int = 1
) -> ImportedConfig:
    """Convert a config file of another system, such as T5X, to a config or command of ours, for `nproc` ranks.

    Without `recipe`, the file's extension or its keys determine the recipe. `settings` are `dotted.key=value` in that
    system's own keys.
    """
    reader = _reader_of(Path(path)) if recipe is None else able(find_recipe(recipe), ReadsConfigs)
    # Where a number is expected, a file of another system may have anything; --debug shows where it failed.
    with expected_form(path, "use a config that its system can read"):
        imported = reader.import_config(Path(path), settings, nproc)
    if imported.config is None:
        return imported
    # The readers fill in values as they are in the file; this checks their types and ranges.
    return replace(imported, config=load_config(imported.config.model_dump(mode="json", warnings=False)))


def _reader_of(path: Path) -> ReadsConfigs[Any]:
    """Return the recipe that reads files with this extension, or else knows most of the top-level keys. Raises
    InputError if the file is a config of ours or unknown."""
    readers = recipes_able(ReadsConfigs)
    by_suffix = [recipe for recipe in readers.values() if path.suffix in recipe.config_suffixes]
    if len(by_suffix) == 1:
        return by_suffix[0]
    if path.suffix == ".py":
        raise InputError(
            f"{path} is a Python program, which is not run\n"
            "  write its settings in our names, as overrides of a preset: pretrainkit config show bert/base"
        )
    tree = parse_yaml(read_text(path), str(path), tuples=True)
    keys = set(tree) if isinstance(tree, Mapping) else set()
    if keys & {"recipe", "extends"}:
        raise InputError(
            f"{path} is a config of pretrainkit\n  use it directly: pretrainkit config check {quote(str(path))}"
        )
    numbers = {name: len(keys & recipe.keys_of_other_configs) for name, recipe in readers.items()}
    best = max(numbers, key=numbers.__getitem__)
    if [*numbers.values()].count(numbers[best]) != 1:
        systems = ", ".join(f"{recipe.reads_configs_of} (--recipe {name})" for name, recipe in readers.items())
        shown = ", ".join(sorted(map(str, keys))[:5]) or "none"
        raise InputError(f"{path} is not a config file of a known kind; its keys: {shown}\n  supported: {systems}")
    return readers[best]


def export(
    path: str | Path,
    format: str,
    out: str | Path,
    *,
    averaged: bool = False,
    license: str | None = None,
    name: str | None = None,
) -> Path:
    """Export the weights of a run or checkpoint: `export("runs/x", "huggingface", "out")`.

    Formats are "huggingface" (a folder that `transformers` loads), "safetensors" (config.yaml, model.safetensors,
    tokenizer/), and the recipe's `export_formats`, for which `out` is a file, or a folder for its `folder_formats`.
    `averaged` exports the averaged weights of a run with `ema_decay`. A folder gets a model card, `README.md`, with
    `license` (such as "apache-2.0") and `name` (default: the name of `out`). Raises InputError if the format is
    unknown, or `out` exists or cannot be written.
    """
    from pretrainkit.exporting.card import write_card
    from pretrainkit.exporting.native import write_native

    opened, out = open_model(path, averaged=averaged), Path(out)
    length = _trained_length(opened, Path(path))
    others = opened.recipe.export_formats if isinstance(opened.recipe, WritesFiles) else ()
    if format not in ("huggingface", "safetensors", *others):
        known = ", ".join(("huggingface", "safetensors", *others))
        raise InputError(f"unknown export format {format!r} of recipe {opened.recipe.name!r}\n  formats: {known}")
    with TemporaryDirectory() as scratch:
        tokenizer = opened.tokenizer or _own_tokenizer(opened, Path(scratch, "tokenizer"))
        arguments, card_name = (opened.config, opened.model, tokenizer), name or out.name
        if format in others and format not in able(opened.recipe, WritesFiles).folder_formats:
            with new_file(out) as aside:
                able(opened.recipe, WritesFiles).export_file(*arguments, format, aside, name=card_name)
                write_settings(settings_beside(out), opened.config, length)
            return out
        with new_folder(out) as aside:
            if format == "huggingface":
                able(opened.recipe, WritesHuggingFace).export_huggingface(*arguments, aside)
                _complete(opened, tokenizer, aside, length)
            elif format == "safetensors":
                write_native(*arguments, aside, length)
            else:
                able(opened.recipe, WritesFiles).export_file(*arguments, format, aside, name=card_name)
                write_settings(aside / SETTINGS, opened.config, length)
            write_card(
                aside,
                opened.config,
                _run_of(Path(path)),
                name=card_name,
                license=license,
                percentages=opened.recipe.percentages,
            )
    return out


def _run_of(path: Path) -> Path | None:
    """Return the run folder of a run or of a checkpoint in it; None for a model that came from elsewhere."""
    places = (path, path.absolute().parent.parent)
    return next((folder for folder in places if (folder / "provenance.json").is_file()), None)


def _trained_length(opened: Opened, path: Path) -> int | None:
    """Return the maximum length of the model's training examples; None if the model came from elsewhere."""
    from pretrainkit.exporting.native import WEIGHTS

    if (path / "config.json").is_file() or (path / WEIGHTS).is_file():
        settings = read_settings(path / SETTINGS)
        return None if settings is None else settings.trained_length
    return opened.config.trained_length


def _own_tokenizer(opened: Opened, out: Path) -> Path | None:
    """Write the tokenizer of a model that needs no files to the new folder `out`. Returns None with a warning if there
    is none."""
    recipe = opened.recipe
    try:
        if isinstance(recipe, WritesHuggingFace) and recipe.own_tokenizer(opened.config, out):
            return out
    except (ConfigError, DataError) as error:
        _log.warning("the tokenizer is not exported: %s", str(error).splitlines()[0])
        return None
    if opened.config.trained_length is not None:
        _log.warning("the export has no tokenizer, because there is none beside the model")
    return None


def _complete(opened: Opened, tokenizer: Path | None, folder: Path, length: int | None) -> None:
    """Add what transformers needs to use an export as it was trained, and warn about what cannot be used."""
    from pretrainkit.exporting.foreign_tokenizer import difference_of_ids, with_right_sides

    write_settings(folder / SETTINGS, opened.config, length)
    _write_rest(opened, folder)
    about = folder / "tokenizer_config.json"
    if about.is_file():
        settings = with_right_sides(json.loads(about.read_bytes()))
        settings |= {} if length is None else {"model_max_length": length}
        about.write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n", "utf-8")
    values = json.loads((folder / "config.json").read_bytes())
    most = (values.get("text_config") or values).get("max_position_embeddings")
    if length is not None and isinstance(most, int) and most > length:
        _log.warning(
            "positions from %d to %d were not trained by this run: give the model at most %d tokens, the "
            "model_max_length of its tokenizer",
            *(length, most - 1, length),
        )
    if (expected := _ids_of_probes(opened, tokenizer)) and (difference := difference_of_ids(folder, expected)):
        _log.warning(
            "%s\n  encode texts with pretrainkit, otherwise the model gets other tokens than in training", difference
        )


def _ids_of_probes(opened: Opened, tokenizer: Path | None) -> dict[str, list[int]]:
    """Return the ids of the probes; empty if the model reads no texts or its recipe does not tell their ids."""
    if tokenizer is None or not isinstance(opened.recipe, TellsIds):
        return {}
    ids = opened.recipe.input_ids(opened.config, tokenizer, PROBES)
    return dict(zip(PROBES, ids, strict=True)) if ids else {}


def _warn_of_other_ids(opened: Opened, folder: Path) -> None:
    """Warn if a model that is imported from `folder` would read other ids than with its `AutoTokenizer`."""
    from pretrainkit.exporting.foreign_tokenizer import difference_of_ids

    expected = _ids_of_probes(opened, opened.tokenizer) if (folder / "tokenizer.json").is_file() else {}
    if expected and (difference := difference_of_ids(folder, expected, "pretrainkit as")):
        _log.warning(
            "%s: %s\n  if the model was trained on the ids of AutoTokenizer, save that with save_pretrained, and "
            "import the model with --tokenizer",
            *(folder, difference),
        )


def _write_rest(opened: Opened, folder: Path) -> None:
    """Write the tensors that would not be restored bit for bit when the export is read."""
    import torch

    from pretrainkit.exporting.safetensors import write_tensors

    try:
        reader = able(opened.recipe, ReadsHuggingFace)
        carried = reader.carried_weights(opened.config, reader.import_huggingface(folder)[1])
    except InputError as error:
        _log.warning(
            "the export cannot be imported again: %s\n  to train it further here, use --format safetensors as well",
            str(error).splitlines()[0],
        )
        return
    rest = {
        (ROUNDED if name in carried and is_rounded(carried[name], tensor) else "") + name: tensor
        for name, tensor in opened.model.state_dict().items()
        if name not in carried or not torch.equal(carried[name], tensor)
    }
    if rest:
        write_tensors(folder / f"{REST}.safetensors", rest)


_HUB = "hf-hub:"


def fetched(path: str | Path) -> str | Path:
    """Return `path`, or for `hf-hub:NAME` the folder to which the model is downloaded."""
    if not str(path).startswith(_HUB):
        return path
    from pretrainkit.files.hub import fetch_model

    return fetch_model(str(path).removeprefix(_HUB))


def import_model(
    path: str | Path,
    recipe: str | None,
    out: str | Path,
    *,
    format: str = "huggingface",
    config: str | Path | None = None,
    tokenizer: str | Path | None = None,
    pooling: str | None = None,
) -> Path:
    """Convert a model of another library to a folder of ours, for `init_from`, `evaluate` and `generate`.

    The whole model is built and checked before anything is written. Raises InputError if the format is unknown, the
    file is broken or of another architecture, the tokenizer has more pieces than the model, or `out` exists.

    Args:
        path: "huggingface": a folder written by transformers. Other formats: a file, or whatever the format defines.
            Also `hf-hub:NAME` or `hf-hub:NAME@REVISION`, which is downloaded.
        recipe: Recipe of the model; None: the recipe that reads its format or its model_type.
        format: "huggingface", or one of the recipe's `file_formats`.
        config: Preset or YAML file with the architecture of a file; None: that of the file, or the usual one.
        tokenizer: Folder of the model's tokenizer, if there is none beside the model; a copy is kept. For a ByT5 also
            "bytes".
        pooling: How a classifier computes one vector of a text, if its files do not define it.
    """
    from pretrainkit.exporting.foreign_tokenizer import changed_tokenizer
    from pretrainkit.exporting.native import write_native

    path = fetched(path)
    own_tokenizer = None if tokenizer is None else usable_tokenizer(Path(tokenizer))
    if (
        own_tokenizer is None
        and (Path(path) / "open_clip_config.json").is_file()
        and (Path(path) / "tokenizer.json").is_file()
    ):
        own_tokenizer = usable_tokenizer(Path(path))
    if format != "huggingface":
        if pooling is not None:
            raise InputError(f"files of format {format!r} contain no classifier to pool\n  leave --pooling out")
        imported = read_foreign_model(path, recipe, format=format, config=config)
        model = with_weights(find_recipe(imported.config.recipe), imported.config, imported.state, path)
        require_ids_of_model(imported.config, own_tokenizer)
        with TemporaryDirectory() as scratch:
            if own_tokenizer is not None and imported.changes is not None:
                own_tokenizer = changed_tokenizer(own_tokenizer, imported.changes, Path(scratch, "tokenizer"))
            known = config is not None or read_settings(settings_beside(Path(path))) is not None
            written = imported.config if known else _with_share_of_warmup(imported.config)
            write_native(written, model, own_tokenizer, Path(out), imported.trained_length)
        return Path(out)
    if config is not None:
        raise InputError(f"config={config} is only for files; {path} defines its own architecture\n  leave it out")
    if not Path(path).exists():
        raise DataError(f"there is no folder {path}\n  use the path of the model; for one on the hub, hf-hub:NAME")
    if not (Path(path) / "config.json").is_file():
        if (Path(path) / "open_clip_config.json").is_file():
            raise DataError(f"{path} is a model of open_clip, not of transformers\n  add --format openclip")
        if inner := next(Path(path).glob("0_*/config.json"), None):  # older models of sentence-transformers
            raise DataError(f"{path} has no config.json\n  pass the folder of its encoder, {inner.parent}")
        raise DataError(
            f"{path} is not a folder written by transformers: it has no config.json\n"
            "  name the system that wrote it with --format; runs, checkpoints and exports of pretrainkit need no import"
        )
    opened = open_model(path, recipe=recipe, pooling=pooling, tokenizer=own_tokenizer)
    require_ids_of_model(opened.config, own_tokenizer)
    known = read_settings(Path(path) / SETTINGS) is not None
    if not known:
        _warn_of_other_ids(opened, Path(path) if own_tokenizer is None else own_tokenizer)
    written = opened.config if known else _with_share_of_warmup(opened.config)
    write_native(written, opened.model, opened.tokenizer, Path(out), _trained_length(opened, Path(path)))
    return Path(out)


def _with_share_of_warmup(config: RunConfig) -> RunConfig:
    """Return the config of a model that does not define how it is trained, with a warm-up that also fits into a run of
    few steps. The schedules `factors` and `inverse_sqrt` are not changed, because their learning rate after the warm-up
    depends on its length."""
    schedule, num_steps = config.schedule, config.num_steps
    if num_steps is None or not schedule.num_warmup_steps or schedule.name in ("factors", "inverse_sqrt"):
        return config
    return config.changed(schedule={"num_warmup_steps": 0, "warmup_share": schedule.num_warmup_steps / num_steps})


def difference_from_huggingface(path: str | Path) -> float:
    """Return the largest difference between the outputs of a run, checkpoint or export and those of transformers for
    the same weights, on random inputs in float32. Raises InputError if the recipe has no such comparison, or the model
    has no Hugging Face form."""
    from pretrainkit.exporting.torchvision_shim import import_transformers

    opened = open_model(path)
    import_transformers()
    writer, comparer = able(opened.recipe, WritesHuggingFace), able(opened.recipe, ComparesWithHuggingFace)
    with TemporaryDirectory() as scratch:
        folder = Path(scratch, "model")
        writer.export_huggingface(opened.config, opened.model, None, folder)
        return comparer.difference_from_huggingface(opened.config, opened.model, folder)


def read_foreign_model(
    path: str | Path, recipe: str | None, *, format: str, config: str | Path | None = None
) -> ImportedModel:
    """Return the model that `import_model` would write for a file of another system, with tensor names; writes
    nothing."""
    path = fetched(path)
    name = recipe or _recipe_of_format(format)
    reader = able(find_recipe(name), ReadsFiles)
    if format not in reader.file_formats:
        known = ", ".join(("huggingface", *reader.file_formats))
        raise InputError(f"recipe {name!r} does not read the format {format!r}\n  formats: {known}")
    settings = read_settings(settings_beside(Path(path)))
    source = config if config is not None or settings is None else settings.config
    expected = None if source is None else load_config(source).changed(init_from=None)
    imported = reader.import_file(Path(path), format, expected)
    return imported if settings is None else replace(imported, trained_length=settings.trained_length)


def _recipe_of_format(format: str) -> str:
    """Return the recipe that reads files of this format. Raises InputError with the known formats."""
    readers = recipes_able(ReadsFiles)
    for name, recipe in readers.items():
        if format in recipe.file_formats:
            return name
    known = ", ".join(
        ["huggingface", *(known_format for recipe in readers.values() for known_format in recipe.file_formats)]
    )
    raise InputError(f"no recipe reads the format {format!r}\n  formats: {known}")

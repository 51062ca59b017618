"""`pretrainkit tasks`: list tasks and mixtures, show their examples, create caches."""

import importlib.util
import pkgutil
from collections.abc import Iterator
from fnmatch import fnmatch
from itertools import count, islice, product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from pretrainkit.cli.options import Data, Json, Lengths, Module, lengths_of, print_json
from pretrainkit.cli.stages import shown_stages
from pretrainkit.errors import InputError

if TYPE_CHECKING:
    from pretrainkit.tasks.rates import Share
    from pretrainkit.tasks.steps import BoundTask, Example
    from pretrainkit.tasks.supply import Supply
    from pretrainkit.tasks.task import BoundMixture, TaskRegistry

app = typer.Typer(add_completion=False)

_SHOWN_IDS = 24
_SHOWN_CHARACTERS = 400
_SHOWN_MEMBERS = 4
_PLURAL = {"task": "tasks", "mixture": "mixtures"}

Name = Annotated[str, Argument(metavar="NAME", help="A task or mixture.")]
Tokenizer = Annotated[
    str | None,
    Option(help="Vocabulary for tasks that take it from the run: a tokenizer folder, a run, an export, or bytes."),
]
LeaveOut = Annotated[list[str] | None, Option(metavar="NAME", help="Task to leave out of mixtures. May be repeated.")]


@app.callback(invoke_without_command=True)
def _root(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        list_()


@app.command("list")
def list_(
    *,
    only: Annotated[
        str | None,
        Option("--filter", metavar="TEXT", help="List only names that contain this text. * and ? are wildcards."),
    ] = None,
    module: Module = None,
    json_output: Json = False,
) -> None:
    """List the tasks and mixtures. Only the modules that define them are read, no data."""
    of_recipes = set(_registry(None).names())
    registry = _registry(module)
    pattern = "*" if only is None else only if {"*", "?"} & set(only) else f"*{only}*"
    entries = [_described(registry, name) for name in registry.names() if fnmatch(name, pattern)]
    if json_output:
        print_json(entries)
        return
    if not entries and only is not None:
        typer.echo(f"no name of the {len(registry.names())} tasks and mixtures contains {only!r}")
    elif not entries:
        typer.echo("there are no tasks; to list those of a module, run: pretrainkit tasks list --module my_tasks.py")
    for is_own, kind in product((True, False), ("task", "mixture")):
        shown = [entry for entry in entries if entry["kind"] == kind and (entry["name"] not in of_recipes) == is_own]
        if not shown:
            continue
        width = max(len(entry["name"]) for entry in shown)
        noun = kind if len(shown) == 1 else _PLURAL[kind]
        typer.echo(f"{len(shown)} {noun}{' of your modules' if is_own else ''}")
        for entry in shown:
            typer.echo(f"  {entry['name']:<{width}}  {_about(entry)}")


@app.command()
def show(
    name: Name,
    *,
    num: Annotated[int, Option(min=1, help="Number of examples to show.")] = 5,
    split: Annotated[str, Option(help="Split of the task.")] = "train",
    lengths: Lengths = None,
    seed: Annotated[int, Option(help="Seed of random preprocessing and of the order of a mixture.")] = 0,
    epoch: Annotated[int, Option(min=0, help="Epoch of a task. Random preprocessing differs in each epoch.")] = 0,
    cache: Annotated[list[Path] | None, Option(help="Folder of caches. May be repeated.")] = None,
    num_steps: Annotated[
        int | None, Option(min=1, help="Number of training steps, to report the number of epochs of each task.")
    ] = None,
    batch_size: Annotated[int, Option(min=1, help="Examples per step, for --num-steps.")] = 128,
    data: Data = None,
    tokenizer: Tokenizer = None,
    sentinels: Annotated[
        int | None, Option(min=1, help="Number of sentinel ids after the vocabulary: data.denoising.num_sentinels.")
    ] = None,
    leave_out: LeaveOut = None,
    module: Module = None,
    json_output: Json = False,
) -> None:
    """Show examples as a model reads them: ids and text of every feature.

    For a mixture, also show the rate of each task, its share of the examples and of the tokens, and its mean lengths.
    Tasks that take their vocabulary from the run are shown in bytes unless --tokenizer is given. Tasks that take their
    objective from the run are shown with the default one.
    """
    from pretrainkit.tasks.rates import table
    from pretrainkit.tasks.supply import RunSteps
    from pretrainkit.tasks.task import Task
    from pretrainkit.tasks.vocabulary_folder import BYTES, NUM_SENTINELS

    open_registry = _registry(module)
    as_defined = [open_registry.get_task(task) for task in open_registry.task_names(name)]
    leaving = {task.name for task in as_defined if any(isinstance(step, RunSteps) for step in task.preprocessors)}
    if tokenizer is None and leaving:
        sentinels = sentinels or NUM_SENTINELS  # the byte vocabulary has only 11 unused ids
    registry = open_registry.supplied(_supply(data, tokenizer or BYTES, leave_out, sentinels))
    entry = registry.get(name)
    limits, folders = lengths_of(lengths), list(cache or [])
    features = dict.fromkeys(feature for task in registry.tasks(name) for feature in task.features)
    if unknown := [feature for feature in limits or () if feature not in features]:
        raise InputError(
            f"--lengths names {unknown[0]!r}, and {name} has no such feature\n  give one of: {', '.join(features)}"
        )
    mixture = registry.bind(name, split, limits, seed=seed, caches=folders)
    if isinstance(entry, Task):
        task = mixture.tasks[0]
        examples: Iterator[tuple[BoundTask, int, int, Example]] = (
            (task, index, epoch, task.example(index, epoch)) for index in range(len(task))
        )
    else:
        examples = _drawn(mixture, seed)
    shown = list(islice(examples, num))
    rates = registry.rates(name, split=split, caches=folders, lengths=limits, is_quiet=True)
    rows = [] if isinstance(entry, Task) else _shares(mixture, rates)
    if json_output:
        rows_shown = [
            {"task": task.name, "index": index, "epoch": at, **{key: _plain(value) for key, value in example.items()}}
            for task, index, at, example in shown
        ]
        answer = {"name": name, "split": split, "rates": rates, "shares": rows, "examples": rows_shown}
        print_json(answer)
        return
    if leaving & set(registry.task_names(name)):
        typer.echo(
            "note: inputs and targets are made with the default settings of a run (data.denoising of its config)"
        )
    if isinstance(entry, Task):
        origin = ", from a cache" if mixture.tasks[0].is_cached else ""
        typer.echo(f"{name}: {len(mixture.tasks[0]):,} examples of {split}{origin}")
    else:
        typer.echo("\n".join(table(rows, None if num_steps is None else num_steps * batch_size)))
    for task, index, at, example in shown:
        typer.echo(f"\n{task.name} {split} {index}" + (f", epoch {at}" if at else ""))
        for line in _lines(task, example):
            typer.echo(line)


@app.command()
def cache(
    name: Annotated[list[str], Argument(metavar="NAME...", help="Tasks, or mixtures for all their tasks.")],
    *,
    out: Annotated[Path, Option(help="Folder for caches.")],
    split: Annotated[list[str] | None, Option(help="Split to cache. May be repeated. Default: all splits.")] = None,
    num_shards: Annotated[
        int | None, Option(min=1, help="Number of shards per split. Default: one per 50,000 examples.")
    ] = None,
    workers: Annotated[int | None, Option(min=1, help="Number of processes. Default: one per core.")] = None,
    overwrite: Annotated[
        bool, Option("--overwrite", help="Replace a cache whose data, steps or vocabularies have changed.")
    ] = False,
    data: Data = None,
    tokenizer: Tokenizer = None,
    leave_out: LeaveOut = None,
    module: Module = None,
    json_output: Json = False,
) -> None:
    """Apply the preprocessing before the cache marker once, and store the examples in OUT/NAME.

    After an interruption, the same command continues. The examples do not depend on --workers.
    """
    from pretrainkit.tasks.cache import TaskCache
    from pretrainkit.tasks.cache_writer import cache_task

    registry = _registry(module).supplied(_supply(data, tokenizer, leave_out))
    tasks = {task.name: task for entry in name for task in registry.tasks(entry)}
    there_are = dict.fromkeys(part for task in tasks.values() for part in task.splits)
    if unknown := [part for part in split or () if part not in there_are]:
        raise InputError(f"there is no split {unknown[0]!r}\n  give one of: {', '.join(there_are)}")
    results: dict[str, Any] = {}
    with shown_stages() as progress:
        for task in tasks.values():
            splits = [part for part in split or task.splits if part in task.splits]
            if not splits:
                progress.note(f"left out {task.name}: it has no split {' or '.join(split or ())}")
                continue
            folder = cache_task(
                task,
                out,
                splits=splits,
                num_shards=num_shards,
                workers=workers,
                modules=(*_recipe_modules(), *(module or ())),
                overwrite=overwrite,
                progress=progress,
            )
            stored = TaskCache(folder)
            stats = {part: stored.stats(part) for part in task.splits if stored.has(part)}
            results[task.name] = {"folder": str(folder), "splits": stats}
    if json_output:
        print_json(results)
        return
    for task_name, result in results.items():
        for part, stats in result["splits"].items():
            tokens = ", ".join(
                f"{value:,} tokens of {key.removesuffix('_tokens')}"
                for key, value in stats.items()
                if key.endswith("_tokens") and not key.endswith("_max_tokens")
            )
            typer.echo(f"{result['folder']}: {task_name} {part}, {stats['examples']:,} examples, {tokens}")


def _registry(modules: list[str] | None) -> "TaskRegistry":
    from pretrainkit.tasks.task import REGISTRY
    from pretrainkit.tasks.user_modules import import_modules

    import_modules([*_recipe_modules(), *(modules or [])])
    return REGISTRY


def _supply(
    data: list[str] | None, tokenizer: str | None, leave_out: list[str] | None, num_sentinels: int | None = None
) -> "Supply":
    """Return what a run would supply to its tasks: the given options, and the default preprocessing of a run."""
    from importlib import import_module

    from pretrainkit.tasks.named_data import task_folders
    from pretrainkit.tasks.supply import Supply
    from pretrainkit.tasks.vocabulary_folder import open_vocabulary

    vocabulary = None if tokenizer is None else open_vocabulary(tokenizer, num_sentinels)
    catalogues = [vars(import_module(name)) for name in _recipe_modules()]  # some catalogues define no tasks
    (default_steps,) = [names["default_steps"] for names in catalogues if "default_steps" in names]
    return Supply(vocabulary, task_folders(data or ()), default_steps, frozenset(leave_out or ()))


def _about(entry: dict[str, Any]) -> str:
    """Return the text after the name in a line of the list."""
    members = entry.get("members", [])
    more = f" and {len(members) - _SHOWN_MEMBERS} more" if len(members) > _SHOWN_MEMBERS else ""
    parts = f"of {', '.join(members[:_SHOWN_MEMBERS])}{more}" if members else f"splits {', '.join(entry['splits'])}"
    return f"{', '.join(entry['features'])}; {parts}"


def _recipe_modules() -> Iterator[str]:
    """Yield the modules `recipes/NAME/catalogue.py`, in which recipes define named tasks."""
    import pretrainkit.recipes

    for recipe in pkgutil.iter_modules(pretrainkit.recipes.__path__, "pretrainkit.recipes."):
        if recipe.ispkg and importlib.util.find_spec(f"{recipe.name}.catalogue") is not None:
            yield f"{recipe.name}.catalogue"


def _described(registry: "TaskRegistry", name: str) -> dict[str, Any]:
    from pretrainkit.tasks.task import Task

    entry = registry.get(name)
    if isinstance(entry, Task):
        return {"name": name, "kind": "task", "features": list(entry.features), "splits": list(entry.splits)}
    features = list(registry.get_task(registry.task_names(name)[0]).features)
    return {"name": name, "kind": "mixture", "features": features, "members": [member for member, _ in entry.pairs]}


def _shares(mixture: "BoundMixture", rates: dict[str, float]) -> "list[Share]":
    """Return a row for every task. Tasks with rate 0 come last."""
    from pretrainkit.tasks.rates import mean_lengths, shares

    unused = [name for name, rate in rates.items() if not rate]
    means = [mean_lengths(task, ("inputs", "targets")) for task in mixture.tasks]
    lengths = [(mean["inputs"], mean["targets"]) for mean in means] + [(0.0, 0.0)] * len(unused)
    names = [task.name for task in mixture.tasks] + unused
    return shares(names, [rates[name] for name in names], [*mixture.sizes, *(0 for _ in unused)], lengths)


def _drawn(mixture: Any, seed: int) -> "Iterator[tuple[BoundTask, int, int, Example]]":
    """Yield examples of a mixture in the order of a training with this seed."""
    import numpy as np

    from pretrainkit.data.order import Order

    order = Order(mixture.sizes, seed=seed, weights=mixture.weights)
    for position in count():
        record = order.records(np.array([position]))
        source, index, epoch = (int(column[0]) for column in (record.source, record.index, record.epoch))
        yield mixture.tasks[source], index, epoch, mixture.example(source, index, epoch)


def _plain(value: Any) -> Any:
    import numpy as np

    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    return value if isinstance(value, (str, int, float, list, dict, type(None))) else str(value)


def _lines(task: "BoundTask", example: "Example") -> Iterator[str]:
    import numpy as np

    for key, value in example.items():
        feature = task.features.get(key)
        if feature is None:
            yield f"  {key}: {_short(value if isinstance(value, str) else str(_plain(value)))}"
            continue
        ids = np.asarray(value).reshape(-1).tolist()
        more = f" … {len(ids)} in all" if len(ids) > _SHOWN_IDS else ""
        yield f"  {key} [{len(ids)}]: {' '.join(map(str, ids[:_SHOWN_IDS]))}{more}"
        if feature.rank == 1 and feature.numpy_dtype.kind in "iu":
            end = " + EOS" if ids and ids[-1] == feature.vocabulary.eos_id else ""
            yield f"    {_short(feature.vocabulary.decode(ids))!r}{end}"


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"

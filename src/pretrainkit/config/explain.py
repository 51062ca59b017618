"""What pydantic finds wrong with a config, in words: what was given, what is accepted, what to do."""

import difflib
import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, get_args

from pydantic import BaseModel, ValidationError

from pretrainkit.config.base import ConflictError, shown
from pretrainkit.config.docs import field_types

_LABEL = re.compile(r"(constrained-)?(str|int|float|bool|bytes|none)|.*\[.*|function-.*|is-instance.*|lax-or-strict.*")
"""Pydantic's names for members of unions and for validators, which stand between the names of fields."""


class _Place(NamedTuple):
    """Where an error is."""

    path: str
    """Dotted, as the user writes it."""
    owners: list[type[BaseModel]]
    """Classes of the settings that hold the last field of `path`."""
    field: str
    """That field; empty where the error is of all settings, or of a field that is not known."""
    members: list[type[BaseModel]]
    """Classes that the value may have; empty unless it is settings."""


def explain(
    error: ValidationError,
    config_class: type[BaseModel],
    *,
    origin: Callable[[str], str] = lambda path: "",
    all_fields: Callable[[str], str] = lambda parent: "",
) -> list[str]:
    """Every problem, as a message each; several of one field are one problem. `origin` gives of a dotted path where its
    value comes from, such as "line 3 of file my.yaml", or nothing; `all_fields` of that of settings a command that
    shows what they have."""
    problems: dict[str, str] = {}
    for one in error.errors():
        place = _place(one["loc"], config_class)
        if place.path in problems and one["type"] not in ("value_error", "missing", "extra_forbidden"):
            continue
        problems[place.path] = _message(one, place, config_class, origin, all_fields)
    return list(problems.values())


def _message(
    error: Any,
    place: _Place,
    config_class: type[BaseModel],
    origin: Callable[[str], str],
    all_fields: Callable[[str], str],
) -> str:
    path, given = place.path, error.get("input")
    parent = path.rpartition(".")[0]
    source = origin(path)
    where = f" ({source})" if source.startswith("line ") else ""
    owner = next((owner for owner in place.owners if place.field in owner.model_fields), None)
    doc = "" if owner is None else " ".join((owner.model_fields[place.field].description or "").split())
    meaning = f"\n  meaning: {doc}" if doc else ""
    if error["type"] == "missing":
        return f"{path} is missing{f'{chr(10)}  {doc}' if doc else ''}\n  give it: {path}=VALUE"
    if error["type"] == "extra_forbidden":
        return _unknown(path, _short(given), place.owners, config_class, where, all_fields(parent))
    if error["loc"][-1:] == ("[key]",):
        keys = [str(key) for owner in place.owners for key in _keys(owner.model_fields[place.field].annotation)]
        accepted = f"\n  accepted: the keys {' | '.join(keys)}" if keys else ""
        return f"{parent} cannot have the key {path.rpartition('.')[2]}{where}{accepted}{meaning}"
    own = isinstance(error.get("ctx", {}).get("error"), ValueError)
    if own or error["type"] == "assertion_error":
        message = re.sub(r"^(Value|Assertion) error, ", "", error["msg"])
        if not path and isinstance(given, Mapping):
            words = " ".join(f"{name}={_short(value)}" for name, value in given.items())
            return f"{message}\n  given:   {words or 'nothing'}"
        if isinstance(given, Mapping | BaseModel):  # of several fields together, which the message names
            return f"{path}: {message}{where}"
        return f"{path}: {message}\n  given:   {path}={_short(given)}{where}{meaning}"
    if error["type"] in ("union_tag_invalid", "union_tag_not_found") and isinstance(given, Mapping):
        tag = tag_of(place.members)
        if tag is not None:
            path = f"{path}.{tag[0]}"
            given = given.get(tag[0])
            accepted = " | ".join(tag[1])
            verb = "is missing" if given is None else f"cannot be {_short(given)}"
            return f"{path} {verb}\n  given:   {path}={_short(given)}{where}\n  accepted: {accepted}"
    accepted = _accepted(place)
    names = [name for c in place.members for name, info in c.model_fields.items() if given in get_args(info.annotation)]
    if isinstance(given, str) and names:
        accepted += f"\n  write: {path}.{names[0]}={given}"
    return (
        f"{path or 'the config'} cannot be {_short(given)}\n  given:   {path}={_short(given)}{where}"
        f"{f'{chr(10)}  accepted: {accepted}' if accepted else ''}{meaning}"
    )


def _accepted(place: _Place) -> str:
    """What a field takes, in words; of settings the names of their fields."""
    words = next((field_types(owner)[place.field] for owner in place.owners if place.field in owner.model_fields), "")
    if not place.members:
        return words
    if (tag := tag_of(place.members)) is not None:
        return f"settings, with {tag[0]}={' | '.join(tag[1])} and the fields of that"
    return f"{words or 'settings'}, with the fields {', '.join(place.members[0].model_fields)}"


def _unknown(
    path: str, given: str, owners: Sequence[type[BaseModel]], config_class: type[BaseModel], where: str, all_fields: str
) -> str:
    """A field that is not there: of another member of a union, or misspelled."""
    parent, _, leaf = path.rpartition(".")
    known = fields_under(config_class)
    told = f"{parent or 'the config'} has no field {leaf!r}\n  given:   {path}={given}{where}"
    if path in known and (choice := _choice_with(path, config_class)) is not None:
        return f"{told}\n  only {choice} has it: set that, or leave it out"
    here = {f"{parent}.{name}" if parent else name for owner in owners for name in owner.model_fields}
    near = {name: doc for name, doc in known.items() if name in here or not name.startswith(f"{parent}.")}
    close = nearest(path, near if parent else known)
    advice = f"\n  closest: {close}" if close else ""
    habit = in_our_words(leaf, given, known)
    if habit and (not parent or habit.startswith(f"{parent}.")):
        advice = f"\n  write: {habit}"
    if not all_fields and owners:
        return f"{told}{advice}\n  there are {', '.join(owners[0].model_fields)}"
    return f"{told}{advice}" + (f"\n  all fields: {all_fields}" if all_fields else "")


def _choice_with(path: str, config_class: type[BaseModel]) -> str | None:
    """The choice, as `path=value`, under which the field at `path` is there."""
    for union, tag, members in unions_of(config_class):
        if path.startswith(f"{union}."):
            part = path.removeprefix(f"{union}.").partition(".")[0]
            having = [name for name, member in members.items() if part in member.model_fields]
            if having and len(having) < len(members):
                return f"{union}.{tag}={having[0]}"
    return None


def _place(location: Sequence[Any], config_class: type[BaseModel]) -> _Place:
    """Find the field that pydantic's location means. It also has tags of unions and names of types, which no user
    wrote."""
    classes: list[type[BaseModel]] = [config_class]
    owners: list[type[BaseModel]] = []
    field, path, has_keys = "", list[Any](), False
    for number, part in enumerate(location):
        is_last = number == len(location) - 1
        if isinstance(part, int):
            path.append(part)
        elif any(part in c.model_fields for c in classes):
            owners = [c for c in classes if part in c.model_fields]
            field, annotations = part, [c.model_fields[part].annotation for c in owners]
            classes = [sub for one in annotations for sub in config_classes_in(one, in_lists=True)]
            has_keys = any(_has_keys(one) for one in annotations)
            path.append(part)
        elif (narrowed := [c for c in classes if part in _literals(c) or part == c.__name__]) and path:
            classes = narrowed
        elif has_keys and not _LABEL.fullmatch(part):
            path.append(part)
            has_keys = False
        elif is_last and classes and not _LABEL.fullmatch(part):  # a field that is not known
            path.append(part)
            owners, field, classes = classes, "", []
    return _Place(".".join(map(str, path)), owners, field, classes if field else [])


def _has_keys(annotation: Any) -> bool:
    return getattr(annotation, "__origin__", None) is dict or any(map(_has_keys, get_args(annotation)))


def _keys(annotation: Any) -> tuple[Any, ...]:
    """The keys that a mapping may have, where they are given one by one."""
    if getattr(annotation, "__origin__", None) is dict:
        return get_args(get_args(annotation)[0])
    return tuple(key for one in get_args(annotation) for key in _keys(one))


def tag_of(members: Sequence[type[BaseModel]]) -> tuple[str, dict[str, type[BaseModel]]] | None:
    """Of a union of configs the field that tells its members apart, and value of that to member."""
    if len(members) < 2:
        return None
    for field in set.intersection(*(set(member.model_fields) for member in members)):
        values = [get_args(member.model_fields[field].annotation) for member in members]
        if all(len(value) == 1 for value in values) and len({value[0] for value in values}) == len(members):
            return field, {value[0]: member for value, member in zip(values, members, strict=True)}
    return None


@cache
def unions_of(config_class: type[BaseModel], prefix: str = "") -> list[tuple[str, str, dict[str, type[BaseModel]]]]:
    """Of each union of configs: its dotted path, the field that tells its members apart, and the members."""
    found = []
    for name, info in config_class.model_fields.items():
        members, path = config_classes_in(info.annotation), f"{prefix}{name}"
        if (tag := tag_of(members)) is not None:
            found.append((path, *tag))
        for member in members:
            found += unions_of(member, f"{path}.")
    return found


def fields_under(config_class: type[BaseModel], prefix: str = "") -> dict[str, str]:
    """Dotted path of every field below a config class, to its documentation."""
    found: dict[str, str] = {}
    for name, info in config_class.model_fields.items():
        path = f"{prefix}.{name}" if prefix else name
        found[path] = info.description or ""
        for sub in config_classes_in(info.annotation):
            found |= fields_under(sub, path)
    return found


def config_classes_in(annotation: Any, *, in_lists: bool = False) -> list[type[BaseModel]]:
    """The config classes that an annotation allows: through Optional, unions and Annotated, not through lists."""
    if isinstance(annotation, type) and not get_args(annotation):
        return [annotation] if issubclass(annotation, BaseModel) else []
    if getattr(annotation, "__origin__", None) in (list, tuple, dict) and not in_lists:
        return []
    return [c for arg in get_args(annotation) for c in config_classes_in(arg, in_lists=in_lists)]


def _literals(config_class: type[BaseModel]) -> set[str]:
    return {
        value
        for info in config_class.model_fields.values()
        for value in get_args(info.annotation)
        if isinstance(value, str)
    }


def _short(value: Any) -> str:
    text = " ".join(shown(value).split())
    return text if len(text) <= 80 else text[:77] + "..."


_NAMES_ELSEWHERE = {
    "optimizer.peak_lr={}": "lr learning-rate",
    "optimizer.weight_decay={}": "wd",
    "optimizer.name={}": "optim opt optimizer",
    "optimizer.max_grad_norm={}": "clip-grad grad-clip-norm",
    "optimizer.beta1={}": "adam-beta1",
    "optimizer.beta2={}": "adam-beta2",
    "optimizer.epsilon={}": "adam-epsilon eps",
    "num_steps=null data.num_epochs={}": "epochs num-epochs num-train-epochs",
    "num_steps={}": "max-steps steps train-steps",
    "schedule.num_warmup_steps={}": "warmup warmup-steps",
    "schedule.warmup_share={}": "warmup-ratio",
    "schedule.name={}": "sched lr-scheduler lr-scheduler-type",
    "model.image_size={}": "img-size image-size",
    "data.max_seq_length={}": "max-length max-seq-len",
    "data.batch_size={}": "bs train-batch-size",
    "data.microbatch_size={}": "per-device-train-batch-size",
    "evaluate.batch_size={}": "per-device-eval-batch-size",
    "data.train={}": "train-data train-file dataset",
    "data.valid={}": "val-data validation-file",
    "data.num_workers={}": "workers dataloader-num-workers",
    "precision.compute={}": "precision",
    "precision.compute=auto": "amp",
    "precision.compute=bfloat16": "bf16",
    "precision.compute=float16": "fp16",
    "parallel.activation_checkpointing=true": "grad-checkpointing gradient-checkpointing",
    "parallel.compile=on": "torchcompile torch-compile",
    "checkpoint.every_steps={}": "save-steps",
    "checkpoint.keep_last={}": "save-total-limit",
    "log.every_steps={}": "logging-steps log-every-n-steps",
    "evaluate.every_steps={}": "eval-steps",
    "log.wandb=online": "report-to",
    "init_from={}": "pretrained initial-checkpoint model-name-or-path",
    "--out {}": "output-dir output logs",
}
_HABITS = {name: here for here, names in _NAMES_ELSEWHERE.items() for name in names.split()}
"""Options of Hugging Face's trainer, timm and open_clip, to what says the same here."""


def in_our_words(name: str, value: str, fields: Container[str]) -> str | None:
    """The setting or option that says what `name` says to other trainers; None: none, or this recipe lacks it."""
    habit = _HABITS.get(name.replace("_", "-"), "").format(value)
    paths = [word.partition("=")[0] for word in habit.split() if "=" in word]
    return habit if habit and all(path in fields for path in paths) else None


def nearest(path: str, known: Mapping[str, str]) -> str | None:
    """The known dotted path that `path` most likely meant: by spelling, place, and the words of the documentation."""
    parent, _, leaf = path.rpartition(".")
    words = set(re.findall(r"[a-z]{2,}", leaf.lower()))

    def score(candidate: str) -> float:
        other_parent, _, other_leaf = candidate.rpartition(".")
        spelling = difflib.SequenceMatcher(None, leaf, other_leaf).ratio()
        doc_words = set(re.findall(r"[a-z]{2,}", known[candidate].lower()))
        described = len(words & doc_words) / len(words) if words else 0.0
        named = len(words & set(other_leaf.split("_"))) / len(words) if words else 0.0
        # Spelling counts most; a word in a name more than one in a text; the same parent breaks ties.
        likeness = max(spelling, 0.9 * named, 0.8 * described)
        return likeness + (0.15 if other_parent == parent and likeness > 0.5 else 0.0)

    best = max(known, key=score, default=None)
    return best if best is not None and score(best) >= 0.6 else None


def conflicts_in(error: ValidationError, config_class: type[BaseModel]) -> Iterable[tuple[str, ConflictError]]:
    """(Dotted path of the settings, conflict) of those that validators of the config found among their fields."""
    for one in error.errors():
        found = one.get("ctx", {}).get("error")
        if isinstance(found, ConflictError):
            yield _place(one["loc"], config_class).path, found


def refused_in(error: ValidationError, config_class: type[BaseModel]) -> list[str]:
    """Dotted path of each value that is refused by itself."""
    return [_place(one["loc"], config_class).path for one in error.errors() if one["type"] != "value_error"]

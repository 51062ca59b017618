"""Readable messages for pydantic's validation errors: the given value, the accepted values and how to fix it."""

import difflib
import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, get_args

from pydantic import BaseModel, ValidationError

from pretrainkit.config.base import ConflictError, shown
from pretrainkit.config.docs import field_types

_LABEL = re.compile(r"(constrained-)?(str|int|float|bool|bytes|none)|.*\[.*|function-.*|is-instance.*|lax-or-strict.*")
"""Pydantic's labels for union members and validators, which occur between field names in error locations."""


class _Place(NamedTuple):
    """Location of an error."""

    path: str
    """Dotted path, as the user writes it."""
    owners: list[type[BaseModel]]
    """Config classes that contain the last field of `path`."""
    field: str
    """Last field of `path`; empty if the error concerns a whole config or an unknown field."""
    members: list[type[BaseModel]]
    """Config classes that the value may have; empty if the value is not a config."""


def explain(
    error: ValidationError,
    config_class: type[BaseModel],
    *,
    origin: Callable[[str], str] = lambda path: "",
    all_fields: Callable[[str], str] = lambda parent: "",
) -> list[str]:
    """Return one message for each field with problems.

    `origin` returns the origin of the value at a dotted path, such as "line 3 of file my.yaml", or "". `all_fields`
    returns a command that lists the fields of the config at a dotted path."""
    problems: dict[str, str] = {}
    for detail in error.errors():
        place = _place(detail["loc"], config_class)
        if place.path in problems and detail["type"] not in ("value_error", "missing", "extra_forbidden"):
            continue
        problems[place.path] = _message(detail, place, config_class, origin, all_fields)
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
        if isinstance(given, Mapping | BaseModel):  # about several fields, which the message already lists
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
    """Describe the values that a field accepts; for a config, list its fields."""
    words = next((field_types(owner)[place.field] for owner in place.owners if place.field in owner.model_fields), "")
    if not place.members:
        return words
    if (tag := tag_of(place.members)) is not None:
        return f"settings, with {tag[0]}={' | '.join(tag[1])} and the fields of that kind"
    return f"{words or 'settings'}, with the fields {', '.join(place.members[0].model_fields)}"


def _unknown(
    path: str, given: str, owners: Sequence[type[BaseModel]], config_class: type[BaseModel], where: str, all_fields: str
) -> str:
    """Return the message for an unknown field: a misspelled one, or one of another member of a union."""
    parent, _, leaf = path.rpartition(".")
    known = fields_under(config_class)
    message = f"{parent or 'the config'} has no field {leaf!r}\n  given:   {path}={given}{where}"
    if path in known and (choice := _choice_with(path, config_class)) is not None:
        return f"{message}\n  the field exists only with {choice}: set {choice}, or remove the field"
    here = {f"{parent}.{name}" if parent else name for owner in owners for name in owner.model_fields}
    near = {name: doc for name, doc in known.items() if name in here or not name.startswith(f"{parent}.")}
    close = nearest(path, near if parent else known)
    advice = f"\n  closest: {close}" if close else ""
    habit = in_our_words(leaf, given, {*known, "--out"})
    if habit and (not parent or habit.startswith(f"{parent}.")):
        advice = f"\n  write: {habit}"
    if not all_fields and owners:
        return f"{message}{advice}\n  fields: {', '.join(owners[0].model_fields)}"
    return f"{message}{advice}" + (f"\n  all fields: {all_fields}" if all_fields else "")


def _choice_with(path: str, config_class: type[BaseModel]) -> str | None:
    """Return the setting (`dotted.path=value`) with which a union has the field at `path`; None if there is none."""
    for union, tag, members in unions_of(config_class):
        if path.startswith(f"{union}."):
            part = path.removeprefix(f"{union}.").partition(".")[0]
            having = [name for name, member in members.items() if part in member.model_fields]
            if having and len(having) < len(members):
                return f"{union}.{tag}={having[0]}"
    return None


def _place(location: Sequence[Any], config_class: type[BaseModel]) -> _Place:
    """Return the field at pydantic's location, which also contains union tags and type names that no user wrote."""
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
            classes = [sub for annotation in annotations for sub in config_classes_in(annotation, in_lists=True)]
            has_keys = any(map(_has_keys, annotations))
            path.append(part)
        elif (narrowed := [c for c in classes if part in _literals(c) or part == c.__name__]) and path:
            classes = narrowed
        elif has_keys and not _LABEL.fullmatch(part):
            path.append(part)
            has_keys = False
        elif is_last and classes and not _LABEL.fullmatch(part):  # an unknown field
            path.append(part)
            owners, field, classes = classes, "", []
    return _Place(".".join(map(str, path)), owners, field, classes if field else [])


def _has_keys(annotation: Any) -> bool:
    return getattr(annotation, "__origin__", None) is dict or any(map(_has_keys, get_args(annotation)))


def _keys(annotation: Any) -> tuple[Any, ...]:
    """Return the keys that a mapping may have, if its type lists them."""
    if getattr(annotation, "__origin__", None) is dict:
        return get_args(get_args(annotation)[0])
    return tuple(key for argument in get_args(annotation) for key in _keys(argument))


def tag_of(members: Sequence[type[BaseModel]]) -> tuple[str, dict[str, type[BaseModel]]] | None:
    """Return the discriminating field of a union of configs, and a mapping from its value to the member."""
    if len(members) < 2:
        return None
    for field in set.intersection(*(set(member.model_fields) for member in members)):
        values = [get_args(member.model_fields[field].annotation) for member in members]
        if all(len(value) == 1 for value in values) and len({value[0] for value in values}) == len(members):
            return field, {value[0]: member for value, member in zip(values, members, strict=True)}
    return None


@cache
def unions_of(config_class: type[BaseModel], prefix: str = "") -> list[tuple[str, str, dict[str, type[BaseModel]]]]:
    """List the dotted path, the discriminating field and the members of each union of configs."""
    unions = []
    for name, info in config_class.model_fields.items():
        members, path = config_classes_in(info.annotation), f"{prefix}{name}"
        if (tag := tag_of(members)) is not None:
            unions.append((path, *tag))
        for member in members:
            unions += unions_of(member, f"{path}.")
    return unions


def fields_under(config_class: type[BaseModel], prefix: str = "") -> dict[str, str]:
    """Map the dotted path of every field below a config class to its documentation."""
    docs: dict[str, str] = {}
    for name, info in config_class.model_fields.items():
        path = f"{prefix}.{name}" if prefix else name
        docs[path] = info.description or ""
        for sub in config_classes_in(info.annotation):
            docs |= fields_under(sub, path)
    return docs


def config_classes_in(annotation: Any, *, in_lists: bool = False) -> list[type[BaseModel]]:
    """List the config classes in an annotation, also inside Optional, unions and Annotated, and with `in_lists` in
    collections."""
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
    "num_steps={}": "max-steps steps train-steps num-train-steps",
    "schedule.num_warmup_steps={}": "warmup warmup-steps num-warmup-steps",
    "schedule.warmup_share={}": "warmup-ratio warmup-proportion",
    "schedule.name={}": "sched lr-scheduler lr-scheduler-type",
    "model.image_size={}": "img-size image-size",
    "data.max_seq_length={}": "max-length max-seq-len",
    "data.batch_size={}": "bs train-batch-size",
    "data.microbatch_size={}": "per-device-train-batch-size",
    "evaluate.batch_size={}": "per-device-eval-batch-size eval-batch-size",
    "data.train={}": "train-data train-file dataset input-files",
    "objective.max_predictions={}": "max-predictions-per-seq",
    "data.valid={}": "val-data validation-file",
    "data.num_workers={}": "workers dataloader-num-workers",
    "precision.compute={}": "precision",
    "precision.compute=auto": "amp",
    "precision.compute=bfloat16": "bf16",
    "precision.compute=float16": "fp16",
    "parallel.activation_checkpointing=true": "grad-checkpointing gradient-checkpointing",
    "parallel.compile=on": "torchcompile torch-compile",
    "checkpoint.every_steps={}": "save-steps save-checkpoints-steps",
    "checkpoint.keep_last={}": "save-total-limit",
    "log.every_steps={}": "logging-steps log-every-n-steps",
    "evaluate.every_steps={}": "eval-steps",
    "log.to=[{}]": "report-to",
    "init_from={}": "pretrained initial-checkpoint init-checkpoint model-name-or-path",
    "--out {}": "output-dir output logs",
    "--gpus {}": "ranks world-size devices num-gpus",
}
_HABITS = {name: here for here, names in _NAMES_ELSEWHERE.items() for name in names.split()}
"""Options of Hugging Face's trainer, BERT, timm and open_clip, mapped to the equivalent settings of pretrainkit."""


def in_our_words(name: str, value: str, known: Container[str]) -> str | None:
    """Return the setting or option equivalent to `name` of another trainer; None if it is not `known`: a field of this
    recipe or an option of this command."""
    habit = _HABITS.get(name.replace("_", "-"), "").format(value)
    names = [word.partition("=")[0] for word in habit.split() if "=" in word or word.startswith("--")]
    return habit if habit and all(name in known for name in names) else None


def nearest(path: str, known: Mapping[str, str]) -> str | None:
    """Return the known dotted path most similar to `path` in spelling, parent and documentation; None if none is."""
    parent, _, leaf = path.rpartition(".")
    words = set(re.findall(r"[a-z]{2,}", leaf.lower()))

    def score(candidate: str) -> float:
        other_parent, _, other_leaf = candidate.rpartition(".")
        spelling = difflib.SequenceMatcher(None, leaf, other_leaf).ratio()
        doc_words = set(re.findall(r"[a-z]{2,}", known[candidate].lower()))
        described = len(words & doc_words) / len(words) if words else 0.0
        named = len(words & set(other_leaf.split("_"))) / len(words) if words else 0.0
        # Spelling counts most; words in field names count more than words in documentation; the parent breaks ties.
        likeness = max(spelling, 0.9 * named, 0.8 * described)
        return likeness + (0.15 if other_parent == parent and likeness > 0.5 else 0.0)

    best = max(known, key=score, default=None)
    return best if best is not None and score(best) >= 0.6 else None


def conflicts_in(error: ValidationError, config_class: type[BaseModel]) -> Iterable[tuple[str, ConflictError]]:
    """Yield (dotted path of the config, conflict) for each conflict that a validator reported."""
    for detail in error.errors():
        cause = detail.get("ctx", {}).get("error")
        if isinstance(cause, ConflictError):
            yield _place(detail["loc"], config_class).path, cause


def refused_in(error: ValidationError, config_class: type[BaseModel]) -> list[str]:
    """List the dotted path of each value that is invalid regardless of other fields."""
    return [_place(detail["loc"], config_class).path for detail in error.errors() if detail["type"] != "value_error"]

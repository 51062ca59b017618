"""Models one after another, and which of a plan's targets each of them generates.

The first model that has a target generates it; what it has generated is given to those behind it, such as a model
that makes images of a higher resolution.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from pretrainkit.errors import InputError
from pretrainkit.recipes.fourm.generation.given import Example, Known, Link
from pretrainkit.recipes.fourm.generation.plan import (
    GenerationPlan,
    TargetConfig,
    inputs_named,
    require_inputs,
    require_target,
)
from pretrainkit.recipes.fourm.generation.sampler import Sampler
from pretrainkit.recipes.fourm.generation.show import numbers_of
from pretrainkit.recipes.fourm.modality import Modality


class Target(NamedTuple):
    """A modality that a model of a chain generates."""

    number: int
    """Place of the model in the chain."""
    link: Link
    modality: Modality


class Chain:
    """Models with a plan whose names fit them."""

    def __init__(self, links: Sequence[Link], plan: GenerationPlan, names: Iterable[str]) -> None:
        """Take a plan and `names` of what is given as people write them. Raises InputError where a name is unknown, an
        input only, or given and asked for, and where a setting does not fit its modality."""
        self.links, names = tuple(links), list(names)
        everything = [link.modalities for link in self.links]
        for name in names:
            require_inputs(name, everything)
        self.plans: list[GenerationPlan] = []
        self.targets: list[Target] = []
        """In the order in which they are made."""
        parts: list[list[TargetConfig]] = [[] for _ in self.links]
        for target in plan.targets:
            number, modality = require_target(target.modality, everything)
            parts[number].append(_fitted(target, modality))
            self.targets.append(Target(number, self.links[number], modality))
        self.targets.sort(key=lambda target: target.number)
        made: list[str] = []
        for link, part in zip(self.links, parts, strict=True):
            given = [modality.name for name in names for modality in inputs_named(name, link.modalities)]
            own = [*given, *made]
            self.plans.append(plan.model_copy(update={"targets": _with_conditions(part, own, link)}))
            made += [target.modality for target in part]

    def start(self, number: int, examples: Sequence[Example]) -> Known:
        """Return what is given to a model. Raises InputError where a target is given, too, and has no hole to be filled
        in."""
        link = self.links[number]
        known = link.known(examples)
        for place, _, modality in self.targets:
            holes = link.vocabulary.sentinels if modality.kind == "sequence" and link.vocabulary is not None else ()
            given = known.of(modality.name) if place == number else []
            if any(one is not None and not np.isin(one, holes).any() for one in given):
                raise InputError(
                    f"{modality.name} is given and asked for\n  leave it out of --from or of --to; a text may have "
                    "[S_1] in the place that is to be filled in"
                )
        return known

    def run(self, examples: Sequence[Example], numbers: Sequence[int]) -> list[Known]:
        """Return what each model knows in the end. `numbers`: of the examples, for their draws."""
        found: list[Known] = []
        for number, (link, plan) in enumerate(zip(self.links, self.plans, strict=True)):
            known = self.start(number, examples)
            for before, made in zip(self.links, found, strict=False):
                _hand_over(before, made, link, known)
            sampler = Sampler(link.model, link.modalities, link.vocabulary)
            found.append(sampler.run(plan, known, numbers, known.names()))
        return found


def _fitted(target: TargetConfig, modality: Modality) -> TargetConfig:
    """Return the target with the whole name and the scheme. Raises InputError where a setting is of the other kind of
    modality."""
    is_image = modality.kind == "image"
    if target.scheme is not None and is_image == (target.scheme == "autoregressive"):
        raise InputError(
            f"{modality.name} has scheme {target.scheme}, but it is {'an image' if is_image else 'a sequence'}\n"
            f"  set scheme={'roar or maskgit' if is_image else 'autoregressive'}, or leave it out"
        )
    if isinstance(target.schedule, tuple) and is_image and sum(target.schedule) != modality.max_tokens:
        raise InputError(
            f"{modality.name} has a schedule of {sum(target.schedule)} tokens, but it has {modality.max_tokens}\n"
            "  give numbers that add up to that"
        )
    if not is_image and (target.schedule is not None or target.temperature_schedule != "constant"):
        raise InputError(
            f"{modality.name} is a sequence, which has no schedule and no temperature_schedule\n  leave them out"
        )
    if is_image and target.max_tokens is not None:
        raise InputError(f"{modality.name} is an image, which has no max_tokens\n  leave it out")
    if target.take != "draw" and not (is_image and numbers_of(modality)):
        raise InputError(
            f"{modality.name} has take={target.take}, but its tokens are no numbers that could be between others\n"
            "  leave it out; it is for depth and colours that are read without an image tokenizer"
        )
    scheme = target.scheme or ("roar" if is_image else "autoregressive")
    return TargetConfig(**{**target.model_dump(), "modality": modality.name, "scheme": scheme})


def _with_conditions(targets: Sequence[TargetConfig], given: Sequence[str], link: Link) -> tuple[TargetConfig, ...]:
    """Return the targets with whole names of what guides them, each of which is given or made before."""
    found, known = [], list(given)

    def whole(short: str) -> list[str]:
        names = [modality.name for modality in inputs_named(short, link.modalities) if modality.name in known]
        if not names:
            raise InputError(
                f"{target.modality} is guided by {short}, which is not known before it\n"
                f"  known are {', '.join(known) or 'none'}; name one of them, or put it in front in --to"
            )
        return names

    for target in targets:
        update: dict[str, Any] = {}
        if isinstance(target.guidance, dict):
            update["guidance"] = {name: w for short, w in target.guidance.items() for name in whole(short)}
        elif target.guided_by is not None:
            update["guided_by"] = tuple(name for short in target.guided_by for name in whole(short))
        found.append(target.model_copy(update=update))
        known.append(target.modality)
    return tuple(found)


def _hand_over(before: Link, made: Known, link: Link, known: Known) -> None:
    """Put into `known` what another model knows, where this one reads it and does not know it yet."""
    there = known.names()
    mine = {one.name: one for one in link.modalities if one.is_input and one.name not in there}
    for modality in before.modalities:
        own = mine.get(modality.name)
        if own is None or own.kind != modality.kind or own.name not in made.contents:
            continue
        contents = made.contents[own.name]
        if own.kind == "image":
            if (own.max_tokens, own.vocab_size) != (modality.max_tokens, modality.vocab_size):
                raise InputError(
                    f"{own.name} has {modality.max_tokens} tokens of {modality.vocab_size} in one model and "
                    f"{own.max_tokens} of {own.vocab_size} in the next\n  chain models of the same modalities"
                )
            known.contents[own.name] = contents
        elif own.kind == "sequence":
            known.contents[own.name] = [_translated(one, before, link) for one in contents]


def _translated(ids: Any, before: Link, link: Link) -> Any:
    """Return ids of one vocabulary as those of another."""
    if ids is None or before.vocabulary is None or link.vocabulary is None:
        return None
    if before.vocabulary.fingerprint == link.vocabulary.fingerprint:
        return ids
    text = before.vocabulary.decode(ids)
    return np.array([*link.vocabulary.encode([text])[0], link.vocabulary.eos], np.int32)

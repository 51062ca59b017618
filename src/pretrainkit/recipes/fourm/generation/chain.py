"""Chains of models: several models that generate the targets of a plan one after another.

The first model that has a target generates it. The results are inputs of the later models, such as a model that
generates images of a higher resolution.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from pretrainkit.errors import InputError
from pretrainkit.recipes.fourm.generation.examples import Example, Known, Link
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
    """Index of the model in the chain."""
    link: Link
    modality: Modality


class Chain:
    """Chain of models with a plan whose names are resolved for each model."""

    def __init__(self, links: Sequence[Link], plan: GenerationPlan, names: Iterable[str]) -> None:
        """Resolve the names in a plan and the `names` of the inputs, as users write them. Raises InputError if a name
        is unknown, if a target is an input only, or if a setting does not fit its modality."""
        self.links, names = tuple(links), list(names)
        everything = [link.modalities for link in self.links]
        for name in names:
            require_inputs(name, everything)
        self.plans: list[GenerationPlan] = []
        self.targets: list[Target] = []
        """Targets in the order of generation."""
        parts: list[list[TargetConfig]] = [[] for _ in self.links]
        for target in plan.targets:
            number, modality = require_target(target.modality, everything)
            parts[number].append(_fitted(target, modality))
            self.targets.append(Target(number, self.links[number], modality))
        self.targets.sort(key=lambda target: target.number)
        generated: list[str] = []
        for link, own_targets in zip(self.links, parts, strict=True):
            input_names = [modality.name for name in names for modality in inputs_named(name, link.modalities)]
            known = [*input_names, *generated]
            self.plans.append(plan.model_copy(update={"targets": _with_conditions(own_targets, known, link)}))
            generated += [target.modality for target in own_targets]

    def start(self, number: int, examples: Sequence[Example]) -> Known:
        """Return the inputs of a model before generation. Raises InputError if a target is also an input without a
        missing part."""
        link = self.links[number]
        known = link.known(examples)
        for place, _, modality in self.targets:
            sentinels = link.vocabulary.sentinels if modality.kind == "sequence" and link.vocabulary is not None else ()
            contents = known.of(modality.name) if place == number else []
            if any(content is not None and not np.isin(content, sentinels).any() for content in contents):
                raise InputError(
                    f"{modality.name} is both an input and a target\n  leave it out of --from or of --to; a text may "
                    "be both if it has [S_1] in place of its missing part"
                )
        return known

    def run(self, examples: Sequence[Example], numbers: Sequence[int]) -> list[Known]:
        """Generate all targets and return the contents that each model knows at the end. `numbers`: numbers of the
        examples, which decide their random draws."""
        results: list[Known] = []
        for number, (link, plan) in enumerate(zip(self.links, self.plans, strict=True)):
            known = self.start(number, examples)
            for earlier_link, earlier_known in zip(self.links, results, strict=False):
                _hand_over(earlier_link, earlier_known, link, known)
            sampler = Sampler(link.model, link.modalities, link.vocabulary)
            results.append(sampler.run(plan, known, numbers, known.names()))
        return results


def _fitted(target: TargetConfig, modality: Modality) -> TargetConfig:
    """Return the target with its full name and its scheme. Raises InputError if a setting belongs to the other kind of
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
            "  use numbers that add up to this"
        )
    if not is_image and (target.schedule is not None or target.temperature_schedule != "constant"):
        raise InputError(
            f"{modality.name} is a sequence, which has no schedule and no temperature_schedule\n  leave them out"
        )
    if is_image and target.max_tokens is not None:
        raise InputError(f"{modality.name} is an image, which has no max_tokens\n  leave it out")
    if target.take != "draw" and not (is_image and numbers_of(modality)):
        raise InputError(
            f"{modality.name} has take={target.take}, but its tokens do not represent numbers\n"
            "  leave it out; it is for depth and colours that are read without an image tokenizer"
        )
    scheme = target.scheme or ("roar" if is_image else "autoregressive")
    return TargetConfig(**{**target.model_dump(), "modality": modality.name, "scheme": scheme})


def _with_conditions(
    targets: Sequence[TargetConfig], input_names: Sequence[str], link: Link
) -> tuple[TargetConfig, ...]:
    """Return the targets with full names of their guidance conditions. Each condition must be an input or an earlier
    target."""
    resolved, known = [], list(input_names)

    def full_names(short: str) -> list[str]:
        names = [modality.name for modality in inputs_named(short, link.modalities) if modality.name in known]
        if not names:
            raise InputError(
                f"{target.modality} is guided by {short}, which is neither an input nor an earlier target\n"
                f"  inputs and earlier targets: {', '.join(known) or 'none'}; name one of them, or put {short} before "
                f"{target.modality} in --to"
            )
        return names

    for target in targets:
        update: dict[str, Any] = {}
        if isinstance(target.guidance, dict):
            update["guidance"] = {name: w for short, w in target.guidance.items() for name in full_names(short)}
        elif target.guided_by is not None:
            update["guided_by"] = tuple(name for short in target.guided_by for name in full_names(short))
        resolved.append(target.model_copy(update=update))
        known.append(target.modality)
    return tuple(resolved)


def _hand_over(earlier_link: Link, earlier: Known, link: Link, known: Known) -> None:
    """Add the contents that an earlier model knows to `known`, if this model reads them and does not know them yet."""
    known_names = known.names()
    missing = {m.name: m for m in link.modalities if m.is_input and m.name not in known_names}
    for modality in earlier_link.modalities:
        modality_here = missing.get(modality.name)
        if modality_here is None or modality_here.kind != modality.kind or modality_here.name not in earlier.contents:
            continue
        contents = earlier.contents[modality_here.name]
        if modality_here.kind == "image":
            if (modality_here.max_tokens, modality_here.vocab_size) != (modality.max_tokens, modality.vocab_size):
                raise InputError(
                    f"{modality_here.name} has {modality.max_tokens} tokens of {modality.vocab_size} in one model and "
                    f"{modality_here.max_tokens} of {modality_here.vocab_size} in the next\n"
                    "  chain models of the same modalities"
                )
            known.contents[modality_here.name] = contents
        elif modality_here.kind == "sequence":
            known.contents[modality_here.name] = [_translated(ids, earlier_link, link) for ids in contents]


def _translated(ids: Any, from_link: Link, to_link: Link) -> Any:
    """Return ids of one model's vocabulary as ids of another model's vocabulary."""
    if ids is None or from_link.vocabulary is None or to_link.vocabulary is None:
        return None
    if from_link.vocabulary.fingerprint == to_link.vocabulary.fingerprint:
        return ids
    text = from_link.vocabulary.decode(ids)
    return np.array([*to_link.vocabulary.encode([text])[0], to_link.vocabulary.eos], np.int32)

"""What `pretrainkit generate` does with models of this recipe: files and texts in, pictures, JSON and a sheet out; and
held-out samples for the report.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError
from torch import nn

from pretrainkit.config.explain import explain
from pretrainkit.config.yaml import parse_yaml
from pretrainkit.data.source import BatchSource
from pretrainkit.errors import ConfigError, DataError, InputError
from pretrainkit.eval.evaluator import evaluation_mode
from pretrainkit.exporting.folder import new_folder
from pretrainkit.images.pillow import Pixels, thumbnail
from pretrainkit.recipes.fourm.config import FourMRun
from pretrainkit.recipes.fourm.generation.chain import Chain, Target
from pretrainkit.recipes.fourm.generation.given import Example, File, Known, Link, data_examples, from_words, value_of
from pretrainkit.recipes.fourm.generation.plan import (
    GenerationPlan,
    TargetConfig,
    inputs_named,
    require_inputs,
    the_target,
)
from pretrainkit.recipes.fourm.generation.show import (
    Cell,
    ImageDecoder,
    Judge,
    contact_sheet,
    picture,
    spread,
    structure,
    values_of,
    with_boxes,
)
from pretrainkit.recipes.fourm.modality import Modality
from pretrainkit.recipes.fourm.model import FourM
from pretrainkit.recipes.fourm.original_yaml import generation_plan, is_generation_config
from pretrainkit.recipes.fourm.readers import DepthMap
from pretrainkit.recipes.fourm.sequences import Ids
from pretrainkit.recipes.fourm.source import FourMSource, open_source
from pretrainkit.recipes.fourm.text import TextVocabulary

_VARIATION = 1 << 32
"""Distance of the numbers of two variations of an example."""
_NUM = "examples"
"""Name of the figure that says over how many examples the others are."""
_MOST_KNOWN = 256
"""Training samples that a guess is made of."""
_SHEET_ROWS = 32
_HEIGHT = 96
"""Pixels of a picture."""
_MAX_TOKENS = 64
"""Of a sequence: samples are looked at, not used."""
_ORDER = ("pixels", "sequence", "image")
"""Kinds of modalities that something is made of, in turn."""


@dataclass
class Result:
    """One example with one of its variations."""

    chain: Chain
    example: Example
    variation: int
    known: Sequence[Known]
    """By each model of the chain."""
    decoders: Mapping[str, ImageDecoder]
    files: dict[str, str] = field(default_factory=dict)
    """Of images that are written, by modality."""
    _truth: dict[str, Ids | None] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.example.key}-{self.variation}" if self.variation else self.example.key

    def ids(self, target: Target) -> Ids:
        found = self.known[target.number].contents[target.modality.name][0]
        assert found is not None
        return found

    def truth(self, target: Target) -> Ids | None:
        """Return what the example's own file of a target holds, where it has one."""
        name = target.modality.name
        if name not in self._truth:
            self._truth[name] = target.link.truth(self.example, target.modality)
        return self._truth[name]

    def judge(self, target: Target) -> Judge:
        return Judge(target.modality, target.link.vocabulary, self.decoders.get(target.modality.name))

    def value(self, target: Target) -> Any:
        """Return a target as JSON."""
        modality, ids, vocabulary = target.modality, self.ids(target), target.link.vocabulary
        if modality.kind == "sequence" and vocabulary is not None:
            return structure(modality, ids, vocabulary)
        return self.files.get(modality.name, ids.tolist())

    def answer(self) -> dict[str, Any]:
        outputs, known, told = {}, {}, []
        for target in self.chain.targets:
            name, truth = target.modality.name, self.truth(target)
            outputs[name] = value = self.value(target)
            is_tokens = target.modality.kind == "image" and not isinstance(value, str)
            told.append(f"{name} {len(value)} tokens" if is_tokens else f"{name} {_as_text(value)}")
            if truth is not None:
                known[name] = self.judge(target).figures([self.ids(target)], [truth])
        return {
            "example": self.example.key,
            "variation": self.variation,
            "given": {n: v.name if isinstance(v, File) else v for n, v in self.example.values.items()},
            "outputs": outputs,
            **({"figures": known} if known else {}),
            "text": f"{self.name}: " + "; ".join(told),
        }

    def cells(self) -> dict[str, Cell]:
        """By heading: what was given, what was made of it, and the truth."""
        found = {f"from {name}": self._given_cell(name, value) for name, value in self.example.values.items()}
        # Boxes are drawn on given or generated pixels.
        pixels = [
            known.of(modality.name)[0]
            for known, link in zip(self.known, self.chain.links, strict=True)
            for modality in link.modalities
            if modality.kind == "pixels"
        ]
        canvas = next((one.transpose(1, 2, 0) for one in pixels if one is not None and len(one) == 3), None)
        for target in self.chain.targets:
            name, truth = target.modality.name, self.truth(target)
            found[name] = self._cell(target, self.ids(target), canvas)
            if truth is not None:
                # Of an image this is a picture of its tokens, as coarse as they are, and not the file.
                what = "tokens of the true" if target.modality.kind == "image" else "true"
                found[f"{what} {name}"] = self._cell(target, truth, canvas)
        return found

    def _given_cell(self, name: str, value: str | File) -> Cell:
        if isinstance(value, str):
            return value
        for known, link in zip(self.known, self.chain.links, strict=True):
            for modality in inputs_named(name, link.modalities):
                content = known.of(modality.name)[0]
                if content is None:
                    continue
                if modality.kind == "pixels":  # grey is the same in three channels, of more than three the first count
                    return np.repeat(content, 3, axis=0).transpose(1, 2, 0)[..., :: len(content)][..., :3]
                if modality.kind == "image":
                    return picture(modality, content, self.decoders)
                if modality.kind == "sequence" and link.vocabulary is not None:
                    return link.vocabulary.decode(content)
        return None

    def _cell(self, target: Target, ids: Ids, canvas: Pixels | None) -> Cell:
        modality, vocabulary = target.modality, target.link.vocabulary
        if modality.kind == "image":
            return picture(modality, ids, self.decoders)
        assert vocabulary is not None
        value = structure(modality, ids, vocabulary)
        if modality.reader == "boxes":
            blank = np.full((64, 64, 3), 255, np.uint8)
            return with_boxes(blank if canvas is None else canvas, value["instances"])
        return _as_text(value)

    def write(self, folder: Path) -> None:
        """A file for each target into a new folder."""
        folder.mkdir()
        for target in self.chain.targets:
            modality, ids = target.modality, self.ids(target)
            if modality.kind == "sequence":
                value = self.value(target)
                text = json.dumps([value] if isinstance(value, str) else value, ensure_ascii=False, indent=1)
                (folder / f"{modality.name}.json").write_text(text + "\n", encoding="utf-8")
            else:
                self.files[modality.name] = f"{self.name}/{_save_image(folder, modality, ids, self.decoders)}"


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _save_image(folder: Path, modality: Modality, ids_P: Ids, decoders: Mapping[str, ImageDecoder]) -> str:
    """Write what the modality's reader reads again, or what an image tokenizer makes; tokens (1, P) where nobody can
    decode them. Returns the file's name."""
    from PIL import Image

    patch = modality.patch_size or 1
    grid = np.repeat(np.repeat(ids_P.reshape(modality.grid), patch, axis=0), patch, axis=1)
    if modality.name in decoders:
        values: NDArray[Any] = decoders[modality.name].decode(ids_P[None])[0]
    elif modality.reader == "depth":
        values = values_of(modality, grid)
    elif modality.reader == "classes":
        values = grid.astype(np.uint8)
    else:
        painted = picture(modality, ids_P, decoders)
        values = ids_P[None] if painted is None else painted
    if values.dtype.kind == "f" and values.ndim == 2:
        share = ((values + DepthMap.reach) / (2 * DepthMap.reach)).clip(0, 1)
        values = (share * 65535).astype(np.uint16)
    if values.dtype == np.uint16 or (values.dtype == np.uint8 and values.ndim in (2, 3)):
        Image.fromarray(np.ascontiguousarray(values)).save(folder / f"{modality.name}.png")
        return f"{modality.name}.png"
    np.save(folder / f"{modality.name}.npy", values)
    return f"{modality.name}.npy"


def generate(
    config: FourMRun,
    model: FourM,
    tokenizer: Path | None,
    prompts: Sequence[str],
    *,
    given: Sequence[str] = (),
    to: Sequence[str] = (),
    plan: str | Path | None = None,
    settings: Sequence[str] = (),
    seed: int | None = None,
    temperature: float | None = None,
    top_k: float | None = None,
    top_p: float | None = None,
    num: int | None = None,
    from_data: int | None = None,
    out: str | Path | None = None,
    then: Sequence[tuple[FourMRun, FourM, Path | None]] = (),
    image_decoders: Mapping[str, ImageDecoder] | None = None,
    batch_size: int = 16,
    device: str | None = None,
) -> list[dict[str, Any]]:
    """Generate targets from what is given. Raises InputError where what is asked for cannot be, before anything is
    computed. Options are those of `capabilities.GenerateOptions`, and:

    Args:
        config: Bound.
        model: In evaluation mode.
        tokenizer: Folder of the text tokenizer; None without sequences.
        prompts: Captions, each an example of its own; with `given` at most one.
        then: (config, model, tokenizer) of further models.
        image_decoders: By whole name of a modality with an image tokenizer, what makes pictures of its tokens.

    Returns:
        Per example and variation: "example", "variation", "given", "outputs" (JSON values; of images the file, or the
        tokens without `out`), "figures" where the truth is known, and "text" for people.
    """
    links = [_link(*one, device=device) for one in ((config, model, tokenizer), *then)]
    wanted = plan_of(plan, to, settings, {"temperature": temperature, "top_k": top_k, "top_p": top_p}, seed, num)
    examples = _examples(links[0], prompts, given, wanted, from_data)
    chain = Chain(links, wanted, dict.fromkeys(name for example in examples for name in example.values))
    decoders = dict(image_decoders or {})
    _check_decoders(decoders, chain)
    # All of it is read before anything is computed, so that nothing is refused in the middle.
    for number in range(len(links)):
        chain.start(number, examples)
    tasks = [(row, variation) for row in range(len(examples)) for variation in range(wanted.num_variations)]
    results = []
    for start in range(0, len(tasks), batch_size):
        some = tasks[start : start + batch_size]
        found = chain.run([examples[row] for row, _ in some], [row + _VARIATION * number for row, number in some])
        results += [
            Result(chain, examples[row], number, [one.take([place]) for one in found], decoders)
            for place, (row, number) in enumerate(some)
        ]
    answers = [result.answer() for result in results]
    summary = _summary(chain, results)
    if out is not None:
        _write(Path(out), wanted, results, answers, summary)
    if summary:
        told = (_told(name, values, len(examples)) for name, values in summary.items())
        answers[-1]["text"] += "\n" + "\n".join(told)
        answers[-1]["summary"] = summary
    return answers


def plan_of(
    path: str | Path | None,
    to: Sequence[str],
    settings: Iterable[str],
    shared: Mapping[str, float | None],
    seed: int | None = None,
    num: int | None = None,
) -> GenerationPlan:
    """Return the plan of a command line. Arguments are those of `generate`; `shared` are settings of all targets.
    Raises ConfigError where something in it is unknown or out of range, or nothing is asked for."""
    tree: dict[str, Any] = {}
    if path is not None:
        try:
            tree = parse_yaml(Path(path).read_text(encoding="utf-8"), str(path)) or {}
        except OSError as error:
            raise ConfigError(
                f"the plan {path} cannot be read: {error.strerror or error}\n  give a YAML file"
            ) from error
        if isinstance(tree, dict) and is_generation_config(tree):
            tree = generation_plan(tree, str(path))
        if not isinstance(tree, dict) or not all(isinstance(one, dict) for one in tree.get("targets", [])):
            raise ConfigError(
                f"the plan {path} is no mapping with a list `targets` of mappings\n  see docs/generation.md"
            )
    targets = {one.get("modality", ""): dict(one) for one in tree.get("targets", [])}
    if to:
        targets = {name: targets.get(name, {"modality": name}) for name in to}
    if not targets:
        raise ConfigError("there is nothing to generate\n  name targets: --to depth,caption, or give a --plan")
    for target in targets.values():
        target |= {name: value for name, value in shared.items() if value is not None}
    for setting in settings:
        place, equals, value = setting.partition("=")
        name, dot, field = place.rpartition(".")
        if not equals or (dot and name not in targets):
            raise ConfigError(
                f"--set {setting}: there is no target {name!r}\n  write TARGET.FIELD=VALUE, with a target of "
                f"{', '.join(targets)}, or seed=3"
            )
        (targets[name] if dot else tree)[field] = parse_yaml(value, f"--set {setting}")
    tree |= {name: value for name, value in (("seed", seed), ("num_variations", num)) if value is not None}
    tree["targets"] = list(targets.values())
    try:
        return GenerationPlan.model_validate(tree)
    except ValidationError as error:
        names = [target.get("modality", number) for number, target in enumerate(tree["targets"])]
        raise ConfigError(
            [
                "plan: " + re.sub(r"\btargets\.(\d+)\b", lambda found: str(names[int(found[1])]), problem)
                for problem in explain(error, GenerationPlan)
            ]
        ) from None


def _link(config: FourMRun, model: FourM, tokenizer: Path | None, *, device: str | None) -> Link:
    has_sequences = any(modality.kind in ("sequence", "vectors") for modality in config.model.modalities)
    vocabulary = TextVocabulary(tokenizer) if has_sequences and tokenizer is not None else None
    return Link(config, model if device is None else model.to(device), vocabulary)


def _examples(
    link: Link, prompts: Sequence[str], given: Sequence[str], plan: GenerationPlan, from_data: int | None
) -> list[Example]:
    if from_data is not None:
        if prompts or any("=" in one for one in given):
            raise InputError(
                "--from-data takes samples of the data, so nothing else can be given\n"
                "  write names alone behind --from, such as --from rgb"
            )
        return _samples(link, given, plan, from_data)
    words = from_words(given)
    if prompts and "caption" in words:
        raise InputError("captions are given twice: as prompts and by --from\n  leave out one of them")
    if words and len(prompts) > 1:
        raise InputError(f"{len(prompts)} prompts cannot share one --from\n  give them one by one")
    values = {name: value_of(name, value, link.modalities) for name, value in words.items()}
    captions = [{"caption": prompt} for prompt in prompts] or [{}]
    return [Example(f"{number:04d}", {**caption, **values}) for number, caption in enumerate(captions)]


def _samples(link: Link, given: Sequence[str], plan: GenerationPlan, num: int) -> list[Example]:
    """Held-out samples; what is not named is given where no target is made of the same files."""
    if not link.config.data.valid:
        raise InputError(
            "--from-data takes held-out samples, and the run has none: it was trained without data.valid\n"
            "  give what to start from instead, each as --from NAME=FILE"
        )
    source = open_source(link.config, "valid")
    targets = [one for target in plan.targets if (one := the_target(target.modality, link.modalities)) is not None]
    named = [modality for name in given for modality in require_inputs(name, [link.modalities])]
    folders = {target.path for target in targets}
    inputs = named or [one for one in link.modalities if one.is_input and one.path not in folders]
    names = {modality.name for modality in inputs} - {target.name for target in targets}
    return data_examples(source, spread(source.sizes, num), names)


def _check_decoders(decoders: Mapping[str, ImageDecoder], chain: Chain) -> None:
    images = {one.modality.name: one.modality for one in chain.targets if one.modality.kind == "image"}
    for name, decoder in decoders.items():
        if name not in images:
            raise InputError(
                f"an image tokenizer is given for {name}, which is not generated as an image\n"
                f"  write the whole name of one that is ({', '.join(images) or 'none'}), as in --tokenizer "
                f"{next(iter(images), 'depth@64')}=RUN, or leave --tokenizer out"
            )
        known = images[name].vocab_size
        if decoder.vocab_size != known:
            raise InputError(
                f"the image tokenizer of {name} has {decoder.vocab_size} tokens, but the model {known}\n"
                "  give the one that the model's tokens were made with"
            )


def _summary(chain: Chain, results: Sequence[Result]) -> dict[str, dict[str, float]]:
    """Compare targets whose truth is known: means over all results, and over those of each data set, where there are
    several; of the best guess that looks at nothing, and of all variations of an example together. `examples` says how
    many have the target."""
    found = {}
    for target in chain.targets:
        name, own = target.modality.name, [one for one in results if one.truth(target) is not None]
        if not own:
            continue
        known, sets = _training_contents(target), dict.fromkeys(one.example.data_set for one in own)
        everything = [ids for contents in known.values() for ids in contents]
        found[name] = _compared(own, target, everything)
        for data_set in sets if len(sets) > 1 else ():
            some = [one for one in own if one.example.data_set == data_set]
            found[f"{name} of {data_set}"] = _compared(some, target, known.get(data_set, everything))
    return found


def _compared(results: Sequence[Result], target: Target, known: Sequence[Ids]) -> dict[str, float]:
    """Compare results of one target, whose truth is known, and count their examples. `known`: contents that guesses are
    made of; nothing: there are none."""
    groups: dict[tuple[str | None, str], tuple[list[Ids], Ids]] = {}
    judge, made = results[0].judge(target), [result.ids(target) for result in results]
    true = [truth for result in results if (truth := result.truth(target)) is not None]
    for result, ids, truth in zip(results, made, true, strict=True):
        groups.setdefault((result.example.data_set, result.example.key), ([], truth))[0].append(ids)
    values = judge.figures(made, true)
    guess = judge.guessed(known, true) if known else {}
    values |= {f"guessed_{name}": value for name, value in guess.items()}
    if target.modality.kind == "image" and len(made) > len(groups):
        both = judge.together(*zip(*groups.values(), strict=True))
        values |= {f"together_{name}": value for name, value in both.items()}
    return values | {_NUM: float(len(groups))}


def _training_contents(target: Target) -> dict[str | None, list[Ids]]:
    """Return contents of samples spread over the training data, by data set; none where they are not on this
    machine."""
    try:
        source = open_source(target.link.config, "train")
    except DataError:
        return {}
    found: dict[str | None, list[Ids]] = {}
    for example in data_examples(source, spread(source.sizes, _MOST_KNOWN), ()):
        content = target.link.truth(example, target.modality)
        if content is not None:
            found.setdefault(example.data_set, []).append(content)
    return found


def _told(name: str, values: Mapping[str, float], num_examples: int) -> str:
    """Return a line for people; `num_examples`: all that were generated."""
    parts = []
    for what, value in values.items():
        if what.startswith(("guessed_", "together_")) or what == _NUM:
            continue
        others = (("guessing alike for all", f"guessed_{what}"), ("variations together", f"together_{what}"))
        more = [f"{title}: {values[key]:.3f}" for title, key in others if key in values]
        parts.append(f"{what} {value:.3f}" + (f" ({', '.join(more)})" if more else ""))
    return f"{name}: {', '.join(parts)}, over {values[_NUM]:.0f} of {num_examples} examples"


def _write(
    out: Path,
    plan: GenerationPlan,
    results: Sequence[Result],
    answers: list[dict[str, Any]],
    summary: Mapping[str, Mapping[str, float]],
) -> None:
    """Write the folder; `answers` get the names of the files in it."""
    with new_folder(out) as folder:
        for number, result in enumerate(results):
            result.write(folder / result.name)
            answers[number] = result.answer()
        rows = [result.cells() for result in results[:_SHEET_ROWS]]
        columns = list(dict.fromkeys(name for row in rows for name in row))
        contact_sheet(columns, [[row.get(name) for name in columns] for row in rows]).save(folder / "sheet.png")
        record = {"plan": plan.model_dump(mode="json"), "answers": answers, "summary": summary}
        text = json.dumps(record, ensure_ascii=False, indent=1)
        (folder / "generation.json").write_text(text + "\n", encoding="utf-8")
    for answer in answers:
        answer["text"] += f" -> {out}"


def sample(config: FourMRun, model: nn.Module, source: BatchSource, num: int) -> list[dict[str, Any]]:
    """Return `num` samples spread over all held-out data. Of each one modality is given, and every other target that it
    has is made of that alone, not of each other: the likeliest tokens in one step, or the likeliest text; beside it is
    the truth. Every second sample gives its pixels, where it has any, the others a text or an image, in turn."""
    assert isinstance(source, FourMSource)
    assert isinstance(model, FourM)
    link = Link(config, model, source.vocabulary)
    chosen = spread(source.sizes, num)
    rows: dict[int, dict[str, Any]] = {}
    groups: dict[tuple[int, Modality], list[int]] = {}
    for place, (number, _) in enumerate(chosen):
        present = [source.modalities[own] for own in source.sets[number].present]
        inputs = [one for kind in _ORDER for one in present if one.kind == kind and one.is_input]
        if inputs:
            # The first one of all for even places, the others one after another for odd ones.
            first, *others = inputs
            given = others[place // 2 % len(others)] if others and place % 2 else first
            groups.setdefault((number, given), []).append(place)
    with evaluation_mode(model):
        for (_, given), places in groups.items():
            found = _shown(link, source, [chosen[place] for place in places], given)
            rows |= dict(zip(places, found, strict=True))
    return [rows[place] for place in sorted(rows)]


def _shown(
    link: Link, source: FourMSource, indices: Sequence[tuple[int, int]], given: Modality
) -> list[dict[str, Any]]:
    examples = data_examples(source, indices, [given.name])
    present = [source.modalities[place] for place in source.sets[indices[0][0]].present]
    rows: list[dict[str, Any]] = [{} for _ in examples]
    for target in present:
        if not target.is_target or target.name == given.name:
            continue
        is_image = target.kind == "image"
        settings: dict[str, Any] = {"num_steps": 1} if is_image else {"max_tokens": min(_MAX_TOKENS, target.max_tokens)}
        plan = GenerationPlan(targets=(TargetConfig(modality=target.name, temperature=0.0, **settings),))
        chain = Chain([link], plan, [given.name])
        known = chain.run(examples, range(len(examples)))
        for place, example in enumerate(examples):
            result = Result(chain, example, 0, [one.take([place]) for one in known], {})
            for name, cell in result.cells().items():
                heading = "given" if name.startswith("from ") else name
                if isinstance(cell, str):
                    rows[place][heading] = [{"text": cell}]
                elif cell is not None:
                    rows[place][heading] = [{"image": thumbnail(cell.transpose(2, 0, 1), _HEIGHT)}]
    return rows

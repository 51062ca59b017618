"""Generation by `pretrainkit generate`: it reads files and texts, and writes images, JSON and a contact sheet.

The module also generates from held-out samples for the report.
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
from pretrainkit.files.outputs import new_folder
from pretrainkit.images.pillow import Pixels, thumbnail
from pretrainkit.recipes.fourm.config import FourMRun
from pretrainkit.recipes.fourm.generation.chain import Chain, Target
from pretrainkit.recipes.fourm.generation.examples import (
    Example,
    File,
    Known,
    Link,
    data_examples,
    from_words,
    value_of,
)
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
"""Difference between the numbers of two variations of an example."""
_NUM = "examples"
"""Name of the number of examples over which the metrics are means."""
_MOST_KNOWN = 256
"""Maximum number of training samples for the best constant guess."""
_SHEET_ROWS = 32
_HEIGHT = 96
"""Height of an image in the report, in pixels."""
_MAX_TOKENS = 64
"""Maximum length of a generated sequence in the report."""
_ORDER = ("pixels", "sequence", "image")
"""Kinds of input modalities in the report, in order."""


@dataclass
class Result:
    """One generated variation of an example."""

    chain: Chain
    example: Example
    variation: int
    known: Sequence[Known]
    """Known contents of each model in the chain."""
    decoders: Mapping[str, ImageDecoder]
    files: dict[str, str] = field(default_factory=dict)
    """Names of the written image files by modality."""
    _truth: dict[str, Ids | None] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.example.key}-{self.variation}" if self.variation else self.example.key

    def ids(self, target: Target) -> Ids:
        ids = self.known[target.number].contents[target.modality.name][0]
        assert ids is not None
        return ids

    def truth(self, target: Target) -> Ids | None:
        """Return the true tokens of a target from the example's own file; None: it has no such file."""
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
        outputs, metrics, texts = {}, {}, []
        for target in self.chain.targets:
            name, truth = target.modality.name, self.truth(target)
            outputs[name] = value = self.value(target)
            is_tokens = target.modality.kind == "image" and not isinstance(value, str)
            texts.append(f"{name} {len(value)} tokens" if is_tokens else f"{name} {_as_text(value)}")
            if truth is not None:
                metrics[name] = self.judge(target).figures([self.ids(target)], [truth])
        return {
            "example": self.example.key,
            "variation": self.variation,
            "inputs": {n: v.name if isinstance(v, File) else v for n, v in self.example.values.items()},
            "outputs": outputs,
            **({"figures": metrics} if metrics else {}),
            "text": f"{self.name}: " + "; ".join(texts),
        }

    def cells(self) -> dict[str, Cell]:
        """Return the inputs, the results and the truth by column heading."""
        cells = {f"from {name}": self._input_cell(name, value) for name, value in self.example.values.items()}
        # Boxes are drawn on known pixels.
        pixels = [
            known.of(modality.name)[0]
            for known, link in zip(self.known, self.chain.links, strict=True)
            for modality in link.modalities
            if modality.kind == "pixels"
        ]
        canvas = next((image.transpose(1, 2, 0) for image in pixels if image is not None and len(image) == 3), None)
        for target in self.chain.targets:
            name, truth = target.modality.name, self.truth(target)
            cells[name] = self._cell(target, self.ids(target), canvas)
            if truth is not None:
                # For an image, this shows its tokens, which are coarser than the file.
                truth_of = "tokens of the true" if target.modality.kind == "image" else "true"
                cells[f"{truth_of} {name}"] = self._cell(target, truth, canvas)
        return cells

    def _input_cell(self, name: str, value: str | File) -> Cell:
        if isinstance(value, str):
            return value
        for known, link in zip(self.known, self.chain.links, strict=True):
            for modality in inputs_named(name, link.modalities):
                content = known.of(modality.name)[0]
                if content is None:
                    continue
                if modality.kind == "pixels":  # repeat one channel three times; take the first three of many
                    return np.repeat(content, 3, axis=0).transpose(1, 2, 0)[..., :: len(content)][..., :3]
                if modality.kind == "image":
                    image = picture(modality, content, self.decoders)
                    return f"{len(content)} tokens of {modality.name}" if image is None else image
                if modality.kind == "vectors":
                    return f"{len(content)} vectors of {modality.name}"
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
        """Write a file for each target into a new folder."""
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
    """Write a file that the modality's reader can read, or the image that an image tokenizer decodes. Without a
    decoder, write the tokens (1, P). Return the name of the file."""
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
        image = picture(modality, ids_P, decoders)
        values = ids_P[None] if image is None else image
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
    inputs: Sequence[str] = (),
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
) -> list[dict[str, Any]]:
    """Generate targets from texts, files or held-out samples. Other options are those of
    `capabilities.GenerateOptions`.

    Args:
        config: Bound config.
        model: Model in evaluation mode.
        tokenizer: Folder of the text tokenizer; None for models without sequences.
        prompts: Captions, one for each example; at most one together with `inputs`.
        then: Config, model and tokenizer of each further model in the chain.
        image_decoders: Decoders of image tokenizers by full name of the modality.

    Returns:
        For each example and variation: "example", "variation", "inputs", "outputs" (JSON values; for images the
        file, or the tokens without `out`), "figures" (metrics) if the truth is known, and a readable "text".

    Raises:
        InputError: Inputs, targets or settings are invalid. This is checked before anything is computed.
    """
    links = [_link(*parts) for parts in ((config, model, tokenizer), *then)]
    full_plan = plan_of(plan, to, settings, {"temperature": temperature, "top_k": top_k, "top_p": top_p}, seed, num)
    examples = _examples(links[0], prompts, inputs, full_plan, from_data)
    chain = Chain(links, full_plan, dict.fromkeys(name for example in examples for name in example.values))
    decoders = dict(image_decoders or {})
    _check_decoders(decoders, chain)
    # Read all inputs before anything is computed, so that invalid ones are refused at once.
    for number in range(len(links)):
        chain.start(number, examples)
    tasks = [(row, variation) for row in range(len(examples)) for variation in range(full_plan.num_variations)]
    results = []
    for start in range(0, len(tasks), batch_size):
        chunk = tasks[start : start + batch_size]
        known = chain.run([examples[row] for row, _ in chunk], [row + _VARIATION * number for row, number in chunk])
        results += [
            Result(chain, examples[row], number, [contents.take([place]) for contents in known], decoders)
            for place, (row, number) in enumerate(chunk)
        ]
    answers = [result.answer() for result in results]
    summary = _summary(chain, results)
    if out is not None:
        _write(Path(out), full_plan, results, answers, summary)
    if summary:
        lines = (_metrics_line(name, values, len(examples)) for name, values in summary.items())
        answers[-1]["text"] += "\n" + "\n".join(lines)
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
    Raises ConfigError if a name is unknown, if a value is out of range or if there is no target."""
    tree: dict[str, Any] = {}
    if path is not None:
        try:
            tree = parse_yaml(Path(path).read_text(encoding="utf-8"), str(path)) or {}
        except OSError as error:
            raise ConfigError(
                f"the plan {path} cannot be read: {error.strerror or error}\n  use a YAML file"
            ) from error
        if isinstance(tree, dict) and is_generation_config(tree):
            tree = generation_plan(tree, str(path))
        if not isinstance(tree, dict) or not all(isinstance(target, dict) for target in tree.get("targets", [])):
            raise ConfigError(
                f"the plan {path} is not a mapping with a list `targets` of mappings\n  see docs/generation.md"
            )
    targets = {target.get("modality", ""): dict(target) for target in tree.get("targets", [])}
    if to:
        targets = {name: targets.get(name, {"modality": name}) for name in to}
    if not targets:
        raise ConfigError("there is nothing to generate\n  name targets: --to depth,caption, or use --plan")
    for target in targets.values():
        target |= {name: value for name, value in shared.items() if value is not None}
    for setting in settings:
        place, equals, value = setting.partition("=")
        name, dot, field = place.rpartition(".")
        if not equals or (dot and name not in targets):
            raise ConfigError(
                f"--set {setting}: there is no target {name!r}\n  write TARGET.FIELD=VALUE with one of the targets "
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
                "plan: " + re.sub(r"\btargets\.(\d+)\b", lambda match: str(names[int(match[1])]), problem)
                for problem in explain(error, GenerationPlan)
            ]
        ) from None


def _link(config: FourMRun, model: FourM, tokenizer: Path | None) -> Link:
    has_sequences = any(modality.kind in ("sequence", "vectors") for modality in config.model.modalities)
    vocabulary = TextVocabulary(tokenizer) if has_sequences and tokenizer is not None else None
    return Link(config, model, vocabulary)


def _examples(
    link: Link, prompts: Sequence[str], inputs: Sequence[str], plan: GenerationPlan, from_data: int | None
) -> list[Example]:
    if from_data is not None:
        if prompts or any("=" in value for value in inputs):
            raise InputError(
                "--from-data takes samples of the data, so there can be no other inputs\n"
                "  write only names after --from, such as --from rgb"
            )
        return _samples(link, inputs, plan, from_data)
    words = from_words(inputs)
    if prompts and "caption" in words:
        raise InputError("captions are given twice: as prompts and by --from\n  leave out one of them")
    if words and len(prompts) > 1:
        raise InputError(f"{len(prompts)} prompts cannot share one --from\n  run the command once for each prompt")
    values = {name: value_of(name, value, link.modalities) for name, value in words.items()}
    captions = [{"caption": prompt} for prompt in prompts] or [{}]
    return [Example(f"{number:04d}", {**caption, **values}) for number, caption in enumerate(captions)]


def _samples(link: Link, inputs: Sequence[str], plan: GenerationPlan, num: int) -> list[Example]:
    """Return held-out samples as examples. Without `inputs`, the inputs are all modalities that share no files with a
    target."""
    if not link.config.data.valid:
        raise InputError(
            "--from-data takes held-out samples, but the run has none: it was trained without data.valid\n"
            "  use files or texts instead, each as --from NAME=FILE"
        )
    source = open_source(link.config, "valid")
    targets = [m for target in plan.targets if (m := the_target(target.modality, link.modalities)) is not None]
    named = [modality for name in inputs for modality in require_inputs(name, [link.modalities])]
    folders = {target.path for target in targets}
    used = named or [m for m in link.modalities if m.is_input and m.path not in folders]
    names = {modality.name for modality in used} - {target.name for target in targets}
    return data_examples(source, spread(source.sizes, num), names)


def _check_decoders(decoders: Mapping[str, ImageDecoder], chain: Chain) -> None:
    images = {t.modality.name: t.modality for t in chain.targets if t.modality.kind == "image"}
    for name, decoder in decoders.items():
        if name not in images:
            raise InputError(
                f"an image tokenizer is given for {name}, which is not generated as an image\n"
                f"  use the full name of a generated image ({', '.join(images) or 'none'}), as in --tokenizer "
                f"{next(iter(images), 'depth@64')}=RUN, or leave --tokenizer out"
            )
        vocab_size = images[name].vocab_size
        if decoder.vocab_size != vocab_size:
            raise InputError(
                f"the image tokenizer of {name} has {decoder.vocab_size} tokens, but the model has {vocab_size}\n"
                "  use the image tokenizer that created the model's tokens"
            )


def _summary(chain: Chain, results: Sequence[Result]) -> dict[str, dict[str, float]]:
    """Return metrics of the targets whose truth is known: means over all results, and over each data set if there are
    several. The metrics also rate the best constant guess and all variations of an example together. `examples` is the
    number of examples that have the target."""
    metrics = {}
    for target in chain.targets:
        name, own_results = target.modality.name, [result for result in results if result.truth(target) is not None]
        if not own_results:
            continue
        known_by_set, sets = (
            _training_contents(target),
            dict.fromkeys(result.example.data_set for result in own_results),
        )
        everything = [ids for contents in known_by_set.values() for ids in contents]
        metrics[name] = _compared(own_results, target, everything)
        for data_set in sets if len(sets) > 1 else ():
            set_results = [result for result in own_results if result.example.data_set == data_set]
            metrics[f"{name} of {data_set}"] = _compared(set_results, target, known_by_set.get(data_set, everything))
    return metrics


def _compared(results: Sequence[Result], target: Target, known: Sequence[Ids]) -> dict[str, float]:
    """Return metrics of the results of one target, whose truth is known, and the number of their examples. `known`:
    training contents for the best constant guess; without them there is no guess."""
    groups: dict[tuple[str | None, str], tuple[list[Ids], Ids]] = {}
    judge, generated = results[0].judge(target), [result.ids(target) for result in results]
    true = [truth for result in results if (truth := result.truth(target)) is not None]
    for result, ids, truth in zip(results, generated, true, strict=True):
        groups.setdefault((result.example.data_set, result.example.key), ([], truth))[0].append(ids)
    values = judge.figures(generated, true)
    guess = judge.guessed(known, true) if known else {}
    values |= {f"guessed_{name}": value for name, value in guess.items()}
    if target.modality.kind == "image" and len(generated) > len(groups):
        together = judge.together(*zip(*groups.values(), strict=True))
        values |= {f"together_{name}": value for name, value in together.items()}
    return values | {_NUM: float(len(groups))}


def _training_contents(target: Target) -> dict[str | None, list[Ids]]:
    """Return contents of samples from all of the training data, by data set; empty if the data are not available."""
    try:
        source = open_source(target.link.config, "train")
    except DataError:
        return {}
    contents: dict[str | None, list[Ids]] = {}
    for example in data_examples(source, spread(source.sizes, _MOST_KNOWN), ()):
        content = target.link.truth(example, target.modality)
        if content is not None:
            contents.setdefault(example.data_set, []).append(content)
    return contents


def _metrics_line(name: str, values: Mapping[str, float], num_examples: int) -> str:
    """Return the metrics of a target as a readable line. `num_examples`: number of all generated examples."""
    parts = []
    for metric, value in values.items():
        if metric.startswith(("guessed_", "together_")) or metric == _NUM:
            continue
        comparisons = (("best constant guess", f"guessed_{metric}"), ("variations together", f"together_{metric}"))
        compared = [f"{title}: {values[key]:.3f}" for title, key in comparisons if key in values]
        parts.append(f"{metric} {value:.3f}" + (f" ({', '.join(compared)})" if compared else ""))
    return f"{name}: {', '.join(parts)}, over {values[_NUM]:.0f} of {num_examples} examples"


def _write(
    out: Path,
    plan: GenerationPlan,
    results: Sequence[Result],
    answers: list[dict[str, Any]],
    summary: Mapping[str, Mapping[str, float]],
) -> None:
    """Write the output folder, and put the names of its files into `answers`."""
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
    """Return `num` samples from all of the held-out data, with generated targets and their truth, for the report. One
    modality of each sample is the input, and each target is generated from it alone: the most likely tokens of an image
    in one step, or a text by greedy decoding. Every second input is the pixels of its sample, if it has any; the others
    alternate between texts and images."""
    assert isinstance(source, FourMSource)
    assert isinstance(model, FourM)
    link = Link(config, model, source.vocabulary)
    chosen = spread(source.sizes, num)
    rows: dict[int, dict[str, Any]] = {}
    groups: dict[tuple[int, Modality], list[int]] = {}
    for place, (number, _) in enumerate(chosen):
        present = [source.modalities[index] for index in source.sets[number].present]
        inputs = [m for kind in _ORDER for m in present if m.kind == kind and m.is_input]
        if inputs:
            # Even samples use the first input, odd samples alternate between the others.
            first, *others = inputs
            input_modality = others[place // 2 % len(others)] if others and place % 2 else first
            groups.setdefault((number, input_modality), []).append(place)
    with evaluation_mode(model):
        for (_, input_modality), places in groups.items():
            shown = _report_rows(link, source, [chosen[place] for place in places], input_modality)
            rows |= dict(zip(places, shown, strict=True))
    return [rows[place] for place in sorted(rows)]


def _report_rows(
    link: Link, source: FourMSource, indices: Sequence[tuple[int, int]], input_modality: Modality
) -> list[dict[str, Any]]:
    examples = data_examples(source, indices, [input_modality.name])
    present = [source.modalities[row] for row in source.sets[indices[0][0]].present]
    rows: list[dict[str, Any]] = [{} for _ in examples]
    for target in present:
        if not target.is_target or target.name == input_modality.name:
            continue
        is_image = target.kind == "image"
        settings: dict[str, Any] = {"num_steps": 1} if is_image else {"max_tokens": min(_MAX_TOKENS, target.max_tokens)}
        plan = GenerationPlan(targets=(TargetConfig(modality=target.name, temperature=0.0, **settings),))
        chain = Chain([link], plan, [input_modality.name])
        known = chain.run(examples, range(len(examples)))
        for row, example in enumerate(examples):
            result = Result(chain, example, 0, [contents.take([row]) for contents in known], {})
            for name, cell in result.cells().items():
                heading = "input" if name.startswith("from ") else name
                if isinstance(cell, str):
                    rows[row][heading] = [{"text": cell}]
                elif cell is not None:
                    rows[row][heading] = [{"image": thumbnail(cell.transpose(2, 0, 1), _HEIGHT)}]
    return rows

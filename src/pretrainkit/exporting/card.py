"""Model card of an export: `README.md` with the header that the Hugging Face hub reads.

It states what the run folder records: data with fingerprints, held-out metrics with their conditions, steps, time and
hardware. What only the author knows (the licence, intended use, limitations) is given or left to fill in.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

from pretrainkit.exporting.class_names import HEAD_FILE
from pretrainkit.files.cards import CARD, card_header
from pretrainkit.report.numbers import is_percentage, is_share, metric
from pretrainkit.training.run import RunConfig


class _Use(NamedTuple):
    """Code that loads and calls a class of models of transformers."""

    model: str
    reader: str
    task: str
    """Name of the task on the hub."""


_USES = {
    "ForMaskedLM": _Use("AutoModelForMaskedLM", "AutoTokenizer", "fill-mask"),
    "ForSequenceClassification": _Use("AutoModelForSequenceClassification", "AutoTokenizer", "text-classification"),
    "ForTokenClassification": _Use("AutoModelForTokenClassification", "AutoTokenizer", "token-classification"),
    "ForQuestionAnswering": _Use("AutoModelForQuestionAnswering", "AutoTokenizer", "question-answering"),
    # The hub and transformers 5 no longer have the task text2text-generation.
    "ForConditionalGeneration": _Use("AutoModelForSeq2SeqLM", "AutoTokenizer", "text-generation"),
    "ForPreTraining": _Use("AutoModelForPreTraining", "AutoTokenizer", "fill-mask"),
    # Pipelines for text-classification would give it a random head instead of ours.
    "EncoderModel": _Use("AutoModelForTextEncoding", "AutoTokenizer", "feature-extraction"),
    "CLIPModel": _Use("AutoModel", "AutoProcessor", "zero-shot-image-classification"),
    "SiglipModel": _Use("SiglipModel", "AutoProcessor", "zero-shot-image-classification"),
    "VisionTextDualEncoderModel": _Use("AutoModel", "AutoProcessor", "zero-shot-image-classification"),
}
"""Maps suffixes of class names of transformers to the use of the class. The longest matching suffix counts."""
_OF_RENDERED_TEXT = ("PIXEL", "ViTMAE")
"""Prefixes of the class names of PIXEL. transformers does not know the first, and the second needs square pictures for
its loss, and attends to the blank patches after a text."""
_INPUTS = 'inputs = reader("Some text.", return_tensors="pt")\n'
_TEXT = f"{_INPUTS}outputs = model(**inputs)"
_CALLS = {
    "AutoModelForSeq2SeqLM": f"{_INPUTS}print(reader.decode(model.generate(**inputs)[0], skip_special_tokens=True))",
    "AutoModelForSequenceClassification": f"{_INPUTS}logits = model(**inputs).logits\n",
    "AutoModelForTokenClassification": 'words = ["Some", "text", "."]\n'
    'inputs = reader(words, is_split_into_words=True, return_tensors="pt")\n'
    "labels = model(**inputs).logits[0].argmax(-1).tolist()\n"
    "first = [inputs.word_ids().index(number) for number in range(len(words))]  # the first token of each word\n"
    "print([model.config.id2label[labels[token]] for token in first])",
    "AutoModelForQuestionAnswering": 'inputs = reader("Who came?", "Ann came.", return_tensors="pt")\n'
    "outputs = model(**inputs)\n"
    "spans = (outputs.start_logits.softmax(-1).T @ outputs.end_logits.softmax(-1)).triu()\n"
    "begin, end = divmod(spans.argmax().item(), len(spans))  # 0, 0: no answer\n"
    'print(reader.decode(inputs["input_ids"][0, begin : end + 1]))',
    "AutoModelForTextEncoding": f"head = load_file(cached_file(NAME, {json.dumps(HEAD_FILE)}))\n{_INPUTS}"
    "mean = model(**inputs).last_hidden_state.mean(1)  # of one text; padding between texts would count\n"
    'logits = mean @ head["weight"].T + head["bias"]\n',
    "AutoProcessor": 'inputs = reader(text=["some text"], images=[load_image("photo.png")], return_tensors="pt", '
    "padding=True)\nprint(model(**inputs).logits_per_image)",
    "SiglipModel": 'inputs = reader(text=["some text"], images=[load_image("photo.png")], return_tensors="pt", '
    'padding="max_length")\nprint(model(**inputs).logits_per_image)',
}
"""Calls by the class of the model or of the reader. To those that end with a line feed the card adds how to read
`logits`."""
_IMPORTS = {
    "cached_file": "from transformers.utils import cached_file",
    "load_file": "from safetensors.torch import load_file",
    "load_image": "from transformers.image_utils import load_image",
}

_OPEN_CLIP = """import open_clip

model, preprocess = open_clip.create_model_from_pretrained({origin})
tokenizer = open_clip.get_tokenizer({origin})"""
_OPEN_CLIP_HERE = "pretrainkit import {path} --format openclip --out model"


def write_card(
    folder: Path,
    config: RunConfig,
    run: Path | None,
    *,
    name: str,
    license: str | None = None,
    percentages: Iterable[str] = (),
) -> None:
    """Write the card of the export in `folder`.

    Args:
        run: The run folder, which has the numbers; None for an imported model.
        name: Name of the model on the hub, or of its folder.
        license: Identifier of the licence on the hub, such as `apache-2.0`; None leaves it to the author.
        percentages: Patterns of the names of the metrics whose values are in per cent.
    """
    path = folder / "config.json"
    values = json.loads(path.read_bytes()) if path.is_file() else {}
    classes = values.get("architectures")
    name_of_class = classes[0] if classes and not classes[0].startswith(_OF_RENDERED_TEXT) else ""
    fitting = [end for end in _USES if name_of_class.endswith(end)]
    use = _USES[max(fitting, key=len)] if fitting else None
    is_open_clip = (folder / "open_clip_config.json").is_file()
    header = {
        "license": license,
        "library_name": "open_clip" if is_open_clip else "pretrainkit" if use is None else "transformers",
        "pipeline_tag": "zero-shot-image-classification" if is_open_clip else use and use.task,
        "tags": ["pretrainkit", config.recipe],
    }
    usage = _open_clip_usage(name) if is_open_clip else _usage(name, use, values)
    parts = [card_header(header), f"# {name}", _about(config, classes, run), usage]
    if run is not None:
        parts += [_training(config, run), _results(config, run, tuple(percentages))]
    parts.append(
        "## Limitations\n\nTo be filled in by the author: intended use, languages and domains of the data, known "
        "biases, and what the model must not be used for."
    )
    (folder / CARD).write_text("\n\n".join(parts) + "\n", "utf-8")


def _about(config: RunConfig, classes: list[str] | None, run: Path | None) -> str:
    summary = _read(run, "summary.json")
    size = f" with {summary['parameters']:,} parameters" if "parameters" in summary else ""
    kind = f"`{classes[0]}`" if classes else f"model of the recipe `{config.recipe}`"
    return (
        f"A {kind}{size}, trained with [pretrainkit](https://pypi.org/project/pretrainkit/), recipe `{config.recipe}`."
    )


def _open_clip_usage(name: str) -> str:
    is_on_hub = "/" in name
    origin = f"{'hf-hub' if is_on_hub else 'local-dir'}:{name}"
    theirs = _OPEN_CLIP.format(origin=json.dumps(origin, ensure_ascii=False))
    ours = _OPEN_CLIP_HERE.format(path=origin if is_on_hub else quote(name))
    return f"## Use\n\n```python\n{theirs}\n```\n\nWith pretrainkit:\n\n```bash\n{ours}\n```"


def _usage(name: str, use: _Use | None, values: Mapping[str, Any]) -> str:
    # A name on the hub begins with a user and a slash. Any other name is that of a folder.
    is_on_hub = "/" in name
    fetched = f"hf download {name} --local-dir model\n" if is_on_hub else ""
    folder = "model" if is_on_hub else quote(name)
    ours = f"```bash\n{fetched}pretrainkit evaluate {folder} data.valid=DATA\n```"
    if use is None:
        return f"## Use\n\n{ours}"
    call = _CALLS.get(use.model) or _CALLS.get(use.reader) or _TEXT
    if call.endswith("\n"):
        is_number = values.get("problem_type") == "regression"
        call += "print(logits.item())" if is_number else "print(model.config.id2label[logits.argmax().item()])"
    imports = [f"from transformers import {', '.join(sorted((use.model, use.reader)))}"]
    imports += [line for function, line in _IMPORTS.items() if function in call]
    origin = json.dumps(name, ensure_ascii=False)
    code = "\n".join(
        [
            *sorted(imports),
            f"\nmodel = {use.model}.from_pretrained({origin})",
            f"reader = {use.reader}.from_pretrained({origin})",
            call.replace("NAME", origin),
        ]
    )
    return f"## Use\n\n```python\n{code}\n```\n\nWith pretrainkit:\n\n{ours}"


def _training(config: RunConfig, run: Path) -> str:
    provenance, summary = _read(run, "provenance.json"), _read(run, "summary.json")
    data = provenance.get("data", {})
    rows = {
        name.replace("_", " "): _number(value) for name, value in data.items() if isinstance(value, int | float | str)
    }
    if "steps" in summary:
        rows |= {"steps": _number(summary["steps"]), "batch": f"{config.data.batch_size:,} examples"}
    if config.init_from is not None:
        rows["initial weights"] = _origin(Path(config.init_from), config.init.step)
    rows["optimizer"] = f"{config.optimizer.name}, peak learning rate {config.optimizer.peak_lr:g}"
    if "seconds_per_step" in summary and "steps" in summary:
        rows["time"] = (
            f"{summary['seconds_per_step'] * summary['steps'] / 3600:,.2f} hours (last time per step x steps)"
        )
    rows["hardware"] = f"{provenance.get('cores', '?')} CPU cores, {provenance.get('platform', 'unknown platform')}"
    rows["software"] = ", ".join(f"{name} {version}" for name, version in provenance.get("packages", {}).items())
    return f"## Training\n\nFingerprints identify the data; paths are left out.\n\n| | |\n|---|---|\n{_table(rows)}"


def _table(rows: Mapping[str, object]) -> str:
    """Return rows of a Markdown table. A `|` in a cell, such as in the name of a run, would end the cell."""
    escaped = ((name.replace("|", "\\|"), str(value).replace("|", "\\|")) for name, value in rows.items())
    return "\n".join(f"| {name} | {value} |" for name, value in escaped)


def _origin(path: Path, step: int | None) -> str:
    """Return the name of a run, checkpoint or export that a run started from, without the folders above it."""
    is_checkpoint = path.parent.name == "checkpoints"
    name = f"{path.parent.parent.name}, {path.name}" if is_checkpoint else path.name
    return f"`{name}`" if step is None else f"`{name}`, step {step:,}"


def _results(config: RunConfig, run: Path, percentages: tuple[str, ...]) -> str:
    summary = _read(run, "summary.json")
    metrics = {name.removeprefix("valid_"): value for name, value in summary.items() if name.startswith("valid_")}
    if not metrics:
        return "## Evaluation\n\nThe run had no held-out data."
    num_examples = getattr(config.evaluate, "num_examples", None)
    held_out = "all held-out examples" if num_examples is None else f"at most {num_examples:,} held-out examples"
    numbers = {name: _value(name, value, percentages) for name, value in metrics.items()}
    return (
        f"## Evaluation\n\nOn {held_out} of the run's data, after step {summary['steps']:,}.\n\n"
        f"| metric | value |\n|---|---|\n{_table(numbers)}"
    )


def _value(name: str, value: float | None, percentages: tuple[str, ...]) -> str:
    if value is None:  # null in a summary
        return "not finite"
    if is_share(name, percentages) or is_percentage(name, percentages):
        return metric(name, value, percentages)
    return f"{value:.4f}"


def _read(run: Path | None, name: str) -> dict[str, Any]:
    path = None if run is None else run / name
    return json.loads(path.read_bytes()) if path is not None and path.is_file() else {}


def _number(value: float | str) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}" if isinstance(value, float) else value

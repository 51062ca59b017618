"""Folders of transformers, both ways: encoders with whatever head, and classifiers of examples, words or spans, the
latter two as `AutoModelForTokenClassification` and `AutoModelForQuestionAnswering` have them.
"""

import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from pretrainkit.errors import CheckpointError, DataError, InputError
from pretrainkit.exporting.class_names import Reads, class_names, class_settings, read_by_head
from pretrainkit.exporting.settings import SETTINGS
from pretrainkit.exporting.torchvision_shim import import_transformers
from pretrainkit.exporting.transformers_folder import new_transformers_folder, read_config
from pretrainkit.nn.foreign import without_weights
from pretrainkit.nn.initialise import builds_on_meta, initialise_layer
from pretrainkit.recipes.exchange import ImportedTextClassifier, TextClassifier
from pretrainkit.recipes.huggingface.config import HuggingFaceModelConfig, HuggingFaceRun
from pretrainkit.recipes.huggingface.encoder import (
    HuggingFaceEncoder,
    classifier_of,
    family_of,
    is_behind_encoder,
    max_positions_of,
)
from pretrainkit.recipes.huggingface.reader import read_tokenizer

logger = logging.getLogger(__name__)

_NUM_SHOWN = 4
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".h5", ".msgpack", ".ot", ".onnx", ".ckpt")


def build(config: HuggingFaceModelConfig) -> HuggingFaceEncoder:
    """The encoder on torch's default device, initialised from its global generator; on "meta" without values."""
    found, kind = family_of(config.architecture, "the encoder")

    def make() -> Any:
        return kind._from_config(found, dtype=torch.float32)

    return HuggingFaceEncoder(without_weights(make) if builds_on_meta() else make(), has_types=config.second_type > 0)


def read_folder(
    folder: Path, reads: Reads = "examples"
) -> tuple[HuggingFaceModelConfig, dict[str, Tensor], dict[str, Tensor]]:
    """Return the config, the state dict of `build(config)`, and weight and bias of the classifier, if it has one.
    Raises CheckpointError where it is no encoder of texts, or lacks weights of one."""
    architecture, _ = read_config(folder, dict)
    found, kind = family_of(architecture, str(folder))
    model, report = _loaded(kind, found, folder)
    name, linear = classifier_of(model)
    missing = set(report["missing_keys"])
    has_classifier = f"{name}.weight" not in missing
    classifier = {key: value.clone() for key, value in linear.state_dict().items()} if has_classifier else {}
    drawn = drawn_modules(model, {key for key in missing if not key.startswith(f"{name}.")}, folder)
    if reads != "examples":
        name, classifier = slot_head(architecture, reads, folder)
    left = sorted({key.split(".")[0] for key in report["unexpected_keys"] if key.rpartition(".")[0] != name})
    if left:
        logger.warning("%s: not read, because the encoder has no place for it: %s", folder, ", ".join(left))
    positions = max_positions_of(model)
    encoder = HuggingFaceEncoder(model)
    config = HuggingFaceModelConfig(
        architecture=architecture, max_positions=positions, drawn=drawn, second_type=_second_type(folder, encoder)
    )
    return config, encoder.state_dict(), classifier


def _loaded(kind: Any, config: Any, folder: Path) -> tuple[Any, dict[str, Any]]:
    """Return a model of the class `kind` with the weights of a folder, and what transformers reports of them. What is
    missing is drawn; see `draw`."""
    with torch.random.fork_rng(), _quiet():
        torch.manual_seed(0)
        try:
            return kind.from_pretrained(
                str(folder), config=config, dtype=torch.float32, output_loading_info=True, local_files_only=True
            )
        except (OSError, ValueError, RuntimeError) as error:
            raise CheckpointError(
                f"transformers cannot load the weights in {folder}: {error}\n  copy it again"
            ) from error


def read_classifier(folder: Path) -> ImportedTextClassifier:
    """Read a folder of `AutoModelForSequenceClassification`, `…TokenClassification` or `…QuestionAnswering`. Raises
    CheckpointError where it has no classifier, or one of classes that may hold together."""
    reads = read_config(folder, read_by_head)[0] or "examples"
    config, encoder, classifier = read_folder(folder, reads)
    if set(classifier) != {"weight", "bias"}:
        raise CheckpointError(f"{folder} has no linear classifier with a bias\n  give the encoder it was trained from")
    return ImportedTextClassifier(
        HuggingFaceRun(model=config),
        encoder,
        classifier,
        () if reads == "spans" else class_names(config.architecture, len(classifier["weight"])),
        config.max_positions,
        reads,
    )


def drawn_modules(model: Any, missing: set[str], folder: Path) -> tuple[str, ...]:
    """Return the names of the layers between encoder and classifier that the tensors of `missing` belong to. Raises
    CheckpointError where anything else is missing."""
    found = {key.rpartition(".")[0] for key in missing}
    absent = []
    for name in sorted(found):
        module = model.get_submodule(name)
        own = {f"{name}.{key}" for key, _ in module.named_parameters(recurse=False)}
        is_layer = isinstance(module, nn.Linear | nn.LayerNorm) and own <= missing
        if not is_layer or not is_behind_encoder(model, module):
            absent += sorted(own & missing)
    if absent:
        raise CheckpointError(
            f"{folder} lacks {len(absent)} tensors of its encoder, such as {', '.join(absent[:_NUM_SHOWN])}\n"
            "  copy it again"
        )
    return tuple(sorted(found))


def draw(encoder: HuggingFaceEncoder, config: HuggingFaceModelConfig) -> None:
    """Draw the layers that the folder had no weights for from torch's global generator."""
    scale = config.architecture.get("initializer_range") or 0.02
    for name in config.drawn:
        initialise_layer(encoder.model.get_submodule(name), scale)


def write_classifier(
    config: HuggingFaceModelConfig, trained: TextClassifier, tokenizer: Path | None, out: Path
) -> None:
    """Write a folder that `AutoModelForSequenceClassification.from_pretrained` loads, or of heads on words and spans
    `AutoModelForTokenClassification` and `AutoModelForQuestionAnswering`. Raises InputError where `out` exists and is
    not an empty folder, or cannot be written."""
    encoder = trained.encoder
    assert isinstance(encoder, HuggingFaceEncoder)
    if trained.reads == "examples":
        values = {**config.architecture, "architectures": [type(encoder.model).__name__]}
        values |= class_settings(trained.classes) | {"dtype": "float32"}
        state = {name.removeprefix("model."): tensor for name, tensor in encoder.state_dict().items()}
        state |= {f"{encoder.classifier_name}.{name}": tensor for name, tensor in trained.head.state_dict().items()}
    else:
        values, state = slot_classifier(config.architecture, trained)
    with new_transformers_folder(out, values, state) as folder:
        if tokenizer is not None:
            _copy_tokenizer(tokenizer, folder)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the bars and tables of transformers: we report what matters in them."""
    logging_ = import_transformers().logging
    verbosity, has_bar = logging_.get_verbosity(), logging_.is_progress_bar_enabled()
    logging_.set_verbosity_error()
    logging_.disable_progress_bar()
    try:
        yield
    finally:
        logging_.set_verbosity(verbosity)
        if has_bar:
            logging_.enable_progress_bar()


def _copy_tokenizer(origin: Path, folder: Path) -> None:
    """Copy all files that are neither weights nor configs: families call those of tokenizers differently."""
    for path in origin.iterdir():
        is_known = path.suffix in _WEIGHTS or path.name in ("config.json", "generation_config.json", SETTINGS)
        if path.is_file() and not is_known and not path.name.startswith("."):
            shutil.copyfile(path, folder / path.name)


def _second_type(folder: Path, encoder: HuggingFaceEncoder) -> Literal[0, 1]:
    """Return that of the tokenizer beside the weights; where there is none, 1 if the encoder knows two types."""
    try:
        return read_tokenizer(folder)[1].second_type
    except DataError:
        return 1 if encoder.num_types > 1 else 0


def slot_classifier(architecture: dict[str, Any], trained: TextClassifier) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return (contents of config.json, tensors in the names of transformers) of a head that reads words or spans.
    Raises InputError where the family has no such class, or one with more than a linear layer on the encoder."""
    assert isinstance(trained.encoder, HuggingFaceEncoder)
    # Of spans two scores: that an answer begins at a slot, and that it ends there.
    settings = {"num_labels": 2} if trained.reads == "spans" else class_settings(trained.classes)
    kind, config = _class_of({**architecture, **settings}, trained.reads)
    model = without_weights(lambda: kind._from_config(config))
    heads = _heads(model)
    prefix = f"{model.base_model_prefix}."
    own = trained.encoder.model.base_model.state_dict()
    state = {f"{prefix}{name}": tensor for name, tensor in own.items()}
    if len(heads) == 1:
        state |= {f"{heads[0]}.{name}": tensor for name, tensor in trained.head.state_dict().items()}
    wanted = {name: tensor.shape for name, tensor in model.state_dict().items()}
    # What only stands behind whole examples, such as BERT's pooler, has no place there.
    state = {name: tensor for name, tensor in state.items() if name in wanted}
    if {name: tensor.shape for name, tensor in state.items()} != wanted:
        why = f"{type(model).__name__} has more than one linear layer on the encoder"
        raise _no_class(architecture["model_type"], trained.reads, why)
    return {**architecture, **settings, "architectures": [type(model).__name__], "dtype": "float32"}, state


def slot_head(architecture: dict[str, Any], reads: Reads, folder: Path) -> tuple[str, dict[str, Tensor]]:
    """Return (name, weight and bias) of the head on words or spans in a folder that transformers saved. Raises
    CheckpointError where it is not one linear layer with a bias on the encoder."""
    kind, config = _class_of(architecture, reads)
    model, report = _loaded(kind, config, folder)
    heads = _heads(model)
    state = model.get_submodule(heads[0]).state_dict() if len(heads) == 1 else {}
    if set(state) != {"weight", "bias"} or any(key.startswith(f"{heads[0]}.") for key in report["missing_keys"]):
        raise CheckpointError(
            f"the head of {folder}, a {kind.__name__}, is not one linear layer with a bias on the encoder\n"
            "  read its encoder alone: init.recipe=huggingface"
        )
    return heads[0], state


def _class_of(architecture: dict[str, Any], reads: Reads) -> tuple[Any, Any]:
    """(class, config) of the family's model with a head on words or spans. Raises InputError where there is none."""
    config, _ = family_of(architecture, "the encoder")
    auto = import_transformers().models.auto.modeling_auto
    is_span = reads == "spans"
    known = auto.MODEL_FOR_QUESTION_ANSWERING_MAPPING if is_span else auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING
    if type(config) not in known:
        raise _no_class(config.model_type, reads, "transformers has none for it")
    return known[type(config)], config


def _heads(model: Any) -> list[str]:
    """Names of the linear layers behind the encoder."""
    prefix = f"{model.base_model_prefix}."
    return [
        name for name, module in model.named_modules() if isinstance(module, nn.Linear) and not name.startswith(prefix)
    ]


def _no_class(kind: str, reads: str, why: str) -> InputError:
    return InputError(f"a {kind} with a head on {reads} cannot be exported: {why}\n  use --format safetensors")

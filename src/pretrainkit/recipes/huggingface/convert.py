"""Read and write folders of transformers: encoders with any head, and classifiers of examples, words or spans.

Classifiers of words are `AutoModelForTokenClassification`, those of spans `AutoModelForQuestionAnswering`.
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
from pretrainkit.exporting.class_names import Reads, class_names, class_settings, require_head
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
    """Return the encoder on torch's default device, initialized from its global generator; on "meta" without values."""
    settings, model_class = family_of(config.architecture, "the encoder")

    def build_classifier() -> Any:
        return model_class._from_config(settings, dtype=torch.float32)

    model = without_weights(build_classifier) if builds_on_meta() else build_classifier()
    return HuggingFaceEncoder(model, has_types=config.second_type > 0)


def read_folder(
    folder: Path, reads: Reads = "examples"
) -> tuple[HuggingFaceModelConfig, dict[str, Tensor], dict[str, Tensor]]:
    """Return the config, the state dict of `build(config)`, and weight and bias of the classifier, if the folder has
    one. Raises CheckpointError if the folder is not a text encoder or if weights of the encoder are missing."""
    architecture, _ = read_config(folder, dict)
    settings, model_class = family_of(architecture, str(folder))
    model, report = _loaded(model_class, settings, folder)
    name, linear = classifier_of(model)
    missing = set(report["missing_keys"])
    has_classifier = f"{name}.weight" not in missing
    classifier = {key: value.clone() for key, value in linear.state_dict().items()} if has_classifier else {}
    drawn = drawn_modules(model, {key for key in missing if not key.startswith(f"{name}.")}, folder)
    if reads != "examples":
        name, classifier = slot_head(architecture, reads, folder)
    unread = sorted(key for key in report["unexpected_keys"] if key.rpartition(".")[0] != name)
    if unread:
        logger.warning(
            "%s: %d tensors are not read, because the model has no layers for them, such as %s",
            *(folder, len(unread), ", ".join(unread[:_NUM_SHOWN])),
        )
    positions = max_positions_of(model)
    encoder = HuggingFaceEncoder(model)
    config = HuggingFaceModelConfig(
        architecture=architecture, max_positions=positions, drawn=drawn, second_type=_second_type(folder, encoder)
    )
    return config, encoder.state_dict(), classifier


def _loaded(model_class: Any, config: Any, folder: Path) -> tuple[Any, dict[str, Any]]:
    """Return a model of `model_class` with the weights of a folder, and the loading report of transformers. Missing
    weights are random; `draw` initializes them again."""
    with torch.random.fork_rng(), _quiet():
        torch.manual_seed(0)
        try:
            return model_class.from_pretrained(
                str(folder), config=config, dtype=torch.float32, output_loading_info=True, local_files_only=True
            )
        except Exception as error:  # transformers and its readers of weights raise errors of many types
            raise CheckpointError(
                f"transformers cannot load the weights in {folder}: {error}\n  copy the folder again"
            ) from error


def read_classifier(folder: Path) -> ImportedTextClassifier:
    """Read a folder of `AutoModelForSequenceClassification`, `…TokenClassification` or `…QuestionAnswering`. Raises
    CheckpointError if it has no classifier, or if several classes of its classifier may apply to one example."""
    reads = require_head(read_config(folder, dict)[0], folder)
    config, encoder, classifier = read_folder(folder, reads)
    if set(classifier) != {"weight", "bias"}:
        raise CheckpointError(
            f"{folder} has no linear classifier with a bias\n  use the encoder that it was trained from"
        )
    return ImportedTextClassifier(
        HuggingFaceRun(model=config),
        encoder,
        classifier,
        () if reads == "spans" else class_names(config.architecture, len(classifier["weight"])),
        config.max_positions,
        reads,
    )


def drawn_modules(model: Any, missing: set[str], folder: Path) -> tuple[str, ...]:
    """Return the names of the layers between encoder and classifier whose tensors are `missing`. Raises CheckpointError
    if other tensors are missing, too."""
    layers = {key.rpartition(".")[0] for key in missing}
    absent = []
    for name in sorted(layers):
        module = model.get_submodule(name)
        own = {f"{name}.{key}" for key, _ in module.named_parameters(recurse=False)}
        is_layer = isinstance(module, nn.Linear | nn.LayerNorm) and own <= missing
        if not is_layer or not is_behind_encoder(model, module):
            absent += sorted(own & missing)
    if absent:
        raise CheckpointError(
            f"{folder} lacks {len(absent)} tensors of its encoder, such as {', '.join(absent[:_NUM_SHOWN])}\n"
            "  copy the folder again"
        )
    return tuple(sorted(layers))


def draw(encoder: HuggingFaceEncoder, config: HuggingFaceModelConfig) -> None:
    """Initialize the layers without weights in the folder, from torch's global generator."""
    scale = config.architecture.get("initializer_range") or 0.02
    for name in config.drawn:
        initialise_layer(encoder.model.get_submodule(name), scale)


def write_classifier(
    config: HuggingFaceModelConfig, trained: TextClassifier, tokenizer: Path | None, out: Path
) -> None:
    """Write a folder that `AutoModelForSequenceClassification.from_pretrained` loads; with a head on words or spans,
    `AutoModelForTokenClassification` or `AutoModelForQuestionAnswering`. Raises InputError if `out` exists and is not
    an empty folder, or if it cannot be written."""
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
    """Silence progress bars and tables of transformers. Callers report the important parts themselves."""
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
    """Copy all files that are neither weights nor configs, because names of tokenizer files differ between families."""
    for path in origin.iterdir():
        is_known = path.suffix in _WEIGHTS or path.name in ("config.json", "generation_config.json", SETTINGS)
        if path.is_file() and not is_known and not path.name.startswith("."):
            shutil.copyfile(path, folder / path.name)


def _second_type(folder: Path, encoder: HuggingFaceEncoder) -> Literal[0, 1]:
    """Return the second token type of the folder's tokenizer; without a tokenizer, 1 if the encoder knows two types."""
    try:
        return read_tokenizer(folder)[1].second_type
    except DataError:
        return 1 if encoder.num_types > 1 else 0


def slot_classifier(architecture: dict[str, Any], trained: TextClassifier) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the contents of config.json and the tensors, named as in transformers, of a head on words or spans.
    Raises InputError if the family has no such class, or if its class adds more than one linear layer to the
    encoder."""
    assert isinstance(trained.encoder, HuggingFaceEncoder)
    # A head on spans has two scores: an answer begins at a slot, and it ends there.
    settings = {"num_labels": 2} if trained.reads == "spans" else class_settings(trained.classes)
    model_class, config = _class_of({**architecture, **settings}, trained.reads)
    model = without_weights(lambda: model_class._from_config(config))
    heads = _heads(model)
    prefix = f"{model.base_model_prefix}."
    encoder_state = trained.encoder.model.base_model.state_dict()
    state = {f"{prefix}{name}": tensor for name, tensor in encoder_state.items()}
    if len(heads) == 1:
        state |= {f"{heads[0]}.{name}": tensor for name, tensor in trained.head.state_dict().items()}
    expected = {name: tensor.shape for name, tensor in model.state_dict().items()}
    # These classes have no layers for whole examples, such as BERT's pooler.
    state = {name: tensor for name, tensor in state.items() if name in expected}
    if {name: tensor.shape for name, tensor in state.items()} != expected:
        reason = f"{type(model).__name__} has more than one linear layer on the encoder"
        raise _no_class(architecture["model_type"], trained.reads, reason)
    return {**architecture, **settings, "architectures": [type(model).__name__], "dtype": "float32"}, state


def slot_head(architecture: dict[str, Any], reads: Reads, folder: Path) -> tuple[str, dict[str, Tensor]]:
    """Return the name, and weight and bias, of the head on words or spans in a folder that transformers saved. Raises
    CheckpointError if the head is not one linear layer with a bias on the encoder."""
    model_class, config = _class_of(architecture, reads)
    model, report = _loaded(model_class, config, folder)
    heads = _heads(model)
    state = model.get_submodule(heads[0]).state_dict() if len(heads) == 1 else {}
    if set(state) != {"weight", "bias"} or any(key.startswith(f"{heads[0]}.") for key in report["missing_keys"]):
        raise CheckpointError(
            f"the head of {folder}, a {model_class.__name__}, is not one linear layer with a bias on the encoder\n"
            "  read only its encoder: init.recipe=huggingface"
        )
    return heads[0], state


def _class_of(architecture: dict[str, Any], reads: Reads) -> tuple[Any, Any]:
    """Return the class and the config of the family's model with a head on words or spans. Raises InputError if the
    family has no such model."""
    config, _ = family_of(architecture, "the encoder")
    auto = import_transformers().models.auto.modeling_auto
    is_span = reads == "spans"
    known = auto.MODEL_FOR_QUESTION_ANSWERING_MAPPING if is_span else auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING
    if type(config) not in known:
        raise _no_class(config.model_type, reads, "transformers has no class for it")
    return known[type(config)], config


def _heads(model: Any) -> list[str]:
    """Return the names of the linear layers outside of the encoder."""
    prefix = f"{model.base_model_prefix}."
    return [
        name for name, module in model.named_modules() if isinstance(module, nn.Linear) and not name.startswith(prefix)
    ]


def _no_class(model_type: str, reads: str, reason: str) -> InputError:
    return InputError(
        f"a {model_type} with a head on {reads} cannot be exported to transformers: {reason}\n"
        "  use --format safetensors"
    )

"""Heads on words and spans as transformers has them for the family, both ways: `AutoModelForTokenClassification` and
`AutoModelForQuestionAnswering`."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pretrainkit.errors import CheckpointError, InputError
from pretrainkit.exporting.class_names import Reads, class_settings
from pretrainkit.exporting.torchvision_shim import import_transformers
from pretrainkit.nn.foreign import without_weights
from pretrainkit.recipes.exchange import TextClassifier
from pretrainkit.recipes.huggingface.encoder import HuggingFaceEncoder

_NUM_ENDS = 2


def slot_classifier(architecture: dict[str, Any], trained: TextClassifier) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """(contents of config.json, tensors in the names of transformers) of a head that reads words or spans.

    Raises:
        InputError: transformers has no such class for the family, or one with more than a linear layer on the encoder.
    """
    assert isinstance(trained.encoder, HuggingFaceEncoder)
    settings = {"num_labels": _NUM_ENDS} if trained.reads == "spans" else class_settings(trained.classes)
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
    """(name, weight and bias) of the head on words or spans in a folder that transformers saved.

    Raises:
        CheckpointError: It is not one linear layer with a bias on the encoder.
    """
    kind, config = _class_of(architecture, reads)
    model, report = kind.from_pretrained(
        str(folder), config=config, dtype=torch.float32, output_loading_info=True, local_files_only=True
    )
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
    values = dict(architecture)
    kind = values.pop("model_type")
    config = import_transformers().AutoConfig.for_model(kind, **values)
    auto = import_transformers().models.auto.modeling_auto
    is_span = reads == "spans"
    known = auto.MODEL_FOR_QUESTION_ANSWERING_MAPPING if is_span else auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING
    if type(config) not in known:
        raise _no_class(kind, reads, "transformers has none for it")
    return known[type(config)], config


def _heads(model: Any) -> list[str]:
    """Names of the linear layers behind the encoder."""
    prefix = f"{model.base_model_prefix}."
    return [
        name for name, module in model.named_modules() if isinstance(module, nn.Linear) and not name.startswith(prefix)
    ]


def _no_class(kind: str, reads: str, why: str) -> InputError:
    return InputError(f"a {kind} with a head on {reads} cannot be exported: {why}\n  use --format safetensors")

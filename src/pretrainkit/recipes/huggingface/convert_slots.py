"""Heads on words and spans as transformers has them for the family: `AutoModelForTokenClassification` and
`AutoModelForQuestionAnswering`."""

from typing import Any

from torch import Tensor, nn

from pretrainkit.errors import InputError
from pretrainkit.exporting.class_names import class_settings
from pretrainkit.exporting.torchvision_shim import import_transformers
from pretrainkit.nn.foreign import without_weights
from pretrainkit.recipes.huggingface.encoder import HuggingFaceEncoder
from pretrainkit.training.recipe import TextClassifier

_NUM_ENDS = 2


def slot_classifier(architecture: dict[str, Any], trained: TextClassifier) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """(contents of config.json, tensors in the names of transformers) of a head that reads words or spans.

    Raises:
        InputError: transformers has no such class for the family, or one with more than a linear layer on the encoder.
    """
    assert isinstance(trained.encoder, HuggingFaceEncoder)
    is_span = trained.reads == "spans"
    settings = {"num_labels": _NUM_ENDS} if is_span else class_settings(trained.classes)
    values = {**architecture, **settings}
    kind = values.pop("model_type")
    config = import_transformers().AutoConfig.for_model(kind, **values)
    auto = import_transformers().models.auto.modeling_auto
    known = auto.MODEL_FOR_QUESTION_ANSWERING_MAPPING if is_span else auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING
    if type(config) not in known:
        raise _no_class(kind, trained.reads, "transformers has none for it")
    found = known[type(config)]
    model = without_weights(lambda: found._from_config(config))
    prefix = f"{model.base_model_prefix}."
    own = trained.encoder.model.base_model.state_dict()
    heads = [
        name for name, module in model.named_modules() if isinstance(module, nn.Linear) and not name.startswith(prefix)
    ]
    state = {f"{prefix}{name}": tensor for name, tensor in own.items()}
    if len(heads) == 1:
        state |= {f"{heads[0]}.{name}": tensor for name, tensor in trained.head.state_dict().items()}
    wanted = {name: tensor.shape for name, tensor in model.state_dict().items()}
    # What only stands behind whole examples, such as BERT's pooler, has no place there.
    state = {name: tensor for name, tensor in state.items() if name in wanted}
    if {name: tensor.shape for name, tensor in state.items()} != wanted:
        raise _no_class(kind, trained.reads, f"{found.__name__} has more than one linear layer on the encoder")
    return {**architecture, **settings, "architectures": [found.__name__], "dtype": "float32"}, state


def _no_class(kind: str, reads: str, why: str) -> InputError:
    return InputError(f"a {kind} with a head on {reads} cannot be exported: {why}\n  use --format safetensors")

"""Encoders of transformers, with the layers between encoder and classifier but without the classifier itself.

Dimensions: B examples, T tokens of all examples, S slots of a padded row, D width.
"""

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from pretrainkit.dist.devices import reads_at_once
from pretrainkit.errors import CheckpointError
from pretrainkit.exporting.torchvision_shim import import_transformers
from pretrainkit.nn.foreign import (
    mask_of_pairs,
    precision_of,
    repeated_modules,
    round_residuals,
    stacked_layers,
    takes_mask_of_pairs,
)
from pretrainkit.nn.layouts import example_numbers
from pretrainkit.recipes.text_encoder import TextEncoder
from pretrainkit.training.objective import Batch

_TYPES = "token_type_ids"


class HuggingFaceEncoder(TextEncoder):
    """`AutoModelForSequenceClassification` without its last linear layer. The input of that layer is the vector of an
    example, which a head reads. The model applies its own dropout to it, so `dropout_rate` is 0."""

    def __init__(self, model: Any, *, has_types: bool = True) -> None:
        """Replace the last linear layer of `model`, a model of transformers, by the identity. `has_types`: True if the
        second text of a pair has its own token type."""
        super().__init__()
        name, linear = classifier_of(model)
        model.set_submodule(name, nn.Identity())
        self.model, self.classifier_name = model, name
        round_residuals(model.base_model)
        self.width, self.dropout_rate = linear.in_features, 0.0
        settings = model.config.to_dict()
        self._pad_id = settings.get("pad_token_id") or 0
        reads_types = _TYPES in inspect.signature(model.base_model.forward).parameters
        self.num_types = (settings.get("type_vocab_size") or 0) if reads_types else 0
        self._has_types = has_types and self.num_types > 1
        if takes_mask_of_pairs(model.base_model):
            # A hook changes the mask for the encoder alone, because heads may read the mask of tokens.
            model.base_model.register_forward_pre_hook(_with_mask_of_pairs, with_kwargs=True)

    def blocks(self) -> list[nn.Module]:
        return repeated_modules(self.model.base_model)

    def stacked_layers(self) -> dict[str, int]:
        return stacked_layers(self)

    def forward(self, batch: Batch, max_length: int) -> Tensor:
        with precision_of(self.model, batch["input_ids"]):
            return self.model(**self._padded(batch)).logits[: len(batch["cu_seqlens"]) - 1]

    def tokens(self, batch: Batch, max_length: int) -> Tensor:
        with precision_of(self.model, batch["input_ids"]):
            x_BSD = self.model.base_model(**self._padded(batch)).last_hidden_state
        return x_BSD[_slots_of(batch)]

    def freeze_pooling(self) -> None:
        for name, parameter in self.model.named_parameters():
            if is_behind_encoder(self.model, self.model.get_submodule(name.rpartition(".")[0])):
                parameter.requires_grad_(False)

    def _padded(self, batch: Batch) -> dict[str, Tensor]:
        """Return the examples of the packed batch as rows, (B, S), for transformers."""
        shape = max(1, len(batch["cu_seqlens"]) - 1), max(1, len(batch["slot_numbers"]))
        slots = _slots_of(batch)
        ids_BS = batch["input_ids"].new_full(shape, self._pad_id, dtype=torch.int64)
        is_real_BS = torch.zeros_like(ids_BS)
        ids_BS[slots] = batch["input_ids"].long()
        is_real_BS[slots] = 1
        inputs = {"input_ids": ids_BS, "attention_mask": is_real_BS}
        if self._has_types:
            inputs[_TYPES] = torch.zeros_like(ids_BS)
            inputs[_TYPES][slots] = batch[_TYPES].long()
        return inputs


def _with_mask_of_pairs(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    mask = kwargs.get("attention_mask")
    if mask is None or reads_at_once(mask.device):
        return args, kwargs
    return args, kwargs | {"attention_mask": mask_of_pairs(mask)}


def _slots_of(batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the row of each token and its slot in that row, both int64 (T,)."""
    return example_numbers(batch["cu_seqlens"].long(), len(batch["input_ids"])), batch["positions"].long()


def classifier_of(model: Any) -> tuple[str, nn.Linear]:
    """Return the name and the module of the last linear layer outside of a classification model's encoder. Raises
    CheckpointError if there is no such layer."""
    in_encoder = set(model.base_model.modules())
    layers = [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and module not in in_encoder and module.out_features == model.config.num_labels
    ]
    if not layers:
        raise CheckpointError(
            f"{type(model).__name__} has no linear layer after its encoder\n  use an encoder of another family"
        )
    return layers[-1]


def family_of(architecture: Mapping[str, Any], origin: str) -> tuple[Any, Any]:
    """Return the config of transformers and the class of the classification model for the contents of a config.json.
    Raises CheckpointError, which names `origin`, if transformers does not know the architecture or if it is not a text
    encoder with a classifier."""
    auto = import_transformers().models.auto.modeling_auto
    values = dict(architecture)
    model_type = values.pop("model_type", None)
    try:
        config = import_transformers().AutoConfig.for_model(model_type, **values)
    except Exception as error:  # each of the classes checks its values with errors of its own
        reason = str(error).partition(" Should contain one of")[0]  # hundreds of names
        raise CheckpointError(
            f"transformers cannot read the config.json of {origin}, model_type {model_type!r}: {reason}\n"
            "  use the folder of a text encoder, such as BERT, RoBERTa, DeBERTa or ELECTRA"
        ) from error
    classifiers, masked = auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING, auto.MODEL_FOR_MASKED_LM_MAPPING
    if type(config) not in classifiers or type(config) not in masked or config.is_encoder_decoder:
        raise CheckpointError(
            f"{origin} has model_type {model_type!r}: transformers has no masked language model or classifier for it\n"
            "  use the folder of a text encoder, such as BERT, RoBERTa, DeBERTa or ELECTRA"
        )
    classifier = classifiers[type(config)]
    if "attention_mask" not in inspect.signature(classifier.forward).parameters:
        raise CheckpointError(
            f"{origin} has model_type {model_type!r}, which has no attention_mask: padding would change its results\n"
            "  use an encoder of another family"
        )
    return config, classifier


def is_behind_encoder(model: Any, module: nn.Module) -> bool:
    """Return True if a module of a classification model is between the hidden states and the classifier."""
    base = model.base_model
    # All families use this name for the encoder's own layer after its hidden states.
    poolers = [child for name, child in base.named_children() if name == "pooler"]
    return module not in set(base.modules()) or any(module in set(pooler.modules()) for pooler in poolers)


def max_positions_of(model: Any) -> int | None:
    """Return the maximum number of tokens that the encoder can read; None: no limit. It is smaller than the position
    table in families that start to count after the position of padding."""
    size = model.config.to_dict().get("max_position_embeddings")
    if size is None:
        return None
    tables = [module for module in model.base_model.modules() if isinstance(module, nn.Embedding)]
    # RoBERTa and related families count positions from padding_idx + 1 on.
    offsets = [1 + t.padding_idx for t in tables if t.num_embeddings == size and t.padding_idx is not None]
    return int(size) - max(offsets, default=0)

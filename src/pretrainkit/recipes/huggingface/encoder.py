"""Any encoder of transformers with the layers its family has in front of a classifier, which is taken out.

Dimensions: B examples, T tokens of all of them, S slots of a padded row, D width.
"""

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from pretrainkit.dist.devices import reads_at_once
from pretrainkit.errors import CheckpointError
from pretrainkit.exporting.torchvision_shim import import_transformers
from pretrainkit.nn.foreign import mask_of_pairs, repeated_modules, stacked_layers, takes_mask_of_pairs
from pretrainkit.nn.layouts import example_numbers
from pretrainkit.recipes.text_encoder import TextEncoder
from pretrainkit.training.objective import Batch

_TYPES = "token_type_ids"


class HuggingFaceEncoder(TextEncoder):
    """`AutoModelForSequenceClassification` without its last linear layer: what a head reads there is the vector of an
    example. It has its own dropout in front of that layer, so `dropout_rate` is 0."""

    def __init__(self, model: Any, *, has_types: bool = True) -> None:
        """Change `model`, of transformers: its last linear layer becomes the identity. `has_types`: True if the second
        text of a pair has a type of its own."""
        super().__init__()
        name, linear = classifier_of(model)
        model.set_submodule(name, nn.Identity())
        self.model, self.classifier_name = model, name
        self.width, self.dropout_rate = linear.in_features, 0.0
        settings = model.config.to_dict()
        self._pad_id = settings.get("pad_token_id") or 0
        reads_types = _TYPES in inspect.signature(model.base_model.forward).parameters
        self.num_types = (settings.get("type_vocab_size") or 0) if reads_types else 0
        self._has_types = has_types and self.num_types > 1
        if takes_mask_of_pairs(model.base_model):
            # Heads may read the mask of tokens; so it is changed on the way into the encoder.
            model.base_model.register_forward_pre_hook(_with_mask_of_pairs, with_kwargs=True)

    def blocks(self) -> list[nn.Module]:
        return repeated_modules(self.model.base_model)

    def stacked_layers(self) -> dict[str, int]:
        return stacked_layers(self)

    def forward(self, batch: Batch, max_length: int) -> Tensor:
        return self.model(**self._padded(batch)).logits[: len(batch["cu_seqlens"]) - 1]

    def tokens(self, batch: Batch, max_length: int) -> Tensor:
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
        found = {"input_ids": ids_BS, "attention_mask": is_real_BS}
        if self._has_types:
            found[_TYPES] = torch.zeros_like(ids_BS)
            found[_TYPES][slots] = batch[_TYPES].long()
        return found


def _with_mask_of_pairs(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    mask = kwargs.get("attention_mask")
    if mask is None or reads_at_once(mask.device):
        return args, kwargs
    return args, kwargs | {"attention_mask": mask_of_pairs(mask)}


def _slots_of(batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the row and the slot in it, int64 (T,), of each token."""
    return example_numbers(batch["cu_seqlens"].long(), len(batch["input_ids"])), batch["positions"].long()


def classifier_of(model: Any) -> tuple[str, nn.Linear]:
    """Return the name and the module of the last linear layer outside of the encoder of a classification model. Raises
    CheckpointError where there is none."""
    inside = set(model.base_model.modules())
    found = [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and module not in inside and module.out_features == model.config.num_labels
    ]
    if not found:
        raise CheckpointError(
            f"{type(model).__name__} has no linear layer behind its encoder\n  give an encoder of another family"
        )
    return found[-1]


def family_of(architecture: Mapping[str, Any], origin: str) -> tuple[Any, Any]:
    """Return (config of transformers, class of its classification model) for the contents of a config.json. Raises
    CheckpointError, which names `origin`, where transformers does not know it, or it is no encoder of texts that has a
    classifier."""
    auto = import_transformers().models.auto.modeling_auto
    values = dict(architecture)
    kind = values.pop("model_type", None)
    try:
        config = import_transformers().AutoConfig.for_model(kind, **values)
    except (ValueError, TypeError) as error:
        raise CheckpointError(
            f"transformers cannot read the config.json of {origin}, model_type {kind!r}: {error}\n"
            "  give the folder of a text encoder, such as a BERT, RoBERTa, DeBERTa or ELECTRA"
        ) from error
    classifiers, masked = auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING, auto.MODEL_FOR_MASKED_LM_MAPPING
    if type(config) not in classifiers or type(config) not in masked or config.is_encoder_decoder:
        raise CheckpointError(
            f"{origin} is a {kind!r}, which transformers has no masked-word encoder with a classifier of\n"
            "  give the folder of a text encoder, such as a BERT, RoBERTa, DeBERTa or ELECTRA"
        )
    found = classifiers[type(config)]
    if "attention_mask" not in inspect.signature(found.forward).parameters:
        raise CheckpointError(
            f"{origin} is a {kind!r}, whose examples cannot be told from padding\n  give an encoder of another family"
        )
    return config, found


def is_behind_encoder(model: Any, module: nn.Module) -> bool:
    """Return True if a module of a classification model is between the hidden states and the classifier."""
    base = model.base_model
    # What the encoder itself has behind its hidden states is called so in all families.
    poolers = [child for name, child in base.named_children() if name == "pooler"]
    return module not in set(base.modules()) or any(module in set(pooler.modules()) for pooler in poolers)


def max_positions_of(model: Any) -> int | None:
    """Most tokens that the encoder can read. Families that count positions from behind the padding's lose some."""
    size = model.config.to_dict().get("max_position_embeddings")
    if size is None:
        return None
    tables = [module for module in model.base_model.modules() if isinstance(module, nn.Embedding)]
    # RoBERTa and its kin count positions from padding_idx + 1 on.
    offsets = [1 + t.padding_idx for t in tables if t.num_embeddings == size and t.padding_idx is not None]
    return int(size) - max(offsets, default=0)

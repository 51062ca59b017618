"""The tensors of a dual encoder by part, and names with prefixes."""

from collections.abc import Mapping

from torch import Tensor

from pretrainkit.recipes.clip.model import DualEncoder

State = Mapping[str, Tensor]


def projections(model: DualEncoder) -> dict[str, Tensor]:
    """The tensors beside the towers, under their names in transformers."""
    state = model.state_dict()
    return {
        "visual_projection.weight": state["image_projection.linear.weight"],
        "text_projection.weight": state["text_projection.linear.weight"],
        "logit_scale": model.logit_scale().detach().log(),
    }


def tower_state(model: DualEncoder, name: str) -> dict[str, Tensor]:
    """The tensors of one tower's encoder: `name` is image or text."""
    prefix = f"{name}.encoder."
    return {key.removeprefix(prefix): tensor for key, tensor in model.state_dict().items() if key.startswith(prefix)}


def with_prefix(prefix: str, tensors: State) -> dict[str, Tensor]:
    """The tensors with a prefix before their names."""
    return {f"{prefix}{name}": tensor for name, tensor in tensors.items()}


def without_prefix(prefix: str, tensors: State) -> dict[str, Tensor]:
    """The tensors whose names begin with a prefix, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}

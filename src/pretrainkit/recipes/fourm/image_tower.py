"""The encoder alone, for images: what the original calls FourMViT.

Dimensions: B images, C channels, P patches, D width.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from pretrainkit.errors import InputError
from pretrainkit.nn.layouts import row_pairs
from pretrainkit.recipes.fourm.embeddings import InputEmbedding
from pretrainkit.recipes.fourm.inputs import InputTokens
from pretrainkit.recipes.fourm.layers import EncoderBlock, Examples, norm
from pretrainkit.recipes.fourm.modality import Modality
from pretrainkit.recipes.fourm.model import FourM, drop_path_rates
from pretrainkit.recipes.fourm.model_config import FourMModelConfig


class ImageTower(nn.Module):
    """Whole images to one vector for each patch. Its parameters have the names they have in `FourM`, so the state dict
    of one loads with `strict=False`; what is missing then is in `head` alone."""

    def __init__(
        self, config: FourMModelConfig, name: str | None = None, head: Callable[[int], nn.Module] | None = None
    ) -> None:
        """Weights are not initialised.

        Args:
            config: Of the whole model.
            name: Of its modality of pixels; None: the only one, or the first.
            head: Makes what the encoder's output goes through from the width of it; None: nothing.

        Raises:
            InputError: The model reads no pixels.
        """
        super().__init__()
        self.modality = pixels_of(config, name)
        width = config.hidden_size
        self.input_modality = nn.ParameterDict({self.modality.name: nn.Parameter(torch.zeros(width))})
        self.inputs = nn.ModuleDict({self.modality.name: InputEmbedding(self.modality, config)})
        self.encoder = nn.ModuleList(EncoderBlock(config, rate) for rate in drop_path_rates(config)[0])
        self.encoder_norm = norm(config)
        self.head = nn.Identity() if head is None else head(width)

    @classmethod
    def of(cls, model: FourM, name: str | None = None) -> "ImageTower":
        """The tower in a trained model; they share their parameters."""
        with torch.device("meta"):
            tower = cls(model.config, name)
        own = tower.modality.name
        tower.input_modality = nn.ParameterDict({own: model.input_modality[own]})
        tower.inputs = nn.ModuleDict({own: model.inputs[own]})
        tower.encoder, tower.encoder_norm = model.encoder, model.encoder_norm
        return tower.train(model.training)

    def blocks(self) -> list[nn.Module]:
        """The submodules to compile, shard and recompute one by one."""
        return list(self.encoder)

    def forward(self, pixels_BCHW: Tensor) -> Tensor:
        """uint8 (B, C, image_size, image_size) to (B, P, D), or what the head makes of it."""
        B, P = len(pixels_BCHW), self.modality.max_tokens
        patch_n = torch.arange(P, device=pixels_BCHW.device).repeat(B)
        row_n = torch.arange(B, device=pixels_BCHW.device).repeat_interleave(P)
        embedding: InputEmbedding = self.inputs[self.modality.name]  # type: ignore[assignment]
        tokens = InputTokens(row_n * P + patch_n, patch_n, patch_n, row_n, pixels_BCHW)
        x_TD = embedding(tokens) + embedding.places(patch_n) + self.input_modality[self.modality.name]
        layout, examples = row_pairs(B, P, pixels_BCHW), Examples(row_n, B)
        for block in self.encoder:
            x_TD = block(x_TD, layout, None, examples)
        return self.head(self.encoder_norm(x_TD).unflatten(0, (B, P)))

    def features(self, pixels_BCHW: Tensor) -> Tensor:
        """uint8 images to (B, D): the mean over patches."""
        return self(pixels_BCHW).mean(1)


def pixels_of(config: FourMModelConfig, name: str | None = None) -> Modality:
    """The modality of pixels of a model.

    Raises:
        InputError: It has none, or none of this name.
    """
    found = [modality for modality in config.modalities if modality.kind == "pixels" and name in (None, modality.name)]
    if not found:
        what = "no pixels" if name is None else f"no pixels {name!r}"
        raise InputError(f"the model reads {what}\n  it has {', '.join(m.name for m in config.modalities)}")
    return found[0]

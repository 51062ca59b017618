"""4M: tokens of some modalities in, tokens of others out.

Unusual about it: the encoder reads visible tokens and the decoder those to predict, of all modalities in one stream,
one example after another, without padding on a CPU; every modality has its own tables, and only tokens that occur are
embedded and scored. Parameters have names of ours; `original.py` knows the published ones.

Dimensions: T tokens of the encoder's stream, U of the decoder's, n of one modality, D width, V vocabulary, B rows, C, H
and W channels, height and width of images, F values of a patch.
Sources: Mizrahi et al. 2023, https://arxiv.org/abs/2312.06647; Bachmann et al. 2024, https://arxiv.org/abs/2406.09406.
"""

import math
from collections.abc import Callable, Iterable
from typing import cast

import torch
from torch import Tensor, nn

from pretrainkit.errors import InputError
from pretrainkit.nn.initialise import built
from pretrainkit.nn.layouts import row_pairs
from pretrainkit.nn.linear_cross_entropy import TokenLoss, linear_cross_entropy, linear_logits
from pretrainkit.recipes.fourm.embeddings import InputEmbedding, TargetEmbedding
from pretrainkit.recipes.fourm.inputs import FourMInputs, InputTokens
from pretrainkit.recipes.fourm.layers import DecoderBlock, EncoderBlock, Examples, norm
from pretrainkit.recipes.fourm.modality import Modality
from pretrainkit.recipes.fourm.model_config import FourMModelConfig
from pretrainkit.training.optimizers.parameters import stacked_parameters

_DEVIATION = 0.02
"""Of tables and single vectors."""


class FourM(nn.Module):
    """Embeddings, encoder, decoder and heads."""

    def __init__(self, config: FourMModelConfig) -> None:
        """Weights are not initialised: see `initialise`."""
        super().__init__()
        self.config = config
        width = config.hidden_size
        inputs = [modality for modality in config.modalities if modality.is_input]
        targets = [modality for modality in config.modalities if modality.is_target]
        shared = config.shared_modality_embeddings
        self.input_modality = _vectors(config.modalities if shared else inputs, width)
        self.target_modality = None if shared else _vectors(targets, width)
        self.inputs = nn.ModuleDict({modality.name: InputEmbedding(modality, config) for modality in inputs})
        self.targets = nn.ModuleDict({modality.name: TargetEmbedding(modality, config) for modality in targets})
        self.registers = nn.Parameter(torch.zeros(config.num_registers, width)) if config.num_registers else None
        encoder_rates, decoder_rates = drop_path_rates(config)
        self.encoder = nn.ModuleList(EncoderBlock(config, rate) for rate in encoder_rates)
        self.encoder_norm = norm(config)
        self.context = nn.Linear(width, width)
        self.mask_token = nn.Parameter(torch.zeros(width))
        self.decoder = nn.ModuleList(DecoderBlock(config, rate) for rate in decoder_rates)
        self.decoder_norm = norm(config)

    def blocks(self) -> list[nn.Module]:
        """The submodules to compile, shard and recompute one by one."""
        return [*self.encoder, *self.decoder]

    def forward(self, inputs: FourMInputs) -> dict[str, TokenLoss]:
        """What became of the targets of each modality."""
        x_TD, place_TD = self.embed(inputs)
        context_TD = self.encode(x_TD, inputs)
        context_TD = self.context(context_TD) + place_TD
        hidden = self.decode(context_TD, inputs)
        return {name: self.score(name, hidden[name], tokens.true_n) for name, tokens in inputs.targets.items()}

    def embed(self, inputs: FourMInputs) -> tuple[Tensor, Tensor]:
        """(T, D) twice: the tokens of the encoder, and what of that says where they are: positions and modalities."""
        parts, places = [], []
        for name, tokens in inputs.inputs.items():
            embedding = cast(InputEmbedding, self.inputs[name])
            places.append(embedding.places(tokens.positions_n) + self.input_modality[name])
            parts.append(embedding(tokens) + places[-1])
        slots = [tokens.slots_n for tokens in inputs.inputs.values()]
        num_tokens = len(inputs.example_T)
        place_TD = _put(num_tokens, slots, places)
        if self.registers is not None and inputs.register_slots is not None:
            num_rows = len(inputs.register_slots)
            slots.append(inputs.register_slots.flatten())
            parts.append(self.registers.repeat(num_rows, 1))
        return _put(num_tokens, slots, parts), place_TD

    def encode(self, x_TD: Tensor, inputs: FourMInputs) -> Tensor:
        """Embedded tokens (T, D) to the encoder's normalised output (T, D)."""
        layout, examples = inputs.layouts.encoder, Examples(inputs.example_T, inputs.num_examples)
        prepared = layout.prepare(None, x_TD.dtype)
        for block in self.encoder:
            x_TD = block(x_TD, layout, prepared, examples)
        return self.encoder_norm(x_TD)

    def decode(self, context_TD: Tensor, inputs: FourMInputs) -> dict[str, Tensor]:
        """Normalised output (n, D) by target modality."""
        modality = self.input_modality if self.target_modality is None else self.target_modality
        parts = []
        for name, tokens in inputs.targets.items():
            target = cast(TargetEmbedding, self.targets[name])
            place_nD = target.places(tokens.positions_n) + modality[name]
            parts.append((self.mask_token if target.table is None else target.look_up(tokens.ids_n)) + place_nD)
        slots = [tokens.slots_n for tokens in inputs.targets.values()]
        x_UD = _put(len(inputs.example_U), slots, parts)
        layout, cross = inputs.layouts.decoder, inputs.layouts.cross
        examples = Examples(inputs.example_U, inputs.num_examples)
        prepared, cross_prepared = layout.prepare(None, x_UD.dtype), cross.prepare(None, x_UD.dtype)
        for block in self.decoder:
            x_UD = block(x_UD, context_TD, layout, prepared, cross, cross_prepared, examples)
        hidden = self.decoder_norm(x_UD).index_select(0, torch.cat(slots)).split([len(part) for part in slots])
        return dict(zip(inputs.targets, hidden, strict=True))

    def score(self, name: str, hidden_nD: Tensor, true_n: Tensor) -> TokenLoss:
        """Cross-entropy of the true ids of one modality, float32 whatever the activations are."""
        head = cast(TargetEmbedding, self.targets[name])
        return linear_cross_entropy(hidden_nD, head.output_table(), None, true_n)

    def logits(self, name: str, hidden_nD: Tensor) -> Tensor:
        """float32 (n, V) of one modality."""
        head = cast(TargetEmbedding, self.targets[name])
        return linear_logits(hidden_nD, head.output_table(), None)

    @torch.no_grad()
    def initialise(self) -> None:
        """Fresh weights from torch's global generator: Xavier's uniform for matrices, with queries, keys and values
        counted apart; tables and single vectors normal; tables that are also heads uniform."""
        stacked = stacked_parameters(self)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                rows, columns = module.weight.shape
                limit = math.sqrt(6 / (rows / stacked.get(module.weight, 1) + columns))
                module.weight.uniform_(-limit, limit)
                if module.bias is not None:
                    module.bias.zero_()
            elif isinstance(module, nn.LayerNorm):
                module.weight.fill_(1)
                if module.bias is not None:
                    module.bias.zero_()
            elif isinstance(module, InputEmbedding | TargetEmbedding):
                module.initialise(_DEVIATION)
        target_vectors = [] if self.target_modality is None else self.target_modality.values()
        for vector in (self.mask_token, *self.input_modality.values(), *target_vectors, self.registers):
            if vector is not None:
                vector.normal_(std=_DEVIATION)


def _vectors(modalities: Iterable[Modality], width: int) -> nn.ParameterDict:
    return nn.ParameterDict({modality.name: nn.Parameter(torch.zeros(width)) for modality in modalities})


def _put(num: int, slots: list[Tensor], parts: list[Tensor]) -> Tensor:
    """A stream of `num` tokens from tokens (n, D) and their slots; zeros elsewhere."""
    whole = torch.cat(parts)
    return whole.new_zeros(num, whole.shape[1]).index_copy_(0, torch.cat(slots), whole)


def drop_path_rates(config: FourMModelConfig) -> tuple[list[float], list[float]]:
    """Of the blocks of encoder and decoder."""

    def ramp(num: int) -> list[float]:
        return [config.drop_path_rate * index / max(1, num - 1) for index in range(num)]

    num, num_others = config.num_encoder_layers, config.num_decoder_layers
    if config.shares_drop_path:
        rates = ramp(num + num_others)
        return rates[:num], rates[num:]
    return ramp(num), ramp(num_others)


def build(config: FourMModelConfig) -> FourM:
    """The model on torch's default device, initialised from its global generator; on "meta" without values."""
    return built(lambda: FourM(config), FourM.initialise)


class ImageTower(nn.Module):
    """The encoder alone, whole images to one vector for each of P patches: what the original calls FourMViT.

    Its parameters have the names they have in `FourM`, so the state dict of one loads with `strict=False`; what is
    missing then is in `head` alone.
    """

    def __init__(
        self, config: FourMModelConfig, name: str | None = None, head: Callable[[int], nn.Module] | None = None
    ) -> None:
        """Weights are not initialised. `config`: of the whole model; `name`: of its modality of pixels, None: the only
        one, or the first; `head`: makes what the encoder's output goes through of its width.

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

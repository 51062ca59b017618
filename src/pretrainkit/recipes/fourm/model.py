"""4M model: it predicts tokens of some modalities from tokens of others.

Special features: The encoder reads visible tokens and the decoder the tokens to predict, each as one stream of all
modalities and examples, without padding on a CPU. Every modality has its own tables. Only tokens that occur are
embedded and scored. Parameters have names of this project; `original.py` converts them to the published names.

Dimensions: T tokens of the encoder's stream (in blocks: of either stream), U tokens of the decoder's stream, S key
tokens, n tokens of one modality, D width, F values of a patch, H heads, K width of one head, E examples (for input
vectors: their width), V vocabulary, B rows, C, H and W channels, height and width of images, P patches.
Sources: Mizrahi et al. 2023, https://arxiv.org/abs/2312.06647; Bachmann et al. 2024, https://arxiv.org/abs/2406.09406.
"""

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretrainkit.dist.autocast import residual
from pretrainkit.dist.compiled import vary
from pretrainkit.errors import InputError
from pretrainkit.nn.biased_attention import PairLayout
from pretrainkit.nn.blocks import FeedForward, GatedFeedForward, LayerNorm
from pretrainkit.nn.initialise import built, initialise_layer
from pretrainkit.nn.layouts import row_pairs
from pretrainkit.nn.linear_cross_entropy import LinearCrossEntropy, TokenLoss, linear_logits
from pretrainkit.nn.positions import grid_table, line_table
from pretrainkit.recipes.fourm.config import FourMModelConfig
from pretrainkit.recipes.fourm.inputs import Examples, FourMInputs, InputTokens
from pretrainkit.recipes.fourm.modality import MAX_POSITIONS, Modality
from pretrainkit.training.optimizers.parameters import stacked_parameters

_DEVIATION = 0.02
"""Standard deviation of initial tables and single vectors."""
PIXEL_MEAN: tuple[float, ...] = (0.485, 0.456, 0.406)
PIXEL_DEVIATION: tuple[float, ...] = (0.229, 0.224, 0.225)
"""Standard deviation of ImageNet's colours in [0, 1]. Images with three channels are standardized by mean and
deviation, others scaled to [-1, 1]."""


class PositionEmbedding(nn.Module):
    """Position embeddings of one modality."""

    def __init__(self, modality: Modality, width: int) -> None:
        super().__init__()
        self.positions: nn.Parameter | None = None
        table = None
        if modality.has_learned_positions:
            self.positions = nn.Parameter(torch.zeros(modality.max_tokens, width))
        elif modality.kind in ("pixels", "image"):
            table = grid_table(*modality.grid, width)
        else:
            table = line_table(MAX_POSITIONS, width)
        self.register_buffer("fixed_positions", table, persistent=False)
        self.fixed_positions: Tensor | None

    def embed_positions(self, positions_n: Tensor) -> Tensor:
        """Return the position embeddings (n, D)."""
        table = self.fixed_positions if self.positions is None else self.positions
        assert table is not None
        return F.embedding(positions_n, table)

    def initialise(self) -> None:
        """Draw learned positions from a normal distribution."""
        if self.positions is not None:
            self.positions.normal_(std=_DEVIATION)


class InputEmbedding(PositionEmbedding):
    """Embeddings of contents and positions of an input in the encoder."""

    def __init__(self, modality: Modality, config: FourMModelConfig) -> None:
        super().__init__(modality, config.hidden_size)
        width = config.hidden_size
        self.kind, self.patch_size = modality.kind, modality.patch_size
        self.table = self.patch = self.vector = self.bottleneck = None
        if modality.kind == "pixels":
            assert modality.patch_size is not None
            assert modality.num_channels is not None
            self.patch = nn.Linear(modality.num_channels * modality.patch_size**2, width, bias=False)
            is_rgb = modality.num_channels == len(PIXEL_MEAN)
            mean_C = np.array(PIXEL_MEAN if is_rgb else (0.5,) * modality.num_channels)
            deviation_C = np.array(PIXEL_DEVIATION if is_rgb else (0.5,) * modality.num_channels)
            # Scale and shift standardize bytes. NumPy computes them, so they have values on "meta", too.
            for name, values_C in (("scale", (deviation_C * 255) ** -1), ("shift", -mean_C / deviation_C)):
                self.register_buffer(f"pixel_{name}", torch.from_numpy(values_C.astype(np.float32)), persistent=False)
            self.pixel_scale: Tensor
            self.pixel_shift: Tensor
        elif modality.kind == "vectors":
            assert modality.vector_width is not None
            inner = config.vector_bottleneck
            self.bottleneck = None if inner is None else nn.Linear(modality.vector_width, inner)
            self.vector = nn.Linear(inner or modality.vector_width, width)
        else:
            assert modality.vocab_size is not None
            self.table = nn.Parameter(torch.zeros(modality.vocab_size, width))

    def forward(self, tokens: InputTokens) -> Tensor:
        """Return the embedded contents (n, D), without positions."""
        if self.patch is not None:
            return F.linear(self._patches(tokens), self.patch.weight)
        if self.vector is not None:
            vectors_nE = self._vectors(tokens)
            return self.vector(vectors_nE if self.bottleneck is None else self.bottleneck(vectors_nE))
        assert self.table is not None
        return F.embedding(tokens.ids_n, self.table)

    def _patches(self, tokens: InputTokens) -> Tensor:
        """Return the standardized pixels of the patches, float32 (n, F): row by row, column by column, channel
        fastest."""
        assert tokens.values is not None
        assert self.patch_size is not None
        patches = cut_patches(tokens.values, self.patch_size)
        row_n, column_n = tokens.ids_n // patches.shape[2], tokens.ids_n % patches.shape[2]
        return (patches[tokens.rows_n, row_n, column_n].float() * self.pixel_scale + self.pixel_shift).flatten(1)

    def _vectors(self, tokens: InputTokens) -> Tensor:
        """Return the input vectors (n, E), with zeros in place of hidden ones."""
        assert tokens.values is not None
        vectors_nE = tokens.values[tokens.rows_n, tokens.ids_n.clamp(min=0)]
        return vectors_nE * (tokens.ids_n >= 0)[:, None]

    def initialise(self) -> None:
        """Draw the table from a normal distribution. `FourM.initialise` handles the linear layers."""
        super().initialise()
        if self.table is not None:
            self.table.normal_(std=_DEVIATION)


class TargetEmbedding(PositionEmbedding):
    """Embeddings of contents and positions of a target in the decoder, and its output table. Sequences read the
    previous token; images read the mask token."""

    def __init__(self, modality: Modality, config: FourMModelConfig) -> None:
        super().__init__(modality, config.hidden_size)
        assert modality.vocab_size is not None
        shape = (modality.vocab_size, config.hidden_size)
        is_read = modality.kind == "sequence"
        self.table = nn.Parameter(torch.zeros(shape)) if is_read else None
        self.head = None if is_read and config.tied_logits else nn.Parameter(torch.zeros(shape))

    def look_up(self, ids_n: Tensor) -> Tensor:
        """Return the embeddings (n, D) of token ids."""
        assert self.table is not None
        return F.embedding(ids_n, self.table)

    def output_table(self) -> nn.Parameter:
        """Return the table (V, D) that predicts token ids."""
        table = self.table if self.head is None else self.head
        assert table is not None
        return table

    def initialise(self) -> None:
        """Draw output tables from a uniform distribution, and tables for embedding only from a normal distribution."""
        super().initialise()
        limit = math.sqrt(6 / sum(self.output_table().shape))
        self.output_table().uniform_(-limit, limit)
        if self.head is not None and self.table is not None:
            self.table.normal_(std=_DEVIATION)


def cut_patches(pixels_BCHW: Tensor, patch_size: int) -> Tensor:
    """Return a view of the pixels as patches with a side of p pixels: (B, rows, columns, p, p, C)."""
    B, C, height, width = pixels_BCHW.shape
    rows, columns = height // patch_size, width // patch_size
    return pixels_BCHW.view(B, C, rows, patch_size, columns, patch_size).permute(0, 2, 4, 3, 5, 1)


class Attention(nn.Module):
    """Self-attention of a stream, or, with `is_cross`, cross-attention to the tokens of another stream."""

    def __init__(self, config: FourMModelConfig, *, is_cross: bool = False) -> None:
        super().__init__()
        width = config.hidden_size
        self.is_cross, self.heads = is_cross, (config.num_heads, width // config.num_heads)
        if is_cross:
            self.query = nn.Linear(width, width, bias=config.biases)
            self.key_value = nn.Linear(width, 2 * width, bias=config.biases)
        else:
            self.qkv = nn.Linear(width, 3 * width, bias=config.biases)
        self.out = nn.Linear(width, width, bias=config.biases)
        self.query_norm = norm(config, self.heads[1]) if config.query_key_norm else None
        self.key_norm = norm(config, self.heads[1]) if config.query_key_norm else None

    def stacked_layers(self) -> dict[str, int]:
        return {"key_value": 2} if self.is_cross else {"qkv": 3}

    def forward(
        self, x_TD: Tensor, layout: PairLayout, prepared: Tensor | None, context_SD: Tensor | None = None
    ) -> Tensor:
        """Map (T, D) to (T, D). `context_SD`: the stream with the keys in cross-attention; None: self-attention."""
        if context_SD is None:
            q_THK, kv = None, self.qkv(x_TD).unflatten(-1, (3, *self.heads))
        else:
            q_THK = self.query(x_TD).unflatten(-1, self.heads)
            kv = self.key_value(context_SD).unflatten(-1, (2, *self.heads))
        if self.query_norm is not None and self.key_norm is not None:
            if q_THK is None:
                q_THK, kv = kv[:, 0], kv[:, 1:]
            q_THK, k_SHK = self.query_norm(q_THK), self.key_norm(kv[:, 0])
            kv = torch.stack((k_SHK, kv[:, 1].to(k_SHK.dtype)), dim=1)
        mixed_THK = layout.attend(q_THK, kv, prepared, dropout_rate=0.0, scale=self.heads[1] ** -0.5)
        return self.out(mixed_THK.flatten(1))


class Crossed(NamedTuple):
    """Encoder stream that decoder tokens attend to, with its attention layout."""

    context_SD: Tensor
    layout: PairLayout
    prepared: Tensor | None


class Block(nn.Module):
    """Self-attention, cross-attention to the encoder (decoder only) and a feed-forward layer."""

    def __init__(self, config: FourMModelConfig, drop_path_rate: float, *, is_decoder: bool = False) -> None:
        super().__init__()
        self.drop_path_rate = drop_path_rate
        self.attention_norm = norm(config)
        self.attention = Attention(config)
        if is_decoder:
            self.query_norm = norm(config)
            self.context_norm = norm(config)
            self.cross_attention = Attention(config, is_cross=True)
        self.feed_forward_norm = norm(config)
        feed_forward: type[FeedForward | GatedFeedForward] = GatedFeedForward if config.gated else FeedForward
        inner_width, activation = config.intermediate_size, config.activation
        self.feed_forward = feed_forward(config.hidden_size, inner_width, activation, has_bias=config.biases)

    def forward(
        self,
        x_TD: Tensor,
        layout: PairLayout,
        prepared: Tensor | None,
        examples: Examples,
        crossed: Crossed | None = None,
    ) -> Tensor:
        x_TD = self._add(x_TD, self.attention(self.attention_norm(x_TD), layout, prepared), examples)
        if crossed is not None:
            context_SD = self.context_norm(crossed.context_SD)
            mixed_TD = self.cross_attention(self.query_norm(x_TD), crossed.layout, crossed.prepared, context_SD)
            x_TD = self._add(x_TD, mixed_TD, examples)
        return self._add(x_TD, self.feed_forward(self.feed_forward_norm(x_TD)), examples)

    def _add(self, x_TD: Tensor, update_TD: Tensor, examples: Examples) -> Tensor:
        """Return the sum of `x_TD` and a layer's output `update_TD`. Training drops the update of some examples and
        scales the others up (stochastic depth, Huang et al. 2016, https://arxiv.org/abs/1603.09382). Training also
        overwrites `update_TD`, which is fast because it is still in the cache. So hooks must copy outputs to keep
        them."""
        rate = self.drop_path_rate
        if self.training and rate:
            is_kept_E = torch.rand(examples.num, device=x_TD.device) >= rate
            update_TD = update_TD * (is_kept_E / (1 - rate)).to(update_TD.dtype)[examples.example_T][:, None]
        is_in_place = self.training and update_TD.dtype == x_TD.dtype
        return update_TD.add_(x_TD) if is_in_place else x_TD + update_TD


def norm(config: FourMModelConfig, width: int | None = None) -> LayerNorm:
    """Return a layer norm of the given width; None: the model's width."""
    return LayerNorm(width or config.hidden_size, config.layer_norm_epsilon, has_bias=config.biases)


class FourM(nn.Module):
    """Complete 4M model: embeddings, encoder, decoder and heads."""

    def __init__(self, config: FourMModelConfig) -> None:
        """Create the model. Call `initialise` to initialize its weights."""
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
        self.encoder = nn.ModuleList(Block(config, rate) for rate in encoder_rates)
        self.encoder_norm = norm(config)
        self.context = nn.Linear(width, width)
        self.mask_token = nn.Parameter(torch.zeros(width))
        self.decoder = nn.ModuleList(Block(config, rate, is_decoder=True) for rate in decoder_rates)
        self.decoder_norm = norm(config)
        self.loss = LinearCrossEntropy()

    def blocks(self) -> list[nn.Module]:
        return [*self.encoder, *self.decoder]

    def forward(self, inputs: FourMInputs) -> dict[str, TokenLoss]:
        """Return the loss of the targets by modality."""
        x_TD, place_TD = self.embed(inputs)
        context_TD = self.encode(x_TD, inputs)
        context_TD = self.context(context_TD) + place_TD
        hidden = self.decode(context_TD, inputs)
        return {name: self.score(name, hidden[name], tokens.true_n) for name, tokens in inputs.targets.items()}

    def embed(self, inputs: FourMInputs) -> tuple[Tensor, Tensor]:
        """Return the embedded input tokens (T, D), and the part of them that embeds positions and modalities (T, D)."""
        parts, places = [], []
        for name, tokens in inputs.inputs.items():
            embedding = cast(InputEmbedding, self.inputs[name])
            places.append(embedding.embed_positions(tokens.positions_n) + self.input_modality[name])
            parts.append(embedding(tokens) + places[-1])
        slots = [tokens.slots_n for tokens in inputs.inputs.values()]
        num_tokens = len(inputs.encoder.example_T)
        place_TD = _put(num_tokens, slots, places)
        if self.registers is not None and inputs.register_slots is not None:
            num_rows = len(inputs.register_slots)
            slots.append(inputs.register_slots.flatten())
            parts.append(self.registers.repeat(num_rows, 1))
        return _put(num_tokens, slots, parts), place_TD

    def encode(self, x_TD: Tensor, inputs: FourMInputs) -> Tensor:
        """Map embedded tokens (T, D) to the normalized output of the encoder (T, D)."""
        layout = inputs.layouts.encoder
        x_TD = residual(x_TD)
        prepared = layout.prepare(None, x_TD.dtype)
        for block in self.encoder:
            x_TD = block(x_TD, layout, prepared, inputs.encoder)
        return self.encoder_norm(x_TD)

    def decode(self, context_TD: Tensor, inputs: FourMInputs) -> dict[str, Tensor]:
        """Return the normalized output of the decoder (n, D) by target modality."""
        modality = self.input_modality if self.target_modality is None else self.target_modality
        parts = []
        for name, tokens in inputs.targets.items():
            target = cast(TargetEmbedding, self.targets[name])
            place_nD = target.embed_positions(tokens.positions_n) + modality[name]
            parts.append((self.mask_token if target.table is None else target.look_up(tokens.ids_n)) + place_nD)
        slots = [tokens.slots_n for tokens in inputs.targets.values()]
        x_UD = residual(_put(len(inputs.decoder.example_T), slots, parts))
        layout, cross = inputs.layouts.decoder, inputs.layouts.cross
        prepared, cross_prepared = layout.prepare(None, x_UD.dtype), cross.prepare(None, x_UD.dtype)
        for block in self.decoder:
            x_UD = block(x_UD, layout, prepared, inputs.decoder, Crossed(context_TD, cross, cross_prepared))
        hidden = self.decoder_norm(x_UD).index_select(0, torch.cat(slots)).split([len(part) for part in slots])
        return dict(zip(inputs.targets, hidden, strict=True))

    def score(self, name: str, hidden_nD: Tensor, true_n: Tensor) -> TokenLoss:
        """Return the cross-entropy of the true ids of one modality, always in float32."""
        head = cast(TargetEmbedding, self.targets[name])
        # Pass a view: the compiler assumes that shapes of parameters are fixed, and would compile a graph per modality.
        table_VD = head.output_table()[:]
        vary(hidden_nD, table_VD, true_n)
        return self.loss(hidden_nD, table_VD, None, true_n)

    def logits(self, name: str, hidden_nD: Tensor) -> Tensor:
        """Return the logits of one modality, float32 (n, V)."""
        head = cast(TargetEmbedding, self.targets[name])
        return linear_logits(hidden_nD, head.output_table(), None)

    @torch.no_grad()
    def initialise(self) -> None:
        """Initialize the weights from torch's global generator. Matrices are Xavier uniform, with separate limits for
        queries, keys and values. Tables and single vectors are normal, output tables uniform."""
        stacked = stacked_parameters(self)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                rows, columns = module.weight.shape
                limit = math.sqrt(6 / (rows / stacked.get(module.weight, 1) + columns))
                module.weight.uniform_(-limit, limit)
                if module.bias is not None:
                    module.bias.zero_()
            elif isinstance(module, nn.LayerNorm):
                initialise_layer(module, 0.0)
            elif isinstance(module, InputEmbedding | TargetEmbedding):
                module.initialise()
        target_vectors = [] if self.target_modality is None else self.target_modality.values()
        for vector in (self.mask_token, *self.input_modality.values(), *target_vectors, self.registers):
            if vector is not None:
                vector.normal_(std=_DEVIATION)


def _vectors(modalities: Iterable[Modality], width: int) -> nn.ParameterDict:
    return nn.ParameterDict({modality.name: nn.Parameter(torch.zeros(width)) for modality in modalities})


def _put(num: int, slots: list[Tensor], parts: list[Tensor]) -> Tensor:
    """Return a stream of `num` tokens with the given tokens (n, D) in their slots and zeros elsewhere."""
    whole = torch.cat(parts)
    return whole.new_zeros(num, whole.shape[1]).index_copy_(0, torch.cat(slots), whole)


def drop_path_rates(config: FourMModelConfig) -> tuple[list[float], list[float]]:
    """Return the drop path rates of all blocks of the encoder, and those of the decoder."""

    def ramp(num: int) -> list[float]:
        return [config.drop_path_rate * index / max(1, num - 1) for index in range(num)]

    num, num_others = config.num_encoder_layers, config.num_decoder_layers
    if config.shares_drop_path:
        rates = ramp(num + num_others)
        return rates[:num], rates[num:]
    return ramp(num), ramp(num_others)


def build(config: FourMModelConfig) -> FourM:
    """Return the model on torch's default device, initialized from its global generator; on "meta" without values."""
    return built(lambda: FourM(config), FourM.initialise)


class ImageTower(nn.Module):
    """Encoder alone, for complete images: it returns a vector for each of P patches. The original calls it FourMViT.
    Its parameters have the same names as in `FourM`, so it loads a state dict of `FourM` with `strict=False`. Only keys
    of `head` are missing then."""

    def __init__(
        self, config: FourMModelConfig, name: str | None = None, head: Callable[[int], nn.Module] | None = None
    ) -> None:
        """Create the tower without initializing its weights. `config`: of the whole model. `name`: name of its pixel
        modality; None: the first. `head`: function from the width to a module that is applied to the encoder's output.
        Raises InputError if the model does not read such pixels."""
        super().__init__()
        pixels = [
            modality for modality in config.modalities if modality.kind == "pixels" and name in (None, modality.name)
        ]
        if not pixels:
            missing = "no pixels" if name is None else f"no pixels {name!r}"
            raise InputError(
                f"the model reads {missing}\n  its modalities are {', '.join(m.name for m in config.modalities)}"
            )
        self.modality = pixels[0]
        width = config.hidden_size
        self.input_modality = nn.ParameterDict({self.modality.name: nn.Parameter(torch.zeros(width))})
        self.inputs = nn.ModuleDict({self.modality.name: InputEmbedding(self.modality, config)})
        self.encoder = nn.ModuleList(Block(config, rate) for rate in drop_path_rates(config)[0])
        self.encoder_norm = norm(config)
        self.head = nn.Identity() if head is None else head(width)

    @classmethod
    def of(cls, model: FourM, name: str | None = None) -> "ImageTower":
        """Return the tower of a trained model. It shares the parameters of the model."""
        with torch.device("meta"):
            tower = cls(model.config, name)
        own = tower.modality.name
        tower.input_modality = nn.ParameterDict({own: model.input_modality[own]})
        tower.inputs = nn.ModuleDict({own: model.inputs[own]})
        tower.encoder, tower.encoder_norm = model.encoder, model.encoder_norm
        return tower.train(model.training)

    def blocks(self) -> list[nn.Module]:
        return list(self.encoder)

    def forward(self, pixels_BCHW: Tensor) -> Tensor:
        """Map uint8 (B, C, image_size, image_size) to the encoder's output (B, P, D), or to what `head` computes from
        it."""
        B, P = len(pixels_BCHW), self.modality.max_tokens
        patch_n = torch.arange(P, device=pixels_BCHW.device).repeat(B)
        row_n = torch.arange(B, device=pixels_BCHW.device).repeat_interleave(P)
        embedding: InputEmbedding = self.inputs[self.modality.name]  # type: ignore[assignment]
        tokens = InputTokens(row_n * P + patch_n, patch_n, patch_n, row_n, pixels_BCHW)
        x_TD = embedding(tokens) + embedding.embed_positions(patch_n) + self.input_modality[self.modality.name]
        x_TD = residual(x_TD)
        layout, examples = row_pairs(B, P, pixels_BCHW), Examples(row_n, B)
        for block in self.encoder:
            x_TD = block(x_TD, layout, None, examples)
        return self.head(self.encoder_norm(x_TD).unflatten(0, (B, P)))

    def features(self, pixels_BCHW: Tensor) -> Tensor:
        """Return the mean over patches (B, D) for uint8 images (B, C, image_size, image_size)."""
        return self(pixels_BCHW).mean(1)

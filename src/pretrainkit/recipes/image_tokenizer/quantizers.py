"""Quantizers: from latents to ids and codes, and from ids to codes.

Dimensions: B images, D width of latents, h x w grid positions, P = h w, N = B h w latents, K codes, H heads (tables),
E = D / H, S spare latents that are kept to revive codes.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from pretrainkit.dist.autocast import Float32Module, in_float32
from pretrainkit.recipes.image_tokenizer import draws
from pretrainkit.recipes.image_tokenizer.model_config import CodebookConfig, FiniteScalarConfig, MemcodesConfig

_SMOOTHING = 1e-5
_REVIVAL_NOISE = 1e-3
"""Relative noise of split codes. With the original's 1e-10, copies would be equal in float32."""
_LATENTS_PER_CLUSTER = 8
"""Cluster at most this many latents per code."""
_ORDER, _CHOICE = 11, 12
"""Random streams of an image's key: the order of latents, and the choice of codes."""
_SMALL = 2.0**-25
"""Half of the step between uniform numbers. It keeps their logarithms finite."""
_MARGIN = 1e-3
"""Share by which the bounds exceed the outermost values, so that these can be reached."""


class Quantized(NamedTuple):
    """The result of quantizing latents."""

    codes_BDhw: Tensor
    """float32 codes. Their gradient is passed straight through to the latents, except for Memcodes."""
    ids: Tensor
    """int64 (B, h, w), or (B, heads, h, w) with several heads."""
    distance_B: Tensor
    """float32: mean squared distance between the latents of an image and their codes, the commitment loss."""
    latents_ND: Tensor | None
    """float32, without gradient: latents that update the codebook. None for other quantizers."""


class CodeStatistics(NamedTuple):
    """Statistics of the latents that were assigned to each code in a part of a batch. float32 except for the order."""

    counts_K: Tensor
    sums_KD: Tensor
    spare_SD: Tensor
    """The first latents of this part in a random order of all latents."""
    order_S: Tensor
    """int64, ascending: random keys of the spare latents, which define the order."""
    most_spare: int
    """Maximum number of spare latents."""

    def join(self, other: "CodeStatistics") -> "CodeStatistics":
        """Return the statistics of two parts together."""
        spares, orders = (self.spare_SD, other.spare_SD), (self.order_S, other.order_S)
        return self._merged(self.counts_K + other.counts_K, self.sums_KD + other.sums_KD, spares, orders)

    def over_ranks(self) -> "CodeStatistics":
        """Return the statistics of all ranks together. All ranks must call this, with the same number of latents."""
        if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
            return self
        num_ranks = dist.get_world_size()
        packed = torch.cat((self.counts_K[:, None], self.sums_KD), dim=1)
        dist.all_reduce(packed)
        spare, order = self.spare_SD.contiguous(), self.order_S.contiguous()
        spares = [torch.empty_like(spare) for _ in range(num_ranks)]
        orders = [torch.empty_like(order) for _ in range(num_ranks)]
        dist.all_gather(spares, spare)
        dist.all_gather(orders, order)
        return self._merged(packed[:, 0], packed[:, 1:], spares, orders)

    def _merged(
        self, counts_K: Tensor, sums_KD: Tensor, spares: Sequence[Tensor], orders: Sequence[Tensor]
    ) -> "CodeStatistics":
        order_N = torch.cat(tuple(orders))
        # Each part has kept its first latents, so the first of all are among them.
        kept_S = order_N.argsort(stable=True)[: self.most_spare]
        return CodeStatistics(counts_K, sums_KD, torch.cat(tuple(spares))[kept_S], order_N[kept_S], self.most_spare)


class Codebook(nn.Module):
    """A table of K codes. Each code is a moving average of the latents assigned to it (van den Oord et al. 2017,
    https://arxiv.org/abs/1711.00937; codes of length 1: Yu et al. 2021, https://arxiv.org/abs/2110.04627).

    Codes are buffers: they are saved with the model, and only `update` changes them. They are constant during an
    optimizer step; its statistics are summed over microbatches and ranks, and `update` applies them afterwards. So the
    result does not depend on how a batch is divided. The original (`apple/ml-4m`) changes codes in every forward pass.
    """

    codes_KD: Tensor
    use_K: Tensor
    """Moving average of the number of latents per update that are assigned to each code."""
    sums_KD: Tensor
    """euclidean only: moving average of the sum of those latents."""
    is_ready: Tensor
    """False until k-means has created the first codes."""

    def __init__(self, config: CodebookConfig) -> None:
        super().__init__()
        self.config, self._is_cosine = config, config.distance == "cosine"
        shape = (config.size, config.width)
        self.register_buffer("codes_KD", torch.zeros(shape))
        self.register_buffer("use_K", torch.zeros(config.size))
        if config.distance == "euclidean":
            self.register_buffer("sums_KD", torch.zeros(shape))
        self.register_buffer("is_ready", torch.zeros((), dtype=torch.bool))

    @torch.no_grad()
    def initialise(self) -> None:
        """Draw the first codes from torch's global generator."""
        torch.nn.init.kaiming_uniform_(self.codes_KD)
        self.codes_KD.copy_(self._of_length_1(self.codes_KD))
        if not self._is_cosine:
            self.sums_KD.copy_(self.codes_KD)
        self.is_ready.fill_(self.config.first_codes == "random")

    def forward(self, latents_BDhw: Tensor, keys_B: Tensor | None = None) -> Quantized:
        B, D, h, w = latents_BDhw.shape
        with in_float32(latents_BDhw):
            latents_ND = latents_BDhw.float().permute(0, 2, 3, 1).reshape(-1, D)
            if self.config.normalizes_latents:
                latents_ND = F.normalize(latents_ND, dim=-1)
            compared_ND = self._of_length_1(latents_ND.detach())
            ids_N = self._nearest(compared_ND, self._of_length_1(self.codes_KD))
            codes_ND = F.embedding(ids_N, self.codes_KD)
            distance_B = (codes_ND - latents_ND).square().view(B, -1).mean(1)
            # Straight-through estimator: the value of the codes with the gradient of the latents.
            passed_ND = latents_ND + (codes_ND - latents_ND).detach()
        codes_BDhw = passed_ND.view(B, h, w, D).permute(0, 3, 1, 2)
        return Quantized(codes_BDhw, ids_N.view(B, h, w), distance_B, compared_ND)

    def _nearest(self, latents_ND: Tensor, codes_KD: Tensor) -> Tensor:
        """Return the id of the nearest code of each latent, int64 (N,). With cosine, both must have length 1."""
        closeness_NK = latents_ND @ codes_KD.T
        if not self._is_cosine:
            # |x - c|² = |x|² - 2 (x c - |c|² / 2), and |x|² is the same for all codes.
            closeness_NK = closeness_NK - 0.5 * codes_KD.square().sum(-1)
        return closeness_NK.argmax(-1)

    def codes_of(self, ids: Tensor) -> Tensor:
        """Return the codes of ids in the shape of `Quantized.ids`, float32 (B, D, h, w)."""
        return F.embedding(ids, self.codes_KD).permute(0, 3, 1, 2)

    @torch.no_grad()
    def statistics(self, quantized: Quantized, keys_B: Tensor) -> CodeStatistics:
        """Return the code statistics of a microbatch of images with these keys (int64)."""
        latents_ND, ids_N = quantized.latents_ND, quantized.ids.reshape(-1)
        assert latents_ND is not None
        counts_K = latents_ND.new_zeros(self.config.size).index_add_(0, ids_N, torch.ones_like(latents_ND[:, 0]))
        sums_KD = torch.zeros_like(self.codes_KD).index_add_(0, ids_N, latents_ND)
        place_P = torch.arange(len(ids_N) // max(len(keys_B), 1), device=keys_B.device)
        order_N = draws.fold(draws.fold(keys_B, _ORDER)[:, None], place_P).reshape(-1)  # a random order
        max_spare = self.config.size * (_LATENTS_PER_CLUSTER if self.config.first_codes == "kmeans" else 1)
        kept_S = order_N.argsort(stable=True)[:max_spare]
        return CodeStatistics(counts_K, sums_KD, latents_ND[kept_S], order_N[kept_S], max_spare)

    @torch.no_grad()
    def update(self, statistics: CodeStatistics, revival_threshold: float) -> None:
        """Update the codes with the statistics of the whole batch. Codes whose average use is below the threshold are
        revived. With non-finite latents nothing changes. Does not synchronize with the device."""
        is_good = statistics.sums_KD.isfinite().all()
        codes_KD, use_K, sums_KD = self._moved(statistics)
        revived_KD, is_dead_K = self._revived(codes_KD, use_K, statistics, revival_threshold)
        codes_KD = torch.where(is_dead_K[:, None], revived_KD, codes_KD)
        use_K = use_K.masked_fill(is_dead_K, revival_threshold)  # otherwise the next update would revive it again
        if self.config.first_codes == "kmeans":
            first_KD, first_use_K = self._clusters(statistics)
            codes_KD = torch.where(self.is_ready, codes_KD, first_KD)
            use_K = torch.where(self.is_ready, use_K, first_use_K)
            is_dead_K = is_dead_K | ~self.is_ready
        self.codes_KD.copy_(torch.where(is_good, codes_KD, self.codes_KD))
        self.use_K.copy_(torch.where(is_good, use_K, self.use_K))
        if sums_KD is not None:
            sums_KD = torch.where(is_dead_K[:, None], codes_KD * use_K[:, None], sums_KD)
            self.sums_KD.copy_(torch.where(is_good, sums_KD, self.sums_KD))
        self.is_ready.logical_or_(is_good)

    def _moved(self, statistics: CodeStatistics) -> tuple[Tensor, Tensor, Tensor | None]:
        decay = self.config.decay
        use_K = self.use_K.lerp(statistics.counts_K, 1 - decay)
        if self._is_cosine:
            means_KD = F.normalize(statistics.sums_KD, dim=-1)
            target_KD = torch.where(statistics.counts_K[:, None] > 0, means_KD, self.codes_KD)
            return self.codes_KD.lerp(target_KD, 1 - decay), use_K, None
        sums_KD = self.sums_KD.lerp(statistics.sums_KD, 1 - decay)
        total = use_K.sum()
        smooth_K = (use_K + _SMOOTHING) / (total + self.config.size * _SMOOTHING) * total
        return sums_KD / smooth_K[:, None], use_K, sums_KD

    def _revived(
        self, codes_KD: Tensor, use_K: Tensor, statistics: CodeStatistics, threshold: float
    ) -> tuple[Tensor, Tensor]:
        """Return the replacement of each dead code (K, D), and a bool mask of the dead codes (K,)."""
        if self.config.revival == "none" or not len(statistics.spare_SD):
            return codes_KD, torch.zeros_like(use_K, dtype=torch.bool)
        is_dead_K = use_K < threshold
        number_K = is_dead_K.cumsum(0) - 1  # index of a dead code among the dead; entries of other codes are not used
        if self.config.revival == "latents":
            return statistics.spare_SD[number_K.clamp(min=0) % len(statistics.spare_SD)], is_dead_K
        most_used_K = use_K.argsort(descending=True, stable=True)[number_K.clamp(min=0)]
        noise_KD = draws.normal(number_K + statistics.order_S[0], _ORDER, self.config.width) * _REVIVAL_NOISE
        split_KD = codes_KD[most_used_K] * (1 + noise_KD)
        return self._of_length_1(split_KD), is_dead_K

    def _of_length_1(self, values_KD: Tensor) -> Tensor:
        """Normalize values to length 1 with cosine; otherwise return them unchanged."""
        return F.normalize(values_KD, dim=-1) if self._is_cosine else values_KD

    def _clusters(self, statistics: CodeStatistics) -> tuple[Tensor, Tensor]:
        """Run k-means on the spare latents. Return the means, and cluster sizes scaled to all latents."""
        spare_SD = statistics.spare_SD
        means_KD = spare_SD[torch.arange(self.config.size, device=spare_SD.device) % len(spare_SD)]
        counts_K = torch.zeros_like(self.use_K)
        for _ in range(self.config.num_kmeans_rounds):
            nearest_S = self._nearest(spare_SD, means_KD)
            counts_K = torch.zeros_like(self.use_K).index_add_(0, nearest_S, torch.ones_like(spare_SD[:, 0]))
            sums_KD = torch.zeros_like(means_KD).index_add_(0, nearest_S, spare_SD)
            cluster_KD = self._of_length_1(sums_KD / counts_K.clamp(min=1)[:, None])
            means_KD = torch.where(counts_K[:, None] > 0, cluster_KD, means_KD)
        return means_KD, counts_K * (statistics.counts_K.sum() / len(spare_SD))


class Memcodes(nn.Module, Float32Module):
    """Several tables of learned codes. Each position selects one code of each table by attention scores, and takes its
    value (Mama et al. 2021, https://arxiv.org/abs/2111.08356; the released code of `apple/ml-4m`).

    Codes are trained by gradient. In training they are drawn (hard Gumbel softmax); otherwise the code with the highest
    score is taken."""

    def __init__(self, config: MemcodesConfig) -> None:
        super().__init__()
        self.config = config
        width = config.width // config.num_heads
        self.codes_HKE = nn.Parameter(torch.zeros(config.num_heads, config.size, width))
        self.keys_HEE = nn.Parameter(torch.zeros(config.num_heads, width, width))
        self.values_HEE = nn.Parameter(torch.zeros(config.num_heads, width, width))

    @torch.no_grad()
    def initialise(self) -> None:
        """Draw normal codes, and projections that preserve the variance, from torch's global generator."""
        self.codes_HKE.normal_()
        bound = (3 / self.codes_HKE.shape[-1]) ** 0.5
        self.keys_HEE.uniform_(-bound, bound)
        self.values_HEE.uniform_(-bound, bound)

    def forward(self, latents_BDhw: Tensor, keys_B: Tensor | None = None) -> Quantized:
        B, D, h, w = latents_BDhw.shape
        H, K, E = self.codes_HKE.shape
        with in_float32(latents_BDhw):
            queries_BHPE = latents_BDhw.float().view(B, H, E, h * w).transpose(2, 3) * E**-0.5
            logits_BHPK = queries_BHPE @ (self.codes_HKE @ self.keys_HEE).transpose(1, 2)
            values_HKE = self.codes_HKE @ self.values_HEE
            if self.training:
                assert keys_B is not None
                uniform = draws.uniform(keys_B, _CHOICE, *logits_BHPK.shape[1:]).clamp(_SMALL, 1 - _SMALL)
                soft_BHPK = ((logits_BHPK - (-uniform.log()).log()) / self.config.temperature).softmax(-1)
                ids_BHP = soft_BHPK.argmax(-1)
                # The value is one code per position and head; the gradient is that of the softmax.
                chosen_BHPK = F.one_hot(ids_BHP, K).float() + (soft_BHPK - soft_BHPK.detach())
                codes_BHPE = chosen_BHPK @ values_HKE
            else:
                ids_BHP = logits_BHPK.argmax(-1)
                codes_BHPE = _of_heads(values_HKE, ids_BHP)
        codes_BDhw = codes_BHPE.transpose(2, 3).reshape(B, D, h, w)
        ids = ids_BHP.view(B, h, w) if H == 1 else ids_BHP.view(B, H, h, w)
        return Quantized(codes_BDhw, ids, latents_BDhw.new_zeros(B).float(), None)

    def codes_of(self, ids: Tensor) -> Tensor:
        """Return the codes of ids in the shape of `Quantized.ids`, float32 (B, D, h, w)."""
        H, _, E = self.codes_HKE.shape
        B, h, w = len(ids), *ids.shape[-2:]
        codes_BHPE = _of_heads(self.codes_HKE @ self.values_HEE, ids.reshape(B, H, h * w))
        return codes_BHPE.transpose(2, 3).reshape(B, H * E, h, w)


def _of_heads(values_HKE: Tensor, ids_BHP: Tensor) -> Tensor:
    """Look up the values of ids in the table of each head, (B, H, P, E)."""
    heads_H1 = torch.arange(len(values_HKE), device=ids_BHP.device)[:, None]
    return values_HKE[heads_H1, ids_BHP]


class FiniteScalar(nn.Module):
    """Finite scalar quantization: round each number of a latent to one of a few values, without a table (Mentzer et al.
    2023, https://arxiv.org/abs/2309.15505, section 3.1). An id is a number in the mixed base of the levels; its first
    digit is the least significant."""

    def __init__(self, config: FiniteScalarConfig) -> None:
        super().__init__()
        levels = np.array(config.levels)
        self.register_buffer("levels_D", torch.from_numpy(levels), persistent=False)
        self.register_buffer("base_D", torch.from_numpy(np.cumprod([1, *levels[:-1]])), persistent=False)

    levels_D: Tensor
    base_D: Tensor

    def initialise(self) -> None:
        """Do nothing: there are no parameters."""

    def forward(self, latents_BDhw: Tensor, keys_B: Tensor | None = None) -> Quantized:
        with in_float32(latents_BDhw):
            latents_BhwD = latents_BDhw.float().permute(0, 2, 3, 1)
            half_D = (self.levels_D - 1) * (1 + _MARGIN) / 2
            # An even number of values has no middle: with a shift of 0.5, rounding gives exactly this number of values.
            offset_D = torch.where(self.levels_D % 2 == 0, 0.5, 0.0)
            bounded_BhwD = torch.tanh(latents_BhwD + (offset_D / half_D).atanh()) * half_D - offset_D
            rounded_BhwD = bounded_BhwD + (bounded_BhwD.round() - bounded_BhwD).detach()
            codes_BhwD = rounded_BhwD / (self.levels_D // 2)
            ids = ((rounded_BhwD.detach().round().long() + self.levels_D // 2) * self.base_D).sum(-1)
        zero_B = latents_BhwD.new_zeros(len(latents_BhwD))
        return Quantized(codes_BhwD.permute(0, 3, 1, 2), ids, zero_B, None)

    def codes_of(self, ids: Tensor) -> Tensor:
        """Return the codes of ids in the shape of `Quantized.ids`, float32 (B, D, h, w)."""
        places_BhwD = ids[..., None] // self.base_D % self.levels_D
        return ((places_BhwD - self.levels_D // 2) / (self.levels_D // 2)).permute(0, 3, 1, 2)

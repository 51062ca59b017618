"""Several tables of learned codes; each place asks each table by attention, and takes the value of the code it likes.

Dimensions: B images, D width, h x w places, P = h w, H heads (tables), K codes, E = D / H.
Source: Mama et al. 2021, https://arxiv.org/abs/2111.08356; section 10.3 of the specification.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretrainkit.nn.autocast import in_float32
from pretrainkit.recipes.image_tokenizer import draws
from pretrainkit.recipes.image_tokenizer.model_config import MemcodesConfig
from pretrainkit.recipes.image_tokenizer.quantizer import Quantized, Quantizer

_STREAM = 12
_SMALL = 2.0**-25


class Memcodes(Quantizer):
    """Codes learn by the gradient: in training they are drawn (hard Gumbel softmax), else the likeliest is taken."""

    def __init__(self, config: MemcodesConfig) -> None:
        super().__init__()
        self.config = config
        width = config.width // config.num_heads
        self.codes_HKE = nn.Parameter(torch.zeros(config.num_heads, config.size, width))
        self.keys_HEE = nn.Parameter(torch.zeros(config.num_heads, width, width))
        self.values_HEE = nn.Parameter(torch.zeros(config.num_heads, width, width))

    @torch.no_grad()
    def initialise(self) -> None:
        """Normal codes, and projections that keep their size, from torch's global generator."""
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
                uniform = draws.uniform(keys_B, _STREAM, *logits_BHPK.shape[1:]).clamp(_SMALL, 1 - _SMALL)
                soft_BHPK = ((logits_BHPK - (-uniform.log()).log()) / self.config.temperature).softmax(-1)
                ids_BHP = soft_BHPK.argmax(-1)
                chosen_BHPK = F.one_hot(ids_BHP, K).float() + (soft_BHPK - soft_BHPK.detach())
                codes_BHPE = chosen_BHPK @ values_HKE
            else:
                ids_BHP = logits_BHPK.argmax(-1)
                codes_BHPE = _of_heads(values_HKE, ids_BHP)
        codes_BDhw = codes_BHPE.transpose(2, 3).reshape(B, D, h, w)
        return Quantized(codes_BDhw, self._shaped(ids_BHP, h, w), latents_BDhw.new_zeros(B).float(), None)

    def codes_of(self, ids: Tensor) -> Tensor:
        H, _, E = self.codes_HKE.shape
        B, h, w = len(ids), *ids.shape[-2:]
        codes_BHPE = _of_heads(self.codes_HKE @ self.values_HEE, ids.reshape(B, H, h * w))
        return codes_BHPE.transpose(2, 3).reshape(B, H * E, h, w)

    def _shaped(self, ids_BHP: Tensor, h: int, w: int) -> Tensor:
        B, H, _ = ids_BHP.shape
        return ids_BHP.view(B, h, w) if H == 1 else ids_BHP.view(B, H, h, w)


def _of_heads(values_HKE: Tensor, ids_BHP: Tensor) -> Tensor:
    """(B, H, P, E)."""
    heads_H1 = torch.arange(len(values_HKE), device=ids_BHP.device)[:, None]
    return values_HKE[heads_H1, ids_BHP]

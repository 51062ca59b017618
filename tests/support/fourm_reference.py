"""4M as its papers and code describe it, in plain code: dense tensors by modality, masks, a gather, full attention
masks. It reads a state dict by the published names and shares no code with the package.

Masks are the original's: True is ignored.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

SEQUENCES = ("sequence", "vectors")


@dataclass
class Reference:
    """A model."""

    state: dict[str, Tensor]
    kinds: dict[str, str]
    """Name of a modality to its kind, in order."""
    max_lengths: dict[str, int]
    depth: int
    heads: int
    gated: bool = True
    qk_norm: bool = False
    sep_mask: bool = True
    causal_mask: bool = False
    registers: int = 0
    patch: int = 8

    def losses(self, mods: dict[str, dict[str, Tensor]], num_in: int, num_out: int) -> dict[str, Tensor]:
        """Mean cross-entropy by modality, and "sum/NAME" and "num/NAME"."""
        x, emb, mask = self.encode(mods, num_in)
        context = self.linear("decoder_proj_context", x) + emb
        y, targets, mod_ids = self.decode(mods, num_out, context, mask)
        found = {}
        for number, name in enumerate(self.kinds):
            if f"decoder_embeddings.{name}.to_logits.weight" not in self.state:
                continue
            own = mod_ids == number
            logits = y[own] @ self.state[f"decoder_embeddings.{name}.to_logits.weight"].T
            losses = F.cross_entropy(logits, targets[own], reduction="none")
            found[name] = losses.mean() if len(losses) else y.sum() * 0
            found[f"sum/{name}"], found[f"num/{name}"] = losses.sum(), torch.tensor(float(len(losses)))
        return found

    def encode(self, mods: dict[str, dict[str, Tensor]], num: int) -> tuple[Tensor, Tensor, Tensor]:
        """Output, positions with modalities, mask."""
        xs, embs, masks = [], [], []
        for name, mod in mods.items():
            prefix = f"encoder_embeddings.{name}"
            if f"{prefix}.mod_emb" not in self.state:
                continue
            xs.append(self.content(prefix, name, mod["tensor"]))
            embs.append(self.places(prefix, name, mod["input_mask"], limit=None))
            masks.append(mod["input_mask"])
        x, emb, mask = torch.cat(xs, 1), torch.cat(embs, 1), torch.cat(masks, 1)
        keep = (mask.double() + 1e-6 * torch.arange(mask.shape[1])).argsort(1)[:, :num]
        x, emb, mask = _pick(x, keep), _pick(emb, keep), mask.gather(1, keep)
        x, emb = x * ~mask[..., None], emb * ~mask[..., None]
        if self.registers:
            tokens = self.state["register_tokens"].expand(len(x), -1, -1)
            x, emb = torch.cat((tokens, x), 1), torch.cat((torch.zeros_like(tokens), emb), 1)
            mask = F.pad(mask, (self.registers, 0), value=False)
        x = x + emb
        for layer in range(self.depth):
            prefix = f"encoder.{layer}"
            x = x + self.self_attention(f"{prefix}.attn", self.norm(f"{prefix}.norm1", x), mask[:, None])
            x = x + self.mlp(f"{prefix}.mlp", self.norm(f"{prefix}.norm2", x))
        return self.norm("encoder_norm", x), emb, mask

    def decode(
        self, mods: dict[str, dict[str, Tensor]], num: int, context: Tensor, context_mask: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Output, targets, numbers of modalities (-1 for none)."""
        parts: list[list[Tensor]] = [[], [], [], [], [], []]
        for number, name in enumerate(self.kinds):
            prefix = f"decoder_embeddings.{name}"
            if name not in mods or f"{prefix}.mod_emb" not in self.state:
                continue
            mod = mods[name]
            ids, mask, dam = mod["tensor"].flatten(1), mod["target_mask"], mod["decoder_attention_mask"]
            emb = self.places(prefix, name, mask, limit=self.max_lengths[name])
            if self.kinds[name] == "sequence":
                x = self.state[f"{prefix}.token_emb.weight"][ids][:, :-1]
                emb, dam = emb[:, :-1], dam[:, :-1]
                targets, mask = ids[:, 1:], mask[:, 1:] | mask[:, :-1]
            else:
                x, targets = self.state["mask_token"].expand(*ids.shape, -1), ids
            for part, value in zip(parts, (x, emb, mask, targets, dam, torch.full_like(targets, number)), strict=True):
                part.append(value)
        x, emb, mask, targets, dam, mod_ids = (torch.cat(part, 1) for part in parts)
        keep = (mask.double() + 1e-6 * torch.arange(mask.shape[1])).argsort(1)[:, :num]
        x, emb = _pick(x, keep), _pick(emb, keep)
        mask, targets, dam, mod_ids = (value.gather(1, keep) for value in (mask, targets, dam, mod_ids))
        hidden = self.hidden(dam, mod_ids)
        x, emb = x * ~mask[..., None], emb * ~mask[..., None]
        mod_ids = torch.where(mask, -1, mod_ids)
        x = x + emb
        for layer in range(self.depth):
            prefix = f"decoder.{layer}"
            x = x + self.self_attention(f"{prefix}.self_attn", self.norm(f"{prefix}.norm1", x), hidden)
            asked = self.norm(f"{prefix}.context_norm", context)
            x = x + self.cross_attention(
                f"{prefix}.cross_attn", self.norm(f"{prefix}.query_norm", x), asked, context_mask[:, None]
            )
            x = x + self.mlp(f"{prefix}.mlp", self.norm(f"{prefix}.norm2", x))
        return self.norm("decoder_norm", x), targets, mod_ids

    def hidden(self, dam: Tensor, mod_ids: Tensor) -> Tensor:
        """(B, M, M)."""
        place = torch.arange(dam.shape[1])
        if self.causal_mask:
            hidden = (place > place[:, None]).expand(len(dam), -1, -1)
        else:
            hidden = place >= dam.cumsum(1)[:, :, None]
        return hidden | (mod_ids[:, :, None] != mod_ids[:, None]) if self.sep_mask else hidden

    def content(self, prefix: str, name: str, tensor: Tensor) -> Tensor:
        if self.kinds[name] == "pixels":
            p, (B, C, H, W) = self.patch, tensor.shape
            patches = tensor.reshape(B, C, H // p, p, W // p, p).permute(0, 2, 4, 3, 5, 1).reshape(B, -1, p * p * C)
            return patches @ self.state[f"{prefix}.proj.weight"].T
        if self.kinds[name] == "vectors":
            if f"{prefix}.emb_proj.0.weight" in self.state:
                tensor = self.linear(f"{prefix}.emb_proj.0", tensor)
                return self.linear(f"{prefix}.emb_proj.1", tensor)
            return self.linear(f"{prefix}.emb_proj", tensor)
        return self.state[f"{prefix}.token_emb.weight"][tensor.flatten(1)]

    def places(self, prefix: str, name: str, mask: Tensor, limit: int | None) -> Tensor:
        table, mod_emb = self.state[f"{prefix}.pos_emb"][0], self.state[f"{prefix}.mod_emb"]
        if self.kinds[name] not in SEQUENCES:
            return (table + mod_emb).expand(len(mask), -1, -1)
        position = ((~mask).cumsum(1) - 1).masked_fill(mask, 0)
        if limit is not None:
            position = position.masked_fill(position >= limit, 0)
        return table[position] * ~mask[..., None] + mod_emb

    def self_attention(self, prefix: str, x: Tensor, hidden: Tensor) -> Tensor:
        B, N = x.shape[:2]
        q, k, v = self.linear(f"{prefix}.qkv", x).reshape(B, N, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        return self.attention(prefix, q, k, v, hidden)

    def cross_attention(self, prefix: str, x: Tensor, asked: Tensor, hidden: Tensor) -> Tensor:
        (B, M), N = x.shape[:2], asked.shape[1]
        q = self.linear(f"{prefix}.q", x).reshape(B, M, self.heads, -1).transpose(1, 2)
        k, v = self.linear(f"{prefix}.kv", asked).reshape(B, N, 2, self.heads, -1).permute(2, 0, 3, 1, 4)
        return self.attention(prefix, q, k, v, hidden)

    def attention(self, prefix: str, q: Tensor, k: Tensor, v: Tensor, hidden: Tensor) -> Tensor:
        if self.qk_norm:
            q, k = self.norm(f"{prefix}.q_norm", q), self.norm(f"{prefix}.k_norm", k)
        scores = (q @ k.transpose(-2, -1)) * q.shape[-1] ** -0.5
        scores = scores.masked_fill(hidden[:, None], -torch.finfo(scores.dtype).max)
        mixed = (scores.softmax(-1) @ v).transpose(1, 2)
        return self.linear(f"{prefix}.proj", mixed.flatten(2))

    def mlp(self, prefix: str, x: Tensor) -> Tensor:
        if self.gated:
            inner = F.silu(self.linear(f"{prefix}.fc1", x)) * self.linear(f"{prefix}.fc3", x)
        else:
            inner = F.gelu(self.linear(f"{prefix}.fc1", x))
        return self.linear(f"{prefix}.fc2", inner)

    def linear(self, name: str, x: Tensor) -> Tensor:
        return F.linear(x, self.state[f"{name}.weight"], self.state.get(f"{name}.bias"))

    def norm(self, name: str, x: Tensor) -> Tensor:
        weight = self.state[f"{name}.weight"]
        return F.layer_norm(x, weight.shape, weight, self.state[f"{name}.bias"], 1e-6)


def _pick(x: Tensor, index: Tensor) -> Tensor:
    return x.gather(1, index[..., None].expand(-1, -1, x.shape[-1]))

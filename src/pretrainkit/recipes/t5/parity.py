"""Our logits beside those of transformers."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from pretrainkit.recipes.t5.config import T5ModelConfig
from pretrainkit.recipes.t5.inputs import read_batch

_LENGTHS = ((17, 9), (150, 40), (1, 1))
"""(input, target) tokens of the examples: nearby and far positions, and hardly any."""


@torch.no_grad()
def difference_from_huggingface(config: T5ModelConfig, model: nn.Module, folder: Path) -> float:
    """The largest difference of a logit at a real target position, for examples of random ids, between a model of kind
    encoder_decoder, on CPU and in float32, and the same weights for transformers in `folder`."""
    import transformers

    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=torch.float32).eval()
    # transformers 5 sets the flag of umT5 itself and then scales its logits, which are not tied.
    is_scaled = config.bias_per_layer and not config.tied_logits and theirs.config.tie_word_embeddings
    batch = _random_batch(config)
    inputs, _ = read_batch(batch)
    found = model(inputs)
    expected = theirs(
        input_ids=batch["encoder_input_tokens"].long(),
        attention_mask=(batch["encoder_input_tokens"] != 0).long(),
        decoder_input_ids=batch["decoder_input_tokens"].long(),
    ).logits[batch["decoder_target_tokens"] != 0]
    scale = config.hidden_size**0.5 if is_scaled else 1.0
    return float((found - expected * scale).abs().max())


def _random_batch(config: T5ModelConfig) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    widths = [max(lengths) for lengths in zip(*_LENGTHS, strict=True)]
    sides = []
    for side, width in enumerate(widths):
        ids = torch.randint(2, config.vocab_size or 2, (len(_LENGTHS), width), generator=generator, dtype=torch.int32)
        real = torch.arange(width) < torch.tensor([[lengths[side]] for lengths in _LENGTHS])
        sides.append(ids * real)
    inputs, targets = sides
    return {
        "encoder_input_tokens": inputs,
        "decoder_target_tokens": targets,
        "decoder_input_tokens": nn.functional.pad(targets[:, :-1], (1, 0)) * (targets != 0),
        "decoder_loss_weights": (targets != 0).float(),
    }

"""Small models and inputs for the tests of the clip recipe; nothing is downloaded."""

from pathlib import Path

import torch
from torch import nn

from pretrainkit.recipes.clip.config import (
    ClipObjectiveConfig,
    ClipRun,
    HuggingFaceTextConfig,
    ProjectionConfig,
    TemperatureConfig,
    TextTransformerConfig,
    TimmConfig,
    VitConfig,
)
from pretrainkit.recipes.clip.presets import tiny
from pretrainkit.recipes.clip.recipe import RECIPE
from pretrainkit.tokenizers.train import TokenizerSettings, train_tokenizer

VOCAB = 60
SIZE = 32
CAPTIONS = ["a red cat", "a blue dog and a cat", "dog"]


def vit(**changes) -> VitConfig:
    defaults = {"image_size": SIZE, "patch_size": 8, "hidden_size": 24, "num_layers": 2, "num_heads": 3}
    defaults |= {"intermediate_size": 40}
    return VitConfig(**(defaults | changes))


def text(**changes) -> TextTransformerConfig:
    defaults = {"vocab_size": VOCAB, "max_positions": 12, "hidden_size": 16, "num_layers": 2, "num_heads": 2}
    defaults |= {"intermediate_size": 24}
    return TextTransformerConfig(**(defaults | changes))


def run_config(image=None, words=None, *, temperature=None, projection=None, objective=None, **data) -> ClipRun:
    """clip/tiny with smaller towers, or those given."""
    base = tiny()
    model = base.model.model_copy(
        update={
            "image": image or vit(),
            "text": words or text(),
            "projection": projection or ProjectionConfig(dim=20),
            "temperature": temperature or TemperatureConfig(),
        }
    )
    return base.model_copy(
        update={
            "model": model,
            "objective": objective or ClipObjectiveConfig(),
            "data": base.data.model_copy(update=data),
        }
    )


def random_model(config: ClipRun) -> nn.Module:
    """Build a model in evaluation mode with random parameters, norms near one."""
    torch.manual_seed(0)
    model = RECIPE.build_model(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1 and not name.startswith(("temperature", "logit")):
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model.eval()


def images(num: int = 3, size: int = SIZE) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, (num, 3, size, size), generator=generator, dtype=torch.uint8)


def captions(lengths=(4, 9, 6), *, eos: int = 3, pad: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """ids int32 (B, T) that end with `eos`, and the numbers of real tokens."""
    generator = torch.Generator().manual_seed(2)
    ids = torch.full((len(lengths), max(lengths)), pad, dtype=torch.int32)
    for row, length in enumerate(lengths):
        ids[row, :length] = torch.randint(5, VOCAB, (length,), generator=generator)
        ids[row, length - 1] = eos
    return ids, torch.tensor(lengths, dtype=torch.int32)


def make_tokenizer(folder: Path) -> Path:
    """A WordPiece vocabulary of 30 pieces: [PAD] 0, [UNK] 1, [CLS] 2, [SEP] 3, [MASK] 4."""
    words = sorted({word for caption in CAPTIONS for word in caption.split()})
    counts = folder.with_suffix(".tsv")
    counts.write_text("".join(f"{word}\t5\n" for word in words))
    train_tokenizer([counts], folder, TokenizerSettings(kind="wordpiece", vocab_size=30, max_length=12))
    return folder


def tiny_bert(folder: Path) -> HuggingFaceTextConfig:
    """The config of a small BERT in a folder, without weights."""
    import transformers

    transformers.BertConfig(
        vocab_size=VOCAB, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24
    ).save_pretrained(folder)
    return HuggingFaceTextConfig(name=str(folder), pretrained=False)


def tiny_timm(**changes) -> TimmConfig:
    """A small vision transformer of timm."""
    options = {"patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 3}
    return TimmConfig(
        **({"name": "vit_tiny_patch16_224", "pretrained": False, "image_size": SIZE, "options": options} | changes)
    )

"""Presets of the CLIP recipe: complete configs except for the paths of the data. Imports no torch."""

from collections.abc import Callable

from pretrainkit.images.ops import AutoAugment, CenterCrop, RandomResizeCrop, Resize, ResizeShorter
from pretrainkit.recipes.clip.config import (
    ClipDataConfig,
    ClipEvaluateConfig,
    ClipModelConfig,
    ClipObjectiveConfig,
    ClipRun,
    HuggingFaceTextConfig,
    MixupConfig,
    ProjectionConfig,
    TemperatureConfig,
    TextAugmentConfig,
    TextTransformerConfig,
    TimmConfig,
    VitConfig,
)
from pretrainkit.training.optimizers.config import OptimizerConfig, ScheduleConfig
from pretrainkit.training.run import CheckpointConfig, LogConfig

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
HALF = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
OPENAI = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
"""Mean and deviation of red, green and blue."""


def tiny() -> ClipRun:
    """Two small towers of our own on images of 64 x 64 pixels, for tests and first steps on a CPU.

    1.0 M parameters without the token embeddings. The vocabulary is that of the tokenizer.
    """
    return ClipRun(
        num_steps=600,
        model=ClipModelConfig(
            image=VitConfig(
                image_size=64, patch_size=8, hidden_size=128, num_layers=3, num_heads=4, intermediate_size=512
            ),
            text=TextTransformerConfig(
                max_positions=32, hidden_size=128, num_layers=2, num_heads=4, intermediate_size=512
            ),
            projection=ProjectionConfig(dim=128),
        ),
        data=ClipDataConfig(
            batch_size=128,
            max_length=25,
            train_transforms=(RandomResizeCrop(size=64),),
            valid_transforms=(Resize(size=64),),
            normalize=HALF,
        ),
        optimizer=OptimizerConfig(peak_lr=1e-3, beta2=0.98, weight_decay=0.1),
        schedule=ScheduleConfig(name="cosine", num_warmup_steps=60),
        checkpoint=CheckpointConfig(every_steps=200),
        evaluate=ClipEvaluateConfig(every_steps=200),
    )


def vit_b_32() -> ClipRun:
    """CLIP ViT-B/32 from scratch, with towers of our own: 151 M parameters, exported as `CLIPModel`.

    The optimizer settings are those of OpenCLIP's runs on LAION-400M (batch 32,768). On few GPUs, use a smaller batch.
    """
    return _own_towers(patch_size=32)


def vit_b_16() -> ClipRun:
    """CLIP ViT-B/16 from scratch, with towers of our own: 150 M parameters, exported as `CLIPModel`."""
    return _own_towers(patch_size=16)


def siglip() -> ClipRun:
    """ViT-B/16 with a sigmoid for each pair instead of the softmax (Zhai et al. 2023,
    https://arxiv.org/abs/2303.15343). It needs no normalization over the batch, so smaller batches work well."""
    temperature = TemperatureConfig(kind="log_parameter", value=0.1, smallest=0.001)
    return _own_towers(patch_size=16).changed(
        model={"image": {"pool": "mean"}, "text": {"causal": False, "pool": "mean"}, "temperature": temperature},
        objective=ClipObjectiveConfig(loss="siglip"),
        data={"batch_size": 16_384, "normalize": HALF, "max_length": 64},
        optimizer=OptimizerConfig(peak_lr=1e-3, beta2=0.95, weight_decay=1e-4),
    )


def zerovl() -> ClipRun:
    """The baseline of ZeroVL: ViT-B/16 from ImageNet-21k weights and BERT-base, plain contrastive loss, batch 1,024.

    195 M parameters. It is `configs/clip/zerovl.yaml` of the original.
    """
    return _zerovl(batch_size=1024)


def zerovl_dga() -> ClipRun:
    """The baseline with all techniques of ZeroVL: debiased sampling, coin-flipping mixup, and decoupled accumulation to
    a batch of 16,384 from microbatches of 128 on each of 8 ranks.

    It is `configs/clip/zerovl_dga.yaml` of the original.
    """
    return _zerovl(batch_size=16_384).changed(
        objective=ClipObjectiveConfig(mixup=MixupConfig()),
        data={"order": "debias", "microbatch_size": 128},
        evaluate=ClipEvaluateConfig(every_epochs=1, batch_size=128),
    )


def zerovl_14m() -> ClipRun:
    """The baseline with a learned temperature, to evaluate the published 14M weights."""
    return _zerovl(batch_size=1024).changed(model={"temperature": {"kind": "parameter"}})


def zerovl_100m() -> ClipRun:
    """`zerovl-14m` with pixels normalized by 0.5, to evaluate the published 100M weights."""
    return zerovl_14m().changed(data={"normalize": HALF})


def _own_towers(patch_size: int) -> ClipRun:
    return ClipRun(
        num_steps=400_000,
        model=ClipModelConfig(
            image=VitConfig(image_size=224, patch_size=patch_size), text=TextTransformerConfig(vocab_size=49_408)
        ),
        data=ClipDataConfig(
            batch_size=32_768,
            max_length=77,
            train_transforms=(RandomResizeCrop(size=224, scale=(0.9, 1.0)),),
            valid_transforms=(ResizeShorter(size=224), CenterCrop(size=224)),
            normalize=OPENAI,
        ),
        optimizer=OptimizerConfig(peak_lr=5e-4, beta2=0.98, epsilon=1e-6, weight_decay=0.2),
        schedule=ScheduleConfig(name="cosine", num_warmup_steps=2_000),
        evaluate=ClipEvaluateConfig(every_steps=5_000),
    )


def _zerovl(batch_size: int) -> ClipRun:
    return ClipRun(
        num_steps=None,
        model=ClipModelConfig(
            image=TimmConfig(image_size=224),
            text=HuggingFaceTextConfig(),
            temperature=TemperatureConfig(kind="constant", value=0.02, smallest=0.001, largest=0.5, project_back=False),
        ),
        data=ClipDataConfig(
            batch_size=batch_size,
            num_epochs=20,
            max_length=25,
            order="shuffle",
            train_transforms=(RandomResizeCrop(size=224), AutoAugment()),
            valid_transforms=(Resize(size=256), CenterCrop(size=224)),
            normalize=IMAGENET,
            text_augment=TextAugmentConfig(),
        ),
        optimizer=OptimizerConfig(peak_lr=1e-4, beta2=0.98, weight_decay=0.001, decay_mask="all", max_grad_norm=0.0),
        schedule=ScheduleConfig(name="cosine", warmup_share=0.025, floor=0.1),
        checkpoint=CheckpointConfig(every_steps=2_000),
        log=LogConfig(every_steps=10),
        evaluate=ClipEvaluateConfig(every_steps=100, batch_size=128),
    )


PRESETS: dict[str, Callable[[], ClipRun]] = {
    "tiny": tiny,
    "vit-b-32": vit_b_32,
    "vit-b-16": vit_b_16,
    "siglip": siglip,
    "zerovl": zerovl,
    "zerovl-dga": zerovl_dga,
    "zerovl-14m": zerovl_14m,
    "zerovl-100m": zerovl_100m,
}

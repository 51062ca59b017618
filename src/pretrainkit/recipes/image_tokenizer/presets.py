"""Presets: complete configs of image tokenizers by name, without data. This module does not import torch.

The published configs are those of the released code (`apple/ml-4m`): 50, 20 or 15 epochs (24 for masks)
of data sets such as CC12M. Batch sizes are those of all 8 GPUs, and the peak learning rate is the base rate times batch
size / 256.
"""

from collections.abc import Callable
from typing import Any

from pretrainkit.data.aligned_crops import CropConfig
from pretrainkit.recipes.image_tokenizer.config import (
    ImageTokenizerDataConfig,
    ImageTokenizerObjectiveConfig,
    ImageTokenizerRun,
    PerceptualConfig,
    Reconstruction,
)
from pretrainkit.recipes.image_tokenizer.model_config import (
    DOMAINS,
    CodebookConfig,
    ConvCoderConfig,
    ImageTokenizerModelConfig,
    MemcodesConfig,
    MLPCoderConfig,
    NoiseConfig,
    UNetConfig,
    UViTConfig,
    ViTCoderConfig,
)
from pretrainkit.training.evaluate_config import EvaluateConfig
from pretrainkit.training.optimizers.config import OptimizerConfig, ScheduleConfig
from pretrainkit.training.run import CheckpointConfig, LogConfig

_NUM_GPUS = 8
_VIT_B = ViTCoderConfig(hidden_size=768, num_layers=12, num_heads=12)
_VIT_B_PLAIN = ViTCoderConfig(hidden_size=768, num_layers=12, num_heads=12, has_last_mlp=False)
_MLP = MLPCoderConfig(width=1024, num_blocks=6)


def tiny() -> ImageTokenizerRun:
    """Transformers of 4 layers, width 128, for images of 64 x 64 pixels with 64 tokens each and 512 codes: for tests
    and trials on a CPU. 1.9 M parameters; 1,500 steps of 16 images.
    """
    coder = ViTCoderConfig(hidden_size=128, num_layers=4, num_heads=4)
    return ImageTokenizerRun(
        num_steps=1_500,
        model=ImageTokenizerModelConfig(
            domain=DOMAINS["rgb"],
            image_size=64,
            patch_size=8,
            encoder=coder,
            quantizer=CodebookConfig(size=512, width=16, normalizes_latents=True),
            decoder=coder,
        ),
        objective=ImageTokenizerObjectiveConfig(reconstruction="l1"),
        data=ImageTokenizerDataConfig(batch_size=16),
        optimizer=OptimizerConfig(peak_lr=1e-3, beta2=0.99, epsilon=1e-8, weight_decay=0.05),
        schedule=ScheduleConfig(name="cosine", num_warmup_steps=75),
        checkpoint=CheckpointConfig(every_steps=250),
        evaluate=EvaluateConfig(every_steps=250, num_examples=256),
    )


def tiny_conv() -> ImageTokenizerRun:
    """image_tokenizer/tiny with convolutions of 32 to 96 channels instead of transformers: 1.9 M parameters, about ten
    times the FLOPs per image."""
    coder = ConvCoderConfig(width=32, multipliers=(1, 2, 2, 3), has_attention=False)
    return tiny().changed(model={"encoder": coder, "decoder": coder})


def _published(
    domain: str,
    *,
    decoder: Any,
    num_epochs: int,
    loss: Reconstruction,
    batch_per_gpu: int = 64,
    size: int = 8192,
    base_lr: float = 1e-4,
    smallest_crop: float = 0.8,
    perceptual_weight: float = 0.0,
    warmup_epochs: int = 5,
    **model: Any,
) -> ImageTokenizerRun:
    """Return a published config. `size`: number of codes; `model`: settings of the model that differ from ViT-B at 224
    pixels with a codebook."""
    usual: dict[str, Any] = {"image_size": 224, "encoder": _VIT_B, "quantizer": CodebookConfig(size=size)}
    batch_size = batch_per_gpu * _NUM_GPUS
    is_diffusion = isinstance(decoder, UNetConfig | UViTConfig)
    return ImageTokenizerRun(
        num_steps=None,
        model=ImageTokenizerModelConfig(domain=DOMAINS[domain], decoder=decoder, **(usual | model)),
        objective=ImageTokenizerObjectiveConfig(
            reconstruction=loss, perceptual=PerceptualConfig(weight=perceptual_weight)
        ),
        data=ImageTokenizerDataConfig(
            batch_size=batch_size, num_epochs=num_epochs, crop=CropConfig(scale=(smallest_crop, 1.0))
        ),
        optimizer=OptimizerConfig(
            peak_lr=base_lr * batch_size / 256, beta2=0.99, epsilon=1e-8, weight_decay=0.05, max_grad_norm=1.0
        ),
        schedule=ScheduleConfig(name="cosine", warmup_share=warmup_epochs / num_epochs),
        ema_decay=0.9999 if is_diffusion else 0.99,
        max_skipped_steps=100,
        checkpoint=CheckpointConfig(every_steps=10_000),
        log=LogConfig(every_steps=50),
        evaluate=EvaluateConfig(every_steps=10_000),
    )


_UNET = UNetConfig(noise=NoiseConfig(schedule="linear", prediction="image"))


def rgb() -> ImageTokenizerRun:
    """RGB, 16,384 codes: ViT-B encoder and convolutional diffusion decoder (DiVAE). 50 epochs."""
    return _published("rgb", decoder=_UNET, num_epochs=50, loss="mse", size=16384)


def depth() -> ImageTokenizerRun:
    """Standardized depth, 8,192 codes: DiVAE. 20 epochs."""
    return _published("depth", decoder=_UNET, num_epochs=20, loss="smooth_l1")


def normal() -> ImageTokenizerRun:
    """Surface normals, 8,192 codes: DiVAE. 20 epochs."""
    return _published("normal", decoder=_UNET, num_epochs=20, loss="mse")


def canny_edge() -> ImageTokenizerRun:
    """Canny edges, also those of SAM's instances, 8,192 codes: DiVAE. 50 epochs."""
    return _published("canny_edge", decoder=_UNET, num_epochs=50, loss="smooth_l1", base_lr=5e-5)


def rgb_uvit() -> ImageTokenizerRun:
    """A UViT diffusion decoder for the frozen encoder of a trained RGB tokenizer with 1,024 codes, given as init_from
    (see docs/image-tokenizers.md). 50 epochs."""
    decoder = UViTConfig(noise=NoiseConfig(schedule="shifted_cosine", shift=0.5, prediction="velocity"))
    return _published("rgb", decoder=decoder, num_epochs=50, loss="mse", size=1024, is_encoder_frozen=True)


def rgb_perceptual() -> ImageTokenizerRun:
    """RGB, 1,024 codes: ViT-B encoder and decoder, with a perceptual loss of CLIP B/16. 50 epochs."""
    return _published("rgb", decoder=_VIT_B, num_epochs=50, loss="mse", size=1024, perceptual_weight=1.0)


def semseg_coco() -> ImageTokenizerRun:
    """Semantic classes of COCO, 4,096 codes: ViT-B encoder and decoder. 20 epochs."""
    return _published("semseg_coco", decoder=_VIT_B, num_epochs=20, loss="cross_entropy", batch_per_gpu=80, size=4096)


def _feature_maps(domain: str, batch_per_gpu: int, patch_size: int) -> ImageTokenizerRun:
    return _published(
        domain,
        decoder=_VIT_B,
        num_epochs=20,
        loss="smooth_l1",
        batch_per_gpu=batch_per_gpu,
        smallest_crop=0.2,
        patch_size=patch_size,
    )


def clip_b16() -> ImageTokenizerRun:
    """Feature maps of CLIP B/16, 8,192 codes: ViT-B encoder and decoder. 20 epochs."""
    return _feature_maps("CLIP-B16", 128, 16)


def dinov2_b14() -> ImageTokenizerRun:
    """Feature maps of DINOv2 B/14, 8,192 codes: ViT-B encoder and decoder. 20 epochs."""
    return _feature_maps("DINOv2-B14", 64, 14)


def imagebind_h14() -> ImageTokenizerRun:
    """Feature maps of ImageBind H/14, 8,192 codes: ViT-B encoder and decoder. 20 epochs."""
    return _feature_maps("ImageBind-H14", 128, 14)


def _vectors(domain: str, loss: Reconstruction, size: int, num_heads: int, warmup_epochs: int) -> ImageTokenizerRun:
    return _published(
        domain,
        encoder=_MLP,
        decoder=_MLP,
        quantizer=MemcodesConfig(size=size, width=1024, num_heads=num_heads),
        num_epochs=15,
        loss=loss,
        smallest_crop=0.2,
        image_size=16,
        warmup_epochs=warmup_epochs,
    )


def dinov2_global() -> ImageTokenizerRun:
    """Global feature vector of DINOv2 B/14 as 16 ids of 8,192 codes each. The original's example config has 8 ids, but
    the released weights and 4M's list of modalities have 16. 15 epochs."""
    return _vectors("DINOv2-B14-global", "cosine_channels", 8192, 16, 5)


def imagebind_global() -> ImageTokenizerRun:
    """Global feature vector of ImageBind H/14 as 16 ids of 8,192 codes each. 15 epochs."""
    return _vectors("ImageBind-H14-global", "cosine_channels", 8192, 16, 5)


def human_poses() -> ImageTokenizerRun:
    """The 207 numbers of a human pose as 8 ids of 1,024 codes each. 15 epochs."""
    return _vectors("human_poses", "smooth_l1", 1024, 8, 1)


def sam_mask() -> ImageTokenizerRun:
    """Masks of 64 x 64 pixels as 16 tokens of 1,024 codes. 24 epochs."""
    return _published(
        "sam_mask",
        encoder=_VIT_B_PLAIN,
        decoder=_VIT_B_PLAIN.model_copy(update={"num_output_convolutions": 2}),
        quantizer=CodebookConfig(size=1024, width=1024),
        num_epochs=24,
        loss="binary_cross_entropy",
        batch_per_gpu=384,
        image_size=64,
    ).model_copy(update={"ema_decay": None})


PRESETS: dict[str, Callable[[], ImageTokenizerRun]] = {
    make.__name__.replace("_", "-"): make
    for make in (
        *(tiny, tiny_conv, rgb, rgb_uvit, rgb_perceptual, depth, normal, canny_edge),
        *(semseg_coco, clip_b16, dinov2_b14, imagebind_h14, dinov2_global, imagebind_global, human_poses, sam_mask),
    )
}
"""Maps the name of a preset, without the recipe, to the function that creates it."""

"""Interface of the recipe to the rest of pretrainkit. Importing it does not import torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from pretrainkit.errors import InputError
from pretrainkit.recipes.capabilities import EncodesText
from pretrainkit.recipes.exchange import (
    ConvertsClassifiers,
    ImportedTextClassifier,
    ReadsHuggingFace,
    TellsIds,
    TextClassifier,
)
from pretrainkit.recipes.huggingface.config import HuggingFaceModelConfig, HuggingFaceRun
from pretrainkit.recipes.recipe import Recipe

if TYPE_CHECKING:
    import numpy as np
    from torch import nn

    from pretrainkit.recipes.text_encoder import TextEncoder
    from pretrainkit.recipes.text_reader import TextReader


class HuggingFace(
    Recipe[HuggingFaceRun],
    EncodesText[HuggingFaceRun],
    ConvertsClassifiers[HuggingFaceRun],
    TellsIds[HuggingFaceRun],
    ReadsHuggingFace[HuggingFaceRun],
):
    """Encoders of transformers for which there is no other recipe."""

    name = "huggingface"
    summary = "Fine-tune encoders of transformers (RoBERTa, DeBERTa, ELECTRA, ...)."

    config_class = HuggingFaceRun

    presets: ClassVar[Mapping[str, Callable[[], HuggingFaceRun]]] = {}
    """Empty: this recipe trains nothing from scratch."""

    def bind(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise InputError(
            "recipe huggingface cannot pretrain or evaluate an encoder of transformers\n"
            "  fine-tune it instead: pretrainkit finetune TASK --from FOLDER"
        )

    open_data = build_objective = bind

    def build_model(self, config: HuggingFaceRun) -> nn.Module:
        from pretrainkit.recipes.huggingface.convert import build

        return build(config.model)

    def text_reader(self, config: HuggingFaceRun, tokenizer: Path) -> TextReader:
        from pretrainkit.recipes.huggingface.reader import text_reader

        return text_reader(tokenizer, config.model)

    def build_text_encoder(self, config: HuggingFaceRun, model: Any) -> TextEncoder:
        from pretrainkit.recipes.huggingface.convert import draw

        if not next(model.parameters()).is_meta:
            draw(model, config.model)
        return model

    def text_encoder_flops(self, config: HuggingFaceRun, lengths_B: np.ndarray) -> float:
        """Count the forward pass on tensors without values; the backward pass costs twice as much."""
        square, linear, constant = _text_flops(config.model.model_dump_json())
        # The constant counts once: for DeBERTa, it is the work on relative positions, which all examples share.
        return 3 * (float(((square * lengths_B + linear) * lengths_B).sum()) + constant)

    def export_text_classifier(
        self, config: HuggingFaceRun, model: TextClassifier, tokenizer: Path | None, out: Path
    ) -> None:
        from pretrainkit.recipes.huggingface.convert import write_classifier

        write_classifier(config.model, model, tokenizer, out)

    def import_text_classifier(self, folder: Path, pooling: str | None = None) -> ImportedTextClassifier:
        from pretrainkit.recipes.huggingface.convert import read_classifier

        return read_classifier(folder)

    reads_other_huggingface = True

    def import_huggingface(self, folder: Path) -> tuple[HuggingFaceRun, Mapping[str, Any]]:
        """Return the config and weights of the folder's encoder, with the layers before its classifier."""
        from pretrainkit.recipes.huggingface.convert import read_folder

        config, encoder, _ = read_folder(folder)
        return HuggingFaceRun(model=config), encoder


@cache
def _text_flops(config: str) -> tuple[float, float, float]:
    """Return the result of `text_flops` for the JSON of a model's config."""
    import torch

    from pretrainkit.recipes.huggingface.convert import build
    from pretrainkit.training.fake_step import faked
    from pretrainkit.training.forward_flops import text_flops

    with torch.device("meta"):
        encoder = build(HuggingFaceModelConfig.model_validate_json(config)).model.base_model
    return text_flops(faked(encoder).requires_grad_(False).eval(), "input_ids", "attention_mask")


RECIPE = HuggingFace()

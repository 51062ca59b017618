"""Interface of the recipe to the rest of pretrainkit. Importing it does not import torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
from pretrainkit.recipes.huggingface.config import HuggingFaceRun
from pretrainkit.recipes.recipe import Recipe

if TYPE_CHECKING:
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

        return text_reader(tokenizer, config.model.max_positions)

    def build_text_encoder(self, config: HuggingFaceRun, model: Any) -> TextEncoder:
        from pretrainkit.recipes.huggingface.convert import draw

        if not next(model.parameters()).is_meta:
            draw(model, config.model)
        return model

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


RECIPE = HuggingFace()

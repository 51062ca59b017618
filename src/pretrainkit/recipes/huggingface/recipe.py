"""The recipe as the rest of pretrainkit sees it. Torch-free to import."""

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
    """Encoders of transformers that no recipe of ours has."""

    name = "huggingface"
    summary = "Encoders of transformers (RoBERTa, DeBERTa, ELECTRA, ...), to be fine-tuned."

    config_class = HuggingFaceRun

    presets: ClassVar[Mapping[str, Callable[[], HuggingFaceRun]]] = {}
    """None: there is nothing to train from scratch."""

    def bind(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise InputError(
            "encoders of transformers are neither trained nor evaluated by themselves\n"
            "  train one further: pretrainkit finetune TASK --from FOLDER"
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
        """The encoder of the folder, with the layers in front of its classifier."""
        from pretrainkit.recipes.huggingface.convert import read_folder

        config, encoder, _ = read_folder(folder)
        return HuggingFaceRun(model=config), encoder


RECIPE = HuggingFace()

"""The recipe's interface to the rest of pretrainkit. Importing it does not import torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pretrainkit.recipes.bert.config import AnyModelConfig, BertRun
from pretrainkit.recipes.bert.presets import PRESETS, base, modern_base
from pretrainkit.recipes.capabilities import (
    ChecksFiles,
    EncodesText,
    Generates,
    PlansWithoutData,
    ShowsExamples,
    StartsProjects,
    StoredRecord,
)
from pretrainkit.recipes.exchange import (
    ConvertsClassifiers,
    ImportedTextClassifier,
    ReadsHuggingFace,
    TellsIds,
    TextClassifier,
    WritesHuggingFace,
)
from pretrainkit.recipes.recipe import Recipe, Split

if TYPE_CHECKING:
    import numpy as np
    from torch import nn

    from pretrainkit.data.source import BatchSource, Records
    from pretrainkit.recipes.bert.objective import BertObjective
    from pretrainkit.recipes.proposal import ProjectRequest, Proposal
    from pretrainkit.recipes.text_encoder import TextEncoder
    from pretrainkit.recipes.text_reader import TextReader
    from pretrainkit.training.objective import HostBatch
    from pretrainkit.training.watch import Sample
    from pretrainkit.workers.processes import Progress


class Bert(
    Recipe[BertRun],
    PlansWithoutData[BertRun],
    StartsProjects[BertRun],
    Generates[BertRun],
    EncodesText[BertRun],
    ConvertsClassifiers[BertRun],
    TellsIds[BertRun],
    ReadsHuggingFace[BertRun],
    WritesHuggingFace[BertRun],
    ChecksFiles[BertRun],
    ShowsExamples[BertRun],
):
    """Masked words and sentence order on a bidirectional encoder."""

    name = "bert"
    summary = "BERT and ModernBERT from raw text: masked words and sentence order."

    config_class = BertRun

    presets: ClassVar[Mapping[str, Callable[[], BertRun]]] = PRESETS
    samples_on_cpu = True

    def check_files(self, config: BertRun, progress: Progress) -> list[str]:
        """Compare the checksums of the token shards."""
        from pretrainkit.tokenizers.shards import broken_shards

        return broken_shards(source.path for source in (*config.data.train, *config.data.valid))

    def check_new_run(self, config: BertRun, source: Any) -> None:
        source.report_single_sentences()
        source.report_long_words()

    def bind(self, config: BertRun) -> BertRun:
        from pretrainkit.recipes.bert.source import bind

        return bind(config)

    def without_data(self, config: BertRun) -> tuple[BertRun, str]:
        from pretrainkit.recipes.bert.source import without_data

        return without_data(config)

    def assumed_batch(self, config: BertRun, num_examples: int) -> HostBatch:
        from pretrainkit.recipes.bert.source import assumed_batch

        return assumed_batch(config, num_examples)

    reads = "text: files, JSON lines, parquet, dumps of Wikipedia"

    def propose(self, request: ProjectRequest) -> Proposal:
        from pretrainkit.recipes.bert.project import propose

        return propose(request)

    def open_data(self, config: BertRun, split: Split) -> BatchSource:
        from pretrainkit.recipes.bert.source import open_source

        return open_source(config, split)

    def show_examples(self, config: BertRun, source: Any, records: Records) -> list[Sample]:
        from pretrainkit.recipes.bert.sample import show_examples

        return show_examples(config, source, records)

    def stored_records(self, config: BertRun, source: Any, records: Records) -> list[StoredRecord]:
        from pretrainkit.recipes.bert.sample import stored_records

        return stored_records(source, records)

    def build_model(self, config: BertRun) -> nn.Module:
        from pretrainkit.recipes.bert.model import build

        return build(config.model, has_sentence_order=config.objective.sentence_order)

    def build_objective(self, config: BertRun) -> BertObjective:
        from pretrainkit.recipes.bert.objective import BertObjective

        return BertObjective(config)

    def sample(self, config: BertRun, model: nn.Module, source: BatchSource, num: int) -> list[dict[str, Any]]:
        from pretrainkit.recipes.bert.sample import sample

        return sample(config, model, source, num)

    def baselines(self, config: BertRun) -> dict[str, float]:
        """Return the cross-entropy of guessing by word frequency, and of guessing uniformly, in nats per token."""
        from math import log

        from pretrainkit.recipes.bert.source import unigram_loss

        return {"unigram_loss": unigram_loss(config), "uniform_loss": log(config.model.vocab_size or 0)}

    def generate(
        self, config: BertRun, model: Any, tokenizer: Path, prompts: list[str], **options: Any
    ) -> list[dict[str, Any]]:
        """Fill in each <mask>. Options: top, the number of answers per mask."""
        from pretrainkit.recipes.bert.generate import fill_masks

        return fill_masks(config, model, tokenizer, prompts, **options)

    def text_reader(self, config: BertRun, tokenizer: Path) -> TextReader:
        from pretrainkit.recipes.token_reader import ControlTokens, TokenReader
        from pretrainkit.tokenizers.load import load_tokenizer

        loaded = load_tokenizer(tokenizer)
        cls, sep = (loaded.special.cls,), (loaded.special.sep,)
        return TokenReader(
            loaded.encode_flat,
            ControlTokens(cls, sep, sep),
            loaded.fingerprint,
            config.model.max_positions,
            word_prefix=loaded.word_prefix,
            unknown=loaded.special.unk,
            encode_with_offsets=loaded.encode_with_offsets,
            num_ids=config.model.vocab_size,
        )

    def build_text_encoder(self, config: BertRun, model: Any) -> TextEncoder:
        from pretrainkit.recipes.bert.model import build_text_encoder

        return build_text_encoder(model)

    def text_encoder_flops(self, config: BertRun, lengths_B: np.ndarray) -> float:
        from pretrainkit.recipes.bert.objective import encoder_flops

        return encoder_flops(config.model, lengths_B)

    def export_text_classifier(self, config: BertRun, model: TextClassifier, tokenizer: Path | None, out: Path) -> None:
        from pretrainkit.recipes.bert.convert import write_classifier

        write_classifier(model, config.model, out, tokenizer=tokenizer)

    def import_text_classifier(self, folder: Path, pooling: str | None = None) -> ImportedTextClassifier:
        from pretrainkit.recipes.bert.convert import read_classifier

        model, encoder, head, classes, reads, dropout = read_classifier(folder)
        return ImportedTextClassifier(
            self._run_of(model), encoder, head, classes, model.max_positions, reads, dropout=dropout
        )

    huggingface_types = ("bert", "modernbert")
    reads_unnamed_huggingface = True  # Sabertooth's folders

    def export_huggingface(self, config: BertRun, model: nn.Module, tokenizer: Path | None, out: Path) -> None:
        from pretrainkit.recipes.bert.convert import special_ids, write_huggingface

        special = special_ids(tokenizer)
        write_huggingface(model.state_dict(), config.model, out, tokenizer=tokenizer, special=special)

    def import_huggingface(self, folder: Path) -> tuple[BertRun, Mapping[str, Any]]:
        """Read the folder's model and weights. The config is that of bert/base or bert/modern-base with this model; its
        data paths are missing."""
        from pretrainkit.recipes.bert.convert import read_huggingface

        model, state = read_huggingface(folder)
        config = self._run_of(model)
        has_sentence_order = "sentence_order.classifier.weight" in state
        return config.changed(objective={"sentence_order": has_sentence_order}), state

    def _run_of(self, model: AnyModelConfig) -> BertRun:
        config = base() if model.arch == "bert" else modern_base()
        length = min(config.data.max_seq_length, model.max_positions)
        return config.changed(model=model, data={"max_seq_length": length})


RECIPE = Bert()

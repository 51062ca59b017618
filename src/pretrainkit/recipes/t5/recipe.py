"""The T5 recipe: the interface between its modules and the rest of pretrainkit. Importing it does not import torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pretrainkit.recipes.capabilities import (
    ChecksData,
    ChecksFiles,
    EncodesText,
    Evaluates,
    Evaluation,
    Evaluator,
    Generates,
    Infers,
    KeepsTokenizer,
    PlansWithoutData,
    Scores,
    ShowsExamples,
    StartsProjects,
    StoredRecord,
)
from pretrainkit.recipes.exchange import (
    ComparesWithHuggingFace,
    ConvertsClassifiers,
    ImportedConfig,
    ImportedModel,
    ImportedTextClassifier,
    ReadsConfigs,
    ReadsFiles,
    ReadsHuggingFace,
    TellsIds,
    TextClassifier,
    WritesFiles,
    WritesHuggingFace,
)
from pretrainkit.recipes.recipe import Recipe, Split, tokenizer_beside
from pretrainkit.recipes.t5.config import T5ModelConfig, T5Run
from pretrainkit.recipes.t5.presets import PRESETS

if TYPE_CHECKING:
    from torch import nn

    from pretrainkit.data.source import BatchSource, Records
    from pretrainkit.dist.env import World
    from pretrainkit.eval.inference import Inference, InferenceRequest
    from pretrainkit.recipes.proposal import ProjectRequest, Proposal
    from pretrainkit.recipes.t5.objective import T5Objective
    from pretrainkit.recipes.text_encoder import TextEncoder
    from pretrainkit.recipes.text_reader import TextReader
    from pretrainkit.training.objective import HostBatch
    from pretrainkit.training.precision import Precision
    from pretrainkit.training.watch import Sample
    from pretrainkit.workers.processes import Progress


class T5(
    Recipe[T5Run],
    PlansWithoutData[T5Run],
    StartsProjects[T5Run],
    ChecksData[T5Run],
    KeepsTokenizer[T5Run],
    Evaluates[T5Run],
    Generates[T5Run],
    Scores[T5Run],
    Infers[T5Run],
    EncodesText[T5Run],
    ConvertsClassifiers[T5Run],
    TellsIds[T5Run],
    ReadsHuggingFace[T5Run],
    WritesHuggingFace[T5Run],
    ComparesWithHuggingFace[T5Run],
    ReadsFiles[T5Run],
    WritesFiles[T5Run],
    ReadsConfigs[T5Run],
    ChecksFiles[T5Run],
    ShowsExamples[T5Run],
):
    """Recipe of text-to-text models."""

    name = "t5"
    summary = "T5, mT5, ByT5 and umT5: text-to-text models from span corruption and from tasks."

    config_class = T5Run

    presets: ClassVar[Mapping[str, Callable[[], T5Run]]] = PRESETS
    samples_on_cpu = True

    def check_files(self, config: T5Run, progress: Progress) -> list[str]:
        """Compare the checksums of the token shards, or read every example of tasks."""
        from pretrainkit.recipes.t5.data_check import check_files

        return check_files(config, progress)

    def bind(self, config: T5Run) -> T5Run:
        from pretrainkit.recipes.t5.source import bind

        return bind(config)

    def without_data(self, config: T5Run) -> tuple[T5Run, str]:
        from pretrainkit.recipes.t5.source import without_data

        return without_data(config)

    def assumed_batch(self, config: T5Run, num_examples: int) -> HostBatch:
        from pretrainkit.recipes.t5.source import assumed_batch

        return assumed_batch(config, num_examples)

    reads = "text: files, JSON lines, parquet, dumps of Wikipedia"

    def propose(self, request: ProjectRequest) -> Proposal:
        from pretrainkit.recipes.t5.project import propose

        return propose(request)

    def open_data(self, config: T5Run, split: Split) -> BatchSource:
        from pretrainkit.recipes.t5.source import open_source

        return open_source(config, split)

    def check_data(
        self, config: T5Run, source: Any, summary: Mapping[str, Any], records: Callable[[int], Records]
    ) -> tuple[dict[str, Any], list[str]]:
        from pretrainkit.recipes.t5.data_check import check_data

        return check_data(config, source, summary["mixture"], records)

    def build_evaluator(self, config: T5Run, world: World, precision: Precision) -> Evaluator | None:
        from pretrainkit.recipes.t5.evaluation import build_evaluator

        return build_evaluator(config, world, precision)

    def more_evaluations(
        self, config: T5Run, world: World, precision: Precision, folder: Path | None
    ) -> Sequence[Evaluation]:
        """Return evaluations of tasks by their metrics."""
        from pretrainkit.recipes.t5.evaluation import task_evaluations

        return task_evaluations(config, world, precision, folder)

    def tokenizer_folder(self, config: T5Run) -> Path | None:
        """Return the folder beside the token shards, or `data.tokenizer`; None if the tasks may define vocabularies."""
        from pretrainkit.tasks.vocabulary_folder import BYTES, tokenizer_place

        if config.data.train:
            return tokenizer_beside(config)
        name = config.data.tokenizer
        return None if name is None or name == BYTES else tokenizer_place(Path(name))

    def with_tokenizer(self, config: T5Run, tokenizer: Path) -> T5Run:
        from pretrainkit.recipes.t5.task_source import leaves_vocabulary_open

        data = config.data
        if data.task is None or data.tokenizer == "bytes" or not leaves_vocabulary_open(config):
            return config
        return config.changed(data={"tokenizer": str(tokenizer)})

    def show_examples(self, config: T5Run, source: Any, records: Records) -> list[Sample]:
        from pretrainkit.recipes.t5.data_check import show_examples

        return show_examples(source, records)

    def stored_records(self, config: T5Run, source: Any, records: Records) -> list[StoredRecord]:
        from pretrainkit.recipes.t5.data_check import stored_records

        return stored_records(source, records)

    def build_model(self, config: T5Run) -> nn.Module:
        from pretrainkit.recipes.t5.model import build

        return build(config.model)

    def build_objective(self, config: T5Run) -> T5Objective:
        from pretrainkit.recipes.t5.objective import T5Objective
        from pretrainkit.recipes.t5.source import training_components

        return T5Objective(config, training_components(config))

    def sample(self, config: T5Run, model: nn.Module, source: BatchSource, num: int) -> list[dict[str, Any]]:
        from pretrainkit.recipes.t5.evaluation import sample

        return list(sample(config, model, source, num))

    generate_options = ("num", "beams", "alpha", "temperature", "top_k", "top_p", "seed", "max_length", "batch_size")

    def has_own_vocabulary(self, config: T5Run) -> bool:
        """Return True if no tokenizer files are needed: bytes need none, and tasks may bring a vocabulary."""
        return config.data.task is not None or config.data.tokenizer is not None

    def generate(
        self, config: T5Run, model: Any, tokenizer: Path | None, prompts: list[str], **options: Any
    ) -> list[dict[str, Any]]:
        """Answer prompts, fill in the spans at <extra_id_0> and so on, or continue texts. See `inference.py`."""
        from pretrainkit.recipes.t5.inference import generate

        return generate(config, model, tokenizer, prompts, **options)

    def score(self, config: T5Run, model: Any, tokenizer: Path | None, pairs: list[tuple[str, str]]) -> list[float]:
        from pretrainkit.recipes.t5.inference import score

        return score(config, model, tokenizer, pairs)

    def tasks_of_mixture(self, config: T5Run, tokenizer: Path | None, name: str, split: str) -> tuple[str, ...] | None:
        from pretrainkit.recipes.t5.inference import tasks_of_mixture

        return tasks_of_mixture(config, tokenizer, name, split)

    def open_inference(
        self, config: T5Run, model: Any, tokenizer: Path | None, request: InferenceRequest, precision: Precision
    ) -> Inference:
        from pretrainkit.recipes.t5.inference import open_inference

        return open_inference(config, model, tokenizer, request, precision.autocast)

    def text_reader(self, config: T5Run, tokenizer: Path) -> TextReader:
        """Return a reader that ends every text with the end mark."""
        from pretrainkit.recipes.t5.ragged import ragged
        from pretrainkit.recipes.t5.texts import vocabulary_of
        from pretrainkit.recipes.token_reader import ControlTokens, TokenReader

        vocabulary = vocabulary_of(config, tokenizer)

        def encode(texts: Sequence[str]) -> tuple[Any, Any]:
            ids = ragged(vocabulary.encode_batch(texts))
            return ids.values, ids.lengths

        end = (vocabulary.eos_id,)
        return TokenReader(
            encode,
            ControlTokens((), end, end),
            vocabulary.fingerprint,
            word_prefix=vocabulary.word_prefix,
            unknown=vocabulary.unk_id,
            encode_with_offsets=vocabulary.encode_with_offsets,
        )

    def own_tokenizer(self, config: T5Run, out: Path) -> bool:
        """Save the tokenizer of bytes or of the tasks; return True if there is one."""
        from pretrainkit.recipes.t5.texts import vocabulary_of
        from pretrainkit.tasks.vocabulary_folder import save_vocabulary

        if not self.has_own_vocabulary(config):
            return False
        vocabulary = vocabulary_of(config, None)
        return save_vocabulary(vocabulary, out) and vocabulary_of(config, out) == vocabulary

    def build_text_encoder(self, config: T5Run, model: Any) -> TextEncoder:
        from pretrainkit.recipes.t5.model import T5TextEncoder

        return T5TextEncoder(model)

    def baselines(self, config: T5Run) -> dict[str, float]:
        """Return the cross-entropy of guessing targets by frequency and of guessing uniformly, in nats per token; and
        the metrics of tasks for their most frequent target."""
        from math import log

        from pretrainkit.recipes.t5.data_check import unigram_loss
        from pretrainkit.recipes.t5.evaluation import majority_metrics

        losses = {"unigram_loss": unigram_loss(config), "uniform_loss": log(config.model.vocab_size or 0)}
        return losses | majority_metrics(config)

    huggingface_types = ("t5", "mt5", "umt5")

    def export_huggingface(self, config: T5Run, model: nn.Module, tokenizer: Path | None, out: Path) -> None:
        from pretrainkit.recipes.t5.convert import write_huggingface
        from pretrainkit.recipes.t5.texts import vocabulary_of

        vocabulary = None if tokenizer is None else vocabulary_of(config, tokenizer)
        write_huggingface(model.state_dict(), config.model, out, tokenizer=tokenizer, vocabulary=vocabulary)

    def export_text_classifier(self, config: T5Run, model: TextClassifier, tokenizer: Path | None, out: Path) -> None:
        from pretrainkit.recipes.t5.convert import write_encoder
        from pretrainkit.recipes.t5.texts import vocabulary_of

        vocabulary = None if tokenizer is None else vocabulary_of(config, tokenizer)
        write_encoder(model, config.model, out, tokenizer=tokenizer, vocabulary=vocabulary)

    def import_text_classifier(self, folder: Path, pooling: str | None = None) -> ImportedTextClassifier:
        from pretrainkit.recipes.t5.convert import read_encoder

        model, encoder, head, classes = read_encoder(folder)
        return ImportedTextClassifier(_run_of(model), encoder, head, classes, None)

    def import_huggingface(self, folder: Path) -> tuple[T5Run, Mapping[str, Any]]:
        """Return the config of t5/1.1-base with the folder's model, and the weights; the data is missing."""
        from pretrainkit.recipes.t5.convert import read_huggingface

        model, state = read_huggingface(folder)
        return _run_of(model), state

    def difference_from_huggingface(self, config: T5Run, model: nn.Module, folder: Path) -> float:
        from pretrainkit.recipes.t5.convert import difference_from_huggingface

        return difference_from_huggingface(config.model, model, folder)

    reads_configs_of = "T5X"
    config_suffixes = (".gin",)

    @property
    def keys_of_other_configs(self) -> frozenset[str]:
        return frozenset()  # gin files have another suffix

    def import_config(self, path: Path, settings: Iterable[str], nproc: int) -> ImportedConfig:
        from pretrainkit.recipes.t5.gin_files import import_config

        return import_config(path, settings, nproc)

    file_formats = ("t5x", "mesh_tf")

    def import_file(self, path: Path, format: str, config: T5Run | None) -> ImportedModel:
        """Return the file's model in `config` or the config of t5/1.1-base; without `config` the data is missing."""
        from pretrainkit.recipes.t5.original import read_foreign

        foreign = read_foreign(path, format, None if config is None else config.model)
        return ImportedModel(_run_of(foreign.model, config), foreign.state, names=foreign.names, step=foreign.step)

    export_formats = ("t5x",)

    def export_file(
        self, config: T5Run, model: nn.Module, tokenizer: Path | None, format: str, out: Path, *, name: str
    ) -> None:
        """Write T5X's parameter tree with names joined by "/", as .npz or .safetensors."""
        from pretrainkit.recipes.t5.original import write_original

        write_original(out, model.state_dict(), config.model)


def _run_of(model: T5ModelConfig, config: T5Run | None = None) -> T5Run:
    """Return `config`, or the preset t5/1.1-base, with another model."""
    return (config or PRESETS["1.1-base"]()).model_copy(update={"model": model})


RECIPE = T5()

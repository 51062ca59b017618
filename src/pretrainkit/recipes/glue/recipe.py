"""The recipe's interface to the rest of pretrainkit. Importing it does not import torch."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pretrainkit.errors import ConfigError, DataError, InputError
from pretrainkit.recipes.capabilities import (
    Benchmark,
    BuildsOnEncoder,
    EncodesText,
    Evaluates,
    Evaluator,
    Infers,
    KeepsTokenizer,
    PlansWithoutData,
    ShowsExamples,
    StoredRecord,
)
from pretrainkit.recipes.exchange import (
    ConvertsClassifiers,
    ReadsHuggingFace,
    TellsIds,
    TextClassifier,
    WritesHuggingFace,
)
from pretrainkit.recipes.glue.config import EncoderConfig, GlueRun, encoder_of
from pretrainkit.recipes.glue.leaderboard import NUM_ROWS, submit
from pretrainkit.recipes.glue.presets import PRESETS, own, parse, qa, tags
from pretrainkit.recipes.glue.source import (
    KINDS,
    TextSource,
    assumed_truths,
    names_in,
    open_texts,
    read_place,
    report_copies,
    report_full,
    report_misplaced,
    rows_of,
    task_of,
    valid_splits,
    without_data,
)
from pretrainkit.recipes.glue.tasks import HEAD_READS, NAMELESS_KINDS, TASKS
from pretrainkit.recipes.recipe import Recipe, Split
from pretrainkit.recipes.registry import Recipes, able, find_recipe, recipe_of_huggingface

if TYPE_CHECKING:
    from torch import Tensor, nn

    from pretrainkit.data.source import Records
    from pretrainkit.dist.env import World
    from pretrainkit.eval.inference import Inference, InferenceRequest
    from pretrainkit.exporting.class_names import Reads
    from pretrainkit.recipes.glue.model import GlueObjective
    from pretrainkit.recipes.text_reader import TextReader
    from pretrainkit.tasks.sources import TaskSource
    from pretrainkit.training.objective import HostBatch
    from pretrainkit.training.precision import Precision
    from pretrainkit.training.watch import Sample

_LENGTH = 512
"""Maximum number of tokens of an example for imported classifiers whose encoder has no limit."""


class Glue(
    Recipe[GlueRun],
    PlansWithoutData[GlueRun],
    KeepsTokenizer[GlueRun],
    Evaluates[GlueRun],
    Infers[GlueRun],
    BuildsOnEncoder[GlueRun],
    TellsIds[GlueRun],
    ReadsHuggingFace[GlueRun],
    WritesHuggingFace[GlueRun],
    ShowsExamples[GlueRun],
):
    """A text encoder of any recipe with a new head."""

    name = "glue"
    summary = "Fine-tuning of text encoders: the tasks of GLUE, your own tables, labels of words."

    config_class = GlueRun

    presets: ClassVar[Mapping[str, Callable[[], GlueRun]]] = PRESETS
    percentages = ("*accuracy", "*f1", "*precision", "*recall", "*em", "*uas", "*las", "*corrcoef", "*score")
    samples_on_cpu = True

    def has_encoder(self, config: GlueRun) -> bool:
        return config.model.encoder is not None and config.data.tokenizer is not None

    def with_encoder(self, config: GlueRun, recipe: str, encoder_config: Any, tokenizer: Path | None) -> GlueRun:
        """Use the encoder of a fine-tuned model too, so that tasks can follow one another. `model.encoder_settings`
        override its settings, and it is fitted to texts of `data.max_seq_length`."""
        from pretrainkit.config.loader import flatten, resolve

        if recipe == self.name:
            encoder = encoder_config.model.encoder
        else:
            described = encoder_config.changed(data={"train": (), "valid": ()}, init_from=None)
            encoder = EncoderConfig(recipe=recipe, config=described.model_dump(mode="json"))
        own_tokenizer = tokenizer if config.data.tokenizer is None else Path(config.data.tokenizer)
        settings = flatten(config.model.encoder_settings) if config.model.encoder_settings else {}
        words = [f"{path}={json.dumps(value)}" for path, value in settings.items()]
        reader = able(find_recipe(encoder.recipe), EncodesText)
        described, own_tokenizer = reader.as_text_encoder(
            resolve(encoder.config, words, Recipes()).config, own_tokenizer, config.data.max_seq_length
        )
        encoder = EncoderConfig(recipe=encoder.recipe, config=described.model_dump(mode="json"))
        return config.changed(model={"encoder": encoder}, data={"tokenizer": own_tokenizer and str(own_tokenizer)})

    def load_encoder(self, config: GlueRun, model: Any, recipe: str, encoder_config: Any, trained: Any) -> None:
        """Also load the head of a fine-tuned model with the same kind of task, classes and pooling. The model may be
        for texts of another length if its recipe can convert it."""
        if config.model.start == "random":
            return
        from pretrainkit.dist.weights import load_full_state_dict

        origin = f"init_from={config.init_from}"
        reader, own = encoder_of(config.model)
        if recipe != self.name:
            encoder = able(reader, EncodesText).build_text_encoder(own, trained)
            load_full_state_dict(model.encoder, encoder.state_dict(), origin)
            return
        trained_config = encoder_of(encoder_config.model)[1]
        state = able(reader, EncodesText).fitted_text_encoder(
            own, trained_config, trained.encoder.state_dict(), model.encoder.state_dict()
        )
        load_full_state_dict(model.encoder, state, origin)
        before, now = encoder_config.model, config.model
        is_alike = task_of(encoder_config.data).kind == task_of(config.data).kind
        if is_alike and (before.classes, before.pooling) == (now.classes, now.pooling):
            load_full_state_dict(model.head, trained.head.state_dict(), origin)

    def bind(self, config: GlueRun) -> GlueRun:
        encoder_of(config.model)
        task = task_of(config.data)
        if task.data is not None and not task.valid_splits:
            raise ConfigError(
                f"data.task={task.name} has no training data\n"
                "  train on mnli, then: pretrainkit predict RUN --task ax --out FILE.jsonl"
            )
        classes = config.model.classes
        if classes is None:
            classes = task.classes if config.data.labels is None else names_in(config.data.labels)
        kind = KINDS[task.kind]

        def rows() -> list[Any]:
            places = rows_of(config.data, task, "train")
            return [row for place in places for row in read_place(*place, task, needs_label=True)]

        if classes is None and task.kind not in NAMELESS_KINDS:
            classes = kind.classes_in(rows())
            if len(classes) < 2:
                names = ", ".join(classes) or "none"
                raise DataError(
                    f"the training data needs at least two classes, but its classes are: {names}\n"
                    "  check data.label, and that data.train has labels (test sets often have -1 for all rows)"
                )
        config = kind.bound(config, rows)
        length, max_positions = config.data.max_seq_length, self._reader(config).max_positions
        if max_positions is not None and length > max_positions:
            raise ConfigError(
                f"data.max_seq_length is {length}, but the encoder reads {max_positions} tokens\n"
                f"  set data.max_seq_length={max_positions} or less"
            )
        if length < 8:
            raise ConfigError(f"data.max_seq_length is {length}, but with control tokens it must be at least 8")
        return config.changed(model={"classes": classes or ()})

    def without_data(self, config: GlueRun) -> tuple[GlueRun, str]:
        assumptions = ""
        if config.model.encoder is None:
            # Only PIXEL's presets have settings of their encoder.
            name, preset = ("pixel", "base") if config.model.encoder_settings else ("bert", "base")
            recipe = find_recipe(name)
            described, _ = able(recipe, PlansWithoutData).without_data(recipe.presets[preset]())
            config = self.with_encoder(config, name, described, None)
            assumptions = f"the encoder of {name}/{preset} (set init_from for another one), "
        config, about_texts = without_data(config)
        return config, assumptions + about_texts

    def assumed_batch(self, config: GlueRun, num_examples: int) -> HostBatch:
        recipe, encoder_config = encoder_of(config.model)
        length = config.data.max_seq_length
        texts = able(recipe, EncodesText).assumed_texts(encoder_config, num_examples, length)
        return {**texts, **assumed_truths(config, texts["cu_seqlens"])}

    def open_data(self, config: GlueRun, split: Split) -> TextSource:
        splits = ["train"] if split == "train" else list(valid_splits(config.data, task_of(config.data)))
        source = open_texts(config, self._reader(config), splits)
        if split == "train":
            report_copies(source, config)
            report_full(source, config)
            report_misplaced(source)
        return source

    def build_order(self, config: GlueRun, source: Any) -> Any:
        """Use one component per file, in proportion to its size unless weights are set."""
        from pretrainkit.data.order import Order

        data, seed = config.data, config.seed
        weights = [file.weight for file in data.train] or None
        return Order(
            source.sizes, weights=weights, mode=data.order, seed=seed, batch_size=data.batch_size, may_repeat=True
        )

    def build_evaluator(self, config: GlueRun, world: World, precision: Precision) -> Evaluator:
        from pretrainkit.recipes.glue.answers import build_evaluator

        return build_evaluator(config, self._reader(config), world, precision)

    def tokenizer_folder(self, config: GlueRun) -> Path:
        if config.data.tokenizer is None:
            raise DataError("there is no tokenizer beside the encoder\n  set its folder: data.tokenizer=FOLDER")
        folder = Path(config.data.tokenizer)
        if not folder.is_dir():
            raise DataError(f"there is no tokenizer folder {folder}\n  set the encoder's: data.tokenizer=FOLDER")
        return folder

    def with_tokenizer(self, config: GlueRun, tokenizer: Path) -> GlueRun:
        return config.changed(data={"tokenizer": str(Path(tokenizer).resolve())})

    def input_ids(self, config: GlueRun, tokenizer: Path, texts: Sequence[str]) -> list[list[int]] | None:
        recipe, encoder_config = encoder_of(config.model)
        return recipe.input_ids(encoder_config, tokenizer, texts) if isinstance(recipe, TellsIds) else None

    def show_examples(self, config: GlueRun, source: Any, records: Records) -> list[Sample]:
        from pretrainkit.recipes.glue.examples import show_examples

        return show_examples(source, records, self.tokenizer_folder(config))

    def stored_records(self, config: GlueRun, source: Any, records: Records) -> list[StoredRecord]:
        from pretrainkit.recipes.glue.examples import stored_records

        return stored_records(source, records)

    def build_model(self, config: GlueRun) -> nn.Module:
        from pretrainkit.recipes.glue.by_kind import build_model

        return build_model(config)

    def build_objective(self, config: GlueRun) -> GlueObjective:
        from pretrainkit.recipes.glue.by_kind import build_objective

        return build_objective(config)

    def open_rows(self, config: GlueRun, path: str, split: str) -> TaskSource:
        return KINDS[task_of(config.data).kind].open(path, split)

    def open_inference(
        self, config: GlueRun, model: nn.Module, tokenizer: Path, request: InferenceRequest, precision: Precision
    ) -> Inference:
        from pretrainkit.recipes.glue.answers import Answers

        return Answers(config, model, self._reader(config), request, precision)

    def open_probe(self, *args: Any, **kwargs: Any) -> Evaluator:
        from pretrainkit.recipes.glue.probing import open_probe

        return open_probe(self, *args, **kwargs)

    @property
    def benchmark(self) -> Benchmark:
        tasks = tuple(name for name, task in TASKS.items() if task.valid_splits)
        return Benchmark(
            name=self.name,
            tasks=tasks,
            usual=tuple(name for name in tasks if name != "wnli"),
            own=tuple(name for name in PRESETS if name not in TASKS),
            intermediate="mnli",
            after_it=("rte", "mrpc", "stsb"),  # they benefit from it, see Devlin et al. 2018 and Lan et al. 2019
            num_rows=NUM_ROWS,
            submit=submit,
        )

    def import_huggingface(self, folder: Path, pooling: str | None = None) -> tuple[GlueRun, dict[str, Tensor]]:
        """Read a classifier with an encoder of any recipe, such as `BertForSequenceClassification`. Its config is like
        that of glue/own, tags, qa or parse, without columns. Raises CheckpointError or DataError if the folder is
        broken or no recipe reads it."""
        from pretrainkit.exporting.transformers_folder import read_config

        model_type, _ = read_config(folder, lambda values: values.get("model_type"))
        name = recipe_of_huggingface(model_type, str(folder))
        recipe = able(find_recipe(name), ConvertsClassifiers)
        if pooling is not None and not recipe.chooses_pooling:
            raise InputError(f"classifiers of recipe {name!r} define how they pool\n  leave --pooling out")
        classifier = recipe.import_text_classifier(folder, pooling)
        presets = {"examples": own, "words": tags, "spans": qa, "trees": parse}
        config = presets[classifier.reads]()
        # Long contexts are read in windows, but texts would be cut: read as much of them as transformers does.
        longest = classifier.max_positions or _LENGTH
        length = min(config.data.max_seq_length, longest) if classifier.reads == "spans" else longest
        kind = "numbers" if classifier.reads == "examples" and not classifier.classes else config.data.kind
        config = config.changed(data={"kind": kind, "max_seq_length": classifier.length or length})
        config = self.with_encoder(config, name, classifier.config, folder).changed(
            model={"classes": classifier.classes, "dropout": classifier.dropout}
        )
        state = {f"encoder.{name}": tensor for name, tensor in classifier.encoder.items()}
        return config, state | {f"head.{name}": tensor for name, tensor in classifier.head.items()}

    def import_classifier(self, folder: Path, pooling: str) -> tuple[GlueRun, dict[str, Tensor]]:
        return self.import_huggingface(folder, pooling)

    def export_huggingface(self, config: GlueRun, model: Any, tokenizer: Path | None, out: Path) -> None:
        """Write the classifier in the format of the encoder's recipe, such as `BertForSequenceClassification`,
        `BertForTokenClassification` or `BertForQuestionAnswering`."""
        recipe, encoder_config = encoder_of(config.model)
        kind = task_of(config.data).kind
        reads: Reads | None = HEAD_READS.get(kind)
        if kind == "tree" and able(recipe, ConvertsClassifiers).converts_parsers:
            reads = "trees"
        if reads is None:
            raise InputError(
                f"transformers has no class for a task of kind {task_of(config.data).kind}\n  use --format safetensors"
            )
        if config.model.pooling is not None:
            raise InputError(
                f"model.pooling={config.model.pooling}, but transformers only has the encoder's own pooling\n"
                "  use --format safetensors, or fine-tune with model.pooling=null"
            )
        trained = TextClassifier(model.encoder, model.head, config.model.classes or (), model.dropout_rate, reads)
        able(recipe, ConvertsClassifiers).export_text_classifier(encoder_config, trained, tokenizer, out)

    def carried_weights(self, carried: GlueRun, weights: Mapping[str, Any]) -> Mapping[str, Any]:
        """Restore the weights; tensors of an encoder have the same names here as in models of its recipe."""
        recipe, encoder_config = encoder_of(carried.model)
        return able(recipe, ReadsHuggingFace).carried_weights(encoder_config, weights)

    def sample(self, config: GlueRun, model: nn.Module, source: Any, num: int) -> list[dict[str, Any]]:
        from pretrainkit.recipes.glue.answers import sample

        return sample(config, model, source, num)

    def _reader(self, config: GlueRun) -> TextReader:
        recipe, encoder_config = encoder_of(config.model)
        return able(recipe, EncodesText).text_reader(encoder_config, self.tokenizer_folder(config))


RECIPE = Glue()

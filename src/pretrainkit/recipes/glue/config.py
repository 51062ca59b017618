"""Settings of fine-tuning. Imports no torch. Presets, one per task, are in `presets.py`."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, PositiveInt

from pretrainkit.config.base import DEFAULT, Config, Conflict, ReadBy
from pretrainkit.config.paths import IsPath
from pretrainkit.errors import ConfigError
from pretrainkit.recipes.glue.tasks import NAMELESS_KINDS, Kind
from pretrainkit.recipes.recipe import Recipe
from pretrainkit.recipes.registry import find_recipe
from pretrainkit.training.data_config import DataConfig, Names, TaskFolders
from pretrainkit.training.run import RunConfig


class EncoderConfig(Config):
    """The encoder below the head, as configured by its own recipe."""

    recipe: str
    """Recipe of the encoder."""
    config: dict[str, Any]
    """Config of the run that trained the encoder."""


class GlueModelConfig(Config):
    """An encoder and a head for the task."""

    neutral_fields: ClassVar[frozenset[str]] = frozenset({"start", "encoder_settings", "dropout", "initializer_range"})

    encoder: EncoderConfig | None = None
    """Recipe and config of the encoder, filled in from init_from when the run starts."""
    encoder_settings: dict[str, Any] = Field(default_factory=dict)
    """Changed settings of the encoder, by the field names of its recipe, such as {model: {hidden_dropout: 0.1}} or, for
    pixel, {text: {pooling: max}}. They are read when fine-tuning starts."""
    classes: tuple[str, ...] | None = None
    """Names of the classes in the order of their ids, filled in from the task or the training data; empty: the model
    predicts one number."""
    start: Literal["trained", "random"] = "trained"
    """Initial weights of the encoder: from the pretrained model, or random, to measure the benefit of pretraining."""
    pooling: Literal["cls", "mean", "max", "texts"] | None = None
    """Vector of an example, for tasks with one class or number per example. null: the encoder's own vector, such as
    BERT's pooler output. cls: the first token's hidden state. mean, max: over all its tokens. texts: for pairs, the
    means u and v of the two texts, |u - v| and u v; for single texts, the mean."""
    dropout: Annotated[float, Field(ge=0, lt=1)] | None = None
    """Dropout rate of the input of the head; null: the encoder's rate for hidden states. This is 0 for encoders of
    recipe huggingface, because they already apply their own dropout before the head."""
    initializer_range: Annotated[float, Field(gt=0)] = 0.02
    """Standard deviation of the head's initial weights, from a normal distribution truncated at two deviations."""


def encoder_of(config: GlueModelConfig) -> tuple[Recipe, Any]:
    """Return the recipe of the encoder and its config."""
    if config.encoder is None:
        raise ConfigError("fine-tuning needs an encoder\n  choose a run, checkpoint or export: init_from=RUN")
    recipe = find_recipe(config.encoder.recipe)
    return recipe, recipe.config_class.model_validate(config.encoder.config)


class GlueObjectiveConfig(Config):
    """Loss of the task: cross-entropy for classes, squared error for numbers."""


class SpanConfig(Config):
    """Windows over long contexts, and the search for answers in them."""

    stride: Annotated[int, Field(ge=0)] = 128
    """Overlap of consecutive windows of a context, in slots (tokens or patches)."""
    max_question_length: PositiveInt = 64
    """Maximum number of slots of a question; longer questions are cut at their end."""
    max_answer_length: PositiveInt = 30
    """Maximum number of slots of an answer."""
    num_best: PositiveInt = 20
    """Number of first slots and of last slots, those with the best scores, that are combined to answers; also the
    maximum number of answers that are kept."""
    null_threshold: float | None = None
    """Predict "no answer" if its score exceeds that of the best answer by more than this. null: 0 if the training data
    has unanswerable questions, otherwise every question is answered."""


class GlueDataConfig(DataConfig):
    """Texts with labels: a task of GLUE, or files of your own in `train` and `valid` (.jsonl, .csv, .tsv, .parquet)."""

    batch_size: PositiveInt = 32
    """Number of examples of one step over all ranks and microbatches."""
    task: str | None = None
    """A task of GLUE: cola, mrpc, qqp, sst2, stsb, mnli, qnli, rte, wnli; null: train on the files of data.train."""
    task_folders: TaskFolders = Field(default_factory=dict)
    """Folders with the data of tasks: {glue: FOLDER} for a benchmark, {glue/cola: FOLDER} for one task, or {all:
    FOLDER} for a folder with a subfolder per benchmark. Data of other tasks is downloaded from the hub."""
    texts: Annotated[Names, ReadBy("kind", ("classes", "numbers"))] = ()
    """For your own files: the column of the text, or the two columns of a pair."""
    label: Annotated[str | None, ReadBy("kind", ("classes", "numbers", "tags"))] = None
    """For your own files: the column of the label; null: label, or for tags the first existing column of tags, upos,
    ner_tags, pos_tags. In files with one word per line: column2, column3 and so on; null: the last column."""
    kind: Kind = "classes"
    """For your own files: classes (each label of the training data is a class), numbers, tags (a class for each word),
    spans (answers to questions as spans of a text, as in SQuAD) or tree (a head and a relation for each word)."""
    labels: Annotated[str | None, IsPath()] = None
    """A file with one class name per line, in the order of the class ids; null: the classes of the training data."""
    spans: Annotated[SpanConfig, ReadBy("kind", ("spans",))] = SpanConfig()
    """Settings for kind=spans."""
    heads: Annotated[
        Literal["greedy", "tree"],
        BeforeValidator(lambda name: "greedy" if name == "likeliest" else name),  # its name in runs of version 0.1
        ReadBy("kind", ("tree",)),
    ] = "greedy"
    """Predicted heads for kind=tree. greedy: the most probable head of each word, as in published results; the heads
    may not form a tree. tree: the heads of the most probable tree with one word at its root."""
    max_seq_length: PositiveInt = 128
    """Maximum number of tokens of an example. Texts are cut at their end; in a pair, the longer text is cut first."""
    tokenizer: Annotated[str | None, IsPath()] = None
    """Folder of the encoder's tokenizer; null: the tokenizer beside init_from."""


class GlueRun(RunConfig):
    """Fine-tuning of one encoder on one task."""

    recipe: Literal["glue"] = "glue"
    """Name of the recipe this config belongs to."""
    model: GlueModelConfig = GlueModelConfig()
    """The encoder and its head."""
    objective: GlueObjectiveConfig = GlueObjectiveConfig()
    """The loss, which depends on the task."""
    data: GlueDataConfig
    """The training and held-out data."""

    @property
    def trained_length(self) -> int:
        return self.data.max_seq_length

    @property
    def has_held_out_examples(self) -> bool:
        """True if there is held-out data, which named tasks always have."""
        return self.has_held_out_data

    @property
    def has_training_data(self) -> bool:
        return self.data.task is not None or bool(self.data.train)

    @property
    def has_held_out_data(self) -> bool:
        return self.data.task is not None or bool(self.data.valid)

    def problems(self, world_size: int = 1) -> list[str]:
        problems = super().problems(world_size)
        data = self.data
        if data.task is not None:
            own = [name for name in ("train", "texts", "label") if getattr(data, name)]
            own += ["kind"] if data.kind != "classes" else []
            problems += [
                Conflict(
                    f"data.{name} is for your own files, but data.task={data.task} is a task of GLUE\n"
                    "  leave one out: data.task=null to read your own files",
                    [("data.task", DEFAULT), (f"data.{name}", DEFAULT)],
                )
                for name in own
            ]
        elif data.kind in ("classes", "numbers") and len(data.texts) not in (1, 2):
            problems.append(
                f"data.texts lists {len(data.texts)} columns, but an example has one or two texts\n"
                "  choose a task, data.task=cola, or the columns of your files: data.texts=[premise,hypothesis]"
            )
        if data.labels is not None and (data.task is not None or data.kind in NAMELESS_KINDS):
            problems.append("data.labels has an effect only with classes of your own files\n  leave it out")
        if data.order == "lanes":
            problems.append("data.order=lanes is for documents\n  use data.order=shuffle")
        return problems

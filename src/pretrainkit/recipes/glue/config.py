"""Settings of fine-tuning. Torch-free. Presets, one per task, are in `presets.py`."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PositiveInt

from pretrainkit.config.base import DEFAULT, Config, Conflict, ReadBy
from pretrainkit.config.paths import IsPath
from pretrainkit.errors import ConfigError
from pretrainkit.recipes.glue.tasks import NAMELESS_KINDS, Kind
from pretrainkit.recipes.recipe import Recipe
from pretrainkit.recipes.registry import find_recipe
from pretrainkit.training.data_config import DataConfig, Names, TaskFolders
from pretrainkit.training.run import RunConfig


class EncoderConfig(Config):
    """What the head stands on, as its own recipe describes it."""

    recipe: str
    """Of the encoder."""
    config: dict[str, Any]
    """That recipe's config of the run that the encoder comes from."""


class GlueModelConfig(Config):
    """An encoder and a linear head on its vector of each example."""

    neutral_fields: ClassVar[frozenset[str]] = frozenset({"start", "encoder_settings", "dropout", "initializer_range"})

    encoder: EncoderConfig | None = None
    """Filled in from init_from when the run starts."""
    encoder_settings: dict[str, Any] = Field(default_factory=dict)
    """Settings of the encoder that are other than in the run it comes from, by the names of its recipe, such as {model:
    {hidden_dropout: 0.1}} or, of pixel, {text: {pooling: max}}. Read when fine-tuning starts."""
    classes: tuple[str, ...] | None = None
    """Names of the classes by number, filled in from the task or found in the training data; empty: the model gives one
    number."""
    start: Literal["trained", "random"] = "trained"
    """Where the encoder's weights come from. random: drawn anew, to see what pretraining is worth."""
    pooling: Literal["cls", "mean", "max", "texts"] | None = None
    """Tasks of a class or number per example: what stands for an example. null: the encoder's own vector, such as that
    of BERT's pooler. cls: the first token's hidden state. mean, max: over all its tokens. texts: of pairs the means u
    and v over either text, |u - v| and u v, so that the head can compare them; of single texts the mean."""
    dropout: Annotated[float, Field(ge=0, lt=1)] | None = None
    """On the vector in front of the head; null: the encoder's rate for hidden states. Encoders of recipe huggingface
    have a dropout of their own there, which stays: their rate counts as 0."""
    initializer_range: Annotated[float, Field(gt=0)] = 0.02
    """The head starts from a normal distribution of this scale, cut at two scales."""


def encoder_of(config: GlueModelConfig) -> tuple[Recipe, Any]:
    """The recipe of the encoder, and its config."""
    if config.encoder is None:
        raise ConfigError("there is no encoder to train further\n  name a run, checkpoint or export: init_from=RUN")
    recipe = find_recipe(config.encoder.recipe)
    return recipe, recipe.config_class.model_validate(config.encoder.config)


class GlueObjectiveConfig(Config):
    """Cross-entropy of classes, squared error of numbers."""


class SpanConfig(Config):
    """How contexts are read in windows, and how answers are found in them."""

    stride: Annotated[int, Field(ge=0)] = 128
    """Slots (tokens or patches) of a context that each window repeats of the one before."""
    max_question_length: PositiveInt = 64
    """Most slots of a question, which is cut at its end."""
    max_answer_length: PositiveInt = 30
    """Most slots of an answer."""
    num_best: PositiveInt = 20
    """Likeliest first slots, and last ones, that are tried together; as many candidates are kept."""
    null_threshold: float | None = None
    """A question is left without answer where the score of that exceeds the best answer's by more. null: 0 where the
    training data have such questions, else every question is answered."""


class GlueDataConfig(DataConfig):
    """Texts with labels: a task of GLUE, or files of your own in `train` and `valid` (.jsonl, .tsv, .parquet)."""

    batch_size: PositiveInt = 32
    """Examples of one step over all ranks and microbatches."""
    task: str | None = None
    """A task of GLUE: cola, mrpc, qqp, sst2, stsb, mnli, qnli, rte, wnli; null: data.train says what is trained on."""
    task_folders: TaskFolders = Field(default_factory=dict)
    """Where the data of named tasks lie: {glue: FOLDER}, also one set alone, {glue/cola: FOLDER}, or a folder with one
    for each benchmark, {all: FOLDER}. What is not named is taken from the hub."""
    texts: Annotated[Names, ReadBy("kind", ("classes", "numbers"))] = ()
    """Files of your own: the column of the text, or the two of a pair."""
    label: Annotated[str | None, ReadBy("kind", ("classes", "numbers", "tags"))] = None
    """Files of your own: the column of the label; null: label, or of tags the first of tags, upos, ner_tags, pos_tags
    that there is. Of columns with a word in each line: column2, column3 and so on; null: the last."""
    kind: Kind = "classes"
    """Files of your own: classes (any values; each that occurs in training is one), numbers, tags (a class for each
    word) or spans (answers to questions as stretches of a text, as SQuAD has them), or tree (a
    head and a relation for each word)."""
    labels: Annotated[str | None, IsPath()] = None
    """A file with the name of a class in each line, in the order of their numbers; null: those of the training data."""
    spans: Annotated[SpanConfig, ReadBy("kind", ("spans",))] = SpanConfig()
    """Only for kind=spans."""
    heads: Annotated[Literal["likeliest", "tree"], ReadBy("kind", ("tree",))] = "likeliest"
    """Only for kind=tree, when the model is asked: likeliest: of each word the likeliest head, as published numbers
    have it, so that answers need not be trees; tree: those of the likeliest tree with one word at its root."""
    max_seq_length: PositiveInt = 128
    """Most tokens of an example. A single text loses its end, a pair token by token the end of its longer text."""
    tokenizer: Annotated[str | None, IsPath()] = None
    """Folder of the encoder's tokenizer; null: the one beside init_from."""


class GlueRun(RunConfig):
    """Fine-tuning of one encoder on one task."""

    recipe: Literal["glue"] = "glue"
    """Name of the recipe this config belongs to."""
    model: GlueModelConfig = GlueModelConfig()
    """The encoder and its head."""
    objective: GlueObjectiveConfig = GlueObjectiveConfig()
    """What is predicted follows from the task."""
    data: GlueDataConfig
    """What the model is fed."""

    @property
    def trained_length(self) -> int:
        return self.data.max_seq_length

    @property
    def has_held_out_examples(self) -> bool:
        """Named tasks bring theirs."""
        return self.has_held_out_data

    @property
    def has_training_data(self) -> bool:
        return self.data.task is not None or bool(self.data.train)

    @property
    def has_held_out_data(self) -> bool:
        return self.data.task is not None or bool(self.data.valid)

    def problems(self, world_size: int = 1) -> list[str]:
        found = super().problems(world_size)
        data = self.data
        if data.task is not None:
            own = [name for name in ("train", "texts", "label") if getattr(data, name)]
            own += ["kind"] if data.kind != "classes" else []
            found += [
                Conflict(
                    f"data.{name} is for files of your own, but data.task={data.task} is a task of GLUE\n"
                    "  leave one out: data.task=null to read your own files",
                    [("data.task", DEFAULT), (f"data.{name}", DEFAULT)],
                )
                for name in own
            ]
        elif data.kind in ("classes", "numbers") and len(data.texts) not in (1, 2):
            found.append(
                f"data.texts names {len(data.texts)} columns; an example has one text, or two\n"
                "  name a task, data.task=cola, or the columns of your files: data.texts=[premise,hypothesis]"
            )
        if data.labels is not None and (data.task is not None or data.kind in NAMELESS_KINDS):
            found.append("data.labels is for classes of your own files\n  leave it out")
        if data.order == "lanes":
            found.append("data.order=lanes is for documents\n  use data.order=shuffle")
        return found

"""Gin files in the shape of T5X's: a model, a run that includes it, and a file that includes both."""

import re

import pytest
from typer.main import get_command

from pretrainkit import api
from pretrainkit.cli.main import app_of
from pretrainkit.errors import ConfigError
from pretrainkit.recipes.t5.decoding_config import DecodingConfig
from support.command_line import refused, succeed
from support.remedies import followed

pytest.importorskip("gin", reason="gin-config is not installed: pip install 'pretrainkit[t5x]'")

MODEL = """
from __gin__ import dynamic_registration
import seqio
from t5x import adafactor
from t5x import models
from t5x.examples.t5 import network

Z_LOSS = 0.0001
FACTOR = None
DROPOUT_RATE = %gin.REQUIRED
VOCABULARY = @seqio.SentencePieceVocabulary()
seqio.SentencePieceVocabulary.sentencepiece_model_file = "gs://vocabs/sentencepiece.model"
OPTIMIZER = @adafactor.Adafactor()
adafactor.Adafactor:
  decay_rate = 0.8
  logical_factor_rules = @adafactor.standard_logical_factor_rules()
MODEL = @models.EncoderDecoderModel()
models.EncoderDecoderModel:
  module = @network.Transformer()
  input_vocabulary = %VOCABULARY
  optimizer_def = %OPTIMIZER
  z_loss = %Z_LOSS
  loss_normalizing_factor = %FACTOR
network.Transformer.config = @network.T5Config()
network.T5Config:
  vocab_size = 32128
  dtype = 'bfloat16'
  emb_dim = 768
  num_heads = 12
  num_encoder_layers = 12
  num_decoder_layers = 10
  head_dim = 64
  mlp_dim = 2048
  mlp_activations = ('gelu', 'linear')
  dropout_rate = %DROPOUT_RATE
  logits_via_embedding = False
"""
RUN = """
from t5x import partitioning
from t5x import trainer
from t5x import utils
import __main__ as train_script
MIXTURE_OR_TASK_NAME = %gin.REQUIRED
TASK_FEATURE_LENGTHS = %gin.REQUIRED
TRAIN_STEPS = %gin.REQUIRED
MODEL_DIR = %gin.REQUIRED
BATCH_SIZE = 128
train_script.train:
  model = %MODEL
  model_dir = %MODEL_DIR
  train_dataset_cfg = @train/utils.DatasetConfig()
  train_eval_dataset_cfg = @train_eval/utils.DatasetConfig()
  infer_eval_dataset_cfg = None
  partitioner = @partitioning.PjitPartitioner()
  total_steps = %TRAIN_STEPS
  eval_steps = 20
  eval_period = 500
  random_seed = 3
partitioning.PjitPartitioner.num_partitions = 2
train/utils.DatasetConfig:
  mixture_or_task_name = %MIXTURE_OR_TASK_NAME
  task_feature_lengths = %TASK_FEATURE_LENGTHS
  split = 'train'
  batch_size = %BATCH_SIZE
  shuffle = True
  use_cached = False
  pack = True
train_eval/utils.DatasetConfig:
  mixture_or_task_name = %MIXTURE_OR_TASK_NAME
  task_feature_lengths = %TASK_FEATURE_LENGTHS
  split = 'validation'
  batch_size = 32
  shuffle = False
  pack = True
utils.CheckpointConfig:
  restore = @utils.RestoreCheckpointConfig()
  save = @utils.SaveCheckpointConfig()
utils.RestoreCheckpointConfig.path = []
utils.SaveCheckpointConfig:
  period = 1000
  keep = None
trainer.Trainer:
  num_microbatches = 4
  learning_rate_fn = @utils.create_learning_rate_scheduler()
utils.create_learning_rate_scheduler:
  factors = 'constant * rsqrt_decay'
  base_learning_rate = 0.5
  warmup_steps = 2000
"""
MINE = """
include "t5x/models/small.gin"
include 't5x/runs/pretrain.gin'
MIXTURE_OR_TASK_NAME = "wmt_t2t_ende_v003"
TASK_FEATURE_LENGTHS = {"inputs": 256, "targets": 128}
TRAIN_STEPS = 50_000
DROPOUT_RATE = 0.1
FACTOR = 233472
"""
SMALL = """
include "t5x/models/base.gin"
network.T5Config:
  emb_dim = 512
  num_heads = 6
"""


@pytest.fixture
def files(tmp_path):
    folder = tmp_path / "t5x"
    for name, text in {
        "models/base.gin": MODEL,
        "models/small.gin": SMALL,
        "runs/pretrain.gin": RUN,
        "mine.gin": MINE,
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_a_run_is_imported_with_all_its_settings(files):
    found = api.import_config(files / "mine.gin", None, ["MODEL_DIR=somewhere"], 2)
    config = found.config
    model = config.model
    assert (model.vocab_size, model.hidden_size, model.num_heads, model.head_size) == (32128, 512, 6, 64)
    assert (model.num_encoder_layers, model.num_decoder_layers, model.intermediate_size) == (12, 10, 2048)
    assert (model.activations, model.tied_logits, model.dropout) == (("gelu_tanh", "linear"), False, 0.1)
    assert (config.objective.z_loss, config.objective.normalize_by) == (1e-4, 233472)
    assert (config.data.task, config.data.input_length, config.data.target_length) == ("wmt_t2t_ende_v003", 256, 128)
    assert (config.data.batch_size, config.data.microbatch_size, config.data.packing) == (128, 16, True)
    assert (config.num_steps, config.seed, config.precision.compute) == (50_000, 3, "bfloat16")
    assert (config.optimizer.name, config.optimizer.peak_lr, config.optimizer.adafactor.decay_rate) == (
        *("adafactor", 0.5),
        0.8,
    )
    assert (config.schedule.factors, config.schedule.num_warmup_steps) == (("constant", "rsqrt_decay"), 2000)
    assert (config.evaluate.every_steps, config.evaluate.num_examples, config.evaluate.infer) == (500, 640, None)
    assert (config.checkpoint.every_steps, config.checkpoint.keep_every_steps) == (1000, 1000)
    assert "batch_size=128 counts packed rows" in found.notes[0]
    assert "gs://vocabs/sentencepiece.model" in found.notes[1]
    assert {"PjitPartitioner.num_partitions", "train.model_dir"} <= set(found.without_effect)


def test_settings_that_a_file_lacks_have_the_defaults_of_t5x(files):
    for name in ("models/base.gin", "runs/pretrain.gin"):
        text = (files / name).read_text()
        for line in ("  z_loss = %Z_LOSS", "  dropout_rate = %DROPOUT_RATE", "  logits_via_embedding = False"):
            text = text.replace(line, "")
        (files / name).write_text(text.partition("utils.create_learning_rate_scheduler:")[0])
    config = api.import_config(files / "mine.gin", None, ["MODEL_DIR=x"], 1).config
    assert (config.objective.z_loss, config.model.dropout, config.model.tied_logits) == (0.0, 0.1, False)
    assert config.schedule.factors == ("constant", "linear_warmup", "rsqrt_decay")
    assert (config.schedule.num_warmup_steps, config.optimizer.peak_lr) == (1000, 0.5)


def test_the_command_writes_a_config_that_is_checked(files, tmp_path):
    out = tmp_path / "mine.yaml"
    settings = ("MODEL_DIR=x", "train/utils.DatasetConfig.batch_size=64", "gin.DROPOUT_RATE=0.0")
    succeed("config", "import", files / "mine.gin", *settings, "--out", out)
    config = api.load_config(str(out))
    assert (config.data.batch_size, config.model.dropout) == (64, 0.0)
    assert config.model.hidden_size == 512


def test_a_run_from_a_checkpoint_counts_on_from_its_step(files):
    settings = ["MODEL_DIR=x", "RestoreCheckpointConfig.path=gs://models/checkpoint_30000"]
    found = api.import_config(files / "mine.gin", "t5", settings, 1)
    assert found.weights_command[:2] == ("import", "gs://models/checkpoint_30000")
    assert (found.config.first_step, found.config.num_extra_steps, found.config.num_steps) == (30_000, 20_000, None)


def test_a_run_from_a_checkpoint_of_mesh_tensorflow_counts_on_too(files):
    settings = [
        "MODEL_DIR=x",
        "TRAIN_STEPS=1_020_000",
        "RestoreCheckpointConfig.path=['gs://small/model.ckpt-1000000']",
    ]
    found = api.import_config(files / "mine.gin", "t5", settings, 1)
    assert found.weights_command[1:6] == ("gs://small/model.ckpt-1000000", "--recipe", "t5", "--format", "mesh_tf")
    assert (found.config.first_step, found.config.num_extra_steps) == (1_000_000, 20_000)


def test_relative_steps_replace_their_total(files):
    settings = ["MODEL_DIR=x", "train_script.train.relative_steps=200"]
    assert api.import_config(files / "mine.gin", "t5", settings, 1).config.num_steps == 200
    settings.append("RestoreCheckpointConfig.path=gs://models/checkpoint_30000")
    assert api.import_config(files / "mine.gin", "t5", settings, 1).config.num_extra_steps == 200


def test_a_run_needs_the_step_of_one_checkpoint(files):
    setting = "RestoreCheckpointConfig.path={}"
    told = refused("config", "import", files / "mine.gin", "MODEL_DIR=x", setting.format("gs://models/small"))
    assert "gs://models/small does not end in the step" in told
    told = refused("config", "import", files / "mine.gin", "MODEL_DIR=x", setting.format("['a', 'b']"))
    assert "RestoreCheckpointConfig.path = ['a', 'b']" in told
    assert "give one path" in told


def test_the_second_moments_of_a_checkpoint_are_not_counted(files):
    settings = ["MODEL_DIR=x", "adafactor.Adafactor.step_offset=30_000"]
    found = api.import_config(
        files / "mine.gin", "t5", [*settings, "RestoreCheckpointConfig.path=gs://models/checkpoint_30000"], 1
    )
    assert found.config.optimizer.adafactor.step_offset == 0
    assert "Adafactor.step_offset" in found.without_effect


def test_the_scalable_network_has_positions_in_each_layer(files):
    text = (files / "models/base.gin").read_text()
    (files / "models/base.gin").write_text(text.replace("t5x.examples.t5 import", "t5x.examples.scalable_t5 import"))
    settings = ["MODEL_DIR=x", "network.T5Config.scan_layers=True"]
    assert api.import_config(files / "mine.gin", None, settings, 1).config.model.bias_per_layer
    (files / "models/base.gin").write_text(text)
    assert not api.import_config(files / "mine.gin", None, ["MODEL_DIR=x"], 1).config.model.bias_per_layer


def test_extra_ids_are_sentinels(files):
    settings = ["MODEL_DIR=x", "seqio.SentencePieceVocabulary.extra_ids=300"]
    assert api.import_config(files / "mine.gin", None, settings, 1).config.data.denoising.num_sentinels == 300
    bytes_only = ["VOCABULARY=@seqio.ByteVocabulary()", "seqio.ByteVocabulary.extra_ids=9"]
    data = api.import_config(files / "mine.gin", None, [*settings, *bytes_only], 1).config.data
    assert (data.tokenizer, data.denoising.num_sentinels) == ("bytes", 9)


def test_two_vocabularies_are_refused(files):
    text = (files / "models/base.gin").read_text()
    other = "  output_vocabulary = @seqio.ByteVocabulary()\n"
    (files / "models/base.gin").write_text(text.replace("  optimizer_def", f"{other}  optimizer_def"))
    assert other.strip() in refused("config", "import", files / "mine.gin", "MODEL_DIR=x")


def test_all_settings_of_adafactor_that_exist_here_are_read(files):
    settings = {"weight_decay_rate": 0.1, "weight_decay_rate_lr_exponent": 2.0, "max_parameter_scale": 0.5}
    given = [f"adafactor.Adafactor.{name}={value}" for name, value in settings.items()]
    given.append("adafactor.Adafactor.global_norm_clip_threshold=1.5")
    optimizer = api.import_config(files / "mine.gin", None, ["MODEL_DIR=x", *given], 1).config.optimizer
    assert (optimizer.max_grad_norm, optimizer.decay_mask) == (1.5, "all")  # T5X decays every parameter
    assert optimizer.adafactor.weight_decay_rate == 0.1
    assert (optimizer.adafactor.weight_decay_lr_exponent, optimizer.adafactor.max_parameter_scale) == (2.0, 0.5)


def test_held_out_data_is_the_split_of_the_file(files):
    config = api.import_config(files / "mine.gin", None, ["MODEL_DIR=x"], 1).config
    assert (config.data.valid_split, config.data.held_out_share) == ("validation", None)
    settings = ["MODEL_DIR=x", "train_eval/utils.DatasetConfig.split=test"]
    assert api.import_config(files / "mine.gin", None, settings, 1).config.data.valid_split == "test"


def test_another_learning_rate_is_refused(files):
    told = refused("config", "import", files / "mine.gin", "MODEL_DIR=x", "trainer.Trainer.learning_rate_fn=@my.rates")
    assert "trainer.Trainer.learning_rate_fn = @my.rates" in told


SAMPLE = "models.EncoderDecoderModel.decode_fn=@decoding.temperature_sample"
BEAMS = "models.EncoderDecoderModel.predict_batch_with_aux.num_decodes=4"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ([], {"num_beams": 1}),
        ([BEAMS], {"num_beams": 4}),
        (
            ["models.EncoderDecoderModel.decode_fn=@decoding.beam_search", "decoding.beam_search.alpha=1.5", BEAMS],
            {"num_beams": 4, "alpha": 1.5},
        ),
        ([SAMPLE], {}),
        ([SAMPLE, "decoding.temperature_sample.temperature=0.0", "decoding.temperature_sample.topk=5"], {}),
        ([SAMPLE, "decoding.temperature_sample.topk=20"], {"temperature": 1.0, "top_k": 20}),
        (
            [SAMPLE, "decoding.temperature_sample.topk=0", "decoding.temperature_sample.topp=0.9"],
            {"temperature": 1.0, "top_k": 0, "top_p": 0.9},
        ),
    ],
)
def test_decoding_is_that_of_t5x_whose_default_is_a_search_with_one_beam(files, settings, expected):
    (files / "infer.gin").write_text(INFER)
    found = api.import_config(files / "infer.gin", None, ["infer.mode=predict", *settings], 1).command
    decoding = {**dict.fromkeys(["beams", "alpha", "temperature", "top-k", "top-p"])}
    given = {name: found[found.index(f"--{name}") + 1] for name in decoding if f"--{name}" in found}
    assert given == {name.removeprefix("num_").replace("_", "-"): str(value) for name, value in expected.items()}
    dataset = "train.infer_eval_dataset_cfg=@infer_eval/utils.DatasetConfig()"
    config = api.import_config(files / "mine.gin", None, ["MODEL_DIR=x", dataset, *settings], 1).config
    method = "beam" if "num_beams" in expected else "sample" if expected else "greedy"
    assert config.evaluate.infer.decoding == DecodingConfig(method=method, **expected)


def test_several_samples_of_t5x_are_refused(files):
    told = refused("config", "import", files / "mine.gin", "MODEL_DIR=x", SAMPLE, BEAMS)
    assert "models.EncoderDecoderModel.decode_fn = @decoding.temperature_sample" in told


def test_evaluation_becomes_a_command(files):
    (files / "eval.gin").write_text(
        """
        include "t5x/models/small.gin"
        DROPOUT_RATE = 0.0
        eval_script.evaluate:
          model = %MODEL
          dataset_cfg = @utils.DatasetConfig()
        utils.DatasetConfig:
          mixture_or_task_name = "glue_v002_proportional"
          task_feature_lengths = None
          split = 'test'
          batch_size = 32
          shuffle = False
        utils.RestoreCheckpointConfig.path = "models/checkpoint_5"
        """
    )
    found = api.import_config(files / "eval.gin", None, [], 1)
    expected = ("data.task=glue_v002_proportional", "data.valid_split=test", "data.held_out_share=null")
    expected += ("evaluate.infer.batch_size=32",)
    expected += ("evaluate.infer.decoding.method=beam", "evaluate.infer.decoding.num_beams=1")
    assert found.command == ("evaluate", "imported", *expected)
    assert found.weights_command[1] == "models/checkpoint_5"


INFER = """
        include "t5x/models/small.gin"
        DROPOUT_RATE = 0.0
        infer_script.infer:
          mode = 'score'
          model = %MODEL
          output_dir = 'out'
          dataset_cfg = @utils.DatasetConfig()
          partitioner = @partitioning.PjitPartitioner()
          restore_checkpoint_cfg = @utils.RestoreCheckpointConfig()
          checkpoint_period = 100
          shard_id = 1
          num_shards = 4
        partitioning.PjitPartitioner.num_partitions = 1
        utils.DatasetConfig:
          mixture_or_task_name = "glue_rte_v002"
          module = None
          task_feature_lengths = {"inputs": 64, "targets": 8}
          use_cached = False
          split = 'validation'
          batch_size = 16
          shuffle = False
          seed = 0
          pack = False
        utils.RestoreCheckpointConfig:
          path = "models/checkpoint_5"
          mode = 'specific'
          dtype = 'bfloat16'
        """


def test_inference_becomes_a_command(files):
    (files / "infer.gin").write_text(INFER)
    found = api.import_config(files / "infer.gin", None, [], 1)
    options = {found.command[i]: found.command[i + 1] for i in range(2, len(found.command), 2)}
    assert found.command[:2] == ("infer", "imported")
    assert options == {
        "--task": "glue_rte_v002",
        "--split": "validation",
        "--mode": "score",
        "--batch-size": "16",
        "--chunk-batches": "100",
        "--shard": "1/4",
        "--lengths": "inputs=64,targets=8",
        "--out": "answers",
    }
    known = {name for parameter in get_command(app_of("infer")).params for name in parameter.opts}
    assert options.keys() <= known
    assert found.weights_command[1] == "models/checkpoint_5"
    told = refused("config", "import", files / "infer.gin", "infer.mode='export'")
    assert "infer.mode='export' is unknown" in told
    more = ["infer.mode='predict_with_aux'", "write_inferences_to_file.output_ids=True"]
    found = api.import_config(files / "infer.gin", None, more, 1)
    command = found.command
    assert "not divided by the brevity penalty" in found.notes[0]
    assert "import the weights with --tokenizer" in found.notes[1]
    extra = "SentencePieceVocabulary.extra_ids"
    assert extra in api.import_config(files / "infer.gin", None, [f"seqio.{extra}=300"], 1).without_effect
    bytes_only = ["VOCABULARY=@seqio.ByteVocabulary()"]
    found = api.import_config(files / "infer.gin", None, [*bytes_only, "seqio.ByteVocabulary.extra_ids=9"], 1)
    assert found.weights_command[-2:] == ("--tokenizer", "bytes")
    assert "ByteVocabulary.extra_ids" in found.without_effect
    assert command[command.index("--mode") + 1] == "predict-with-scores"
    assert command[command.index("--max-length") + 1] == "8"
    assert "--ids" in command
    (files / "file.gin").write_text(INFER.replace('"glue_rte_v002"', "@infer_script.create_task()"))
    told = refused("config", "import", files / "file.gin")
    advice = followed(told, "recipes/t5/gin_files.py: … builds its task from a file")
    assert "pretrainkit infer RUN --input FILE" in advice


@pytest.mark.parametrize(
    "setting",
    [
        "models.EncoderDecoderModel.feature_converter_cls = @my.Converter",
        "models.EncoderDecoderModel.default_decoder_params = @models.DecoderParams()",
        "infer_script.infer.write_fn = @my.write",
    ],
)
def test_settings_that_change_answers_are_not_ignored(files, setting):
    (files / "infer.gin").write_text(INFER)
    assert setting in refused("config", "import", files / "infer.gin", setting.replace(" = ", "="))


CHAIN = """
OPTIMIZER = @optimizers.chain()
optimizers.chain.transformations = [{parts}]
"""
COSINE = """
optax.warmup_cosine_decay_schedule:
  peak_value = 2e-4
  init_value = 0.0
  warmup_steps = 300
  decay_steps = %TRAIN_STEPS
  end_value = 2e-5
"""
ADAM = "optax.adamw.learning_rate = @optax.warmup_cosine_decay_schedule()\n" + COSINE


def chained(files, parts, more):
    names = ", ".join(f"@optax.{part}()" for part in parts.split())
    (files / "chain.gin").write_text(MINE + CHAIN.format(parts=names) + more)
    return api.import_config(files / "chain.gin", None, ["MODEL_DIR=x"], 1)


def test_a_chain_of_optax_is_an_optimizer_with_clipping_and_schedule(files):
    found = chained(files, "clip adamw", "optax.clip.max_delta = 1.5\noptax.adamw.b2 = 0.95\n" + ADAM)
    optimizer, schedule = found.config.optimizer, found.config.schedule
    assert (optimizer.name, optimizer.clip, optimizer.max_grad_norm) == ("adamw", "value", 1.5)
    assert (optimizer.beta1, optimizer.beta2, optimizer.epsilon, optimizer.weight_decay) == (0.9, 0.95, 1e-8, 1e-4)
    assert (optimizer.peak_lr, optimizer.decay_mask) == (2e-4, "all")
    assert (schedule.name, schedule.num_warmup_steps, schedule.floor) == ("cosine", 300, pytest.approx(0.1))
    assert "Adafactor.decay_rate" in found.without_effect
    assert "create_learning_rate_scheduler.base_learning_rate" in found.without_effect


@pytest.mark.parametrize(
    ("parts", "more", "expected"),
    [
        ("adam", "optax.adam.learning_rate = 1e-4", ("adamw", 1e-4, 0.0, "constant")),
        ("lion", "optax.lion.learning_rate = @utils.create_learning_rate_scheduler()", ("lion", 0.5, 1e-3, "factors")),
        ("lamb", "optax.lamb:\n  learning_rate = 1e-3\n  weight_decay = 0.1", ("lamb", 1e-3, 0.1, "constant")),
        (
            "clip_by_global_norm sgd",
            "optax.clip_by_global_norm.max_norm = 1.0\noptax.sgd.learning_rate = @optax.cosine_decay_schedule()\n"
            "optax.cosine_decay_schedule:\n  init_value = 0.1\n  decay_steps = %TRAIN_STEPS",
            ("sgd", 0.1, 0.0, "cosine"),
        ),
        (
            "scale_by_adam add_decayed_weights scale_by_learning_rate",
            "optax.add_decayed_weights.weight_decay = 0.02\n"
            "optax.scale_by_learning_rate.learning_rate = @optax.warmup_cosine_decay_schedule()" + COSINE,
            ("adamw", 2e-4, 0.02, "cosine"),
        ),
        (
            "scale_by_adam scale_by_schedule scale",
            "optax.scale_by_schedule.step_size_fn = @optax.linear_schedule()\noptax.scale.step_size = -1\n"
            "optax.linear_schedule:\n  init_value = 1e-3\n  end_value = 0.0\n  transition_steps = 50_000",
            ("adamw", 1e-3, 0.0, "linear"),
        ),
        ("trace scale", "optax.trace.decay = 0.9\noptax.scale.step_size = -0.01", ("sgd", 0.01, 0.0, "constant")),
    ],
)
def test_optimizers_of_optax_have_counterparts(files, parts, more, expected):
    config = chained(files, parts, more).config
    optimizer = config.optimizer
    assert (optimizer.name, optimizer.peak_lr, optimizer.weight_decay, config.schedule.name) == expected
    assert optimizer.max_grad_norm == ("clip" in parts)


def test_an_optimizer_without_a_chain_is_read_too(files):
    (files / "one.gin").write_text(MINE + "OPTIMIZER = @optimizers.adamw()\noptimizers.adamw.learning_rate = 3e-4\n")
    optimizer = api.import_config(files / "one.gin", None, ["MODEL_DIR=x"], 1).config.optimizer
    assert (optimizer.name, optimizer.peak_lr, optimizer.max_grad_norm) == ("adamw", 3e-4, 0.0)


@pytest.mark.parametrize(
    ("parts", "more", "told"),
    [
        ("adamw clip", ADAM, "clip is not supported at this position of a chain"),
        ("adabelief", "optax.adabelief.learning_rate = 1e-3", "adabelief is not supported at this position"),
        ("adamw", "optax.adamw.nesterov = True\n" + ADAM, "adamw.nesterov has no counterpart"),
        ("adamw", ADAM.replace("%TRAIN_STEPS", "100"), "ends after 100 steps, but the run has 50000"),
        ("adamw", ADAM.replace("init_value = 0.0", "init_value = 1e-6"), "a warm-up begins at 0"),
        ("adamw", "optax.adamw.learning_rate = @optax.join_schedules()", "the schedule join_schedules has no counterp"),
        ("adamw", "", "adamw has no learning_rate"),
        ("scale_by_adam", "", "the chain does not end in scale_by_learning_rate"),
        ("scale_by_adam scale", "optax.scale.step_size = 0.1", "the chain does not end in scale_by_learning_rate"),
        ("clip", "optax.clip.max_delta = 1.0", "the chain has no optimizer"),
    ],
)
def test_chains_that_cannot_be_expressed_are_named_with_the_reason(files, parts, more, told):
    with pytest.raises(ConfigError, match=re.escape(told)) as caught:
        chained(files, parts, more)
    assert re.search(r"chain.gin:\d+: optimizers.chain.transformations = ", str(caught.value))


EXAMPLES = """
        infer_script.create_task_from_tfexample_file:
          paths = ["rows.tfrecord*"]
          file_type = 'tfrecord'
          inputs_key = 'question'
          targets_key = 'answer'
          features = {'inputs': @inputs/seqio.Feature(), 'targets': @outputs/seqio.Feature()}
        inputs/seqio.Feature.vocabulary = @models.get_input_vocabulary()
        outputs/seqio.Feature.vocabulary = @models.get_output_vocabulary()
        models.get_input_vocabulary.model = %MODEL
        models.get_output_vocabulary.model = %MODEL
"""


def test_files_of_examples_are_rows_of_the_command(files):
    text = INFER.replace('"glue_rte_v002"', "@infer_script.create_task_from_tfexample_file()") + EXAMPLES
    (files / "rows.gin").write_text(text)
    command = api.import_config(files / "rows.gin", None, [], 1).command
    assert command[:8] == (
        "infer",
        "imported",
        "--input",
        "rows.tfrecord*",
        "--inputs",
        "question",
        "--targets",
        "answer",
    )
    assert "--task" not in command
    for old, new, told in [
        ("'tfrecord'", "'sstable'", "file_type='sstable' has no counterpart"),
        ('["rows.tfrecord*"]', '["a.tfrecord", "b.tfrecord"]', "names 2 files of examples"),
    ]:
        (files / "rows.gin").write_text(text.replace(old, new))
        with pytest.raises(ConfigError, match=told):
            api.import_config(files / "rows.gin", None, [], 1)


def test_lines_without_a_counterpart_are_named(files):
    text = (
        MINE
        + "utils.create_learning_rate_scheduler.new_thing = 3\noptimizers.chain.transformations = [@optax.clip()]\n"
    )
    (files / "mine.gin").write_text(text)
    told = refused("config", "import", files / "mine.gin", "MODEL_DIR=x")
    assert "has 2 bindings without a counterpart" in told
    assert re.search(r"mine.gin:\d+: utils.create_learning_rate_scheduler.new_thing = 3", told)
    assert "optimizers.chain.transformations" in told


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("A = ", "is not a gin file"),
        ('include "nowhere.gin"', "includes nowhere.gin, which is not in a folder above it"),
        ("A = 3", "configures neither training nor evaluation"),
        (RUN, "does not set vocab_size, emb_dim"),
        (f"{RUN}\nmodels.DecoderOnlyModel.z_loss = 0.1\n", "trains a DecoderOnlyModel, of which only checkpoints"),
        (f"{MODEL}{RUN}", "is required: give it as"),
    ],
)
def test_files_that_cannot_be_read_are_refused_with_a_reason(text, told, files):
    (files / "other.gin").write_text(text)
    with pytest.raises(ConfigError, match=re.escape(told)):
        api.import_config(files / "other.gin", None, [], 1)


def test_a_required_value_is_set_as_the_message_advises(files):
    (files / "mine.gin").write_text(MINE.replace("DROPOUT_RATE = 0.1", ""))
    with pytest.raises(ConfigError) as caught:
        api.import_config(files / "mine.gin", None, ["MODEL_DIR=x"], 1)
    assert "give it as DROPOUT_RATE=VALUE" in str(caught.value)
    api.import_config(files / "mine.gin", None, ["MODEL_DIR=x", "DROPOUT_RATE=0.2"], 1)


def test_values_are_checked_and_converted_like_those_of_our_own_configs(files):
    """T5X reads the names of divisors of the loss in any case."""
    given = ["MODEL_DIR=x", "FACTOR='AVERAGE_PER_SEQUENCE'"]
    config = api.import_config(files / "mine.gin", None, given, 1).config
    assert config.objective.normalize_by == "average_per_sequence"
    with pytest.raises(ConfigError, match=r"model.dropout cannot be 1\.5"):
        api.import_config(files / "mine.gin", None, [*given, "DROPOUT_RATE=1.5"], 1)
    with pytest.raises(ConfigError, match=r"MODEL_DIR has no value: bindings are written NAME=VALUE"):
        api.import_config(files / "mine.gin", None, ["MODEL_DIR"], 1)

"""Import of gin files of T5X as configs of ours. Imports no torch.

Includes, macros, scopes and overrides have the same meaning as in gin. A binding without a counterpart is an error that
names its line if it would change the result, and is listed if it would not. Source:
https://github.com/google-research/t5x
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pretrainkit.errors import ConfigError
from pretrainkit.recipes.exchange import ImportedConfig
from pretrainkit.recipes.t5.config import T5Run
from pretrainkit.recipes.t5.gin_syntax import GinFile, Reference
from pretrainkit.recipes.t5.optax_chain import FUNCTIONS, NoCounterpart, OptaxChain
from pretrainkit.recipes.t5.presets import PRESETS

_MODEL = {
    "vocab_size": "vocab_size",
    "emb_dim": "hidden_size",
    "num_heads": "num_heads",
    "num_encoder_layers": "num_encoder_layers",
    "num_decoder_layers": "num_decoder_layers",
    "head_dim": "head_size",
    "mlp_dim": "intermediate_size",
    "dropout_rate": "dropout",
    "logits_via_embedding": "tied_logits",
}
_SIZES = ("vocab_size", "emb_dim", "num_heads", "num_encoder_layers", "num_decoder_layers", "head_dim", "mlp_dim")
_ADAFACTOR = {
    "decay_rate": "decay_rate",
    "step_offset": "step_offset",
    "beta1": "beta1",
    "factored": "factored",
    "min_dim_size_to_factor": "min_dim_size_to_factor",
    "multiply_by_parameter_scale": "multiply_by_parameter_scale",
    "clipping_threshold": "clipping_threshold",
    "epsilon1": "epsilon1",
    "epsilon2": "epsilon2",
    "max_parameter_scale": "max_parameter_scale",
    "weight_decay_rate": "weight_decay_rate",
    "weight_decay_rate_lr_exponent": "weight_decay_lr_exponent",
    "skip_nan_updates": "skip_nan_updates",
}
_SCHEDULE = {
    "warmup_steps": "num_warmup_steps",
    "decay_factor": "decay_factor",
    "steps_per_decay": "steps_per_decay",
    "steps_per_cycle": "steps_per_cycle",
    "step_offset": "step_offset",
    "min_learning_rate": "min_lr",
}
"""Maps arguments of T5X to our fields, as do `_MODEL` and `_ADAFACTOR`."""
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "T5Config": {"dropout": 0.1, "tied_logits": False},
    "EncoderDecoderModel": {"z_loss": 0.0, "label_smoothing": 0.0},
    "create_learning_rate_scheduler": {"num_warmup_steps": 1000},
}
"""Defaults of T5X that differ from the values of our preset, for settings that a file does not contain."""
_OF_MODEL = frozenset(
    {"module", "input_vocabulary", "output_vocabulary", "optimizer_def"}
    | {"z_loss", "label_smoothing", "loss_normalizing_factor"}
)
"""Arguments of EncoderDecoderModel that do not affect answers, or are those of the checkpoint."""
_NEUTRAL_IN_COMMANDS = frozenset(
    {"model", "dataset_cfg", "restore_checkpoint_cfg", "partitioner", "output_dir", "inference_evaluator_cls"}
    | {"summarize_config_fn", "train_state_initializer_cls", "fallback_init_rng", "use_orbax"}
    | {"merge_chunked_results", "checkpoint_ds_iter", "verify_matching_vocabs_fn", "file_extension"}
)
"""Arguments of T5X's `evaluate` and `infer` that only refer to others, or do not affect results."""
_INFER_MODES = {"predict": "predict", "score": "score", "predict_with_aux": "predict-with-scores"}
_ACTIVATIONS = {"gelu": "gelu_tanh", "relu": "relu", "linear": "linear", "swish": "swish", "silu": "swish"}
_EXAMPLES = "create_task_from_tfexample_file"
_WITHOUT_EFFECT = {
    "PjitPartitioner": "ranks are set at launch, and sharding by the settings in parallel",
    "ModelBasedPjitPartitioner": "ranks are set at launch, and sharding by the settings in parallel",
    "CheckpointConfig": "it only groups settings that are read",
    "Evaluator.logger_cls": "the settings in log decide where metrics are logged",
    "Evaluator.use_memory_cache": "examples are read as they are needed",
    "Adafactor.logical_factor_rules": "they choose the same rows and columns of each matrix",
    "EncoderDecoderModel.module": "the model is the T5 of the recipe",
    "EncoderDecoderModel.input_vocabulary": "it only refers to the vocabulary, which is read",
    "EncoderDecoderModel.output_vocabulary": "it only refers to the vocabulary, which is read",
    "EncoderDecoderModel.optimizer_def": "it only refers to the optimizer, which is read",
    "Transformer.config": "it only refers to the config, which is read",
    "Trainer.learning_rate_fn": "it only refers to the schedule, which is read",
    "SentencePieceVocabulary.extra_ids": "the tokenizer determines the number of sentinels",
    "train.model": "it only refers to the model, which is read",
    "train.model_dir": "the run folder is set by --out",
    "train.train_dataset_cfg": "it only refers to the data, which is read",
    "train.train_eval_dataset_cfg": "it only refers to the data, which is read",
    "train.checkpoint_cfg": "it only refers to the settings of checkpoints, which are read",
    "train.partitioner": "ranks are set at launch, and sharding by the settings in parallel",
    "train.trainer_cls": "there is only one trainer",
    "train.use_hardware_rng": "random numbers are functions of the seed and the step",
    "train.summarize_config_fn": "every run stores its config",
    "train.inference_evaluator_cls": "it only refers to the evaluation, which is read",
    "train.stats_period": "the interval is log.every_steps",
    "train.actions": "a run ends when its gradient is not finite",
    "SaveCheckpointConfig.keep_dataset_checkpoints": "the position in the data follows from the step",
    "DatasetConfig.use_cached": "data.caches lists the caches",
    "DatasetConfig.seed": "the data uses the seed of the run",
    "DatasetConfig.use_custom_packing_ops": "there is only one kind of packing",
    "SaveCheckpointConfig.dtype": "weights are stored in float32",
    "SaveCheckpointConfig.save_dataset": "the position in the data follows from the step",
    "RestoreCheckpointConfig.mode": "a checkpoint is named by its path",
    "RestoreCheckpointConfig.dtype": "weights are float32",
    "T5Config.remat_policy": "the setting is parallel.activation_checkpointing",
    "T5Config.scan_layers": "layers are computed one after another",
    "TerminateOnNanAction": "a run ends when its gradient is not finite",
    "JSONLogger": "the setting is evaluate.infer.num_written",
}
"""Maps a class, or a class and an argument, to the reason why its value changes nothing here."""


def import_config(path: Path, settings: Iterable[str], nproc: int) -> ImportedConfig:
    """Read a gin file of `train` as a config, or one of `evaluate` or `infer` as a command. Raises ConfigError for
    bindings without a counterpart, and for required macros without a value."""
    gin = GinFile(path, settings)
    owners = {binding.owner for binding in gin.bindings.values()}
    reader = _Reader(gin, nproc)
    if "evaluate" in owners and "train" not in owners:
        return reader.evaluation(path)
    if "infer" in owners and "train" not in owners:
        return reader.inference(path)
    if "train" not in owners:
        raise ConfigError(
            f"{path} configures neither training nor evaluation nor inference\n"
            "  give the file that includes a run, such as t5x/configs/runs/pretrain.gin"
        )
    return reader.training(path)


class _Reader:
    def __init__(self, gin: GinFile, nproc: int) -> None:
        self._gin, self._nproc = gin, nproc
        self._notes: list[str] = []
        self._without_effect: dict[str, str] = {}
        self._unknown: list[str] = []
        self._left = dict(gin.bindings)

    def _take(self, owner: str, argument: str, scope: str = "", default: Any = None) -> Any:
        """Return the value of a binding, and remove it from the bindings that are left to read."""
        binding = self._left.pop((scope, owner, argument), None)
        return default if binding is None else self._gin.resolved(binding.value, binding.line)

    def _taken(self, owner: str, names: Mapping[str, str], scope: str = "") -> dict[str, Any]:
        """Return the arguments that the file sets, by our names. They then count as read."""
        given = {ours: key for theirs, ours in names.items() if (key := (scope, owner, theirs)) in self._left}
        return {ours: self._take(key[1], key[2], scope) for ours, key in given.items()}

    def training(self, path: Path) -> ImportedConfig:
        batch_size = self._take("DatasetConfig", "batch_size", "train")
        updates: dict[str, Any] = {
            "model": self._model(path),
            "objective": self._objective(),
            "data": self._data(batch_size),
            "precision": self._precision(),
        }
        updates |= self._start()
        updates["optimizer"], updates["schedule"] = self._optimizer()
        updates["evaluate"] = self._evaluate(batch_size)
        updates["checkpoint"] = self._checkpoint()
        self._refuse_the_rest(path)
        config: T5Run = PRESETS["1.1-small"]().changed(**updates)
        return ImportedConfig(
            config,
            self._notes,
            without_effect=self._without_effect,
            weights_command=self._weights,
        )

    def _model(self, path: Path) -> dict[str, Any]:
        if any(owner == "DecoderOnlyModel" for _, owner, _ in self._left):
            raise ConfigError(
                f"{path} trains a DecoderOnlyModel, of which only checkpoints are imported\n"
                "  give a file that trains an EncoderDecoderModel, or write the config of a decoder-only model by hand"
            )
        missing = [name for name in _SIZES if ("", "T5Config", name) not in self._left]
        if missing:
            raise ConfigError(
                f"{path} does not set {', '.join(missing)} of its T5Config\n"
                "  include the model as well, such as t5x/examples/t5/t5_1_1/small.gin"
            )
        model = dict(_DEFAULTS["T5Config"]) | self._taken("T5Config", _MODEL)
        names = self._take("T5Config", "mlp_activations", default=("relu",))
        if unknown := [name for name in names if name not in _ACTIVATIONS]:
            raise ConfigError(f"T5Config.mlp_activations has {unknown[0]!r}\n  known: {', '.join(_ACTIVATIONS)}")
        # The scalable network has a table of relative positions in each layer.
        model["bias_per_layer"] = "t5x.examples.scalable_t5.network" in self._gin.modules
        return model | {"activations": tuple(_ACTIVATIONS[name] for name in names)}

    def _objective(self) -> dict[str, Any]:
        owner = "EncoderDecoderModel"
        factor = self._take(owner, "loss_normalizing_factor")
        values = dict(_DEFAULTS[owner]) | self._taken(owner, {"z_loss": "z_loss", "label_smoothing": "label_smoothing"})
        if isinstance(factor, int):
            factor = float(factor)
        return values | {"normalize_by": "none" if factor is None else factor}

    def _precision(self) -> dict[str, Any]:
        return {"compute": self._take("T5Config", "dtype", default="float32")}

    def _optimizer(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the settings of `optimizer` and `schedule`."""
        named = self._gin.bindings.get(("", "EncoderDecoderModel", "optimizer_def"))
        chosen = Reference("Adafactor") if named is None else self._gin.resolved(named.value, named.line)
        name = chosen.name if isinstance(chosen, Reference) else str(chosen)
        if name in ("Adafactor", "None"):
            schedule, peak = self._schedule()
            adafactor = self._taken("Adafactor", _ADAFACTOR)
            if self._weights and adafactor.pop("step_offset", 0):
                reason = "the optimizer's state of a checkpoint is not imported, so it is counted from the first update"
                self._without_effect["Adafactor.step_offset"] = reason
            norm = self._take("Adafactor", "global_norm_clip_threshold") or 0.0
            settings = {"adafactor": adafactor, "peak_lr": peak, "max_grad_norm": norm, "decay_mask": "all"}
            return settings, schedule
        line = named.line if named is not None else ""
        parts = [chosen]
        if name == "chain":
            transformations = self._gin.bindings.get(("", "chain", "transformations"))
            line = line if transformations is None else transformations.line
            parts = list(self._take("chain", "transformations", default=()))
        total = self._gin.bindings.get(("", "train", "total_steps"))
        num_steps = None if total is None else self._gin.resolved(total.value, total.line)
        chain = OptaxChain(self._optax_arguments, [part.name for part in parts], num_steps)
        try:
            optimizer, rate = chain.optimizer()
            if rate == Reference("create_learning_rate_scheduler"):
                schedule, optimizer["peak_lr"] = self._schedule()
            else:
                optimizer["peak_lr"], schedule = chain.schedule(rate)
        except NoCounterpart as error:
            self._unknown.append(f"{line}: {error}")
            return {}, {}
        for key in [key for key in self._left if key[1] in ("Adafactor", "create_learning_rate_scheduler")]:
            self._without_effect[f"{key[1]}.{key[2]}"] = "the file uses another optimizer, with its own learning rate"
            del self._left[key]
        return optimizer, schedule

    def _optax_arguments(self, owner: str) -> dict[str, Any]:
        """Return the arguments that the file sets for a function of optax. They then count as read."""
        given = [argument for scope, name, argument in self._left if (scope, name) == ("", owner)]
        return {argument: self._take(owner, argument) for argument in given}

    def _schedule(self) -> tuple[dict[str, Any], float]:
        owner = "create_learning_rate_scheduler"
        function = self._gin.bindings.get(("", "Trainer", "learning_rate_fn"))
        if function is not None and self._gin.resolved(function.value, function.line) != Reference(owner):
            self._unknown.append(function.line)
        values = dict(_DEFAULTS[owner]) | self._taken(owner, _SCHEDULE)
        factors = self._take(owner, "factors", default="constant * linear_warmup * rsqrt_decay")
        values["factors"] = tuple(part.strip() for part in factors.split("*"))
        return values, self._take(owner, "base_learning_rate", default=0.5)

    def _data(self, batch_size: int | None) -> dict[str, Any]:
        data: dict[str, Any] = {"task": self._take("DatasetConfig", "mixture_or_task_name", "train")}
        lengths = self._take("DatasetConfig", "task_feature_lengths", "train") or {}
        data |= {
            ours: lengths[theirs]
            for theirs, ours in (("inputs", "input_length"), ("targets", "target_length"))
            if theirs in lengths
        }
        data |= self._taken("DatasetConfig", {"split": "train_split", "pack": "packing"}, "train")
        if batch_size is not None:
            data["batch_size"] = batch_size
            if data.get("packing"):
                self._notes.append(
                    f"its batch_size={batch_size} counts packed rows, data.batch_size counts examples: multiply it by "
                    "the number of examples in a row, from the packed rows that pretrainkit data check prints"
                )
        data |= self._taken("DatasetConfig", {"split": "valid_split"}, "train_eval") | {"held_out_share": None}
        if (modules := self._take("DatasetConfig", "module", "train")) is not None:
            data["modules"] = (modules,) if isinstance(modules, str) else tuple(modules)
        if not self._take("DatasetConfig", "shuffle", "train", default=True):
            data["order"] = "sequential"
        if (number := self._take("Trainer", "num_microbatches")) and batch_size:
            data["microbatch_size"] = max(1, batch_size // self._nproc // number)
        return data | self._vocabulary("set data.tokenizer to the folder of a copy of it")

    def _vocabulary(self, advice: str) -> dict[str, Any]:
        """Return the settings of `data` that follow from the vocabulary. `advice` becomes a note if it is a file."""
        sides = [("", "EncoderDecoderModel", f"{side}_vocabulary") for side in ("input", "output")]
        bindings = [self._gin.bindings[side] for side in sides if side in self._gin.bindings]
        used = [self._gin.resolved(binding.value, binding.line) for binding in bindings]
        if any(vocabulary != used[0] for vocabulary in used):
            self._unknown.append(bindings[-1].line)
        file = self._take("SentencePieceVocabulary", "sentencepiece_model_file")
        is_bytes = used[:1] == [Reference("ByteVocabulary")]
        number = self._take("ByteVocabulary" if is_bytes else "SentencePieceVocabulary", "extra_ids")
        settings: dict[str, Any] = {"denoising": {"num_sentinels": number}} if number else {}
        if is_bytes:
            return settings | {"tokenizer": "bytes"}
        if file is not None:
            self._notes.append(f"its vocabulary is {file}: {advice}")
        return settings

    def _evaluate(self, batch_size: int | None) -> dict[str, Any]:
        evaluate: dict[str, Any] = {}
        if (period := self._take("train", "eval_period")) is not None:
            evaluate["every_steps"] = period
        evaluate["before_training"] = self._take("train", "run_eval_before_training", default=False)
        held_out = self._take("DatasetConfig", "batch_size", "train_eval", default=batch_size)
        if (steps := self._take("train", "eval_steps")) is not None and held_out:
            evaluate["num_examples"] = steps * held_out
        for argument in ("mixture_or_task_name", "task_feature_lengths", "shuffle", "pack", "module"):
            self._same_as_training("train_eval", argument)
        return evaluate | {"infer": self._infer()}

    def _infer(self) -> dict[str, Any] | None:
        wanted = self._take("train", "infer_eval_dataset_cfg", default=Reference("DatasetConfig"))
        lengths = self._take("DatasetConfig", "task_feature_lengths", "infer_eval") or {}
        infer: dict[str, Any] = {"input_length": lengths.get("inputs"), "target_length": lengths.get("targets")}
        infer |= self._taken("DatasetConfig", {"split": "split", "batch_size": "batch_size"}, "infer_eval")
        infer |= self._taken("Evaluator", {"num_examples": "num_examples"})
        infer |= self._taken("JSONLogger", {"write_n_results": "num_written"})
        infer["decoding"] = self._decoding()
        for argument in ("mixture_or_task_name", "shuffle", "pack", "module"):
            self._same_as_training("infer_eval", argument)
        return None if wanted is None else infer

    def _decoding(self) -> dict[str, Any]:
        """Return the settings of decoding. T5X's default is a search with one beam, which may end earlier than greedy
        decoding."""
        beams = self._take("models.EncoderDecoderModel.predict_batch_with_aux", "num_decodes", default=1)
        named = self._left.pop(("", "EncoderDecoderModel", "decode_fn"), None)
        function = "beam_search" if named is None else self._gin.resolved(named.value, named.line)
        name = function.name if isinstance(function, Reference) else function
        if name == "beam_search":
            alpha = {} if named is None else self._taken(name, {"alpha": "alpha"})
            return {"method": "beam", "num_beams": beams, **alpha}
        given = {"temperature": 1.0, "top_k": 1} | self._taken(
            "temperature_sample", {"temperature": "temperature", "topk": "top_k", "topp": "top_p"}
        )
        if named is not None and (name != "temperature_sample" or beams != 1):
            self._unknown.append(named.line)
        is_greedy = given["top_k"] == 1 or not given["temperature"]
        return {"method": "greedy"} if is_greedy else {"method": "sample", **given}

    def _same_as_training(self, scope: str, argument: str) -> None:
        """Remove a setting of held-out data that equals that of training, or does not affect a sum over examples."""
        theirs = self._left.pop((scope, "DatasetConfig", argument), None)
        trained = self._gin.bindings.get(("train", "DatasetConfig", argument))
        if theirs is None or trained is None:
            return
        value, expected = (self._gin.resolved(binding.value, binding.line) for binding in (theirs, trained))
        if argument in ("mixture_or_task_name", "module") and value != expected:
            self._unknown.append(theirs.line)
        if argument == "task_feature_lengths" and value not in (None, expected):
            self._unknown.append(theirs.line)

    def _checkpoint(self) -> dict[str, Any]:
        period = self._take("SaveCheckpointConfig", "period", default=1000)
        keep = self._take("SaveCheckpointConfig", "keep")
        return {"every_steps": period} | ({"keep_every_steps": period} if keep is None else {"keep_last": keep})

    def _start(self) -> dict[str, Any]:
        """Return the number of updates, the seed, and the weights to start from."""
        total, relative = self._take("train", "total_steps"), self._take("train", "relative_steps")
        updates: dict[str, Any] = {"num_steps": relative or total}
        if (seed := self._take("train", "random_seed")) is not None:
            updates["seed"] = seed
        self._weights = self._import_of_checkpoint()
        if self._weights:
            path = self._weights[1]
            number = re.search(r"(?:checkpoint_|model\.ckpt-)(\d+)/?$", path)
            if number is None:
                raise ConfigError(
                    f"the path {path} does not end in the step of its checkpoint, from which a run continues\n"
                    "  give it as in INITIAL_CHECKPOINT_PATH=FOLDER/checkpoint_1000000"
                )
            first = int(number[1])
            updates |= {"init_from": "imported", "first_step": first, "num_steps": None}
            updates["num_extra_steps"] = relative or total - first
        return updates

    def _import_of_checkpoint(self) -> tuple[str, ...]:
        """Return the command that imports the weights of the file, empty if it names none."""
        binding = self._left.get(("", "RestoreCheckpointConfig", "path"))
        path = self._take("RestoreCheckpointConfig", "path")
        if isinstance(path, list | tuple):
            if len(path) > 1:
                assert binding is not None
                raise ConfigError(f"{binding.line}\n  several checkpoints have no counterpart: give one path")
            path = path[0] if path else None
        if not path:
            return ()
        layout = "mesh_tf" if "model.ckpt" in path else "t5x"
        return ("import", path, "--recipe", "t5", "--format", layout, "--out", "imported")

    def evaluation(self, path: Path) -> ImportedConfig:
        task = self._take("DatasetConfig", "mixture_or_task_name")
        words = [
            f"data.task={task}",
            f"data.valid_split={self._take('DatasetConfig', 'split', default='validation')}",
            "data.held_out_share=null",
        ]
        if (size := self._take("DatasetConfig", "batch_size")) is not None:
            words.append(f"evaluate.infer.batch_size={size}")
        lengths = self._take("DatasetConfig", "task_feature_lengths") or {}
        for theirs, ours in (("inputs", "input_length"), ("targets", "target_length")):
            if theirs in lengths:
                words.append(f"evaluate.infer.{ours}={lengths[theirs]}")
        if (modules := self._take("DatasetConfig", "module")) is not None:
            words.append(f"data.modules={modules}")
        for argument in ("shuffle", "pack"):  # they do not affect metrics of answers
            self._take("DatasetConfig", argument)
        if (number := self._take("Evaluator", "num_examples")) is not None:
            words.append(f"evaluate.infer.num_examples={number}")
        words += [f"evaluate.infer.decoding.{name}={value}" for name, value in self._decoding().items()]
        return self._command(path, "evaluate", ("evaluate", "imported", *words))

    def inference(self, path: Path) -> ImportedConfig:
        task = self._take("DatasetConfig", "mixture_or_task_name")
        rows: dict[str, Any] = {"--task": task, "--split": self._take("DatasetConfig", "split", default="test")}
        if task == Reference(_EXAMPLES):
            rows = self._rows_of_examples(path)
        elif not isinstance(task, str):
            raise ConfigError(
                f"{path} builds its task from a file\n"
                "  give the file to infer itself: pretrainkit infer RUN --input FILE --out answers.jsonl"
            )
        mode = self._take("infer", "mode", default="predict")
        if mode not in _INFER_MODES:
            raise ConfigError(f"{path}: infer.mode={mode!r} is unknown\n  possible: {', '.join(_INFER_MODES)}")
        if mode == "predict_with_aux":
            self._notes.append("scores of predictions are log-likelihoods, not divided by the brevity penalty")
        shard = f"{self._take('infer', 'shard_id', default=0)}/{self._take('infer', 'num_shards', default=1)}"
        options: dict[str, Any] = {
            **rows,
            "--mode": _INFER_MODES[mode],
            "--batch-size": self._take("DatasetConfig", "batch_size"),
            "--chunk-batches": self._take("infer", "checkpoint_period"),
            "--shard": None if shard == "0/1" else shard,
            "--module": self._take("DatasetConfig", "module"),
        }
        lengths = self._take("DatasetConfig", "task_feature_lengths") or {}
        options["--lengths"] = ",".join(f"{name}={length}" for name, length in lengths.items()) or None
        for argument in ("shuffle", "pack"):  # answers are written in the order of the task
            self._take("DatasetConfig", argument)
        decoding = self._decoding()
        if mode != "score":
            options["--max-length"] = lengths.get("targets")  # T5X's answers have at most the length of targets
            for name, value in decoding.items():
                if name != "method":
                    options["--beams" if name == "num_beams" else f"--{name.replace('_', '-')}"] = value
        words = [word for name, value in options.items() if value is not None for word in (name, str(value))]
        written = {"output_ids": "--ids", "include_all_inputs": "--all-fields"}
        words += [option for name, option in written.items() if self._take("write_inferences_to_file", name)]
        return self._command(path, "infer", ("infer", "imported", *words, "--out", "answers"))

    def _rows_of_examples(self, path: Path) -> dict[str, Any]:
        """Return the options of `infer` for files of `tf.train.Example`."""
        files, kind = self._take(_EXAMPLES, "paths"), self._take(_EXAMPLES, "file_type", default="tfrecord")
        files = [files] if isinstance(files, str) else list(files or ())
        if kind != "tfrecord":
            raise ConfigError(f"{path}: file_type={kind!r} has no counterpart\n  convert the file to tfrecord")
        if len(files) != 1:
            raise ConfigError(
                f"{path} names {len(files)} files of examples\n"
                "  give one pattern for them, as in TF_EXAMPLE_FILE_PATHS='examples.tfrecord*'"
            )
        for scope in ("inputs", "outputs"):
            self._take("Feature", "vocabulary", scope)  # the vocabularies are those of the model
        for argument in ("features", "task_id"):
            self._take(_EXAMPLES, argument)
        for name in ("get_input_vocabulary", "get_output_vocabulary"):
            self._take(name, "model")
        targets = self._take(_EXAMPLES, "targets_key")
        inputs = self._take(_EXAMPLES, "inputs_key", default="inputs")
        return {"--input": files[0], "--inputs": inputs, "--targets": targets}

    def _command(self, path: Path, owner: str, command: tuple[str, ...]) -> ImportedConfig:
        """Return a command that uses the model of a checkpoint."""
        weights = self._import_of_checkpoint()
        of_training = ("T5Config", "Adafactor", *FUNCTIONS)
        for key in list(self._left):  # the model is that of the checkpoint
            _, place, argument = key
            is_neutral = (place == owner and argument in _NEUTRAL_IN_COMMANDS) or (
                place == "EncoderDecoderModel" and argument in _OF_MODEL
            )
            if place in of_training or is_neutral:
                del self._left[key]
        vocabulary = self._vocabulary("import the weights with --tokenizer and the folder of a copy of it")
        if "tokenizer" in vocabulary and weights:
            weights += ("--tokenizer", vocabulary["tokenizer"])
        if "denoising" in vocabulary:
            kind = "Byte" if "tokenizer" in vocabulary else "SentencePiece"
            reason = _WITHOUT_EFFECT["SentencePieceVocabulary.extra_ids"]
            self._without_effect[f"{kind}Vocabulary.extra_ids"] = reason
        self._refuse_the_rest(path)
        return ImportedConfig(None, self._notes, command, without_effect=self._without_effect, weights_command=weights)

    def _refuse_the_rest(self, path: Path) -> None:
        """Raise ConfigError if bindings without a counterpart are left."""
        for (_, _, argument), binding in self._left.items():
            name = f"{binding.owner}.{argument}"
            reason = _WITHOUT_EFFECT.get(name) or _WITHOUT_EFFECT.get(binding.owner)
            if reason is None:
                self._unknown.append(binding.line)
            else:
                self._without_effect[name] = reason
        if self._unknown:
            lines = "".join(f"\n  {line}" for line in self._unknown)
            raise ConfigError(
                f"{path} has {len(self._unknown)} bindings without a counterpart here:{lines}\n"
                "  remove them from a copy of the file, and write their settings into the config by hand"
            )

"""Runs of the T5 recipe on generated token shards and tasks."""

import json
from pathlib import Path

import numpy as np

from pretrainkit.data.source import Records
from pretrainkit.recipes.t5.config import T5DataConfig, T5ModelConfig, T5Run
from pretrainkit.tokenizers.shard_writer import write_shards
from pretrainkit.tokenizers.special import SpecialIds
from pretrainkit.training.optimizers.config import OptimizerConfig

SPECIAL = SpecialIds(unk=2, cls=3, sep=1, mask=4, pad=0)
SHAPE = {"hidden_size": 16, "num_heads": 2, "head_size": 8, "intermediate_size": 16}
LAYERS = {"num_encoder_layers": 1, "num_decoder_layers": 1}


def shards_of(folder: Path, num: int, seed: int) -> str:
    rng = np.random.default_rng(seed)
    documents = [[rng.integers(5, 200, rng.integers(3, 20)) for _ in range(rng.integers(1, 12))] for _ in range(num)]
    write_shards(folder, [documents[0::2], documents[1::2]], vocab_size=200, special=SPECIAL)
    return str(folder)


def run_of(folders, model=None, data=None, **settings) -> T5Run:
    given = {"train": folders[0], "valid": folders[2], "batch_size": 8, "input_length": 64, "target_length": 18}
    return T5Run(
        num_steps=4,
        model=T5ModelConfig(**SHAPE | (model or LAYERS)),
        data=T5DataConfig(**given | (data or {})),
        optimizer=OptimizerConfig(name="adafactor", peak_lr=0.01, max_grad_norm=0.0),
        **settings,
    )


def records(num, epoch=0, source=0):
    zeros = np.zeros(num, np.int64)
    key = np.arange(num, dtype=np.uint64) + np.uint64(1000 * epoch)
    return Records(zeros + source, zeros + epoch, np.arange(num), key)


TASKS = """
from pathlib import Path
from pretrainkit.tasks.preprocessors import append_eos_after_trim, format_strings, tokenize
from pretrainkit.tasks.task import Feature, Mixture, Task, add_mixture, add_task
from pretrainkit.tasks.sources import JsonLines
from pretrainkit.tasks.steps import CacheMarker
from pretrainkit.tasks.vocabulary import ByteVocabulary

HERE = Path(__file__).parent
BYTES = ByteVocabulary()
for name in ("copy", "shout"):
    files = {split: str(HERE / f"{split}.jsonl") for split in ("train", "validation")}
    steps = (format_strings(inputs=f"{name}: {{text}}", targets="{text}"), tokenize(), append_eos_after_trim)
    features = {"inputs": Feature(BYTES), "targets": Feature(BYTES)}
    add_task(Task(f"t5_source_{name}", JsonLines(files), features, steps))
add_mixture(Mixture("t5_source_both", [("t5_source_copy", 3), ("t5_source_shout", 1)]))
add_mixture(Mixture("t5_source_with_idle", [("t5_source_copy", 1), ("t5_source_shout", 0)]))
marked = (format_strings(inputs="{text}", targets="{text}"), tokenize(), CacheMarker(), append_eos_after_trim)
add_task(Task("t5_source_marked", JsonLines(files), features, marked))
from pretrainkit.tasks.preprocessors import rekey
from pretrainkit.recipes.t5.denoising import DenoisingConfig
from pretrainkit.recipes.t5.task_denoising import denoising_steps
of_text = (rekey({"targets": "text"}), tokenize(False), CacheMarker())
pairs = denoising_steps(DenoisingConfig(name="packed_prefix_lm"))
add_task(Task("t5_source_pairs", JsonLines(files), features, (*of_text, *pairs)))
add_mixture(Mixture("t5_source_pairs_and_others", [("t5_source_copy", 1), ("t5_source_pairs", 1)]))
only_train = JsonLines({"train": str(HERE / "train.jsonl")})
add_task(Task("t5_source_no_validation", only_train, features, steps))
only_validation = JsonLines({"validation": str(HERE / "validation.jsonl")})
add_task(Task("t5_source_no_training", only_validation, features, steps))
add_mixture(Mixture("t5_source_one_unlearned", [("t5_source_copy", 3), ("t5_source_no_training", 1)]))
add_mixture(Mixture("t5_source_one_without", [("t5_source_copy", 3), ("t5_source_no_validation", 1)]))
"""


def write_tasks(folder: Path) -> str:
    """The module of `TASKS` beside its data."""
    for split, num in (("train", 40), ("validation", 6)):
        lines = [json.dumps({"text": f"{split} {number}"}) for number in range(num)]
        (folder / f"{split}.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "own_tasks.py").write_text(TASKS)
    return str(folder / "own_tasks.py")


def task_run(module, task, log=None, **data):
    given = {"train": (), "valid": (), "task": task, "modules": (module,), "input_length": 32, "target_length": 24}
    return run_of(["", "", ""], data=given | data, log=log or {})

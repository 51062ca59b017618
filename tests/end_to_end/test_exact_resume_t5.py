"""Text-to-text runs that are killed at any step and resumed equal uninterrupted runs, bit for bit.

In every phase: span corruption on shards, a mixture of tasks in packed rows, fine-tuning with dropout.
"""

import json
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from pretrainkit.tasks.task import REGISTRY
from pretrainkit.training.checkpoints.checkpoint import read_weights
from support import SUPPORT
from support.command_line import succeed
from support.warm_python import run_warm

TASKS = '''
"""Two tasks on generated rows, one of them drawn again in every epoch, and a mixture of both."""

from pathlib import Path

from pretrainkit.tasks.preprocessors import append_eos_after_trim, format_strings, tokenize
from pretrainkit.tasks.task import Feature, Mixture, Task, add_mixture, add_task
from pretrainkit.tasks.sources import JsonLines
from pretrainkit.tasks.steps import CacheMarker
from pretrainkit.tasks.vocabulary import SentencePieceVocabulary

HERE = Path(__file__).parent
SPLITS = {"train": HERE / "rows-train.jsonl", "validation": HERE / "rows-valid.jsonl"}
VOCABULARY = SentencePieceVocabulary(HERE / "tokenizer", extra_ids=100)
FEATURES = {"inputs": Feature(VOCABULARY), "targets": Feature(VOCABULARY)}


def drop_a_word(example, rng):
    kept = list(example["inputs"])
    if len(kept) > 2:
        del kept[int(rng.integers(len(kept) - 1))]
    return {**example, "inputs": kept}


def add(name, inputs, targets, *last):
    steps = [format_strings(inputs=inputs, targets=targets), tokenize(), CacheMarker(), *last, append_eos_after_trim]
    add_task(Task(name=name, source=JsonLines(SPLITS), features=FEATURES, preprocessors=steps))


add("e2e:first_word", "first word: {text}", "{first}")
add("e2e:last_word", "last word: {text}", "{last}", drop_a_word)
add_mixture(Mixture("e2e_words", [("e2e:first_word", 2), ("e2e:last_word", 1)]))
'''
"""Packed rows hold different examples in every step, and the second task is drawn from the key of the example."""

STEPS, KILLED_AFTER = 12, 7
SETTINGS = (
    "model.hidden_size=16",
    f"num_steps={STEPS}",
    "data.batch_size=8",
    "data.microbatch_size=4",
    "data.input_length=32",
    "data.target_length=12",
    "precision.compute=float32",
    "ema_decay=0.9",
    "checkpoint.every_steps=4",
    "checkpoint.keep_last=9",
    "checkpoint.asynchronous=false",
    "evaluate.num_examples=16",
    "log.every_steps=1",
)
"""A step of a few milliseconds."""
MEASURED = ("second", "wait", "mfu", "memory", "cpu", "utilization")
"""Parts of the names of measurements of a clock or the machine."""


@pytest.fixture(scope="module")
def words(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with tokenizer/, tokens/, rows of a task and tasks.py."""
    folder = tmp_path_factory.mktemp("words")
    data = made / "data"
    succeed(
        *("tokenizer", "train", data / "words.tsv", "--layout", "t5", "--vocab-size", 600),
        *("--out", folder / "tokenizer"),
    )
    succeed(
        *("tokenizer", "encode", data / "corpus", "--tokenizer", folder / "tokenizer", "--splitter", "none"),
        *("--out", folder / "tokens"),
    )
    for split in ("train", "valid"):
        lines = [line for path in sorted((data / "corpus" / split).glob("*.jsonl")) for line in sentences(path)][:60]
        rows = ({"text": line, "first": line.split()[0], "last": line.split()[-1]} for line in lines)
        (folder / f"rows-{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (folder / "tasks.py").write_text(TASKS, encoding="utf-8")
    yield folder
    for name in {"e2e:first_word", "e2e:last_word", "e2e_words"}.intersection(REGISTRY.names()):
        REGISTRY.remove(name)


def sentences(path: Path) -> Iterator[str]:
    for line in path.read_text(encoding="utf-8").splitlines():
        yield from json.loads(line)["text"].splitlines()


@pytest.fixture(scope="module")
def pretraining(words: Path) -> list[str]:
    """Span corruption, what follows `pretrainkit train`."""
    return ["t5/tiny", f"data.train={words}/tokens/train", f"data.valid={words}/tokens/valid", *SETTINGS]


@pytest.fixture(scope="module")
def pretrained(pretraining: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of span corruption without dropout, as T5 1.1 was trained, that was never stopped."""
    run = tmp_path_factory.mktemp("pretrained") / "run"
    succeed("train", *pretraining, "--out", run)
    return run


def test_span_corruption_killed_and_resumed_is_the_run_that_never_was(
    pretraining: list[str], pretrained: Path, tmp_path: Path
) -> None:
    assert_resumes_exactly(pretraining, pretrained, tmp_path)


def test_a_packed_mixture_of_tasks_killed_and_resumed_is_the_run_that_never_was(words: Path, tmp_path: Path) -> None:
    """60 rows of each task are 24 in a step: both tasks come into their second epoch before the kill."""
    settings = [
        *("t5/tiny", "data.task=e2e_words", f"data.modules=[{words}/tasks.py]", "data.valid_split=validation"),
        *(*SETTINGS, "data.packing=true", "data.batch_size=24", "data.microbatch_size=12"),
    ]
    succeed("train", *settings, "--out", tmp_path / "whole")
    assert_resumes_exactly(settings, tmp_path / "whole", tmp_path)


def test_fine_tuning_with_dropout_killed_and_resumed_is_the_run_that_never_was(
    words: Path, pretrained: Path, tmp_path: Path
) -> None:
    settings = [
        *("t5/tiny", "data.task=e2e:first_word", f"data.modules=[{words}/tasks.py]", f"init_from={pretrained}"),
        "model.dropout=0.1",
        *(*SETTINGS, "optimizer.name=adamw", "optimizer.peak_lr=1e-3", "objective.normalize_by=real_target_tokens"),
        *("schedule.name=constant", "schedule.factors=[]", "schedule.num_warmup_steps=0", "optimizer.max_grad_norm=1"),
    ]
    succeed("train", *settings, "--out", tmp_path / "whole")
    assert_resumes_exactly(settings, tmp_path / "whole", tmp_path)


def assert_resumes_exactly(settings: Sequence[str], whole: Path, tmp_path: Path) -> None:
    """Train until kill -9 between two checkpoints, resume, and compare every step and every tensor."""
    run = tmp_path / "killed"
    script = SUPPORT / "stopped_training.py"
    ended = run_warm(script, "SIGKILL", KILLED_AFTER, "train", *settings, "--out", run)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert checkpoints(run) == ["step-00000001", "step-00000004"]
    assert exact_lines(run) == exact_lines(whole)[:KILLED_AFTER]
    succeed("resume", run)
    assert exact_lines(run) == exact_lines(whole)
    assert (run / "eval.jsonl").read_text().splitlines()[-1] == (whole / "eval.jsonl").read_text().splitlines()[-1]
    last = f"step-{STEPS:08}"
    tensors, expected = (read_weights(path / "checkpoints" / last, prefix="") for path in (run, whole))
    assert tensors.keys() == expected.keys()
    assert {name.split(".")[0] for name in tensors} == {"model", "optimizer", "ema"}
    for name, value in expected.items():
        assert torch.equal(tensors[name], value), name


def checkpoints(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "checkpoints").glob("step-*"))


def exact_lines(run: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl without what a clock measured."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    found = [{name: v for name, v in line.items() if not any(part in name for part in MEASURED)} for line in lines]
    assert all({"step", "loss", "grad_norm", "lr"} <= line.keys() for line in found)
    return found

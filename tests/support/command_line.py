"""The command line within this process (starting Python and torch again costs seconds), and what whole runs share."""

import contextlib
import io
import json
import os
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from pretrainkit.cli.main import main

TINY = (
    "model.num_layers=1",
    "model.hidden_size=32",
    "model.num_heads=2",
    "model.intermediate_size=64",
    "data.max_seq_length=32",
    "data.batch_size=8",
    "precision.compute=float32",
    "schedule.num_warmup_steps=2",
    "optimizer.peak_lr=1e-2",
    "checkpoint.every_steps=4",
    "evaluate.num_examples=32",
    "log.every_steps=1",
)
"""A step of a few milliseconds."""
NO_DROPOUT = ("model.hidden_dropout=0", "model.attention_dropout=0")


class Answer(NamedTuple):
    """The result of a command."""

    code: int
    out: str
    err: str


def pretrainkit(*words: object) -> Answer:
    """`pretrainkit WORDS...` as a shell would see it."""
    out, err = io.StringIO(), io.StringIO()
    argv = ["pretrainkit", *map(str, words)]
    code: Any = 0
    scope = mock.patch.dict(os.environ), mock.patch.object(sys, "argv", argv)
    with scope[0], scope[1], contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            code = end.code
    return Answer(0 if code is None else int(code), out.getvalue(), err.getvalue())


def succeed(*words: object) -> str:
    """Standard output of a command that must end with 0."""
    answer = pretrainkit(*words)
    assert answer.code == 0, f"{' '.join(map(str, words))}\n{answer.out}{answer.err}"
    return answer.out


def refused(*words: object, code: int = 2) -> str:
    """The message of a command that must be refused: one message, on standard error, without a traceback."""
    answer = pretrainkit(*words)
    assert answer.code == code, f"{' '.join(map(str, words))}\nended with {answer.code}\n{answer.out}{answer.err}"
    starts = [match.start() for match in re.finditer("^error: ", answer.err, re.MULTILINE)]
    assert len(starts) == 1, answer.err
    assert "Traceback" not in answer.err
    message = answer.err[starts[0] :]
    assert len(message.strip().splitlines()) > 1, f"it should also say what to do: {message}"
    return message


def files_below(folder: Path) -> list[str]:
    """Everything in a folder, hidden files too, by relative path."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def metric_lines(run: Path) -> list[dict[str, float]]:
    """The lines of metrics.jsonl without what a clock measured."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    exact = ("step", "loss", "masked_lm_loss", "next_sentence_loss", "grad_norm", "lr")
    return [{name: line[name] for name in exact} for line in lines]


def losses(run: Path) -> list[float]:
    """The training loss of every step."""
    return [line["loss"] for line in metric_lines(run)]

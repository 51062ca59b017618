"""The first step at which two runs part is shown."""

import json
from pathlib import Path

import compare_losses
import pytest

from pretrainkit.training.folder import RunFolder


def write(folder: Path, *losses: float, held_out: float = 4.0, **more: float) -> Path:
    folder.mkdir()
    RunFolder(folder).evaluation(2, {"loss": held_out})
    lines = [
        json.dumps({"step": step, "loss": loss, "examples_per_second": loss * 9, **more}) + "\n"
        for step, loss in enumerate(losses, 1)
    ]
    (folder / "metrics.jsonl").write_text("".join(lines))
    return folder


@pytest.mark.parametrize(
    ("losses", "more", "expected"),
    [
        ((3.0, 2.0, 1.0), {}, ""),
        ((3.0, 2.0, 1.0), {"new_metric": 1.0}, ""),
        ((3.0, 2.5, 0.5), {}, "step 2: loss 2.0 became 2.5"),
        ((3.0, 2.0, 1.0), {"held_out": 4.5}, "step 2: loss 4.0 became 4.5"),
        ((3.0, 2.0), {}, "only one has ('metrics.jsonl', 3)"),
    ],
)
def test_the_first_difference_is_shown(tmp_path, losses, more, expected):
    before = write(tmp_path / "before", 3.0, 2.0, 1.0)
    assert compare_losses.difference(before, write(tmp_path / "after", *losses, **more)) == expected

"""Code that torch stops compiling, because it would need too many graphs, becomes an event of the run."""

import json
import logging
import re
from pathlib import Path
from typing import Any

import torch

from pretrainkit.data.loader import Loader
from pretrainkit.dist.env import World
from pretrainkit.recipes.clip.objective import ClipObjective
from pretrainkit.recipes.clip.source import build_order
from pretrainkit.running.configs import load_config
from pretrainkit.training.folder import RunFolder
from pretrainkit.training.run import LogConfig
from pretrainkit.training.trainer import Trainer
from pretrainkit.training.watch import Watcher
from support.toy_pairs import ToyEncoder, ToyPairs, toy_config

COMPILER = logging.getLogger("torch._dynamo.convert_frame")


class GivesUp(Watcher):
    """Writes into torch's log what torch writes there (`tests/dist/test_compile_budget.py` compares it with torch)."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def stepped(self, step: int, num_steps: int) -> None:
        if step == 1:
            text = "torch._dynamo hit config.%s (%s)\n   function: %s\n   last reason: %s\nsee %s"
            COMPILER.warning(text, "recompile_limit", 32, "'forward' (blocks.py:122)", "sizes differ", "a page")
            COMPILER.warning("another warning about %s", "something")

    def event(self, step: int, kind: str, text: str) -> None:
        if kind == "uncompiled":
            self.told.append(f"{step}: {text}")


def test_a_function_that_is_no_longer_compiled_is_an_event_of_the_next_log_line(tmp_path: Path) -> None:
    config = toy_config(num_steps=4).model_copy(update={"log": LogConfig(every_steps=2)})
    source, watcher, folder = ToyPairs(config), GivesUp(), RunFolder(tmp_path)
    folder.prepare()
    loader = Loader(source, build_order(config, source.sizes), batch_size=config.data.batch_size)
    torch.manual_seed(1)
    Trainer(config, folder, World(), ToyEncoder(), ClipObjective(config), loader, [], watcher).fit()
    (text,) = watcher.told
    assert text.startswith("2: torch.compile has made 32 graphs of 'forward' (blocks.py:122)")
    (setting,) = re.findall(r"sizes differ; (\S+=\S+) ", text)
    assert load_config("bert/tiny", [setting]).parallel.compile == "off"
    events: list[dict[str, Any]] = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [event["step"] for event in events if event["event"] == "uncompiled"] == [2]
    assert not COMPILER.handlers

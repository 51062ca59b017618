"""The recipe that docs/extending.md shows works: it trains, resumes, and adds microbatches up."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

import pretrainkit
from pretrainkit.api import make_plan
from pretrainkit.errors import InputError
from pretrainkit.recipes import registry
from pretrainkit.tokenizers.shard_writer import write_shards
from pretrainkit.tokenizers.special import SpecialIds

PAGE = Path(__file__).parents[1] / "docs" / "extending.md"


@pytest.fixture
def settings(tmp_path, monkeypatch) -> list[str]:
    """The page's files on the path, registered as its entry point is, and token shards to train on."""
    text = PAGE.read_text(encoding="utf-8")
    for name, content in re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        (tmp_path / name).write_text(content, encoding="utf-8")
    entry_points = re.search(
        r"^```toml\n\[project\.entry-points\.\"(.+)\"\]\n(.*?)^```$", text, re.MULTILINE | re.DOTALL
    )
    installed = tmp_path / "bigram-1.0.dist-info"  # what pip writes
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: bigram\nVersion: 1.0\n")
    group, points = entry_points[1], entry_points[2].replace('"', "")
    (installed / "entry_points.txt").write_text(f"[{group}]\n{points}")
    monkeypatch.syspath_prepend(str(tmp_path))
    registry.entries.cache_clear()
    rng = np.random.default_rng(0)
    documents = [[(np.arange(rng.integers(40)) * 7 + rng.integers(300)) % 300 for _ in range(6)] for _ in range(30)]
    special = SpecialIds(unk=256, cls=257, sep=258, mask=259, pad=260)
    write_shards(tmp_path / "tokens", [documents], vocab_size=300, special=special)
    yield [f"data.train={tmp_path / 'tokens'}", f"data.valid={tmp_path / 'tokens'}", "precision.compute=float32"]
    registry.entries.cache_clear()


def losses(run: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_the_recipe_of_the_page_learns_resumes_and_adds_up(settings, tmp_path):
    settings += ["log.every_steps=1", "checkpoint.every_steps=20", "checkpoint.asynchronous=false"]
    config = pretrainkit.load_config("bigram/tiny", [*settings, "num_steps=40"])
    metrics = pretrainkit.train(config, tmp_path / "whole", device="cpu")
    whole = losses(tmp_path / "whole")
    assert whole[0] > 5.5
    assert whole[-1] < 4
    assert metrics["valid_next_token_loss"] < 4

    parts = pretrainkit.load_config("bigram/tiny", [*settings, "num_steps=40", "data.microbatch_size=4"])
    pretrainkit.train(parts, tmp_path / "parts", device="cpu")
    assert losses(tmp_path / "parts") == pytest.approx(whole, rel=1e-4)

    started = pretrainkit.load_config("bigram/tiny", [*settings, "num_steps=20", "schedule.name=constant"])
    constant = pretrainkit.load_config("bigram/tiny", [*settings, "num_steps=40", "schedule.name=constant"])
    pretrainkit.train(constant, tmp_path / "constant", device="cpu")
    pretrainkit.train(started, tmp_path / "resumed", device="cpu")
    pretrainkit.resume(tmp_path / "resumed", ["num_steps=40"], device="cpu")
    assert losses(tmp_path / "resumed") == losses(tmp_path / "constant")


def test_the_capability_of_the_page_is_asked_for_and_then_there(settings, tmp_path):
    config = pretrainkit.load_config("bigram/tiny")
    with pytest.raises(InputError, match="cannot be planned without data") as error:
        make_plan(config)
    assert "recipes that can: bert," in str(error.value)
    more = re.search(r"^```python\n# added to bigram.py\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    with open(tmp_path / "bigram.py", "a", encoding="utf-8") as file:
        file.write(more[1])
    del sys.modules["bigram"]
    registry.entries.cache_clear()
    plan = make_plan(pretrainkit.load_config("bigram/tiny"))
    assert plan.num_parameters == 2 * 32_000 * 64 + 32_000
    assert plan.assumed == "32,000 pieces"

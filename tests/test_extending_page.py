"""The recipe that docs/extending.md shows works: it trains, resumes, and adds microbatches up; its commands run."""

import importlib
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

import pretrainkit
from pretrainkit.api import make_plan
from pretrainkit.data.order import Order
from pretrainkit.errors import DataError, InputError
from pretrainkit.recipes import registry
from pretrainkit.tokenizers.shard_writer import write_shards
from pretrainkit.tokenizers.special import SpecialIds
from support import SUPPORT, made_up_device
from support.command_line import refused, succeed
from support.page_runner import blocks_of, within

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[1] / "docs" / "extending.md"


@pytest.fixture
def settings(tmp_path, monkeypatch) -> list[str]:
    """The page's files on the path, registered as its entry point is, and token shards to train on."""
    text = PAGE.read_text(encoding="utf-8")
    for name, content in re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        (tmp_path / name).write_text(content, encoding="utf-8")
    (package,) = re.findall(r"^```toml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    ((group, points),) = tomllib.loads(package)["project"]["entry-points"].items()
    installed = tmp_path / "bigram-1.0.dist-info"  # what pip writes
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: bigram\nVersion: 1.0\n")
    lines = [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
    (installed / "entry_points.txt").write_text("\n".join(lines))
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


def test_the_capability_of_the_page_is_missing_until_it_is_added(settings, tmp_path):
    config = pretrainkit.load_config("bigram/tiny")
    with pytest.raises(InputError, match="cannot be planned without data") as error:
        make_plan(config)
    assert "recipes with this capability: bert," in str(error.value)
    more = re.search(r"^```python\n# added to bigram.py\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    with open(tmp_path / "bigram.py", "a", encoding="utf-8") as file:
        file.write(more[1])
    del sys.modules["bigram"]
    registry.entries.cache_clear()
    plan = make_plan(pretrainkit.load_config("bigram/tiny"))
    assert plan.num_parameters == 2 * 32_000 * 64 + 32_000
    assert plan.assumed == "32,000 pieces"


WITHOUT_TOKENIZER = """
from pretrainkit.recipes.capabilities import Generates, KeepsTokenizer

class Answering(Bigram, Generates, KeepsTokenizer):
    generate_options = ("max_length",)

    def tokenizer_folder(self, config):
        return None

    def with_tokenizer(self, config, tokenizer):
        return config

    def has_own_vocabulary(self, config):
        return True

    def generate(self, config, model, tokenizer, prompts, max_length=3):
        return [{"text": prompt[:max_length], "tokenizer": tokenizer} for prompt in prompts]

RECIPE = Answering()
"""


def test_a_recipe_without_a_tokenizer_generates_as_on_the_page(settings, tmp_path):
    with open(tmp_path / "bigram.py", "a", encoding="utf-8") as file:
        file.write(WITHOUT_TOKENIZER)
    sys.modules.pop("bigram", None)
    registry.entries.cache_clear()
    pretrainkit.train(pretrainkit.load_config("bigram/tiny", [*settings, "num_steps=1"]), tmp_path / "run")
    assert pretrainkit.generate(tmp_path / "run", ["hello"]) == [{"text": "hel", "tokenizer": None}]
    assert succeed("generate", tmp_path / "run", "hello", "--max-length", 4) == "hell\n"
    assert "has no option 'top'" in refused("generate", tmp_path / "run", "hello", "--top", 4)
    del sys.modules["bigram"]


def test_the_commands_of_the_page_run(settings, tmp_path):
    (commands,) = [block.text for block in blocks_of(PAGE) if block.language == "bash"]
    (tmp_path / "page").mkdir()
    for split in ("train", "valid"):
        (tmp_path / "page" / "tokens").mkdir(exist_ok=True)
        (tmp_path / "page" / "tokens" / split).symlink_to(tmp_path / "tokens")
    with within(tmp_path / "page"):
        answers = [succeed(*command.split()[1:]) for command in commands.splitlines()]
    assert "bigram/tiny" in answers[0]
    assert "vocab_size: null" in answers[1]
    assert len(losses(tmp_path / "page" / "runs" / "bigram")) > 1


def test_the_recipe_of_the_page_refuses_invalid_settings(settings, tmp_path):
    for wrong, message in (
        ([], "there is nothing to train on"),
        (["data.train=nowhere"], "there is no folder nowhere"),
        ([settings[0], "data.row_length=1"], "data.row_length cannot be 1"),
        ([settings[0], "data.row_length=wide"], "data.row_length cannot be wide"),
        ([settings[0], "data.row_length=100000"], "one example needs 100000"),
        ([settings[0], "model.vocab_size=5"], "the data have 300 pieces"),
        ([settings[0], "model.width=5"], "model has no field 'width'"),
    ):
        assert message in refused("train", "bigram/tiny", *wrong, "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()


ON_MADE_UP_DEVICE = """
import sys
import pretrainkit
config = pretrainkit.load_config("bigram:RECIPE/tiny", sys.argv[1:-1])
pretrainkit.train(config, sys.argv[-1], device="made_up")
"""


def test_the_recipe_of_the_page_trains_on_a_device_that_mixes_with_no_other(settings, tmp_path):
    """Its weights are the host's."""
    (alone := tmp_path / "alone").mkdir()
    made_up_device.install(alone)
    for name in ("bigram.py", "bigram_model.py"):
        (alone / name).write_text((tmp_path / name).read_text().replace('"bigram"', '"bigram:RECIPE"'))
    path = (alone, SUPPORT.parent, Path(pretrainkit.__file__).parents[1])
    words = [*settings, "num_steps=3", "log.every_steps=1", str(tmp_path / "there")]
    ended = subprocess.run(
        [sys.executable, "-c", ON_MADE_UP_DEVICE, *words],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, path))},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    pretrainkit.train(pretrainkit.load_config("bigram/tiny", words[:-1]), tmp_path / "here", device="cpu")
    assert losses(tmp_path / "there") == pytest.approx(losses(tmp_path / "here"), rel=1e-5)


def test_the_recipe_of_the_page_is_discovered_without_installation(settings, tmp_path):
    (alone := tmp_path / "alone").mkdir()
    for name in ("bigram.py", "bigram_model.py"):
        (alone / name).write_text((tmp_path / name).read_text().replace('"bigram"', '"bigram:RECIPE"'))
    source = Path(pretrainkit.__file__).parents[1]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (alone, source)))}
    for words in (["train", "bigram:RECIPE/tiny", *settings, "num_steps=2"], ["resume", "num_steps=3"]):
        place = ["--out", str(tmp_path / "run")] if words[0] == "train" else []
        words = [words[0], *([] if place else [str(tmp_path / "run")]), *words[1:], *place]
        ended = subprocess.run([sys.executable, "-m", "pretrainkit", *words], env=environment, capture_output=True)
        assert ended.returncode == 0, ended.stderr.decode()


def test_the_source_of_the_page_builds_any_examples_by_index(settings, tmp_path):
    LineSource = importlib.import_module("line_source").LineSource
    text = tmp_path / "lines.txt"
    text.write_text("short\n\n" + "\n".join("a long line of text, number " + "i" * i for i in range(20)))
    train, valid = (LineSource([text, text], 16, is_random=is_random) for is_random in (True, False))
    assert train.sizes == valid.sizes == (21, 21)
    assert train.fingerprint == LineSource([text, text], 16, is_random=True).fingerprint != valid.fingerprint
    records = Order(train.sizes, seed=0).records(np.arange(84))
    whole, later = train.build(records), train.build(records.take(slice(30, 60)))
    for name, values in later.items():
        np.testing.assert_array_equal(values, whole[name][30:60])
    np.testing.assert_array_equal(whole["num_tokens"], (whole["tokens"] > 0).sum(1))
    np.testing.assert_array_equal(whole["num_tokens"], train.lengths(records))
    first, second = records.take(slice(0, 42)), records.take(slice(42, 84))
    parts = [
        {tuple(row) for row in source.build(epoch)["tokens"].tolist()}
        for source in (train, valid)
        for epoch in (first, second)
    ]
    assert parts[0] != parts[1]  # other parts of the same lines
    assert parts[2] == parts[3]
    with pytest.raises(DataError, match="there is no text file"):
        LineSource([tmp_path / "nowhere.txt"], 16, is_random=True)

"""`pretrainkit data check` of a config."""

import json
import re

import numpy as np
import pytest

from pretrainkit.tokenizers.shard_writer import write_shards
from pretrainkit.tokenizers.special import SpecialIds


@pytest.fixture
def tokens(tmp_path):
    rng = np.random.default_rng(0)
    documents = [[rng.integers(5, 200, 12) for _ in range(9)] for _ in range(40)]
    special = SpecialIds(unk=2, cls=3, sep=1, mask=4, pad=0)
    write_shards(tmp_path / "tokens", [documents], vocab_size=200, special=special)
    return tmp_path / "tokens"


def test_a_config_is_described_with_its_data_and_nothing_is_trained(cli, tokens, tmp_path):
    settings = [f"data.train={tokens}", "data.batch_size=4", "num_steps=20"]
    found = json.loads(cli("data", "check", "t5/tiny", *settings, "--num", "1", "--json").out)
    num_examples = found["figures"]["training examples"]
    assert found["figures"]["training"] == f"20 steps of 4 examples, {80 / num_examples:.2f} epochs"
    assert list(found["examples"][0]) == ["example", "tokens", "text", "inputs", "targets", "first row"]
    text = cli("data", "check", "t5/tiny", *settings).out
    assert f"training examples     {num_examples}\n" in text
    assert "first row\n  encoder_input_tokens: " in text
    assert [path.name for path in tmp_path.iterdir()] == ["tokens"]
    (tmp_path / "mine.yaml").write_text(f"extends: t5/tiny\ndata: {{train: {tokens}}}\n")
    assert "first loss expected   10.88 nats" in cli("data", "check", tmp_path / "mine.yaml").out


def test_any_recipe_reports_the_amount_of_data(cli, tokens):
    found = json.loads(cli("data", "check", "bert/tiny", f"data.train={tokens}", "data.batch_size=4", "--json").out)
    figures = found["figures"]
    assert figures["training examples"] > 0
    assert "epochs" in figures["training"]
    # The documents have 108 tokens, of which an example takes whole sentences of 12.
    assert re.fullmatch(r"mean \d+, .* longest (\d+) tokens \(of [\d,]+ examples\)", figures["example lengths"])
    assert figures["fill"] == "100.0% of the computed tokens are real, the rest is padding"
    assert re.fullmatch(r"[\d,]+ examples per second in one thread of this machine", figures["data loading"])
    padded = ["data.batching=rows", "data.max_seq_length=128", f"data.train={tokens}", "data.batch_size=4", "--json"]
    fill = json.loads(cli("data", "check", "bert/tiny", *padded).out)["figures"]["fill"]
    assert 0 < float(fill.partition("%")[0]) < 100


def test_a_config_that_training_would_refuse_exits_with_2(cli, tokens):
    result = cli("data", "check", "t5/tiny", f"data.train={tokens}", "data.target_length=5")
    assert result.code == 2
    assert "set data.target_length=" in result.err


def test_a_deep_check_of_4m_prints_unusable_files_and_exits_with_2(cli, tmp_path):
    for number in range(3):
        for name, content in (("rgb", b"no image"), ("depth", b"")):
            file = tmp_path / "set" / name / f"{number}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
    words = ["data", "check", "fourm/tiny", f"data.train={tmp_path / 'set'}", "model.modalities=rgb@64,map_depth@64"]
    result = cli(*words, "--deep")
    assert result.code == 2
    assert f"problem: image {tmp_path / 'set' / 'rgb' / '1.png'} is broken" in result.out
    assert result.out.endswith("problems: 6\n")
    assert len(json.loads(cli(*words, "--deep", "--json").out)["problems"]) == 6


def test_the_page_is_written_for_good_and_for_broken_data(cli, tokens, tmp_path):
    settings = [f"data.train={tokens}", "data.batch_size=4", "num_steps=20"]
    result = cli("data", "check", "bert/tiny", *settings, "--page", tmp_path / "pages" / "data.html")
    assert result.code == 0
    assert result.out.endswith(f"page: {tmp_path / 'pages' / 'data.html'}\n")
    page = (tmp_path / "pages" / "data.html").read_text("utf-8")
    assert "<h1>bert/tiny</h1>" in page
    assert "Examples as the model reads them" in page
    (shard, *_) = tokens.glob("tokens-*.bin")
    shard.write_bytes(shard.read_bytes()[::-1])
    assert cli("data", "check", "bert/tiny", *settings, "--deep", "--page", tmp_path / "broken.html").code == 2
    assert f"{shard.name} has sha256" in (tmp_path / "broken.html").read_text("utf-8")


def test_a_page_that_cannot_be_written_is_an_error(cli, tokens):
    settings = [f"data.train={tokens}", "data.batch_size=4", "num_steps=20"]
    result = cli("data", "check", "bert/tiny", *settings, "--page", tokens / "manifest.json" / "data.html")
    assert result.code == 2
    assert "manifest.json" in result.err

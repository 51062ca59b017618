"""The module in docs/tasks.md works as described there."""

import gzip
import json
import re
from pathlib import Path

import pytest

from pretrainkit.tasks.task import REGISTRY
from pretrainkit.tokenizers.train import TokenizerSettings, train_tokenizer

COLUMNS = ("sentence", "sentence1", "sentence2", "question", "question1", "question2", "premise", "hypothesis")
WORDS = "the cat sat on a mat and looked at dogs with nine blue eyes"
PAGE = Path(__file__).parents[2] / "docs" / "tasks.md"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PRETRAINKIT_CACHE", str(tmp_path / "indexes"))
    monkeypatch.chdir(tmp_path)
    code = re.search(r"^```python\n# my_tasks.py\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    (tmp_path / "my_tasks.py").write_text(code[1], encoding="utf-8")
    (tmp_path / "cola").mkdir()
    for name in ("train", "dev"):
        (tmp_path / "cola" / f"{name}.tsv").write_text("a\t1\t\tIt is.\na\t0\t*\tIs it it.\na\t?\t\tWhat.\n")
    pairs = [{"en": "a house", "de": "ein Haus"}, {"en": "a tree", "de": "ein Baum"}]
    packed = gzip.compress("\n".join(map(json.dumps, pairs)).encode())
    (tmp_path / "pairs-0.jsonl.gz").write_bytes(packed)
    for name in ("cola", "sst2", "mrpc", "qqp", "stsb", "mnli", "mnli_matched", "mnli_mismatched", "qnli", "rte", "ax"):
        split = {"ax": "test"}.get(name, "validation" if "matched" in name else "train")
        (tmp_path / "data/glue" / name).mkdir(parents=True)
        (tmp_path / "data/glue" / name / f"{split}.jsonl").write_text(
            json.dumps(dict.fromkeys(COLUMNS, "It is.") | {"label": 0})
        )
    (tmp_path / "words.tsv").write_text("".join(f"{word}\t9\n" for word in WORDS.split()))
    settings = TokenizerSettings(layout="t5", vocab_size=280)
    train_tokenizer([tmp_path / "words.tsv"], tmp_path / "data/tokenizer", settings)
    yield tmp_path
    for name in ("my_mixture", "my:cola", "my:translate"):
        if name in REGISTRY.names():
            REGISTRY.remove(name)


def test_the_commands_of_the_page_run(cli, folder):
    commands = re.findall(r"^pretrainkit (tasks [^#\n]+)", PAGE.read_text(encoding="utf-8"), re.M)
    assert len(commands) >= 6
    shown = [cli(*command.split()) for command in commands]
    assert [result.code for result in shown] == [0] * len(commands), shown
    assert "my:cola" in shown[0].out
    assert "'cola sentence: It is.' + EOS" in shown[1].out
    assert "'unaccep' + EOS" in shown[1].out
    assert "my:translate" in shown[2].out
    assert "my:cola train, 2 examples" in shown[4].out
    assert "from a cache" in shown[5].out

"""One small corpus with tokenizer and token shards, and one finished run on it, from the commands of README.md."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.command_line import NO_DROPOUT, TINY, succeed
from support.generated_text import documents


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Sums over another number of threads differ in their last bits, and runs here are compared with subprocesses."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with my_text/, data/corpus, data/words.tsv, data/tokenizer and data/tokens."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "my_text").mkdir()
    texts = documents()
    for number in range(2):
        (folder / "my_text" / f"part-{number}.txt").write_text("\n\n".join(texts[number::2]) + "\n", encoding="utf-8")
    data = folder / "data"
    inputs = sorted((folder / "my_text").glob("*.txt"))
    succeed("corpus", "shards", *inputs, "--out", data / "corpus", "--num-shards", 2, "--heldout", 0.1)
    train = data / "corpus" / "train" / "*.jsonl"
    succeed("corpus", "count-words", train, "--out", data / "words.tsv", "--workers", 1)
    succeed(
        *("tokenizer", "train", data / "words.tsv", "--vocab-size", 700),
        *("--sentences-from", train, "--out", data / "tokenizer"),
    )
    succeed("tokenizer", "encode", data / "corpus", "--tokenizer", data / "tokenizer", "--out", data / "tokens")
    return folder


@pytest.fixture(scope="session")
def tokens(made: Path) -> Path:
    """Token shards, train and valid."""
    return made / "data" / "tokens"


@pytest.fixture(scope="session")
def settings(tokens: Path) -> list[str]:
    """Arguments of `pretrainkit train` for 12 steps of a few milliseconds."""
    return ["bert/tiny", f"data.train={tokens}/train", f"data.valid={tokens}/valid", "num_steps=12", *TINY]


@pytest.fixture(scope="session")
def finished(settings: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was never stopped: checkpoints at steps 4, 8 and 12, with dropout and an average of the weights."""
    run = tmp_path_factory.mktemp("finished") / "run"
    succeed("train", *settings, "ema_decay=0.9", "checkpoint.keep_last=9", "--out", run)
    return run


@pytest.fixture(scope="session")
def finished_without_dropout(settings: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same without dropout, for comparisons between layouts and numbers of ranks."""
    run = tmp_path_factory.mktemp("finished") / "no-dropout"
    succeed("train", *settings, *NO_DROPOUT, "checkpoint.keep_last=9", "--out", run)
    return run

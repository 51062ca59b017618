"""The demo: the commands a user would type, one after another, on prose that every machine with Python has.

Each command is printed as it is run, so that the demo reads as a tutorial. In the middle the training is killed without
warning and resumed, and the losses after the resumption are compared with those before, digit by digit.
"""

import json
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pretrainkit.demo.prose import plain_text_documents, standard_library_documents
from pretrainkit.errors import DataError, InputError, RunError

VOCAB_SIZE = 4096
NUM_STEPS = 1200
CHECKPOINT_STEPS = 100
KILL_AFTER_STEP = 225
"""Not a multiple of CHECKPOINT_STEPS: the steps since the last checkpoint are made again, and compared."""
KILL_TIMEOUT_SECONDS = 600
MIN_BYTES = 200_000
CORPUS_SUFFIXES = (".jsonl", ".zst", ".gz", ".parquet")
MASKED_IN_ENGLISH = ["He said that <mask> would come.", "There was no <mask> in the house.", "It is one of the <mask>."]
MASKED_IN_PYTHON = [
    "If the file cannot be <mask>, an exception is raised.",
    "The function <mask> a list of strings.",
    "Return <mask> if the object is an instance of the class.",
]


def run_demo(folder: Path, text_files: list[Path], num_steps: int = NUM_STEPS) -> dict[str, Any]:
    """Run the whole demo into `folder`; returns its headline numbers.

    Args:
        folder: Replaced when it holds an earlier demo, refused when it holds anything else.
        text_files: The user's own files; none: prose of the Python installation.
        num_steps: Optimizer updates.
    """
    began = time.monotonic()
    _prepare(folder)
    _say(1, "Text", "real English prose" if not text_files else "your files")
    inputs = _inputs(text_files, folder / "text.jsonl")

    _say(2, "Corpus", "checksummed shards; 3 % of the documents are held out by a hash of their text")
    _pretrainkit("corpus", "shards", *inputs, "--out", folder / "corpus", "--num-shards", 4, "--heldout", 0.03)

    _say(3, "Vocabulary", "word counts, then SentencePiece and sentence boundaries learned from the same text")
    shards = folder / "corpus" / "train" / "*.jsonl"
    _pretrainkit("corpus", "count-words", shards, "--out", folder / "words.tsv")
    with open(folder / "words.tsv", encoding="utf-8") as file:
        vocab_size = min(VOCAB_SIZE, 512 + sum(1 for _ in file) // 4)  # little text has few pieces
    _pretrainkit(
        *("tokenizer", "train", folder / "words.tsv", "--vocab-size", vocab_size),
        *("--sentences-from", shards, "--out", folder / "tokenizer"),
    )
    _pretrainkit(
        "tokenizer", "encode", folder / "corpus", "--tokenizer", folder / "tokenizer", "--out", folder / "tokens"
    )

    _say(
        4,
        "Pretraining",
        f"bert/modern-tiny for {num_steps} steps; killed without warning after step {KILL_AFTER_STEP}, then resumed",
    )
    run = folder / "run"
    command = [
        *("train", "bert/modern-tiny", f"data.train={folder}/tokens/train", f"data.valid={folder}/tokens/valid"),
        *(f"num_steps={num_steps}", f"checkpoint.every_steps={CHECKPOINT_STEPS}", "log.every_steps=5", "--out", run),
    ]
    before = _train_until_killed(command, run)
    _pretrainkit("resume", run)
    num_equal = _compare_losses(before, _read_metrics(run))

    _say(5, "Evaluation", "on the documents that were held out, with fixed masks")
    _pretrainkit("evaluate", run)

    _say(6, "Export", "to Hugging Face's format, read back by transformers")
    _pretrainkit("export", run, "--format", "huggingface", "--out", folder / "export")
    prompts = MASKED_IN_ENGLISH if text_files else MASKED_IN_PYTHON
    for prompt, answers in _fill_with_transformers(folder / "export", prompts):
        print(f"  {prompt}\n    {', '.join(answers)}")
    print("  and the same by ourselves:")
    _pretrainkit("generate", run, prompts[0])

    _say(7, "Report", "one HTML page")
    report = folder / "report.html"
    _pretrainkit("report", run, "--out", report)
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    loss, plateau = summary["valid_masked_lm_loss"], summary["unigram_loss"]
    result = {
        "masked_lm_loss": loss,
        "unigram_loss": plateau,
        "next_sentence_accuracy": summary["valid_next_sentence_accuracy"],
        "equal_losses_after_resume": num_equal,
        "seconds": round(time.monotonic() - began, 1),
        "report": str(report),
    }
    _say(8, "Done", f"in {result['seconds'] / 60:.1f} minutes")
    print(
        f"  held-out masked-word loss   {loss:.3f} nats (guessing by word frequency: {plateau:.3f}, all words equal: "
        f"{summary['uniform_loss']:.3f})\n"
        f"  held-out word accuracy      {summary['valid_masked_lm_accuracy']:.1%}\n"
        f"  sentence order accuracy     {result['next_sentence_accuracy']:.1%} (guessing: 50 %)\n"
        f"  losses equal after resume   {num_equal} of {num_equal}, every digit\n"
        f"  run                         {run}\n  for transformers            {folder / 'export'}\n"
        f"  report                      {report}\n"
        "\n  Your own text next: pretrainkit demo --text FILE..., or the five commands of the README."
    )
    return result


def _prepare(folder: Path) -> None:
    marker = folder / ".pretrainkit-demo"
    if folder.exists() and any(folder.iterdir()):
        if not marker.exists():
            raise InputError(f"{folder} holds something else than a demo\n  give another place: --out FOLDER")
        shutil.rmtree(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        marker.touch()
    except OSError as error:
        raise InputError(f"cannot write {folder}\n  {error}\n  give another place: --out FOLDER") from None


def _inputs(text_files: list[Path], target: Path) -> list[str]:
    """What `corpus shards` reads: corpus files as they are, plain text or Python's prose as JSON lines in `target`."""
    ready = [path for path in text_files if path.name.endswith(CORPUS_SUFFIXES)]
    plain = [path for path in text_files if path not in ready]
    if plain:
        documents = (pair for path in plain for pair in plain_text_documents(path))
        _write_documents(target, documents, f"paragraphs of {len(plain)} file{'s' if len(plain) > 1 else ''}")
    elif not ready:
        _write_documents(target, standard_library_documents(), "Python's language reference and docstrings")
    return [*map(str, ready), *([str(target)] if plain or not ready else [])]


def _write_documents(path: Path, documents: Iterable[tuple[str, str]], what: str) -> None:
    """Write (source, text) pairs as JSON lines and say how much it is."""
    num_documents = num_bytes = 0
    with open(path, "w", encoding="utf-8") as file:
        for name, text in documents:
            file.write(json.dumps({"text": text, "meta": {"source": name}}, ensure_ascii=False) + "\n")
            num_documents += 1
            num_bytes += len(text.encode())
    if num_bytes < MIN_BYTES:
        raise DataError(
            f"{what}: only {num_bytes:,} bytes of text; the demo needs {MIN_BYTES:,} to learn anything from\n"
            "  give more text of your own: pretrainkit demo --text FILE..."
        )
    print(f"  {path}: {num_documents} documents, {num_bytes / 1e6:.1f} MB: {what}")


def _pretrainkit(*words: object) -> None:
    """Print and run a command line of our own. Raises InputError or RunError as it did."""
    print("  $ " + shlex.join(["pretrainkit", *map(str, words)]), flush=True)
    done = subprocess.run([sys.executable, "-m", "pretrainkit", *map(str, words)], check=False)
    if done.returncode == 130:
        raise KeyboardInterrupt
    if done.returncode:
        kind = InputError if done.returncode == InputError.exit_code else RunError
        raise kind(f"the command above ended with exit code {done.returncode}\n  its message says what to do")


def _train_until_killed(command: Iterable[object], run: Path) -> dict[int, float]:
    """Start a training, kill -9 it after KILL_AFTER_STEP, and return the losses it had logged by step."""
    words = [str(word) for word in command]
    print("  $ " + shlex.join(["pretrainkit", *words]), flush=True)
    process = subprocess.Popen([sys.executable, "-m", "pretrainkit", *words])
    deadline = time.monotonic() + KILL_TIMEOUT_SECONDS
    try:
        while max(_read_metrics(run), default=0) < KILL_AFTER_STEP:
            if process.poll() is not None:
                raise RunError(f"the training ended by itself with exit code {process.returncode}")
            if time.monotonic() > deadline:
                raise RunError(f"the training did not reach step {KILL_AFTER_STEP} in {KILL_TIMEOUT_SECONDS} seconds")
            time.sleep(0.05)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait()
    losses = _read_metrics(run)
    print(f"\n  kill -9 after step {max(losses)}; the newest checkpoint is the last multiple of {CHECKPOINT_STEPS}")
    return losses


def _read_metrics(run: Path) -> dict[int, float]:
    """Step to loss of a metrics file that may be growing."""
    path = run / "metrics.jsonl"
    if not path.exists():
        return {}
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    return {row["step"]: row["loss"] for row in map(json.loads, lines)}


def _compare_losses(before: Mapping[int, float], after: Mapping[int, float]) -> int:
    """How many losses were computed twice, all equal to the last digit. Raises RunError where one differs."""
    first = max(before) // CHECKPOINT_STEPS * CHECKPOINT_STEPS
    twice = [step for step in before if step > first]
    wrong = [step for step in twice if before[step] != after[step]]
    if wrong or not twice:
        raise RunError(f"the resumed run does not go on exactly: steps {wrong} of {twice} differ")
    print(f"\n  steps {twice[0]} to {twice[-1]} were computed twice, before the kill and after it:")
    for step in twice[:3]:
        print(f"    step {step}: {before[step]!r} and {after[step]!r}")
    print(f"    … all {len(twice)} logged losses are equal to the last digit")
    return len(twice)


def _fill_with_transformers(export: Path, prompts: list[str]) -> list[tuple[str, list[str]]]:
    """Load the export as any user of transformers would, and fill in the masks."""
    from transformers import AutoModelForMaskedLM, AutoTokenizer, pipeline
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    print("  >>> pipeline('fill-mask', model=AutoModelForMaskedLM.from_pretrained(EXPORT), tokenizer=…)")
    fill = pipeline(
        "fill-mask",
        model=AutoModelForMaskedLM.from_pretrained(export),
        tokenizer=AutoTokenizer.from_pretrained(export),
        device="cpu",
    )
    return [(prompt, [row["token_str"].strip() for row in fill(prompt)]) for prompt in prompts]


def _say(number: int, title: str, text: str) -> None:
    print(f"\n[{number}/8] {title}: {text}", flush=True)

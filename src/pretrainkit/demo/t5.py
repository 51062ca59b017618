"""The T5 demo: span corruption on prose, then fine-tuning on the text-to-text task of `part_of_python.py`."""

import hashlib
import shutil
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from pretrainkit.demo.prose import standard_library_documents, write_documents
from pretrainkit.demo.walk import Walk, pretrainkit, quiet_transformers, read_json, read_json_lines, write_json_lines
from pretrainkit.errors import RunError

VOCAB_SIZE = 2048
NUM_PRETRAINING = 240
"""Number of updates of pretraining."""
TASK = "part_of_python"
MODULE = Path(__file__).with_name("part_of_python.py")
"""The module of the task, which is copied to the demo's folder."""
INPUT_LENGTH, TARGET_LENGTH = 80, 12
"""Maximum number of tokens of a paragraph (longer ones are cut), and of an answer (none is longer)."""
NUM_SHOWN, NUM_COMPARED = 4, 16
"""Number of held-out rows whose answers are printed, and of those that are compared with transformers."""

NUM_PARTS = 6
"""Number of parts in the task: those with the most paragraphs, which depend on the version of Python."""
MIN_CHARACTERS, MAX_CHARACTERS = 60, 300
"""Minimum and maximum length of a paragraph. Shorter ones are too unspecific; longer ones would be cut."""
HELD_OUT_SHARE = 0.15


class Rows(NamedTuple):
    """Numbers of written rows, and the score of always guessing the most frequent part."""

    num_train: int
    num_held_out: int
    parts: list[str]
    """Parts from the most frequent to the least."""
    majority_percent: float
    """Percentage of the held-out rows about the part that is most frequent in training."""


def run_demo(folder: Path, num_steps: int, seed: int = 0) -> dict[str, Any]:
    """Run the demo in `folder`, which is replaced if it has an earlier demo. Return its headline numbers.

    `num_steps`: number of optimizer updates of fine-tuning."""
    walk = Walk(folder, 8, seed)
    walk.chapter("Text", "prose of the Python installation, and rows of a task made from it")
    write_documents(folder / "text.jsonl", standard_library_documents(), "Python's language reference and docstrings")
    rows = write_rows(folder / "task", standard_library_documents())
    print(
        f"  {folder / 'task'}: {rows.num_train:,} paragraphs to train on, {rows.num_held_out} held out: is it about "
        f"{', '.join(rows.parts[:-1])} or {rows.parts[-1]}?"
    )

    walk.chapter("Vocabulary", "SentencePiece with T5's control pieces; then token shards")
    pretrainkit("corpus", "shards", folder / "text.jsonl", "--out", folder / "corpus", "--heldout", 0.03)
    pretrainkit("corpus", "count-words", folder / "corpus" / "train" / "*.jsonl", "--out", folder / "words.tsv")
    pretrainkit(
        *("tokenizer", "train", folder / "words.tsv", "--layout", "t5", "--vocab-size", VOCAB_SIZE),
        *("--out", folder / "tokenizer"),
    )
    pretrainkit(
        *("tokenizer", "encode", folder / "corpus", "--tokenizer", folder / "tokenizer", "--splitter", "none"),
        *("--out", folder / "tokens"),
    )

    walk.chapter(
        "Pretraining", f"t5/micro on span corruption, {NUM_PRETRAINING} steps: which words does <extra_id_0> replace?"
    )
    pretrained = folder / "pretrained"
    pretrainkit(
        *("train", "t5/micro", f"data.train={folder}/tokens/train", f"data.valid={folder}/tokens/valid"),
        *(f"seed={seed}", f"num_steps={NUM_PRETRAINING}", "evaluate.every_steps=100", "--out", pretrained),
    )

    walk.chapter("Task", "a Python module defines the source, how rows become inputs and targets, and the metric")
    module = folder / MODULE.name
    shutil.copyfile(MODULE, module)
    print(f"  {module}: written by the demo; your own module can look like it")
    pretrainkit("tasks", "show", TASK, "--num", 2, "--module", module)

    run = walk.train(
        *("Fine-tuning", f"{num_steps} steps from the pretrained weights, evaluated by the accuracy of its answers"),
        *("t5/micro", f"data.task={TASK}", f"data.modules=[{module}]", f"init_from={pretrained}"),
        *(f"data.input_length={INPUT_LENGTH}", f"data.target_length={TARGET_LENGTH}", "model.dropout=0.1"),
        *("log.every_steps=5", "evaluate.every_steps=60", "evaluate.before_training=true"),
        num_steps=num_steps,
        checkpoint_steps=40,
        kill_after_step=70,
    )

    walk.chapter("Inference", "answers to the held-out rows as JSON lines")
    answers = folder / "answers.jsonl"
    pretrainkit(*("infer", run, "precision.compute=float32", "--task", TASK, "--split", "validation", "--out", answers))
    rows_answered, truth = read_json_lines(answers), read_json_lines(folder / "task/validation.jsonl")
    for row, true in list(zip(rows_answered, truth, strict=True))[:: len(truth) // NUM_SHOWN][:NUM_SHOWN]:
        print(f"  {true['paragraph'][:90]}\n    {row['prediction']} (it is {true['part']})")

    walk.chapter("Export", "to Hugging Face's format; transformers must give the same answers")
    pretrainkit("export", run, "--format", "huggingface", "--out", folder / "export")
    questions = [f"part of python: {row['paragraph']}" for row in truth[:NUM_COMPARED]]
    answers_of_transformers = ask_transformers(folder / "export", folder / "tokenizer", questions)
    own_answers = [row["prediction"] for row in rows_answered[:NUM_COMPARED]]
    if answers_of_transformers != own_answers:
        raise RunError(f"transformers answers {answers_of_transformers}, but pretrainkit {own_answers}")
    print(f"  all {NUM_COMPARED} answers of T5ForConditionalGeneration.from_pretrained(EXPORT).generate() are the same")

    walk.chapter("Report", "one HTML page")
    walk.report(run)
    evaluations = read_json_lines(run / "eval.jsonl")
    before, after = (evaluations[index][f"{TASK}/accuracy"] for index in (0, -1))
    pretraining = read_json(folder / "pretrained/summary.json")
    result = walk.numbers(
        span_corruption_loss=pretraining["valid_nll_per_target_token"],
        unigram_loss=pretraining["unigram_loss"],
        accuracy_before=before,
        accuracy=after,
        majority_accuracy=round(rows.majority_percent, 2),
    )
    others = [(row, true) for row, true in zip(rows_answered, truth, strict=True) if true["part"] != rows.parts[0]]
    right = 100 * sum(row["prediction"] == true["part"] for row, true in others) / len(others)
    walk.tell(
        {
            "held-out loss of hidden words": f"{result['span_corruption_loss']:.3f} nats (guessing by frequency: "
            f"{result['unigram_loss']:.3f})",
            "correct answers": f"{after:.1f} % of {rows.num_held_out} held-out rows (before fine-tuning "
            f"{before:.1f} %, always {rows.parts[0]!r}: {rows.majority_percent:.1f} %)",
            "of the other parts": f"{right:.1f} % of {len(others)} rows (guessing one of {len(rows.parts)} parts: "
            f"{100 / len(rows.parts):.1f} %)",
        },
        {"run": run, "for transformers": folder / "export"},
        "To use your own tasks, see docs/tasks.md.",
    )
    return result


def ask_transformers(export: Path, tokenizer: Path, texts: list[str]) -> list[str]:
    """Return the greedy answers of the export with transformers."""
    import torch

    transformers = quiet_transformers()
    model = transformers.T5ForConditionalGeneration.from_pretrained(export)
    load_tokenizer = transformers.AutoTokenizer.from_pretrained(tokenizer)
    inputs = load_tokenizer(texts, return_tensors="pt", padding=True)
    with torch.no_grad():
        ids = model.generate(**inputs, max_new_tokens=TARGET_LENGTH, do_sample=False)
    return load_tokenizer.batch_decode(ids, skip_special_tokens=True)


def write_rows(folder: Path, documents: Iterable[tuple[str, str]]) -> Rows:
    """Write `train.jsonl` and `validation.jsonl` with rows {"paragraph", "part"} to a new folder.

    `documents` are (name, text) with a paragraph per line, such as those from
    `prose.standard_library_documents`. Held-out rows are chosen by a hash of the paragraph, so that no text is in both
    files."""
    part_of_paragraph: dict[str, str] = {}
    for name, text in documents:
        for paragraph in text.split("\n"):
            if MIN_CHARACTERS <= len(paragraph) <= MAX_CHARACTERS:
                part_of_paragraph.setdefault(paragraph, part_of(name))
    parts = [part for part, _ in Counter(part_of_paragraph.values()).most_common(NUM_PARTS)]
    rows: dict[bool, list[dict[str, str]]] = {False: [], True: []}
    for paragraph, part in part_of_paragraph.items():
        if part in parts:
            digest = hashlib.blake2b(paragraph.encode(), digest_size=8).digest()
            rows[int.from_bytes(digest) < HELD_OUT_SHARE * 2**64].append({"paragraph": paragraph, "part": part})
    folder.mkdir()
    for name, is_held_out in (("train", False), ("validation", True)):
        write_json_lines(folder / f"{name}.jsonl", rows[is_held_out])
    majority = Counter(row["part"] for row in rows[False]).most_common(1)[0][0]
    share = sum(row["part"] == majority for row in rows[True]) / len(rows[True])
    return Rows(len(rows[False]), len(rows[True]), parts, 100 * share)


def part_of(document: str) -> str:
    """Return "reference" for documents of the language reference, else the module or package of the standard
    library."""
    group, _, rest = document.partition("/")
    return group if group == "reference" else rest.split("/")[0]

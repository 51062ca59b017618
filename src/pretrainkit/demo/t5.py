"""The T5 demo: span corruption on prose, then fine-tuning on a text-to-text task whose module lies beside this file.

Each command is printed as it is run, so that the demo reads as a tutorial.
"""

import shutil
import time
from pathlib import Path
from typing import Any

from pretrainkit.demo import parts
from pretrainkit.demo.documents import write_documents
from pretrainkit.demo.prose import standard_library_documents
from pretrainkit.demo.walk import prepare_folder, pretrainkit, say, train_killed_and_resumed

VOCAB_SIZE = 2048
NUM_PRETRAINING_STEPS = 500
NUM_STEPS = 400
"""Of fine-tuning."""
CHECKPOINT_STEPS = 50
KILL_AFTER_STEP = 120
"""Not a multiple of CHECKPOINT_STEPS: the steps since the last checkpoint are made again, and compared."""
NUM_CHAPTERS = 8
TASK = "part_of_python"
NUM_SHOWN = 4


def run_demo(folder: Path, num_steps: int = NUM_STEPS) -> dict[str, Any]:
    """Run the whole demo into `folder`; returns its headline numbers.

    Args:
        folder: Replaced when it holds an earlier demo, refused when it holds anything else.
        num_steps: Optimizer updates of fine-tuning.
    """
    began = time.monotonic()
    prepare_folder(folder)
    say(1, NUM_CHAPTERS, "Text", "prose that is on every machine with Python, and rows of a task made of it")
    write_documents(folder / "text.jsonl", standard_library_documents(), "Python's language reference and docstrings")
    rows = parts.write_rows(folder / "task", standard_library_documents())
    print(
        f"  {folder / 'task'}: {rows.num_train:,} paragraphs to train on, {rows.num_held_out} held out: is it about "
        f"{', '.join(rows.parts[:-1])} or {rows.parts[-1]}?"
    )

    say(2, NUM_CHAPTERS, "Vocabulary", "SentencePiece with T5's control pieces; then token shards")
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

    say(3, NUM_CHAPTERS, "Pretraining", f"span corruption, t5/micro for {NUM_PRETRAINING_STEPS} steps")
    pretrained = folder / "pretrained"
    pretrainkit(
        *("train", "t5/micro", f"data.train={folder}/tokens/train", f"data.valid={folder}/tokens/valid"),
        *(f"num_steps={NUM_PRETRAINING_STEPS}", "evaluate.every_steps=250", "checkpoint.every_steps=250"),
        *("--out", pretrained),
    )

    say(4, NUM_CHAPTERS, "A task", "a Python module that says what to read, and how it becomes inputs and targets")
    module = folder / "part_of_python.py"
    shutil.copyfile(Path(__file__).with_name("part_of_python.py"), module)
    print(f"  {module}: a copy of it is yours to change")
    pretrainkit("tasks", "show", TASK, "--num", 2, "--module", module)

    say(
        5,
        NUM_CHAPTERS,
        "Fine-tuning",
        f"{num_steps} steps from the pretrained weights; killed without warning after step {KILL_AFTER_STEP}, then "
        "resumed",
    )
    run = folder / "run"
    command = [
        *("train", "t5/micro", f"data.task={TASK}", f"data.modules=[{module}]", f"init_from={pretrained}"),
        *("data.input_length=80", "data.target_length=6", "model.dropout=0.1", f"num_steps={num_steps}"),
        *(f"checkpoint.every_steps={CHECKPOINT_STEPS}", "log.every_steps=5", "--out", run),
    ]
    num_equal = train_killed_and_resumed(
        command, run, kill_after_step=KILL_AFTER_STEP, checkpoint_steps=CHECKPOINT_STEPS
    )
    return {"equal": num_equal, "seconds": time.monotonic() - began, "majority": rows.majority_percent}

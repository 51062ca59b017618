"""A custom text-to-text task: which part of Python is this paragraph about?

Created by `pretrainkit demo t5`. You can write your own tasks like this: see docs/tasks.md.
"""

from pathlib import Path

from pretrainkit.tasks.preprocessors import append_eos_after_trim, format_strings, tokenize
from pretrainkit.tasks.sources import JsonLines
from pretrainkit.tasks.task import Feature, Task, add_task
from pretrainkit.tasks.vocabulary import SentencePieceVocabulary

HERE = Path(__file__).parent
VOCABULARY = SentencePieceVocabulary(HERE / "tokenizer", extra_ids=100)
FEATURES = {"inputs": Feature(VOCABULARY), "targets": Feature(VOCABULARY)}


def accuracy(targets, predictions):
    """Percentage of predicted texts that equal the true ones."""
    return {"accuracy": 100 * sum(t == p for t, p in zip(targets, predictions)) / len(targets)}


add_task(
    Task(
        name="part_of_python",
        source=JsonLines({"train": HERE / "task/train.jsonl", "validation": HERE / "task/validation.jsonl"}),
        features=FEATURES,
        preprocessors=[
            format_strings(inputs="part of python: {paragraph}", targets="{part}"),
            tokenize(),
            append_eos_after_trim,
        ],
        metrics=[accuracy],
    )
)

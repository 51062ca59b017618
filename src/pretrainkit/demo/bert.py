"""The BERT demo: train, evaluate and export a tiny model with the prose of the Python installation."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pretrainkit.demo.prose import plain_text_documents, standard_library_documents, write_documents
from pretrainkit.demo.walk import Walk, pretrainkit, quiet_transformers, read_json
from pretrainkit.tokenizers.shards import TokenShards

VOCAB_SIZE = 4096
CORPUS_SUFFIXES = (".jsonl", ".zst", ".gz", ".parquet")
MASKED_IN_ENGLISH = ["We know that <mask> will come.", "There was no <mask> in the house.", "It is one of the <mask>."]
MASKED_IN_PYTHON = [
    "If the argument is not a string, a TypeError is <mask>.",
    "This function returns a <mask> of strings.",
    "Return <mask> if the object is an instance of the class.",
]


def run_demo(folder: Path, num_steps: int, seed: int = 0, text: Sequence[Path] = ()) -> dict[str, Any]:
    """Run the demo in `folder`, which is replaced if it has an earlier demo. Return its headline numbers.

    `text`: the user's own files; if empty, the prose of the Python installation is used."""
    walk = Walk(folder, 7, seed)
    walk.chapter("Text", "the documentation in the Python installation" if not text else "your files")
    inputs = _inputs(text, folder / "text.jsonl")

    walk.chapter("Corpus", "checksummed shards; 3 % of the documents are held out by a hash of their text")
    pretrainkit("corpus", "shards", *inputs, "--out", folder / "corpus", "--num-shards", 4, "--heldout", 0.03)

    walk.chapter("Vocabulary", "word counts, then SentencePiece and sentence boundaries learned from the same text")
    shards = folder / "corpus" / "train" / "*.jsonl"
    pretrainkit("corpus", "count-words", shards, "--out", folder / "words.tsv")
    with open(folder / "words.tsv", encoding="utf-8") as file:
        vocab_size = min(VOCAB_SIZE, 512 + sum(1 for _ in file) // 4)  # little text allows only a small vocabulary
    pretrainkit(
        *("tokenizer", "train", folder / "words.tsv", "--vocab-size", vocab_size),
        *("--sentences-from", shards, "--out", folder / "tokenizer"),
    )
    pretrainkit(
        "tokenizer", "encode", folder / "corpus", "--tokenizer", folder / "tokenizer", "--out", folder / "tokens"
    )

    run = walk.train(
        *("Pretraining", f"bert/modern-tiny for {num_steps} steps", "bert/modern-tiny"),
        *(f"data.train={folder}/tokens/train", f"data.valid={folder}/tokens/valid", "log.every_steps=5"),
        "objective.sentence_pair=next",
        num_steps=num_steps,
        checkpoint_steps=100,
        kill_after_step=225 if num_steps >= 300 else 125,
    )

    walk.chapter("Evaluation", "on the documents that were held out, with fixed masks")
    pretrainkit("evaluate", run)

    walk.chapter("Export", "to Hugging Face's format, read back by transformers")
    pretrainkit("export", run, "--format", "huggingface", "--out", folder / "export")
    prompts = MASKED_IN_ENGLISH if text else MASKED_IN_PYTHON
    for prompt, answers in _fill_with_transformers(folder / "export", prompts):
        print(f"  {prompt}\n    {', '.join(answers)}")
    print("  and the same with pretrainkit:")
    pretrainkit("generate", run, prompts[0])

    walk.chapter("Report", "one HTML page")
    walk.report(run)
    summary = read_json(run / "summary.json")
    counts = np.bincount(TokenShards.open(folder / "tokens" / "valid").tokens(0))
    loss, plateau = summary["valid_masked_lm_loss"], summary["unigram_loss"]
    words, accuracy = summary["valid_masked_lm_accuracy"], summary["valid_next_sentence_accuracy"]
    commonest = float(counts.max() / counts.sum())
    result = walk.numbers(
        masked_lm_loss=loss,
        unigram_loss=plateau,
        masked_lm_accuracy=words,
        most_frequent_accuracy=commonest,
        next_sentence_accuracy=accuracy,
    )
    guesses = f"guessing by word frequency: {plateau:.3f}, all words equal: {summary['uniform_loss']:.3f}"
    walk.tell(
        {
            "held-out masked-word loss": f"{loss:.3f} nats ({guesses})",
            "held-out word accuracy": f"{words:.1%} (always the most frequent one: {commonest:.1%})",
            "second part is the next one": f"{accuracy:.1%} right (guessing: 50 %)",
        },
        {"run": run, "for transformers": folder / "export"},
        "To use your own text: pretrainkit demo --text FILE..., or the five commands of the README.",
    )
    return result


def _inputs(text: Sequence[Path], target: Path) -> list[str]:
    """Return the inputs of `corpus shards`: corpus files unchanged, and plain text or Python's prose, which is written
    to `target` as JSON lines."""
    ready = [path for path in text if path.name.endswith(CORPUS_SUFFIXES)]
    plain = [path for path in text if path not in ready]
    if plain:
        documents = (pair for path in plain for pair in plain_text_documents(path))
        write_documents(target, documents, f"paragraphs of {len(plain)} file{'s' if len(plain) > 1 else ''}")
    elif not ready:
        write_documents(target, standard_library_documents(), "Python's language reference and docstrings")
    return [*map(str, ready), *([str(target)] if plain or not ready else [])]


def _fill_with_transformers(export: Path, prompts: list[str]) -> list[tuple[str, list[str]]]:
    """Load the export with transformers like any user would, and fill in the masks."""
    transformers = quiet_transformers()
    print("  >>> pipeline('fill-mask', model=AutoModelForMaskedLM.from_pretrained(EXPORT), tokenizer=…)")
    fill = transformers.pipeline(
        "fill-mask",
        model=transformers.AutoModelForMaskedLM.from_pretrained(export),
        tokenizer=transformers.AutoTokenizer.from_pretrained(export),
        device="cpu",
    )
    return [(prompt, [row["token_str"].strip() for row in fill(prompt)]) for prompt in prompts]

"""Speed of encoding text to token shards, compared with SentencePiece's list encoding and the tokenizers library.

All engines encode the same sentences with the same model and alternate in each round, so that a busy machine slows all
of them equally. The results are MB of UTF-8 text per CPU-second of all processes (best round), and ratios to
SentencePiece in the same run. `shards` reads JSONL, encodes, hashes and writes; `shards, punkt` also finds the
sentences first. With 2 threads or processes, compare the wall times, on a machine with two idle cores.

    python benchmarks/tokenizing.py [--rounds 3] [--megabytes 8] [--quick] [--text FILE.jsonl...]
"""

import argparse
import json
import os
import resource
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from pretrainkit.corpus.readers import read_documents
from pretrainkit.demo.prose import standard_library_documents
from pretrainkit.files.sources import find_sources
from pretrainkit.tokenizers.encode import EncodeSettings, encode_corpus
from pretrainkit.tokenizers.load import HuggingFaceTokenizer, SentencePieceTokenizer
from pretrainkit.tokenizers.sentences import PunktSplitter, learn_punkt
from pretrainkit.tokenizers.train import TokenizerSettings, train_tokenizer

SAMPLE = Path(os.environ.get("PRETRAINKIT_SAMPLE_DATA", Path(__file__).resolve().parents[2] / "shared/data"))
NUM_FILES = 4


def load_texts(files: list[str], num_bytes: int) -> list[str]:
    """Return documents of about `num_bytes` in total, from `files`, else English novels, else Python's documentation.
    They are repeated if necessary."""
    novels = SAMPLE / "books/novels_train.jsonl.zst"
    if not files and novels.is_file():
        files = [str(novels)]
    if files:
        documents = [document.text for document in read_documents(find_sources(files))]
    else:
        documents = [text for _, text in standard_library_documents()]
    texts: list[str] = []
    size = 0
    while size < num_bytes:
        # In pieces of at most 100 kB, so that they can be divided evenly among files.
        text = documents[len(texts) % len(documents)][:100_000]
        texts.append(text)
        size += len(text.encode())
    return texts


def write_jsonl(folder: Path, documents: list[str]) -> Path:
    """Write the documents to `NUM_FILES` files."""
    folder.mkdir()
    for number in range(NUM_FILES):
        rows = [json.dumps({"text": text}) for text in documents[number::NUM_FILES]]
        (folder / f"{number}.jsonl").write_text("\n".join(rows), encoding="utf-8")
    return folder


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and of its finished child processes."""
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--megabytes", type=float, default=8)
    parser.add_argument("--vocab-size", type=int, default=16_000)
    parser.add_argument("--text", nargs="*", default=[], help="JSONL files to encode instead of the sample")
    parser.add_argument("--quick", action="store_true", help="small sizes, one round: a test that it runs")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rounds, arguments.megabytes, arguments.vocab_size = 1, 1, 4000
    with tempfile.TemporaryDirectory() as name:
        run(
            Path(name),
            load_texts(arguments.text, int(arguments.megabytes * 1e6)),
            arguments.vocab_size,
            arguments.rounds,
        )


def run(folder: Path, texts: list[str], vocab_size: int, rounds: int) -> None:
    """Prepare everything in `folder`, measure, and print a table."""
    counts = Counter(word for text in texts for word in text.split())
    (folder / "words.tsv").write_text("".join(f"{word}\t{count}\n" for word, count in counts.items()), encoding="utf-8")
    documents = write_jsonl(folder / "documents", texts)
    punkt = learn_punkt(find_sources([documents]))
    tokenizer = folder / "tokenizer"
    train_tokenizer([folder / "words.tsv"], tokenizer, TokenizerSettings(vocab_size=vocab_size), punkt=punkt)
    split = PunktSplitter(punkt)
    per_document = [[" ".join(sentence.split()) for sentence in split(text)] for text in texts]
    sentences = [sentence for document in per_document for sentence in document]
    lines = write_jsonl(folder / "lines", ["\n".join(document) for document in per_document])
    num_bytes = sum(len(sentence.encode()) for sentence in sentences)

    ours, theirs = SentencePieceTokenizer(tokenizer, None), HuggingFaceTokenizer(tokenizer, None)
    model = ours._model

    def shards(source: Path, splitter: str, workers: int) -> Callable[[], object]:
        def encode() -> None:
            shutil.rmtree(folder / "out", ignore_errors=True)
            encode_corpus([source], tokenizer, folder / "out", EncodeSettings(splitter=splitter), workers=workers)  # type: ignore[arg-type]

        return encode

    engines: dict[str, Callable[[], object]] = {
        "SentencePiece, lists": lambda: model.encode(sentences, num_threads=1),
        "SentencePiece, its arrays": lambda: model.encode(sentences, out_type="numpy", num_threads=1),
        "encode_flat": lambda: ours.encode_flat(sentences),
        "shards": shards(lines, "newline", 1),
        "shards, punkt": shards(documents, "punkt", 1),
        "tokenizers library, Unigram": lambda: theirs.encode_batch(sentences[: len(sentences) // 8]),
        "SentencePiece, lists, 2 threads": lambda: model.encode(sentences, num_threads=2),
        "shards, 2 workers": shards(lines, "newline", 2),
        "shards, punkt, 2 workers": shards(documents, "punkt", 2),
    }
    best_cpu, best_wall = dict.fromkeys(engines, float("inf")), dict.fromkeys(engines, float("inf"))
    for _ in range(rounds):
        for engine, work in engines.items():
            share = 1 / 8 if "library" in engine else 1.0
            cpu, wall = cpu_seconds(), time.perf_counter()
            work()
            best_cpu[engine] = min(best_cpu[engine], (cpu_seconds() - cpu) / share)
            best_wall[engine] = min(best_wall[engine], (time.perf_counter() - wall) / share)

    base = "SentencePiece, lists"
    print(f"{num_bytes / 1e6:.1f} MB in {len(sentences):,} sentences, {vocab_size:,} pieces, best of {rounds} rounds\n")
    print("| engine | MB per CPU-second | ratio | MB per second | ratio |\n|---|---|---|---|---|")
    for engine in engines:
        cpu, wall = best_cpu[engine], best_wall[engine]
        print(
            f"| {engine} | {num_bytes / cpu / 1e6:.1f} | {best_cpu[base] / cpu:.2f} | "
            f"{num_bytes / wall / 1e6:.1f} | {best_wall[base] / wall:.2f} |"
        )


if __name__ == "__main__":
    main()

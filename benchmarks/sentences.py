"""Speed of the sentence splitters in MB of text per CPU-second, and their agreement with NLTK.

Punkt learns its parameters from one part of the texts. All engines split another part, alternately within each round,
so that a busy machine slows all of them equally. Our splitters start each round with an empty cache. A boundary is a
place between two characters other than spaces. The agreement is the share of the boundaries of either engine that both
have. Packages that are not installed are left out.

    python benchmarks/sentences.py [--data FOLDER] [--rounds 3] [--megabytes 4] [--quick]

Without sample data, Python's help texts are split.
"""

import argparse
import importlib.util
import io
import json
import os
import pydoc_data.topics
import time
from collections.abc import Callable
from pathlib import Path

from pretrainkit.tokenizers.punkt_training import train_punkt
from pretrainkit.tokenizers.sentences import PlainSplitter, PunktParameters, PunktSplitter

Split = Callable[[str], list[str]]
SAMPLE = Path(os.environ.get("PRETRAINKIT_SAMPLE_DATA", Path(__file__).resolve().parents[2] / "shared/data"))


def novels(path: Path) -> list[str]:
    import zstandard

    with path.open("rb") as file, zstandard.ZstdDecompressor().stream_reader(file) as stream:
        return [json.loads(line)["text"] for line in io.TextIOWrapper(stream, encoding="utf-8")]


def load_texts(data: Path) -> tuple[list[str], dict[str, list[str]]]:
    """Return the texts to learn from, and the texts to split by name."""
    topics = [text for _, text in sorted(pydoc_data.topics.topics.items())]
    if not (data / "books").is_dir():
        return topics, {"Python help": topics}
    wikipedia = data / "wiki" / "wikitext2" / "wiki.valid.tokens"
    return novels(data / "books" / "novels_train.jsonl.zst"), {
        "novels": [text[:400_000] for text in novels(data / "books" / "novels_valid.jsonl.zst")],
        "WikiText-2": [wikipedia.read_text(encoding="utf-8")],
        "Python help": topics,
    }


def nltk_engine(parameters: PunktParameters) -> Split:
    from nltk.tokenize import punkt

    theirs = punkt.PunktParameters()
    theirs.abbrev_types = set(parameters.abbreviations)
    theirs.collocations = set(parameters.collocations)
    theirs.sent_starters = set(parameters.sentence_starters)
    theirs.ortho_context.update(parameters.orthography)
    return punkt.PunktSentenceTokenizer(theirs).tokenize


def engines(parameters: PunktParameters) -> dict[str, Callable[[], Split]]:
    """Return functions that create the engines, by name."""
    makers: dict[str, Callable[[], Split]] = {
        "NLTK Punkt": lambda: nltk_engine(parameters),
        "ours: punkt, rules of NLTK": lambda: PunktSplitter(parameters, "nltk"),
        "ours: punkt, default rules": lambda: PunktSplitter(parameters),
        "ours: and common abbreviations": lambda: PunktSplitter(parameters.with_language("en")),
        "ours: punkt, rules of Sabertooth": lambda: PunktSplitter(parameters, "sabertooth"),
        "ours: regex": lambda: PlainSplitter("regex"),
        "ours: newline": lambda: PlainSplitter("newline"),
    }
    if importlib.util.find_spec("sentencex"):
        import sentencex

        makers["sentencex"] = lambda: lambda text: list(sentencex.segment("en", text))
    if importlib.util.find_spec("blingfire"):
        import blingfire

        makers["blingfire"] = lambda: lambda text: blingfire.text_to_sentences(text).split("\n")
    return makers


def boundaries(sentences: list[str]) -> set[int]:
    """Return the ends of sentences, as the number of characters before them without spaces."""
    ends, num = set(), 0
    for sentence in sentences:
        num += len("".join(sentence.split()))
        ends.add(num)
    return ends


def compare(name: str, texts: list[str], parameters: PunktParameters, num_rounds: int) -> None:
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    makers = engines(parameters)
    seconds: dict[str, list[float]] = {engine: [] for engine in makers}
    ends: dict[str, list[set[int]]] = {}
    for _ in range(num_rounds):
        for engine, make in makers.items():
            split = make()
            started = time.process_time()
            results = [split(text) for text in texts]
            seconds[engine].append(time.process_time() - started)
            ends[engine] = [boundaries(sentences) for sentences in results]
    theirs, reference = ends["NLTK Punkt"], min(seconds["NLTK Punkt"])
    print(f"\n### {name}, {megabytes:.1f} MB, {sum(map(len, theirs)):,} sentences\n")
    print("| engine | MB / CPU-s, best | of NLTK | boundaries equal |\n|---|---|---|---|")
    for engine, values in seconds.items():
        num_equal = sum(len(a & b) for a, b in zip(theirs, ends[engine], strict=True))
        num_all = sum(len(a | b) for a, b in zip(theirs, ends[engine], strict=True))
        best = min(values)
        print(f"| {engine} | {megabytes / best:.1f} | {reference / best:.1f} | {100 * num_equal / num_all:.2f} % |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=SAMPLE, help="folder of sample texts")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--megabytes", type=float, default=4, help="size of the sample that Punkt learns from")
    parser.add_argument("--quick", action="store_true", help="small sizes, one round: a test that it runs")
    args = parser.parse_args()
    if args.quick:
        args.data, args.rounds, args.megabytes = Path(), 1, 0.5
    to_learn, to_split = load_texts(args.data)
    started = time.process_time()
    parameters = train_punkt(to_learn, max_bytes=int(args.megabytes * 2**20))
    print(
        f"Learned in {time.process_time() - started:.1f} CPU-s: {len(parameters.abbreviations)} abbreviations, "
        f"{len(parameters.collocations)} collocations, {len(parameters.sentence_starters)} sentence starters, "
        f"{len(parameters.orthography)} words"
    )
    for name, texts in to_split.items():
        compare(name, texts, parameters, args.rounds)


if __name__ == "__main__":
    main()

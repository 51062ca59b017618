"""Word counts: our compiled and our Python table, compared with Python's Counter and pyarrow. CPU seconds and peak
memory, in alternating rounds.

    python benchmarks/words.py [--size 200MB] [--rounds 3] [--text FILE...] [--quick]

Every measurement is a separate process. The text is generated: words with Zipf's frequencies (exponent 1.1, a million
words) and lengths like in English, one sentence per line. Or it consists of the files of --text, repeated to the size.
"""

import argparse
import multiprocessing
import resource
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np

from pretrainkit.corpus.word_tables import PythonTable, Tally, new_table
from pretrainkit.corpus.words import count_source, count_words
from pretrainkit.files.sources import find_sources, whole_lines
from pretrainkit.workers.processes import parse_bytes

CHUNK = 1 << 24


def make_text(path: Path, num_bytes: int, texts: list[str]) -> None:
    """Write about `num_bytes` of UTF-8 text to `path`."""
    rng = np.random.default_rng(0)
    if texts:
        content = b"".join(Path(text).read_bytes() for text in texts)
        with open(path, "wb") as file:
            while file.tell() < num_bytes:
                file.write(content[: num_bytes - file.tell()])
        return
    num_words = 1_000_000
    lengths = 1 + rng.poisson(1.2 * np.log10(np.arange(1, num_words + 1)) + 0.8)
    letters = rng.choice(np.frombuffer(b"etaoinshrdlcumwfgypbvk", np.uint8), size=int(lengths.sum()))
    ends = np.cumsum(lengths)
    words = [bytes(letters[end - length : end]) for end, length in zip(ends.tolist(), lengths.tolist(), strict=True)]
    shares = np.arange(1, num_words + 1) ** -1.1
    cumulative = np.cumsum(shares / shares.sum())
    with open(path, "wb") as file:
        while file.tell() < num_bytes:
            drawn = np.searchsorted(cumulative, rng.random(200_000))
            breaks = rng.random(200_000) < 0.05
            for start in range(0, 200_000, 20_000):
                part = slice(start, start + 20_000)
                pairs = zip(drawn[part].tolist(), breaks[part].tolist(), strict=True)
                file.write(b"".join(words[index] + (b"\n" if ends_line else b" ") for index, ends_line in pairs))


def ours(path: Path) -> int:
    """Run the whole command: read, check UTF-8, count, sort, and write the table and its manifest."""
    with tempfile.TemporaryDirectory() as folder:
        return int(count_words(find_sources([path]), Path(folder) / "words.tsv", workers=1)["num_distinct_words"])


def table(path: Path) -> int:
    """Count with the compiled table only, without sorting and writing."""
    counts = new_table()
    with open(path, "rb") as file:
        for chunk, _ in whole_lines(iter(lambda: file.read(1 << 20), b"")):
            counts.update(chunk)
    return len(counts)


def plain(path: Path) -> int:
    """Count with our table in pure Python."""
    tally = Tally(Path("unused"), 1 << 40)
    tally.table = PythonTable()
    from pretrainkit.files.skips import Skips

    for source in find_sources([path]):
        count_source(source, tally, Skips(), None, "text")
    return len(tally.table)


def counter(path: Path) -> int:
    """Count with collections.Counter and bytes.split(), in chunks of 16 MB."""
    counts: Counter[bytes] = Counter()
    with open(path, "rb") as file:
        for chunk, _ in whole_lines(iter(lambda: file.read(CHUNK), b"")):
            counts.update(chunk.split())
    return len(counts)


def arrow(path: Path) -> int:
    """Count with pyarrow: split at white space and value_counts in chunks of 16 MB, added up in a Counter."""
    import pyarrow
    import pyarrow.compute

    pyarrow.set_cpu_count(1)
    counts: Counter[str] = Counter()
    with open(path, "rb") as file:
        for chunk, _ in whole_lines(iter(lambda: file.read(CHUNK), b"")):
            words = pyarrow.compute.utf8_split_whitespace(pyarrow.array([chunk], pyarrow.string())).flatten()
            values, numbers = words.value_counts().flatten()
            counts.update(dict(zip(values.to_pylist(), numbers.to_pylist(), strict=True)))
    counts.pop("", None)
    return len(counts)


ENGINES = {"ours, the whole command": ours, "ours, compiled table": table, "ours, plain Python": plain}
ENGINES |= {"Counter, 16 MB chunks": counter, "pyarrow, 16 MB chunks": arrow}


def _measure(engine: str, path: Path, results: "multiprocessing.Queue[tuple[float, float, int]]") -> None:
    before = resource.getrusage(resource.RUSAGE_SELF)
    num_words = ENGINES[engine](path)
    after = resource.getrusage(resource.RUSAGE_SELF)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    unit = 1 if sys.platform == "darwin" else 1024
    results.put((seconds, after.ru_maxrss * unit / 1e6, num_words))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="200MB")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--text", nargs="*", default=[], help="plain text files to repeat instead of generated words")
    parser.add_argument("--quick", action="store_true", help="small sizes, one round: a test that it runs")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.size, arguments.rounds = "20MB", 1
    context = multiprocessing.get_context("spawn")
    best: dict[str, tuple[float, float, int]] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "text.txt"
        make_text(path, parse_bytes(arguments.size), arguments.text)
        for _ in range(arguments.rounds):
            for engine in ENGINES:
                results = context.Queue()
                process = context.Process(target=_measure, args=(engine, path, results))
                process.start()
                measured = results.get()
                process.join()
                best[engine] = min(best.get(engine, measured), measured)
        size = path.stat().st_size
    reference = best["Counter, 16 MB chunks"][0]
    print(f"{size / 1e6:.0f} MB, {arguments.rounds} interleaved rounds, the fewest CPU seconds\n")
    print(
        "| engine | CPU-s | MB per CPU-s | peak RSS MB | different words | times Counter |\n|---|---|---|---|---|---|"
    )
    for engine, (seconds, peak, num_words) in best.items():
        print(
            f"| {engine} | {seconds:.2f} | {size / 1e6 / seconds:.0f} | {peak:.0f} | {num_words} "
            f"| {reference / seconds:.2f} |"
        )


if __name__ == "__main__":
    main()

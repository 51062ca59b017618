"""Memory is bounded by the setting: stages over a corpus ten times as large, measured in a process of their own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pretrainkit.corpus import shards

MEMORY_BYTES = 4_000_000
"""Memory that a process may hold beyond its idle size."""
READING_BYTES = 10_000_000
"""Additional memory of reading and writing, for any setting: chunks of a megabyte, cut into lines."""
WORDS = [f"w{place * 7919 % 10007}" for place in range(10007)]

MEASURE = """
import os, re, sys
from pathlib import Path
from pretrainkit.corpus.duplicates import DuplicateRule
from pretrainkit.workers.engine import Resources, LocalEngine
from pretrainkit.corpus.shards import BuildSettings, build_corpus
from pretrainkit.files.sources import find_sources
from pretrainkit.corpus.words import count_words

os.fsync = lambda descriptor: None
memory = int(sys.argv[1])
LocalEngine.resources = lambda *_: Resources(1, memory)
folder, stage = Path(sys.argv[2]), sys.argv[3]
settings = {
    "shuffle": dict(split_folders=False),
    "dedup": dict(split_folders=False, seed=None, duplicates=DuplicateRule()),
    "split": dict(heldout=0.1, duplicates=DuplicateRule()),
}

def work(name):
    sources, out = find_sources([folder / f"{name}.jsonl"]), folder / f"{stage}-{name}"
    if stage == "words":
        count_words(sources, out, memory_bytes=memory)
    else:
        build_corpus(sources, out, BuildSettings(num_shards=2, **settings[stage]))

def resident(key):
    return 1024 * int(re.search(rf"{key}:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

work("small")
Path("/proc/self/clear_refs").write_text("5")  # the highest size is that from here on
before = resident("VmRSS")
work("large")
print(resident("VmHWM") - before)
"""

pytestmark = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="measures with Linux's /proc")


@pytest.fixture(scope="module")
def corpora(tmp_path_factory):
    """Documents of 61 words, one of which no other has."""
    folder = tmp_path_factory.mktemp("corpora")
    for name, num_bytes in [("small", 300_000), ("large", 10 * MEMORY_BYTES)]:
        written = index = 0
        with open(folder / f"{name}.jsonl", "w") as file:
            while written < num_bytes:
                # Every third document is the one before it again.
                number = index - (index % 3 == 2)
                place = number * 31 % 9000
                text = f"n{number} {' '.join(WORDS[place : place + 60])}"
                written += file.write(f'{{"text":"{text}"}}\n')
                index += 1
    return folder


@pytest.mark.parametrize("stage", ["shuffle", "dedup", "split", "words"])
def test_a_corpus_ten_times_the_memory_stays_within_it(corpora, stage):
    command = [sys.executable, "-c", MEASURE, str(MEMORY_BYTES), str(corpora), stage]
    source = str(Path(shards.__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"}
    measured = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    assert int(measured.stdout) < MEMORY_BYTES + READING_BYTES

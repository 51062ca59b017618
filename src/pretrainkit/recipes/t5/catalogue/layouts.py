"""How benchmarks are distributed: the files of their splits, and what reads them."""

from collections.abc import Mapping
from functools import partial

from pretrainkit.tasks.aligned_lines import aligned
from pretrainkit.tasks.glue_data import Layout
from pretrainkit.tasks.named_data import LocalFiles
from pretrainkit.tasks.sources import JsonLines, Tsv
from pretrainkit.tasks.squad_json import SquadJson

SUPER_GLUE = {
    "train": [LocalFiles("train.jsonl", JsonLines)],
    "validation": [LocalFiles("val.jsonl", JsonLines)],
    "test": [LocalFiles("test.jsonl", JsonLines)],
}
SUPER_GLUE_DIAGNOSTICS = {"test": [LocalFiles("AX-?.jsonl", JsonLines)]}

SQUAD = {
    "train": [
        LocalFiles(f"{stem}.json{packed}", SquadJson) for stem in ("train-v1.1", "train") for packed in ("", ".gz")
    ],
    "validation": [
        LocalFiles(f"{stem}.json{packed}", SquadJson)
        for stem in ("dev-v1.1", "dev", "validation", "xquad.en")
        for packed in ("", ".gz")
    ],
}
"""XQuAD's English file is a part of the development set."""


def text(split_files: Mapping[str, str]) -> Layout:
    """JSON lines with `text`, or a corpus folder of ours; `split_files`: split to the pattern of C4's own files."""
    return {
        split: [
            LocalFiles(pattern, JsonLines),
            *(
                LocalFiles(f"{folder}/*.jsonl{packed}", JsonLines)
                for folder in _CORPUS[split]
                for packed in ("", ".zst")
            ),
        ]
        for split, pattern in split_files.items()
    }


_CORPUS = {"train": ("train",), "validation": ("valid", "validation")}


def translations(source: str, target: str) -> Layout:
    """Two files of lines, one for each language, or one table whose name tells the languages."""
    read = partial(aligned, languages=(source, target))
    names = {"train": ("train",), "validation": ("validation", "valid", "dev"), "test": ("test",)}
    found = {}
    for split, stems in names.items():
        found[split] = [
            one
            for stem in stems
            for one in (
                LocalFiles(f"{stem}.{source}", read),
                LocalFiles(f"{stem}.*.{source}", read),
                LocalFiles(f"*.{source}-{target}.{stem}.tsv", Tsv),
                LocalFiles(f"*.{target}-{source}.{stem}.tsv", Tsv),
            )
        ]
    return found

"""Targets of the benchmarks, and the file RESULTS.md with their results."""

import importlib.metadata
import os
import platform
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

RUST_TOOL_SLOWER_THAN_COUNTER = 10.7 / 7.9
"""CPU seconds of the original's word counter divided by those of Python's Counter, both on 200 MB on one machine."""
BY_HAND = "## By hand"
"""Heading of the part of the file that is written by hand and never changed."""
_TARGETS = "Targets"
_PACKAGES = (
    "torch",
    "numpy",
    "transformers",
    "datasets",
    "tokenizers",
    "sentencepiece",
    "nltk",
    "pyarrow",
    "pillow",
    "simplejpeg",
    "freetype-py",
    "pygame",
    "torchvision",
    "open_clip_torch",
)

Row = dict[str, str]


@dataclass(frozen=True)
class Target:
    """A value that a benchmark must reach."""

    text: str
    benchmark: str
    measure: Callable[[list[Row]], float]
    """Computes the value from the rows of the benchmark's tables. Raises KeyError if they lack it."""
    least: float | None = None
    most: float | None = None
    form: str = "{:.2f}"

    def goal(self) -> str:
        at_least = self.least is not None
        return f"{'>=' if at_least else '<='} {self.form.format(self.least if at_least else self.most)}"

    def is_reached(self, value: float) -> bool:
        return (self.least is None or value >= self.least) and (self.most is None or value <= self.most)


def parse_tables(markdown: str) -> list[Row]:
    """Return every row of every table as a dict from column to cell. The first cell is also under "", the heading above
    the table under "#"."""
    rows: list[Row] = []
    heading, columns = "", []
    for line in markdown.splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ")
        if not line.startswith("|"):
            columns = []
            continue
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not columns:
            columns = cells
        elif not set(line) <= set("|-: "):
            rows.append({"#": heading, **dict(zip(columns, cells, strict=False)), "": cells[0], "last": cells[-1]})
    return rows


def number(cell: str) -> float:
    """Return the first number of a cell. Raises KeyError if there is none."""
    match = re.search(r"-?\d[\d,]*\.?\d*", cell)
    if match is None:
        raise KeyError(cell)
    return float(match.group().replace(",", ""))


def cells(rows: list[Row], column: str, heading: str = "", first: str = "") -> list[float]:
    """Return the numbers of `column` in the rows whose heading and first cell start with these texts."""
    numbers = [
        number(row[column])
        for row in rows
        if row["#"].startswith(heading) and row[""].startswith(first) and column in row
    ]
    if not numbers:
        raise KeyError(f"{heading} {first} {column}")
    return numbers


def cell(rows: list[Row], name: str, column: str, heading: str = "") -> float:
    """Return the number in the row whose first cell is exactly `name`."""
    return cells([row for row in rows if row[""] == name], column, heading)[0]


def _t5_ratio(rows: list[Row], kind: str, contestant: str) -> float:
    own = [row for row in rows if row.get("contestant") == contestant]
    return cell(own, kind, "times transformers")


def _pixel_step(title: str, kind: str, num_patches: int, threads: int) -> Target:
    values = {"contestant": "ours", "patches": str(num_patches), "threads": str(threads)}

    def ratio(rows: list[Row]) -> float:
        return cell([row for row in rows if values.items() <= row.items()], kind, "times transformers")

    return Target(f"PIXEL step, {title}", "pixel_step", ratio, least=1.3 if kind == "full" else 1.5)


def _fourm_step(rows: list[Row], mixture: str, threads: int, contestant: str, column: str) -> float:
    own = [row for row in rows if row.get("contestant") == contestant and row.get("threads") == str(threads)]
    return cell(own, mixture, column)


_RATE, _RATIO = "examples / CPU-s, best", "first engine is faster by"
_AUGMENTED, _PEER = "random_resize_crop 224, autoaug", "Pillow and torchvision v1, tensor"
_TIMES_PEER = "times Pillow and torchvision v1, pixels"
_LAST = "times the last"
_MB, _WALL_MB = "MB per CPU-second", "MB per second"

TARGETS = (
    Target(
        "loader, rows of 128 tokens, batches of 1024: examples per CPU-second",
        "loader",
        lambda rows: cell(rows, "ours: Loader.step", _RATE, "Batches of 1024"),
        least=2e6,
        form="{:,.0f}",
    ),
    Target(
        "loader, the same in batches of 64",
        "loader",
        lambda rows: cell(rows, "ours: Loader.step", _RATE, "Batches of 64"),
        least=2e6,
        form="{:,.0f}",
    ),
    Target(
        "loader with masking and packing, batches of 1024: examples per CPU-second",
        "pipeline",
        lambda rows: cell(rows, "ours, packed", _RATE, "Batches of 1024"),
        least=1e5,
        form="{:,.0f}",
    ),
    Target(
        "span corruption from tokens, batches of 128: times the usual collator",
        "denoising",
        lambda rows: cell(rows, "the usual collator, from lists", "ours, times", "Span corruption, batches of 128"),
        least=10,
        form="{:.1f}",
    ),
    Target(
        "span corruption from tokens, batches of 32: times the usual collator",
        "denoising",
        lambda rows: cell(rows, "the usual collator, from lists", "ours, times", "Span corruption, batches of 32"),
        least=10,
        form="{:.1f}",
    ),
    Target(
        "packing from a memory map by best fit: rows of 512 per CPU-second, the lowest",
        "denoising",
        lambda rows: min(cells(rows, "rows / CPU-s, best", first="best fit")),
        least=2e4,
        form="{:,.0f}",
    ),
    Target(
        "T5 step, 4 + 4 layers of 256, full rows of 512 and 114: times transformers",
        "t5_step",
        lambda rows: _t5_ratio(rows, "full", "ours"),
        least=1.3,
    ),
    Target(
        "T5 step, documents of 16 % to 100 % of that, packed: times transformers",
        "t5_step",
        lambda rows: _t5_ratio(rows, "documents", "packed"),
        least=2,
    ),
    Target(
        "T5 step, tasks of about a hundred tokens, packed: times transformers' padded batches",
        "t5_step",
        lambda rows: _t5_ratio(rows, "short", "packed"),
        least=3,
    ),
    _pixel_step(
        "rendered prose, 144 patches, one thread: useful patches per CPU-s, times transformers'", "rendered", 144, 1
    ),
    _pixel_step("the same, two threads", "rendered", 144, 2),
    _pixel_step("the same, 529 patches, one thread", "rendered", 529, 1),
    _pixel_step("the same, 529 patches, two threads", "rendered", 529, 2),
    _pixel_step("canvases of 144 patches without any blank, two threads", "full", 144, 2),
    _pixel_step("the same, one thread", "full", 144, 1),
    Target(
        "4M step, fourm/tiny, the original's padded examples, two threads: times apple/ml-4m",
        "fourm_step",
        lambda rows: _fourm_step(rows, "tiny", 2, "ours", "times theirs"),
        least=1.2,
    ),
    Target(
        "4M step, the same, one thread",
        "fourm_step",
        lambda rows: _fourm_step(rows, "tiny", 1, "ours", "times theirs"),
        least=1.2,
    ),
    Target(
        "4M step, 21 modalities, slots packed: useful tokens per CPU-second, times apple/ml-4m",
        "fourm_step",
        lambda rows: _fourm_step(rows, "21", 1, "packed", "times their tokens"),
        least=1.4,
    ),
    Target(
        "4M masking, 7 modalities, slots packed: samples per CPU-second, times apple/ml-4m",
        "fourm_masking",
        lambda rows: cell(rows, "7 modalities, ours, packed", "times the samples"),
        least=10,
        form="{:.1f}",
    ),
    Target(
        "4M masking, 21 modalities: the same",
        "fourm_masking",
        lambda rows: cell(rows, "21 modalities, ours, packed", "times the samples"),
        least=10,
        form="{:.1f}",
    ),
    Target(
        "4M masking, 21 modalities: slots of the encoder that are filled, %",
        "fourm_masking",
        lambda rows: cell(rows, "21 modalities, packed", "encoder, %"),
        least=95,
        form="{:.1f}",
    ),
    Target(
        "rendering with FreeType, lines of 529 patches: text patches per CPU-second, times PyGame's",
        "rendering",
        lambda rows: cell(rows, "ours", _LAST, "FreeType, lines"),
        least=5,
        form="{:.1f}",
    ),
    Target(
        "rendering with FreeType, pre-split words: the same",
        "rendering",
        lambda rows: cell(rows, "ours", _LAST, "FreeType, pre-split words"),
        least=5,
        form="{:.1f}",
    ),
    Target(
        "rendering with FreeType to float tensors: the same",
        "rendering",
        lambda rows: cell(rows, "ours", _LAST, "FreeType, tensor"),
        least=10,
        form="{:.1f}",
    ),
    Target(
        "rendering with Pango, lines of 529 patches: text patches per CPU-second, times Pango and Cairo",
        "rendering",
        lambda rows: cell(rows, "ours", _LAST, "Pango, lines"),
        least=1.3,
    ),
    Target(
        "rendering with Pango, three colours: the same",
        "rendering",
        lambda rows: cell(rows, "ours", _LAST, "Pango, lines, three colours"),
        least=1.3,
    ),
    Target("loader, state: bytes", "loader", lambda rows: cell(rows, "state", "last"), most=256, form="{:.0f}"),
    Target(
        "loader, restore at any step and order: ms, the slowest",
        "loader",
        lambda rows: max(cells(rows, "last", "Resuming", first="restore")),
        most=50,
        form="{:.1f}",
    ),
    Target(
        "train step, 4 x 256, full rows: times transformers",
        "step",
        lambda rows: cells([row for row in rows if row["rows"] == "full"], "ratio", first="mini")[0],
        least=3.3,
    ),
    Target(
        "train step, 4 x 256, mixed lengths: times transformers",
        "step",
        lambda rows: cells([row for row in rows if row["rows"] == "mixed"], "ratio", first="mini")[0],
        least=5,
    ),
    Target(
        "train step, any shape: times transformers, the lowest", "step", lambda rows: min(cells(rows, "ratio")), least=1
    ),
    Target(
        "contrastive step, batch 256, tiny towers: pairs per second, times OpenCLIP's, the lowest",
        "contrast",
        lambda rows: min(cells(rows, "ratio_clock")),
        least=1.3,
    ),
    Target(
        "accumulation to 16 microbatches: times 16 separate ones",
        "accumulation",
        lambda rows: cell(rows, "16", "ratio", "Time"),
        most=1.4,
    ),
    Target(
        "accumulation to 16 microbatches: memory of a step, times that of one microbatch",
        "accumulation",
        lambda rows: cell(rows, "16", "resident, to one microbatch", "Memory"),
        most=1.15,
    ),
    Target(
        "pipeline, shards to batches: times the Hugging Face stack, the lowest",
        "pipeline",
        lambda rows: min(cells(rows, _RATIO, "Batches of", first="Hugging Face")),
        least=5,
        form="{:.1f}",
    ),
    Target(
        "tokenizing to shards, one core: times SentencePiece (CPU)",
        "tokenizing",
        lambda rows: cell(rows, "shards", _MB) / cell(rows, "SentencePiece, lists", _MB),
        least=1,
    ),
    Target(
        "tokenizing to shards, one core: times the tokenizers library (CPU)",
        "tokenizing",
        lambda rows: cell(rows, "shards", _MB) / cell(rows, "tokenizers library, Unigram", _MB),
        least=6,
        form="{:.1f}",
    ),
    Target(
        "tokenizing to shards, 2 workers: times SentencePiece on one core (wall)",
        "tokenizing",
        lambda rows: cell(rows, "shards, 2 workers", _WALL_MB) / cell(rows, "SentencePiece, lists", _WALL_MB),
        least=1.9,
    ),
    Target(
        "sentence splitting, our default rules: times NLTK's, the lowest of three kinds of text",
        "sentences",
        lambda rows: min(cells(rows, "of NLTK", first="ours: punkt, default rules")),
        least=10,
        form="{:.1f}",
    ),
    Target(
        "word counts: times the original's Rust tool (which takes 1.35 times Counter's CPU seconds)",
        "words",
        lambda rows: cell(rows, "ours, the whole command", "times Counter") * RUST_TOOL_SLOWER_THAN_COUNTER,
        least=2.3,
    ),
    Target(
        "Wikipedia's dumps to text, without bz2: MB of wikitext per CPU-second",
        "wikipedia",
        lambda rows: cell(rows, "ours, from XML", "MB of wikitext per CPU-s"),
        least=20,
        form="{:.1f}",
    ),
    Target(
        "Wikipedia's dumps to text, with bz2: MB of wikitext per CPU-second",
        "wikipedia",
        lambda rows: cell(rows, "ours, from bz2", "MB of wikitext per CPU-s"),
        least=11,
        form="{:.1f}",
    ),
    Target("shuffle: peak memory, MB", "shuffle", lambda rows: cells(rows, "peak RSS MB")[0], most=300, form="{:.0f}"),
    Target(
        "shuffle and shards: MB of corpus per CPU-second",
        "shuffle",
        lambda rows: cells(rows, "MB / CPU-s")[0],
        least=60,
        form="{:.0f}",
    ),
    Target("shuffle: written / corpus", "shuffle", lambda rows: cells(rows, "written / corpus")[0], most=2.2),
    Target(
        "images, crop and AutoAugment, file to what the model takes: times Pillow and torchvision v1 with Normalize",
        "images",
        lambda rows: cell(rows, "ours, training", _TIMES_PEER, _AUGMENTED) / cell(rows, _PEER, _TIMES_PEER, _AUGMENTED),
        least=1.8,
    ),
    Target("pretrainkit --help: CPU-s", "start", lambda rows: cell(rows, "pretrainkit --help", "CPU-s"), most=0.15),
    Target("config check: CPU-s", "start", lambda rows: cells(rows, "CPU-s", first="pretrainkit config")[0], most=0.4),
    Target(
        "plan, the most expensive presets: CPU-s",
        "start",
        lambda rows: max(cells(rows, "CPU-s", first="pretrainkit plan")),
        most=5.0,
    ),
    Target(
        "train, tiny preset, cold, to the first update: CPU-s",
        "start",
        lambda rows: cells(rows, "CPU-s", first="pretrainkit train")[0],
        most=3.5,
    ),
)


def compare_with_targets(sections: Mapping[str, str], names: Collection[str]) -> str:
    """Return a table of the targets of the benchmarks `names`. `sections` has the Markdown of the measured ones."""
    lines = ["| what | goal | measured | reached | benchmark |", "|---|---|---|---|---|"]
    for target in TARGETS:
        if target.benchmark not in names:
            continue
        measured, reached = "*not measured*", "?"
        if target.benchmark in sections:
            try:
                value = target.measure(parse_tables(sections[target.benchmark]))
            except KeyError as missing:
                measured = f"no figure ({missing.args[0]})"
            else:
                measured, reached = target.form.format(value), "yes" if target.is_reached(value) else "**no**"
        lines.append(f"| {target.text} | {target.goal()} | {measured} | {reached} | {target.benchmark} |")
    return "\n".join(lines)


def describe_machine() -> str:
    """Return date, processor, cores and versions, as one line."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.is_file():
        match = re.search(r"^model name\s*: (.+)$", info.read_text(encoding="utf-8"), re.MULTILINE)
        model = match.group(1) if match else model
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    versions = [f"Python {platform.python_version()}"]
    for package in _PACKAGES:
        try:
            versions.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return f"{time.strftime('%Y-%m-%d')}, {model}, {cores} cores; {', '.join(versions)}"


def read_results(path: Path) -> tuple[dict[str, str], str]:
    """Read a file of `write_results`. Return its sections by name, and the part that is written by hand."""
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    text, mark, by_hand = text.partition(BY_HAND)
    sections = re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    return {name: body.strip() for name, body in sections if name != _TARGETS}, mark + by_hand


def write_results(path: Path, sections: Mapping[str, str], order: Sequence[str], by_hand: str) -> None:
    """Write the targets, the sections (those in `order` first) and the part that is written by hand. The file is
    complete or unchanged."""
    parts = [
        "# Speed",
        "Results of the benchmarks of this folder, compared with the goals. The file is written by\n"
        "`python benchmarks/run.py --large --write`. Each section states the machine and the date. Contestants\n"
        "alternate in rounds, and times are CPU times unless a column says otherwise, so that ratios are valid\n"
        "on a busy machine. The text at the top of each script describes the work of both sides, and which work\n"
        "the other side omits.",
        f"## {_TARGETS}",
        compare_with_targets(sections, {target.benchmark for target in TARGETS}),
    ]
    for name in sorted(sections, key=lambda name: order.index(name) if name in order else len(order)):
        parts += [f"## {name}", sections[name]]
    parts += [by_hand.strip()] if by_hand.strip() else []
    aside = path.with_name(path.name + ".incomplete")
    aside.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    aside.replace(path)

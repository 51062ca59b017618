"""Run demos and tutorials, and write `docs/gallery.md` and `docs/results.md` from what they left: `make gallery`.

    python docs/make_gallery.py [NAME...] [--seeds SEED...]   run demos (with each seed) and tutorials (`tutorial-bert`;
                                                              all), one after another, with one thread
    python docs/make_gallery.py --runs [FOLDER...] [--about DATA]
                                                              add runs of `pretrainkit train` and of sweeps, made with
                                                              OMP_NUM_THREADS=1 in this folder; write the pages again

`DATA` describes the training data of the runs. If a run of 4M has a folder `generated` of `pretrainkit generate`, its
figures are those of the run. Every run leaves a small file in `docs/results/`. Both pages are made from these files
alone, so that they have no figure without a run. A demo or tutorial that was run before, with its folder still there,
is not run again. Output on a tutorial's page that its commands did not print is an error at the end.
"""

import argparse
import base64
import contextlib
import io
import json
import math
import os
import re
import resource
import shlex
import shutil
import statistics
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from make_pages import notebook
from PIL import Image, ImageDraw

from pretrainkit import load_config
from pretrainkit.demo.catalogue import DEMOS
from pretrainkit.files.manifest import fingerprint
from pretrainkit.recipes.glue.recipe import RECIPE as GLUE
from pretrainkit.recipes.glue.source import task_of
from pretrainkit.report.picture import write_curve
from pretrainkit.report.run_folder import read_run
from pretrainkit.report.run_table import find_runs
from pretrainkit.report.shown import Shown

DOCS = Path(__file__).parent
Record = dict[str, Any]


class Measure(NamedTuple):
    metric: str
    """Name or pattern of the metric."""
    about: str
    unit: str
    """"%" for shares, "of 100" for values that are percentages already, "times 100" for correlations, "" for others."""
    baseline: str | float
    """Metric or value of the baseline, in the same unit."""
    guess: str
    """Description of the baseline."""


MEASURES = {
    "bert": [
        Measure("masked_lm_loss", "loss of hidden words, nats", "", "unigram_loss", "word frequencies"),
        Measure("masked_lm_accuracy", "hidden words right", "%", "most_frequent_accuracy", "the most frequent word"),
        Measure("next_sentence_accuracy", "whether the second part is the next one, right", "%", 0.5, "guessing"),
    ],
    "glue": [
        Measure("pearson_corrcoef", "Pearson times 100", "times 100", 0.0, "one number for all"),
        Measure("spearman_corrcoef", "Spearman times 100", "times 100", 0.0, "one number for all"),
        Measure("matthews_corrcoef", "Matthews correlation times 100", "times 100", 0.0, "one class for all"),
        Measure("accuracy", "accuracy", "of 100", "guessed_accuracy", "one class for all"),
        Measure("f1", "F1", "of 100", "guessed_f1", "one class for all"),
    ],
    "t5": [
        Measure(
            "span_corruption_loss", "loss of hidden spans, nats per token", "", "unigram_loss", "token frequencies"
        ),
        Measure(
            "nll_per_target_token", "loss of hidden spans, nats per token", "", "unigram_loss", "token frequencies"
        ),
        Measure(
            "accuracy", "answers right after fine-tuning", "of 100", "majority_accuracy", "the most frequent answer"
        ),
    ],
    "pixel": [
        Measure("masked_patch_loss", "loss of hidden squares", "", "blind_loss", "the mean of each square"),
        Measure(
            "character_accuracy", "hidden characters that can be read", "%", "most_frequent_character", "the commonest"
        ),
        Measure("accuracy", "parts of speech right after fine-tuning", "of 100", "word_accuracy", "that of each word"),
    ],
    "clip": [
        Measure("[ps]*I2T-R@1", "right caption found first", "of 100", 1.0, "guessing"),
        Measure("[ps]*T2I-R@1", "right image found first", "of 100", 1.0, "guessing"),
        Measure("[ps]*T2I-R@5", "right image among the first five", "of 100", 5.0, "guessing"),
        Measure("flickr8k_I2T-R@1", "a right caption of a photograph found first", "of 100", 0.5, "guessing"),
        Measure("flickr8k_I2T-R@10", "among the first ten", "of 100", 4.9, "guessing"),
        Measure("flickr8k_T2I-R@1", "right photograph found first", "of 100", 0.5, "guessing"),
        Measure("flickr8k_T2I-R@10", "among the first ten", "of 100", 5.0, "guessing"),
    ],
    "fourm": [
        Measure("pictures", "photographs from captions right", "%", "other_pictures", "for another caption"),
        Measure("captions", "captions of photographs wholly right", "%", "commonest_caption", "the commonest one"),
        Measure("box_iou", "overlap of boxes of the same class", "", "guessed_box_iou", "one guess for all"),
        Measure("class_iou", "overlap of classes", "", "floor_iou", "all floor and wall"),
        Measure("depth_error", "depth error, deviations", "", "mean_depth_error", "the mean depth"),
        Measure("corridors_depth_error", "of corridors", "", "corridors_mean_depth_error", "their mean depth"),
        Measure("tools_depth_error", "of tools", "", "tools_mean_depth_error", "their mean depth"),
        Measure("depth@64_loss", "loss of depth, nats per square", "", math.log(64), "all depths equal"),
    ],
    "image_tokenizer": [
        Measure("psnr", "PSNR of restored images, dB", "", "mean_image_psnr", "the mean image"),
        Measure("ssim", "SSIM", "", "mean_image_ssim", "the mean image"),
        Measure("mae", "absolute error", "", "mean_image_mae", "the mean image"),
    ],
}
"""Figures that the results show of each recipe, if a run has them."""
TITLES = {
    "bert": "BERT",
    "t5": "T5",
    "pixel": "PIXEL",
    "clip": "CLIP",
    "fourm": "4M",
    "glue": "GLUE",
    "image_tokenizer": "Image tokenizers",
}
RESULTS = """\
# Results

Models that were trained for this repository, each with a run folder behind it: `make gallery` trains the demos, and
`python docs/make_gallery.py --runs FOLDER` adds runs of `pretrainkit train`. (The tutorials train models of the same
sizes with one seed: the [gallery](gallery.md) has what they printed.) A file in `docs/results/` for each
training has all of its figures, versions (of new ones also the commit), and fingerprints of its config, data and
losses. Figures are means over the seeds 0 to 2 ± the standard deviation; the seeds change initial weights, order and
masks, and the data of the demos of T5 and 4M depend on them, too. Commands are those of seed 0; `seed=1`, or
`--seed 1` of a demo, is another. In parentheses: a baseline; a mean in italics is no better. All trainings on CPUs used
one thread (`OMP_NUM_THREADS=1`), on machines with other work.

The seeds of GLUE are those of fine-tuning. Its encoders `runs/mini` and `runs/modern` are the rows of BERT with these
outputs, so they are smaller trainings than those in the README of `glue`. `runs/random` is `bert/modern-mini` after
`num_steps=1 optimizer.peak_lr=1e-12`, so its weights are random. The commands that make `data/tokens` from files are
on the page [Start](get-started.md), those for images and captions on the pages of the recipes; `data/flowers` has a
folder of photographs for each kind of flower. `depth.yaml` is on the page
[From folders of images to generated depth](fourm-walkthrough.md); the errors of depth are what
`pretrainkit generate RUN --from rgb --from-data 18 --to depth --set depth.num_steps=1 --set depth.take=median` reports.

The last column has the first digits of the fingerprint of all losses for each seed. The same command with the same
versions, on a processor with the same instructions, gives the same fingerprint, because every digit of every loss is
the same.
"""
ABSENT = """\
## Not measured yet

No model was trained on a GPU for this page, and GLUE from random weights only for STS-B. The pages of the recipes tell
of longer trainings, whose run folders were not kept.
"""
_LESS_IS_BETTER = re.compile("loss|error|mae|nll")
PROVENANCE = ("device", "ranks", "processor", "cores", "precision", "python", "started", "git")
WRAPPED: Any = {"subsequent_indent": " " * 8, "break_long_words": False, "break_on_hyphens": False}
PRINTED = {"bert": "Export", "t5": "Inference"}
"""Chapter with answers, which the gallery shows besides the last lines of a demo."""


def main(arguments: list[str], docs: Path = DOCS) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=[*DEMOS, *TUTORIALS])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--runs", nargs="*", type=Path)
    parser.add_argument("--about", default="")
    parser.add_argument("--out", type=Path, default=Path("build/gallery"))
    given = parser.parse_args(arguments)
    wrong = run_all(given.names, given.seeds, given.out, docs) if given.runs is None else []
    for run in given.runs or ():
        record = record_of_run(run) | ({"about": given.about} if given.about else {})
        write_record(docs, f"{record['recipe']}-{record['losses'][:12]}", record)
    records = [json.loads(path.read_text("utf-8")) for path in sorted((docs / "results").glob("*.json"))]
    records.sort(key=lambda record: record["seed"])
    (docs / "gallery.md").write_text(gallery(records, docs), encoding="utf-8")
    (docs / "results.md").write_text(results(records), encoding="utf-8")
    if wrong:
        raise SystemExit("\n  ".join(["the tutorials show lines that their commands did not print:", *wrong]))


def run_all(names: list[str], seeds: list[int], out: Path, docs: Path) -> list[str]:
    """Run demos and tutorials, write their records, and draw their pictures. Return what is wrong on the pages."""
    demos = [(name, seed, out / f"{name}-{seed}") for name in names if name in DEMOS for seed in seeds]
    tutorials = [(name, out / name) for name in names if name in TUTORIALS]
    for name, seed, folder in demos:
        if not folder.with_suffix(".json").exists():
            run_demo(name, seed, folder)
    for name, folder in tutorials:
        if not folder.with_suffix(".json").exists():
            run_tutorial(name, folder, docs)
    # After all trainings, because each of them records whether the checkout has changes.
    for name, seed, folder in demos:
        write_record(docs, f"demo-{name}-{seed}", record_of_demo(name, seed, folder))
        for file, picture in PICTURES[name].items():
            if seed == seeds[0]:
                picture.draw(folder / "run", docs / "images" / file)
    wrong = []
    for name, folder in tutorials:
        record, missing = record_of_tutorial(name, folder, docs)
        write_record(docs, name, record)
        for file, draw in TUTORIALS[name].pictures.items():
            draw(folder / TUTORIALS[name].run, docs / "images" / file)
        wrong += missing
    return wrong


def run_demo(name: str, seed: int, folder: Path) -> None:
    """Run a demo in `folder`, and write what it printed and its times to `FOLDER.json`."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    words = ["-m", "pretrainkit", "demo", name, "--seed", str(seed), "--out", str(folder), "--json"]
    with measured(folder) as left:
        left["output"] = run_command([sys.executable, *words])


def run_tutorial(name: str, folder: Path, docs: Path) -> None:
    """Run the cells of a tutorial's notebook in `folder`, and write what they printed to `FOLDER.json`: a text for each
    output that the page shows, which has everything since the one before."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with measured(folder) as left:
        left["printed"] = [""]
        for cell in notebook(page_of(name, docs))["cells"]:
            first, _, rest = cell["source"].partition("\n")
            if cell["cell_type"] != "code":
                left["printed"] += [""] * (first == "```text")
            elif first.startswith("%%writefile "):
                (folder / first.split()[1]).write_text(f"{rest}\n", encoding="utf-8")
            else:
                words = ["bash", "-ec", rest] if first == "%%bash" else [sys.executable, "-c", cell["source"]]
                left["printed"][-1] += run_command(words, folder, stderr=subprocess.STDOUT)


@contextlib.contextmanager
def measured(folder: Path) -> Iterator[Record]:
    """Write what is put into the record, and the time until then, to `FOLDER.json`."""
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    left: Record = {}
    yield left
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    left["wall_seconds"] = round(time.monotonic() - began, 1)
    left["cpu_seconds"] = round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1)
    folder.with_suffix(".json").write_text(json.dumps(left), encoding="utf-8")


def run_command(words: list[str], folder: Path | None = None, **options: Any) -> str:
    """Run a command with one thread, which makes the same sums in the same order on every machine. Return what it
    printed."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PATH": path}
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=folder, env=environment, **options)
    lines = []
    for line in process.stdout or ():
        print(line, end="", flush=True)
        lines.append(line)
    if process.wait():
        raise SystemExit(f"{shlex.join(words)}\n  failed with exit code {process.returncode}")
    return "".join(lines)


def record_of_demo(name: str, seed: int, folder: Path) -> Record:
    """Return the record of a demo: its main run, its numbers, and what it printed."""
    left = json.loads(folder.with_suffix(".json").read_text("utf-8"))
    *text, numbers = left.pop("output").strip().split("\n")
    *chapters, done, figures = "\n".join(text).split("\n\n")
    answers = [line for chapter in chapters if f"] {PRINTED.get(name)}: " in chapter for line in chapter.split("\n")]
    answers = [
        line for line in answers if line.startswith("  ") and not line.startswith(("  $", "  >")) and line[-1] != ":"
    ]
    lines = [*done.strip("\n").split("\n")[:2], "", *figures.split("\n")]
    return {
        **record_of_run(folder / "run"),
        "demo": name,
        "command": f"pretrainkit demo {name} --seed {seed}",
        "metrics": {name: value for name, value in json.loads(numbers).items() if name != "report"},
        "losses": losses_of(find_runs(folder)),
        "printed": [*answers, *([""] if answers else []), *lines],
        **left,
    }


def record_of_tutorial(name: str, folder: Path, docs: Path) -> tuple[Record, list[str]]:
    """Return the record of a tutorial: its main run, and what it printed of the output that its page shows. Also return
    the lines of the page that it did not print."""
    left = json.loads(folder.with_suffix(".json").read_text("utf-8"))
    blocks = re.findall(r"^```text\n(.*?)^```$", page_of(name, docs).read_text("utf-8"), re.MULTILINE | re.DOTALL)
    lines, missing = list[str](), list[str]()
    for block, text in zip(blocks, left.pop("printed"), strict=False):  # the last text is not on the page
        printed = iter(re.split(r"[\r\n]+", text))
        for shown in filter(lambda line: line.strip("."), block.split("\n")):
            pattern = re.sub(r"[\d,.]+\\ (tok/s|per\\ second)", r"\\S+ \1", re.escape(shown)).replace(r"\.\.\.", ".*")
            matching = next((line for line in printed if re.fullmatch(pattern, line.rstrip())), None)
            if matching is None:
                missing.append(f"{name}: {shown}")
                break
            lines.append(matching.rstrip())
        lines.append("")
    return {**record_of_run(folder / TUTORIALS[name].run), "tutorial": name, "printed": lines[:-1], **left}, missing


def page_of(name: str, docs: Path) -> Path:
    """Return the page of a tutorial."""
    return docs / f"tutorials/{name.removeprefix('tutorial-')}.md"


def record_of_run(folder: Path) -> Record:
    """Return the record of a run folder."""
    run = read_run(folder)
    came = run.provenance
    command = re.sub(r"^\S*pretrainkit(/__main__\.py)?", "pretrainkit", came["command"])
    command = command.replace(f"{Path.cwd()}/", "").replace(" --resume --json", "")
    command = re.sub(r"[^ =]+=[\[{].*?[\]}](?= |$)", lambda word: shlex.quote(word[0]), command)
    baselines = re.compile("unigram_loss|mean_image_.*")
    metrics = run.held_out | {name: value for name, value in run.summary.items() if baselines.fullmatch(name)}
    if run.config["recipe"] == "glue":
        metrics |= _guessed(folder)
    if (generated := folder / "generated/generation.json").exists():
        for name, values in json.loads(generated.read_bytes())["summary"].items():
            part = f"{subset}_" if (subset := name.partition(" of ")[2]) else ""
            metrics |= {f"{part}depth_error": values["error"], f"{part}mean_depth_error": values["guessed_error"]}
    return {
        "recipe": run.config["recipe"],
        "preset": run.preset,
        "seed": run.config["seed"],
        "command": command,
        "parameters": run.summary["parameters"],
        "steps": run.summary["steps"],
        "batch_size": run.config["data"]["batch_size"],
        "examples": came["data"].get("examples"),
        "metrics": metrics,
        "wall_seconds": run.trained_seconds,
        **{name: came[name] for name in PROVENANCE},
        "packages": came["packages"],
        "config": fingerprint(run.config),
        "data": came["data"]["fingerprint"],
        "losses": losses_of([folder]),
    }


def _guessed(folder: Path) -> dict[str, float]:
    """Return the metrics of a fine-tuned task for the class that is right most often on the held-out rows."""
    config = load_config(str(folder / "config.yaml"))
    source, task = GLUE.open_data(config, "valid"), task_of(config.data)
    if task.kind != "classes":
        return {}
    ids = source.examples.label.tolist()
    guess = max(range(len(config.model.classes)), key=ids.count)
    return {f"guessed_{name}": value for name, value in task.score(ids, [guess] * len(ids)).items()}


def losses_of(folders: Iterable[Path]) -> str:
    """Return a fingerprint of all losses of the trainings: equal only if every digit is."""
    return fingerprint([[row["step"], row["loss"]] for folder in folders for row in read_run(folder).metrics.rows])


def write_record(docs: Path, name: str, record: Record) -> None:
    (docs / "results").mkdir(exist_ok=True, parents=True)
    text = json.dumps(record, indent=1, ensure_ascii=False)
    (docs / f"results/{name}.json").write_text(text + "\n", encoding="utf-8")


def draw_curve(run: Path, out: Path) -> None:
    write_curve(run, out)


def copy(name: str) -> Callable[[Path, Path], None]:
    """Return a function that copies a file beside a run."""

    def draw_copy(run: Path, out: Path) -> None:
        shutil.copy(run.parent / name, out)

    return draw_copy


def draw_found(run: Path, out: Path) -> None:
    """Draw captions, and the images that CLIP found for them."""
    queries = [sample for sample in read_run(run).samples if isinstance(sample["query"], str)]
    rows = [(sample["query"], sample["found"]) for sample in queries[:5]]
    title = "Each caption, and the five nearest of 100 new pictures. The right one has a green frame."
    draw_rows(title, rows, 96).save(out)


def draw_searches(run: Path, out: Path) -> None:
    """Draw the queries of the CLIP tutorial, and the images that it found for them."""
    folder = run.parents[1]
    text = "".join(json.loads(folder.with_suffix(".json").read_text("utf-8"))["printed"])
    rows: list[tuple[str, list[Shown]]] = []
    for line in text.split("\n"):
        if match := re.fullmatch(r" +[\d.-]+  (\S+\.png)", line):
            data = base64.b64encode((folder / match[1]).read_bytes()).decode()
            rows[-1][1].append(Shown("", f"data:image/png;base64,{data}", None))
        elif line:
            rows.append((line, []))
    draw_rows("Each query, and the four nearest of 100 new pictures.", [row for row in rows if row[1]], 96).save(out)


def draw_sentences(run: Path, out: Path) -> None:
    """Draw sentences, their hidden squares, and what PIXEL draws in their place."""
    samples = read_run(run).earlier_samples
    first, last = min(samples), max(samples)
    rows = []
    for early, late in zip(samples[first], samples[last], strict=True):
        rows += [
            ("true text", late["original"]),
            ("hidden parts in blue", late["masked"]),
            (f"drawn after {first:,} steps", early["reconstructed"]),
            (f"drawn after {last:,} steps", late["reconstructed"]),
        ]
    title = "A model draws the hidden parts of sentences that it has never seen."
    draw_rows(title, rows, None, 4).save(out)


def draw_rows(title: str, rows: list[tuple[str, Any]], side: int | None, group: int = 1) -> Image.Image:
    """Return a sheet with a text and pictures in each row, those that are right with a green frame.

    `side`: Width of each picture; None: as it is. `group`: number of rows between wider gaps."""
    text: dict[str, Any] = {"fill": "black", "font_size": 15}
    left, top, gap = 10 + 7 * min(28, max(len(label) for label, _ in rows)), 34, 8
    cells = [[_framed(shown, side) for shown in pictures] for _, pictures in rows]
    width = max(left + max(sum(cell.width + gap for cell in row) for row in cells), 2 * gap + 8 * len(title))
    heights = [
        max(cell.height for cell in row) + gap + 2 * gap * (n % group == group - 1) for n, row in enumerate(cells)
    ]
    sheet = Image.new("RGB", (width, top + sum(heights)), "white")
    pen = ImageDraw.Draw(sheet)
    pen.text((gap, gap), title, **text)
    for (label, _), row, height in zip(rows, cells, heights, strict=True):
        pen.multiline_text((gap, top + gap), "\n".join(textwrap.wrap(label, 28)), **text)
        x = left
        for cell in row:
            sheet.paste(cell, (x, top))
            x += cell.width + gap
        top += height
    return sheet


def _framed(shown: Shown, side: int | None) -> Image.Image:
    image = Image.open(io.BytesIO(base64.b64decode(shown.picture.partition(",")[2]))).convert("RGB")
    if side is not None:
        image = image.resize((side, side * image.height // image.width), Image.Resampling.NEAREST)
    frame = 0 if shown.is_right is None else 4
    sheet = Image.new(
        "RGB", (image.width + 2 * frame, image.height + 2 * frame), "#0a9a4a" if shown.is_right else "white"
    )
    sheet.paste(image, (frame, frame))
    return sheet


class Picture(NamedTuple):
    about: str
    draw: Callable[[Path, Path], None]
    """Draws the picture of a run to a file."""


PICTURES = {
    "bert": {
        "demo-bert.svg": Picture("Training loss and held-out loss; the run was killed and resumed", draw_curve),
    },
    "t5": {"demo-t5.svg": Picture("Loss of fine-tuning; the run was killed and resumed", draw_curve)},
    "pixel": {
        "demo-pixel.png": Picture(
            "Sentences, their hidden parts, and what the model draws in their place", draw_sentences
        ),
        "demo-pixel-scripts.png": Picture(
            "The same sentence in five scripts, drawn by the renderer", copy("scripts.png")
        ),
    },
    "clip": {"demo-clip.png": Picture("Captions and the five nearest images of each", draw_found)},
    "fourm": {
        "demo-fourm.png": Picture(
            "Captions; boxes, classes and photographs made from them; true photographs", copy("from-captions.png")
        ),
        "demo-fourm-views.png": Picture(
            "Photographs; captions, boxes, classes and depth made from them", copy("from-photographs.png")
        ),
    },
}


class Tutorial(NamedTuple):
    run: str
    """Run folder of the main training."""
    pictures: dict[str, Callable[[Path, Path], None]]
    """Files that its page shows, and what draws them."""


TUTORIALS = {
    "tutorial-bert": Tutorial("runs/encoder", {"tutorial-bert-loss.svg": draw_curve}),
    "tutorial-clip": Tutorial("runs/clip", {"tutorial-clip-search.png": draw_searches}),
    "tutorial-fourm": Tutorial("runs/fourm", {}),
    "tutorial-pixel": Tutorial("runs/pixel", {"tutorial-pixel.png": draw_sentences}),
    "tutorial-t5": Tutorial("runs/pretrained", {"tutorial-t5-loss.svg": draw_curve}),
}


def gallery(records: list[Record], docs: Path) -> str:
    """Return the page with what demos and tutorials printed and drew."""
    parts = [
        "# Gallery\n",
        prose(
            "What the demos and tutorials drew and printed, on one CPU core. `make gallery` runs all of them and "
            "writes this page. [Results](results.md) has all figures of the demos, with their deviation over seeds."
        ),
    ]
    for name, demo in DEMOS.items():
        record = next((row for row in records if row.get("demo") == name), None)
        if record is None:
            continue
        parts.append(f"## {TITLES[name]}\n\n" + prose(f"{demo.about} `{record['command']}` took {hardware(record)}."))
        parts += [
            f"![{picture.about}](images/{file})\n\n*{picture.about}.*\n" for file, picture in PICTURES[name].items()
        ]
        parts.append(printed(record))
    parts.append("## Tutorials\n")
    for name in TUTORIALS:
        record = next((row for row in records if row.get("tutorial") == name), None)
        if record is None:
            continue
        page = page_of(name, docs)
        title, *lines = page.read_text("utf-8").split("\n")
        parts.append(f"### [{title.removeprefix('# Tutorial: ')}](tutorials/{page.name})\n")
        parts.append(prose(f"All of its commands took {hardware(record)}."))
        for line in lines:
            if line.startswith("!["):
                parts += [line.replace("](../", "](") + "\n", f"*{line[2:].partition(']')[0]}.*\n"]
        parts.append(printed(record))
    return "\n".join(parts).rstrip() + "\n"


def printed(record: Record) -> str:
    """Return a block with the lines that the record has, none of them too wide."""
    lines = [row for line in record["printed"] for row in textwrap.wrap(line, 128, **WRAPPED) or [""]]
    return "```text\n" + "\n".join(lines) + "\n```\n"


def prose(text: str) -> str:
    """Return a paragraph in lines, none of which ends within a command."""
    joined = re.sub("`.+?`", lambda code: code[0].replace(" ", "\0"), text)
    lines = textwrap.fill(joined, 100, break_long_words=False, break_on_hyphens=False)
    return lines.replace("\0", " ") + "\n"


def hardware(record: Record) -> str:
    """Return time and machine."""
    minutes = f"{record['wall_seconds'] / 60:.1f} minutes"
    if "cpu_seconds" in record:
        minutes = f"{record['cpu_seconds'] / 60:.1f} minutes of CPU time ({minutes} on a machine with other work)"
    ranks = f" on {record['ranks']} x {record['device']}" if record["device"] != "CPU" else ""
    return (
        f"{minutes}{ranks} on {record['processor']} with {record['cores']} cores, one thread, torch "
        f"{record['packages']['torch']}, seed {record['seed']}, {record['started'][:10]}"
    )


def results(records: list[Record]) -> str:
    """Return the page with a table for each recipe."""
    parts = [RESULTS]
    for recipe, measures in MEASURES.items():
        rows: dict[str, list[Record]] = {}
        for record in records:
            if record["recipe"] == recipe and "tutorial" not in record:
                rows.setdefault(re.sub(r" --seed \d+| seed=\d+| --out \S+", "", record["command"]), []).append(record)
        if rows:
            parts.append(
                f"## {TITLES[recipe]}\n\n| trained | data | hardware, time | measured on held-out data | losses |"
            )
            parts.append("|---|---|---|---|---|")
            parts += [_row(rows[command], measures) for command in sorted(rows)]
            parts.append("")
    return "\n".join([*parts, ABSENT])


def _row(records: list[Record], measures: list[Measure]) -> str:
    first = records[0]
    about = DEMOS[first["demo"]].about if "demo" in first else f"{first.get('about', '')}."
    machine = (
        f"{first['processor']}, torch {first['packages']['torch']}" if first["device"] == "CPU" else first["device"]
    )
    cells = (
        f"`{re.sub(r' (--seed |seed=)0', '', first['command'])}`: {first['preset']}, {first['parameters'] / 1e6:.2f} M "
        f"parameters, {first['steps']:,} steps of {first['batch_size']} examples",
        f"{about} {first['examples']:,} examples",
        f"{machine}: {_minutes(records)}",
        "<br>".join(_measured(records, measures)),
        "<br>".join(f"{record['seed']}: `{record['losses'][:12]}`" for record in records),
    )
    return f"| {' | '.join(cells)} |"


def _minutes(records: list[Record]) -> str:
    if "cpu_seconds" in records[0]:
        return f"{statistics.mean(record['cpu_seconds'] for record in records) / 60:.1f} minutes of CPU time"
    minutes = statistics.mean(record["wall_seconds"] for record in records) / 60
    return f"{minutes:.1f} minutes" + (" on a machine with other work" if records[0]["device"] == "CPU" else "")


def _measured(records: list[Record], measures: list[Measure]) -> Iterator[str]:
    """Yield each measure with its deviation over the seeds, and the baseline."""
    for measure in measures:
        for name in sorted(name for name in records[0]["metrics"] if fnmatchcase(name, measure.metric)):
            if isinstance(measure.baseline, str) and measure.baseline not in records[0]["metrics"]:
                continue
            values = [record["metrics"][name] for record in records]
            base = measure.baseline if isinstance(measure.baseline, float) else records[0]["metrics"][measure.baseline]
            kind = f" ({name.partition('_')[0]})" if "*" in measure.metric else ""
            deviation = f" ± {_shown(statistics.stdev(values), measure.unit)}" if len(values) > 1 else ""
            guess = f" ({measure.guess}: {_shown(base, measure.unit)})"
            mean = statistics.mean(values)
            is_better = mean < base if _LESS_IS_BETTER.search(name) else mean > base
            mark = "" if is_better else "*"
            yield f"{measure.about}{kind}: {mark}{_shown(mean, measure.unit)}{mark}{deviation}{guess}"


def _shown(value: float, unit: str) -> str:
    shown = f"{100 * value if unit == '%' else value:.1f}" if unit else f"{value:.3f}"
    return f"{shown} %" if unit in ("%", "of 100") else shown


if __name__ == "__main__":
    main(sys.argv[1:])

"""The gallery and the results: pages that a script makes from what demos and runs left."""

import functools
import json
import runpy
import shutil
import stat
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("PIL")
pytest.importorskip("matplotlib")

from PIL import Image

from pretrainkit.demo.catalogue import DEMOS
from pretrainkit.images.pillow import thumbnail
from support import page_data as data

ROOT = Path(__file__).parents[1]


@functools.cache
def script() -> dict[str, Any]:
    sys.path.insert(0, str(ROOT / "docs"))  # it imports make_pages
    return runpy.run_path(str(ROOT / "docs/make_gallery.py"))


def shown(level: int, **more: bool) -> dict[str, Any]:
    return {"image": thumbnail(np.full((3, 16, 64), level, np.uint8), format="PNG"), **more}


def put_demo(folder: Path, name: str, seed: int, **numbers: float) -> None:
    """Write the files of a demo, around a run of two steps."""
    shutil.copytree(data.part("bert"), folder / "run")
    config = folder / "run/config.yaml"
    config.write_text(config.read_text().replace("\nseed: 0\n", f"\nseed: {seed}\n"))
    drawn: list[dict[str, Any]] = [{name: [shown(90)] for name in ("original", "masked", "reconstructed")}]
    found = [shown(level, is_right=level == 60) for level in (20, 60)]
    samples = {"pixel": drawn, "clip": [{"query": [shown(5)], "found": []}, {"query": "a caption", "found": found}]}
    if name in samples:
        (folder / "run/samples").mkdir(exist_ok=True)
        for file in ("samples.json", "samples/step-00000001.json"):
            (folder / "run" / file).write_text(json.dumps(samples[name]))
    for file in ("from-captions.png", "from-photographs.png", "scripts.png"):
        Image.new("RGB", (4, 4)).save(folder / file)
    lines = [
        "[1/2] Export: of it",
        "  What it fills in",
        "",
        "[2/2] Report: a page",
        "",
        "  Done in 1 minute.",
        "  losses equal after resume  3 of 3",
        f"  run  {folder}/run",
        "",
        "  so good  1",
    ]
    text = "\n".join([*lines, json.dumps(numbers)])
    left = {"wall_seconds": 120, "cpu_seconds": 60, "output": text}
    folder.with_suffix(".json").write_text(json.dumps(left))


def test_pages_are_made_from_what_the_demos_left(tmp_path: Path) -> None:
    docs, out = tmp_path / "docs", tmp_path / "out"
    (docs / "images").mkdir(parents=True)
    for name in DEMOS:
        for seed in (0, 1):
            put_demo(out / f"{name}-{seed}", name, seed, masked_lm_loss=4.0 + 0.2 * seed, unigram_loss=6.5)
    script()["main"]([*DEMOS, "--seeds", "0", "1", "--out", str(out)], docs)

    page = (docs / "gallery.md").read_text("utf-8")
    for name in DEMOS:
        sentence = f"`pretrainkit demo {name} --seed 0` took 1.0 minutes of CPU time (2.0 minutes on a machine with"
        assert sentence in page.replace("\n", " ")
    told = ["  What it fills in", "", "  Done in 1 minute.", "  losses equal after resume  3 of 3", "", "  so good  1"]
    assert "\n".join(["```text", *told, "```"]) in page
    drawn = {file for pictures in script()["PICTURES"].values() for file in pictures}
    assert {path.name for path in (docs / "images").iterdir()} == drawn
    assert all(f"](images/{file})" in page for file in drawn)

    table = (docs / "results.md").read_text("utf-8")
    assert "loss of hidden words, nats: 4.100 ± 0.141 (word frequencies: 6.500)" in table
    losses = [json.loads(path.read_bytes())["losses"] for path in sorted((docs / "results").glob("demo-bert-*.json"))]
    assert f"0: `{losses[0][:12]}`<br>1: `{losses[1][:12]}`" in table
    assert losses[0] == losses[1]  # the same run, copied


def test_losses_that_differ_in_a_digit_have_another_fingerprint(tmp_path: Path) -> None:
    run = tmp_path / "run"
    data.copy("bert", run)
    losses_of = script()["losses_of"]
    before = losses_of([run])
    first, *rows = (run / "metrics.jsonl").read_text().splitlines()
    row = json.loads(first)
    (run / "metrics.jsonl").write_text("\n".join([json.dumps(row | {"loss": row["loss"] + 1e-7}), *rows]) + "\n")
    assert losses_of([run]) != before


def test_a_run_of_train_becomes_a_row(tmp_path: Path) -> None:
    script()["main"](["--runs", str(data.part("bert")), "--about", "Three novels"], tmp_path)
    table = (tmp_path / "results.md").read_text("utf-8")
    assert "`pretrainkit train bert/mini" in table
    assert "| Three novels. " in table
    assert "loss of hidden words, nats: " in table
    (file,) = (tmp_path / "results").iterdir()
    record = json.loads(file.read_bytes())
    assert record["seed"] == 0
    assert record["packages"]["torch"]


def test_a_fine_tuned_task_is_compared_with_one_class_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["--from", data.part("bert"), "--data", f"glue={data.part('glue')}", "model.dropout=0.1", "num_steps=2"]
    for seed in (0, 1):
        data.must("finetune", "mrpc", *words, f"seed={seed}", "--out", tmp_path / f"mrpc-{seed}")
    monkeypatch.chdir(tmp_path)
    script()["main"](["--runs", "mrpc-0", "mrpc-1", "--about", "MRPC"], tmp_path / "docs")
    table = (tmp_path / "docs/results.md").read_text("utf-8")
    assert "## GLUE" in table
    assert "model.dropout=0.1 num_steps=2 --out mrpc-0`: glue/mrpc" in table
    rows = [line.split("\t") for line in (data.part("glue") / "MRPC/dev.tsv").read_text("utf-8").splitlines()[1:]]
    share = 100 * max(sum(row[0] == label for row in rows) for label in "01") / len(rows)
    assert f"(one class for all: {share:.1f} %)" in table
    assert all(f"{seed}: `" in table for seed in (0, 1))
    assert str(tmp_path) not in "".join(path.read_text("utf-8") for path in (tmp_path / "docs/results").iterdir())


def test_depth_that_was_generated_becomes_a_figure_of_the_run(tmp_path: Path) -> None:
    shutil.copytree(data.part("fourm"), tmp_path / "run")
    (tmp_path / "run/generated").mkdir()
    values = {"error": 0.25, "guessed_error": 0.75, "examples": 4}
    summary = {"depth@64": values, "depth@64 of tools": values | {"error": 0.5}}
    (tmp_path / "run/generated/generation.json").write_text(json.dumps({"summary": summary}))
    script()["main"](["--runs", str(tmp_path / "run")], tmp_path / "docs")
    table = (tmp_path / "docs/results.md").read_text("utf-8")
    assert (
        "depth error, deviations: 0.250 (the mean depth: 0.750)<br>of tools: 0.500 (their mean depth: 0.750)" in table
    )


def test_a_demo_is_run_once_with_one_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "$@, threads: $OMP_NUM_THREADS"\ntest "$3" != wrong\n')
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(sys, "executable", str(python))
    script()["run_demo"]("t5", 3, tmp_path / "out/t5-3")
    left = json.loads((tmp_path / "out/t5-3.json").read_bytes())
    assert left["output"] == f"-m pretrainkit demo t5 --seed 3 --out {tmp_path}/out/t5-3 --json, threads: 1\n"
    assert 0 <= left["cpu_seconds"] <= left["wall_seconds"] + 1
    python.write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(SystemExit, match=r"demo wrong .*\n  failed with exit code 1"):
        script()["run_demo"]("wrong", 0, tmp_path / "out/wrong-0")
    assert not (tmp_path / "out/wrong-0.json").exists()


PAGE = """\
# Tutorial: CLIP

```python
from pathlib import Path

Path("word.txt").write_text("threads")
```

```yaml
# my.yaml
num_steps: 2
```

```bash
echo Now; echo "$(cat word.txt): $OMP_NUM_THREADS"; echo "12 tok/s in all" >&2
echo "   0.9  red.png"; cat my.yaml
```

```text
...
threads: 1
9,999 tok/s in ...
num_steps: 2
```

![A search](../images/tutorial-clip-search.png)

```bash
mkdir runs; mv clip runs
```
"""


def test_a_tutorial_is_run_and_compared_with_its_page(tmp_path: Path) -> None:
    docs, folder = tmp_path / "docs", tmp_path / "out/tutorial-clip"
    (docs / "tutorials").mkdir(parents=True)
    (docs / "images").mkdir()
    page = docs / "tutorials/clip.md"
    red = f'{sys.executable} -c \'from PIL import Image; Image.new("RGB", (8, 8), "red").save("red.png")\''
    more = f"{red}; cp -r {data.part('bert')} clip"
    page.write_text(PAGE.replace("echo Now", f"{more}; echo Now"))
    script()["main"](["tutorial-clip", "--out", str(tmp_path / "out")], docs)

    record = json.loads((docs / "results/tutorial-clip.json").read_bytes())
    assert record["printed"] == ["threads: 1", "12 tok/s in all", "num_steps: 2"]
    assert record["cpu_seconds"] >= 0
    gallery = (docs / "gallery.md").read_text("utf-8")
    assert "### [CLIP](tutorials/clip.md)\n\nAll of its commands took " in gallery
    assert "one thread" in gallery
    assert "![A search](images/tutorial-clip-search.png)" in gallery
    assert "```text\nthreads: 1\n12 tok/s in all\nnum_steps: 2\n```" in gallery
    assert Image.open(docs / "images/tutorial-clip-search.png").width > 100
    assert (docs / "results.md").read_text("utf-8").count("| `") == 0  # its row is in the gallery only

    (folder / "word.txt").write_text("changed")  # a tutorial that was run is not run again
    page.write_text(page.read_text().replace("threads: 1", "threads: 7"))
    with pytest.raises(SystemExit, match="did not print:\n  tutorial-clip: threads: 7"):
        script()["main"](["tutorial-clip", "--out", str(tmp_path / "out")], docs)
    page.write_text(page.read_text().replace("mkdir runs", "false"))
    shutil.rmtree(tmp_path / "out")
    with pytest.raises(SystemExit, match=r"false; mv clip runs'\n  failed with exit code 1"):
        script()["main"](["tutorial-clip", "--out", str(tmp_path / "out")], docs)
    assert not folder.with_suffix(".json").exists()


def test_the_pages_are_those_of_the_records(tmp_path: Path) -> None:
    """No row without a file of a run, and no file without a row."""
    for part in ("results", "tutorials"):
        shutil.copytree(ROOT / "docs" / part, tmp_path / part)
    script()["main"](["--runs"], tmp_path)
    for page in ("gallery.md", "results.md"):
        assert (tmp_path / page).read_text("utf-8") == (ROOT / "docs" / page).read_text("utf-8"), "run make gallery"


def test_each_picture_is_there_once_and_shown() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("*.md")]
    text = "".join(page.read_text("utf-8") for page in pages)
    pictures = sorted((ROOT / "docs/images").iterdir())
    assert [path.name for path in pictures if f"images/{path.name})" not in text] == []
    assert len({path.read_bytes() for path in pictures}) == len(pictures)


def test_one_command_makes_the_gallery() -> None:
    assert "\ngallery: setup\n\t$(BIN)/python docs/make_gallery.py\n" in (ROOT / "Makefile").read_text("utf-8")

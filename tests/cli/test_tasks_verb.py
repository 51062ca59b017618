"""`pretrainkit tasks`: tasks of a user's module are listed, shown and cached."""

import json

import pytest

from pretrainkit.tasks.task import REGISTRY
from support.remedies import followed

MODULE = """
from pathlib import Path

from pretrainkit.tasks.preprocessors import append_eos_after_trim, format_strings, keep_if, tokenize
from pretrainkit.tasks.task import Feature, Mixture, Task, add_mixture, add_task
from pretrainkit.tasks.sources import Tsv
from pretrainkit.tasks.steps import CacheMarker
from pretrainkit.tasks.vocabulary import ByteVocabulary

HERE = Path(__file__).parent
FEATURES = {"inputs": Feature(ByteVocabulary()), "targets": Feature(ByteVocabulary())}
for name in ("my:first", "second"):
    add_task(
        Task(
            name,
            Tsv({split: HERE / "train.tsv" for split in ("train", "validation")[: 2 if name == "second" else 1]}),
            FEATURES,
            (
                keep_if(lambda row: row["label"] != "bad"),
                format_strings(inputs=name[-5:] + ": {sentence}", targets="{label}"),
                tokenize(),
                CacheMarker(),
                append_eos_after_trim,
            ),
        )
    )
add_mixture(Mixture("both", [("my:first", 3), ("second", 1)]))
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    monkeypatch.setenv("PRETRAINKIT_CACHE", str(tmp_path / "indexes"))
    rows = "".join(f"sentence {n}\t{'bad' if n == 2 else n % 2}\n" for n in range(8))
    (tmp_path / "train.tsv").write_text("sentence\tlabel\n" + rows)
    (tmp_path / "my_tasks.py").write_text(MODULE)
    yield tmp_path / "my_tasks.py"
    for name in ("both", "my:first", "second"):
        if name in REGISTRY.names():
            REGISTRY.remove(name)


def test_tasks_of_a_module_are_listed(cli, module):
    result = cli("tasks", "list", "--module", module)
    assert result.code == 0
    assert "2 tasks of your modules\n  my:first  inputs, targets; splits train\n  second" in result.out
    assert "1 mixture of your modules\n  both  inputs, targets; of my:first, second\n" in result.out
    assert cli("tasks").code == 0


def test_a_list_can_be_narrowed_by_a_part_of_the_name_or_a_pattern(cli, module):
    whole = cli("tasks", "list", "--module", module, "--json")
    names = {entry["name"] for entry in json.loads(whole.out)}
    assert {"my:first", "glue_cola_v002", "super_glue_v102_proportional_sentinel"} <= names
    for pattern, expected in (
        ("mnli_m", {n for n in names if "mnli_m" in n}),
        ("wmt*enfr*", {n for n in names if "enfr" in n and n[0] == "w"}),
    ):
        found = json.loads(cli("tasks", "list", "--filter", pattern, "--json").out)
        assert {entry["name"] for entry in found} == expected
        assert len(found) == 2
    assert "tasks and mixtures contains 'nothing'" in cli("tasks", "list", "--filter", "nothing").out


def test_a_named_task_is_shown_and_cached_by_the_options(cli, tmp_path, monkeypatch):
    monkeypatch.setenv("PRETRAINKIT_CACHE", str(tmp_path / "indexes"))
    (tmp_path / "glue" / "RTE").mkdir(parents=True)
    (tmp_path / "glue" / "RTE" / "dev.tsv").write_text("index\tsentence1\tsentence2\tlabel\n0\tA\tB\tentailment\n")
    data = ("--data", f"glue={tmp_path / 'glue'}")
    shown = cli("tasks", "show", "glue_rte_v002", *data, "--split", "validation")
    assert "'rte sentence1: A sentence2: B' + EOS" in shown.out
    cache = ("tasks", "cache", "glue_rte_v002", "--out", tmp_path / "caches", *data)
    assert "leaves its vocabulary to the run" in cli(*cache).err
    assert "glue_rte_v002 validation, 1 examples" in cli(*cache, "--tokenizer", "bytes").out
    again = cli("tasks", "show", "glue_rte_v002", *data, "--split", "validation", "--cache", tmp_path / "caches")
    assert "1 examples of validation, from a cache" in again.out
    lacking = cli("tasks", "show", "glue_v002_proportional", *data)
    assert "--leave-out glue_cola_v002 --leave-out glue_sst2_v002" in lacking.err


def test_examples_are_shown_with_ids_and_text(cli, module):
    result = cli("tasks", "show", "my:first", "--num", "2", "--lengths", "inputs=9,targets=4", "--module", module)
    assert result.code == 0
    assert "my:first: 7 examples of train" in result.out
    assert "inputs [9]: 105 108 117 118 119 61 35 118 1\n    'first: s' + EOS" in result.out
    assert "inputs_pretokenized: first: sentence 1" in result.out
    assert "sentence 2" not in result.out


def test_a_mixture_is_shown_with_its_rates(cli, module):
    result = cli("tasks", "show", "both", "--num", "8", "--json", "--module", module)
    found = json.loads(result.out)
    assert found["rates"] == {"my:first": 3.0, "second": 1.0}
    assert [example["task"] for example in found["examples"]].count("second") == 2
    assert [row["share"] for row in found["shares"]] == [0.75, 0.25]
    assert [row["mean_target_length"] for row in found["shares"]] == [2.0, 2.0]
    text = cli("tasks", "show", "both", "--num-steps", "14", "--batch-size", "2", "--module", module).out
    assert "my:first 3 75.00% 7 3" in " ".join(text.split())


OPEN_MODULE = """
from pathlib import Path

from pretrainkit.tasks.preprocessors import rekey, tokenize
from pretrainkit.tasks.supply import RunSteps, RunVocabulary
from pretrainkit.tasks.task import Feature, Mixture, Task, add_mixture, add_task
from pretrainkit.tasks.sources import TextLines
from pretrainkit.tasks.steps import CacheMarker

TEXT = {"train": Path(__file__).parent / "text.txt"}
FEATURES = {"inputs": Feature(RunVocabulary()), "targets": Feature(RunVocabulary())}
STEPS = (rekey({"targets": "text"}), tokenize(False), CacheMarker(), RunSteps())
add_task(Task("second", TextLines(TEXT), FEATURES, STEPS))
add_mixture(Mixture("both", [("second", 1.0)]))
"""


def test_an_objective_on_text_is_shown_with_the_defaults_of_a_run(cli, module):
    module.write_text(OPEN_MODULE)
    (module.parent / "text.txt").write_text("".join(f"{n} is the number of this sentence\n" for n in range(40)))
    show = ("tasks", "show", "both", "--module", module)
    error = cli(*show).err
    advice = followed(error, "recipes/t5/task_denoising.py: an objective on text").rpartition("tasks: ")[2].split()
    assert cli(*show, *advice).code == 0
    error = cli(*show, *advice, "--tokenizer", "bytes").err  # of which few ids are free
    more = error.rpartition("tasks show NAME ")[2].split()
    assert cli(*show, *advice, "--tokenizer", "bytes", *more).code == 0
    lengths = ("--lengths", "inputs=64,targets=18", "--tokenizer", "bytes")
    (row,) = json.loads(cli(*show, *lengths, "--json").out)["shares"]
    assert "made with the default settings of a run" in cli(*show, *lengths).out
    # A run counts the same: its own check of the same mixture.
    run = ("t5/tiny", "data.task=both", f"data.modules=[{module}]", "data.tokenizer=bytes", "data.train_split=train")
    checked = cli("data", "check", *run, "data.valid_split=null", "data.input_length=64", "data.target_length=18").out
    inputs, targets = (round(row["examples"] * row[f"mean_{name}_length"]) for name in ("input", "target"))
    assert inputs > 1000
    assert f"tokens of an epoch    {inputs:,} of inputs, {targets:,} of targets" in checked


def test_a_cache_is_written_used_and_kept(cli, module, tmp_path):
    command = ("tasks", "cache", "both", "--out", tmp_path / "caches", "--module", module, "--num-shards", "2")
    result = cli(*command, "--workers", "2")
    assert result.code == 0, result.err
    assert "my:first train, 7 examples, " in result.out
    assert (tmp_path / "caches" / "my" / "first" / "COMPLETED").is_file()
    show = ("tasks", "show", "second", "--module", module)
    cached = (*show, "--cache", tmp_path / "caches")
    assert json.loads(cli(*cached, "--json").out) == json.loads(cli(*show, "--json").out)
    assert "second: 7 examples of train, from a cache" in cli(*cached).out
    left = tmp_path / "caches" / "second" / ".work" / "task.json"  # by a kill while the command removed it
    left.parent.mkdir()
    left.touch()
    assert "exists already" in cli(*command).err
    assert not left.parent.exists()


def test_a_cache_of_one_split_leaves_out_the_tasks_without_it(cli, module, tmp_path):
    command = ("tasks", "cache", "both", "--out", tmp_path / "caches", "--module", module)
    result = cli(*command, "--split", "validation", "--json")
    assert list(json.loads(result.out)) == ["second"]
    assert list(json.loads(result.out)["second"]["splits"]) == ["validation"]
    assert "left out my:first: it has no split validation" in result.err
    assert "caching second 8 examples" in result.err
    assert not (tmp_path / "caches" / "my").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("show", "my:frst"), "the nearest names are: my:first"),
        (("show", "second", "--split", "test"), "there is no split 'test'\n  its splits are: train"),
        (("show", "second", "--lengths", "512"), "write for example inputs=512,targets=114"),
        (
            ("show", "both", "--lengths", "input=5"),
            "--lengths names 'input', and both has no such feature\n  give one of",
        ),
        (("cache", "both", "--split", "tests", "--out", "never"), "there is no split 'tests'\n  give one of: train"),
        (("list", "--module", "no_such.py"), "there is no module"),
        (("list", "--module", "no_such_module"), "the module no_such_module cannot be imported: ModuleNotFoundError"),
    ],
)
def test_wrong_input_is_an_error_with_a_fix(cli, module, words, message):
    result = cli("tasks", *words, "--module", module)
    assert result.code == 2
    assert message in result.err


def test_a_module_that_fails_is_named(cli, tmp_path):
    (tmp_path / "broken.py").write_text("import nothing_of_that_name\n")
    result = cli("tasks", "list", "--module", tmp_path / "broken.py")
    assert result.code == 2
    assert "cannot be imported: ModuleNotFoundError: No module named 'nothing_of_that_name'" in result.err

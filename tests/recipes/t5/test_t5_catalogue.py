"""The named tasks and mixtures as a whole: names, rates (fact 28), features, and that knowing them costs nothing."""

import pickle
import subprocess
import sys

import numpy as np
import pytest

import pretrainkit.recipes.t5.catalogue  # noqa: F401  (makes the tasks known)
from pretrainkit.data.order import Order
from pretrainkit.errors import ConfigError
from pretrainkit.recipes.t5.catalogue import add_task_with_sentinels, glue, mixtures, super_glue, texts
from pretrainkit.tasks.sources import FunctionSource
from pretrainkit.tasks.supply import RunVocabulary, Supply
from pretrainkit.tasks.task import REGISTRY, Mixture, Task, TaskRegistry
from pretrainkit.tasks.vocabulary import ByteVocabulary
from support.remedies import followed

TASKS = (*glue.TASKS, *super_glue.TASKS, *texts.TASKS)
SUITES = ("cola", "sst2", "mrpc", "qqp", "stsb", "mnli", "mnli_matched", "mnli_mismatched", "qnli", "rte", "wnli", "ax")
SUPER = ("boolq", "cb", "copa", "multirc", "record", "rte", "wic", "axb", "axg")
WMT = ("wmt_t2t_ende", "wmt14_ende", "wmt14_enfr", "wmt15_enfr", "wmt16_enro", "wmt19_ende")


def test_every_task_of_the_catalogue_is_known_by_its_name():
    expected = {
        *(f"c4_v220_{name}" for name in ("span_corruption", "iid_denoising", "prefix_lm", "full_lm")),
        *(f"c4{part}_v020_unsupervised" for part in ("", "_noclean", "_realnewslike", "_webtextlike")),
        "wikipedia_20190301.en_v003_unsupervised",
        *(f"c4_prefix_lm_objective_{kind}_architecture" for kind in ("encoder_decoder", "decoder")),
        *(f"glue_{name}_v002" for name in SUITES),
        "glue_wnli_v002_simple_eval",
        *(f"super_glue_{name}_v102" for name in SUPER),
        *(f"super_glue_wsc_v102_simple_{part}" for part in ("train", "eval")),
        "dpr_v001_simple",
        *(f"{name}_v003" for name in WMT),
        *(f"squad_v010{part}" for part in ("", "_allanswers", "_context_free", "_allanswers_span")),
        "trivia_qa_v010",
        "cnn_dailymail_v002",
    }
    twins = {
        *(f"super_glue_{name}_v102_1_sentinel" for name in SUPER),
        *(f"super_glue_wsc_v102_simple_1_sentinel_{part}" for part in ("train", "eval")),
        "dpr_v001_simple_1_sentinel",
    }
    assert {task.name for task in TASKS} == expected
    assert expected | twins | {mixture.name for mixture in mixtures.MIXTURES} <= set(REGISTRY.names())
    assert len(expected) == 48
    assert len(mixtures.MIXTURES) == 20


@pytest.mark.parametrize(
    ("name", "total", "members"),
    [
        ("glue_v002_proportional", 949_101, 11),
        ("super_glue_v102_proportional", 185_673, 12),
        ("super_glue_v102_proportional_sentinel", 185_673, 12),
    ],
)
def test_rates_are_the_official_numbers_of_examples(name, total, members):
    rates = [rate for _, rate in REGISTRY.get(name).pairs]
    assert (sum(rates), len(rates), rates.count(0)) == (total, members, 3)


def test_glue_and_super_glue_share_rte_where_they_meet():
    for name in ("all_proportional", "all_mix", "leave_one_out_squad_v010_allanswers"):
        rates = dict(REGISTRY.get(name).pairs)
        assert rates["glue_rte_v002"] == rates["super_glue_rte_v102"] == 1245
    assert dict(REGISTRY.get("leave_one_out_glue_v002_proportional").pairs)["super_glue_rte_v102"] == 2490
    assert dict(REGISTRY.get("all_mix").pairs)["c4_v020_unsupervised"] == 1e6


def test_leaving_one_out_leaves_the_rest():
    everything = {name for name, _ in REGISTRY.get("all_equal").pairs}
    assert len(everything) == 29
    for gone in ("wmt16_enro_v003", "glue_v002_proportional", "super_glue_v102_proportional"):
        left = {name for name, _ in REGISTRY.get(f"leave_one_out_{gone}").pairs}
        assert left == everything - set(REGISTRY.task_names(gone))


def test_tasks_of_rate_zero_are_members_that_are_never_drawn():
    rows = [{"inputs": "a", "targets": "b"}]
    registry = TaskRegistry()
    rates = {name: rate for name, rate in glue.RATES.items() if "mnli" in name}
    for name in rates:
        registry.add(Task(name, FunctionSource(lambda _: rows, ("train",)), REGISTRY.get_task(name).features))
    registry.add(Mixture("mnli", list(rates.items())))
    assert set(registry.task_names("mnli")) == set(rates)
    assert set(registry.rates("mnli").values()) == {392_702.0, 0.0}
    bound = registry.bind("mnli", "train")
    drawn = Order(bound.sizes, seed=0, weights=bound.weights).records(np.arange(100)).source
    assert [task.name for task in bound.tasks] == ["glue_mnli_v002"]
    assert set(drawn.tolist()) == {0}


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_named_tasks_are_sent_to_worker_processes_and_leave_their_vocabulary_open(task):
    copy = pickle.loads(pickle.dumps(task))
    assert (copy.name, copy.splits) == (task.name, task.splits)
    assert all(isinstance(feature.vocabulary, RunVocabulary) for feature in task.features.values())
    assert task.cache_marker is not None


def test_open_parts_of_a_task_are_required_by_name(tmp_path):
    task = REGISTRY.get_task("glue_cola_v002")
    with pytest.raises(
        ConfigError, match=r"'glue_cola_v002' leaves its vocabulary to the run.*\n.*data\.tokenizer=DIR"
    ):
        task.supplied(Supply())
    with pytest.raises(ConfigError, match="where its data is stored and is used without data") as error:
        task.bind("train")[0]
    assert "folders={NAME: FOLDER}" in followed(error.value, "tasks/supply.py: a task leaves open where its data")
    (tmp_path / "CoLA").mkdir()
    (tmp_path / "CoLA" / "train.tsv").write_text("gj04\t1\t\tA text.\n")
    assert len(task.supplied(Supply(ByteVocabulary(), folders={"glue": tmp_path})).bind("train")) == 1
    text = REGISTRY.get_task("c4_v020_unsupervised")
    with pytest.raises(ConfigError, match=r"leaves steps to the run.*\n.*data\.denoising"):
        text.supplied(Supply(ByteVocabulary()))


def test_a_twin_of_a_users_task_keeps_its_sentinels_within_the_lengths():
    registry, sizes = TaskRegistry(), (3, 8, 30)
    rows = [{"sentence": "x" * size, "label": 1} for size in sizes]
    task = REGISTRY.get_task("glue_cola_v002").replace(name="own", source=FunctionSource(lambda _: rows, ("train",)))
    registry.add(task.supplied(Supply(ByteVocabulary(extra_ids=4))))
    twin = add_task_with_sentinels("own", 2, registry)
    assert registry.get("own_2_sentinel") is twin
    for example in twin.bind("train", {"inputs": 26, "targets": 9}):
        assert example["inputs"][-3:].tolist() == [262, 261, 1]
        assert example["targets"][:2].tolist() == [262, 261]
        assert (len(example["inputs"]) <= 26, len(example["targets"])) == (True, 9)
        assert example["targets"][-1] == 1
    with pytest.raises(ConfigError, match="there is already a task 'own_2_sentinel'"):
        add_task_with_sentinels("own", 2, registry)


def test_knowing_the_tasks_loads_neither_torch_nor_data_libraries():
    code = (
        "import sys, pretrainkit.recipes.t5.catalogue\n"
        "print({'torch', 'datasets', 'transformers', 'sentencepiece', 'sacrebleu', 'rouge_score'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "set()"

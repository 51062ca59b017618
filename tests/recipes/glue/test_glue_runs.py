"""From an encoder to a fine-tuned, evaluated, exported model that answers."""

import json
import sys
from itertools import pairwise
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from pretrainkit import api
from pretrainkit.cli.main import app, main
from pretrainkit.errors import InputError
from pretrainkit.recipes.glue.answers import records_of
from pretrainkit.report.numbers import metric
from pretrainkit.report.run_table import run_table
from support.glue_toys import QUICK

pytestmark = pytest.mark.slow


def finetune(task, encoder, glue, out, *more):
    folders = json.dumps({"glue": str(glue)})
    config = api.load_config(f"glue/{task}", [f"init_from={encoder}", f"data.task_folders={folders}", *QUICK, *more])
    return api.train(config, out, device="cpu")


@pytest.fixture(scope="module")
def finished(encoder, glue, tmp_path_factory):
    """A run on the toy SST-2, and its last metrics."""
    out = tmp_path_factory.mktemp("sst2") / "run"
    return out, finetune("sst2", encoder, glue, out, "data.num_epochs=6")


def test_it_learns_classes_from_words(finished):
    accuracy = finished[1]["valid_accuracy"]
    assert accuracy > 90
    (row,) = run_table(finished[0])
    for name in ("accuracy", "score", "matthews_corrcoef", "mismatched_accuracy"):
        assert metric(name, accuracy, row.percentages) == f"{accuracy:.4g}\u00a0%"
    assert "*accuracy" in json.loads((finished[0] / "provenance.json").read_text())["percentages"]


def test_numbers_are_predicted_in_float32_whatever_the_encoder_computes_in(encoder, glue, tmp_path):
    finetune("stsb", encoder, glue, tmp_path / "run", "num_steps=2", "data.num_epochs=null")
    narrow = ["precision.compute=bfloat16"]
    out = api.predict(tmp_path / "run", tmp_path / "out.jsonl", split="validation", device="cpu", overrides=narrow)
    values = torch.tensor([json.loads(line)["value"] for line in out.read_text().splitlines()])
    assert (values != values.bfloat16().float()).any()


def test_a_fine_tuned_run_needs_neither_encoder_nor_data_to_be_opened(finished):
    opened = api.open_model(finished[0])
    assert opened.config.model.classes == ("negative", "positive")
    assert opened.tokenizer is not None


def test_evaluate_takes_the_folder_of_a_benchmark_as_fine_tuning_does(finished, glue):
    told = {}
    for words in ((), ("--data", f"glue={glue}"), (f"data.task_folders.glue={glue}",)):
        done = CliRunner().invoke(app, ["evaluate", str(finished[0]), *words, "--device", "cpu", "--json"])
        assert done.exit_code == 0, done.output
        told[words[:1]] = json.loads(done.stdout)
    first, *others = told.values()
    assert all(other == first for other in others)


def test_a_model_that_was_not_fine_tuned_is_refused_with_the_command_to_use(encoder, tmp_path):
    with pytest.raises(InputError, match="not a fine-tuned model") as error:
        api.predict(encoder, tmp_path / "answers.jsonl", task="sst2")
    assert str(error.value).endswith("or use it as it is: pretrainkit generate")
    assert api.generate(encoder, ["a <mask>"])


def test_predictions_are_json_lines_with_probabilities(finished, tmp_path):
    out = api.predict(finished[0], tmp_path / "answers.jsonl", split="test", device="cpu")
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["index"] for line in lines] == list(range(16))
    for line in lines:
        assert line["label"] == max(line["probabilities"], key=line["probabilities"].get)
        assert sum(line["probabilities"].values()) == pytest.approx(1)


def test_the_export_for_transformers_gives_equal_logits(finished, tmp_path, transformers):
    api.export(finished[0], "huggingface", tmp_path / "hf")
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "hf").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    opened = api.open_model(finished[0])
    source = opened.recipe.open_data(opened.config, "valid")
    batch = {name: torch.from_numpy(array) for name, array in source.build(records_of(source, np.arange(6))).items()}
    ends = batch["cu_seqlens"].tolist()
    with torch.no_grad():
        ours = opened.model(batch, 32)[0]
        for row, (begin, end) in enumerate(pairwise(ends)):
            ids = batch["input_ids"][None, begin:end].long()
            types = batch["token_type_ids"][None, begin:end].long()
            logits = theirs(input_ids=ids, token_type_ids=types).logits
            torch.testing.assert_close(logits[0], ours[row], atol=1e-5, rtol=1e-5)
    assert theirs.config.id2label == {0: "negative", 1: "positive"}
    assert tokenizer.mask_token == "[MASK]"


@pytest.mark.parametrize(
    ("task", "names"),
    [
        ("cola", {"matthews_corrcoef"}),
        ("qqp", {"accuracy", "f1"}),
        ("stsb", {"pearson_corrcoef", "spearman_corrcoef"}),
        ("mnli", {"accuracy", "mismatched_accuracy"}),
        ("qnli", {"accuracy"}),
        ("wnli", {"accuracy"}),
    ],
)
def test_every_kind_of_task_trains_and_is_scored(task, names, encoder, glue, tmp_path):
    metrics = finetune(task, encoder, glue, tmp_path / "run", "data.num_epochs=null", "num_steps=2")
    found = {name.removeprefix("valid_") for name in metrics if name.startswith("valid_")}
    assert names | {"score", "loss"} <= found
    assert all(np.isfinite(value) for value in metrics.values())


def test_a_resumed_run_ends_like_an_uninterrupted_run(encoder, glue, tmp_path):
    settings = ("data.num_epochs=null", "num_steps=6", "checkpoint.every_steps=3", "checkpoint.keep_last=9")
    whole = finetune("mrpc", encoder, glue, tmp_path / "whole", *settings)
    short = (*settings[:1], "num_steps=3", *settings[2:], "schedule.name=constant")
    finetune("mrpc", encoder, glue, tmp_path / "part", *short)
    constant = finetune("mrpc", encoder, glue, tmp_path / "constant", *settings, "schedule.name=constant")
    resumed = api.resume(tmp_path / "part", ["num_steps=6"], device="cpu")
    assert resumed["loss"] == constant["loss"]
    assert resumed["valid_loss"] == constant["valid_loss"]
    assert whole["loss"] != constant["loss"]


def test_the_classes_of_own_tables_are_detected(encoder, tmp_path):
    rows = [{"claim": "the man was fine", "proof": "a house", "verdict": name} for name in ("yes", "no", "maybe")]
    for split in ("train", "valid"):
        (tmp_path / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows * 4)))
    settings = [f"data.{split}={tmp_path}/{split}.jsonl" for split in ("train", "valid")]
    config = api.load_config(
        "glue/own",
        [
            f"init_from={encoder}",
            *settings,
            "data.texts=claim,proof",
            "data.label=verdict",
            "num_steps=1",
            "data.num_epochs=null",
            *QUICK,
        ],
    )
    api.train(config, tmp_path / "run", device="cpu")
    assert api.open_model(tmp_path / "run").config.model.classes == ("maybe", "no", "yes")
    out = api.predict(tmp_path / "run", tmp_path / "out.jsonl", input=tmp_path / "valid.jsonl", device="cpu")
    assert len(out.read_text().splitlines()) == 12


def test_a_second_task_starts_from_the_encoder_of_the_first(finished, glue, tmp_path):
    finetune(
        "rte", finished[0], glue, tmp_path / "run", "data.num_epochs=null", "num_steps=1", "optimizer.peak_lr=1e-9"
    )
    before, after = (api.load_model(path).state_dict() for path in (finished[0], tmp_path / "run"))
    for name in before:
        if name.startswith("encoder."):
            torch.testing.assert_close(after[name], before[name], atol=1e-6, rtol=0)


def test_the_config_of_an_export_trains_on_with_the_tokenizer_beside_it(finished, glue, tmp_path):
    api.export(finished[0], "safetensors", tmp_path / "exported")
    folders = json.dumps({"glue": str(glue)})
    words = [f"init_from={tmp_path}/exported", f"data.task_folders={folders}", "num_steps=1"]
    api.train(api.load_config(tmp_path / "exported/config.yaml", words), tmp_path / "second", device="cpu")


@pytest.mark.parametrize(("more", "goes_on"), [((), True), (("model.pooling=mean",), False)])
def test_a_head_is_kept_only_if_it_reads_the_same(finished, glue, tmp_path, more, goes_on):
    settings = ("data.num_epochs=null", "num_steps=1", "optimizer.peak_lr=1e-9", *more)
    finetune("sst2", finished[0], glue, tmp_path / "run", *settings)
    before, after = (api.load_model(path).head.weight for path in (finished[0], tmp_path / "run"))
    assert torch.allclose(before, after, atol=1e-6) == goes_on


def test_a_pair_under_another_pooling_gets_a_head_of_another_width(encoder, glue, tmp_path):
    settings = ("data.num_epochs=null", "num_steps=1")
    finetune("rte", encoder, glue, tmp_path / "first", *settings, "model.pooling=texts")
    finetune("rte", tmp_path / "first", glue, tmp_path / "second", *settings)
    assert (tmp_path / "second" / "summary.json").exists()


def test_a_random_start_reads_no_weights(encoder, glue, tmp_path):
    settings = ("data.num_epochs=null", "num_steps=1", "optimizer.peak_lr=1e-9")
    finetune("rte", encoder, glue, tmp_path / "trained", *settings)
    finetune("rte", encoder, glue, tmp_path / "random", *settings, "model.start=random", "seed=5")
    trained, random = (api.load_model(tmp_path / name).state_dict() for name in ("trained", "random"))
    name = "encoder.layers.0.attention.qkv.weight"
    assert not torch.allclose(trained[name], random[name], atol=1e-4)


def test_a_model_of_another_kind_of_task_is_refused_to_answer(finished, glue, tmp_path):
    with pytest.raises(InputError, match="entailment"):
        api.predict(finished[0], tmp_path / "out.jsonl", task="ax", device="cpu")
    with pytest.raises(InputError, match="numbers"):
        api.predict(finished[0], tmp_path / "out.jsonl", task="stsb", device="cpu")


def test_the_verb_predict_answers_another_split_of_the_task(finished, tmp_path):
    argv = ["pretrainkit", "predict", str(finished[0]), "--split", "validation", "--device", "cpu"]
    argv += ["--out", str(tmp_path / "out.jsonl")]
    with mock.patch.object(sys, "argv", argv), pytest.raises(SystemExit) as end:
        main()
    assert not end.value.code
    said = [json.loads(line)["label"] for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    folder = Path(api.open_model(finished[0]).config.data.task_folders["glue"])
    truth = [line.split("\t")[1] for line in (folder / "SST-2" / "dev.tsv").read_text().splitlines()[1:]]
    right = sum(one == ("negative", "positive")[int(label)] for one, label in zip(said, truth, strict=True))
    assert 100 * right / len(truth) == pytest.approx(finished[1]["valid_accuracy"])


def test_evaluating_a_run_again_equals_training(finished):
    metrics = api.evaluate(finished[0], device="cpu")
    assert metrics == {name: finished[1][f"valid_{name}"] for name in metrics}


def test_the_report_has_held_out_texts_with_answers_and_truth(finished):
    samples = json.loads((finished[0] / "samples.json").read_text())
    folder = Path(api.open_model(finished[0]).config.data.task_folders["glue"])
    rows = [line.split("\t") for line in (folder / "SST-2" / "dev.tsv").read_text().splitlines()[1:]]
    truths = {text: ("negative", "positive")[int(label)] for text, label in rows}
    assert len(samples) == 8
    for sample in samples:
        assert truths[sample["text"]] == sample["truth"]
        (answer,) = sample["answer"]
        assert answer["is_right"] == (answer["text"] == sample["truth"])


def test_the_best_score_is_kept_and_the_run_ends_when_it_rises_no_more(encoder, glue, tmp_path):
    best = "checkpoint.keep_best={metric: score, mode: max}"
    stop = "evaluate.early_stopping={metric: score, mode: max, patience: 2}"
    words = ("evaluate.every_epochs=null", "evaluate.every_steps=2", "num_steps=200", "data.num_epochs=null")
    finetune("sst2", encoder, glue, tmp_path / "run", best, stop, *words)
    lines = [json.loads(line) for line in (tmp_path / "run" / "eval.jsonl").read_text().splitlines()]
    scores = {line["step"]: line["score"] for line in lines}
    first = min(step for step, score in scores.items() if score == max(scores.values()))
    assert max(scores) == first + 4
    assert (tmp_path / "run" / "checkpoints" / f"step-{first:08d}").is_dir()


def test_the_same_fine_tuning_again_leaves_a_complete_run_as_it_is(finished, encoder, glue):
    run, metrics = finished
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file() and path.name != ".lock"}
    folders = json.dumps({"glue": str(glue)})
    words = [f"init_from={encoder}", f"data.task_folders={folders}", *QUICK, "data.num_epochs=6"]
    again = api.train(api.load_config("glue/sst2", words), run, device="cpu", resume=True)
    assert again.items() >= metrics.items()
    after = {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file() and path.name != ".lock"}
    assert after == before

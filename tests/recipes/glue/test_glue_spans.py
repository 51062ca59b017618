"""Answers in contexts: from JSON as SQuAD has it to a model that answers."""

import json
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrainkit import api
from pretrainkit.recipes.glue.kinds.spans import Question, SpanExamples, candidates, slots_of
from pretrainkit.recipes.glue.presets import qa
from pretrainkit.recipes.glue.source import task_of
from pretrainkit.recipes.token_reader import ControlTokens, TokenReader
from support.glue_toys import BAD, GOOD, OTHER, QUICK

SCORES = st.integers(-9, 9).map(float)


def encode(texts):
    """Runs of letters of at most 3 are tokens."""
    return placed(texts)[:2]


def placed(texts):
    pieces = []
    for text in texts:
        own = [(k, k + 1) for k, letter in enumerate(text) if letter != " "]
        pieces.append([(own[k][0], own[min(k + 1, len(own) - 1)][1]) for k in range(0, len(own), 2)])
    sizes = np.array([len(one) for one in pieces], np.int64)
    places = np.array([place for one in pieces for place in one], np.int64).reshape(-1, 2)
    return np.ones(sizes.sum(), np.int32), sizes, places


READER = TokenReader(encode, ControlTokens((2,), (3,), (3,)), "pairs of letters", encode_with_offsets=placed)


def opened(questions, **spans):
    """Windows of 16 tokens."""
    config = qa().changed(data={"max_seq_length": 16, "spans": spans})
    return SpanExamples([questions], config, task_of(config.data), READER)


@given(
    context=st.text("abc ", min_size=1, max_size=80),
    cut=st.tuples(st.integers(0, 79), st.integers(1, 12)),
    stride=st.integers(6, 8),
)
def test_a_model_that_knows_the_slots_gives_the_answer(context, cut, stride):
    begin, size = cut[0] % len(context), cut[1]
    text = context[begin : begin + size]
    answers = ((text, begin),) if text.strip() else ()
    question = Question(0, answers, "q", "abba", context)
    examples = opened([question], stride=stride, max_question_length=4, null_threshold=0.0)
    said = []
    for window, length in enumerate(examples.read.lengths()):
        truth = examples.truths(np.array([window]), np.zeros(1, np.int64))
        scores = np.zeros((length, 2), np.float32)
        scores[truth["first_slot"][0], 0] = scores[truth["last_slot"][0], 1] = 9
        said.append(examples.predict(window, (scores,)))
    line = examples.lines(np.zeros(1, np.int64), said)[0]
    assert text.strip() in line["answer"]
    assert len(line["answer"].replace(" ", "")) <= len(text.replace(" ", "")) + 2
    if answers:
        assert context[line["begin"] : line["end"]] == line["answer"]
        assert line["begin"] <= begin + len(text) - len(text.lstrip())
    else:
        assert (line["answer"], line["begin"]) == ("", None)


def test_questions_that_lose_their_end_are_counted_once_however_many_windows():
    rows = [Question(number, (("ab", 0),), str(number), text, "ab " * 20) for number, text in enumerate(QUESTIONS)]
    examples = opened(rows, stride=4, max_question_length=3)
    lengths = examples.read.lengths()
    assert len(lengths) > len(rows)
    assert examples.figures()["cut_questions"] == 2
    for chosen, expected in (([0, 1], 0), ([2, 3], 2), ([1, 3], 1)):
        windows = examples.examples_of(np.array(chosen))
        said = [examples.predict(int(i), (np.zeros((lengths[i], 2), np.float32),)) for i in windows]
        assert examples.metrics(np.array(chosen), said)["cut_questions"] == expected


QUESTIONS = ("ab", "abcdef", "abcdefg", "ab ab ab ab ab")
"""1, 3, 4 and 5 tokens."""


@given(st.lists(st.tuples(SCORES, SCORES), min_size=4, max_size=9), st.integers(1, 4))
def test_candidates_are_the_most_likely_spans(scores, max_length):
    scores_S2 = np.array(scores)
    offsets_S2 = np.array([(-1, -1), *((k, k + 1) for k in range(len(scores) - 2)), (-1, -1)])
    all_of_them = [
        scores_S2[first, 0] + scores_S2[last, 1]
        for first in range(1, len(scores) - 1)
        for last in range(first, min(first + max_length, len(scores) - 1))
    ]
    found = candidates(scores_S2, offsets_S2, 20, max_length)
    assert [one.score for one in found] == sorted(all_of_them, reverse=True)[:20]
    assert all(0 < one.end - one.begin <= max_length for one in found)


def test_an_answer_that_reaches_over_the_edge_is_not_in_the_window():
    offsets = np.array([(-1, -1), (4, 6), (6, 9), (10, 12), (-1, -1)])
    assert slots_of(offsets, (6, 12)) == (2, 3)
    assert slots_of(offsets, (5, 8)) == (1, 2)
    assert slots_of(offsets, (3, 8)) is None
    assert slots_of(offsets, (10, 13)) is None
    assert slots_of(offsets, (20, 22)) is None


def squad(rng, num, *, share_without):
    paragraphs = []
    for number in range(num):
        words = [rng.choice(OTHER[:-1]) for _ in range(rng.randint(4, 20))]
        answers = []
        if rng.random() >= share_without:
            place = rng.randrange(len(words))
            words[place] = rng.choice(GOOD)
            answers = [{"text": words[place], "answer_start": sum(len(word) + 1 for word in words[:place])}]
        asked = {"id": f"q{number}", "question": rng.choice(BAD), "answers": answers, "is_impossible": not answers}
        paragraphs.append({"context": " ".join(words), "qas": [asked]})
    return {"version": "v2.0", "data": [{"title": "", "paragraphs": paragraphs}]}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("squad"), random.Random(0)
    for name, num in (("train", 400), ("valid", 40)):
        (folder / f"{name}.json").write_text(json.dumps(squad(rng, num, share_without=0.3)))
        (folder / f"{name}-all.json").write_text(json.dumps(squad(rng, num, share_without=0)))
    return folder


def finetune(encoder, files, out, *more, which=""):
    data = [f"data.{split}={files / split}{which}.json" for split in ("train", "valid")]
    windows = ["data.spans.stride=4", "data.spans.max_question_length=2", *QUICK, "data.max_seq_length=20"]
    config = api.load_config("glue/qa", [f"init_from={encoder}", *data, *windows, *more])
    return api.train(config, out, device="cpu")


@pytest.fixture(scope="module")
def finished(encoder, files, tmp_path_factory):
    out = tmp_path_factory.mktemp("asked") / "run"
    return out, finetune(encoder, files, out, "data.num_epochs=3", "evaluate.every_epochs=null")


def test_it_learns_where_answers_are_and_when_a_question_has_no_answer(finished):
    assert finished[1]["valid_f1"] > 90
    assert finished[1]["valid_best_f1"] >= finished[1]["valid_f1"]
    assert api.open_model(finished[0]).config.data.spans.null_threshold == 0


def test_answers_are_spans_of_the_context(finished, files, tmp_path):
    out = api.predict(finished[0], tmp_path / "out.jsonl", input=files / "valid.json", device="cpu")
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    paragraphs = json.loads((files / "valid.json").read_text())["data"][0]["paragraphs"]
    assert [line["id"] for line in lines] == [one["qas"][0]["id"] for one in paragraphs]
    for line, one in zip(lines, paragraphs, strict=True):
        for found in line["candidates"]:
            assert one["context"][found["begin"] : found["end"]] == found["text"]
        assert (line["answer"] == "") == (line["no_answer_odds"] > 0)
    right = sum(
        line["answer"] in ([answer["text"] for answer in one["qas"][0]["answers"]] or [""])
        for line, one in zip(lines, paragraphs, strict=True)
    )
    assert 100 * right / len(lines) == pytest.approx(finished[1]["valid_em"])


def test_evaluating_questions_again_equals_training(finished):
    metrics = api.evaluate(finished[0], device="cpu")
    assert metrics == {name: finished[1][f"valid_{name}"] for name in metrics}


def test_where_all_questions_have_answers_all_are_answered(encoder, files, tmp_path):
    metrics = finetune(encoder, files, tmp_path / "run", "data.num_epochs=null", "num_steps=1", which="-all")
    assert "valid_best_f1" not in metrics
    assert api.open_model(tmp_path / "run").config.data.spans.null_threshold is None
    out = api.predict(tmp_path / "run", tmp_path / "out.jsonl", input=files / "valid.json", device="cpu")
    assert all(json.loads(line)["answer"] for line in out.read_text().splitlines())


def test_a_resumed_run_on_questions_ends_like_an_uninterrupted_run(encoder, files, tmp_path):
    settings = ("data.num_epochs=null", "checkpoint.every_steps=2", "schedule.name=constant")
    whole = finetune(encoder, files, tmp_path / "whole", *settings, "num_steps=4")
    finetune(encoder, files, tmp_path / "part", *settings, "num_steps=2")
    resumed = api.resume(tmp_path / "part", ["num_steps=4"], device="cpu")
    names = [name for name in whole if name == "loss" or name.startswith("valid_")]
    assert {name: resumed[name] for name in names} == {name: whole[name] for name in names}


def test_the_report_shows_questions_and_answers(finished):
    samples = json.loads((finished[0] / "samples.json").read_text())
    assert {"question", "context", "answer", "truth"} == set(samples[0])

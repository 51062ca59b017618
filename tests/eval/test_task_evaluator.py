"""Tasks judge a model by every example of a split once, in its order, on any number of ranks."""

import json
import logging
import threading
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import tokenizers

from pretrainkit.dist.env import World
from pretrainkit.errors import ConfigError, DataError
from pretrainkit.eval.metrics import accuracy, exact_match
from pretrainkit.eval.task_evaluator import MEAN, TaskEvaluator, most_frequent_target
from pretrainkit.tasks.preprocessors import append_eos_after_trim, format_strings, tokenize
from pretrainkit.tasks.sources import FunctionSource
from pretrainkit.tasks.task import Feature, Task
from pretrainkit.tasks.vocabulary import ByteVocabulary, TokenizerJsonVocabulary
from support.remedies import followed

BYTES = ByteVocabulary()
WORDS = ("no", "yes", "maybe so")


def rows(split, *, number):
    return [{"text": f"{split} {index}" + "!" * (index % 5), "label": WORDS[index % 3]} for index in range(number)]


def class_of(text, example, is_target):
    assert "text" in example
    return WORDS.index(text) if text in WORDS else -1


def task(name="parity", number=7, **changes):
    features = {"inputs": Feature(BYTES), "targets": Feature(BYTES)}
    settings = {
        "name": name,
        "source": FunctionSource(partial(rows, number=number), ("train", "validation")),
        "features": features,
        "preprocessors": (
            format_strings(inputs="{text}", targets="{label}"),
            tokenize(),
            append_eos_after_trim,
        ),
        "metrics": [accuracy],
        "postprocess": class_of,
    }
    return Task(**settings | changes)


class Knower:
    """Answers correctly except for inputs that end in two exclamation marks; counts its requests."""

    def __init__(self):
        self.asked = []

    def predict(self, examples):
        self.asked.append([one["inputs_pretokenized"] for one in examples])
        answers = ["never" if one["text"].endswith("!!") else one["label"] for one in examples]
        return [np.array([*BYTES.encode(text), BYTES.eos_id, 77, 78], np.int32) for text in answers]

    def score(self, examples):
        return np.array([-float(len(one["targets"])) for one in examples])


def share_of(number):
    return 100 * sum(not row["text"].endswith("!!") for row in rows("validation", number=number)) / number


def test_every_example_is_answered_once_decoded_up_to_eos_and_postprocessed():
    model = Knower()
    found = TaskEvaluator([task()], "validation").evaluate(model)
    assert found == {"parity/accuracy": pytest.approx(share_of(7))}
    assert sorted(model.asked[0]) == sorted(row["text"] for row in rows("validation", number=7))


def test_a_prefix_is_judged_where_the_number_of_examples_is_given():
    model = Knower()
    found = TaskEvaluator([task(number=20)], "validation", num_examples=4).evaluate(model)
    assert found == {"parity/accuracy": pytest.approx(share_of(4))}
    assert len(model.asked[0]) == 4


def test_with_several_tasks_each_counts_alike_in_the_mean():
    tasks = [task("a", 7), task("b", 20, metrics=[accuracy, exact_match_of_classes])]
    found = TaskEvaluator(tasks, "validation").evaluate(Knower())
    of_b = (found["b/accuracy"] + found["b/exact"]) / 2
    assert found[MEAN] == pytest.approx((found["a/accuracy"] + of_b) / 2)


def exact_match_of_classes(targets, predictions):
    return {"exact": 50.0}


def mean_score(targets, scores):
    assert len(targets) == len(scores)
    return {"mean_score": float(np.mean(scores))}


def score_of_answers(targets, predictions, aux_values):
    return {"confidence": float(np.mean(aux_values["scores"]))}


def test_metrics_get_the_required_scores_of_targets_or_answers():
    found = TaskEvaluator([task(metrics=[mean_score, score_of_answers])], "validation").evaluate(Knower())
    data = rows("validation", number=7)
    assert found["parity/mean_score"] == pytest.approx(-np.mean([len(row["label"]) + 1 for row in data]))
    said = ["never" if row["text"].endswith("!!") else row["label"] for row in data]
    assert found["parity/confidence"] == pytest.approx(-np.mean([len(text) + 3 for text in said]))


def test_a_model_computes_only_what_metrics_use():
    class Scorer(Knower):
        def predict(self, examples):
            raise AssertionError("nobody asked")

    assert TaskEvaluator([task(metrics=[mean_score])], "validation").evaluate(Scorer())


class Ranks:
    """Ranks as threads."""

    def __init__(self, size):
        self.size, self.values, self.barrier = size, [None] * size, threading.Barrier(size)

    def run(self, work):
        found = [None] * self.size

        def of(rank):
            try:
                found[rank] = work(self.World(self, rank))
            except BaseException:  # whatever it is, the other rank must not wait for ever; it is raised on
                self.barrier.abort()
                raise

        threads = [threading.Thread(target=of, args=(rank,)) for rank in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return found

    class World(World):
        def __init__(self, ranks, rank):
            super().__init__(rank, ranks.size)
            object.__setattr__(self, "ranks", ranks)

        def gather_objects(self, value, group=None):
            self.ranks.values[self.rank] = json.dumps(value)
            self.ranks.barrier.wait()
            found = [json.loads(one) for one in self.ranks.values]
            self.ranks.barrier.wait()
            return found

        def on_main(self, work):
            return self.gather_objects(work() if self.is_main else None)[0]


def test_ranks_get_equally_many_examples_and_together_give_the_same_numbers(tmp_path):
    tasks = [task("a", 7, metrics=[accuracy, mean_score]), task("b", 3)]
    alone = TaskEvaluator(tasks, "validation").evaluate(Knower(), folder=tmp_path / "1", tag="s")
    models = [Knower() for _ in range(3)]

    def work(world):
        evaluator = TaskEvaluator(tasks, "validation", world=world)
        return evaluator.evaluate(models[world.rank], folder=tmp_path / "3", tag="s")

    assert Ranks(3).run(work) == [alone] * 3
    assert {tuple(map(len, model.asked)) for model in models} == {(3, 1)}
    for name in ("a-s.jsonl", "b-s.jsonl"):
        assert (tmp_path / "1" / name).read_text() == (tmp_path / "3" / name).read_text()


def test_answers_of_the_model_are_written_in_the_order_of_the_data(tmp_path):
    evaluator = TaskEvaluator([task("my:parity")], "validation")
    evaluator.evaluate(Knower(), folder=tmp_path, tag="000012", num_written=4)
    lines = [json.loads(line) for line in (tmp_path / "my" / "parity-000012.jsonl").read_text().splitlines()]
    assert [line["input"] for line in lines] == [row["text"] for row in rows("validation", number=4)]
    assert lines[2] == {
        "input": "validation 2!!",
        "target": "maybe so",
        "prediction": "never",
        "judged_target": 2,
        "judged_prediction": -1,
    }
    evaluator.evaluate(Knower(), folder=tmp_path / "none", tag="000012", num_written=0)
    assert not (tmp_path / "none").exists()


def test_examples_are_computed_once_for_all_evaluations():
    made = []

    def counted(example):
        made.append(example)
        return example

    steps = (counted, *task().preprocessors)
    evaluator = TaskEvaluator([task(preprocessors=steps)], "validation")
    first = evaluator.evaluate(Knower())
    num_made = len(made)
    assert evaluator.evaluate(Knower()) == first
    assert len(made) == num_made


def test_lengths_are_those_of_the_data_and_cuts_are_reported(caplog):
    assert TaskEvaluator([task(number=6)], "validation").max_lengths == {"inputs": 17, "targets": 9}
    with caplog.at_level(logging.WARNING):
        evaluator = TaskEvaluator([task(number=6)], "validation", lengths={"inputs": 30, "targets": 4})
    assert evaluator.max_lengths == {"inputs": 17, "targets": 4}
    assert [record.getMessage() for record in caplog.records] == [
        "task parity: 2 of 6 targets are longer than 4 tokens and were cut; leave the length out to keep them"
    ]
    # The truth is the whole text all the same.
    assert evaluator.tasks[0].targets == [0, 1, 2, 0, 1, 2]


def spelled(split, *, labels):
    return [{"text": "x", "label": label} for label in labels]


@pytest.mark.parametrize(
    ("labels", "is_reported"), [(["the", "fox"], False), (["the fox"] * 19 + ["cat"], False), (["fox\n\tthe"], True)]
)
def test_targets_that_no_answer_can_equal_are_reported(tmp_path, caplog, labels, is_reported):
    pieces = {"<pad>": 0, "</s>": 1, "<unk>": 2, "the": 3, "fox": 4}
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel(pieces, unk_token="<unk>"))
    model.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    model.save(str(tmp_path / "tokenizer.json"))
    vocabulary = TokenizerJsonVocabulary(tmp_path)
    source = FunctionSource(partial(spelled, labels=labels), ("validation",))
    features = {name: Feature(vocabulary) for name in ("inputs", "targets")}
    with caplog.at_level(logging.WARNING):
        TaskEvaluator([task(source=source, features=features, postprocess=None)], "validation")
    assert len(caplog.messages) == is_reported
    for message in caplog.messages:
        assert r"1 of 1 targets, such as 'fox\n\tthe', which becomes 'fox the'" in message
        bytes_given = followed(message, "eval/task_evaluator.py: task …: the vocabulary cannot represent")
        assert "data.tokenizer=bytes" in bytes_given
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            TaskEvaluator([task(source=source, postprocess=None)], "validation")
        assert not caplog.messages


def test_tasks_without_metrics_or_without_the_split_are_passed_over(caplog):
    lacking = task("lacking", source=FunctionSource(partial(rows, number=3), ("train",)))
    with caplog.at_level(logging.INFO):
        evaluator = TaskEvaluator([lacking, task("plain", metrics=()), task()], "validation")
    assert list(evaluator.evaluate(Knower())) == ["parity/accuracy"]
    told = [record.getMessage() for record in caplog.records]
    assert told[0] == "task lacking has no split validation and is not evaluated"
    assert told[1] == "task plain has no metrics and is not evaluated"


def test_metrics_with_a_common_key_are_refused_before_anything_is_computed():
    with pytest.raises(ConfigError, match="two metrics of task 'parity' return 'accuracy'"):
        TaskEvaluator([task(metrics=[accuracy, accuracy_too])], "validation")


def accuracy_too(targets, predictions):
    return accuracy(targets, predictions)


def broken(targets, predictions):
    return {"broken": 1 / 0}


def test_a_metric_that_fails_does_so_before_the_training():
    with pytest.raises(DataError, match=r"its metric broken failed\n  ZeroDivisionError"):
        TaskEvaluator([task(metrics=[broken])], "validation")


def words(targets, predictions):
    return {"words": "many"}


def test_a_metric_gives_numbers():
    with pytest.raises(DataError, match="words returned words = 'many'"):
        TaskEvaluator([task(metrics=[words])], "validation")


def fragile(text, example, is_target):
    return text if is_target else text.split("x")[1]


def test_a_postprocessor_that_cannot_take_an_answer_is_named():
    with pytest.raises(DataError, match="its postprocessor failed on the answer 'no'"):
        TaskEvaluator([task(postprocess=fragile)], "validation")


def test_without_postprocessor_texts_are_judged():
    found = TaskEvaluator([task(postprocess=None, metrics=[exact_match])], "validation").evaluate(Knower())
    assert found == {"parity/exact_match": pytest.approx(share_of(7))}


def test_an_empty_split_is_refused():
    with pytest.raises(DataError, match="has no examples in 'validation'"):
        TaskEvaluator([task(number=0)], "validation")


def test_paths_are_not_left_half_written(tmp_path: Path):
    TaskEvaluator([task()], "validation").evaluate(Knower(), folder=tmp_path, tag="1")
    assert [path.name for path in tmp_path.iterdir()] == ["parity-1.jsonl"]


def test_the_most_frequent_target_is_the_baseline():
    majority = task(source=FunctionSource(lopsided, ("train", "validation")))
    assert most_frequent_target(majority, "train") == "maybe so"
    judged = TaskEvaluator([majority.replace(metrics=[accuracy, mean_score])], "validation").tasks[0]
    assert judged.metrics_of_constant("maybe so") == {"accuracy": 60.0}


def lopsided(split):
    return [{"text": str(index), "label": "maybe so" if index % 5 < 3 else "no"} for index in range(10)]

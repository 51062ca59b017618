"""Examples that are taken out of the training split."""

import pickle

import pytest

from pretrainkit.errors import DataError
from pretrainkit.tasks.sources import HeldOutSplit, TextLines
from support.remedies import followed


def source_of(folder, *sizes):
    for number, size in enumerate(sizes):
        (folder / f"{number}.txt").write_text("".join(f"{number} {row}\n" for row in range(size)))
    (folder / "test").write_text("t\n")
    return TextLines({"train": str(folder / "*.txt"), "test": folder / "test"})


@pytest.mark.parametrize(
    ("sizes", "share", "num_held_out"),
    [((1000,), 0.01, 10), ((700, 0, 801), 0.01, 15), ((50, 50), 0.01, 10), ((23,), 0.5, 11), ((20,), 0.001, 10)],
)
def test_every_example_is_in_one_of_the_two_splits(tmp_path, sizes, share, num_held_out):
    whole = source_of(tmp_path, *sizes)
    source = pickle.loads(pickle.dumps(HeldOutSplit(whole, "validation", share=share)))
    assert source.splits == ("train", "test", "validation")
    texts = {}
    for split in source.splits:
        texts[split] = [source.example(split, index)["text"] for index in range(source.num_examples(split))]
        assert texts[split] == sorted(texts[split], key=lambda text: [int(n) for n in text.split()[:2] if n.isdigit()])
    assert len(texts["validation"]) == num_held_out
    assert len(texts["train"]) + num_held_out == sum(sizes)
    assert {*texts["train"], *texts["validation"]} == {
        whole.example("train", index)["text"] for index in range(sum(sizes))
    }
    assert texts["test"] == ["t"]
    assert len(source.file_sizes("train")) == len(sizes)
    for number, size in enumerate(source.file_sizes("train")):  # parts stay those of the files
        assert sum(text.startswith(f"{number} ") for text in texts["train"]) == size
    prints = {source.fingerprint("train"), source.fingerprint("validation"), whole.fingerprint("train")}
    assert len(prints) == 3
    assert source.fingerprint("test") == whole.fingerprint("test")


def test_too_few_examples_to_hold_some_out(tmp_path):
    with pytest.raises(DataError, match="has 19 examples, too few to hold some out") as error:
        HeldOutSplit(source_of(tmp_path, 19), "validation").file_sizes("train")
    advice = followed(error.value, "tasks/sources.py: the split … has … examples, too few to hold some out")
    assert "data.valid_split=null" in advice  # tests/recipes/t5/test_t5_task_source.py trains so

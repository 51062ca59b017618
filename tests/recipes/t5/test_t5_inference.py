"""pretrainkit infer with a T5: tasks and rows of files, predictions and scores."""

import gzip
import json
import textwrap

import numpy as np
import pytest
import torch
from test_t5_decode import ends
from typer.testing import CliRunner

import pretrainkit
from pretrainkit.cli.main import app_of
from pretrainkit.errors import InputError
from pretrainkit.exporting.native import write_native
from pretrainkit.recipes.t5.decoding_config import DecodingConfig
from pretrainkit.recipes.t5.predictor import Predictor
from pretrainkit.recipes.t5.texts import decode
from pretrainkit.tasks.vocabulary import SentencePieceVocabulary
from pretrainkit.training.run import PrecisionConfig
from support.t5_batches import model_config, random_model, run_config

SHORT = {"decoding": {"max_length": 6}, "batch_size": 4, "chunk_batches": 2}
WORDS = "the boat on a river is old and the man in it was not so"


@pytest.fixture(scope="module")
def export(tmp_path_factory):
    """A model of random weights with a tokenizer, as `pretrainkit export --format safetensors` writes it."""
    import sentencepiece

    folder = tmp_path_factory.mktemp("t5")
    (folder / "tokenizer").mkdir()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(WORDS.split() * 5),
        model_prefix=str(folder / "tokenizer/sentencepiece"),
        vocab_size=24,
        minloglevel=2,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
    )
    config = run_config(model_config(vocab_size=256))
    config = config.model_copy(update={"precision": PrecisionConfig(compute="float32")})
    write_native(config, ends(random_model(config.model), 3.0), folder / "tokenizer", folder / "export")
    return folder / "export"


@pytest.fixture
def predictor(export):
    opened = pretrainkit.open_model(export)
    return Predictor(opened.config, opened.model, DecodingConfig(max_length=6))


def texts(num):
    words = np.array(WORDS.split())
    return [" ".join(words[np.random.default_rng(row).integers(0, len(words), 1 + row % 6)]) for row in range(num)]


def rows(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_rows_of_every_kind_of_file_are_answered_alike(export, tmp_path, predictor):
    import pyarrow
    import pyarrow.parquet

    given = texts(13)
    (tmp_path / "a.txt").write_text("".join(f"{text}\n" for text in given))
    (tmp_path / "a.tsv").write_text("n\ttext\n" + "".join(f"{n}\t{text}\n" for n, text in enumerate(given)))
    with gzip.open(tmp_path / "a.jsonl.gz", "wt") as file:
        file.writelines(json.dumps({"text": text, "more": [1]}) + "\n" for text in given)
    pyarrow.parquet.write_table(pyarrow.table({"text": given}), tmp_path / "a.parquet")
    vocabulary = SentencePieceVocabulary(export / "tokenizer/sentencepiece.model", 100)
    examples = [{"inputs": [*vocabulary.encode(text), 1]} for text in given]
    expected = [decode(ids, vocabulary) for ids in predictor.predict(examples)]
    for name in ("a.txt", "a.tsv", "a.jsonl.gz", "a.parquet"):
        out = pretrainkit.infer(export, tmp_path / f"{name}.out", input=tmp_path / name, **SHORT)
        found = rows(out)
        assert [row["inputs"] for row in found] == [{"inputs_pretokenized": text} for text in given]
        assert [row["prediction"] for row in found] == expected


def test_patterns_make_inputs_and_targets_and_scores_are_those_of_the_model(export, tmp_path, predictor):
    lines = [{"a": text, "b": text[::-1], "n": number} for number, text in enumerate(texts(7))]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    out = pretrainkit.infer(
        export,
        tmp_path / "out",
        input=tmp_path / "a.jsonl",
        mode="score",
        inputs="say {n}: {a}",
        targets="b",
        fields=("n",),
    )
    vocabulary = SentencePieceVocabulary(export / "tokenizer/sentencepiece.model", 100)
    examples = [
        {"inputs": [*vocabulary.encode(f"say {one['n']}: {one['a']}"), 1], "targets": [*vocabulary.encode(one["b"]), 1]}
        for one in lines
    ]
    np.testing.assert_allclose([row["score"] for row in rows(out)], predictor.score(examples), atol=1e-4)
    assert [row["inputs"] for row in rows(out)] == [{"n": number} for number in range(7)]


def test_predictions_come_with_ids_and_scores(export, tmp_path):
    (tmp_path / "a.txt").write_text("the boat\na man in it\n")
    options = ["--mode", "predict-with-scores", "--ids", "--beams", "2", "--max-length", "5", "--all-fields"]
    command = [str(export), "--input", str(tmp_path / "a.txt"), "--out", str(tmp_path / "out.jsonl"), *options]
    done = CliRunner().invoke(app_of("infer"), command, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    for row in rows(tmp_path / "out.jsonl"):
        assert len(row["aux"]["token_scores"]) == len(row["prediction_tokens"]) <= 5
        assert row["aux"]["scores"] == pytest.approx(sum(row["aux"]["token_scores"]), abs=1e-3)
        assert {"text", "inputs", "inputs_pretokenized"} <= row["inputs"].keys()


def test_tasks_are_answered_with_their_own_texts(export, tmp_path):
    (tmp_path / "rows.tsv").write_text("".join(f"{number}\t{text}\n" for number, text in enumerate(texts(9))))
    (tmp_path / "asked.py").write_text(
        textwrap.dedent(f"""
            from pretrainkit.tasks.preprocessors import append_eos, format_strings, tokenize
            from pretrainkit.tasks.task import Feature, Mixture, Task, add_mixture, add_task
            from pretrainkit.tasks.sources import Tsv
            from pretrainkit.tasks.vocabulary import SentencePieceVocabulary

            feature = Feature(SentencePieceVocabulary({str(export / "tokenizer/sentencepiece.model")!r}, 100))
            for name in ("infer:one", "infer:two"):
                add_task(Task(
                    name=name,
                    source=Tsv({{"test": {str(tmp_path / "rows.tsv")!r}}}, columns=("n", "text")),
                    features={{"inputs": feature, "targets": feature}},
                    preprocessors=[format_strings(inputs="old {{text}}", targets="{{n}}"), tokenize(), append_eos],
                ))
            add_mixture(Mixture("infer:both", ["infer:one", "infer:two"], default_rate=1.0))
        """)
    )
    module = str(tmp_path / "asked.py")
    out = pretrainkit.infer(export, tmp_path / "task.jsonl", task="infer:one", modules=[module], **SHORT)
    assert rows(out)[4]["inputs"] == {"inputs_pretokenized": f"old {texts(9)[4]}", "targets_pretokenized": "4"}
    (tmp_path / "plain.txt").write_text("".join(f"old {text}\n" for text in texts(9)))
    same = pretrainkit.infer(export, tmp_path / "rows.jsonl", input=tmp_path / "plain.txt", **SHORT)
    assert [row["prediction"] for row in rows(out)] == [row["prediction"] for row in rows(same)]
    scored = pretrainkit.infer(export, tmp_path / "s.jsonl", task="infer:one", modules=[module], mode="score")
    assert all(row["score"] < 0 for row in rows(scored))
    folder = pretrainkit.infer(export, tmp_path / "both", task="infer:both", modules=[module], **SHORT)
    assert sorted(path.name for path in folder.glob("*.jsonl")) == ["infer-one.jsonl", "infer-two.jsonl"]
    assert (folder / "infer-one.jsonl").read_bytes() == out.read_bytes()
    written = (folder / "infer-two.jsonl").stat().st_mtime_ns
    pretrainkit.infer(export, folder, task="infer:both", modules=[module], **SHORT)
    assert (folder / "infer-two.jsonl").stat().st_mtime_ns == written
    with pytest.raises(InputError, match=r"m\.jsonl is a file, but infer:both is a mixture.*\n  use a folder: --out"):
        pretrainkit.infer(export, tmp_path / "m.jsonl", task="infer:both", modules=[module])
    with pytest.raises(InputError, match="no task of infer:both has the split 'dev'\n  use one of: test"):
        pretrainkit.infer(export, tmp_path / "m", task="infer:both", split="dev", modules=[module])


def test_an_open_model_generates_and_scores(export, predictor):
    opened = pretrainkit.open_model(export)
    (answer,) = opened.generate(["the boat"], beams=2, max_length=5)
    (again,) = pretrainkit.generate(export, ["the boat"], beams=2, max_length=5, device="cpu")
    scores = [[row.pop("score") for row in reply["answers"]] for reply in (answer, again)]
    assert answer == again
    assert scores[0] == pytest.approx(scores[1], rel=1e-5)
    vocabulary = SentencePieceVocabulary(export / "tokenizer/sentencepiece.model", 100)
    asked, said = ([*vocabulary.encode(text), 1] for text in ("the boat", "a man"))
    assert opened.score([("the boat", "a man")]) == pytest.approx(predictor.score([{"inputs": asked, "targets": said}]))
    with pytest.raises(InputError, match="recipe 't5' has no option 'top' for generation"):
        opened.generate(["the boat"], top=3)


def test_other_weights_are_another_question(export, tmp_path):
    (tmp_path / "a.txt").write_text("the boat\n")
    pretrainkit.infer(export, tmp_path / "out.jsonl", input=tmp_path / "a.txt", **SHORT)
    opened = pretrainkit.open_model(export)
    with torch.no_grad():
        opened.model.embedding.weight.mul_(1.01)
    write_native(opened.config, opened.model, opened.tokenizer, tmp_path / "other")
    with pytest.raises(InputError, match=r"written by another command\n  weights: "):
        pretrainkit.infer(tmp_path / "other", tmp_path / "out.jsonl", input=tmp_path / "a.txt", **SHORT)


@pytest.mark.parametrize(("row", "reason"), [({"y": "b"}, "no key 'x'"), ({"x": None, "y": "b"}, "'x' is null")])
@pytest.mark.parametrize("inputs", ["x", "say {x}"])
def test_a_row_without_an_input_is_not_answered_as_another_text(export, tmp_path, row, reason, inputs):
    """It would be the name of the column, or the word None."""
    (tmp_path / "a.jsonl").write_text(f"{json.dumps({'x': 'the boat', 'y': 'a'})}\n{json.dumps(row)}\n")
    with pytest.raises(InputError, match=f"for example 1: .*{reason}"):
        pretrainkit.infer(export, tmp_path / "out.jsonl", input=tmp_path / "a.jsonl", inputs=inputs, **SHORT)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "give either a task or an input"),
        ({"input": "a.xlsx"}, r"a\.xlsx: a file of rows must end in \.jsonl"),
        ({"input": "a.jsonl"}, "cannot choose the input column among x, y"),
        ({"input": "a.jsonl", "inputs": "z"}, "the rows have no column 'z'"),
        ({"input": "a.jsonl", "inputs": "say {z}"}, "the rows have no column 'z'\n  use one of x, y"),
        ({"input": "a.jsonl", "inputs": "x", "targets": "{y"}, "--targets '{y' is not a valid pattern"),
        ({"input": "a.jsonl", "inputs": "x", "mode": "score"}, "there are no targets to score"),
        ({"input": "a.jsonl", "inputs": "x", "fields": ("q",)}, "an example has no field q"),
        ({"input": "a.jsonl", "inputs": "x", "decoding": {"top_p": 2.0}}, r"top_p=2\.0"),
        ({"input": "a.jsonl", "inputs": "x", "shard": (2, 2)}, "shard 2 of 2"),
    ],
)
def test_invalid_requests_are_refused(export, tmp_path, monkeypatch, settings, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.jsonl").write_text('{"x": "the boat", "y": "a man"}\n')
    with pytest.raises(InputError, match=message):
        pretrainkit.infer(export, tmp_path / "out.jsonl", **settings)
    assert not (tmp_path / "out.jsonl").exists()

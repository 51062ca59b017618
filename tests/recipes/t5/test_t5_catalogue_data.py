"""Named tasks on files in the layouts that benchmarks are distributed in, and on what people make of them."""

import gzip
import json

import pytest

import pretrainkit.recipes.t5.catalogue  # noqa: F401  (makes the tasks known)
from pretrainkit.errors import ConfigError, DataError
from pretrainkit.tasks.cache_writer import cache_task
from pretrainkit.tasks.named_data import task_folders
from pretrainkit.tasks.supply import Supply
from pretrainkit.tasks.task import REGISTRY
from pretrainkit.tasks.vocabulary import ByteVocabulary

BYTES = ByteVocabulary()


@pytest.fixture(autouse=True)
def _own_indexes(tmp_path, monkeypatch):
    monkeypatch.setenv("PRETRAINKIT_CACHE", str(tmp_path / "indexes"))


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content.encode()) if path.suffix == ".gz" else content.encode())


def lines(*rows):
    return "".join(f"{json.dumps(row)}\n" for row in rows)


def supplied(name, **folders):
    return REGISTRY.get_task(name).supplied(Supply(BYTES, {key: str(folder) for key, folder in folders.items()}))


def found(task, split):
    """(inputs, targets) of every example."""
    return [(one["inputs_pretokenized"], one["targets_pretokenized"]) for one in task.bind(split)]


def test_tables_of_glue(tmp_path):
    glue = tmp_path / "glue"
    write(glue / "CoLA/train.tsv", "gj04\t1\t\tIt is.\ngj04\t0\t*\tIs it it.\n")
    write(glue / "CoLA/dev.tsv", 'gj04\t1\t\tHe said "yes.\n')
    write(glue / "CoLA/test.tsv", "index\tsentence\n0\tWhat?\n")
    cola = supplied("glue_cola_v002", glue=glue)
    assert found(cola, "train") == [
        ("cola sentence: It is.", "acceptable"),
        ("cola sentence: Is it it.", "unacceptable"),
    ]
    assert found(cola, "validation") == [('cola sentence: He said "yes.', "acceptable")]
    assert found(cola, "test") == [("cola sentence: What?", "<unk>")]

    header = "index\tpair\tsentence1\tsentence2\tlabel1\tgold_label\n"
    write(glue / "MNLI/train.tsv", header + "0\tp\tIt rains.\tWet.\tneutral\tentailment\n")
    write(glue / "MNLI/dev_mismatched.tsv", header + "0\tp\tIt rains.\tDry.\tneutral\tcontradiction\n")
    mnli, part = (supplied(f"glue_{name}_v002", glue=glue) for name in ("mnli", "mnli_mismatched"))
    assert (mnli.splits, part.splits) == (("train", "validation_mismatched"), ("validation",))
    assert found(mnli, "train") == [("mnli hypothesis: Wet. premise: It rains.", "entailment")]
    assert found(part, "validation") == [("mnli hypothesis: Dry. premise: It rains.", "contradiction")]

    write(glue / "STS-B/dev.tsv", "index\tsentence1\tsentence2\tscore\n0\tA\tB\t3.250\n")
    assert found(supplied("glue_stsb_v002", glue=glue), "validation") == [("stsb sentence1: A sentence2: B", "3.2")]


def test_broken_rows_of_qqp_are_passed_over(tmp_path):
    rows = ["1\t1\t2\tA?\tB?\t1", "2\t3\t4\tC?\tD?", "", "3\t5\t6\tE?\tF?\t0", "4\t5\tG?\t\t\t\t0"]
    write(tmp_path / "QQP/train.tsv", "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n" + "\n".join(rows))
    assert found(supplied("glue_qqp_v002", glue=tmp_path), "train") == [
        ("qqp question1: A? question2: B?", "duplicate"),
        ("qqp question1: E? question2: F?", "not_duplicate"),
    ]


@pytest.mark.parametrize(
    "form", ["train.jsonl", "train.jsonl.gz", "train.parquet", "data/train-00000-of-00001.parquet"]
)
@pytest.mark.parametrize("key", ["glue", "glue/rte", "all"])
def test_columns_of_the_hub_in_any_file_and_any_kind_of_folder(tmp_path, form, key):
    rows = [{"sentence1": "A", "sentence2": "B", "label": label, "idx": label} for label in (0, 1)]
    folder = tmp_path / {"glue": "rte", "glue/rte": ".", "all": "glue/RTE"}[key]
    if form.endswith(".parquet"):
        import pyarrow
        import pyarrow.parquet

        (folder / form).parent.mkdir(parents=True, exist_ok=True)
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / form)
    else:
        write(folder / form, lines(*rows))
    task = supplied("glue_rte_v002", **{key: tmp_path})
    assert task.splits == ("train",)
    assert [target for _, target in found(task, "train")] == ["entailment", "not_entailment"]


def test_files_of_super_glue(tmp_path):
    write(tmp_path / "BoolQ/val.jsonl", lines({"question": "q", "passage": "P", "idx": 0, "label": True}))
    write(tmp_path / "COPA/test.jsonl", lines({"premise": "P", "choice1": "A", "choice2": "B", "question": "effect"}))
    write(tmp_path / "AX-b/AX-b.jsonl", lines({"sentence1": "A", "sentence2": "B", "label": "entailment", "idx": 0}))
    passage = {
        "text": "T",
        "questions": [{"question": "q", "answers": [{"text": "a", "idx": 0, "label": 1}], "idx": 0}],
    }
    write(tmp_path / "MultiRC/train.jsonl", lines({"idx": 0, "passage": passage}))
    target = {"span1_text": "Tom", "span1_index": 0, "span2_text": "he", "span2_index": 2}
    schemas = [{"text": "Tom said he slept.", "target": target, "idx": n, "label": bool(n)} for n in range(2)]
    write(tmp_path / "WSC/train.jsonl", lines(*schemas))
    expected = {
        ("boolq_v102", "validation"): ("boolq passage: P question: q", "True"),
        ("copa_v102", "test"): ("copa choice1: A choice2: B premise: P question: effect", "<unk>"),
        ("axb_v102", "test"): ("rte hypothesis: B premise: A", "entailment"),
        ("multirc_v102", "train"): ("multirc question: q answer: a paragraph: T", "True"),
        ("wsc_v102_simple_train", "train"): ("wsc: Tom said *he* slept.", "Tom"),
    }
    for (name, split), texts in expected.items():
        assert found(supplied(f"super_glue_{name}", super_glue=tmp_path), split) == [texts]


def test_squad_and_xquad(tmp_path):
    question = {"id": "a", "question": "Who?", "answers": [{"text": "Tom", "answer_start": 0}]}
    paragraph = {"context": "Tom did.", "qas": [question, {**question, "id": "b", "question": "Why?"}]}
    content = json.dumps({"version": "1.1", "data": [{"title": "t", "paragraphs": [paragraph, paragraph]}]})
    write(tmp_path / "train-v1.1.json", content)
    write(tmp_path / "xquad.en.json.gz", content)
    task = supplied("squad_v010_allanswers", squad=tmp_path)
    for split in ("train", "validation"):
        texts = found(task, split)
        assert len(texts) == 4
        assert texts[1] == ("question: Why ? context: Tom did . ", "Tom")
    write(tmp_path / "train-v1.1.json", json.dumps({"data": [{"paragraphs": [{"qas": [question]}]}]}))
    with pytest.raises(DataError, match="is not SQuAD's JSON: it has no 'context'"):
        supplied("squad_v010", squad=tmp_path).bind("train")[0]


def test_translations_in_two_files_or_one_table(tmp_path):
    write(tmp_path / "a/wmt14_ende/train.en", "One.\nTwo.\n")
    write(tmp_path / "a/wmt14_ende/train.de", "Eins.\nZwei.\n")
    write(tmp_path / "a/wmt14_ende/dev.en", "One.\n")
    write(tmp_path / "a/wmt14_ende/dev.de", "Eins.\nZwei.\n")
    write(tmp_path / "b/own.en-de.train.tsv", "en\tde\nTwo.\tZwei.\n")
    write(tmp_path / "c/train.jsonl", lines({"translation": {"de": "Zwei.", "en": "Two."}}))
    expected = ("translate English to German: Two.", "Zwei.")
    files, table, hub = (supplied("wmt14_ende_v003", wmt=tmp_path / name) for name in "abc")
    assert found(files, "train")[1] == found(table, "train")[0] == found(hub, "train")[0] == expected
    with pytest.raises(DataError, match="have different numbers of lines: 1 of en, 2 of de"):
        files.bind("validation")[0]
    (tmp_path / "a/wmt14_ende/dev.de").unlink()
    with pytest.raises(DataError, match=r"dev\.de is missing beside"):
        supplied("wmt14_ende_v003", wmt=tmp_path / "a")


def test_summaries(tmp_path):
    write(tmp_path / "train.jsonl", lines({"article": "Long.", "highlights": "Short ."}))
    assert found(supplied("cnn_dailymail_v002", cnn_dailymail=tmp_path), "train") == [("summarize: Long.", "Short .")]


def test_text_of_c4_files_and_of_our_corpus_folders_is_denoised(tmp_path):
    documents = [{"text": f"document number {n} says something"} for n in range(40)]
    write(tmp_path / "c4/en/c4-train.00000-of-00002.json.gz", lines(*documents[:20]))
    write(tmp_path / "c4/en/c4-train.00001-of-00002.json.gz", lines(*documents[20:]))
    write(tmp_path / "corpus/train/part-00000-of-00001.jsonl", lines(*documents))
    lengths = {"inputs": 64, "targets": 18}
    of_c4, of_corpus = (
        supplied("c4_v220_span_corruption", c4=tmp_path / name).bind("train", lengths) for name in ("c4", "corpus")
    )
    assert len(of_c4) == len(of_corpus) > 10
    for one, other in zip(of_c4, of_corpus, strict=True):
        assert one["inputs"].tolist() == other["inputs"].tolist()
    restored = b""
    for example in of_c4:
        restored += bytes(token - 3 for token in merged(example) if token > 2)
    assert restored.decode() == "".join(document["text"] for document in documents)
    assert of_c4.example(0, 1)["inputs"].tolist() != of_c4.example(0, 0)["inputs"].tolist()
    with pytest.raises(ConfigError, match=r"needs the maximum lengths.*\n.*--lengths"):
        supplied("c4_v220_span_corruption", c4=tmp_path / "c4").bind("train")


def merged(example):
    """The tokens of a segment, of inputs and targets; bytes have no text above 247."""
    hidden, sentinel = {}, None
    for token in example["targets"].tolist():
        if token > 247:
            sentinel = token
        else:
            hidden.setdefault(sentinel, []).append(token)
    return [one for token in example["inputs"].tolist() for one in hidden.get(token, [token])]


def test_a_cache_of_documents_gives_the_segments_of_its_source(tmp_path):
    write(tmp_path / "en/train.jsonl", lines(*({"text": "some words " * (n % 7)} for n in range(50))))
    task = supplied("c4_v220_prefix_lm", c4=tmp_path)
    lengths = {"inputs": 32, "targets": 32}
    cache_task(task, tmp_path / "caches", num_shards=3)
    cached, fresh = task.bind("train", lengths, caches=[tmp_path / "caches"]), task.bind("train", lengths)
    assert (cached.is_cached, fresh.is_cached, len(cached)) == (True, False, len(fresh))
    for one, other in zip(cached, fresh, strict=True):
        assert all(one[name].tolist() == other[name].tolist() for name in ("inputs", "targets"))


def test_a_cache_is_used_for_the_same_data_and_vocabulary_in_any_folder(tmp_path):
    for name in ("here", "there"):
        write(tmp_path / name / "RTE/train.tsv", "index\tsentence1\tsentence2\tlabel\n0\tA\tB\tentailment\n")
    caches = [tmp_path / "caches"]
    cache_task(supplied("glue_rte_v002", glue=tmp_path / "here"), caches[0])
    assert supplied("glue_rte_v002", glue=tmp_path / "there").bind("train", caches=caches).is_cached
    other = REGISTRY.get_task("glue_rte_v002").supplied(Supply(ByteVocabulary(9), {"glue": str(tmp_path / "here")}))
    assert not other.bind("train", caches=caches).is_cached


def test_tasks_that_a_mixture_lacks_are_reported_together_and_can_be_left_out(tmp_path):
    write(tmp_path / "RTE/train.tsv", "index\tsentence1\tsentence2\tlabel\n0\tA\tB\tentailment\n")
    write(tmp_path / "CoLA/train.tsv", "a\t1\t\tIt is.\n")
    folders = {"glue": str(tmp_path)}
    with pytest.raises(DataError) as error:
        REGISTRY.supplied(Supply(BYTES, folders)).bind("glue_v002_proportional", "train")
    told = str(error.value)
    assert all(f"no data of glue/{name} in" in told for name in ("sst2", "mrpc", "qqp", "stsb", "mnli", "qnli", "ax"))
    assert "no data of glue/rte" not in told
    assert "data.leave_out=glue_sst2_v002,glue_mrpc_v002," in told
    gone = {"glue_mnli_and_dev_v002", *(f"glue_{name}_v002" for name in ("sst2", "mrpc", "qqp", "stsb", "qnli", "ax"))}
    registry = REGISTRY.supplied(Supply(BYTES, folders, left_out=frozenset(gone)))
    assert registry.rates("glue_v002_proportional") == {"glue_cola_v002": 8551.0, "glue_rte_v002": 2490.0}
    with pytest.raises(ConfigError, match="nearest names are: glue_rte_v002"):
        REGISTRY.supplied(Supply(left_out=frozenset({"glue_rt_v002"})))
    everything = frozenset(REGISTRY.task_names("glue_v002_proportional"))
    with pytest.raises(ConfigError, match="every member of mixture 'glue_v002_proportional' is left out"):
        REGISTRY.supplied(Supply(BYTES, folders, left_out=everything)).tasks("glue_v002_proportional")


def test_a_missing_folder_is_reported_and_the_hub_is_used_only_without_a_folder(tmp_path, monkeypatch):
    with pytest.raises(DataError, match=r"nowhere, configured for the data of glue, is not a folder"):
        supplied("glue_rte_v002", glue=tmp_path / "nowhere")
    with pytest.raises(
        DataError, match=r"has to be passed as files\n  pass its folder: data\.task_folders\.wikipedia=DIR"
    ):
        REGISTRY.get_task("wikipedia_20190301.en_v003_unsupervised").supplied(Supply(BYTES, {}, tuple))
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    task = supplied("glue_rte_v002")
    assert task.splits == ("train", "validation", "test")
    with pytest.raises(
        DataError, match=r"(?s)needs the package 'datasets'.*or pass its folder: data\.task_folders\.glue=DIR"
    ):
        task.bind("train")
    with pytest.raises(DataError, match=r"no folder glue with the data of glue/rte\n.*data\.task_folders\.glue=DIR"):
        supplied("glue_rte_v002", all=tmp_path)  # the hub's data would take the place of what was given


def test_folders_are_written_by_name_or_alone():
    assert task_folders(["glue=a=b", "super_glue/cb=/c", "/all"]) == {
        "glue": "a=b",
        "super_glue/cb": "/c",
        "all": "/all",
    }


def test_real_rows_of_glue(sample_data):
    sizes = {"cola": (7480, 916), "sst2": (15_870, 754), "mrpc": (3163, 436), "stsb": (5075, 1309), "rte": (2159, 246)}
    classes = {"cola": 2, "sst2": 2, "mrpc": 2, "stsb": 26, "rte": 2}
    for name, expected in sizes.items():
        task = supplied(f"glue_{name}_v002", glue=sample_data / "glue")
        assert tuple(task.source.num_examples(split) for split in ("train", "validation")) == expected
        bound = task.bind("validation")
        assert len({example["targets_pretokenized"] for example in bound}) == classes[name]
        judged = [task.postprocess(example["targets_pretokenized"]) for example in bound]
        assert -1 not in judged
        for metric in task.metrics:
            assert list(metric(judged, judged).values()) == [pytest.approx(100.0)]
    simple = supplied("glue_wnli_v002_simple_eval", glue=sample_data / "glue").bind("validation")
    assert len(simple) == 64
    assert simple[0]["targets_pretokenized"] == "The hair"


def test_real_questions_and_translations(sample_data):
    folder = sample_data / "multilingual"
    squad = supplied("squad_v010_allanswers", squad=folder / "xquad").bind("validation")
    assert len(squad) == 1042
    assert squad[0]["targets_pretokenized"] == "308"
    spans = supplied("squad_v010_allanswers_span", squad=folder / "xquad")
    bound = spans.bind("validation")
    assert len(bound) >= 1041
    targets = [spans.postprocess(one["targets_pretokenized"], example=one, is_target=True) for one in bound]
    assert spans.metrics[0](targets, [one["targets_pretokenized"] for one in bound])["f1"] > 98
    german = supplied("wmt_t2t_ende_v003", wmt=folder / "parallel").bind("train")
    assert len(german) == 1042
    assert german[0]["targets_pretokenized"] == "Wie viele Punkte gab die Verteidigung der Panthers ab?"

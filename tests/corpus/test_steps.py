"""The stages under datatrove's own executor, against the same stages by our commands."""

import json

import pytest
from datatrove.executor import LocalPipelineExecutor

from pretrainkit.corpus.shards import BuildSettings, build_corpus
from pretrainkit.corpus.steps import CountWords, FinishCorpus, GatherShards, MergeCounts, ReadSources, ScatterRuns
from pretrainkit.corpus.words import count_words
from pretrainkit.errors import DataError
from pretrainkit.files.sources import find_sources


@pytest.fixture
def raw(tmp_path):
    folder = tmp_path / "raw"
    folder.mkdir()
    for file in range(3):
        lines = [json.dumps({"text": f"document {file} {index}", "meta": {"n": index}}) for index in range(30)]
        (folder / f"{file}.jsonl").write_text("\n".join([*lines, "[]"]))
    return folder


def execute(tmp_path, name, pipeline, tasks):
    # Two tasks in one process: datatrove's own process pool is not what is tested here.
    LocalPipelineExecutor(pipeline, tasks=tasks, workers=1, logging_dir=str(tmp_path / "logs" / name)).run()


def all_bytes(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("part-*"))}


def comparable(manifest):
    """Return a manifest without the order of the examples of skipped documents, which is that of the tasks."""
    skipped = {reason: (entry["count"], sorted(entry["examples"])) for reason, entry in manifest["skipped"].items()}
    return manifest | {"skipped": skipped}


@pytest.mark.parametrize("num_tasks", [1, 2])
def test_executors_make_the_corpus_that_the_command_makes(tmp_path, raw, num_tasks):
    settings = BuildSettings(num_shards=4, heldout=0.2, compress="zst")
    expected = build_corpus(find_sources([raw]), tmp_path / "expected", settings)
    out, reader = tmp_path / "out", ReadSources([str(raw)])
    execute(tmp_path, "scatter", [reader, ScatterRuns(out, settings, reader)], num_tasks)
    execute(tmp_path, "gather", [GatherShards(out, settings)], num_tasks)
    execute(tmp_path, "finish", [FinishCorpus(out, settings, reader)], 1)
    assert all_bytes(out) == all_bytes(tmp_path / "expected")
    for split, manifest in expected.items():
        assert comparable(json.loads((out / split / "manifest.json").read_bytes())) == comparable(manifest)
    assert manifest["skipped"]["not_an_object"]["count"] == 3
    assert not (out / ".work").exists()
    assert build_corpus(find_sources([raw]), out, settings).keys() == expected.keys()  # complete: kept


@pytest.mark.parametrize("num_tasks", [1, 2])
def test_executors_count_the_words_that_the_command_counts(tmp_path, raw, num_tasks):
    expected = count_words(find_sources([raw]), tmp_path / "expected.tsv")
    out, reader = tmp_path / "out.tsv", ReadSources([str(raw)])
    execute(tmp_path, "count", [reader, CountWords(out, reader)], num_tasks)
    execute(tmp_path, "merge", [MergeCounts(out, reader)], 1)
    assert out.read_bytes() == (tmp_path / "expected.tsv").read_bytes()
    manifest = json.loads((tmp_path / "out.tsv.manifest.json").read_bytes())
    assert comparable(manifest) | {"shards": []} == comparable(expected) | {"shards": []}


def test_a_pipeline_that_is_not_finished_is_noticed(tmp_path, raw):
    settings = BuildSettings(num_shards=2)
    with pytest.raises(DataError, match="finish the pipeline with ScatterRuns"):
        GatherShards(tmp_path / "out", settings).run()
    reader = ReadSources([str(raw)])
    list(ScatterRuns(tmp_path / "out", settings, reader).run(reader.run(rank=1, world_size=2), rank=1, world_size=2))
    with pytest.raises(DataError, match="1 records for 2 tasks"):
        GatherShards(tmp_path / "out", settings).run()
    list(ScatterRuns(tmp_path / "out", settings, reader).run(reader.run(rank=0, world_size=2), rank=0, world_size=2))
    with pytest.raises(DataError, match="GatherShards"):
        FinishCorpus(tmp_path / "out", settings).run()
    with pytest.raises(DataError, match="tasks=1"):
        FinishCorpus(tmp_path / "out", settings).run(world_size=2)
    with pytest.raises(DataError, match="with the same settings"):
        GatherShards(tmp_path / "out", BuildSettings(num_shards=3)).run()

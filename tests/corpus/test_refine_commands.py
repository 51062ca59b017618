"""From a dump to held-out data and an archive, by the commands and by datatrove's executor: the same bytes."""

import bz2
import json

import pytest
from datatrove.executor import LocalPipelineExecutor
from typer.testing import CliRunner

from pretrainkit.cli.corpus import app
from pretrainkit.corpus.quality import Quality
from pretrainkit.corpus.readers import read_documents
from pretrainkit.corpus.shards import BuildSettings, build_corpus
from pretrainkit.corpus.steps import FinishCorpus, GatherShards, ReadSources, ScatterRuns
from pretrainkit.files.sources import find_sources

NUM_PAGES = 30


@pytest.fixture(scope="module")
def dump(tmp_path_factory):
    path = tmp_path_factory.mktemp("dump") / "pages.xml.bz2"
    streams = ['<mediawiki xml:lang="en">\n']
    for number in range(NUM_PAGES):
        text = " ".join(f"The word{number * 7 % 11} of {number} and [[place {index}|that]]." for index in range(12))
        text = text if number % 10 else "too short"
        streams.append(
            f"<page><title>T{number}</title><ns>0</ns><id>{number + 1}</id><revision><id>1</id>"
            f'<text xml:space="preserve">{text}</text></revision></page>\n'
        )
    path.write_bytes(b"".join(bz2.compress(stream.encode()) for stream in [*streams, "</mediawiki>"]))
    return path


def command(*words):
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return result


def all_bytes(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("part-*"))}


def test_a_dump_becomes_training_data_step_by_step(tmp_path, dump):
    command("wikipedia", dump, "--out", tmp_path / "articles", "--num-shards", 2)
    command("filter", tmp_path / "articles", "--out", tmp_path / "good", "--min-words", 20)
    command("dedup", tmp_path / "good", "--out", tmp_path / "once", "--method", "exact")
    command("split", tmp_path / "once", "--out", tmp_path / "corpus", "--heldout", 0.2, "--bands", 2)
    command("compress", tmp_path / "once", "--out", tmp_path / "packed")
    command("bert-text", tmp_path / "once", "--out", tmp_path / "once.txt")
    command("pack", tmp_path / "corpus", "--out", tmp_path / "corpus.tar")
    said = command("unpack", tmp_path / "corpus.tar", "--out", tmp_path / "there", "--json").stdout
    assert all_bytes(tmp_path / "there/corpus") == all_bytes(tmp_path / "corpus")
    assert len(json.loads(said)["files"]) == 8 + 2 + 2  # shards and manifests
    once = [document.text for document in read_documents(find_sources([tmp_path / "once"]))]
    assert len(once) == NUM_PAGES - 3
    assert [document.text for document in read_documents(find_sources([tmp_path / "packed"]))] == once
    assert (tmp_path / "once.txt").read_text().count("\n\n") == len(once) - 1
    again = command("split", tmp_path / "once", "--out", tmp_path / "corpus", "--heldout", 0.2, "--bands", 2)
    assert "already complete" in again.output


@pytest.mark.parametrize("num_tasks", [1, 2])
def test_executors_read_and_select_as_the_commands_do(tmp_path, dump, num_tasks):
    settings = BuildSettings(num_shards=2, split_folders=False, quality=Quality(min_words=20))
    build_corpus(find_sources([dump]), tmp_path / "expected", settings)
    out, reader = tmp_path / "out", ReadSources([str(dump)])
    for name, steps, tasks in [
        ("scatter", [reader, ScatterRuns(out, settings, reader)], num_tasks),
        ("gather", [GatherShards(out, settings)], num_tasks),
        ("finish", [FinishCorpus(out, settings, reader)], 1),
    ]:
        LocalPipelineExecutor(steps, tasks=tasks, workers=1, logging_dir=str(tmp_path / "logs" / name)).run()
    assert all_bytes(out) == all_bytes(tmp_path / "expected")
    assert json.loads((out / "manifest.json").read_bytes())["skipped"]["too_few_words"]["count"] == 3

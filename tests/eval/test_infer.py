"""Answers to many examples: interrupted work continues, parts make the whole, and nothing is mixed up."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretrainkit.cli.stages import shown_stages
from pretrainkit.errors import InputError
from pretrainkit.eval.inference import Inference, write_lines
from pretrainkit.files.manifest import file_sha256, read_manifest

HERE = Path(__file__).parent


class Squares(Inference):
    """Answers with the square of every number; at `breaks_at` it fails like a power cut."""

    def __init__(self, num, breaks_at=None, breaks=None):
        self.num, self.breaks_at, self.asked = num, breaks_at, []
        self._breaks = breaks or self._interrupt

    @staticmethod
    def _interrupt():
        raise KeyboardInterrupt

    def __len__(self):
        return self.num

    @property
    def settings(self):
        return {"num": self.num, "mode": "predict"}

    def lines(self, begin, end):
        if self.breaks_at is not None and begin <= self.breaks_at < end:
            self._breaks()
        self.asked.append((begin, end))
        return [{"inputs": {"x": x}, "prediction": f"{x * x} é"} for x in range(begin, end)]


def write(out, inference, chunk_size=3, **settings):
    return write_lines(inference, out, extra_settings={"weights": "w1"}, chunk_size=chunk_size, **settings)


def rows(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@settings(max_examples=15)
@given(num=st.integers(0, 12), chunk_size=st.integers(1, 5), breaks_at=st.integers(0, 11))
def test_resumed_is_uninterrupted_byte_for_byte_and_repeats_no_chunk(tmp_path_factory, num, chunk_size, breaks_at):
    folder = tmp_path_factory.mktemp("infer")
    whole = write(folder / "whole.jsonl", Squares(num), chunk_size)
    assert [row["inputs"]["x"] for row in rows(whole)] == list(range(num))
    first, out = Squares(num, breaks_at), folder / "resumed.jsonl"
    if breaks_at < num:
        with pytest.raises(KeyboardInterrupt):
            write(out, first, chunk_size)
        assert not out.exists()
    second = Squares(num)
    assert write(out, second, chunk_size).read_bytes() == whole.read_bytes()
    assert not set(first.asked) & set(second.asked)
    assert sorted(first.asked + second.asked) == [(at, min(at + chunk_size, num)) for at in range(0, num, chunk_size)]
    assert {path.name for path in folder.iterdir()} == {
        f"{name}.jsonl{end}" for name in ("whole", "resumed") for end in ("", ".manifest.json")
    }


def test_progress_has_the_number_of_answered_examples(tmp_path, capsys):
    with shown_stages() as progress:
        write(tmp_path / "squares.jsonl", Squares(7), progress=progress)
    assert capsys.readouterr().err == "answering 7 examples\n"


@settings(max_examples=15)
@given(num=st.integers(0, 12), num_shards=st.integers(1, 5))
def test_shards_joined_in_order_are_the_whole(tmp_path_factory, num, num_shards):
    folder = tmp_path_factory.mktemp("infer")
    whole = write(folder / "whole.jsonl", Squares(num))
    parts = [write(folder / "part.jsonl", Squares(num), shard=(i, num_shards)) for i in range(num_shards)]
    assert b"".join(part.read_bytes() for part in parts) == whole.read_bytes()
    if num_shards > 1:
        assert parts[1].name == f"part-00001-of-{num_shards:05d}.jsonl"


def test_finished_work_is_not_repeated_and_has_a_manifest(tmp_path):
    out = write(tmp_path / "a.jsonl", Squares(5))
    again = Squares(5)
    write(out, again)
    assert not again.asked
    manifest = read_manifest(out)
    assert manifest["lines"] == 5
    assert manifest["sha256"] == file_sha256(out)
    assert manifest["request"]["weights"] == "w1"


def test_answers_to_another_question_are_neither_continued_nor_replaced(tmp_path):
    out = tmp_path / "a.jsonl"
    with pytest.raises(KeyboardInterrupt):
        write(out, Squares(9, breaks_at=4))
    with pytest.raises(InputError, match=r"parts of other answers, written by another command\n  num: 9 before, 8 now"):
        write(out, Squares(8))
    write(out, Squares(9))
    with pytest.raises(InputError, match=r"a\.jsonl exists, written by another command\n  num: 9 before, 8 now"):
        write(out, Squares(8))
    (tmp_path / "mine.jsonl").write_text("mine")
    with pytest.raises(InputError, match="it was not written by this command"):
        write(tmp_path / "mine.jsonl", Squares(8))
    assert len(rows(write(out, Squares(8), overwrite=True))) == 8


def test_a_question_that_failed_before_its_first_part_can_be_put_right(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "a.jsonl", Squares(9, breaks_at=0))
    assert len(rows(write(tmp_path / "a.jsonl", Squares(8)))) == 8
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["a.jsonl", "a.jsonl.manifest.json"]


def test_a_cut_between_the_file_and_its_manifest_is_repaired(tmp_path, monkeypatch):
    def cut(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("pretrainkit.eval.inference.write_manifest", cut)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "a.jsonl", Squares(5))
    monkeypatch.undo()
    again = Squares(5)
    assert len(rows(write(tmp_path / "a.jsonl", again))) == 5
    assert not again.asked
    assert read_manifest(tmp_path / "a.jsonl")["lines"] == 5


def test_a_killed_process_leaves_its_chunks_to_the_next(tmp_path):
    code = (
        "import os, signal, sys; sys.path.insert(0, sys.argv[1]); from pathlib import Path; import test_infer as t; "
        "t.write(Path(sys.argv[2]), t.Squares(9, 7, lambda: os.kill(os.getpid(), signal.SIGKILL)))"
    )
    command = [sys.executable, "-c", code, str(HERE), str(tmp_path / "a.jsonl")]
    done = subprocess.run(command, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    after = Squares(9)
    write(tmp_path / "a.jsonl", after)
    assert after.asked == [(6, 9)]
    assert (tmp_path / "a.jsonl").read_bytes() == write(tmp_path / "b.jsonl", Squares(9)).read_bytes()


def test_answers_that_were_to_be_replaced_do_not_pass_for_those_they_replaced(tmp_path, monkeypatch):
    """The first manifest would vouch for the second answers, if the cut falls between the file and its manifest."""
    write(tmp_path / "a.jsonl", Squares(4))
    with monkeypatch.context() as cut:
        cut.setattr("pretrainkit.eval.inference.write_manifest", lambda *_: Squares._interrupt())
        with pytest.raises(KeyboardInterrupt):
            write(tmp_path / "a.jsonl", Squares(7), overwrite=True)
    with pytest.raises(InputError, match=r"written by another command|not written by this"):
        write(tmp_path / "a.jsonl", Squares(4))
    assert len(rows(write(tmp_path / "a.jsonl", Squares(7)))) == 7


def test_chunks_that_a_cut_left_beside_complete_answers_are_removed(tmp_path, monkeypatch):
    def cut(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("pretrainkit.eval.inference.shutil.rmtree", cut)
        with pytest.raises(KeyboardInterrupt):
            write(tmp_path / "a.jsonl", Squares(5))
    assert (tmp_path / "a.jsonl.chunks").is_dir()
    write(tmp_path / "a.jsonl", Squares(5))
    assert {path.name for path in tmp_path.iterdir()} == {"a.jsonl", "a.jsonl.manifest.json"}


def test_chunks_of_unknown_origin_are_not_answers(tmp_path):
    """Their removal began with the file that describes them."""
    chunks = tmp_path / "a.jsonl.chunks"
    chunks.mkdir()
    (chunks / "chunk-00001-of-00002.jsonl").write_text('{"inputs": {"x": 0}, "prediction": "of another model"}\n')
    whole = write(tmp_path / "b.jsonl", Squares(5)).read_bytes()
    assert write(tmp_path / "a.jsonl", Squares(5)).read_bytes() == whole


def test_halves_of_surrogate_pairs_are_written_as_json_can(tmp_path):
    class Halves(Squares):
        def lines(self, begin, end):
            return [{"prediction": f"{x} \ud800 é"} for x in range(begin, end)]

    out = write(tmp_path / "answers.jsonl", Halves(2))
    assert [row["prediction"] for row in rows(out)] == ["0 \ud800 é", "1 \ud800 é"]


def test_shards_are_counted_from_0(tmp_path):
    with pytest.raises(InputError, match="shard 4 of 4"):
        write(tmp_path / "a.jsonl", Squares(5), shard=(4, 4))

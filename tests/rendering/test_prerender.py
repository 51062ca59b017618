"""Documents to parquet files of rendered rows: what is in them, and that no crash changes it."""

import io
import itertools
import json
import os
import re
import signal
import subprocess
import sys

import numpy as np
import pytest

from pretrainkit.errors import DataError
from pretrainkit.rendering import Renderer, RendererConfig, load_renderer, render_chunk
from pretrainkit.rendering import prerender as prerender_module
from pretrainkit.rendering.documents import find_documents
from pretrainkit.rendering.prerender import RenderSettings, dry_run, prerender
from pretrainkit.rendering.render_chunk import pieces
from support.remedies import followed
from support.toy_words import WORDS

pytest.importorskip("freetype")
parquet = pytest.importorskip("pyarrow.parquet")


def sentence(rng: np.random.Generator, num_words: int) -> str:
    return " ".join(rng.choice(WORDS, num_words))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """40 documents of 1 to 12 lines."""
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("corpus") / "documents.jsonl"
    texts = ["\n".join(sentence(rng, int(rng.integers(3, 60))) for _ in range(rng.integers(1, 12))) for _ in range(40)]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


@pytest.fixture
def small(latin_font):
    return Renderer(RendererConfig(font_file=latin_font, max_seq_length=40))


def rows_of(folder):
    names = [shard["name"] for shard in json.loads((folder / "manifest.json").read_bytes())["shards"]]
    return [row for name in names for row in parquet.read_table(folder / name).to_pylist()]


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.glob("*.parquet")}


def picture(row):
    from PIL import Image

    return Image.open(io.BytesIO(row["pixel_values"]["bytes"]))


def test_rows_have_exactly_the_published_columns_and_pictures(corpus, small, tmp_path):
    """Fact 17."""
    prerender(find_documents([corpus]), small, tmp_path / "out")
    (path, *_) = sorted((tmp_path / "out/train").glob("*.parquet"))
    schema = parquet.read_schema(path)
    assert schema.names == ["pixel_values", "num_patches"]
    assert str(schema.field("pixel_values").type) == "struct<bytes: binary, path: string>"
    assert str(schema.field("num_patches").type) == "int64"
    features = json.loads(schema.metadata[b"huggingface"])["info"]["features"]
    assert features == {"pixel_values": {"_type": "Image"}, "num_patches": {"dtype": "int64", "_type": "Value"}}
    image = picture(rows_of(tmp_path / "out/train")[0])
    assert (image.format, image.mode, image.size) == ("PNG", "L", (40 * 16, 16))


def test_stored_pictures_are_those_of_the_renderer_and_no_word_is_lost(corpus, small, tmp_path):
    settings = RenderSettings(extras=("text", "document"))
    manifest = prerender(find_documents([corpus]), small, tmp_path / "out", settings)["train"]
    rows = rows_of(tmp_path / "out/train")
    for row in rows[:20]:
        encoding = small(row["text"])
        assert row["num_patches"] == encoding.num_text_patches
        assert np.array_equal(np.asarray(picture(row)), encoding.pixel_values)
    kept: dict[str, list[str]] = {}
    for row in rows:
        kept.setdefault(row["document"], []).append(row["text"])
    given = [json.loads(line)["text"].split() for line in corpus.read_text().splitlines()]
    assert [" ".join(pieces).split() for pieces in kept.values()] == given
    assert manifest["num_rows"] == len(rows)
    assert manifest["fill_rate"] > 0.6


def test_the_first_line_that_is_too_wide_gives_an_empty_row_in_the_original_packing(small, tmp_path):
    """Fact 15: the target is the canvas less two patches, joins do not count."""
    target = 40 * 16 - 32
    wide = "m" * 200
    a, b = "ab " * 8 + "c", "de " * 8 + "f"
    path = tmp_path / "one.jsonl"
    lines = [wide, a, b, b, b]
    path.write_text(json.dumps({"text": "\n".join(lines)}) + "\n")
    prerender(find_documents([path]), small, tmp_path / "out", RenderSettings(packing="original", extras=("text",)))
    rows = rows_of(tmp_path / "out/train")
    assert (rows[0]["text"], rows[0]["num_patches"]) == ("", 1)
    assert (rows[1]["text"], rows[1]["num_patches"]) == (wide, 39)
    filled = 0
    blocks: list[list[str]] = [[]]
    for line in lines[1:]:
        width = small.width(line)
        if filled + width >= target:
            blocks.append([])
            filled = 0
        blocks[-1].append(line)
        filled += width
    assert [row["text"] for row in rows[2:]] == [" ".join(block) for block in blocks]


def test_titles_after_three_blank_lines_are_dropped_but_not_the_first(small, tmp_path):
    """Fact 16."""
    long = "a paragraph of more than one hundred characters, which therefore is no title although it comes first " * 2
    path = tmp_path / "wiki.txt"
    path.write_text(f"First Title\n\nsome text\n\n\n\nSecond Title\n\nmore text\n\n\n\n{long}\n")
    settings = RenderSettings(packing="original", extras=("text",))
    prerender(find_documents([path], "articles"), small, tmp_path / "out", settings)
    shown = " | ".join(row["text"] for row in rows_of(tmp_path / "out/train"))
    assert "First Title some text" in shown
    assert "more text" in shown
    assert long.strip() in shown
    assert "Second Title" not in shown


def test_the_number_of_workers_changes_no_byte(corpus, small, tmp_path):
    settings = RenderSettings(shard_characters=3000, held_out=0.2)
    documents = find_documents([corpus])
    one = prerender(documents, small, tmp_path / "one", settings, workers=1)
    two = prerender(documents, small, tmp_path / "two", settings, workers=2)
    assert one == two
    assert len(one["train"]["shards"]) > 2
    for split in ("train", "valid"):
        assert contents(tmp_path / "one" / split) == contents(tmp_path / "two" / split)


def test_held_out_documents_are_not_in_the_training_rows(corpus, small, tmp_path):
    settings = RenderSettings(extras=("document",), held_out=0.3)
    prerender(find_documents([corpus]), small, tmp_path / "out", settings)
    train, valid = ({row["document"] for row in rows_of(tmp_path / "out" / split)} for split in ("train", "valid"))
    assert train
    assert valid
    assert not train & valid
    assert len(train | valid) == 40


class Notes:
    """Progress that is kept."""

    def __init__(self):
        self.notes, self.total, self.done = [], 0, 0

    def stage(self, name, total, unit):
        self.total = total

    def advance(self, amount):
        self.done += amount

    def note(self, message):
        self.notes.append(message)


SCRIPT = """
import sys, time
from pretrainkit.rendering import Renderer, RendererConfig
from pretrainkit.rendering import prerender as module
from pretrainkit.rendering.documents import find_documents

def slow(task, render=module.render_chunk):
    record = render(task)
    print(task.index, flush=True)
    time.sleep(0.3 if task.index < 2 else 60)
    return record

module.render_chunk = slow
corpus, font, out = sys.argv[1:]
renderer = Renderer(RendererConfig(font_file=font, max_seq_length=40))
module.prerender(find_documents([corpus]), renderer, out, module.RenderSettings(shard_characters=3000), workers=1)
"""


def test_a_killed_job_resumes_without_duplicates_or_holes(corpus, latin_font, small, tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(corpus), latin_font, str(tmp_path / "out")],
        stdout=subprocess.PIPE,
        env=os.environ,
    )
    assert process.stdout is not None
    while process.stdout.readline().strip() != b"2":
        assert process.poll() is None
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    finished = sorted((tmp_path / "out/.work").glob("*/task.json"))
    assert len(finished) == 3
    assert not (tmp_path / "out/train/manifest.json").exists()

    notes = Notes()
    settings = RenderSettings(shard_characters=3000)
    again = prerender(find_documents([corpus]), small, tmp_path / "out", settings, workers=1, progress=notes)
    assert any("3 of" in note for note in notes.notes)
    whole = prerender(find_documents([corpus]), small, tmp_path / "whole", settings, workers=1)
    assert again == whole
    assert contents(tmp_path / "out/train") == contents(tmp_path / "whole/train")
    assert not (tmp_path / "out/.work").exists()


def test_a_job_that_died_while_files_were_renamed_resumes(corpus, small, tmp_path, monkeypatch):
    settings = RenderSettings(shard_characters=3000)
    replace, num_left = os.replace, [2]

    def failing(source, target):
        if "part-" in str(target) and "partial" not in str(source):
            num_left[0] -= 1
            if num_left[0] < 0:
                raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr("pretrainkit.rendering.prerender.os.replace", failing)
    with pytest.raises(KeyboardInterrupt):
        prerender(find_documents([corpus]), small, tmp_path / "out", settings, workers=1)
    monkeypatch.undo()
    again = prerender(find_documents([corpus]), small, tmp_path / "out", settings, workers=1)
    assert again == prerender(find_documents([corpus]), small, tmp_path / "whole", settings, workers=1)
    assert contents(tmp_path / "out/train") == contents(tmp_path / "whole/train")


def test_a_finished_folder_is_kept_and_other_settings_are_refused(corpus, small, tmp_path):
    documents = find_documents([corpus])
    made = prerender(documents, small, tmp_path / "out")
    assert prerender(documents, small, tmp_path / "out") == made
    with pytest.raises(DataError, match="other settings"):
        prerender(documents, small, tmp_path / "out", RenderSettings(packing="original"))


def test_a_dry_run_has_the_counts_of_rendering(corpus, small, tmp_path):
    found = dry_run(find_documents([corpus]), small, RenderSettings(), tmp_path / "work")
    made = prerender(find_documents([corpus]), small, tmp_path / "out")["train"]
    assert (found.num_documents, found.num_rows, found.num_patches, found.fill_rate) == (
        *(made["num_documents"], made["num_rows"], made["num_patches"], made["fill_rate"]),
    )


def test_the_folder_brings_the_renderer_that_drew_it(corpus, small, tmp_path):
    prerender(find_documents([corpus]), small, tmp_path / "out")
    kept = load_renderer(tmp_path / "out/train/renderer")
    assert np.array_equal(kept("a fox").pixel_values, small("a fox").pixel_values)


def test_coloured_pictures_are_stored_in_colour(latin_font, tmp_path):
    renderer = Renderer(RendererConfig(font_file=latin_font, max_seq_length=20, rgb=True, font_color="#c00000"))
    (tmp_path / "one.txt").write_text("a red fox")
    prerender(find_documents([tmp_path / "one.txt"]), renderer, tmp_path / "out")
    (row,) = rows_of(tmp_path / "out/train")
    assert picture(row).mode == "RGB"
    assert np.array_equal(np.asarray(picture(row)), renderer("a red fox").pixel_values)


def test_progress_reaches_the_size_of_the_input_and_shows_the_speed(corpus, small, tmp_path):
    seen = Notes()
    settings = RenderSettings(shard_characters=3000)
    prerender(find_documents([corpus]), small, tmp_path / "out", settings, workers=1, progress=seen)
    assert seen.total == corpus.stat().st_size
    assert 0 < seen.done <= seen.total
    assert any(re.search(r"text patches, [\d,]+ per second", note) for note in seen.notes)


def test_the_speed_of_the_same_patches_is_printed_once(corpus, small, tmp_path, monkeypatch):
    monkeypatch.setattr(prerender_module, "_SECONDS_BETWEEN_NOTES", 0)
    seen, settings = Notes(), RenderSettings(shard_characters=3000)
    prerender(find_documents([corpus]), small, tmp_path / "out", settings, workers=1, progress=seen)
    patches = [note.partition(" text patches")[0] for note in seen.notes if "per second" in note]
    assert len(patches) == len(set(patches)) > 1


@pytest.mark.parametrize("strategy", ["words", "bigrams"])
def test_rows_of_words_that_begin_patches_lose_none_and_leave_no_room_for_one(latin_font, strategy):
    renderer = Renderer(RendererConfig(font_file=latin_font, max_seq_length=30, strategy=strategy))
    text = sentence(np.random.default_rng(1), 80) + " " + "long" * 200 + " end"
    found = list(pieces(renderer, text, "exact"))
    assert "".join(found).replace(" ", "") == text.replace(" ", "")
    wider = Renderer(RendererConfig(font_file=latin_font, max_seq_length=60, strategy=strategy))
    assert all(wider.num_text_patches(piece) <= 29 for piece in found)
    for piece, following in itertools.pairwise(found[:5]):
        assert wider.num_text_patches(f"{piece} {following.split()[0]}") > 29


def test_combining_marks_are_counted_unless_the_engine_places_them(small, tmp_path):
    (tmp_path / "one.txt").write_text("ko\u0308ln köln e\ufe0f q\u0303")
    for engine, expected in (("freetype", 2), ("pango", None)):
        notes, renderer = Notes(), Renderer(small.config.changed(engine=engine, on_missing="ignore"))
        prerender(find_documents([tmp_path / "one.txt"]), renderer, tmp_path / engine, progress=notes)
        about = [note for note in notes.notes if "combining marks" in note]
        assert len(about) == (expected is not None)
        for note in about:
            assert f"has {expected} combining marks" in note
            assert "engine=pango" in followed(note, "rendering/freetype_engine.py: which the engine freetype draws")


def test_characters_that_no_font_has_are_counted_and_named(small, tmp_path):
    (tmp_path / "one.txt").write_text("a fox 漢字 and 漢 again")
    notes = Notes()
    manifest = prerender(find_documents([tmp_path / "one.txt"]), small, tmp_path / "out", progress=notes)["train"]
    assert manifest["missing"] == {"U+6F22": 2, "U+5B57": 1}
    assert any("3 characters, 2 different ones" in note for note in notes.notes)


class Seen:
    """Records the calls of a progress bar."""

    def __init__(self):
        self.total, self.amounts = 0, []

    def stage(self, name, total, unit):
        self.total = total

    def advance(self, amount):
        self.amounts.append(amount)

    def note(self, message):
        pass


def test_one_large_document_shows_how_far_it_is(small, tmp_path, monkeypatch):
    monkeypatch.setattr(render_chunk, "_SECONDS_BETWEEN_SHARES", 0.01)
    monkeypatch.setattr(prerender_module, "_CHECK_SECONDS", 0.01)
    path = tmp_path / "one.jsonl"
    path.write_text(json.dumps({"text": sentence(np.random.default_rng(0), 12_000)}))
    seen = Seen()
    prerender(find_documents([path]), small, tmp_path / "out", workers=1, progress=seen)
    assert len(seen.amounts) > 3
    assert min(seen.amounts) > 0
    assert sum(seen.amounts) == seen.total == path.stat().st_size
    assert not list(tmp_path.rglob("share.txt"))

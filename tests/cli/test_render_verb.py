"""Output, files and result of `pretrainkit render`."""

import json

import pytest

pytest.importorskip("freetype")
parquet = pytest.importorskip("pyarrow.parquet")


@pytest.fixture
def font(tmp_path):
    """The font that Pillow brings."""
    fonts = pytest.importorskip("PIL.ImageFont")
    path = tmp_path / "latin.ttf"
    path.write_bytes(fonts.load_default(12).font_bytes)
    return path


@pytest.fixture
def corpus(tmp_path):
    """A folder as `corpus shards` leaves it, with train and valid."""
    for split, text in (("train", "many words " * 40), ("valid", "some others " * 20)):
        (tmp_path / "corpus" / split).mkdir(parents=True)
        (tmp_path / "corpus" / split / "part.jsonl").write_text(json.dumps({"text": text}) + "\n")
    return tmp_path / "corpus"


def test_both_splits_of_a_corpus_are_rendered(cli, corpus, font, tmp_path):
    result = cli("render", corpus, "--renderer", font, "--max-patches", 30, "--out", tmp_path / "rows")
    assert result.code == 0, result.err
    for split in ("train", "valid"):
        manifest = json.loads((tmp_path / "rows" / split / "manifest.json").read_bytes())
        assert manifest["num_rows"] > 1
        assert manifest["max_seq_length"] == 30
        assert f"{manifest['num_rows']} rows with {manifest['num_patches']} text patches" in result.out
    assert "per second" in result.err


def test_the_result_as_json_is_the_manifests(cli, corpus, font, tmp_path):
    words = ["render", corpus, "--renderer", font, "--out", tmp_path / "rows", "--text-only", "--json"]
    result = cli(*words)
    assert json.loads(result.out)["train"]["columns"] == ["num_patches", "text"]
    again = cli(*words)
    assert json.loads(again.out) == json.loads(result.out)
    assert "complete already" in again.err


def test_a_dry_run_writes_nothing(cli, corpus, font, tmp_path):
    result = cli("render", corpus, "--renderer", font, "--dry-run")
    assert result.code == 0
    assert "2 documents would be 2 rows" in result.out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus", "latin.ttf"]


def test_rendered_rows_are_laid_out_as_the_published_sets(cli, corpus, font, tmp_path):
    cli("render", corpus, "--renderer", font, "--out", tmp_path / "rows")
    result = cli("render", tmp_path / "rows/train", "--layout", "published", "--out", tmp_path / "set")
    assert result.code == 0, result.err
    assert [path.name for path in (tmp_path / "set/data").iterdir()] == ["train-00000-of-00001.parquet"]
    other = ["render", tmp_path / "rows/train", "--layout", "published", "--out", tmp_path / "other"]
    for words in (["--heldout", "0.1"], ["--renderer", font], ["--text-only"], ["--max-bad", "2"]):
        result = cli(*other, *words)
        assert result.code == 2, words
        assert f"leave out {words[0]}" in result.err
    assert not (tmp_path / "other").exists()


def put_books(folder, number):
    folder.mkdir()
    for book in range(number):
        (folder / f"{book}.jsonl").write_text(json.dumps({"text": f"book {book} has many words"}) + "\n")
    return folder / "*.jsonl"


def test_a_small_share_of_few_documents_holds_out_one(cli, font, tmp_path):
    words = ["render", put_books(tmp_path / "books", 6), "--renderer", font, "--out", tmp_path / "rows", "--heldout"]
    result = cli(*words, "0.0001")
    assert result.code == 0, result.err
    share = result.err.partition("; using --heldout ")[2].split()[0]
    for split, num_rows in (("train", 5), ("valid", 1)):
        assert json.loads((tmp_path / "rows" / split / "manifest.json").read_bytes())["num_rows"] == num_rows
    assert "complete already" in cli(*words, "0.0001").err
    assert "complete already" in cli(*words, share).err


def test_one_document_cannot_be_held_out(cli, font, tmp_path):
    words = ["render", put_books(tmp_path / "books", 1), "--renderer", font, "--out", tmp_path / "rows", "--heldout"]
    result = cli(*words, "0.0001")
    assert result.code == 2
    assert "--heldout 0 for no held-out data" in result.err
    assert cli(*words, "0").code == 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--renderer", "FONT", "--out", "x"], "nothing to read"),
        (["CORPUS", "--out", "x"], "--renderer"),
        (["CORPUS", "--renderer", "FONT"], "--out"),
        (["CORPUS", "--renderer", "FONT", "--out", "x", "--layout", "published"], "render first"),
        (["CORPUS", "--renderer", "gone.ttf", "--out", "x"], "gone.ttf"),
        (["CORPUS", "--renderer", "FONT", "--out", "x", "--heldout", "0.5"], "held-out data already"),
        (["CORPUS", "--split", "test", "--renderer", "FONT", "--out", "x"], "leave out --split"),
    ],
)
def test_impossible_requests_are_refused(cli, corpus, font, tmp_path, monkeypatch, words, told):
    monkeypatch.chdir(tmp_path)
    result = cli("render", *[{"CORPUS": str(corpus), "FONT": str(font)}.get(word, word) for word in words])
    assert result.code == 2
    assert told in result.err
    assert not (tmp_path / "x").exists()

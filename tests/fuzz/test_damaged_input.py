"""Inputs from the fuzzer, and the message of the reader for each: one that names the file."""

import io
import json
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

sys.path.insert(0, str(Path(__file__).parent))

from mutate import Files
from targets import TARGETS
from targets_data import picture

from fuzz import write
from pretrainkit.errors import PretrainKitError
from support.t5_foreign_files import packed

Change = Callable[[Files], object]


@cache
def seeds(target: str) -> tuple[Files, ...]:
    """The valid inputs of a target."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        return tuple(TARGETS[target].seeds(Path(folder)))


def put(name: str, content: bytes) -> Change:
    """Another content of a file."""
    return lambda files: files.__setitem__(name, content)


def replaced(name: str, old: bytes, new: bytes) -> Change:
    """Some bytes of a file replaced."""

    def change(files: Files) -> None:
        assert old in files[name]
        files[name] = files[name].replace(old, new)

    return change


def edited(name: str, *path: str, value: object) -> Change:
    """Another value in a JSON file; ABSENT removes it."""

    def change(files: Files) -> None:
        content = json.loads(files[name])
        place = content
        for key in path[:-1]:
            place = place[key]
        if value is ABSENT:
            del place[path[-1]]
        else:
            place[path[-1]] = value
        files[name] = json.dumps(content).encode()

    return change


def column(name: str, column: str, values: list[object], kind: pa.DataType | None = None) -> Change:
    """Another column of a parquet file."""

    def change(files: Files) -> None:
        table = parquet.read_table(io.BytesIO(files[name]))
        table = table.set_column(table.column_names.index(column), column, pa.array(values[: len(table)], kind))
        out = io.BytesIO()
        parquet.write_table(table, out)
        files[name] = out.getvalue()

    return change


def wrong_offsets(files: Files) -> None:
    """Texts instead of numbers in a column of an Arrow file, whose offsets lead far out of it."""
    name = "train/data-00000-of-00001.arrow"
    table = pa.ipc.open_stream(files[name]).read_all()
    place = table.column_names.index("image_id")
    table = table.set_column(place, "image_id", pa.array(["abc"] * len(table), pa.large_string()))
    out = io.BytesIO()
    with pa.ipc.new_stream(out, table.schema) as stream:
        stream.write_table(table)
    files[name] = out.getvalue().replace(b"\3\0\0\0\0\0\0\0\6", b"\3\0\0\0\x7f\0\0\0\6")


def both(first: Change, second: Change) -> Change:
    """Two changes."""
    return lambda files: (first(files), second(files))


def stored(*pictures: bytes) -> Change:
    """Other pictures in the rows of rendered text."""
    return column("a.parquet", "pixel_values", [{"bytes": content, "path": None} for content in pictures])


def spec(place: dict[str, object]) -> bytes:
    """A checkpoint of T5X whose only array is elsewhere."""
    return packed({"optimizer": {"target": {"a": {"driver": "zarr", **place}}}})


ABSENT = object()
META = "checkpoints/step-00000001/meta.json"
ALIASES = b"a0: &a0 [x, x]\n" + b"".join(
    b"a%d: &a%d [%s]\n" % (n, n, b", ".join([b"*a%d" % (n - 1)] * 9)) for n in range(1, 9)
)
CASES: list[tuple[str, int, Change, str]] = [
    ("config", 0, put("config.yaml", b"[" * 50_000), "more than 100 nested values"),
    ("config", 0, put("config.yaml", ALIASES), "counting the copies of aliases"),
    ("config", 0, put("config.yaml", b"extends:\nrecipe: bert\n"), "extends holds None"),
    ("config", 0, put("config.yaml", b"extends: %s.yaml\n" % (b"x" * 300)), "there is no config file"),
    ("config", 0, put("config.yaml", b"a: &a [*a]\n"), "the alias \\*a contains itself"),
    ("config", 0, put("config.yaml", b"a: !!timestamp b\n"), "is not valid YAML.*\n  put quotes around"),
    ("config", 0, put("config.yaml", b"a: 2001-99-99\n"), "is not valid YAML.*\n  put quotes around"),
    ("config", 0, put("config.yaml", b"!!python/object/apply:os.system [id]"), "is not valid YAML"),
    ("overrides", 0, put("words.txt", b"bert/mini\nseed=\xba"), "it is not UTF-8"),
    ("overrides", 0, put("words.txt", b"a/" * 3000), "unknown recipe|there is no"),
    ("overrides", 0, put("words.txt", b"bert/mini\nseed" + b".a" * 1000 + b"=1"), "no config has more than 100"),
    (
        "config",
        0,
        put("config.yaml", b"extends: bert/mini\ndata: {train: {2001-01-01: 1, weight: 2}}\n"),
        "cannot be a key",
    ),
    ("jsonl", 0, put("a.jsonl", b'{"text":\n"\\ud800"}\n\n'), "half of a surrogate pair"),
    (
        "parquet",
        3,
        replaced("a.arrow", b"\0\0\0\0\1\0\0\0\4\0\0\0", b"\0\0\0\0\1\0\0\0\xff\xff\xff\x0f"),
        "is not an Arrow",
    ),
    ("parquet", 3, replaced("a.arrow", b"meta", b"text"), "is not an Arrow file, or is damaged"),
    ("corpus-shards", 0, edited("manifest.json", "shards", value=[1]), "damaged, or was written by another program"),
    ("maps", 0, replaced("image", b"(4, 6)", b"(4, 6 "), "cannot be read as an array"),
    ("csv-pairs", 0, replaced("train_anno.csv", b"image_id", b"image_\xff\xff"), "train_anno.csv cannot be read"),
    ("img2dataset", 0, replaced("00000.parquet", b"PAR1", b"PAR2"), "is not a parquet file"),
    ("img2dataset", 0, column("00000.parquet", "caption", [{"a": 1}] * 2), "'caption' holds struct.*, which cannot be"),
    (
        "img2dataset",
        0,
        column("00000.parquet", "caption", [b"\xff"] * 2),
        "'caption' holds binary, which cannot be read",
    ),
    ("img2dataset", 0, column("00000.parquet", "status", [{"a": 1}] * 2), "column 'status' holds struct"),
    (
        "img2dataset",
        0,
        column("00000.parquet", "status", [2**62] * 2, pa.timestamp("us")),
        "2 left out|has no examples",
    ),
    ("img2dataset", 0, column("00000.parquet", "status", [None, "failed"]), "has no examples|left out"),
    ("img2dataset", 0, replaced("00000.parquet", b"success", b"succes\xff"), "00000.parquet .*Invalid UTF8"),
    (
        "img2dataset",
        0,
        both(
            column("00000.parquet", "key", ["x" * 300] * 2), column("00000.parquet", "caption", [{"a": 1}] * 2)
        ),  # a name that is too long for a file
        "column 'caption' holds struct",
    ),
    (
        "huggingface-pairs",
        0,
        replaced("train/data-00000-of-00001.arrow", b"\0\0\0\0\2\0\0\0", b"\0\0\0\0\2\0\0\x7f"),
        "is not an Arrow file, or is damaged",
    ),
    ("huggingface-pairs", 0, wrong_offsets, "is not an Arrow file, or is damaged"),
    ("row-files", 4, put("words.txt", b"a N\nb x-DOCSTART- N\n"), "line 2 of .* has another number of columns"),
    ("row-files", 1, replaced("a.tsv", b"a\tb", b"\xff\tb"), "line 1 of .*a.tsv is not UTF-8"),
    ("row-files", 3, column("a.parquet", "a", [2**62] * 2, pa.timestamp("us")), "date value out of range"),
    ("row-files", 3, replaced("a.parquet", b"\x15", b"\x16"), "a.parquet is not a parquet file"),
    ("row-files", 3, replaced("a.parquet", b"\x16\4&\x08", b"\x16\6&\x08"), "2 rows are not those of its row groups"),
    ("seqio-cache", 0, edited("info.train.json", "num_shards", value="many"), "info.train.json is damaged"),
    ("seqio-cache", 0, edited("info.train.json", "features", "text", "dtype", value={}), "info.train.json is damaged"),
    ("seqio-cache", 0, put("stats.train.json", b"[1]"), "contains a list, not an object"),
    ("token-shards", 0, edited("manifest.json", "tokenizer", "special", value=None), "no id for unk"),
    ("token-shards", 0, edited("manifest.json", "dtype", value="01i"), "manifest.json is damaged"),
    ("token-shards", 0, put("documents-00000-of-00001.bin", b"\x09" + bytes(7) + b"\3" + bytes(7)), "do not increase"),
    ("task-cache", 0, edited("info.train.json", "shard_examples", value=[1, 2]), "do not fit together"),
    ("task-cache", 0, edited("info.train.json", "shard_examples", value=[2**63]), "does not fit the number of"),
    (
        "task-cache",
        0,
        edited("info.train.json", "features", value={"../x": {"dtype": "int32"}}),
        "outside of its folder",
    ),
    ("task-cache", 0, edited("train/inputs/manifest.json", "tokenizer", "special", value=ABSENT), "is damaged"),
    ("task-cache", 0, put("train/extras-00000-of-00001.ends", b"\1\2\3"), "is truncated"),
    ("renderer", 0, edited("text_renderer_config.json", "dpi", value=10**400), "whole number > 0 and <= 10000"),
    ("renderer", 0, edited("rendering.json", "config", "fallback_fonts", value=3), "fallback_fonts is not a list"),
    (
        "renderer",
        0,
        edited("rendering.json", "config", "fallback_fonts", value=["../font.ttf"]),
        "fallback_fonts/font.ttf",
    ),
    ("renderer", 0, edited("text_renderer_config.json", "font_file", value="a" * 300), "has no font"),
    ("rendered-rows", 0, column("a.parquet", "num_patches", [None] * 99), "its column 'num_patches' lacks numbers"),
    ("rendered-rows", 0, column("a.parquet", "num_patches", ["x"] * 99), "a.parquet is not a parquet file"),
    ("rendered-rows", 0, replaced("a.parquet", b"\x15", b"\x16"), "a.parquet is not a parquet file"),
    (
        "rendered-rows",
        0,
        replaced("a.parquet", b"\x16\6\x19\x1c", b"\x16\4\x19\x1c"),
        "its 2 rows are not those of its row groups",
    ),
    ("rendered-rows", 0, stored(*[b"\x89PNG\r\n\x1a\n\0\0\0\1IHDR\0" + bytes(4)] * 3), "row 0 has no valid picture"),
    ("rendered-rows", 0, column("a.parquet", "pixel_values", [2**62] * 3, pa.timestamp("us")), "a.parquet is not a"),
    (
        "rendered-rows",
        0,
        stored(*[picture("PNG", "L", (64, height)) for height in (16, 8, 16)]),
        "has a picture of 8 rows of pixels, and others of 16",
    ),
    (
        "tar-index",
        0,
        lambda files: files.update({n: c.replace(b"offset", b"offsex") for n, c in files.items()}),
        "index",
    ),
    ("safetensors", 1, put("model.safetensors.index.json", b"{"), "index.json cannot be read"),
    ("safetensors", 1, edited("model.safetensors.index.json", "weight_map", value=[1]), "index.json is damaged"),
    (
        "safetensors",
        1,
        edited("model.safetensors.index.json", "weight_map", "b", value="../b.safetensors"),
        "lists the part",
    ),
    ("safetensors", 0, put("model.safetensors", (10**10).to_bytes(8, "little") + b"{}"), "cannot be read"),
    ("pickles", 2, replaced("a.pt", b"K\x02\x85K\x01", b"K\xff\x85K\0"), "repeats its elements"),
    ("pickles", 2, replaced("a.pt", b"c__torch__\nSmall", b"cposixxxxx\nsyste"), "of the unknown kind posixxxxx"),
    ("runs", 0, edited(META, "files", value=ABSENT), "no valid checkpoint"),
    ("runs", 0, edited(META, "files", "../a", value={}), "no valid checkpoint"),
    ("runs", 0, edited(META, "meta", "architecture", value=3), "no valid checkpoint"),
    ("runs", 0, put("config.yaml", b"\xff"), "is not a run folder"),
    ("huggingface", 0, put("config.json", b"{"), "config.json cannot be read"),
    ("huggingface", 0, edited("config.json", "architectures", value=3), "config.json is damaged"),
    ("huggingface", 0, edited("config.json", "num_attention_heads", value=3), "width 8 is not a multiple"),
    ("huggingface", 0, edited("config.json", "num_hidden_layers", value=10**9), "num_hidden_layers 1000000000"),
    ("huggingface", 0, edited("config.json", "num_hidden_layers", value=1e9), "num_hidden_layers 1000000000.0"),
    ("huggingface", 0, edited("config.json", "vocab_size", value=2**50), "30, 8|2\\*\\*50|1125899906842624"),
    (
        "huggingface",
        3,
        edited("tokenizer.json", "post_processor", "single", value=[{"SpecialToken": {"id": "x", "type_id": 0}}]),
        "the tokenizer in .* cannot be read",
    ),
    ("huggingface", 3, edited("tokenizer.json", "model", "vocab", "[UNK]", value=2**31), "but an id of 2147483648"),
    (
        "huggingface",
        3,
        put("config.json", b'{"model_type": "electra", "vocab_size": "x"}'),
        "cannot read the config",
    ),
    ("tokenizer-json", 0, edited("tokenizer.json", "model", "vocab", value={"a": 2**32 - 1, "[UNK]": 0}), "is broken"),
    ("tokenizer-json", 0, edited("tokenizer.json", "model", "unk_token", value="none"), "is broken"),
    ("tokenizer-json", 0, put("tokenizer_config.json", b"[1]"), "tokenizer_config.json contains a list"),
    ("tokenizer-json", 0, put("tokenizer_config.json", b'{"unk_token": [1]}'), "has no unk piece"),
    ("sentencepiece", 0, replaced("sentencepiece.model", b"<0x41>", b"<0x\xff1>"), "is not a SentencePiece model"),
    ("sentencepiece", 0, put("sentencepiece.model", b""), "is not a SentencePiece model"),
    ("gin", 0, put("run.gin", b"a.b = (1,\n"), "is not a gin file"),
    ("gin", 0, put("run.gin", b'include "%s"' % (b"x" * 5000)), "which is not in a folder above it"),
    ("foreign-configs", 1, replaced("a.yaml", b"batch_size: 128", b"batch_size: []"), "a.yaml"),
    ("foreign-configs", 1, replaced("a.yaml", b"cfgs/data.yaml", b"x" * 300), "names x+, which is neither in"),
    ("foreign-configs", 1, replaced("cfgs/data.yaml", b"alphas.yaml", b"x" * 300), "xx"),
    ("t5x", 1, put("checkpoint", spec({"kvstore": 3})), "checkpoint cannot be read"),
    ("t5x", 1, put("checkpoint", spec({"path": 3})), "checkpoint cannot be read"),
    ("t5x", 1, put("checkpoint", spec({"path": "x" * 300})), "cannot be read"),
    ("run-folder", 0, put("metrics.jsonl", b"{}"), "no logged step"),
]


@pytest.mark.parametrize(
    ("target", "seed", "change", "message"), CASES, ids=[f"{n}-{c[0]}" for n, c in enumerate(CASES)]
)
def test_damaged_input_ends_in_one_message(target, seed, change, message, tmp_path, monkeypatch):
    monkeypatch.setenv("PRETRAINKIT_CACHE", str(tmp_path / "cache"))
    files = dict(seeds(target)[seed])
    change(files)
    if target in ("runs", "pickles"):  # the checksums are checked first
        files = TARGETS[target].repair(files)
    write(files, tmp_path / "input")
    with pytest.raises(PretrainKitError, match=message):
        TARGETS[target].run(tmp_path / "input")

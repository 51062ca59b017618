"""Images, pairs, archives, records, shards, and their indices."""

import io
import json
import os
import struct
import tarfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from mutate import Files
from PIL import Image, ImageFont
from target import Target, files_of

from pretrainkit.data.aligned_samples import map_size, open_samples, read_array, read_map
from pretrainkit.data.tar import members
from pretrainkit.errors import DataError
from pretrainkit.formats.crc32c import crc32c, masked
from pretrainkit.images.decode import open_image
from pretrainkit.recipes.clip.config import ClipSourceConfig
from pretrainkit.recipes.clip.loose_pairs import find_loose_pairs
from pretrainkit.recipes.clip.open_pairs import open_pairs
from pretrainkit.recipes.clip.pairs import BadImage
from pretrainkit.recipes.fourm.readers import boxes_of, texts_of
from pretrainkit.rendering import Renderer, RendererConfig, load_renderer, save_renderer
from pretrainkit.tasks.cache import TaskCache
from pretrainkit.tasks.record_sources import SeqioCache
from pretrainkit.tasks.row_files import open_rows, open_sentences
from pretrainkit.tokenizers.shards import TokenShards


def picture(format: str, mode: str = "RGB", size: tuple[int, int] = (40, 24), **options: Any) -> bytes:
    """A small picture file."""
    pixels = np.arange(size[0] * size[1] * 3, dtype=np.uint32).astype(np.uint8).reshape(size[1], size[0], 3)
    image, file = Image.fromarray(pixels), io.BytesIO()
    if mode == "I;16":
        image = Image.fromarray(pixels[:, :, 0].astype(np.uint16) * 257)
    image.convert(mode).save(file, format, **options)
    return file.getvalue()


def _pictures(folder: Path) -> list[Files]:
    files = [picture("JPEG"), picture("JPEG", size=(160, 160), progressive=True), picture("JPEG", "CMYK")]
    files += [
        picture("PNG"),
        picture("PNG", "P"),
        picture("PNG", "LA"),
        picture("WEBP"),
        picture("WEBP", lossless=True),
    ]
    files += [picture("GIF"), picture("BMP"), picture("TIFF"), picture("PNG", "I;16")]
    return [{"image": content} for content in files]


def _decode(folder: Path) -> None:
    content = (folder / "image").read_bytes()
    image = open_image(content)
    pixels = image.decode((32, 32) if len(content) % 2 else None)
    assert pixels.shape[2] == 3
    assert pixels.dtype == np.uint8


def _map(folder: Path) -> None:
    content = (folder / "image").read_bytes()
    map_size(content, "image")
    read_map(content, "image")


def _maps(folder: Path) -> list[Files]:
    file = io.BytesIO()
    np.save(file, np.ones((4, 6), np.float32))
    return [{"image": file.getvalue()}, {"image": picture("PNG", "P")}, {"image": picture("PNG", "I;16")}]


def _values(folder: Path) -> None:
    for path in folder.iterdir():
        reader = {"a.npy": read_array, "boxes.json": boxes_of, "caption.json": texts_of}[path.name]
        with suppress(DataError):
            reader(path.read_bytes(), path.name)


def _npy(dtype: str = "<i4") -> bytes:
    file = io.BytesIO()
    np.save(file, np.arange(6).astype(dtype).reshape(2, 3))
    return file.getvalue()


_BOXES = {"instances": [{"boxes": [0.1, 0.2, 0.3, 0.4], "score": 1.0, "class_name": "red square"}]}


def tar(files: Files) -> bytes:
    """An archive of files."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return file.getvalue()


def _webdataset(folder: Path) -> list[Files]:
    image = picture("PNG", size=(4, 4))
    samples: Files = {}
    for number in range(3):
        about = json.dumps({"caption": f"a {number}", "text": ["b", "c"], "image_id": number}).encode()
        samples |= {f"{number:03}.png": image, f"{number:03}.json": about, f"{number:03}.txt": b"words"}
    long = tar({"a" * 150 + ".png": image, "a" * 150 + ".txt": b"words"})
    return [{"0.tar": tar(samples)}, {"0.tar": tar(dict(list(samples.items())[::3])), "1.tar": long}]


def _read_pairs(folder: Path, **settings: Any) -> None:
    for split in ("train", "valid")[: 1 if settings else 2]:
        pairs = open_pairs(ClipSourceConfig(path=str(folder), **settings), split)  # type: ignore[arg-type]
        for row in range(min(len(pairs), 4)):
            pairs.caption(row, 0.5)
            pairs.describe(row)
            with suppress(BadImage):
                pairs.read_image(row)


def _tars(folder: Path) -> None:
    keys = [None, "json:text", {"txt": 1.0, "json:caption": 2.0}]
    _read_pairs(folder, caption_key=keys[sum(path.stat().st_size for path in folder.iterdir()) // 512 % 3])


_ANNOTATIONS = b'image,image_id,caption,caption_id\na.png,1,a red dog,1\nb.png,2,"a, b\nc",2\n../c.png,3,c,3\n'


def _csv(folder: Path) -> list[Files]:
    image = picture("PNG", size=(4, 4))
    images = {"train/a.png": image, "train/b.png": image, "valid/a.png": image}
    return [{"train_anno.csv": _ANNOTATIONS, "valid_anno.csv": _ANNOTATIONS, **images}]


def parquet_file(columns: dict[str, Any]) -> bytes:
    """A parquet file."""
    import pyarrow
    from pyarrow import parquet

    file = io.BytesIO()
    parquet.write_table(pyarrow.table(columns), file)
    return file.getvalue()


def _img2dataset(folder: Path) -> list[Files]:
    table = parquet_file({"key": ["000", "001"], "caption": ["a", None], "status": ["success", "failed"]})
    image = picture("PNG", size=(4, 4))
    stats = json.dumps({"count": 2, "successes": 1}).encode()
    return [{"00000.parquet": table, "00000_stats.json": stats, "00000/000.jpg": image, "00000/000.txt": b"a"}]


def _saved_set(folder: Path) -> list[Files]:
    """A folder saved by datasets, with and without a description of its columns."""
    import datasets

    datasets.disable_progress_bars()
    image = {"bytes": picture("PNG", size=(4, 4)), "path": None}
    columns = {"image": [image] * 3, "caption": [["a", "b"], ["c"], []], "image_id": [1, 2, 3]}
    datasets.Dataset.from_dict(columns).save_to_disk(str(folder / "set"))
    files = files_of(folder / "set")
    plain = {**files, "dataset_info.json": b"{}"}
    return [{f"train/{name}": content for name, content in seed.items()} for seed in (files, plain)]


def _read_saved(folder: Path) -> None:
    _read_pairs(folder / "train", format="huggingface")


def _loose(folder: Path) -> None:
    find_loose_pairs(str(folder)).table()


def _loose_files(folder: Path) -> list[Files]:
    image = picture("PNG", size=(4, 4))
    lines = b'{"image": "a.png", "captions": ["x", "y"]}\n{"image": "b.png", "text": "z"}\n'
    return [
        {
            "a.png": image,
            "b/c.png": image,
            "captions.csv": b'image,caption\na.png,"x, y"\nb/c.png,z\n',
            "b/c.txt": b"w",
        },
        {"a.png": image, "b.png": image, "t.jsonl": lines, "t.tsv": b"filepath\ttitle\na.png\tx\n"},
    ]


def _aligned(folder: Path) -> list[Files]:
    image, text = picture("PNG", size=(4, 4)), b'["a", "b"]'
    names = [f"{number:03}" for number in range(3)]
    tars = {"rgb/0.tar": tar({f"{name}.png": image for name in names})}
    return [tars | {"caption/0.tar": tar({f"{name}.json": text for name in names})}]


def _read_aligned(folder: Path) -> None:
    samples = open_samples(f"{folder}/[rgb,caption]/{{0..0}}.tar", {"rgb": (".png", ".jpg"), "caption": (".json",)})
    for index in range(min(len(samples), 3)):
        texts_of(samples.read("caption", index), samples.name("caption", index))
        samples.read("rgb", index)


def _tar_index(folder: Path) -> list[Files]:
    """An archive with the index that is kept beside it."""
    seed = _webdataset(folder)[0]
    (folder / "0.tar").write_bytes(seed["0.tar"])
    os.utime(folder / "0.tar", (1, 1))
    _read_pairs(folder, format="webdataset")
    return [files_of(folder)]


def _kept_index(folder: Path) -> None:
    os.utime(folder / "0.tar", (1, 1))
    _read_pairs(folder, format="webdataset")


def varint(number: int) -> bytes:
    """A number of protocol buffers."""
    parts = bytearray()
    while number > 127:
        parts.append(number & 127 | 128)
        number >>= 7
    return bytes([*parts, number])


def field(number: int, content: bytes) -> bytes:
    """A field of protocol buffers."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def record(content: bytes) -> bytes:
    """A record of a TFRecord file."""
    length = struct.pack("<Q", len(content))
    return length + _crc(length) + content + _crc(content)


def _crc(content: bytes) -> bytes:
    return int(masked(crc32c(content))).to_bytes(4, "little")


def _example(number: int) -> bytes:
    ids = field(3, field(1, b"".join(map(varint, (3 + number, 300)))))
    text = field(1, field(1, f"row {number}".encode()))
    score = field(2, field(1, struct.pack("<f", number)))
    entries = {"targets": ids, "text": text, "score": score}
    return field(1, b"".join(field(1, field(1, name.encode()) + field(2, value)) for name, value in entries.items()))


def _sealed_records(files: Files) -> Files:
    """Give the records of damaged files right checksums."""
    sealed = dict(files)
    for name, content in files.items():
        if "tfrecord" in name and not name.endswith(".gz"):
            records, at = [], 0
            while at + 12 <= len(content):
                size = min(struct.unpack_from("<Q", content, at)[0], len(content) - at - 12)
                records.append(record(content[at + 12 : at + 12 + size]))
                at += 16 + size
            sealed[name] = b"".join(records)
    return sealed


def _records(folder: Path) -> list[Files]:
    content = b"".join(record(_example(number)) for number in range(3))
    import gzip

    return [{"a.tfrecord": content}, {"a.tfrecord.gz": gzip.compress(content, 1, mtime=0)}]


def _rows(folder: Path) -> None:
    for path in sorted(folder.iterdir()):
        if not path.is_file() or path.suffix == ".answers":
            continue
        is_words = path.name.startswith("words") or path.suffix == ".conllu"
        source = open_sentences(path, "train") if is_words else open_rows(path, "train")
        source.fingerprint("train")
        for index in range(min(source.num_examples("train"), 5)):
            source.example("train", index)


def _row_files(folder: Path) -> list[Files]:
    import gzip

    conllu = "".join(f"{n}\tw{n}\tl\tNOUN\tNN\t_\t{n - 1}\tdep\t_\t_\n" for n in range(1, 4)) + "\n# sent_id = a\n"
    return [
        {"a.jsonl": b'{"a": "x", "b": 1}\n{"a": "y", "b": 2}\n'},
        {"a.tsv": b'a\tb\nx\t"1"\ny\t2\n', "b.txt": b"x\ny\r\n"},
        {"a.jsonl.gz": gzip.compress(b'{"a": "x"}\n', mtime=0)},
        {"a.parquet": parquet_file({"a": ["x", "y"], "b": [1, 2]})},
        {"a.conllu": conllu.encode(), "words.txt": b"-DOCSTART- -X-\n\na B-PER\nb O\n\n"},
    ]


def _seqio(folder: Path) -> list[Files]:
    files = {f"train.tfrecord-{n:05}-of-00002": record(_example(n)) + record(_example(n + 2)) for n in range(2)}
    features = {"targets": {"shape": [None], "dtype": "int32"}, "text": {"shape": [], "dtype": "string"}}
    info = {"num_shards": 2, "features": features, "seqio_version": "0"}
    files |= {"info.train.json": json.dumps(info).encode(), "stats.train.json": b'{"examples": 4}', "COMPLETED": b""}
    return [files]


def _read_seqio(folder: Path) -> None:
    cache = SeqioCache(folder)
    for split in cache.splits:
        cache.fingerprint(split)
        for index in range(min(cache.num_examples(split), 5)):
            cache.example(split, index)


def _token_shards(folder: Path) -> list[Files]:
    from pretrainkit.tokenizers.encode import encode_corpus
    from pretrainkit.tokenizers.train import TokenizerSettings, train_tokenizer

    (folder / "words.tsv").write_text("a\t90\nred\t20\ndog\t20\nruns\t9\n")
    train_tokenizer([folder / "words.tsv"], folder / "tokenizer", TokenizerSettings(kind="wordpiece", vocab_size=20))
    (folder / "a.txt").write_text("a red dog.\nruns a dog.\n\nred runs.\n")
    encode_corpus([folder / "a.txt"], folder / "tokenizer", folder / "out", workers=1)
    return [files_of(folder / "out")]


def _read_shards(folder: Path) -> None:
    from pretrainkit.recipes.bert.chunks import chunks_of
    from pretrainkit.recipes.t5.segments import segments_of

    shards = TokenShards.open(folder)
    for index in range(min(shards.num_documents, 3)):
        shards.document(index)
    if shards.num_tokens:
        shards.gather(np.zeros(1, np.int64), np.ones(1, np.int64), 2, 0)
    chunks_of(shards, max_tokens=16, sentence_order=True, chunking="lossless")
    segments_of(shards, 16, end_mark=None)


def _task_cache(folder: Path) -> list[Files]:
    from pretrainkit.tasks.cache_writer import cache_task
    from pretrainkit.tasks.preprocessors import format_strings, tokenize
    from pretrainkit.tasks.sources import TextLines
    from pretrainkit.tasks.steps import CacheMarker
    from pretrainkit.tasks.task import Feature, Task
    from pretrainkit.tasks.vocabulary import ByteVocabulary

    (folder / "train.txt").write_text("one line\nanother\nthree\n")
    steps = (format_strings(inputs="{text}", targets="{text}"), tokenize(), CacheMarker())
    features = {"inputs": Feature(ByteVocabulary()), "targets": Feature(ByteVocabulary())}
    task = Task("lines", TextLines({"train": folder / "train.txt"}), features, steps)
    cache_task(task, folder / "cache", num_shards=1)
    return [files_of(folder / "cache" / "lines")]


def _read_cache(folder: Path) -> None:
    cache = TaskCache(folder)
    if cache.has("train"):
        cache.stats("train")
        examples = cache.examples("train")
        for index in range(min(len(examples), 3)):
            examples.example(index)


def font() -> bytes:
    """A small font."""
    return bytes(ImageFont.load_default(12).font_bytes)  # type: ignore[union-attr]


def _fonts(folder: Path) -> list[Files]:
    return [{"font.ttf": font()}]


def _draw(folder: Path) -> None:
    path = folder / "font.ttf"
    config = RendererConfig(font_file=str(path), on_missing="ignore", fit_fallbacks=True, max_seq_length=8)
    Renderer(config).opened().columns("a b")


def _renderers(folder: Path) -> list[Files]:
    (folder / "font.ttf").write_bytes(font())
    save_renderer(Renderer(RendererConfig(font_file=str(folder / "font.ttf"), max_seq_length=8)), folder / "renderer")
    return [files_of(folder / "renderer")]


def _open_renderer(folder: Path) -> None:
    load_renderer(folder, on_change="ignore").columns("a b")


def _rendered(folder: Path) -> list[Files]:
    import pyarrow
    from pyarrow import parquet

    from pretrainkit.rendering.row_files import PATCHES, PIXELS, row_schema

    schema = row_schema((), with_pixels=True)
    rows = [{PIXELS: {"bytes": picture("PNG", "L", (64, 16)), "path": None}, PATCHES: 3} for _ in range(3)]
    file = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(rows, schema=schema), file)
    return [{"a.parquet": file.getvalue()}]


def _read_rendered(folder: Path) -> None:
    from pretrainkit.data.source import Records
    from pretrainkit.recipes.pixel.config import PixelRun
    from pretrainkit.recipes.pixel.source import bind, open_source
    from pretrainkit.running.configs import load_config

    config = load_config("pixel/tiny", [f"data.train={folder}", "data.min_text_patches=1"])
    assert isinstance(config, PixelRun)
    source = open_source(bind(config), "train")
    index = np.arange(min(source.sizes[0], 3))
    zeros = np.zeros_like(index)
    source.build(Records(zeros, zeros, index, zeros.astype(np.uint64)))
    source.components[0].stored(0)


def _members(folder: Path) -> None:
    list(members(str(folder / "0.tar")))


_NAMES = ("../../out.png", "/out.png", "a/b.json", "000.json", "001.png", ".png", "json", "a.b.c.txt")
TARGETS = [
    Target("images", _pictures, _decode),
    Target("maps", _maps, _map),
    Target(
        "modality-files",
        lambda folder: [
            {"a.npy": _npy(), "boxes.json": json.dumps(_BOXES).encode(), "caption.json": b'["a", "b"]'},
            {"a.npy": _npy("<f2"), "boxes.json": json.dumps(_BOXES).encode(), "caption.json": b"a\nb"},
        ],
        _values,
        ("'descr': '|O'", "(2, 3)", "True", "'<i4'", "NUMPY"),
    ),
    Target("webdataset", _webdataset, _tars, _NAMES),
    Target("tar", _webdataset, _members, _NAMES),
    Target("tar-index", _tar_index, _kept_index, fixed=("0.tar",)),
    Target("aligned-tars", _aligned, _read_aligned, _NAMES),
    Target("csv-pairs", _csv, _read_pairs, (",", '"', '""', "\r\n", "image", "caption", "../a.png", "\x00")),
    Target("img2dataset", _img2dataset, _read_pairs),
    Target(
        "huggingface-pairs", _saved_set, _read_saved, fixed=("train/state.json", "train/dataset_info.json")
    ),  # datasets reads a folder without them in another way
    Target("loose-pairs", _loose_files, _loose, (",", '"', '""', "\r\n", "image", "caption", "../a.png")),
    Target("tfrecord", _records, _rows, repair=_sealed_records),
    Target("row-files", _row_files, _rows, ("\t", '"', "1-2", "1.1", "# a = b", "-DOCSTART-", "[1]")),
    Target("seqio-cache", _seqio, _read_seqio, repair=_sealed_records),
    Target("token-shards", _token_shards, _read_shards),
    Target("task-cache", _task_cache, _read_cache),
    Target("fonts", _fonts, _draw),
    Target("renderer", _renderers, _open_renderer),
    Target("rendered-rows", _rendered, _read_rendered),
]

"""Small data of every kind that pages of documentation take for granted, and small models of it.

Data for several pages is created once for all of them and copied."""

import functools
import gzip
import importlib.util
import json
import random
import shutil
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from support import SUPPORT, generated_text, glue_toys, pair_sets
from support.page_runner import run_here, within

TITLES = ("Town", "River", "Lake", "Mountain", "Village", "Bridge")


@functools.cache
def test_module(path: str) -> ModuleType:
    """A module of tests, for the files of other programs that it writes."""
    spec = importlib.util.spec_from_file_location(f"pages_{Path(path).stem}", SUPPORT.parent / path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def must(*words: object) -> None:
    ended = run_here([str(word) for word in words])
    assert ended.code == 0, f"{words}\n{ended.err}"


def texts(num: int = 60, seed: int = 0) -> list[str]:
    return generated_text.documents(num, seed)


def put(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def put_texts(folder: Path, num_files: int, num: int = 60, name: str = "part-{}.txt", seed: int = 0) -> None:
    """Plain text: sentences of a document on a line each, documents apart."""
    every = texts(num, seed)
    for number in range(num_files):
        put(folder / name.format(number), "\n\n".join(every[number::num_files]) + "\n")


def put_jsonl(path: Path, rows: list[dict]) -> None:
    content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    if path.suffix == ".gz":
        content = gzip.compress(content)
    elif path.suffix == ".zst":
        import zstandard

        content = zstandard.compress(content)
    put(path, content)


def put_documents(path: Path, num: int = 60, seed: int = 0) -> None:
    put_jsonl(path, [{"text": text.replace("\n", " ")} for text in texts(num, seed)])


@functools.cache
def stock() -> Path:
    """A folder with common data of many pages; each part is created by `_make_NAME` when it is first needed."""
    folder = Path(tempfile.mkdtemp(prefix="pages-"))
    import atexit

    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def part(name: str) -> Path:
    """The folder of a part of the stock."""
    name, _, below = name.partition("/")
    folder = stock() / name
    if not folder.exists():
        with within(stock()):
            globals()[f"_make_{name}"](folder)
    return folder / below


def copy(name: str, to: Path) -> None:
    shutil.copytree(part(name), to, dirs_exist_ok=True)


def _make_corpus(folder: Path) -> None:
    put_texts(stock() / "text", 2, 160)
    must(
        "corpus",
        "shards",
        *sorted((stock() / "text").glob("*.txt")),
        "--out",
        folder,
        "--num-shards",
        2,
        "--heldout",
        0.1,
    )


def _make_tokenizer(folder: Path) -> None:
    train = part("corpus") / "train" / "*.jsonl"
    must("corpus", "count-words", train, "--out", stock() / "words.tsv", "--workers", 1)
    must("tokenizer", "train", stock() / "words.tsv", "--vocab-size", 500, "--sentences-from", train, "--out", folder)


def _make_tokens(folder: Path) -> None:
    must("tokenizer", "encode", part("corpus"), "--tokenizer", part("tokenizer"), "--out", folder)


def _make_t5_tokenizer(folder: Path) -> None:
    part("tokenizer")
    must("tokenizer", "train", stock() / "words.tsv", "--layout", "t5", "--vocab-size", 500, "--out", folder)


def _make_t5_tokens(folder: Path) -> None:
    words = ("--tokenizer", part("t5_tokenizer"), "--splitter", "none", "--out", folder)
    must("tokenizer", "encode", part("corpus"), *words)


BERT = (
    "model.num_layers=1 model.hidden_size=32 model.num_heads=2 model.intermediate_size=64 data.max_seq_length=32 "
    "data.batch_size=8 precision.compute=float32 evaluate.num_examples=16"
)
T5 = (
    "model.hidden_size=16 model.num_heads=2 model.head_size=8 model.intermediate_size=16 "
    "model.num_encoder_layers=1 model.num_decoder_layers=1 precision.compute=float32"
)
T5_DATA = "data.batch_size=8 data.input_length=64 data.target_length=18"
PIXEL = (
    "model.hidden_size=16 model.num_layers=1 model.num_heads=2 model.intermediate_size=32 model.decoder_hidden_size=16 "
    "model.decoder_num_layers=1 model.decoder_num_heads=2 model.decoder_intermediate_size=32 model.max_patches=36 "
    "data.max_patches=36 data.min_text_patches=4 data.batch_size=4 precision.compute=float32"
)
FOURM = (
    "model.hidden_size=16 model.num_heads=2 model.num_encoder_layers=1 model.num_decoder_layers=1 "
    "model.intermediate_size=42 masking.num_input_tokens=24 masking.num_target_tokens=24 data.batch_size=4 "
    "data.num_workers=0 precision.compute=float32 evaluate.num_examples=4"
)
TOKENIZER = (
    "model.encoder.num_layers=1 model.encoder.hidden_size=16 model.encoder.num_heads=2 data.batch_size=4 "
    "data.num_workers=0 precision.compute=float32 evaluate.num_examples=4"
)
GLUE = "data.max_seq_length=32 data.batch_size=4 precision.compute=float32"
QUICK_TASK = "num_steps=2 log.every_steps=1 checkpoint.asynchronous=false"
QUICK = f"{QUICK_TASK} schedule.warmup_share=null schedule.num_warmup_steps=1"


def _make_bert(folder: Path) -> None:
    tokens = part("tokens")
    data = (f"data.train={tokens}/train", f"data.valid={tokens}/valid")
    must("train", "bert/mini", *data, *BERT.split(), *QUICK.split(), "--out", folder)


def _make_t5(folder: Path) -> None:
    tokens = part("t5_tokens")
    data = (f"data.train={tokens}/train", f"data.valid={tokens}/valid")
    must("train", "t5/mini", *data, *T5.split(), *T5_DATA.split(), *QUICK.split(), "--out", folder)


def _make_t5_base(folder: Path) -> None:
    tokens = part("t5_tokens")
    data = (f"data.train={tokens}/train", f"data.valid={tokens}/valid", "model.vocab_size=640")
    must("train", "t5/1.1-small", *data, *T5.split(), *T5_DATA.split(), *QUICK_TASK.split(), "--out", folder)


def _make_glue(folder: Path) -> None:
    glue_toys.write_glue(folder)


def _make_rooms(folder: Path) -> None:
    put_rooms(folder)


def captions() -> list[str]:
    """Return the captions of the rooms."""
    return [path.read_text("utf-8") for path in sorted(part("rooms").glob("train/caption/*.txt"))]


def _make_words(folder: Path) -> None:
    put(stock() / "captions.txt", "\n\n".join(captions()) + "\n")
    put(stock() / "classes.txt", "ball\nbox\ncone\n")
    must("corpus", "count-words", stock() / "captions.txt", "--out", stock() / "caption-words.tsv", "--workers", 1)
    words = ["--kind", "multimodal", "--lowercase", "--vocab-size", "4270", "--classes"]
    must("tokenizer", "train", stock() / "caption-words.tsv", *words, stock() / "classes.txt", "--out", folder)


def _make_fourm(folder: Path) -> None:
    rooms = part("rooms")
    sets = (f"data.train={rooms}/train", f"data.valid={rooms}/valid", f"data.tokenizer={part('words')}")
    must("train", "fourm/tiny", *sets, *FOURM.split(), *QUICK.split(), "--out", folder)


def _make_renderer(folder: Path) -> None:
    from pretrainkit.rendering import Renderer, RendererConfig, save_renderer

    put_font(stock() / "font.ttf")
    save_renderer(Renderer(RendererConfig(font_file=str(stock() / "font.ttf"))), folder)


def _make_rows(folder: Path) -> None:
    """Rendered rows as they are published: parquet files alone."""
    must("render", part("corpus") / "valid", "--renderer", part("renderer"), "--out", stock() / "rendered")
    folder.mkdir()
    for file in (stock() / "rendered").rglob("*.parquet"):
        shutil.copy(file, folder)


def put_parquet(path: Path, columns: dict) -> None:
    import pyarrow
    from pyarrow import parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pyarrow.table(columns), path)


def put_pairs(folder: Path, seed: int = 0) -> None:
    """Image-text pairs in ZeroVL's layout."""
    for number, (split, num) in enumerate((("train", 64), ("valid", 8))):
        pair_sets.write_csv_set(folder, split, pair_sets.rows(num, first=1000 * seed + 500 * number))


def put_t5x(folder: Path) -> None:
    """A checkpoint of T5X and one of Mesh TensorFlow, with the weights of the small T5."""
    import numpy as np

    import pretrainkit
    from pretrainkit.recipes.t5.original import names
    from support import t5_foreign_files as files

    pretrainkit.export(part("t5"), "t5x", folder / "tree.npz")
    with np.load(folder / "tree.npz") as tree:
        arrays = {name.removeprefix("target/"): tree[name] for name in tree.files}
    files.write_t5x(folder / "checkpoint_1000000", arrays)
    (folder / "t5-small").mkdir()
    config = pretrainkit.load_config(part("t5") / "config.yaml").model
    theirs = {files.mesh_names(config)[ours]: arrays[name] for ours, name in names(config).items()}
    files.write_bundle(folder / "t5-small" / "model.ckpt-1000000", theirs)


def killed(run: str) -> Callable[[Path], None]:
    """Turn a run into one that was killed before its last checkpoint."""

    def happens(folder: Path) -> None:
        newest = max((folder / run / "checkpoints").glob("step-*"))
        shutil.rmtree(newest)

    return happens


def put_font(path: Path) -> None:
    from PIL import ImageFont

    put(path, ImageFont.load_default(12).font_bytes)


def put_rooms(folder: Path, num_train: int = 6, num_valid: int = 4, seed: int = 0) -> None:
    from pretrainkit.demo.rooms import write_rooms

    for number, (split, num) in enumerate((("train", num_train), ("valid", num_valid))):
        write_rooms(folder / split, num, 2 * seed + number)


def put_samples(folder: Path, views: dict[str, str], num: int = 6, seed: int = 0) -> None:
    """Generated rooms in folders of parts, as large sets have them: views of ours to their names there."""
    place = stock() / f"rooms-{seed}"
    if not place.exists():
        put_rooms(place, num, num, seed)
    for split in ("train", "valid"):
        for view, name in views.items():
            for file in (place / split / view).iterdir():
                content, suffix = file.read_bytes(), ".jpg" if view == "rgb" else file.suffix
                if view == "caption":
                    content, suffix = json.dumps([content.decode()]).encode(), ".json"
                put(folder / split / name / "0000" / f"{int(file.stem):06d}{suffix}", content)


def put_classes(folder: Path, seed: int = 0) -> None:
    """FOLDER/train/CLASS/IMAGE and FOLDER/val/CLASS/IMAGE."""
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(seed)
    for split, num in (("train", 6), ("val", 3), ("valid", 3)):
        for number, name in enumerate(("rose", "tulip")):
            for image in range(num):
                path = folder / split / name / f"{image}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                pixels = rng.integers(0, 120, (40, 48, 3)) + 120 * number
                Image.fromarray(pixels.astype(np.uint8)).save(path)


def put_conllu(path: Path, num: int = 12, seed: int = 0) -> None:
    rng = random.Random(seed)
    kinds = {"the": "DET", "cat": "NOUN", "dog": "NOUN", "sees": "VERB", "likes": "VERB"}
    lines = []
    for _ in range(num):
        sentence = ["the", rng.choice(["cat", "dog"]), rng.choice(["sees", "likes"]), "the", rng.choice(["cat", "dog"])]
        heads, relations = (2, 3, 0, 5, 3), ("det", "nsubj", "root", "det", "obj")
        lines.append(f"# text = {' '.join(sentence)}")
        for number, (word, head, relation) in enumerate(zip(sentence, heads, relations, strict=True), start=1):
            lines.append(f"{number}\t{word}\t{word}\t{kinds[word]}\t_\t_\t{head}\t{relation}\t_\t_")
        lines.append("")
    put(path, "\n".join(lines) + "\n")


def put_squad(path: Path) -> None:
    context = "The dog lives in a house. The cat lives in a wood."
    questions = [
        {"id": "a", "question": "Who lives in a house?", "answers": [{"text": "The dog", "answer_start": 0}]},
        {"id": "b", "question": "Who lives in a wood?", "answers": [{"text": "The cat", "answer_start": 26}]},
        {"id": "c", "question": "Who lives in a boat?", "is_impossible": True, "answers": []},
    ]
    for question in questions:
        question.setdefault("is_impossible", False)
    data = [{"title": "Animals", "paragraphs": [{"context": context, "qas": questions}] * 2}]
    put(path, json.dumps({"version": "v2.0", "data": data}))


def put_dump(path: Path, num: int = 30) -> None:
    """A dump of Wikipedia as its makers write it."""
    import bz2

    rng = random.Random(0)
    pages = []
    for number in range(num):
        words = " ".join(texts(num, seed=3)[number].split())
        first = f"'''{rng.choice(TITLES)} {number}''' is a place of [[people]] and the [[houses|house]] of {words}"
        body = "\n\n".join([first, *(" ".join(text.split()) for text in texts(4, seed=100 + number))])
        pages.append(
            f"  <page>\n    <title>{rng.choice(TITLES)} {number}</title>\n    <ns>0</ns>\n    <id>{number + 1}</id>\n"
            f"    <revision>\n      <id>{number + 100}</id>\n      <model>wikitext</model>\n"
            f"      <format>text/x-wiki</format>\n"
            f'      <text bytes="{len(body)}" xml:space="preserve">{body}</text>\n'
            "    </revision>\n  </page>\n"
        )
    head = (
        '<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" version="0.11" xml:lang="en">\n  <siteinfo>\n'
        "    <sitename>Wikipedia</sitename>\n    <dbname>enwiki</dbname>\n    <namespaces>\n"
        '      <namespace key="0" case="first-letter" />\n      <namespace key="14" case="first-letter">Category'
        "</namespace>\n    </namespaces>\n  </siteinfo>\n"
    )
    streams = [head, *("".join(pages[at : at + 10]) for at in range(0, num, 10)), "</mediawiki>\n"]
    put(path, b"".join(bz2.compress(stream.encode()) for stream in streams))


def put_tar(pattern: Path, folder: Path) -> None:
    """The images of a folder as one archive."""
    pattern.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(pattern, "w") as archive:
        for file in sorted(folder.rglob("*.*")):
            archive.add(file, arcname=file.name)

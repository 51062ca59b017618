"""`python inputs.py FOLDER NAME`: make one of the inputs that stages of a campaign read, in the folder FOLDER/NAME."""

import bz2
import json
import sys
from pathlib import Path

from stages import BERT

from support.command_line import succeed
from support.generated_text import documents


def make_text(root: Path, out: Path) -> None:
    texts = documents(160)
    out.mkdir()
    for number in range(4):
        text = "\n\n".join(texts[number::4]) + "\n"
        (out / f"part-{number}.txt").write_text(text, encoding="utf-8")
    rows = [json.dumps({"text": text}) + "\n" for text in (*texts, *texts[:9])]
    for number in range(3):
        (out / f"part-{number}.jsonl").write_text("".join(rows[number::3]), encoding="utf-8")


def make_wiki(root: Path, out: Path) -> None:
    from support.wiki_dumps import HEAD, TAIL, page

    out.mkdir()
    texts = documents(60)
    for number in range(2):
        pages = "".join(page(f"T{n}", f"'''T{n}''' {texts[n]}", number=n + 1) for n in range(number, 60, 2))
        (out / f"dump-{number}.xml.bz2").write_bytes(bz2.compress((HEAD + pages + TAIL).encode()))


def make_corpus(root: Path, out: Path) -> None:
    texts = sorted((root / "text").glob("*.txt"))
    succeed("corpus", "shards", *texts, "--out", out, "--num-shards", 3, "--heldout", 0.1, "--workers", 1)


def make_packed(root: Path, out: Path) -> None:
    out.mkdir()
    succeed("corpus", "pack", root / "corpus", "--out", out / "corpus.tar")


def make_words(root: Path, out: Path) -> None:
    out.mkdir()
    succeed("corpus", "count-words", root / "corpus/train/*.jsonl", "--out", out / "words.tsv", "--workers", 1)


def make_tokenizer(root: Path, out: Path) -> None:
    sentences = ("--sentences-from", root / "corpus/train/*.jsonl")
    succeed("tokenizer", "train", root / "words/words.tsv", "--vocab-size", 700, *sentences, "--out", out)


def make_unigram(root: Path, out: Path) -> None:
    words = ("--layout", "t5", "--vocab-size", 600)
    succeed("tokenizer", "train", root / "words/words.tsv", *words, "--out", out)


def make_tokens(root: Path, out: Path) -> None:
    words = ("--tokenizer", root / "tokenizer", "--workers", 1)
    succeed("tokenizer", "encode", root / "corpus", *words, "--out", out)


def make_t5_tokens(root: Path, out: Path) -> None:
    words = ("--tokenizer", root / "unigram", "--splitter", "none", "--workers", 1)
    succeed("tokenizer", "encode", root / "corpus", *words, "--out", out)


def make_font(root: Path, out: Path) -> None:
    from PIL import ImageFont

    out.mkdir()
    font: object = ImageFont.load_default(12)
    (out / "latin.ttf").write_bytes(font.font_bytes)  # type: ignore[attr-defined]


def make_tasks(root: Path, out: Path) -> None:
    from support.t5_runs import write_tasks

    out.mkdir()
    write_tasks(out)


def make_pairs(root: Path, out: Path) -> None:
    from support.pair_sets import make_tokenizer, rows, write_csv_set

    write_csv_set(out / "set", "train", rows(24, 2))
    write_csv_set(out / "set", "valid", rows(6, 2, first=100))
    make_tokenizer(out / "tokenizer")


def make_scenes(root: Path, out: Path) -> None:
    from support.fourm_data import write_set, write_tokenizer

    write_set(out / "train", 8, 0)
    write_set(out / "valid", 4, 1)
    write_tokenizer(out / "words")


def make_images(root: Path, out: Path) -> None:
    from support.tokenizer_data import write_images

    write_images(out / "train", 16, 0)
    write_images(out / "valid", 6, 1)


def make_glue(root: Path, out: Path) -> None:
    from support.glue_toys import write_encoder, write_glue

    write_encoder(out / "bert")
    write_glue(out / "glue")


def make_rows(root: Path, out: Path) -> None:
    out.mkdir()
    rows = [json.dumps({"text": line}) + "\n" for text in documents(12) for line in text.splitlines()][:60]
    (out / "rows.jsonl").write_text("".join(rows), encoding="utf-8")


def make_image_run(root: Path, out: Path) -> None:
    from stages import IMAGE_TOKENIZER

    data = (f"data.train={root}/images/train", f"data.valid={root}/images/valid")
    succeed("train", *IMAGE_TOKENIZER, *data, "--out", out)


def make_glue_run(root: Path, out: Path) -> None:
    from stages import GLUE

    succeed("finetune", "rte", "--from", root / "glue/bert", "--data", f"glue={root}/glue/glue", *GLUE, "--out", out)


def make_t5_run(root: Path, out: Path) -> None:
    from stages import T5

    succeed("train", *T5, f"data.train={root}/t5_tokens/train", f"data.valid={root}/t5_tokens/valid", "--out", out)


def make_bert_run(root: Path, out: Path) -> None:
    data = (f"data.train={root}/tokens/train", f"data.valid={root}/tokens/valid")
    succeed("train", *BERT, *data, "--out", out)


def make_exported(root: Path, out: Path) -> None:
    succeed("export", root / "bert_run", "--out", out)


if __name__ == "__main__":
    folder, name = Path(sys.argv[1]), sys.argv[2]
    globals()[f"make_{name}"](folder, folder / name)

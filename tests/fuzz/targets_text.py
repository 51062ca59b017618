"""Configs and texts."""

import bz2
import gzip
import io
import json
from contextlib import suppress
from pathlib import Path

import zstandard
from mutate import Files
from target import Target, files_of

from pretrainkit.config.yaml import dump_yaml
from pretrainkit.corpus.books import BookCleaning
from pretrainkit.corpus.pack import pack, unpack
from pretrainkit.corpus.readers import read_documents
from pretrainkit.corpus.wikipedia.clean import Cleaner
from pretrainkit.corpus.wikipedia.compat import wikiextractor_text
from pretrainkit.corpus.wikipedia.options import Extraction
from pretrainkit.corpus.wikipedia.site import parse_site
from pretrainkit.errors import DataError
from pretrainkit.files.skips import Skips
from pretrainkit.files.sources import Format, ReadOptions, find_sources
from pretrainkit.files.spans import cut_large
from pretrainkit.running.configs import load_config, resolve_config

PRESETS = ("bert/mini", "t5/mini", "clip/tiny", "pixel/tiny", "fourm/tiny", "glue/cola", "image_tokenizer/tiny")


def _configs(folder: Path) -> list[Files]:
    configs = [load_config(preset).model_dump(mode="json") for preset in PRESETS]
    seeds: list[Files] = [{"config.yaml": dump_yaml(config).encode()} for config in configs]
    seeds.append({"config.yaml": b"extends: bert/mini\ndata: {batch_size: 8}\noptimizer:\n  peak_lr: 1e-4\n"})
    seeds.append({"config.yaml": b"extends: [base.yaml, t5/mini]\nseed: 3\n", "base.yaml": b"seed: 1\nnum_steps: 9\n"})
    return seeds


def _config(folder: Path) -> None:
    resolve_config(folder / "config.yaml").notes()


def _overrides(folder: Path) -> None:
    lines = (folder / "words.txt").read_text(errors="surrogateescape").split("\n")
    resolve_config(lines[0] or "bert/mini", lines[1:]).notes()


_OVERRIDES = [
    "bert/mini\ndata.batch_size=64\noptimizer.peak_lr=1e-4\nmodel.num_layers=2",
    "t5/mini\nschedule.name=factors\ndata.train=[a, b]\ndata.train={path: a, weight: 2}",
    "fourm/tiny\nmodel.modalities=[rgb@64]\nmasking.mixture=[{a: 1}]\nema_decay=0.9",
    "clip/tiny\ndata.train=[{path: a, caption_key: {a: 1}}]\nlog.to=[wandb]",
]
_YAML = ("- ", ": ", "? ", "&a ", "*a", "<<: *a", "!!python/object/apply:os.system [id]", "!!binary ", "|", ">", "---")
_YAML += ("!!set {a}", "!!timestamp 2001-01-01", "0o17", "1_000", "null", "~", "extends: ", "recipe: ", "{", "}", "\t")
_WIKI = (
    "{{ }} {{{ }}} [[ ]] [ ] {| |} |- | || ! !! = == === ' '' <ref> </ref> <ref/> <nowiki> </nowiki> <!-- -->"
    " <br> <math> </math> <sup> </sup> <su <a <div </div> <table> * # : ; & &nbsp; &amp; &#x; &#0; http://a // ( ) , ."
    " 2 __TOC__ convert cvt km ft in C F -1 1/2 to lang de val formatnum: #if: #ifeq: #switch: #expr: 1+1 lc: nowrap as"
    " of birth date File: Category: fr: :Category: w: frac chem unité name=x adj=mid disp=or sigfig=2 a b é 東"
    " {{convert| ''' ''''' [[File: \U000f0020 \U000f0101 \U000f0100"
).split()
_MARKUP = """{{Infobox town|name=A|area={{convert|2|km|ft|sigfig=2|adj=mid|disp=or}}}}
'''A''' is a [[town (b)|town]] in {{lang|de|'''B'''}}.<ref name="x">{{cite|a=1}}</ref> [[File:a.jpg|thumb|A [[b]]]]
== H ==
* one {{val|1.5|e=3|u=km}} {{frac|1|2}} {{#if: a | b | c}} {{#expr: 1+1/2*(3-4)}} {{#switch: a | a=1 | #default=2}}
{| class="a"
|-
! h || i
| c || d
|}
<math>x^2</math> <!-- no --> http://a.b [http://c d] &nbsp; {{nowrap|a b}} {{birth date|1999|2|3}}
[[Category:Towns]] [[fr:A]]
"""
_SITE = parse_site('<mediawiki xml:lang="en"><siteinfo><namespace key="6">File</namespace></siteinfo>')
_CLEANERS = [Cleaner(_SITE, Extraction()), Cleaner(_SITE, Extraction(sections=True, lists=True, tables=True))]


def _clean(folder: Path) -> None:
    markup = (folder / "page.wiki").read_text(errors="replace")
    for cleaner in _CLEANERS:
        lines = cleaner.clean(markup, "Title")
        assert lines == "" or all(line.strip() for line in lines.split("\n")), lines
    wikiextractor_text(markup, "A: title")


def _page(number: int, text: str) -> bytes:
    return (
        f"<page><title>P{number}</title><ns>0</ns><id>{number}</id><revision><id>1</id><text>{text}</text></revision>"
        "</page>\n"
    ).encode()


def _dumps(folder: Path) -> list[Files]:
    head = b'<mediawiki xml:lang="en"><siteinfo><base>http://e.org/a</base><namespaces><namespace key="6">File'
    head += b"</namespace></namespaces></siteinfo>\n"
    pages = [_page(number, "some &amp; [[text]] &#65; " * number) for number in range(1, 5)]
    pages.append(b'<page><title>R</title><ns>0</ns><id>9</id><redirect title="P1" /></page>\n')
    whole = head + b"".join(pages) + b"</mediawiki>\n"
    streams = bz2.compress(head) + b"".join(map(bz2.compress, pages))
    return [
        {"dump.xml": whole},
        {"dump.xml.gz": gzip.compress(whole, mtime=0)},
        {"dump.xml.bz2": bz2.compress(whole)},
        {"dump.xml.bz2": streams},
    ]


def _documents(folder: Path, format: Format = "auto", options: ReadOptions | None = None) -> None:
    """Read documents as `corpus shards` does, with or without a budget for bad records, in one piece or in spans."""
    sources = find_sources([folder], format, options=options)
    size = max(source.num_bytes for source in sources)
    budget, in_spans = 1000 * (size % 2), size % 3 == 0
    if in_spans:
        sources = [span for source in sources for span in cut_large(source, max(1, size // 3))]
    for document in read_documents(sources, Skips(budget)):
        document.text.encode()
        json.dumps(document.meta)


def _bert_text(folder: Path) -> None:
    if (folder / "b.txt").is_file():
        _documents(folder, "book", BookCleaning(strip_licence=True, drop_page_numbers=True, join_hyphens=True))
    else:
        _documents(folder, "wiki" if (folder / "a.wiki").is_file() else "auto")


_LINES = b'{"text": "a b", "meta": {"id": 1}}\n{"text": "\\u00e9"}\n[1]\n{"text": "c"}{"text": "d"}\n{"text":\n"e"}\n'


def _jsonl(folder: Path) -> list[Files]:
    return [
        {"a.jsonl": _LINES},
        {"a.jsonl.gz": gzip.compress(_LINES, mtime=0)},
        {"a.jsonl.gz": gzip.compress(_LINES[:40], mtime=0) + gzip.compress(_LINES[40:], mtime=0)},
        {"a.jsonl.zst": zstandard.compress(_LINES)},
        {"a.jsonl.bz2": bz2.compress(_LINES)},
        {"a.ndjson": _LINES, "b.json": b'{"text": "z"}'},
    ]


def _tables(folder: Path) -> list[Files]:
    import pyarrow
    from pyarrow import ipc, parquet

    table = pyarrow.table({"text": ["a", "b c", None], "meta": [{"id": 1}, {"id": 2}, None], "n": [1, 2, 3]})
    seeds: list[Files] = []
    for options in ({}, {"compression": "gzip", "use_dictionary": False}, {"data_page_version": "2.0"}):
        file = io.BytesIO()
        parquet.write_table(table, file, **options)
        seeds.append({"a.parquet": file.getvalue()})
    file = io.BytesIO()
    with ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)
    return [*seeds, {"a.arrow": file.getvalue()}]


def _counts(folder: Path) -> None:
    from pretrainkit.corpus.words import count_words

    count_words(find_sources([folder / "words.tsv"]), folder / "out.tsv", workers=1)


def _archive(folder: Path) -> list[Files]:
    (folder / "in").mkdir()
    for number in range(3):
        (folder / f"in/words-{number}.txt").write_text("some words\n" * number)
    pack([folder / "in"], folder / "a.tar")
    return [{"a.tar": (folder / "a.tar").read_bytes()}]


def _unpack(folder: Path) -> None:
    (folder / "beside").mkdir()
    out = folder / "out"
    try:
        unpack(folder / "a.tar", out)
    finally:
        assert {path.name for path in folder.iterdir()} <= {"a.tar", "beside", "out"}, "something was written beside"
        assert not any((folder / "beside").iterdir())


def _corpus(folder: Path) -> list[Files]:
    from pretrainkit.corpus.build_settings import BuildSettings
    from pretrainkit.corpus.shards import build_corpus

    (folder / "a.txt").write_text("One line.\nTwo lines.\n\nThree lines.\n" * 3)
    build_corpus(find_sources([folder / "a.txt"]), folder / "out", BuildSettings(num_shards=2), workers=1)
    return [files_of(folder / "out" / "train")]


def _shards(folder: Path) -> None:
    from pretrainkit.files.manifest import verify

    with suppress(DataError):
        verify(folder)
    _documents(folder)


TARGETS = [
    Target("config", _configs, _config, _YAML),
    Target("overrides", lambda folder: [{"words.txt": words.encode()} for words in _OVERRIDES], _overrides, _YAML),
    Target("wiki-markup", lambda folder: [{"page.wiki": _MARKUP.encode()}, {"page.wiki": b"a"}], _clean, _WIKI),
    Target("wiki-xml", _dumps, _documents, ("<page>", "</page>", "<text>", "</text>", "<!--", "<![CDATA[", "&#", "/>")),
    Target(
        "bert-text",
        lambda folder: [
            {"a.txt": b"One.\nTwo.\n\nThree.\n", "c.txt": b"a\xc2\xa0\n \n\xe3\x80\x80\nb"},
            {"b.txt": b"*** START OF THE PROJECT GUTENBERG EBOOK A ***\n\nCHAPTER I\n\nsome hyphen-\nated\n\n- 2 -\n"},
            {"a.wiki": b'<doc id="1" url="a" title="T">\nT\n\ntext\n</doc>\n<doc id="2">\nU\n\nv\n</doc>\n'},
        ],
        _bert_text,
        ("<doc ", "</doc>", "\n\n", "*** END OF THE PROJECT GUTENBERG EBOOK", "page ", "[12]", "xiv"),
    ),
    Target("jsonl", _jsonl, _documents, ('{"text": ', '"meta"', "\\ud800", "}{", "[[[[", '"')),
    Target("parquet", _tables, _documents),
    Target(
        "word-counts",
        lambda folder: [{"words.tsv": b"the\t90\nof\t3\na\t1\n"}],
        _counts,
        ("\t", "99999999999999999999"),
    ),
    Target("archive", _archive, _unpack, ("in/words-1.txt", "pack.json", "in", "../beside/x", "beside/x")),
    Target("corpus-shards", _corpus, _shards),
]

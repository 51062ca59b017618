"""Labelled texts for `pretrainkit data check`: the tokens that the encoder reads, and the label."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from pretrainkit.data.source import Records
from pretrainkit.recipes.capabilities import StoredRecord
from pretrainkit.recipes.glue.source import NO_TEXTS, TextSource
from pretrainkit.recipes.text_reader import ReadPassages
from pretrainkit.tokenizers.folder import read_tokenizer_json
from pretrainkit.training.watch import Sample

_BETWEEN = {"texts": "\n", "words": " "}
"""Separators of the fields of rows with several texts."""


def show_examples(source: TextSource, records: Records, tokenizer_folder: Path) -> list[Sample]:
    """Return the row of each example and the tokens that the encoder reads; for an encoder of rendered text, only the
    number of slots."""
    batch, examples = source.build(records), list[Sample]()
    ends = batch["cu_seqlens"].tolist()
    tokenizer = _tokenizer(tokenizer_folder)
    for row, begin, end in zip(_rows(source, records), ends, ends[1:], strict=False):
        tokens = f"{end - begin} slots"
        if "input_ids" in batch:
            ids = batch["input_ids"][begin:end].tolist()
            pieces = ids if tokenizer is None else [tokenizer.id_to_token(index) for index in ids]
            tokens = f"[{len(ids)}] {' '.join(map(str, pieces))}"
        examples.append({**_texts(row), "tokens": tokens, "label": source.examples.truth_of(row)})
    return examples


def stored_records(source: TextSource, records: Records) -> list[StoredRecord]:
    """Return the rows without their labels."""
    stored = []
    for place, row in zip(records.source.tolist(), _rows(source, records), strict=True):
        text = "\n".join(_texts(row).values())
        file = f" of file {place}" if len(source.sizes) > 1 else ""
        stored.append(StoredRecord(f"row {row.index}{file}", text, text.encode()))
    return stored


def _texts(row: Any) -> dict[str, str]:
    fields = {name: value for name, value in asdict(row).items() if name not in NO_TEXTS}
    return {name: value if isinstance(value, str) else _BETWEEN[name].join(value) for name, value in fields.items()}


def _rows(source: TextSource, records: Records) -> list[Any]:
    index, read = source.indices(records), source.examples.read
    rows = read.example_of()[index] if isinstance(read, ReadPassages) else index
    return [source.examples.rows[row] for row in rows.tolist()]


def _tokenizer(folder: Path) -> Any:
    import tokenizers

    path = folder / "tokenizer.json"
    return tokenizers.Tokenizer.from_buffer(read_tokenizer_json(path)) if path.is_file() else None

"""Mutations of inputs. An input is a folder: names of files, and their bytes.

Files are changed at the level that their format allows: values of JSON, lines and words of text, fields and members of
tar archives, columns of tables, the JSON header of safetensors, the content of compressed files, and bytes of anything.
"""

import bz2
import gzip
import io
import json
import math
import random
import struct
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import zstandard

Files = dict[str, bytes]
Rng = random.Random
Packing = tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]

_LONGEST = 1 << 16
"""Longest content that is put together from several inputs."""
_PACKINGS: dict[str, Packing] = {
    ".gz": (gzip.decompress, lambda data: gzip.compress(data, 1, mtime=0)),
    ".bz2": (bz2.decompress, bz2.compress),
    ".zst": (lambda data: zstandard.decompress(data, max_output_size=1 << 20), zstandard.compress),
}
_VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 2, 255, 65536, 2**31, -(2**31) - 1, 2**32, 2**53 + 1, 2**63, -(2**63) - 1, 10**30,
    1.5, -0.0, 1e-300, 1e308, math.nan, math.inf, -math.inf, "", " ", "a", "1", "é", "\U0001f600", "\0", "\ud800",
    "../../../out", "/out", "..", ".", "a/b", "a\nb", "$(id)", "; id", "{}", "%s", "${oc.env:HOME}", "os:system",
    "a" * 300, "x" * 70_000, [], {}, [None], [[]], {"": 0}, [1, "a"], {"a": {"b": 1}}, [0] * 1000,
]  # fmt: skip
_NUMBERS = [0, 1, 2, 7, 8, 127, 128, 255, 256, 511, 512, 32767, 32768, 65535, 65536]
_NUMBERS += [2**24, 2**30, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1]
_WORDS = ["-1", "0", "1e999", "NaN", "99999999999999999999", "0x1F", "../", "/", "..", "\0", "\n", "\r", "\r\n", "\t"]
_WORDS += ["\u2028", "\u00a0", "\ufeff", "\ud800", "'", '"', "\\", "{", "}", "[", "]", "(", ")", ",", ":", "=", "#"]
_WORDS += ["&", "*", "!", "|", ">", "%", "@", "`", "<", "~", "null", "true", "é", "\U0001f600", "$(id)", "; id", "- "]
_CELLS: list[tuple[Any, pa.DataType | None]] = [
    (None, pa.null()), (True, None), (-1, pa.int8()), (2**64 - 1, pa.uint64()), (math.nan, pa.float32()), (1.5, None),
    (b"\xff", None), (b"\xff", pa.binary(1)), ("a", pa.large_string()), ("a", pa.dictionary(pa.int8(), pa.string())),
    (Decimal("1.20"), None), (date(2026, 1, 2), None), (datetime(1, 1, 1), pa.timestamp("us")),
    (datetime(2026, 1, 2, tzinfo=UTC), None), (timedelta(1), None), ([], None), (["a", None], None),
    (["a"], pa.large_list(pa.string())), ([[1, 2]], None), ({"a": None}, None),
    ({"a": date(2026, 1, 2), "b": b"x"}, None), ([("a", 1)], pa.map_(pa.string(), pa.int64())),
    ({"bytes": None, "path": "a"}, None),
]  # fmt: skip
_TAR_KINDS = b"0\x001234567SLKgxXD"


def mutated(files: Files, rng: Rng, pool: Sequence[Files], tokens: Sequence[str], fixed: frozenset[str]) -> Files:
    """Return a copy of `files` with one to several changes. `pool` has other inputs to copy parts from, `tokens` words
    of the format; files named `fixed` stay as they are."""
    changed = dict(files)
    for _ in range(1 + min(int(rng.expovariate(0.7)), 12)):
        names = [name for name in changed if name not in fixed]
        if not names:
            return changed
        name = rng.choice(names)
        draw = rng.random()
        if draw < 0.01 and len(changed) > 1:
            del changed[name]
        elif draw < 0.02:
            changed[name] = b""
        elif draw < 0.03:
            changed[name] = changed[rng.choice(names)]
        elif draw < 0.08 and (other := rng.choice(pool).get(name)):
            changed[name] = _spliced(changed[name], other, rng)
        else:
            changed[name] = _changed(name, changed[name], rng, tokens)
    return changed


def _changed(name: str, content: bytes, rng: Rng, tokens: Sequence[str]) -> bytes:
    """Return other content of a file."""
    stem, _, suffix = name.rpartition(".")
    packing = _PACKINGS.get(f".{suffix}")
    try:
        if packing and rng.random() < 0.7:
            return packing[1](_changed(stem, packing[0](content), rng, tokens))
        if suffix == "tar" and rng.random() < 0.8:
            return _tar(content, rng, tokens)
        if suffix in ("parquet", "arrow") and rng.random() < 0.6:
            return _table(content, suffix, rng)
        if suffix == "safetensors" and rng.random() < 0.7:
            size = struct.unpack("<Q", content[:8])[0]
            header = json.dumps(tree(json.loads(content[8 : 8 + size]), rng)).encode()
            return struct.pack("<Q", len(header)) + header + content[8 + size :]
        if suffix in ("json", "jsonl", "ndjson", "model") and rng.random() < 0.7:
            lines = content.split(b"\n") if suffix in ("jsonl", "ndjson") else [content]
            at = rng.randrange(len(lines))
            lines[at] = json.dumps(tree(json.loads(lines[at]), rng)).encode()
            return b"\n".join(lines)
    except Exception:  # libraries raise errors of any kind for content that is already damaged: change its bytes
        pass
    if rng.random() < 0.6:
        try:
            return text(content.decode(), rng, tokens).encode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            pass
    return raw(content, rng)


def tree(value: Any, rng: Rng) -> Any:
    """Return a copy of a JSON value in which one or a few nodes differ."""
    places: list[tuple[Any, Any]] = []
    holder = [json.loads(json.dumps(value))]

    def walk(parent: Any, key: Any) -> None:
        places.append((parent, key))
        node = parent[key]
        for child in list(node) if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ():
            walk(node, child)

    walk(holder, 0)
    parent, key = rng.choice(places)
    node = parent[key]
    draw = rng.random()
    if draw < 0.5:
        parent[key] = rng.choice(_VALUES)
    elif draw < 0.6 and isinstance(node, int | float):
        parent[key] = rng.choice([-node, node + 1, node - 1, node * 2, node * 1e6, str(node)])
    elif draw < 0.7:
        other_parent, other_key = rng.choice(places)  # may be inside the node: copied
        parent[key] = json.loads(json.dumps(other_parent[other_key]))
    elif draw < 0.8 and parent is not holder:
        del parent[key]
    elif draw < 0.9 and isinstance(parent, dict):
        parent[str(rng.choice(["", "a", "name", f"{key}x", "../a", "x" * 300]))] = node
    elif draw < 0.9 and isinstance(parent, list):
        parent.append(node)
    elif draw < 0.92:
        for _ in range(rng.choice([10, 1500])):
            parent[key] = [parent[key]]
        return _nested(holder[0])
    else:
        parent[key] = rng.choice([[node], {"a": node}, [node, node]])
    return holder[0]


def _nested(value: Any) -> Any:
    """Return the value, or a shallower one if this Python cannot write it."""
    try:
        json.dumps(value)
    except RecursionError:
        return [[[[]]]]
    return value


def text(content: str, rng: Rng, tokens: Sequence[str]) -> str:
    """Return a text in which words or lines are put in, taken out, repeated or moved."""
    words = rng.choice([_WORDS, tokens or _WORDS])
    at = rng.randrange(len(content) + 1)
    end = min(len(content), at + int(rng.expovariate(0.1)))
    match rng.randrange(8):
        case 0 | 1:
            return content[:at] + rng.choice(words) + content[at:]
        case 2:
            return content[:at] + rng.choice(words) + content[end:]
        case 3:
            return content[:at] + content[end:]
        case 4:
            times = rng.choice([2, 3, 10, 200])
            return (content[:at] + content[at:end] * times + content[end:])[: max(len(content), _LONGEST)]
        case 5:
            lines = content.split("\n")
            lines.insert(rng.randrange(len(lines) + 1), lines.pop(rng.randrange(len(lines))))
            return "\n".join(lines)
        case 6:
            lines = content.split("\n")
            line = rng.randrange(len(lines))
            lines[line] = rng.choice(words).join(lines[line].split(" ")) if rng.random() < 0.5 else " " + lines[line]
            return "\n".join(lines)
        case _:
            here = rng.randrange(len(content) + 1)
            return content[:at] + content[here : here + end - at + 1] + content[at:]


def raw(content: bytes, rng: Rng) -> bytes:
    """Return bytes of which some are changed, put in, or taken out."""
    data = bytearray(content)
    at = rng.randrange(len(data) + 1)
    end = min(len(data), at + 1 + int(rng.expovariate(0.1)))
    match rng.randrange(8):
        case 0 if data:
            data[min(at, len(data) - 1)] ^= 1 << rng.randrange(8)
        case 1:
            data[at:end] = rng.randbytes(end - at)
        case 2:
            del data[at:end]
        case 3:
            data[at:at] = rng.randbytes(1 + int(rng.expovariate(0.2)))
        case 4:
            width = rng.choice([1, 2, 4, 8])
            number = rng.choice(_NUMBERS) & ((1 << 8 * width) - 1)
            data[at : at + width] = number.to_bytes(width, rng.choice(("little", "big")))
        case 5:
            del data[at:]
        case 6:
            data[at:at] = data[at:end] * rng.choice([1, 2, 20])
        case _:
            here = rng.randrange(len(data) + 1)
            data[at:end] = data[here : here + end - at]
    return bytes(data)


def _spliced(content: bytes, other: bytes, rng: Rng) -> bytes:
    return content[: rng.randrange(len(content) + 1)][:_LONGEST] + other[rng.randrange(len(other)) :][:_LONGEST]


def _tar(content: bytes, rng: Rng, tokens: Sequence[str]) -> bytes:
    """Return an archive in which a field of a header, with its checksum, or a member's content differs."""
    headers, at = [], 0
    while at + 512 <= len(content) and content[at]:
        headers.append(at)
        at += 512 + -(-int(content[at + 124 : at + 135] or b"0", 8) // 512) * 512
    if not headers:
        return raw(content, rng)
    at = rng.choice(headers)
    header = bytearray(content[at : at + 512])
    match rng.randrange(6):
        case 0:
            name = rng.choice([*tokens, "../../../out", "/out", "a/../../out", "a.jpg", "é" * 20, "\\..\\out", ""])
            header[:100] = name.encode("utf-8", "replace")[:99].ljust(100, b"\0")
        case 1:
            header[124:136] = b"%011o\0" % rng.choice([0, 1, 511, 512, 513, 8**10, 8**11 - 1])
        case 2:
            header[156] = rng.choice(_TAR_KINDS)
        case 3:
            header[157:257] = rng.choice([b"../../../out", b"/out", b"a.jpg"]).ljust(100, b"\0")
            header[156] = rng.choice(b"12")
        case 4:
            header[rng.randrange(512)] = rng.randrange(256)
        case _:
            size = int(content[at + 124 : at + 135] or b"0", 8)
            name = header[:100].rstrip(b"\0").decode("utf-8", "replace")
            body = _changed(name, content[at + 512 : at + 512 + size], rng, tokens)
            header[124:136] = b"%011o\0" % len(body)
            rest = content[at + 512 + -(-size // 512) * 512 :]
            padded = body.ljust(-(-len(body) // 512) * 512, b"\0")
            return content[:at] + _sealed(header) + padded + rest
    return content[:at] + _sealed(header) + content[at + 512 :]


def _table(content: bytes, suffix: str, rng: Rng) -> bytes:
    """Return a table in which a column has another name, type or values, or is absent."""
    file, out = io.BytesIO(content), io.BytesIO()
    table = pa.parquet.read_table(file) if suffix == "parquet" else pa.ipc.open_stream(file).read_all()
    table.validate(full=True)
    at = rng.randrange(table.num_columns)
    match rng.randrange(6):
        case 0:
            table = table.remove_column(at)
        case 1:
            names = [*table.column_names, "", "text", "meta", "image", "\u2028"]
            table = table.append_column(rng.choice(names), table.column(at))
        case 2:
            column = pa.array(tree(table.column(at).to_pylist(), rng))
            table = table.set_column(at, table.column_names[at], column)
        case _:
            cell, kind = rng.choice(_CELLS)
            column = pa.array([cell] * len(table), kind)
            table = table.set_column(at, table.column_names[at], column)
    if suffix == "parquet":
        pa.parquet.write_table(table, out)
    else:
        with pa.ipc.new_stream(out, table.schema) as writer:
            writer.write_table(table)
    return out.getvalue()


def _sealed(header: bytearray) -> bytes:
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header)

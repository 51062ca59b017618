"""Writers of other systems' checkpoints, and T5 by their names in NumPy; from the formats' descriptions alone."""

import gzip
import json
import struct

import numpy as np

# ---- MessagePack and zarr: T5X ----


def packed(value):
    """A value in MessagePack, arrays as Flax has them."""
    if isinstance(value, dict):
        return b"\xdf" + struct.pack(">I", len(value)) + b"".join(packed(k) + packed(v) for k, v in value.items())
    if isinstance(value, str):
        raw = value.encode()
        return b"\xdb" + struct.pack(">I", len(raw)) + raw
    if isinstance(value, bool) or value is None:
        return {True: b"\xc3", False: b"\xc2", None: b"\xc0"}[value]
    if isinstance(value, int):
        return b"\xd3" + struct.pack(">q", value)
    if isinstance(value, bytes):
        return b"\xc6" + struct.pack(">I", len(value)) + value
    if isinstance(value, list):
        return b"\xdd" + struct.pack(">I", len(value)) + b"".join(map(packed, value))
    inner = packed([list(value.shape), value.dtype.name, value.tobytes()])
    return b"\xc9" + struct.pack(">I", len(inner)) + b"\x01" + inner


def nested(flat):
    """{"a/b": 1} as {"a": {"b": 1}}."""
    tree = {}
    for name, value in flat.items():
        *path, last = name.split("/")
        place = tree
        for key in path:
            place = place.setdefault(key, {})
        place[last] = value
    return tree


def bfloat16_bits(array):
    """The upper halves of float32 values, rounded toward zero."""
    return (np.ascontiguousarray(array, np.float32).view(np.uint32) >> 16).astype(np.uint16)


def write_t5x(folder, arrays, *, version=3, step=1000):
    """Matrices as zarr arrays in several chunks, in version 2 as bfloat16 within uint16; the rest in the file."""
    folder.mkdir(parents=True)
    leaves = {"state/step": np.array(step, np.int32), "state/param_states/x/v": np.ones(2, np.float32)}
    for name, array in arrays.items():
        if array.ndim < 2:
            leaves[f"target/{name}"] = array
            continue
        path = f"target.{name.replace('/', '.')}"
        stored = bfloat16_bits(array) if version == 2 else array
        chunks = [max(1, -(-size // 2)) for size in array.shape]
        meta = {"compressor": {"id": "gzip"}, "shape": list(array.shape), "chunks": chunks, "dtype": stored.dtype.str}
        _write_zarr(folder / path, stored, meta)
        leaves[f"target/{name}"] = {
            "driver": "zarr",
            "dtype": stored.dtype.name,
            "kvstore": {"driver": "gfile", "path": f"/elsewhere/checkpoint_{step}/{path}/"},
            "metadata": {key: _as_flax(value) for key, value in meta.items()},
        }
    (folder / "checkpoint").write_bytes(packed({"version": version, "optimizer": nested(leaves)}))


def _as_flax(value):
    return {str(place): one for place, one in enumerate(value)} if isinstance(value, list) else value


def _write_zarr(folder, array, meta):
    folder.mkdir()
    full = {"zarr_format": 2, "order": "C", "filters": None, "fill_value": None, **meta}
    (folder / ".zarray").write_text(json.dumps(full))
    chunks = meta["chunks"]
    for place in np.ndindex(*(-(-size // chunk) for size, chunk in zip(array.shape, chunks, strict=True))):
        part = array[tuple(slice(at * chunk, (at + 1) * chunk) for at, chunk in zip(place, chunks, strict=True))]
        whole = np.zeros(chunks, array.dtype)
        whole[tuple(slice(size) for size in part.shape)] = part
        (folder / ".".join(map(str, place))).write_bytes(gzip.compress(whole.tobytes()))


# ---- sorted tables: TensorFlow ----


def varint(number):
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


def crc32c(data):
    register = 0xFFFFFFFF
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = (register >> 1) ^ (0x82F63B78 if register & 1 else 0)
    return register ^ 0xFFFFFFFF


def masked_crc(data):
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def block(items):
    """Entries without shared beginnings, each one a place to start from."""
    found, places = b"", []
    for key, value in items:
        places.append(len(found))
        found += varint(0) + varint(len(key)) + varint(len(value)) + key + value
    return found + struct.pack(f"<{len(places)}I", *places) + struct.pack("<I", len(places))


def table(items, per_block=5):
    """A whole file."""
    found, handles = b"", []
    items = sorted(items)
    blocks = [items[place : place + per_block] for place in range(0, len(items), per_block)]
    for content in [*blocks, []]:  # the last one is the meta index
        handles.append((content[-1][0] if content else b"", varint(len(found)) + varint(len(block(content)))))
        found += _sealed(block(content))
    *entries, (_, meta) = handles
    index = block(entries)
    place = varint(len(found)) + varint(len(index))
    footer = (meta + place).ljust(40, b"\0") + struct.pack("<Q", 0xDB4775248B80FB57)
    return found + _sealed(index) + footer


def _sealed(content):
    return content + b"\0" + masked_crc(content + b"\0")


def message(*fields):
    """Fields (number, value): ints as varints, floats as 4 bytes, the rest with their length."""
    found = b""
    for number, value in fields:
        if isinstance(value, int):
            found += varint(number << 3) + varint(value)
        elif isinstance(value, tuple):  # fixed32
            found += varint(number << 3 | 5) + value[0]
        else:
            found += varint(number << 3 | 2) + varint(len(value)) + value
    return found


def write_bundle(prefix, arrays, num_shards=2):
    """A checkpoint of TensorFlow, version 2; float32 and int64 only."""
    prefix.parent.mkdir(parents=True, exist_ok=True)
    items = [(b"", message((1, num_shards), (3, message((1, 1)))))]
    shards = [b""] * num_shards
    for number, (name, array) in enumerate(arrays.items()):
        shard, raw = number % num_shards, array.tobytes()
        shape = b"".join(message((2, message((1, size)))) for size in array.shape)
        fields = [(1, 1 if array.dtype == np.float32 else 9), (2, shape), (3, shard), (4, len(shards[shard]))]
        items.append((name.encode(), message(*fields, (5, len(raw)), (6, (masked_crc(raw),)))))
        shards[shard] += raw
    prefix.with_name(prefix.name + ".index").write_bytes(table(items))
    for shard, raw in enumerate(shards):
        prefix.with_name(f"{prefix.name}.data-{shard:05d}-of-{num_shards:05d}").write_bytes(raw)


# ---- T5 in NumPy, by T5X's names ----


def mesh_names(config):
    """The table from our names to Mesh TensorFlow's."""
    found = {"embedding.weight": "shared/embedding", "logits.weight": "decoder/logits/kernel"}
    for stack in ("encoder", "decoder"):
        found[f"{stack}.final_norm.weight"] = f"{stack}/final_layer_norm/scale"
        found[f"{stack}.relative_bias.weight"] = f"{stack}/block_000/layer_000/SelfAttention/relative_attention_bias"
        for layer in range(2):
            ours, theirs = f"{stack}.layers.{layer}", f"{stack}/block_{layer:03d}"
            table = f"{theirs}/layer_000/SelfAttention/relative_attention_bias"
            found[f"{ours}.relative_bias.weight"] = table
            parts = [("attention", "SelfAttention"), ("feed_forward", "DenseReluDense")]
            if stack == "decoder":
                parts.insert(1, ("cross_attention", "EncDecAttention"))
            for number, (part, their_part) in enumerate(parts):
                place = f"{theirs}/layer_{number:03d}"
                norm = part.replace("cross_attention", "cross")
                found[f"{ours}.{norm}_norm.weight"] = f"{place}/{'rms' if layer else 'layer'}_norm/scale"
                if part != "feed_forward":
                    for own, letter in zip(("query", "key", "value", "out"), "qkvo", strict=True):
                        found[f"{ours}.{part}.{own}.weight"] = f"{place}/{their_part}/{letter}"
            ups = {"up.0": "wi"} if len(config.activations) == 1 else {"up.0": "wi_0", "up.1": "wi_1"}
            for own, letter in {**ups, "down": "wo"}.items():
                found[f"{ours}.feed_forward.{own}.weight"] = f"{place}/DenseReluDense/{letter}/kernel"
    return found


def logits(weights, inputs, targets, *, is_gated, is_tied):
    """(T, V) of one example: inputs (S,), decoder inputs (T,)."""
    embedding = weights["token_embedder/embedding"]
    encoded = _stack(weights, "encoder", embedding[inputs], None, is_gated)
    decoded = _stack(weights, "decoder", embedding[targets], encoded, is_gated)
    if is_tied:
        return decoded @ embedding.T / np.sqrt(embedding.shape[1])
    return decoded @ weights["decoder/logits_dense/kernel"]


def _stack(weights, stack, x_TD, encoded_SD, is_gated):
    num_layers = len({name.split("/")[1] for name in weights if name.startswith(f"{stack}/layers_")})
    own = "attention" if stack == "encoder" else "self_attention"
    for layer in range(num_layers):
        own_names = f"{stack}/layers_{layer}"
        tables = (f"{own_names}/relpos_bias/rel_embedding", f"{stack}/relpos_bias/rel_embedding")
        bias = _bias(next(weights[name] for name in tables if name in weights), len(x_TD), stack == "decoder")
        normed = _norm(x_TD, weights[f"{own_names}/pre_{own}_layer_norm/scale"])
        x_TD = x_TD + _attend(weights, f"{own_names}/{own}", normed, normed, bias)
        if encoded_SD is not None:
            normed = _norm(x_TD, weights[f"{own_names}/pre_cross_attention_layer_norm/scale"])
            no_bias = np.zeros((len(bias), 1, 1))
            x_TD = x_TD + _attend(weights, f"{own_names}/encoder_decoder_attention", normed, encoded_SD, no_bias)
        normed = _norm(x_TD, weights[f"{own_names}/pre_mlp_layer_norm/scale"])
        x_TD = x_TD + _feed_forward(weights, f"{own_names}/mlp", normed, is_gated)
    return _norm(x_TD, weights[f"{stack}/{stack}_norm/scale"])


def _norm(x, scale):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * scale


def _feed_forward(weights, name, x, is_gated):
    if not is_gated:
        return np.maximum(x @ weights[f"{name}/wi/kernel"], 0) @ weights[f"{name}/wo/kernel"]
    gate = x @ weights[f"{name}/wi_0/kernel"]
    gate = 0.5 * gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
    return gate * (x @ weights[f"{name}/wi_1/kernel"]) @ weights[f"{name}/wo/kernel"]


def _attend(weights, name, x_TD, y_SD, bias_HTS):
    num_heads = len(bias_HTS)
    sides = (("query", x_TD), ("key", y_SD), ("value", y_SD))
    query, key, value = ((y @ weights[f"{name}/{part}/kernel"]).reshape(len(y), num_heads, -1) for part, y in sides)
    scores = np.einsum("thk,shk->hts", query, key) + bias_HTS
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    return np.einsum("hts,shk->thk", shares, value).reshape(len(x_TD), -1) @ weights[f"{name}/out/kernel"]


def _bias(table_HB, size, is_causal):
    bias = np.empty((len(table_HB), size, size))
    for query in range(size):
        for key in range(size):
            bias[:, query, key] = -1e10 if is_causal and key > query else table_HB[:, _bucket(key - query, is_causal)]
    return bias


def _bucket(relative, is_causal):
    if is_causal:
        start, num, distance = 0, 32, max(0, -relative)
    else:
        start, num, distance = 16 * (relative > 0), 16, abs(relative)
    exact = num // 2
    if distance < exact:
        return start + distance
    return start + min(num - 1, exact + int(np.log(distance / exact) / np.log(128 / exact) * (num - exact)))

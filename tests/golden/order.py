"""The first records of some orders, as checked in as order.json; `refresh.py` rewrites it."""

import json
from pathlib import Path

import numpy as np

from pretrainkit.data.order import Order

CASES: list[tuple[dict, int]] = [
    ({"sizes": [10], "mode": "shuffle", "seed": 0}, 0),
    ({"sizes": [1000], "mode": "shuffle", "seed": 0}, 995),
    ({"sizes": [400_000], "mode": "shuffle", "seed": 0}, 0),
    ({"sizes": [400_000], "mode": "shuffle", "seed": 1}, 399_995),
    ({"sizes": [10_000_000_000], "mode": "shuffle", "seed": 0}, 0),
    ({"sizes": [5000, 3000], "mode": "shuffle", "seed": 0}, 0),
    ({"sizes": [5000, 3000], "mode": "shuffle", "seed": 0, "weights": [0.7, 0.3]}, 0),
    ({"sizes": [500, 300], "mode": "lanes", "seed": 0, "batch_size": 4}, 796),
    ({"sizes": [500, 300], "mode": "lanes", "seed": 0, "batch_size": 4, "weights": [3, 1]}, 0),
    ({"sizes": [50, 30], "mode": "debias", "seed": 0, "batch_size": 4}, 72),
    ({"sizes": [50, 30], "mode": "set_by_set", "seed": 0, "batch_size": 4}, 72),
    ({"sizes": [50, 30], "mode": "shuffle", "seed": 0, "batch_size": 4, "is_static": True}, 72),
]


def documents(size: int) -> np.ndarray:
    """Documents of 7 examples, the last one shorter."""
    return np.array([*[7] * (size // 7), size % 7])


def records_of(case: dict, start: int, num: int = 12) -> dict[str, list[int] | str]:
    """The records from `start` on, by field, and the fingerprint, which checkpoints hold."""
    if case["mode"] == "lanes":
        case = {**case, "document_sizes": [documents(size) for size in case["sizes"]]}
    order = Order(**case)
    records = order.records(np.arange(start, start + num))
    fields = {name: getattr(records, name).tolist() for name in ("source", "epoch", "index", "key")}
    return fields | {"fingerprint": order.fingerprint}


def write() -> None:
    """Make order.json what the code does now."""
    lines = [json.dumps({"order": case, "start": start, **records_of(case, start)}) for case, start in CASES]
    Path(__file__).with_name("order.json").write_text("[\n" + ",\n".join(lines) + "\n]\n")

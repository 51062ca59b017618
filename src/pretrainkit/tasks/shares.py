"""How much of a training each component of a mixture is: of its examples, and of the tokens that these have."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypedDict

import numpy as np

NUM_MEASURED = 64
"""Examples of each component that lengths are measured on."""
_COLUMNS = ("share", "examples", "epochs", "inputs", "targets", "of inputs", "of targets")


class Share(TypedDict):
    """One component."""

    name: str
    rate: float
    share: float
    """Of the examples that are drawn."""
    examples: int
    """That there are."""
    mean_input_length: float
    """Tokens."""
    mean_target_length: float
    share_of_input_tokens: float
    share_of_target_tokens: float


def spread(size: int, num: int = NUM_MEASURED) -> list[int]:
    """`num` indices (or all, if there are fewer) spread evenly over `size` examples."""
    return np.unique(np.linspace(0, size - 1, min(size, num), dtype=np.int64)).tolist() if size else []


def mean_lengths(examples: Sequence[Mapping[str, Any]], names: Iterable[str]) -> dict[str, float]:
    """Mean tokens of sequences in some of the examples; 0 for those that none has."""
    some = [examples[index] for index in spread(len(examples))]
    return {name: float(np.mean([np.size(one.get(name, ())) for one in some] or [0])) for name in names}


def shares(
    names: Sequence[str], rates: Sequence[float], sizes: Sequence[int], lengths: Sequence[tuple[float, float]]
) -> list[Share]:
    """A row for each component.

    Args:
        rates: In any unit, 0 for what is never drawn.
        sizes: Examples of each.
        lengths: Mean tokens of the inputs and of the targets.
    """
    share_C = np.array(rates, np.float64) / sum(rates)
    # Tokens of each component per draw from the mixture.
    tokens_C2 = share_C[:, None] * np.array(lengths, np.float64).reshape(-1, 2)
    of_tokens_C2 = tokens_C2 / np.maximum(tokens_C2.sum(0), np.finfo(np.float64).tiny)
    return [
        {
            "name": name,
            "rate": float(rate),
            "share": float(share),
            "examples": int(size),
            "mean_input_length": length[0],
            "mean_target_length": length[1],
            "share_of_input_tokens": float(of_tokens[0]),
            "share_of_target_tokens": float(of_tokens[1]),
        }
        for name, rate, share, size, length, of_tokens in zip(
            names, rates, share_C, sizes, lengths, of_tokens_C2, strict=True
        )
    ]


def epochs(row: Share, num_drawn: int) -> float:
    """Passes over a component's examples when `num_drawn` of the mixture are drawn; 0 where it has none."""
    return num_drawn * row["share"] / row["examples"] if row["examples"] else 0.0


def table(rows: Sequence[Share], num_drawn: int | None = None) -> Iterator[str]:
    """Lines for people. `num_drawn`: examples of the training; None: epochs are not shown."""
    columns = [name for name in _COLUMNS if name != "epochs" or num_drawn is not None]
    width = max(len("mixture"), *(len(row["name"]) for row in rows))
    yield f"{'mixture':<{width}} {'rate':>12} " + " ".join(f"{name:>11}" for name in columns)
    for row in rows:
        cells = {
            "share": f"{row['share']:.2%}",
            "examples": f"{row['examples']:,}",
            "epochs": _short(epochs(row, num_drawn or 0)),
            "inputs": f"{row['mean_input_length']:.1f}",
            "targets": f"{row['mean_target_length']:.1f}",
            "of inputs": f"{row['share_of_input_tokens']:.2%}",
            "of targets": f"{row['share_of_target_tokens']:.2%}",
        }
        yield f"{row['name']:<{width}} {row['rate']:>12,.6g} " + " ".join(f"{cells[name]:>11}" for name in columns)


def _short(number: float) -> str:
    """Three digits at least, never a power of ten where all digits fit."""
    return f"{number:,.0f}" if 999.5 <= number < 1e8 else f"{number:.3g}"

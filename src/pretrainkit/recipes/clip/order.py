"""In which order training goes over the sets of pairs. Torch-free but for the static order."""

from collections.abc import Sequence

from pretrainkit.data.order import Mode, Order
from pretrainkit.data.turns import Debias
from pretrainkit.errors import DataError
from pretrainkit.recipes.clip.config import ClipRun, set_name

_MODES: dict[str, Mode] = {"shuffle": "shuffle", "sequential": "set_by_set", "debias": "debias"}


def build_order(config: ClipRun, sizes: Sequence[int]) -> Order:
    """The order over sets of so many pairs, as `config.data` says.

    Raises:
        ConfigError, DataError: Settings, or sets, that do not fit together.
    """
    data = config.data
    if data.order != "shuffle" and data.small_set == "error":
        small = [f"{set_name(s)} ({size})" for s, size in zip(data.train, sizes, strict=True) if size < data.batch_size]
        if small:
            raise DataError(
                f"data.order={data.order} takes each batch of {data.batch_size} pairs from one set, but fewer are in: "
                f"{', '.join(small)}\n  leave these out, use smaller batches or data.order=shuffle,\n"
                "  or data.small_set=wrap, to let pairs occur several times in a batch"
            )
    return Order(
        sizes,
        seed=config.seed,
        mode=_MODES[data.order],
        weights=[source.weight for source in data.train],
        batch_size=data.batch_size,
        debias=Debias(exponent=data.debias_exponent, draw=data.debias_draw, seed=data.debias_seed),
        may_repeat=data.small_set == "wrap",
        is_static=data.compat_static_order,
    )

"""Tables some of whose rows are broken, as those of QQP are."""

import numpy as np
from numpy.typing import NDArray

from pretrainkit.data.line_index import LineIndex
from pretrainkit.tasks.sources import Files, Tsv


class WholeRows(Tsv):
    """As `Tsv`; rows that have not as many fields as the header are passed over."""

    def __init__(self, files: Files) -> None:
        super().__init__(files)

    def _rows(self, index: LineIndex) -> NDArray[np.int64] | None:
        rows = super()._rows(index)
        content = np.fromfile(index.path, np.uint8)
        tabs = np.flatnonzero(content == ord(self.delimiter))
        num_tabs = np.searchsorted(tabs, index.ends) - np.searchsorted(tabs, index.begins)
        is_whole = num_tabs == (num_tabs[0] if len(num_tabs) else 0)
        assert rows is not None  # there is a header
        return rows[is_whole[rows]]

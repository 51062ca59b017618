"""Files of rows are read by what their names end in."""

import gzip
import json

import pytest

from pretrainkit.errors import DataError
from pretrainkit.tasks.row_files import open_rows


def test_every_kind_of_file_gives_its_rows(tmp_path):
    (tmp_path / "a.b.txt").write_text("one\n\nthree\n")
    (tmp_path / "a.TSV").write_text("x\ty\n1\t2\n")
    with gzip.open(tmp_path / "a.jsonl.gz", "wt") as file:
        file.write(json.dumps({"x": [1, 2]}) + "\n")
    found = {}
    for path in tmp_path.iterdir():
        source = open_rows(path, "rows")
        found[path.name] = [source.example("rows", index) for index in range(source.num_examples("rows"))]
    assert found == {
        "a.b.txt": [{"text": "one"}, {"text": ""}, {"text": "three"}],
        "a.TSV": [{"x": "1", "y": "2"}],
        "a.jsonl.gz": [{"x": [1, 2]}],
    }


@pytest.mark.parametrize("name", ["a.csv", "a.gz", "noend", "a.parquet.txtx"])
def test_other_names_are_refused(name):
    with pytest.raises(DataError, match=r"a file of rows must end in \.jsonl"):
        open_rows(name, "rows")

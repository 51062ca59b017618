"""Files of rows are read by what their names end in."""

import gzip
import json

import pytest

from pretrainkit.errors import DataError
from pretrainkit.tasks.row_files import open_rows


def test_every_kind_of_file_gives_its_rows(tmp_path):
    (tmp_path / "a.b.txt").write_text("one\n\nthree\n")
    (tmp_path / "a.TSV").write_text("x\ty\n1\t2\n")
    (tmp_path / "a.csv").write_text('\nx,y\n"1, ""one""\nmore",2\n\n"",3\n', "utf-8-sig")
    (tmp_path / "sheet.csv").write_text("x,,\n1,,\n")
    (tmp_path / "german.csv").write_text('\nx;y\n1,5;"a;\tb"\n')
    (tmp_path / "tabs.csv").write_text("x\ty\n1,5\ta;b\n")
    with gzip.open(tmp_path / "a.jsonl.gz", "wt") as file:
        file.write(json.dumps({"x": [1, 2]}) + "\n")
    found = {}
    for path in tmp_path.iterdir():
        source = open_rows(path, "rows")
        found[path.name] = [source.example("rows", index) for index in range(source.num_examples("rows"))]
    assert found == {
        "a.b.txt": [{"text": "one"}, {"text": ""}, {"text": "three"}],
        "a.TSV": [{"x": "1", "y": "2"}],
        "a.csv": [{"x": '1, "one"\nmore', "y": "2"}, {"x": "", "y": "3"}],
        "sheet.csv": [{"x": "1", "": ""}],
        "german.csv": [{"x": "1,5", "y": "a;\tb"}],
        "tabs.csv": [{"x": "1,5", "y": "a;b"}],
        "a.jsonl.gz": [{"x": [1, 2]}],
    }


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"x,y\n1,2\n\n3,4,5\n", r"line 4 of .*a\.csv has 3 fields instead of 2"),
        (b"x;y\n1;2;3\n", r"line 2 of .*a\.csv has 3 fields instead of 2\n  put fields with ';' in quotation marks"),
        (b"x,y,x\n1,2,3\n", r"a\.csv has the column 'x' twice"),
        (b'x,y\n"1,2\n', r"a\.csv cannot be read as CSV: unexpected end of data"),
        ("x,y\né,2\n".encode("latin-1"), r"a\.csv cannot be read as CSV: 'utf-8' codec"),
        ("x,y\n1,2\n".encode("utf-16-le"), r"a\.csv cannot be read as CSV: it has zeros|is not UTF-8 text: 50% of"),
    ],
)
def test_broken_tables_are_refused_with_the_line_or_the_reason(content, reason, tmp_path):
    (tmp_path / "a.csv").write_bytes(content)
    with pytest.raises(DataError, match=reason):
        open_rows(tmp_path / "a.csv", "rows").num_examples("rows")


def test_two_columns_of_one_name_are_refused_in_tables_with_tabs_as_well(tmp_path):
    (tmp_path / "a.tsv").write_text("x\ty\tx\n1\t2\t3\n")
    with pytest.raises(DataError, match=r"a\.tsv has the column 'x' twice"):
        open_rows(tmp_path / "a.tsv", "rows").example("rows", 0)


@pytest.mark.parametrize("name", ["a.xlsx", "a.gz", "noend", "a.parquet.txtx"])
def test_other_names_are_refused(name):
    with pytest.raises(DataError, match=r"a file of rows must end in \.jsonl"):
        open_rows(name, "rows")

"""Cells of wikitext tables."""

import re

_ATTRIBUTES = re.compile(
    r"(?:(?:col|row)span|style|class|v?align|bgcolor|width|height|scope|id|border|data-[a-z-]++|nowrap|abbr|title)"
    r" *+= *+(?:\"[^\"]*+\"|'[^']*+'|[^\s\"'|]++)\s*+",
    re.IGNORECASE,
)


def table_rows(content: str) -> list[list[str]]:
    """Rows of cells of what stands between `{|` and `|}`, nested tables already gone. Attributes are left out."""
    rows: list[list[str]] = [[]]
    for line in content.split("\n")[1:]:
        line = line.strip()
        if line.startswith("|-"):
            rows.append([])
        elif line.startswith("|+"):
            rows[-1].append(_content(line[2:]))
            rows.append([])
        elif line[:1] in ("|", "!"):
            body = line[1:].replace("!!", "||") if line[0] == "!" else line[1:]
            rows[-1] += [_content(cell) for cell in body.split("||")]
        elif line and rows[-1]:
            rows[-1][-1] = f"{rows[-1][-1]} {line}".strip()
    return [cells for row in rows if any(cells := [cell for cell in row if cell])]


def _content(cell: str) -> str:
    attributes, bar, text = cell.partition("|")
    if bar and "=" in attributes:
        return text.strip()
    # Attributes without a bar behind them: the template that held it and the text gave nothing.
    cell, position = cell.strip(), 0
    while found := _ATTRIBUTES.match(cell, position):
        position = found.end()
    return cell[position:].replace("|", " ").strip()

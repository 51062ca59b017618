"""Options that several verbs share."""

from typing import Annotated

import typer

TextKey = Annotated[str, typer.Option(help="Key (JSONL) or column (parquet) that holds the text.")]
MaxBad = Annotated[int, typer.Option(min=0, help="Broken lines and the like that may be skipped (and counted).")]
Workers = Annotated[int | None, typer.Option(help="Processes; left out: all cores.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print the manifest or result as JSON.")]

"""Options that several verbs share."""

from typing import Annotated

import typer

from pretrainkit.errors import InputError

TextKey = Annotated[str, typer.Option(help="Key (JSONL) or column (parquet) that holds the text.")]
MaxBad = Annotated[int, typer.Option(min=0, help="Broken lines and the like that may be skipped (and counted).")]
Workers = Annotated[int | None, typer.Option(help="Processes; left out: all cores.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print the manifest or result as JSON.")]
Beams = Annotated[int | None, typer.Option(min=1, help="T5: search with so many continuations.", show_default=False)]
Alpha = Annotated[
    float | None,
    typer.Option(help="T5: exponent of the brevity penalty of a search. Default: 0.6.", show_default=False),
]
Temperature = Annotated[
    float | None, typer.Option(help="T5, 4M: draw, from logits divided by this.", show_default=False)
]
TopK = Annotated[
    int | None, typer.Option(min=0, help="T5, 4M: draw from so many likeliest tokens.", show_default=False)
]
TopP = Annotated[
    float | None, typer.Option(help="T5, 4M: draw from the likeliest tokens of this probability.", show_default=False)
]
Seed = Annotated[int | None, typer.Option(min=0, help="T5, 4M: of the draws. Default: 0.", show_default=False)]
MaxLength = Annotated[
    int | None,
    typer.Option(
        min=1, help="T5: most tokens of an answer. Default: data.target_length of the run.", show_default=False
    ),
]


def lengths_of(text: str | None) -> dict[str, int] | None:
    """Tokens per feature from `inputs=512,targets=114`. Raises InputError where it is written otherwise."""
    if text is None:
        return None
    found = {}
    for part in text.split(","):
        name, _, number = part.partition("=")
        if not name.strip() or not number.strip().isdigit():
            raise InputError(f"--lengths is {text!r}\n  write it like inputs=512,targets=114")
        found[name.strip()] = int(number)
    return found


Device = Annotated[str | None, typer.Option(help="cpu, cuda, ...; default: the best there is.")]
GoOn = Annotated[bool, typer.Option("--resume", help="Go on when the run folder already holds a checkpoint.")]
Launch = Annotated[
    str,
    typer.Option(help="none: this process. local: processes of this machine. slurm: a job. cloud: a cluster there."),
]
NumNodes = Annotated[int, typer.Option("--nodes", min=1, help="Machines of a job.")]
NumProcesses = Annotated[
    int | None, typer.Option(min=1, help="Processes of each machine; left out: one per GPU.", show_default=False)
]
GpusPerNode = Annotated[int, typer.Option(min=0, help="GPUs of each machine, and so processes.")]
MaxRestarts = Annotated[
    int, typer.Option(min=0, help="Failures after which a run that got further is started again by itself.")
]
SlurmSettings = Annotated[
    list[str] | None,
    typer.Option("--slurm", metavar="NAME=VALUE", help="Of a SLURM job, such as partition=gpu; docs/launching.md."),
]
CloudSettings = Annotated[
    list[str] | None,
    typer.Option("--cloud", metavar="NAME=VALUE", help="Of a cloud's machines, such as accelerators=H100:8."),
]
JsonLines = Annotated[bool, typer.Option("--json", help="One JSON object per line on standard output.")]

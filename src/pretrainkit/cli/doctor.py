"""`pretrainkit doctor`."""

from typing import Annotated

from typer import Option

from pretrainkit import api

_MARKS = {"good": "ok", "limited": "part", "missing": "none", "broken": "BAD"}


def doctor(as_json: Annotated[bool, Option("--json", help="As JSON.")] = False) -> None:
    """Say what this machine can do: devices, number formats, compilation, attention, collectives, fonts, packages; and
    what to install for the rest."""
    findings = api.diagnose()
    if as_json:
        import json
        from dataclasses import asdict

        print(json.dumps([asdict(finding) for finding in findings]))
        return
    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        print(f"{_MARKS[finding.state]:>4}  {finding.name:<{width}}  {finding.text}")
        if finding.mend:
            print(f"      {'':<{width}}  -> {finding.mend}")

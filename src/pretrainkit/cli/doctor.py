"""`pretrainkit doctor`."""

from typing import Annotated

from typer import Option

from pretrainkit import api

_MARKS = {"good": "ok", "limited": "part", "missing": "none", "broken": "BAD"}


def doctor(as_json: Annotated[bool, Option("--json", help="Print JSON.")] = False) -> None:
    """Check this installation: devices, number formats, compilation, attention, collectives, fonts and packages, with
    a fix for what is missing."""
    findings = api.diagnose()
    if as_json:
        import json
        from dataclasses import asdict

        print(json.dumps([asdict(finding) for finding in findings]))
        return
    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        print(f"{_MARKS[finding.state]:>4}  {finding.name:<{width}}  {finding.text}")
        if finding.fix:
            print(f"      {'':<{width}}  -> {finding.fix}")

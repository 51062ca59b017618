"""`pretrainkit doctor`."""

from pretrainkit import api
from pretrainkit.cli.options import Json, print_json

_MARKS = {"good": "ok", "limited": "part", "missing": "none", "broken": "BAD"}


def doctor(as_json: Json = False) -> None:
    """Check this installation: devices, number formats, compilation, attention, collectives, fonts and packages.

    For each part that is missing or broken, print how to fix it.
    """
    findings = api.diagnose()
    if as_json:
        from dataclasses import asdict

        print_json([asdict(finding) for finding in findings])
        return
    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        print(f"{_MARKS[finding.state]:>4}  {finding.name:<{width}}  {finding.text}")
        if finding.fix:
            print(f"      {'':<{width}}  -> {finding.fix}")

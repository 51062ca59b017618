"""Files of a project: config.yaml, run.sh, README.md."""

from __future__ import annotations

import json
import os
import shlex
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pretrainkit.config.loader import nested
from pretrainkit.files.manifest import write_text
from pretrainkit.recipes.proposal import Decision, Proposal, RawData, Stage

CONFIG, RUN, README = "config.yaml", "run.sh", "README.md"
TRAINED = "runs/first"
EXPORTED = "exported"
METRICS = "metrics.csv"
DATA_PAGE = "data.html"
REPORT = f"{TRAINED}/report.html"
VERBOSITY = "PRETRAINKIT_VERBOSITY"
"""Environment variable that the command line sets to quiet for -q."""
_WIDTH = 100
COMPARISON = (
    Stage("Train another run", ("train", f"{TRAINED}/config.yaml", "seed=1", "--out", "runs/second")),
    Stage("List the runs", ("runs", "runs")),
    Stage("Compare them", ("report", "runs")),
)
"""Commands that compare a finished project with another run."""


def all_stages(proposal: Proposal, hours: float) -> tuple[Stage, ...]:
    """Return the commands from raw data to the report."""
    export = ("export", TRAINED, "--format", proposal.export_format, "--out", EXPORTED)
    return (
        *proposal.stages,
        Stage("Look at the data as the model sees it", ("data", "check", CONFIG, "--page", DATA_PAGE)),
        Stage("Train", ("train", CONFIG, "--hours", f"{hours:g}", "--resume", "--out", TRAINED)),
        Stage("Evaluate on the held-out data", ("evaluate", TRAINED, "--csv", METRICS), unless=METRICS),
        Stage("Export", export, unless=EXPORTED),
        Stage("Write the report", ("report", TRAINED)),
    )


def write_project(folder: Path, recipe: str, proposal: Proposal, stages: Sequence[Stage], data: Sequence[str]) -> None:
    """Write the files into the folder."""
    for raw in proposal.raw:
        link = folder / raw.link
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(_place_from(link.parent, raw))
    proposal.write_files(folder)
    for name, text in (
        (CONFIG, _config(proposal)),
        (RUN, _script(folder, stages, proposal.raw)),
        (README, _readme(recipe, proposal, stages, data)),
    ):
        write_text(folder / name, text)
    (folder / RUN).chmod(0o755)


def shown(value: Any) -> str:
    """Format a value for people."""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return f"{len(value)} in {CONFIG}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _config(proposal: Proposal) -> str:
    lines = [
        "# Settings of the training; every setting of the preset can be changed here. All of them, with explanations:",
        f"# pretrainkit config show {proposal.preset}",
        f"extends: {proposal.preset}",
    ]
    reasons = {decision.name: decision.reason for decision in proposal.decisions if decision.is_setting}
    tree = nested({path: _Leaf(value, reasons[path]) for path, value in proposal.settings.items()})
    return "\n".join([*lines, *_yaml(tree, "")]) + "\n"


class _Leaf:
    """Value of a setting with its reason."""

    def __init__(self, value: Any, reason: str) -> None:
        self.value, self.reason = value, reason


def _yaml(tree: Mapping[str, Any], indent: str) -> Iterable[str]:
    for name, value in tree.items():
        if isinstance(value, _Leaf):
            yield from textwrap.wrap(
                value.reason, _WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# "
            )
            # JSON is YAML.
            if isinstance(value.value, list) and value.value and isinstance(value.value[0], dict):
                yield f"{indent}{name}:"
                yield from (f"{indent}  - {json.dumps(item, ensure_ascii=False)}" for item in value.value)
            else:
                yield f"{indent}{name}: {json.dumps(value.value, ensure_ascii=False)}"
        else:
            yield f"{indent}{name}:"
            yield from _yaml(value, f"{indent}  ")


def _place_from(parent: Path, raw: RawData) -> str:
    """Return the path of raw data relative to the folder of its link, so that both can be moved together."""
    return os.path.relpath(os.path.realpath(raw.folder), os.path.realpath(parent))


_LINK = r"""
# Link to raw data, its path relative to the link, and its absolute path. A moved project uses the one that exists.
raw() {
  for place in "$2" "$3"; do [ -e "$1" ] || ln -sfn "$place" "$1"; done
  [ -e "$1" ] || {
    printf 'error: the raw data is no longer in %s\n  link its new place: ln -sfn FOLDER %q\n' "$3" "$PWD/$1" >&2
    exit 2
  }
}"""


def _script(folder: Path, stages: Sequence[Stage], raw_data: Sequence[RawData]) -> str:
    lines = [
        "#!/usr/bin/env bash",
        "# All commands from raw data to the report. Run it again after an interruption: finished work is kept.",
        '[ -n "${BASH_VERSION:-}" ] || exec bash -- "$0" "$@"',
        "set -euo pipefail",
        'CDPATH= cd -- "$(dirname -- "$0")"',
        f'say() {{ [ "${{{VERBOSITY}:-}}" = quiet ] || echo "== $1" >&2; }}',
    ]
    lines += [_LINK] if raw_data else []
    for raw in raw_data:
        words = (raw.link, _place_from((folder / raw.link).parent, raw), raw.folder)
        command = f"raw {shlex.join(words)}"
        lines.append(command if raw.unless is None else f"[ -e {shlex.quote(raw.unless)} ] || {command}")
    for stage in stages:
        # Messages of the training, such as that after Ctrl-C, name the run by a path that is valid in every folder.
        command = _command(stage).replace(f"--out {TRAINED}", f'--out "$PWD/{TRAINED}"')
        if stage.unless is not None:
            command = f"[ -e {shlex.quote(stage.unless)} ] || {command}"
        lines += ["", f"say {shlex.quote(stage.title)}", command]
    return "\n".join(lines) + "\n"


def _command(stage: Stage) -> str:
    """Return the command line, with one word per line if it is long."""
    words = [shlex.quote(word) for word in ("pretrainkit", *stage.command)]
    line = " ".join(words)
    return line if len(line) <= 400 else " \\\n  ".join(words)


def _readme(recipe: str, proposal: Proposal, stages: Sequence[Stage], data: Sequence[str]) -> str:
    left_out = [
        f"- {part.kind}: {part.count:,}, such as {', '.join(f'`{example}`' for example in part.examples)}"
        for part in proposal.left_out
    ]
    commands = "\n".join(_command(stage) for stage in stages)
    sections = [
        f"# {recipe} from {', '.join(Path(path).name for path in data)}",
        "Made by `pretrainkit new`. This page lists what the data contain and all decisions. Start the project, or\n"
        f"resume it after an interruption, with `bash {RUN}`. At the end the report is in `{REPORT}`.",
        "## Data",
        "\n".join(f"- `{path}`" for path in data),
        _table(("what", "found"), proposal.facts.items()),
        "Left out:" if left_out else "Nothing was left out.",
        *(["\n".join(left_out)] if left_out else []),
        "## Decisions",
        f"Those with a dotted name are settings in `{CONFIG}`; the others are options of commands in `{RUN}`.\n"
        f"To change one, edit these files before the first run. After a change of options in `{RUN}`, remove the\n"
        f"folder `data`; after a change of settings, remove `runs`, `{EXPORTED}` and `{METRICS}`. To set the number\n"
        f"of steps yourself, set `num_steps` in `{CONFIG}` and remove `--hours` from `{RUN}`.",
        _table(("name", "value", "reason"), ((f"`{d.name}`", shown(d.value), d.reason) for d in proposal.decisions)),
        "## Commands",
        f"```bash\n{commands}\n```",
        "## Another run",
        "To see what a setting changes, train again with it and compare the runs. The first command differs from the\n"
        "first run in the seed only, which shows how far results vary by chance. Change any setting in the same way,\n"
        "such as `optimizer.peak_lr=1e-3`.",
        "```bash\n" + "\n".join(_command(stage) for stage in COMPARISON) + "\n```",
    ]
    return "\n\n".join(sections) + "\n"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    cells = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *cells))


def as_json(decisions: Iterable[Decision]) -> list[dict[str, Any]]:
    """Return decisions as JSON values."""
    return [{"name": d.name, "value": d.value, "reason": d.reason, "is_setting": d.is_setting} for d in decisions]

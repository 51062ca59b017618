"""`pretrainkit train`."""

import sys
import time
from json import loads
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from pretrainkit import api
from pretrainkit.cli.launching import start_frozen, start_sweep
from pretrainkit.cli.options import Asked, Device, GoOn, JsonLines
from pretrainkit.cli.progress import make_watcher
from pretrainkit.cli.settings_options import with_settings
from pretrainkit.training.folder import RunFolder

Overrides = Annotated[list[str] | None, Argument(metavar="PATH=VALUE", help="Settings, such as data.batch_size=64.")]


@with_settings
def train(
    source: Annotated[str, Argument(metavar="PRESET|FILE.yaml", help="A preset such as bert/tiny, or a YAML file.")],
    settings: Overrides = None,
    *,
    out: Annotated[Path | None, Option(help="Run folder; default: runs/PRESET-DATE-TIME.")] = None,
    device: Device = None,
    resume: GoOn = False,
    asked: Asked,
    origins: Annotated[Path | None, Option(hidden=True, help="What a launcher knows of the config.")] = None,
    json: JsonLines = False,
) -> None:
    """Train a preset or a config file.

    Ctrl-C or SIGTERM finishes the step, saves and exits with 130; `pretrainkit resume RUN` continues exactly there.
    """
    asked.check()
    resolved = api.resolve_config(source, settings or [])
    name = Path(source).stem if source.endswith((".yaml", ".yml")) else source.replace("/", "-")
    out = out or Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    for note in resolved.notes():
        print(note, file=sys.stderr)
    if asked.launch == "none":
        known = resolved.origins if origins is None else loads(origins.read_text(encoding="utf-8"))
        api.train(resolved.config, out, origins=known, watcher=make_watcher(json), device=device, resume=resume)
        return
    if not resume and not asked.sweep:
        RunFolder(out).require_new()
    if asked.sweep:
        start_sweep(asked, source, settings or [], out, device)
        return
    api.check_config(resolved.config, asked.world_size, resolved.origins)
    resolved.config.parallel.require_ranks(asked.world_size)
    start_frozen(asked, resolved, out, device, resume=resume, as_json=json)

"""`pretrainkit train`."""

import sys
import time
from json import loads
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from pretrainkit import api
from pretrainkit.cli.launching import start_frozen, start_sweep
from pretrainkit.cli.options import ConfigSource, Device, JsonLines, LaunchOptions, Resume
from pretrainkit.cli.progress import make_watcher
from pretrainkit.cli.settings_options import with_settings
from pretrainkit.errors import InputError
from pretrainkit.training.folder import RunFolder

Overrides = Annotated[list[str] | None, Argument(metavar="PATH=VALUE", help="Settings, such as data.batch_size=64.")]


@with_settings
def train(
    source: ConfigSource,
    settings: Overrides = None,
    *,
    out: Annotated[Path | None, Option(help="Run folder. Default: runs/PRESET-DATE-TIME.")] = None,
    device: Device = None,
    resume: Resume = False,
    hours: Annotated[
        float | None,
        Option(help="Train as many steps as fit into this time here; a trial of up to 20 seconds measures the speed."),
    ] = None,
    options: LaunchOptions,
    origins: Annotated[Path | None, Option(hidden=True, help="JSON file with the origin of each value.")] = None,
    json: JsonLines = False,
) -> None:
    """Train a preset or a config file.

    Ctrl-C or SIGTERM finishes the step, saves and exits with 130. `pretrainkit resume RUN` continues exactly there.
    """
    options.check()
    resolved = api.resolve_config(source, settings or [])
    name = Path(source).stem if source.endswith((".yaml", ".yml")) else source.replace("/", "-")
    out = out or Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    for note in resolved.notes():
        print(note, file=sys.stderr)
    if options.launch == "none":
        known = resolved.origins if origins is None else loads(origins.read_text(encoding="utf-8"))
        watcher = make_watcher(json)
        api.train(resolved.config, out, origins=known, watcher=watcher, device=device, resume=resume, hours=hours)
        return
    if hours is not None:
        raise InputError(
            f"--hours measures the speed of this process, not of --launch {options.launch}\n"
            "  leave out --hours and set num_steps=N; pretrainkit plan estimates the time"
        )
    if not (resume or options.sweep or options.elastic):
        RunFolder(out).require_new()
    if options.sweep:
        start_sweep(options, source, settings or [], out, device)
        return
    api.check_config(resolved.config, options.world_size, resolved.origins)
    resolved.config.parallel.require_ranks(options.world_size)
    start_frozen(options, resolved, out, device, resume=resume, as_json=json)

"""`pretrainkit export`."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

from typer import Argument, Option

from pretrainkit import api
from pretrainkit.cli.options import Averaged, Branch, DryPush, Json, Private, print_path, print_upload
from pretrainkit.errors import InputError, import_optional


def export(
    path: Annotated[Path, Argument(help="A run folder, a checkpoint in it, or an export.")],
    out: Annotated[
        Path | None,
        Option(
            help="New folder to write; a new file for the formats t5x (.npz or .safetensors), 4m and 4m-tokenizer "
            "(.safetensors) and zerovl (.pth). May be left out with --push."
        ),
    ] = None,
    format: Annotated[
        str,
        Option(
            help="huggingface, safetensors, or a format of another system: openclip, zerovl (recipe clip), t5x (t5), "
            "4m (fourm), 4m-tokenizer (image_tokenizer)."
        ),
    ] = "huggingface",
    averaged: Averaged = False,
    license: Annotated[
        str | None, Option(help="Licence for the model card, as named on the hub, such as apache-2.0.")
    ] = None,
    push: Annotated[
        str | None, Option(metavar="USER/NAME", help="Upload the export to this repository on the Hugging Face hub.")
    ] = None,
    private: Private = True,
    revision: Branch = None,
    dry_run: DryPush = False,
    as_json: Json = False,
) -> None:
    """Write the weights, config, tokenizer and model card of a run for other libraries. --push uploads them."""
    if push is None:
        given = {"--revision": revision, "--public": not private, "--dry-run": dry_run}
        if unused := [name for name, value in given.items() if value]:
            raise InputError(
                f"{unused[0]} has an effect only with --push\n  leave out {unused[0]}, or also name a repository to "
                "upload to"
            )
        if out is None:
            raise InputError("no output folder is given\n  add --out FOLDER")
        print_path(api.export(path, format, out, averaged=averaged, license=license), as_json)
        return
    if format not in ("huggingface", "safetensors", "openclip"):
        raise InputError(f"--push uploads a folder, but --format {format} writes a file\n  use --format huggingface")
    import_optional("huggingface_hub", "hub", "--push")
    from pretrainkit.files.hub import Hub
    from pretrainkit.running.publish import push_export

    with TemporaryDirectory() as scratch:
        folder = api.export(path, format, out or Path(scratch, "export"), averaged=averaged, license=license, name=push)
        hub = Hub(push, kind="model", private=private, revision=revision)
        sent = push_export(folder, hub, dry_run=dry_run)
    print_upload(hub.url, sent, dry_run=dry_run, as_json=as_json, out=None if out is None else str(out))

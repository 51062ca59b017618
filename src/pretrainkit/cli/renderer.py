"""`pretrainkit renderer`: make the folder of a renderer, and show how it draws a text."""

from collections import Counter
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from pretrainkit.cli.options import Json, print_json, print_path
from pretrainkit.config.yaml import parse_yaml
from pretrainkit.errors import DataError, InputError, import_optional

if TYPE_CHECKING:
    from pretrainkit.rendering import Renderer

app = typer.Typer(add_completion=False, no_args_is_help=True)

_SOURCE = "A font file (PIXEL's published settings), a renderer folder, or a model on the hub."
Source = Annotated[str, Argument(metavar="SOURCE", help=_SOURCE)]
Settings = Annotated[
    list[str] | None,
    Argument(metavar="NAME=VALUE", help="Settings to change, such as engine=pango, font_size=8 or fallback_fonts=[F]."),
]
_MAX_NAMED = 40
"""Maximum number of missing characters that are printed."""


@app.command()
def make(
    renderer: Source,
    changes: Settings = None,
    *,
    out: Annotated[Path, Option(help="New folder for the renderer: its settings and copies of its fonts.")],
    as_json: Json = False,
) -> None:
    """Write a renderer folder, for `pretrainkit render --renderer`, data.renderer and exports."""
    from pretrainkit.files.outputs import new_folder
    from pretrainkit.rendering.folder import save_renderer

    if out.exists() and any(out.iterdir() if out.is_dir() else [out]):
        raise InputError(f"{out} exists\n  choose a new folder with --out")
    opened = _open(renderer, changes or [])
    with new_folder(out) as aside:
        save_renderer(opened, aside)
    print_path(out, as_json)


@app.command()
def preview(
    renderer: Source,
    changes: Settings = None,
    *,
    text: Annotated[str | None, Option(help="Text to draw.")] = None,
    file: Annotated[Path | None, Option(help="Draw the start of a text file, and check all of its characters.")] = None,
    out: Annotated[Path, Option(metavar="FILE.png", help="Picture to write.")] = Path("preview.png"),
    patches: Annotated[int, Option(min=1, help="Maximum number of patches to draw.")] = 480,
    per_line: Annotated[int, Option(min=1, help="Number of patches in a line of the picture.")] = 48,
    as_json: Json = False,
) -> None:
    """Draw a text as the model sees it to a PNG file, and list characters that no font has."""
    from pretrainkit.rendering.freetype_engine import MARKS_ADVICE, num_marks

    if (text is None) == (file is None):
        raise InputError("preview needs one text\n  give either --text 'Some words' or --file FILE")
    if out.suffix != ".png":
        raise InputError(f"--out {out}: the picture is a PNG file\n  write --out {quote(str(out.with_suffix('.png')))}")
    drawer = _open(renderer, ["on_missing=ignore", *(changes or [])])
    content = text if text is not None else _read(file)
    missing = {char: Counter(content)[char] for char in drawer.missing(content)}
    _draw(drawer, content, out, patches, per_line)
    num_patches = drawer.num_text_patches(content)
    if as_json:
        print_json({"out": str(out), "patches": num_patches, "missing": missing})
        return
    print(f"{out}\n  {len(content):,} characters, {num_patches:,} patches")
    if missing:
        most = sorted(missing.items(), key=lambda item: -item[1])[:_MAX_NAMED]
        named = ", ".join(f"{char} (U+{ord(char):04X}) x {count:,}" for char, count in most)
        more = f", and {len(missing) - len(most)} others" if len(missing) > len(most) else ""
        print(f"  no font has {sum(missing.values()):,} of them: {named}{more}")
        print("  add fonts that have them: fallback_fonts=[FILE]")
    if marks := num_marks(drawer.config, [content]):
        print(f"  {marks:,} of them are combining marks, {MARKS_ADVICE}")


def _open(source: str, settings: list[str]) -> "Renderer":
    from pretrainkit.api import open_renderer

    changes: dict[str, Any] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals:
            raise InputError(f"cannot read {setting!r}\n  write settings as NAME=VALUE, such as font_size=8")
        changes[name] = parse_yaml(value, setting)
    max_patches = changes.pop("max_patches", None)
    return open_renderer(source, max_patches, **changes)


def _read(file: Path | None) -> str:
    assert file is not None
    try:
        return " ".join(file.read_text(encoding="utf-8").split())
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {file}: {error}\n  give a text file in UTF-8") from None


def _draw(renderer: "Renderer", content: str, out: Path, num_patches: int, per_line: int) -> None:
    """Draw the start of a text in lines of patches, on a white page."""
    import numpy as np

    from pretrainkit.files.manifest import atomic_file

    pillow = import_optional("PIL.Image", "vision", "renderer preview", package="pillow")
    patch = renderer.config.pixels_per_patch
    # A text that is too long for the picture is cut here; a patch has at most one character per column.
    columns = renderer.columns(content[: num_patches * patch])[: num_patches * patch]
    line = per_line * patch
    page = np.full((-(-len(columns) // line) * line, *columns.shape[1:]), 255, np.uint8)
    page[: len(columns)] = columns
    # Each line has `line` columns: put the lines below each other, and turn columns into rows of pixels.
    lines = page.reshape(-1, line, *columns.shape[1:]).swapaxes(1, 2)
    with atomic_file(out) as target:
        pillow.fromarray(np.ascontiguousarray(lines.reshape(-1, line, *columns.shape[2:]))).save(target, format="PNG")

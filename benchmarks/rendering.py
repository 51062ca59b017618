"""Measure rendering on one core, in text patches per CPU-second, compared with the steps of the original.

    python benchmarks/rendering.py [--rounds 5] [--num-lines 60] [--font FILE] [--quick]

The text is the documentation of Python on this machine, in lines that fill 529 patches; the last patch of a line is the
black one. The peers follow the original's steps. `pygame.freetype` renders a line, which is copied to a canvas and
converted to grey. Pango lays out a line, and Cairo draws it on an alpha surface, which is inverted, or on a coloured
one, whose bytes are reordered. "tensor" ends with float32 (3, 16, 8464) in [0, 1]. Our engines have drawn the text once
before, so that glyphs and words are cached. The engines take turns in each round. The rate is that of the best round,
the ratio is the median over rounds.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from pretrainkit.demo.prose import standard_library_documents
from pretrainkit.errors import MissingPackageError
from pretrainkit.rendering import Renderer, RendererConfig, float_pixels
from pretrainkit.rendering.packing import fill
from pretrainkit.rendering.pango_engine import PangoEngine
from pretrainkit.rendering.pango_library import FORMAT_A8, FORMAT_RGB24, pango_library

P, WIDTH, LAST = 16, 8464, 8448
Engine = Callable[[str], object]
WEIGHTS = np.array([0.299, 0.587, 0.114], np.float32)


class PyGame:
    """The original's PyGame renderer, step by step."""

    def __init__(self, font: str) -> None:
        import pygame
        import pygame.freetype

        pygame.freetype.init()
        pygame.freetype.set_default_resolution(120)
        self.pygame, self.font = pygame, pygame.freetype.Font(font, 8)

    def text(self, text: str) -> np.ndarray:
        canvas = self._canvas()
        drawn, box = self.font.render(text, (0, 0, 0))
        canvas.blit(drawn, (2, P // 2 - box.height // 2))
        return self._finished(canvas, 2 + box.width + 2)

    def words(self, text: str) -> np.ndarray:
        canvas, column = self._canvas(), 2
        for word in text.split():
            drawn, box = self.font.render(word + " ", (0, 0, 0))
            canvas.blit(drawn, (column, 3 + P // 2 - box.y))
            column = min(-(-(column + box.width) // P) * P, LAST)
            if column == LAST:
                break
        return self._finished(canvas, column)

    def _canvas(self) -> Any:
        canvas = self.pygame.Surface((WIDTH, P))
        canvas.fill((255, 255, 255))
        return canvas

    def _finished(self, canvas: Any, column: int) -> np.ndarray:
        end = min(-(-column // P) * P, LAST)
        self.pygame.draw.rect(canvas, (0, 0, 0), self.pygame.Rect(end, 0, P, P))
        colors = self.pygame.surfarray.pixels3d(canvas).swapaxes(0, 1).astype(np.float32)
        return np.rint(colors @ WEIGHTS).astype(np.uint8)

    def tensor(self, text: str) -> np.ndarray:
        from PIL import Image

        image = Image.fromarray(self.text(text)).convert("RGB").resize((WIDTH, P), Image.Resampling.BICUBIC)
        return np.asarray(image).transpose(2, 0, 1).astype(np.float32) / 255


class PangoCairo:
    """The original's PangoCairo renderer, step by step, with our fonts and options."""

    def __init__(self, renderer: Renderer) -> None:
        engine = renderer.engine
        assert isinstance(engine, PangoEngine)
        self.engine, self.pango = engine, pango_library()

    def grey(self, text: str) -> np.ndarray:
        ink = np.zeros((P, WIDTH), np.uint8)
        end = self._draw(text, ink, FORMAT_A8)
        pixels = 255 - ink
        pixels[:, end : end + P] = 0
        return pixels

    def colors(self, text: str) -> np.ndarray:
        surface = np.full((P, WIDTH, 4), 255, np.uint8)
        end = self._draw(text, surface, FORMAT_RGB24)
        pixels = surface[:, :, 2::-1].copy()
        pixels[:, end : end + P] = 0
        return pixels

    def _draw(self, text: str, pixels: np.ndarray, form: int) -> int:
        engine = self.engine
        engine._set_text(text, None)
        width, height = engine._size()
        with engine._drawing(pixels, form, WIDTH, 2, P / 2 - height / 2 - 2) as drawing:
            self.pango.cairo_set_source_rgb(drawing, 0.0, 0.0, 0.0)
            self.pango.pango_cairo_show_layout(drawing, engine._layout)
        return min(-(-(2 + width + 2) // P) * P, LAST)


def measure(engines: dict[str, Engine], lines: list[str], rounds: int) -> dict[str, list[float]]:
    """Return the CPU seconds for all lines in each round."""
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    for engine in engines.values():
        for line in lines:
            engine(line)
    for _ in range(rounds):
        for name, engine in engines.items():
            began = time.process_time()
            for line in lines:
                engine(line)
            seconds[name].append(time.process_time() - began)
    return seconds


def table(seconds: dict[str, list[float]], num_patches: int, num_lines: int) -> str:
    """Return a table of the results. Ratios are relative to the last engine."""
    rows = ["| engine | text patches / CPU-s, best | ms a line, best | times the last |", "|---|---|---|---|"]
    last = list(seconds.values())[-1]
    for name, seconds_of_engine in seconds.items():
        ratio = statistics.median(base / mine for base, mine in zip(last, seconds_of_engine, strict=True))
        rate, each = num_patches / min(seconds_of_engine), 1e3 * min(seconds_of_engine) / num_lines
        rows.append(f"| {name} | {rate:,.0f} | {each:.3f} | {ratio:.2f} |")
    return "\n".join(rows)


def default_font(folder: Path) -> str:
    from PIL import ImageFont

    path = folder / "font.ttf"
    path.write_bytes(ImageFont.load_default(12).font_bytes)
    return str(path)


def prose(renderer: Renderer, num_lines: int) -> list[str]:
    lines: list[str] = []
    for _, document in standard_library_documents():
        pieces = list(fill(renderer, document))
        lines += pieces[:-1]
        if len(lines) >= num_lines:
            break
    return lines[:num_lines]


def tasks(font: str) -> dict[str, dict[str, Engine]]:
    """Return the engines that can run on this machine, by heading and name."""
    freetype = Renderer(RendererConfig(font_file=font, parity=True, on_missing="ignore"))
    engines_by_task: dict[str, dict[str, Engine]] = {
        "FreeType, lines": {"ours": lambda line: freetype(line).pixel_values},
        "FreeType, pre-split words": {"ours": lambda line: freetype(line.split()).pixel_values},
        "FreeType, tensor": {"ours": lambda line: float_pixels(freetype(line))},
    }
    engines_by_task["FreeType, lines"]["ours, patches"] = lambda line: freetype(line).patches
    try:
        peer = PyGame(font)
    except ImportError:
        print("pygame is not installed (pip install 'pretrainkit[bench]'): its renderer is left out\n")
    else:
        engines: list[Engine] = [peer.text, peer.words, peer.tensor]
        for heading, engine in zip(list(engines_by_task), engines, strict=True):
            engines_by_task[heading]["PyGame, as the original"] = engine
    try:
        pango_library()
    except MissingPackageError as error:
        print(f"{error}\n")
        return engines_by_task
    for heading, rgb in (("Pango, lines", False), ("Pango, lines, three colours", True)):
        config = RendererConfig(engine="pango", font_file=font, parity=True, on_missing="ignore", rgb=rgb)
        ours = Renderer(config)
        options = config.font_options.model_copy(update={"keep_words": False})
        whole = Renderer(config.model_copy(update={"font_options": options}))
        drawn = PangoCairo(ours)
        engines_by_task[heading] = {
            "ours": lambda line, ours=ours: ours(line).pixel_values,
            "ours, each line shaped as a whole": lambda line, whole=whole: whole(line).pixel_values,
            "Pango and Cairo, as the original": drawn.colors if rgb else drawn.grey,
        }
    return engines_by_task


def check(engines: dict[str, Engine], lines: list[str]) -> None:
    """Check that the first and the last engine draw equal pixels."""
    first, *_, last = engines.values()
    for line in lines:
        if np.asarray(first(line)).shape == np.asarray(last(line)).shape:
            assert np.allclose(np.asarray(first(line)), np.asarray(last(line)), atol=1e-6), "not the same pixels"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--num-lines", type=int, default=60)
    parser.add_argument("--font", help="a .ttf or .otf file; default: the font of Pillow")
    parser.add_argument("--quick", action="store_true", help="few lines and one round, to check that it runs")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rounds, arguments.num_lines = 1, 4
    with tempfile.TemporaryDirectory() as folder:
        font = arguments.font or default_font(Path(folder))
        renderer = Renderer(RendererConfig(font_file=font, parity=True, on_missing="ignore"))
        lines = prose(renderer, arguments.num_lines)
        characters = statistics.mean(map(len, lines))
        print(f"{len(lines)} lines of {characters:.0f} characters on average, {arguments.rounds} rounds, one core\n")
        for heading, engines in tasks(font).items():
            check(engines, lines)
            counted = [line.split() for line in lines] if "words" in heading else lines
            num_patches = sum(renderer.num_text_patches(line) for line in counted)
            print(f"### {heading}\n\n{table(measure(engines, lines, arguments.rounds), num_patches, len(lines))}\n")


if __name__ == "__main__":
    main()

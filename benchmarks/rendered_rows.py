"""Measure rows of rendered text per CPU-second on one core: making them, reading them, and drawing them on demand.

    python benchmarks/rendered_rows.py [--rounds 5] [--num-rows 96] [--font FILE] [--quick]

The text is the documentation of Python on this machine. "made" converts text to PNG rows of 529 patches; its peer uses
Pillow's PNG encoder for the same rows, as `datasets` does. "read" and "drawn" end with pixels and masks in batches of
32 rows. Their peer follows the original's transform: float32 (3, 16, 8464) from the PNG, an attention mask, and a span
mask. All take turns in each round. The rate is that of the best round, the ratio is the median over rounds.
"""

import argparse
import io
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from pretrainkit.data.source import Records
from pretrainkit.demo.prose import standard_library_documents
from pretrainkit.recipes.pixel.masking import original_mask
from pretrainkit.recipes.pixel.presets import PRESETS
from pretrainkit.recipes.pixel.source import PixelSource, open_source
from pretrainkit.rendering import Renderer, RendererConfig
from pretrainkit.rendering.documents import RenderDocument
from pretrainkit.rendering.packing import fill
from pretrainkit.rendering.prerender import RenderSettings, prerender
from pretrainkit.rendering.row_files import to_png


class Prose:
    """Documents for `prerender`."""

    num_bytes = 0
    identity = "prose"

    def __init__(self, text: str) -> None:
        self.text = text

    def read(self, skips: object, on_bytes: object = None):
        yield RenderDocument("prose", self.text)


def with_pillow(pixels: np.ndarray) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "png")
    return file.getvalue()


def as_the_original(pictures: list[bytes], num_patches: list[int], rng: random.Random) -> list[np.ndarray]:
    from PIL import Image

    results = []
    for picture, number in zip(pictures, num_patches, strict=True):
        image = Image.open(io.BytesIO(picture)).convert("RGB").resize((8464, 16), Image.Resampling.BICUBIC)
        pixels = np.asarray(image).transpose(2, 0, 1).astype(np.float32) / np.float32(255)
        attention = np.zeros(529, np.float32)
        attention[: number + 1] = 1
        masked = original_mask(
            rng,
            num_patches=529,
            num_masking_patches=133,
            num_text_patches=number + 1,
            max_span_length=6,
            spacing=None,
            cumulative_span_weights=(0.2, 0.4, 0.6, 0.8, 0.9, 1.0),
        )
        results += [pixels, attention, masked]
    return results


def build(source: PixelSource, num_rows: int) -> None:
    for begin in range(0, num_rows, 32):
        rows = np.random.default_rng(begin).integers(0, source.sizes[0], 32)
        zeros = np.zeros(32, np.int64)
        source.examples(Records(zeros, zeros, rows, rows.astype(np.uint64)))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--num-rows", type=int, default=96)
    parser.add_argument("--font")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.num_rows = 1, 32
    with tempfile.TemporaryDirectory() as folder:
        font = options.font
        if font is None:
            from PIL import ImageFont

            font = f"{folder}/font.ttf"
            Path(font).write_bytes(ImageFont.load_default(12).font_bytes)
        renderer = Renderer(RendererConfig(font_file=font, on_missing="ignore"))
        text, texts = "", [document[1] for document in standard_library_documents()]
        while len(text) < options.num_rows * 1500:
            text += texts.pop() + " "
        pieces = list(fill(renderer, text))[: options.num_rows]
        documents = Prose(" ".join(pieces))
        config = PRESETS["base"]()
        sources = {}
        for name, with_pixels in (("read", True), ("drawn", False)):
            settings = RenderSettings(with_pixels=with_pixels)
            prerender({"train": documents}, renderer, f"{folder}/{name}", settings, workers=1)
            data = config.data.model_copy(update={"train": (source_of(config, f"{folder}/{name}/train"),)})
            sources[name] = open_source(config.model_copy(update={"data": data}), "train")
        encodings = [renderer(piece) for piece in pieces]
        pictures = [to_png(encoding.pixel_values) for encoding in encodings]
        numbers = [encoding.num_text_patches for encoding in encodings]
        contestants: dict[str, Callable[[], object]] = {
            "made": lambda: [to_png(renderer(piece).pixel_values) for piece in fill(renderer, documents.text)],
            "made, Pillow's PNG": lambda: [
                with_pillow(renderer(piece).pixel_values) for piece in fill(renderer, documents.text)
            ],
            "read": lambda: build(sources["read"], len(pieces)),
            "drawn": lambda: build(sources["drawn"], len(pieces)),
            "read, original's steps": lambda: as_the_original(pictures, numbers, random.Random(0)),
        }
        rates: dict[str, list[float]] = {name: [] for name in contestants}
        for _ in range(options.rounds):
            for name, run in contestants.items():
                begin = time.process_time()
                run()
                rates[name].append(len(pieces) / (time.process_time() - begin))
        size = sum(map(len, pictures)) / len(pictures)
        other = sum(len(with_pillow(encoding.pixel_values)) for encoding in encodings) / len(encodings)
        print(
            f"{len(pieces)} rows, pictures of {size:,.0f} bytes (Pillow's: {other:,.0f}), {options.rounds} interleaved "
            "rounds, one core\n\n| way | rows / CPU-s, best | patches / CPU-s | times the peer |\n|---|---|---|---|"
        )
        for name, rates_of_way in rates.items():
            peer = rates["made, Pillow's PNG" if name.startswith("made") else "read, original's steps"]
            ratio = statistics.median(a / b for a, b in zip(rates_of_way, peer, strict=True))
            print(f"| {name} | {max(rates_of_way):,.0f} | {max(rates_of_way) * 528:,.0f} | {ratio:.2f} |")


def source_of(config: object, path: str):
    from pretrainkit.training.data_config import SourceConfig

    return SourceConfig(path=path)


if __name__ == "__main__":
    main()

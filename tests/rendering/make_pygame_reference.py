"""Writes pygame_reference.json: what PyGame's own renderer draws, as hashes of the pixels.

    pip install pygame==2.3.0 pillow numpy
    python tests/rendering/make_pygame_reference.py FONT... > tests/rendering/pygame_reference.json

The font of Pillow is always among them. Nothing of pretrainkit is used: this is the other side of the comparison. The
recipe is that of the original: text is rendered by `pygame.freetype`, put onto a white surface and turned to grey.
"""

import hashlib
import itertools
import json
import math
import sys
import tempfile
from pathlib import Path

import numpy as np

P, L, PAD, POINTS, DPI = 16, 529, 3, 8, 120

TEXTS = [
    "",
    " ",
    "a",
    "My cat loves oatmeal.",
    "xxx",
    ".",
    "'",
    "jjj fff ff j",
    "AVAToo fi ffi office",
    "  leading and trailing  ",
    "tab\there, new\nline",
    "é ü ñ Ж щ",
    "a\u0301b\u0302\u0303c",
    "\u0301",
    "emoji 😀 here",
    "gjpqy|{}[]()",
    "x" * 700,
    "The quick brown fox jumps over the lazy dog. " * 40,
    "سلام אבג",
    "नमस्ते दुनिया สวัสดีครับ",
    "漢字かな交じり文 한국어",
]


class PyGameRenderer:
    def __init__(self, font: str) -> None:
        import pygame
        import pygame.freetype

        pygame.freetype.init()
        pygame.freetype.set_default_resolution(DPI)
        self.pygame, self.font = pygame, pygame.freetype.Font(font, POINTS)
        self.font.style = pygame.freetype.STYLE_NORMAL

    def canvas(self):
        surface = self.pygame.Surface((P * L, P))
        surface.fill((255, 255, 255))
        return surface

    def put(self, surface, text: str, column: int, *, is_word: bool) -> int:
        box = self.font.get_rect(text)
        top = int(PAD + P / 2 - box.y) if is_word else P // 2 - box.height // 2
        surface.blit(self.font.render(text, (0, 0, 0))[0], (column, top))
        return box.width

    def black(self, surface, column: int) -> None:
        self.pygame.draw.rect(surface, (0, 0, 0), self.pygame.Rect(column, 0, P, P))

    def grey(self, surface) -> np.ndarray:
        colors = self.pygame.surfarray.array3d(surface).swapaxes(0, 1)
        return np.rint(colors @ np.array([0.299, 0.587, 0.114])).astype(np.uint8)

    def text(self, text: str):
        surface = self.canvas()
        end = next_patch(2 + self.put(surface, text, 2, is_word=False) + 2)
        self.black(surface, end)
        return self.grey(surface), [end // P]

    def pair(self, first: str, second: str):
        surface = self.canvas()
        middle = next_patch(2 + self.put(surface, first, 2, is_word=False) + 2)
        self.black(surface, middle)
        begin = middle + P + 2
        end = next_patch(begin + self.put(surface, second, begin, is_word=False) + 2)
        self.black(surface, end)
        return self.grey(surface), [middle // P, end // P]

    def words(self, words: list[str]):
        surface, column, starts = self.canvas(), 2, [0]
        for word in words[:-1]:
            column = next_patch(column + self.put(surface, word + " ", column, is_word=True))
            starts.append(column // P)
            if column == (L - 1) * P:
                break
        else:
            column = next_patch(column + 2 + self.put(surface, words[-1], column, is_word=True))
            starts.append(column // P)
        self.black(surface, column)
        return self.grey(surface), starts


def next_patch(column: int) -> int:
    return min(math.ceil(column / P) * P, (L - 1) * P)


def entries(font: str) -> list[list]:
    renderer = PyGameRenderer(font)
    found = []
    for text in TEXTS:
        found.append([text, *hashed(*renderer.text(text))])
    for text in TEXTS:
        words = text.split() or [""]
        found.append([words, *hashed(*renderer.words(words))])
    for pair in itertools.pairwise(TEXTS):
        found.append([{"pair": list(pair)}, *hashed(*renderer.pair(*pair))])
    return found


def hashed(pixels: np.ndarray, places: list[int]) -> tuple[list[int], str]:
    return places, hashlib.sha256(np.ascontiguousarray(pixels).tobytes()).hexdigest()[:32]


def main() -> None:
    from PIL import ImageFont

    with tempfile.TemporaryDirectory() as folder:
        pillow = Path(folder) / "pillow.ttf"
        pillow.write_bytes(ImageFont.load_default(12).font_bytes)
        found = {}
        for font in [str(pillow), *sys.argv[1:]]:
            content = Path(font).read_bytes()
            found[hashlib.sha256(content).hexdigest()] = {"name": Path(font).name, "entries": entries(font)}
    lines = [
        f'"{sha}": {{"name": {json.dumps(font["name"])}, "entries": [\n'
        + ",\n".join(json.dumps(entry) for entry in font["entries"])
        + "\n]}"
        for sha, font in found.items()
    ]
    print("{" + ",\n".join(lines) + "}")


if __name__ == "__main__":
    main()

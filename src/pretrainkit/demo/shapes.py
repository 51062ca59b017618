"""Generated image-text pairs: simple shapes on a plain background, with captions that describe them.

Everything is a function of the seed. Held-out images never show a scene of the training images.
"""

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np

COLORS = {
    "red": (214, 40, 40),
    "green": (46, 139, 60),
    "blue": (38, 84, 200),
    "yellow": (240, 200, 30),
    "purple": (130, 50, 160),
    "orange": (245, 130, 30),
    "black": (25, 25, 25),
    "white": (250, 250, 250),
}
GROUNDS = {"grey": (128, 128, 128), "pink": (244, 180, 200), "brown": (120, 80, 50), "cyan": (140, 220, 225)}
SHAPES = ("circle", "square", "triangle", "diamond", "cross", "ring")
SIZES = {"small": 0.16, "big": 0.3}
"""Maps each word to a radius, as a share of the image's height."""
RELATIONS = {"above": (0, 1), "left of": (1, 0)}
"""Maps each word to the direction from the first shape to the second."""
PLACES = {"top": (0.5, 0.28), "bottom": (0.5, 0.72), "left side": (0.28, 0.5), "right side": (0.72, 0.5)}


@dataclass(frozen=True)
class Scene:
    """The content of an image."""

    shapes: tuple[tuple[str, str, str], ...]
    """Size, colour and kind of each of one or two shapes."""
    place: str
    """Place of a single shape; for two shapes, the relation of the first to the second."""
    ground: str

    def captions(self) -> tuple[str, str]:
        """Return two captions of the scene."""
        named = [f"{size} {color} {kind}" for size, color, kind in self.shapes]
        if len(named) == 2:
            return (
                f"a {named[0]} {self.place} a {named[1]} on a {self.ground} ground",
                f"on {self.ground}, a {named[0]} is {self.place} a {named[1]}",
            )
        return (
            f"a {named[0]} at the {self.place} of a {self.ground} ground",
            f"on {self.ground}, at the {self.place}: a {named[0]}",
        )


def draw_scene(rng: np.random.Generator, num_shapes: int) -> Scene:
    """Draw a random scene of one or two shapes with different colours."""
    colors = rng.permutation(list(COLORS))[:num_shapes]
    shapes = tuple((str(rng.choice(list(SIZES))), str(color), str(rng.choice(SHAPES))) for color in colors)
    place = str(rng.choice(list(RELATIONS if num_shapes == 2 else PLACES)))
    return Scene(shapes, place, str(rng.choice(list(GROUNDS))))


def write_sets(folder: Path, *, num_train: int, num_valid: int, side: int, seed: int) -> dict[str, int]:
    """Write two data sets, `single` (one shape) and `pairs` (two shapes), in ZeroVL's layout of annotations and images.
    Each image has two captions. Return the number of training pairs of each set."""
    sizes = {}
    for number, name in enumerate(("single", "pairs"), start=1):
        rng = np.random.default_rng((seed, number))
        scenes: dict[Scene, None] = {}
        while len(scenes) < num_train + num_valid:
            scenes[draw_scene(rng, number)] = None
        ordered = list(scenes)
        _write_split(folder / name, "valid", ordered[:num_valid], side, rng)
        sizes[name] = _write_split(folder / name, "train", ordered[num_valid:], side, rng)
    return sizes


def _write_split(folder: Path, split: str, scenes: list[Scene], side: int, rng: np.random.Generator) -> int:
    (folder / split).mkdir(parents=True)
    num_rows = 0
    with open(folder / f"{split}_anno.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["image", "image_id", "caption", "caption_id"])
        for number, scene in enumerate(scenes):
            _paint(scene, side, rng).save(folder / split / f"{number:05}.png")
            for caption in scene.captions():
                writer.writerow([f"{number:05}.png", number, caption, num_rows])
                num_rows += 1
    return num_rows


def _paint(scene: Scene, side: int, rng: np.random.Generator):
    """Draw a scene four times as large and scale it down, so that edges are smooth. Positions vary by a few pixels."""
    from PIL import Image, ImageDraw

    large = 4 * side
    image = Image.new("RGB", (large, large), GROUNDS[scene.ground])
    draw = ImageDraw.Draw(image)
    if len(scene.shapes) == 2:
        dx, dy = RELATIONS[scene.place]
        centers = [(0.5 - 0.22 * dx, 0.5 - 0.22 * dy), (0.5 + 0.22 * dx, 0.5 + 0.22 * dy)]
        scale = 0.72
    else:
        centers, scale = [PLACES[scene.place]], 0.85
    for (size, color, kind), (x, y) in zip(scene.shapes, centers, strict=True):
        jitter = rng.uniform(-0.03, 0.03, 2)
        center = ((x + jitter[0]) * large, (y + jitter[1]) * large)
        _draw_shape(draw, kind, center, SIZES[size] * scale * large, COLORS[color], GROUNDS[scene.ground])
    return image.resize((side, side), Image.Resampling.LANCZOS)


def _draw_shape(draw, kind, center, radius, color, ground) -> None:
    x, y = center
    box = (x - radius, y - radius, x + radius, y + radius)
    if kind == "circle":
        draw.ellipse(box, fill=color)
    elif kind == "ring":
        draw.ellipse(box, fill=color)
        inner = 0.5 * radius
        draw.ellipse((x - inner, y - inner, x + inner, y + inner), fill=ground)
    elif kind == "square":
        half = 0.86 * radius
        draw.rectangle((x - half, y - half, x + half, y + half), fill=color)
    elif kind == "triangle":
        draw.polygon([(x, y - radius), (x - radius, y + 0.8 * radius), (x + radius, y + 0.8 * radius)], fill=color)
    elif kind == "diamond":
        draw.polygon([(x, y - radius), (x + 0.7 * radius, y), (x, y + radius), (x - 0.7 * radius, y)], fill=color)
    else:
        arm = 0.36 * radius
        draw.rectangle((x - arm, y - radius, x + arm, y + radius), fill=color)
        draw.rectangle((x - radius, y - arm, x + radius, y + arm), fill=color)

"""Generated scenes in five views: photograph, depth, classes, caption and boxes.

A scene is a room with two things on the floor; the camera is tilted down by a random angle. Distant things are nearer
to the horizon and smaller, so that depth is visible. All edges are on a grid, so that boxes have few different numbers
and image tokenizers see few different patches. Everything is a function of the seed.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

COLORS = {
    "red": (214, 40, 40),
    "green": (46, 160, 60),
    "blue": (38, 84, 220),
    "yellow": (240, 205, 30),
    "purple": (140, 50, 170),
    "white": (245, 245, 245),
}
KINDS = ("ball", "box", "cone")
CLASSES = tuple(f"{color} {kind}" for color in COLORS for kind in KINDS)
"""Classes of things, with the class numbers 1 to 18. Floor and wall are class 0."""
WALLS = {"grey": (150, 155, 160), "pink": (230, 160, 185), "brown": (150, 105, 65)}
_FLOOR = (75, 70, 65)
_GRID = 16
"""Number of steps of the grid per width and height of the picture. Edges are at even steps: with 8 x 8 patches no patch
shows a piece of two things, and few tokens suffice for all pieces."""
_HORIZONS = (2, 4, 6, 8)
"""Rows of the grid where floor and wall may meet, from the top."""
_NEAREST, _FARTHEST = 2.0, 8.0
"""Distance of the floor at the lower edge of the picture, and of the wall."""
VIEWS = ("rgb", "depth", "seg", "caption", "det")


class Thing(NamedTuple):
    """A thing in a scene. Coordinates are steps of the grid."""

    kind: str
    color: str
    left: int
    foot: int
    """Row of its lower edge from the top."""
    size: int
    """Width and height."""
    distance: float

    @property
    def name(self) -> str:
        """Its class, such as "red ball"."""
        return f"{self.color} {self.kind}"

    @property
    def box(self) -> list[float]:
        """xmin, ymin, xmax, ymax, as shares of the picture's width and height."""
        edges = (self.left, self.foot - self.size, self.left + self.size, self.foot)
        return [edge / _GRID for edge in edges]


class Scene(NamedTuple):
    """The content of a picture."""

    things: tuple[Thing, ...]
    """Things from left to right."""
    wall: str
    horizon: int

    @property
    def caption(self) -> str:
        """A description in English."""
        return f"{' left of '.join(f'a {thing.name}' for thing in self.things)} in a {self.wall} room"


def draw_scene(rng: np.random.Generator) -> Scene:
    """Draw a random scene with two things of different colours on the floor, one in each half of the picture."""
    horizon, things = int(rng.choice(_HORIZONS)), []
    for half, color in enumerate(rng.permutation(list(COLORS))[:2]):
        foot = 2 * int(rng.integers(((horizon + _GRID) // 2 + 2) // 2, _GRID // 2))
        distance = _distance((foot - horizon) / (_GRID - horizon))
        size = 2 * round(_GRID / 2 / distance)
        left = half * _GRID // 2 + 2 * int(rng.integers((_GRID // 2 - size) // 2 + 1))
        things.append(Thing(str(rng.choice(KINDS)), str(color), left, foot, size, distance))
    return Scene(tuple(things), str(rng.choice(list(WALLS))), horizon)


def _distance(near: float) -> float:
    """Return the distance of the floor at `near`: 0 is at the wall, 1 at the lower edge of the picture."""
    # In perspective, the inverse of the distance is linear in the picture.
    return 1 / (near / _NEAREST + (1 - near) / _FARTHEST)


def paint(scene: Scene, side: int) -> tuple[NDArray[np.uint8], NDArray[np.float64], NDArray[np.uint8]]:
    """Return a photograph uint8 (side, side, 3), distances float64 (side, side), and classes uint8 (side, side)."""
    height = (np.arange(side) + 0.5) / side * _GRID
    near = ((height - scene.horizon) / (_GRID - scene.horizon)).clip(0, 1)
    depth = np.repeat(np.array([_distance(share) for share in near])[:, None], side, axis=1)
    classes, rgb = np.zeros((side, side), np.uint8), np.full((side, side, 3), _FLOOR, np.uint8)
    rgb[height < scene.horizon] = WALLS[scene.wall]
    for thing in scene.things:
        is_inside = _inside(thing, height[None], height[:, None])
        rgb[is_inside] = COLORS[thing.color]
        depth[is_inside] = thing.distance
        classes[is_inside] = 1 + CLASSES.index(thing.name)
    return rgb, depth, classes


def _inside(thing: Thing, x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.bool_]:
    across, up = np.abs(2 * (x - thing.left) / thing.size - 1), (thing.foot - y) / thing.size
    if thing.kind == "ball":
        return across**2 + (2 * up - 1) ** 2 <= 1
    return (across <= (1 if thing.kind == "box" else 1 - up)) & (up >= 0) & (up <= 1)


def write_rooms(folder: Path, num: int, seed: int, side: int = 64, others: Sequence[Scene] = ()) -> list[Scene]:
    """Write `num` different scenes to a new folder, with a subfolder for each of `VIEWS`. Return the scenes, none of
    which has a caption of `others`."""
    from PIL import Image

    rng, known, captions = np.random.default_rng(seed), set[Scene](), {scene.caption for scene in others}
    scenes: list[Scene] = []
    for view in VIEWS:
        (folder / view).mkdir(parents=True)
    while len(scenes) < num:
        scene = draw_scene(rng)
        if scene in known or scene.caption in captions:
            continue
        known.add(scene)
        name = f"{len(scenes):05}"
        scenes.append(scene)
        rgb, depth, classes = paint(scene, side)
        far = (depth / (_FARTHEST + 1) * 65535).astype(np.uint16)
        for view, pixels in (("rgb", rgb), ("depth", far), ("seg", classes)):
            Image.fromarray(pixels).save(folder / view / f"{name}.png")
        (folder / "caption" / f"{name}.txt").write_text(scene.caption, encoding="utf-8")
        boxes = [{"boxes": thing.box, "class_name": thing.name, "score": 1.0} for thing in scene.things]
        (folder / "det" / f"{name}.json").write_text(json.dumps({"instances": boxes}), encoding="utf-8")
    return scenes

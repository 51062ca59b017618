"""Generated scenes in five views: photograph, depth, classes, caption and boxes.

A scene is a room with one or two things on the floor; the camera is tilted down by a random angle. Distant things are
nearer to the horizon, smaller and paler, so that depth is visible. Everything is a function of the seed.
"""

import json
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
"""Kinds of things, with the class numbers 1, 2 and 3. Floor and wall are class 0."""
WALLS = {"grey": (120, 125, 130), "pink": (230, 160, 185), "brown": (125, 90, 60)}
_HORIZONS = (0.15, 0.6)
"""Minimum and maximum row where floor and wall meet, as a share of the height from the top."""
_NEAREST, _FARTHEST = 2.0, 8.0
"""Distance of the floor at the lower edge of the picture, and of the wall."""
_MOST_FOG = 0.45
"""Share of the wall's colour in the colour of a thing at the wall."""
_BOX_STEPS = 32
"""Number of steps per width and height to which boxes are rounded."""
VIEWS = ("rgb", "depth", "seg", "caption", "det")


class Thing(NamedTuple):
    """A thing in a scene. Coordinates are shares of the picture's width and height."""

    kind: str
    color: str
    across: float
    """Horizontal position of its centre, 0 to 1."""
    foot: float
    """Vertical position of its lower edge from the top, 0 to 1."""
    distance: float

    @property
    def size(self) -> float:
        """Width and height as a share of the picture."""
        return 1.1 / self.distance

    @property
    def box(self) -> list[float]:
        """xmin, ymin, xmax, ymax, clipped to the picture and rounded to `_BOX_STEPS` steps: a short training can learn
        these few different numbers."""
        half = self.size / 2
        edges = (self.across - half, self.foot - self.size, self.across + half, self.foot)
        return [round(min(max(edge, 0.0), 1.0) * _BOX_STEPS) / _BOX_STEPS for edge in edges]


class Scene(NamedTuple):
    """The content of a picture."""

    things: tuple[Thing, ...]
    """Things from left to right."""
    wall: str
    horizon: float

    @property
    def caption(self) -> str:
        """A description in English."""
        return f"{' left of '.join(f'a {thing.color} {thing.kind}' for thing in self.things)} in a {self.wall} room"


def draw_scene(rng: np.random.Generator) -> Scene:
    """Draw a random scene with one or two things of different colours on the floor."""
    num, horizon = int(rng.integers(1, 3)), float(rng.uniform(*_HORIZONS))
    colors = rng.permutation(list(COLORS))[:num]
    positions = [rng.uniform(0.3, 0.7)] if num == 1 else [rng.uniform(0.18, 0.34), rng.uniform(0.66, 0.82)]
    things = []
    for color, position in zip(colors, positions, strict=True):
        near = float(rng.uniform(0.3, 0.95))
        foot, distance = horizon + near * (1 - horizon), _distance(near)
        things.append(Thing(str(rng.choice(KINDS)), str(color), float(position), foot, distance))
    return Scene(tuple(things), str(rng.choice(list(WALLS))), horizon)


def _distance(near: float) -> float:
    """Return the distance of the floor at `near`: 0 is at the wall, 1 at the lower edge of the picture."""
    # In perspective, the inverse of the distance is linear in the picture.
    return 1 / (near / _NEAREST + (1 - near) / _FARTHEST)


def paint(
    scene: Scene, side: int, rng: np.random.Generator
) -> tuple[NDArray[np.uint8], NDArray[np.float64], NDArray[np.uint8]]:
    """Return a photograph uint8 (side, side, 3), distances float64 (side, side), and classes uint8 (side, side)."""
    height = (np.arange(side) + 0.5) / side
    near = ((height - scene.horizon) / (1 - scene.horizon)).clip(0, 1)
    depth = np.repeat(np.array([_distance(share) for share in near])[:, None], side, axis=1)
    classes, ground = np.zeros((side, side), np.uint8), np.array(WALLS[scene.wall], np.float64)
    is_floor = (height >= scene.horizon)[:, None, None]
    rgb = np.where(is_floor, ground * 0.55 + 90 * (1 - depth / _FARTHEST)[..., None], ground)
    y, x = height[:, None], height[None]
    # Paint from far to near: near things cover distant ones.
    for thing in sorted(scene.things, key=lambda thing: -thing.distance):
        is_inside = _inside(thing, x, y)
        fog = _MOST_FOG * (thing.distance - _NEAREST) / (_FARTHEST - _NEAREST)
        color = np.array(COLORS[thing.color], np.float64) * (1 - fog) + ground * fog
        shade = 0.75 + 0.25 * (thing.foot - y) / thing.size
        rgb = np.where(is_inside[..., None], color * shade[..., None], rgb)
        depth = np.where(is_inside, thing.distance, depth)
        classes[is_inside] = 1 + KINDS.index(thing.kind)
    noisy = rgb + rng.normal(scale=3, size=rgb.shape)
    return noisy.clip(0, 255).astype(np.uint8), depth, classes


def _inside(thing: Thing, x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.bool_]:
    across, up = 2 * np.abs(x - thing.across) / thing.size, (thing.foot - y) / thing.size
    if thing.kind == "ball":
        return across**2 + (2 * up - 1) ** 2 <= 1
    if thing.kind == "box":
        return (across <= 0.9) & (up >= 0) & (up <= 0.9)
    return (across <= 1 - up) & (up >= 0)


def write_rooms(folder: Path, num: int, seed: int, side: int = 64) -> list[str]:
    """Write `num` scenes to a new folder, with a subfolder for each of `VIEWS`. Return the captions."""
    from PIL import Image

    rng, captions = np.random.default_rng(seed), []
    for view in VIEWS:
        (folder / view).mkdir(parents=True)
    for number in range(num):
        scene = draw_scene(rng)
        rgb, depth, classes = paint(scene, side, rng)
        far = (depth / (_FARTHEST + 1) * 65535).astype(np.uint16)
        for view, pixels in (("rgb", rgb), ("depth", far), ("seg", classes)):
            Image.fromarray(pixels).save(folder / view / f"{number:05}.png")
        captions.append(scene.caption)
        (folder / "caption" / f"{number:05}.txt").write_text(scene.caption, encoding="utf-8")
        boxes = [{"boxes": thing.box, "class_name": thing.kind, "score": 1.0} for thing in scene.things]
        (folder / "det" / f"{number:05}.json").write_text(json.dumps({"instances": boxes}), encoding="utf-8")
    return captions

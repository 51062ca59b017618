"""A generated set of scenes in five views: photograph, depth, classes, caption and boxes.

One or two things stand on the floor of a room; the camera looks more or less down. What is far stands nearer to the
horizon and is smaller and paler, so depth can be seen. Everything is a function of the seed.
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
"""Class 1, 2, 3; floor and wall are 0."""
WALLS = {"grey": (120, 125, 130), "pink": (230, 160, 185), "brown": (125, 90, 60)}
_HORIZONS = (0.15, 0.6)
"""Where floor and wall meet, from the top."""
_NEAREST, _FARTHEST = 2.0, 8.0
"""Distance of the floor at the lower edge and of the wall."""
_MOST_FOG = 0.45
"""How much of the wall's colour a thing at the wall has."""
_BOX_STEPS = 32
"""Of the width and the height of a picture."""
VIEWS = ("rgb", "depth", "seg", "caption", "det")


class Thing(NamedTuple):
    """What stands in a room."""

    kind: str
    color: str
    across: float
    """Of its middle, 0 to 1."""
    foot: float
    """Of its lower edge, from the top, 0 to 1."""
    distance: float

    @property
    def size(self) -> float:
        """Width and height as a share of the picture."""
        return 1.1 / self.distance

    @property
    def box(self) -> list[float]:
        """xmin, ymin, xmax, ymax, inside the picture, to the nearest of `_BOX_STEPS` steps: few different numbers,
        which a short training can learn."""
        half = self.size / 2
        edges = (self.across - half, self.foot - self.size, self.across + half, self.foot)
        return [round(min(max(edge, 0.0), 1.0) * _BOX_STEPS) / _BOX_STEPS for edge in edges]


class Room(NamedTuple):
    """What a picture shows."""

    things: tuple[Thing, ...]
    """From the left."""
    wall: str
    horizon: float

    @property
    def caption(self) -> str:
        """What people would say."""
        return f"{' left of '.join(f'a {one.color} {one.kind}' for one in self.things)} in a {self.wall} room"


def draw_room(rng: np.random.Generator) -> Room:
    """One or two things of different colours somewhere on the floor."""
    num, horizon = int(rng.integers(1, 3)), float(rng.uniform(*_HORIZONS))
    colors = rng.permutation(list(COLORS))[:num]
    places = [rng.uniform(0.3, 0.7)] if num == 1 else [rng.uniform(0.18, 0.34), rng.uniform(0.66, 0.82)]
    things = []
    for color, place in zip(colors, places, strict=True):
        near = float(rng.uniform(0.3, 0.95))
        foot, distance = horizon + near * (1 - horizon), _distance(near)
        things.append(Thing(str(rng.choice(KINDS)), str(color), float(place), foot, distance))
    return Room(tuple(things), str(rng.choice(list(WALLS))), horizon)


def _distance(near: float) -> float:
    """Of the floor: 0 at the wall, 1 at the lower edge of the picture."""
    # In perspective it is the inverse of the distance that is linear in the picture.
    return 1 / (near / _NEAREST + (1 - near) / _FARTHEST)


def paint(
    room: Room, side: int, rng: np.random.Generator
) -> tuple[NDArray[np.uint8], NDArray[np.float64], NDArray[np.uint8]]:
    """uint8 (side, side, 3), distances (side, side), and classes uint8 (side, side)."""
    height = (np.arange(side) + 0.5) / side
    near = ((height - room.horizon) / (1 - room.horizon)).clip(0, 1)
    depth = np.repeat(np.array([_distance(one) for one in near])[:, None], side, axis=1)
    classes, ground = np.zeros((side, side), np.uint8), np.array(WALLS[room.wall], np.float64)
    is_floor = (height >= room.horizon)[:, None, None]
    rgb = np.where(is_floor, ground * 0.55 + 90 * (1 - depth / _FARTHEST)[..., None], ground)
    y, x = height[:, None], height[None]
    # What is near covers what is far.
    for thing in sorted(room.things, key=lambda one: -one.distance):
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
    """Write `num` scenes into the new folder, a file each in the folders of `VIEWS`; returns the captions."""
    from PIL import Image

    rng, captions = np.random.default_rng(seed), []
    for view in VIEWS:
        (folder / view).mkdir(parents=True)
    for number in range(num):
        room = draw_room(rng)
        rgb, depth, classes = paint(room, side, rng)
        far = (depth / (_FARTHEST + 1) * 65535).astype(np.uint16)
        for view, pixels in (("rgb", rgb), ("depth", far), ("seg", classes)):
            Image.fromarray(pixels).save(folder / view / f"{number:05}.png")
        captions.append(room.caption)
        (folder / "caption" / f"{number:05}.txt").write_text(room.caption, encoding="utf-8")
        boxes = [{"boxes": one.box, "class_name": one.kind, "score": 1.0} for one in room.things]
        (folder / "det" / f"{number:05}.json").write_text(json.dumps({"instances": boxes}), encoding="utf-8")
    return captions

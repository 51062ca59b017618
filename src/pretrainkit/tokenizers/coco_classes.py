"""Names of classes: the 80 kinds of things in COCO's boxes (Lin et al. 2014, https://arxiv.org/abs/1405.0312), or those
in a file."""

from pathlib import Path

from pretrainkit.errors import DataError

_TEXT = """
    airplane, apple, backpack, banana, baseball bat, baseball glove, bear, bed, bench, bicycle, bird, boat, book,
    bottle, bowl, broccoli, bus, cake, car, carrot, cat, cell phone, chair, clock, couch, cow, cup, dining table, dog,
    donut, elephant, fire hydrant, fork, frisbee, giraffe, hair drier, handbag, horse, hot dog, keyboard, kite, knife,
    laptop, microwave, motorcycle, mouse, orange, oven, parking meter, person, pizza, potted plant, refrigerator,
    remote, sandwich, scissors, sheep, sink, skateboard, skis, snowboard, spoon, sports ball, stop sign, suitcase,
    surfboard, teddy bear, tennis racket, tie, toaster, toilet, toothbrush, traffic light, train, truck, tv, umbrella,
    vase, wine glass, zebra
"""
COCO_CLASSES = tuple(" ".join(_TEXT.split()).split(", "))


def read_classes(where: str | None) -> tuple[str, ...]:
    """The names in a file, one in each line; "coco": its 80; None: none.

    Raises:
        DataError: The file cannot be read or has no name.
    """
    if where is None:
        return ()
    if where == "coco":
        return COCO_CLASSES
    try:
        names = tuple(line.strip() for line in Path(where).read_text(encoding="utf-8").splitlines() if line.strip())
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"the class names {where} cannot be read: {error}\n  give a file, or coco") from error
    if not names:
        raise DataError(f"{where} has no class name\n  write one in each line, or leave the option out")
    return names

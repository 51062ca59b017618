"""The names of the 80 kinds of things in COCO's boxes (Lin et al. 2014, https://arxiv.org/abs/1405.0312)."""

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

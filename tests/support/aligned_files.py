"""A small data set on a disk: shapes with colours, depth, classes, boxes and captions that belong together."""

import io
import json
import tarfile

import numpy as np
from PIL import Image

from pretrainkit.recipes.fourm.config import FourMDataConfig, MaskingConfig
from pretrainkit.recipes.fourm.modality import published
from pretrainkit.recipes.fourm.presets import tiny
from pretrainkit.tokenizers.train import TokenizerSettings, train_tokenizer

SUFFIXES = {"rgb": ".png", "depth": ".png", "semseg": ".png", "det": ".json", "caption": ".json", "tok_rgb@64": ".npy"}
NAMES = ("rgb@64", "caption", "det", "map_depth@64", "map_semseg@64")
CLASSES = ("red square", "blue square")


def png(values):
    file = io.BytesIO()
    Image.fromarray(values).save(file, "PNG")
    return file.getvalue()


def files_of(number):
    """Modality to content of a sample: one square on a dark table."""
    generator = np.random.default_rng(number)
    height, width = 80, 120
    side = int(generator.integers(20, 40))
    top, left = int(generator.integers(0, height - side)), int(generator.integers(0, width - side))
    kind = number % 2
    rgb, classes = np.zeros((height, width, 3), np.uint8), np.zeros((height, width), np.uint8)
    depth = np.full((height, width), 40000, np.uint16)
    rgb[top : top + side, left : left + side, 2 * kind] = 255
    classes[top : top + side, left : left + side] = 1 + kind
    depth[top : top + side, left : left + side] = 9000
    box = [left / width, top / height, (left + side) / width, (top + side) / height]
    boxes = {"instances": [{"boxes": box, "score": 1.0, "class_name": CLASSES[kind]}]}
    return {
        "rgb": png(rgb),
        "depth": png(depth),
        "semseg": png(classes),
        "det": json.dumps(boxes).encode(),
        "caption": json.dumps([f"a {CLASSES[kind]} on a table", "something on a table"]).encode(),
    }


def write_folders(root, num, folders=("rgb", "depth", "semseg", "det", "caption"), start=0):
    for number in range(start, start + num):
        for folder, content in files_of(number).items():
            if folder in folders:
                place = root / folder / "0000"
                place.mkdir(parents=True, exist_ok=True)
                (place / f"{number:06d}{SUFFIXES[folder]}").write_bytes(content)
    return root


def write_tars(root, num, folders=("rgb", "depth", "semseg", "det", "caption"), per_shard=4):
    for folder in folders:
        (root / folder).mkdir(parents=True, exist_ok=True)
        for shard in range(-(-num // per_shard)):
            with tarfile.open(root / folder / f"{shard:02d}.tar", "w") as archive:
                for number in range(shard * per_shard, min(num, (shard + 1) * per_shard)):
                    content = files_of(number)[folder]
                    member = tarfile.TarInfo(f"{number:06d}{SUFFIXES[folder]}")
                    member.size = len(content)
                    archive.addfile(member, io.BytesIO(content))
    return f"{root}/[{','.join(folders)}]/{{00..{-(-num // per_shard) - 1:02d}}}.tar"


def write_tokenizer(root):
    words = root / "words.tsv"
    words.write_text("a\t90\nred\t20\nblue\t20\non\t30\ntable\t30\nsomething\t9\n")
    out = root / "tokenizer"
    settings = TokenizerSettings(kind="multimodal", vocab_size=4236, lowercase=True, classes=CLASSES)
    train_tokenizer([words], out, settings)
    return out


def config_of(train, tokenizer, *, valid=(), names=NAMES, masking=None, **data):
    modalities = tuple(published(name) if isinstance(name, str) else name for name in names)
    return tiny().changed(
        model={"modalities": modalities},
        masking=MaskingConfig(**(masking or {"mixture": ({},), "num_input_tokens": 40, "num_target_tokens": 40})),
        data=FourMDataConfig(train=train, valid=valid, tokenizer=str(tokenizer), batch_size=4, **data),
    )

"""Compare loading and augmenting JPEG files on one core with Pillow and torchvision's transforms, in CPU time.

    python benchmarks/images.py [--rounds 15] [--num-images 64] [--images FILE...] [--quick]

Images are generated: 500 x 375 pixels with the spectrum of photographs (amplitude ~ 1 / frequency), JPEG quality 90; or
they are the files of --images. Both sides start from the bytes of the file. "pixels" ends with uint8 (3, S, S), the
input of our models, which normalize on the device. "tensor" is the usual pipeline of torchvision, with ToTensor and
Normalize. "training" is the setting of the clip recipe, with libjpeg-turbo's fast DCT. Ours decodes a JPEG at half its
size or less if the crop is large enough; the rows "exact" are as in evaluation: decoded at full size and resized by
Pillow. Contestants take turns in each round.

The second table compares decoders, the third resizers; our choices are based on them.
"""

import argparse
import io
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from pretrainkit.exporting.torchvision_shim import import_torchvision
from pretrainkit.images.decode import open_image
from pretrainkit.images.ops import AutoAugment, CenterCrop, ImageTransform, RandomResizeCrop, Resize
from pretrainkit.images.transforms import compose, resize

WIDTH, HEIGHT = 500, 375
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
Engine = Callable[[bytes], object]


def make_images(num: int) -> list[bytes]:
    """Return JPEG files of noise with the spectrum of photographs."""
    from PIL import Image

    rng = np.random.default_rng(0)
    frequencies = np.hypot(np.fft.fftfreq(HEIGHT)[:, None], np.fft.rfftfreq(WIDTH)[None])
    falling = 1 / np.maximum(frequencies, 1 / WIDTH)
    files = []
    for _ in range(num):
        grey, red, blue = (np.fft.irfft2(np.fft.rfft2(rng.normal(size=(HEIGHT, WIDTH))) * falling) for _ in range(3))
        grey, red, blue = (plane / plane.std() for plane in (grey, red, blue))
        colors = np.stack([grey + 0.3 * red, grey - 0.15 * red - 0.15 * blue, grey + 0.3 * blue], axis=2)
        file = io.BytesIO()
        Image.fromarray(np.clip(colors * 50 + 120, 0, 255).astype(np.uint8)).save(file, "JPEG", quality=90)
        files.append(file.getvalue())
    return files


def ours(ops: list[ImageTransform], *, is_exact: bool = False, is_fast: bool = False) -> Engine:
    transform, rng = compose(ops, is_exact=is_exact), np.random.default_rng(0)

    def run(content: bytes) -> np.ndarray:
        return np.ascontiguousarray(transform.load(content, rng, is_fast=is_fast).transpose(2, 0, 1))

    return run


def theirs(*transforms: Callable[[object], object], is_tensor: bool) -> Engine:
    import torchvision.transforms as reference
    from PIL import Image

    last = [reference.ToTensor(), reference.Normalize(MEAN, DEVIATION)] if is_tensor else [reference.PILToTensor()]
    transform = reference.Compose([*transforms, *last])
    return lambda content: transform(Image.open(io.BytesIO(content)).convert("RGB"))


def pipelines() -> dict[str, dict[str, Engine]]:
    """Return the engines by task and name."""
    import torchvision.transforms as reference

    tasks = {}
    for size, auto in ((224, True), (224, False), (64, False)):
        ops = [RandomResizeCrop(size=size, scale=(0.6, 1.0)), *([AutoAugment()] if auto else [])]
        peers = [reference.RandomResizedCrop(size, scale=(0.6, 1.0)), *([reference.AutoAugment()] if auto else [])]
        tasks[f"random_resize_crop {size}{', autoaug' if auto else ''}"] = both(ops, peers)
    tasks["resize 256, center_crop 224"] = both(
        [Resize(size=256), CenterCrop(size=224)], [reference.Resize((256, 256)), reference.CenterCrop(224)]
    )
    return tasks


def both(ops: list[ImageTransform], peers: list[Callable[[object], object]]) -> dict[str, Engine]:
    return {
        "ours, training": ours(ops, is_fast=True),
        "ours, pixels": ours(ops),
        "ours, pixels, exact": ours(ops, is_exact=True),
        "Pillow and torchvision v1, pixels": theirs(*peers, is_tensor=False),
        "Pillow and torchvision v1, tensor": theirs(*peers, is_tensor=True),
    }


def decode(content: bytes) -> np.ndarray:
    return open_image(content).decode()


def decoders() -> dict[str, Engine]:
    from PIL import Image

    def pillow(content: bytes) -> np.ndarray:
        return np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))

    def drafted(content: bytes) -> np.ndarray:
        opened = Image.open(io.BytesIO(content))
        opened.draft("RGB", (opened.width // 2, opened.height // 2))
        return np.asarray(opened)

    def ours_at_half(content: bytes) -> np.ndarray:
        encoded = open_image(content)
        return encoded.decode((encoded.width // 2, encoded.height // 2))

    engines: dict[str, Engine] = {
        "ours": decode,
        "ours, a half": ours_at_half,
        "Pillow": pillow,
        "Pillow, a half": drafted,
    }
    try:
        import simplejpeg
    except ImportError:
        return engines

    def turbo(eighths: int) -> Engine:
        def run(content: bytes) -> np.ndarray:
            height, width, _, _ = simplejpeg.decode_jpeg_header(content)
            return simplejpeg.decode_jpeg(
                content, min_width=-(-width * eighths // 8), min_height=-(-height * eighths // 8)
            )

        return run

    return engines | {f"libjpeg-turbo, {eighths}/8": turbo(eighths) for eighths in range(8, 0, -1)}


def resizers() -> dict[str, Engine]:
    from PIL import Image

    def pillow(image: "Image.Image", **options: object) -> np.ndarray:
        return np.asarray(image.resize((224, 224), Image.Resampling.BILINEAR, **options))

    decoded: dict[bytes, tuple[np.ndarray, Image.Image]] = {}

    def decoded_pair(content: bytes) -> "tuple[np.ndarray, Image.Image]":
        if content not in decoded:
            decoded[content] = decode(content), Image.fromarray(decode(content))
        return decoded[content]

    return {
        "ours (torch, uint8)": lambda content: resize(decoded_pair(content)[0], 224, 224),
        "Pillow": lambda content: pillow(decoded_pair(content)[1]),
        "Pillow, reducing_gap 2": lambda content: pillow(decoded_pair(content)[1], reducing_gap=2.0),
    }


def measure(engines: dict[str, Engine], files: list[bytes], rounds: int) -> dict[str, list[float]]:
    """Return the CPU seconds for all files in each round. The engines take turns."""
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    for engine in engines.values():
        engine(files[0])
    for _ in range(rounds):
        for name, engine in engines.items():
            began = time.process_time()
            for content in files:
                engine(content)
            seconds[name].append(time.process_time() - began)
    return seconds


def table(seconds: dict[str, list[float]], num: int, reference: str) -> str:
    """Return a table of the results. Ratios are medians over rounds, each of two measurements in the same round."""
    lines = [f"| engine | images / CPU-s, best | ms, best | times {reference} |", "|---|---|---|---|"]
    for name, seconds_of_engine in seconds.items():
        ratio = statistics.median(base / mine for base, mine in zip(seconds[reference], seconds_of_engine, strict=True))
        lines.append(
            f"| {name} | {num / min(seconds_of_engine):,.0f} | {1e3 * min(seconds_of_engine) / num:.2f} | {ratio:.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--num-images", type=int, default=64)
    parser.add_argument(
        "--images", type=Path, nargs="*", default=[], help="JPEG files to use instead of generated ones"
    )
    parser.add_argument("--quick", action="store_true", help="few images and one round, to check that it runs")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rounds, arguments.num_images = 1, 4
    import_torchvision()
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    files = [path.read_bytes() for path in arguments.images] or make_images(arguments.num_images)
    kilobytes = statistics.mean(map(len, files)) / 1e3
    print(f"{len(files)} images of {kilobytes:.0f} kB on average, {arguments.rounds} interleaved rounds, one core\n")
    for task, engines in pipelines().items():
        seconds = measure(engines, files, arguments.rounds)
        print(f"### {task}\n\n{table(seconds, len(files), 'Pillow and torchvision v1, pixels')}\n")
    print(f"### Decoding\n\n{table(measure(decoders(), files, arguments.rounds), len(files), 'Pillow')}\n")
    print(f"### Resizing to 224 x 224\n\n{table(measure(resizers(), files, arguments.rounds), len(files), 'Pillow')}")


if __name__ == "__main__":
    main()

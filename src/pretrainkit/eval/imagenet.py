"""Class names and captions for zero-shot classification on ImageNet, the data sets that share its classes, and CIFAR,
as in OpenAI's evaluation of CLIP (Radford et al. 2021, https://arxiv.org/abs/2103.00020). Long lists come from
packages."""

from collections.abc import Sequence

from pretrainkit.errors import DataError, import_optional

_EXTRA = "open-clip"
_NUM_CLASSES = 1000


def imagenet_names(classes: Sequence[str]) -> list[str]:
    """Return the names of classes whose folders are named by WordNet ids (ImageNet, -R, -A, Sketch) or class numbers
    (V2). Raises DataError for other folders, and MissingPackageError if a package is missing."""
    names = import_optional(
        "open_clip.zero_shot_metadata", _EXTRA, "suite: imagenet", package="open_clip_torch"
    ).IMAGENET_CLASSNAMES
    ids = import_optional("timm.data", "vision", "suite: imagenet", package="timm").ImageNetInfo().label_names()
    numbers = {name: number for number, name in enumerate(ids)} | {str(n): n for n in range(_NUM_CLASSES)}
    if unknown := [name for name in classes if name not in numbers]:
        raise DataError(
            f"{len(unknown)} folders are not classes of ImageNet, such as {', '.join(unknown[:3])}\n"
            "  folders have WordNet ids (n01440764) or numbers (0 to 999); for other classes leave suite out"
        )
    return [names[numbers[name]] for name in classes]


def imagenet_templates() -> list[str]:
    """Return the 80 captions with {} for the class. Raises MissingPackageError if open_clip_torch is missing."""
    metadata = import_optional("open_clip.zero_shot_metadata", _EXTRA, "suite: imagenet", package="open_clip_torch")
    return [template("{}") for template in metadata.OPENAI_IMAGENET_TEMPLATES]


def cifar_templates() -> list[str]:
    """Return the 18 captions with {} for the class of CIFAR-10 and CIFAR-100: nine variants of "a photo of", each with
    "a" and "the" before the class."""
    adjectives = ("", "blurry ", "black and white ", "low contrast ", "high contrast ", "bad ", "good ")
    parts = [*((adjective, "") for adjective in adjectives), ("", "small "), ("", "big ")]
    return [f"a {look}photo of {article} {size}{{}}." for article in ("a", "the") for look, size in parts]

"""What a modality is: a record of its tokens and of how its files are read. Torch-free.

A user declares one in their own module, as an object of `Modality`, and names it in `model.modalities`, as
`their_module:OBJECT` or `path/of/a/file.py:OBJECT`; its `reader` may be theirs too.

Here are the published ones, at any resolution, and three of our own that need no image tokenizer (colours, depths and
classes of patches: coarse, but made in an instant). Source: 4M (https://arxiv.org/abs/2312.06647), table of modalities;
4M-21 (https://arxiv.org/abs/2406.09406), table of modalities and appendix on tokenizers. Vocabularies, lengths and
names are those of the released models; that `human_poses` has fewer positions than tokens is theirs, too.
"""

import hashlib
import json
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BeforeValidator, PositiveInt, model_validator

from pretrainkit.config.base import Config
from pretrainkit.config.paths import IsPath
from pretrainkit.errors import ConfigError
from pretrainkit.tasks.user_modules import user_object

Kind = Literal["pixels", "image", "sequence", "vectors"]

MAX_POSITIONS = 512
"""Rows of the table of positions of sequences and vectors."""
_MAX_PLACES = 1 << 14
"""Tokens of one modality, so that numbers of tokens and of places fit into one word."""
TEXT_VOCABULARY = 30_000
_DEFAULT_SIZE = 224


class Modality(Config):
    """One modality."""

    neutral_fields: ClassVar[frozenset[str]] = frozenset({"folder", "reader"})

    name: str
    """Unique; an image of so many pixels has them behind an @, as in tok_rgb@224."""
    kind: Kind
    """pixels: patches of an image, an input only. image: a token for each patch, from a tokenizer; which of them are
    inputs and which are targets is drawn patch by patch. sequence: ids of the text vocabulary, such as captions, boxes
    or metadata; runs of it are hidden behind sentinels. vectors: a sequence of embeddings of another model, an input
    only."""
    is_input: bool = True
    """Whether it has an embedding in the encoder."""
    is_target: bool = True
    """Whether it has an embedding and a head in the decoder; never for pixels and vectors."""
    vocab_size: PositiveInt | None = None
    """Of image and sequence. For sequences a run puts the size of its tokenizer here."""
    image_size: PositiveInt | None = None
    """Of pixels and image: pixels of each side."""
    patch_size: PositiveInt | None = None
    """Of pixels and image: pixels of each side that one token stands for."""
    num_channels: PositiveInt | None = None
    """Of pixels."""
    has_learned_positions: bool = False
    """Of image: positions are parameters, else fixed sines and cosines."""
    length: PositiveInt | None = None
    """Of sequence and vectors: at most so many tokens, those behind are cut off."""
    num_positions: PositiveInt | None = None
    """Of sequence and vectors: tokens that get a position of their own, at most 512; null: `length`."""
    vector_width: PositiveInt | None = None
    """Of vectors: numbers in each."""
    folder: str | None = None
    """Of its files in a data set; null: the name."""
    reader: Annotated[str, IsPath()]
    """What makes tokens of a file: one of `readers.READERS`, or module:OBJECT of a `readers.Reader` of yours."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        needed: dict[Kind, tuple[str, ...]] = {
            "pixels": ("image_size", "patch_size", "num_channels"),
            "image": ("image_size", "patch_size", "vocab_size"),
            "sequence": ("length", "vocab_size"),
            "vectors": ("length", "vector_width"),
        }
        missing = [field for field in needed[self.kind] if getattr(self, field) is None]
        if missing:
            raise ValueError(f"modality {self.name!r} of kind {self.kind!r} needs {', '.join(missing)}; give them")
        if self.image_size is not None and self.patch_size is not None and self.image_size % self.patch_size:
            raise ValueError(
                f"image_size {self.image_size} of modality {self.name!r} is not a multiple of its patch_size "
                f"{self.patch_size}; change one of them"
            )
        if self.max_length > MAX_POSITIONS:
            raise ValueError(
                f"modality {self.name!r} wants {self.max_length} positions, but there are {MAX_POSITIONS}; "
                f"set length or num_positions to at most {MAX_POSITIONS}"
            )
        if self.max_tokens >= _MAX_PLACES:
            raise ValueError(f"modality {self.name!r} has {self.max_tokens} tokens; at most {_MAX_PLACES - 1} work")
        if self.is_target and self.kind in ("pixels", "vectors"):
            raise ValueError(f"modality {self.name!r} of kind {self.kind!r} is an input only\n  set is_target=false")
        if not (self.is_input or self.is_target):
            raise ValueError(f"modality {self.name!r} is neither input nor target; leave it out")
        return self

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches; pixels and image only."""
        assert self.image_size is not None
        assert self.patch_size is not None
        return self.image_size // self.patch_size, self.image_size // self.patch_size

    @property
    def max_tokens(self) -> int:
        """Most tokens of one example: patches of the grid, or `length`."""
        if self.length is not None:
            return self.length
        rows, columns = self.grid
        return rows * columns

    @property
    def max_length(self) -> int:
        """Rows of the table of positions that sequences and vectors use; 0 for images."""
        return 0 if self.length is None else self.num_positions or self.length

    @property
    def path(self) -> str:
        """Name of its folder in a data set."""
        return self.folder or self.name

    @property
    def key(self) -> str:
        """The name without the resolution."""
        return self.name.partition("@")[0]

    @property
    def id(self) -> int:
        """The original's number of it: 15 bits of SHA-256 of the name."""
        return int(hashlib.sha256(self.name.encode()).hexdigest(), 16) % (1 << 15)


def _image(name: str, vocab_size: int, patch_size: int = 16, *, reader: str = "tokens", **more: Any) -> Modality:
    more |= {"image_size": _DEFAULT_SIZE, "patch_size": patch_size}
    return Modality(name=name, kind="image", vocab_size=vocab_size, reader=reader, **more)


def _sequence(name: str, length: int, reader: str, **more: Any) -> Modality:
    return Modality(name=name, kind="sequence", vocab_size=TEXT_VOCABULARY, length=length, reader=reader, **more)


_KNOWN = {
    modality.key: modality
    for modality in (
        Modality(
            name="rgb@224",
            kind="pixels",
            is_target=False,
            image_size=_DEFAULT_SIZE,
            patch_size=16,
            num_channels=3,
            folder="rgb",
            reader="rgb",
        ),
        _sequence("caption", 256, "caption"),
        _sequence("det", 256, "boxes"),
        _image("tok_rgb@224", 16384),
        _image("tok_depth@224", 8192),
        _image("tok_normal@224", 8192),
        _image("tok_semseg@224", 4096),
        _image("tok_clip@224", 8192),
        Modality(name="t5_caption", kind="vectors", is_target=False, length=77, vector_width=4096, reader="vectors"),
        _sequence("metadata", 40, "metadata"),
        _sequence("human_poses", 275, "poses", num_positions=263),
        _sequence("color_palette", 23, "palette"),
        _sequence("sam_instance", 290, "sam_instances"),
        _image("tok_canny_edge@224", 8192),
        _image("tok_sam_edge@224", 8192),
        _image("tok_dinov2@224", 8192, 14),
        _image("tok_imagebind@224", 8192, 14),
        _image("tok_dinov2_global", 8192, 56, has_learned_positions=True),
        _image("tok_imagebind_global", 8192, 56, has_learned_positions=True),
        _image("map_rgb@224", 512, folder="rgb", reader="colors"),
        _image("map_depth@224", 256, folder="depth", reader="depth"),
        _image("map_semseg@224", 256, folder="semseg", reader="classes"),
    )
}
_OWN = ("map_rgb", "map_depth", "map_semseg")


_MOD7 = ("rgb", "caption", "det", "tok_rgb", "tok_depth", "tok_normal", "tok_semseg", "tok_clip")
MOD7 = tuple(sorted(_KNOWN[key].name for key in _MOD7))
"""Of 4M-7: 8 inputs, 7 targets; in the order of the original."""
MOD21 = tuple(sorted(modality.name for key, modality in _KNOWN.items() if key not in _OWN))
"""Of the released 4M-21: 19 inputs, 17 targets."""


def published(name: str) -> Modality:
    """Return the modality of a published name, or the same at another resolution, as in `tok_rgb@448`. Raises
    ConfigError where there is no such modality, or the resolution is no number of whole patches."""
    key, at, size = name.partition("@")
    found = _KNOWN.get(key)
    if found is None or (not at and "@" in found.name) or (at and "@" not in found.name):
        known = ", ".join(sorted(modality.name for modality in _KNOWN.values()))
        raise ConfigError(
            f"there is no modality {name!r}\n  there are {known}, at other resolutions too; one of your own is named "
            "as module:OBJECT or path/of/a/file.py:OBJECT"
        )
    if not at or name == found.name:
        return found
    if not size.isdecimal() or int(size) < 1:
        raise ConfigError(f"modality {name!r} has {size!r} behind its @\n  write the pixels of a side, as in {key}@448")
    patch = found.patch_size or 1
    if int(size) % patch:
        below = int(size) // patch * patch
        nearest = " or ".join(f"{key}@{side}" for side in (below, below + patch) if side)
        raise ConfigError(
            f"invalid modality {name!r}: {size} pixels are no whole number of patches of {patch}\n  use {nearest}"
        )
    return Modality(**{**found.model_dump(), "name": name, "image_size": int(size)})


def as_setting(modalities: Sequence[Modality]) -> str:
    """A value of `model.modalities` that stands for these, but for the vocabulary of sequences, which is that of the
    tokenizer: names of published ones, and objects."""
    items = [
        one.name if is_published(one, "vocab_size") else one.model_dump(mode="json", exclude_defaults=True)
        for one in modalities
    ]
    return json.dumps(items, ensure_ascii=False)


def is_published(modality: Modality, *free: str) -> bool:
    """Return True if there is a published modality that differs in nothing but fields that are `free`."""
    try:
        there = published(modality.name)
    except ConfigError:
        return False
    return there.model_copy(update={name: getattr(modality, name) for name in free}) == modality


def _named(name: str) -> Modality:
    """Return what an item of `model.modalities` stands for: a published name, or `module:OBJECT`."""
    if ":" not in name:
        return published(name)
    found = user_object(name)
    if not isinstance(found, Modality):
        raise ConfigError(
            f"{name} is of type {type(found).__name__}, not a Modality\n"
            "  declare it as an object of pretrainkit.recipes.fourm.modality.Modality"
        )
    return found


def _resolved(value: object) -> object:
    if isinstance(value, str):
        value = [part for part in value.split(",") if part]
    if isinstance(value, (list, tuple)):
        try:
            return tuple(_named(item) if isinstance(item, str) else item for item in value)
        except ConfigError as error:
            raise ValueError(str(error)) from error
    return value


def _checked(modalities: tuple[Modality, ...]) -> tuple[Modality, ...]:
    names = [modality.name for modality in modalities]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"{', '.join(twice)} occurs more than once; leave out all but one")
    if len(names) > 255:
        raise ValueError(f"{len(names)} modalities are more than the 255 that can be numbered; leave some out")
    return modalities


Modalities = Annotated[
    tuple[Modality, ...],
    BeforeValidator(_resolved, json_schema_input_type=str | tuple[str | Modality, ...]),
    AfterValidator(_checked),
]
"""In a config: objects, or names (`tok_rgb@224`, `module:OBJECT`), also in one text with commas between them."""

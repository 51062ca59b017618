"""Modalities: their kind of tokens and the reader of their files. This module does not import torch.

Users declare their own modalities as objects of `Modality` in their own module. They name them in `model.modalities`,
as `their_module:OBJECT` or `path/of/a/file.py:OBJECT`. The `reader` may be their own, too.

This module has the published modalities at any resolution, and three of the project: colours, depths and classes of
patches. They are coarse but need no image tokenizer. Source: 4M (https://arxiv.org/abs/2312.06647), table of
modalities; 4M-21 (https://arxiv.org/abs/2406.09406), table of modalities and appendix on tokenizers. Vocabularies,
lengths and names are those of the released models. There, too, `human_poses` has fewer positions than tokens.
"""

import hashlib
import json
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BeforeValidator, PositiveInt, model_validator

from pretrainkit.config.base import Config
from pretrainkit.config.fields import FileName
from pretrainkit.config.paths import IsPath
from pretrainkit.errors import ConfigError
from pretrainkit.tasks.user_modules import user_object

Kind = Literal["pixels", "image", "sequence", "vectors"]

MAX_POSITIONS = 512
"""Number of rows of the position table of sequences and vectors."""
_MAX_PLACES = 1 << 14
"""Limit of the tokens of one modality (exclusive): an index of a token must fit into the low bits of a random
number."""
TEXT_VOCABULARY = 30_000
_DEFAULT_SIZE = 224


class Modality(Config):
    """Modality: a kind of data with its tokens and files."""

    neutral_fields: ClassVar[frozenset[str]] = frozenset({"folder", "reader"})

    name: FileName
    """Unique name. Images have their side in pixels after an @, as in tok_rgb@224."""
    kind: Kind
    """Kind of tokens. pixels: patches of an image, an input only. image: one token per patch, from an image tokenizer;
    a random draw divides the patches into inputs and targets. sequence: ids of the text vocabulary, such as captions,
    boxes or metadata; sentinels replace hidden spans. vectors: a sequence of embeddings of another model, an input
    only."""
    is_input: bool = True
    """True if the modality has an embedding in the encoder."""
    is_target: bool = True
    """True if the modality has an embedding and a head in the decoder; must be false for pixels and vectors."""
    vocab_size: PositiveInt | None = None
    """Size of the vocabulary; image and sequence only. For sequences, a run replaces it by the size of its
    tokenizer."""
    image_size: PositiveInt | None = None
    """Height and width of the image, in pixels; pixels and image only."""
    patch_size: PositiveInt | None = None
    """Height and width of a patch, in pixels; each patch is one token; pixels and image only."""
    num_channels: PositiveInt | None = None
    """Number of channels of the image; pixels only."""
    has_learned_positions: bool = False
    """Use learned position embeddings instead of fixed sines and cosines; image only."""
    length: PositiveInt | None = None
    """Maximum number of tokens; tokens after them are cut off. sequence and vectors only."""
    num_positions: PositiveInt | None = None
    """Number of tokens with a separate position, at most 512; null: `length`. sequence and vectors only."""
    vector_width: PositiveInt | None = None
    """Width of each vector; vectors only."""
    folder: str | None = None
    """Folder of the modality's files in a data set; null: the name."""
    reader: Annotated[str, IsPath(".py")]
    """Reader of the modality's files: one of `readers.READERS`, or module:OBJECT of your own `readers.Reader`."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        required: dict[Kind, tuple[str, ...]] = {
            "pixels": ("image_size", "patch_size", "num_channels"),
            "image": ("image_size", "patch_size", "vocab_size"),
            "sequence": ("length", "vocab_size"),
            "vectors": ("length", "vector_width"),
        }
        missing = [field for field in required[self.kind] if getattr(self, field) is None]
        if missing:
            raise ValueError(f"modality {self.name!r} of kind {self.kind!r} needs {', '.join(missing)}; set them")
        if self.image_size is not None and self.patch_size is not None and self.image_size % self.patch_size:
            raise ValueError(
                f"image_size {self.image_size} of modality {self.name!r} is not a multiple of its patch_size "
                f"{self.patch_size}; change one of them"
            )
        if self.max_length > MAX_POSITIONS:
            raise ValueError(
                f"modality {self.name!r} needs {self.max_length} positions, but the maximum is {MAX_POSITIONS}; "
                f"set length or num_positions to at most {MAX_POSITIONS}"
            )
        if self.max_tokens >= _MAX_PLACES:
            raise ValueError(f"modality {self.name!r} has {self.max_tokens} tokens; use at most {_MAX_PLACES - 1}")
        if self.is_target and self.kind in ("pixels", "vectors"):
            raise ValueError(f"modality {self.name!r} of kind {self.kind!r} is an input only\n  set is_target=false")
        if not (self.is_input or self.is_target):
            raise ValueError(f"modality {self.name!r} is neither an input nor a target; leave it out")
        return self

    @property
    def grid(self) -> tuple[int, int]:
        """Number of rows and columns of patches; pixels and image only."""
        assert self.image_size is not None
        assert self.patch_size is not None
        return self.image_size // self.patch_size, self.image_size // self.patch_size

    @property
    def max_tokens(self) -> int:
        """Maximum number of tokens in an example: all patches of the grid, or `length`."""
        if self.length is not None:
            return self.length
        rows, columns = self.grid
        return rows * columns

    @property
    def max_length(self) -> int:
        """Number of rows of the position table that sequences and vectors use; 0 for images."""
        return 0 if self.length is None else self.num_positions or self.length

    @property
    def path(self) -> str:
        """Name of the modality's folder in a data set."""
        return self.folder or self.name

    @property
    def key(self) -> str:
        """The name without the resolution."""
        return self.name.partition("@")[0]

    @property
    def id(self) -> int:
        """Number of the modality in the original code: 15 bits of the SHA-256 of the name."""
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
"""Modalities of 4M-7: 8 inputs, 7 targets; in the order of the original."""
MOD21 = tuple(sorted(modality.name for key, modality in _KNOWN.items() if key not in _OWN))
"""Modalities of the released 4M-21: 19 inputs, 17 targets."""


def published(name: str) -> Modality:
    """Return the published modality with this name, also at another resolution, as in `tok_rgb@448`. Raises ConfigError
    if there is no such modality or if the resolution is not a multiple of the patch size."""
    key, separator, size = name.partition("@")
    default = _KNOWN.get(key)
    if default is None or (not separator and "@" in default.name) or (separator and "@" not in default.name):
        known = ", ".join(sorted(modality.name for modality in _KNOWN.values()))
        raise ConfigError(
            f"there is no modality {name!r}\n  published modalities are {known}, also at other resolutions; name your "
            "own modality as module:OBJECT or path/of/a/file.py:OBJECT"
        )
    if not separator or name == default.name:
        return default
    if not size.isdecimal() or int(size) < 1:
        raise ConfigError(f"modality {name!r} has {size!r} after its @\n  write the pixels of a side, as in {key}@448")
    patch = default.patch_size or 1
    if int(size) % patch:
        smaller = int(size) // patch * patch
        nearest = " or ".join(f"{key}@{side}" for side in (smaller, smaller + patch) if side)
        raise ConfigError(
            f"invalid modality {name!r}: {size} pixels are not a multiple of the patch size {patch}\n  use {nearest}"
        )
    return Modality(**{**default.model_dump(), "name": name, "image_size": int(size)})


def as_setting(modalities: Sequence[Modality]) -> str:
    """Return these modalities as a value of `model.modalities`: names of published ones, and objects. The vocabulary
    size of published sequences is left out, because the tokenizer decides it."""
    items = [
        modality.name
        if is_published(modality, "vocab_size")
        else modality.model_dump(mode="json", exclude_defaults=True)
        for modality in modalities
    ]
    return json.dumps(items, ensure_ascii=False)


def is_published(modality: Modality, *free: str) -> bool:
    """Return True if a published modality is equal in all fields that are not `free`."""
    try:
        original = published(modality.name)
    except ConfigError:
        return False
    return original.model_copy(update={name: getattr(modality, name) for name in free}) == modality


def _named(name: str) -> Modality:
    """Return the modality for a name in `model.modalities`: a published name, or `module:OBJECT`."""
    if ":" not in name:
        return published(name)
    modality = user_object(name)
    if not isinstance(modality, Modality):
        raise ConfigError(
            f"{name} is an object of type {type(modality).__name__}, not a Modality\n"
            "  declare it as an object of pretrainkit.recipes.fourm.modality.Modality"
        )
    return modality


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
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ValueError(f"{', '.join(repeated)} occurs more than once; keep one of them")
    if len(names) > 255:
        raise ValueError(f"{len(names)} modalities exceed the maximum of 255; leave some out")
    return modalities


Modalities = Annotated[
    tuple[Modality, ...],
    BeforeValidator(_resolved, json_schema_input_type=str | tuple[str | Modality, ...]),
    AfterValidator(_checked),
]
"""Config field of modalities: objects, or names (`tok_rgb@224`, `module:OBJECT`), also as one comma-separated
string."""

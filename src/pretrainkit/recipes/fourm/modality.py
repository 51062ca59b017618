"""What a modality is: a record of its tokens and of how its files are read. Torch-free.

Four kinds. "pixels": an image cut into patches, an input only. "image": one token for each patch of an image, from a
tokenizer; which of them are inputs and which are targets is drawn patch by patch. "sequence": token ids of the shared
text vocabulary, such as captions, boxes or metadata; runs of it are hidden behind sentinels. "vectors": a sequence of
embeddings from another model, an input only.

A user declares one in their own module, as an object of `Modality`, and names it in `model.modalities`, as
`their_module:OBJECT` or `path/of/a/file.py:OBJECT`; its `reader` may be theirs too.
"""

import hashlib
from typing import Annotated, ClassVar, Literal, Self

from pydantic import PositiveInt, model_validator

from pretrainkit.config.base import Config
from pretrainkit.config.paths import IsPath

Kind = Literal["pixels", "image", "sequence", "vectors"]

MAX_POSITIONS = 512
"""Rows of the table of positions of sequences and vectors."""
_MAX_PLACES = 1 << 14
"""Tokens of one modality, so that numbers of tokens and of places fit into one word."""


class Modality(Config):
    """One modality."""

    neutral_fields: ClassVar[frozenset[str]] = frozenset({"folder", "reader"})

    name: str
    """Unique; an image of so many pixels has them behind an @, as in tok_rgb@224."""
    kind: Kind
    """pixels: patches of an image, an input only. image: a token for each patch. sequence: ids of the text vocabulary.
    vectors: a sequence of embeddings, an input only."""
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
            raise ValueError(f"modality {self.name!r} of kind {self.kind!r} is an input only; set is_target=false")
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
        """Of sequence and vectors: rows of the table of positions that are used; 0 for images."""
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

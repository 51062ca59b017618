"""Ids of the control tokens, and the errors that vocabularies of all kinds raise."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pretrainkit.errors import DataError


@dataclass(frozen=True)
class SpecialIds:
    """Ids that no text is encoded to, except `unk` if a tokenizer has no byte pieces."""

    unk: int
    cls: int
    """Id that begins a row; `<s>` in SentencePiece."""
    sep: int
    """Id that ends a segment; `</s>` in SentencePiece."""
    mask: int
    pad: int

    def as_dict(self) -> dict[str, int]:
        """Return the ids by name, as manifests store them."""
        return asdict(self)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any], where: str) -> "SpecialIds":
        """Read the ids of a manifest. Raises DataError, which names the file `where`, if an id is missing or not an
        integer."""
        names = cls.__dataclass_fields__
        values = content if isinstance(content, Mapping) else {}
        broken = [name for name in names if type(values.get(name)) is not int]
        if broken:
            raise DataError(f"{where} has no id for {', '.join(broken)}\n  make the tokenizer or the shards again")
        return cls(**{name: content[name] for name in names})


def too_many_characters(vocab_size: int, least: int) -> DataError:
    """Return the error of a vocabulary that is too small for its text, whose characters alone take `least` pieces."""
    return DataError(
        f"--vocab-size is {vocab_size}, but the characters of this text alone take {least} pieces\n"
        f"  use --vocab-size {least} or more"
    )


class TooFewPieces(DataError):
    """A text yields fewer pieces than the vocabulary should have."""

    def __init__(self, vocab_size: int, most: int) -> None:
        super().__init__(
            f"--vocab-size is {vocab_size}, but this text yields at most {most} pieces\n"
            f"  use --vocab-size {most} or less, or count the words of more text"
        )
        self.most = most

"""Ids of the control tokens, and what vocabularies of all kinds refuse."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pretrainkit.errors import DataError


@dataclass(frozen=True)
class SpecialIds:
    """Ids that text never encodes to (`unk` aside, where a tokenizer has no byte pieces)."""

    unk: int
    cls: int
    """Begins a row; `<s>` in SentencePiece."""
    sep: int
    """Ends a segment; `</s>` in SentencePiece."""
    mask: int
    pad: int

    def as_dict(self) -> dict[str, int]:
        """For manifests."""
        return asdict(self)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any], where: str) -> "SpecialIds":
        """From a manifest. Raises DataError where an id is missing or not an integer; `where` names the file."""
        names = cls.__dataclass_fields__
        broken = [name for name in names if not isinstance(content.get(name), int)]
        if broken:
            raise DataError(f"{where} has no id for {', '.join(broken)}\n  make the tokenizer or the shards anew")
        return cls(**{name: content[name] for name in names})


def too_many_characters(vocab_size: int, least: int) -> DataError:
    """A vocabulary is too small for the characters of its text, which take `least` pieces."""
    return DataError(
        f"--vocab-size is {vocab_size}, but the characters of this text alone take {least} pieces\n"
        f"  use --vocab-size {least} or more"
    )


class TooFewPieces(DataError):
    """A text does not yield as many pieces as a vocabulary should have."""

    def __init__(self, vocab_size: int, most: int) -> None:
        super().__init__(
            f"--vocab-size is {vocab_size}, but this text yields at most {most} pieces\n"
            f"  use --vocab-size {most} or less, or count the words of more text"
        )
        self.most = most

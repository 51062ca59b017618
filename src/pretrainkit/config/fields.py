"""Field types that several configs share."""

import re
from typing import Annotated

from pydantic import AfterValidator, Field

Rate = Annotated[float, Field(ge=0, le=1)]
"""Fraction between 0 and 1."""
NonNegativeFloat = Annotated[float, Field(ge=0)]


def _is_pattern(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{pattern!r} is not a valid regular expression: {error}") from None
    return pattern


Pattern = Annotated[str, AfterValidator(_is_pattern)]
"""A regular expression."""

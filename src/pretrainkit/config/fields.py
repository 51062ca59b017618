"""Kinds of values that many configs have."""

import re
from typing import Annotated

from pydantic import AfterValidator, Field

Rate = Annotated[float, Field(ge=0, le=1)]
"""A share."""
NonNegativeFloat = Annotated[float, Field(ge=0)]


def _is_pattern(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{pattern!r} is no regular expression: {error}") from None
    return pattern


Pattern = Annotated[str, AfterValidator(_is_pattern)]
"""A regular expression."""

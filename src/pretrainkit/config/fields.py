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


def _is_file_name(name: str) -> str:
    if name in ("", ".", "..") or set(name) & set("/\\\0"):
        raise ValueError(f"{name!r} is not a valid name, because files get this name; use no slashes")
    return name


FileName = Annotated[str, AfterValidator(_is_file_name)]
"""A name of which names of files are made. It cannot lead out of their folder."""

"""Numbers as languages write them."""

import re

_GROUPS = {"en": (",", "."), "": (",", "."), "de": (".", ","), "fr": ("\u202f", ","), "es": ("\u00a0", ","),
           "it": (".", ","), "nl": (".", ","), "pt": (".", ","), "ru": ("\u00a0", ","), "pl": ("\u00a0", ","),
           "bg": ("\u00a0", ","), "uk": ("\u00a0", ","), "cs": ("\u00a0", ","), "sv": ("\u00a0", ","),
           "fi": ("\u00a0", ","), "tr": (".", ","), "id": (".", ","), "ca": (".", ","), "da": (".", ","),
           "el": (".", ","), "ro": (".", ","), "sr": (".", ","), "vi": (".", ","), "no": ("\u00a0", ","),
           "hu": ("\u00a0", ",")}  # fmt: skip
"""Language to the signs between thousands and before decimals."""


def group_digits(number: str, language: str) -> str:
    """`1234567.8` as the language writes it; what is no plain number stays as it is."""
    found = re.fullmatch(r"([-−+]?)(\d+)(?:\.(\d+))?", number.replace(",", ""))
    if not found:
        return number
    comma, point = _GROUPS.get(language, ("\u00a0", ","))
    grouped = f"{int(found[2]):,}".replace(",", comma) if len(found[2]) < 4000 else found[2]
    return found[1] + grouped + (point + found[3] if found[3] else "")

"""Lists of words, written as text."""


def words(text: str) -> list[str]:
    """Split `text` at whitespace."""
    return text.split()

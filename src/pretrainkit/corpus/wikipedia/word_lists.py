"""Lists of words, written as text."""


def words(text: str) -> list[str]:
    """The words of `text`, in order."""
    return text.split()

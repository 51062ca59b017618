"""Words to make texts of."""

WORDS = [
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "a",
    "lazy",
    "dog",
    "and",
    "runs",
    "into",
    "the",
    "dark",
    "green",
    "wood",
]

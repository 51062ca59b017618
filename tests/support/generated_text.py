"""Text of invented words: each document is about a few of them, so that there is something to learn."""

import random


def documents(num: int = 400, seed: int = 0) -> list[str]:
    """Documents of one sentence per line."""
    rng = random.Random(seed)
    vocabulary = [
        "".join(rng.choice("bdfgklmnprstvz") + rng.choice("aeiou") for _ in range(rng.randint(1, 4)))
        for _ in range(600)
    ]
    found = []
    for _ in range(num):
        topic = rng.sample(vocabulary, 60)
        sentences = [
            " ".join(rng.choice(topic) for _ in range(rng.randint(4, 12))).capitalize() + "."
            for _ in range(rng.randint(3, 12))
        ]
        found.append("\n".join(sentences))
    return found

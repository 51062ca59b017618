"""Sentences of a small grammar, with the part of speech of each word. A tiny model can learn them in minutes.

Verbs agree with their subjects and are transitive only before an object. Some words can be nouns or verbs ("the dogs
watch", "a watch"). So hidden words can be inferred from their context, and tags need the context, too.
"""

from collections.abc import Iterator
from itertools import islice

import numpy as np

Tagged = list[tuple[str, str]]
"""Words with their tags."""

TAGS = ("DET", "ADJ", "NOUN", "VERB", "ADV", "ADP", "CCONJ", "PUNCT")
"""Parts of speech of Universal Dependencies."""

_NOUNS = (
    *("dog", "cat", "bird", "horse", "farmer", "teacher", "king", "sailor", "child", "stone", "river", "garden"),
    *("house", "window", "ship", "letter", "watch", "walk", "cook", "answer", "play", "light"),
)
_PLURALS = {"child": "children"}
_ADJECTIVES = ("old", "small", "red", "quiet", "strong", "young", "bright", "light", "heavy", "green")
_TRANSITIVE = ("watch", "follow", "answer", "light", "paint", "remember", "carry")
_INTRANSITIVE = ("sleep", "walk", "play", "cook", "wait", "laugh")
_ADVERBS = ("slowly", "often", "again", "today", "never", "gladly")
_PLACES = ("near", "behind", "under", "with", "beside")
_PAST = {"sleep": "slept", "carry": "carried", "paint": "painted", "light": "lit"}


def sentences(seed: int) -> Iterator[Tagged]:
    """Yield an infinite sequence of sentences, which depends only on the seed."""
    rng = np.random.default_rng(seed)
    while True:
        first = _clause(rng)
        if rng.random() < 0.25:
            first += [(str(rng.choice(["and", "but"])), "CCONJ"), *_clause(rng)]
        word, tag = first[0]
        yield [(word.capitalize(), tag), *first[1:], (".", "PUNCT")]


def paragraphs(seed: int, num: int, num_sentences: int = 12) -> Iterator[str]:
    """Yield `num` paragraphs of `num_sentences` sentences each."""
    source = sentences(seed)
    for _ in range(num):
        yield " ".join(as_text(sentence) for sentence in islice(source, num_sentences))


def as_text(sentence: Tagged) -> str:
    """Join the words with spaces, without a space before a full stop."""
    return " ".join(word for word, _ in sentence).replace(" .", ".")


def _clause(rng: np.random.Generator) -> Tagged:
    is_plural = bool(rng.random() < 0.5)
    words = _noun_phrase(rng, is_plural=is_plural)
    is_past = rng.random() < 0.4
    if rng.random() < 0.3:
        words.append((str(rng.choice(_ADVERBS)), "ADV"))
    takes_object = rng.random() < 0.6
    verb = str(rng.choice(_TRANSITIVE if takes_object else _INTRANSITIVE))
    if is_past:
        verb = _PAST.get(verb) or (verb + "d" if verb.endswith("e") else verb + "ed")
    elif not is_plural:
        verb = _with_s(verb)
    words.append((verb, "VERB"))
    if takes_object:
        words += _noun_phrase(rng, is_plural=bool(rng.random() < 0.4))
    if rng.random() < 0.4:
        words.append((str(rng.choice(_PLACES)), "ADP"))
        words += _noun_phrase(rng, is_plural=bool(rng.random() < 0.3))
    return words


def _noun_phrase(rng: np.random.Generator, *, is_plural: bool) -> Tagged:
    noun = str(rng.choice(_NOUNS))
    adjectives = [(str(rng.choice(_ADJECTIVES)), "ADJ")] if rng.random() < 0.4 else []
    first = (adjectives or [(noun, "")])[0][0]
    article = "an" if first[0] in "aeiou" else "a"
    determiner = str(rng.choice(["the", "these", "many"] if is_plural else ["the", article, "this", "every"]))
    noun = (_PLURALS.get(noun) or _with_s(noun)) if is_plural else noun
    return [(determiner, "DET"), *adjectives, (noun, "NOUN")]


def _with_s(word: str) -> str:
    if word.endswith(("ch", "sh", "s")):
        return word + "es"
    return word[:-1] + "ies" if word.endswith("y") and word[-2] not in "aeiou" else word + "s"

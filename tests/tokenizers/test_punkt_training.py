"""Parameters learned for Punkt, compared with NLTK's trainer."""

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretrainkit.tokenizers.punkt_training import learn

SAMPLE = """
The the a A. a. He he it. It U.S. u.s. Mr. mr Dr. approx. approx e.g. etc. etc., Inc. said. Said went. house House.
house, 3. 12 3.5. 1,000. 4-5. J. j. K. ... . . ? ! ?! .. -- ; : , ( ) " “Yes.” 'no.' well-kept co-op. Jan. jan. März. 5.
Élan élan. Ünder . , .5. und. Und naïve. 中文。 हिन्दी। x.y.z. a.b.c #tag. * @me. &c. {x. [y] `z. long-Abbr. abbr.
"""
TOKENS = SAMPLE.split()


def learned_by_nltk(text):
    from nltk.tokenize.punkt import PunktTrainer

    trainer = PunktTrainer()
    trainer.train(text, finalize=True)
    theirs = trainer.get_params()
    seen = {word: contexts for word, contexts in theirs.ortho_context.items() if contexts}
    return theirs.abbrev_types, theirs.collocations, theirs.sent_starters, seen


def learned_by_us(text):
    ours = learn(text)
    return ours.abbreviations, ours.collocations, ours.sentence_starters, ours.orthography


def test_from_the_documentation_of_this_project():
    pages = sorted(Path(__file__).parents[2].glob("docs/*.md"))
    text = "\n\n".join(page.read_text("utf-8") for page in pages)
    ours = learned_by_us(text)
    assert ours == learned_by_nltk(text)
    assert ours[0]


@pytest.mark.parametrize("seed", range(4))
def test_from_much_text_with_every_kind_of_parameter(seed):
    """Words of uneven frequency, so that there are starters, collocations and abbreviations, frequent and rare."""
    chance = random.Random(seed)
    weights = [1 / (1 + chance.randrange(60)) for _ in TOKENS]
    words = chance.choices(TOKENS, weights, k=6000)
    for first, second in (("5.", "März."), ("J.", "House."), ("house.", "However"), ("the", "house")):
        for place in chance.sample(range(len(words)), 200):
            words[place : place + 1] = [first, second]
    text = "".join(word + chance.choice(("", " ", " ", " ", " ", "\n", "\n\n", "\t")) for word in words)
    ours = learned_by_us(text)
    assert ours == learned_by_nltk(text)
    assert all(ours)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from([*TOKENS, "\n", "\n\n", "\n \n", "\xa0", "\r"]), min_size=1, max_size=40))
def test_from_random_texts(words):
    text = " ".join(words)
    if text.strip():
        assert learned_by_us(text) == learned_by_nltk(text)

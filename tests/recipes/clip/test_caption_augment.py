"""Changed captions: the shares of ZeroVL, and how its pieces become text again."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrainkit.errors import ConfigError
from pretrainkit.recipes.clip.captions import CaptionAugment, CaptionTokenizer, changed_pieces, joined
from pretrainkit.recipes.clip.config import TextAugmentConfig
from support.pair_sets import make_tokenizer

PIECES = [f"word{chr(97 + first)}{chr(97 + second)}" for first in range(26) for second in range(26)]


@pytest.fixture(scope="module")
def words(tmp_path_factory) -> CaptionTokenizer:
    """Every word is one piece, but for "unbelievables", which is five."""
    folder = tmp_path_factory.mktemp("words")
    control = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    (folder / "vocab.txt").write_text("\n".join([*control, *PIECES, "un", "##be", "##lie", "##vable", "##s"]))
    return CaptionTokenizer(folder)


def generators(num: int, seed: int = 0) -> list[np.random.Generator]:
    return [np.random.default_rng([seed, n]) for n in range(num)]


def test_shares_of_masked_random_removed_and_kept_pieces(words):
    """Fact 4."""
    rng = np.random.default_rng(0)
    captions = [" ".join(rng.choice(PIECES, 10)) for _ in range(4000)]
    before = words.encode_bare(captions)
    after = CaptionAugment(TextAugmentConfig(), words)(captions, generators(len(captions)))
    num_pieces = sum(map(len, before))
    masked = sum(ids.count(words.mask_id) for ids in after)
    kept = sum(len(np.intersect1d(b, a)) for b, a in zip(before, after))
    left = sum(map(len, after))
    assert abs(masked / num_pieces - 0.10) < 0.005
    assert abs(kept / sum(len(set(b)) for b in before) - 0.80) < 0.005
    assert abs((left - masked) / num_pieces - 0.82) < 0.005  # kept and random
    assert abs(1 - left / num_pieces - 0.08) < 0.005


def test_random_pieces_are_uniform_over_the_whole_vocabulary(words):
    everything = TextAugmentConfig(probability=1.0, mask_share=0.0, random_share=1.0)
    ids = np.arange(words.vocab_size)
    drawn = changed_pieces(np.zeros(400_000, np.int64), np.random.default_rng(1), everything, 4, ids)
    counts = np.bincount(drawn, minlength=len(ids))
    assert len(counts) == len(ids)  # control tokens too
    assert abs(counts - 400_000 / len(ids)).max() < 6 * (400_000 / len(ids)) ** 0.5


def test_a_word_of_five_pieces_loses_its_last_two_even_when_none_is_drawn(words):
    """Fact 5."""
    unchanged = CaptionAugment(TextAugmentConfig(probability=0.0), words)
    before = words.encode_bare(["wordaa unbelievables wordbb"])[0]
    assert [words.pieces[index] for index in before[1:-1]] == ["un", "##be", "##lie", "##vable", "##s"]
    after = unchanged(["wordaa unbelievables wordbb"], generators(1))[0]
    assert after == [*before[:4], before[-1]]


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        (["a", "##b", "##c", "##d", "e"], "abc e"),  # the third is lost
        (["[MASK]", "##b", "c"], "[MASK] c"),  # nothing is glued to a mask
        (["[MASK]", "##b", "##c", "d", "##e"], "[MASK] de"),  # nor to an orphan
        (["##b", "##c", "d"], "d"),
        (["a", "##b", "##y", "##z"], "aby"),  # the head of "xyz" was removed: its pieces go to the word before
        (["a", "[MASK]", "##b"], "a [MASK]"),
        ([], ""),
    ],
)
def test_pieces_become_text_as_in_zerovl(pieces, text):
    assert joined(pieces, "[MASK]") == text


@given(st.lists(st.sampled_from(["a", "b", "##c", "##d", "[MASK]"]), max_size=12))
def test_joined_text_keeps_every_mask_and_word_and_never_glues_more_than_two(pieces):
    words = joined(pieces, "[MASK]").split()
    assert words.count("[MASK]") == pieces.count("[MASK]")
    assert len(words) == sum(not piece.startswith("##") for piece in pieces)
    assert all(len(word) <= 3 for word in words if word != "[MASK]")


@pytest.mark.parametrize(("kind", "size"), [("wordpiece", 80), ("bpe", 300)])
def test_a_changed_caption_depends_on_its_generator_alone(tmp_path, kind, size):
    tokenizer = CaptionTokenizer(make_tokenizer(tmp_path / "t", kind, size))
    augment = CaptionAugment(TextAugmentConfig(probability=0.5), tokenizer)
    captions = [f"the small dog runs near a red house {n}" for n in range(20)]
    together = augment(captions, generators(20))
    alone = [augment([text], [generator])[0] for text, generator in zip(captions, generators(20))]
    assert together == alone
    assert together != augment(captions, generators(20, seed=1))
    assert any(tokenizer.mask_id in ids for ids in together)


def test_masks_without_a_mask_token_and_impossible_shares_are_refused(words, tmp_path):
    with pytest.raises(ConfigError, match="sum to more than 1"):
        CaptionAugment(TextAugmentConfig(mask_share=0.8, random_share=0.3), words)
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "b"]))
    with pytest.raises(ConfigError, match="has no mask token"):
        CaptionAugment(TextAugmentConfig(), CaptionTokenizer(tmp_path))

"""Changes captions in training: pieces become mask tokens or other pieces, or are removed.

Source: Cui et al. 2022 (ZeroVL), https://arxiv.org/abs/2112.09331, as its code does it: the pieces that are left are
joined to text, which is tokenised once more. Its code draws from Python's global stream and takes random pieces in the
order of a hash table; here draws come from the example's generator, and pieces are in the order of their ids.

Dimensions: P pieces of a caption.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pretrainkit.errors import ConfigError
from pretrainkit.recipes.clip.captions import CaptionTokenizer
from pretrainkit.recipes.clip.config import TextAugmentConfig

_MAX_GLUED = 2
"""Pieces inside a word that are joined to its first; ZeroVL loses the others."""
_INSIDE = "##"
_REMOVED = -1


class CaptionAugment:
    """Bare captions to bare ids. WordPiece as in ZeroVL. Other tokenizers keep the ids that are left as they are, and
    random pieces are never control tokens: their text cannot be put together piece by piece."""

    def __init__(self, config: TextAugmentConfig, tokenizer: CaptionTokenizer) -> None:
        """
        Raises:
            ConfigError: Mask tokens are wanted and the tokenizer has none, or the shares add up to more than 1.
        """
        if config.mask_share + config.random_share > 1:
            raise ConfigError(
                f"data.text_augment: mask_share {config.mask_share} and random_share {config.random_share} are more "
                "than 1 together\n  they are shares of the pieces that change; the rest is removed"
            )
        if config.mask_share and config.probability and tokenizer.mask_id is None:
            raise ConfigError(
                f"data.text_augment.mask_share is {config.mask_share}, but the tokenizer in {tokenizer.folder} has no "
                "mask token\n  set data.text_augment.mask_share=0, or take another tokenizer"
            )
        self.config, self.tokenizer = config, tokenizer
        self._mask_id = tokenizer.mask_id if tokenizer.mask_id is not None else _REMOVED
        everything = np.arange(tokenizer.vocab_size)
        is_wordpiece = tokenizer.is_wordpiece  # ZeroVL draws from all pieces, control tokens too
        self._random_ids = everything if is_wordpiece else np.setdiff1d(everything, tokenizer.special_ids())
        self._with_control = tokenizer.reading_control_tokens() if is_wordpiece else None

    def __call__(self, captions: Sequence[str], generators: Sequence[np.random.Generator]) -> list[list[int]]:
        """Bare ids of each caption, changed by draws from its generator."""
        changed = [
            changed_pieces(np.array(ids, np.int64), generator, self.config, self._mask_id, self._random_ids)
            for ids, generator in zip(self.tokenizer.encode_bare(captions), generators, strict=True)
        ]
        if self._with_control is None:
            return [ids.tolist() for ids in changed]
        pieces = self.tokenizer.pieces
        mask = "" if self.tokenizer.mask_id is None else pieces[self.tokenizer.mask_id]
        return self._with_control.encode_bare([joined([pieces[index] for index in ids], mask) for ids in changed])


def changed_pieces(
    ids_P: NDArray[np.int64],
    generator: np.random.Generator,
    config: TextAugmentConfig,
    mask_id: int,
    random_ids: NDArray[np.int64],
) -> NDArray[np.int64]:
    """(P,) ids to those that are left, each kept, masked, replaced or removed independently of the others.

    One uniform number below `probability` decides that a piece changes; divided by it, into what.
    """
    # All pieces draw both numbers, whatever becomes of them, so that one piece does not change the draws of others.
    drawn_P = generator.random(len(ids_P))
    random_P = random_ids[generator.integers(len(random_ids), size=len(ids_P))]
    masked = config.probability * config.mask_share
    replaced = masked + config.probability * config.random_share
    found_P = np.where(drawn_P < config.probability, _REMOVED, ids_P)
    found_P = np.where(drawn_P < replaced, random_P, found_P)
    found_P = np.where(drawn_P < masked, mask_id, found_P)
    return found_P[found_P != _REMOVED]


def joined(pieces: Sequence[str], mask: str) -> str:
    """The text of WordPiece pieces as ZeroVL puts it together: at most two ## pieces stay with the word before them;
    those behind a mask token, or without a word, are lost."""
    words: list[str] = []
    num_glued: int | None = None  # None: there is no word to glue to
    for piece in pieces:
        if piece == mask:
            words.append(piece)
            num_glued = None
        elif not piece.startswith(_INSIDE):
            words.append(piece)
            num_glued = 0
        elif num_glued is not None and num_glued < _MAX_GLUED:
            words[-1] += piece[len(_INSIDE) :]
            num_glued += 1
    return " ".join(words)

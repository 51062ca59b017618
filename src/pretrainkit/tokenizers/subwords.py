"""WordPiece and byte-level BPE, trained from word counts by the `tokenizers` library.

Sources: Schuster and Nakajima 2012 (WordPiece, as in BERT); Sennrich et al. 2016 and GPT-2 (byte-level BPE). Control pieces come
first: [PAD] 0, [UNK] 1, [CLS] 2, [SEP] 3, [MASK] 4, as 0 for padding is what users of such models expect.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pretrainkit.errors import DataError
from pretrainkit.tokenizers.special import SpecialIds

TOKENS = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
SPECIAL = SpecialIds(unk=1, cls=2, sep=3, mask=4, pad=0)
MAX_OCCURRENCES = 50_000_000
"""The library counts words itself, so they are repeated; counts are scaled down to this sum, none below 1."""
_LINE_WORDS = 1000


def train_subwords(
    counts: Mapping[bytes, int], vocab_size: int, kind: Literal["wordpiece", "bpe"], lowercase: bool
) -> str:
    """The content of a `tokenizer.json` with exactly `vocab_size` pieces.

    Args:
        counts: Word to count.
        vocab_size: Pieces, with the 5 control pieces.
        kind: Which algorithm.
        lowercase: Fold case (and, for WordPiece, strip accents, as BERT's uncased models do).

    Raises:
        DataError: The text has too few distinct pieces for that size.
    """
    from tokenizers import (
        AddedToken,
        Tokenizer,
        decoders,
        models,
        normalizers,
        pre_tokenizers,
        processors,
        trainers,
    )

    added = [AddedToken(token, special=True, normalized=False) for token in TOKENS.values()]
    options: dict[str, Any] = {"vocab_size": vocab_size, "special_tokens": added, "show_progress": False}
    if kind == "wordpiece":
        tokenizer = Tokenizer(models.WordPiece(unk_token=TOKENS["unk"]))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece()
        trainer: Any = trainers.WordPieceTrainer(**options)
        least = len(TOKENS) + 1
    else:
        tokenizer = Tokenizer(models.BPE(byte_fallback=False))
        folding = [normalizers.Lowercase()] if lowercase else []
        tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), *folding])
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), **options)
        least = len(TOKENS) + 256
    if vocab_size <= least:
        raise DataError(f"--vocab-size is {vocab_size}\n  a {kind} vocabulary needs more than {least}")
    tokenizer.train_from_iterator(_text(counts), trainer)
    size = tokenizer.get_vocab_size()
    if size < vocab_size:
        raise DataError(
            f"--vocab-size is {vocab_size}, but this text yields at most {size} pieces\n"
            f"  use --vocab-size {size} or less, or count the words of more text"
        )
    if size > vocab_size:
        raise DataError(
            f"--vocab-size is {vocab_size}, but the characters of this text alone take {size} pieces\n"
            f"  use --vocab-size {size} or more"
        )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(TOKENS[role], getattr(SPECIAL, role)) for role in ("cls", "sep")],
    )
    return tokenizer.to_str()


def _text(counts: Mapping[bytes, int]) -> Iterator[str]:
    """Lines in which every word stands as often as its (scaled) count says."""
    scale = max(1.0, sum(counts.values()) / MAX_OCCURRENCES)
    for word, count in counts.items():
        text, left = word.decode(), max(1, round(count / scale))
        while left > 0:
            yield " ".join([text] * min(left, _LINE_WORDS))
            left -= _LINE_WORDS

r"""The `tokenizer.json` of a SentencePiece unigram model: the same ids from the `tokenizers` library.

What makes them the same, beyond the same pieces and scores:

- SentencePiece replaces, at every place of the text, the longest string that its table has a rule for. The library's
  `Precompiled` holds the same table, but looks at grapheme clusters, misses rules of several characters and drops
  accents. Those rules are NFKC, but without reordering and without joining what is half composed already. So a
  noncharacter is put wherever NFKC must not join what stands on both sides, and taken out behind it. The one
  character that the table keeps and NFKC changes, U+FF5E, is put aside likewise.
- Blanks are collapsed and cut off at the end, but one is kept at the start: behind a control token it tells whether a
  word begins. `Metaspace` with "first" adds the dummy prefix at the start of the text only.
- The library would match "<0x41>" or "<mask>" in the text against the byte and control pieces, which SentencePiece
  keeps for itself. A cut inside such strings, where no learned piece goes across, prevents it.
- The library finds control tokens in text by default, so that `<mask>` can be typed. SentencePiece never does;
  `AutoTokenizer.from_pretrained(folder, split_special_tokens=True)` gives its ids for such text too.

What may still differ:

- text with the two noncharacters used here;
- text that begins with two or more control characters, which vanish, in front of a combining mark or of what is
  joined with what stands before: "first" asks for what stood at the very start, and the library loses the dummy prefix;
- characters of Unicode 14 to 16 that SentencePiece joins with a mark behind them (U+1CCE7 U+0323 is one letter to it),
  and that the library's NFKC does not know. A second pass would join them, and slow all texts down;
- "<0x41>" where learned pieces join all its characters;
- two segmentations whose scores differ by less than the rounding of SentencePiece's 32-bit sums (the library's have
  64).
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

_LABEL = np.uint32(1 << 31 | 0xFF)
"""What a unit has besides its offset: the byte that leads to it, and whether it is a value."""
_CUT = "\ufdd0"
_NORMAL, _UNKNOWN, _CONTROL = 1, 2, 3
"""Types of SentencePiece's pieces."""
_WIDE_TILDE, _TILDE_ASIDE = "\uff5e", "\ufdd1"


def tokenizer_json(model: bytes) -> str:
    """From the bytes of a model of `train_unigram`."""
    from sentencepiece import sentencepiece_model_pb2
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    proto = sentencepiece_model_pb2.ModelProto.FromString(model)  # type: ignore[attr-defined]
    pieces = [(piece.piece, piece.score) for piece in proto.pieces]
    ids = {piece: index for index, (piece, _) in enumerate(pieces)}
    # Pieces that no text gives.
    control = [piece.piece for piece in proto.pieces if piece.type in (_UNKNOWN, _CONTROL)]
    charsmap = proto.normalizer_spec.precompiled_charsmap
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=ids["<unk>"], byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.Replace(_WIDE_TILDE, _TILDE_ASIDE),
            normalizers.Replace(Regex(_not_joined(charsmap)), _CUT),
            normalizers.NFKC(),
            normalizers.Precompiled(charsmap),
            normalizers.Replace(_CUT, ""),
            normalizers.Replace(_TILDE_ASIDE, _WIDE_TILDE),
            normalizers.Replace(Regex(" {2,}"), " "),
            normalizers.Replace(Regex(r" \z"), ""),
            normalizers.Replace(Regex(r"\A▁"), " ▁"),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=True),
            *(pre_tokenizers.Split(Regex(pattern), "merged_with_previous") for pattern in _cuts(proto, control)),
        ]
    )
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    begin = "<s> " if "<s>" in ids else ""  # T5 begins with nothing
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{begin}$A </s>",
        pair=f"{begin}$A </s> $B:1 </s>:1",
        special_tokens=[(token, ids[token]) for token in ("<s>", "</s>") if token in ids],
    )
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in control])
    return tokenizer.to_str()


def _cuts(proto: Any, control: list[str]) -> list[str]:
    """Patterns behind which text is cut so that it cannot spell a byte or control piece.

    Each such string is cut behind its first character that no learned piece joins with the next.
    """
    learned = [piece.piece for piece in proto.pieces if piece.type == _NORMAL]
    joined = {pair for piece in learned for pair in pairwise(piece)}
    patterns = []
    for example, pattern in [("<0x", "<0x[0-9A-F]{2}>"), *((token, token) for token in control)]:
        for place in range(1, len(example)):
            if (example[place - 1], example[place]) not in joined:
                before = f"(?<={example[: place - 1]})" if place > 1 else ""
                patterns.append(f"{before}{example[place - 1]}(?={pattern[place:]})")
                break
    return patterns


@lru_cache(maxsize=1)
def _not_joined(charsmap: bytes) -> str:
    """A pattern of no width that matches before combining characters that no rule joins with what stands before."""
    before: dict[str, set[str]] = {}
    for key in read_rules(charsmap):
        for first, second in pairwise(key):
            before.setdefault(second, set()).add(first)
    alike: dict[frozenset[str], list[str]] = {}
    for second, firsts in before.items():
        alike.setdefault(frozenset(firsts), []).append(second)
    joined = "|".join(f"(?<={_class(firsts)}){_class(seconds)}" for firsts, seconds in alike.items())
    # Not at the very start, where the library cannot insert.
    return rf"(?!\A)(?=[\p{{M}}{_class(before)}])(?!{joined})"


def _class(characters: Iterable[str]) -> str:
    """A character class of them, with ranges, in one order."""
    ranges: list[list[int]] = []
    for code in sorted(map(ord, characters)):
        if ranges and code == ranges[-1][1] + 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    return "[" + "".join(rf"\x{{{first:x}}}-\x{{{last:x}}}" for first, last in ranges) + "]"


@lru_cache(maxsize=4)
def read_rules(charsmap: bytes) -> Mapping[str, str]:
    """All rules of SentencePiece's normalisation table (`normalizer_spec.precompiled_charsmap`, empty where it
    normalises nothing): one to four characters to their replacement. At every place the longest one applies.

    The table is a double-array trie (darts-clone) of UTF-8 keys, whose values are offsets of zero-terminated
    replacements.
    """
    if not charsmap:
        return MappingProxyType({})
    # The size of the trie in bytes, its units, and then all replacements.
    num_bytes = int.from_bytes(charsmap[:4], "little")
    units = np.frombuffer(charsmap, "<u4", num_bytes // 4, 4)
    texts = charsmap[4 + num_bytes :]
    # The child of a unit by a byte is at `base ^ byte`, and has the byte as its label. So its place and its label give
    # back the base; sorted by it, the children of a unit are neighbours.
    labels = units & _LABEL
    children = np.flatnonzero((labels > 0) & (labels < 256)).astype(np.uint32)
    bases = children ^ labels[children]
    order = np.lexsort((labels[children], bases))
    children, bases = children[order], bases[order]
    rules = {}
    places: NDArray[np.unsignedinteger] = np.zeros(1, np.uint32)
    keys = np.empty((1, 0), np.uint8)
    while len(places):
        unit = units[places]
        # Of a unit: bits 10 to 31 are the offset of its children, which bit 9 shifts by 8; bit 8 says that a key ends.
        base = places ^ (unit >> 10 << ((unit & 1 << 9) >> 6))
        is_leaf = (unit >> 8 & 1).astype(np.bool_)
        for key, begin in zip(keys[is_leaf], (units[base[is_leaf]] & 0x7FFFFFFF).tolist()):
            rules[key.tobytes().decode()] = texts[begin : texts.index(b"\0", begin)].decode()
        first, end = np.searchsorted(bases, base, "left"), np.searchsorted(bases, base, "right")
        counts = end - first
        parent = np.repeat(np.arange(len(places)), counts)
        within = np.arange(len(parent)) - np.repeat(np.cumsum(counts) - counts, counts)
        places = children[first[parent] + within]
        keys = np.hstack([keys[parent], labels[places].astype(np.uint8)[:, None]])
    return MappingProxyType(rules)

r"""Write the `tokenizer.json` of a SentencePiece unigram model, so that the `tokenizers` library gives the same ids.

Equal pieces and scores are not enough. The ids are the same for these reasons:

- At every position of the text, SentencePiece replaces the longest string for which its table has a rule. The
  library's `Precompiled` has the same table, but works on grapheme clusters, misses rules of several characters and
  drops accents. The rules are those of NFKC, but without reordering and without joining partly composed characters. So
  a noncharacter is inserted wherever NFKC must not join two characters, and removed after NFKC. The only character
  that the table keeps and NFKC changes, U+FF5E, is replaced and restored in the same way.
- Spaces are collapsed and removed at the end, but one is kept at the start: after a control token it shows that a word
  begins. `Metaspace` with "first" adds the dummy prefix only at the start of the text.
- The library would match "<0x41>" or "<mask>" in the text with the byte and control pieces, which SentencePiece never
  matches in text. A cut inside such strings, at a position that no learned piece crosses, prevents this.
- By default the library finds control tokens in text, so that users can type `<mask>`. SentencePiece never does.
  `AutoTokenizer.from_pretrained(folder, split_special_tokens=True)` gives SentencePiece's ids for such text too.

The ids may still differ for:

- text with one of the two noncharacters used here;
- text that begins with two or more control characters (which are removed), followed by a combining mark or a character
  that joins with the one before it: "first" tests the original start of the text, and the dummy prefix is lost;
- characters of Unicode 14 to 16 that SentencePiece joins with the next mark (U+1CCE7 U+0323 is one letter to it), and
  that the library's NFKC does not have. A second pass would join them, but would slow down all texts;
- "<0x41>" if learned pieces join all its characters;
- two segmentations whose scores differ by less than the rounding error of SentencePiece's 32-bit sums (the library's
  sums have 64 bits).
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

_LABEL = np.uint32(1 << 31 | 0xFF)
"""Bits of a unit besides its offset: the byte that leads to it, and a bit that marks values."""
_CUT = "\ufdd0"
_NORMAL, _UNKNOWN, _CONTROL = 1, 2, 3
"""Piece types of SentencePiece."""
_WIDE_TILDE, _TILDE_ASIDE = "\uff5e", "\ufdd1"


def tokenizer_json(model: bytes) -> str:
    """Return the `tokenizer.json` of a model of `train_unigram`, given as the bytes of its `.model` file."""
    from sentencepiece import sentencepiece_model_pb2
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    proto = sentencepiece_model_pb2.ModelProto.FromString(model)  # type: ignore[attr-defined]
    pieces = [(piece.piece, piece.score) for piece in proto.pieces]
    ids = {piece: index for index, (piece, _) in enumerate(pieces)}
    # Pieces that no text is encoded to.
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
    begin = "<s> " if "<s>" in ids else ""  # T5 has no first token
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{begin}$A </s>",
        pair=f"{begin}$A </s> $B:1 </s>:1",
        special_tokens=[(token, ids[token]) for token in ("<s>", "</s>") if token in ids],
    )
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in control])
    return tokenizer.to_str()


def _cuts(proto: Any, control: list[str]) -> list[str]:
    """Return patterns of the places where text is cut, so that no byte or control piece can match in it.

    The string of such a piece is cut after its first character that no learned piece joins with the next one.
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
    """Return a zero-width pattern that matches before characters that NFKC could join with the previous one, but that
    no rule of SentencePiece joins."""
    before: dict[str, set[str]] = {}
    for key in read_rules(charsmap):
        for first, second in pairwise(key):
            before.setdefault(second, set()).add(first)
    alike: dict[frozenset[str], list[str]] = {}
    for second, firsts in before.items():
        alike.setdefault(frozenset(firsts), []).append(second)
    joined = "|".join(f"(?<={_class(firsts)}){_class(seconds)}" for firsts, seconds in alike.items())
    # Not at the start of the text, where the library cannot insert.
    return rf"(?!\A)(?=[\p{{M}}{_class(before)}])(?!{joined})"


def _class(characters: Iterable[str]) -> str:
    """Return a character class as sorted ranges."""
    ranges: list[list[int]] = []
    for code in sorted(map(ord, characters)):
        if ranges and code == ranges[-1][1] + 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    return "[" + "".join(rf"\x{{{first:x}}}-\x{{{last:x}}}" for first, last in ranges) + "]"


@lru_cache(maxsize=4)
def read_rules(charsmap: bytes) -> Mapping[str, str]:
    """Read all rules of SentencePiece's normalization table: from one to four characters to their replacement.

    At every position the longest rule applies. The table (`normalizer_spec.precompiled_charsmap`) is empty if nothing
    is normalized. It is a double-array trie (darts-clone) of UTF-8 keys whose values are offsets of zero-terminated
    replacements.
    """
    if not charsmap:
        return MappingProxyType({})
    # The table consists of the size of the trie in bytes, its units, and all replacements.
    num_bytes = int.from_bytes(charsmap[:4], "little")
    units = np.frombuffer(charsmap, "<u4", num_bytes // 4, 4)
    texts = charsmap[4 + num_bytes :]
    # The child of a unit for a byte is at `base ^ byte`, and its label is the byte. So a child's index and label give
    # its base. Sorted by base, the children of a unit are neighbours.
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
        # Bits 10 to 31 of a unit are the offset of its children, which bit 9 shifts by 8. Bit 8 is set if a key ends.
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

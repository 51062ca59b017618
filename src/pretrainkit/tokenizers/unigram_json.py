r"""The `tokenizer.json` of a SentencePiece unigram model: the same ids from the `tokenizers` library.

What makes them the same, beyond the same pieces and scores:

- `Precompiled` holds SentencePiece's own table, but replaces whole grapheme clusters of up to five bytes by the *shortest*
  rule that begins them: "e" + U+0323 + U+0302 would lose the circumflex. Composing first (NFC) leaves it single characters.
- Blanks are collapsed and cut off at the end, but one is kept at the start: behind a control token it tells whether a
  word begins. `Metaspace` with "first" adds the dummy prefix at the start of the text only.
- The library would match "<0x41>" or "<mask>" in the text against the byte and control pieces, which SentencePiece keeps for
  itself. A cut inside such strings, where no learned piece goes across, prevents it.
- The library finds control tokens in text by default, so that `<mask>` can be typed. SentencePiece never does;
  `AutoTokenizer.from_pretrained(folder, split_special_tokens=True)` gives its ids for such text too.

Where they still differ is listed, with examples, in tests/tokenizers/test_unigram_json.py.
"""

from typing import Any

from pretrainkit.tokenizers.unigram import FIRST_LEARNED, TOKENS


def tokenizer_json(model: bytes) -> str:
    """From the bytes of a model of `train_unigram`."""
    from sentencepiece import sentencepiece_model_pb2

    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    proto = sentencepiece_model_pb2.ModelProto.FromString(model)
    pieces = [(piece.piece, piece.score) for piece in proto.pieces]
    ids = {piece: index for index, (piece, _) in enumerate(pieces)}
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=ids[TOKENS["unk"]], byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.NFC(),
            normalizers.Precompiled(proto.normalizer_spec.precompiled_charsmap),
            normalizers.Replace(Regex(" {2,}"), " "),
            normalizers.Replace(Regex(r" \z"), ""),
            normalizers.Replace(Regex(r"\A▁"), " ▁"),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=True),
            *(pre_tokenizers.Split(Regex(pattern), "merged_with_previous") for pattern in _cuts(proto)),
        ]
    )
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    cls, sep = TOKENS["cls"], TOKENS["sep"]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{cls} $A {sep}",
        pair=f"{cls} $A {sep} $B:1 {sep}:1",
        special_tokens=[(cls, ids[cls]), (sep, ids[sep])],
    )
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in TOKENS.values()])
    return tokenizer.to_str()


def _cuts(proto: Any) -> list[str]:
    """Patterns behind which text is cut so that it cannot spell a byte or control piece.

    Each such string is cut behind its first character that no learned piece joins with the next.
    """
    learned = [piece.piece for piece in proto.pieces[FIRST_LEARNED:]]
    joined = {pair for piece in learned for pair in zip(piece, piece[1:])}
    patterns = []
    for example, pattern in [("<0x", "<0x[0-9A-F]{2}>"), *((token, token) for token in TOKENS.values())]:
        for place in range(1, len(example)):
            if (example[place - 1], example[place]) not in joined:
                before = f"(?<={example[: place - 1]})" if place > 1 else ""
                patterns.append(f"{before}{example[place - 1]}(?={pattern[place:]})")
                break
    return patterns

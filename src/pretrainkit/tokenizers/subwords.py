"""WordPiece and byte-level BPE, trained from word counts by the `tokenizers` library.

Sources: Schuster and Nakajima 2012 (WordPiece, as in BERT); Sennrich et al. 2016 and GPT-2 (byte-level BPE). Control
pieces come first: [PAD] 0, [UNK] 1, [CLS] 2, [SEP] 3, [MASK] 4. Users of such models expect 0 for padding.

The library's WordPiece trainer is its BPE trainer with "##" before the letters inside words. It numbers these in the
order of a hash table, so that each run gives another vocabulary. We write letters inside words as private-use
characters instead: the merges are the same, and every run gives the same vocabulary.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pretrainkit.errors import DataError
from pretrainkit.tokenizers.special import SpecialIds, TooFewPieces, too_many_characters

TOKENS = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
SPECIAL = SpecialIds(unk=1, cls=2, sep=3, mask=4, pad=0)
MAX_OCCURRENCES = 50_000_000
"""The library counts words itself, so each word is repeated as often as its count. Counts are scaled down to this sum,
but never below 1."""
_LINE_WORDS = 1000
_PRIVATE = 0xF0000
_INSIDE = "##"


def train_subwords(
    counts: Mapping[bytes, int], vocab_size: int, kind: Literal["wordpiece", "bpe"], lowercase: bool
) -> str:
    """Train from word counts; return a `tokenizer.json` of exactly `vocab_size` pieces, with the 5 control pieces.

    `lowercase`: fold case (and, for WordPiece, strip accents, as BERT's uncased models do). Raises DataError if the
    text has too few distinct pieces or too many distinct characters for that size.
    """
    from tokenizers import AddedToken, processors

    least = len(TOKENS) + (256 if kind == "bpe" else 1)
    if vocab_size <= least:
        raise DataError(f"--vocab-size is {vocab_size}\n  a {kind} vocabulary needs more than {least}")
    tokenizer = (_bpe if kind == "bpe" else _wordpiece)(counts, vocab_size, lowercase)
    size = tokenizer.get_vocab_size()
    if size < vocab_size:
        raise TooFewPieces(vocab_size, size)
    if size > vocab_size:
        raise too_many_characters(vocab_size, size)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in TOKENS.values()])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(TOKENS[role], getattr(SPECIAL, role)) for role in ("cls", "sep")],
    )
    return tokenizer.to_str()


def train_multimodal(
    counts: Mapping[bytes, int],
    vocab_size: int,
    *,
    classes: Sequence[str],
    num_sentinels: int,
    num_bins: int,
    lowercase: bool = True,
) -> str:
    """Train from word counts; return a `tokenizer.json` with texts, boxes and the like in one vocabulary, as in 4M.

    Reserved tokens come first: [PAD] [UNK] [SOS] [EOS], sentinels [S_0] …, numbers v0=0 … v0=999, v1=0 … v3=999, class
    names in alphabetical order (a name of several words is one token). The WordPiece pieces of the text follow. No
    token is added around a text. `counts` maps words to counts; the other arguments are as in
    `train.TokenizerSettings`. Folding case also strips accents. Raises DataError if the text has too few distinct
    pieces or too many distinct characters for that size.
    """
    from tokenizers import AddedToken, Tokenizer, models

    controls = [MULTIMODAL_TOKENS[role] for role in ("pad", "unk", "cls", "sep")]
    sentinels = [f"[S_{number}]" for number in range(num_sentinels)]
    numbered = [*sentinels, *(f"v{axis}={value}" for axis in range(_NUM_AXES) for value in range(num_bins))]
    names = sorted(set(classes))
    reserved = [*controls, *numbered, *names]
    least = len(reserved) + 1
    if vocab_size <= least:
        raise DataError(
            f"--vocab-size is {vocab_size}, but {least} pieces are reserved or needed\n  use more than {least}"
        )
    num_free = vocab_size - len(reserved)
    # A few more pieces are learned, because some may be among the reserved tokens and are then replaced.
    learned = _wordpiece(counts, num_free + len(TOKENS) + len(names), lowercase)
    taken = {*reserved, *TOKENS.values()}
    pieces = [piece for piece, _ in sorted(learned.get_vocab().items(), key=lambda item: item[1]) if piece not in taken]
    alphabet = sum(len(piece.removeprefix(_INSIDE)) == 1 for piece in pieces)
    if len(pieces) < num_free:
        raise TooFewPieces(vocab_size, len(reserved) + len(pieces))
    if alphabet > num_free:
        raise DataError(
            f"--vocab-size is {vocab_size}, of which {len(reserved)} are reserved, but the characters of this text "
            f"alone take {alphabet} pieces\n  use --vocab-size {len(reserved) + alphabet} or more"
        )
    vocabulary = {piece: number for number, piece in enumerate([*reserved, *pieces[:num_free]])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=TOKENS["unk"]))
    tokenizer.normalizer, tokenizer.pre_tokenizer = learned.normalizer, learned.pre_tokenizer
    tokenizer.decoder = learned.decoder
    tokenizer.add_special_tokens([AddedToken(token, single_word=False, normalized=False) for token in controls])
    tokenizer.add_special_tokens([AddedToken(token, single_word=True, normalized=False) for token in numbered])
    tokenizer.add_special_tokens([AddedToken(name, single_word=True, normalized=True) for name in names])
    return str(tokenizer.to_str())


MULTIMODAL_TOKENS = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[SOS]", "sep": "[EOS]", "mask": "[S_0]"}
MULTIMODAL_SPECIAL = SPECIAL
"""This vocabulary has no mask token. The first sentinel, which hides nothing, takes its place."""
_NUM_AXES = 4
_COCO = """
    airplane, apple, backpack, banana, baseball bat, baseball glove, bear, bed, bench, bicycle, bird, boat, book,
    bottle, bowl, broccoli, bus, cake, car, carrot, cat, cell phone, chair, clock, couch, cow, cup, dining table, dog,
    donut, elephant, fire hydrant, fork, frisbee, giraffe, hair drier, handbag, horse, hot dog, keyboard, kite, knife,
    laptop, microwave, motorcycle, mouse, orange, oven, parking meter, person, pizza, potted plant, refrigerator,
    remote, sandwich, scissors, sheep, sink, skateboard, skis, snowboard, spoon, sports ball, stop sign, suitcase,
    surfboard, teddy bear, tennis racket, tie, toaster, toilet, toothbrush, traffic light, train, truck, tv, umbrella,
    vase, wine glass, zebra
"""
COCO_CLASSES = tuple(" ".join(_COCO.split()).split(", "))
"""The 80 object classes of COCO (Lin et al. 2014, https://arxiv.org/abs/1405.0312)."""


def read_classes(where: str | None) -> tuple[str, ...]:
    """Read class names from a file with one name per line. "coco" gives the 80 names of COCO, None gives none. Raises
    DataError if the file cannot be read or has no name."""
    if where is None:
        return ()
    if where == "coco":
        return COCO_CLASSES
    try:
        names = tuple(line.strip() for line in Path(where).read_text(encoding="utf-8-sig").splitlines() if line.strip())
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"the class names {where} cannot be read: {error}\n  give a file, or coco") from error
    if not names:
        raise DataError(f"{where} has no class name\n  write one name per line, or leave the option out")
    return names


def _bpe(counts: Mapping[bytes, int], vocab_size: int, lowercase: bool) -> Any:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), *([normalizers.Lowercase()] if lowercase else [])])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    words = ((word.decode(), count) for word, count in counts.items())
    _train(tokenizer, words, sum(counts.values()), vocab_size, pre_tokenizers.ByteLevel.alphabet())
    return tokenizer


def _wordpiece(counts: Mapping[bytes, int], vocab_size: int, lowercase: bool) -> Any:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    normalizer, cut = normalizers.BertNormalizer(lowercase=lowercase), pre_tokenizers.BertPreTokenizer()
    spelled: Counter[str] = Counter()
    letters: dict[str, str] = {}
    for word, count in counts.items():
        for part, _ in cut.pre_tokenize_str(normalizer.normalize_str(word.decode())):
            inside = (letters.setdefault(letter, chr(_PRIVATE + len(letters))) for letter in part[1:])
            spelled[part[0] + "".join(inside)] += count
    plain = {private: letter for letter, private in letters.items()}

    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    _train(learner, spelled.items(), spelled.total(), vocab_size, [])
    vocabulary = {}
    for piece, index in learner.get_vocab().items():
        mark = _INSIDE if piece[0] in plain else ""
        vocabulary[mark + "".join(plain.get(letter, letter) for letter in piece)] = index
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=TOKENS["unk"]))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, cut
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def _train(tokenizer: Any, words: Iterable[tuple[str, int]], total: int, vocab_size: int, alphabet: list[str]) -> None:
    from tokenizers import trainers

    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=list(TOKENS.values()), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(_text(words, max(1.0, total / MAX_OCCURRENCES)), trainer)


def _text(words: Iterable[tuple[str, int]], scale: float) -> Iterator[str]:
    """Yield lines that repeat every word as often as its count divided by `scale`, at least once."""
    for word, count in words:
        left = max(1, round(count / scale))
        while left > 0:
            yield " ".join([word] * min(left, _LINE_WORDS))
            left -= _LINE_WORDS

"""SentencePiece unigram models: pieces with fixed ids, then learned pieces.

Layout "bert": bytes 0-255, then unk, cls, sep, mask, pad 256-260. The layout and the options are those of Sabertooth
(https://github.com/nikitakit/sabertooth). SentencePiece's trainer has no mask token, so the piece is inserted into the
trained model. Layout "t5": pad 0, eos 1, unk 2, as in all vocabularies of T5, then bytes 3-258. Sentinels are added
where a task names its vocabulary. Source: Kudo 2018, https://arxiv.org/abs/1804.10959.
"""

import io
import re
from collections.abc import Mapping
from typing import Any, Literal

from pretrainkit.errors import DataError, RunError
from pretrainkit.tokenizers.special import SpecialIds, TooFewPieces, too_many_characters

SPECIAL = SpecialIds(unk=256, cls=257, sep=258, mask=259, pad=260)
TOKENS = {"unk": "<unk>", "cls": "<s>", "sep": "</s>", "mask": "<mask>", "pad": "<pad>"}
Layout = Literal["bert", "t5"]
T5_SPECIAL = SpecialIds(unk=2, cls=1, sep=1, mask=2, pad=0)
"""EOS ends segments; no token begins a row. No text is encoded to unk, which can therefore serve as a mask."""
T5_TOKENS = {"pad": "<pad>", "eos": "</s>", "unk": "<unk>"}
_BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))
_FIXED: dict[Layout, tuple[str, ...]] = {
    "bert": (*_BYTES, *TOKENS.values()),
    "t5": (*T5_TOKENS.values(), *_BYTES),
}
"""The first pieces of every model, by layout."""
DEFAULT_VOCAB_SIZE = 32_128
"""Default number of pieces: 251 x 128."""
NUM_THREADS = 16
"""Number of training threads. Sums of floats depend on it, so it is a constant and not the number of cores: equal input
gives equal bytes on every machine."""
_TOO_LARGE = re.compile(r"Vocabulary size too high \(\d+\)\. Please set it to a value <= (\d+)")
_TOO_SMALL = re.compile(r"Vocabulary size is smaller than required_chars\. \d+ vs (\d+)")


def train_unigram(counts: Mapping[bytes, int], vocab_size: int, layout: Layout = "bert") -> bytes:
    """Train from word counts; return a SentencePiece model of exactly `vocab_size` pieces as bytes of a `.model` file.

    The first 261 pieces (layout bert) or 259 pieces (t5) are fixed; see the module docstring. Raises DataError if the
    text has too few distinct pieces or too many distinct characters for that size.
    """
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2

    num_fixed = len(_FIXED[layout])
    if vocab_size <= num_fixed:
        raise DataError(
            f"--vocab-size is {vocab_size}\n"
            f"  it must be above {num_fixed}: 256 bytes and {num_fixed - 256} control pieces come first"
        )
    num_inserted = 1 if layout == "bert" else 0
    ids: dict[str, Any] = {"unk_id": T5_SPECIAL.unk, "bos_id": -1, "eos_id": T5_SPECIAL.sep, "pad_id": T5_SPECIAL.pad}
    if layout == "bert":
        ids = {"unk_id": SPECIAL.unk, "bos_id": SPECIAL.cls, "eos_id": SPECIAL.sep, "pad_id": SPECIAL.mask}
    written = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(b"%b\t%d" % item for item in counts.items()),
            model_writer=written,
            input_format="tsv",
            model_type="unigram",
            vocab_size=vocab_size - num_inserted,
            byte_fallback=True,
            **ids,
            num_threads=NUM_THREADS,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise _explained(str(error), vocab_size, num_inserted) from error
    model = sentencepiece_model_pb2.ModelProto.FromString(written.getvalue())  # type: ignore[attr-defined]
    if layout == "bert":
        _insert_mask(model)
    spec = model.trainer_spec
    spec.input[:] = ["words.tsv"]
    spec.ClearField("model_prefix")
    _check_layout(model, vocab_size, layout)
    return model.SerializeToString(deterministic=True)


def _insert_mask(model: Any) -> None:
    """Insert <mask> at 259, which moves <pad> to 260."""
    pieces = list(model.pieces)
    mask = type(pieces[0])(piece=TOKENS["mask"], score=0.0, type=pieces[SPECIAL.cls].type)
    del model.pieces[:]
    model.pieces.extend([*pieces[: SPECIAL.mask], mask, *pieces[SPECIAL.mask :]])
    model.trainer_spec.control_symbols.append(TOKENS["mask"])
    model.trainer_spec.pad_id = SPECIAL.pad
    model.trainer_spec.vocab_size = len(model.pieces)


def _check_layout(model: Any, vocab_size: int, layout: Layout) -> None:
    expected = _FIXED[layout]
    first_pieces = tuple(piece.piece for piece in model.pieces[: len(expected)])
    if first_pieces != expected or len(model.pieces) != vocab_size:
        raise RunError(
            f"the trained model has {len(model.pieces)} pieces, the first {first_pieces[:2]} … {first_pieces[-6:]}\n"
            f"  it must have {vocab_size} pieces in the fixed order; install sentencepiece==0.2.3"
        )


def _explained(message: str, vocab_size: int, num_inserted: int) -> Exception:
    """Return our error for a message of SentencePiece. Its numbers exclude the pieces that are inserted later."""
    if match := _TOO_LARGE.search(message):
        return TooFewPieces(vocab_size, int(match[1]) + num_inserted)
    if match := _TOO_SMALL.search(message):
        return too_many_characters(vocab_size, int(match[1]) + num_inserted)
    return DataError(f"SentencePiece cannot learn from this text: {message}\n  check the words in the TSV")


def is_of_sabertooth(model: bytes) -> bool:
    """True for a SentencePiece model with the layout "bert" and the options of `train_unigram`."""
    from sentencepiece import SentencePieceProcessor, sentencepiece_model_pb2

    try:
        SentencePieceProcessor().LoadFromSerializedProto(model)
    except (RuntimeError, UnicodeDecodeError):  # damaged
        return False
    proto = sentencepiece_model_pb2.ModelProto.FromString(model)  # type: ignore[attr-defined]
    learned, trainer, normalizer = proto.pieces[len(_FIXED["bert"]) :], proto.trainer_spec, proto.normalizer_spec
    return (
        tuple(piece.piece for piece in proto.pieces[: len(_FIXED["bert"])]) == _FIXED["bert"]
        and all(piece.type == piece.NORMAL for piece in learned)
        and trainer.model_type == trainer.UNIGRAM
        and trainer.byte_fallback
        and not trainer.treat_whitespace_as_suffix
        and normalizer.name == "nmt_nfkc"
        and len(normalizer.precompiled_charsmap) > 0
        and normalizer.add_dummy_prefix
        and normalizer.remove_extra_whitespaces
        and normalizer.escape_whitespaces
    )


def vocab_lines(model: bytes) -> bytes:
    """Return the content of the `.vocab` file: `piece<TAB>score` per line."""
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto.FromString(model)  # type: ignore[attr-defined]
    return "".join(f"{piece.piece}\t{piece.score:.6g}\n" for piece in proto.pieces).encode()

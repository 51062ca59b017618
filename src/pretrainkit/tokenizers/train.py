"""Train a tokenizer from word counts; pretrainkit and `transformers` load the resulting folder.

Word counts are the TSV that `pretrainkit corpus count-words` writes.
"""

import json
import logging
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pretrainkit.errors import DataError
from pretrainkit.files.manifest import atomic_file, explained_write_errors, fingerprint
from pretrainkit.files.outputs import new_folder
from pretrainkit.tokenizers import folder as files
from pretrainkit.tokenizers import subwords, unigram
from pretrainkit.tokenizers.punkt import PunktParameters
from pretrainkit.tokenizers.special import SpecialIds, TooFewPieces

MAX_WORD_BYTES = 4192
"""SentencePiece drops longer lines (its `max_sentence_length`). We drop such words for all kinds of tokenizers."""
_MAKE_COUNTS = "make one with: pretrainkit corpus count-words 'CORPUS/train/*.jsonl*' --out words.tsv"
_MANY_CHANGED, _MANY_LONG = 0.005, 0.01
_log = logging.getLogger(__name__)
Kind = Literal["unigram", "wordpiece", "bpe", "multimodal"]


@dataclass(frozen=True, kw_only=True)
class TokenizerSettings:
    kind: Kind = "unigram"
    """unigram: SentencePiece, as in Sabertooth and T5. wordpiece: as in BERT. bpe: byte-level, as in RoBERTa.
    multimodal: WordPiece with sentinels, numbers and class names, as in 4M."""
    vocab_size: int = unigram.DEFAULT_VOCAB_SIZE
    """Number of pieces, including control pieces and bytes."""
    layout: unigram.Layout = "bert"
    """For unigram: t5 has pad 0, eos 1, unk 2 and no mask; bert has cls, sep and mask after the bytes."""
    lowercase: bool = False
    """Fold case. Does not apply to unigram."""
    classes: tuple[str, ...] = ()
    """For multimodal: names that become one token each, such as the classes of an object detector."""
    num_sentinels: int = 200
    """For multimodal: number of sentinels, which replace hidden spans."""
    num_bins: int = 1000
    """For multimodal: number of values of each of the four kinds of numbers."""
    max_length: int = 512
    """Longest row of the models to be trained, in tokens; written to tokenizer_config.json."""

    def __post_init__(self) -> None:
        if self.lowercase and self.kind == "unigram":
            raise DataError(
                "--lowercase does not apply to --kind unigram, which keeps case\n  leave it out, or use wordpiece"
            )
        if self.layout != "bert" and self.kind != "unigram":
            raise DataError(
                f"--layout {self.layout} does not apply to --kind {self.kind}\n  leave it out, or use unigram"
            )
        if self.classes and self.kind != "multimodal":
            raise DataError(f"--classes does not apply to --kind {self.kind}\n  leave it out, or use multimodal")
        if self.max_length < 1:
            raise DataError(
                f"--max-length is {self.max_length} tokens\n  give the longest row of your models, such as 512"
            )


def manifest_of_existing(out: Path, settings: TokenizerSettings) -> dict[str, Any] | None:
    """Return the manifest of a tokenizer that was trained into `out` with these settings; None if there is no folder.
    Raises DataError if `out` has other content."""
    path = out / "manifest.json"
    with explained_write_errors(out):
        exists = path.is_file()
    if exists:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        if json.loads(json.dumps(asdict(settings))).items() <= dict(manifest.get("settings", {})).items():
            return manifest
    files.refuse_existing(out)
    return None


def train_tokenizer(
    words: Sequence[str | Path],
    out: str | Path,
    settings: TokenizerSettings,
    *,
    punkt: PunktParameters | None = None,
    as_many_as_possible: bool = False,
) -> dict[str, Any]:
    """Train a tokenizer, write the folder `out`, and return its manifest. Equal counts and settings give equal bytes.

    A folder that was trained from the same counts with the same settings is left unchanged.

    Args:
        words: TSVs of word counts; equal words are added up, and the order of rows does not matter.
        punkt: Parameters of the sentence splitter to store with the tokenizer.
        as_many_as_possible: If the text yields fewer pieces than `settings.vocab_size`, use as many as it yields.

    Raises:
        DataError: The input or the vocabulary size cannot be used, or `out` has other content. Nothing is written.
    """
    out = Path(out)
    existing = manifest_of_existing(out, settings)
    counts = read_word_counts(words)
    source = fingerprint([[word.decode(), count] for word, count in counts.items()])
    boundaries = punkt.fingerprint if punkt else None
    if existing is not None and (existing["source"], existing["punkt"]) == (source, boundaries):
        return existing
    files.refuse_existing(out)
    with new_folder(out) as aside:
        try:
            contents, vocab_size = _contents(counts, settings), settings.vocab_size
        except TooFewPieces as error:
            if not as_many_as_possible:
                raise
            contents, vocab_size = _contents(counts, replace(settings, vocab_size=error.most)), error.most
        tokens, special = _controls(settings)
        for name, content in contents.items():
            with atomic_file(aside / name) as file:
                file.write(content)
        config = files.transformers_settings(tokens) | {"model_max_length": settings.max_length}
        files.write_json(aside / files.CONFIG_JSON, config)
        if punkt is not None:
            punkt.save(aside / files.PUNKT_JSON)
        manifest = {
            "format": files.FORMAT,
            "kind": settings.kind,
            "vocab_size": vocab_size,
            "special": special.as_dict(),
            "settings": asdict(settings) | {"num_words": len(counts), "num_occurrences": sum(counts.values())},
            "source": source,
            "punkt": boundaries,
            "fingerprint": files.model_fingerprint(aside),
        }
        files.write_json(aside / "manifest.json", manifest)
        _report_changes(counts, contents[files.TOKENIZER_JSON], settings)
        return manifest


def read_word_counts(paths: Sequence[str | Path]) -> dict[bytes, int]:
    """Return the counts of words over all files, ordered by the words' bytes. Words longer than `MAX_WORD_BYTES` are
    dropped. Raises DataError if a file cannot be read, a line is not `word<TAB>count`, or there is no word."""
    counts: dict[bytes, int] = {}
    for path in paths:
        try:
            with open(path, "rb") as file:
                for number, line in enumerate(file, 1):
                    row = line.rstrip(b"\r\n")
                    if row:
                        word, count = _word_and_count(row, f"{path}, line {number}")
                        counts[word] = counts.get(word, 0) + count
        except OSError as error:
            raise DataError(f"word counts {path} cannot be read: {error.strerror}\n  {_MAKE_COUNTS}") from error
    kept = {word: counts[word] for word in sorted(counts) if len(word) <= MAX_WORD_BYTES}
    long = f"words of more than {MAX_WORD_BYTES:,} bytes are left out ({len(counts) - len(kept):,})"
    advice = "cut text without spaces into shorter lines for this count"
    if not kept:
        about, fix = (f", because {long}", advice) if counts else ("", _MAKE_COUNTS)
        raise DataError(f"{', '.join(map(str, paths)) or 'no file'}: there is no word to learn from{about}\n  {fix}")
    num_kept, num_bytes = (sum(len(word) * count for word, count in some.items()) for some in (kept, counts))
    if num_kept < (1 - _MANY_LONG) * num_bytes:
        _log.warning("%s, %.0f %% of the text\n  %s", long, 100 * (1 - num_kept / num_bytes), advice)
    return kept


def _word_and_count(row: bytes, place: str) -> tuple[bytes, int]:
    word, tab, count = row.partition(b"\t")
    if not (tab and word and count.isdigit() and int(count) > 0):
        shown = row[:60].decode(errors="replace")
        raise DataError(f"{place}: expected a word, a tab and a count of at least 1: {shown!r}\n  {_MAKE_COUNTS}")
    try:
        word.decode()
    except UnicodeDecodeError as error:
        raise DataError(
            f"{place}: invalid UTF-8 at byte {error.start}\n  convert the text to UTF-8, then {_MAKE_COUNTS}"
        ) from error
    return word, int(count)


def _contents(counts: Mapping[bytes, int], settings: TokenizerSettings) -> dict[str, bytes]:
    """Return the contents of the files with the vocabulary, by file name."""
    if settings.kind == "unigram":
        model = unigram.train_unigram(counts, settings.vocab_size, settings.layout)
        from pretrainkit.tokenizers.unigram_json import tokenizer_json

        return {
            files.MODEL: model,
            files.VOCAB: unigram.vocab_lines(model),
            files.TOKENIZER_JSON: tokenizer_json(model).encode(),
        }
    if settings.kind == "multimodal":
        choices = {name: getattr(settings, name) for name in ("classes", "num_sentinels", "num_bins", "lowercase")}
        text = subwords.train_multimodal(counts, settings.vocab_size, **choices)
    else:
        text = subwords.train_subwords(counts, settings.vocab_size, settings.kind, settings.lowercase)
    return {files.TOKENIZER_JSON: text.encode()}


def _report_changes(counts: Mapping[bytes, int], tokenizer_json: bytes, settings: TokenizerSettings) -> None:
    """Log a warning if many characters are replaced or removed before the text is split into pieces. Folding of case
    was asked for, so then only removed characters count."""
    from tokenizers import Tokenizer

    normalizer = Tokenizer.from_buffer(tokenizer_json).normalizer
    numbers: Counter[str] = Counter()
    for word, count in counts.items():
        for character in unicodedata.normalize("NFC", word.decode()):
            numbers[character] += count
    becomes: dict[str, str] = {}
    for character in numbers if normalizer else ():
        text = normalizer.normalize_str(character).replace(f" {character} ", character)  # spaces around ideographs
        is_folded = settings.lowercase and (text or unicodedata.category(character).startswith("M"))
        if not is_folded and unicodedata.normalize("NFC", text) != character:
            becomes[character] = text
    changed = Counter({character: numbers[character] for character in becomes})
    share = changed.total() / numbers.total()
    if share >= _MANY_CHANGED:
        shown = ", ".join(f"{_shown(c)} to {_shown(becomes[c])}" for c, _ in changed.most_common(3))
        _log.warning(
            "%.1f %% of the characters are changed before the text is split into pieces: %s\n  --kind bpe keeps them",
            *(100 * share, shown),
        )


def _shown(text: str) -> str:
    """Return a text in quotes, or the code points of characters that cannot be printed."""
    if not text:
        return "nothing"
    return repr(text) if text.isprintable() else " ".join(f"U+{ord(character):04X}" for character in text)


def _controls(settings: TokenizerSettings) -> tuple[dict[str, str], SpecialIds]:
    """Return the control tokens by role, and their ids."""
    match settings.kind, settings.layout:
        case "multimodal", _:
            return subwords.MULTIMODAL_TOKENS, subwords.MULTIMODAL_SPECIAL
        case "unigram", "t5":
            return unigram.T5_TOKENS, unigram.T5_SPECIAL
        case "unigram", _:
            return unigram.TOKENS, unigram.SPECIAL
    return subwords.TOKENS, subwords.SPECIAL

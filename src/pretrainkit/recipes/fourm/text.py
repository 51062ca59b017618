"""Vocabulary of all sequences: control tokens, sentinels, numbers, class names and pieces of words.

The order of ids is the published one: [PAD] [UNK] [SOS] [EOS], 200 sentinels [S_0] …, the numbers of four axes v0=0 …
v0=999, v1=0 …, class names (names of several words are one token), then pieces learned from text.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

from pretrainkit.errors import DataError

CONTROL = ("[PAD]", "[UNK]", "[SOS]", "[EOS]")
_SENTINEL = re.compile(r"\[S_(\d+)\]")
_KEPT_WORDS = 100_000
_REMEDY = "  make one with: pretrainkit tokenizer train words.tsv --kind multimodal --out DIR"


class _Words(dict[str, tuple[int, ...]]):
    """Cache of the ids of words."""

    def __init__(self, tokenizer: Any) -> None:
        super().__init__()
        self._tokenizer = tokenizer

    def __missing__(self, word: str) -> tuple[int, ...]:
        ids = tuple(self._tokenizer.encode(word, add_special_tokens=False).ids)
        if len(self) < _KEPT_WORDS:
            self[word] = ids
        return ids


@lru_cache(maxsize=4)
def _read(content: bytes) -> tuple[Any, _Words]:
    """Return the tokenizer of a JSON file, and its cache of words. The result is cached, because a run opens the same
    file several times."""
    from tokenizers import Tokenizer

    tokenizer: Any = Tokenizer.from_str(content.decode())
    words = _Words(tokenizer)
    words.update((str(token.content), (number,)) for number, token in tokenizer.get_added_tokens_decoder().items())
    return tokenizer, words


class TextVocabulary:
    """Converts words to ids, and ids to text."""

    def __init__(self, path: str | Path) -> None:
        """`path`: folder of a tokenizer, or its JSON file. Raises DataError if it cannot be read or if it lacks tokens
        that sequences need."""
        file = Path(path, "tokenizer.json") if Path(path).is_dir() else Path(path)
        try:
            content = file.read_bytes()
            self._tokenizer, self._words = _read(content)
        except Exception as error:  # the library raises plain Exception
            raise DataError(f"the text tokenizer {path} cannot be read: {error}\n{_REMEDY}") from error
        self.fingerprint = hashlib.blake2b(content, digest_size=16).hexdigest()
        self.size: int = self._tokenizer.get_vocab_size()
        missing = [token for token in (*CONTROL, "[S_1]", "v0=0") if token not in self._words]
        if missing:
            raise DataError(f"the text tokenizer {path} has no {', '.join(missing)}\n{_REMEDY}")
        self.pad, self.unk, self.sos, self.eos = (self._words[token][0] for token in CONTROL)
        numbered = {
            int(match[1]): first for token, (first, *_) in self._words.items() if (match := _SENTINEL.fullmatch(token))
        }
        ids = self.sentinels = tuple(numbered[number] for number in sorted(numbered))
        if ids != tuple(range(ids[0], ids[0] + len(ids))) or sorted(numbered) != list(range(len(ids))):
            raise DataError(
                f"the sentinels [S_0], [S_1], … of the text tokenizer {path} do not have consecutive ids\n{_REMEDY}"
            )

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text, without start and end tokens."""
        if not self._splits_at_spaces:
            encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
            return [encoding.ids for encoding in encodings]
        encode = self._tokenizer.encode
        return [
            self.encode_words(text.split()) if self._is_plain(text) else encode(text, add_special_tokens=False).ids
            for text in texts
        ]

    def _is_plain(self, text: str) -> bool:
        """Return True if each word of the text has the same ids as alone: only spaces separate words, and no reserved
        token of several words can begin in the text."""
        is_simple = text.isascii() and text.isprintable()
        return is_simple and (self._several is None or self._several.search(text) is None)

    @cached_property
    def _splits_at_spaces(self) -> bool:
        """True if the ids of a word do not depend on its neighbours, as in vocabularies trained here."""
        parts = json.loads(self._tokenizer.to_str())
        kinds = [(parts[name] or {}).get("type") for name in ("model", "pre_tokenizer", "normalizer")]
        return kinds == ["WordPiece", "BertPreTokenizer", "BertNormalizer"]

    @cached_property
    def _several(self) -> re.Pattern[str] | None:
        """Pattern of the first words of reserved tokens with several words; None: there are no such tokens."""
        added = (str(token.content) for token in self._tokenizer.get_added_tokens_decoder().values())
        first = sorted({token.split()[0] for token in added if " " in token})
        return re.compile("|".join(map(re.escape, first)), re.IGNORECASE) if first else None

    def encode_words(self, words: Iterable[str]) -> list[int]:
        """Return the ids of words separated by spaces; a reserved token such as "wine glass" is one word."""
        return list(chain.from_iterable(map(self._words.__getitem__, words)))

    def decode(self, ids: Iterable[int], *, with_sentinels: bool = False) -> str:
        """Return readable text without control tokens, and without sentinels unless they are wanted."""
        skipped = {self.pad, self.sos, self.eos, *(() if with_sentinels else self.sentinels)}
        kept = [int(token) for token in ids if int(token) not in skipped]
        return str(self._tokenizer.decode(kept, skip_special_tokens=False))

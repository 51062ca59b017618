"""Tokenization of captions, and random changes of captions in training.

A tokenizer is a folder of ours, a folder of transformers, or a name on the hub. The control tokens around a text, such
as [CLS] and [SEP] or <s> and </s>, are those of the tokenizer. A control token that is spelled out in a caption is
text. `transformers` is imported only for folders that have neither tokenizer.json nor vocab.txt.

Captions are changed as in Cui et al. 2022 (ZeroVL), https://arxiv.org/abs/2112.09331: pieces become mask tokens or
other pieces, or are removed. As in its code, the remaining pieces are joined to text, which is tokenized again. Its
code draws from Python's global stream, and takes random pieces in the order of a hash table. Here, draws come from the
example's generator, and pieces are in the order of their ids.

Dimensions: B captions, T tokens of the longest, P pieces of a caption.
"""

import hashlib
import os
import re
import string
from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pretrainkit.errors import ConfigError, DataError
from pretrainkit.files.manifest import read_object
from pretrainkit.recipes.clip.config import ClipRun, HuggingFaceTextConfig, TextAugmentConfig
from pretrainkit.tokenizers.folder import pieces_by_id, read_tokenizer_json, require_own_pieces

if TYPE_CHECKING:
    import tokenizers

_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "merges.txt", "spiece.model", "sentencepiece.model")
_ABOUT = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "manifest.json", "config.json")
_USUAL = {"pad": ("[PAD]", "<pad>"), "mask": ("[MASK]", "<mask>")}


class CaptionTokenizer:
    """Converts texts to ids, cut at a maximum length. Thread-safe and picklable."""

    def __init__(self, folder: Path, *, reads_control_tokens: bool = False) -> None:
        """Load the tokenizer in `folder`. Raises DataError if there is none, or it is broken.

        reads_control_tokens: True if a control token that is spelled out in a text becomes that token, not text.
        """
        self.folder, self._reads_control_tokens = folder, reads_control_tokens
        self._model = load_model(folder)
        self._model.no_padding()
        self._model.no_truncation()
        self._model.encode_special_tokens = not reads_control_tokens
        self.pieces = pieces_by_id(self._model.get_vocab(with_added_tokens=True), folder)
        """Text of each id; "" for unused ids."""
        self.vocab_size = len(self.pieces)
        self.is_wordpiece = type(self._model.model).__name__ == "WordPiece"
        """True if pieces inside words start with ##."""
        self.prefix, self.suffix = self._surroundings()
        ids = {piece: index for index, piece in enumerate(self.pieces)}
        roles = _roles(folder, ids)
        self.mask_id = roles.get("mask")
        last = self.suffix[-1] if self.suffix else 0
        self.pad_id = roles.get("pad", last)  # any id: num_tokens marks the end of a caption

    @property
    def fingerprint(self) -> str:
        """Hash of everything that affects the ids."""
        return hashlib.blake2b(self._model.to_str().encode(), digest_size=16).hexdigest()

    def save(self, path: Path) -> None:
        """Write the tokenizer as a tokenizer.json file."""
        self._model.save(str(path))

    def special_ids(self) -> list[int]:
        """Return the ids of control tokens, ascending."""
        return sorted(index for index, token in self._model.get_added_tokens_decoder().items() if token.special)

    def encode_bare(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text, uncut and without control tokens."""
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # batches are prepared in parallel already
        return [encoding.ids for encoding in self._model.encode_batch_fast(list(texts), add_special_tokens=False)]

    def whole(self, bare: Sequence[int], max_length: int) -> list[int]:
        """Return `bare` ids between the control tokens, cut to at most `max_length` ids in total."""
        max_bare = max_length - len(self.prefix) - len(self.suffix)
        return [*self.prefix, *bare[: max(0, max_bare)], *self.suffix]

    def pad(self, rows: Sequence[Sequence[int]], num_columns: int | None = None) -> dict[str, np.ndarray]:
        """Return rows of ids as a batch.

        `input_ids` int32 (B, T) is padded with the pad id to `num_columns` (None: to the longest row). `num_tokens`
        int32 (B,) is the number of ids in each row, including control tokens, and at least 1.
        """
        num_tokens = np.fromiter(map(len, rows), np.int32, len(rows))
        width = int(num_tokens.max(initial=1)) if num_columns is None else num_columns
        input_ids = np.full((len(rows), width), self.pad_id, np.int32)
        for row, ids in enumerate(rows):
            input_ids[row, : len(ids)] = ids
        return {"input_ids": input_ids, "num_tokens": np.maximum(num_tokens, 1)}

    def encode(self, texts: Sequence[str], max_length: int, *, num_columns: int | None = None) -> dict[str, np.ndarray]:
        """Return captions as a batch, like `pad`. Captions of more than `max_length` tokens are cut at their end."""
        return self.pad([self.whole(ids, max_length) for ids in self.encode_bare(texts)], num_columns)

    def _surroundings(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the control ids before and after a text, found by encoding a short text."""
        bare = self._model.encode("a", add_special_tokens=False).ids
        whole = self._model.encode("a", add_special_tokens=True).ids
        num_before = next((n for n in range(len(whole)) if whole[n : n + len(bare)] == bare), 0) if bare else 0
        return tuple(whole[:num_before]), tuple(whole[num_before + len(bare) :])

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": self.folder, "reads_control_tokens": self._reads_control_tokens}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]


def tokenizer_folder(config: ClipRun) -> Path:
    """Return the folder of a run's tokenizer; download it if it is a name on the hub. Raises ConfigError if no
    tokenizer is configured, DataError if it does not exist."""
    name, text = config.data.tokenizer, config.model.text
    if name is None and isinstance(text, HuggingFaceTextConfig):
        name = text.name
    if name is None:
        beside = None if config.init_from is None else Path(config.init_from, "tokenizer")
        if beside is not None and beside.is_dir():
            raise ConfigError(
                "data.tokenizer is not set, and our own text transformer has no tokenizer\n"
                f"  use the one of init_from: data.tokenizer={quote(str(beside))}"
            )
        raise ConfigError(
            "data.tokenizer is not set, and our own text transformer has no tokenizer\n"
            "  give the folder of a tokenizer: data.tokenizer=FOLDER; a trained model needs the one it was trained "
            "with; for a new model, create one with pretrainkit data captions, corpus count-words and tokenizer train"
        )
    return find_folder(name)


def find_folder(name: str) -> Path:
    """Return the folder of a tokenizer: `name` itself, or a copy of its files from the hub. Raises DataError if neither
    exists."""
    folder = Path(name)
    if folder.is_dir():
        return folder
    if folder.is_file():
        raise DataError(
            f"the tokenizer {name} is a file\n  give the folder that contains it: "
            f"data.tokenizer={quote(str(folder.parent))}"
        )
    if name.count("/") > 1 or name.startswith((".", "/", "~")):
        raise DataError(f"there is no tokenizer folder {name}\n  check data.tokenizer")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=[*_FILES, *_ABOUT]))
    except Exception as error:  # from the library, its HTTP client, or the file system
        raise DataError(
            f"the tokenizer {name} is not a folder, and cannot be downloaded from the hub: "
            f"{type(error).__name__}: {str(error).splitlines()[0][:200] if str(error) else ''}\n"
            "  give a folder: data.tokenizer=FOLDER"
        ) from error


def load_model(folder: Path) -> "tokenizers.Tokenizer":
    """Load the tokenizer of a folder with the `tokenizers` library. Raises DataError if there is none, or it cannot be
    read."""
    try:
        if (model := _read_model(folder)) is not None:
            model.encode("a", add_special_tokens=True)  # fails if a control token is not in the vocabulary
            return model
    except BaseException as error:  # the libraries raise bare Exception, and a panic is not even an Exception
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        raise DataError(
            f"the tokenizer in {folder} cannot be read: {type(error).__name__}: {str(error)[:200]}\n"
            "  restore the folder from a copy"
        ) from error
    raise DataError(f"{folder} has no tokenizer: none of {', '.join(_FILES)}\n  check data.tokenizer")


def _read_model(folder: Path) -> "tokenizers.Tokenizer | None":
    import tokenizers

    if (folder / "tokenizer.json").is_file():
        model = tokenizers.Tokenizer.from_buffer(read_tokenizer_json(folder / "tokenizer.json"))
        kind = read_settings(folder / "tokenizer_config.json").get("tokenizer_class")
        if kind == "Siglip2Tokenizer":  # transformers lower-cases texts, even if the file does not
            steps = [tokenizers.normalizers.Lowercase(), *([model.normalizer] if model.normalizer else [])]
            model.normalizer = tokenizers.normalizers.Sequence(steps)
        return model
    if (folder / "vocab.txt").is_file():
        return _bert_wordpiece(folder)
    if str(read_settings(folder / "tokenizer_config.json").get("tokenizer_class")).startswith("Siglip"):
        return _siglip(folder)
    if any((folder / name).is_file() for name in _FILES):
        from transformers import AutoTokenizer

        require_own_pieces(read_settings(folder / "tokenizer_config.json"))
        tokenizer = AutoTokenizer.from_pretrained(str(folder), use_fast=True, trust_remote_code=False)
        return tokenizer.backend_tokenizer
    return None


def _bert_wordpiece(folder: Path) -> "tokenizers.Tokenizer":
    """Build BERT's tokenizer from its list of pieces. It folds case unless do_lower_case is false in
    tokenizer_config.json."""
    from tokenizers import BertWordPieceTokenizer, processors

    # Only line feeds end a line, because U+2028 and U+0085 may be pieces, or parts of them.
    pieces = (folder / "vocab.txt").read_text(encoding="utf-8").removesuffix("\n").split("\n")
    ids = {piece: index for index, piece in enumerate(pieces)}
    about = read_settings(folder / "tokenizer_config.json")
    wordpiece = BertWordPieceTokenizer(
        ids,
        lowercase=about.get("do_lower_case", True),
        strip_accents=about.get("strip_accents"),
        handle_chinese_chars=about.get("tokenize_chinese_chars", True),
    )
    tokenizer = wordpiece._tokenizer
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", ids["[CLS]"]), ("[SEP]", ids["[SEP]"])],
    )
    return tokenizer


def _siglip(folder: Path) -> "tokenizers.Tokenizer":
    """Build SigLIP's tokenizer from its list of pieces: lower case, no punctuation, and an end token."""
    from sentencepiece import sentencepiece_model_pb2
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors

    model = sentencepiece_model_pb2.ModelProto()  # type: ignore[attr-defined]
    model.ParseFromString((folder / "spiece.model").read_bytes())
    pieces = [(piece.piece, piece.score) for piece in model.pieces]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=model.trainer_spec.unk_id))
    about = read_settings(folder / "tokenizer_config.json")
    charsmap = model.normalizer_spec.precompiled_charsmap
    tokenizer.normalizer = normalizers.Sequence(
        [
            *([normalizers.Lowercase()] if about.get("do_lower_case", True) else []),
            normalizers.Replace(Regex(f"[{re.escape(string.punctuation)}]"), ""),
            normalizers.Replace(Regex(r"\s+"), " "),
            normalizers.Strip(),
            *([normalizers.Precompiled(charsmap)] if charsmap else []),
            normalizers.Replace(Regex(" {2,}"), " "),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    end = about.get("eos_token") or "</s>"
    end = end["content"] if isinstance(end, dict) else end
    index = next(number for number, (piece, _) in enumerate(pieces) if piece == end)
    tokenizer.post_processor = processors.TemplateProcessing(single=f"$A {end}", special_tokens=[(end, index)])
    return tokenizer


def _roles(folder: Path, ids: dict[str, int]) -> dict[str, int]:
    """Return the ids of control tokens by role, from the folder's JSON files or else from their usual names."""
    named = {**read_settings(folder / "tokenizer_config.json"), **read_settings(folder / "special_tokens_map.json")}
    roles = {}
    for role, usual in _USUAL.items():
        token = named.get(f"{role}_token")
        token = token.get("content") if isinstance(token, dict) else token
        name = next((name for name in ([token] if token else usual) if name in ids), None)
        if name is not None:
            roles[role] = ids[name]
    return roles


def read_settings(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; empty if there is no file. Raises DataError if the file is broken."""
    if not path.is_file():
        return {}
    return read_object(path, "restore the folder from a copy")


_MAX_GLUED = 2
"""Maximum number of inner pieces that are joined to the first piece of a word. ZeroVL drops the others."""
_INSIDE = "##"
_REMOVED = -1


class CaptionAugment:
    """Encodes captions to bare ids with random changes.

    With WordPiece, it does the same as ZeroVL. With other tokenizers, the remaining ids are not joined to text again,
    because that is not possible piece by piece, and random pieces are never control tokens.
    """

    def __init__(self, config: TextAugmentConfig, tokenizer: CaptionTokenizer) -> None:
        """Raise ConfigError if mask tokens are needed but the tokenizer has none, or if the shares sum to more than
        1."""
        if config.mask_share + config.random_share > 1:
            raise ConfigError(
                f"data.text_augment: mask_share {config.mask_share} and random_share {config.random_share} sum to more "
                "than 1\n  give shares of the changed pieces; the other changed pieces are removed"
            )
        if config.mask_share and config.probability and tokenizer.mask_id is None:
            raise ConfigError(
                f"data.text_augment.mask_share is {config.mask_share}, but the tokenizer in {tokenizer.folder} has no "
                "mask token\n  set data.text_augment.mask_share=0, or use another tokenizer"
            )
        self.config, self.tokenizer = config, tokenizer
        self._mask_id = tokenizer.mask_id if tokenizer.mask_id is not None else _REMOVED
        everything = np.arange(tokenizer.vocab_size)
        is_wordpiece = tokenizer.is_wordpiece  # ZeroVL draws from all pieces, including control tokens
        self._random_ids = everything if is_wordpiece else np.setdiff1d(everything, tokenizer.special_ids())
        self._with_control = CaptionTokenizer(tokenizer.folder, reads_control_tokens=True) if is_wordpiece else None

    def __call__(self, captions: Sequence[str], generators: Sequence[np.random.Generator]) -> list[list[int]]:
        """Return the bare ids of each caption, changed by draws from its generator."""
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
    """Return the remaining ids of (P,) ids. Each is kept, masked, replaced or removed independently of the others.

    A piece changes if its uniform number is below `probability`. The same number, divided by `probability`, decides the
    kind of change.
    """
    # Every piece draws both numbers, even if it needs none, so that it does not affect the draws of other pieces.
    drawn_P = generator.random(len(ids_P))
    random_P = random_ids[generator.integers(len(random_ids), size=len(ids_P))]
    masked = config.probability * config.mask_share
    replaced = masked + config.probability * config.random_share
    result_P = np.where(drawn_P < config.probability, _REMOVED, ids_P)
    result_P = np.where(drawn_P < replaced, random_P, result_P)
    result_P = np.where(drawn_P < masked, mask_id, result_P)
    return result_P[result_P != _REMOVED]


def joined(pieces: Sequence[str], mask: str) -> str:
    """Join WordPiece pieces to text like ZeroVL: at most two ## pieces are appended to the word before them. Those
    after a mask token, or without a word, are dropped."""
    words: list[str] = []
    num_glued: int | None = None  # None: there is no word to append to
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

"""Filled-in texts read as the tokenizer spells them, whatever kind it is."""

import json
from collections import Counter
from pathlib import Path

import pytest
import tokenizers
import torch

from pretrainkit.errors import InputError
from pretrainkit.recipes.bert.generate import fill_masks
from pretrainkit.recipes.bert.recipe import RECIPE
from pretrainkit.tokenizers.load import load_tokenizer
from pretrainkit.tokenizers.train import TokenizerSettings, train_tokenizer
from support.bert_batches import run_config

TEXT = [
    "the cat is walking here and the dog was walking there (really)",
    "cats and dogs like the garden, naïve ones too",
]


def byte_level(folder: Path, *, lstrip: bool) -> Path:
    """A tokenizer as people train one for RoBERTa with the `tokenizers` library."""
    found = tokenizers.ByteLevelBPETokenizer()
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    found.train_from_iterator(TEXT * 9, vocab_size=420, special_tokens=[*special, "<mask>"], show_progress=False)
    found.add_special_tokens([tokenizers.AddedToken("<mask>", lstrip=lstrip, normalized=False)])
    folder.mkdir()
    found.save(str(folder / "tokenizer.json"))
    return folder


def unmarked(folder: Path, model: tokenizers.models.Model, split: str, **parts: tokenizers.decoders.Decoder) -> None:
    """A tokenizer whose pieces have no mark of the space before them, as people build one for letters or words."""
    found = tokenizers.Tokenizer(model)
    found.pre_tokenizer = tokenizers.pre_tokenizers.Split(
        tokenizers.Regex(split), "isolated" if split == "." else "removed"
    )
    for name, part in parts.items():
        setattr(found, name, part)
    folder.mkdir()
    found.save(str(folder / "tokenizer.json"))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("kinds")
    words = root / "words.tsv"
    counts = Counter(word for text in TEXT * 9 for word in text.split())
    words.write_text("".join(f"{word}\t{count}\n" for word, count in counts.items()), encoding="utf-8")
    for kind, size in (("unigram", 290), ("wordpiece", 80), ("bpe", 300)):
        train_tokenizer([words], root / kind, TokenizerSettings(kind=kind, vocab_size=size))
    byte_level(root / "byte-level", lstrip=True)
    byte_level(root / "byte-level-strict", lstrip=False)
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    letters = {piece: index for index, piece in enumerate([*special, *"ACGT"])}
    unmarked(root / "letters", tokenizers.models.WordLevel(letters, "[UNK]"), ".", decoder=tokenizers.decoders.Fuse())
    threes = {piece: index for index, piece in enumerate([*special, "ACG", "CGT", "GTA"])}
    unmarked(root / "threes", tokenizers.models.WordLevel(threes, "[UNK]"), " ")
    unmarked(root / "unmarked", tokenizers.models.BPE(threes, [], unk_token="[UNK]"), " ")
    return {path.name: path for path in root.iterdir() if path.is_dir()}


def filled(folder: Path, prompt: str, piece: str) -> dict:
    """The answer of a model that is sure of one piece."""
    tokenizer = load_tokenizer(folder)
    config = run_config()
    size = {"vocab_size": tokenizer.vocab_size}
    config = config.model_copy(update={"model": config.model.model_copy(update=size)})
    torch.manual_seed(0)
    model = RECIPE.build_model(config).eval()
    with torch.no_grad():
        model.masked_lm.decoder_bias[tokenizer.pieces().index(piece)] = 1e3
    return fill_masks(config, model, folder, [prompt], top=1)[0]


def pieces_of(folder: Path) -> tuple[str, str]:
    """A piece that begins a word and a piece that continues it; both have letters only, except for their marks."""
    tokenizer = load_tokenizer(folder)
    is_start = tokenizer.is_word_start()
    letters = {index: piece.lstrip("▁Ġ#") for index, piece in enumerate(tokenizer.pieces())}
    plain = [index for index, text in letters.items() if text.isascii() and text.isalpha() and len(text) < 9]
    start = max((index for index in plain if is_start[index]), key=lambda index: len(letters[index]))
    return tokenizer.pieces()[start], next(tokenizer.pieces()[index] for index in plain if not is_start[index])


@pytest.mark.parametrize("kind", ["unigram", "bpe", "wordpiece", "byte-level", "byte-level-strict"])
@pytest.mark.parametrize(
    ("prompt", "with_word", "with_part"),
    [
        ("the cat <mask> here", "the cat W here", "the catP here"),
        ("<mask> is here", "W is here", "P is here"),
        ("the cat <mask>", "the cat W", "the catP"),
        ("the cat <mask>, here", "the cat W, here", "the catP, here"),
        ("the cat [MASK] <mask> here", "the cat W W here", "the catPP here"),
        ("the cat<mask> here", "the cat W here", "the catP here"),
        ("the cat\n<mask> here", "the cat\nW here", "the catP here"),
    ],
)
def test_a_word_follows_a_blank_and_a_part_of_a_word_does_not(
    folders: dict[str, Path], kind: str, prompt: str, with_word: str, with_part: str
) -> None:
    word, part = pieces_of(folders[kind])
    if kind.startswith("b"):  # byte-level pieces read line ends
        with_word, with_part = with_word.replace("\n", "\n "), with_part if "\n" not in prompt else "the cat\nP here"
    assert filled(folders[kind], prompt, word)["text"] == with_word.replace("W", word.lstrip("▁Ġ"))
    assert filled(folders[kind], prompt, part)["text"] == with_part.replace("P", part.lstrip("#"))


def test_a_word_in_brackets_gets_a_blank_only_if_its_pieces_have_one(folders: dict[str, Path]) -> None:
    word = pieces_of(folders["wordpiece"])[0]
    assert filled(folders["wordpiece"], "here (<mask>) and", word)["text"] == f"here ({word}) and"
    word = pieces_of(folders["unigram"])[0]
    assert filled(folders["unigram"], "here (<mask>) and", word)["text"] == f"here ({word.replace('▁', ' ')}) and"


@pytest.mark.parametrize("kind", ["byte-level", "byte-level-strict"])
def test_a_byte_level_model_reads_nothing_between_a_word_and_a_mask(folders: dict[str, Path], kind: str) -> None:
    """In training the mask replaces a piece with its blank; a blank of its own would be another token. The longest
    prompt that is accepted shows the number of tokens."""
    config = run_config()
    assert config.data.max_seq_length == 24
    tokenizer = load_tokenizer(folders[kind])
    num = 22 - len(tokenizer.encode("the"))  # without [CLS] and [SEP]
    assert filled(folders[kind], "the" + " <mask>" * num, "s")["text"] == "the" + "s" * num
    assert filled(folders[kind], "the" + "<mask>" * num, "s")["text"] == "the" + "s" * num


def test_a_model_of_letters_reads_no_space_that_the_prompt_does_not_have(folders: dict[str, Path]) -> None:
    """The space would be an unknown letter, which training never shows. 22 letters and masks fit into 24 tokens."""
    assert filled(folders["letters"], "ACG<mask>T" * 4 + "AC", "G")["text"] == "ACGGT" * 4 + "AC"
    with pytest.raises(InputError, match="25 tokens"):
        filled(folders["letters"], "ACG<mask>T" * 4 + "ACG", "G")


@pytest.mark.parametrize("kind", ["threes", "unmarked"])
def test_the_space_before_a_mask_is_kept_if_pieces_have_no_mark_of_it(folders: dict[str, Path], kind: str) -> None:
    assert filled(folders[kind], "ACG CGT <mask> ACG", "GTA")["text"] == "ACG CGT GTA ACG"


def test_line_ends_and_indents_before_a_mask_are_read(folders: dict[str, Path]) -> None:
    """In code, the mask replaces a word with one of the spaces before it."""
    num = 22 - len(load_tokenizer(folders["bpe"]).encode("the\n   "))
    assert filled(folders["bpe"], "the\n    <mask>" + "<mask>" * (num - 1), "s")["text"] == "the\n   " + "s" * num
    with pytest.raises(InputError, match="25 tokens"):
        filled(folders["bpe"], "the\n    <mask>" + "<mask>" * num, "s")


def test_pieces_of_bytes_are_shown_as_text(folders: dict[str, Path]) -> None:
    path = folders["byte-level"] / "tokenizer.json"
    piece = next(p for p in json.loads(path.read_text())["model"]["vocab"] if p.startswith("Ġ") and "Ã" in p)
    assert "Ġ" not in (shown := filled(folders["byte-level"], "the <mask>", piece)["masks"][0][0]["piece"])
    assert shown.startswith(" n")

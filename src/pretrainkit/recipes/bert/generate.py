"""Fill in masked words. Dimensions: T tokens, K masks, V vocabulary."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from pretrainkit.errors import InputError
from pretrainkit.recipes.bert.config import BertRun
from pretrainkit.recipes.bert.inputs import read_texts
from pretrainkit.recipes.bert.model import BertForPretraining
from pretrainkit.tokenizers.folder import read_tokenizer_json
from pretrainkit.tokenizers.load import Tokenizer, load_tokenizer

Encode = Callable[[str], list[int]]

MASK_WORD = re.compile(r"(\s*)(?:<mask>|\[MASK\])")
"""Mask as a user writes it in place of a word. The space before it belongs to the word."""


def fill_masks(
    config: BertRun, model: BertForPretraining, tokenizer_folder: Path, prompts: list[str], *, top: int = 5
) -> list[dict[str, Any]]:
    """Find the `top` most likely pieces for each mask of each prompt. Raises InputError if a prompt has no mask or is
    longer than the model can read, or the tokenizer is not the model's.

    Returns:
        Per prompt: "prompt"; "masks": per mask a list of {"piece", "probability"}, best first; "text": the prompt with
        the best piece in each place.
    """
    from tokenizers import Tokenizer as JsonTokenizer

    tokenizer = load_tokenizer(tokenizer_folder)
    has_json = (tokenizer_folder / "tokenizer.json").is_file()
    if not has_json or tokenizer.vocab_size > (config.model.vocab_size or 0):
        problem = f"has {tokenizer.vocab_size} pieces, but the model has {config.model.vocab_size}"
        raise InputError(
            f"the tokenizer {tokenizer_folder} {problem if has_json else 'has no tokenizer.json'}\n"
            "  import the model with the tokenizer it was trained with: pretrainkit import MODEL --tokenizer FOLDER "
            "--out DIR"
        )
    # tokenizer.json finds the mask token in text, even next to a word without a space, if the file lists it as special.
    with_masks = JsonTokenizer.from_buffer(read_tokenizer_json(tokenizer_folder / "tokenizer.json"))
    with_masks.no_padding()  # some published files ask for rows of one length
    with_masks.no_truncation()
    special = tokenizer.special
    if special.mask not in with_masks.get_added_tokens_decoder():
        with_masks.add_special_tokens([tokenizer.pieces()[special.mask]])

    def encode(text: str) -> list[int]:  # the file may add other control tokens than training, or none
        return [special.cls, *with_masks.encode(text, add_special_tokens=False).ids, special.sep]

    return [_fill(config, model, tokenizer, encode, prompt, top) for prompt in prompts]


@torch.no_grad()
def _fill(
    config: BertRun, model: BertForPretraining, tokenizer: Tokenizer, encode: Encode, prompt: str, top: int
) -> dict[str, Any]:
    special, pieces = tokenizer.special, tokenizer.pieces()
    text, *parts = MASK_WORD.split(prompt)  # parts: alternately the space before a mask and the text after it
    if not parts:
        raise InputError(f"there is nothing to fill in: {prompt!r}\n  write <mask> in place of a word")
    # Byte-level pieces include the space before a word. Before a mask, this space would become a separate token.
    mask, own = pieces[special.mask], tokenizer.word_prefix
    ids = encode(MASK_WORD.sub(lambda match: match[1].removesuffix(own) + mask, prompt))
    places = [place for place, token in enumerate(ids) if token == special.mask]
    if len(ids) > config.data.max_seq_length:
        raise InputError(
            f"a prompt has {len(ids)} tokens, but the model was trained on at most {config.data.max_seq_length}: "
            f"{prompt[:60]!r}\n  give a shorter prompt"
        )
    batch = {
        "input_ids": torch.tensor(ids),
        "token_type_ids": torch.zeros(len(ids), dtype=torch.int64),
        "positions": torch.arange(len(ids)),
        "cu_seqlens": torch.tensor([0, len(ids)], dtype=torch.int32),
    }
    device = next(model.parameters()).device
    batch = {name: tensor.to(device) for name, tensor in batch.items()}
    inputs = read_texts(batch, config.data.max_seq_length, torch.tensor(places, device=device))
    logits_KV = model(inputs).logits_KV[:, : tokenizer.vocab_size]  # the table may have more rows than pieces
    logits_KV[:, [special.cls, special.sep, special.mask, special.pad]] = -torch.inf
    best = logits_KV.softmax(-1).topk(min(top, logits_KV.shape[1]), dim=-1)
    masks = [
        [{"piece": _shown(tokenizer, i), "probability": p} for p, i in zip(row_p, row_i, strict=True)]
        for row_p, row_i in zip(best.values.tolist(), best.indices.tolist(), strict=True)
    ]
    for blank, after, (index, *_) in zip(parts[::2], parts[1::2], best.indices.tolist(), strict=True):
        text += _word(tokenizer, index, text, blank) + after
    return {"prompt": prompt, "masks": masks, "text": text.strip()}


def _shown(tokenizer: Tokenizer, index: int) -> str:
    """Return a piece in readable form: spaces as spaces, bytes as text."""
    piece = tokenizer.pieces()[index]
    return tokenizer.decode([index]) if tokenizer.word_prefix else piece.replace("▁", " ")


def _word(tokenizer: Tokenizer, index: int, before: str, blank: str) -> str:
    """Return a piece as it is appended to the text `before`, which the user separated from the mask by `blank`. A piece
    that continues a word is joined to it; a piece that begins a word is separated by a space."""
    shown, own = _shown(tokenizer, index), tokenizer.word_prefix
    if own:  # the piece has its space, and the blank without it was read
        return blank.removesuffix(own) + shown
    if not tokenizer.is_word_start()[index]:
        if not tokenizer.marks_words():  # the piece may begin a word, so the text stays as the user wrote it
            return blank + shown
        return shown.removeprefix("##") if tokenizer.kind == "wordpiece" else shown
    word = shown.removeprefix(" ")
    has_blank = word != shown  # otherwise a space is added if the piece would be encoded differently without it
    return (blank or " " * (has_blank or index not in tokenizer.encode(before[-1:] + word)[-1:])) + word

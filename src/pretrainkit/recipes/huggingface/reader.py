"""The tokenizer of a transformers folder, and the control tokens that it adds to texts.

This module does not import torch.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pretrainkit.errors import DataError
from pretrainkit.recipes.huggingface.config import HuggingFaceModelConfig
from pretrainkit.recipes.token_reader import ControlTokens, TokenReader
from pretrainkit.tokenizers.folder import CONFIG_JSON, TOKENIZER_JSON, read_tokenizer_json
from pretrainkit.tokenizers.load import Tokenizer, load_tokenizer

_TEXT = "a"


@dataclass(frozen=True)
class Template:
    """Control tokens and token types of single texts and pairs."""

    control: ControlTokens
    second_type: Literal[0, 1]
    """Token type of the second text of a pair; the first text has type 0."""


def read_tokenizer(folder: Path) -> tuple[Tokenizer, Template]:
    """Return the tokenizer of a folder. The folder has `tokenizer.json` or files that transformers can convert to it.
    Raises DataError if the folder has no readable tokenizer."""
    from pretrainkit.exporting.foreign_tokenizer import tokenizer_beside

    tokenizer_folder = tokenizer_beside(folder)
    if tokenizer_folder is None:
        raise DataError(
            f"{folder} has no tokenizer\n  set data.tokenizer=FOLDER to the folder of the encoder's tokenizer"
        )
    return load_tokenizer(tokenizer_folder), template_of(tokenizer_folder)


def template_of(folder: Path) -> Template:
    """Return the control tokens that `tokenizer.json` adds to texts, or those of BERT if it adds nothing."""
    import tokenizers

    model = tokenizers.Tokenizer.from_buffer(read_tokenizer_json(folder / TOKENIZER_JSON))
    model.no_padding()
    model.no_truncation()
    single, pair = model.encode(_TEXT), model.encode(_TEXT, _TEXT)
    # `sequence_ids` has the index of its text for each token; it is None for control tokens around the texts.
    places = [place for place, text in enumerate(pair.sequence_ids) if text is not None]
    if len(single.ids) == single.sequence_ids.count(0) or not places:
        special = load_tokenizer(folder).special
        return Template(ControlTokens((special.cls,), (special.sep,), (special.sep,)), 1)
    num_first = pair.sequence_ids.count(0)
    first_end, second_begin, second_end = places[num_first - 1] + 1, places[num_first], places[-1] + 1
    control = ControlTokens(
        before=tuple(pair.ids[: places[0]]),
        between=tuple(pair.ids[first_end:second_begin]),
        after=tuple(pair.ids[second_end:]),
    )
    path = folder / CONFIG_JSON
    names = json.loads(path.read_bytes()).get("model_input_names") if path.is_file() else None
    gives_types = names is None or "token_type_ids" in names
    return Template(control, 1 if gives_types and pair.type_ids[second_begin] else 0)


def text_reader(folder: Path, config: HuggingFaceModelConfig) -> TokenReader:
    """Return the reader of the encoder whose tokenizer is in `folder`."""
    tokenizer, template = read_tokenizer(folder)
    return TokenReader(
        tokenizer.encode_flat,
        template.control,
        f"{tokenizer.fingerprint} {template}",
        config.max_positions,
        word_prefix=tokenizer.word_prefix,
        unknown=tokenizer.special.unk,
        encode_with_offsets=tokenizer.encode_with_offsets,
        num_ids=config.architecture.get("vocab_size"),
    )

"""The tokenizer of a transformers folder, and the control tokens it puts around texts. Torch-free."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pretrainkit.errors import DataError
from pretrainkit.recipes.token_reader import ControlTokens, TokenReader
from pretrainkit.tokenizers.folder import CONFIG_JSON, TOKENIZER_JSON
from pretrainkit.tokenizers.load import Tokenizer, load_tokenizer

_TEXT = "a"


@dataclass(frozen=True)
class Template:
    """Control tokens and types of single texts and pairs."""

    control: ControlTokens
    second_type: Literal[0, 1]
    """Type of the second text of a pair; the first one's is 0."""


def read_tokenizer(folder: Path) -> tuple[Tokenizer, Template]:
    """Return the tokenizer of a folder with `tokenizer.json`, or files that transformers makes one of. Raises DataError
    where there is none that can be read."""
    from pretrainkit.exporting.foreign_tokenizer import tokenizer_beside

    found = tokenizer_beside(folder)
    if found is None:
        raise DataError(f"{folder} holds no tokenizer\n  name the encoder's folder: data.tokenizer=FOLDER")
    return load_tokenizer(found), template_of(found)


def template_of(folder: Path) -> Template:
    """Return what `tokenizer.json` puts around texts; where it adds nothing, what BERT does."""
    import tokenizers

    model = tokenizers.Tokenizer.from_file(str(folder / TOKENIZER_JSON))
    model.no_padding()
    model.no_truncation()
    single, pair = model.encode(_TEXT), model.encode(_TEXT, _TEXT)
    # Tokens of a text know which one it is; those without are what stands before, between and behind.
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


def text_reader(folder: Path, max_positions: int | None) -> TokenReader:
    """Return the reader of the encoder whose tokenizer is in `folder`."""
    tokenizer, template = read_tokenizer(folder)
    return TokenReader(
        tokenizer.encode_flat,
        template.control,
        f"{tokenizer.fingerprint} {template}",
        max_positions,
        word_prefix=tokenizer.word_prefix,
        unknown=tokenizer.special.unk,
        encode_with_offsets=tokenizer.encode_with_offsets,
    )

"""Common steps. Each is picklable, pure, and part of a cache's fingerprint.

Source of the names and rules: SeqIO, https://arxiv.org/abs/2203.17189.
"""

import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrainkit.errors import ConfigError, DataError
from pretrainkit.tasks.steps import Example, Filter, Lengths
from pretrainkit.tasks.vocabulary import Feature

Features = Mapping[str, Feature]


@dataclass(frozen=True)
class Rekey:
    """Rename keys: `rekey({"inputs": None, "targets": "text"})`. None makes an empty string; other keys are dropped."""

    key_map: Mapping[str, str | None]

    def __call__(self, example: Mapping[str, Any]) -> Example:
        return {new: "" if old is None else example[old] for new, old in self.key_map.items()}


rekey = Rekey


@dataclass(frozen=True)
class FormatStrings:
    """Make texts from patterns; see `format_strings`."""

    patterns: Mapping[str, str]

    def __call__(self, example: Mapping[str, Any]) -> Example:
        values = NotNull(example)
        return {**example, **{key: pattern.format_map(values) for key, pattern in self.patterns.items()}}


class NotNull(dict[str, Any]):
    """Values of an example. A null raises ValueError, because as a text it would be the word None."""

    def __getitem__(self, name: str) -> Any:
        value = super().__getitem__(name)
        if value is None:
            raise ValueError(f"{name!r} is null")
        return value


def format_strings(**patterns: str) -> FormatStrings:
    """Make texts from the values of an example: `format_strings(inputs="translate to German: {en}", targets="{de}")`.
    Raises ConfigError if a pattern is not valid for `str.format`, or has fields without a name."""
    for key, pattern in patterns.items():
        try:
            fields = [name for _, name, _, _ in string.Formatter().parse(pattern) if name is not None]
        except ValueError as error:
            raise ConfigError(f"pattern {key}={pattern!r}: {error}\n  double a literal brace") from error
        if any(not name or name[0].isdigit() for name in fields):
            raise ConfigError(f"pattern {key}={pattern!r} has a field without a name\n  write {{name}}")
    return FormatStrings(patterns)


@dataclass(frozen=True)
class Tokenize:
    """Encode texts of output features; see `tokenize`."""

    keeps_text: bool

    def __call__(self, example: Mapping[str, Any], features: Features) -> Example:
        changed = dict(example)
        for name, feature in features.items():
            value = changed.get(name)
            if isinstance(value, str):
                if self.keeps_text:
                    changed[f"{name}_pretokenized"] = value
                changed[name] = np.array(feature.vocabulary.encode(value), np.int32)
            elif isinstance(value, (list, tuple)) and value and isinstance(value[0], str):
                raise DataError(f"feature {name!r} is a list of texts\n  select or join them before they are tokenized")
        return changed


def tokenize(keep_text: bool = True) -> Tokenize:
    """Encode output features that are texts as int32 ids, without EOS. With `keep_text` the text is stored as
    `<feature>_pretokenized`."""
    return Tokenize(keep_text)


def append_eos(example: Mapping[str, Any], features: Features) -> Example:
    """Append EOS to features with `add_eos`. It is cut off again from features that are too long for the model."""
    return append_eos_after_trim(example, features, None)


def append_eos_after_trim(example: Mapping[str, Any], features: Features, lengths: Lengths | None) -> Example:
    """Append EOS to features with `add_eos`; it replaces the last token of a feature that is too long. Without lengths
    nothing is trimmed; other features are never trimmed here."""
    changed = dict(example)
    for name, feature in features.items():
        if name in changed and feature.add_eos:
            changed[name] = _with_eos(changed[name], feature, None if lengths is None else lengths.get(name))
    return changed


def tokenize_and_append_eos(example: Mapping[str, Any], features: Features) -> Example:
    """Apply `tokenize` and then `append_eos`."""
    return append_eos(Tokenize(keeps_text=True)(example, features), features)


@dataclass(frozen=True)
class TruncateLeft:
    """Keep the end of features; see `truncate_inputs_left`."""

    keys: Sequence[str]

    def __call__(self, example: Mapping[str, Any], lengths: Lengths | None, features: Features) -> Example:
        changed = dict(example)
        for key in self.keys:
            if lengths is None or key not in lengths or key not in changed:
                continue
            value, feature = np.asarray(changed[key]), features.get(key)
            num_tokens = lengths[key]
            if feature is not None and feature.add_eos:
                has_eos = len(value) > 0 and value[-1] == feature.vocabulary.eos_id  # as in tasks of SeqIO
                num_tokens -= int(not has_eos)
            changed[key] = value[max(0, len(value) - num_tokens) :]
        return changed


def truncate_inputs_left(*keys: str) -> TruncateLeft:
    """Trim the beginning of each feature of `keys` (default: `inputs`) that is too long, with space for EOS if the
    feature gets it later."""
    return TruncateLeft(keys or ("inputs",))


def keep_if(condition: Callable[[Mapping[str, Any]], bool]) -> Filter:
    """Keep the examples for which `condition` is true. This step must be before the cache marker."""
    return Filter(condition)


def _with_eos(value: Any, feature: Feature, length: int | None) -> NDArray:
    ids = np.asarray(value, feature.numpy_dtype)
    if length is not None:
        ids = ids[: max(0, length - 1)]
    return np.append(ids, np.array(feature.vocabulary.eos_id, ids.dtype))

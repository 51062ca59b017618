"""Settings of decoding. Imports no torch."""

from typing import Annotated, Any, Literal, Self

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails

from pretrainkit.config.base import Config
from pretrainkit.errors import InputError

_READ_BY = {
    "num_beams": "beam",
    "alpha": "beam",
    "temperature": "sample",
    "top_k": "sample",
    "top_p": "sample",
    "seed": "sample",
}


class DecodingConfig(Config):
    """Decoding token by token: greedy, a search over several continuations, or sampling."""

    method: Literal["greedy", "beam", "sample"] = "greedy"
    """greedy: always the most likely token. beam: a search over several continuations, as in T5's paper. sample: draw
    from the model's probabilities."""
    num_beams: PositiveInt = 4
    """Number of continuations that the search keeps; has an effect only with beam."""
    alpha: NonNegativeFloat = 0.6
    """Exponent of the brevity penalty ((5 + length) / 6) ** alpha; 0: no penalty, which favours short answers. It has
    an effect only with beam."""
    temperature: PositiveFloat = 1.0
    """Divisor of the logits; below 1 likely tokens become more likely. It has an effect only with sample."""
    top_k: NonNegativeInt = 0
    """Draw from this many most likely tokens; 0: from all. It has an effect only with sample."""
    top_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Draw from the most likely tokens with this total probability; 0: from all. It has an effect only with sample."""
    seed: NonNegativeInt = 0
    """Seed of the draws, which also depend on the example but not on the batch. It has an effect only with sample."""
    max_length: PositiveInt | None = None
    """Maximum number of tokens of an answer, including its end mark; null: data.target_length."""

    @model_validator(mode="after")
    def _check_method(self) -> Self:
        """Refuse settings that have no effect with the method."""
        if self.top_k and self.top_p:
            raise ValueError(f"top_k {self.top_k} and top_p {self.top_p} are both set; set one of them to 0")
        for name, method in _READ_BY.items():
            value = getattr(self, name)
            if method != self.method and value != type(self).model_fields[name].default:
                raise ValueError(
                    f"{name}={value} has an effect only with method={method}, but method={self.method}; "
                    f"leave it out, or set method={method}"
                )
        return self


def decoding_of(*, beams: int | None = None, **settings: Any) -> DecodingConfig:
    """Return the config with the method that the settings belong to, for the command line. `beams` is `num_beams`.

    Settings that are None are ignored. Raises InputError if they belong to different methods or are out of range."""
    given = {name: value for name, value in {"num_beams": beams, **settings}.items() if value is not None}
    methods = {_READ_BY[name] for name in given if name in _READ_BY}
    if len(methods) > 1:
        names = ", ".join(name for name in given if name in _READ_BY)
        raise InputError(
            f"{names} cannot be combined: beams and alpha are for beam search, the others for sampling\n"
            "  give only those for search, or only those for sampling"
        )
    try:
        return DecodingConfig.model_validate({"method": next(iter(methods), "greedy"), **given})
    except ValidationError as error:
        raise InputError("\n".join(map(_problem, error.errors()))) from None


def _problem(error: ErrorDetails) -> str:
    """Return a validation error of one field, or of several together, as a line."""
    message = error["msg"].removeprefix("Value error, ")
    return f"{'.'.join(map(str, error['loc']))}={error['input']!r}: {message}" if error["loc"] else message

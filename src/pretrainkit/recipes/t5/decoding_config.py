"""How answers are made. Torch-free."""

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
    """Token by token: the best one, a search over several continuations, or draws."""

    method: Literal["greedy", "beam", "sample"] = "greedy"
    """greedy: always the likeliest token. beam: the best of several continuations, as in T5's paper. sample: draw from
    the model's probabilities."""
    num_beams: PositiveInt = 4
    """beam only: continuations that are kept."""
    alpha: NonNegativeFloat = 0.6
    """beam only: exponent of the brevity penalty ((5 + length) / 6) ** alpha; 0: the likeliest answer wins, which
    favours short ones."""
    temperature: PositiveFloat = 1.0
    """sample only: logits are divided by it; below 1 likely tokens become likelier."""
    top_k: NonNegativeInt = 0
    """sample only: draw from so many likeliest tokens; 0: from all."""
    top_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    """sample only: draw from the likeliest tokens that have this probability together; 0: from all."""
    seed: NonNegativeInt = 0
    """sample only: of the draws, which depend on it and on the example, not on the batch."""
    max_length: PositiveInt | None = None
    """Most tokens of an answer, its end mark counted in; null: data.target_length."""

    @model_validator(mode="after")
    def _check_method(self) -> Self:
        """Nothing is set that the method does not read."""
        if self.top_k and self.top_p:
            raise ValueError(f"top_k {self.top_k} and top_p {self.top_p} are both set; set one of them to 0")
        for name, method in _READ_BY.items():
            value = getattr(self, name)
            if method != self.method and value != type(self).model_fields[name].default:
                raise ValueError(
                    f"{name} {value} is only read by method {method}, not by {self.method}; "
                    f"leave it out, or set method to {method}"
                )
        return self


def decoding_of(*, beams: int | None = None, **settings: Any) -> DecodingConfig:
    """The config with the method that the given settings are read by: that of the command line. `beams` is `num_beams`;
    None: not given. Raises InputError where they belong to different methods, or one is out of range."""
    given = {name: value for name, value in {"num_beams": beams, **settings}.items() if value is not None}
    methods = {_READ_BY[name] for name in given if name in _READ_BY}
    if len(methods) > 1:
        names = ", ".join(name for name in given if name in _READ_BY)
        raise InputError(
            f"{names} do not go together: beams and alpha search, temperature, top_k, top_p and seed draw\n"
            "  give those of one kind"
        )
    try:
        return DecodingConfig.model_validate({"method": next(iter(methods), "greedy"), **given})
    except ValidationError as error:
        raise InputError("\n".join(map(_told, error.errors()))) from None


def _told(error: ErrorDetails) -> str:
    """One problem of pydantic, as a line: of a field, or of several together."""
    said = error["msg"].removeprefix("Value error, ")
    return f"{'.'.join(map(str, error['loc']))} {error['input']!r}: {said}" if error["loc"] else said

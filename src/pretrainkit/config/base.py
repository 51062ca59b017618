"""The base of every config class: frozen, keyword-only, unknown keys refused, every field documented."""

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict


class Config(BaseModel):
    """Frozen settings. The string under each field is its documentation: unit, range, who uses which value."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        validate_default=True,
        allow_inf_nan=False,
        protected_namespaces=(),
    )

    neutral_fields: ClassVar[frozenset[str]] = frozenset()
    """Of a model's config: fields that change nothing of what trained weights compute, such as rates of dropout."""

    def neutral(self) -> frozenset[str]:
        """`neutral_fields`, and those that are neutral because of what another field says."""
        return self.neutral_fields


def architecture(config: Config) -> dict[str, Any]:
    """Dotted path to JSON value of every field of a model's config that decides what given weights compute."""
    found: dict[str, Any] = {}
    dumped = config.model_dump(mode="json")
    for name in type(config).model_fields.keys() - config.neutral():
        value = getattr(config, name)
        parts = {name: value}
        if isinstance(value, tuple) and value and isinstance(value[0], Config):
            parts = {f"{name}.{number}": part for number, part in enumerate(value)}
        if all(isinstance(part, Config) for part in parts.values()):
            for path, part in parts.items():
                found |= {f"{path}.{below}": leaf for below, leaf in architecture(part).items()}
        else:
            found[name] = dumped[name]
    return dict(sorted(found.items()))

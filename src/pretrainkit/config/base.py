"""The base of every config class: frozen, keyword-only, unknown keys refused, every field documented."""

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

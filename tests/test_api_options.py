"""The typed options of the Python API are the fields of the settings that read them."""

import dataclasses
import inspect
from types import SimpleNamespace
from typing import Any, get_type_hints

import pytest
import torch

from pretrainkit import api
from pretrainkit.eval.inference import InferenceRequest, RequestOptions
from pretrainkit.eval.probe_config import ProbeConfig, ProbeOptions
from pretrainkit.recipes.capabilities import GenerateOptions, Generates, ImageTokenOptions
from pretrainkit.recipes.image_tokenizer.token_files import TokenMaker
from pretrainkit.recipes.registry import recipes_able
from pretrainkit.rendering.config import RendererConfig, RendererOptions


def fields_of(settings: type) -> set[str]:
    if dataclasses.is_dataclass(settings):
        return {field.name for field in dataclasses.fields(settings)}
    if not hasattr(settings, "model_fields"):
        return set(inspect.signature(settings).parameters)
    return set(settings.model_fields)


@pytest.mark.parametrize(
    ("options", "settings", "given_otherwise"),
    [
        (ProbeOptions, ProbeConfig, set()),
        (RequestOptions, InferenceRequest, {"task", "split", "rows"}),
        (ImageTokenOptions, TokenMaker, {"codec"}),
        (RendererOptions, RendererConfig, {"font_file", "max_seq_length"}),
    ],
)
def test_options_are_the_fields_of_the_settings(options: Any, settings: type, given_otherwise: set[str]) -> None:
    assert set(options.__annotations__) == fields_of(settings) - given_otherwise


def test_options_of_infer_are_its_parameters() -> None:
    parameters = set(inspect.signature(api.infer).parameters) - {"path", "out", "task", "input", "request"}
    assert set(api.InferOptions.__annotations__) == parameters | set(RequestOptions.__annotations__)


def test_every_option_of_generating_is_one_of_a_recipe() -> None:
    taken = {name for recipe in recipes_able(Generates).values() for name in recipe.generate_options}
    own = {"image_tokenizers": "image_decoders"}
    assert {own.get(name, name) for name in GenerateOptions.__annotations__} == taken


def test_no_function_of_the_api_takes_just_anything() -> None:
    for name in api.__all__:
        for parameter in inspect.signature(getattr(api, name)).parameters.values():
            if parameter.kind is parameter.VAR_KEYWORD:
                assert "Unpack" in str(parameter.annotation), f"{name}(**{parameter.name})"
            else:
                assert parameter.annotation not in (Any, "Any", inspect.Parameter.empty), f"{name}({parameter.name})"


def test_hints_can_be_resolved() -> None:
    assert get_type_hints(GenerateOptions)["top"] is int


def test_the_old_name_of_the_inputs_of_generate_is_still_read(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = SimpleNamespace(model=torch.nn.Identity(), generate=lambda prompts, **options: [options])
    monkeypatch.setattr(api, "open_model", lambda path, averaged: opened)
    with pytest.deprecated_call(match="inputs"):
        assert api.generate("run", [], given=["rgb"]) == [{"inputs": ["rgb"]}]  # type: ignore[call-arg]

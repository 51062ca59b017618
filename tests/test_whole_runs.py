"""Every preset has a whole run, of its own or of one with the same parts, whose exports are held to be the run."""

import ast

import pytest

import pretrainkit
from pretrainkit.config.loader import flatten
from pretrainkit.recipes.registry import entries, find_recipe
from support import SUPPORT

TESTS = SUPPORT.parent
CHECK = "assert_exports_are_the_run"
BERT = "end_to_end/test_five_commands.py::test_an_export_of_another_objective_is_the_run"
CLIP_FILE = "recipes/clip/test_clip_whole_run.py"
CLIP = f"{CLIP_FILE}::test_an_export_of_"
T5 = "recipes/t5/test_t5_exports.py::test_an_export_is_the_run_and_reads_its_ids"
BYTES = "recipes/t5/test_t5_exports.py::test_a_run_on_tasks_of_bytes_is_exported_with_the_tokenizer_of_bytes"
PIXEL = "recipes/pixel/test_pixel_whole_run.py::test_an_export_of_"
FOURM = "recipes/fourm/test_fourm_published_exports.py::test_an_export_is_the_run"
GLUE = "recipes/glue/test_glue_encoders.py::test_an_export_of_another_kind_of_task_is_the_run"
WORDS = "recipes/glue/test_glue_words_exported.py::test_an_export_is_the_run"
DRAWN = "recipes/pixel/test_pixel_{}.py::test_an_export_is_the_run"
IMAGES = "recipes/image_tokenizer/test_image_tokenizer_whole_run.py::test_an_export_of_another_kind_is_the_run"
TESTED = {
    **dict.fromkeys((f"bert/{name}" for name in ("tiny", "modern-tiny", "modern-mini", "base", "recipe-a")), BERT),
    "clip/tiny": f"{CLIP}mixed_towers_is_the_run",
    "clip/vit-b-32": f"{CLIP}a_published_preset_is_the_run",
    "clip/siglip": f"{CLIP_FILE}::test_models_that_transformers_cannot_hold_are_exported_as_the_message_advises",
    "clip/zerovl": f"{CLIP}a_published_preset_is_the_run",
    "clip/zerovl-dga": f"{CLIP}towers_of_others_is_the_run",
    "clip/zerovl-14m": f"{CLIP}towers_of_others_is_the_run",
    "fourm/tiny": "recipes/fourm/test_fourm_whole_run.py::test_an_export_is_the_run",
    "fourm/b-7": FOURM,
    "fourm/b-21": FOURM,
    **dict.fromkeys(("glue/sst2", "glue/stsb", "glue/mnli"), GLUE),
    "glue/rte": "recipes/glue/test_glue_foreign.py::test_an_export_is_the_run",
    "glue/own": DRAWN.format("fine_tuning"),
    "glue/parse": DRAWN.format("trees"),
    "glue/qa": WORDS,
    "glue/tags": WORDS,
    "image_tokenizer/tiny": "recipes/image_tokenizer/test_image_tokenizer_whole_run.py::test_an_export_is_the_run",
    "pixel/tiny": f"{PIXEL}another_preset_is_the_run",
    "pixel/small": f"{PIXEL}another_preset_is_the_run",
    **dict.fromkeys(
        (
            f"t5/{name}"
            for name in ("tiny", "mini", "1.0-small", "1.1-small", "1.1-base-nano", "mt5-small", "umt5-small")
        ),
        T5,
    ),
    "t5/byt5-small": BYTES,
}
"""Presets to the test that trains them in small; it names them."""
IMAGE_PRESETS = (
    *("tiny-conv", "rgb", "rgb-uvit", "rgb-perceptual", "depth", "normal", "canny-edge", "semseg-coco"),
    *("clip-b16", "dinov2-global", "human-poses", "sam-mask"),
)
STAND_INS = {
    "bert/modern-base": BERT,  # as modern-mini; tiny is trained there without a most of predictions
    # classes of one text or of two
    **dict.fromkeys(("glue/cola", "glue/mrpc", "glue/qqp", "glue/qnli", "glue/wnli"), GLUE),
    "glue/pixel-glue": DRAWN.format("fine_tuning"),
    "glue/pixel-parse": DRAWN.format("trees"),  # with the pooling of that preset
    "huggingface": "recipes/glue/test_glue_foreign.py::test_an_export_is_the_run",  # lends its models, has no preset
    **dict.fromkeys((f"image_tokenizer/{name}" for name in IMAGE_PRESETS), IMAGES),  # their parts, some at a time
    "pixel/tiny-grid": f"{PIXEL}a_run_with_white_zeros_is_that_run",
}
"""Presets, and recipes without any, to the test of a run of another preset with their parts."""


def parts(preset: str) -> tuple[str, frozenset]:
    """The recipe, and the choices of a preset that are no sizes: kinds, switches, and what is left open."""
    tree = pretrainkit.load_config(preset).model_dump(mode="json")
    chosen = {"model": tree["model"], "objective": tree["objective"]}
    chosen["data"] = {name: tree["data"][name] for name in ("kind", "task") if name in tree["data"]}
    own = {
        (name, value)
        for name, value in flatten(chosen).items()
        if (value is None or isinstance(value, bool | str)) and name.rpartition(".")[2] not in ("name", "folder")
    }
    return tree["recipe"], frozenset(own)


def test_every_preset_has_the_parts_of_one_whose_exports_are_tested():
    """A new preset of another kind needs a test of its exports."""
    presets = {f"{name}/{preset}" for name in entries() for preset in find_recipe(name).presets}
    without = {name for name in entries() if not find_recipe(name).presets}
    known = TESTED.keys() | STAND_INS.keys()
    assert known <= presets | without
    found = {parts(name) for name in known & presets}
    assert {name for name in presets - known if parts(name) not in found} | without - known == set(), (
        f"write a test that calls {CHECK} on a run of it, and name it in TESTED"
    )


@pytest.mark.parametrize("test", sorted({*TESTED.values(), *STAND_INS.values()}))
def test_the_test_checks_exports_and_names_its_presets(test):
    file, _, name = test.partition("::")
    tree = ast.parse((TESTS / file).read_text("utf-8"))
    (function,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name)
    calls = (node.func for node in ast.walk(function) if isinstance(node, ast.Call))
    assert CHECK in {called.id for called in calls if isinstance(called, ast.Name)}
    constants = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    strings = {value for value in constants if isinstance(value, str)}
    for preset in (preset for preset, its_test in TESTED.items() if its_test == test):
        assert strings & {preset, preset.partition("/")[2]}, f"{preset} is not trained in {file}"

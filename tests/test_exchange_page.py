"""The table of docs/exchange.md: it lists what recipes read and write, and each yes has a test."""

import re
from pathlib import Path

from pretrainkit.recipes.exchange import ReadsFiles, ReadsHuggingFace, WritesFiles, WritesHuggingFace
from pretrainkit.recipes.registry import recipes_able

TESTS = Path(__file__).parent
READ_AND_WRITTEN = {
    ("bert", "huggingface"): {
        "read": "recipes/bert/test_convert.py: test_files_that_transformers_writes_are_read_back",
        "written": "recipes/bert/test_convert.py: test_bert_equals_transformers",
    },
    ("t5", "huggingface"): {
        "read": "recipes/t5/test_t5_convert.py: test_fact_4_logits_equal_those_of_transformers_and_come_back",
        "written": "recipes/t5/test_t5_exports.py: test_an_export_is_the_run_and_reads_its_ids",
    },
    ("pixel", "huggingface"): {
        "read": "recipes/pixel/test_pixel_convert.py: test_a_folder_that_transformers_wrote_is_read",
        "written": "recipes/pixel/test_pixel_whole_run.py: "
        "test_the_quick_start_ends_in_an_export_that_transformers_loads",
    },
    ("clip", "huggingface"): {
        "read": "recipes/clip/test_clip_convert.py: test_files_that_transformers_writes_are_read_back",
        "written": "recipes/clip/test_clip_published.py: test_siglip_of_transformers_is_imported_and_exported",
    },
    ("glue", "huggingface"): {
        "read": "recipes/glue/test_glue_words_exported.py: test_heads_that_transformers_saved_are_read",
        "written": "recipes/glue/test_glue_runs.py: test_the_export_for_transformers_gives_equal_logits",
    },
    ("huggingface", "huggingface"): {
        "read": "recipes/glue/test_glue_foreign.py: test_a_classifier_of_another_family_is_read_with_its_head",
    },
    ("clip", "openclip"): {
        "read": "recipes/clip/test_clip_published.py: test_a_model_of_open_clip_is_imported_and_exported",
        "written": "recipes/clip/test_clip_published.py: test_a_model_of_open_clip_is_trained_and_used_there_again",
    },
    ("clip", "openai"): {
        "read": "recipes/clip/test_clip_published.py: test_files_of_openai_are_read_without_running_them",
    },
    ("clip", "zerovl"): {
        "read": "recipes/clip/test_clip_original.py: test_fact_37_a_checkpoint_loads_and_leftovers_are_reported",
        "written": "recipes/clip/test_clip_published.py: test_a_run_is_given_to_zerovl",
    },
    ("t5", "t5x"): {
        "read": "recipes/t5/test_t5_foreign.py: test_a_folder_of_t5x_gives_their_logits",
        "written": "recipes/t5/test_t5_exports.py: test_files_of_the_original_and_of_ours_are_the_run",
    },
    ("t5", "mesh_tf"): {
        "read": "recipes/t5/test_t5_foreign.py: test_a_checkpoint_of_mesh_tensorflow_gives_their_logits",
    },
    ("fourm", "4m"): {
        "read": "recipes/fourm/test_fourm_whole_run.py: test_a_run_becomes_a_published_file_and_comes_back",
        "written": "recipes/fourm/test_fourm_whole_run.py: test_a_run_becomes_a_published_file_and_comes_back",
    },
    ("image_tokenizer", "4m-tokenizer"): {
        "read": "recipes/image_tokenizer/test_published_tokenizers.py: test_weights_come_back",
        "written": "recipes/image_tokenizer/test_image_tokenizer_whole_run.py: test_a_published_file_is_the_run",
    },
}
"""Recipe and format to the tests of its cells with yes."""


def cells_of_the_page() -> dict[tuple[str, str], tuple[bool, bool]]:
    page = (TESTS.parent / "docs" / "exchange.md").read_text("utf-8")
    found = re.findall(r"^\| `(\w+)` \| `([\w-]+)` \| (yes|no) \| (yes|no) \|", page, re.MULTILINE)
    return {(recipe, format): (read == "yes", written == "yes") for recipe, format, read, written in found}


def test_the_table_lists_capabilities_of_recipes():
    reads = {(name, "huggingface") for name in recipes_able(ReadsHuggingFace)}
    reads |= {(name, format) for name, recipe in recipes_able(ReadsFiles).items() for format in recipe.file_formats}
    writes = {(name, "huggingface") for name in recipes_able(WritesHuggingFace)}
    writes |= {(name, format) for name, recipe in recipes_able(WritesFiles).items() for format in recipe.export_formats}
    expected = {cell: (cell in reads, cell in writes) for cell in reads | writes}
    assert cells_of_the_page() == expected


def test_each_yes_has_a_test():
    for cell, (is_read, is_written) in cells_of_the_page().items():
        tests = READ_AND_WRITTEN[cell]
        assert ("read" in tests, "written" in tests) == (is_read, is_written), cell
        for place in tests.values():
            file, _, name = place.partition(": ")
            assert f"def {name}(" in (TESTS / file).read_text("utf-8"), place

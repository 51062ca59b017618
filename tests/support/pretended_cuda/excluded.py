"""Tests of the existing suites that are left out on pretended CUDA, with reasons. See plugin.py."""

DEFAULT_DEVICE = ("tests/nn/",)
"""Folders of tests in which tensors without a named device are created on it. Elsewhere tests hand over batches of the
host."""

EXCLUDED: dict[str, tuple[str, ...]] = {
    "several processes talk over gloo, and on CUDA over NCCL, which needs GPUs": (
        "tests/end_to_end/test_exact_resume.py::test_ranks_with_a_sharded_model_resume_where_one_stopped",
        "tests/end_to_end/test_exact_resume.py::test_two_ranks_learn_as_one_and_one_resumes_where_two_stopped",
        "tests/end_to_end/test_killed_rank.py",
        "tests/recipes/bert/test_bert_two_ranks.py",
        "tests/recipes/clip/test_clip_model_ranks.py",
        "tests/recipes/clip/test_clip_two_ranks.py",
        "tests/recipes/pixel/test_pixel_two_ranks.py",
        "tests/recipes/t5/test_t5_two_ranks.py",
        "tests/training/test_two_ranks.py",
    ),
    "it compares a run of this process with one of another process, which is on the CPU": (
        "tests/end_to_end/test_complete_runs.py::test_a_run_killed_after_its_last_checkpoint_is_completed",
        "tests/end_to_end/test_exact_resume.py::test_ctrl_c_saves_exits_with_130_and_resumes_exactly",
        "tests/end_to_end/test_exact_resume.py::test_kill_9_between_checkpoints_resumes_exactly",
        "tests/end_to_end/test_exact_resume_t5.py",
    ),
    "all of it is in other processes, which are on the CPU, or on a device of their own": (
        "tests/end_to_end/test_made_up_device.py",
        "tests/end_to_end/test_plain_imports.py",
        "tests/end_to_end/test_slurm_cluster.py",
        "tests/end_to_end/test_slurm_corpus.py",
    ),
    "torch.compile is the identity here": (
        "tests/training/test_build.py::test_wrappers_do_not_change_which_parameters_decay",
    ),
    "it asks for a refusal of float16, which CUDA has": (
        "tests/end_to_end/test_wrong_input.py::test_settings_that_cannot_work_together"
        "[precision.compute=float16-precision.compute=auto]",
        "tests/end_to_end/test_wrong_input.py::test_an_unsupported_precision_leaves_no_folder",
    ),
    "heads of 4 numbers, of which FlexAttention makes no kernel": (
        "tests/nn/test_biased_attention.py::test_rows_and_flex_equal_the_formula",
    ),
    "tiles are laid out for a CPU, which keeps their masks from call to call": (
        "tests/nn/test_biased_attention.py::test_tiles_equal_the_formula_in_value_and_gradient",
    ),
    "it asks for the name of the CPU": (
        "tests/training/test_diagnostics.py::test_every_run_records_its_device_and_its_memory",
    ),
    "it asks for the CPU's own dropout": ("tests/nn/test_dropout.py::test_same_seed_same_mask_and_gradient_uses_it",),
    "the test itself reads its tensors with NumPy": (
        "tests/nn/test_attention.py::test_a_window_reaches_half_of_itself_to_each_side",
        "tests/nn/test_initialise.py::test_is_a_normal_cut_at_two_deviations_without_correction",
    ),
}
"""Reasons to files, tests or cases of tests."""

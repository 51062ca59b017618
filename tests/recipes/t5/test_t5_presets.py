"""Presets, and the settings that cannot work together."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

import pretrainkit
from pretrainkit.errors import ConfigError
from pretrainkit.recipes.t5 import presets
from pretrainkit.recipes.t5.config import T5ModelConfig, T5Run, round_vocab
from pretrainkit.recipes.t5.presets import PRESETS
from pretrainkit.training.optimizers.config import AdafactorConfig
from pretrainkit.training.optimizers.schedule import learning_rate
from pretrainkit.training.run import PrecisionConfig
from support.t5_batches import model_config, run_config


@pytest.mark.parametrize("name", PRESETS)
def test_presets_hold_together_and_survive_a_round_trip(name):
    config = PRESETS[name]()
    assert config.problems(world_size=8) == []
    assert T5Run.model_validate_json(config.model_dump_json()) == config
    assert PRESETS[name].__doc__


def test_the_worked_example_of_the_guide_is_one_short_file():
    path = Path(presets.__file__).with_name("c4-small.yaml")
    config = pretrainkit.load_config(path)
    assert len(path.read_text().splitlines()) < 10
    assert config.model == PRESETS["1.1-small"]().model
    assert (config.num_steps, config.data.batch_size, config.model.dropout) == (10_000, 256, 0.0)
    assert (config.data.input_length, config.data.target_length) == (512, 114)
    assert config.data.task == "c4_v220_span_corruption"
    assert config.problems() == []


def test_the_twin_of_the_worked_example_trains_on_a_cpu_and_requires_open_settings(tmp_path):
    """On files in the format of C4, with everything of the example but the size and the number of steps."""
    words = [chr(97 + number % 26) * (1 + number % 7) for number in range(300)]
    for split, num in (("train", 40), ("validation", 8)):
        rows = (json.dumps({"text": " ".join(words[n : n + 120]), "url": "u"}) for n in range(num))
        (tmp_path / f"c4-{split}.00000-of-00001.json.gz").write_bytes(gzip.compress("\n".join(rows).encode()))
    (tmp_path / "twin.yaml").write_text(
        f"""
        extends: {Path(presets.__file__).with_name("c4-small.yaml")}
        num_steps: 3
        model: {{hidden_size: 32, num_heads: 2, head_size: 16, intermediate_size: 32, num_encoder_layers: 1,
                num_decoder_layers: 1, vocab_size: null}}
        data: {{batch_size: 8, task_folders: {{c4: {tmp_path}}}}}
        """
    )
    with pytest.raises(
        ConfigError, match=r"leaves its vocabulary to the run, but none is configured\n.*data\.tokenizer=DIR"
    ):
        pretrainkit.train(pretrainkit.load_config(tmp_path / "twin.yaml"), tmp_path / "run")
    config = pretrainkit.load_config(
        tmp_path / "twin.yaml", ["data.tokenizer=bytes", "data.denoising.num_sentinels=100"]
    )
    pretrainkit.train(config, tmp_path / "run")
    (line,) = [json.loads(line) for line in (tmp_path / "run/eval.jsonl").read_text().splitlines()]
    assert 3 < line["nll_per_target_token"] < 8
    assert (tmp_path / "run/checkpoints/step-00000003").is_dir()


def test_released_sizes_are_trained_as_they_were():
    config = PRESETS["1.1-base"]()
    rates = {
        step: learning_rate(config.schedule, config.optimizer.peak_lr, config.num_steps, step)
        for step in (0, 9_999, 100_000)
    }
    assert rates == {0: 0.01, 9_999: 0.01, 100_000: pytest.approx(0.0031623, rel=1e-4)}
    assert (config.optimizer.name, config.optimizer.adafactor) == ("adafactor", AdafactorConfig())
    assert (config.optimizer.max_grad_norm, config.objective.z_loss, config.objective.normalize_by) == (0, 1e-4, "none")
    umt5 = PRESETS["umt5-small"]()
    assert umt5.optimizer.adafactor == AdafactorConfig(beta1=0.9, factored=False)
    assert (umt5.optimizer.max_grad_norm, umt5.objective.normalize_by) == (1.0, "real_target_tokens")


@pytest.mark.parametrize(("size", "expected"), [(32_100, 32_128), (250_100, 250_112), (259, 384), (256_300, 256_384)])
def test_vocabularies_are_rounded_up(size, expected):
    assert round_vocab(size) == expected
    assert round_vocab(expected) == expected


def test_float16_is_refused():
    config = run_config(normalize_by="real_target_tokens").model_copy(
        update={"precision": PrecisionConfig(compute="float16")}
    )
    assert any("float16" in problem for problem in config.problems())


@pytest.mark.parametrize(
    "changes",
    [{"activations": ()}, {"num_decoder_layers": None}, {"kind": "decoder_only"}, {"max_distance": 16}, {"dropout": 1}],
)
def test_impossible_models_are_refused(changes):
    with pytest.raises(ValidationError):
        T5ModelConfig.model_validate(model_config().model_dump() | changes)


def test_importing_presets_does_not_import_torch():
    code = "import sys, pretrainkit.recipes.t5.recipe as r; r.RECIPE.presets; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

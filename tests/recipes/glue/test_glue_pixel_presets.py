"""The published fine-tunings of PIXEL: facts of their table, and that they are complete."""

import pytest

from pretrainkit.recipes.glue.presets import PRESETS
from pretrainkit.training.data_config import SourceConfig

PUBLISHED = {
    "pixel-tags": ("tags", 256, 64, 5e-5, 15_000),
    "pixel-parse": ("tree", 256, 64, 8e-5, 15_000),
    "pixel-glue": ("classes", 256, 64 * 4, 3e-5, 15_000),
    "pixel-qa": ("spans", 400, 32, 7e-5, 20_000),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_presets_have_the_published_settings(name: str) -> None:
    config = PRESETS[name]()
    data = config.data
    found = (data.kind, data.max_seq_length, data.batch_size, config.optimizer.peak_lr, config.num_steps)
    assert found == PUBLISHED[name]
    assert config.schedule.warmup_steps(config.num_steps) == 100
    assert config.schedule.name == "linear"
    assert config.evaluate.every_steps == config.checkpoint.every_steps == 500
    assert config.evaluate.early_stopping.patience == 5
    file = (SourceConfig(path="rows.jsonl"),)
    given = {"task": "sst2"} if name == "pixel-glue" else {"train": file, "valid": file}
    assert config.model_copy(update={"data": data.model_copy(update=given)}).problems() == []


def test_questions_are_cut_as_published() -> None:
    spans = PRESETS["pixel-qa"]().data.spans
    assert (spans.stride, spans.max_question_length, spans.max_answer_length, spans.num_best) == (160, 128, 30, 20)

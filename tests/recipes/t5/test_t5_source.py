"""The source as the loader uses it, what `bind` refuses, and training from token shards."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import pretrainkit
from pretrainkit.data.loader import Loader
from pretrainkit.data.source import Records
from pretrainkit.errors import ConfigError, DataError
from pretrainkit.recipes.t5.config import T5DataConfig, T5ModelConfig, T5Run
from pretrainkit.recipes.t5.denoising import DenoiserConfig
from pretrainkit.recipes.t5.features import lay_out
from pretrainkit.recipes.t5.recipe import RECIPE
from pretrainkit.recipes.t5.source import bind, component_names, open_source
from pretrainkit.tokenizers.shard_writer import write_shards
from pretrainkit.tokenizers.special import SpecialIds
from pretrainkit.training.run import OptimizerConfig

SPECIAL = SpecialIds(unk=2, cls=3, sep=1, mask=4, pad=0)
SHAPE = {"hidden_size": 16, "num_heads": 2, "head_size": 8, "intermediate_size": 16}
LAYERS = {"num_encoder_layers": 1, "num_decoder_layers": 1}


def shards_of(folder: Path, num: int, seed: int) -> str:
    rng = np.random.default_rng(seed)
    documents = [[rng.integers(5, 200, rng.integers(3, 20)) for _ in range(rng.integers(1, 12))] for _ in range(num)]
    write_shards(folder, [documents[0::2], documents[1::2]], vocab_size=200, special=SPECIAL)
    return str(folder)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("t5")
    return [shards_of(root / name, num, seed) for seed, (name, num) in enumerate([("a", 300), ("b", 60), ("v", 40)])]


def run_of(folders, model=None, data=None, **settings) -> T5Run:
    given = {"train": folders[0], "valid": folders[2], "batch_size": 8, "input_length": 64, "target_length": 18}
    return T5Run(
        num_steps=4,
        model=T5ModelConfig(**SHAPE | (model or LAYERS)),
        data=T5DataConfig(**given | (data or {})),
        optimizer=OptimizerConfig(name="adafactor", peak_lr=0.01, max_grad_norm=0.0),
        **settings,
    )


def records(num, epoch=0, source=0):
    zeros = np.zeros(num, np.int64)
    key = np.arange(num, dtype=np.uint64) + np.uint64(1000 * epoch)
    return Records(zeros + source, zeros + epoch, np.arange(num), key)


def test_bind_takes_the_vocabulary_with_sentinels_from_the_data(folders):
    assert bind(run_of(folders)).model.vocab_size == 384
    with pytest.raises(ConfigError, match=r"set model\.vocab_size=384"):
        bind(run_of(folders, model=LAYERS | {"vocab_size": 256}))
    with pytest.raises(ConfigError, match=r"data\.target_length=14"):
        bind(run_of(folders, data={"target_length": 13}))
    with pytest.raises(ConfigError, match="needs 3 sentinels"):
        bind(run_of(folders, data={"denoising": {"num_sentinels": 2}}))
    with pytest.raises(ConfigError, match=r"model\.kind=decoder_only"):
        bind(run_of(folders, data={"denoising": {"name": "lm"}}))
    with pytest.raises(DataError, match="different documents"):
        bind(run_of(folders, data={"valid": folders[0]}))


def test_every_batch_has_full_rows_that_give_back_the_text(folders):
    config = bind(run_of(folders))
    source = open_source(config, "train")
    batch = source.build(records(20))
    assert batch["encoder_input_tokens"].shape == (20, 64)
    assert batch["decoder_target_tokens"].shape == (20, 18)
    assert (batch["encoder_input_tokens"] == 1).sum() == 20
    (component,) = source.components
    text = component.index.read(component.shards, np.arange(20))
    for row in range(20):
        given, hidden, sentinel = batch["encoder_input_tokens"][row], {}, 0
        for token in batch["decoder_target_tokens"][row].tolist():
            if token >= 200:
                sentinel = token
            elif token > 1:
                hidden.setdefault(sentinel, []).append(token)
        restored = [t for token in given.tolist() for t in hidden.get(token, [token]) if t > 1]
        assert restored == text[row].tolist()


def test_epochs_differ_and_held_out_noise_does_not(folders):
    config = bind(run_of(folders))
    train, valid = open_source(config, "train"), open_source(config, "valid")

    def inputs(source, epoch):
        return source.build(records(8, epoch))["encoder_input_tokens"]

    assert not np.array_equal(inputs(train, 0), inputs(train, 1))
    np.testing.assert_array_equal(inputs(train, 1), inputs(train, 1))
    np.testing.assert_array_equal(inputs(valid, 0), inputs(valid, 1))


@pytest.mark.parametrize("name", ["ul2", "span_corruption"])
def test_slices_of_a_batch_and_worker_threads_see_the_same(folders, name):
    data = {"train": f"{folders[0]},{folders[1]}", "target_length": 64, "denoising": {"name": name}}
    config = bind(run_of(folders, data=data))
    source = open_source(config, "train")
    order = RECIPE.build_order(config, source)
    whole = Loader(source, order, batch_size=8, prefetch=0).step(3)[0]
    parts = Loader(source, order, batch_size=8, microbatch_size=2, num_workers=3)
    prepared = next(step for step in parts.iterate(0, 4) if step.step == 3)
    for field, array in whole.items():
        np.testing.assert_array_equal(array, np.concatenate([one[field] for one in prepared.microbatches]))


def test_denoisers_take_their_share_of_the_examples(folders):
    config = bind(run_of(folders, data={"target_length": 64, "denoising": {"name": "ul2r"}}))
    source = open_source(config, "train")
    drawn = RECIPE.build_order(config, source).records(np.arange(800)).source
    np.testing.assert_allclose(np.bincount(drawn) / 800, [0.25, 0.125, 0.125, 0.5], atol=0.01)
    assert [entry["denoiser"] for entry in source.summary()["components"]][3] == "suffix at 0.25"


def objective_sums(config, batch):
    torch.manual_seed(0)
    model, objective = RECIPE.build_model(config), RECIPE.build_objective(config)
    tensors = {name: torch.from_numpy(array) for name, array in batch.items()}
    losses = objective.losses(model.eval(), tensors)
    return {name: (loss.total.item() / loss.weight.item() * objective.scales[name]) for name, loss in losses.items()}


@pytest.mark.parametrize("normalize_by", ["none", "real_target_tokens", "average_per_sequence", 100.0])
@pytest.mark.parametrize("kind", ["encoder_decoder", "decoder_only"])
def test_packed_examples_have_the_losses_of_rows(folders, normalize_by, kind):
    layers = LAYERS if kind == "encoder_decoder" else {"num_encoder_layers": None, "num_decoder_layers": 1}
    data = {"target_length": 64, "denoising": {"name": "prefix_lm"}}
    settings = {"model": layers | {"kind": kind}, "objective": {"normalize_by": normalize_by}}
    rows, packed = (bind(run_of(folders, data=data | {"packing": p}, **settings)) for p in (False, True))
    batches = [open_source(config, "train").build(records(8)) for config in (rows, packed)]
    assert len(batches[1]["decoder_target_tokens"]) < 8
    of_rows, of_packed = (objective_sums(c, b) for c, b in zip((rows, packed), batches, strict=True))
    for name, value in of_rows.items():
        assert of_packed[name] == pytest.approx(value, rel=1e-4)


def test_full_language_models_have_one_end_mark_per_document_and_full_rows(folders):
    layers = {"kind": "decoder_only", "num_encoder_layers": None, "num_decoder_layers": 1}
    data = {"target_length": 64, "denoising": {"name": "full_lm"}}
    source = open_source(bind(run_of(folders, model=layers, data=data)), "train")
    (component,), (size,) = source.components, source.sizes
    rows = source.build(records(size))["decoder_target_tokens"]
    assert (rows == 1).sum() == component.shards.num_documents == 300
    is_last = np.isin(np.arange(size) + 1, component.index.segment_ends)
    assert (rows[~is_last] != 0).all()
    assert component.index.num_tokens == component.shards.num_tokens + 300


def test_two_examples_of_a_pair_share_a_row_without_seeing_each_other(folders):
    data = {"target_length": 64, "denoising": {"name": "packed_prefix_lm"}}
    config = bind(run_of(folders, data=data, objective={"normalize_by": "real_target_tokens"}))
    source = open_source(config, "train")
    batch = source.build(records(8))
    assert batch["encoder_input_tokens"].shape == batch["decoder_target_tokens"].shape == (8, 64)
    full = source.components[0].index.lengths(np.arange(8)) == 128
    assert full.sum() >= 6
    for side in ("encoder", "decoder"):
        segments = batch[f"{side}_segment_ids"][full]
        assert (segments > 0).all()
        assert set(segments.ravel().tolist()) == {1, 2}
        starts = batch[f"{side}_positions"][full] == 0
        assert (starts.sum(1) == 2).all()
    assert (batch["decoder_input_tokens"][batch["decoder_positions"] == 0] == 0).all()
    first = batch["encoder_segment_ids"][full] == 1
    assert (first.sum(1) + (batch["decoder_segment_ids"][full] == 1).sum(1) == 64).all()
    assert batch["num_examples"] == 8
    inputs, targets = source.examples(records(8))
    alone = lay_out(config, inputs, targets, mask_id=-1)
    one_each = objective_sums(config, alone)
    for name, value in objective_sums(config, batch).items():
        assert value == pytest.approx(one_each[name], rel=1e-4)


def test_a_decoder_alone_reads_one_prefix_and_says_the_rest_of_its_row(folders):
    layers = {"kind": "decoder_only", "num_encoder_layers": None, "num_decoder_layers": 1}
    data = {"input_length": 32, "target_length": 32, "denoising": {"name": "packed_prefix_lm"}}
    config = bind(run_of(folders, model=layers, data=data))
    batch = open_source(config, "train").build(records(8))
    assert batch["decoder_target_tokens"].shape == (8, 64)
    split = (batch["decoder_loss_weights"] == 0).sum(1)
    place = np.arange(64)
    np.testing.assert_array_equal(batch["decoder_loss_weights"], place >= split[:, None])
    np.testing.assert_array_equal(batch["decoder_causal_attention"], place <= split[:, None])
    assert (batch["decoder_target_tokens"] != 0).all()


def test_pairs_need_equal_rows_and_no_other_packing(folders):
    data = {"target_length": 32, "packing": True, "denoising": {"name": "packed_prefix_lm"}}
    with pytest.raises(ConfigError, match=r"(?s)make them equal.*packing=false"):
        bind(run_of(folders, data=data))


def test_packed_rows_are_of_a_fixed_number(folders):
    config = bind(run_of(folders, data={"packing": True, "packed_rows": 9}))
    assert open_source(config, "train").build(records(8))["encoder_input_tokens"].shape == (9, 64)
    with pytest.raises(ConfigError, match="only read where"):
        bind(run_of(folders, data={"packed_rows": 9}))


TASKS = """
from pathlib import Path
from pretrainkit.data.preprocessors import append_eos_after_trim, format_strings, tokenize
from pretrainkit.data.task import Feature, Mixture, Task, add_mixture, add_task
from pretrainkit.data.task_sources import JsonLines
from pretrainkit.data.vocabulary import ByteVocabulary

HERE = Path(__file__).parent
BYTES = ByteVocabulary()
for name in ("copy", "shout"):
    files = {split: str(HERE / f"{split}.jsonl") for split in ("train", "validation")}
    steps = (format_strings(inputs=f"{name}: {{text}}", targets="{text}"), tokenize(), append_eos_after_trim)
    features = {"inputs": Feature(BYTES), "targets": Feature(BYTES)}
    add_task(Task(f"t5_source_{name}", JsonLines(files), features, steps))
add_mixture(Mixture("t5_source_both", [("t5_source_copy", 3), ("t5_source_shout", 1)]))
add_mixture(Mixture("t5_source_with_idle", [("t5_source_copy", 1), ("t5_source_shout", 0)]))
only_train = JsonLines({"train": str(HERE / "train.jsonl")})
add_task(Task("t5_source_no_validation", only_train, features, steps))
add_mixture(Mixture("t5_source_one_without", [("t5_source_copy", 3), ("t5_source_no_validation", 1)]))
"""


@pytest.fixture(scope="module")
def module(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tasks")
    for split, num in (("train", 40), ("validation", 6)):
        lines = [json.dumps({"text": f"{split} {number}"}) for number in range(num)]
        (folder / f"{split}.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "own_tasks.py").write_text(TASKS)
    return str(folder / "own_tasks.py")


@pytest.mark.parametrize("packing", [False, True])
def test_a_mixture_of_the_user_trains_by_its_name(module, tmp_path, packing):
    data = {"train": (), "valid": (), "task": "t5_source_both", "modules": (module,), "packing": packing}
    config = run_of(["", "", ""], data=data | {"input_length": 32, "target_length": 24})
    bound = bind(config)
    assert bound.model.vocab_size == 384
    source = open_source(bound, "train")
    shares = np.bincount(RECIPE.build_order(bound, source).records(np.arange(400)).source) / 400
    np.testing.assert_allclose(shares, [0.75, 0.25])
    batch = source.build(records(2))
    assert bytes((batch["encoder_input_tokens"][0][:13] - 3).astype(np.uint8)) == b"copy: train 0"
    pretrainkit.train(config, tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run/eval.jsonl").read_text().splitlines()]
    assert 3 < lines[-1]["nll_per_target_token"] < 8
    for name in ("t5_source_copy", "t5_source_shout"):
        assert 3 < lines[-1][f"nll_per_target_token/{name}"] < 8
    with pytest.raises(ConfigError, match="both say what to read"):
        bind(run_of(["", "", ""], data=data | {"train": "x"}))


def task_run(module, task, log=None, **data):
    given = {"train": (), "valid": (), "task": task, "modules": (module,), "input_length": 32, "target_length": 24}
    return run_of(["", "", ""], data=given | data, log=log or {})


def test_tasks_without_the_split_are_left_out_with_a_warning_and_none_left_is_an_error(module, caplog):
    source = open_source(bind(task_run(module, "t5_source_one_without")), "valid")
    assert source.names == ["t5_source_copy"]
    assert "t5_source_no_validation has no split validation" in caplog.text
    with pytest.raises(DataError, match=r"no task of .* has the split 'validation'\n.*or to null"):
        open_source(bind(task_run(module, "t5_source_no_validation")), "valid")
    with pytest.raises(DataError, match="no split 'test'"):
        open_source(bind(task_run(module, "t5_source_copy", train_split="test")), "train")
    with pytest.raises(ConfigError, match="no task of mixture 't5_source_both' has the split 'test'"):
        open_source(bind(task_run(module, "t5_source_both", train_split="test")), "train")


def test_a_task_of_training_examples_alone_trains_without_an_evaluation(module, tmp_path):
    pretrainkit.train(task_run(module, "t5_source_no_validation", valid_split=None), tmp_path / "run")
    assert not (tmp_path / "run/eval.jsonl").exists()


def test_held_out_shards_come_in_place_of_the_task_of_a_run(module, folders, tmp_path):
    pretrainkit.train(task_run(module, "t5_source_both"), tmp_path / "run")
    found = pretrainkit.evaluate(tmp_path / "run", folders[2], num_examples=8)
    assert "nll_per_target_token" in found
    assert not [name for name in found if "t5_source" in name]
    with pytest.raises(ConfigError, match="both say what to evaluate on"):
        pretrainkit.evaluate(tmp_path / "run", folders[2], ["data.task=t5_source_copy"])
    assert pretrainkit.evaluate(tmp_path / "run", None, ["data.task=t5_source_copy"])


def test_components_have_names_of_their_own_even_where_their_denoisers_are_alike(folders):
    alike = [{"noise_density": 0.15}, {"noise_density": 0.15, "mode": "R"}, {"noise_density": 0.5}]
    data = {"target_length": 64, "denoising": {"denoisers": alike}}
    source = open_source(bind(run_of(folders, data=data)), "train")
    assert source.names == ["random_spans-3-0.15", "random_spans-3-0.15#2", "random_spans-3-0.5"]
    assert component_names(["a", "b", "a"], [DenoiserConfig()] * 3) == [
        "0-random_spans-3-0.15",
        "1-random_spans-3-0.15",
        "0-random_spans-3-0.15#2",
    ]


@pytest.mark.parametrize("kind", ["encoder_decoder", "decoder_only"])
@pytest.mark.parametrize("packing", [False, True])
def test_each_component_has_its_own_loss_and_count_of_target_tokens(folders, kind, packing):
    layers = LAYERS if kind == "encoder_decoder" else {"num_encoder_layers": None, "num_decoder_layers": 1}
    two = [{"mask": "suffix", "noise_density": d, "inputs": "drop", "targets": "drop"} for d in (0.5, 0.2)]
    data = {"target_length": 64, "packing": packing, "denoising": {"denoisers": two}}
    config = bind(run_of(folders, model=layers | {"kind": kind}, data=data))
    source = open_source(config, "train")
    mixed = Records(np.arange(9) % 2, np.zeros(9, np.int64), np.arange(9), np.arange(9, dtype=np.uint64))
    alone = [mixed.take(np.flatnonzero(mixed.source == number)) for number in (0, 1)]
    torch.manual_seed(0)
    model, objective = RECIPE.build_model(config).eval(), RECIPE.build_objective(config)
    assert objective.logged == ("loss/suffix-0.5", "loss/suffix-0.2")

    def losses(records):
        return objective.losses(model, {n: torch.from_numpy(a) for n, a in source.build(records).items()})

    whole = losses(mixed)
    for name, records in zip(objective.logged, alone, strict=True):
        only = losses(records)
        _, targets = source.examples(records)
        assert whole[name].weight == only[name].weight == len(targets.values)
        both = only["cross_ent_loss"].total + only["z_loss"].total
        assert whole[name].total.item() == pytest.approx(both.item(), rel=1e-4)
        notes = objective.cost(source.build(mixed)).notes
        assert notes[name.replace("loss", "target_tokens")] == len(targets.values)
        assert not whole[name].total.requires_grad


def test_losses_of_tasks_are_logged_where_they_are_drawn(module, tmp_path):
    config = task_run(module, "t5_source_with_idle", log={"every_steps": 1})
    pretrainkit.train(config, tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    for line in lines:
        mean = line["loss/t5_source_copy"] * line["target_tokens/t5_source_copy"]
        assert mean > 0
        assert "loss/t5_source_shout" not in line
    counts = [line["target_tokens/t5_source_copy"] for line in lines]
    assert counts == sorted(counts)
    assert len(set(counts)) == 4


def test_span_corruption_trains_from_token_shards(folders, tmp_path):
    config = run_of(folders, data={"train": f"{folders[0]},{folders[1]}"})
    out = tmp_path / "run"
    pretrainkit.train(config, out)
    lines = [json.loads(line) for line in (out / "eval.jsonl").read_text().splitlines()]
    assert lines[-1]["step"] == 4
    assert 3 < lines[-1]["nll_per_target_token"] < 7
    assert json.loads((out / "summary.json").read_text())

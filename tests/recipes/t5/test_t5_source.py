"""The source as the loader uses it, what `bind` refuses, and training from token shards."""

import json

import numpy as np
import pytest
import torch

import pretrainkit
from pretrainkit.data.loader import Loader
from pretrainkit.data.source import Records
from pretrainkit.errors import ConfigError, DataError
from pretrainkit.recipes.t5.denoising import DenoiserConfig
from pretrainkit.recipes.t5.features import lay_out
from pretrainkit.recipes.t5.recipe import RECIPE
from pretrainkit.recipes.t5.source import bind, component_names, open_source
from support.t5_runs import LAYERS, records, run_of


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
    return {name: loss.mean().item() for name, loss in losses.items()}


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


def test_a_decoder_alone_reads_one_prefix_and_predicts_the_rest_of_its_row(folders):
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
    with pytest.raises(ConfigError, match="has an effect only with"):
        bind(run_of(folders, data={"packed_rows": 9}))


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
    names = ("loss/suffix-0.5", "loss/suffix-0.2")
    assert objective.logged == ("loss_per_nonpadding_target_token", "accuracy", *names)

    def losses(records):
        return objective.losses(model, {n: torch.from_numpy(a) for n, a in source.build(records).items()})

    whole = losses(mixed)
    for name, own in zip(names, alone, strict=True):
        only = losses(own)
        _, targets = source.examples(own)
        assert whole[name].weight == only[name].weight == len(targets.values)
        both = (only["cross_ent_loss"].total + only["z_loss"].total) / config.data.batch_size  # the sum of a step
        assert whole[name].total.item() == pytest.approx(both.item(), rel=1e-4)
        notes = objective.cost(source.build(mixed)).notes
        assert notes[name.replace("loss", "target_tokens")] == len(targets.values)
        assert not whole[name].total.requires_grad


def test_span_corruption_trains_from_token_shards(folders, tmp_path):
    config = run_of(folders, data={"train": f"{folders[0]},{folders[1]}"})
    out = tmp_path / "run"
    pretrainkit.train(config, out)
    lines = [json.loads(line) for line in (out / "eval.jsonl").read_text().splitlines()]
    assert lines[-1]["step"] == 4
    assert 3 < lines[-1]["nll_per_target_token"] < 7
    assert json.loads((out / "summary.json").read_text())

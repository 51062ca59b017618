"""Model: equal to a plain implementation in all layouts; sizes, initial weights, attention rules."""

import math

import numpy as np
import pytest
import torch

from pretrainkit.nn.positions import grid_table, line_table
from pretrainkit.recipes.fourm.batch import with_places
from pretrainkit.recipes.fourm.config import SIZES, published_model
from pretrainkit.recipes.fourm.inputs import Slots, read_batch, visible_targets
from pretrainkit.recipes.fourm.model import PIXEL_DEVIATION, PIXEL_MEAN, build, drop_path_rates
from pretrainkit.recipes.fourm.original import to_original
from support.fourm_batches import CAPTION, DEPTH, MODALITIES, RGB, random_batch, small, tensors
from support.fourm_reference import Reference

VARIANTS = {
    "swiglu": {},
    "swiglu-qknorm": {"query_key_norm": True},
    "gelu": {"gated": False, "activation": "gelu", "biases": True},
    "causal": {"causal_targets": True},
    "together": {"separate_targets": False},
    "together, causal": {"separate_targets": False, "causal_targets": True},
    "nothing shared": {"tied_logits": False, "shared_modality_embeddings": False, "vector_bottleneck": 3},
    "registers": {"num_registers": 2},
}


def make_model(**changes):
    torch.manual_seed(0)
    model = build(small(**changes)).double()
    for parameter in model.parameters():  # norms and biases too, so that nothing is a no-op
        parameter.data.add_(torch.randn_like(parameter), alpha=0.1)
    return model.double()


def as_doubles(batch):
    return {name: value.double() if value.is_floating_point() else value for name, value in tensors(batch).items()}


def dense(batch, modalities):
    """Return the original's form of a batch whose rows have one example each."""
    found = {}
    for number, modality in enumerate(modalities):
        rows = []
        for row in range(len(batch["encoder_length"])):
            sides = {}
            for side in ("encoder", "decoder"):
                own = np.flatnonzero(batch[f"{side}_modality"][row] == number)
                own = own[own < batch[f"{side}_length"][row]]
                sides[side] = {
                    what: batch[f"{side}_{what}"][row][own]
                    for what in ("position", "ids", "target")
                    if f"{side}_{what}" in batch
                }
            rows.append(_dense_row(modality, sides, row, batch))
        found[modality.name] = {key: torch.stack([row[key] for row in rows]) for key in rows[0]}
    return found


def _dense_row(modality, sides, row, batch):
    given, asked = sides["encoder"], sides["decoder"]
    if modality.kind in ("pixels", "image"):
        num = modality.max_tokens
        values = torch.zeros(num, dtype=torch.int64)
        values[given["position"]] = torch.from_numpy(given["ids"]).long()
        values[asked["position"]] = torch.from_numpy(asked["target"]).long()
        input_mask, target_mask = torch.ones(num, dtype=torch.bool), torch.ones(num, dtype=torch.bool)
        input_mask[given["position"]] = False
        target_mask[asked["position"]] = False
        dam = torch.zeros(num, dtype=torch.int64)
        dam[asked["position"][:1]] = len(asked["position"])
        if modality.kind == "pixels":
            image = torch.from_numpy(batch[f"pixels/{modality.name}"][row]).double() / 255
            mean, deviation = (
                torch.tensor(v, dtype=torch.float64)[:, None, None] for v in (PIXEL_MEAN, PIXEL_DEVIATION)
            )
            values = (image - mean) / deviation
    else:
        num = 2 * (modality.max_tokens + 1)
        input_mask, target_mask = torch.ones(num, dtype=torch.bool), torch.ones(num, dtype=torch.bool)
        num_given, num_asked = len(given["ids"]), len(asked["ids"])
        input_mask[:num_given] = False
        dam = torch.zeros(num, dtype=torch.int64)
        if modality.kind == "vectors":
            table = torch.from_numpy(batch[f"vectors/{modality.name}"][row]).double()
            values = torch.zeros(num, table.shape[1], dtype=torch.float64)
            values[:num_given] = table[given["ids"]] * torch.from_numpy(given["ids"] >= 0)[:, None]
        else:
            values = torch.zeros(num, dtype=torch.int64)
            values[:num_given] = torch.from_numpy(given["ids"]).long()
            if num_asked:
                stream = np.append(asked["ids"], asked["target"][-1])
                span = slice(modality.max_tokens, modality.max_tokens + len(stream))
                values[span] = torch.from_numpy(stream).long()
                target_mask[span], dam[span] = False, 1
    return {"tensor": values, "input_mask": input_mask, "target_mask": target_mask, "decoder_attention_mask": dam}


def reference(model):
    config = model.config
    state = {name: tensor.double() for name, tensor in to_original(model).items()}
    return Reference(
        state,
        {m.name: m.kind for m in config.modalities},
        {m.name: m.max_length for m in config.modalities},
        depth=2,
        heads=2,
        gated=config.gated,
        qk_norm=config.query_key_norm,
        sep_mask=config.separate_targets,
        causal_mask=config.causal_targets,
        registers=config.num_registers,
    )


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("layout", ["tiles", "rows"])
def test_losses_are_those_of_the_reference(variant, layout):
    model = make_model(**VARIANTS[variant])
    batch = random_batch(num_segments=1)
    found = model(read_batch(as_doubles(batch), model.config, layout=layout))
    expected = reference(model).losses(dense(batch, MODALITIES), 30, 28)
    for name, scores in found.items():
        torch.testing.assert_close(scores.nll_K.sum(), expected[f"sum/{name}"], rtol=1e-6, atol=1e-6, check_dtype=False)
        assert len(scores.nll_K) == expected[f"num/{name}"] > 0


@pytest.mark.parametrize("layout", ["tiles", "rows"])
def test_examples_of_one_row_do_not_see_each_other(layout):
    model = make_model()
    batch = random_batch(num_rows=2, num_segments=3, num_inputs=60, num_targets=60)
    together = model(read_batch(as_doubles(batch), model.config, layout=layout))
    apart = dict.fromkeys(together, 0.0)
    for segment in range(3):
        alone = dict(batch)
        for side in ("encoder", "decoder"):
            is_own = (batch[f"{side}_segment"] == segment) & (np.arange(60) < batch[f"{side}_length"][:, None])
            for name in ("modality", "position", "ids", "target", "segment"):
                if f"{side}_{name}" in batch:
                    values = np.zeros_like(batch[f"{side}_{name}"])
                    for row, own in enumerate(is_own):
                        values[row, : own.sum()] = batch[f"{side}_{name}"][row][own]
                    alone[f"{side}_{name}"] = values
            alone[f"{side}_length"] = is_own.sum(1).astype(np.int32)
        found = model(read_batch(as_doubles(with_places(alone, MODALITIES)), model.config, layout=layout))
        for name, scores in found.items():
            apart[name] = apart[name] + scores.nll_K.sum()
    for name, scores in together.items():
        torch.testing.assert_close(scores.nll_K.sum(), apart[name])


@pytest.mark.parametrize("variant", ["swiglu", "registers", "together"])
def test_gradients_do_not_depend_on_the_layout(variant):
    model = make_model(**VARIANTS[variant])
    batch = as_doubles(random_batch(num_segments=1 if variant == "registers" else 2))
    gradients = []
    for layout in ("tiles", "rows"):
        loss = sum(scores.nll_K.sum() for scores in model(read_batch(batch, model.config, layout=layout)).values())
        gradients.append(torch.autograd.grad(loss, list(model.parameters())))
    for ours, plain in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, plain)


@pytest.mark.parametrize("variant", ["swiglu", "swiglu-qknorm", "gelu"])
def test_float32_takes_its_fast_paths_to_the_same_gradients(variant):
    exact = make_model(hidden_size=32, **VARIANTS[variant])
    model = build(exact.config)
    model.load_state_dict(exact.state_dict())
    batch = random_batch(num_segments=2)
    results = []
    for one, values in ((model, tensors(batch)), (exact, as_doubles(batch))):
        loss = sum(scores.nll_K.sum() for scores in one(read_batch(values, one.config)).values())
        results.append([loss.detach(), *torch.autograd.grad(loss, list(one.parameters()))])
    for ours, wanted in zip(*results, strict=True):
        error = (ours.double() - wanted).norm() / wanted.norm().clamp(min=1e-3)
        assert error < 1e-4


def test_a_hook_may_keep_the_output_of_a_layer_in_evaluation():
    model, kept = build(small()).eval(), []
    layer = model.encoder[0].attention
    layer.register_forward_hook(lambda _module, _inputs, found: kept.extend((found, found.detach().clone())))
    model(read_batch(tensors(random_batch(num_segments=2)), model.config))
    assert torch.equal(*kept)


def test_an_empty_batch_has_no_losses_and_zero_gradients():
    model = make_model()
    batch = random_batch(num_rows=2)
    batch["encoder_length"][:], batch["decoder_length"][:] = 0, 0
    found = model(read_batch(as_doubles(with_places(batch, MODALITIES)), model.config))
    total = sum(scores.nll_K.sum() for scores in found.values())
    assert total == 0
    assert not any(gradient.any() for gradient in torch.autograd.grad(total, list(model.parameters())))


def test_content_of_padding_changes_nothing():
    model = make_model()
    batch = random_batch()
    before = model(read_batch(as_doubles(batch), model.config, layout="rows"))
    for side in ("encoder", "decoder"):
        is_padding = np.arange(batch[f"{side}_modality"].shape[1]) >= batch[f"{side}_length"][:, None]
        assert is_padding.any()
        for name in ("ids", "position", "modality", "segment"):
            batch[f"{side}_{name}"][is_padding] = 1
    after = model(read_batch(as_doubles(batch), model.config, layout="rows"))
    for name, scores in before.items():
        torch.testing.assert_close(after[name].nll_K, scores.nll_K, rtol=0, atol=0)


def test_targets_of_images_are_not_read():
    model = make_model()
    batch = random_batch()
    before = model(read_batch(as_doubles(batch), model.config))
    batch["decoder_ids"][batch["decoder_modality"] == MODALITIES.index(DEPTH)] = 7
    after = model(read_batch(as_doubles(batch), model.config))
    for name, scores in before.items():
        torch.testing.assert_close(after[name].nll_K, scores.nll_K, rtol=0, atol=0)


@pytest.mark.parametrize(("separate", "is_equal"), [(True, True), (False, False)])
def test_the_order_of_modalities_matters_only_where_targets_see_each_other(separate, is_equal):
    model = make_model(separate_targets=separate)
    turned = build(small(MODALITIES[::-1], separate_targets=separate)).double()
    turned.load_state_dict(model.state_dict())
    batch = random_batch(num_segments=1)
    other = dict(batch)
    for side in ("encoder", "decoder"):
        modality = len(MODALITIES) - 1 - batch[f"{side}_modality"].astype(np.int64)
        is_padding = np.arange(modality.shape[1]) >= batch[f"{side}_length"][:, None]
        order = np.argsort(np.where(is_padding, 99, modality), axis=1, kind="stable")
        other[f"{side}_modality"] = np.where(is_padding, 0, modality).astype(np.uint8)
        for name in ("modality", "position", "ids", "target", "segment"):
            if f"{side}_{name}" in batch:
                other[f"{side}_{name}"] = np.take_along_axis(other[f"{side}_{name}"], order, 1)
    ours = model(read_batch(as_doubles(batch), model.config))
    theirs = turned(read_batch(as_doubles(with_places(other, MODALITIES[::-1])), turned.config))
    assert all(torch.allclose(ours[name].nll_K, theirs[name].nll_K) for name in ours) == is_equal


def visible(blocks, **changes):
    """Return the visible pairs of one example: 1 where a target token (row) sees another (column).

    `blocks`: modality and number of tokens, in order.
    """
    config = small((CAPTION, DEPTH), **changes)
    modality = torch.tensor([[number for number, count in blocks for _ in range(count)]])
    ones = torch.ones_like(modality)
    return visible_targets(Slots(ones.bool(), ones, modality, 0, None), config)[0].int().tolist()


def test_who_sees_whom_among_targets():
    caption, depth = 0, 1
    full, causal = [[1] * 4] * 4, torch.ones(4, 4).tril().int().tolist()
    assert visible([(depth, 4)]) == full
    assert visible([(caption, 4)]) == causal
    both = [(caption, 2), (depth, 2)]
    assert visible(both) == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]]
    assert visible(both, separate_targets=False) == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 1], [1, 1, 1, 1]]
    assert visible(both, separate_targets=False, causal_targets=True) == causal
    assert visible([(depth, 4)], causal_targets=True) == causal


def test_positions_are_sines_and_cosines():
    sines = [0.841471, 0.0998334, 0.00999983, 0.0009999998]
    expected = torch.tensor([*sines, *(math.sqrt(1 - s * s) for s in sines)])
    torch.testing.assert_close(line_table(3, 8)[1], expected, rtol=1e-5, atol=1e-6)
    assert line_table(3, 8).dtype == torch.float32
    omega = torch.tensor([1.0, 0.01])
    table = grid_table(3, 5, 8)
    for row, column in ((0, 0), (2, 3), (1, 4)):
        parts = [(row * omega).sin(), (row * omega).cos(), (column * omega).sin(), (column * omega).cos()]
        torch.testing.assert_close(table[row * 5 + column], torch.cat(parts))


@pytest.mark.parametrize(
    ("size", "inner", "millions"),
    [
        ("tiny", 1024, 24.9),
        ("small", 1365, 59.0),
        ("base", 2048, 198.8),
        ("large", 2730, 705.7),
        ("xlarge", 5461, 2823.0),
    ],
)
def test_encoder_and_decoder_have_the_published_sizes(size, inner, millions):
    with torch.device("meta"):
        model = build(published_model(size, (RGB, DEPTH)))
    encoder = sum(p.numel() for part in (model.encoder, model.encoder_norm) for p in part.parameters())
    parts = (model.decoder, model.decoder_norm, model.context)
    decoder = sum(p.numel() for part in parts for p in part.parameters()) + model.mask_token.numel()
    width, num_layers, _ = SIZES[size]
    assert model.config.intermediate_size == inner
    assert encoder == num_layers * (4 * width**2 + 3 * width * inner + 2 * width) + width
    assert decoder == num_layers * (8 * width**2 + 3 * width * inner + 4 * width) + width**2 + 3 * width
    assert round((encoder + decoder) / 1e6, 1) == millions
    if size == "base":
        assert (encoder, decoder) == (84_953_856, 113_875_200)


@pytest.mark.parametrize(("size", "millions"), [("base", 199.1), ("large", 706.5), ("xlarge", 2824.5)])
def test_models_with_biases_have_the_published_sizes(size, millions):
    with torch.device("meta"):
        model = build(published_model(size, (RGB, DEPTH), "gelu"))
    parts = (model.encoder, model.encoder_norm, model.decoder, model.decoder_norm, model.context)
    count = sum(p.numel() for part in parts for p in part.parameters()) + model.mask_token.numel()
    assert round(count / 1e6, 1) == millions


def test_initial_weights_are_those_of_the_original():
    torch.manual_seed(0)
    model = build(small(hidden_size=64, num_heads=4, intermediate_size=170))
    width, vocabulary = 64, DEPTH.vocab_size
    for weight, limit in (
        (model.encoder[0].attention.qkv.weight, math.sqrt(6 / (2 * width))),
        (model.decoder[1].cross_attention.key_value.weight, math.sqrt(6 / (2 * width))),
        (model.encoder[0].feed_forward.up.weight, math.sqrt(6 / (width + 170))),
        (model.context.weight, math.sqrt(6 / (2 * width))),
        (model.inputs[RGB.name].patch.weight, math.sqrt(6 / (width + 3 * 64))),
        (model.targets[DEPTH.name].head, math.sqrt(6 / (width + vocabulary))),
        (model.targets[CAPTION.name].table, math.sqrt(6 / (width + CAPTION.vocab_size))),
    ):
        assert 0.97 * limit < weight.abs().max() <= limit
        assert weight.std().item() == pytest.approx(limit / math.sqrt(3), rel=0.05)
    for table in (model.inputs[CAPTION.name].table, model.inputs[DEPTH.name].table):
        assert table.std().item() == pytest.approx(0.02, rel=0.1)
    assert 0 < model.mask_token.std() < 0.04
    assert not model.context.bias.any()
    assert all((n.weight == 1).all() for n in (model.encoder_norm, model.decoder[0].context_norm))


def test_drop_path_grows_with_depth():
    config = small(num_encoder_layers=3, drop_path_rate=0.4)
    assert drop_path_rates(config) == ([0.0, 0.2, 0.4], [0.0, 0.4])
    shared = small(num_encoder_layers=3, drop_path_rate=0.4, shares_drop_path=True)
    assert drop_path_rates(shared) == ([0.0, pytest.approx(0.1), 0.2], [pytest.approx(0.3), 0.4])


def test_drop_path_leaves_out_whole_examples_in_training_alone():
    model = make_model(drop_path_rate=0.5, num_encoder_layers=1, num_decoder_layers=2)
    batch = as_doubles(random_batch(num_rows=6))
    with torch.no_grad():
        inputs = read_batch(batch, model.config)
        first, second = (model(inputs)[DEPTH.name].nll_K for _ in range(2))
        assert not torch.equal(first, second)
        model.eval()
        assert torch.equal(model(inputs)[DEPTH.name].nll_K, model(inputs)[DEPTH.name].nll_K)

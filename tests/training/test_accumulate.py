"""One batch = the same batch in microbatches of unequal weight, for both kinds of objective."""

import contextlib
import copy
import weakref
from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from pretrainkit.training import accumulate as module
from pretrainkit.training.accumulate import accumulate, seed_dropout, sum_over_ranks
from pretrainkit.training.objective import (
    Batch,
    Cost,
    CoupledObjective,
    Embedded,
    HostBatch,
    LossSum,
    SeparableObjective,
)
from pretrainkit.training.precision import Precision
from support.toy_objectives import Contrast, TwoHeads, TwoTerms, TwoTowers, cut, gradients, host_batch, to_tensors

CPU = torch.device("cpu")
FLOAT32 = Precision(device=CPU, compute_dtype=torch.float32, uses_tf32=False, scaler=None)
# Microbatches change the order of additions: a few float32 roundings of gradients of size 1.
CLOSE = {"rtol": 1e-5, "atol": 1e-6}


def step_gradients(objective, model, microbatches, **settings):
    model.zero_grad()
    terms = accumulate(objective, model, microbatches, precision=FLOAT32, **settings)
    return gradients(model), terms


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor], **tolerance) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, msg=lambda text, name=name: f"{name}: {text}", **tolerance)


@st.composite
def sizes_of(draw, total: int) -> list[int]:
    """Sizes of microbatches that add up to `total`; some may be empty."""
    cuts = sorted(draw(st.lists(st.integers(0, total), max_size=5)))
    return [b - a for a, b in zip([0, *cuts], [*cuts, total])]


@given(sizes=sizes_of(24), seed=st.integers(0, 1000))
@settings(deadline=None, max_examples=30)
def test_one_batch_equals_microbatches_of_unequal_weight(sizes, seed):
    batch = to_tensors(host_batch(24, seed))
    torch.manual_seed(seed)
    model = TwoHeads()
    whole, whole_terms = step_gradients(TwoTerms(), model, [batch])
    parts, part_terms = step_gradients(TwoTerms(), model, cut(batch, sizes))
    assert_same(parts, whole, **CLOSE)
    for name, term in whole_terms.items():
        assert torch.equal(part_terms[name].weight, term.weight)
        torch.testing.assert_close(part_terms[name].total, term.total, **CLOSE)


def test_the_gradient_is_that_of_the_mean_over_the_whole_batch() -> None:
    batch = to_tensors(host_batch(24))
    model = TwoHeads()
    found, terms = step_gradients(TwoTerms(), model, cut(batch, [1, 20, 3]))
    model.zero_grad()
    value_b, choice_bC = model(batch["x"])
    loss = (value_b - batch["y"])[batch["is_scored"]].square().mean()
    loss = loss + 0.5 * nn.functional.cross_entropy(choice_bC, batch["label"])
    loss.backward()
    assert_same(found, gradients(model), **CLOSE)
    mean_terms = sum(scale * terms[name].mean() for name, scale in TwoTerms().scales.items())
    torch.testing.assert_close(mean_terms, loss.detach(), **CLOSE)


class ExactTerms(SeparableObjective):
    """Small integers and weights that are powers of two: every sum is exact, so the order of additions is free."""

    @property
    def scales(self) -> dict[str, float]:
        return {"a": 1.0, "b": 0.5}

    def weights(self, batch: Batch) -> dict[str, Tensor]:
        return {"a": batch["weight"].sum(), "b": torch.tensor(float(len(batch["x"])))}

    def losses(self, model: nn.Module, batch: Batch) -> dict[str, LossSum]:
        out_b = model(batch["x"])[:, 0]
        weights = self.weights(batch)
        return {"a": LossSum((out_b * batch["weight"]).sum(), weights["a"]), "b": LossSum(out_b.sum(), weights["b"])}

    def metrics(self, model: nn.Module, batch: Batch) -> dict[str, LossSum]:
        return self.losses(model, batch)

    def cost(self, batch: HostBatch) -> Cost:
        return Cost(len(batch["x"]), len(batch["x"]), len(batch["x"]), 0.0)


class WithLogged(ExactTerms):
    """Also logs the output of every part of a mixture, and a value that is not a number."""

    @property
    def logged(self) -> tuple[str, ...]:
        return ("of 0", "of 1", "of nothing")

    def losses(self, model: nn.Module, batch: Batch) -> dict[str, LossSum]:
        out_b, part_b = model(batch["x"])[:, 0].detach(), batch["part"]
        nothing = LossSum(torch.tensor(torch.nan), torch.tensor(0.0))
        own = {f"of {n}": LossSum(out_b[part_b == n].sum(), (part_b == n).sum().float()) for n in (0, 1)}
        return super().losses(model, batch) | own | {"of nothing": nothing}


def test_logged_terms_add_up_and_leave_the_gradient_unchanged() -> None:
    generator = torch.Generator().manual_seed(0)
    x, part = torch.randint(-8, 8, (8, 4), generator=generator).float(), torch.arange(8) % 2
    batch = {"x": x, "weight": torch.ones(8), "part": part}
    model = nn.Linear(4, 1)
    expected, plain = step_gradients(ExactTerms(), model, [batch])
    parts = [{name: value[rows] for name, value in batch.items()} for rows in (slice(0, 3), slice(3, 8))]
    gradient, found = step_gradients(WithLogged(), model, parts)
    assert_same(gradient, expected, **CLOSE)
    assert list(found) == [*plain, "of 0", "of 1", "of nothing"]
    out = model(x)[:, 0].detach()
    torch.testing.assert_close(found["of 1"].mean(), out[1::2].mean())
    assert found["of 1"].weight == 4


@given(sizes=sizes_of(32))
@settings(deadline=None, max_examples=30)
def test_microbatches_are_bitwise_equal_where_sums_are_exact(sizes):
    generator = torch.Generator().manual_seed(0)
    weight = torch.zeros(32)
    weight[torch.randperm(32, generator=generator)[:16]] = 1.0
    batch = {"x": torch.randint(-8, 8, (32, 4), generator=generator).float(), "weight": weight}
    model = nn.Linear(4, 1)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, -2.0, 3.0, 0.5]]))
        model.bias.fill_(0.25)
    whole, whole_terms = step_gradients(ExactTerms(), model, [batch])
    parts, part_terms = step_gradients(ExactTerms(), model, cut(batch, sizes))
    assert all(torch.equal(parts[name], whole[name]) for name in whole)
    assert part_terms == whole_terms


def test_a_term_without_weight_gives_no_gradient_and_no_nan() -> None:
    batch = to_tensors(host_batch(8))
    batch["is_scored"] = torch.zeros(8, dtype=torch.bool)
    model = TwoHeads()
    found, terms = step_gradients(TwoTerms(), model, cut(batch, [3, 0, 5]))
    assert all(value.isfinite().all() for value in found.values())
    assert torch.equal(found["value.weight"], torch.zeros(1, 8))
    assert found["choice.weight"].abs().sum() > 0
    assert terms["value"].mean().item() == 0.0


def test_wrong_terms_and_no_microbatches_are_refused() -> None:
    class Forgets(TwoTerms):
        def losses(self, model: nn.Module, batch: Batch) -> dict[str, LossSum]:
            return {"value": super().losses(model, batch)["value"]}

    batch = to_tensors(host_batch(4))
    with pytest.raises(ValueError, match="choice"):
        accumulate(Forgets(), TwoHeads(), [batch], precision=FLOAT32)
    with pytest.raises(ValueError, match="at least one microbatch"):
        accumulate(TwoTerms(), TwoHeads(), [], precision=FLOAT32)


@pytest.mark.parametrize(("objective", "make"), [(TwoTerms(), TwoHeads), (Contrast(), TwoTowers)])
def test_gradients_are_synchronised_in_the_last_microbatch_only(objective, make) -> None:
    backward_calls: list[bool] = []
    is_inside: list[bool] = []
    model = make()
    weight = list(model.parameters())[-1]
    weight.register_post_accumulate_grad_hook(lambda _: backward_calls.append(is_inside[-1]))

    @contextlib.contextmanager
    def gradient_sync(enabled: bool):
        is_inside.append(enabled)
        yield
        is_inside.append(False)

    microbatches = cut(to_tensors(host_batch(9)), [4, 2, 3])
    accumulate(objective, model, microbatches, precision=FLOAT32, gradient_sync=gradient_sync)
    assert backward_calls == [False, False, True]


def whole_batch_gradients(model: nn.Module, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """The coupled loss by plain autograd."""
    model.zero_grad()
    objective = Contrast()
    terms = objective.loss_from(model, *objective.embed(model, batch), slice(0, len(batch["x"])))
    sum(scale * terms[name].total / terms[name].weight for name, scale in objective.scales.items()).backward()
    return gradients(model)


def whole_batch_gradients_of(model: nn.Module, parts: list[Embedded]) -> dict[str, Tensor]:
    """The coupled loss by plain autograd, from microbatches that kept their graphs."""
    model.zero_grad()
    vectors = {key: torch.cat([part.vectors[key] for part in parts]) for key in parts[0].vectors}
    labels = {key: torch.cat([part.labels[key] for part in parts]) for key in parts[0].labels}
    terms = Contrast().loss_from(model, vectors, labels, slice(0, len(labels["label"])))
    sum(scale * terms[name].total / terms[name].weight for name, scale in Contrast().scales.items()).backward()
    return gradients(model)


def relative_error(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """The largest difference of any parameter's gradient, over that gradient's largest element."""
    assert found.keys() == expected.keys()
    return max(((found[n] - e).abs().max() / e.abs().max()).item() for n, e in expected.items())


@given(sizes=sizes_of(12), seed=st.integers(0, 1000))
@settings(deadline=None, max_examples=20)
def test_fact_25_decoupled_accumulation_equals_the_whole_batch(sizes, seed):
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        torch.manual_seed(seed)
        model = TwoTowers().to(dtype)
        batch = to_tensors(host_batch(12, seed), dtype)
        expected = whole_batch_gradients(model, batch)
        found, terms = step_gradients(Contrast(), model, cut(batch, sizes))
        assert relative_error(found, expected) < tolerance
        assert terms["contrast"].weight.item() == 12


def seed_of_microbatch(index: int) -> None:
    seed_dropout(3, 7, index, 0, CPU)


@pytest.mark.parametrize("seeding", [seed_of_microbatch, None], ids=["seeded", "unseeded"])
def test_decoupled_accumulation_replays_the_same_dropout(seeding) -> None:
    torch.manual_seed(0)
    model = TwoTowers(dropout=0.5).double()
    microbatches = cut(to_tensors(host_batch(12), torch.float64), [5, 1, 6])
    torch.manual_seed(5)
    found, _ = step_gradients(Contrast(), model, microbatches, seed_dropout=seeding)
    state = torch.get_rng_state()

    torch.manual_seed(5)
    parts = []
    for index, microbatch in enumerate(microbatches):
        if seeding is not None:
            seeding(index)
        parts.append(Contrast().embed(model, microbatch))
    assert relative_error(found, whole_batch_gradients_of(model, parts)) < 1e-12
    # Fact 28: the global stream is where one ordinary forward pass of each microbatch leaves it.
    assert torch.equal(torch.get_rng_state(), state)


def test_fact_27_a_replay_gives_the_embeddings_of_the_first_pass_bit_for_bit() -> None:
    seen: dict[float, list[Tensor]] = {}

    class Remembers(Contrast):
        def embed(self, model: nn.Module, batch: Batch) -> Embedded:
            embedded = super().embed(model, batch)
            seen.setdefault(batch["x"][0, 0].item(), []).append(embedded.vectors["left"].detach().clone())
            return embedded

    model = TwoTowers(dropout=0.5)
    microbatches = cut(to_tensors(host_batch(9)), [3, 3, 3])
    accumulate(Remembers(), model, microbatches, precision=FLOAT32)
    assert sorted(len(passes) for passes in seen.values()) == [1, 2, 2]
    assert all(torch.equal(first, again) for first, *others in seen.values() for again in others)
    # Dropout is at work: without its state another pass differs.
    first = Contrast().embed(model, microbatches[0]).vectors["left"]
    assert not torch.equal(first, Contrast().embed(model, microbatches[0]).vectors["left"])


def test_labels_reach_the_loss_in_the_order_of_the_batch() -> None:
    given_labels: list[Tensor] = []

    class Looks(Contrast):
        def loss_from(self, model, vectors, labels, rows):
            given_labels.append(labels["label"])
            return super().loss_from(model, vectors, labels, rows)

    batch = to_tensors(host_batch(12))
    accumulate(Looks(), TwoTowers(), cut(batch, [5, 1, 6]), precision=FLOAT32)
    assert torch.equal(given_labels[0], batch["label"])


def test_microbatches_of_a_coupled_objective_are_fetched_one_at_a_time_and_not_kept() -> None:
    batches = cut(to_tensors(host_batch(9)), [3, 3, 3])
    alive: list[weakref.ref] = []

    class Fetched(dict):
        pass

    class OnDemand(Sequence):
        def __len__(self) -> int:
            return len(batches)

        def __getitem__(self, index):
            assert not any(reference() is not None for reference in alive)
            fetched = Fetched(batches[index])
            alive.append(weakref.ref(fetched))
            return fetched

    accumulate(Contrast(), TwoTowers(), OnDemand(), precision=FLOAT32)
    assert len(alive) == 5


@pytest.mark.parametrize(("num_microbatches", "num_forwards"), [(1, 1), (3, 5)])
def test_all_microbatches_but_one_are_replayed(num_microbatches, num_forwards) -> None:
    model = TwoTowers()
    calls = []
    model.register_forward_hook(lambda *_: calls.append(torch.is_grad_enabled()))
    microbatches = cut(to_tensors(host_batch(6)), [6 // num_microbatches] * num_microbatches)
    accumulate(Contrast(), model, microbatches, precision=FLOAT32)
    assert len(calls) == num_forwards
    assert sum(calls) == num_microbatches


def most_kept_for_backward(work: Callable[[], object]) -> int:
    """The most elements at any time that autograd keeps for the backward pass."""
    now = most = 0

    class Kept:
        def __init__(self, tensor: Tensor) -> None:
            nonlocal now, most
            self.tensor = tensor
            now += tensor.numel()
            most = max(most, now)

        def __del__(self) -> None:
            nonlocal now
            now -= self.tensor.numel()

    with torch.autograd.graph.saved_tensors_hooks(Kept, lambda kept: kept.tensor):
        work()
    return most


def test_fact_29_four_microbatches_keep_the_memory_of_one() -> None:
    model = TwoTowers(num_features=5000)
    microbatches = cut(to_tensors(host_batch(64, num_features=5000)), [16] * 4)

    def kept(parts: list[dict[str, Tensor]]) -> int:
        return most_kept_for_backward(lambda: accumulate(Contrast(), model, parts, precision=FLOAT32))

    alone = kept(microbatches[:1])
    assert alone <= kept(microbatches) < 1.15 * alone  # the similarities of all with all are in it
    assert kept(cut(to_tensors(host_batch(64, num_features=5000)), [64])) > 2 * alone


def test_coupled_objectives_are_distinguished_by_type() -> None:
    assert isinstance(Contrast(), CoupledObjective)
    assert not isinstance(TwoTerms(), CoupledObjective)


def nearest_by_blocks(rows: Tensor, columns: Tensor) -> list[list[int]]:
    """The nearest column of each row and the nearest row of each column, as three ranks find them."""
    blocks = rows.split(4), columns.split(4)
    of_rows, of_columns = ([module._Nearest.of(block) for block in side] for side in blocks)
    for step in range(3):
        for rank in range(3):
            at = (rank - step) % 3
            module._find_nearest(blocks[0][rank], blocks[1][at], 4 * rank, 4 * at, of_rows[rank], of_columns[at])
    return [torch.cat([part.index_b for part in side]).tolist() for side in (of_rows, of_columns)]


@pytest.mark.parametrize("scores_at_once", [1, 13, 1 << 24])
def test_the_nearest_of_all_blocks_are_those_of_the_whole_matrix(scores_at_once, monkeypatch) -> None:
    monkeypatch.setattr(module, "_SCORES_AT_ONCE", scores_at_once)
    generator = torch.Generator().manual_seed(0)
    rows, columns = torch.randint(-2, 3, (2, 12, 3), generator=generator).float()  # exact scores, often equal
    scores = (rows @ columns.t()).numpy()
    assert nearest_by_blocks(rows, columns) == [scores.argmax(1).tolist(), scores.argmax(0).tolist()]  # the first ones
    assert nearest_by_blocks(rows * torch.nan, columns) == [[-1] * 12] * 2  # a model that has diverged matches nothing


def test_dropout_is_a_function_of_seed_step_microbatch_and_rank() -> None:
    def draw(*place: int) -> list[float]:
        seed_dropout(*place, CPU)
        return torch.rand(4).tolist()

    places = [(0, 0, 0, 0), (1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1)]
    draws = [draw(*place) for place in places]
    torch.rand(100)  # what was drawn before does not matter
    assert [draw(*place) for place in places] == draws
    assert len({tuple(d) for d in draws}) == len(places)


def test_one_rank_sums_to_itself() -> None:
    terms = {"a": LossSum(torch.tensor(3.0), torch.tensor(2.0)), "b": LossSum(torch.tensor(0.0), torch.tensor(0.0))}
    assert sum_over_ranks(terms) == terms
    assert [term.mean().item() for term in terms.values()] == [1.5, 0.0]


def test_bfloat16_gradients_are_near_float32_and_losses_stay_float32() -> None:
    batch = to_tensors(host_batch(24))
    torch.manual_seed(0)
    model = TwoHeads()
    expected, _ = step_gradients(TwoTerms(), model, [batch])
    low = copy.deepcopy(model)
    low.zero_grad()
    bfloat16 = Precision(device=CPU, compute_dtype=torch.bfloat16, uses_tf32=False, scaler=None)
    terms = accumulate(TwoTerms(), low, cut(batch, [4, 20]), precision=bfloat16)
    assert {term.total.dtype for term in terms.values()} == {torch.float32}
    found = gradients(low)
    assert {value.dtype for value in found.values()} == {torch.float32}
    # bfloat16 keeps 8 bits: 0.4 % per rounding.
    assert_same(found, expected, rtol=0.1, atol=0.02)

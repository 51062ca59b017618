"""The losses against plain autograd on the whole matrix, against the closed form, and at their limits.

Dimensions: B pairs, D embedding width.
"""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pretrainkit.recipes.clip.losses import Matches, ScoreProducts, SigmoidScore, SoftmaxScore, score_rows
from pretrainkit.recipes.clip.objective import ClipObjective
from support.toy_pairs import toy_config


class Parameters(nn.Module):
    """The loss's own parameters, as a model has them."""

    def __init__(self, temperature: float, bias: float = 0.0, dtype=torch.float64) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.full((1,), temperature, dtype=dtype))
        self.logit_bias = nn.Parameter(torch.full((1,), bias, dtype=dtype))
        self.score_products = ScoreProducts()

    def logit_scale(self) -> Tensor:
        return 1 / self.temperature[0]


def unit_vectors(num: int, width: int = 6, seed: int = 0, dtype=torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    both = torch.randn(2, num, width, generator=generator, dtype=dtype)
    return tuple(F.normalize(both, dim=-1))


def own_loss(objective: ClipObjective, parameters, image_BD, text_BD, labels=None, num_ranks=1) -> dict[str, Tensor]:
    """Mean of each term over the ranks' rows, with the terms of all ranks added up."""
    per_rank = len(image_BD) // num_ranks
    totals: dict[str, list[Tensor]] = {}
    for rank in range(num_ranks):
        rows = slice(rank * per_rank, (rank + 1) * per_rank)
        terms = objective.loss_from(parameters, {"image": image_BD, "text": text_BD}, labels or {}, rows)
        for name, term in terms.items():
            totals.setdefault(name, []).append(torch.stack([term.total, term.weight]))
    return {name: (sums := torch.stack(parts).sum(0))[0] / sums[1] for name, parts in totals.items()}


def soft_targets(labels: dict[str, Tensor], num: int, duplicates: str) -> tuple[Tensor, Tensor]:
    """(B, B) target distributions, and bool (B, B): what is left out. Row by row, in plain Python."""
    target_BB, out_BB = torch.zeros(num, num, dtype=torch.float64), torch.zeros(num, num, dtype=torch.bool)
    share = float(labels["share"][0]) if "share" in labels else 1.0
    for n in range(num):
        partner = n + int(labels["partner_offset"][n]) if "share" in labels else n
        parts = [(share, n), (1 - share, partner)]
        for weight, t in parts:
            same = [
                j
                for j in range(num)
                if j == t
                or (
                    duplicates != "negatives"
                    and any(labels[name][j] == labels[name][t] for name in ("image_group", "caption_group"))
                )
            ]
            if duplicates == "positives":
                for j in same:
                    target_BB[n, j] += weight / len(same)
            else:
                target_BB[n, t] += weight
                for j in same:
                    out_BB[n, j] |= j not in (n, partner)
    return target_BB, out_BB


def plain_infonce(image_BD, text_BD, scale, labels, duplicates="negatives", smoothing=0.0, columns=None) -> Tensor:
    """Compute by autograd through whole matrices."""
    num = len(image_BD)
    target_BB, out_BB = soft_targets(labels, num, duplicates)
    if columns is not None:
        out_BB = out_BB | ~columns
    losses = []
    for queries, keys in ((image_BD, text_BD), (text_BD, image_BD)):
        logits_BB = (scale * queries @ keys.T).masked_fill(out_BB, -torch.inf)
        log_p_BB = logits_BB.log_softmax(1).masked_fill(out_BB, 0.0)
        uniform_BB = (~out_BB).double() / (~out_BB).sum(1, keepdim=True)
        losses.append(-(((1 - smoothing) * target_BB + smoothing * uniform_BB) * log_p_BB).sum(1).mean())
    return sum(losses) / 2


def labels_of(num: int, seed: int, share: float | None) -> dict[str, Tensor]:
    rng = np.random.default_rng(seed)
    labels = {
        "image_group": torch.from_numpy(rng.integers(0, num // 2, num)),
        "caption_group": torch.from_numpy(rng.integers(0, num, num)),
    }
    if share is not None:
        labels["share"] = torch.full((num,), share, dtype=torch.float64)
        labels["partner_offset"] = num - 1 - 2 * torch.arange(num)
    return labels


def gradients_of(loss: Tensor, *inputs: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, inputs, retain_graph=True))


@given(
    seed=st.integers(0, 10_000),
    duplicates=st.sampled_from(["negatives", "ignore", "positives"]),
    smoothing=st.sampled_from([0.0, 0.1]),
    share=st.sampled_from([None, 0.0, 0.3, 0.9, 1.0]),
    num_ranks=st.sampled_from([1, 2, 4]),
)
@settings(deadline=None, max_examples=40)
def test_infonce_equals_plain_autograd(seed, duplicates, smoothing, share, num_ranks):
    image_BD, text_BD = (x.requires_grad_() for x in unit_vectors(8, seed=seed))
    labels = labels_of(8, seed, share)
    mixup = None if share is None else {}
    config = toy_config({"duplicates": duplicates, "label_smoothing": smoothing, "mixup": mixup})
    parameters = Parameters(0.3)
    found = own_loss(ClipObjective(config), parameters, image_BD, text_BD, labels, num_ranks)
    expected = plain_infonce(image_BD, text_BD, 1 / parameters.temperature, labels, duplicates, smoothing)
    inputs = (image_BD, text_BD, parameters.temperature)
    torch.testing.assert_close(found["contrastive_loss"], expected, rtol=1e-12, atol=1e-12)
    for own, plain in zip(gradients_of(found["contrastive_loss"], *inputs), gradients_of(expected, *inputs)):
        torch.testing.assert_close(own, plain, rtol=1e-11, atol=1e-13)
    if share is not None:
        hard = plain_infonce(
            image_BD, text_BD, 1 / parameters.temperature, labels | {"share": torch.ones(8)}, duplicates
        )
        if duplicates != "ignore":  # the hard loss leaves out what the mixed one does
            torch.testing.assert_close(found["hard_loss"], hard, rtol=1e-12, atol=1e-12)


def closed_form(image_BD: Tensor, text_BD: Tensor, temperature: float, target_BB: Tensor) -> tuple[Tensor, ...]:
    """Specification 8.3: gradients of the mean loss at both embeddings and at the temperature."""
    num = len(image_BD)
    similarity_BB = image_BD @ text_BD.T / temperature
    p_BB, q_BB = similarity_BB.softmax(1), similarity_BB.T.softmax(1)
    coefficient_BB = p_BB + q_BB.T - target_BB - target_BB.T
    factor = 1 / (2 * num * temperature)
    return (
        coefficient_BB @ text_BD * factor,
        coefficient_BB.T @ image_BD * factor,
        -(coefficient_BB * similarity_BB).sum() * factor,
    )


@pytest.mark.parametrize("share", [None, 0.3])
def test_the_gradient_is_the_closed_form_of_decoupled_accumulation(share):
    """Mixing pairs reversed inside each microbatch of 4."""
    image_BD, text_BD = (x.requires_grad_() for x in unit_vectors(12))
    labels, target_BB = {}, torch.eye(12, dtype=torch.float64)
    if share is not None:
        place = torch.arange(12) % 4
        labels = {"partner_offset": 3 - 2 * place, "share": torch.full((12,), share, dtype=torch.float64)}
        flip_BB = torch.block_diag(*[torch.eye(4, dtype=torch.float64).flip(0)] * 3)
        target_BB = share * target_BB + (1 - share) * flip_BB
    parameters = Parameters(0.3)
    loss = own_loss(ClipObjective(toy_config()), parameters, image_BD, text_BD, labels, 2)["contrastive_loss"]
    found = gradients_of(loss, image_BD, text_BD, parameters.temperature)
    with torch.no_grad():
        expected = closed_form(image_BD, text_BD, 0.3, target_BB)
    for own, closed in zip(found, expected, strict=True):
        torch.testing.assert_close(own.squeeze(), closed, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("num_ranks", [1, 2])
@pytest.mark.parametrize("duplicates", ["negatives", "ignore", "positives"])
def test_the_sigmoid_loss_equals_its_definition(duplicates, num_ranks):
    image_BD, text_BD = (x.requires_grad_() for x in unit_vectors(12))
    labels = labels_of(12, 3, None)
    parameters = Parameters(0.1, bias=-2.0)
    config = toy_config({"loss": "siglip", "duplicates": duplicates})
    found = own_loss(ClipObjective(config), parameters, image_BD, text_BD, labels, num_ranks)["contrastive_loss"]
    target_BB, out_BB = soft_targets(labels, 12, duplicates)
    sign_BB = torch.where(target_BB > 0, 1.0, -1.0)
    logits_BB = image_BD @ text_BD.T / parameters.temperature + parameters.logit_bias
    expected = -(F.logsigmoid(sign_BB * logits_BB) * ~out_BB).sum() / 12
    inputs = (image_BD, text_BD, parameters.temperature, parameters.logit_bias)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    for own, plain in zip(gradients_of(found, *inputs), gradients_of(expected, *inputs)):
        torch.testing.assert_close(own, plain, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("settings", [{}, {"gather": False}, {"gather_group_size": 2}])
def test_pairs_are_compared_within_the_ranks_that_gather(settings):
    image_BD, text_BD = (x.requires_grad_() for x in unit_vectors(12))
    size = {"gather": 3, "gather_group_size": 6}.get(next(iter(settings), ""), 12)
    columns = torch.block_diag(*[torch.ones(size, size)] * (12 // size)).bool()
    parameters = Parameters(0.3)
    found = own_loss(ClipObjective(toy_config(settings)), parameters, image_BD, text_BD, num_ranks=4)
    expected = plain_infonce(image_BD, text_BD, 1 / parameters.temperature, {}, columns=columns)
    torch.testing.assert_close(found["contrastive_loss"], expected, rtol=1e-12, atol=1e-12)
    inputs = (image_BD, text_BD, parameters.temperature)
    for own, plain in zip(gradients_of(found["contrastive_loss"], *inputs), gradients_of(expected, *inputs)):
        torch.testing.assert_close(own, plain, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_fact_20_without_gather_gradient_each_direction_trains_its_own_tower(num_ranks):
    image_BD, text_BD = (x.requires_grad_() for x in unit_vectors(12))
    parameters = Parameters(0.3)
    loss = own_loss(ClipObjective(toy_config({"gather_gradient": False})), parameters, image_BD, text_BD, {}, num_ranks)
    found = gradients_of(loss["contrastive_loss"], image_BD, text_BD)
    target = torch.arange(12)
    i2t = F.cross_entropy(image_BD @ text_BD.detach().T / 0.3, target) / 2
    t2i = F.cross_entropy(text_BD @ image_BD.detach().T / 0.3, target) / 2
    torch.testing.assert_close(found[0], gradients_of(i2t, image_BD)[0], rtol=1e-11, atol=1e-13)
    torch.testing.assert_close(found[1], gradients_of(t2i, text_BD)[0], rtol=1e-11, atol=1e-13)
    torch.testing.assert_close(loss["contrastive_loss"], i2t + t2i, rtol=1e-12, atol=1e-12)


def test_fact_21_random_vectors_at_a_large_temperature_give_ln_b():
    image_BD, text_BD = unit_vectors(64, width=32)
    loss = own_loss(ClipObjective(toy_config()), Parameters(1e4), image_BD, text_BD)["contrastive_loss"]
    assert loss.item() == pytest.approx(math.log(64), abs=1e-4)


def test_fact_21_a_share_of_one_is_infonce_and_of_zero_is_infonce_of_the_partners():
    image_BD, text_BD = unit_vectors(12)
    objective, parameters = ClipObjective(toy_config({"mixup": {}})), Parameters(0.3)
    plain = own_loss(ClipObjective(toy_config()), parameters, image_BD, text_BD)["contrastive_loss"]
    whole = own_loss(objective, parameters, image_BD, text_BD, labels_of(12, 0, 1.0))["contrastive_loss"]
    # An image step with share 0 embeds every image in its partner's place.
    none = own_loss(objective, parameters, image_BD.flip(0), text_BD, labels_of(12, 0, 0.0))["contrastive_loss"]
    torch.testing.assert_close(whole, plain, rtol=1e-12, atol=0)
    torch.testing.assert_close(none, plain, rtol=1e-12, atol=0)


@pytest.mark.parametrize("loss", ["infonce", "siglip"])
@pytest.mark.parametrize("temperature", [0.001, 0.01])
def test_fact_31_identical_embeddings_at_the_smallest_temperature_stay_finite(loss, temperature):
    ones_BD = F.normalize(torch.ones(16, 8), dim=-1)
    image_BD, text_BD = ones_BD.clone().requires_grad_(), ones_BD.clone().requires_grad_()
    parameters = Parameters(temperature, dtype=torch.float32)
    found = own_loss(ClipObjective(toy_config({"loss": loss})), parameters, image_BD, text_BD)
    found["contrastive_loss"].backward()
    assert found["contrastive_loss"].isfinite()
    for tensor in (image_BD, text_BD, parameters.temperature):
        assert tensor.grad.isfinite().all()
    if loss == "infonce":
        assert found["contrastive_loss"].item() == pytest.approx(math.log(16), abs=1e-4)
    assert found["i2t_accuracy"].item() == pytest.approx(1 / 16)  # all alike is not all right


@pytest.mark.parametrize("loss", ["infonce", "siglip"])
def test_accuracies_count_rows_whose_nearest_is_their_own(loss):
    image_BD, text_BD = unit_vectors(40, width=3)
    for num_ranks in (1, 4):
        found = own_loss(ClipObjective(toy_config({"loss": loss})), Parameters(0.2), image_BD, text_BD, {}, num_ranks)
        similarity_BB = image_BD @ text_BD.T
        own = torch.arange(40)
        assert found["i2t_accuracy"].item() == pytest.approx((similarity_BB.argmax(1) == own).double().mean().item())
        assert found["t2i_accuracy"].item() == pytest.approx((similarity_BB.argmax(0) == own).double().mean().item())
        assert found["temperature"].item() == pytest.approx(0.2)


@pytest.mark.parametrize("loss", ["infonce", "siglip"])
def test_chunks_change_nothing_and_bound_the_logits(loss, monkeypatch):
    """1 MB holds 12 rows of 20,000 float32 logits."""
    image_BD, text_BD = (x.requires_grad_() for x in unit_vectors(64, width=4, dtype=torch.float32))
    keys_MD = torch.cat([text_BD, *[unit_vectors(64, 4, seed, torch.float32)[0] for seed in range(1, 313)]])
    shapes = []
    matches = Matches(0, len(keys_MD))
    score = SoftmaxScore(matches) if loss == "infonce" else SigmoidScore(matches)

    def watched(logits_CM, pairs_C):
        shapes.append(tuple(logits_CM.shape))
        return score(logits_CM, pairs_C)

    found = []
    for megabytes in (1, 100):
        shapes.clear()
        rest = {"score_products": ScoreProducts(), "first_row": 0, "megabytes": megabytes}
        loss_sum = score_rows(image_BD, keys_MD, torch.tensor(5.0), None, watched, **rest).loss
        assert max(rows * columns * 4 for rows, columns in shapes) <= megabytes * 1e6
        assert sum(rows for rows, _ in shapes) == 64
        found.append([loss_sum, *gradients_of(loss_sum, image_BD, text_BD)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


class LiveBytes(TorchDispatchMode):
    """Maximum number of bytes of tensors from operations that exist at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.most = 0
        self._sizes: dict[StorageWeakRef, int] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        for value in tree_leaves((args, found)):
            if isinstance(value, Tensor):
                self._sizes[StorageWeakRef(value.untyped_storage())] = value.untyped_storage().nbytes()
        self._sizes = {storage: size for storage, size in self._sizes.items() if not storage.expired()}
        self.most = max(self.most, sum(self._sizes.values()))
        return found


@pytest.mark.parametrize("share", [None, 0.3])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, "sigmoid"])
@pytest.mark.parametrize("duplicates", ["negatives", "ignore", "positives"])
def test_memory_is_that_of_the_gradients_and_of_a_known_number_of_chunks(duplicates, smoothing, share):
    """One matrix of a chunk's logits in the plain loss, at most five in any other, however many chunks there are."""
    keys_MD, queries_bD = torch.randn(20_000, 4, requires_grad=True), torch.randn(40, 4, requires_grad=True)
    groups_M = torch.arange(20_000) // 2
    parts = {} if share is None else {"partner_B": torch.arange(20_000).flip(0), "share": torch.tensor(share)}
    matches = Matches(0, 20_000, duplicates, () if duplicates == "negatives" else (groups_M, groups_M), **parts)
    score = SigmoidScore(matches) if smoothing == "sigmoid" else SoftmaxScore(matches, smoothing)
    bias = torch.tensor(0.1) if smoothing == "sigmoid" else None
    rest = {"score_products": ScoreProducts(), "first_row": 3, "megabytes": 1}  # 12 rows
    with LiveBytes() as live:
        score_rows(queries_bD, keys_MD, torch.tensor(5.0, requires_grad=True), bias, score, **rest)
    known = 2 * (keys_MD.nbytes + queries_bD.nbytes) + 3 * groups_M.nbytes
    most = 1 if (duplicates, smoothing) == ("negatives", 0.0) else 5
    assert live.most - known < 1.01 * most * 12 * 20_000 * 4


def test_no_gradient_is_computed_if_it_is_not_required():
    image_BD, text_BD = (x.requires_grad_() for x in unit_vectors(8))
    with torch.no_grad():
        loss = own_loss(ClipObjective(toy_config()), Parameters(0.3), image_BD, text_BD)["contrastive_loss"]
    assert not loss.requires_grad


class LargestTensor(TorchDispatchMode):
    """The most elements of any tensor that an operation gives."""

    def __init__(self) -> None:
        super().__init__()
        self.num_elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        for value in tree_leaves(found):
            if isinstance(value, Tensor):
                self.num_elements = max(self.num_elements, value.numel())
        return found


@pytest.mark.parametrize("settings", [{}, {"loss": "siglip"}, {"duplicates": "ignore"}, {"mixup": {}}], ids=str)
def test_fact_30_no_rank_of_several_makes_a_matrix_of_all_pairs(settings):
    num, num_ranks = 64, 4
    image_BD, text_BD = (x.requires_grad_() for x in unit_vectors(num))
    labels = labels_of(num, 0, 0.3 if "mixup" in settings else None)
    objective, parameters = ClipObjective(toy_config(settings)), Parameters(0.3)
    with LargestTensor() as largest:
        terms = objective.loss_from(parameters, {"image": image_BD, "text": text_BD}, labels, slice(16, 32))
        terms["contrastive_loss"].total.backward()
    assert largest.num_elements == num * num // num_ranks

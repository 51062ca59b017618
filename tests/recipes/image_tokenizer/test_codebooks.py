"""Quantizers: laws of codes, their updates and their draws (section 10.2 and 10.3)."""

import numpy as np
import pytest
import torch

from pretrainkit import rng
from pretrainkit.recipes.image_tokenizer import draws
from pretrainkit.recipes.image_tokenizer.model_config import CodebookConfig, FiniteScalarConfig, MemcodesConfig
from pretrainkit.recipes.image_tokenizer.quantizers import Codebook, FiniteScalar, Memcodes

KEYS = torch.arange(6) * 977 + 5


def codebook(**changes) -> Codebook:
    torch.manual_seed(0)
    found = Codebook(CodebookConfig(**({"size": 8, "width": 4, "revival": "none"} | changes)))
    found.initialise()
    return found


def latents(num: int = 6, width: int = 4, seed: int = 1) -> torch.Tensor:
    return torch.randn(num, width, 2, 2, generator=torch.Generator().manual_seed(seed))


def updated(book: Codebook, parts, threshold: float = 0.0) -> Codebook:
    statistics = None
    for part in parts:
        found = book.statistics(book(latents()[part], KEYS[part]), KEYS[part])
        statistics = found if statistics is None else statistics.join(found)
    book.update(statistics, threshold)
    return book


@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
def test_each_latent_gets_the_nearest_code(distance: str) -> None:
    book = codebook(distance=distance)
    found = book(latents(), KEYS)
    flat = latents().permute(0, 2, 3, 1).reshape(-1, 4)
    codes = book.codes_KD
    if distance == "cosine":
        flat, codes = (torch.nn.functional.normalize(x, dim=-1) for x in (flat, codes))
    expected = torch.cdist(flat, codes).argmin(1)
    assert torch.equal(found.ids.reshape(-1), expected)
    assert torch.allclose(found.codes_BDhw, book.codes_of(found.ids))


def test_the_gradient_passes_through_the_rounding() -> None:
    values = latents().requires_grad_()
    weights = torch.randn(6, 4, 2, 2)
    (codebook()(values, KEYS).codes_BDhw * weights).sum().backward()
    assert torch.equal(values.grad, weights)


@pytest.mark.parametrize("first", ["random", "kmeans"])
@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
@pytest.mark.parametrize("revival", ["latents", "split"])
def test_an_update_does_not_depend_on_how_the_batch_was_cut(distance: str, revival: str, first: str) -> None:
    settings = {"distance": distance, "revival": revival, "first_codes": first}
    whole = updated(codebook(**settings), [slice(0, 6)], 0.2)
    cut = updated(codebook(**settings), [slice(4, 6), slice(0, 1), slice(1, 4)], 0.2)
    for name, tensor in whole.state_dict().items():
        torch.testing.assert_close(cut.state_dict()[name], tensor, rtol=1e-5, atol=1e-6)


def test_codes_move_to_the_mean_direction_and_others_stay() -> None:
    book = codebook(decay=0.9)
    before, found = book.codes_KD.clone(), book(latents(), KEYS)
    flat = torch.nn.functional.normalize(latents().permute(0, 2, 3, 1).reshape(-1, 4), dim=-1)
    updated(book, [slice(0, 6)])
    for code in range(8):
        own = flat[found.ids.reshape(-1) == code]
        expected = before[code]
        if len(own):
            expected = 0.9 * expected + 0.1 * torch.nn.functional.normalize(own.sum(0), dim=-1)
        torch.testing.assert_close(book.codes_KD[code], expected)
        torch.testing.assert_close(book.use_K[code], torch.tensor(0.1 * len(own)))


def test_euclidean_codes_are_smoothed_averages() -> None:
    book = codebook(distance="euclidean", decay=0.5)
    sums, found = book.sums_KD.clone(), book(latents(), KEYS)
    flat = latents().permute(0, 2, 3, 1).reshape(-1, 4)
    updated(book, [slice(0, 6)])
    counts = torch.bincount(found.ids.reshape(-1), minlength=8).float()
    totals = torch.stack([flat[found.ids.reshape(-1) == code].sum(0) for code in range(8)])
    use = 0.5 * counts
    smooth = (use + 1e-5) / (use.sum() + 8e-5) * use.sum()
    torch.testing.assert_close(book.codes_KD, (0.5 * sums + 0.5 * totals) / smooth[:, None])


@pytest.mark.parametrize("revival", ["latents", "split", "none"])
def test_unused_codes_are_reinitialized_if_configured(revival: str) -> None:
    book = codebook(revival=revival)
    with torch.no_grad():
        book.codes_KD[1:] = -latents()[0, :, 0, 0]  # far from nearly all latents
        book.codes_KD[0] = latents()[0, :, 0, 0]
    before = book.codes_KD.clone()
    for _ in range(3):
        updated(book, [slice(0, 6)], 0.05)
    moved = (book.codes_KD - before).abs().amax(1) > 1e-4
    assert bool(moved[2:].all()) == (revival != "none")
    if revival != "none":
        assert len(book(latents(), KEYS).ids.unique()) > 2


def test_revived_codes_are_latents_of_the_batch() -> None:
    book = updated(codebook(revival="latents"), [slice(0, 6)], 1e9)
    flat = torch.nn.functional.normalize(latents().permute(0, 2, 3, 1).reshape(-1, 4), dim=-1)
    assert torch.cdist(book.codes_KD, flat).min(1).values.max() < 1e-6


def test_first_codes_can_be_clusters() -> None:
    centres = torch.nn.functional.normalize(torch.randn(4, 4, generator=torch.Generator().manual_seed(3)), dim=-1)
    noisy = (centres[:, None] + 0.01 * torch.randn(4, 16, 4, generator=torch.Generator().manual_seed(4))).flatten(0, 1)
    book = codebook(size=4, first_codes="kmeans", num_kmeans_rounds=20)
    assert not book.is_ready
    values = noisy[torch.randperm(64, generator=torch.Generator().manual_seed(5))].view(16, 2, 2, 4).permute(0, 3, 1, 2)
    keys = torch.arange(16)
    book.update(book.statistics(book(values, keys), keys), 0.0)
    assert book.is_ready
    assert book.use_K.sum() == 64
    assert torch.cdist(book.codes_KD, centres).min(0).values.median() < 0.05


def test_an_update_of_no_numbers_changes_nothing() -> None:
    book = codebook(revival="latents")
    before = {name: tensor.clone() for name, tensor in book.state_dict().items()}
    quantized = book(latents() * torch.nan, KEYS)
    book.update(book.statistics(quantized, KEYS), 1.0)
    assert all(torch.equal(tensor, before[name]) for name, tensor in book.state_dict().items())


@pytest.mark.parametrize("levels", [(8, 5, 5, 5), (2, 3), (7,)])
def test_finite_scalars_count_all_their_codes(levels) -> None:
    quantizer = FiniteScalar(FiniteScalarConfig(levels=levels))
    ids = torch.arange(FiniteScalarConfig(levels=levels).vocab_size)[:, None, None]
    codes = quantizer.codes_of(ids)
    assert len(codes.flatten(1).unique(dim=0)) == len(ids)
    assert codes.abs().max() <= 1
    half = (torch.tensor(levels) - 1) * 1.001 / 2
    offset = torch.where(torch.tensor(levels) % 2 == 0, 0.5, 0.0)
    rounded = codes[..., 0, 0] * (torch.tensor(levels) // 2)
    raw = ((rounded + offset) / half).clamp(-0.9999, 0.9999).atanh() - (offset / half).atanh()
    again = quantizer(raw[:, :, None, None])
    assert torch.equal(again.ids, ids)
    torch.testing.assert_close(again.codes_BDhw, codes)


def test_memcodes_use_the_most_likely_code_and_draw_in_training() -> None:
    torch.manual_seed(0)
    quantizer = Memcodes(MemcodesConfig(size=5, width=8, num_heads=2))
    quantizer.initialise()
    values = latents(width=8).requires_grad_()
    with torch.no_grad():
        found = quantizer.eval()(values)
        assert torch.equal(quantizer.codes_of(found.ids), found.codes_BDhw)
        query = values[0, 4:, 1, 0]
        logits = (quantizer.codes_HKE[1] @ quantizer.keys_HEE[1]) @ query
        assert found.ids[0, 1, 1, 0] == logits.argmax()
    assert found.ids.shape == (6, 2, 2, 2)
    drawn = quantizer.train()(values, KEYS)
    assert torch.equal(drawn.ids, quantizer(values, KEYS).ids)
    assert torch.equal(drawn.ids[2:4], quantizer(values[2:4], KEYS[2:4]).ids)
    assert not torch.equal(drawn.ids, quantizer(values, KEYS + 1).ids)
    torch.testing.assert_close(drawn.codes_BDhw, quantizer.codes_of(drawn.ids))
    drawn.codes_BDhw.square().sum().backward()
    assert all(tensor.grad.abs().sum() > 0 for tensor in (values, *quantizer.parameters()))


def test_memcodes_are_drawn_as_often_as_they_are_likely() -> None:
    quantizer = Memcodes(MemcodesConfig(size=3, width=1, num_heads=1))
    with torch.no_grad():
        quantizer.codes_HKE.copy_(torch.tensor([[[0.0], [1.0], [2.0]]]))
        quantizer.keys_HEE.fill_(1.0)
    values = torch.ones(4000, 1, 1, 1)
    drawn = quantizer.train()(values, torch.arange(4000)).ids.reshape(-1)
    shares = torch.bincount(drawn, minlength=3) / 4000
    torch.testing.assert_close(shares, torch.tensor([0.0, 1.0, 2.0]).softmax(0), rtol=0, atol=0.03)


def test_draws_are_those_of_the_house_and_well_spread() -> None:
    keys = np.array([0, 1, 2**63 + 5], np.uint64)
    ours = draws.fold(torch.from_numpy(keys.view(np.int64)), 7).numpy().view(np.uint64)
    np.testing.assert_array_equal(ours, rng.fold(keys, 7))
    normal = draws.normal(torch.arange(50), 3, 3, 7, 7)
    assert abs(normal.mean()) < 0.03
    assert abs(normal.std() - 1) < 0.03
    uniform = draws.uniform(torch.arange(50), 3, 200)
    assert 0 <= uniform.min() < 0.001
    assert 0.999 < uniform.max() < 1
    assert torch.equal(draws.normal(torch.arange(50), 3, 5)[10:12], draws.normal(torch.arange(10, 12), 3, 5))

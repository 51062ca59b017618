"""Noise, what is predicted of it, and sampling (section 10.4)."""

import numpy as np
import pytest
import torch
from torch import Tensor

from pretrainkit.recipes.image_tokenizer.diffusion import DiffusionDecoder, signal_shares, trailing_times
from pretrainkit.recipes.image_tokenizer.model_config import NoiseConfig

SCHEDULES = ("linear", "squared_cosine", "shifted_cosine")
IMAGES = torch.linspace(-0.9, 0.9, 2 * 3 * 4 * 4).view(2, 3, 4, 4)
CODES = torch.ones(2, 2, 2, 2)
KEYS = torch.tensor([3, 4])


class Knows(DiffusionDecoder):
    """Predicts what follows from the true image."""

    def __init__(self, noise: NoiseConfig, **more) -> None:
        super().__init__(noise, 3, has_pixel_range=True, **more)
        self.seen: list[Tensor | None] = []

    def forward(self, noisy, time_B, codes_BDhw, is_hidden_Bhw=None):
        self.seen.append(is_hidden_Bhw)
        signal, noise = self._roots(time_B)
        drawn = (noisy - signal * IMAGES) / noise.clamp(min=1e-6)
        found = {"image": IMAGES, "noise": drawn, "velocity": signal * drawn - noise * IMAGES}
        return found[self.noise.prediction]

    def blocks(self):
        return []

    def initialise_zeros(self):
        pass


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_less_and_less_is_left_until_nothing(schedule: str) -> None:
    shares = signal_shares(NoiseConfig(schedule=schedule))
    assert len(shares) == 1000
    assert shares[0] > 0.99
    assert (np.diff(shares) <= 0).all()
    assert shares[-1] == pytest.approx(0, abs=1e-12)


def test_schedules_are_the_published_ones() -> None:
    linear = signal_shares(NoiseConfig(schedule="linear", ends_in_noise=False))
    assert linear[0] == pytest.approx(1 - 1e-4)
    assert linear[-1] == pytest.approx(4.0358e-5, rel=1e-3)
    rescaled = signal_shares(NoiseConfig(schedule="linear"))
    assert rescaled[0] == pytest.approx(linear[0])
    shifted = signal_shares(NoiseConfig(schedule="shifted_cosine", shift=0.5, num_times=1001))
    assert shifted[500] == pytest.approx(1 / (1 + 0.25))  # a cosine has as much signal as noise there: log-SNR -2 log s
    assert shifted[0] == pytest.approx(1 / (1 + np.exp(-15)))


def test_sampling_begins_at_the_end_and_is_even() -> None:
    assert trailing_times(1000, 4) == [999, 749, 499, 249]
    assert trailing_times(10, 100) == list(range(9, -1, -1))


@pytest.mark.parametrize("prediction", ["image", "noise", "velocity"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_who_knows_the_image_makes_it_in_any_number_of_steps(prediction: str, schedule: str) -> None:
    decoder = Knows(NoiseConfig(schedule=schedule, prediction=prediction, ends_in_noise=prediction != "noise"))
    if prediction == "noise" and schedule == "shifted_cosine":
        return  # nothing is left at its end, for any request
    tolerance = 2e-2 if prediction == "noise" else 1e-3  # an image that is nearly gone is divided by what is left
    for num_steps in (1, 7):
        made = decoder.sample(CODES, KEYS, 4, num_steps)
        torch.testing.assert_close(made, IMAGES, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("prediction", ["image", "noise", "velocity"])
@pytest.mark.parametrize("loss", ["prediction", "noise"])
def test_targets_are_the_right_answers(prediction: str, loss: str) -> None:
    decoder = Knows(NoiseConfig(prediction=prediction, loss=loss)).eval()
    found, wanted = decoder.denoise(IMAGES, CODES, KEYS)
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3)


def test_noise_is_that_of_the_example() -> None:
    decoder = Knows(NoiseConfig(prediction="noise")).eval()
    _, both = decoder.denoise(IMAGES, CODES, KEYS)
    _, again = decoder.denoise(IMAGES, CODES, KEYS)
    assert torch.equal(both, again)
    assert not torch.equal(both, decoder.denoise(IMAGES, CODES, KEYS + 9)[1])


def test_codes_are_hidden_at_the_configured_rate_and_never_in_evaluation() -> None:
    keys, codes = torch.arange(2000), torch.ones(2000, 2, 4, 4)
    whole = Knows(NoiseConfig(dropout=0.3))._hidden(codes, keys)
    assert set(whole.flatten(1).float().mean(1).tolist()) == {0.0, 1.0}
    assert whole.float().mean() == pytest.approx(0.3, abs=0.03)
    some = Knows(NoiseConfig(dropout=0.5, masks_places=True))._hidden(codes, keys)
    counts = torch.bincount(some.flatten(1).sum(1), minlength=17) / 2000
    assert counts[1:].tolist() == pytest.approx([0.5 / 17] * 16, abs=0.015)
    decoder = Knows(NoiseConfig(dropout=1.0)).eval()
    decoder.denoise(IMAGES, CODES, KEYS)
    decoder.sample(CODES, KEYS, 4, 2)
    assert decoder.seen == [None] * 3


def test_guidance_computes_two_passes() -> None:
    decoder = Knows(NoiseConfig(dropout=0.1)).eval()
    made = decoder.sample(CODES, KEYS, 4, 2, guidance=2.0)
    assert sum(hidden is not None and bool(hidden.all()) for hidden in decoder.seen) == 2
    torch.testing.assert_close(made, IMAGES, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("prediction", ["image", "noise", "velocity"])
def test_steps_are_those_of_the_original_also_where_values_are_clamped(prediction: str) -> None:
    """These are the formulas of its DDIMScheduler with `thresholding`, whose limit is 1: the noise is that of the
    prediction before it is clamped."""

    seen: list[Tensor] = []

    class Far(Knows):
        def forward(self, noisy, time_B, codes_BDhw, is_hidden_Bhw=None):
            seen.append(noisy)
            return noisy.sin() * 1.7

    noise = NoiseConfig(prediction=prediction, schedule="linear", ends_in_noise=False)
    decoder, times, num_clamped = Far(noise), [999, 749, 499, 249], 0
    sampled = decoder.sample(CODES, KEYS, 4, 4)
    shares, x = torch.from_numpy(signal_shares(noise)).float(), seen[0]
    for number, time in enumerate(times):
        share, predicted = shares[time], x.sin() * 1.7
        image = {
            "image": predicted,
            "noise": (x - (1 - share).sqrt() * predicted) / share.sqrt(),
            "velocity": share.sqrt() * x - (1 - share).sqrt() * predicted,
        }[prediction]
        drawn = {
            "image": (x - share.sqrt() * predicted) / (1 - share).sqrt(),
            "noise": predicted,
            "velocity": share.sqrt() * predicted + (1 - share).sqrt() * x,
        }[prediction]
        num_clamped += int((image.abs() > 1).sum())
        following = shares[times[number + 1]] if number < 3 else torch.tensor(1.0)
        x = following.sqrt() * image.clamp(-1, 1) + (1 - following).sqrt() * drawn
    assert num_clamped
    torch.testing.assert_close(sampled, x, rtol=1e-4, atol=1e-4)


def test_values_outside_are_brought_back() -> None:
    class Bright(Knows):
        def forward(self, noisy, time_B, codes_BDhw, is_hidden_Bhw=None):
            return torch.full_like(noisy, 3.0)

    assert Bright(NoiseConfig(prediction="image")).sample(CODES, KEYS, 4, 1).max() == 1

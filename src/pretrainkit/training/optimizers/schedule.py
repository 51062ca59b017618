"""The learning rate as a pure function of the update index. There is no state to save or restore."""

import math

from pretrainkit.training.optimizers.config import ScheduleConfig


def learning_rate(config: ScheduleConfig, peak_lr: float, num_steps: int, step: int) -> float:
    """Return the learning rate of update `step` of `num_steps`. The schedule starts after `config.step_offset`
    updates."""
    if config.name == "factors":
        return product_of_factors(config, peak_lr, step)
    return peak_lr * lr_factor(config, num_steps - config.step_offset, max(0, step - config.step_offset))


def product_of_factors(config: ScheduleConfig, base: float, step: int) -> float:
    """Return T5X's learning rate (`t5x/utils.py`). These schedules do not depend on the number of steps."""
    since = max(0, step - config.step_offset)
    warmup = config.num_warmup_steps
    ramp = min(1.0, since / warmup) if warmup else 1.0
    # Without warm-up the curves start at update 1, because 1 / sqrt(s) has no value at 0.
    later = max(since, warmup, 1)
    values = {
        "constant": base,
        "linear_warmup": ramp,
        "rsqrt_decay": 1 / math.sqrt(later),
        "rsqrt_normalized_decay": math.sqrt(max(warmup, 1) / later),
        "decay_every": config.decay_factor ** (since // config.steps_per_decay),
        "cosine_decay": max(0.0, 0.5 * (1 + math.cos(math.pi * (max(0, since - warmup) / config.steps_per_cycle % 1)))),
        "linear_decay": base * min(since / warmup if warmup else 1.0, 1 + config.decay_factor * (warmup - since)),
    }
    return max(math.prod(values[name] for name in config.factors), config.min_lr)


def lr_factor(config: ScheduleConfig, num_steps: int, step: int) -> float:
    """Return the share of `optimizer.peak_lr` that update `step` of `num_steps` uses, in [0, 1]. The decay would end at
    update `num_steps`, one after the last; updates after that keep the final share.

    The warm-up is linear from 0: update t < warmup_steps uses t / warmup_steps, so the first update of a run with
    warm-up changes nothing. Sabertooth and optax do the same.
    """
    warmup = config.warmup_steps(num_steps)
    if step < warmup:
        return step / warmup
    if config.name == "constant":
        return 1.0
    if config.name == "inverse_sqrt":
        # Without warm-up the curve starts at update 1, because 1 / sqrt(t) has no value at 0.
        return math.sqrt(max(warmup, 1) / max(step, 1))

    start = max(warmup, num_steps - config.num_decay_steps) if config.name == "wsd" else warmup
    if step < start:
        return 1.0
    progress = min((step - start) / (num_steps - start), 1.0) if num_steps > start else 1.0
    if config.name == "cosine":
        kept = 0.5 * (1.0 + math.cos(math.pi * progress))
    elif config.name == "wsd":
        # Hägele et al. 2024, https://arxiv.org/abs/2405.18392: 1 - sqrt beats a linear cooldown.
        kept = 1.0 - math.sqrt(progress)
    else:
        kept = 1.0 - progress
    return config.floor + (1.0 - config.floor) * kept

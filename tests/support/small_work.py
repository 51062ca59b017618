"""Small models of every recipe with two microbatches each, for tests that train them without a run."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from pretrainkit.training.objective import Batch
from pretrainkit.training.optimizers.config import OptimizerConfig
from support import bert_batches, clip_models, fourm_batches, pixel_batches, t5_batches
from support.toy_objectives import TwoHeads, TwoTerms, host_batch

Batches = list[dict[str, np.ndarray]]
ADAMW = OptimizerConfig(peak_lr=1e-3)
ADAFACTOR = OptimizerConfig(name="adafactor", peak_lr=1.0, max_grad_norm=0.0)


class Work(NamedTuple):
    """A training of two microbatches."""

    model: nn.Module
    objective: Any
    batches: Batches
    optimizer: OptimizerConfig


def arrays(batch: dict[str, Any]) -> dict[str, np.ndarray]:
    return {name: value.numpy() if isinstance(value, Tensor) else value for name, value in batch.items()}


def bert(*, is_modern: bool = False, dropout: float = 0.0, room: int = 0, rows: bool = False) -> Work:
    from pretrainkit.recipes.bert.recipe import RECIPE

    config = bert_batches.modern_config() if is_modern else bert_batches.run_config()
    rates = {"attention_dropout": dropout, "hidden_dropout": dropout} if not is_modern else {"dropout": dropout}
    rates = {name: rate for name, rate in rates.items() if name in type(config.model).model_fields}
    config = config.model_copy(update={"model": config.model.model_copy(update=rates)})
    torch.manual_seed(0)
    made = [bert_batches.row_batch([24, 9, 15, 20], seed=seed) for seed in (0, 1)]
    batches = [arrays(one if rows else bert_batches.packed_batch(one, room=room)) for one in made]
    return Work(RECIPE.build_model(config), RECIPE.build_objective(config), batches, ADAMW)


def t5(
    family: str = "1.1",
    optimizer: OptimizerConfig = ADAFACTOR,
    *,
    dropout: float = 0.0,
    packed: bool = True,
    normalize_by: str = "none",
    head_size: int = 16,
    num_heads: int = 4,
) -> Work:
    from pretrainkit.recipes.t5.recipe import RECIPE

    model = t5_batches.model_config(family, dropout=dropout, head_size=head_size, num_heads=num_heads)
    config = t5_batches.run_config(model, normalize_by=normalize_by)
    make = t5_batches.packed_batch if packed else t5_batches.row_batch
    batches = [arrays(make(seed=seed, pad=3)) for seed in (0, 1)]
    return Work(t5_batches.random_model(config.model), RECIPE.build_objective(config), batches, optimizer)


def pixel(*, dropout: float = 0.0, pad_to: int = 1, **model: Any) -> Work:
    from pretrainkit.recipes.pixel.recipe import RECIPE

    shape = {"decoder_hidden_size": 24, "decoder_num_heads": 3, "attention_dropout": dropout, "hidden_dropout": dropout}
    config = pixel_batches.small_run(**(shape | model))
    torch.manual_seed(0)
    batches = [arrays(pixel_batches.batch_of(seed, [16, 7, 12], pad_to=pad_to)) for seed in (0, 1)]
    return Work(RECIPE.build_model(config), RECIPE.build_objective(config), batches, ADAMW)


def fourm(**model: Any) -> Work:
    from pretrainkit.recipes.fourm.presets import tiny
    from pretrainkit.recipes.fourm.recipe import RECIPE

    config = tiny().model_copy(update={"model": fourm_batches.small(**({"num_heads": 1} | model))})
    torch.manual_seed(0)
    batches = [fourm_batches.random_batch(seed=seed) for seed in (0, 1)]
    return Work(RECIPE.build_model(config), RECIPE.build_objective(config), batches, ADAMW)


def clip(**changes: Any) -> Work:
    from pretrainkit.recipes.clip.recipe import RECIPE

    config = clip_models.run_config(**changes)
    batches = []
    for seed in (0, 1):
        ids, num_tokens = clip_models.captions()
        pixels = clip_models.images() + seed
        groups = np.arange(len(ids)) + 10 * seed
        more = {"bad": np.zeros(len(ids), np.int8), "image_group": groups, "caption_group": groups}
        batches.append(
            arrays({"image": pixels, "input_ids": (ids + seed) % clip_models.VOCAB, "num_tokens": num_tokens}) | more
        )
    return Work(clip_models.random_model(config), RECIPE.build_objective(config), batches, ADAMW)


def constant_temperature() -> Work:
    from pretrainkit.recipes.clip.config import TemperatureConfig

    return clip(temperature=TemperatureConfig(kind="constant", value=0.02))


def glue(kind: str, *, is_foreign: bool = False, dropout: float = 0.0) -> Work:
    """Pairs under a head of a kind of task, on our own BERT or, `is_foreign`, on that of transformers."""
    from pretrainkit.recipes.glue.config import EncoderConfig, GlueDataConfig, GlueModelConfig, GlueRun
    from pretrainkit.recipes.glue.recipe import RECIPE
    from pretrainkit.recipes.glue.source import assumed_truths
    from pretrainkit.recipes.token_reader import ControlTokens, TokenExamples, TokenTexts

    shape = {"vocab_size": 40, "hidden_size": 16, "intermediate_size": 32}
    rates = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    layers = {"num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 32}
    encoder = EncoderConfig(recipe="bert", config=bert_batches.run_config().model_dump(mode="json"))
    if is_foreign:
        model = {"architecture": {"model_type": "bert", **shape, **rates, **layers}, "max_positions": 32}
        encoder = EncoderConfig(recipe="huggingface", config={"model": model})
    classes = {"classes": ("no", "yes"), "spans": ()}.get(kind, ("root", "subject", "object"))
    config = GlueRun(
        model=GlueModelConfig(encoder=encoder, classes=classes, dropout=0.0),
        data=GlueDataConfig(kind=kind, texts=("a", "b") if kind == "classes" else (), max_seq_length=32),
        num_steps=2,
        optimizer=ADAMW,
    )
    sizes = (np.array([9, 2, 5]), np.array([3, 4, 11]))
    ids = np.random.default_rng(0).integers(4, 30, 40).astype(np.int32)
    texts = tuple(TokenTexts(ids, np.array([0, 7, 20]) + k, size) for k, size in enumerate(sizes))
    read = TokenExamples(texts, ControlTokens((1,), (2,), (2,)))
    batches = [read.build(np.array(rows)) for rows in ([0, 1, 2], [1, 0])]
    torch.manual_seed(0)
    model = RECIPE.build_model(config)
    made = [batch | assumed_truths(config, batch["cu_seqlens"]) for batch in batches]
    return Work(model, RECIPE.build_objective(config), made, ADAMW)


def preset(name: str, *words: str, num: int = 3) -> Work:
    """A preset without data: its assumed batch with random ids and pixels."""
    import pretrainkit
    from pretrainkit.recipes.registry import find_recipe

    config = pretrainkit.load_config(name, words)
    recipe: Any = find_recipe(config.recipe)
    config = recipe.without_data(config)[0]
    torch.manual_seed(0)
    model = recipe.build_model(config)
    batches = []
    for seed in (0, 1):
        rng = np.random.default_rng(seed)
        batch = recipe.assumed_batch(config, num)
        for key in ("image", "input_ids"):
            if key in batch:
                most = 256 if batch[key].dtype == np.uint8 else 90
                batch[key] = rng.integers(0, most, batch[key].shape).astype(batch[key].dtype)
        batches.append(batch)
    return Work(model, recipe.build_objective(config), batches, ADAMW)


class CountedOnTheHost(TwoTerms):
    """Its weights are there."""

    def weights(self, batch: Batch) -> dict[str, Tensor]:
        return {"value": torch.tensor(2.0), "choice": torch.tensor(float(len(batch["x"])))}


def foreign_towers() -> Work:
    """Return work with towers as in the presets of ZeroVL."""
    from support.clip_models import tiny_bert, tiny_timm

    with tempfile.TemporaryDirectory() as folder:
        return clip(image=tiny_timm(), words=tiny_bert(Path(folder)))


def counted_on_the_host() -> Work:
    torch.manual_seed(0)
    return Work(TwoHeads(), CountedOnTheHost(), [host_batch(5, seed) for seed in (0, 1)], ADAMW)


def optimized(name: str, **settings: Any) -> Callable[[], Work]:
    return lambda: bert()._replace(optimizer=OptimizerConfig(name=name, peak_lr=1e-3, **settings))


CASES: dict[str, Callable[[], Work]] = {
    "bert packed, dropout": lambda: bert(dropout=0.1),
    "bert packed, with room": lambda: bert(room=7),
    "bert rows": lambda: bert(rows=True),
    "bert modern": lambda: bert(is_modern=True),
    "bert modern, with room": lambda: bert(is_modern=True, room=5),
    "t5 packed": t5,
    "t5 rows": lambda: t5(packed=False),
    "t5 1.0, dropout": lambda: t5("1.0", dropout=0.1),
    "t5 average per sequence": lambda: t5("lm", ADAMW, normalize_by="average_per_sequence"),
    "t5 narrow heads": lambda: t5(head_size=3),
    "pixel": pixel,
    "pixel dropout": lambda: pixel(dropout=0.1),
    "pixel padded": lambda: pixel(pad_to=8),
    "pixel heads of 44": lambda: pixel(decoder_hidden_size=44, decoder_num_heads=1),
    "fourm": fourm,
    "fourm, all targets see each other": lambda: fourm(separate_targets=False),
    "clip": clip,
    "clip of timm and transformers": foreign_towers,
    "clip constant temperature": constant_temperature,
    "glue of transformers": lambda: glue("classes", is_foreign=True),
    "glue spans": lambda: glue("spans"),
    "glue tree of transformers": lambda: glue("tree", is_foreign=True),
    "image_tokenizer": lambda: preset("image_tokenizer/tiny", "model.image_size=16"),
    "image_tokenizer convolutions": lambda: preset("image_tokenizer/tiny-conv", "model.image_size=16"),
    "image_tokenizer memcodes": lambda: preset(
        "image_tokenizer/tiny",
        "model.image_size=16",
        "model.quantizer={kind: memcodes, size: 8, width: 4, num_heads: 2}",
    ),
    "weights of the host": counted_on_the_host,
    "optimizer adamw": optimized("adamw"),
    "optimizer scaled adamw": optimized("adamw", scale_by_parameter_rms=True),
    "optimizer lamb": optimized("lamb"),
    "optimizer lars": optimized("lars"),
    "optimizer lion": optimized("lion"),
    "optimizer muon": optimized("muon"),
    "optimizer sgd": optimized("sgd"),
}
"""Small work of every recipe and optimizer."""


def worst_difference(found: dict[str, Tensor], expected: dict[str, Tensor]) -> tuple[float, str]:
    """Return the largest relative difference of a gradient, and its name."""
    size = max(float(grad.norm()) for grad in expected.values())
    return max(
        (float((found[name].float() - grad).norm() / (grad.norm() + 1e-3 * size)), name)
        for name, grad in expected.items()
        if name in found
    )

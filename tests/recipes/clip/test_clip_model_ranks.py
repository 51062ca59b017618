"""The model whatever wraps it: DDP, FSDP2, recomputed blocks, compiled blocks."""

import pytest
import torch

from pretrainkit.dist.env import World
from pretrainkit.dist.parallelize import parallelize
from pretrainkit.training.run import ParallelConfig
from support import SUPPORT
from support.clip_models import captions, images, random_model, run_config, text, tiny_bert, tiny_timm, vit
from support.two_processes import run_two


def test_ddp_and_fsdp2_have_the_gradient_of_one_process():
    run_two(SUPPORT / "clip_model_ranks.py")


def gradients(model):
    torch.manual_seed(3)
    found = model(images(), *captions())
    (found["image"] * found["text"].square()).sum().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("kind", ["own", "foreign"])
def test_recomputed_blocks_have_the_same_gradient(kind, request, tmp_path):
    """Dropout is drawn again from the same state."""
    config = run_config(vit(patch_dropout=0.5, attention_dropout=0.2), text(attention_dropout=0.2))
    if kind == "foreign":
        request.getfixturevalue("timm")
        request.getfixturevalue("transformers")
        config = run_config(tiny_timm(patch_dropout=0.5), tiny_bert(tmp_path))
    plain = random_model(config).train()
    recomputed = random_model(config).train()
    settings = ParallelConfig(activation_checkpointing=True, compile="off")
    recomputed = parallelize(recomputed, settings, World(), torch.float32)
    assert all(
        torch.equal(a, b) for a, b in zip(gradients(plain).values(), gradients(recomputed).values(), strict=True)
    )


def test_compiled_blocks_give_the_same_numbers():
    """Only dynamo runs, which detects code that cannot be compiled; kernels are the task of its back end."""
    plain, compiled = random_model(run_config()), random_model(run_config())
    for block in compiled.blocks():
        block.compile(backend="eager", fullgraph=True)
    for ours, theirs in zip(gradients(compiled).values(), gradients(plain).values(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)

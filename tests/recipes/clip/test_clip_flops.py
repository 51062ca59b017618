"""FLOPs by formula against the published figure, and against counting the operations of other libraries' towers."""

import numpy as np
import pytest

from pretrainkit.recipes.clip.config import (
    HuggingFaceTextConfig,
    ProjectionConfig,
    TextTransformerConfig,
    TimmConfig,
    VitConfig,
)
from pretrainkit.recipes.clip.flops import PairFlops, projection_flops, vit_flops
from support.toy_pairs import toy_config

BERT_BASE = TextTransformerConfig(
    hidden_size=768, num_heads=12, intermediate_size=3072, causal=False, pool="mean", vocab_size=99
)


def count(image, text, lengths=(25,) * 10, size=224, **settings) -> float:
    """Return the FLOPs of all pairs, in batches of one."""
    config = toy_config(settings, {"batch_size": 1})
    model = config.model.model_copy(update={"image": image, "text": text})
    return PairFlops(config.model_copy(update={"model": model}))((size, size), np.array(lengths))


def test_the_published_shape_has_the_flops_of_the_formula_of_transformers():
    """ViT-B/16 at 224 and a BERT-base of 25 tokens: 1.18e11 a pair."""
    assert count(VitConfig(pool="mean"), BERT_BASE) / 10 == pytest.approx(1.18e11, rel=0.01)


def test_towers_that_do_not_learn_have_no_backward_pass():
    whole, some, least = (
        count(VitConfig(pool="mean", **learns), BERT_BASE)
        for learns in ({}, {"num_trainable_layers": 6}, {"trainable": False})
    )
    assert some == pytest.approx((whole + least) / 2)
    assert whole - least == pytest.approx(2 * 10 * vit_flops(VitConfig(pool="mean")))


def test_one_used_token_spares_most_of_the_last_block():
    for num_layers, share in ((1, 0.4), (12, 0.96)):
        short = BERT_BASE.model_copy(update={"num_layers": 1})
        pooled = [count(VitConfig(pool=pool, num_layers=num_layers), short, [1]) for pool in ("cls", "mean")]
        assert pooled[0] < share * pooled[1]


def test_dropped_patches_are_not_counted():
    few, all_of_them = (count(VitConfig(patch_dropout=rate), BERT_BASE, [1]) for rate in (0.5, 0.0))
    assert 0.4 < few / all_of_them < 0.6


def test_similarities_count_once_for_the_sigmoid_loss_and_twice_for_the_softmax():
    twice, once = (count(VitConfig(), BERT_BASE, loss=loss) for loss in ("infonce", "siglip"))
    assert twice - once == pytest.approx(3 * 2 * 10 * 128)


def test_a_vision_transformer_of_timm_counts_as_ours_does(timm):
    ours = VitConfig(pool="mean", hidden_size=192, num_heads=3, intermediate_size=768)
    theirs = TimmConfig(name="vit_tiny_patch16_224", pretrained=False)
    assert count(theirs, BERT_BASE) == pytest.approx(count(ours, BERT_BASE), rel=1e-3)


def test_a_bert_of_transformers_has_the_flops_of_the_formula(tmp_path):
    transformers = pytest.importorskip("transformers")
    shape = {"hidden_size": 64, "intermediate_size": 256}
    transformers.BertConfig(num_hidden_layers=2, num_attention_heads=2, vocab_size=99, **shape).save_pretrained(
        tmp_path
    )
    theirs = HuggingFaceTextConfig(name=str(tmp_path), pretrained=False)
    ours = TextTransformerConfig(vocab_size=99, num_layers=2, num_heads=2, causal=False, pool="mean", **shape)
    image = VitConfig(num_layers=1, trainable=False, image_size=16)
    lengths = [3, 9, 25]
    nothing = count(image, theirs.model_copy(update={"trainable": False}), lengths, 16)
    assert count(image, theirs, lengths, 16) == pytest.approx(count(image, ours, lengths, 16), rel=0.01)
    assert nothing < count(image, theirs, lengths, 16)


@pytest.mark.parametrize("kind", ["linear", "text_mlp"])
def test_a_projection_of_texts_counts_as_its_matrices(kind):
    projection = ProjectionConfig(kind=kind, dim=32)
    width = 48
    matrices = {"linear": width * 32, "text_mlp": 40 * width + 40 * 32}
    assert projection_flops(width, projection, is_text=True) == 2 * matrices[kind]
    assert projection_flops(width, projection) == 2 * width * 32

"""Small models and batches of the T5 recipe."""

import torch

from pretrainkit.recipes.t5.config import T5DataConfig, T5ModelConfig, T5Run
from pretrainkit.recipes.t5.model import build
from pretrainkit.training.optimizers.config import OptimizerConfig

VOCAB_SIZE = 96


def model_config(family="1.1", **changes):
    """2 + 2 layers x 32 of one of the families."""
    shape = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 32,
        "num_heads": 4,
        "head_size": 6,
        "intermediate_size": 40,
        "num_encoder_layers": 2,
        "num_decoder_layers": 2,
    }
    families = {
        "1.0": {"activations": ("relu",), "tied_logits": True},
        "1.1": {},
        "umt5": {"bias_per_layer": True},
        "lm": {"kind": "decoder_only", "num_encoder_layers": None, "tied_logits": True},
        "mlm": {"kind": "encoder_only", "num_decoder_layers": None},
    }
    return T5ModelConfig(**shape | families[family] | changes)


def run_config(model=None, **objective):
    return T5Run(
        num_steps=1,
        model=model or model_config(),
        objective=objective,
        data=T5DataConfig(batch_size=2),
        optimizer=OptimizerConfig(peak_lr=1e-3),
    )


def random_model(config, seed=0):
    """Build a model whose weights have a size at which every part matters, also relative positions and norms."""
    torch.manual_seed(seed)
    model = build(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("norm.weight"):
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model.eval()


def packed_batch(seed=0, pad=0):
    """Two rows: three examples, the second of which has no input; and two. `pad` more slots of padding per row."""
    torch.manual_seed(seed)
    encoder = torch.tensor([[1] * 9 + [3] * 5 + [0] * (2 + pad), [1] * 4 + [2] * 12 + [0] * pad])
    decoder = torch.tensor([[1] * 3 + [2] * 2 + [3] * 4 + [0] * (1 + pad), [1] * 2 + [2] * 7 + [0] * (1 + pad)])
    return _filled(encoder, decoder) | {"encoder_segment_ids": encoder.int(), "decoder_segment_ids": decoder.int()}


def long_batch():
    """A packed row of more than two blocks of FlexAttention, on either side: examples end within blocks."""
    torch.manual_seed(0)
    encoder = torch.tensor([[1] * 150 + [2] * 40 + [3] * 120 + [0] * 7])
    decoder = torch.tensor([[1] * 20 + [2] * 200 + [3] * 50 + [0] * 3])
    return _filled(encoder, decoder) | {"encoder_segment_ids": encoder.int(), "decoder_segment_ids": decoder.int()}


def row_batch(seed=0, pad=0):
    """Three rows with one example each, of different lengths."""
    torch.manual_seed(seed)
    encoder = (torch.arange(12 + pad) < torch.tensor([[12], [7], [1]])).long()
    decoder = (torch.arange(8 + pad) < torch.tensor([[3], [8], [5]])).long()
    return _filled(encoder, decoder)


def _filled(encoder, decoder):
    """Ids that depend on the example and the place in it only, not on the row's width."""
    inputs, targets = _ids(encoder, 7), _ids(decoder, 11)
    shifted = torch.nn.functional.pad(targets[:, :-1], (1, 0))
    is_first = torch.nn.functional.pad(decoder[:, 1:] != decoder[:, :-1], (1, 0), value=True)
    return {
        "encoder_input_tokens": inputs.int(),
        "decoder_target_tokens": targets.int(),
        "decoder_input_tokens": shifted.masked_fill(is_first | (decoder == 0), 0).int(),
        "decoder_loss_weights": (decoder > 0).float(),
    }


def _ids(segment, factor):
    place = torch.arange(segment.shape[1])
    row = torch.arange(len(segment))[:, None]
    return ((place * factor + segment * 13 + row * 29) % (VOCAB_SIZE - 2) + 2) * (segment > 0)


def examples(batch):
    """(inputs, targets) of each example of a packed batch, as lists of ids."""
    found = []
    for row in range(len(batch["decoder_segment_ids"])):
        for number in range(1, int(batch["decoder_segment_ids"][row].max()) + 1):
            sides = (("encoder", "encoder_input_tokens"), ("decoder", "decoder_target_tokens"))
            found.append([batch[name][row][batch[f"{side}_segment_ids"][row] == number] for side, name in sides])
    return found

"""Tiny encoders of many families, as transformers writes them."""

from pathlib import Path

import torch

SHAPE = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
FAMILIES = {
    "bert": SHAPE,
    "roberta": {**SHAPE, "max_position_embeddings": 66, "pad_token_id": 0, "type_vocab_size": 1},
    "xlm-roberta": {**SHAPE, "max_position_embeddings": 66, "pad_token_id": 0, "type_vocab_size": 1},
    "electra": {**SHAPE, "embedding_size": 8},
    "deberta-v2": {
        **SHAPE,
        "relative_attention": True,
        "pos_att_type": ["p2c", "c2p"],
        "position_biased_input": False,
        "type_vocab_size": 0,
    },
    "albert": {**SHAPE, "embedding_size": 8},
    "distilbert": {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32},
    "mpnet": {**SHAPE, "pad_token_id": 0},
    "modernbert": {**SHAPE, "bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3},
    "convbert": {**SHAPE, "embedding_size": 8, "conv_kernel_size": 3, "head_ratio": 1},
}


def write_foreign(transformers, folder: Path, family: str, head: str = "AutoModelForMaskedLM", **more) -> Path:
    """A folder with random weights and without a tokenizer."""
    torch.manual_seed(0)
    values = {"vocab_size": 40, "pad_token_id": 0, "max_position_embeddings": 64, **FAMILIES[family], **more}
    config = transformers.AutoConfig.for_model(family, **values)
    getattr(transformers, head).from_config(config).save_pretrained(folder)
    return folder

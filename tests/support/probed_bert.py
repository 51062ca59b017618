"""A tiny BERT on toy sentences, pretrained with and without probes."""

import json
import random
from pathlib import Path

from pretrainkit import api
from pretrainkit.tokenizers.encode import EncodeSettings, encode_corpus
from support.glue_toys import sentence, write_tokenizer

PROBES = [
    {"task": "sst2", "every_steps": 2, "num_train_examples": 200},
    {"task": "stsb", "pooling": "own"},
    {"task": "mnli", "method": "finetune", "num_steps": 3, "batch_size": 8, "every_steps": 3},
]
NO_DROPOUT = ("model.hidden_dropout=0", "model.attention_dropout=0")


def write_shards(folder: Path) -> Path:
    """Token shards of toy sentences."""
    rng = random.Random(1)
    documents = [[sentence(rng, rng.random() < 0.5) for _ in range(12)] for _ in range(40)]
    folder.mkdir(parents=True)
    lines = [json.dumps({"text": "\n".join(document)}) for document in documents]
    (folder / "text.jsonl").write_text("\n".join(lines) + "\n")
    tokenizer = write_tokenizer(folder / "words")
    encode_corpus([folder / "text.jsonl"], tokenizer, folder / "shards", EncodeSettings(splitter="newline"), workers=1)
    return folder / "shards"


def pretrain(shards: Path, glue: Path, out: Path, probes: list, *settings: str) -> dict[str, float]:
    """Six updates with dropout; returns the last metrics."""
    small = ["model.hidden_size=16", "model.num_heads=2", "model.intermediate_size=32", "data.max_seq_length=32"]
    words = [f"data.train={shards}", "num_steps=6", "data.batch_size=8", "log.every_steps=1", *small]
    words += [f"evaluate.probes={json.dumps(probes)}", f"evaluate.probe_folders={json.dumps({'glue': str(glue)})}"]
    words += ["precision.compute=float32", "schedule.num_warmup_steps=0", *settings]
    return api.train(api.load_config("bert/tiny", words), out, device="cpu")

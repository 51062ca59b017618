"""Models, checkpoints, tokenizers, and files about runs."""

import hashlib
import io
import json
import struct
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from mutate import Files
from safetensors.torch import save
from target import Target, files_of

from pretrainkit.api import import_config, open_model, read_foreign_model
from pretrainkit.errors import PretrainKitError
from pretrainkit.exporting.foreign_tokenizer import tokenizer_beside
from pretrainkit.exporting.published_files import read_pickle, read_published, read_torchscript
from pretrainkit.exporting.safetensors import read_tensors
from pretrainkit.exporting.torchvision_shim import import_transformers
from pretrainkit.formats.t5x_checkpoint import open_t5x
from pretrainkit.formats.tf_checkpoint import TensorFlowCheckpoint
from pretrainkit.launch.folder import LaunchFolder
from pretrainkit.recipes.exchange import WritesHuggingFace
from pretrainkit.recipes.registry import find_recipe
from pretrainkit.report.page import render
from pretrainkit.report.run_folder import read_run
from pretrainkit.report.run_table import run_table
from pretrainkit.running.configs import load_config
from pretrainkit.tokenizers.load import load_tokenizer
from pretrainkit.tokenizers.train import TokenizerSettings, train_tokenizer
from pretrainkit.training.checkpoints.files import META_NAME, newest_valid
from support import t5_foreign_files
from support.page_data import test_module

SMALL = {
    "bert/mini": "model.num_layers=1 model.hidden_size=8 model.num_heads=1 model.intermediate_size=8 "
    "model.vocab_size=30",
    "t5/mini": "model.hidden_size=8 model.num_heads=1 model.head_size=8 model.intermediate_size=8 model.vocab_size=30 "
    "model.num_encoder_layers=1 model.num_decoder_layers=1",
    "pixel/tiny-grid": "model.hidden_size=8 model.num_layers=1 model.num_heads=1 model.intermediate_size=8 "
    "model.decoder_hidden_size=8 model.decoder_num_layers=1 model.decoder_num_heads=1 "
    "model.decoder_intermediate_size=8 "
    "model.max_patches=16 data.max_patches=16 data.min_text_patches=2",
    "clip/tiny": "model.image.num_layers=1 model.image.hidden_size=8 model.image.num_heads=1 model.text.num_layers=1 "
    "model.text.hidden_size=8 model.text.num_heads=1 model.text.vocab_size=20",
}
"""Presets, and settings that make their models as small as can be."""


def small(preset: str) -> tuple[Any, Any, Any]:
    """Recipe, config and model of a preset."""
    config = load_config(preset, SMALL[preset].split())
    recipe = find_recipe(config.recipe)
    torch.manual_seed(0)
    return recipe, config, recipe.build_model(config)


def _exports(folder: Path) -> list[Files]:
    """Folders of transformers of every recipe that writes them."""
    import_transformers().models.auto.modeling_auto  # noqa: B018 - loads it, which takes seconds
    _tokenizers("wordpiece")(folder)
    seeds = []
    for preset in SMALL:
        recipe, config, model = small(preset)
        assert isinstance(recipe, WritesHuggingFace)
        tokenizer = folder / "tokenizer" if preset.startswith("clip") else None
        recipe.export_huggingface(config, model, tokenizer, folder / config.recipe)
        seeds.append(files_of(folder / config.recipe))
    return seeds


def _open(folder: Path) -> None:
    open_model(folder)


def _headers(folder: Path) -> list[Files]:
    tensors = {
        "a.weight": torch.ones(2, 3),
        "b": torch.arange(4, dtype=torch.int64),
        "c": torch.ones((), dtype=torch.bfloat16),
    }
    one = save(tensors, {"format": "pt", "dim": "8", "domains": "['rgb']"})
    index = {"metadata": {}, "weight_map": {"a.weight": "model-1.safetensors", "b": "model-2.safetensors"}}
    return [
        {"model.safetensors": one, "config.json": b'{"dim": 8}'},
        {
            "model.safetensors.index.json": json.dumps(index).encode(),
            "model-1.safetensors": save({"a.weight": torch.ones(2)}),
            "model-2.safetensors": save({"b": torch.ones(2)}),
        },
    ]


def _read_tensors(folder: Path) -> None:
    with suppress(PretrainKitError):
        read_published(folder, "dim", needs_config=True)
    for tensor in read_tensors(folder).values():
        tensor.sum()


_MODULE = (
    b"\x80\x02c__torch__\nSmall\n)\x81}X\x01\x00\x00\x00actorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storage"
    b"ctorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x02tQK\x00K\x02\x85K\x01\x85\x89ccollections\n"
    b"OrderedDict\n)RtRsb."
)
"""data.pkl of a TorchScript program whose only tensor is `a`."""


def _pickles(folder: Path) -> list[Files]:
    weights = {"model": {"a": torch.ones(2, 3), "b": torch.ones(1)}, "epoch": 1}
    file, old = io.BytesIO(), io.BytesIO()
    torch.save(weights, file)
    torch.save(weights, old, _use_new_zipfile_serialization=False)

    program = io.BytesIO()
    with zipfile.ZipFile(program, "w") as archive:
        archive.writestr("a/data.pkl", _MODULE)
        archive.writestr("a/constants.pkl", b"\x80\x02).")
        archive.writestr("a/data/0", bytes(8))
    return [{"a.pth": file.getvalue()}, {"a.pth": old.getvalue()}, {"a.pt": program.getvalue()}]


def _repacked(files: Files) -> Files:
    """Give the members of damaged zip archives right checksums."""
    repaired = dict(files)
    for name, content in files.items():
        with suppress(zipfile.BadZipFile, OSError, LookupError, ValueError, RuntimeError, EOFError, struct.error):
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                for info in archive.infolist():
                    info.CRC = 0
                    archive.NameToInfo[info.filename].CRC = 0
                out = io.BytesIO()
                with zipfile.ZipFile(out, "w") as copy:
                    for info in archive.infolist():
                        start = info.header_offset + 30
                        skipped = int.from_bytes(content[start - 4 : start - 2], "little")
                        skipped += int.from_bytes(content[start - 2 : start], "little")
                        copy.writestr(info.filename, content[start + skipped : start + skipped + info.file_size])
            repaired[name] = out.getvalue()
    return repaired


def _read_pickle(folder: Path) -> None:
    for path in folder.iterdir():
        if path.suffix == ".pt":
            read_torchscript(path)
        else:
            read_pickle(path, ("model",), "a checkpoint")


def _runs(folder: Path) -> list[Files]:
    from pretrainkit.dist.env import World
    from pretrainkit.training.checkpoints.checkpoint import CheckpointStore
    from pretrainkit.training.folder import RunFolder

    seeds = []
    for preset in ("bert/mini", "t5/mini"):
        _, config, model = small(preset)
        run = RunFolder(folder / config.recipe)
        run.path.mkdir()
        run.record(config, {"sources": {}})
        store = CheckpointStore(run.checkpoints, config.checkpoint, World(device="cpu"))
        from pretrainkit.config.base import architecture

        store.save(1, model, meta={"architecture": architecture(config.model)}, blocking=True)
        store.close()
        seeds.append({name: content for name, content in files_of(run.path).items() if not name.endswith(".lock")})
    return seeds


def _sealed_checkpoint(files: Files) -> Files:
    """Write the checksums of a damaged checkpoint again."""
    sealed = dict(files)
    with suppress(StopIteration, ValueError, TypeError, AttributeError, RecursionError):
        path = next(name for name in files if name.endswith(META_NAME))
        meta = json.loads(files[path])
        for name, entry in meta["files"].items() if isinstance(meta.get("files"), dict) else ():
            content = files.get(path.replace(META_NAME, name))
            if content is not None and isinstance(entry, dict):
                entry |= {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        meta.pop("checksum", None)
        meta["checksum"] = hashlib.sha256(json.dumps(meta, sort_keys=True).encode()).hexdigest()
        sealed[path] = json.dumps(meta).encode()
    return sealed


def _open_run(folder: Path) -> None:
    open_model(folder)


def _metas(folder: Path) -> None:
    newest_valid(folder / "checkpoints")


def _tokenizers(kind: str) -> Any:
    def seeds(folder: Path) -> list[Files]:
        (folder / "words.tsv").write_text("a\t90\nred\t20\ndog\t20\nruns\t9\n")
        sizes = {"wordpiece": 20, "unigram": 272}
        settings = TokenizerSettings(kind=kind, vocab_size=sizes[kind])  # type: ignore[arg-type]
        train_tokenizer([folder / "words.tsv"], folder / "tokenizer", settings)
        whole = files_of(folder / "tokenizer")
        model = "sentencepiece.model" if kind == "unigram" else "tokenizer.json"
        return [{model: whole[model]}, whole]

    return seeds


def _encode(folder: Path) -> None:
    tokenizer = load_tokenizer(folder)
    ids = tokenizer.encode("a red dog 東 <mask>")
    tokenizer.decode(ids[: tokenizer.vocab_size].tolist())
    tokenizer.readable(ids.tolist())
    tokenizer.encode_with_offsets(["a red dog 東"])
    tokenizer.is_word_start()
    tokenizer.learned_ids()


def _foreign_tokenizers(folder: Path) -> list[Files]:
    pieces = "[PAD] [UNK] [CLS] [SEP] [MASK] a red dog ##s runs".replace(" ", "\n") + "\n"
    about = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "model_max_length": 512}
    return [{"vocab.txt": pieces.encode(), "tokenizer_config.json": json.dumps(about).encode()}]


def _foreign(folder: Path) -> None:
    found = tokenizer_beside(folder)
    if found is not None:
        load_tokenizer(found).encode("a red dog")


_GIN = b"""
from t5x import models
DROPOUT_RATE = 0.1
models.EncoderDecoderModel:
  z_loss = 0.0001
  loss_normalizing_factor = None
network.T5Config:
  vocab_size = 32128
  emb_dim = 768
  num_heads = 12
  num_encoder_layers = 12
  num_decoder_layers = 10
  head_dim = 64
  mlp_dim = 2048
  mlp_activations = ('gelu', 'linear')
  dropout_rate = %DROPOUT_RATE
  logits_via_embedding = False
adafactor.Adafactor.decay_rate = 0.8
include "more.gin"
train/utils.DatasetConfig:
  mixture_or_task_name = "c4"
  task_feature_lengths = {"inputs": 512, "targets": 114}
  split = 'train'
  batch_size = 128
  shuffle = True
  seed = None
train_script.train:
  model = @models.EncoderDecoderModel()
  total_steps = 1000
  eval_period = 100
  random_seed = None
utils.create_learning_rate_scheduler:
  factors = 'constant * rsqrt_decay'
  base_learning_rate = 1.0
  warmup_steps = 1000
"""


def _gin(folder: Path) -> None:
    import_config(folder / "run.gin")


def _foreign_configs(folder: Path) -> list[Files]:
    clip = Path(__file__).parents[1] / "recipes/clip/zerovl_yaml/zerovl_dga.yaml"
    fourm = test_module("recipes/fourm/test_fourm_original_yaml.py")
    named = {"cfgs/data.yaml": fourm.DATA.encode(), "cfgs/alphas.yaml": fourm.ALPHAS.encode()}
    tokenizer = test_module("recipes/image_tokenizer/test_tokenizer_yaml.py").RGB
    return [{"a.yaml": clip.read_bytes()}, {"a.yaml": fourm.MAIN.encode(), **named}, {"a.yaml": tokenizer.encode()}]


def _import_config(folder: Path) -> None:
    import_config(folder / "a.yaml")


def _t5x(folder: Path) -> list[Files]:
    import numpy as np

    _, config, model = small("t5/mini")
    from pretrainkit.recipes.t5.original import names, to_original

    arrays = {name: tensor.numpy() for name, tensor in to_original(model.state_dict(), config.model).items()}
    arrays = {name.removeprefix("target/"): array for name, array in arrays.items()}
    t5_foreign_files.write_t5x(folder / "a", arrays)
    packed = t5_foreign_files.packed({"optimizer": {"target": t5_foreign_files.nested(arrays), "state": {"step": 3}}})
    theirs = {ours: arrays[name] for ours, name in names(config.model).items()}
    (folder / "b").mkdir()
    t5_foreign_files.write_bundle(folder / "b" / "model.ckpt-1", {t: np.asarray(v) for t, v in theirs.items()})
    return [files_of(folder / "a"), {"checkpoint": packed}, files_of(folder / "b")]


def _read_t5x(folder: Path) -> None:
    is_tensorflow = any(path.name.startswith("model.ckpt") for path in folder.iterdir())
    checkpoint = TensorFlowCheckpoint(folder) if is_tensorflow else open_t5x(folder)
    for name in checkpoint:
        checkpoint[name]


def _import_t5x(folder: Path) -> None:
    read_foreign_model(folder, "t5", format="t5x")


def _run_files(folder: Path) -> list[Files]:
    metrics = "".join(f'{{"step": {step}, "loss": {9 / step}, "lr": 1e-4, "time": {step}}}\n' for step in range(1, 5))
    evaluations = '{"step": 2, "loss": 3.5, "accuracy": 0.5}\n{"step": 4, "loss": 3.0}\n'
    events = '{"step": 0, "event": "started", "text": "", "time": 1.0}\n{"step": 4, "event": "finished", "text": "a"}\n'
    launch = {"kind": "local", "words": ["train", "a"], "num_nodes": 1, "processes_per_node": 1, "gpus_per_node": 0}
    launch |= {"words_again": ["resume", "a"], "max_restarts": 3, "settings": {}, "code": {}, "job_ids": []}
    attempt = {"job": "1", "code": 0, "cause": "", "checkpoint": None, "then": "", "time": 1}
    return [
        {
            "metrics.jsonl": metrics.encode(),
            "eval.jsonl": evaluations.encode(),
            "events.jsonl": events.encode(),
            "config.yaml": b"# bert/mini\nrecipe: bert\nseed: 1\nlog: {every_steps: 1}\n",
            "provenance.json": b'{"sources": {"seed": "preset bert/mini"}, "versions": {}}',
            "summary.json": b'{"metrics": {"loss": 1.0}, "baselines": {"loss": 2.0}}',
            "samples.json": b'[{"text": "a", "answer": "b"}, {"picture": [{"image": "data:image/png;base64,AA=="}]}]',
            "samples/step-00000002.json": b'[{"text": "a"}]',
            "launch/launches.json": json.dumps([launch]).encode(),
            "launch/attempts.jsonl": json.dumps(attempt).encode() + b"\n",
        }
    ]


def _report(folder: Path) -> None:
    launches = LaunchFolder(folder)
    with suppress(PretrainKitError):
        launches.launches()
    with suppress(PretrainKitError):
        assert isinstance(launches.is_finished, bool)
    with suppress(PretrainKitError):
        run_table(folder)
    page = render(read_run(folder))
    page.encode()


TARGETS = [
    Target("huggingface", _exports, _open, fixed=("model.safetensors", "README.md")),
    Target("safetensors", _headers, _read_tensors),
    Target("pickles", _pickles, _read_pickle, ("cos\nsystem\n", "cbuiltins\neval\n", "ctorch\n"), repair=_repacked),
    Target("runs", _runs, _open_run, repair=_sealed_checkpoint),
    Target("checkpoint-meta", _runs, _metas, repair=_sealed_checkpoint),
    Target("sentencepiece", _tokenizers("unigram"), _encode),
    Target("tokenizer-json", _tokenizers("wordpiece"), _encode),
    Target("foreign-tokenizers", _foreign_tokenizers, _foreign),
    Target(
        "gin",
        lambda folder: [{"run.gin": _GIN, "more.gin": b"Z_LOSS = 0.1\n"}],
        _gin,
        (
            "@a()",
            "%A",
            "include 'run.gin'",
            "import os",
            "from os import *",
            "(1,)",
            "{'a': 1}",
            "gin.REQUIRED",
            "a/b.c = ",
        ),
    ),
    Target("foreign-configs", _foreign_configs, _import_config, ("!!python/tuple ", "&a ", "*a", "${a}", "- ", ": ")),
    Target("t5x", _t5x, _read_t5x),
    Target("t5x-import", lambda folder: _t5x(folder)[:2], _import_t5x),
    Target("run-folder", _run_files, _report),
]

"""Tests whether installed packages work: each is imported and used once, in a separate process.

    python -m pretrainkit.running.exercises NAME ...

prints a line of JSON for each: its name and the error. No part of pretrainkit that works around broken packages is
imported before, so a package that works here works in any program. If a package ends the process, this counts as its
error.
"""

from __future__ import annotations

import importlib
import io
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_SECONDS = 120
MODULES = {
    "Pango": "pretrainkit.rendering.pango_library",
    "freetype-py": "freetype",
    "gin-config": "gin",
    "mlflow-skinny": "mlflow",
    "open_clip_torch": "open_clip",
    "pillow": "PIL.Image",
    "pyarrow": "pyarrow.parquet",
    "rouge-score": "rouge_score",
    "safetensors": "safetensors.torch",
}
"""Modules whose name differs from that of the package."""


@dataclass(frozen=True)
class Outcome:
    """Result of one test; both texts are empty if the package works."""

    fault: str = ""
    """Reason why it cannot be used."""
    lack: str = ""
    """Part of it that does not work."""


def exercise(names: Sequence[str]) -> dict[str, Outcome]:
    """Test packages, or modules of pretrainkit, and return the outcome of each by name."""
    outcomes: dict[str, Outcome] = {}
    left = list(names)
    while left:
        # -P: do not import modules from the current folder.
        command = [sys.executable, "-P", "-m", "pretrainkit.running.exercises", *left]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SECONDS)
            lines, how = done.stdout, f"ends the process with code {done.returncode}"
        except subprocess.TimeoutExpired as late:
            lines, how = (late.stdout or b"").decode(), f"gives no answer within {_SECONDS} s"
        for line in lines.splitlines():
            if line.startswith('{"name"'):
                values = json.loads(line)
                outcomes[values["name"]] = Outcome(values["fault"], values["lack"])
        left = [name for name in left if name not in outcomes]
        if left:
            outcomes[left.pop(0)] = Outcome(fault=how)
    return outcomes


class _PartlyBroken(Exception):
    """Raised if only a part of a package does not work."""


def _torchvision(torchvision: Any) -> None:
    import torch

    torchvision.transforms.functional.resize(torch.zeros(3, 4, 4, dtype=torch.uint8), [2, 2])
    try:
        torchvision.ops.nms(torch.zeros(1, 4), torch.zeros(1), 0.5)
    except RuntimeError:
        raise _PartlyBroken(
            f"its compiled part does not load with torch {torch.__version__}, so torchvision.ops and the image "
            "decoders do not work"
        ) from None


def _transformers(transformers: Any) -> None:
    import torch

    size: dict[str, Any] = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "vocab_size": 9}
    transformers.AutoModel.from_config(transformers.BertConfig(**size))(torch.tensor([[1, 2]]))


def _sentencepiece(sentencepiece: Any) -> None:
    model = io.BytesIO()
    texts = iter(["one two three", "two three four"])
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=texts, model_writer=model, vocab_size=14, hard_vocab_limit=False, minloglevel=2
    )
    sentencepiece.SentencePieceProcessor(model_proto=model.getvalue()).encode("two")


def _pillow(image: Any) -> None:
    file = io.BytesIO()
    image.new("RGB", (8, 8)).save(file, "JPEG")
    image.open(file).resize((4, 4)).load()


def _pyarrow(parquet: Any) -> None:
    import pyarrow

    file = io.BytesIO()
    parquet.write_table(pyarrow.table({"text": ["one"]}), file)
    parquet.read_table(file)


def _zeros(*shape: int) -> Any:
    import torch

    return torch.zeros(*shape)


_EXERCISES: Mapping[str, Callable[[Any], object]] = {
    "torchvision": _torchvision,
    "timm": lambda timm: timm.create_model("test_vit", img_size=32)(_zeros(1, 3, 32, 32)),
    "transformers": _transformers,
    "tokenizers": lambda tokenizers: (
        tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, unk_token="a")).encode("a").ids.index(0)
    ),
    "sentencepiece": _sentencepiece,
    "pillow": _pillow,
    "simplejpeg": lambda jpeg: jpeg.decode_jpeg(jpeg.encode_jpeg(_zeros(8, 8, 3).byte().numpy())),
    "freetype-py": lambda freetype: freetype.version(),
    "pyarrow": _pyarrow,
    "zstandard": lambda zstd: zstd.ZstdDecompressor().decompress(zstd.ZstdCompressor().compress(b"one")),
    "safetensors": lambda safetensors: safetensors.load(safetensors.save({"one": _zeros(1)})),
    "Pango": lambda library: library.pango_library().versions(),
}
"""Functions that use a package, by its name; they take its module. Other packages are only imported."""


def _outcome(name: str) -> Outcome:
    try:
        module = importlib.import_module(MODULES.get(name, name))
        if name in _EXERCISES:
            _EXERCISES[name](module)
    except _PartlyBroken as lack:
        return Outcome(lack=str(lack))
    except Exception as error:  # any error of the package
        while error.__cause__ is not None:
            error = error.__cause__  # type: ignore[assignment]
        return Outcome(fault=f"{type(error).__name__}: {error}")
    return Outcome()


if __name__ == "__main__":
    for package in sys.argv[1:]:
        outcome = _outcome(package)
        print(json.dumps({"name": package, "fault": outcome.fault, "lack": outcome.lack}), flush=True)

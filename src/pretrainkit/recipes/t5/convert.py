"""Conversion of weights to and from Hugging Face's `T5ForConditionalGeneration`, `MT5…` and `UMT5…`; and of a
fine-tuned encoder to `T5EncoderModel` (`UMT5…`, `MT5…`) with its linear head in a separate file, because transformers'
`T5ForSequenceClassification` needs a decoder.

Tensors are equal one by one; only names differ. transformers is imported only to compare logits.
"""

import json
import logging
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pretrainkit.errors import CheckpointError, InputError
from pretrainkit.exporting.class_names import HEAD_FILE, class_names, class_settings
from pretrainkit.exporting.published_files import read_saved
from pretrainkit.exporting.safetensors import read_tensors, write_tensors
from pretrainkit.exporting.transformers_folder import new_transformers_folder, only, read_config
from pretrainkit.recipes.exchange import TextClassifier
from pretrainkit.recipes.t5.config import Activation, T5ModelConfig
from pretrainkit.recipes.t5.decode import END_ID
from pretrainkit.recipes.t5.features import encoder_decoder
from pretrainkit.recipes.t5.inputs import read_batch
from pretrainkit.recipes.t5.original import tensors
from pretrainkit.recipes.t5.ragged import ragged
from pretrainkit.tasks.vocabulary import Vocabulary

logger = logging.getLogger(__name__)

State = Mapping[str, Tensor]
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "sentencepiece.model",
    "spiece.model",
)

_ARCHITECTURES = {"t5": "T5", "mt5": "MT5", "umt5": "UMT5"}
"""Prefixes of class names by the type of model."""
_ENCODER_PARTS = ("embedding.", "encoder.")
"""Prefixes of the tensors that a text encoder takes from a T5."""
_FEED_FORWARD: dict[tuple[Activation, ...], str] = {
    ("relu",): "relu",
    ("gelu_tanh",): "gelu_new",
    ("gelu",): "gelu",
    ("swish",): "silu",
    # Hugging Face's gated-gelu is the tanh form; the exact form has no name in transformers.
    ("gelu_tanh", "linear"): "gated-gelu",
    ("swish", "linear"): "gated-silu",
    ("relu", "linear"): "gated-relu",
}
_ACTIVATIONS: dict[str, tuple[Activation, ...]] = {
    **{theirs: ours for ours, theirs in _FEED_FORWARD.items()},
    "gated-gelu_new": ("gelu_tanh", "linear"),
}
_SETTINGS = {
    "vocab_size": "vocab_size",
    "d_model": "hidden_size",
    "d_kv": "head_size",
    "d_ff": "intermediate_size",
    "num_layers": "num_encoder_layers",
    "num_decoder_layers": "num_decoder_layers",
    "num_heads": "num_heads",
    "relative_attention_num_buckets": "num_buckets",
    "relative_attention_max_distance": "max_distance",
    "dropout_rate": "dropout",
    "layer_norm_epsilon": "norm_epsilon",
}
"""Our names of common settings by Hugging Face's names."""
_DEFAULTS: dict[str, float] = {"relative_attention_num_buckets": 32, "relative_attention_max_distance": 128}
_DEFAULTS |= {"dropout_rate": 0.1, "layer_norm_epsilon": 1e-6}
_MT5_VOCAB_SIZE = 250_112
_LENGTHS = ((17, 9), (150, 40), (1, 1))
"""Numbers of input and target tokens of the examples for the comparison of logits: near and far positions, and a
minimal example."""


def huggingface_names(config: T5ModelConfig) -> dict[str, str]:
    """Return Hugging Face's name of each of our tensors."""
    if config.kind != "encoder_decoder":
        raise InputError(
            f"a model of kind {config.kind} has no Hugging Face form\n"
            "  only encoder_decoder models can be a T5ForConditionalGeneration; use --format safetensors"
        )
    return {ours: theirs for ours, _, theirs in tensors(config)}


def to_huggingface_state(state: State, config: T5ModelConfig) -> dict[str, Tensor]:
    """Return our state dict in Hugging Face's names. Untied models have both `shared.weight` and `lm_head.weight`,
    because transformers 5 ties them if one is missing."""
    return {theirs: state[ours] for ours, theirs in huggingface_names(config).items()}


def from_huggingface_state(state: State, config: T5ModelConfig) -> dict[str, Tensor]:
    """Return Hugging Face's state dict in our names. Raises CheckpointError if a tensor is missing or left over, or
    copies of a tensor differ."""
    names = huggingface_names(config)
    state = dict(state)
    copies = ["encoder.embed_tokens.weight", "decoder.embed_tokens.weight", *["lm_head.weight"] * config.tied_logits]
    # Some checkpoints have the table only under the name of a copy.
    if "shared.weight" not in state and (present := [name for name in copies if name in state]):
        state["shared.weight"] = state[present[0]]
    if not config.tied_logits and "lm_head.weight" not in state and "shared.weight" in state:
        logger.info("the weights have no lm_head.weight: as in transformers, it is a copy of the embeddings")
        state["lm_head.weight"] = state["shared.weight"].clone()
    missing = [name for name in names.values() if name not in state]
    if missing:
        raise CheckpointError(
            f"{len(missing)} of {len(names)} tensors are missing, such as {', '.join(missing[:3])}\n"
            "  use a T5ForConditionalGeneration, MT5… or UMT5…, with the decoder and its head"
        )
    for name in copies:
        if name in state and not torch.equal(state[name], state["shared.weight"]):
            raise CheckpointError(f"{name} differs from shared.weight\n  models with several tables are not supported")
    left_over = sorted(set(state) - set(names.values()) - set(copies))
    # Old checkpoints contain a bias of the cross-attention that no code has ever used.
    if left_over := [name for name in left_over if "EncDecAttention.relative_attention_bias" not in name]:
        raise CheckpointError(
            f"{len(left_over)} tensors have no place in this model, such as {', '.join(left_over[:3])}\n"
            "  config.json describes another architecture than that of the weights"
        )
    return {ours: state[theirs] for ours, theirs in names.items()}


def to_huggingface_config(config: T5ModelConfig, vocabulary: Vocabulary | None = None) -> dict[str, Any]:
    """Return the contents of `config.json` with the vocabulary's end mark; None: the end mark of T5."""
    if config.activations not in _FEED_FORWARD:
        raise InputError(
            f"model.activations {list(config.activations)} do not exist in transformers\n"
            f"  use one of: {'; '.join(', '.join(names) for names in _FEED_FORWARD)}"
        )
    kind = "umt5" if config.bias_per_layer else "t5"
    if config.vocab_size == _MT5_VOCAB_SIZE and kind == "t5" and not config.tied_logits:
        kind = "mt5"
    return {
        "model_type": kind,
        "architectures": [f"{_ARCHITECTURES[kind]}ForConditionalGeneration"],
        **{theirs: getattr(config, ours) for theirs, ours in _SETTINGS.items()},
        "initializer_factor": 1.0,
        "feed_forward_proj": _FEED_FORWARD[config.activations],
        "tie_word_embeddings": config.tied_logits,
        "decoder_start_token_id": 0,
        "pad_token_id": 0,
        "eos_token_id": END_ID if vocabulary is None else vocabulary.eos_id,
        "is_encoder_decoder": True,
        "use_cache": True,
    }


def from_huggingface_config(values: Mapping[str, Any], *, has_logits: bool | None = None) -> T5ModelConfig:
    """Return the model config of the `values` of a `config.json`. Raises CheckpointError for another kind of model or
    an unsupported feature. `has_logits`: True if the weights have a separate logits matrix; None: `tie_word_embeddings`
    decides, which may be wrong (transformers 5 writes true for untied weights)."""
    kind = values.get("model_type")
    if kind not in _ARCHITECTURES:
        raise CheckpointError(f"config.json has model_type {kind!r}\n  supported: {', '.join(_ARCHITECTURES)}")
    proj = values.get("feed_forward_proj", "relu" if kind == "t5" else "gated-gelu")
    if proj not in _ACTIVATIONS:
        raise CheckpointError(
            f"config.json has feed_forward_proj {proj!r}\n  supported: {', '.join(sorted(_ACTIVATIONS))}"
        )
    # Our model has no start of targets or padding but 0.
    only(values, {name: 0 for name in ("decoder_start_token_id", "pad_token_id") if values.get(name) is not None})
    is_tied = _scales_logits(values) if has_logits is None else not has_logits
    merged = {**_DEFAULTS, **values, "num_decoder_layers": values.get("num_decoder_layers") or values["num_layers"]}
    return T5ModelConfig(
        **{ours: merged[theirs] for theirs, ours in _SETTINGS.items()},
        activations=_ACTIVATIONS[proj],
        tied_logits=is_tied,
        bias_per_layer=kind == "umt5",
    )


def write_huggingface(
    state: State,
    config: T5ModelConfig,
    out: Path,
    *,
    tokenizer: Path | None = None,
    vocabulary: Vocabulary | None = None,
) -> None:
    """Write the new folder `out`, which `from_pretrained` loads, with the files of the folder `tokenizer`, from which
    the run read `vocabulary`. Raises InputError if the model has no Hugging Face form, or `out` is not an empty folder
    or cannot be written."""
    values = to_huggingface_config(config, vocabulary)
    with new_transformers_folder(out, values, to_huggingface_state(state, config)) as folder:
        generation = {name: values[name] for name in ("decoder_start_token_id", "pad_token_id", "eos_token_id")}
        (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n", "utf-8")
        write_tokenizer(tokenizer, vocabulary, folder)


def write_tokenizer(origin: Path | None, vocabulary: Vocabulary | None, folder: Path) -> None:
    """Copy the files of a tokenizer, if there is one, to a model's folder, with the sentinels that the run added after
    its pieces, and with the end mark as the only control token around a text."""
    if origin is None or vocabulary is None:
        return
    for name in TOKENIZER_FILES:
        if (origin / name).is_file():
            shutil.copyfile(origin / name, folder / name)
    path = folder / "tokenizer.json"
    if path.is_file():
        import tokenizers

        model = tokenizers.Tokenizer.from_file(str(path))
        named = {index: f"<extra_id_{number}>" for number, index in enumerate(vocabulary.sentinel_ids)}
        missing = sorted(index for index, name in named.items() if model.token_to_id(name) is None)
        if missing and missing[0] == model.get_vocab_size():
            sentinels = [tokenizers.AddedToken(named[index], lstrip=True, normalized=False) for index in missing]
            model.add_special_tokens(sentinels)
            model.save(str(path))
        end = vocabulary.eos_id
        if model.encode("a").ids != [*model.encode("a", add_special_tokens=False).ids, end]:  # such as BERT's
            mark, about = model.id_to_token(end), folder / "tokenizer_config.json"
            model.post_processor = tokenizers.processors.TemplateProcessing(
                single=["$A", mark], pair=["$A", mark, "$B", mark], special_tokens=[(mark, end)]
            )
            model.save(str(path))
            settings = json.loads(about.read_bytes()) if about.is_file() else {}
            settings |= {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": mark}
            settings["pad_token"] = model.id_to_token(vocabulary.pad_id)
            settings["model_input_names"] = ["input_ids", "attention_mask"]
            about.write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n", "utf-8")


def read_huggingface(folder: Path) -> tuple[T5ModelConfig, dict[str, Tensor]]:
    """Return the config and our state dict of a folder that transformers wrote. Raises CheckpointError if a file is
    missing or damaged, or the model is of another kind."""

    def parse(values: dict[str, Any]) -> tuple[T5ModelConfig, dict[str, Tensor]]:
        state = read_saved(folder)
        if any(name.startswith("transformer.") for name in state):
            raise CheckpointError(
                f"{folder} is a {', '.join(values.get('architectures') or ['T5'])}, a T5 with a classification head "
                "instead of logits; such fine-tuned weights are not supported\n  use the folder of the model it was "
                "trained from, a T5ForConditionalGeneration (MT5…, UMT5…)"
            )
        return from_huggingface_config(values, has_logits=_has_logits(state, values)), state

    (config, state), values = read_config(folder, parse)
    state = from_huggingface_state(state, config)
    if not config.tied_logits and values.get("scale_decoder_outputs"):  # fine-tuned as an own matrix, with scaling
        state["logits.weight"] = state["logits.weight"] * config.hidden_size**-0.5
    return config, state


def _has_logits(state: State, values: Mapping[str, Any]) -> bool:
    """Return True if the model has its own matrix for logits. `lm_head.weight` may be the embeddings.

    Models that transformers 5 creates always have tied weights. If their logits are not scaled, they are read as models
    with their own matrix, because our tied models scale logits."""
    table, logits = state.get("shared.weight"), state.get("lm_head.weight")
    is_separate = logits is not None and (table is None or not torch.equal(logits, table))
    return is_separate or not _scales_logits(values)


def _scales_logits(values: Mapping[str, Any]) -> bool:
    """Return True if transformers multiplies the hidden states by `d_model**-0.5` before it computes logits with the
    embeddings. A missing `tie_word_embeddings` is true for T5 and false for mT5 and umT5."""
    kind = values["model_type"]
    is_tied = values.get("tie_word_embeddings", kind == "t5")
    if kind == "mt5":  # transformers 5 never scales its logits; it writes true for `tie_word_embeddings`
        return False
    return values.get("scale_decoder_outputs", is_tied) if kind == "t5" else is_tied


def write_encoder(
    trained: TextClassifier, config: T5ModelConfig, out: Path, *, tokenizer: Path | None, vocabulary: Vocabulary | None
) -> None:
    """Write a folder whose encoder `T5EncoderModel.from_pretrained` loads.

    `classifier.safetensors` has `weight` and `bias` of the head, which reads the mean over an example's last hidden
    states, including the end mark but no padding. The classes are in `config.json`. Raises InputError if the model has
    no Hugging Face form, or a head on words or spans, or `out` is not an empty folder or cannot be written.
    """
    if trained.reads != "examples":
        raise InputError(
            f"a T5 with a head on {trained.reads} cannot be exported to transformers\n  use --format safetensors"
        )
    state = trained.encoder.state_dict()
    tensors = {theirs: state[ours] for ours, theirs in huggingface_names(config).items() if ours in state}
    values = to_huggingface_config(config, vocabulary) | class_settings(trained.classes)
    architecture = f"{_ARCHITECTURES[values['model_type']]}EncoderModel"
    values |= {"architectures": [architecture], "is_encoder_decoder": False, "use_cache": False}
    with new_transformers_folder(out, values, tensors) as folder:
        write_tensors(folder / HEAD_FILE, trained.head.state_dict())
        write_tokenizer(tokenizer, vocabulary, folder)


def read_encoder(folder: Path) -> tuple[T5ModelConfig, dict[str, Tensor], dict[str, Tensor], tuple[str, ...]]:
    """Return (config, encoder's tensors, head's tensors, class names) of a folder from `write_encoder`. Raises
    CheckpointError if a file is missing or damaged, or the model is of another kind."""
    config, values = read_config(folder, from_huggingface_config)
    if not (folder / HEAD_FILE).is_file():
        raise CheckpointError(
            f"{folder} is a {', '.join(values.get('architectures') or ['T5'])} without {HEAD_FILE}, the head of "
            "a classifier that this recipe exports\n"
            "  use the T5 it was trained from: init_from=FOLDER init.recipe=t5"
        )
    tensors, head = read_tensors(folder), read_tensors(folder, HEAD_FILE.removesuffix(".safetensors"))
    names = {ours: theirs for ours, theirs in huggingface_names(config).items() if ours.startswith(_ENCODER_PARTS)}
    missing = [theirs for theirs in names.values() if theirs not in tensors]
    if missing or set(head) != {"weight", "bias"}:
        raise CheckpointError(f"{folder} lacks tensors, such as {(*missing, HEAD_FILE)[0]}\n  copy it again")
    encoder = {ours: tensors[theirs] for ours, theirs in names.items()}
    return config, encoder, head, class_names(values, len(head["weight"]), has_encoder=False)


@torch.no_grad()
def difference_from_huggingface(config: T5ModelConfig, model: nn.Module, folder: Path) -> float:
    """Return the largest difference of a logit at a real target position, for examples of random ids, between a model
    of kind encoder_decoder, on CPU and in float32, and the same weights loaded by transformers from `folder`."""
    import transformers

    # With other attention, transformers 5.17 lets the decoder of umT5 read later targets.
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    # transformers 5 sets the flag of umT5 automatically and then scales its logits, which are not tied.
    is_scaled = config.bias_per_layer and not config.tied_logits and theirs.config.tie_word_embeddings
    rng, lengths = np.random.default_rng(0), list(zip(*_LENGTHS, strict=True))
    inputs, targets = (ragged([rng.integers(2, config.vocab_size, num) for num in nums]) for nums in lengths)
    arrays = encoder_decoder(inputs, targets, *map(max, lengths))
    batch = {name: torch.from_numpy(array) for name, array in arrays.items()}
    logits = model(read_batch(batch)[0])
    expected = theirs(
        input_ids=batch["encoder_input_tokens"].long(),
        attention_mask=(batch["encoder_input_tokens"] != 0).long(),
        decoder_input_ids=batch["decoder_input_tokens"].long(),
    ).logits[batch["decoder_target_tokens"] != 0]
    scale = config.hidden_size**0.5 if is_scaled else 1.0
    return float((logits - expected * scale).abs().max())

"""A fine-tuned encoder for Hugging Face's `T5EncoderModel` (`UMT5…`, `MT5…`), with its linear head in a file beside it.

transformers' own `T5ForSequenceClassification` asks the decoder, which a fine-tuned encoder has not.
"""

import json
from pathlib import Path

from torch import Tensor

from pretrainkit.errors import CheckpointError
from pretrainkit.exporting.class_names import class_names, class_settings
from pretrainkit.exporting.folder import new_folder
from pretrainkit.exporting.safetensors import read_tensors, write_tensors
from pretrainkit.recipes.exchange import TextClassifier
from pretrainkit.recipes.t5.config import T5ModelConfig
from pretrainkit.recipes.t5.convert import (
    from_huggingface_config,
    huggingface_names,
    to_huggingface_config,
    write_tokenizer,
)
from pretrainkit.recipes.t5.decode import END_ID
from pretrainkit.tasks.vocabulary import Vocabulary

HEAD = "classifier.safetensors"
_PARTS = ("embedding.", "encoder.")
"""What a text encoder has of a T5."""
_ENCODERS = {"t5": "T5EncoderModel", "mt5": "MT5EncoderModel", "umt5": "UMT5EncoderModel"}


def write_encoder(
    trained: TextClassifier, config: T5ModelConfig, out: Path, *, tokenizer: Path | None, vocabulary: Vocabulary | None
) -> None:
    """Write a folder whose encoder `T5EncoderModel.from_pretrained` loads.

    `classifier.safetensors` has `weight` and `bias` of the head, which reads the mean over an example's last hidden
    states; the end mark counts, padding does not. The classes are in `config.json`. Raises InputError where the model
    has no Hugging Face form; `out` exists and is not an empty folder, or cannot be written.
    """
    state = trained.encoder.state_dict()
    tensors = {theirs: state[ours] for ours, theirs in huggingface_names(config).items() if ours in state}
    end_id = END_ID if vocabulary is None else vocabulary.eos_id
    values = to_huggingface_config(config, end_id=end_id)
    values |= class_settings(trained.classes)
    values |= {"architectures": [_ENCODERS[values["model_type"]]], "is_encoder_decoder": False, "use_cache": False}
    with new_folder(out) as folder:
        write_tensors(folder / "model.safetensors", tensors)
        write_tensors(folder / HEAD, trained.head.state_dict())
        (folder / "config.json").write_text(json.dumps(values, indent=2) + "\n", "utf-8")
        if tokenizer is not None and vocabulary is not None:
            write_tokenizer(tokenizer, vocabulary, folder)


def read_encoder(folder: Path) -> tuple[T5ModelConfig, dict[str, Tensor], dict[str, Tensor], tuple[str, ...]]:
    """What `write_encoder` wrote: (config, encoder's tensors, head's, names of the classes). Raises CheckpointError
    where a file is missing or broken, or the model is of another kind."""
    path = folder / "config.json"
    try:
        values = json.loads(path.read_bytes())
        config = from_huggingface_config(values)
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(f"{path} cannot be read: {error!r}\n  copy it again") from None
    if not (folder / HEAD).is_file():
        raise CheckpointError(
            f"{folder} has no {HEAD}: classifiers of T5 are read as this recipe exports them, an encoder with a head "
            f"beside it, and this is a {', '.join(values.get('architectures') or ['T5'])}\n"
            "  give the T5 it was trained from: init_from=FOLDER init.recipe=t5"
        )
    tensors, head = read_tensors(folder), read_tensors(folder, HEAD.removesuffix(".safetensors"))
    names = {ours: theirs for ours, theirs in huggingface_names(config).items() if ours.startswith(_PARTS)}
    missing = [theirs for theirs in names.values() if theirs not in tensors]
    if missing or set(head) != {"weight", "bias"}:
        raise CheckpointError(f"{folder} lacks tensors, such as {(*missing, HEAD)[0]}\n  copy it again")
    encoder = {ours: tensors[theirs] for ours, theirs in names.items()}
    return config, encoder, head, class_names(values, len(head["weight"]))

"""A fine-tuned encoder for Hugging Face's `T5EncoderModel` (`UMT5…`, `MT5…`), with its linear head in a file beside it.

transformers' own `T5ForSequenceClassification` asks the decoder, which a fine-tuned encoder has not.
"""

import json
from pathlib import Path

from pretrainkit.data.vocabulary import Vocabulary
from pretrainkit.exporting.class_names import class_settings
from pretrainkit.exporting.folder import new_folder
from pretrainkit.exporting.safetensors import write_tensors
from pretrainkit.recipes.t5.config import T5ModelConfig
from pretrainkit.recipes.t5.convert import huggingface_names, to_huggingface_config, write_tokenizer
from pretrainkit.recipes.t5.decode import END_ID
from pretrainkit.training.recipe import TextClassifier

HEAD = "classifier.safetensors"
_ENCODERS = {"t5": "T5EncoderModel", "mt5": "MT5EncoderModel", "umt5": "UMT5EncoderModel"}


def write_encoder(
    trained: TextClassifier, config: T5ModelConfig, out: Path, *, tokenizer: Path | None, vocabulary: Vocabulary | None
) -> None:
    """Write a folder whose encoder `T5EncoderModel.from_pretrained` loads.

    `classifier.safetensors` has `weight` and `bias` of the head, which reads the mean over an example's last hidden
    states; the end mark counts, padding does not. The classes are in `config.json`.

    Raises:
        InputError: The model has no Hugging Face form; `out` exists and is not an empty folder, or cannot be written.
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

"""Samples for `pretrainkit data check`: the input and the target of each modality.

Dimensions: P patches of an image, n tokens of one modality.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrainkit.data.source import Records
from pretrainkit.images.pillow import Pixels, thumbnail
from pretrainkit.recipes.capabilities import StoredRecord
from pretrainkit.recipes.fourm.generation.show import picture
from pretrainkit.recipes.fourm.modality import Modality
from pretrainkit.recipes.fourm.source import FourMSource
from pretrainkit.training.watch import Sample

_HEIGHT = 128
"""Height of a picture in pixels."""
_HIDDEN = (150, 175, 205)
"""RGB colour of patches that are not used."""


def show_examples(source: FourMSource, records: Records) -> list[Sample]:
    """Return input and target of each modality of a sample. Only the first draw of masks of each sample is shown."""
    batch, samples = source.build(records), source.samples(records)
    images = source.contents(samples).images
    examples = list[Sample]()
    for row in range(len(records)):
        example: dict[str, Any] = {}
        for number, modality in enumerate(source.modalities):
            for side, field in (("input", "encoder_ids"), ("target", "decoder_target")):
                name = field.partition("_")[0]
                slots = np.arange(batch[field].shape[1])
                is_own = (batch[f"{name}_modality"][row] == number) & (batch[f"{name}_segment"][row] == 0)
                is_own &= slots < batch[f"{name}_length"][row]
                if not is_own.any():
                    continue
                ids_n, places_n = batch[field][row, is_own], batch[f"{name}_position"][row, is_own]
                whole = images[number][row] if modality.kind == "image" else None
                if modality.kind == "pixels":
                    whole, places_n = batch[f"pixels/{modality.name}"][row], ids_n
                example[f"{modality.name} {side}"] = _shown(source, modality, ids_n, places_n, whole)
        examples.append(example)
    return examples


def _shown(
    source: FourMSource, modality: Modality, ids_n: NDArray[Any], places_n: NDArray[Any], whole: NDArray[Any] | None
) -> Any:
    """Return tokens of a modality as text or as a picture. `whole` has all pixels or all tokens of the image."""
    if modality.kind == "sequence":
        assert source.vocabulary is not None
        return f"[{len(ids_n)}] {source.vocabulary.decode(ids_n.tolist(), with_sentinels=True)}"
    count = f"{len(ids_n)} of {modality.max_tokens}"
    if whole is None:
        return f"{count} vectors"
    image: Pixels | None
    if modality.kind == "pixels":  # repeat one channel three times; take the first three of many
        image = np.repeat(whole, 3, axis=0)[:: len(whole)][:3].transpose(1, 2, 0)
    else:
        image = picture(modality, whole, {})
    if image is None:
        return f"[{count}] {' '.join(map(str, ids_n.tolist()))}"
    is_hidden_P = np.ones(modality.max_tokens, np.bool_)
    is_hidden_P[places_n] = False
    patch = modality.patch_size or 1
    is_hidden = is_hidden_P.reshape(modality.grid).repeat(patch, 0).repeat(patch, 1)
    masked = np.where(is_hidden[..., None], np.array(_HIDDEN, np.uint8), image)
    return [{"image": thumbnail(masked.transpose(2, 0, 1), _HEIGHT, format="PNG"), "text": f"{count} patches"}]


def stored_records(source: FourMSource, records: Records) -> list[StoredRecord]:
    """Return the first caption and the image file of each sample; without one, the first file. Samples with the same
    file count as copies."""
    stored = []
    for number, index in zip(records.source.tolist(), records.index.tolist(), strict=True):
        sample_set = source.sets[number]
        # Captions and classes may be the same for different images.
        pixels = (place for place in sample_set.present if source.modalities[place].kind == "pixels")
        folder = sample_set.folders[next(pixels, sample_set.present[0])]
        content = sample_set.samples.read(folder, index)
        name = f"{sample_set.config.path} {sample_set.samples.keys[index]}"
        stored.append(StoredRecord(name, _caption(source, number, index), content))
    return stored


def _caption(source: FourMSource, number: int, index: int) -> str:
    """Return the first text of a sample; "" if it has none."""
    sample_set = source.sets[number]
    for place, folder in sample_set.folders.items():
        if source.modalities[place].kind == "sequence":
            content, part = sample_set.samples.read(folder, index), sample_set.parts(index, None)[0]
            read = sample_set.read_file(place, index, content, part, 0, is_training=False)
            if isinstance(read, str):
                return read
    return ""

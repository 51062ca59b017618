"""One generated example: what people and programs get of it. Torch-free but for the types of models."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrainkit.images.pillow import Pixels
from pretrainkit.recipes.fourm.generation.chain import Chain
from pretrainkit.recipes.fourm.generation.figures import figures
from pretrainkit.recipes.fourm.generation.given import Example, File
from pretrainkit.recipes.fourm.generation.known import Known
from pretrainkit.recipes.fourm.generation.plan import inputs_named
from pretrainkit.recipes.fourm.generation.show import Cell, ImageDecoder, picture, structure, values_of, with_boxes
from pretrainkit.recipes.fourm.modality import Modality
from pretrainkit.recipes.fourm.readers import DepthMap
from pretrainkit.recipes.fourm.sequences import Ids


@dataclass
class Result:
    """One example with one of its variations."""

    chain: Chain
    example: Example
    variation: int
    known: Sequence[Known]
    """By each model of the chain."""
    decoders: Mapping[str, ImageDecoder]
    files: dict[str, str] = field(default_factory=dict)
    """Of images that are written, by modality."""
    _truth: dict[tuple[int, str], Ids | None] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.example.key}-{self.variation}" if self.variation else self.example.key

    def ids(self, number: int, modality: Modality) -> Ids:
        """Of a target."""
        known = self.known[number]
        found = known.images[modality.name].ids_BP[0] if modality.kind == "image" else known.sequences[modality.name][0]
        assert found is not None
        return found

    def truth(self, number: int, modality: Modality) -> Ids | None:
        """What the example's own file of a target holds, where it has one."""
        if (number, modality.name) not in self._truth:
            self._truth[number, modality.name] = self.chain.links[number].given.truth(self.example, modality)
        return self._truth[number, modality.name]

    def value(self, number: int, modality: Modality) -> Any:
        """JSON of a target."""
        ids = self.ids(number, modality)
        vocabulary = self.chain.links[number].vocabulary
        if modality.kind == "sequence" and vocabulary is not None:
            return structure(modality, ids, vocabulary)
        return self.files.get(modality.name, ids.tolist())

    def answer(self) -> dict[str, Any]:
        outputs, known, told = {}, {}, []
        for number, modality in self.chain.targets:
            outputs[modality.name] = value = self.value(number, modality)
            if modality.kind == "image" and not isinstance(value, str):
                told.append(f"{modality.name} {len(value)} tokens")
            else:
                told.append(f"{modality.name} {_as_text(value)}")
            truth = self.truth(number, modality)
            if truth is not None:
                vocabulary, decoder = self.chain.links[number].vocabulary, self.decoders.get(modality.name)
                known[modality.name] = figures(modality, [self.ids(number, modality)], [truth], vocabulary, decoder)
        return {
            "example": self.example.key,
            "variation": self.variation,
            "given": {n: v.name if isinstance(v, File) else v for n, v in self.example.values.items()},
            "outputs": outputs,
            **({"figures": known} if known else {}),
            "text": f"{self.name}: " + "; ".join(told),
        }

    def cells(self) -> dict[str, Cell]:
        """By heading: what was given, what was made of it, and the truth."""
        found = {f"from {name}": self._given_cell(name, value) for name, value in self.example.values.items()}
        # Boxes are drawn on given or generated pixels.
        pixels = (one[0] for known in self.known for one in known.pixels.values() if one[0] is not None)
        canvas = next((one.transpose(1, 2, 0) for one in pixels if len(one) == 3), None)
        for number, modality in self.chain.targets:
            found[modality.name] = self._cell(number, modality, self.ids(number, modality), canvas)
            truth = self.truth(number, modality)
            if truth is not None:
                # Of an image this is a picture of its tokens, as coarse as they are, and not the file.
                what = "tokens of the true" if modality.kind == "image" else "true"
                found[f"{what} {modality.name}"] = self._cell(number, modality, truth, canvas)
        return found

    def _given_cell(self, name: str, value: str | File) -> Cell:
        if isinstance(value, str):
            return value
        for known, link in zip(self.known, self.chain.links, strict=True):
            for modality in inputs_named(name, link.modalities):
                pixels = known.pixels.get(modality.name, [None])[0]
                if pixels is not None:  # grey is the same in three channels, of which more than three keep the first
                    return np.repeat(pixels, 3, axis=0).transpose(1, 2, 0)[..., :: len(pixels)][..., :3]
                if modality.kind == "image" and modality.name in known.images:
                    return picture(modality, known.images[modality.name].ids_BP[0], self.decoders)
                ids = known.sequences.get(modality.name, [None])[0]
                if ids is not None and link.vocabulary is not None:
                    return link.vocabulary.decode(ids)
        return None

    def _cell(self, number: int, modality: Modality, ids: Ids, canvas: Pixels | None) -> Cell:
        vocabulary = self.chain.links[number].vocabulary
        if modality.kind == "image":
            return picture(modality, ids, self.decoders)
        assert vocabulary is not None
        value = structure(modality, ids, vocabulary)
        if modality.reader == "boxes":
            blank = np.full((64, 64, 3), 255, np.uint8)
            return with_boxes(blank if canvas is None else canvas, value["instances"])
        return _as_text(value)

    def write(self, folder: Path) -> None:
        """A file for each target into a new folder."""
        folder.mkdir()
        for number, modality in self.chain.targets:
            ids = self.ids(number, modality)
            if modality.kind == "sequence":
                value = self.value(number, modality)
                text = json.dumps([value] if isinstance(value, str) else value, ensure_ascii=False, indent=1)
                (folder / f"{modality.name}.json").write_text(text + "\n", encoding="utf-8")
            else:
                self.files[modality.name] = f"{self.name}/{_save_image(folder, modality, ids, self.decoders)}"


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _save_image(folder: Path, modality: Modality, ids: Ids, decoders: Mapping[str, ImageDecoder]) -> str:
    """Write what the modality's reader reads again, or what an image tokenizer makes; returns the file's name."""
    from PIL import Image

    values = _values(modality, ids, decoders)
    if values.dtype.kind == "f" and values.ndim == 2:
        share = ((values + DepthMap.reach) / (2 * DepthMap.reach)).clip(0, 1)
        values = (share * 65535).astype(np.uint16)
    if values.dtype == np.uint16 or (values.dtype == np.uint8 and values.ndim in (2, 3)):
        Image.fromarray(np.ascontiguousarray(values)).save(folder / f"{modality.name}.png")
        return f"{modality.name}.png"
    np.save(folder / f"{modality.name}.npy", values)
    return f"{modality.name}.npy"


def _values(modality: Modality, ids_P: Ids, decoders: Mapping[str, ImageDecoder]) -> NDArray[Any]:
    """Of a picture as files hold it; the tokens (1, P) where nobody can decode them."""
    if modality.name in decoders:
        return decoders[modality.name].decode(ids_P[None])[0]
    patch = modality.patch_size or 1
    grid = np.repeat(np.repeat(ids_P.reshape(modality.grid), patch, axis=0), patch, axis=1)
    if modality.reader == "depth":
        return values_of(modality, grid)
    if modality.reader == "classes":
        return grid.astype(np.uint8)
    painted = picture(modality, ids_P, decoders)
    return ids_P[None] if painted is None else painted

"""The 4M demo: train on generated scenes in five views, and generate any view from any other."""

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from textwrap import indent
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrainkit.demo.rooms import CLASSES, COLORS, Scene, write_rooms
from pretrainkit.demo.things import labels_of, train_classifier
from pretrainkit.demo.walk import Walk, pretrainkit, read_json
from pretrainkit.images.pillow import Pixels, thumbnail
from pretrainkit.recipes.fourm.generation.show import Cell, contact_sheet, with_boxes

NUM_TRAIN, NUM_VALID = 4000, 64
TRAIN_SEED, VALID_SEED = 1, 2
VOCAB_SIZE = 4143
"""Size of the text vocabulary: 4 control tokens, 50 sentinels, 4,000 numbers, 18 classes, 71 letters and words."""
TOKENIZERS = {"rgb": ("l1", 512, 1200), "depth": ("smooth_l1", 256, 200)}
"""Loss, number of codes and number of optimizer updates of each domain's image tokenizer."""
CODER = "{{kind: vit, hidden_size: 64, num_layers: {}, num_heads: 2}}"
QUANTIZER = "{{kind: codebook, size: {}, width: 16, normalizes_latents: true, decay: 0.9}}"
OPTIMIZER = ("optimizer.name=muon", "optimizer.momentum=0.95", "optimizer.peak_lr=0.02", "schedule.num_warmup_steps=20")
"""Settings of both image tokenizers."""
WHOLE = "data.crop={scale: [1, 1], ratio: [1, 1], flip: 0}"
CONFIG = f"""\
extends: fourm/tiny
model:
  modalities:
    - {{name: caption, kind: sequence, length: 16, vocab_size: {VOCAB_SIZE}, reader: caption}}
    - {{name: det, kind: sequence, length: 16, vocab_size: {VOCAB_SIZE}, reader: boxes}}
    - {{name: rgb@64, folder: rgb, reader: rgb, num_channels: 3, image_size: 64, patch_size: 8,
       kind: pixels, is_target: false}}
    - {{name: seg@64, kind: image, image_size: 64, patch_size: 8, vocab_size: 19, reader: classes, folder: seg}}
    - {{name: tok_depth@64, kind: image, image_size: 64, patch_size: 8, vocab_size: 256, reader: tokens}}
    - {{name: tok_rgb@64, kind: image, image_size: 64, patch_size: 8, vocab_size: 512, reader: tokens}}
  hidden_size: 128
  num_heads: 2
  intermediate_size: 341
  num_encoder_layers: 2
  num_decoder_layers: 2
masking:
  unused: pad
  num_input_tokens: 160
  num_target_tokens: 128
  # One component for each step of the two chains; "rgb: 90" of 128 gets 90/128 of the input tokens, at most all.
  mixture:
    - weight: 4
      inputs: {{rgb: 90, caption: 19, det: 19}}
      targets: {{caption: 2, det: 2, seg: 2, tok_depth: 2}}
      keep: {{"*": binary}}
    - {{weight: 1, inputs: {{rgb: 64, caption: 14, det: 14, seg: 64}}, targets: {{tok_depth: 1}}, keep: {{"*": all}}}}
    - {{weight: 2, inputs: {{caption: 1}}, targets: {{det: 1}}, keep: {{"*": all}}}}
    - {{weight: 2, inputs: {{caption: 9, det: 9}}, targets: {{seg: 1}}, keep: {{"*": all}}}}
    - {{weight: 5, inputs: {{caption: 15, det: 15, seg: 64, tok_rgb: 1}}, targets: {{tok_rgb: 1}}, keep: {{"*": all}}}}
    - {{weight: 2, inputs: {{caption: 12, det: 12, seg: 50, tok_rgb: 18}}, targets: {{tok_rgb: 1}}, keep: {{"*": all}}}}
objective: {{loss: token, modality_weights: {{caption: 2, det: 2, tok_depth@64: 0.5}}}}
optimizer: {{name: muon, momentum: 0.95, peak_lr: 6.0e-3}}
schedule: {{num_warmup_steps: 20}}
precision: {{compute: float32}}
"""
NUM_SHOWN, NUM_PAIRS = 5, 3
"""Number of scenes in the report and on the sheet of captions, and on the sheet of photographs."""
Row = dict[str, Cell]
"""Cells of a row by the heading of their column."""
SHEETS = {
    "from-captions": "Made from a caption alone: boxes, then classes, then a picture. It must show the same things.",
    "from-photographs": "Made from a photograph alone: caption, boxes, classes, depth. Below each: the truth.",
}
"""Title of each direction's sheet: what to look at."""
_SHADES = [np.multiply(color, shade) for color in COLORS.values() for shade in (1, 0.8, 0.6)]
CLASS_COLORS = np.array([(50, 50, 50), *_SHADES]).astype(np.uint8)
"""Colours in pictures of classes. Kinds of one colour have different shades."""
IMAGINE = (
    *("--to", "det,seg,tok_rgb", "--temperature", 0, "--set", "det.temperature=0.3", "--set", "seg.num_steps=1"),
    *("--set", "tok_rgb.scheme=maskgit", "--set", "tok_rgb.num_steps=16"),
)
"""Options of `generate` for a photograph from a caption, by way of boxes and classes."""
PROMPT = "a red ball left of a blue cone in a grey room"


def run_demo(folder: Path, num_steps: int, seed: int = 0) -> dict[str, Any]:
    """Run the demo in `folder`, which is replaced if it has an earlier demo. Return its headline numbers."""
    walk = Walk(folder, 7, seed)
    walk.chapter("Scenes", "each as photograph, depth, classes, caption and boxes, with a folder for each view")
    valid = write_rooms(folder / "valid", NUM_VALID, VALID_SEED)
    train = write_rooms(folder / "train", NUM_TRAIN, TRAIN_SEED, others=valid)
    print(f"  {folder / 'train'}: {NUM_TRAIN} scenes, such as: {train[0].caption}")
    print(f"  {NUM_VALID} other scenes are held out, and none of their captions occurs in training")

    walk.chapter("Vocabulary", "words of captions, numbers of boxes, sentinels for masked spans")
    (folder / "captions.txt").write_text("".join(f"{scene.caption}\n" for scene in train), encoding="utf-8")
    (folder / "classes.txt").write_text("\n".join(CLASSES) + "\n", encoding="utf-8")
    pretrainkit("corpus", "count-words", folder / "captions.txt", "--out", folder / "words.tsv")
    pretrainkit(
        *("tokenizer", "train", folder / "words.tsv", "--kind", "multimodal", "--lowercase", "--sentinels", 50),
        *("--classes", folder / "classes.txt", "--vocab-size", VOCAB_SIZE, "--out", folder / "words"),
    )

    walk.chapter("Image tokenizers", "64 tokens for a photograph, and for its depth")
    pictures = {}
    for domain, (loss, num_codes, num) in TOKENIZERS.items():
        pretrainkit(
            *("train", "image_tokenizer/tiny", f"model.domain={domain}", f"objective.reconstruction={loss}"),
            *(
                f"data.train={folder}/train",
                f"data.valid={folder}/valid",
                WHOLE,
                f"model.quantizer={QUANTIZER.format(num_codes)}",
            ),
            *(f"model.encoder={CODER.format(1)}", f"model.decoder={CODER.format(2)}", *OPTIMIZER),
            *(f"seed={seed}", f"num_steps={num}", f"checkpoint.every_steps={num}", f"evaluate.every_steps={num}"),
            *("evaluate.num_examples=64", "log.every_steps=100", "precision.compute=float32"),
            *("--out", folder / f"{domain}-tokenizer"),
        )
        pretrainkit("corpus", "tokenize-images", folder / f"{domain}-tokenizer", folder / "train", folder / "valid")
        pictures[domain] = f"tok_{domain}@64={folder / f'{domain}-tokenizer'}"

    (folder / "fourm.yaml").write_text(CONFIG, encoding="utf-8")
    run = walk.train(
        *("Pretraining", f"a small fourm/tiny predicts some tokens of all views from other tokens, {num_steps} steps"),
        *(folder / "fourm.yaml", f"data.train={folder}/train", f"data.valid={folder}/valid"),
        *(f"data.tokenizer={folder}/words", WHOLE, "data.batch_size=24", "log.every_steps=10"),
        *("evaluate.every_steps=100", "evaluate.num_examples=64"),
        num_steps=num_steps,
        checkpoint_steps=100,
        kill_after_step=130,
        shown=f"  {folder / 'fourm.yaml'}:\n\n{indent(CONFIG, '    ')}\n",
    )

    walk.chapter("From photographs", "caption, boxes, classes and depth of held-out scenes, compared with the truth")
    pretrainkit(
        *("generate", run, "--from", "rgb", "--from-data", NUM_VALID, "--to", "caption,det,seg,depth"),
        *("--temperature", 0, "--set", "seg.num_steps=1", "--set", "depth.num_steps=1"),
        *("--tokenizer", pictures["depth"], "--out", folder / "from-photographs"),
    )

    walk.chapter(
        "From captions", "a new scene for each caption: first its boxes, then its classes, then its photograph"
    )
    imagine = (*IMAGINE, "--tokenizer", pictures["rgb"])
    pretrainkit(
        *("generate", run, "--from", "caption", "--from-data", NUM_VALID, *imagine, "--out", folder / "from-captions")
    )

    walk.chapter("Report", "one HTML page: losses of every modality, and generated views")
    results = _results(folder, train, valid)
    _show(run, folder, valid)
    walk.report(run)
    share = {name: f"{100 * value:.0f} %" for name, value in results.items()}
    rows = {
        "pictures from captions": f"{share['pictures']} show what the caption says, by a classifier (true pictures: "
        f"{share['true_pictures']}, for another caption: {share['other_pictures']})",
        "captions and boxes": f"captions wholly right: {share['captions']} (the commonest one: "
        f"{share['commonest_caption']}), overlap of boxes: {share['box_iou']} (one guess: {share['guessed_box_iou']})",
        "classes and depth": f"overlap of classes: {share['class_iou']} (floor and wall: {share['floor_iou']}), depth "
        f"error: {results['depth_error']:.3f} deviations (mean depth: {results['mean_depth_error']:.3f})",
    }
    files = {"look at": folder / "from-captions.png", "": folder / "from-photographs.png"}
    command = shlex.join(map(str, ("pretrainkit", "generate", run, PROMPT, *imagine, "--out", folder / "imagined")))
    walk.tell(
        rows, files, f"To see a scene of your own:\n  $ {command}\n  For your own folders, see docs/fourm-data.md."
    )
    return walk.numbers(**results)


def _results(folder: Path, train: Sequence[Scene], valid: Sequence[Scene]) -> dict[str, float]:
    """Return the headline numbers."""
    photographs, captions = folder / "from-photographs", folder / "from-captions"
    summary = read_json(photographs / "generation.json")["summary"]
    classify = train_classifier(_read_all(folder / "train/rgb"), train)

    def share_right(rgb_NHW3: Pixels, scenes: Sequence[Scene]) -> float:
        """Return the share of photographs whose four labels are all those of the scenes."""
        return float((classify(rgb_NHW3) == labels_of(scenes)).all(axis=1).mean())

    generated = _read_all(captions, "*/tok_rgb@64.png")
    texts = [scene.caption for scene in train]
    commonest = max(sorted(set(texts)), key=texts.count)
    written = [read_json(path)[0] for path in sorted(photographs.glob("*/caption.json"))]
    classes = _read_all(folder / "valid/seg")
    depths = _levelled(_read_all(photographs, "*/tok_depth@64.png"))
    true_depths = _levelled(_read_all(folder / "valid/depth"))
    mean_depth = _levelled(_read_all(folder / "train/depth").mean(axis=0)[None])
    return {
        "pictures": share_right(generated, valid),
        "true_pictures": share_right(_read_all(folder / "valid/rgb"), valid),
        "other_pictures": share_right(generated, [*valid[1:], valid[0]]),
        "captions": float(np.mean([text == scene.caption for text, scene in zip(written, valid, strict=True)])),
        "commonest_caption": float(np.mean([commonest == scene.caption for scene in valid])),
        "box_iou": summary["det"]["iou"],
        "guessed_box_iou": summary["det"]["guessed_iou"],
        "class_iou": mean_iou(_read_all(photographs, "*/seg@64.png"), classes),
        "floor_iou": mean_iou(np.zeros_like(classes), classes),
        "depth_error": float(np.abs(depths - true_depths).mean()),
        "mean_depth_error": float(np.abs(mean_depth - true_depths).mean()),
    }


def mean_iou(classes: NDArray[np.uint8], truth: NDArray[np.uint8]) -> float:
    """Return intersection over union of the pixels of each class, averaged over the classes in either image."""
    pairs = [(classes == number, truth == number) for number in np.union1d(classes, truth)]
    return float(np.mean([(a & b).sum() / (a | b).sum() for a, b in pairs]))


def _show(run: Path, folder: Path, valid: Sequence[Scene]) -> None:
    """Draw a sheet for each direction, and write the samples of the report: generated views beside the true ones."""
    imagined_rows, seen_rows, samples = list[Row](), list[Row](), list[Row]()
    for number, scene in enumerate(valid[:NUM_SHOWN]):
        from_caption, from_photograph = (folder / name / f"{number:05}" for name in SHEETS)
        photograph = _read(folder / f"valid/rgb/{number:05}.png")
        seen: Row = {"caption": read_json(from_photograph / "caption.json")[0]}
        truth: Row = {"caption": scene.caption}
        for view, file, true_file in (
            ("boxes", "det.json", f"det/{number:05}.json"),
            ("classes", "seg@64.png", f"seg/{number:05}.png"),
            ("depth", "tok_depth@64.png", f"depth/{number:05}.png"),
        ):
            seen[view] = _cell(from_photograph / file, photograph)
            truth[view] = _cell(folder / "valid" / true_file, photograph)
        imagined: Row = {"given caption": scene.caption}
        for view, file in (("boxes", "det.json"), ("classes", "seg@64.png"), ("photograph", "tok_rgb@64.png")):
            imagined[f"{view} from the caption"] = _cell(from_caption / file, np.full_like(photograph, 128))
        imagined_rows.append({**imagined, "true photograph": photograph})
        seen_rows += [{"given photograph": photograph, **seen}, {"given photograph": "the truth:", **truth}]
        pairs = {name: cell for view in seen for name, cell in ((view, seen[view]), (f"true {view}", truth[view]))}
        samples.append({**imagined_rows[-1], "given photograph": photograph, **pairs})
    for (name, title), rows in zip(SHEETS.items(), (imagined_rows, seen_rows[: 2 * NUM_PAIRS]), strict=True):
        sheet = contact_sheet(list(rows[0]), [list(row.values()) for row in rows], title=title, scale=2)
        sheet.save(folder / f"{name}.png")
    text = json.dumps([{name: [_sample(cell)] for name, cell in row.items()} for row in samples])
    (run / "samples.json").write_text(text, encoding="utf-8")


def _cell(path: Path, canvas: Pixels) -> Pixels:
    """Return a picture of a view in a file: boxes on `canvas`, each class in its colour, near depth bright."""
    if path.suffix == ".json":
        return with_boxes(canvas, read_json(path)["instances"], scale=2)
    pixels = _read(path)
    if pixels.dtype == np.uint16:
        share = (pixels.max() - pixels.astype(np.float64)) / max(np.ptp(pixels), 1)
        return np.repeat((255 * share)[..., None], 3, axis=2).astype(np.uint8)
    return CLASS_COLORS[pixels] if pixels.ndim == 2 else pixels


def _sample(cell: Cell) -> dict[str, Any]:
    if cell is None or isinstance(cell, str):
        return {"text": cell}
    height = 128 // len(cell) or 1
    return {"image": thumbnail(cell.transpose(2, 0, 1).repeat(height, 1).repeat(height, 2), 128)}


def _read(path: Path) -> NDArray[Any]:
    from PIL import Image

    return np.asarray(Image.open(path))


def _read_all(folder: Path, pattern: str = "*") -> NDArray[Any]:
    """Return all images of a folder in the order of their names."""
    return np.stack([_read(path) for path in sorted(folder.glob(pattern))])


def _levelled(depth_NHW: NDArray[Any]) -> NDArray[np.float64]:
    """Return each depth image with mean 0 and deviation 1."""
    depth_NHW = depth_NHW.astype(np.float64)
    deviation = np.maximum(depth_NHW.std(axis=(1, 2), keepdims=True), 1e-6)
    return (depth_NHW - depth_NHW.mean(axis=(1, 2), keepdims=True)) / deviation

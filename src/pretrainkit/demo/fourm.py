"""The 4M demo: train on generated scenes in five views, and generate any view from any other."""

import json
from pathlib import Path
from textwrap import indent
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrainkit.demo.rooms import KINDS, write_rooms
from pretrainkit.demo.walk import Walk, pretrainkit, read_json
from pretrainkit.images.pillow import thumbnail

NUM_TRAIN, NUM_VALID = 2000, 64
TRAIN_SEED, VALID_SEED = 1, 2
VOCAB_SIZE = 4128
"""Size of the text vocabulary: 4 control tokens, 50 sentinels, 4,000 numbers, 3 classes, 71 letters and words."""
NUM_CODES = 256
TOKENIZERS = {"rgb": ("l1", 200), "depth": ("smooth_l1", 120)}
"""Loss and number of optimizer updates of each domain's image tokenizer."""
CODER = "{kind: vit, hidden_size: 64, num_layers: 2, num_heads: 2}"
WHOLE = "data.crop={scale: [1, 1], ratio: [1, 1], flip: 0}"
CONFIG = f"""\
extends: fourm/tiny
model:
  modalities:
    - {{name: caption, kind: sequence, length: 16, vocab_size: {VOCAB_SIZE}, reader: caption}}
    - {{name: det, kind: sequence, length: 16, vocab_size: {VOCAB_SIZE}, reader: boxes}}
    - {{name: rgb@64, folder: rgb, reader: rgb, num_channels: 3, image_size: 64, patch_size: 8,
       kind: pixels, is_target: false}}
    - {{name: seg@64, kind: image, image_size: 64, patch_size: 8, vocab_size: 4, reader: classes, folder: seg}}
    - {{name: tok_depth@64, kind: image, image_size: 64, patch_size: 8, vocab_size: {NUM_CODES}, reader: tokens}}
    - {{name: tok_rgb@64, kind: image, image_size: 64, patch_size: 8, vocab_size: {NUM_CODES}, reader: tokens}}
  hidden_size: 128
  num_heads: 2
  intermediate_size: 341
  num_encoder_layers: 2
  num_decoder_layers: 2
objective: {{loss: token}}
optimizer: {{name: muon, momentum: 0.95, peak_lr: 6.0e-3}}
schedule: {{num_warmup_steps: 20}}
precision: {{compute: float32}}
"""
"""Config of the run: fewer and narrower layers than fourm/tiny, and modalities for the two image tokenizers."""
NUM_SHOWN = 8
PROMPT = "a red ball left of a blue cone in a grey room"


def run_demo(folder: Path, num_steps: int) -> dict[str, Any]:
    """Run the demo in `folder`, which is replaced if it has an earlier demo. Return its headline numbers."""
    walk = Walk(folder, 7)
    walk.chapter("Scenes", "each as photograph, depth, classes, caption and boxes, with a folder for each view")
    captions = write_rooms(folder / "train", NUM_TRAIN, TRAIN_SEED)
    write_rooms(folder / "valid", NUM_VALID, VALID_SEED)
    print(f"  {folder / 'train'}: {NUM_TRAIN} scenes, such as: {captions[0]}; {NUM_VALID} are held out")

    walk.chapter("Vocabulary", "words of captions, numbers of boxes, sentinels for masked spans")
    (folder / "captions.txt").write_text("\n".join(captions) + "\n", encoding="utf-8")
    (folder / "classes.txt").write_text("\n".join(KINDS) + "\n", encoding="utf-8")
    pretrainkit("corpus", "count-words", folder / "captions.txt", "--out", folder / "words.tsv")
    pretrainkit(
        *("tokenizer", "train", folder / "words.tsv", "--kind", "multimodal", "--lowercase", "--sentinels", 50),
        *("--classes", folder / "classes.txt", "--vocab-size", VOCAB_SIZE, "--out", folder / "words"),
    )

    walk.chapter("Image tokenizers", f"64 tokens of {NUM_CODES} codes for a photograph, and for its depth")
    pictures = []
    for domain, (loss, num) in TOKENIZERS.items():
        pretrainkit(
            *("train", "image_tokenizer/tiny", f"model.domain={domain}", f"objective.reconstruction={loss}"),
            *(f"data.train={folder}/train", f"data.valid={folder}/valid", WHOLE, f"model.quantizer.size={NUM_CODES}"),
            *(f"model.encoder={CODER}", f"model.decoder={CODER}", "optimizer.peak_lr=3e-3", f"num_steps={num}"),
            *("schedule.num_warmup_steps=20", f"checkpoint.every_steps={num}", f"evaluate.every_steps={num}"),
            *("evaluate.num_examples=64", "log.every_steps=40", "precision.compute=float32"),
            *("--out", folder / f"{domain}-tokenizer"),
        )
        pretrainkit("corpus", "tokenize-images", folder / f"{domain}-tokenizer", folder / "train", folder / "valid")
        pictures.append((f"tok_{domain}@64", folder / f"{domain}-tokenizer"))

    (folder / "fourm.yaml").write_text(CONFIG, encoding="utf-8")
    run = walk.train(
        *("Pretraining", f"a small fourm/tiny predicts some tokens of all views from other tokens, {num_steps} steps"),
        *(folder / "fourm.yaml", f"data.train={folder}/train", f"data.valid={folder}/valid"),
        *(f"data.tokenizer={folder}/words", WHOLE, "data.batch_size=24", "log.every_steps=10"),
        *(f"evaluate.every_steps={num_steps}", "evaluate.num_examples=64"),
        num_steps=num_steps,
        checkpoint_steps=100,
        kill_after_step=130,
        shown=f"  {folder / 'fourm.yaml'}:\n\n{indent(CONFIG, '    ')}\n",
    )

    walk.chapter("From photographs", "depth, classes, caption and boxes of held-out scenes, compared with the truth")
    from_photographs = folder / "from-photographs"
    pretrainkit(
        *("generate", run, "--from", "rgb", "--from-data", NUM_VALID, "--to", "depth,seg,caption,det"),
        *("--temperature", 0, "--set", "depth.num_steps=1", "--set", "seg.num_steps=1"),
        *("--tokenizer", "=".join(map(str, pictures[1])), "--out", from_photographs),
    )

    walk.chapter("From a caption", "a new scene: first its depth, then its classes, then its photograph")
    from_caption = folder / "from-a-caption"
    pretrainkit(
        *("generate", run, PROMPT, "--to", "depth,seg,tok_rgb", "--num", 4, "--set", "grow_conditions=true"),
        *("--temperature", 0.7, "--set", "tok_rgb.guidance=2"),
        *(word for pair in pictures for word in ("--tokenizer", "=".join(map(str, pair)))),
        *("--out", from_caption),
    )

    walk.chapter("Report", "one HTML page: losses of every modality, and generated views")
    _show_generated(run, folder)
    walk.report(run)
    summary = read_json(folder / "from-photographs" / "generation.json")["summary"]
    classes, caption, boxes = (summary[name] for name in ("seg@64", "caption", "det"))
    depth_error, mean_depth_error = _depth_errors(folder)
    result = walk.numbers(
        depth_error=depth_error,
        mean_depth_error=mean_depth_error,
        class_accuracy=classes["accuracy"],
        commonest_class_accuracy=classes["guessed_accuracy"],
        caption_words=caption["words"],
        commonest_caption_words=caption["guessed_words"],
        box_iou=boxes["iou"],
        guessed_box_iou=boxes["guessed_iou"],
        box_iou_of_any_class=boxes["iou_of_any_class"],
        guessed_box_iou_of_any_class=boxes["guessed_iou_of_any_class"],
    )
    print(f"\n  Done in {walk.seconds / 60:.1f} minutes. From photographs of {NUM_VALID} held-out scenes:")
    rows = {"depth error, deviations": f"{depth_error:>7.3f}  (the mean depth: {mean_depth_error:.3f})"}
    for label, share, guess, guessed_share in (
        ("correct class of a patch", classes["accuracy"], "one", classes["guessed_accuracy"]),
        ("correct words of captions", caption["words"], "one", caption["guessed_words"]),
        ("overlap of boxes (IoU)", boxes["iou_of_any_class"], "some", boxes["guessed_iou_of_any_class"]),
        ("  of the same class", boxes["iou"], "some", boxes["guessed_iou"]),
    ):
        rows[label] = f"{100 * share:>5.1f} %  ({guess} for all: {100 * guessed_share:.1f} %)"
    files = {"pictures": folder / "from-photographs" / "sheet.png", "": folder / "from-a-caption" / "sheet.png"}
    walk.tell(rows, files, "To use your own folders, see docs/fourm-data.md and docs/generation.md.")
    return result


def _show_generated(run: Path, folder: Path) -> None:
    """Write the samples of the report: generated views of held-out photographs, and the true ones."""
    rows = []
    for number in range(NUM_SHOWN):
        generated, name = folder / "from-photographs" / f"{number:05}", f"{number:05}.png"
        valid, caption = folder / "valid", folder / "valid" / "caption" / f"{number:05}.txt"
        rows.append(
            {
                "photograph": [_picture(valid / "rgb" / name)],
                "depth": [_picture(generated / "tok_depth@64.png")],
                "true depth": [_picture(valid / "depth" / name)],
                "classes": [_picture(generated / "seg@64.png")],
                "true classes": [_picture(valid / "seg" / name)],
                "caption": [{"text": read_json(generated / "caption.json")}],
                "true caption": [{"text": caption.read_text(encoding="utf-8")}],
            }
        )
    (run / "samples.json").write_text(json.dumps(rows), encoding="utf-8")


def _picture(path: Path) -> dict[str, str]:
    """Return a picture for the report: colours unchanged, each class in a different grey, near depth bright."""
    pixels = _read(path)
    if pixels.ndim == 2:
        flat = pixels.astype(np.float64)
        is_depth = pixels.dtype == np.uint16
        low, high = (flat.min(), flat.max()) if is_depth else (0, len(KINDS))
        share = (flat - low) / max(high - low, 1)
        pixels = np.repeat((255 * (1 - share if is_depth else share))[..., None], 3, axis=2).astype(np.uint8)
    return {"image": thumbnail(np.repeat(np.repeat(pixels.transpose(2, 0, 1), 2, axis=1), 2, axis=2), 128)}


def _read(path: Path) -> NDArray[Any]:
    from PIL import Image

    return np.asarray(Image.open(path))


def _depth_errors(folder: Path) -> tuple[float, float]:
    """Return the mean absolute errors of the depth of held-out scenes: of the generated depth, and of the mean depth of
    the training scenes. Each depth image is first standardized to mean 0 and deviation 1."""
    mean_depth = _level(np.mean([_read(path) for path in sorted((folder / "train" / "depth").iterdir())], axis=0))
    errors = []
    for number in range(NUM_VALID):
        truth = _level(_read(folder / "valid" / "depth" / f"{number:05}.png"))
        generated = _level(_read(folder / "from-photographs" / f"{number:05}" / "tok_depth@64.png"))
        errors.append((np.abs(generated - truth).mean(), np.abs(mean_depth - truth).mean()))
    error, guessed = np.mean(errors, axis=0).tolist()
    return error, guessed


def _level(depth_HW: NDArray[Any]) -> NDArray[np.float64]:
    depth_HW = depth_HW.astype(np.float64)
    return (depth_HW - depth_HW.mean()) / max(depth_HW.std(), 1e-6)

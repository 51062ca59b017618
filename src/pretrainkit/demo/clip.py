"""The CLIP demo: train on generated images and captions for retrieval, with all techniques of ZeroVL."""

from pathlib import Path
from typing import Any

from pretrainkit.demo.shapes import write_sets
from pretrainkit.demo.walk import Walk, pretrainkit, quiet_transformers, read_json

NUM_TRAIN = 1300
NUM_VALID = 100
"""Number of images in each of the two sets, for training and held out."""
SIDE = 48
BATCH_SIZE, MICROBATCH_SIZE = 128, 64
TOKENIZER_SETTINGS = ("--kind", "wordpiece", "--vocab-size", "140")
"""With these, nearly all 40 words are single pieces. (Of a unigram vocabulary's 318 pieces, 256 would be bytes.)"""
PROMPTS = [
    "a big red circle at the top of a grey ground",
    "a small blue ring above a big yellow square on a pink ground",
]


def run_demo(folder: Path, num_steps: int, seed: int = 0) -> dict[str, Any]:
    """Run the demo in `folder`, which is replaced if it has an earlier demo. Return its headline numbers."""
    walk = Walk(folder, 7, seed)
    walk.chapter("Pairs", "two generated sets, one shape and two shapes, with two captions for each image")
    sizes = write_sets(folder / "sets", num_train=NUM_TRAIN, num_valid=NUM_VALID, side=SIDE, seed=0)
    for name, size in sizes.items():
        print(f"  {folder / 'sets' / name}: {size:,} pairs to train on, {2 * NUM_VALID} held out, no scene in both")
    sets = [folder / "sets" / name for name in sizes]
    pretrainkit("data", "check", *sets)

    walk.chapter("Vocabulary", "word pieces from the captions")
    pretrainkit("data", "captions", *sets, "--out", folder / "captions.jsonl")
    pretrainkit("corpus", "count-words", folder / "captions.jsonl", "--out", folder / "words.tsv")
    pretrainkit("tokenizer", "train", folder / "words.tsv", *TOKENIZER_SETTINGS, "--out", folder / "tokenizer")

    paths = ",".join(map(str, sets))
    run = walk.train(
        "Pretraining",
        f"{num_steps} steps; each batch from one set, coin-flipping mixup, {BATCH_SIZE} pairs from microbatches of "
        f"{MICROBATCH_SIZE}",
        *("clip/tiny", f"data.train={paths}", f"data.valid={paths}", f"data.tokenizer={folder}/tokenizer"),
        *(f"model.image.image_size={SIDE}", f"data.valid_transforms=[{{op: resize, size: {SIDE}}}]"),
        f"data.train_transforms=[{{op: random_resize_crop, size: {SIDE}, scale: [0.9, 1.0], ratio: [0.9, 1.1]}}]",
        *("data.order=debias", "objective.mixup={beta: 0.1}", "objective.duplicates=ignore"),
        *(f"data.batch_size={BATCH_SIZE}", f"data.microbatch_size={MICROBATCH_SIZE}", "log.every_steps=5"),
        num_steps=num_steps,
        checkpoint_steps=50,
        kill_after_step=70,
    )

    walk.chapter("Evaluation", "retrieval in both directions among the held-out pairs")
    pretrainkit("evaluate", run)

    walk.chapter("Search", "the held-out images that fit a caption best")
    for prompt, images in zip(PROMPTS, sets, strict=True):
        pretrainkit("generate", run, prompt, "--images", images / "valid", "--top", 3)

    walk.chapter("Export", "to Hugging Face's CLIPModel, read back by transformers")
    pretrainkit("export", run, "--format", "huggingface", "--out", folder / "export")
    print("  >>> CLIPModel.from_pretrained(EXPORT), CLIPProcessor.from_pretrained(EXPORT)")
    best = ask_transformers(folder / "export", sets[0] / "valid", PROMPTS[0])
    print(f"  {PROMPTS[0]}\n    {best}")

    walk.chapter("Report", "one HTML page, with retrieved pairs as pictures")
    walk.report(run)
    summary = read_json(run / "summary.json")
    asked = {"right caption found first": ("I2T-R@1", 1), "right image found first": ("T2I-R@1", 1)}
    asked["right image among the first five"] = ("T2I-R@5", 5)
    scores = {f"{name}_{metric}": summary[f"valid_{name}_{metric}"] for name in sizes for metric, _ in asked.values()}
    result = walk.numbers(**scores)
    rows = {  # one of 100 images fits a caption, two of 200 captions fit an image
        name: f"one shape: {scores[f'single_{metric}']:.0f} %, two shapes: {scores[f'pairs_{metric}']:.0f} % "
        f"(guessing: {100 * num_tries / NUM_VALID:.0f} %)"
        for name, (metric, num_tries) in asked.items()
    }
    files = {"run": run, "for transformers": folder / "export"}
    walk.tell(rows, files, "To use your own pairs, see the first lines of the recipe's README.")
    return result


def ask_transformers(export: Path, images: Path, prompt: str) -> str:
    """Return the file name of the image that fits `prompt` best, computed with transformers."""
    import torch
    from transformers.image_utils import load_image

    transformers = quiet_transformers()
    model = transformers.CLIPModel.from_pretrained(export)
    processor = transformers.CLIPProcessor.from_pretrained(export)
    paths = sorted(images.iterdir())
    inputs = processor(
        text=[prompt], images=[load_image(str(path)) for path in paths], return_tensors="pt", padding=True
    )
    with torch.no_grad():
        scores_N = model(**inputs).logits_per_text[0]
    return paths[int(scores_N.argmax())].name

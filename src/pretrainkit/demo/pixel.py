"""The PIXEL demo: render text, train a model to reconstruct hidden parts of it, and fine-tune it on parts of speech."""

from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from pretrainkit.demo.sentences import as_text, paragraphs, sentences
from pretrainkit.demo.walk import Walk, pretrainkit, read_json, write_json_lines
from pretrainkit.errors import InputError, import_optional
from pretrainkit.rendering.fonts import installed_font

NUM_PARAGRAPHS = 900
MAX_PATCHES = 48
NUM_TAGGED, NUM_HELD_OUT = 300, 200
"""Numbers of sentences with parts of speech, for training and held out."""
TEXT_SEED, TRAIN_SEED, HELD_OUT_SEED = 1, 2, 3
SCRIPTS = {
    "Latin": "All human beings are born free and equal in dignity and rights.",
    "Greek": "Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια και τα δικαιώματα.",
    "Cyrillic": "Все люди рождаются свободными и равными в своём достоинстве и правах.",
    "Armenian": "Բոլոր մարդիկ ծնվում են ազատ ու հավասար իրենց արժանապատվությամբ ու իրավունքներով։",
    "Georgian": "ყველა ადამიანი იბადება თავისუფალი და თანასწორი თავისი ღირსებითა და უფლებებით.",
}
"""The first words of the Universal Declaration of Human Rights, in scripts that need no shaping."""


def run_demo(folder: Path, num_steps: int, seed: int = 0, font: Path | None = None) -> dict[str, Any]:
    """Run the demo in `folder`, which is replaced if it has an earlier demo. Return its headline numbers.

    Args:
        num_steps: Number of optimizer updates of pretraining.
        font: Font file; None: DejaVu Sans Mono of the package matplotlib. Raises InputError if there is none.
    """
    font = font or default_font()
    walk = Walk(folder, 5, seed)
    walk.chapter("Text", "sentences of a small grammar, and a renderer that starts a new patch for each word")
    write_json_lines(folder / "text.jsonl", ({"text": text} for text in paragraphs(TEXT_SEED, NUM_PARAGRAPHS)))
    first = as_text(next(sentences(TEXT_SEED)))
    print(f"  {folder / 'text.jsonl'}: {NUM_PARAGRAPHS} paragraphs, such as: {first}")
    write_renderer(font, folder)

    walk.chapter("Rendering", "the text as rows of squares of 16 x 16 pixels; some rows are held out")
    pretrainkit(
        *("render", folder / "text.jsonl", "--renderer", folder / "renderer", "--max-patches", MAX_PATCHES),
        *("--heldout", 0.04, "--column", "text", "--out", folder / "rows"),
    )

    run = walk.train(
        *("Pretraining", f"pixel/tiny learns to reconstruct hidden squares, {num_steps} steps"),
        *("pixel/tiny", f"data.train={folder}/rows/train", f"data.valid={folder}/rows/valid"),
        *(f"data.max_patches={MAX_PATCHES}", "log.every_steps=5"),
        # AdamW gets beyond the average appearance of a line after 150 to 450 steps, depending on the seed, Muon by 150.
        *("optimizer.name=muon", "optimizer.momentum=0.95", "optimizer.peak_lr=5e-3"),
        *("evaluate.every_steps=100", "evaluate.num_examples=64"),
        num_steps=num_steps,
        checkpoint_steps=100,
        kill_after_step=225 if num_steps >= 300 else 125,
    )

    walk.chapter("Report", "one HTML page: masked and reconstructed text, after each evaluation and at the end")
    walk.report(run)

    walk.chapter("Task", f"the part of speech of each word, from {NUM_TAGGED} sentences")
    guesses = write_task(folder / "task")
    tagger = folder / "tagger"
    pretrainkit(
        *("finetune", "tags", "--from", run, f"data.train={folder}/task/train.jsonl"),
        *(f"data.valid={folder}/task/validation.jsonl", "data.max_seq_length=64", "data.num_epochs=10"),
        *("optimizer.peak_lr=2e-3", "evaluate.every_epochs=5", f"seed={seed}", "--out", tagger),
    )

    pretraining, tagging = (read_json(folder / name / "summary.json") for name in ("run", "tagger"))
    result = walk.numbers(
        masked_patch_loss=pretraining["valid_masked_patch_loss"],
        inked_patch_loss=pretraining["valid_inked_patch_loss"],
        blind_loss=pretraining["valid_blind_loss"],
        character_accuracy=pretraining["valid_character_accuracy"],
        most_frequent_character=pretraining["valid_most_frequent_accuracy"],
        accuracy=tagging["valid_accuracy"],
        majority_accuracy=round(guesses[0], 2),
        word_accuracy=round(guesses[1], 2),
    )
    walk.tell(
        {
            "held-out loss of hidden squares": f"{result['masked_patch_loss']:.3f} on standardized pixels (the mean of "
            f"each square: {result['blind_loss']:.3f})",
            "hidden letters that can be read": f"{result['character_accuracy']:.1%} (always the most frequent: "
            f"{result['most_frequent_character']:.1%})",
            "correct parts of speech": f"{result['accuracy']:.1f} % in {NUM_HELD_OUT} new sentences (always the same: "
            f"{guesses[0]:.1f} %, the usual one of each word: {guesses[1]:.1f} %)",
        },
        {"runs": f"{folder / 'run'}, {folder / 'tagger'}"},
        "To use your own text, see docs/rendering.md.",
    )
    return result


def default_font() -> Path:
    """Return the file of DejaVu Sans Mono in the package matplotlib, without importing it. Raises InputError if it is
    not installed."""
    if (path := installed_font()) is not None:
        return path
    raise InputError(
        "the demo needs a font: DejaVu Sans Mono of the package matplotlib is not installed\n"
        "  name a font: pretrainkit demo pixel --font FILE.ttf, or: pip install 'pretrainkit[demo]'"
    )


def write_renderer(font: Path, folder: Path) -> None:
    """Write the renderer of the demo to `folder`, and `scripts.png` with text in several scripts."""
    pillow = import_optional("PIL.Image", "vision", "a picture of text", package="pillow")
    from pretrainkit.rendering import Renderer, RendererConfig, save_renderer

    save_renderer(Renderer(RendererConfig(font_file=str(font), strategy="words")), folder / "renderer")
    page = Renderer(RendererConfig(font_file=str(font), max_seq_length=64, on_missing="ignore"))
    lines = np.concatenate([page(text).pixel_values for text in SCRIPTS.values()])
    lines = lines[:, : 8 + np.flatnonzero(lines.min(axis=0) < 255)[-1]]  # without the empty right part
    image = pillow.fromarray(lines)
    image.resize((2 * image.width, 2 * image.height)).save(folder / "scripts.png")
    print(f"  {folder / 'renderer'}: {font.name}; {folder / 'scripts.png'}: {', '.join(SCRIPTS)}, drawn by it")


def write_task(folder: Path) -> tuple[float, float]:
    """Write `train.jsonl` and `validation.jsonl` with rows {"words", "tags"} to a new folder.

    Return two baseline accuracies on the held-out words, in percent: always the most frequent tag of the training
    words, and the most frequent tag of the same word in training."""
    train = list(islice(sentences(TRAIN_SEED), NUM_TAGGED))
    training_sentences = {tuple(sentence) for sentence in train}
    held_out = list(
        islice(
            (sentence for sentence in sentences(HELD_OUT_SEED) if tuple(sentence) not in training_sentences),
            NUM_HELD_OUT,
        )
    )
    folder.mkdir()
    for name, chosen in (("train", train), ("validation", held_out)):
        columns = (zip(*sentence, strict=True) for sentence in chosen)
        write_json_lines(folder / f"{name}.jsonl", ({"words": words, "tags": tags} for words, tags in columns))
    pairs = [pair for sentence in train for pair in sentence]
    most_frequent = Counter(tag for _, tag in pairs).most_common(1)[0][0]
    by_form: dict[str, Counter[str]] = {}
    for word, tag in pairs:
        by_form.setdefault(word, Counter())[tag] += 1
    held_out_pairs = [pair for sentence in held_out for pair in sentence]
    guesses = [by_form[word].most_common(1)[0][0] if word in by_form else most_frequent for word, _ in held_out_pairs]
    num_correct = sum(guess == tag for guess, (_, tag) in zip(guesses, held_out_pairs, strict=True))
    num_most_frequent = sum(tag == most_frequent for _, tag in held_out_pairs)
    return 100 * num_most_frequent / len(held_out_pairs), 100 * num_correct / len(held_out_pairs)

"""The PIXEL demo: text is drawn, a model learns to draw what is hidden, and then to name parts of speech."""

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
"""Sentences with parts of speech: to train on, and to be asked about."""
TEXT_SEED, TRAIN_SEED, HELD_OUT_SEED = 1, 2, 3
SCRIPTS = {
    "Latin": "All human beings are born free and equal in dignity and rights.",
    "Greek": "Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια και τα δικαιώματα.",
    "Cyrillic": "Все люди рождаются свободными и равными в своём достоинстве и правах.",
    "Armenian": "Բոլոր մարդիկ ծնվում են ազատ ու հավասար իրենց արժանապատվությամբ ու իրավունքներով։",
    "Georgian": "ყველა ადამიანი იბადება თავისუფალი და თანასწორი თავისი ღირსებითა და უფლებებით.",
}
"""The first words of the Universal Declaration of Human Rights, as a font without shaping can draw them."""


def run_demo(folder: Path, num_steps: int, font: Path | None = None) -> dict[str, Any]:
    """Run the demo into `folder`, which is replaced when it holds an earlier one; return its headline numbers.
    `num_steps` are optimizer updates of pretraining, `font` is the file of a font; None: DejaVu Sans Mono of the
    package matplotlib. Raises InputError where there is none."""
    font = font or default_font()
    walk = Walk(folder, 6)
    walk.chapter("Text", "sentences of a small grammar, and a renderer that begins a patch with each word")
    write_json_lines(folder / "text.jsonl", ({"text": text} for text in paragraphs(TEXT_SEED, NUM_PARAGRAPHS)))
    first = as_text(next(sentences(TEXT_SEED)))
    print(f"  {folder / 'text.jsonl'}: {NUM_PARAGRAPHS} paragraphs, such as: {first}")
    write_renderer(font, folder)

    walk.chapter("Rendering", "the text as rows of squares of 16 x 16 pixels; some rows are held out")
    pretrainkit(
        *("render", folder / "text.jsonl", "--renderer", folder / "renderer", "--max-patches", MAX_PATCHES),
        *("--heldout", 0.04, "--out", folder / "rows"),
    )

    run = walk.train(
        *("Pretraining", f"pixel/tiny draws hidden squares again, {num_steps} steps"),
        *("pixel/tiny", f"data.train={folder}/rows/train", f"data.valid={folder}/rows/valid"),
        *(f"data.max_patches={MAX_PATCHES}", "log.every_steps=5"),
        *("evaluate.every_steps=100", "evaluate.num_examples=64"),
        num_steps=num_steps,
        checkpoint_steps=100,
        kill_after_step=225 if num_steps >= 300 else 125,
    )

    walk.chapter("Report", "one HTML page: hidden and drawn text, after each evaluation and at the end")
    walk.report(run)

    walk.chapter("Task", f"the part of speech of each word, from {NUM_TAGGED} sentences")
    guesses = write_task(folder / "task")
    tagger = folder / "tagger"
    pretrainkit(
        *("finetune", "tags", "--from", run, f"data.train={folder}/task/train.jsonl"),
        *(f"data.valid={folder}/task/validation.jsonl", "data.max_seq_length=64", "data.num_epochs=6"),
        *("optimizer.peak_lr=1e-3", "evaluate.every_epochs=2", "--out", tagger),
    )

    walk.chapter("Done", f"in {walk.seconds / 60:.1f} minutes")
    pretraining, tagging = (read_json(folder / name / "summary.json") for name in ("run", "tagger"))
    result = walk.numbers(
        masked_patch_loss=pretraining["valid_masked_patch_loss"],
        inked_patch_loss=pretraining["valid_inked_patch_loss"],
        blind_loss=pretraining["valid_blind_loss"],
        accuracy=tagging["valid_accuracy"],
        majority_accuracy=round(guesses[0], 2),
        word_accuracy=round(guesses[1], 2),
    )
    walk.tell(
        {
            "held-out loss of hidden squares": f"{result['masked_patch_loss']:.3f} of normalised pixels (the mean of "
            f"each square: {result['blind_loss']:.3f})",
            "parts of speech that are right": f"{result['accuracy']:.1f} % of the words of {NUM_HELD_OUT} new "
            f"sentences (always the same: {guesses[0]:.1f} %, the commonest of each word: {guesses[1]:.1f} %)",
        },
        {"runs": f"{folder / 'run'}, {folder / 'tagger'}"},
        "Your own text next: pretrainkit render, docs/rendering.md.",
    )
    return result


def default_font() -> Path:
    """Return DejaVu Sans Mono of the package matplotlib, which is not imported. Raises InputError where it is not
    installed."""
    if (path := installed_font()) is not None:
        return path
    raise InputError(
        "the demo draws text, and there is no font: it takes DejaVu Sans Mono of the package matplotlib\n"
        "  name a font of yours: pretrainkit demo pixel --font FILE.ttf, or: pip install 'pretrainkit[demo]'"
    )


def write_renderer(font: Path, folder: Path) -> None:
    """The renderer of the demo in `folder`, and `scripts.png`, lines of several scripts that it draws."""
    pillow = import_optional("PIL.Image", "vision", "a picture of text", package="pillow")
    from pretrainkit.rendering import Renderer, RendererConfig, save_renderer

    save_renderer(Renderer(RendererConfig(font_file=str(font), strategy="words")), folder / "renderer")
    page = Renderer(RendererConfig(font_file=str(font), max_seq_length=64, on_missing="ignore"))
    lines = [page(text).pixel_values for text in SCRIPTS.values()]
    image = pillow.fromarray(np.concatenate(lines))
    image.resize((2 * lines[0].shape[1], 32 * len(lines))).save(folder / "scripts.png")
    print(f"  {folder / 'renderer'}: {font.name}; {folder / 'scripts.png'}: {', '.join(SCRIPTS)}, drawn by it")


def write_task(folder: Path) -> tuple[float, float]:
    """Write `train.jsonl` and `validation.jsonl` of rows {"words", "tags"} into the new folder. Return per cent of
    held-out words that have the tag most frequent in training, and of those that have the tag that their own form has
    most often there."""
    train = list(islice(sentences(TRAIN_SEED), NUM_TAGGED))
    known = {tuple(sentence) for sentence in train}
    held_out = list(islice((one for one in sentences(HELD_OUT_SEED) if tuple(one) not in known), NUM_HELD_OUT))
    folder.mkdir()
    for name, chosen in (("train", train), ("validation", held_out)):
        columns = (zip(*sentence, strict=True) for sentence in chosen)
        write_json_lines(folder / f"{name}.jsonl", ({"words": words, "tags": tags} for words, tags in columns))
    pairs = [pair for sentence in train for pair in sentence]
    commonest = Counter(tag for _, tag in pairs).most_common(1)[0][0]
    by_form: dict[str, Counter[str]] = {}
    for word, tag in pairs:
        by_form.setdefault(word, Counter())[tag] += 1
    asked = [pair for sentence in held_out for pair in sentence]
    guesses = [by_form[word].most_common(1)[0][0] if word in by_form else commonest for word, _ in asked]
    right = sum(guess == tag for guess, (_, tag) in zip(guesses, asked, strict=True))
    share = sum(tag == commonest for _, tag in asked)
    return 100 * share / len(asked), 100 * right / len(asked)

"""The 4M demo: from a generated set of photographs, depth, classes, captions and boxes to any of them from any other.

Each command is printed as it is run, so that the demo reads as a tutorial.
"""

import json
import time
from pathlib import Path
from typing import Any

from pretrainkit.demo.rooms import KINDS, write_rooms
from pretrainkit.demo.walk import prepare_folder, pretrainkit, say, train_killed_and_resumed

NUM_TRAIN, NUM_VALID = 2000, 64
NUM_STEPS = 700
CHECKPOINT_STEPS = 100
KILL_AFTER_STEP = 160
"""Not a multiple of CHECKPOINT_STEPS: the steps since the last checkpoint are made again, and compared."""
NUM_CHAPTERS = 6
TRAIN_SEED, VALID_SEED = 1, 2
VOCAB_SIZE = 4128
"""4 control tokens, 50 sentinels, 4 000 numbers, 3 classes, 71 letters and words."""
MODEL = (
    *("model.hidden_size=128", "model.num_heads=2", "model.intermediate_size=341"),
    *("model.num_encoder_layers=2", "model.num_decoder_layers=2"),
)
PROMPT = "a red ball left of a blue cone in a grey room"


def run_demo(folder: Path, num_steps: int = NUM_STEPS) -> dict[str, Any]:
    """Run the whole demo into `folder`; returns its headline numbers.

    Args:
        folder: Replaced when it holds an earlier demo, refused when it holds anything else.
        num_steps: Optimizer updates.
    """
    began = time.monotonic()
    prepare_folder(folder)
    say(
        1,
        NUM_CHAPTERS,
        "Scenes",
        "each as photograph, depth, classes, caption and boxes, a file in a folder of its own",
    )
    captions = write_rooms(folder / "train", NUM_TRAIN, TRAIN_SEED)
    write_rooms(folder / "valid", NUM_VALID, VALID_SEED)
    print(f"  {folder / 'train'}: {NUM_TRAIN} scenes, such as: {captions[0]}; {NUM_VALID} are held out")

    say(2, NUM_CHAPTERS, "Vocabulary", "words of captions, numbers of boxes, sentinels for what is missing")
    (folder / "captions.txt").write_text("\n".join(captions) + "\n", encoding="utf-8")
    (folder / "classes.txt").write_text("\n".join(KINDS) + "\n", encoding="utf-8")
    pretrainkit("corpus", "count-words", folder / "captions.txt", "--out", folder / "words.tsv")
    pretrainkit(
        *("tokenizer", "train", folder / "words.tsv", "--kind", "multimodal", "--lowercase", "--sentinels", 50),
        *("--classes", folder / "classes.txt", "--vocab-size", VOCAB_SIZE, "--out", folder / "words"),
    )

    say(
        3,
        NUM_CHAPTERS,
        "Pretraining",
        f"a small fourm/tiny predicts some tokens of all views from others, {num_steps} steps; killed without warning "
        f"after step {KILL_AFTER_STEP}, then resumed",
    )
    run = folder / "run"
    command = [
        *("train", "fourm/tiny", f"data.train={folder}/train", f"data.valid={folder}/valid"),
        *(f"data.tokenizer={folder}/words", "data.crop={scale: [1, 1], ratio: [1, 1], flip: 0}", *MODEL),
        *("data.batch_size=24", "objective.loss=token", "optimizer.peak_lr=2e-3", f"num_steps={num_steps}"),
        *("precision.compute=float32", f"checkpoint.every_steps={CHECKPOINT_STEPS}", "log.every_steps=5"),
        *("evaluate.every_steps=200", "evaluate.num_examples=64", "--out", run),
    ]
    num_equal = train_killed_and_resumed(
        command, run, kill_after_step=KILL_AFTER_STEP, checkpoint_steps=CHECKPOINT_STEPS
    )

    say(4, NUM_CHAPTERS, "From photographs", "depth, classes, caption and boxes of held-out scenes, beside the truth")
    seen = folder / "from-photographs"
    pretrainkit(
        *("generate", run, "--from", "rgb", "--from-data", NUM_VALID, "--to", "depth,seg,caption,det"),
        *("--temperature", 0, "--set", "depth.num_steps=1", "--set", "seg.num_steps=1", "--out", seen),
    )

    say(5, NUM_CHAPTERS, "From a caption", "a scene of your own: first its depth, then its classes, then its colours")
    imagined = folder / "from-a-caption"
    pretrainkit(
        *("generate", run, PROMPT, "--to", "depth,seg,rgb", "--num", 4, "--set", "grow_conditions=true"),
        *("--temperature", 0.7, "--set", "rgb.guidance=2", "--out", imagined),
    )

    say(6, NUM_CHAPTERS, "Report", "one HTML page: losses of every modality, and views made from others")
    report = folder / "report.html"
    pretrainkit("report", run, "--out", report)
    return _told(folder, num_equal, time.monotonic() - began)


def _told(folder: Path, num_equal: int, seconds: float) -> dict[str, Any]:
    """Print the headline numbers, and return them."""
    record = json.loads((folder / "from-photographs" / "generation.json").read_text(encoding="utf-8"))
    found = record["summary"]
    depth, classes, caption, boxes = (found[name] for name in ("depth@64", "seg@64", "caption", "det"))
    result = {
        "depth_error": depth["error"],
        "mean_depth_error": depth["guessed_error"],
        "class_accuracy": classes["accuracy"],
        "commonest_class_accuracy": classes["guessed_accuracy"],
        "caption_words": caption["words"],
        "commonest_caption_words": caption["guessed_words"],
        "box_words": boxes["words"],
        "equal_losses_after_resume": num_equal,
        "seconds": round(seconds, 1),
        "report": str(folder / "report.html"),
    }
    print(f"\n  Done in {seconds / 60:.1f} minutes. From photographs of {NUM_VALID} held-out scenes:")
    for what, value, guess in (
        ("error of depth, deviations", f"{depth['error']:.3f}", f"the mean depth: {depth['guessed_error']:.3f}"),
        (
            "right class of a patch",
            _percent(classes["accuracy"]),
            f"one for all: {_percent(classes['guessed_accuracy'])}",
        ),
        ("words of the caption", _percent(caption["words"]), f"one for all: {_percent(caption['guessed_words'])}"),
        ("words of the boxes", _percent(boxes["words"]), f"some for all: {_percent(boxes['guessed_words'])}"),
    ):
        print(f"  {what:<28} {value:>7}  ({guess})")
    print(
        f"  losses equal after resume    {num_equal} of {num_equal}, every digit\n"
        f"  pictures                     {folder / 'from-photographs' / 'sheet.png'}\n"
        f"                               {folder / 'from-a-caption' / 'sheet.png'}\n"
        f"  report                       {result['report']}\n"
        "\n  Your own folders next: docs/fourm-data.md, docs/generation.md."
    )
    return result


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"

"""The stages that a campaign kills: small commands over every kind of output, each a few seconds at most."""

from typing import Any, NamedTuple

BERT = (
    *("bert/tiny", "model.num_layers=1", "model.hidden_size=32", "model.num_heads=2", "model.intermediate_size=64"),
    *("data.max_seq_length=32", "data.batch_size=8", "precision.compute=float32", "schedule.num_warmup_steps=2"),
    *("optimizer.peak_lr=1e-2", "checkpoint.every_steps=4", "evaluate.every_steps=4", "evaluate.num_examples=32"),
    *("log.every_steps=1", "num_steps=12", "ema_decay=0.9"),
)
COMMON = (
    *("schedule.num_warmup_steps=0", "checkpoint.every_steps=2", "precision.compute=float32", "num_steps=6"),
    *("evaluate.every_steps=2", "log.every_steps=1"),
)
T5 = (
    *("t5/tiny", "data.batch_size=8", "data.input_length=32", "data.target_length=16", "evaluate.num_examples=8"),
    *("model.hidden_size=16", "model.num_heads=2", "model.head_size=8", "model.intermediate_size=16"),
    *("model.num_encoder_layers=1", "model.num_decoder_layers=1", "ema_decay=0.9", *COMMON),
)
PIXEL = (
    *("pixel/tiny", "model.hidden_size=16", "model.num_layers=2", "model.intermediate_size=32"),
    *("model.decoder_hidden_size=16", "model.decoder_num_layers=1", "model.decoder_intermediate_size=32"),
    *("model.hidden_dropout=0.1", "model.max_patches=36", "data.max_patches=36", "data.min_text_patches=4"),
    *("data.batch_size=4", "data.microbatch_size=2", "evaluate.num_examples=8", "evaluate.num_samples=2", *COMMON),
)
CLIP = (
    *("clip/tiny", "model.image.image_size=16", "model.image.hidden_size=24", "model.image.num_heads=3"),
    *("model.image.intermediate_size=32", "model.text.hidden_size=16", "model.text.num_heads=2"),
    *("model.text.intermediate_size=32", "model.text.attention_dropout=0.2", "model.projection.dim=12"),
    *("data.train_transforms=[{op: random_resize_crop, size: 16}]", "data.valid_transforms=[{op: resize, size: 16}]"),
    *("data.batch_size=8", "data.microbatch_size=4", *COMMON),
)
FOURM = (
    *("fourm/tiny", "model.hidden_size=16", "model.num_heads=2", "model.num_encoder_layers=1"),
    *("model.num_decoder_layers=1", "model.intermediate_size=42", "masking.num_input_tokens=24"),
    *("masking.num_target_tokens=24", "data.batch_size=4", "data.microbatch_size=2", "evaluate.num_examples=4"),
    *COMMON,
)
IMAGE_TOKENIZER = (
    *("image_tokenizer/tiny", "model.image_size=16", "model.encoder.hidden_size=16", "model.encoder.num_layers=1"),
    *("model.encoder.num_heads=2", "model.decoder.hidden_size=16", "model.decoder.num_layers=1"),
    *("model.decoder.num_heads=2", "model.quantizer.size=16", "model.quantizer.width=4", "data.batch_size=8"),
    *("data.microbatch_size=4", "optimizer.epsilon=1e-4", "evaluate.num_examples=6", "evaluate.batch_size=4"),
    *COMMON,
)
GLUE = (
    *("precision.compute=float32", "log.every_steps=1", "data.max_seq_length=32", "data.num_epochs=null"),
    *("evaluate.every_epochs=null", "evaluate.every_steps=2", "checkpoint.every_steps=2"),
    *("optimizer.peak_lr=5e-3", "num_steps=6"),
)


class Stage(NamedTuple):
    """A command. `{in}` in a word is the folder of inputs; the command runs in an empty folder and writes `out`."""

    words: tuple[str, ...]
    needs: tuple[str, ...]
    """Inputs, see inputs.py. Each is created after those before it."""
    copies: tuple[str, ...] = ()
    """Inputs that the command changes; each trial has a copy of its own."""
    has_children: bool = False
    """True if the command starts processes."""
    has_hub: bool = False
    """True if the command uploads to a hub; what the hub then has is compared, too."""
    share: float = 1.0
    """Share of the kills, compared with a stage of one process: less for stages that take long."""


def _training(
    settings: tuple[str, ...], needs: tuple[str, ...], *more: str, ranks: int = 1, is_watched: bool = False
) -> Stage:
    launch = ("--launch", "local", "--nproc", str(ranks)) if ranks > 1 else ()
    if launch:
        launch += ("--hang-minutes", "0.25") if is_watched else ("--max-restarts", "0")
    words = ("train", *settings, *more, "--resume", *launch, "--out", "out")
    has_children = ranks > 1 or "data.workers=processes" in more
    return Stage(words, needs, has_children=has_children, share=0.2 if has_children else 1.0)


_TEXT = ("text", "corpus", "words")
_TOKENS = (*_TEXT, "tokenizer", "tokens")
_T5_TOKENS = (*_TEXT, "unigram", "t5_tokens")
_BERT_DATA = ("data.train={in}/tokens/train", "data.valid={in}/tokens/valid")
_BERT_RUN = (*_TOKENS, "bert_run")
_PAIRS = ("data.train={in}/pairs/set", "data.valid={in}/pairs/set", "data.tokenizer={in}/pairs/tokenizer")
_OTHERS: dict[str, tuple[Any, ...]] = {
    "t5": (T5, _T5_TOKENS, "data.train={in}/t5_tokens/train", "data.valid={in}/t5_tokens/valid"),
    "pixel": (
        *(PIXEL, ("text", "font"), "data.train={in}/text/part-0.txt", "data.valid={in}/text/part-1.txt"),
        "data.renderer={in}/font/latin.ttf",
    ),
    "clip": (CLIP, ("pairs",), *_PAIRS),
    "fourm": (
        *(FOURM, ("scenes",), "data.train={in}/scenes/train", "data.valid={in}/scenes/valid"),
        "data.tokenizer={in}/scenes/words",
    ),
    "image tokenizer": (IMAGE_TOKENIZER, ("images",), "data.train={in}/images/train", "data.valid={in}/images/valid"),
}
"""Settings, inputs and places of the data of each recipe except bert."""

STAGES = {
    "train bert": _training(BERT, _TOKENS, *_BERT_DATA),
    "train bert, saving in the foreground": _training(
        BERT, _TOKENS, *_BERT_DATA, "checkpoint.asynchronous=false", "checkpoint.keep_last=1"
    ),
    "train bert, 2 ranks": _training(BERT, _TOKENS, *_BERT_DATA, ranks=2),
    "train bert, 2 ranks, restarted": _training(
        BERT, _TOKENS, *_BERT_DATA, "checkpoint.asynchronous=false", ranks=2, is_watched=True
    ),
    **{f"train {name}": _training(*words) for name, words in _OTHERS.items()},
    **{f"train {name}, 2 ranks": _training(*words, ranks=2) for name, words in _OTHERS.items()},
    "train clip, worker processes": _training(*_OTHERS["clip"], "data.workers=processes"),
    "fine-tune glue": _training(
        ("glue/rte", *GLUE), ("glue",), "init_from={in}/glue/bert", 'data.task_folders={"glue": "{in}/glue/glue"}'
    ),
    "corpus wikipedia": Stage(
        (
            *("corpus", "wikipedia", "{in}/wiki/dump-0.xml.bz2", "{in}/wiki/dump-1.xml.bz2", "--num-shards", "2"),
            *("--workers", "1", "--out", "out"),
        ),
        ("wiki",),
    ),
    "corpus shards": Stage(
        (
            *("corpus", "shards", "{in}/text/*.jsonl", "--num-shards", "3", "--heldout", "0.1", "--workers", "1"),
            *("--out", "out"),
        ),
        ("text",),
    ),
    "corpus shards, 2 workers": Stage(
        (
            *("corpus", "shards", "{in}/text/*.jsonl", "--num-shards", "3", "--heldout", "0.1", "--workers", "2"),
            *("--out", "out"),
        ),
        ("text",),
        has_children=True,
        share=0.2,
    ),
    "corpus shuffle": Stage(("corpus", "shuffle", "{in}/text/*.jsonl", "--workers", "1", "--out", "out"), ("text",)),
    "corpus filter": Stage(
        ("corpus", "filter", "{in}/text/*.jsonl", "--min-words", "30", "--workers", "1", "--out", "out"), ("text",)
    ),
    "corpus dedup": Stage(
        ("corpus", "dedup", "{in}/text/*.jsonl", "--method", "minhash", "--workers", "1", "--out", "out"), ("text",)
    ),
    "corpus split": Stage(
        ("corpus", "split", "{in}/text/*.jsonl", "--heldout", "0.1", "--workers", "1", "--out", "out"), ("text",)
    ),
    "corpus compress": Stage(("corpus", "compress", "{in}/corpus/train", "--workers", "1", "--out", "out"), _TEXT[:2]),
    "corpus count-words": Stage(
        ("corpus", "count-words", "{in}/corpus/train/*.jsonl", "--workers", "1", "--out", "out"), _TEXT[:2]
    ),
    "corpus books": Stage(("corpus", "books", "{in}/text/*.txt", "--workers", "1", "--out", "out"), ("text",)),
    "corpus stats": Stage(
        ("corpus", "stats", "{in}/text/*.jsonl", "--workers", "1", "--page", "out.html", "--title", "t"), ("text",)
    ),
    "corpus corrupt": Stage(
        (
            "corpus",
            "corrupt",
            "{in}/rows/rows.jsonl",
            "--column",
            "text",
            "--attack",
            "inner-swap",
            "--out",
            "out.jsonl",
        ),
        ("rows",),
    ),
    "corpus unpack": Stage(("corpus", "unpack", "{in}/packed/corpus.tar", "--out", "out"), (*_TEXT[:2], "packed")),
    "corpus pack": Stage(("corpus", "pack", "{in}/corpus", "--out", "out.tar"), _TEXT[:2]),
    "corpus bert-text": Stage(("corpus", "bert-text", "{in}/corpus/train", "--out", "out"), _TEXT[:2]),
    "tokenizer train": Stage(
        (
            *("tokenizer", "train", "{in}/words/words.tsv", "--vocab-size", "700", "--sentences-from"),
            *("{in}/corpus/train/*.jsonl", "--out", "out"),
        ),
        _TEXT,
    ),
    "tokenizer train, wordpiece": Stage(
        ("tokenizer", "train", "{in}/words/words.tsv", "--kind", "wordpiece", "--vocab-size", "300", "--out", "out"),
        _TEXT,
    ),
    "tokenizer encode": Stage(
        ("tokenizer", "encode", "{in}/corpus", "--tokenizer", "{in}/tokenizer", "--workers", "1", "--out", "out"),
        _TOKENS[:4],
    ),
    "render": Stage(
        (
            *("render", "{in}/corpus", "--renderer", "{in}/font/latin.ttf", "--max-patches", "30", "--workers", "1"),
            *("--out", "out"),
        ),
        (*_TEXT[:2], "font"),
    ),
    "render, pushed": Stage(
        (
            *("render", "{in}/corpus", "--renderer", "{in}/font/latin.ttf", "--max-patches", "30", "--workers", "1"),
            *("--shard-characters", "1500", "--push", "someone/set"),
        ),
        (*_TEXT[:2], "font"),
        has_hub=True,
    ),
    "data push": Stage(("data", "push", "{in}/corpus", "someone/set"), _TEXT[:2], has_hub=True),
    "renderer make": Stage(("renderer", "make", "{in}/font/latin.ttf", "--out", "out"), ("font",)),
    "tasks cache": Stage(
        (
            *("tasks", "cache", "t5_source_marked", "--module", "{in}/tasks/own_tasks.py", "--num-shards", "2"),
            *("--workers", "1", "--out", "out"),
        ),
        ("tasks",),
    ),
    "data pack": Stage(("data", "pack", "{in}/pairs/set", "--shard-size", "5KB", "--out", "out"), ("pairs",)),
    "data captions": Stage(("data", "captions", "{in}/pairs/set", "--out", "out.jsonl"), ("pairs",)),
    "corpus tokenize-images": Stage(
        ("corpus", "tokenize-images", "{in}/image_run", "images/train", "images/valid", "--crops", "2"),
        ("images", "image_run"),
        copies=("images",),
    ),
    "export": Stage(("export", "{in}/bert_run", "--out", "out"), _BERT_RUN),
    "export, safetensors": Stage(("export", "{in}/bert_run", "--format", "safetensors", "--out", "out"), _BERT_RUN),
    "import": Stage(("import", "{in}/exported", "--out", "out"), (*_BERT_RUN, "exported")),
    "report": Stage(("report", "{in}/bert_run", "--out", "out.html"), _BERT_RUN),
    "infer": Stage(
        (
            *(
                "infer",
                "{in}/t5_run",
                "--input",
                "{in}/rows/rows.jsonl",
                "--inputs",
                "copy: {text}",
                "--batch-size",
                "4",
            ),
            *("--chunk-batches", "2", "--max-length", "6", "--out", "out.jsonl"),
        ),
        (*_T5_TOKENS, "t5_run", "rows"),
    ),
    "predict": Stage(
        (
            *(
                "predict",
                "{in}/glue_run",
                "--split",
                "validation",
                "--data",
                "glue={in}/glue/glue",
                "--batch-size",
                "4",
            ),
            *("--out", "out.jsonl"),
        ),
        ("glue", "glue_run"),
    ),
    "evaluate": Stage(
        ("evaluate", "bert_run", "--all-checkpoints"),
        _BERT_RUN,
        copies=("bert_run",),
    ),
    "sweep": Stage(
        (
            *("sweep", "glue", "--tasks", "rte,stsb", "--from", "{in}/glue/bert", "--lr", "5e-3", "--seeds", "1"),
            *("--data", "glue={in}/glue/glue", *(word for word in GLUE if "peak_lr" not in word), "--out", "out"),
        ),
        ("glue",),
        has_children=True,
        share=0.2,
    ),
}
"""Every stage by its name."""

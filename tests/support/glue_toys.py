"""A tiny BERT with a tokenizer of words, and tables in GLUE's layout whose labels the words decide."""

import json
import random
from pathlib import Path

import torch

from pretrainkit.recipes.bert.config import BertModelConfig, ModernModelConfig
from pretrainkit.recipes.bert.convert import write_huggingface
from pretrainkit.recipes.bert.model import build
from pretrainkit.tokenizers.special import SpecialIds

GOOD = ("fine", "bright", "kind", "warm", "brave", "merry")
BAD = ("dull", "grim", "cruel", "cold", "sour", "bleak")
OTHER = ("the", "a", "film", "house", "man", "road", "was", "seems", "very", "rather", "and", ".")
SPECIAL = SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4)
WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *GOOD, *BAD, *OTHER)
SMALL = {"hidden_size": 16, "num_layers": 2, "num_heads": 2, "intermediate_size": 32, "vocab_size": len(WORDS)}
QUICK = ["optimizer.peak_lr=5e-3", "precision.compute=float32", "log.every_steps=1", "data.max_seq_length=32"]


def write_tokenizer(folder: Path) -> Path:
    """Whole words, as `transformers` writes it."""
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

    model = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    model.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    model.add_special_tokens([AddedToken(word, special=True) for word in WORDS[:5]])
    folder.mkdir(parents=True, exist_ok=True)
    model.save(str(folder / "tokenizer.json"))
    names = {f"{role}_token": WORDS[number] for role, number in SPECIAL.as_dict().items()}
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **names}))
    return folder


def write_encoder(folder: Path, *, is_modern: bool = False, has_sentence_order: bool = True) -> Path:
    """A folder that `transformers` loads, with random weights."""
    torch.manual_seed(0)
    kind = ModernModelConfig if is_modern else BertModelConfig
    config = kind(**SMALL, max_positions=128, hidden_dropout=0.0, attention_dropout=0.0)
    model = build(config, has_sentence_order=has_sentence_order and not is_modern)
    tokenizer = write_tokenizer(folder.with_name(f"{folder.name}-words"))
    write_huggingface(model.state_dict(), config, folder, tokenizer=tokenizer, special=SPECIAL)
    return folder


def sentence(rng: random.Random, is_good: bool) -> str:
    words = [rng.choice(OTHER) for _ in range(rng.randint(2, 6))] + [rng.choice(GOOD if is_good else BAD)]
    rng.shuffle(words)
    return " ".join(words)


def write_glue(folder: Path) -> Path:
    """All ten data sets, as they are distributed."""
    rng = random.Random(0)
    names = {0: "entailment", 1: "neutral", 2: "contradiction"}

    def pairs(num, label_of):
        rows = []
        for _ in range(num):
            first, second = rng.random() < 0.5, rng.random() < 0.5
            rows.append((sentence(rng, first), sentence(rng, second), label_of(first, second)))
        return rows

    def write(path, header, rows):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        lines = [*([header] if header else []), *("\t".join(map(str, row)) for row in rows)]
        (folder / path).write_text("\n".join(lines) + "\n", encoding="utf-8")

    sizes = {"train": 64, "dev": 24, "test": 16}
    for split, num in sizes.items():
        many = 8 * num if split == "train" else num
        one = [(good := rng.random() < 0.5, sentence(rng, good)) for _ in range(many)]
        if split == "test":
            write("SST-2/test.tsv", "index\tsentence", [(i, text) for i, (_, text) in enumerate(one)])
            write("CoLA/test.tsv", "index\tsentence", [(i, text) for i, (_, text) in enumerate(one)])
        else:
            write(f"SST-2/{split}.tsv", "sentence\tlabel", [(text, int(good)) for good, text in one])
            write(f"CoLA/{split}.tsv", None, [("gj04", int(good), "", text) for good, text in one])
        same = pairs(num, lambda a, b: int(a == b))
        write(f"MRPC/{split}.tsv", "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String", [(c, 1, 2, a, b) for a, b, c in same])
        is_test = split == "test"
        for name, columns, label_of in (
            ("QQP", "id\tqid1\tqid2\tquestion1\tquestion2", lambda a, b: int(a == b)),
            ("QNLI", "index\tquestion\tsentence", lambda a, b: "entailment" if a == b else "not_entailment"),
            ("RTE", "index\tsentence1\tsentence2", lambda a, b: "entailment" if a == b else "not_entailment"),
            ("WNLI", "index\tsentence1\tsentence2", lambda a, b: int(a == b)),
            ("STS-B", "index\tgenre\tsentence1\tsentence2", lambda a, b: f"{5 * (a + b) / 2 - 0.2 * a:.3f}"),
        ):
            label = {"QQP": "is_duplicate", "STS-B": "score"}.get(name, "label")
            between = {"QQP": (1, 2), "STS-B": ("news",)}.get(name, ())
            rows = [(i, *between, a, b, c) for i, (a, b, c) in enumerate(pairs(num, label_of))]
            if is_test:
                write(f"{name}/test.tsv", columns, [row[:-1] for row in rows])
            else:
                write(f"{name}/{split}.tsv", f"{columns}\t{label}", rows)
        for part in ("",) if split == "train" else ("_matched", "_mismatched"):
            rows = pairs(num, lambda a, b: names[0 if a and b else 1 if a == b else 2])
            header = "index\tsentence1\tsentence2" + ("" if is_test else "\tgold_label")
            cut = 3 if is_test else 4
            write(f"MNLI/{split}{part}.tsv", header, [(i, *row)[:cut] for i, row in enumerate(rows)])
    rows = pairs(8, lambda a, b: "")
    write("AX/AX.tsv", "index\tsentence1\tsentence2", [(i, a, b) for i, (a, b, _) in enumerate(rows)])
    return folder

"""Remedies that messages print are followed as printed, and work.

A case is a command that must be refused, and a pattern of what is taken up of the printed advice. The match is a
command to run instead, or a setting or an option for the same command, with the reader's own values for words such as
FOLDER. A message whose remedy no case follows, nor another test by `remedies.followed`, fails the last test here."""

import io
import logging
import re
import shlex
import shutil
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pytest
from typer.main import get_command

from pretrainkit.api import load_config
from pretrainkit.cli import main
from pretrainkit.errors import InputError
from pretrainkit.recipes.registry import find_recipe
from pretrainkit.tasks.task import REGISTRY
from support import page_data as data
from support import remedies, remedies_of_alternatives, remedies_of_recipes, remedies_of_tools
from support.page_data import BERT, FOURM, GLUE, PIXEL, QUICK, QUICK_TASK, T5, T5_DATA, TOKENIZER, copy, killed, put
from support.page_runner import ROOT, Ended, run_here, run_warm_verb, within
from support.remedies import Case, followed
from support.remedies_of_alternatives import EXCUSED

pytestmark = pytest.mark.slow
PRESETS = (
    "bert/tiny",
    "t5/mini",
    "clip/tiny",
    "clip/zerovl",
    "pixel/tiny",
    "fourm/tiny",
    "image_tokenizer/tiny",
    "image_tokenizer/rgb",
    "glue/own",
)
TRAIN = f"train bert/tiny {BERT} {QUICK} --out {{out}}"
SHARDS = "data.train=tokens/train data.valid=tokens/valid"
T5_TRAIN = f"train t5/mini {T5} {T5_DATA} {QUICK} data.train=t5_tokens/train --out {{out}}"
OWN = "train glue/own init_from=bert data.train=claims.jsonl data.valid=claims.jsonl"
PIXELS = f"train pixel/tiny {PIXEL} {QUICK} --out {{out}}"
LONG = "model.max_positions=64 objective.max_predictions=null"
TASK = f"{GLUE} {QUICK_TASK} --out {{out}}"


NOT_HERE = remedies_of_recipes.NOT_HERE | remedies_of_tools.NOT_HERE
CASES = [
    # text
    Case("corpus shards --out {out} --heldout 0", "--books", {"--books": "text/part-0.txt"}),
    Case("corpus shards text/part-0.txt --out corpus --heldout 0", "--out", {"--out": "{out}"}),
    Case("corpus shards content.parquet --out {out} --heldout 0", "--text-key", {"--text-key": "content"}),
    Case("corpus shards broken.jsonl --out {out} --heldout 0", "--max-bad", {"--max-bad": "3"}),
    Case("corpus shards text/part-0.txt --out empty --compat sabertooth --heldout 0.1", "leave out --heldout", code=1),
    Case(
        "corpus shards text/part-0.txt --out {out} --compat sabertooth",
        "leave out --compat",
        {"+": "--heldout 0"},
        code=1,
    ),
    Case("corpus shards text/part-0.txt --out {out} --heldout 0 --memory 1MB", r"--memory \d+MB"),
    Case("corpus shards text/part-0.txt --out {out} --heldout 0 --engine slurm", "--engine local"),
    Case("corpus count-words text/part-0.txt --out words.tsv", "--out", {"--out": "{out}"}),
    Case("corpus count-words text/part-1.txt --out counted.tsv", "--out", {"--out": "{out}"}),
    Case("corpus count-words content.jsonl --out {out}", "--text-key", {"--text-key": "content"}),
    Case("corpus corrupt rows.jsonl --attack truncate --out {out}.jsonl", "--column", {"--column": "text"}),
    Case(
        "corpus corrupt rows.jsonl --column text --attack natural-typo --out {out}.jsonl",
        "--typos",
        {"--typos": "typos.tsv"},
    ),
    # tokenizers
    Case("tokenizer train words.tsv --vocab-size 90000 --out {out}", r"--vocab-size \d+"),
    Case("tokenizer train words.tsv --vocab-size 262 --out {out}", r"--vocab-size \d+"),
    Case("tokenizer train words.tsv --kind wordpiece --vocab-size 90000 --out {out}", r"--vocab-size \d+"),
    Case("tokenizer train words.tsv --kind wordpiece --vocab-size 10 --out {out}", r"--vocab-size \d+"),
    Case("tokenizer train words.tsv --kind multimodal --vocab-size 90000 --out {out}", r"--vocab-size \d+"),
    Case("tokenizer train words.tsv --kind multimodal --vocab-size 4206 --out {out}", r"--vocab-size \d+"),
    Case("tokenizer train words.tsv --vocab-size 500 --out tokenizer", "--out", {"--out": "{out}"}),
    Case(
        "tokenizer encode corpus --tokenizer text --out {out}",
        "pretrainkit tokenizer train words.tsv --out DIR",
        {"DIR": "{out}", "+": "--vocab-size 500"},
    ),
    Case("tokenizer encode corpus --tokenizer tokenizer --splitter none --out tokens", "--out", {"--out": "{out}"}),
    Case(
        "tokenizer encode content.jsonl --tokenizer tokenizer --out words.tsv",
        "--out",
        {"--out": "{out}", "+": "--text-key content"},
    ),
    Case("tokenizer encode rows.jsonl --tokenizer tokenizer --out text", "--out", {"--out": "{out}"}),
    Case("tokenizer encode content.jsonl --tokenizer tokenizer --out {out}", "--text-key", {"--text-key": "content"}),
    # configs and training
    Case(TRAIN, "data.train=FOLDER", {"FOLDER": "tokens/train"}),
    Case(
        f"{TRAIN} data.train=corpus/train",
        "pretrainkit tokenizer encode .*",
        {"DIR": "tokenizer", "FOLDER": "{out}"},
    ),
    Case(f"{TRAIN} {SHARDS} --out run", "--out FOLDER", {"FOLDER": "{out}"}),
    Case(f"{TRAIN} {SHARDS} --out killed", "pretrainkit resume [^\n]+"),
    Case(f"{TRAIN} {SHARDS} --out text", "--out FOLDER", {"FOLDER": "{out}"}),
    Case(f"{TRAIN} {SHARDS} data.num_epochs=1 data.batch_size=600 num_steps=9", r"num_steps=\d+", {}),
    Case(f"{TRAIN} {SHARDS} data.max_seq_length=70 {LONG}", r"data.max_seq_length=\d+"),
    Case(f"{TRAIN} {SHARDS} data.max_seq_length=70 {LONG}", r"model.max_positions=\d+"),
    Case(f"{TRAIN} {SHARDS} model.type_vocab_size=1", r"model.type_vocab_size=2"),
    Case(f"{TRAIN} {SHARDS} model.type_vocab_size=1", r"objective.sentence_order=false"),
    Case(f"{TRAIN} {SHARDS} objective.max_predictions=2", r"objective.max_predictions=\d+"),
    Case(f"{TRAIN} {SHARDS} objective.mean_span_length=4", r"objective.mask_unit=span"),
    Case(f"{TRAIN} {SHARDS} model.vocab_size=300", r"model.vocab_size=\d+"),
    Case(f"{TRAIN} {SHARDS} schedule.num_decay_steps=1", "schedule.name=wsd"),
    Case(f"{TRAIN} {SHARDS} schedule.name=wsd schedule.num_decay_steps=0", r"schedule.num_decay_steps=\d+"),
    Case(f"{TRAIN} {SHARDS} init.missing=random", "init_from=RUN", {"RUN": "run"}),
    Case(f"{TRAIN} {SHARDS} init_from=run init.restore=all init.missing=random", "init.restore=weights"),
    Case(f"{TRAIN} {SHARDS} first_step=9", "num_extra_steps=N", {"N": "2", "-": "num_steps=2"}),
    Case(
        f"{TRAIN} data.train=tokens/train data.valid=tokens/train",
        "pretrainkit corpus shards --heldout .*",
        {"+": "text/part-0.txt --out {out}", "0.01": "0.1"},
    ),
    Case("resume run optimizer.peak_lr=0.0123", r"pretrainkit resume [^\n]+"),
    Case("train tyni", "pretrainkit recipes"),
    Case("train nothing.yaml", "pretrainkit recipes"),
    Case("train run", r"pretrainkit train \S+", {"+": "--out {out}"}),
    Case("train stopped", r"pretrainkit resume [^;\s]+"),
    Case("config show bert/tiny optimizer.peek_lr=1", "pretrainkit config show [^\n]+"),
    Case("config show bert/tiny peak_lr", "optimizer.peak_lr=1e-4", {"-": "peak_lr"}),
    Case("evaluate no-valid", "pretrainkit evaluate .* data.valid=FOLDER", {"FOLDER": "tokens/valid"}),
    Case(f"{TRAIN} {SHARDS} evaluate.every_steps=5 --nproc 2", "leave out --nproc"),
    Case(f"{TRAIN} {SHARDS} --dry-run", "pretrainkit plan --help"),
    # T5
    Case(f"train t5/mini {T5} {T5_DATA} {QUICK} --out {{out}}", "data.train=FOLDER", {"FOLDER": "t5_tokens/train"}),
    Case(f"{T5_TRAIN} data.target_length=5", r"data.target_length=\d+"),
    Case(f"{T5_TRAIN} model.vocab_size=300", r"model.vocab_size=\d+"),
    Case(f"{T5_TRAIN} data.packed_rows=8", "data.packing=true", {"-": "data.packed_rows=8"}),
    Case(f"{T5_TRAIN} data.denoising.name=lm", "model.kind=decoder_only model.num_encoder_layers=null", {}),
    Case(f"{T5_TRAIN} optimizer.name=adafactor optimizer.adafactor.step_offset=5", "optimizer.adafactor.step_offset=0"),
    Case(f"{T5_TRAIN} precision.compute=float16", "float32", {"float32": "precision.compute=float32"}),
    Case(
        "infer t5 --input content.jsonl --max-length 3 --out {out}",
        "--inputs 'summarize: {article}'",
        {"article": "content"},
    ),
    Case("infer t5 --out {out}.jsonl", "--input rows.jsonl", {"+": "--inputs text --max-length 3"}),
    Case("infer t5 --input rows.jsonl --inputs text --mode score --out {out}", "--targets", {"--targets": "text"}),
    Case("infer t5 --input rows.jsonl --inputs text --max-length 3 --out answers.jsonl", "--overwrite"),
    Case("infer t5 --input rows.jsonl --inputs text --max-length 4 --out answers.jsonl", "--out", {"--out": "{out}"}),
    Case("tasks show nothing", "pretrainkit tasks[a-z ]*"),
    Case("tasks show glue_cola_v002 --data glue=text", "--data glue=DIR", {"DIR": "glue"}),
    # fine-tuning
    Case(f"finetune rte --from bert --data glue=glue {TASK} data.max_seq_length=900", r"data.max_seq_length=\d+"),
    Case(f"train glue/rte data.task_folders.glue=glue {TASK}", "init_from=RUN", {"RUN": "bert"}),
    Case(
        f"{OWN} data.texts=claim {TASK}",
        "data.label=COLUMN",
        {"COLUMN": "verdict"},
    ),
    Case(
        f"{OWN} data.label=verdict {TASK}",
        r"data.texts=\[premise,hypothesis\]",
        {"premise,hypothesis": "claim"},
    ),
    Case(
        f"{OWN} data.texts=claim data.label=verdict data.kind=numbers {TASK}",
        "data.kind=classes",
    ),
    Case(f"finetune rte --from bert --data glue=glue data.order=lanes {TASK}", "data.order=shuffle"),
    Case(f"finetune --task rte --from bert --data glue=glue {TASK}", "pretrainkit finetune .*"),
    Case(f"finetune rte --from bert --data glue {TASK}", "--data glue=DIR", {"DIR": "glue"}),
    Case(
        "predict bert --input claims.jsonl --out {out}",
        "pretrainkit finetune TASK --from RUN",
        {"TASK": "rte", "RUN": "bert", "+": f"--data glue=glue {TASK}"},
    ),
    Case(
        f"{OWN} data.texts=claim data.label=verdict {TASK} init_from=no-words",
        "data.tokenizer=FOLDER",
        {"FOLDER": "tokenizer"},
    ),
    Case(
        f"{OWN} data.texts=claim data.label=verdict {TASK} data.tokenizer=nothing",
        "data.tokenizer=FOLDER",
        {"FOLDER": "tokenizer"},
    ),
    Case(
        f"finetune tags --from bert data.train=tagged.jsonl data.valid=tagged.jsonl data.label=nothing {TASK}",
        "data.label=COLUMN",
        {"COLUMN": "labels"},
    ),
    Case(
        "generate tagger hello",
        "pretrainkit predict RUN --input FILE --out ANSWERS.jsonl",
        {"RUN": "tagger", "FILE": "tagged.jsonl", "ANSWERS": "{out}"},
    ),
    Case("export parser --out {out}", "--format safetensors"),
    Case("infer bert --input rows.jsonl --inputs text --out {out}", "pretrainkit generate", {"+": "bert 'A <mask>.'"}),
    Case("evaluate t5 --out {out}", "leave it out", {"leave it out": "leave out --out"}),
    # more of T5
    Case(f"{T5_TRAIN} data.denoising.num_sentinels=2", r"data.denoising.num_sentinels=\d+"),
    Case(
        f"{T5_TRAIN} objective.normalize_by=none optimizer.max_grad_norm=1", "objective.normalize_by=real_target_tokens"
    ),
    Case(
        f"{T5_TRAIN} data.denoising.name=packed_prefix_lm data.packing=true data.target_length=64", "data.packing=false"
    ),
    Case("export decoder --out {out}", "--format safetensors"),
    Case(
        f"train t5/mini {T5} {QUICK} data.task=glue_rte_v002 data.task_folders.glue=glue --out {{out}}",
        "data.tokenizer=DIR",
        {"DIR": "t5/tokenizer", "+": "data.batch_size=4"},
    ),
    Case("launch status run", "pretrainkit resume RUN", {"RUN": "to-go-on"}),
    Case(f"{TRAIN} data.train=/bucket/tokens --launch cloud --dry-run", "--cloud bucket=s3://NAME", {"NAME": "mine"}),
    Case(
        f"{PIXELS} data.renderer=renderer data.train=nothing",
        "pretrainkit render",
        {"+": "corpus --renderer renderer --out {out}"},
    ),
    Case(f"{PIXELS} data.train=corpus/train", "data.renderer=FONT.ttf", {"FONT.ttf": "renderer"}),
    Case(f"{PIXELS} data.renderer=renderer", "data.train=FOLDER", {"FOLDER": "corpus/train"}),
    Case(f"{PIXELS} data.renderer=renderer data.train=corpus/train data.max_patches=90", r"data.max_patches=\d+"),
    Case(f"{PIXELS} data.renderer=renderer data.train=corpus/train data.max_patches=90", r"model.max_patches=\d+"),
    Case(f"{PIXELS} data.train=rendered/train", r"data.max_patches=\d+", {"+": "model.max_patches=529"}),
    Case("render --out {out} --renderer renderer", "CORPUS", {"CORPUS": "corpus"}),
    Case("export fourm --out {out}", "--format safetensors"),
    Case("corpus tokenize-images tokenizer-run rooms/train --folder nothing", "--folder NAME", {"NAME": "rgb"}),
    Case("corpus tokenize-images tokenizer-run rooms/train --shard 4/4", r"--shard 0/\d"),
    Case(
        "generate fourm --from depth=rooms/valid/depth/00000.png --to depth --out {out}",
        "leave it out of --from",
        {"leave it out of --from": "--from", "--from": "rgb=rooms/valid/rgb/00000.png"},
    ),
    Case(
        "generate fourm --from-data 1 --to depth --set deep.num_steps=1 --out {out}",
        "TARGET.FIELD=VALUE",
        {"TARGET.FIELD=VALUE": "--set", "--set": "depth.num_steps=1"},
    ),
    Case("render corpus --out {out}", "--renderer", {"--renderer": "renderer"}),
    Case("render corpus --renderer renderer", "--out", {"--out": "{out}"}),
    Case("render corpus --renderer renderer", "--dry-run"),
    Case("render corpus --renderer renderer --out rendered --max-patches 60", "--out", {"--out": "{out}"}),
    Case("render corpus --renderer renderer --out text", "--out", {"--out": "{out}"}),
    Case("render corpus --renderer renderer --out words.tsv", "--out", {"--out": "{out}"}),
    Case("render corpus --renderer renderer --heldout 0.1 --out {out}", "leave out --heldout"),
    Case("export tokenizer-run --format 4m-tokenizer --out {out}.safetensors", "--format safetensors"),
    Case(
        f"train image_tokenizer/tiny {TOKENIZER} {QUICK} --out {{out}}", "data.train=FOLDER", {"FOLDER": "rooms/train"}
    ),
    Case(
        f"train image_tokenizer/tiny {TOKENIZER} {QUICK} data.train=rooms/train/rgb --out {{out}}",
        "model.domain.folder=NAME, or .",
        {"model.domain.folder=NAME, or .": "model.domain.folder=."},
    ),
    Case("generate fourm", "--to", {"--to": "depth --from-data 1 --out {out}"}),
    Case("generate fourm --from rgb=nothing.png --to rgb --from-data 2 --out {out}", "--from rgb", {}),
    Case(
        f"train fourm/tiny {FOURM} {QUICK} data.train=rooms/train --out {{out}}",
        "data.tokenizer=FOLDER",
        {"FOLDER": "words"},
    ),
    Case(
        f"train fourm/tiny {FOURM} {QUICK} data.tokenizer=words --out {{out}}",
        "data.train=FOLDER",
        {"FOLDER": "rooms/train"},
    ),
    *remedies_of_recipes.CASES,
    *remedies_of_tools.CASES,
    *remedies_of_alternatives.CASES,
]


@pytest.fixture(autouse=True)
def warm_sweeps() -> Iterator[None]:
    with mock.patch("pretrainkit.sweep.runs.Worker.run", run_warm_verb):
        yield


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the inputs of the cases' commands. The tasks that they define are removed with it."""
    import_module("pretrainkit.recipes.t5.catalogue")
    known = set(REGISTRY.names())
    folder = tmp_path_factory.mktemp("lab")
    make_lab(folder)
    remedies_of_recipes.prepare(folder)
    remedies_of_tools.prepare(folder)
    remedies_of_alternatives.prepare(folder)
    yield folder
    for name in set(REGISTRY.names()) - known:
        REGISTRY.remove(name)


def make_lab(folder: Path) -> None:
    for name in (
        "corpus",
        "tokenizer",
        "tokens",
        "t5_tokens",
        "bert",
        "t5",
        "glue",
        "rooms",
        "words",
        "fourm",
        "renderer",
    ):
        copy(name, folder / name)
    for name in ("run", "killed", "stopped", "no-valid"):
        copy("bert", folder / name)
    for name in ("killed", "stopped"):
        killed(name)(folder)
    (folder / "empty").mkdir()
    config = folder / "no-valid" / "config.yaml"
    config.write_text(re.sub(r"  valid:\n(  - .*\n(    .*\n)*)", "  valid: []\n", config.read_text()))
    shutil.copy(data.stock() / "words.tsv", folder)
    data.put_texts(folder / "text", 2)
    rows = [{"content": text} for text in data.texts(12)]
    data.put_jsonl(folder / "content.jsonl", rows)
    data.put_jsonl(folder / "rows.jsonl", [{"text": row["content"], "more": "x"} for row in rows[:3]])
    data.put_jsonl(
        folder / "claims.jsonl", [{"claim": row["content"], "verdict": "yn"[n % 2]} for n, row in enumerate(rows)]
    )
    data.put_jsonl(folder / "numbers.jsonl", [{"text": "1 2 3"}])
    tagged = [{"words": ["a", "house"], "labels": ["DET", "NOUN"]}, {"words": ["see"], "labels": ["VERB"]}] * 4
    data.put_jsonl(folder / "tagged.jsonl", tagged)
    for name in ("no-words", "to-go-on"):
        copy("bert", folder / name)
    shutil.rmtree(folder / "no-words" / "tokenizer")
    killed("to-go-on")(folder)
    data.put_parquet(folder / "content.parquet", {"content": data.texts(12)})
    put(folder / "broken.jsonl", '{"text": "Whole."}\n{"text": "bro\n{"text": "Whole again."}\n')
    put(folder / "typos.tsv", "word\twrod\n")
    with within(folder):
        data.must("corpus", "count-words", "text/part-0.txt", "--out", "counted.tsv", "--workers", 1)
        asked = "infer t5 --input rows.jsonl --inputs more --max-length 3 --out answers.jsonl"
        data.must(*asked.split())
        data.must(*["render", "corpus", "--renderer", "renderer", "--out", "rendered"])
        words = f"train image_tokenizer/tiny {TOKENIZER} {QUICK} data.train=rooms/train --out tokenizer-run"
        data.must(*words.split())
        tagged = "data.train=tagged.jsonl data.valid=tagged.jsonl data.label=labels --out tagger"
        data.must(*f"finetune tags --from bert {GLUE} {QUICK_TASK} {tagged}".split())
        data.put_conllu(folder / "trees.conllu")
        parsed = "data.train=trees.conllu data.valid=trees.conllu --out parser"
        data.must(*f"finetune parse --from bert {GLUE} {QUICK_TASK} {parsed}".split())
        only = "model.kind=decoder_only data.denoising.name=lm data.train=t5_tokens/train --out decoder"
        decoder = T5.replace("model.num_encoder_layers=1", "model.num_encoder_layers=null")
        data.must(*f"train t5/mini {decoder} {T5_DATA} {QUICK} {only}".split())


class Tried(NamedTuple):
    message: str
    followed: str
    ended: Ended | None
    taken: frozenset[str]
    """Alternatives of the advice that were followed."""


def run_with_warnings(words: list[str]) -> tuple[Ended, str]:
    """A command, and what it logged: that is printed nowhere where pytest reads the logs."""
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setLevel(logging.WARNING)
    logging.getLogger("pretrainkit").addHandler(handler)
    try:
        ended = run_here(words)
    finally:
        logging.getLogger("pretrainkit").removeHandler(handler)
    return ended, written.getvalue()


@cache
def tried(number: int, folder: Path) -> Tried:
    """The message of a case, what it advises, and how following it ended."""
    case = CASES[number]
    with within(folder):
        given = shlex.split(case.given.replace("{out}", f"out-{number}"))
        refused, warned = run_with_warnings(given)
        printed = refused.err if case.code else warned + refused.out + refused.err
        message = printed[max(0, printed.find("error: ")) :]
        assert refused.code == case.code, f"{given} ended with {refused.code}\n{refused.err}"
        advice = remedies.advice(message)
        own = {name: value.replace("{out}", f"out-{number}-fixed") for name, value in case.own.items()}
        steps = [case.remedy] if isinstance(case.remedy, str) else case.remedy
        taken: set[str] = set()
        for at, step in enumerate(steps, start=1):
            option = step.removeprefix("leave out ") if step.startswith("leave out ") else None
            found = re.search(step if option is None else rf"leave out [^\n;]*?({option})(?![\w-])", advice)
            assert found, f"{step!r} is not in the advice:\n{message}"
            taken |= remedies.taken(advice, *found.span(0 if option is None else 1))
            words = follow(given, found[0] if option is None else step, own)
            ended = run_here(words)
            if at < len(steps):
                assert ended.code == 0, f"{message}\nfollowed: {words}\n{ended.err}"
        return Tried(message, shlex.join(words), ended, frozenset(taken))


def follow(given: list[str], remedy: str, own: Mapping[str, str]) -> list[str]:
    """The words of the command that takes the remedy up."""
    more = shlex.split(own.get("+", ""))
    given = [word for word in given if word not in shlex.split(own.get("-", ""))]
    for name, value in own.items():
        if name[0] not in "+-":
            remedy = remedy.replace(name, value)
    if remedy.startswith("leave out "):
        option = remedy.removeprefix("leave out ")
        at = given.index(option)
        return given[:at] + given[at + 2 :] + more
    words = shlex.split(remedy)
    if words[0] == "pretrainkit":
        return words[1:] + more
    if words[0].startswith("--"):
        words = [words[0], *shlex.split(own.get(words[0], "")), *words[1:]]
        while words[0] in given and len(words) > 1:
            at = given.index(words[0])
            given = given[:at] + given[at + 2 :]
        return given + words + more
    new = {word.partition("=")[0] for word in words if "=" in word}
    return [word for word in given if word.partition("=")[0] not in new] + words + more


@pytest.mark.parametrize(
    "number", range(len(CASES)), ids=lambda number: f"{CASES[number].remedy}: {CASES[number].given}"[:90]
)
def test_the_remedy_works(number: int, lab: Path) -> None:
    message, followed, ended, _ = tried(number, lab)
    assert ended.code == CASES[number].ends, (
        f"{message}\nfollowed: {followed}\nended with {ended.code}\n{ended.out}{ended.err}"
    )


@pytest.mark.parametrize("kind", ["files", "saved by datasets"])
def test_text_becomes_token_shards_by_the_commands_of_the_message(kind: str, tmp_path: Path) -> None:
    if kind == "files":
        data.put_texts(tmp_path / "text", 2, 160)
    else:
        datasets = pytest.importorskip("datasets")
        splits = {name: datasets.Dataset.from_dict({"text": data.texts(160, 0)}) for name in ("test", "train")}
        datasets.DatasetDict(splits).save_to_disk(str(tmp_path / "text"))
    with within(tmp_path):
        command = f"train bert/tiny {BERT} {QUICK} --out run".split()
        refused = run_here([*command, "data.train=text"])
        advice = followed(refused.err.partition("error: ")[2], "tokenizers/shards.py: … is text, not token shards")
        for words in map(shlex.split, re.findall(r"pretrainkit (.+)", advice)):
            data.must(*words, *(["--vocab-size", 500] if words[:2] == ["tokenizer", "train"] else []))
        (setting,) = re.findall(r"data.train=[^\s:]+", advice)
        data.must(*command, setting)


def test_a_tokenizer_that_a_run_lost_is_put_back_as_advised(lab: Path, tmp_path: Path) -> None:
    shutil.copytree(lab / "no-words", tmp_path / "RUN")
    command = ["generate", str(tmp_path / "RUN"), "A <mask>."]
    refused = run_here(command)
    advice = followed(refused.err.partition("error: ")[2], "running/opened.py: there is no tokenizer beside the model")
    shutil.copytree(lab / "tokenizer", tmp_path / re.search(r"RUN/\w+", advice)[0])
    data.must(*command)


def test_an_export_that_cannot_come_back_is_one_of_ours_as_advised(
    lab: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An own recipe may write files for transformers that it cannot read."""

    def cannot(*_: object) -> None:
        raise InputError("recipe 'bert' cannot read folders of transformers")

    monkeypatch.setattr(type(find_recipe("bert")), "import_huggingface", cannot)
    ended, warned = run_with_warnings(["export", str(lab / "bert"), "--out", str(tmp_path / "theirs")])
    assert ended.code == 0
    message = warned[warned.index("the export cannot") :]
    advice = followed(message, "running/exchange.py: the export cannot be imported again")
    option = re.search(r"--format \w+", advice)[0].split()
    data.must("export", lab / "bert", *option, "--out", tmp_path / "ours")
    with within(lab):
        data.must(*f"train bert/tiny {BERT} {QUICK} {SHARDS} init_from={tmp_path}/ours --out {tmp_path}/on".split())


def test_without_a_compiler_the_warning_names_the_setting_that_silences_it(
    lab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "/nowhere/c++")
    monkeypatch.setenv("CC", "/nowhere/cc")
    command = f"train bert/tiny {BERT} {QUICK} {SHARDS} --device cpu"
    with within(lab):
        ended, warned = run_with_warnings([*command.split(), "parallel.compile=on", "--out", "compiled"])
        assert ended.code == 0
        advice = followed(warned, "dist/parallelize.py: torch.compile needs")
        off = re.search(r"parallel\.compile=\w+", advice)[0]
        ended, warned = run_with_warnings([*command.split(), off, "--out", "as-it-is"])
        assert ended.code == 0
        assert "compiler" not in warned


def test_data_that_loads_too_slowly_is_prepared_once_as_advised(lab: Path, tmp_path: Path) -> None:
    texts = f"pixel/tiny {PIXEL} data.train=corpus/train data.renderer=renderer"
    tasks = f"t5/mini {T5} {T5_DATA} data.task=good data.modules=my_tasks.py data.valid_split=null"
    for config, own in (
        (texts, {"TEXT": "corpus", "RENDERER": "renderer", "FOLDER": f"{tmp_path}/rows --max-patches 36"}),
        (tasks, {"FOLDER": f"{tmp_path}/caches --module my_tasks.py --workers 1"}),
    ):
        plan = f"plan {config} --no-dry-run --mfu 1"
        with within(lab):
            out = run_here(plan.split()).out
            command, setting = re.search(r"pretrainkit (.+), and (data\..+)", out).groups()
            for word, mine in own.items():
                command = command.replace(word, mine)
            data.must(*command.split())
            prepared = setting.replace("FOLDER", own["FOLDER"].split()[0])
            ended = run_here([*plan.split(), prepared])
        assert "data loading" in ended.out.lower(), ended.err
        assert "once" not in ended.out


def test_every_remedy_is_followed(lab: Path) -> None:
    """A new message with a remedy needs a case that follows it, or a reason in `NOT_HERE`."""
    printed = (remedies.site_of(tried(number, lab).message) for number in range(len(CASES)))
    followed = {
        like.key for site in printed if site for like in remedies.sites() if like.template == site.template
    }  # two equal messages cannot be distinguished
    untried = {site.key for site in remedies.sites()} - followed - remedies.followed_elsewhere()
    not_here = {pattern: {key for key in untried if re.search(pattern, key)} for pattern in NOT_HERE}
    assert all(not_here.values()), not_here
    left = sorted(untried.difference(*not_here.values()))
    assert not left, "write a case that follows the remedy: " + "\n".join(left)


def test_every_alternative_of_an_advice_is_followed(lab: Path) -> None:
    """Commands, options and settings that a message names beside each other: each works, not only one of them."""
    named: dict[str, set[str]] = {}
    for number in range(len(CASES)):
        done = tried(number, lab)
        if site := remedies.site_of(done.message):
            named.setdefault(site.key, set(site.alternatives)).difference_update(done.taken)
    excused = {key: names for start, names in EXCUSED.items() for key in named if key.startswith(start)}
    left = {key: names - excused.get(key, set()) for key, names in named.items()}
    assert {key: names for key, names in left.items() if names} == {}, "write a case that follows them"
    followed = {key: names - named[key] for key, names in excused.items() if names - named[key]}
    assert len(excused) == len(EXCUSED)
    assert followed == {}, "these are followed: they need no excuse"


def test_settings_options_and_packages_that_messages_name_exist() -> None:
    paths = {path for preset in PRESETS for path in paths_of(load_config(preset).model_dump())}
    leaves = {path.rpartition(".")[2] for path in paths}
    root = get_command(main.app)
    every = [command for verb in main.VERBS for command in commands_below(root.get_command(None, verb))]
    known_options = {name for command in [root, *every] for param in command.params for name in param.opts}
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    wrong = []
    for site in remedies.sites():
        advice = remedies.advice(site.template.replace(remedies.GAP, "X"))
        for match in remedies.SETTING.finditer(advice):
            top = match[1].partition(".")[0]
            is_setting = "." in match[1] and top in {path.partition(".")[0] for path in paths}
            if (
                is_setting
                and "X" not in match[1]
                and match[1] not in paths
                and match[1].rpartition(".")[2] not in leaves
            ):
                wrong.append(f"{site.key}: no setting {match[1]}")
        for match in remedies.OPTION.finditer(advice):
            if match[0] not in {*known_options, "--help", "--me", "--head"}:
                wrong.append(f"{site.key}: no option {match[0]}")
        for match in remedies.PACKAGE.finditer(advice):
            name = re.search(r"\[(\w+)\]", match[1])
            if name and name[1] != "X" and name[1] not in extras:
                wrong.append(f"{site.key}: no extra {name[1]}")
    assert not wrong, "\n".join(wrong)


def paths_of(tree: object, above: str = "") -> Iterator[str]:
    """Dotted paths of all fields of a config."""
    if isinstance(tree, dict):
        for name, value in tree.items():
            yield f"{above}{name}"
            yield from paths_of(value, f"{above}{name}.")


def commands_below(command: Any) -> Iterator[Any]:
    """A command with all below it."""
    yield command
    for below in getattr(command, "commands", {}).values():
        yield from commands_below(below)

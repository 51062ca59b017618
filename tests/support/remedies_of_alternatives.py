"""Other advice of messages: of several alternatives those that no case elsewhere follows."""

import shutil
from pathlib import Path

from support.page_data import BERT, GLUE, PIXEL, QUICK, QUICK_TASK, T5, T5_DATA, put
from support.remedies import Case
from support.remedies_of_recipes import BERTS, CLAIMS, FOURMS, OWN, PAIRS, T5_TASK
from support.remedies_of_tools import CLOUD, MODULE, SHARDS, T5_TRAIN, TASKS, TRAIN

DEPTH = "--to depth --out {out}"
LAUNCHED = f"{TRAIN} {SHARDS}"
WROTE = "`pretrainkit train` wrote, such as "
EXCUSED = {
    "cli/options.py: --launch none is a single process": {"--launch"},  # starts several processes
    "config/loader.py: cannot read …": {"dotted.path"},  # the form of a setting
    "dist/env.py: device … was requested": {"device"},  # the same in Python
    "launch/folder.py: … was not launched": {"--launch"},  # starts several processes
    "recipes/image_tokenizer/config.py: sizes from": {"model.patch_size"},  # names the source of the sizes
    "recipes/t5/inference.py: an example has no": {"--fields"},  # what is replaced
}
"""Alternatives that no case follows, by the beginning of the key of their site. It may only shrink."""
CASES = [
    # text
    Case("corpus shards --out {out} --heldout 0", "--wiki", {"--wiki": "articles.txt"}),
    Case("corpus shards --out {out} --heldout 0", "--help"),
    Case("corpus count-words --out {out}", "--help"),
    Case(
        "corpus shards text/part-0.txt --out empty-too --compat sabertooth --heldout 0.1",
        "leave out --compat",
        code=1,
    ),
    Case("corpus unpack foreign.tar --out {out}", "pretrainkit corpus pack", {"+": "tokens/train --out {out}"}),
    Case("data pack torn --out {out}", r"pretrainkit data check \S+", ends=2),
    # training
    Case(TRAIN, "pretrainkit tokenizer encode [^\n]+", {"CORPUS": "corpus", "DIR": "tokenizer", "FOLDER": "{out}"}),
    Case(
        "train t5/tiny --out {out}",
        "pretrainkit tokenizer encode [^\n]+",
        {"CORPUS": "corpus", "DIR": "tokenizer", "FOLDER": "{out}"},
    ),
    Case(f"{TRAIN} {SHARDS} --out run", r"pretrainkit resume \S+"),
    Case("train run", r"pretrainkit resume [^;\s]+"),
    *(Case(f"{LAUNCHED} {option} 2", f"leave out {option}") for option in ("--nodes", "--gpus-per-node")),
    Case(f"{LAUNCHED} init_from=nothing", "pretrainkit import", {"+": "electra --out {out}"}),
    Case(
        f"plan bert/tiny {BERT} parallel.strategy=hsdp --gpus 3 --gpus-per-node 2 --no-dry-run",
        "--gpus-per-node",
        {"--gpus-per-node": "3", "+": "data.batch_size=12"},
    ),
    *(
        Case(
            f"{CLOUD.replace('bucket=s3', 'task=tpu-vm --cloud bucket=s3')} {option} 2",
            f"leave out {option}",
        )
        for option in ("--nodes", "--gpus-per-node")
    ),
    Case(
        f"{CLOUD.replace('bucket=s3', 'task=tpu-vm --cloud bucket=s3')} --nproc 2",
        "--cloud task=nodes --gpus-per-node 8",
        {"+": "--cloud bucket=s3://mine", "-": "--nproc 2"},
    ),
    Case(
        f"{BERTS} data.train=wordless objective.mask_unit=whole_word",
        "pretrainkit tokenizer encode",
        {"+": "corpus --tokenizer tokenizer --out {out}"},
    ),
    Case("predict bert --input claims.jsonl --out {out}", "pretrainkit generate", {"+": "bert 'A <mask>.'"}),
    # T5 and tasks
    Case(
        f"config check t5/mini {T5} {T5_DATA} data.train=t5_tokens/train init_from=t5 num_steps=40 "
        "optimizer.name=adafactor optimizer.adafactor.step_offset=5",
        "init.restore=all",
    ),
    Case(
        f"{T5_TRAIN} precision.compute=float16",
        "float32 with precision.matmul_tf32=true",
        {"float32 with ": "precision.compute=float32 "},
    ),
    Case(
        "infer t5 --out {out}.jsonl",
        "--task NAME --split test",
        {"NAME": "good", "test": "train", "+": "--module my_tasks.py --max-length 3"},
    ),
    Case(
        f"{T5_TRAIN} data.denoising.num_sentinels=2",
        "pretrainkit tasks show [^\n]+",
        {"NAME": "marked", "+": f"{TASKS} --tokenizer tokenizer"},
    ),
    Case(
        f"train t5/mini {T5} {QUICK} data.task=glue_rte_v002 data.task_folders.glue=glue --out {{out}}",
        "config, --tokenizer DIR of pretrainkit tasks",
        {
            "config, --tokenizer DIR of pretrainkit tasks": "pretrainkit tasks show glue_rte_v002 --data glue=glue "
            "--tokenizer t5/tokenizer"
        },
    ),
    Case("tasks show unregistered", "--module FILE.py", {"FILE.py": "unregistered.py"}),
    Case(
        f"train t5/mini {T5} {T5_DATA} {QUICK} data.task=unimported data.valid_split=null --out {{out}}",
        r"data.modules=\[FILE.py\]",
        {"FILE.py": "unimported.py", "+": "data.target_length=64"},
    ),
    Case(f"tasks show most {TASKS}", "--leave-out lost of pretrainkit tasks", {" of pretrainkit tasks": ""}),
    Case(
        f"tasks show most {TASKS}",
        "data.leave_out=lost",
        {
            "data.leave_out=lost": f"pretrainkit config check t5/mini {T5} {T5_DATA} data.task=most "
            "data.modules=[my_tasks.py] data.leave_out=lost data.target_length=64"
        },
    ),
    Case(
        f"tasks show marked {TASKS} --tokenizer tokenizer --sentinels 1",
        "with pretrainkit tasks: --sentinels 100",
        {"with pretrainkit tasks: ": ""},
    ),
    Case(
        "tasks show good --module nothing",
        "--debug",
        {"--debug": "pretrainkit --debug tasks show good --module nothing"},
        ends=2,
    ),
    Case(
        f"{T5_TASK} data.task=c4_v020_unsupervised data.denoising.name=ul2 data.target_length=64",
        "pretrainkit tokenizer encode",
        {"+": "corpus --tokenizer t5/tokenizer --splitter none --out {out}"},
    ),
    Case(
        "config check t5/mini data.denoising.name=packed_prefix_lm data.input_length=64 data.target_length=32",
        r"data.input_length=\d+",
        {"+": "data.packing=false"},
    ),
    Case(
        "infer t5 --input rows.jsonl --inputs text --max-length 3 --out begun/more.jsonl",
        "--out",
        {"--out": "{out}"},
    ),
    # fine-tuning
    Case(
        f"{OWN.replace('data.texts=[claim]', '')} init_from=bert --out {{out}}",
        "data.task=cola",
        {"cola": "rte", "+": "data.task_folders.glue=glue", "-": f"{CLAIMS} data.label=verdict"},
    ),
    Case(
        "export pooled --out {out}",
        "model.pooling=null",
        {
            "model.pooling=null": f"pretrainkit train glue/own init_from=bert {CLAIMS} data.texts=[claim] "
            f"data.label=verdict model.pooling=null {GLUE} {QUICK_TASK} --out {{out}}"
        },
    ),
    # images and pictures of text
    Case(
        f"train pixel/tiny {PIXEL} {QUICK} data.train=corpus/train --out {{out}}",
        "pretrainkit render",
        {"+": "corpus --renderer renderer --out {out}"},
    ),
    Case(f"{PAIRS} data.tokenizer=null", "pretrainkit data captions", {"+": "pairs --out {out}.jsonl"}),
    Case(
        f"train fourm/tiny {FOURMS.partition('tiny ')[2].replace('data.tokenizer=words ', '')} data.train=rooms/train",
        "pretrainkit tokenizer train [^\n]+",
        {"FOLDER": "{out}", "+": "--vocab-size 4270 --lowercase"},
    ),
    Case("generate fourm", "--plan", {"--plan": "plan.yaml --from-data 1 --out {out}"}),
    Case(f"generate fourm --from depth=rooms/valid/depth/00000.png {DEPTH}", "--to", {"--to": "caption"}),
    Case(
        f"generate fourm --from rgb=rooms/valid/rgb/00000.png {DEPTH} --set depth.guided_by=[caption]",
        "--to",
        {"--to": "caption,depth"},
    ),
    Case(f"generate fourm --from rgb {DEPTH}", "--from-data", {"--from-data": "1"}),
    Case(
        f"generate fourm --from-data 1 {DEPTH} --set deep.num_steps=1", "seed=3", {"seed=3": "--set", "--set": "seed=3"}
    ),
    # programs
    Case("--help", "--version", {"--version": "pretrainkit --version"}, code=0),
    Case("--help", "--debug", {"--debug": "pretrainkit --debug recipes"}, code=0),
    *(
        Case(given, "`pretrainkit train` wrote, such as runs/NAME", own)
        for given, own in (
            ("resume text", {"`pretrainkit train` wrote, such as runs/NAME": "to-change num_steps=3", "-": "text"}),
            ("report text --out {out}.html", {"`pretrainkit train` wrote, such as runs/NAME": "run", "-": "text"}),
            (
                "report nothing --out {out}.html",
                {"`pretrainkit train` wrote, such as runs/NAME": "run", "-": "nothing"},
            ),
        )
    ),
]


def prepare(folder: Path) -> None:
    shutil.make_archive(str(folder / "foreign"), "tar", folder / "corpus")
    for task in ("unregistered", "unimported"):
        lines = (line for line in MODULE.splitlines(keepends=True) if not line.startswith(("put_task", "add_mixture")))
        put(folder / f"{task}.py", "".join(lines) + f'put_task("{task}", FORMAT, tokenize())\n')
    (folder / "empty-too").mkdir()
    put(folder / "begun" / "more.jsonl.chunks" / "request.json", "{}")
    put(folder / "begun" / "more.jsonl.chunks" / "chunk-00000.jsonl", "{}\n")
    put(folder / "plan.yaml", "targets:\n  - {modality: depth, num_steps: 1}\n")

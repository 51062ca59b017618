"""Remedies of the messages of all packages but the recipes, rendering, images and formats; `prepare` puts what their
commands read."""

import json
from pathlib import Path

from pretrainkit.launch.folder import Launch, LaunchFolder
from support import page_data as data
from support.page_data import BERT, GLUE, QUICK, QUICK_TASK, T5, T5_DATA, TOKENIZER, copy, put
from support.page_runner import within
from support.remedies import Case

TRAIN = f"train bert/tiny {BERT} {QUICK} --out {{out}}"
SHARDS = "data.train=tokens/train data.valid=tokens/valid"
T5_TASK = f"config check t5/mini {T5} {T5_DATA} {QUICK} data.target_length=64"
CLOUD = f"{TRAIN} data.train=/bucket/tokens --launch cloud --cloud bucket=s3://mine --dry-run"
T5_TRAIN = f"train t5/mini {T5} {T5_DATA} {QUICK} data.train=t5_tokens/train --out {{out}}"
CLAIMED = "data.texts=[claim] data.label=verdict"
SWEEP = f"{GLUE} {QUICK_TASK} --data glue=glue --lr 1e-4 --seeds 1 --no-submission"

MODULE = """
from pathlib import Path

from pretrainkit.tasks.preprocessors import format_strings, tokenize
from pretrainkit.tasks.task import Feature, Mixture, Task, add_mixture, add_task
from pretrainkit.tasks.named_data import NamedData
from pretrainkit.tasks.supply import RunVocabulary
from pretrainkit.tasks.sources import Tsv
from pretrainkit.tasks.steps import CacheMarker
from pretrainkit.tasks.vocabulary import ByteVocabulary
from pretrainkit.recipes.t5.catalogue.sentinels import AddSentinels

HERE = Path(__file__).parent
SOURCE = Tsv({"train": HERE / "pairs.tsv"})
FEATURES = {"inputs": Feature(ByteVocabulary()), "targets": Feature(ByteVocabulary())}
OPTIONAL = {"inputs": Feature(ByteVocabulary()), "targets": Feature(ByteVocabulary(), required=False)}
FORMAT = format_strings(inputs="{sentence}", targets="{label}")


def put_task(name, *steps, features=FEATURES, source=SOURCE):
    add_task(Task(name, source, features, steps))


put_task("good", FORMAT, tokenize(), CacheMarker())
put_task("cached", FORMAT, tokenize(), CacheMarker(required=True))
put_task("second", FORMAT, tokenize())
put_task("open", FORMAT, tokenize(), features=dict.fromkeys(FEATURES, Feature(RunVocabulary())))
OPEN = dict.fromkeys(FEATURES, Feature(RunVocabulary()))
put_task("marked", FORMAT, tokenize(), AddSentinels(2), features=OPEN)
put_task("lost", FORMAT, tokenize(), source=NamedData("lost"))
RAGGED = {"train": HERE / "ragged.tsv"}
put_task("ragged", FORMAT, tokenize(), source=Tsv(RAGGED))
put_task("ragged_allowed", FORMAT, tokenize(), source=Tsv(RAGGED, may_be_ragged=True))
put_task("needy_allowed", format_strings(inputs="{sentence}"), tokenize(), features=OPTIONAL)
put_task("failing", format_strings(inputs="{nothing}", targets="{label}"), tokenize())
put_task("needy", format_strings(inputs="{sentence}"), tokenize())
add_mixture(Mixture("most", [("good", 1), ("lost", 1)]))
add_mixture(Mixture("some", [("good", 1), ("second", 1)]))
"""
EXTRACTED = "pretrainkit corpus shards --wiki articles.txt --heldout 0 --out {out}"
ENCODED = "pretrainkit tokenizer encode digits.jsonl --tokenizer tokenizer --splitter newline --out {out}"
TASKS = "--module my_tasks.py"


CLUSTER = "needs a cluster or a cloud; launching has tests of its own, with a stand-in for SLURM"
DEVICE = "needs a GPU, or a device of another kind"
PROCESSES = "starts several processes; launching has tests of its own"
ELSEWHERE = "installs something, or needs another version"
DEMO = "runs a whole demo, which takes minutes"
CALLER = "no command gets there: a caller's mistake in Python, or a method that a recipe must override"
NOT_HERE = {
    "cli/corpus.py: --engine … needs a folder that all machines can read": CLUSTER,
    "cli/launching.py: … already holds a run / resume the sweep": CLUSTER,
    "cli/launching.py: … is not a sweep": CLUSTER,
    "cli/launching.py: every run of … is complete or in the queue": CLUSTER,
    "workers/ray_engine.py: no machine of the Ray cluster": CLUSTER,
    "workers/ray_engine.py: no Ray cluster answers": CLUSTER,
    "workers/slurm_engine.py: SLURM rejected the job": CLUSTER,
    "launch/slurm.py: --launch slurm: there is no sbatch": CLUSTER,
    "launch/slurm.py: SLURM rejected the job": CLUSTER,
    "launch/slurm.py: job … of … is in the queue": CLUSTER,
    "launch/slurm.py: scancel … failed": CLUSTER,
    "dist/env.py: this is process … on this machine": DEVICE,
    "dist/env.py: … processes were started on devices of type": DEVICE,
    "api.py: infer runs in a single process": PROCESSES,
    "dist/env.py: RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE must be integers": PROCESSES,
    "launch/agent.py: which the system sends if": PROCESSES,
    "launch/folder.py: … is being trained by another launcher": PROCESSES,
    "launch/local.py: error: no rank finished an update": PROCESSES,
    "training/run.py: parallel.strategy=… needs more than one rank": PROCESSES,
    "demo/pixel.py: the demo needs a font": ELSEWHERE,
    "errors.py: … needs the package": ELSEWHERE,
    "training/checkpoints/files.py: … has checkpoint format": ELSEWHERE,
    "cli/config.py: … / train it with": "trains a published model in its published size",
    "demo/prose.py: …: there are only … bytes of text": DEMO,
    "demo/walk.py: … has files that are not from a demo": DEMO,
    "demo/walk.py: cannot write": DEMO,
    "corpus/steps.py: `duplicates` is not supported in datatrove pipelines": CALLER,
    "corpus/steps.py: … must run in a pipeline with one task": CALLER,
}
"""Pattern of the keys of sites whose remedy no case can follow to the reason."""


CASES = [
    # text
    Case("corpus count-words text/part-0.txt --json", "--out", {"--out": "{out}"}),
    Case("corpus count-words --out {out}", "INPUT", {"INPUT": "text/part-0.txt"}),
    Case(
        "data captions captioned --out {out}.jsonl",
        "pretrainkit corpus count-words [^\n]*",
        {"words.tsv": "{out}.tsv"},
        code=0,
    ),
    Case("corpus corrupt rows.jsonl --attack truncate --column nothing --out {out}", "--column", {"--column": "text"}),
    Case(
        "corpus shards words.tsv --out {out} --heldout 0",
        "pretrainkit corpus count-words",
        {"+": "words.tsv --out {out}"},
    ),
    Case("corpus shards text/part-0.txt --out begun/of-others --heldout 0", "--out", {"--out": "{out}"}),
    Case("corpus shards text/part-0.txt --out held --heldout 0", "--out", {"--out": "{out}"}),
    Case(
        "corpus wikipedia articles.txt --out {out}",
        "extracted <doc> files to `corpus shards --wiki`",
        {"extracted <doc> files to `corpus shards --wiki`": EXTRACTED},
    ),
    Case("corpus hub hub-set --revision main --out {out} --heldout 0", "leave out --revision"),
    Case("corpus hub hub-set --column number --out {out} --heldout 0", "--column", {"--column": "text"}),
    Case("corpus hub hub-set --meta picture --out {out} --heldout 0", "leave out --meta"),
    Case("corpus hub hub-set --split test --out {out} --heldout 0", "--split", {"--split": "train"}),
    Case("corpus hub hub-empty --split train --out {out} --heldout 0", "--split", {"--split": "test"}),
    # tokenizers
    Case(
        "tokenizer encode corpus --tokenizer tokenizer --language de --out {out}",
        "leave it out",
        {"leave it out": "leave out --language"},
    ),
    Case(
        "tokenizer encode corpus --tokenizer tokenizer --language de --out {out}",
        "pretrainkit tokenizer train --sentences-from",
        {"+": "corpus/valid --language de words.tsv --vocab-size 500 --out {out}"},
    ),
    Case("tokenizer encode corpus --tokenizer spm --control-pieces ids --out {out}", "leave out --control-pieces"),
    Case(
        "tokenizer encode corpus --tokenizer spm --control-pieces ids --out {out}",
        "pretrainkit tokenizer train",
        {"+": "words.tsv --vocab-size 500 --out {out}"},
    ),
    Case("tokenizer train words.tsv --layout t5 --vocab-size 90000 --out {out}", r"--vocab-size \d+"),
    Case("tokenizer train words.tsv --layout t5 --vocab-size 262 --out {out}", r"--vocab-size \d+"),
    Case("tokenizer encode rows.jsonl --tokenizer tokenizer --out words.tsv", "--out", {"--out": "{out}"}),
    Case(
        "tokenizer train words.tsv --vocab-size 500 --sentences-from digits.jsonl --out {out}",
        "use --splitter newline",
        {"use --splitter newline": ENCODED},
    ),
    Case(
        f"{TRAIN} data.train=[tokens/train,t5_tokens/train]",
        "pretrainkit tokenizer encode",
        {"+": "corpus --tokenizer tokenizer --out {out}"},
    ),
    Case(
        f"{TRAIN} data.train=other_tokens/train init_from=bert",
        "pretrainkit tokenizer encode [^\n]*",
        {"CORPUS": "corpus", "FOLDER": "{out}"},
    ),
    # tasks
    Case(f"tasks show good {TASKS} --lengths 3", "inputs=512,targets=114", {"inputs": "--lengths inputs"}),
    Case(
        "tasks show good --module nothing", "the path of a .py file", {"the path of a .py file": "--module my_tasks.py"}
    ),
    Case(f"tasks show cached {TASKS}", "pretrainkit tasks cache [^\n]*", {"DIR": "{out}", "+": f"{TASKS} --workers 1"}),
    Case(f"tasks show most {TASKS}", "--leave-out lost"),
    Case(f"tasks cache good {TASKS} --workers 1 --out stale", "--out", {"--out": "{out}"}),
    Case(f"tasks cache good {TASKS} --workers 1 --out stale", "--overwrite"),
    Case(
        f"tasks show open {TASKS} --tokenizer corpus",
        "pretrainkit tokenizer train --layout t5",
        {"+": "words.tsv --vocab-size 500 --out {out}"},
    ),
    Case(f"tasks show open {TASKS} --tokenizer corpus", "bytes", {"bytes": "--tokenizer bytes"}),
    Case(
        f"tasks show good {TASKS} --cache torn",
        "pretrainkit tasks cache [^\n]*",
        {"TASK": "good", "DIR": "torn", "+": f"{TASKS} --workers 1"},
    ),
    Case(
        f"tasks show good {TASKS} --cache gone",
        "pretrainkit tasks cache [^\n]*",
        {"TASK": "good", "DIR": "gone", "+": f"{TASKS} --workers 1"},
    ),
    Case(
        f"tasks show ragged {TASKS}",
        "may_be_ragged=True",
        {"may_be_ragged=True": "pretrainkit tasks show ragged_allowed"},
    ),
    Case(
        f"tasks show needy {TASKS}",
        "required=False",
        {"required=False": f"pretrainkit tasks show needy_allowed {TASKS}"},
    ),
    Case(
        f"tasks show failing {TASKS}",
        "correct the step or the data; --debug",
        {"correct the step or the data; --debug": f"pretrainkit --debug tasks show failing {TASKS}"},
        ends=2,
    ),
    Case(f"tasks show marked {TASKS} --tokenizer tokenizer --sentinels 1", "--sentinels 100"),
    Case(
        f"train t5/mini {T5} {T5_DATA} {QUICK} data.modules=[my_tasks.py] data.task=marked data.valid_split=null "
        "data.tokenizer=tokenizer data.denoising.num_sentinels=0 --out {out}",
        "data.denoising.num_sentinels=100",
    ),
    # training
    Case(
        f"{TRAIN} data.train=t5_tokens/train",
        "pretrainkit tokenizer train",
        {"+": "words.tsv --vocab-size 500 --out {out}"},
    ),
    Case(f"{TRAIN} {SHARDS} init_from=run init.restore=all ema_decay=0.9 num_steps=40", "ema_decay=null"),
    Case(f"{TRAIN} {SHARDS} precision.compute=float16", "precision.compute=auto"),
    Case(
        f"{TRAIN} {SHARDS} init_from=stateless init.restore=all optimizer.name=sgd num_steps=4",
        r"init_from=\S+ init.restore=weights",
    ),
    Case(f"{TRAIN} data.train=tokens/train evaluate.every_steps=1", r"data.valid=\.\.\.", {"...": "tokens/valid"}),
    Case(f"{TRAIN} {SHARDS} --device mps", "--device cpu"),
    Case("train bert/tiny --out words.tsv/run " + f"{BERT} {QUICK} {SHARDS}", "--out FOLDER", {"FOLDER": "{out}"}),
    Case("resume text", "runs/NAME", {"runs/NAME": "to-change num_steps=3", "-": "text"}),
    Case("report text --out {out}.html", "runs/NAME", {"runs/NAME": "run", "-": "text"}),
    Case("report nothing --out {out}.html", "runs/NAME", {"runs/NAME": "run", "-": "nothing"}),
    Case("evaluate run --all-checkpoints --out rows.jsonl", "--out FILE", {"FILE": "{out}"}),
    Case(
        "corpus tokenize-images bert rooms/train --out {out}",
        "pretrainkit train [^\n]*",
        {"FOLDER": "rooms/train", "RUN": "{out}", "+": f"{TOKENIZER} {QUICK}"},
    ),
    Case("train bert/tiny --outt {out}", "pretrainkit train --help"),
    Case("data check captioned --page {out}.html", "leave out --page"),
    Case(f"{TRAIN} {SHARDS} schedule.name=factors", r"schedule.factors=\S+\]"),
    Case(
        "config check bert/tiny schedule.name=wsd schedule.num_decay_steps=0 num_steps=null data.num_epochs=1",
        r"schedule.num_decay_steps=\d+",
    ),
    Case(f"{TRAIN} {SHARDS} schedule.num_warmup_steps=20", r"schedule.num_warmup_steps=\d+"),
    Case(
        f"{TRAIN} {SHARDS} num_steps=10 schedule.name=wsd schedule.num_warmup_steps=6 schedule.num_decay_steps=6",
        r"schedule.num_warmup_steps=\d+ schedule.num_decay_steps=\d+",
    ),
    Case(f"{TRAIN} {SHARDS} init_from=nothing", "set it to a run", {"set it to a run": "init_from=bert"}),
    Case(
        f"{T5_TRAIN} init_from=foreign/tree.npz",
        (r"pretrainkit import [^\n]+", "init_from=WEIGHTS"),
        {"WEIGHTS": "{out}"},
    ),
    Case("config import clip.yaml --out {out}", "pretrainkit config check .*"),
    Case(
        "import foreign/tree.npz --recipe t5 --format t5x --pooling mean --out {out}",
        "leave --pooling out",
        {"leave --pooling out": "leave out --pooling"},
    ),
    Case(
        "generate no-words 'A <mask>.'",
        "pretrainkit import EXPORT .*",
        {"EXPORT": "no-words-export", "TOKENIZER": "tokenizer", "FOLDER": "{out}"},
    ),
    # plans and sweeps
    Case(f"plan bert/tiny {BERT} --price -1 --no-dry-run", "--price 3.5"),
    Case(
        f"plan bert/tiny {BERT} --hardware v100 precision.compute=bfloat16 --no-dry-run",
        "precision.compute=float16",
        {"-": "precision.compute=bfloat16"},
    ),
    Case(
        f"plan bert/tiny {BERT} parallel.strategy=hsdp --gpus 3 --gpus-per-node 2 --no-dry-run",
        "--gpus",
        {"--gpus": "4"},
    ),
    Case(f"sweep glue --from bert --tasks rte --from-mnli {SWEEP} --out {{out}}", "--tasks", {"--tasks": "mnli,rte"}),
    Case(f"sweep glue --from nothing --tasks rte {SWEEP} --out {{out}}", "--from RUN", {"RUN": "bert"}),
    Case(f"sweep glue --from bert --tasks rte {SWEEP} --out other-sweep", "--out", {"--out": "{out}"}),
    # machines
    Case(CLOUD.replace("--launch cloud", "--launch local --nodes 2"), "--launch", {"--launch": "cloud"}),
    Case(f"{CLOUD} --nproc 2 --gpus-per-node 1", "leave out --nproc"),
    Case(CLOUD.replace("{out}", "9{out}"), "--out FOLDER", {"FOLDER": "{out}"}),
    Case(f"{CLOUD} --cloud accelerators=H100:2", r"--gpus-per-node \d"),
    Case(f"{CLOUD.replace('bucket=s3', 'task=tpu-vm --cloud bucket=s3')} --nproc 2", "leave out --nproc"),
    Case("resume to-launch num_steps=3 --launch same", "--launch", {"--launch": "none"}),
    Case("launch logs launched --rank 3", "pretrainkit launch status [^\n]*"),
    Case("launch status damaged", "pretrainkit resume [^\n]*", {"+": "num_steps=3"}),
    # programs
    Case("infer t5 --task some --module my_tasks.py --split train --max-length 3 --out {out}.jsonl", r"--out \S+"),
    Case("infer t5 --input rows.jsonl --inputs text --max-length 3 --out begun/answers.jsonl", "--overwrite"),
    Case("export bert", "--out", {"--out": "{out}"}),
    Case("export bert --out {out} --dry-run", "leave out --dry-run"),
    Case(
        "export bert --push someone/model --format t5x",
        "--format huggingface",
        {"-": "--push someone/model", "+": "--out {out}"},
    ),
    Case("export bert --out corpus", "--out", {"--out": "{out}"}),
    Case("export bert --out words.tsv", "--out", {"--out": "{out}"}),
    Case("--help", "pretrainkit VERB --help", {"VERB": "train"}, code=0),
    Case("demo text/part-0.txt", "pretrainkit demo --text [^\n]*", {"+": "--help"}),
]


def prepare(folder: Path) -> None:
    put(folder / "my_tasks.py", MODULE)
    put(folder / "pairs.tsv", "sentence\tlabel\n" + "".join(f"sentence {n}\t{n % 2}\n" for n in range(8)))
    data.put_jsonl(folder / "digits.jsonl", [{"text": "1 2 3"}])
    data.put_pairs(folder / "captioned")
    put(folder / "articles.txt", '<doc id="1" url="u" title="Town">\nTown\n\nA town is a place.\n\n</doc>\n')
    put(folder / "held" / "train" / "part-00000-of-00001.jsonl", '{"text": "x"}\n')
    put(folder / "begun" / "of-others" / ".work" / "plan.json", "{}")
    put(folder / "ragged.tsv", "sentence\tlabel\na\tb\na\tb\tc\n")
    texts = data.texts(6)
    columns = {"text": texts, "number": [*range(6)], "picture": [b"\xff"] * 6}
    data.put_parquet(folder / "hub-set" / "train.parquet", columns)
    put(folder / "hub-empty" / "train.csv", "text\n")
    put(folder / "hub-empty" / "test.csv", "text\nA text.\n")
    put(folder / "other-sweep" / "sweep.json", json.dumps({"from": "another", "settings": []}))
    for name in ("to-change", "to-launch", "launched", "damaged"):
        copy("bert", folder / name)
    put(folder / "damaged" / "launch" / "launches.json", "{")
    LaunchFolder(folder / "launched").add(Launch("local", ("train",), ("train", "--resume"), job_ids=("1",)))
    put(folder / "begun" / "answers.jsonl.chunks" / "request.json", "{}")
    put(folder / "begun" / "answers.jsonl.chunks" / "chunk-00000.jsonl", "{}\n")
    copy("tokenizer", folder / "spm")
    (folder / "spm" / "tokenizer.json").unlink()
    with within(folder):
        for name in ("stale", "torn", "gone"):
            data.must(*f"tasks cache good {TASKS} --workers 1 --out {name}".split())
        info = Path("stale/good/info.train.json")
        put(info, info.read_text("utf-8").replace('"fingerprint": "', '"fingerprint": "0'))
        put(Path("torn/good/info.train.json"), "{")
        Path("gone/good/train/extras-00000-of-00001.ends").unlink()
        data.must(*["export", "no-words", "--out", "no-words-export"])
        stateless = "optimizer.name=sgd optimizer.momentum=0"
        data.must(*f"train bert/tiny {BERT} {QUICK} {SHARDS} {stateless} --out stateless".split())
        words = "tokenizer train counted.tsv --vocab-size 500 --out other"
        data.must(*words.split())
        data.must(*["tokenizer", "encode", "corpus", "--tokenizer", "other", "--out", "other_tokens"])

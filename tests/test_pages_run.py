"""Every command and every Python snippet of the README, the docs and the recipes' pages is run, in the order of its
page, at a small size on generated data."""

import contextlib
import json
import re
import shutil
import socket
from collections.abc import Iterator
from fnmatch import fnmatch
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from unittest import mock

import pytest

from pretrainkit import api
from pretrainkit.images.ops import CenterCrop, ResizeShorter
from pretrainkit.tasks.task import REGISTRY
from support import page_data as data
from support.page_data import BERT, FOURM, GLUE, PIXEL, QUICK, QUICK_TASK, T5, T5_DATA, TOKENIZER, copy, killed, put
from support.page_runner import ROOT, Walk, blocks_of, run_warm_verb, walk, within

pytestmark = pytest.mark.slow

RECIPES = "src/pretrainkit/recipes"
HUB = "needs the hub"
MISSING = {
    name: "this package is not installed"
    for name in ("open_clip", "sentence_transformers", "optimum")
    if find_spec(name) is None or (name == "optimum" and version("transformers") >= "5")
}
"""Packages of snippets."""
OTHER_MACHINES = "needs other machines"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port: int = probe.getsockname()[1]
        return port


def readme(folder: Path) -> None:
    data.put_texts(folder / "my_text", 10)
    for name in ("wiki", "books"):
        copy("tokens/train", folder / "data" / name)
    copy("tokens/valid", folder / "data" / "valid")


def nothing(folder: Path) -> None:
    """The page begins from nothing."""


def answers(folder: Path) -> None:
    copy("t5", folder / "runs" / "t5")
    copy("glue", folder / "data" / "glue")
    put(folder / "prompts.txt", "A prompt.\nAnother one.\n")
    rows = [{"article": text} for text in data.texts(3)]
    data.put_jsonl(folder / "articles.jsonl.gz", rows)
    put(folder / "pairs.tsv", "en\tde\na house\tein Haus\na tree\tein Baum\n")
    data.put_jsonl(folder / "rows.jsonl", [{"en": "a house", "de": "ein Haus"}])
    tasks(folder)
    (module,) = [block for block in blocks_of(ROOT / "docs/tasks.md") if block.name == "my_tasks.py"]
    put(folder / "my_tasks.py", module.text)


def tasks(folder: Path) -> None:
    """Write the data that docs/tasks.md reads."""
    for name, num in (("train", 12), ("dev", 4)):
        rows = [f"a\t{number % 2}\t\tIt is number {number}." for number in range(num)]
        put(folder / "cola" / f"{name}.tsv", "\n".join(rows) + "\n")
    data.put_jsonl(
        folder / "pairs-0.jsonl.gz", [{"en": "a house", "de": "ein Haus"}, {"en": "a tree", "de": "ein Baum"}]
    )
    copy("glue", folder / "data" / "glue")
    copy("t5_tokenizer", folder / "data" / "tokenizer")


def corpus(folder: Path) -> None:
    for number in range(3):
        data.put_documents(folder / "raw" / f"{number}.jsonl.zst", 30, seed=number)
        data.put_documents(folder / "more" / f"{number}.jsonl.zst", 30, seed=5 + number)
    data.put_texts(folder / "raw", 2, seed=10)
    data.put_texts(folder / "books", 600, 600, seed=11)
    data.put_texts(folder / "novels", 2, seed=12)
    articles = [
        f'<doc id="{n}" url="" title="T{n}">\nT{n}\n\n{text}\n</doc>\n' for n, text in enumerate(data.texts(12))
    ]
    put(folder / "text" / "AA" / "wiki_00", "".join(articles))
    copy("tokenizer", folder / "data" / "tokenizer")
    put(folder / "part-1.tsv", "a\t2\n")
    put(folder / "part-2.tsv", "a\t3\nb\t1\n")
    data.put_dump(folder / "enwiki-latest-pages-articles-multistream.xml.bz2")
    data.put_conllu(folder / "en_ewt-ud-test.conllu")
    put(folder / "snli" / "test.tsv", "sentence1\tsentence2\tlabel\nA dog runs.\tA cat sits.\tneutral\n")
    data.put_parquet(folder / "folder/with/parquet/0.parquet", {"content": data.texts(200)})


def generation(folder: Path) -> None:
    copy("fourm", folder / "runs" / "fourm")
    shutil.copy(data.part("rooms") / "valid/rgb/00000.png", folder / "photo.png")


def fourm_data(folder: Path) -> None:
    put(folder / "data" / "captions.txt", "\n\n".join(data.captions()) + "\n")


def weather(folder: Path) -> None:
    data.put_samples(folder / "data" / "photos", {"rgb": "rgb"})
    for number, photo in enumerate((folder / "data" / "photos").rglob("*.jpg")):
        record = {"celsius": 20.4 - number, "wind": number / 2, "sky": ("clear", "cloudy", "overcast")[number % 3]}
        put(Path(str(photo).replace("rgb", "weather")).with_suffix(".json"), json.dumps(record))


def walkthrough(folder: Path) -> None:
    views = {"rgb": "rgb", "seg": "semseg", "det": "det", "caption": "caption", "depth": "depth"}
    for number, (name, wanted) in enumerate(
        {
            "tartanair": "rgb depth",
            "sygrid": "rgb depth seg det",
            "coco": "rgb seg det caption",
            "coco_dense": "rgb seg det",
        }.items()
    ):
        data.put_samples(folder / "data" / name, {view: views[view] for view in wanted.split()}, seed=number)


def image_tokenizers(folder: Path) -> None:
    copy("rooms", folder / "data" / "rooms")
    copy("rooms/train/rgb", folder / "data" / "flowers")
    for number in range(2):
        data.put_tar(folder / "data/cc12m/rgb" / f"{number:05}.tar", data.part("rooms") / "train/rgb")


def launching(folder: Path) -> None:
    copy("tokens", folder / "data" / "tokens")


def prerendering(folder: Path) -> None:
    data.put_font(folder / "fonts" / "NotoSans-Regular.ttf")
    copy("corpus", folder / "corpus")
    data.put_texts(folder / "books", 600, 600, seed=11)
    put(folder / "wiki.txt", "\n\n\n\n".join(data.texts(6)))
    copy("renderer", folder / "renderer")
    copy("rows", folder / "rendered-bookcorpus")


def rendering(folder: Path) -> None:
    data.put_font(folder / "fonts" / "NotoSans-Regular.ttf")
    copy("renderer", folder / "exported")
    copy("corpus", folder / "corpus")


def tasks_page(folder: Path) -> None:
    tasks(folder)
    put(folder / "data/nli/pairs_1.txt", "a\tb\tlabel\nx\ty\t1\n")


def tokenizers(folder: Path) -> None:
    copy("corpus", folder / "data" / "corpus")
    data.part("tokenizer")
    shutil.copy(data.stock() / "words.tsv", folder / "data" / "words.tsv")


def training(folder: Path) -> None:
    copy("tokens", folder / "data" / "tokens")
    for name in ("wiki", "books"):
        copy("tokens/train", folder / "data" / name)


def published(folder: Path) -> None:
    copy("tokens", folder / "data" / "tokens")
    copy("bert", folder / "runs" / "mine")


def compared(folder: Path) -> None:
    for name in ("mine", "other"):
        copy("bert", folder / "runs" / name)


def exchange(folder: Path) -> None:
    published(folder)
    api.export(folder / "runs" / "mine", "huggingface", folder / "bert-base-uncased")


def open_clip_model(folder: Path) -> None:
    """Replace a model on the hub by an untrained one, in open_clip's files."""
    from pretrainkit.recipes.clip.recipe import RECIPE
    from support.clip_models import make_tokenizer, random_model, run_config, text

    transforms = (ResizeShorter(size=32), CenterCrop(size=32))
    config = run_config(None, text(), valid_transforms=transforms)
    folder.mkdir()
    RECIPE.export_file(
        config, random_model(config), make_tokenizer(folder.parent / "words"), "openclip", folder, name="laion"
    )


def used_elsewhere(folder: Path) -> None:
    from pretrainkit.exporting.native import write_native
    from support.clip_models import make_tokenizer, random_model, run_config, text

    copy("bert", folder / "runs" / "mine")
    config = run_config(None, text(), valid_transforms=(ResizeShorter(size=32), CenterCrop(size=32)), max_length=12)
    write_native(config, random_model(config), make_tokenizer(folder / "words"), folder / "runs" / "clip")
    shutil.copy(data.part("rooms") / "valid/rgb/00000.png", folder / "photo.png")


def t5_base(folder: Path) -> None:
    """Further down the page, models are a T5."""
    for name in ("runs/base", "imported"):
        copy("t5_base", folder / name)
    shutil.rmtree(folder / "data/tokens")
    copy("t5_tokens", folder / "data/tokens")


def bert_again(folder: Path) -> None:
    """Restore a BERT."""
    for name in ("runs/base", "data/tokens"):
        shutil.rmtree(folder / name)
    copy("tokens", folder / "data/tokens")


def raw(folder: Path) -> None:
    data.put_texts(folder / "my_text", 12, 120)
    data.put_font(folder / "NotoSans-Regular.ttf")
    copy("rooms/train/rgb", folder / "photos")
    for image in (folder / "photos").iterdir():
        image.with_suffix(".txt").write_text("a room", encoding="utf-8")
    copy("rooms", folder / "rooms")


def made_by_hand(folder: Path) -> None:
    """The tokens of a project that was not run."""
    copy("tokens", folder / "my_project" / "data" / "tokens")


def bert(folder: Path) -> None:
    copy("tokens", folder / "data" / "tokens")


def clip(folder: Path) -> None:
    for number, name in enumerate(("flickr8k", "coco")):
        data.put_pairs(folder / "data" / name, number)
    copy("rooms/valid/rgb", folder / "photos")
    data.put_classes(folder / "classes")
    data.put_classes(folder / "flowers")
    open_clip_model(folder / "laion")


def fourm(folder: Path) -> None:
    copy("rooms", folder / "data" / "coco")
    copy("rooms", folder / "data" / "rooms")
    copy("words", folder / "data" / "words")
    shutil.copy(data.part("rooms") / "valid/rgb/00000.png", folder / "photo.png")


def glue(folder: Path) -> None:
    copy("bert", folder / "runs" / "pretrained")
    copy("glue", folder / "data" / "glue")
    copy("tokens/train", folder / "shards")
    copy("tokens", folder / "tokens")
    rows = [{"claim": "It is so.", "proof": text, "verdict": "yn"[n % 2]} for n, text in enumerate(data.texts(12))]
    for name in ("claims", "held-out", "new"):
        data.put_jsonl(folder / f"{name}.jsonl", rows)
    for name in ("en-train", "en-dev", "new"):
        data.put_conllu(folder / f"{name}.conllu")
    for name in ("train", "dev"):
        data.put_squad(folder / f"{name}-v2.0.json")


def pixel(folder: Path) -> None:
    data.put_texts(folder / "my_text", 10)
    data.put_font(folder / "NotoSans-Regular.ttf")
    copy("corpus", folder / "data" / "books")
    copy("glue", folder / "data" / "glue")
    for name in ("en-train", "en-dev"):
        data.put_conllu(folder / f"{name}.conllu")


def t5(folder: Path) -> None:
    for name in ("novels", "wiki"):
        copy("corpus", folder / "data" / name)
    data.put_t5x(folder)
    copy("glue", folder / "data" / "glue")
    copy("t5", folder / "runs" / "pretrained")
    copy("t5", folder / "runs" / "mine")


UVIT = (
    "model.image_size=64 model.patch_size=8 model.quantizer.size=512 model.quantizer.width=16 "
    "model.decoder.hidden_size=16 model.decoder.num_heads=2 model.decoder.num_layers=2 model.decoder.widths=[32,64]"
)
"""Settings of the small model that loads an encoder."""
TWELVE_DOCUMENTS = {
    r"enumerate\(standard_library_documents\(\)\)": "zip(range(12), standard_library_documents())",
}
FIVE_COMMANDS = {"--vocab-size 8192": "--vocab-size 500"}

WALKS = [
    Walk(
        "README.md",
        readme,
        smaller=FIVE_COMMANDS
        | {r'load_config\("bert/modern-mini", \[': f'load_config("bert/modern-mini", [*"{BERT} {QUICK}".split(), '},
        behind={"^pretrainkit train": f"{BERT} {QUICK}"},
        not_here={"^(pip|git) ": "sets up an environment"},
        before={"^pretrainkit resume": killed("runs/mine")},
    ),
    Walk(
        "docs/answers.md",
        answers,
        smaller={'"cuda"': '"cpu"', "37, 629, 1": "37, 62, 1", "644, 4598": "64, 45"},
        behind={"^pretrainkit (generate|infer.*(task glue|summarize))": "--max-length 4"},
    ),
    Walk("docs/coming-from.md", nothing),
    Walk(
        "docs/corpus.md",
        corpus,
        smaller=FIVE_COMMANDS | {"--num-shards 64": "--num-shards 4", "--num-shards 500": "--num-shards 4"},
        behind={"^pretrainkit train": f"{BERT} {QUICK}"},
        not_here={
            "corpus hub [A-Za-z]+/(fineweb|c4|wikipedia)": HUB,
            "--engine (slurm|ray)": OTHER_MACHINES,
        },
    ),
    Walk("docs/fourm-data.md", fourm_data, smaller={"--vocab-size 30000": "--vocab-size 4340"}),
    Walk(
        "docs/fourm-walkthrough.md",
        walkthrough,
        smaller={"--vocab-size 5000": "--vocab-size 4120", "--crops 12": "--crops 3", "--num 8": "--num 2"},
        behind={
            "^pretrainkit train tokenizer.yaml": f"{TOKENIZER} {QUICK}",
            r"^pretrainkit train (fourm|depth)\.yaml": f"{FOURM} {QUICK}",
        },
    ),
    Walk("docs/generation.md", generation),
    Walk(
        "docs/get-started.md",
        nothing,
        smaller=TWELVE_DOCUMENTS | {"--vocab-size 4096": "--vocab-size 500", "num_steps=1000": ""},
        behind={"^pretrainkit train": f"{BERT} {QUICK}"},
        not_here={"^make ": "sets up an environment"},
        before={"^pretrainkit resume": killed("runs/mine")},
    ),
    Walk("docs/exchange.md", exchange, behind={"^pretrainkit train": QUICK}),
    Walk(
        "docs/how-to/compare-runs.md",
        compared,
        not_here={"--serve": "tests/report/test_comparison.py asks a served page", "--metric": "the run has another"},
    ),
    Walk(
        "docs/how-to/evaluate-and-submit.md",
        glue,
        smaller={"--lr 5e-5 4e-5 3e-5 2e-5 --seeds 3": "--lr 5e-5 4e-5 --seeds 1 --tasks rte"},
        behind={r"^pretrainkit (finetune|sweep)": f"{GLUE} {QUICK_TASK}"},
    ),
    Walk("docs/how-to/export-and-publish.md", published, not_here={"--push|data push": HUB}),
    Walk(
        "docs/how-to/own-images-and-captions.md",
        clip,
        smaller={"--vocab-size 8000": "--vocab-size 240"},
        behind={"^pretrainkit train": QUICK},
    ),
    Walk(
        "docs/how-to/own-modality.md",
        weather,
        behind={"^pretrainkit data check": FOURM, "^pretrainkit train": f"{FOURM} {QUICK}"},
    ),
    Walk(
        "docs/how-to/resume-and-move.md",
        training,
        smaller={"num_steps=7000": "num_steps=3", "every_steps=(500|1000|200)": "every_steps=1"},
        behind={"^pretrainkit train": f"{BERT} {QUICK}"},
        before={
            "^pretrainkit resume runs/mine$": killed("runs/mine"),
            "^pretrainkit resume elsewhere": killed("elsewhere/mine"),
        },
    ),
    Walk(
        "docs/how-to/sizes-and-batch.md",
        training,
        smaller={"plan bert/base": "plan bert/mini --no-dry-run"},
        behind={"^pretrainkit train": f"{BERT} {QUICK}", "^pretrainkit plan": "model.num_layers=1"},
    ),
    Walk(
        "docs/how-to/when-a-run-goes-wrong.md",
        training,
        smaller={"init.step=500": "init.step=1", "num_steps=7000": "num_steps=3", "start_step=1": "start_step=0"},
        behind={
            "^pretrainkit train bert": f"{BERT} {QUICK}",
            "^pretrainkit train runs": "num_steps=3",
            "^pretrainkit plan": "model.num_layers=1 --no-dry-run",
        },
        not_here={"^pretrainkit doctor": "tests/end_to_end/test_killed_rank.py runs it"},
        before={"resume runs/mine optimizer": killed("runs/mine")},
    ),
    Walk(
        "docs/how-to/start-from-a-folder.md",
        raw,
        smaller={" --go": "", "--hours 0.5": "--hours 0.0005"},
        behind={"^pretrainkit train": BERT},
        not_here={"^bash ": "tests/project/test_new.py runs it"},
        before={"^pretrainkit train": made_by_hand},
    ),
    Walk("docs/how-to/use-your-model.md", used_elsewhere, not_here=MISSING),
    Walk(
        "docs/image-tokenizers.md",
        image_tokenizers,
        smaller={r"\{00000\.\.00099\}": "{00000..00001}"},
        behind={
            "^pretrainkit train image_tokenizer/tiny": f"{TOKENIZER} {QUICK}",
            "^pretrainkit train image_tokenizer/rgb-uvit": f"{TOKENIZER} {QUICK_TASK} {UVIT}",
        },
    ),
    Walk(
        "docs/installing.md",
        lambda folder: None,
        not_here={
            "^(pip|git|cd|make|docker) ": "sets up environments: .ci/try-installed tries what they install",
            "^pretrainkit doctor": "tests/running/test_doctor.py runs it",
        },
    ),
    Walk(
        "docs/launching.md",
        launching,
        smaller={
            "--nproc 8 --elastic 1:4 --meet node1:29500": f"--nproc 1 --elastic 1:1 --meet localhost:{free_port()}",
            "--nproc 8": "--nproc 1",
        },
        behind={"^pretrainkit (train|plan) bert": f"{BERT} {QUICK} data.batch_size=64"},
        not_here={
            "^pretrainkit doctor": "tests/end_to_end/test_killed_rank.py runs it",
            r"--launch slurm": OTHER_MACHINES,
            r"--launch cloud(?!.*--dry-run)": OTHER_MACHINES,
        },
    ),
    Walk(
        "docs/prerendering.md",
        prerendering,
        behind={
            "^pretrainkit train": f"{PIXEL.replace('36', '529')} {QUICK}",
            "data.workers=processes": "--out runs/drawn",  # in the same second as another
        },
        not_here={r"hf://datasets/someone": HUB, r"--push|data push": HUB},
    ),
    Walk(
        "docs/rendering.md",
        rendering,
        smaller={'"Team-PIXEL/pixel-base"': '"exported"'},
        not_here={"^pip install": "installs", "^apt-get install": "installs"},
    ),
    Walk(
        "docs/tasks.md",
        tasks_page,
        behind={"^pretrainkit train": f"{T5} {QUICK} data.batch_size=4", "^pretrainkit data": "data.batch_size=2"},
    ),
    Walk(
        "docs/tokenizers.md",
        tokenizers,
        smaller={"--vocab-size 32128": "--vocab-size 500", "--vocab-size 30522": "--vocab-size 300"},
    ),
    Walk(
        "docs/training.md",
        training,
        smaller={
            "num_steps=12000": "num_steps=3",
            "num_extra_steps=20000": "num_extra_steps=1",
            "step-00001000": "step-00000002",
            "--launch local --nproc [48]": "",  # docs/launching.md starts ranks
        },
        behind={
            r"^pretrainkit train bert": f"{BERT} {QUICK}",
            r"^pretrainkit train t5": f"{T5} {T5_DATA} model.vocab_size=640",
            r"^pretrainkit train t5/.*--out runs/next": "num_steps=2",
        },
        before={
            r"resume runs/mine +#": killed("runs/mine"),
            r"^pretrainkit train bert/base": bert_again,
            r"resume runs/base": killed("runs/base"),
            r"t5/.*--out runs/next": t5_base,
        },
    ),
    Walk(
        "docs/tutorials/bert.md",
        nothing,
        smaller=TWELVE_DOCUMENTS | {"--vocab-size 4096": "--vocab-size 500", " num_steps=1500": ""},
        behind={"^pretrainkit train bert": f"{BERT} {QUICK}", "^pretrainkit train glue": f"{GLUE} {QUICK_TASK}"},
    ),
    Walk(
        "docs/tutorials/clip.md",
        nothing,
        smaller={
            "num_train=1300, num_valid=100": "num_train=40, num_valid=8",
            "num_steps: 420": "num_steps: 2",
            "batch_size: 128": "batch_size: 16",
        },
    ),
    Walk(
        "docs/tutorials/fourm.md",
        nothing,
        smaller={
            r'train"\), 4000': 'train"), 40',
            r'valid"\), 64': 'valid"), 4',
            "--from-data 64": "--from-data 2",
            "num_steps: (1200|800)": "num_steps: 2",
            " num_steps=200": "",
            "num_warmup_steps: 20": "num_warmup_steps: 1",
            "every_steps: (1200|800), num_examples: 64": "every_steps: 2, num_examples: 4",
        },
        behind={"^pretrainkit train": QUICK},
    ),
    Walk(
        "docs/tutorials/pixel.md",
        nothing,
        smaller={
            "num=900": "num=12",
            "head -n 60": "head -n 8",
            " num_steps=1500 evaluate.every_steps=100 evaluate.num_examples=64": "",
            " data.num_epochs=40": "",
        },
        behind={
            "^pretrainkit train": f"{PIXEL.replace('36', '48')} {QUICK}",
            "^pretrainkit finetune": f"{GLUE} {QUICK_TASK}",
        },
    ),
    Walk(
        "docs/tutorials/t5.md",
        nothing,
        smaller=TWELVE_DOCUMENTS | {"--vocab-size 2048": "--vocab-size 500", " num_steps=(2000|400)": ""},
        behind={"^pretrainkit train": f"{QUICK} data.batch_size=4"},
    ),
    Walk(f"{RECIPES}/bert/README.md", bert, behind={"^pretrainkit train": f"{BERT} {QUICK}"}),
    Walk(
        f"{RECIPES}/clip/README.md",
        clip,
        not_here={"demo clip": "tests/demo/test_whole_demos.py runs it"},
        smaller={"--vocab-size 2048": "--vocab-size 320", r"hf-hub:laion/\S+": "laion"},
        behind={"^pretrainkit train": QUICK},
    ),
    Walk(f"{RECIPES}/fourm/README.md", fourm, behind={"^pretrainkit train": f"{FOURM} {QUICK}"}),
    Walk(
        f"{RECIPES}/glue/README.md",
        glue,
        smaller={
            "--lr 5e-5 4e-5 3e-5 2e-5 --seeds 3": "--lr 5e-5 4e-5 --seeds 1 --tasks rte",
            "--tasks stsb,rte,mrpc,cola,sst2 --lr 3e-4 --seeds 3": "--tasks rte --lr 3e-4 --seeds 1",
        },
        behind={
            r"^pretrainkit (finetune|train glue|sweep)": f"{GLUE} {QUICK_TASK}",
            "^pretrainkit finetune qa": "data.spans.stride=4 data.spans.max_question_length=12",
            r"^pretrainkit train bert": f"{BERT} {QUICK}",
        },
    ),
    Walk(
        f"{RECIPES}/image_tokenizer/README.md",
        image_tokenizers,
        behind={"^pretrainkit train": f"{QUICK} data.batch_size=4 evaluate.num_examples=4"},
    ),
    Walk(
        f"{RECIPES}/pixel/README.md",
        pixel,
        behind={"^pretrainkit train": f"{PIXEL} {QUICK}", "^pretrainkit finetune": f"{GLUE} {QUICK_TASK}"},
    ),
    Walk(
        f"{RECIPES}/t5/README.md",
        t5,
        smaller={"--vocab-size 4096": "--vocab-size 500"},
        behind={"^pretrainkit train": f"{T5} {QUICK}"},
    ),
]


@contextlib.contextmanager
def own_tasks() -> Iterator[None]:
    """Tasks that a page defines are removed with it."""
    yield
    for name in REGISTRY.names():
        if name.startswith("my"):
            REGISTRY.remove(name)


@pytest.mark.parametrize("this", WALKS, ids=lambda this: this.page)
def test_the_page_works(this: Walk, tmp_path: Path) -> None:
    warm = mock.patch("pretrainkit.sweep.runs.Worker.run", run_warm_verb)
    with within(tmp_path), warm, own_tasks():
        this.prepare(tmp_path)
        wrong = walk(this, tmp_path)
    assert not wrong, "\n".join(wrong)


def test_commands_that_no_longer_work_are_noticed(tmp_path: Path) -> None:
    text = "```bash\npretrainkit config show bert/mini\npretrainkit config show bert/mine\ncat nothing\n```\n"
    text += "```python\nimport pretrainkit\n\npretrainkit.nothing\n```\n"
    page = put(tmp_path / "page.md", text + "```sh\npretrainkit evaluate run  # fails\n```\n")
    this = Walk(str(page), lambda folder: None, not_here={"slurm": "gone"}, failing={"evaluate": "another reason"})
    with mock.patch("support.page_runner.ROOT", tmp_path), within(tmp_path):
        wrong = walk(this, tmp_path)
    assert [line.split(": ")[1][:30] for line in wrong] == [
        "pretrainkit config show bert/m",
        "cat nothing\ncat",
        "AttributeError",
        "known to fail, but ended with ",
        "nothing has 'slurm' any more",
    ]
    assert "bert/mini" in wrong[0]


def test_each_folder_has_the_files_that_the_page_of_formats_names() -> None:
    text = (ROOT / "docs/file-formats.md").read_text("utf-8")
    sections = dict(part.split("\n", 1) for part in text.split("\n## ")[1:])
    data.part("rows")
    (step,) = (data.part("bert") / "checkpoints").glob("step-*2")
    folders = {
        "Shards of a corpus": data.part("corpus/train"),
        "Tokenizer": data.part("tokenizer"),
        "Token shards": data.part("tokens/train"),
        "Rendered rows": next(data.stock().glob("rendered/**/manifest.json")).parent,
        "Run folder": data.part("bert"),
        "Checkpoints": step,
    }
    for title, folder in folders.items():
        rows = re.findall(r"^\| (`.+?) \| ", sections[title], re.MULTILINE)
        names = [name for row in rows for name in re.findall(r"`(.+?)`", row) if name != "PINNED"]
        patterns = [re.sub(r"\b[NM]\b", r"\\d{5}", name).replace("PPP", r"\d{3}") for name in names]
        there = [path.name + "/" * path.is_dir() for path in folder.iterdir() if not path.name.startswith(".")]
        others = re.findall(r"`([a-z*-]+/)`", sections[title])
        unknown = [name for name in there if not any(re.fullmatch(one, name) for one in patterns)]
        assert [name for name in unknown if not any(fnmatch(name, one) for one in others)] == [], title
        assert [one for one in patterns if not any(re.fullmatch(one, name) for name in there)] == [], title


def test_no_page_is_left_out() -> None:
    walked = {this.page for this in WALKS} | {"docs/extending.md"}  # tests/test_extending_page.py runs that one
    pages = [
        ROOT / "README.md",
        *ROOT.glob("docs/**/*.md"),
        *(ROOT / "src").rglob("*.md"),
        *ROOT.glob("benchmarks/*.md"),
    ]
    run = {"bash", "sh", "python"}
    with_blocks = {str(page.relative_to(ROOT)) for page in pages if run & {block.language for block in blocks_of(page)}}
    assert with_blocks - walked == set()
    reasons = " ".join(reason for this in WALKS for reason in this.not_here.values())
    assert [name for name in re.findall(r"tests/\S+\.py", reasons) if not (ROOT / name).is_file()] == []

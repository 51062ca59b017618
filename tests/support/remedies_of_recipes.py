"""Remedies in messages of the recipes, of rendering, images and formats; `prepare` puts what their commands read."""

import json
import re
import shlex
import shutil
from pathlib import Path

from pretrainkit.exporting.torchvision_shim import import_transformers
from support import SUPPORT, glue_toys, pair_sets, t5_foreign_files
from support import page_data as data
from support.page_data import BERT, FOURM, GLUE, PIXEL, QUICK, QUICK_TASK, T5, T5_DATA, TOKENIZER, put
from support.remedies import Case

SMALL_CLIP = """\
extends: clip/tiny
model:
  image: {image_size: 16, patch_size: 8, hidden_size: 16, num_layers: 1, num_heads: 2, intermediate_size: 16}
  text: {hidden_size: 16, num_layers: 1, num_heads: 2, intermediate_size: 16}
  projection: {dim: 8}
data:
  tokenizer: pieces
  batch_size: 4
  workers: threads
  train_transforms: [{op: random_resize_crop, size: 16}]
  valid_transforms: [{op: resize, size: 16}]
evaluate: {batch_size: 4}
precision: {compute: float32}
"""
CLIP = f"train clip.yaml {QUICK} --out {{out}}"
PAIRS = f"{CLIP} data.train=pairs"


ALL_SEEN = "num_steps=6 data.max_bad_fraction=0.01"
BERTS = f"train bert/tiny {BERT} {QUICK} --out {{out}}"
T5S = f"train t5/mini {T5} {T5_DATA} {QUICK} data.train=t5_tokens/train --out {{out}}"
PIXELS = f"train pixel/tiny {PIXEL} {QUICK} --out {{out}}"
TEXTS = "data.renderer=renderer data.train=corpus/train"
T5_TASK = (
    f"train t5/mini {T5} {T5_DATA} {QUICK} data.task_folders.glue=glue data.task_folders.c4=c4 "
    "data.tokenizer=t5/tokenizer --out {out}"
)
CLASSES = "'{name: semseg, folder: seg, kind: classes, num_classes: 3}'"
LONG = "data.max_patches=400 model.max_patches=400"
FOURMS = f"train fourm/tiny {FOURM} {QUICK} data.tokenizer=words --out {{out}}"
SHAPE_FOLDERS = {
    "caption": "words",
    "rgb@64": "photos",
    "colors@64": "photos",
    "depth@64": "deep",
    "det": "boxes",
    "seg@64": "parts",
}
SHAPES = {
    "...": "renamed",
    "MODALITY: FOLDER": ", ".join(f"{name}: {folder}" for name, folder in SHAPE_FOLDERS.items()),
}
WORDLESS = "data.train=wordless data.target_length=64 data.denoising.name=ul2 'data.denoising.modes={R: hello}'"
PIXEL_TASK = f"{QUICK_TASK} data.max_seq_length=36 data.batch_size=4 precision.compute=float32"
SEEN = (
    "model.domain='{name: seen, kind: features, num_channels: 6}' "
    "model.encoder='{kind: mlp, width: 12, num_blocks: 2}' "
    "model.decoder='{kind: mlp, width: 12, num_blocks: 2}' model.quantizer='{kind: fsq, levels: [4, 3]}' "
    "model.image_size=8 model.patch_size=8 data.batch_size=4 data.num_workers=0 precision.compute=float32"
)
WHOLE_NAME = (r"--tokenizer \S+=RUN", {"RUN": "tok-64"})
LEFT_OUT = ("leave --tokenizer out", {"leave --tokenizer out": "leave out --tokenizer"})
DRAWN = "data.train=rendered/train data.max_patches=529 model.max_patches=529"
TASK = f"{GLUE} {QUICK_TASK} --out {{out}}"
CLAIMS = "data.train=claims.jsonl data.valid=claims.jsonl"
OWN = f"train glue/own {CLAIMS} data.texts=[claim] data.label=verdict {GLUE} {QUICK_TASK}"
WORDS = "text: {kind: huggingface, name: distil}"
PATCHES = (
    "image: {kind: timm, name: vit_tiny_patch16_224, pretrained: false, image_size: 16, options: {patch_size: 8, "
    "embed_dim: 24, depth: 1, num_heads: 3, global_pool: ''}}"
)
TO_16 = "data.train_transforms=[{op: resize, size: 16}]"
TO_20 = TO_16.replace("16", "20")


def as_words(setting: str) -> str:
    """A setting with spaces, as one word of a command."""
    return f"'{setting}'"


NOT_HERE = {
    "^rendering/pango_library.py": "the system has the library, or its package manager installs it",
}
"""Patterns of sites to why their remedies cannot be followed here."""
CASES = [
    # clip
    Case(CLIP, "data.train=FOLDER", {"FOLDER": "pairs"}),
    Case(f"{PAIRS} data.tokenizer=null", "data.tokenizer=FOLDER", {"FOLDER": "pieces"}),
    Case(f"{PAIRS} data.tokenizer=pieces/tokenizer.json", r"data.tokenizer=\S+"),
    Case(f"{PAIRS} data.tokenizer=no-such", "data.tokenizer=FOLDER", {"FOLDER": "pieces"}),
    Case(
        f"{PAIRS} data.tokenizer=t5/tokenizer 'data.text_augment={{mask_share: 0.5}}'",
        "data.text_augment.mask_share=0",
    ),
    Case(f"{PAIRS} data.batch_size=99", r"data.batch_size=\d+"),
    Case(f"{PAIRS} data.batch_size=99", "data.small_set=wrap"),
    Case(f"{PAIRS} data.max_length=40", r"data.max_length=\d+"),
    Case(f"{PAIRS} model.image.image_size=24", r"model.image.image_size=\d+"),
    Case(
        f"{PAIRS} data.valid=[pairs,more/pairs]",
        r"data.valid='.*'",
        {"{path: ..., name: ...}, ...": "{path: pairs, name: a}, {path: more/pairs, name: b}"},
    ),
    Case(f"{PAIRS} data.valid=[torn]", "pretrainkit data check .*", ends=2),
    Case(f"{PAIRS} data.valid=[torn]", ("pretrainkit data pack .*", "data.valid=PACKED"), {"PACKED": "{out}"}),
    Case(f"{PAIRS} data.valid=[silent]", "pretrainkit data check .*", ends=2),
    Case(
        "config check clip.yaml model.image.trainable=false model.text.trainable=false "
        "model.projection.image_trainable=false model.projection.text_trainable=false model.temperature.kind=constant",
        "model.projection.image_trainable=true",
    ),
    Case(
        f"{PAIRS} data.cache_frozen=true",
        "model.image.trainable=false",
        {"+": "'data.train_transforms=[{op: resize, size: 16}]'"},
    ),
    Case(
        f"{PAIRS} model.image.image_size=20 {as_words(TO_20)} {as_words(TO_20.replace('train', 'valid'))}",
        r"model.image.image_size=\d+",
        {"+": f"{as_words(TO_16)} {as_words(TO_16.replace('train', 'valid'))}"},
    ),
    Case(
        f"{PAIRS} data.normalize=null 'data.train_transforms=[{{op: resize, size: 16}}, {{op: random_erasing}}]'",
        r"data.normalize=\S+",
    ),
    Case(
        f"{CLIP} data.train=[other-names]",
        r"data.train='.*'",
        {"path: ...": "path: other-names", "NAME": "said", "+": "data.batch_size=2"},
    ),
    Case(
        f"{CLIP} 'data.train=[{{path: downloaded, caption_key: nothing}}]'",
        r"data.train='.*'",
        {"path: ...": "path: downloaded", "NAME": "said", "+": "data.batch_size=2"},
    ),
    Case(
        f"{CLIP} 'data.train=[{{path: downloaded, caption_key: sizes}}]'",
        r"data.train='.*'",
        {"path: ...": "path: downloaded", "NAME": "said", "+": "data.batch_size=2"},
    ),
    Case("generate clip 'a dog'", "--images FOLDER", {"FOLDER": "pairs/train"}),
    Case("evaluate clip data.valid=torn", "pretrainkit data check", {"check": "check torn"}, ends=2),
    Case("data pack torn --out {out}", "--max-bad N", {"N": "9"}),
    Case("data pack short --out {out}", "--max-bad N", {"N": "9"}),
    Case(f"{CLIP} data.train=torn {ALL_SEEN} data.on_bad_sample=error", r"pretrainkit data check \S+", ends=2),
    Case(f"{CLIP} data.train=torn {ALL_SEEN}", r"pretrainkit data check \S+", ends=2),
    Case(
        f"{CLIP} data.train=torn {ALL_SEEN}",
        r"(?<=more: )data.max_bad_fraction=\S+",
        {"-": "data.max_bad_fraction=0.01", "+": "--out {out}"},
    ),
    Case(f"{CLIP} data.train=all-bad data.max_bad_fraction=1", r"pretrainkit data check \S+", ends=2),
    *(
        Case(f"export {run} --out {{out}}", "--format safetensors")
        for run in (
            "clip-mean",
            "clip-open",
            "clip-longer",
            "clip-endless",
            "clip-early",
            "clip-distil",
            "clip-patches",
        )
    ),
    Case(f"{PAIRS} data.tokenizer=wrapped data.max_length=3", r"data.max_length=\d+"),
    Case("evaluate clip data.valid=silent", "pretrainkit data check", {"check": "check silent"}, ends=2),
    Case("config import zerovl.yaml --recipe clip --out {out}", r"epoch=\d+"),
    Case(
        "config check image_tokenizer/tiny model.domain.kind=depth model.domain.num_channels=3",
        r"num_channels=\d",
        {"num_channels": "model.domain.num_channels"},
    ),
    # bert
    Case(f"{BERTS} data.train=wordless objective.mask_unit=whole_word", "objective.mask_unit=token"),
    Case("config check bert/tiny objective.max_predictions=300", r"objective.max_predictions=\d+"),
    # 4M
    Case(f"{FOURMS} data.train=renamed", "data.train='.*'", SHAPES),
    Case(f"{FOURMS} data.train=rooms", r"data.train=\S+"),
    Case("generate fourm --from-data 1 --to depth --tokenizer tok_depth=tok-64 --out {out}", *WHOLE_NAME),
    Case("generate fourm --from-data 1 --to caption --tokenizer tok_depth=tok-64 --out {out}", *LEFT_OUT),
    *(
        Case("config check fourm/tiny model.num_registers=2 masking.unused=pack", remedy)
        for remedy in ("masking.unused=pad", "model.num_registers=0")
    ),
    Case(
        "generate fourm --from-data 1 --to depth --set depth.scheme=autoregressive --out {out}",
        "scheme=roar",
        {"scheme=roar": "--set", "--set": "depth.scheme=roar"},
    ),
    Case(
        "generate fourm --from rgb=rooms/valid/rgb/00000.png --to depth --set depth.guided_by=[caption] --out {out}",
        "name one of them",
        {"name one of them": "--set", "--set": "depth.guided_by=[rgb]"},
    ),
    Case(
        "generate fourm --from-data 1 --to depth --set depth.scheme=roar --set depth.schedule=cosine --out {out}",
        "schedule=linear",
        {"schedule=linear": "--set", "--set": "depth.scheme=roar --set depth.schedule=linear"},
    ),
    Case(
        "generate fourm --from-data 1 --to depth --set depth.take=mean --temperature 0 --out {out}",
        "temperature=1",
        {"temperature=1": "--temperature", "--temperature": "1"},
    ),
    Case(
        "generate fourm --from rgb --to depth --out {out}",
        "rgb=photo.png",
        {"rgb=photo.png": "--from", "--from": "rgb=rooms/valid/rgb/00000.png"},
    ),
    Case(
        f"train fourm/tiny {FOURM} {QUICK} data.tokenizer=words --out {{out}}",
        "data.train=FOLDER",
        {"FOLDER": "rooms/train"},
    ),
    *(
        Case(
            f"train fourm/tiny {FOURM} {QUICK} data.train=rooms/train data.tokenizer={folder} --out {{out}}",
            "pretrainkit tokenizer train words.tsv .*",
            {"DIR": "{out}", "+": "--vocab-size 4270 --lowercase"},
        )
        for folder in ("text", "tokenizer", "unordered")
    ),
    Case("config import fourm.yaml --recipe fourm --out {out}", "data_config=FILE", {"FILE": "cfgs/data.yaml"}),
    Case("config import fourm-endless.yaml --recipe fourm --out {out}", "epoch_size=EXAMPLES", {"EXAMPLES": "1000"}),
    # image tokenizers
    Case(
        "config check image_tokenizer/semseg-coco objective.perceptual.is_measured=true data.train=rooms/train",
        "objective.perceptual.is_measured=false",
    ),
    Case(
        "config check image_tokenizer/tiny data.min_image_size=20", r"data.min_image_size=\d+ data.image_size_step=\d+"
    ),
    Case("config check image_tokenizer/semseg-coco model.decoder.kind=unet", "model.decoder.kind=vit"),
    *(
        Case(
            "config check image_tokenizer/rgb model.decoder.noise.prediction=noise "
            "model.decoder.noise.ends_in_noise=true",
            f"model.decoder.noise.{remedy}",
        )
        for remedy in ("prediction=velocity", "ends_in_noise=false")
    ),
    Case(
        "corpus tokenize-images tokenizer-run/checkpoints/step-00000001 tokens-made",
        "--out",
        {"--out": "{out}"},
    ),
    Case("corpus tokenize-images tokenizer-run cropped --crops 3 --out {out}", r"--crops \d+"),
    Case("corpus tokenize-images tokenizer-run tokens-made --crops 2", r"--crops \d+"),
    *(
        Case(f"export {run} --format 4m-tokenizer --out {{out}}", "--format safetensors")
        for run in ("tok-conv", "tok-fsq")
    ),
    Case(
        f"train image_tokenizer/tiny {TOKENIZER} {QUICK} --out {{out}}", "data.train=FOLDER", {"FOLDER": "rooms/train"}
    ),
    Case(
        f"train image_tokenizer/tiny {TOKENIZER} {QUICK} data.train=rooms/train model.domain={CLASSES} --out {{out}}",
        r"model.domain.num_classes=\d+",
        {"12": "20"},  # "or more": the message knows the numbers of one file
    ),
    Case(
        "config check image_tokenizer/rgb objective.perceptual.weight=1",
        "objective.perceptual.weight=0",
    ),
    Case("config check image_tokenizer/rgb objective.reconstruction=cross_entropy", r"objective.reconstruction=\w+"),
    Case("config check image_tokenizer/tiny objective.reconstruction=cross_entropy", r"objective.reconstruction=\w+"),
    Case(
        "config check image_tokenizer/rgb-uvit model.decoder.noise.masks_places=true model.decoder.noise.dropout=0",
        "model.decoder.noise.dropout=0.1",
    ),
    # pixel
    Case(
        f"{PIXELS} {DRAWN} data.valid=rendered/train",
        "data.held_out_share=0.01",
        {"-": "data.valid=rendered/train", "0.01": "0.3"},
    ),
    Case(f"{PIXELS} {DRAWN} model.patch_size=8", r"model.patch_size=\d+"),
    Case(
        f"{PIXELS} {DRAWN} data.augment.sizes=[9]",
        "pretrainkit render --text-only",
        {"+": "corpus --renderer renderer --out {out}"},
    ),
    Case(
        f"{PIXELS} {TEXTS} init_from=grid model.positions=grid model.max_patches=100 data.max_patches=100",
        r"model.grid_width=\d+",
    ),
    Case("export rotary --out {out}", "--format safetensors"),
    Case(
        "export rotary --out {out}",
        "pixel/tiny-grid",
        {"pixel/tiny-grid": f"pretrainkit train pixel/tiny-grid {PIXEL} {QUICK} {TEXTS} --out {{out}}"},
    ),
    Case(
        f"{PIXELS} data.renderer=renderer data.train=text {LONG}",
        ("pretrainkit render .*--out FOLDER", "data.train=FOLDER/train"),
        {"data.train=FOLDER/train": "data.train={out}/train --out {out}-run", "FOLDER": "{out}"},
        code=0,
    ),
    Case(
        f"{PIXELS} data.renderer=renderer data.train=text {LONG}", r"data.max_patches=\d+", {"+": "--out {out}"}, code=0
    ),
    Case("render one.txt --renderer renderer --heldout 0.0001 --out {out}", "--heldout 0"),
    Case("corpus tokenize-images tok-features featured --crops 2 --out {out}", "leave out --crops"),
    Case("export tok-features --format 4m-tokenizer --out {out}.safetensors", "--format safetensors"),
    Case("export fourm-odd --format 4m --out {out}.safetensors", "--format safetensors"),
    # T5
    Case(
        "config check t5/mini model.kind=encoder_only data.denoising.name=prefix_lm", "data.denoising.name=mass_style"
    ),
    Case(
        f"{T5S} data.denoising.name=mass_style data.target_length=64 data.denoising.num_sentinels=0",
        "data.denoising.num_sentinels=100",
    ),
    Case(f"{T5S} data.order=lanes", "data.order=shuffle"),
    Case(
        "infer t5 --input rows.jsonl --inputs text --max-length 3 --fields nothing --out {out}",
        "--all-fields",
        {"-": "--fields nothing"},
    ),
    Case(f"{T5_TASK} data.task=glue_rte_v002 model.vocab_size=50", r"model.vocab_size=\d+"),
    Case(
        f"{T5_TASK} data.task=c4_prefix_lm_objective_encoder_decoder_architecture data.packing=true "
        "data.target_length=64",
        "data.packing=false",
    ),
    Case(f"{T5_TASK} data.task=c4_v220_full_lm", "model.kind=decoder_only model.num_encoder_layers=null"),
    Case(
        f"{T5_TASK} data.task=c4_v020_unsupervised data.denoising.name=ul2 data.target_length=64",
        "data.train=FOLDER",
        {
            "FOLDER": "t5_tokens/train",
            "-": "data.task=c4_v020_unsupervised data.task_folders.glue=glue data.task_folders.c4=c4 "
            "data.tokenizer=t5/tokenizer",
        },
    ),
    Case(
        "import foreign/checkpoint_1000000 --recipe t5 --format t5x --config t5/1.1-small --out {out}",
        "leave --config out",
        {"leave --config out": "leave out --config"},
    ),
    Case(
        "config check t5/mini data.denoising.name=packed_prefix_lm data.input_length=64 data.target_length=32",
        r"data.target_length=\d+",
        {"+": "data.packing=false"},
    ),
    Case(f"{T5S} {WORDLESS}", "leave the modes out", {"leave the modes out": "data.denoising.modes={}"}),
    Case(
        f"{T5S} {WORDLESS}",
        "pretrainkit tokenizer encode",
        {"+": "corpus --tokenizer t5/tokenizer --splitter none --out {out}"},
    ),
    Case(
        "import flax --recipe t5 --format t5x --out {out}", "another --format", {"another --format": "--format mesh_tf"}
    ),
    # encoders of transformers
    Case(f"{OWN} init_from=modern --out {{out}}", "init.recipe=huggingface"),
    Case(f"{OWN} init_from=electra data.tokenizer=empty --out {{out}}", "data.tokenizer=FOLDER", {"FOLDER": "electra"}),
    Case(
        f"{OWN} init_from=t5-classifier data.tokenizer=t5/tokenizer --out {{out}}",
        "init_from=FOLDER init.recipe=t5",
        {"FOLDER": "t5-hf"},
    ),
    Case(
        "train electra-ours/config.yaml num_steps=2 --out {out}",
        "pretrainkit finetune TASK --from FOLDER",
        {"TASK": "rte", "FOLDER": "electra-ours", "+": f"--data glue=glue {TASK}"},
    ),
    Case(
        "import mnli-hf --recipe glue --pooling mean --out {out}",
        "leave --pooling out",
        {"leave --pooling out": "leave out --pooling"},
    ),
    Case(
        "import pixel-cls --recipe pixel --out {out}",
        "pretrainkit import FOLDER --recipe glue",
        {"FOLDER": "pixel-cls", "+": "--out {out}"},
    ),
    Case(f"{OWN} init_from=topics --out {{out}}", "init.recipe=huggingface"),
    Case("import electra --recipe glue --out {out}", "leave out --recipe"),
    Case(
        "predict verdicts --input claims.jsonl --out {out}",
        "pretrainkit infer MODEL .+",
        {"MODEL": "verdicts", "COLUMN": "claim", "ROWS": "claims.jsonl", "ANSWERS": "{out}"},
    ),
    Case("evaluate verdicts data.valid=claims.jsonl data.label=verdict", r"data.texts=\[COLUMN\]", {"COLUMN": "claim"}),
    Case(
        "evaluate verdicts data.valid=claims.jsonl data.label=verdict",
        r"data.texts=\[FIRST,SECOND\]",
        {"FIRST": "claim", "SECOND": "claim"},
    ),
    Case("export attending --out {out}", "--format safetensors"),
    Case("import foreign/tree.npz --recipe t5 --format t5x", "--out FOLDER", {"FOLDER": "{out}"}),
    Case("import foreign/tree.npz --recipe t5 --format t5x", "--dry-run"),
    Case("import torn-words --out {out}", "--tokenizer FOLDER", {"FOLDER": "tokenizer"}),
    Case(
        "tokenizer encode corpus --tokenizer maskless --out {out}",
        "pretrainkit tokenizer train",
        {"+": "words.tsv --vocab-size 500 --out {out}"},
    ),
    # GLUE
    Case(f"config check glue/rte data.task=rte {CLAIMS} data.texts=[claim] data.label=verdict", "data.task=null"),
    Case(
        f"train glue/mnli init_from=bert data.task=ax data.task_folders.glue=glue {TASK}",
        "pretrainkit predict RUN --task ax --out FILE.jsonl",
        {"RUN": "mnli", "FILE": "{out}"},
    ),
    Case(
        "infer tagger --input tagged.jsonl --mode score --out {out}",
        "leave --mode out",
        {"leave --mode out": "leave out --mode"},
    ),
    Case(
        f"train glue/own init_from=bert {CLAIMS} data.texts=[nothing] data.label=verdict {TASK}",
        r"data.texts=\[COLUMN\]",
        {"COLUMN": "claim"},
    ),
    Case("export pooled --out {out}", "--format safetensors"),
    Case(
        f"train glue/own init_from=bert data.task=nothing {TASK}",
        "data.train=FILE .*",
        {
            "FILE": "claims.jsonl",
            "[COLUMN]": "[claim]",
            "=COLUMN": "=verdict",
            "-": "data.task=nothing",
            "+": "data.valid=claims.jsonl",
        },
    ),
]


def prepare(folder: Path) -> None:
    """Puts what the cases read beside the rest."""
    sets = pair_sets
    put(folder / "clip.yaml", SMALL_CLIP)
    for name in ("pairs", "more/pairs", "torn", "silent"):
        sets.write_csv_set(folder / name, "train", sets.rows(6))
        sets.write_csv_set(folder / name, "valid", sets.rows(3, first=20))
    for split, image in (("train", 3), ("valid", 21)):
        put(folder / "torn" / split / f"{image:04d}.png", b"no picture")
    sets.write_csv_set(folder / "silent", "valid", [{**row, "caption": ""} for row in sets.rows(3, first=20)])
    sets.write_csv_set(folder / "all-bad", "train", sets.rows(6))
    for file in (folder / "all-bad" / "train").iterdir():
        file.write_bytes(b"no picture")
    renamed = [{"image": row["image"], "said": row["caption"]} for row in sets.rows(6)]
    sets.write_csv_set(folder / "other-names", "train", renamed, ("image", "said"))
    samples = [{"png": sets.png(n), "json": sets.as_json(said=sets.caption(n)), "txt": b"x y"} for n in range(6)]
    for number, sample in enumerate(samples):
        put(folder / "downloaded" / "00000" / f"{number:05d}.png", sample["png"])
    data.put_parquet(
        folder / "downloaded" / "00000.parquet",
        {
            "key": [f"{n:05d}" for n in range(6)],
            "status": ["success"] * 6,
            "said": [sets.caption(n) for n in range(6)],
            "caption": ["x y"] * 6,
            "sizes": [{"width": n} for n in range(6)],
        },
    )
    sets.write_samples(folder / "short" / "00000.tar", samples * 3)
    whole = (folder / "short" / "00000.tar").read_bytes()
    put(folder / "short" / "00000.tar", whole[: len(whole) * 2 // 3])
    sets.make_tokenizer(folder / "pieces")
    put_distilbert(folder / "distil")
    put_encoders(folder)
    put_classifiers_of_pixel(folder)
    put_features(folder / "featured" / "seen")
    for name, change in {"endless": without_end, "early": early_end, "wrapped": two_ends}.items():
        shutil.copytree(folder / "pieces", folder / name)
        change(folder / name / "tokenizer.json")
    for name, theirs in SHAPE_FOLDERS.items():
        ours = "rgb" if theirs == "photos" else name.partition("@")[0]
        shutil.copytree(folder / "rooms" / "train" / ours, folder / "renamed" / theirs, dirs_exist_ok=True)
    shutil.copytree(folder / "words", folder / "unordered")
    swapped_sentinels(folder / "unordered" / "tokenizer.json")
    for name in ("tokens-made", "cropped"):
        shutil.copytree(folder / "rooms" / "train", folder / name)
    put(folder / "one.txt", data.texts(1)[0])
    shutil.copytree(folder / "tokens" / "train", folder / "wordless")
    shutil.rmtree(folder / "wordless" / "tokenizer")
    for split in ("train", "validation"):
        data.put_jsonl(folder / "c4" / "en" / f"{split}.jsonl", [{"text": text} for text in data.texts(30)])
    data.put_t5x(folder / "foreign")
    shutil.copytree(folder / "foreign" / "t5-small", folder / "flax")
    put(folder / "flax" / "checkpoint", t5_foreign_files.packed({"params": {}}))
    shutil.copy(SUPPORT.parent / "recipes" / "clip" / "zerovl_yaml" / "zerovl_dga.yaml", folder / "zerovl.yaml")
    text = (folder / "zerovl.yaml").read_text("utf-8")
    put(folder / "zerovl.yaml", "".join(line for line in text.splitlines(True) if not line.startswith("epoch")))
    theirs = data.test_module("recipes/fourm/test_fourm_original_yaml.py")
    put(folder / "cfgs" / "data.yaml", theirs.DATA)
    put(folder / "cfgs" / "alphas.yaml", theirs.ALPHAS)
    put(folder / "fourm.yaml", theirs.MAIN.replace("data_config: cfgs/data.yaml\n", ""))
    put(
        folder / "fourm-endless.yaml",
        theirs.MAIN.replace("epoch_size: 10_000_000\n", "")
        .replace("total_tokens: 500", "total_tokens: -1")
        .replace("epochs: -1", "epochs: 2")
        .replace("warmup_tokens: 10\n", "warmup_tokens: -1\n")
        .replace("warmup_epochs: -1", "warmup_epochs: 1"),
    )
    with data.within(folder):
        run = f"train clip.yaml {QUICK} data.train=pairs data.valid=pairs"
        for name, more in {
            "clip": "",
            "clip-mean": "model.image.pool=mean",
            "clip-open": "model.text.causal=false model.text.pool=cls",
            "clip-longer": "model.projection.normalize=false",
            "clip-endless": "data.tokenizer=endless",
            "clip-early": "data.tokenizer=early",
        }.items():
            data.must(*f"{run} {more} --out {name}".split())
        for name, tower in {"distil": WORDS, "patches": PATCHES}.items():
            part = tower.partition(":")[0]
            put(folder / f"{name}.yaml", re.sub(rf"^  {part}: .*$", f"  {tower}", SMALL_CLIP, flags=re.MULTILINE))
            data.must(*f"train {name}.yaml {QUICK} data.train=pairs data.valid=pairs --out clip-{name}".split())
        data.must(*["corpus", "tokenize-images", "tokenizer-run", "tokens-made"])
        data.must(*["corpus", "tokenize-images", "tokenizer-run", "cropped", "--crops", "2"])
        for preset, more in {
            "tiny-conv --out tok-conv": "",
            "tiny --out tok-fsq": "model.quantizer.kind=fsq model.quantizer.levels=[4,4]",
            "tiny --out tok-64": "model.quantizer.size=64",
        }.items():
            coder = "model.image_size=32 precision.compute=float32 data.batch_size=2 data.num_workers=0"
            data.must(*f"train image_tokenizer/{preset} {coder} {QUICK} data.train=rooms/train {more}".split())
        data.must(*shlex.split(f"train image_tokenizer/tiny {SEEN} {QUICK} data.train=featured --out tok-features"))
        odd = "data.tokenizer=words data.train=rooms/train model.intermediate_size=23 --out fourm-odd"
        data.must(*f"train fourm/tiny {FOURM} {QUICK} {odd}".split())
        data.must(*f"finetune mnli --from bert --data glue=glue {GLUE} {QUICK_TASK} --out mnli".split())
        for run in ("mnli", "t5"):
            data.must("export", run, "--out", f"{run}-hf")
        data.must("import", "electra", "--out", "electra-ours")
        put_torn_words(folder / "torn-words")
        claims = f"{CLAIMS} data.texts=[claim] data.label=verdict model.pooling=mean"
        data.must(*f"train glue/own init_from=bert {claims} {GLUE} {QUICK_TASK} --out pooled".split())
        for positions in ("grid", "rotary"):
            settings = f"{TEXTS} model.positions={positions} --out {positions}"
            data.must(*f"train pixel/tiny {PIXEL} {QUICK} {settings}".split())
        attention = "'model.encoder_settings={text: {pooling: pma:2}}' --out attending"
        data.must(*shlex.split(f"finetune rte --from grid --data glue=glue {PIXEL_TASK} {attention}"))


def without_end(path: Path) -> None:
    """A tokenizer that puts nothing behind a text."""
    content = json.loads(path.read_text("utf-8"))
    put(path, json.dumps(content | {"post_processor": None}))


def two_ends(path: Path) -> None:
    """A tokenizer that puts a control token before a text and two behind it."""
    content = json.loads(path.read_text("utf-8"))
    content["post_processor"]["single"].append(content["post_processor"]["single"][-1])
    put(path, json.dumps(content))


def swapped_sentinels(path: Path) -> None:
    """A tokenizer whose sentinels are not in order."""
    text = path.read_text("utf-8")
    put(path, text.replace("[S_1]", "[S_]").replace("[S_2]", "[S_1]").replace("[S_]", "[S_2]"))


def put_torn_words(folder: Path) -> None:
    """A model whose SentencePiece file is damaged."""
    shutil.copytree(folder.with_name("mnli-hf"), folder)
    for file in [*folder.glob("*token*"), *folder.glob("sentencepiece.*")]:
        file.unlink()
    put(folder / "spiece.model", b"torn")


def put_encoders(folder: Path) -> None:
    """Encoders as transformers saves them: an ELECTRA, and classifiers of ModernBERT and T5."""
    import_transformers()
    import transformers

    toys = glue_toys
    sizes = {"vocab_size": len(toys.WORDS), "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes["intermediate_size"] = 16
    transformers.ElectraModel(transformers.ElectraConfig(**sizes, embedding_size=16)).save_pretrained(
        folder / "electra"
    )
    ids = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3}
    modern = transformers.ModernBertConfig(**sizes, **ids, classifier_pooling="mean")
    transformers.ModernBertForSequenceClassification(modern).save_pretrained(folder / "modern")
    for name, labels in {"verdicts": {"id2label": {0: "y", 1: "n"}}, "topics": {"num_labels": 3}}.items():
        kind = "multi_label_classification" if name == "topics" else None
        config = transformers.BertConfig(**sizes, problem_type=kind, **labels)
        transformers.BertForSequenceClassification(config).save_pretrained(folder / name)
    t5 = transformers.T5Config(vocab_size=600, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
    transformers.T5ForSequenceClassification(t5).save_pretrained(folder / "t5-classifier")
    for name in ("electra", "modern", "maskless", "verdicts", "topics"):
        toys.write_tokenizer(folder / name)
    (folder / "maskless" / "tokenizer_config.json").unlink()
    path = folder / "maskless" / "tokenizer.json"
    put(path, path.read_text("utf-8").replace("[MASK]", "<<hide>>"))


def put_classifiers_of_pixel(folder: Path) -> None:
    """One that reads the class token."""
    theirs = data.test_module("recipes/pixel/test_pixel_classifiers.py")
    theirs.as_original(folder / "pixel-cls", "cls")


def put_features(folder: Path) -> None:
    import numpy as np

    folder.mkdir(parents=True)
    for number in range(6):
        np.save(folder / f"{number:05d}.npy", np.random.default_rng(number).normal(size=(6, 1, 1)).astype(np.float32))


def put_distilbert(folder: Path) -> None:
    import_transformers()
    import transformers

    config = transformers.DistilBertConfig(vocab_size=100, dim=16, n_layers=1, n_heads=2, hidden_dim=24)
    transformers.DistilBertModel(config).save_pretrained(folder)


def early_end(path: Path) -> None:
    """A tokenizer whose last control token has the id 2."""
    content = json.loads(path.read_text("utf-8"))
    content["post_processor"]["single"][-1]["SpecialToken"]["id"] = "[CLS]"
    put(path, json.dumps(content))

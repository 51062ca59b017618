"""Zero-shot classification as OpenAI evaluates it, beside open_clip; and the table that CLIP_benchmark writes."""

import csv
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from pretrainkit import api
from pretrainkit.errors import ConfigError, DataError, InputError
from pretrainkit.eval.imagenet import cifar_templates, imagenet_names, imagenet_templates
from pretrainkit.exporting.native import write_native
from pretrainkit.images.ops import Resize
from pretrainkit.recipes.clip.captions import CaptionTokenizer
from pretrainkit.recipes.clip.config import ClassificationConfig
from pretrainkit.tokenizers.train import TokenizerSettings, train_tokenizer
from support.clip_models import random_model, run_config, text
from support.command_line import refused
from support.pair_sets import WORDS, rows, write_csv_set
from support.remedies import followed

IDS = {"n01440764": 0, "n01443537": 1, "n02085620": 151}
NAMES = ["tench", "goldfish", "Chihuahua"]


@pytest.fixture
def packages(monkeypatch):
    """open_clip and timm, or what of them is read where they are not installed."""
    if find_spec("open_clip") is None or find_spec("timm") is None:
        names = [f"class {number}" for number in range(1000)]
        for name, number in zip(NAMES, IDS.values(), strict=True):
            names[number] = name
        templates = [lambda c, n=n: f"photo {n} of a {c}." for n in range(80)]
        about = SimpleNamespace(IMAGENET_CLASSNAMES=names, OPENAI_IMAGENET_TEMPLATES=templates)
        ids = [f"n{number:08d}" for number in range(1000)]
        for name, number in IDS.items():
            ids[number] = name
        info = SimpleNamespace(ImageNetInfo=lambda: SimpleNamespace(label_names=lambda: ids))
        found = {"open_clip.zero_shot_metadata": about, "timm.data": info}
        monkeypatch.setattr("pretrainkit.eval.imagenet.import_optional", lambda module, *_, **__: found[module])


@pytest.fixture
def model(tmp_path):
    """A folder with a random model, and class folders and pairs beside it."""
    words = [
        *["a", "photo", "of", "the", "bad", "many", "one", "drawing", "toy", "in", "my", "origami", "art", "itap"],
        *map(str.lower, NAMES),
        *WORDS,
    ]
    (tmp_path / "words.tsv").write_text("".join(f"{word}\t5\n" for word in sorted(set(words))))
    tokenizer = tmp_path / "tokenizer"
    train_tokenizer([tmp_path / "words.tsv"], tokenizer, TokenizerSettings(kind="wordpiece", vocab_size=140))
    config = run_config(None, text(vocab_size=140), valid_transforms=(Resize(size=32),), max_length=12)
    write_native(config, random_model(config), tokenizer, tmp_path / "model")
    for place, number in enumerate(IDS):
        (tmp_path / "classes" / number).mkdir(parents=True)
        for index in range(2 + place):
            pixels = np.random.default_rng((place, index)).integers(0, 256, (20, 20, 3), np.uint8)
            Image.fromarray(pixels).save(tmp_path / "classes" / number / f"{index}.png")
    write_csv_set(tmp_path / "set", "valid", rows(6, 2))
    return tmp_path


def test_folders_of_all_sets_get_the_names_of_their_classes(packages):
    assert imagenet_names(list(IDS)) == NAMES
    assert imagenet_names(["0", "1", "151"]) == NAMES
    with pytest.raises(DataError, match="1 folders are not classes of ImageNet, such as cats"):
        imagenet_names(["n01440764", "cats"])


def test_there_are_80_captions(packages):
    assert len(imagenet_templates()) == 80
    assert all(template.count("{}") == 1 for template in imagenet_templates())


@torch.no_grad()
def test_accuracy_is_that_of_the_classifier_of_open_clip(model):
    open_clip = pytest.importorskip("open_clip")
    from open_clip.zero_shot_metadata import OPENAI_IMAGENET_TEMPLATES

    classes = f"evaluate.classification=[{{path: {model}/classes, suite: imagenet}}]"
    found = api.evaluate(model / "model", None, [classes, "data.valid=null"], device="cpu")
    opened = api.open_model(model / "model")
    ours, words = opened.model.eval(), CaptionTokenizer(opened.tokenizer)
    texts = [[template(name) for template in OPENAI_IMAGENET_TEMPLATES] for name in NAMES]

    class Theirs(torch.nn.Module):
        def encode_text(self, ids, normalize):
            return ours(None, ids)["text"]

    def tokenize(captions):
        batch = words.encode(captions, opened.config.data.max_length)
        return torch.from_numpy(batch["input_ids"])

    columns = []
    for captions in texts:  # each template alone: captions of unequal length would be padded
        vectors = torch.cat([Theirs().encode_text(tokenize([caption]), True) for caption in captions])
        columns.append(torch.nn.functional.normalize(vectors.mean(0), dim=0))
    correct = []
    for label, folder in enumerate(sorted((model / "classes").iterdir())):
        for path in sorted(folder.iterdir()):
            image = Image.open(path).resize((32, 32), Image.Resampling.BILINEAR)
            pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)[None]
            scores = ours(pixels)["image"] @ torch.stack(columns).T
            correct.append((label, int(scores.argmax()) == label))
    expected = 100 * np.mean([is_right for _, is_right in correct])
    by_class = [np.mean([is_right for one, is_right in correct if one == label]) for label in range(3)]
    assert open_clip.__version__
    assert found["classes_zeroshot_acc1"] == pytest.approx(expected)
    assert found["classes_zeroshot_mean_per_class_recall"] == pytest.approx(100 * np.mean(by_class))


def test_the_table_has_the_columns_of_clip_benchmark(model, packages):
    words = [f"evaluate.classification=[{{path: {model}/classes, suite: imagenet}}]"]
    out = model / "table.csv"
    found = api.evaluate(model / "model", str(model / "set"), words, device="cpu", csv=out)
    classes, pairs = csv.DictReader(out.open())
    assert (classes["dataset"], classes["task"]) == ("classes", "zeroshot_classification")
    assert float(classes["acc1"]) == found["classes_zeroshot_acc1"] / 100
    assert float(classes["mean_per_class_recall"]) == found["classes_zeroshot_mean_per_class_recall"] / 100
    assert (pairs["dataset"], pairs["task"], pairs["acc1"]) == ("set", "zeroshot_retrieval", "")
    assert float(pairs["image_retrieval_recall@5"]) == found["set_T2I-R@5"] / 100
    assert float(pairs["text_retrieval_recall@5"]) == found["set_I2T-R@5"] / 100
    with pytest.raises(InputError) as refused:
        api.evaluate(model / "model", str(model / "set"), words, device="cpu", csv=out)
    assert "--csv" in followed(refused.value, "running/held_out.py: … exists / choose another --csv")


def test_a_suite_has_its_own_names_and_captions(model):
    words = [f"evaluate.classification=[{{path: {model}/classes, suite: imagenet, templates_file: x}}]"]
    with pytest.raises(ConfigError, match="leave out class_names, templates and templates_file"):
        api.evaluate(model / "model", str(model / "set"), words, device="cpu")


def test_a_table_is_of_one_model(model):
    words = ("evaluate", str(model / "model"), "--csv", str(model / "table.csv"))
    told = refused(*words, "--all-checkpoints")
    assert "leave it out" in followed(told, "cli/evaluate.py: --csv … is for a single model")


def test_captions_of_cifar_are_the_published_ones():
    """Facts of OpenAI's notebook: 18 captions, of which some are spelled out here."""
    templates = cifar_templates()
    assert len(set(templates)) == 18
    assert templates[:2] == ["a photo of a {}.", "a blurry photo of a {}."]
    assert {"a black and white photo of the {}.", "a photo of a small {}.", "a photo of the big {}."} < set(templates)
    assert all(template.count("{}") == 1 for template in templates)
    with pytest.raises(ValueError, match="suite defines the captions"):
        ClassificationConfig(path="x", suite="cifar", templates_file="y")
    assert ClassificationConfig(path="x", suite="cifar", class_names="names.json").suite == "cifar"

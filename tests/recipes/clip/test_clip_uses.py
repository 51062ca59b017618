"""Uses of a trained model, from an export on disk: evaluate, generate, probe, samples for the report."""

import json

import numpy as np
import pytest

pytest.importorskip("PIL")

from pretrainkit import api
from pretrainkit.cli.main import main
from pretrainkit.demo.shapes import write_sets
from pretrainkit.errors import ConfigError, DataError, InputError
from pretrainkit.exporting.native import write_native
from pretrainkit.recipes.clip.config import ClassificationConfig
from pretrainkit.recipes.clip.held_out import templates_of
from pretrainkit.recipes.clip.recipe import RECIPE
from pretrainkit.tokenizers.train import TokenizerSettings, train_tokenizer
from support.command_line import pretrainkit, refused, succeed
from support.remedies import followed

SETTINGS = [
    "model.image.image_size=16",
    "model.image.hidden_size=24",
    "model.image.num_heads=3",
    "model.image.intermediate_size=32",
    "model.text.hidden_size=16",
    "model.text.num_heads=2",
    "model.text.intermediate_size=32",
    "model.projection.dim=12",
    "data.valid_transforms=[{op: resize, size: 16}]",
    "data.train_transforms=[{op: resize, size: 16}]",
    "evaluate.batch_size=5",
]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Folder with sets, a tokenizer, class folders, and `exp`: an export of an untrained model."""
    root = tmp_path_factory.mktemp("uses")
    write_sets(root / "sets", num_train=2, num_valid=12, side=24, seed=0)
    words = ["a", "red", "blue", "green", "small", "large", "circle", "square", "on", "the", "of", "left", "above"]
    (root / "words.tsv").write_text("".join(f"{word}\t5\n" for word in words))
    train_tokenizer([root / "words.tsv"], root / "tok", TokenizerSettings(kind="wordpiece", vocab_size=60))
    config = api.load_config("clip/tiny", [*SETTINGS, f"data.tokenizer={root}/tok", "model.text.vocab_size=60"])
    write_native(config, api.build_model(config), root / "tok", root / "exp")
    from PIL import Image

    for split in ("train", "val"):
        for name, colour in {"dark": 40, "bright_one": 220}.items():
            (root / "classes" / split / name).mkdir(parents=True)
            for i in range(4):
                pixels = np.random.default_rng(i).integers(-30, 30, (20, 20, 3)) + colour
                Image.fromarray(pixels.astype(np.uint8)).save(root / "classes" / split / name / f"{i}.png")
    return root


def test_an_export_is_evaluated_on_each_set_by_name(world):
    (world / "tok").rename(world / "moved")  # the copy beside the model is enough
    try:
        found = api.evaluate(world / "exp", f"{world}/sets/single,{world}/sets/pairs", device="cpu")
    finally:
        (world / "moved").rename(world / "tok")
    assert found["RSUM"] == pytest.approx((found["single_RSUM"] + found["pairs_RSUM"]) / 2)
    assert {"temperature", "single_I2T-R@1", "pairs_T2I-R@10"} <= set(found)


def test_evaluation_takes_other_sets_and_settings_of_its_own(world):
    classes = f"evaluate.classification=[{{path: {world}/classes/val}}]"
    found = api.evaluate(world / "exp", str(world / "sets/single"), [classes, "evaluate.ranks=true"], device="cpu")
    assert not [name for name in found if name.startswith("pairs")]
    assert found["RSUM"] == found["single_RSUM"]
    assert 0 <= found["classes_zeroshot_acc1"] <= 100
    assert found["single_I2T-mean_rank"] >= 1
    alone = api.evaluate(world / "exp", None, [classes, "data.valid=null"], device="cpu")
    classes_alone = {"classes_zeroshot_acc1", "classes_zeroshot_mean_per_class_recall"}
    assert alone.keys() == {"temperature", *classes_alone}
    assert alone["classes_zeroshot_acc1"] == found["classes_zeroshot_acc1"]
    with pytest.raises(ConfigError, match=r"model.projection.dim=4 cannot be set for a trained model"):
        api.evaluate(world / "exp", None, ["model.projection.dim=4"])
    with pytest.raises(DataError, match="names no held-out data"):
        api.evaluate(world / "exp", None, ["data.valid=null"])
    words = ("evaluate", world / "exp", "--device", "cpu", "--json")
    single = f"data.valid={world}/sets/single"
    former = pretrainkit(*words, "--data", f"{world}/sets/single")
    assert former.err == f"note: --data of evaluate for held-out data is now called data.valid; write {single}\n"
    assert former.out == succeed(*words, single)
    with pytest.raises(ConfigError, match=r"two sets of data\.valid have the same name"):
        api.evaluate(world / "exp", f"{world}/sets/single,{world}/sets/../sets/single")


def test_templates_and_names_come_from_files(world):
    (world / "templates.txt").write_text("\ufeffa {}\n\nthe small {}\n")
    found = templates_of(ClassificationConfig(path="x", templates_file=f"{world}/templates.txt"))
    assert found == ["a {}", "the small {}"]
    (world / "names.json").write_text(json.dumps({"dark": "circle", "bright_one": "square"}))
    one = f"{{path: {world}/classes/val, templates_file: {world}/templates.txt, class_names: {world}/names.json}}"
    two = f"{{path: {world}/classes/val, name: other, templates: ['a {{}}', 'the small {{}}']}}"
    settings = ["data.valid=null", f"evaluate.classification=[{one},{two}]"]
    assert "classes_zeroshot_acc1" in api.evaluate(world / "exp", None, settings, device="cpu")
    broken = f"evaluate.classification=[{{path: {world}/classes/val, templates: [photo]}}]"
    with pytest.raises(InputError, match="no place for the name of the class"):
        api.evaluate(world / "exp", None, ["data.valid=null", broken])


def test_a_broken_image_is_named(world, tmp_path):
    for name in ("x/a.png", "y/b.png"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(b"no image")
    with pytest.raises(DataError, match=r"a\.png"):
        api.evaluate(world / "exp", None, ["data.valid=null", f"evaluate.classification=[{{path: {tmp_path}}}]"])


def test_images_are_retrieved_by_what_they_show(world, capsys, monkeypatch):
    found = api.generate(world / "exp", ["a red circle", "small square"], images=world / "sets", top=3)
    assert [answer["prompt"] for answer in found] == ["a red circle", "small square"]
    for answer in found:
        scores = [one["score"] for one in answer["images"]]
        assert len(scores) == 3
        assert scores == sorted(scores, reverse=True)
        assert all(-1 <= score <= 1 for score in scores)
    words = ["generate", str(world / "exp"), "a red circle", "small square", "--images", str(world / "sets")]
    monkeypatch.setattr("sys.argv", ["pretrainkit", *words, "--top", "3", "--json"])
    with pytest.raises(SystemExit, match="0"):
        main()
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == found
    with pytest.raises(InputError, match="give a folder of images: --images FOLDER"):
        api.generate(world / "exp", ["a red circle"])
    with pytest.raises(InputError, match="recipe 'clip' has no option 'beams'"):
        api.generate(world / "exp", ["a red circle"], images=world, beams=3)


def test_the_image_tower_is_probed(world):
    found = api.probe(str(world / "exp"), world / "classes", num_epochs=20, num_threads=0, device="cpu")
    assert {"classes_cached_val_acc1", "classes_cached_val_lr", "classes_knn_acc1"} <= set(found)
    words = ("probe", world / "exp", "--epochs", "20", "--threads", "0", "--device", "cpu", "--json")
    for option in ("--images", "--data"):
        answer = pretrainkit(*words, option, world / "classes")
        assert json.loads(answer.out) == found
        note = f"note: --data of probe is now called --images; write --images {world / 'classes'}\n"
        assert answer.err == (note if option == "--data" else "")
    advice = followed(refused(*words), "cli/probe.py: there are no images to probe with")
    assert "--images FOLDER" in advice
    with pytest.raises(ConfigError, match="num_epochs cannot be 0"):
        api.probe(str(world / "exp"), world / "classes", num_epochs=0)
    with pytest.raises(ConfigError, match="methods"):
        api.probe(str(world / "exp"), world / "classes", methods=["psychic"])


def test_samples_for_the_report_are_retrieved_pairs(world):
    opened = api.open_model(world / "exp")
    places = [f"data.valid={world}/sets/single,{world}/sets/pairs", f"data.tokenizer={world}/tok"]
    config = api.load_config(world / "exp/config.yaml", places)
    samples = RECIPE.sample(config, opened.model, RECIPE.open_data(config, "valid"), 6)
    assert len(samples) == 6
    pictures = [
        one["image"]
        for sample in samples
        for cell in sample.values()
        if isinstance(cell, list)
        for one in cell
        if "image" in one
    ]
    assert len(pictures) >= 3 + 15
    assert all(picture.startswith("data:image/jpeg;base64,") for picture in pictures)
    assert {one["is_right"] for sample in samples for one in sample["found"]} <= {True, False}


def test_captions_beyond_the_models_positions_are_refused_before_evaluating(world):
    with pytest.raises(ConfigError, match="the text tower has 32 positions"):
        api.evaluate(world / "exp", f"{world}/sets/single", ["data.max_length=500"], device="cpu")

"""Generation from files, texts and samples; its images, JSON and sheet; several models; invalid options."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import pretrainkit
from pretrainkit.errors import InputError
from pretrainkit.recipes.fourm.generation import generate as generation
from pretrainkit.recipes.fourm.generation.examples import Example, File, Link
from pretrainkit.recipes.fourm.generation.generate import generate, sample
from pretrainkit.recipes.fourm.generation.show import Judge, contact_sheet, picture, structure, values_of
from pretrainkit.recipes.fourm.modality import Modality, published
from pretrainkit.recipes.fourm.model import build
from pretrainkit.recipes.fourm.presets import tiny_modalities
from pretrainkit.recipes.fourm.serialise import box_words
from pretrainkit.recipes.fourm.source import bind, open_source
from pretrainkit.recipes.fourm.text import TextVocabulary
from support.fourm_data import write_set, write_tokenizer
from support.remedies import followed

SETTINGS = (
    "model.hidden_size=16",
    "model.num_heads=2",
    "model.num_encoder_layers=1",
    "model.num_decoder_layers=1",
    "model.intermediate_size=42",
)


class Setup:
    """Small model with its data."""

    def __init__(self, folder: Path) -> None:
        data = [f"data.train={write_set(folder / 'train', 6, 0)}", f"data.valid={write_set(folder / 'valid', 4, 1)}"]
        self.tokenizer = write_tokenizer(folder / "words")
        config = pretrainkit.load_config("fourm/tiny", [*data, f"data.tokenizer={self.tokenizer}", *SETTINGS])
        self.config: Any = bind(config)
        self.model = self.build(self.config)
        self.photo = folder / "valid" / "rgb" / "0000" / "00000.png"
        larger = next(one for one in tiny_modalities(128) if one.name == "colors@128")
        modalities = (*self.config.model.modalities, larger)
        model = self.config.model.model_copy(update={"modalities": modalities})
        self.larger: Any = self.config.model_copy(update={"model": model})

    @staticmethod
    def build(config: Any) -> Any:
        torch.manual_seed(0)
        return build(config.model).eval()

    def __call__(self, *prompts: str, **options: Any) -> list[dict[str, Any]]:
        options = {"settings": ["det.max_tokens=6"] if "det" in options.get("to", ()) else [], **options}
        return generate(self.config, self.model, self.tokenizer, prompts, **options)


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Setup:
    return Setup(tmp_path_factory.mktemp("generation"))


def test_every_target_is_generated_from_every_input(setup: Setup) -> None:
    for given in (f"rgb={setup.photo}", "caption=a red ball", "det=v0=1 v1=2 v2=300 v3=400 ball"):
        name = given.partition("=")[0]
        targets = [one for one in ("rgb", "depth", "seg", "caption", "det") if one != name or name == "rgb"]
        found = setup(inputs=[given], to=targets, temperature=0.5, seed=1)[0]["outputs"]
        assert len(found) == len(targets)
        assert all(len(found[one]) == 64 for one in found if "@" in one)


def test_written_tokens_are_read_back_equal(setup: Setup, tmp_path: Path) -> None:
    out = tmp_path / "out"
    tokens = setup(inputs=[f"rgb={setup.photo}"], to=["rgb", "depth", "seg", "det", "caption"], seed=1)[0]["outputs"]
    written = setup(inputs=[f"rgb={setup.photo}"], to=["rgb", "depth", "seg", "det", "caption"], seed=1, out=out)
    assert {path.name for path in (out / "0000").iterdir()} == {
        "colors@64.png", "depth@64.png", "seg@64.png", "det.json", "caption.json"
    }  # fmt: skip
    record = json.loads((out / "generation.json").read_text("utf-8"))
    assert record["answers"][0]["outputs"] == written[0]["outputs"]
    assert record["answers"][0]["outputs"]["seg@64"] == "0000/seg@64.png"
    assert Image.open(out / "sheet.png").size[0] > 600
    seg = np.asarray(Image.open(out / "0000" / "seg@64.png"))
    assert seg[::8, ::8].reshape(-1).tolist() == tokens["seg@64"]
    again = setup(inputs=[f"seg={out}/0000/seg@64.png", f"colors={out}/0000/colors@64.png"], to=["caption"])
    assert again[0]["inputs"] == {"seg": f"{out}/0000/seg@64.png", "colors": f"{out}/0000/colors@64.png"}
    with pytest.raises(InputError, match="not an empty folder"):
        setup("a red ball", to=["depth"], out=out)


def test_a_median_is_the_same_for_all_variations_and_for_every_seed(setup: Setup) -> None:
    settings = ["depth.take=median", "depth.num_steps=1"]
    options = {"inputs": [f"rgb={setup.photo}"], "to": ["depth"], "num": 2}
    found = [one["outputs"]["depth@64"] for seed in (1, 2) for one in setup(seed=seed, settings=settings, **options)]
    assert found == [found[0]] * 4
    drawn = [one["outputs"]["depth@64"] for one in setup(seed=1, settings=settings[1:], **options)]
    assert drawn[0] != drawn[1]


def test_samples_of_the_data_are_compared_with_the_truth(setup: Setup) -> None:
    answers = setup(inputs=["rgb"], from_data=3, to=["depth", "seg", "caption"], temperature=0)
    assert [set(one["figures"]) for one in answers] == [{"depth@64", "seg@64", "caption"}] * 3
    summary = answers[-1]["summary"]
    mean = np.mean([one["figures"]["depth@64"]["error"] for one in answers])
    assert summary["depth@64"]["error"] == pytest.approx(mean)
    assert {"error", "guessed_error", "accuracy", "guessed_accuracy"} <= summary["depth@64"].keys()
    assert summary["seg@64"]["guessed_accuracy"] > 0.5  # most of every picture is ground
    everything = setup(from_data=2, to=["rgb"])
    assert everything[0]["inputs"].keys() == {"caption", "depth@64", "det", "seg@64"}  # not the photograph itself


def test_prompts_are_captions_and_variations_differ(setup: Setup) -> None:
    answers = setup("a red ball", "a green box", to=["seg"], num=2, batch_size=3)
    assert [(one["example"], one["variation"]) for one in answers] == [
        ("0000", 0),
        ("0000", 1),
        ("0001", 0),
        ("0001", 1),
    ]
    assert answers[0]["outputs"] != answers[1]["outputs"]
    alone = setup("a red ball", to=["seg"])
    assert alone[0]["outputs"] == answers[0]["outputs"]


def test_prompts_become_the_inputs_of_training(setup: Setup) -> None:
    vocabulary = TextVocabulary(setup.tokenizer)
    a, ball, hole = vocabulary.encode_words(["a", "ball", "[S_1]"])
    given = Link(setup.config, setup.model, vocabulary)
    texts = ("a ball", "a [S_1]", "a [S_1] ball")
    known = given.known([Example(text, {"caption": text}) for text in texts])
    assert [one.tolist() for one in known.contents["caption"] if one is not None] == [
        [a, ball, vocabulary.eos],
        [a, hole],  # its end is part of what is missing
        [a, hole, ball, vocabulary.eos],
    ]


def test_texts_of_files_are_cut_as_in_training(setup: Setup, tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text("red " * 40)
    setup(inputs=[f"caption={tmp_path}/long.txt"], to=["depth"])
    modality = next(one for one in setup.config.model.modalities if one.name == "caption")
    given = Link(setup.config, setup.model, TextVocabulary(setup.tokenizer))
    example = Example("0", {}, {"caption": File(b"red " * 40, "long.txt")})
    truth = given.truth(example, modality)
    assert truth is not None
    assert len(truth) == modality.max_tokens


def test_a_hole_in_a_text_is_filled_in(setup: Setup) -> None:
    found = setup("a [S_1] ball", to=["caption"], settings=["caption.max_tokens=3"])[0]["outputs"]["caption"]
    assert found.startswith("a")
    assert "ball" in found


def test_a_second_model_generates_the_targets_that_the_first_lacks(setup: Setup) -> None:
    larger = (setup.larger, setup.build(setup.larger), setup.tokenizer)
    found = setup("a red ball", to=["colors@64", "colors@128"], then=[larger])[0]["outputs"]
    assert {name: len(tokens) for name, tokens in found.items()} == {"colors@64": 64, "colors@128": 256}
    direct = generate(setup.larger, larger[1], setup.tokenizer, ["a red ball"], to=["colors@128"])
    assert direct[0]["outputs"]["colors@128"] != found["colors@128"]  # the smaller one was read


def test_tokens_of_an_image_tokenizer_are_pictures_where_it_is_given(setup: Setup, tmp_path: Path) -> None:
    modalities = tuple(
        one.model_copy(update={"reader": "tokens", "folder": None}) if one.name == "seg@64" else one
        for one in setup.config.model.modalities
    )
    model = setup.config.model.model_copy(update={"modalities": modalities})
    config = setup.config.model_copy(update={"model": model})

    class Decoder:
        vocab_size = 256
        has_numbers = False

        def decode(self, ids: np.ndarray) -> np.ndarray:
            return ids.reshape(-1, 8, 8).astype(np.uint8)

        def pictures(self, ids: np.ndarray) -> np.ndarray:
            return np.repeat(self.decode(ids)[:, None], 3, axis=1)

    for name, decoders in (("without", {}), ("with", {"seg@64": Decoder()})):
        generate(
            config,
            setup.model,
            setup.tokenizer,
            ["a red ball"],
            to=["seg"],
            image_decoders=decoders,
            out=tmp_path / name,
        )
    tokens = np.load(tmp_path / "without" / "0000" / "seg@64.npy")
    assert tokens.shape == (1, 64)
    pixels = np.asarray(Image.open(tmp_path / "with" / "0000" / "seg@64.png"))
    assert pixels.reshape(1, -1).tolist() == tokens.tolist()
    with pytest.raises(InputError, match="tokenizer is given for depth"):
        setup("a red ball", to=["seg"], image_decoders={"depth": Decoder()})
    with pytest.raises(InputError, match="has 256 tokens, but the model has 64"):
        setup("a red ball", to=["depth"], image_decoders={"depth@64": Decoder()})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"to": ["depht"]}, "no modality of that name\n  targets are caption"),
        ({"to": ["rgb@64"]}, "rgb@64 can only be an input"),
        ({"to": []}, "nothing to generate"),
        ({"to": ["depth"], "inputs": ["rgbb=x.png"]}, "inputs are"),
        ({"to": ["depth"], "inputs": ["rgb=/nowhere.png"]}, "No such file"),
        ({"to": ["depth"], "inputs": [f"rgb={__file__}"]}, "cannot be read from a file of this type"),
        ({"to": ["depth"], "inputs": ["rgb"]}, "NAME alone works only with --from-data"),
        ({"to": ["depth"], "inputs": ["caption=" + "red " * 40]}, "has 121 tokens with its end mark.*at most 32"),
        ({"to": ["depth"], "inputs": ["caption=a [S_2]"]}, "not numbered in order"),
        ({"to": ["caption"], "inputs": ["caption=a red ball"]}, "caption is both an input and a target"),
        ({"to": ["depth"], "settings": ["depth.steps=3"]}, "no field 'steps'.*fields: modality, scheme, num_steps"),
        ({"to": ["depth"], "settings": ["seg.num_steps=3"]}, "there is no target 'seg'"),
        (
            {"to": ["depth"], "settings": ["depth.guidance={caption: 2}"]},
            "guided by caption, which is neither an input",
        ),
        ({"to": ["depth"], "settings": ["depth.scheme=autoregressive"]}, "it is an image"),
        ({"to": ["caption"], "settings": ["caption.scheme=roar"]}, "it is a sequence"),
        ({"to": ["depth"], "settings": ["depth.schedule=[4, 4]"]}, "schedule of 8 tokens, but it has 64"),
        (
            {"to": ["seg"], "settings": ["seg.take=mean"]},
            "seg@64 has take=mean, but its tokens do not represent numbers",
        ),
        ({"to": ["depth"], "settings": ["depth.take=mean"], "temperature": 0}, "set temperature=1"),
        (
            {"to": ["depth"], "settings": ["depth.temperature=-1"]},
            "depth.temperature cannot be -1.*accepted: number >= 0",
        ),
        ({"to": ["depth"], "inputs": ["caption=x"], "from_data": 2}, "there can be no other inputs"),
    ],
)
def test_invalid_settings_are_refused(setup: Setup, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=f"(?s){message}"):
        setup(**{"settings": [], **options})


def test_a_run_without_held_out_data_is_refused_with_an_option_for_files(setup: Setup) -> None:
    config = setup.config.changed(data={"valid": ()})
    arguments = (setup.model, setup.tokenizer, [])
    with pytest.raises(InputError, match="trained without") as refused:
        generate(config, *arguments, to=["depth"], from_data=1)
    advice = followed(refused.value, "recipes/fourm/generation/generate.py: --from-data takes held-out samples")
    given = advice.partition("--from ")[2].replace("NAME=FILE", f"rgb={setup.photo}")
    assert generate(config, *arguments, to=["depth"], inputs=[given])[0]["outputs"]["depth@64"]


def test_a_broken_picture_is_refused_by_name(setup: Setup, tmp_path: Path) -> None:
    (tmp_path / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n but no more")
    with pytest.raises(InputError, match=r"broken\.png"):
        setup(inputs=[f"rgb={tmp_path}/broken.png"], to=["depth"])


def test_the_report_shows_targets_beside_the_truth(setup: Setup) -> None:
    photograph, text = sample(setup.config, setup.model, open_source(setup.config, "valid"), 2)
    assert "image" in photograph["input"][0]
    assert "text" in text["input"][0]
    assert "image" in text["depth@64"][0]
    targets = {"colors@64", "depth@64", "seg@64", "caption", "det"}
    assert targets <= photograph.keys()
    # Pictures of the truth are made of its tokens.
    assert {"true caption", "true det"} <= photograph.keys()
    assert {f"tokens of the true {name}@64" for name in ("colors", "depth", "seg")} <= photograph.keys()
    assert "true depth@64" not in photograph
    assert "caption" not in text


def test_a_sheet_names_inputs_that_are_no_pictures(
    setup: Setup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors = published("t5_caption").model_copy(update={"vector_width": 5, "length": 9})
    tokens = Modality(name="tok_x@32", kind="image", image_size=32, patch_size=16, vocab_size=8, reader="tokens")
    caption = next(one for one in setup.config.model.modalities if one.name == "caption")
    config = setup.config.changed(model={"modalities": (vectors, tokens, caption)})
    np.savez(tmp_path / "v.npz", emb=np.ones((1, 6, 5)), mask_valid=np.ones((1, 6)))
    np.save(tmp_path / "x.npy", np.arange(4))
    sheets: list[Any] = []
    drawn = generation.contact_sheet
    monkeypatch.setattr(generation, "contact_sheet", lambda *args: sheets.append(args) or drawn(*args))
    inputs = [f"t5_caption={tmp_path / 'v.npz'}", f"tok_x={tmp_path / 'x.npy'}"]
    generate(config, setup.build(config), setup.tokenizer, [], inputs=inputs, to=["caption"], out=tmp_path / "out")
    ((_, ((first, second, _),)),) = sheets
    assert (first, second) == ("6 vectors of t5_caption", "4 tokens of tok_x@32")


def test_a_long_heading_of_a_sheet_is_wrapped_and_not_cut() -> None:
    pictures = [[np.full((8, 8, 3), 255, np.uint8)]]
    short = np.asarray(contact_sheet(["depth@64"], pictures))
    lines = np.asarray(contact_sheet(["tokens of the true depth@64"], pictures))
    assert lines.shape[1] == short.shape[1]
    num_rows_more = len(lines) - len(short)
    assert num_rows_more > 0
    assert (lines[num_rows_more:] < 128).any()  # the second line has text


def test_boxes_and_figures_equal_the_serialized_ones(setup: Setup) -> None:
    vocabulary = TextVocabulary(setup.tokenizer)
    named = {modality.reader: modality for modality in setup.config.model.modalities}
    words = ["v0=250", "v1=0", "v2=999", "v3=500", "wine glass", "v0=1", "v1=2"]
    found = structure(named["boxes"], np.array(vocabulary.encode_words(words), np.int32), vocabulary)
    assert found == {"instances": [{"boxes": [0.2503, 0, 1, 0.5005], "class_name": "wine glass", "score": 1.0}]}
    figures = named["boxes"].model_copy(update={"reader": "metadata"})
    ids = np.array(vocabulary.encode_words(["v1=0", "v0=7", "v1=10", "v0=49"]), np.int32)
    assert structure(figures, ids, vocabulary) == {"original_width": 224, "brightness": 255.0}


def test_generated_boxes_are_read_again_as_the_same_tokens(setup: Setup) -> None:
    vocabulary = TextVocabulary(setup.tokenizer)
    boxes = next(modality for modality in setup.config.model.modalities if modality.reader == "boxes")
    for first in range(0, 1000, 4):
        words = [f"v{axis}={first + axis}" for axis in range(4)]
        ids = np.array(vocabulary.encode_words([*words, "cat"]), np.int32)
        (instance,) = structure(boxes, ids, vocabulary)["instances"]
        assert box_words(np.array(instance["boxes"])) == words


def test_pictures_of_an_image_tokenizer_are_compared_as_pictures(setup: Setup) -> None:
    depth = next(one for one in setup.config.model.modalities if one.name == "depth@64")
    tokens = depth.model_copy(update={"reader": "tokens"})
    found, truth = np.full(64, 3, np.int32), np.full(64, 5, np.int32)

    class Depth:
        vocab_size = 64
        has_numbers = True

        def decode(self, ids: np.ndarray) -> np.ndarray:
            return ids.reshape(-1, 8, 8).astype(np.float32) / 10

        def pictures(self, ids: np.ndarray) -> np.ndarray:
            return np.repeat(ids.reshape(-1, 1, 8, 8), 3, axis=1).astype(np.uint8)

    class Edges(Depth):
        """Decoder of grey images, uint8 with one channel."""

        def decode(self, ids: np.ndarray) -> np.ndarray:
            return ids.reshape(-1, 8, 8).astype(np.uint8)

    class Classes(Depth):
        has_numbers = False

        def decode(self, ids: np.ndarray) -> np.ndarray:
            return (ids.reshape(-1, 8, 8) // 2).astype(np.uint8)

    assert Judge(tokens, None).figures([found], [truth]) == {"accuracy": 0}
    assert Judge(tokens, None, Depth()).figures([found], [truth]) == {"accuracy": 0, "error": pytest.approx(0.2)}
    assert Judge(tokens, None, Edges()).figures([found], [truth]) == {"accuracy": 0, "error": 2}
    assert Judge(tokens, None, Depth()).guessed([found, truth], [truth])["error"] == pytest.approx(0.1)
    # 3, 5 and 5 together: 4.33 of depth, and the class of 5.
    assert Judge(tokens, None, Depth()).together([[found, truth, truth]], [truth])["error"] == pytest.approx(0.2 / 3)
    assert Judge(tokens, None, Classes()).figures([found], [found + 1]) == {"accuracy": 0, "pixels": 0}
    assert Judge(tokens, None, Classes()).together([[found, truth, truth]], [truth]) == {"accuracy": 1, "pixels": 1}
    assert Judge(tokens, None, Classes()).guessed([found, truth, truth], [truth])["pixels"] == 1


def test_figures_of_each_data_set_are_separate(setup: Setup) -> None:
    sets = {
        split: tuple(
            one.model_copy(update={"name": name})
            for name in ("here", "there")
            for one in getattr(setup.config.data, split)
        )
        for split in ("train", "valid")
    }
    data = setup.config.data.model_copy(update=sets)
    config = setup.config.model_copy(update={"data": data})
    answers = generate(
        config,
        setup.model,
        setup.tokenizer,
        [],
        inputs=["rgb"],
        from_data=4,
        to=["depth"],
        settings=["depth.num_steps=1"],
    )
    summary = answers[-1]["summary"]
    assert summary.keys() == {"depth@64", "depth@64 of here", "depth@64 of there"}
    for part, own in (("here", answers[:2]), ("there", answers[2:])):
        mean = np.mean([one["figures"]["depth@64"]["error"] for one in own])
        assert summary[f"depth@64 of {part}"]["error"] == pytest.approx(mean)


def test_figures_have_their_number_of_examples(setup: Setup) -> None:
    """The second data set has no depth; its samples have the same names as those of the first."""
    (one,) = setup.config.data.valid
    names = ("rgb@64", "caption")
    valid = (one.model_copy(update={"name": "here"}), one.model_copy(update={"name": "there", "modalities": names}))
    config = setup.config.model_copy(update={"data": setup.config.data.model_copy(update={"valid": valid})})
    options = {"inputs": ["rgb"], "to": ["depth", "caption"], "settings": ["depth.num_steps=1", "caption.max_tokens=2"]}
    answers = generate(config, setup.model, setup.tokenizer, [], from_data=6, num=2, **options)
    summary, lines = answers[-1]["summary"], answers[-1]["text"].splitlines()
    assert (summary["depth@64"]["examples"], summary["caption"]["examples"]) == (3, 6)
    assert summary["caption of there"]["examples"] == 3
    (depth,) = [line for line in lines if line.startswith("depth@64: ")]
    (caption,) = [line for line in lines if line.startswith("caption: ")]
    assert depth.endswith(", over 3 of 6 examples")
    assert caption.endswith(", over 6 of 6 examples")


def test_variations_together_are_their_mean_and_their_majority(setup: Setup) -> None:
    depth = next(one for one in setup.config.model.modalities if one.reader == "depth")
    one, two = np.full(64, 3, np.int32), np.full(64, 5, np.int32)
    found = Judge(depth, None).together([[one, two, two]], [one])
    assert found["accuracy"] == 0
    assert found["error"] == pytest.approx(2 * 2 / 3 * 5 / 64)
    summary = setup(inputs=["rgb"], from_data=2, to=["depth"], num=2, settings=["depth.num_steps=1"])[-1]["summary"]
    assert {"together_error", "together_accuracy"} <= summary["depth@64"].keys()


def test_pictures_of_depth_and_colours_have_the_values_of_their_tokens(setup: Setup) -> None:
    named = {modality.reader: modality for modality in setup.config.model.modalities}
    ids = np.arange(64, dtype=np.int32)
    assert np.allclose(np.diff(values_of(named["depth"], ids)), 5 / 64)
    painted = picture(named["colors"], np.full(64, 7 * 64, np.int32), {})
    assert painted is not None
    assert painted.shape == (64, 64, 3)
    assert painted[0, 0].tolist() == [240, 16, 16]

"""Facts about the published modalities, and users' own modalities."""

import pytest
from pydantic import TypeAdapter, ValidationError

from pretrainkit.config.paths import absolute_paths
from pretrainkit.errors import ConfigError
from pretrainkit.recipes.fourm.modality import MOD7, MOD21, Modalities, Modality, published
from pretrainkit.recipes.fourm.readers import reader_of
from support.remedies import followed

MODALITIES = TypeAdapter(Modalities)


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("rgb@224", 20716),
        ("caption", 32652),
        ("det", 30982),
        ("tok_rgb@224", 11606),
        ("tok_depth@224", 20063),
        ("tok_clip@224", 11422),
        ("t5_caption", 28551),
        ("metadata", 1951),
        ("human_poses", 30584),
        ("color_palette", 12967),
        ("sam_instance", 1938),
        ("tok_dinov2@224", 26275),
        ("tok_dinov2_global", 29172),
        ("tok_imagebind_global", 12099),
        ("rgb@448", 27924),
        ("tok_semseg@448", 10291),
    ],
)
def test_numbers_of_modalities_are_the_published_ones(name, number):
    assert published(name).id == number


def test_the_published_sets_have_as_many_inputs_and_targets_as_published():
    for names, inputs, targets in ((MOD7, 8, 7), (MOD21, 19, 17)):
        modalities = [published(name) for name in names]
        assert sum(modality.is_input for modality in modalities) == inputs
        assert sum(modality.is_target for modality in modalities) == targets
        assert list(names) == sorted(names)


def test_tokens_follow_from_pixels_and_patches():
    tokens = {name: published(name).max_tokens for name in (*MOD21, "tok_rgb@448")}
    assert {tokens[name] for name in tokens if name.endswith("@224") and "dino" not in name and "bind" not in name} == {
        196
    }
    assert tokens["tok_dinov2@224"] == tokens["tok_imagebind@224"] == 256
    assert tokens["tok_dinov2_global"] == 16
    assert tokens["tok_rgb@448"] == 784
    assert (tokens["human_poses"], published("human_poses").max_length) == (275, 263)
    assert published("tok_dinov2_global").has_learned_positions


def test_every_published_modality_has_a_reader():
    assert all(reader_of(published(name)).suffixes for name in MOD21)


@pytest.mark.parametrize("name", ["tok_smell@224", "rgb", "caption@224", "tok_rgb@225", "tok_rgb@large"])
def test_unknown_names_and_resolutions_are_refused(name):
    with pytest.raises(ConfigError):
        published(name)


def test_a_user_declares_a_modality_and_its_reader_in_a_file_of_their_own(tmp_path):
    file = tmp_path / "my_modalities.py"
    file.write_text(
        "from pretrainkit.recipes.fourm.modality import Modality\n"
        "from pretrainkit.recipes.fourm.readers import Reader\n"
        "class Speed(Reader):\n"
        "    suffixes = ('.txt',)\n"
        "    def read(self, content, request):\n"
        "        return [f'v0={int(content)}']\n"
        "READER = Speed()\n"
        "SPEED = Modality(name='speed', kind='sequence', length=4, vocab_size=9, reader=__file__ + ':READER')\n"
    )
    found = MODALITIES.validate_python(f"rgb@64,{file}:SPEED")
    assert [modality.name for modality in found] == ["rgb@64", "speed"]
    assert found[0].max_tokens == 16
    assert reader_of(found[1]).read(b"12", None) == ["v0=12"]
    assert (
        MODALITIES.validate_python(MODALITIES.dump_python(found)) == found
    )  # the config of a run describes its modalities completely


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": "image", "image_size": 224},
        {"kind": "pixels", "image_size": 224, "patch_size": 16, "num_channels": 3},
        {"kind": "sequence", "length": 513, "vocab_size": 9},
        {"kind": "image", "image_size": 230, "patch_size": 16, "vocab_size": 9},
        {"kind": "sequence", "length": 5, "vocab_size": 9, "is_input": False, "is_target": False},
    ],
)
def test_modalities_that_cannot_be_are_refused(fields):
    with pytest.raises(ValidationError):
        Modality(name="x", reader="tokens", **fields)


def test_pixels_become_an_input_as_advised():
    pixels = {"name": "x", "reader": "rgb", "kind": "pixels", "image_size": 224, "patch_size": 16, "num_channels": 3}
    with pytest.raises(ValidationError) as refused:
        Modality(**pixels)
    advice = followed(refused.value, "recipes/fourm/modality.py: modality … of kind … is an input only")
    assert "set is_target=false" in advice
    assert Modality(**pixels, is_target=False).is_input


def test_names_are_unique():
    with pytest.raises(ValidationError, match="more than once"):
        MODALITIES.validate_python("caption,caption")


def test_a_reader_is_not_a_folder_of_its_name(tmp_path, monkeypatch):
    (tmp_path / "caption").mkdir()
    monkeypatch.chdir(tmp_path)
    assert absolute_paths(published("caption")).reader == "caption"

"""For any value in a field, the message names the field, the value and what is accepted, in plain words."""

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

import pretrainkit as pk
from pretrainkit.config.explain import fields_under
from pretrainkit.config.loader import flatten
from pretrainkit.errors import ConfigError
from pretrainkit.recipes.registry import entries

WRONG = ["certainly not", "-1", "1.5e400", "[]", "[[1], {a: b}]", "{}", "{a: {b: c}}", "null", "true", "0"]
FOREIGN = re.compile(
    r"pydantic|errors\.|Input should|Value error|Field required|validation error|Extra inputs|Traceback|type=|"
    r"valid (integer|number|string|boolean|list|tuple|dictionary)|constrained|literal\[|function-|discriminator",
    re.IGNORECASE,
)


def fields(config: Any) -> set[str]:
    """Dotted paths of a config, with those of the settings that hold others."""
    paths = set(flatten(config.model_dump(mode="json")))
    return paths | {path.rpartition(".")[0] for path in paths} - {""}


def one_of_each_kind(recipe: str) -> dict[str, set[str]]:
    """Presets whose configs have other fields than those before, to these fields."""
    seen, found = set[str](), dict[str, set[str]]()
    for name, make in entries()[recipe].load().presets.items():
        if new := fields(make()) - seen:
            found[f"{recipe}/{name}"] = new
        seen |= new
    return found


PRESETS = {source: new for recipe in entries() for source, new in one_of_each_kind(recipe).items()}


@pytest.mark.slow
@pytest.mark.parametrize("source", PRESETS)
def test_every_field_of_every_kind_of_preset_explains_every_wrong_value(source: str) -> None:
    check_every_field(source, PRESETS[source], WRONG)


@pytest.mark.parametrize(
    "source", ["bert/tiny", "clip/tiny", "fourm/tiny", "glue/cola", "image_tokenizer/tiny", "pixel/tiny", "t5/tiny"]
)
def test_every_field_explains_wrong_values(source: str) -> None:
    check_every_field(source, fields(pk.load_config(source)), WRONG[:1] + WRONG[4:5])


def check_every_field(source: str, paths: set[str], values: list[str]) -> None:
    known = fields_under(type(pk.load_config(source)))
    num_refused, checked = 0, sorted(paths & set(known) - {"recipe"})
    for path in checked:
        for value in values:
            try:
                pk.load_config(source, [f"{path}={value}"])
            except ConfigError as error:
                for problem in error.problems:
                    num_refused += 1
                    assert not FOREIGN.search(problem.replace(known.get(path, ""), "")), (path, value, problem)
                    assert path.rpartition(".")[2] in problem, (path, value, problem)
                    if re.match(r"[\w.]+ cannot be ", problem):
                        assert "given:   " in problem, problem
                        assert "accepted: " in problem, problem
    assert num_refused >= len(checked) / 2


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("extends: bert/tiny\nmodel:\n\thidden_size: 64\n", 3),
        ("extends: bert/tiny\nmodel:\n  hidden_size: 64\n\tnum_layers: 2\n", 4),
    ],
)
def test_a_tab_is_named_and_the_fix_works(tmp_path: Path, text: str, line: int) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        pk.load_config(file)
    message = str(caught.value)
    assert f"line {line} begins with a tab" in message
    subprocess.run(message.partition("two spaces: ")[2], shell=True, check=True)
    assert pk.load_config(file).model.hidden_size == 64


@pytest.mark.parametrize(
    "text", ["a: [\n", "a: b: c\n", "a: 'b\n", "- a\nb: c\n", "a: @b\n", "a: b\n  c: d\n", "a: \x00"]
)
def test_no_file_shows_the_words_of_the_parser(tmp_path: Path, text: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(yaml.YAMLError) as theirs:
        yaml.safe_load(text)
    with pytest.raises(ConfigError) as ours:
        pk.load_config(file)
    assert str(file) in str(ours.value)
    for words in (getattr(theirs.value, "problem", None), getattr(theirs.value, "context", None), "unicode string"):
        assert not words or words not in str(ours.value)


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("extends: bert/tiny\nmodl:\n  hidden_size: 64\n", "model"),
        ("extends: bert/tiny\noptimizer:\n  learning_rate: 1.0e-4\n", "peak_lr"),
        ("recipe: bert\nmodel:\n  arch: bert\n  hiden: 3\n", "hidden_size"),
        ("extends: clip/tiny\nmodel:\n  image:\n    patchsize: 3\n", "patch_size"),
    ],
)
def test_an_unknown_key_in_a_file_advises_a_command_that_works(tmp_path: Path, text: str, fields: str) -> None:
    from typer.testing import CliRunner

    from pretrainkit.cli.main import app

    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        pk.load_config(file)
    (problem,) = [text for text in caught.value.problems if "has no field" in text]
    assert re.search(rf"\(line \d of file {file}\)", problem)
    found = CliRunner().invoke(app, problem.rpartition("all fields: pretrainkit ")[2].split())
    assert found.exit_code == 0
    assert fields in found.output


@pytest.mark.parametrize("word", ["data.denoising.modes={random_spans: x}", "data.denoising.modes.random_spans=x"])
def test_a_key_that_a_mapping_cannot_have_is_not_a_value(word: str) -> None:
    with pytest.raises(ConfigError) as caught:
        pk.load_config("t5/mini", [word])
    (problem,) = caught.value.problems
    assert problem.startswith("data.denoising.modes cannot have the key random_spans\n  accepted: the keys R | X | S\n")
    assert pk.load_config("t5/mini", ["data.denoising.modes={R: x}"]).data.denoising.modes == {"R": "x"}


def test_a_resolution_without_whole_patches_names_those_that_work() -> None:
    with pytest.raises(ConfigError) as caught:
        pk.load_config("fourm/tiny", ["model.modalities=[map_depth@70]"])
    message = str(caught.value)
    assert not FOREIGN.search(message)
    for name in re.findall(r"map_depth@\d+", message.partition("use ")[2])[:2]:
        words = [f"model.modalities=[rgb@64, {name}]".replace("rgb@64", "rgb@224")]
        assert pk.load_config("fourm/tiny", words).model.modalities[1].name == name


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (["--batch-size", "4"], ("data.batch_size", 4)),
        (["--batch_size=4"], ("data.batch_size", 4)),
        (["--lr", "1e-3"], ("optimizer.peak_lr", 1e-3)),
        (["--learning-rate", "1e-3"], ("optimizer.peak_lr", 1e-3)),
        (["--epochs", "3"], ("data.num_epochs", 3)),
        (["--max-steps", "5"], ("num_steps", 5)),
        (["--seed", "7"], ("seed", 7)),
        (["--warmup-ratio", "0.1"], ("schedule.warmup_share", 0.1)),
        (["--weight-decay", "0.2"], ("optimizer.weight_decay", 0.2)),
        (["--hidden-size", "64"], ("model.hidden_size", 64)),
        (["--bf16"], ("precision.compute", "bfloat16")),
        (["--num_train_steps", "5"], ("num_steps", 5)),
        (["--config.learning_rate=1e-4"], ("optimizer.peak_lr", 1e-4)),
        (["--config.weight_decay=0.1"], ("optimizer.weight_decay", 0.1)),
        (["--config.model.hidden_size=64"], ("model.hidden_size", 64)),
        (["--config.eval_batch_size", "8"], ("evaluate.batch_size", 8)),
    ],
)
@pytest.mark.parametrize("source", ["bert/tiny", "t5/micro"])
def test_an_option_of_another_tool_is_answered_with_the_setting(source: str, words: list[str], value: Any) -> None:
    from typer.testing import CliRunner

    from pretrainkit.cli.main import app
    from pretrainkit.errors import InputError

    found = CliRunner().invoke(app, ["train", source, *words])
    assert isinstance(found.exception, InputError)
    fix = str(found.exception).partition("write: ")[2].splitlines()[0]
    config: Any = pk.load_config(source, fix.split())
    assert config.problems() == []
    for part in value[0].split("."):
        config = getattr(config, part)
    assert config == value[1]


TEXT = "".join(f"Sentence number {number} is here.\nAnd another line of {number % 7}.\n\n" for number in range(90))


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that commands run in, with a user's raw text."""
    (tmp_path / "my raw").mkdir()
    (tmp_path / "my raw" / "a.txt").write_text(TEXT)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*words: str) -> Any:
    from typer.testing import CliRunner

    from pretrainkit.cli.main import app

    return CliRunner().invoke(app, list(words))


@pytest.mark.slow
def test_raw_text_as_training_data_and_a_device_that_is_not_there(work: Path) -> None:
    """The advice alone leads to a training in the end."""
    small = ["num_steps=1", "data.batch_size=8", "model.hidden_size=16", "objective.sentence_order=false"]
    words = ["train", "bert/tiny", *small, "--out", "run"]
    refused = run(*words, "data.train=my raw")
    commands = [line.split(maxsplit=1)[1] for line in str(refused.exception).splitlines() if "  pretrainkit " in line]
    for command in commands:
        found = run(*shlex.split(command))
        assert found.exit_code == 0, found.exception
    data = str(refused.exception).partition("train on ")[2].partition(":")[0]
    refused = run(*words, data, "--device", "no-such-device")
    advice = str(refused.exception)
    assert "device 'no-such-device' was requested" in advice
    found = run(*words, data, *advice.partition("or use ")[2].split()[:2])
    assert found.exit_code == 0, found.exception
    assert (work / "run" / "summary.json").is_file()

    recorded = work / "run" / "config.yaml"  # as of a release that accepted what nothing reads
    text = recorded.read_text()
    assert "swap_probability: 0.5" in text
    recorded.write_text(text.replace("swap_probability: 0.5", "swap_probability: 0.25"))
    found = run("resume", "run", "num_steps=2", "--device", "cpu")
    assert found.exit_code == 0, found.exception


@pytest.mark.parametrize(
    ("source", "word", "path", "value"),
    [
        ("bert/tiny", "learning_rate=0.25", "optimizer.peak_lr", 0.25),
        ("bert/tiny", "optimizer.lr=0.25", "optimizer.peak_lr", 0.25),
        ("bert/tiny", "num_train_epochs=3", "data.num_epochs", 3),
        ("bert/tiny", "optimizer=lion", "optimizer.name", "lion"),
        ("bert/tiny", "schedule=cosine", "schedule.name", "cosine"),
        ("t5/micro", "warmup_ratio=0.1", "schedule.warmup_share", 0.1),
    ],
)
def test_a_name_of_another_tool_is_refused_with_ours(source: str, word: str, path: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        pk.load_config(source, [word])
    fix = str(caught.value).partition("write: ")[2].splitlines()[0]
    found = pk.load_config(source, fix.split()).model_dump(mode="json")
    for part in path.split("."):
        found = found[part]
    assert found == value


@pytest.mark.parametrize("name", ["bert-base-uncased", "t5/base", "t5-base", "bert/tny"])
def test_an_unknown_preset_is_refused_with_existing_ones(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        pk.load_config(name)
    near = str(caught.value).partition("did you mean ")[2].partition("?")[0].split(" or ")
    for one in near:
        pk.load_config(one)


def test_a_missing_place_is_reported(tmp_path: Path) -> None:
    from pretrainkit.api import import_model
    from pretrainkit.errors import DataError

    with pytest.raises(DataError, match="there is no folder"):
        import_model(tmp_path / "nope", "bert", tmp_path / "out")

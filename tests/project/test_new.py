"""`pretrainkit new`: from a folder of raw data to a report, with no other command."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import pretrainkit
from pretrainkit.errors import DataError, InputError
from pretrainkit.project.new import new_project
from pretrainkit.recipes.bert.project import choose_preset
from pretrainkit.recipes.proposal import ProjectRequest
from support import generated_text, remedies
from support.page_runner import run_here, within

TINY = {
    "bert": "model: {hidden_size: 32, num_layers: 1, num_heads: 2, intermediate_size: 64}",
    "t5": "model: {hidden_size: 16, num_heads: 2, head_size: 8, intermediate_size: 16, num_encoder_layers: 1, "
    "num_decoder_layers: 1}",
}
"""Lines that make the model of a project small."""
HOURS = 0.0005


def write_texts(folder: Path, num_files: int = 12, num: int = 120) -> Path:
    texts = generated_text.documents(num)
    folder.mkdir(parents=True)
    for number in range(num_files):
        (folder / f"{number:02}.txt").write_text("\n\n".join(texts[number::num_files]) + "\n", encoding="utf-8")
    return folder


def make_small(project: Path, recipe: str) -> None:
    """Change the YAML like a user would."""
    config = project / "config.yaml"
    more = f"precision: {{compute: float32}}\nlog: {{every_steps: 1}}\n{TINY[recipe]}\n"
    config.write_text(config.read_text(encoding="utf-8") + more, encoding="utf-8")


def run_in_this_process(project: Path, num: int | None = None) -> None:
    """The first commands of a project, or all, as its script runs them."""
    with within(project):
        for command in json.loads((project / "project.json").read_bytes())["commands"][:num]:
            ended = run_here(command[1:])
            assert ended.code == 0, f"{command}\n{ended.err}"


def test_text_becomes_a_report(tmp_path):
    project = new_project("t5", [write_texts(tmp_path / "raw")], tmp_path / "made", hours=HOURS)
    make_small(project.folder, "t5")
    run_in_this_process(project.folder)
    assert project.report.stat().st_size > 10_000
    assert (project.folder / "exported/config.json").is_file()
    held_out = json.loads((project.folder / "data/corpus/valid/manifest.json").read_bytes())
    share = next(one for one in project.record["decisions"] if one["name"] == "held-out share")
    assert share["reason"].startswith(f"holds out {held_out['num_documents']} of 12 documents")

    # The project is moved and the raw data removed: the script finds everything done, and other runs find their data.
    shutil.rmtree(tmp_path / "raw")
    moved = project.folder.rename(tmp_path / "moved")
    assert "[ -e data/corpus/valid/manifest.json ] || pretrainkit corpus shards" in (moved / "run.sh").read_text()
    readme = (moved / "README.md").read_text(encoding="utf-8")
    with within(moved):
        for command in project.record["commands"][1:-4]:
            ended = run_here(command[1:])
            assert ended.code == 0, f"{command}\n{ended.err}"
        assert "nothing is left to do" in run_here(project.record["commands"][-4][1:]).err
        for line in readme.partition("## Another run")[2].partition("```bash")[2].strip(" `\n").splitlines():
            ended = run_here(shlex.split(line)[1:])
            assert ended.code == 0, f"{line}\n{ended.err}"
    assert (moved / "runs/comparison.html").stat().st_size > 10_000
    rows = json.loads(run_here(["runs", str(moved / "runs"), "--json"]).out)
    assert [row["preset"] for row in rows] == [project.record["preset"]] * 2, "the second starts from a run's config"


@pytest.mark.slow
def test_one_command_continues_from_the_finished_stages_to_the_report(tmp_path):
    """It is as if a process was killed between two stages."""
    words = ["new", "bert", write_texts(tmp_path / "raw"), "--out", tmp_path / "made", "--hours", HOURS]
    assert "next: bash" in run_here([*map(str, words)]).out
    make_small(tmp_path / "made", "bert")
    run_in_this_process(tmp_path / "made", 3)
    finished = {path: path.stat().st_mtime_ns for path in (tmp_path / "made/data").rglob("*") if path.is_file()}
    assert finished
    command = [sys.executable, "-m", "pretrainkit", *map(str, words), "--go"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == str(tmp_path / "made/runs/first/report.html")
    assert "data/words.tsv is already complete" in done.stderr
    assert {path: path.stat().st_mtime_ns for path in finished} == finished
    assert (tmp_path / "made/runs/first/report.html").is_file()
    with within(tmp_path / "made"):
        ended = run_here(["train", "config.yaml", "--hours", str(HOURS), "--resume", "--out", "runs/first"])
    assert "nothing is left to do" in ended.err


def test_everything_that_is_left_out_is_counted_on_screen_and_in_the_readme(tmp_path):
    raw = write_texts(tmp_path / "raw")
    (raw / "latin.txt").write_bytes("Käse".encode("latin-1") * 40)
    (raw / "picture.png").write_bytes(b"\x89PNG")
    (raw / "empty.txt").write_text("\n")
    (raw / "rows.jsonl").write_text('{"text": "A row of text that is long enough."}\n{"text": 3}\nno json\n')
    (raw / "cut.jsonl.gz").write_bytes(b"\x1f\x8b\x08")
    (raw / "README.md").write_text("about")
    with within(tmp_path):
        ended = run_here(["new", "bert", "raw", "--out", "made"])
    assert ended.code == 0, ended.err
    readme = (tmp_path / "made/README.md").read_text(encoding="utf-8")
    for what in (
        "broken files (not UTF-8): 1, such as",
        "broken files (truncated): 1, such as",
        "files with the suffix .png: 1, such as",
        "files without text: 1, such as",
        "unreadable lines: 1, such as",
        "records without text: 1, such as",
        "hidden files, manifests, README and LICENSE files: 1, such as",
    ):
        assert what in ended.out
        assert f"- {what} `" in readme
    # Files that are left out are not among the arguments, and the command allows the unreadable line.
    with within(tmp_path / "made"):
        ended = run_here(json.loads((tmp_path / "made/project.json").read_bytes())["commands"][0][1:])
    assert ended.code == 0, ended.err
    num = sum(
        json.loads(path.read_bytes())["num_documents"] for path in tmp_path.glob("made/data/corpus/*/manifest.json")
    )
    assert num == 13


def test_the_proposal_is_printed_as_json(tmp_path):
    write_texts(tmp_path / "raw")
    with within(tmp_path):
        ended = run_here(["new", "t5", "raw", "--out", "made", "--json", "--hours", "2"])
    proposal = json.loads(ended.out)
    assert proposal["hours"] == 2
    assert proposal["preset"] == "t5/micro"
    assert all(decision["reason"] for decision in proposal["decisions"])
    config = pretrainkit.load_config(tmp_path / "made/config.yaml")
    assert config.data.num_epochs == 40
    assert config.num_steps is None


def test_more_data_and_time_get_a_larger_preset(tmp_path):
    at_hand = {"data": (), "folder": tmp_path, "device": "a device", "num_cores": 2, "progress": None}
    small = ProjectRequest(hours=0.5, has_accelerator=False, **at_hand)
    large = ProjectRequest(hours=5, has_accelerator=True, **at_hand)
    assert choose_preset(small, 10**9).name == "bert/modern-tiny"
    assert choose_preset(large, 10**6).name == "bert/modern-tiny"
    assert choose_preset(large, 10**7).name == "bert/modern-mini"
    assert choose_preset(large, 10**9).name == "bert/modern-base"


def test_files_are_named_by_patterns_that_match_nothing_else(tmp_path):
    raw = write_texts(tmp_path / "raw")
    project = new_project("bert", [raw], tmp_path / "made", hours=None)
    assert f"{raw}/**/*.txt" in project.record["commands"][0]
    (raw / "broken.txt").write_bytes(b"\xff\xfe\xff")
    project = new_project("bert", [raw], tmp_path / "listed", hours=None)
    assert str(raw / "00.txt") in project.record["commands"][0]
    assert str(raw / "broken.txt") not in project.record["commands"][0]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "contains no file"),
        ({"a.png": b"", "b.pdf": b""}, "there is no readable text file\n  1 files with the suffix .pdf"),
        ({"a.txt": b"\xff" * 9000, "b.txt": b"\xfe" * 9000}, "no readable text file\n  2 broken files (not UTF-8)"),
        ({"a.txt": b"A line.\n" * 1000}, "are too little text to hold some out"),
        ({"a.txt": b"A line.\n", "b.txt": b"Another.\n"}, "are too little text\n  give at least 5.0 kB"),
    ],
    ids=["empty", "unknown suffixes", "broken", "one document", "little"],
)
def test_data_that_cannot_be_used_end_in_one_message(tmp_path, files, message):
    (tmp_path / "raw").mkdir()
    for name, content in files.items():
        (tmp_path / "raw" / name).write_bytes(content)
    with pytest.raises((DataError, InputError)) as caught:
        new_project("bert", [tmp_path / "raw"], tmp_path / "made", hours=None)
    assert message in str(caught.value)
    assert not (tmp_path / "made").exists()
    if files:
        assert "bert reads text" in str(caught.value)


def test_no_data_is_a_mistake(tmp_path):
    with pytest.raises(InputError, match="there are no data"):
        new_project("bert", [], tmp_path / "made", hours=None)
    with pytest.raises(InputError, match="there is no file or folder"):
        new_project("bert", [tmp_path / "nothing"], tmp_path / "made", hours=None)


def test_a_single_document_can_be_cut_as_the_message_advises(tmp_path):
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/book.txt").write_text("".join(f"Line {n}.\n" for n in range(3000)))
    with pytest.raises(DataError, match="too little text") as caught:
        new_project("bert", [tmp_path / "raw"], tmp_path / "made", hours=None)
    command = next(line for line in str(caught.value).splitlines() if "split -l" in line).split()
    subprocess.run(command, cwd=tmp_path / "raw", check=True)
    (tmp_path / "raw/book.txt").unlink()
    project = new_project("bert", [tmp_path / "raw"], tmp_path / "made", hours=None)
    assert project.record["found"]["documents"].startswith("3, ")


def test_a_project_is_not_replaced_by_another(tmp_path):
    raw = write_texts(tmp_path / "raw")
    new_project("bert", [raw], tmp_path / "made", hours=0.1)
    (tmp_path / "made/config.yaml").write_text("extends: bert/tiny # mine\n")
    again = new_project("bert", [raw], tmp_path / "made", hours=None)
    assert not again.is_new
    assert "# mine" in (tmp_path / "made/config.yaml").read_text()
    with pytest.raises(InputError, match=r"hours was 0.1, not 0.2") as caught:
        new_project("bert", [raw], tmp_path / "made", hours=0.2)
    advice = remedies.followed(caught.value, "project/new.py: … holds another project")
    assert f"bash {tmp_path / 'made/run.sh'}" in advice
    assert new_project("bert", [raw], tmp_path / "other", hours=0.2).is_new
    with pytest.raises(InputError, match="recipe was bert, not t5"):
        new_project("t5", [raw], tmp_path / "made", hours=None)
    (tmp_path / "full").mkdir()
    (tmp_path / "full/thesis.tex").write_text("")
    with pytest.raises(InputError, match="is not empty and contains no project") as caught:
        new_project("bert", [raw], tmp_path / "full", hours=None)
    assert "--out FOLDER" in remedies.followed(caught.value, "project/new.py: … is not empty and contains no project")


@pytest.mark.parametrize("separator", ["\n", " "])
def test_text_without_full_stops_has_lines_as_sentences_or_no_order_of_sentences(tmp_path, separator):
    (tmp_path / "raw").mkdir()
    for number in range(30):
        lines = [f"ภาษาไทย ไม่มีจุด {number} บ้าน {line} น้ำ" for line in range(20)]
        (tmp_path / f"raw/{number}.txt").write_text(separator.join(lines) + "\n", encoding="utf-8")
    project = new_project("bert", [tmp_path / "raw"], tmp_path / "made", hours=None)
    decided = {decision["name"]: decision["value"] for decision in project.record["decisions"]}
    script = project.script.read_text(encoding="utf-8")
    assert ("--splitter newline" in script) == (decided.get("sentences") == "lines") == (separator == "\n")
    assert ("--sentences-from" in script) == (separator == " ")
    config = pretrainkit.load_config(project.folder / "config.yaml")
    assert config.objective.sentence_order == (separator == "\n")


@pytest.mark.parametrize("verbosity", ["quiet", "verbose"])
def test_the_script_is_as_quiet_as_the_command(tmp_path, verbosity):
    project = new_project("bert", [write_texts(tmp_path / "raw")], tmp_path / "made", hours=None)
    script = project.script.read_text().replace("\npretrainkit ", "\n: ").replace("|| pretrainkit ", "|| : ")
    environment = {**os.environ, "PRETRAINKIT_VERBOSITY": verbosity}
    done = subprocess.run(["bash", "-c", script, project.script], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    titles = [line for line in done.stderr.splitlines() if line.startswith("== ")]
    assert len(titles) == (0 if verbosity == "quiet" else 9)


def test_a_place_that_cannot_be_written_is_noticed_before_the_data_is_read(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("pretrainkit.recipes.bert.recipe.RECIPE.propose", lambda request: pytest.fail("data was read"))
    with pytest.raises(InputError, match=f"cannot write to {tmp_path}/file"):
        new_project("bert", [write_texts(tmp_path / "raw")], tmp_path / "file/made", hours=None)


@pytest.mark.parametrize("shell", ["bash", "sh"])
def test_the_script_runs_in_its_own_folder_whatever_the_name_and_the_shell(tmp_path, shell):
    """With CDPATH, `cd NAME` may enter another folder of this name. `sh` may be a shell without pipefail."""
    from pretrainkit.project.new import run_project

    name = "-my $HOME 'é"
    (tmp_path / "elsewhere" / name).mkdir(parents=True)
    with within(tmp_path):
        project = new_project("bert", [write_texts(tmp_path / "raw")], name, hours=None)
        lines = project.script.read_text().splitlines()
        start = next(number for number, line in enumerate(lines) if line.startswith("say()"))
        project.script.write_text("\n".join([*lines[:start], "pwd"]) + "\n")
        environment = {**os.environ, "CDPATH": str(tmp_path / "elsewhere")}
        command = [shell, "--", f"{name}/run.sh"]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        assert (done.stdout, done.stderr) == (f"{tmp_path / name}\n", "")
        run_project(project)
        again = new_project("bert", [tmp_path / "raw"], name, hours=None)
    assert not str(again.script).startswith("-"), "the command that is printed"


def test_messages_of_the_training_name_the_run_by_an_absolute_path(tmp_path):
    project = new_project("bert", [write_texts(tmp_path / "raw")], tmp_path / "made", hours=None)
    (line,) = [line for line in project.script.read_text().splitlines() if " train config.yaml " in line]
    assert line.endswith('--resume --out "$PWD/runs/first"')


@pytest.mark.parametrize("hours", [0, -1, float("inf")])
def test_hours_must_be_positive(tmp_path, hours):
    raw = write_texts(tmp_path / "raw")
    with pytest.raises(InputError, match="--hours is") as caught:
        new_project("bert", [raw], tmp_path / "made", hours=hours)
    assert "--hours 0.5" in remedies.followed(caught.value, "running/hours.py: --hours is")
    assert new_project("bert", [raw], tmp_path / "made", hours=0.5).is_new


def test_recipes_without_raw_data_name_those_that_have_it(tmp_path):
    with pytest.raises(InputError, match="recipe 'glue' cannot start a project from raw data") as caught:
        new_project("glue", [tmp_path], tmp_path / "made", hours=None)
    assert "bert" in str(caught.value).splitlines()[-1]


def test_addresses_are_copied_first(tmp_path):
    rows = [{"text": text} for text in generated_text.documents(60)]
    (tmp_path / "set").mkdir()
    (tmp_path / "set/rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(InputError, match="not a file or folder of this machine") as caught:
        new_project("bert", [f"hf://datasets/{tmp_path}/set"], tmp_path / "made", hours=None)
    advice = remedies.followed(caught.value, "project/new.py: … is not a file or folder of this machine")
    pytest.importorskip("datasets")
    command = advice.partition("pretrainkit ")[2].replace("FOLDER", str(tmp_path / "copy")).split()
    assert run_here(command).code == 0
    project = new_project("bert", [tmp_path / "copy/train"], tmp_path / "made", hours=None)
    assert project.record["found"]["files"].endswith("(JSON lines)")


def test_a_failing_command_is_named(tmp_path, monkeypatch):
    from pretrainkit.project.new import run_project

    project = new_project("bert", [write_texts(tmp_path / "raw")], tmp_path / "made", hours=None)
    for code, kind in ((2, "InputError"), (1, "RunError")):
        project.script.write_text(f"exit {code}\n")
        with pytest.raises(Exception, match="ended with exit code") as caught:
            run_project(project)
        assert type(caught.value).__name__ == kind
    project.script.write_text("exit 130\n")
    with pytest.raises(KeyboardInterrupt):
        run_project(project)

"""Attacks: what files and names from other people try, and that they do not succeed."""

import gzip
import io
import json
import os
import shlex
import struct
import subprocess
import sys
import tarfile
import zlib
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from typer.testing import CliRunner

sys.path.insert(0, str(Path(__file__).parent))

from targets_data import picture, tar

from pretrainkit.cli.main import app_of
from pretrainkit.corpus import readers
from pretrainkit.corpus.readers import read_documents
from pretrainkit.data.aligned_samples import read_map
from pretrainkit.data.tar import TarReader, members
from pretrainkit.errors import CheckpointError, ConfigError, DataError, InputError
from pretrainkit.exporting.foreign_tokenizer import tokenizer_beside
from pretrainkit.exporting.published_files import read_pickle
from pretrainkit.files import sources
from pretrainkit.files.manifest import verify, write_manifest
from pretrainkit.files.sources import find_sources
from pretrainkit.images.decode import open_image
from pretrainkit.launch import slurm
from pretrainkit.launch.cloud import CloudConfig, require_name, task_of
from pretrainkit.launch.folder import Launch, LaunchFolder
from pretrainkit.recipes.clip.folder_pairs import read_file
from pretrainkit.recipes.clip.huggingface_pairs import open_rows
from pretrainkit.recipes.clip.pairs import BadImage
from pretrainkit.recipes.fourm import readers as fourm_readers
from pretrainkit.recipes.fourm.modality import Modality
from pretrainkit.recipes.image_tokenizer.model_config import Domain
from pretrainkit.report.page import render
from pretrainkit.report.run_folder import read_run
from pretrainkit.tasks.task import Task, TaskRegistry
from pretrainkit.workers.slurm_config import SlurmConfig

EVIL = "a b'\"$(touch evil)`touch evil`; touch evil #"


@pytest.mark.parametrize("cluster", ["slurm", "local"])
def test_the_name_of_a_run_cannot_run_a_command_in_its_job(tmp_path, cluster):
    launch = Launch("slurm", ("train",), ("resume",), code={"git": EVIL})
    parameters = slurm._parameters(launch, SlurmConfig(), EVIL, tmp_path / EVIL / "code", cluster)
    setup = [*parameters[f"{cluster}_setup"], 'echo "$PYTHONPATH"']
    ended = subprocess.run(["bash", "-ec", "\n".join(setup)], cwd=tmp_path, capture_output=True, text=True, env={})
    assert ended.stdout == f"{tmp_path / EVIL / 'code'}\n"
    assert not list(tmp_path.rglob("evil"))


@pytest.mark.parametrize("job_id", ["--me", "-u", "1 2", "cluster:--all", ""])
def test_the_launches_of_a_run_cannot_add_options_to_commands_of_the_scheduler(tmp_path, job_id):
    LaunchFolder(tmp_path).add(Launch("slurm", (), (), job_ids=("12_3",)))
    path = tmp_path / "launch/launches.json"
    assert LaunchFolder(tmp_path).last().job_ids == ("12_3",)
    path.write_text(path.read_text().replace("12_3", job_id))
    with pytest.raises(DataError, match=r"launches.json is damaged"):
        LaunchFolder(tmp_path).last()


def test_words_of_a_command_reach_machines_in_clouds_as_they_are():
    command = ["train", "bert/mini", f"data.train={EVIL}"]
    assert shlex.split(task_of(CloudConfig(), name="a", command=command)["envs"]["COMMAND"]) == command
    for name in ("-a", "a;b", "$(a)", "a\nb", "../a", ""):
        with pytest.raises(InputError, match="cannot be the name of machines"):
            require_name(name)


@pytest.mark.parametrize("name", ["..", "..:..:evil", "a:..", ".", "a::b", "/evil", "a/b", ""])
def test_the_name_of_a_task_cannot_lead_out_of_a_cache(name):
    with pytest.raises(ConfigError, match="is not a valid name of a task"):
        TaskRegistry().add(Task(name, None, {}))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["..", "../evil", "a/../../evil", "/evil", "a\\evil", "a\0", ""])
def test_names_in_a_config_cannot_lead_out_of_the_folder_of_tokens_or_generated_files(name):
    for fields, make in (
        ({"kind": "colors", "num_channels": 3}, Domain),
        ({"kind": "sequence", "vocab_size": 9, "length": 4, "reader": "caption"}, Modality),
    ):
        assert make(name="rgb@64", **fields).name == "rgb@64"
        with pytest.raises(ValidationError, match="is not a valid name, because files get this name"):
            make(name=name, **fields)


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "a/../../secret"])
def test_a_manifest_cannot_name_files_outside_of_its_folder(tmp_path, name):
    (tmp_path / "secret").write_text("x")
    (tmp_path / "out").mkdir()
    write_manifest(tmp_path / "out", {"shards": [{"name": name, "num_bytes": 1, "sha256": ""}]})
    with pytest.raises(DataError, match="outside of its folder"):
        verify(tmp_path / "out")


def test_links_in_archives_are_not_followed_and_indices_cannot_exceed_their_data(tmp_path):
    link = tarfile.TarInfo("000.png")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        archive.addfile(link)
        archive.addfile(tarfile.TarInfo("000.txt"))
    assert [member.name for member in members(tmp_path / "a.tar")] == ["000.txt"]
    reader = TarReader([tmp_path / "a.tar"])
    for offset, num_bytes in ((0, 2**62), (-1, 1), (2**62, 1), (1, -1)):
        with pytest.raises(OSError, match="ends before byte"):
            reader.read(0, offset, num_bytes)


def test_a_header_of_an_archive_cannot_allocate_memory(tmp_path):
    content = bytearray(tar({"a": b""}))
    content[156:157], content[124:136] = b"L", b"77777777777\0"  # a long name of 8 GB
    content[148:156] = b" " * 8
    content[148:156] = b"%06o\0 " % sum(content[:512])
    (tmp_path / "a.tar").write_bytes(content)
    with pytest.raises(DataError, match="cannot be read as a tar archive"):
        list(members(tmp_path / "a.tar"))


@pytest.mark.parametrize(
    ("name", "format", "told"), [("a.jsonl.gz", "auto", "has a line"), ("a.txt", "book", "is a book")]
)
def test_a_small_compressed_file_cannot_expand_to_a_line_without_end(tmp_path, monkeypatch, name, format, told):
    monkeypatch.setattr(sources, "LARGEST_TEXT", 1 << 20)
    monkeypatch.setattr(readers, "LARGEST_TEXT", 1 << 20)
    whole = b'{"text": "' + b"a" * (3 << 20)
    (tmp_path / name).write_bytes(gzip.compress(whole) if name.endswith(".gz") else whole)
    with pytest.raises(DataError, match=f"{told} of more than 1 MB"):
        list(read_documents(find_sources([tmp_path / name], format)))
    monkeypatch.setattr(fourm_readers, "_LARGEST_JSON", 1 << 20)
    with pytest.raises(DataError, match="it has more than 1 MB"):
        fourm_readers.texts_of(gzip.compress(whole), "a.json.gz")


def test_a_picture_of_a_few_bytes_cannot_allocate_gigabytes():
    content = bytearray(picture("PNG", "1", (8, 8)))
    content[16:24] = struct.pack(">II", 60_000, 60_000)
    content[29:33] = struct.pack(">I", zlib.crc32(content[12:29]))
    with pytest.raises(DataError, match="is too large"):
        open_image(bytes(content))
    with pytest.raises(DataError, match="is broken"):
        read_map(bytes(content), "a.png")


def test_a_picture_cannot_be_a_program(monkeypatch):
    from PIL import EpsImagePlugin

    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *args, **kwargs: pytest.fail("Ghostscript was started"))
    content = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n(evil) print\n%%EOF\n"
    with pytest.raises(DataError, match="is PostScript, a program, which is not run"):
        open_image(content).decode()
    with pytest.raises(DataError, match="is PostScript, a program, which is not run"):
        read_map(content, "a.png")


def test_a_pair_cannot_name_a_device_or_a_pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path(os.devnull)):
        with pytest.raises(BadImage, match="is a device or a pipe"):
            read_file(path)


@pytest.mark.parametrize("name", ["../secret/*.txt", "{root}/secret/a.txt"])
def test_the_page_of_a_set_cannot_add_files_of_other_folders(tmp_path, name):
    for folder in ("set", "secret"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.txt").write_text(folder)
    page = tmp_path / "set/README.md"
    page.write_text("---\nconfigs:\n- {config_name: default, data_files: a.txt}\n---\n")
    (tmp_path / "link").symlink_to("set")
    for folder in ("set", "link"):
        assert open_rows(str(tmp_path / folder), ["train"], "data.train")[0] == {"text": "set"}
    page.write_text(page.read_text().replace("a.txt", name.format(root=tmp_path)))
    with pytest.raises(DataError, match="is outside of its folder"):
        open_rows(str(tmp_path / "set"), ["train"], "data.train")


def test_a_tokenizer_cannot_take_pieces_from_other_folders(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "secret.txt").write_text("[UNK]\nsecret\n")
    (tmp_path / "a").mkdir()
    (tmp_path / "a/vocab.txt").write_text("[UNK]\n")
    settings = {"tokenizer_class": "BertTokenizer", "vocab": str(tmp_path / "secret.txt")}
    (tmp_path / "a/tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(DataError, match="may be a file of another folder"):
        tokenizer_beside(tmp_path / "a")


def test_weights_cannot_repeat_one_element_to_fill_the_memory(tmp_path):
    torch.save({"model": {"a": torch.zeros(1).expand(10**12)}}, tmp_path / "a.pth")
    assert (tmp_path / "a.pth").stat().st_size < 10_000
    with pytest.raises(CheckpointError, match="repeats its elements"):
        read_pickle(tmp_path / "a.pth", ("model",), "a checkpoint")


def test_code_beside_a_tokenizer_is_never_imported(tmp_path):
    code = f"open({str(tmp_path / 'evil')!r}, 'w')\nclass Evil: pass\n"
    (tmp_path / "code.py").write_text(code)
    about = {"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": ["code.Evil", "code.Evil"]}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(about))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "x", "auto_map": {"AutoConfig": "code.Evil"}}))
    (tmp_path / "vocab.json").write_text('{"a": 0}')
    with pytest.raises(DataError, match="cannot be read"):
        tokenizer_beside(tmp_path)
    assert not (tmp_path / "evil").exists()


def test_a_report_of_a_run_does_not_expand_the_aliases_of_its_config(tmp_path):
    bomb = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12))
    (tmp_path / "config.yaml").write_text(bomb)
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n')
    run = read_run(tmp_path)
    assert run.config == {}
    assert run.notes == ["config.yaml is not valid YAML and was left out"]
    assert len(render(run)) < 1_000_000


def test_a_report_of_a_run_does_not_import_the_recipe_of_its_config(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "evil_recipe.py").write_text("raise SystemExit('imported')\n")
    (tmp_path / "config.yaml").write_text("recipe: evil_recipe:RECIPE\ndata: {modules: [evil_recipe.py]}\n")
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n')
    assert read_run(tmp_path).config["recipe"] == "evil_recipe:RECIPE"
    render(read_run(tmp_path))
    for verb in ("report", "runs"):
        shown = CliRunner().invoke(app_of(verb), [str(tmp_path)])
        assert shown.exit_code == 0, shown.output


def test_an_array_cannot_be_a_pickle():
    import numpy as np

    from pretrainkit.data.aligned_samples import read_array

    file = io.BytesIO()
    np.save(file, np.array([{"a": 1}], object), allow_pickle=True)
    with pytest.raises(DataError, match="cannot be read as an array"):
        read_array(file.getvalue(), "a.npy")

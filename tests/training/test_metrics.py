"""Curves on disk: one line per log step, none twice after a resume."""

import inspect
import json
import math
import subprocess
import sys
from contextlib import closing
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest

from pretrainkit.errors import DataError, InputError, MissingPackageError
from pretrainkit.training import metrics
from pretrainkit.training.folder import RunFolder
from pretrainkit.training.metrics import MetricsLog, cut_after
from pretrainkit.training.run import LogConfig
from support.remedies import followed


def read(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_lines_are_written_at_once(tmp_path) -> None:
    with closing(MetricsLog(tmp_path / "run", LogConfig())) as log:
        log.write(10, {"loss": 2.5, "lr": 0.5})
        assert read(tmp_path / "run" / "metrics.jsonl") == [{"step": 10, "loss": 2.5, "lr": 0.5}]
        log.write(20, {"loss": math.nan, "norm": math.inf})
    assert read(tmp_path / "run" / "metrics.jsonl")[1] == {"step": 20, "loss": None, "norm": None}


@pytest.mark.parametrize(
    ("resume_step", "kept"), [(0, []), (9, []), (10, [10]), (25, [10, 20]), (30, [10, 20, 30]), (99, [10, 20, 30])]
)
def test_resuming_cuts_the_lines_after_the_resumed_step(tmp_path, resume_step, kept) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(f'{{"step": {step}, "loss": 1.0}}\n' for step in (10, 20, 30)))
    with closing(MetricsLog(tmp_path, LogConfig(), resume_step)) as log:
        log.write(resume_step + 10, {"loss": 0.5})
    steps = [line["step"] for line in read(path)]
    assert steps == [*kept, resume_step + 10]
    assert [p.name for p in tmp_path.iterdir()] == ["metrics.jsonl"]


@pytest.mark.parametrize("torn", ['{"step": 20, "lo', '{"step": 20}', "\0\0\0\0"])
def test_a_torn_last_line_is_cut(tmp_path, torn) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 10, "loss": 1.0}\n' + torn)
    with closing(MetricsLog(tmp_path, LogConfig(), resume_step=30)) as log:
        log.write(40, {"loss": 0.5, "é": 1.0})
    assert [line["step"] for line in read(path)] == [10, 40]


def test_broken_lines_in_the_middle_are_dropped_with_a_warning(tmp_path, caplog) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 10}\nnonsense\n[1]\n{"loss": 1}\n{"step": 20}\n')
    MetricsLog(tmp_path, LogConfig(), resume_step=20).close()
    assert [line["step"] for line in read(path)] == [10, 20]
    assert "dropped 3 broken lines" in caplog.text


def test_a_log_is_whole_if_the_run_is_killed_while_broken_lines_are_dropped(tmp_path, monkeypatch) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(content := 'nonsense\n{"step": 10}\nnonsense\n{"step": 20}\n{"step": 30}\n')
    with monkeypatch.context() as patched:
        patched.setattr("os.replace", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            cut_after(path, 20)
    assert path.read_text() == content
    cut_after(path, 20)
    assert [line["step"] for line in read(path)] == [10, 20]


@pytest.mark.parametrize("tail_bytes", [1, 40, 100, 1000, 1 << 20])
@pytest.mark.parametrize("resume_step", [0, 1, 7, 29, 30, 99])
@pytest.mark.parametrize("torn", ["", '{"step": 3', "x" * 200])
def test_reading_only_the_end_of_a_log_changes_nothing(tmp_path, monkeypatch, tail_bytes, resume_step, torn) -> None:
    monkeypatch.setattr(metrics, "_TAIL_BYTES", tail_bytes)
    monkeypatch.setattr(metrics, "_NUM_EARLIER", 3)
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(f'{{"step": {step}, "loss": {step}.5}}\n' for step in range(1, 31)) + torn)
    with closing(MetricsLog(tmp_path, LogConfig(), resume_step)) as log:
        assert [row["step"] for row in log.earlier] == list(range(1, min(resume_step, 30) + 1))[-3:]
    assert read(path) == [{"step": step, "loss": step + 0.5} for step in range(1, min(resume_step, 30) + 1)]


def test_a_folder_that_cannot_be_written_is_named(tmp_path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot write"):
        MetricsLog(tmp_path / "file", LogConfig())


def test_tensorboard_holds_the_curve_once_after_a_resume(tmp_path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    config = LogConfig(to=("tensorboard",))
    with closing(MetricsLog(tmp_path, config)) as log:
        for step in (10, 20, 30):
            log.write(step, {"loss": 100.0 + step})
    with closing(MetricsLog(tmp_path, config, resume_step=20)) as log:
        log.write(30, {"loss": 3.0})
        log.draw(30, {"valid_loss": 4.0})
    assert [line["step"] for line in read(tmp_path / "metrics.jsonl")] == [10, 20, 30]
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [(10, 110.0), (20, 120.0), (30, 3.0)]
    assert [event.value for event in events.Scalars("valid_loss")] == [4.0]


def test_weights_and_biases_that_cannot_start_is_an_error_without_a_traceback(tmp_path, monkeypatch) -> None:
    wandb = pytest.importorskip("wandb", reason="wandb is not installed")

    def refuse(**_: object) -> None:
        raise wandb.errors.UsageError("no API key configured")

    monkeypatch.setattr(wandb, "init", refuse)
    with pytest.raises(InputError, match=r"no API key configured\n.*offline") as error:
        MetricsLog(tmp_path / "run", LogConfig(to=("wandb",)))  # offline: the next test
    followed(error.value, "training/loggers.py: log.to=[…]")
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_weights_and_biases_offline_writes_a_run_folder_under_one_id(tmp_path, monkeypatch) -> None:
    pytest.importorskip("wandb", reason="wandb is not installed")
    monkeypatch.chdir(tmp_path)  # wandb leaves a log in the current folder
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "config"))
    config = LogConfig(to=("wandb-offline",), project="test")
    run = tmp_path / "run"
    with closing(MetricsLog(run, config, run_config={"num_steps": 20})) as log:
        log.write(10, {"loss": 2.0})
    run_id = (run / "wandb-run-id.txt").read_text().strip()
    found = list(run.glob(f"wandb/offline-run-*-{run_id}/run-{run_id}.wandb"))
    assert len(found) == 1
    assert found[0].stat().st_size > 0
    assert len(read(run / "metrics.jsonl")) == 1


def test_weights_and_biases_keeps_samples_of_an_earlier_step(tmp_path, monkeypatch, capfd) -> None:
    """Drawing them took longer than some steps; what is logged for an earlier step is dropped there."""
    pytest.importorskip("wandb", reason="wandb is not installed")
    monkeypatch.chdir(tmp_path)
    for name in ("WANDB_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    with closing(MetricsLog(tmp_path / "run", LogConfig(to=("wandb-offline",), project="test"))) as log:
        log.write(10, {"loss": 2.0})
        log.write(20, {"loss": 1.0})
        log.show(10, [{"truth": "plain"}])
        log.write(30, {"loss": 0.5})
    assert "will be ignored" not in capfd.readouterr().err


def test_evaluations_are_json_whatever_a_metric_gave(tmp_path):
    RunFolder(tmp_path).evaluation(3, {"mine/score": math.nan, "loss": 1.5})
    line = (tmp_path / "eval.jsonl").read_text()
    assert json.loads(line, parse_constant=pytest.fail) == {"step": 3, "mine/score": None, "loss": 1.5}


def test_samples_are_shown_as_pictures_and_texts(tmp_path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    pytest.importorskip("PIL", reason="Pillow is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from pretrainkit.images.pillow import thumbnail

    picture = thumbnail(np.full((3, 8, 20), 200, np.uint8))
    samples = [{"seen": [{"image": picture}, {"text": "a <b>"}], "truth": "plain"}]
    with closing(MetricsLog(tmp_path, LogConfig(to=("tensorboard",)))) as log:
        log.show(10, samples)
        log.show(20, samples)
    events = EventAccumulator(str(tmp_path / "tensorboard"), size_guidance={"images": 0, "tensors": 0})
    events.Reload()
    shown = events.Images("samples/seen/1.1")
    assert [(event.step, event.height, event.width) for event in shown] == [(10, 8, 20), (20, 8, 20)]
    assert set(events.Tags()["tensors"]) == {"samples/seen/1.2/text_summary", "samples/truth/1/text_summary"}


def test_a_new_run_clears_samples_of_a_run_that_never_saved(tmp_path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.prepare()
    folder.samples(5, [{"truth": "plain"}])
    (folder.path / "config.yaml").write_text("recipe: bert\n")
    assert json.loads((folder.path / "samples" / "step-00000005.json").read_text()) == [{"truth": "plain"}]
    folder.prepare()
    assert not list(folder.path.glob("samples/*"))


def test_mlflow_gets_metrics_pictures_and_texts_of_one_run_before_and_after_a_resume(tmp_path, monkeypatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    pytest.importorskip("PIL", reason="Pillow is not installed")
    from pretrainkit.images.pillow import thumbnail

    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "store").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    config, run = LogConfig(to=("mlflow",), project="test"), tmp_path / "run"
    with closing(MetricsLog(run, config, run_config={"num_steps": 20})) as log:
        log.write(10, {"loss": 2.0, "grad_norm": 1.0, "grad_norm/layers.0": 0.5, "grad_norm/layers.1": math.nan})
        log.show(10, [{"seen": [{"image": thumbnail(np.full((3, 8, 20), 200, np.uint8))}], "truth": "plain"}])
    with closing(MetricsLog(run, config, resume_step=10)) as log:
        log.write(20, {"loss": 1.0})
    client = mlflow.MlflowClient()
    (found,) = client.search_runs([client.get_experiment_by_name("test").experiment_id])
    assert (found.info.run_name, found.info.status) == ("run", "FINISHED")
    assert found.info.run_id == (run / "mlflow-run-id.txt").read_text().strip()
    history = client.get_metric_history(found.info.run_id, "loss")
    assert [(metric.step, metric.value) for metric in history] == [(10, 2.0), (20, 1.0)]
    assert found.data.metrics == {"loss": 1.0, "grad_norm": 1.0, "grad_norm.layers.0": 0.5}
    assert {file.path for file in client.list_artifacts(found.info.run_id)} >= {"config.yaml", "samples", "images"}


def test_a_server_of_mlflow_that_fails_does_not_end_the_run(tmp_path, monkeypatch, caplog) -> None:
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "store").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    with closing(MetricsLog(tmp_path / "run", LogConfig(to=("mlflow",)))) as log:
        refusing = Mock(side_effect=mlflow.MlflowException("gone"))
        for name in ("log_batch", "log_dict", "set_terminated"):
            monkeypatch.setattr(mlflow.MlflowClient, name, refusing)
        log.write(10, {"loss": 2.0})
        log.show(10, [{"truth": "plain"}])
    assert caplog.text.count("MLflow did not take values of step 10, which are in the run folder: gone") == 2
    assert [row["step"] for row in read(tmp_path / "run/metrics.jsonl")] == [10]


def test_mlflow_writes_to_a_folder_as_advised(tmp_path, monkeypatch) -> None:
    pytest.importorskip("mlflow", reason="mlflow is not installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nonsense://host")
    config = LogConfig(to=("mlflow",), project="test")
    with pytest.raises(InputError, match="MLflow could not start") as error:
        MetricsLog(tmp_path / "run", config)
    advice = str(error.value).partition("\n")[2]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", advice.partition("such as ")[2].partition(",")[0])
    for word in advice.split():
        if word.startswith("MLFLOW_ALLOW"):
            monkeypatch.setenv(*word.strip(";").split("="))
    with closing(MetricsLog(tmp_path / "run", config)) as log:
        log.write(10, {"loss": 2.0})
    assert (tmp_path / "mlruns").is_dir()


class TrackioRun:
    """A run with the methods of trackio 0.43 that are called, which needs an older Pillow than the other packages."""

    def __init__(self, name: str) -> None:
        self.name, self.rows, self.is_finished = name, list[tuple[int | None, dict]](), False

    def log(self, metrics: dict, step: int | None = None) -> None:
        self.rows.append((step, metrics))

    def finish(self) -> None:
        print("* Run finished.")
        self.is_finished = True


class Markdown:
    def __init__(self, text: str = "") -> None:
        self.text = text


class Image:
    def __init__(self, value: object, caption: str | None = None) -> None:
        self.value = value


def init(project, name=None, *, config=None, resume="never", embed=True, auto_log_gpu=None) -> TrackioRun:
    print("* Trackio project initialized")
    assert (project, config, resume, embed, auto_log_gpu) == ("test", {"num_steps": 20}, "allow", False, False)
    return TrackioRun(name)


def test_trackio_is_called_as_it_defines_its_functions(tmp_path, monkeypatch, capsys) -> None:
    runs = list[TrackioRun]()

    def started(*args, **options) -> TrackioRun:
        runs.append(init(*args, **options))
        return runs[-1]

    pytest.importorskip("PIL", reason="Pillow is not installed")
    from pretrainkit.images.pillow import thumbnail

    module = SimpleNamespace(init=started, Markdown=Markdown, Image=Image)
    monkeypatch.setitem(sys.modules, "trackio", module)
    picture = thumbnail(np.full((3, 8, 20), 200, np.uint8))
    for step in (0, 10):
        with closing(
            MetricsLog(tmp_path / "run", LogConfig(to=("trackio",), project="test"), step, run_config={"num_steps": 20})
        ) as log:
            log.write(step + 10, {"loss": 2.0 - step / 10})
            log.show(step + 10, [{"truth": "plain", "picture": [{"image": picture}]}])
    assert capsys.readouterr().out == ""  # it may be JSON
    first, second = runs
    assert first.name == second.name == (tmp_path / "run" / "trackio-run-name.txt").read_text().strip()
    assert [step for step, _ in first.rows + second.rows] == [10, 10, 20, 20]
    assert [run.rows[0][1] for run in runs] == [{"loss": 2.0}, {"loss": 1.0}]
    texts = {type(cell) for run in runs for cell in run.rows[1][1].values()}
    assert texts == {Markdown, Image}
    assert first.is_finished
    assert second.is_finished


def test_the_functions_that_replace_trackio_have_its_parameters() -> None:
    trackio = pytest.importorskip("trackio", reason="trackio is not installed")
    for own, its in ((init, trackio.init), (TrackioRun.log, trackio.Run.log), (Markdown, trackio.Markdown)):
        assert inspect.signature(own).parameters.keys() <= inspect.signature(its).parameters.keys()
    assert inspect.signature(Image).parameters.keys() <= inspect.signature(trackio.Image).parameters.keys()


def test_trackio_gets_metrics_and_samples_of_one_run_before_and_after_a_resume(tmp_path, monkeypatch) -> None:
    pytest.importorskip("trackio", reason="trackio is not installed")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "store"))
    script = (
        "import sys\nfrom pathlib import Path\nfrom pretrainkit.training.metrics import MetricsLog\n"
        "from pretrainkit.training.run import LogConfig\n"
        "config = LogConfig(to=('trackio',), project='test')\n"
        "for step in (0, 10):\n"
        "    log = MetricsLog(Path(sys.argv[1]), config, step, run_config={'num_steps': 20})\n"
        "    log.write(step + 10, {'loss': 2.0 - step / 10})\n"
        "    log.show(step + 10, [{'truth': 'plain'}])\n"
        "    log.close()\n"
        "from trackio import Api\n"
        "from trackio.sqlite_storage import SQLiteStorage\n"
        "(run,) = Api().runs('test')\n"
        "rows = SQLiteStorage.get_logs('test', run.name)\n"
        "history = [(row['step'], row['loss']) for row in rows if 'loss' in row]\n"
        "Path(sys.argv[2]).write_text(f'{run.name} {history}')\n"
    )
    # In a process of its own: trackio reads its folder once, when it is imported.
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "run"), str(tmp_path / "found")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    name = (tmp_path / "run" / "trackio-run-name.txt").read_text().strip()
    assert (tmp_path / "found").read_text() == f"{name} [(10, 2.0), (20, 1.0)]"


@pytest.mark.parametrize("name", ["mlflow", "trackio", "wandb", "wandb-offline"])
def test_a_service_that_is_not_installed_gives_its_install_line(tmp_path, monkeypatch, name) -> None:
    package = name.partition("-")[0]
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingPackageError, match=rf"pip install 'pretrainkit\[{package}\]'"):
        MetricsLog(tmp_path / "run", LogConfig(to=(name,)))


def test_a_package_that_lacks_one_of_its_own_is_not_called_missing(tmp_path, monkeypatch) -> None:
    (tmp_path / "trackio.py").write_text("import no_such_package\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "trackio", raising=False)
    with pytest.raises(MissingPackageError, match="which cannot be imported: No module named 'no_such_package'"):
        MetricsLog(tmp_path / "run", LogConfig(to=("trackio",)))


@pytest.mark.parametrize(
    ("former", "now"),
    [
        ({"tensorboard": False, "wandb": "off", "wandb_project": "pretrainkit"}, {}),
        ({"tensorboard": True}, {"to": ["tensorboard"]}),
        ({"wandb": "online", "wandb_project": "mine"}, {"to": ["wandb"], "project": "mine"}),
        ({"tensorboard": True, "wandb": "offline"}, {"to": ["tensorboard", "wandb-offline"]}),
        ({"to": ["mlflow"], "tensorboard": True}, {"to": ["mlflow", "tensorboard"]}),
    ],
)
def test_settings_of_former_versions_are_read(former, now) -> None:
    assert LogConfig.model_validate(former) == LogConfig.model_validate(now)

"""Steps that all demos share: a training is killed and resumed."""

import pytest

from pretrainkit.demo import walk
from pretrainkit.errors import RunError


class Training:
    """Logs a step every 400 seconds of a clock of its own, up to `last`."""

    returncode = None

    def __init__(self, last):
        self.last, self.now, self.was_killed = last, 0.0, False

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += 100 * seconds

    def losses(self, run):
        return dict.fromkeys(range(1, min(int(self.now // 400), self.last) + 1), 1.5)

    def poll(self):
        return None

    def send_signal(self, number):
        self.was_killed = True

    def wait(self): ...


def until_killed(training, monkeypatch, tmp_path):
    monkeypatch.setattr(walk, "time", training)
    monkeypatch.setattr(walk, "read_losses", training.losses)
    monkeypatch.setattr(walk.subprocess, "Popen", lambda words: training)
    return walk._train_until_killed(["train"], tmp_path, kill_after_step=6)


def test_a_slow_training_is_waited_for_while_it_makes_progress(tmp_path, monkeypatch):
    training = Training(last=9)
    assert max(until_killed(training, monkeypatch, tmp_path)) == 6
    assert training.was_killed
    assert training.now > 2 * walk.STEP_TIMEOUT_SECONDS


def test_a_training_without_progress_ends_the_demo(tmp_path, monkeypatch):
    training = Training(last=3)
    with pytest.raises(RunError, match="made no progress after step 3 for 600 seconds"):
        until_killed(training, monkeypatch, tmp_path)
    assert training.was_killed

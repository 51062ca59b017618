"""The first signal sets a flag, a second SIGINT raises, handlers come back, ranks agree."""

import os
import signal
import threading
import time

import pytest

from pretrainkit.training import signals
from pretrainkit.training.signals import StopSignal


def alone(flag: bool) -> bool:
    return flag


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGUSR1"])
def test_a_signal_sets_the_flag_and_the_handler_comes_back(name: str) -> None:
    number = signal.Signals[name]
    before = signal.getsignal(number)
    with StopSignal() as stop:
        assert not stop.agreed(alone, step=1)
        os.kill(os.getpid(), number)
        assert stop.name == name
        assert stop.agreed(alone, step=1)
    assert signal.getsignal(number) is before


def test_a_second_sigint_raises_at_once_but_an_echo_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    with StopSignal() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)  # torchrun forwards the terminal's Ctrl-C
        assert stop.is_set
        monkeypatch.setattr(signals, "_ECHO_SECONDS", 0.01)
        time.sleep(0.02)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_sigint_after_sigterm_is_still_the_first_sigint() -> None:
    with StopSignal() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.name == "SIGTERM"


def test_handlers_come_back_after_an_error() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(ValueError, match="inside"), StopSignal():
        raise ValueError("inside")
    assert signal.getsignal(signal.SIGTERM) is before


def test_outside_the_main_thread_nothing_is_installed() -> None:
    seen = []

    def work() -> None:
        with StopSignal() as stop:
            seen.append(signal.getsignal(signal.SIGTERM))
            stop.request()
            seen.append(stop.agreed(alone, step=3))

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before, True]


def test_ranks_are_asked_every_so_many_steps_and_another_ranks_wish_counts() -> None:
    asked = []

    def any_rank(flag: bool) -> bool:
        asked.append(flag)
        return True

    stop = StopSignal()
    answers = [stop.agreed(any_rank, step, every_steps=10) for step in range(1, 21)]
    assert [step for step, answer in enumerate(answers, 1) if answer] == [10, 20]
    assert asked == [False, False]

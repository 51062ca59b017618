"""The first signal sets a flag, a second SIGINT raises, handlers are restored, ranks agree."""

import os
import signal
import threading
import time
from types import SimpleNamespace

import pytest

from pretrainkit.dist.env import World
from pretrainkit.training import signals
from pretrainkit.training.signals import StopSignal

alone = World().max


class Clock:
    """In the place of `time`: a step after the other, each so long."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(signals, "time", SimpleNamespace(monotonic=lambda: self.now))

    def asked(self, stop: StopSignal, seconds: float, num_steps: int, others: float = 0.0) -> list[int]:
        """The steps after which the other ranks are asked, whose slowest takes `others` seconds for a step."""
        found: list[int] = []
        for step in range(1, num_steps + 1):
            self.now += seconds

            def largest(*values: float, step: int = step) -> list[float]:
                found.append(step)
                return [values[0], max(values[1], others)]

            assert not stop.agreed(largest, each_step=False)
        return found


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGUSR1"])
def test_a_signal_sets_the_flag_and_the_handler_comes_back(name: str) -> None:
    number = signal.Signals[name]
    before = signal.getsignal(number)
    with StopSignal() as stop:
        assert not stop.agreed(alone)
        os.kill(os.getpid(), number)
        assert stop.name == name
        assert stop.agreed(alone)
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
            seen.append(stop.agreed(alone))

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before, True]


def test_ranks_exchange_signals_every_ten_steps_or_every_two_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    assert clock.asked(StopSignal(), 0.01, 31) == [1, 11, 21, 31]
    assert clock.asked(StopSignal(), 0.5, 12) == [1, 5, 9]
    assert clock.asked(StopSignal(), 10.0, 4) == [1, 2, 3, 4]


def test_after_a_slow_start_ranks_exchange_signals_less_often_and_in_slow_steps_more_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, stop = Clock(monkeypatch), StopSignal()
    assert clock.asked(stop, 60.0, 1) == [1]
    assert clock.asked(stop, 0.01, 12) == [1, 11]
    assert clock.asked(stop, 10.0, 12) == [9, 10, 11, 12]


def test_the_slowest_rank_decides_the_next_exchange_of_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    assert clock.asked(StopSignal(), 0.01, 6, others=10.0) == [1, 2, 3, 4, 5, 6]


def test_the_wish_of_another_rank_counts_and_one_without_a_signal() -> None:
    stop = StopSignal()
    assert stop.agreed(lambda flag, seconds: [1.0, seconds])
    assert not stop.agreed(alone)
    assert stop.agreed(alone, wish=True)

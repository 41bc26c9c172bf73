"""A signal that strikes while a child is started comes afterwards, when it will be ended with the others."""

import os
import signal
import subprocess

import pytest
from floodmark.spark_jobs.demo import processes


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_child_whose_start_is_interrupted_is_ended_with_the_others(tmp_path, monkeypatch, number):
    def struck(*arguments, **options):
        started.append(real(*arguments, **options))
        os.kill(os.getpid(), number)
        return started[-1]

    def interrupt(*_):
        raise KeyboardInterrupt

    started, real = [], subprocess.Popen
    monkeypatch.setattr(processes.subprocess, "Popen", struck)
    before = signal.signal(number, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt), processes.Children(tmp_path, "127.0.0.1:1") as children:
            children.start("sleeper", "http.server", bind="127.0.0.1")
        assert signal.getsignal(number) is interrupt
    finally:
        signal.signal(number, before)
    assert started[0].poll() == -signal.SIGKILL


def test_a_signal_that_is_ignored_stays_so(tmp_path):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with processes.Children(tmp_path, "127.0.0.1:1") as children:
            children.start("sleeper", "http.server", bind="127.0.0.1")
            os.kill(os.getpid(), signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)

"""Run the demo from end to end: broker, sources, two Spark jobs, an observer, and the comparison at the end."""

import fcntl
import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

import pandas as pd
from floodmark.producers.board.view import Board
from floodmark.producers.clients.admin import create_topics, existing_topics
from floodmark.producers.embedded.broker import EmbeddedKafka
from floodmark.producers.embedded.jars import java
from floodmark.schemas.errors import DeadlineError, UsageError
from floodmark.spark_jobs.demo import batch, daily_waves, departure_waves, guessed_delay
from floodmark.spark_jobs.demo import flights as source
from floodmark.spark_jobs.demo.outcome import Guess, Outcome
from floodmark.spark_jobs.demo.processes import Children
from floodmark.spark_jobs.demo.schemas import codec_of
from floodmark.spark_jobs.demo.watch import Watch
from floodmark.spark_jobs.session import local_jars

PARTITIONS: Final = 4
SHORT_GUESS, LONG_GUESS = "10 minutes", "12 hours"
_HOUR: Final = 3_600_000
_READY, _START = "ready", "start"
_STAGES: Final = {
    source.TOPIC: "flight",
    departure_waves.TOPIC: "departure_wave",
    daily_waves.TOPIC: "daily_waves",
}


@dataclass(frozen=True, slots=True)
class Options:
    """What a user may choose."""

    days: int = 365
    gap: timedelta = departure_waves.GAP
    directory: Path = Path("floodmark-demo")
    bootstrap_servers: str | None = None
    seconds: float | None = None
    crash: bool = False
    keep: bool = False
    timeout: float = 900

    @property
    def duration(self) -> float:
        """How long the sources take for all days, seconds."""
        return self.seconds or min(45.0, max(12.0, self.days / 4))


@dataclass(frozen=True, slots=True)
class Moment:
    """How far the demo is.  Times are epoch milliseconds."""

    doing: str
    total: int
    """How many flights there are."""
    counts: dict[str, int] = field(default_factory=dict)
    """Data records of each topic."""
    present: int = 0
    """The simulated present: the newest landing."""
    board: Board | None = None
    newest: dict[str, Any] | None = None
    """The newest result: a day that is complete."""


def run(options: Options, show: Callable[[Moment], None]) -> tuple[Outcome, Watch]:
    """Run it all.

    Args:
        options: what the user chose.
        show: called several times a second with how far the demo is.

    Returns:
        The outcome, and what the observer read.

    Raises:
        UsageError: where another demo uses the directory.
        JobFailedError, DeadlineError, InfrastructureError: all that was started has been stopped.
    """
    with _claimed(options.directory):
        return _run(options, show)


def _run(options: Options, show: Callable[[Moment], None]) -> tuple[Outcome, Watch]:
    began = time.monotonic()
    java()
    show(Moment("fetching jars (once)", 0))
    local_jars()
    _clear(options.directory)
    every = source.load(options.days)
    landed = source.landed(every)
    show(Moment("starting Kafka", len(landed)))
    with ExitStack() as stack:
        kafka = EmbeddedKafka(options.directory / "kafka")  # an address; nothing runs yet
        servers = options.bootstrap_servers or kafka.bootstrap_servers
        children = stack.enter_context(Children(options.directory, servers))
        _start_sources(children, options)  # they take as long to load their flights as Kafka to start
        if options.bootstrap_servers is None:
            _start_broker(stack, kafka, options)
        stack.callback(children.close)  # before the broker
        config = {"bootstrap.servers": servers}
        _refuse_used_topics(config)
        create_topics(config, dict.fromkeys(_STAGES, PARTITIONS))
        (options.directory / _READY).write_text(f"{time.time()}\n", encoding="ascii")
        codecs = {topic: codec_of(schema) for topic, schema in _STAGES.items()}
        watch = Watch(config, codecs, (source.TOPIC, "landed"))
        stack.callback(watch.close)
        flow = _Flow(options, watch, children, len(landed), show)
        flow.stream()
        guesses = flow.guess()
        outcome = flow.compare(every, landed, guesses)
    if not options.keep:
        _clear_state(options.directory)
    outcome.seconds = round(time.monotonic() - began, 1)
    return outcome, watch


def _start_sources(children: Children, options: Options) -> None:
    """Start the sources, which wait for two files: to begin, slowly, and to come to their full pace."""
    for origin in source.ORIGINS:
        children.start(
            f"source-{origin}",
            source.__name__,
            origin=origin,
            days=options.days,
            seconds=options.duration,
            ready_file=options.directory / _READY,
            start_file=options.directory / _START,
        )


def _start_broker(stack: ExitStack, kafka: EmbeddedKafka, options: Options) -> None:
    """Start Kafka until the stack is unwound; its data go with it, unless they are to be kept."""
    if not options.keep:
        stack.callback(shutil.rmtree, kafka.directory, ignore_errors=True)
    stack.enter_context(kafka)


@contextmanager
def _claimed(directory: Path) -> Iterator[None]:
    """Hold the directory, or another demo would clear it under this one; the end of the process lets it go, too."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "claim").open("w", encoding="ascii") as claim:
        try:
            fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            reason = f"another demo uses the directory {directory}: wait for its end, or choose one with --directory"
            raise UsageError(reason=reason) from None
        yield


def _clear(directory: Path) -> None:
    """Remove what an earlier run left."""
    _clear_state(directory)
    for pattern in ("*.jsonl", "*.log", _READY, _START):
        for file in directory.glob(pattern):
            file.unlink()


def _clear_state(directory: Path) -> None:
    for folder in ("checkpoints", "guesses", "kafka"):
        shutil.rmtree(directory / folder, ignore_errors=True)


def _refuse_used_topics(config: dict[str, str]) -> None:
    used = existing_topics(config) & set(_STAGES)
    if used:
        raise UsageError(reason=f"topics {', '.join(sorted(used))} exist already; delete them, or use another cluster")


@dataclass(slots=True)
class _Flow:
    """The steps of one run."""

    options: Options
    watch: Watch
    children: Children
    total: int
    show: Callable[[Moment], None]
    crashes: int = 0
    began: float = field(default_factory=time.monotonic)

    def stream(self) -> None:
        """Run sources and jobs until the results are complete."""
        checkpoints = self.options.directory / "checkpoints"
        gap_minutes = self.options.gap / timedelta(minutes=1)
        # Numbers first: the sources need the processor for a moment, and two Spark jobs for half a minute.
        self._until(lambda: self.watch.count(source.TOPIC) > 0, "starting three sources")
        first = self.children.start(
            "departure-waves",
            departure_waves.__name__,
            checkpoint_location=checkpoints / "departure-waves",
            gap_minutes=gap_minutes,
        )
        second = self.children.start(
            "daily-waves", daily_waves.__name__, checkpoint_location=checkpoints / "daily-waves"
        )
        # The first batch of a Spark job costs seconds: let both jobs have theirs over what the sources write slowly.
        self._until(
            lambda: len(first.lines()) > 1 and len(second.lines()) > 1, "starting two Spark jobs, sources are slow"
        )
        self.watch.note_start()
        (self.options.directory / _START).write_text(f"{time.time() + 1}\n", encoding="ascii")
        if self.options.crash:
            for child, share in ((first, 0.4), (second, 0.6)):
                self._until(partial(self._has_written, int(share * self.total)), "streaming")
                child.crash()
                self.crashes += 1
        self._until(lambda: self.watch.ended(daily_waves.TOPIC), "streaming")
        self._until(self.children.check, "stopping the jobs")

    def guess(self) -> list[Guess]:
        """Run plain ``withWatermark`` over the same topic."""
        child = self.children.start(
            "guessed-delay",
            guessed_delay.__name__,
            work=self.options.directory / "guesses",
            guess=[SHORT_GUESS, LONG_GUESS],
            gap_minutes=self.options.gap / timedelta(minutes=1),
            days=min(self.options.days, guessed_delay.DAYS),
        )
        self._until(lambda: child.finished, "trying plain withWatermark on the same topic")
        return [Guess(**json.loads(line)) for line in child.lines()]

    def compare(self, every: pd.DataFrame, landed: pd.DataFrame, guesses: list[Guess]) -> Outcome:
        """Compare the stream with the batch computation."""
        self.show(self._moment("comparing with a batch computation"))
        watch = self.watch
        truth = batch.waves(landed, self.options.gap)
        daily = batch.daily(truth, daily_waves.WINDOW)
        streamed = watch.rows(daily_waves.TOPIC).sort_values("window_start").reset_index(drop=True)
        summaries = [self._summary(name) for name in ("departure-waves", "daily-waves")]
        rows_read = dict(zip(_STAGES, (summary["numInputRows"] for summary in summaries), strict=False))
        lag = max(self._summary(f"source-{origin}")["median_lag"] for origin in source.ORIGINS)
        never_departed = int(every["departed"].isna().sum())
        return Outcome(
            days=self.options.days,
            flights=len(landed),
            cancelled=never_departed,
            lost=len(every) - len(landed) - never_departed,
            waves=len(truth),
            windows=len(daily),
            differing_waves=batch.differences(watch.rows(departure_waves.TOPIC), truth),
            differing_windows=batch.differences(streamed, daily),
            late=sum(summary["late"] for summary in summaries),
            unreadable=sum(summary["unreadable"] + summary["unreadable_marks"] for summary in summaries),
            records={topic: watch.records(topic) for topic in _STAGES},
            rows_read=None if self.crashes else rows_read,
            crashes=self.crashes,
            lag_hours=round(lag / _HOUR, 1),
            guesses=guesses,
            seconds=0,
            picture=str(self.options.directory / "demo.png"),
            results=streamed,
        )

    def _has_written(self, flights: int) -> bool:
        return self.watch.count(source.TOPIC) >= flights

    def _summary(self, child: str) -> dict[str, Any]:
        return dict(json.loads(self.children.all[child].lines()[-1]))

    def _until(self, condition: Callable[[], bool], doing: str) -> None:
        while not condition():
            self.children.check()
            self.watch.poll()
            moment = self._moment(doing)
            self.show(moment)
            if time.monotonic() - self.began > self.options.timeout:
                raise DeadlineError(what=f"the demo ({doing})", seconds=self.options.timeout, last_seen=moment.counts)

    def _moment(self, doing: str) -> Moment:
        watch = self.watch
        counts = {topic: watch.count(topic) for topic in _STAGES}
        newest = watch.newest(daily_waves.TOPIC, "window_start")
        return Moment(doing, self.total, counts, watch.now, watch.board(), newest)

"""Run the demo from end to end: broker, sources, two Spark jobs, an observer, and the comparison."""

import fcntl
import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

import pandas as pd
from floodmark.producers.board.fold import Fold
from floodmark.producers.board.model import Board
from floodmark.producers.clients.admin import create_topics, existing_topics
from floodmark.producers.clients.clock import Clock
from floodmark.producers.embedded.broker import EmbeddedKafka
from floodmark.producers.embedded.jars import java
from floodmark.producers.readers.observer import Observer
from floodmark.schemas.classify import Data
from floodmark.schemas.errors import DeadlineError, UsageError
from floodmark.schemas.timestamps import END_OF_TIME
from floodmark.spark_jobs.demo import flights as source
from floodmark.spark_jobs.demo import guessed_delay, jobs, outcome
from floodmark.spark_jobs.demo.days_table import read_days
from floodmark.spark_jobs.demo.outcome import Guess, Outcome
from floodmark.spark_jobs.demo.processes import Child, Children
from floodmark.spark_jobs.session import local_jars

_PARTITIONS: Final = 4
_HOUR: Final = 3_600_000
_CLAIM, _READY, _START, _LAKE = "demo.claim", "ready", "start", "lake"
Line = list[tuple[float, int]]  # a watermark over processing time: seconds since the start, epoch milliseconds


@dataclass(frozen=True, slots=True)
class Options:
    """The options of the command."""

    days: int
    gap: timedelta
    directory: Path
    bootstrap_servers: str | None
    seconds: float
    crash: bool
    keep: bool
    timeout: float
    table: bool


@dataclass(frozen=True, slots=True)
class Moment:
    """The progress of the demo.  Times are epoch milliseconds."""

    doing: str
    total: int  # the number of flights
    counts: dict[str, int] = field(default_factory=dict)  # data records of each topic
    present: int = 0  # the simulated present: the newest landing
    board: Board | None = None
    newest: dict[str, Any] | None = None  # the newest result: a complete day


class Watch:
    """Reads the three topics from their beginning, and records their watermarks over processing time."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._observer = Observer(config, list(jobs.SCHEMAS))
        self.lines: dict[str, Line] = {topic: [] for topic in jobs.SCHEMAS}
        self.present: Line = []
        self.started = 0.0  # when the sources reached their full pace, seconds since the start
        self._codecs = {topic: source.codec_of(schema) for topic, schema in jobs.SCHEMAS.items()}
        self._rows: dict[str, list[dict[str, Any]]] = {topic: [] for topic in jobs.SCHEMAS}
        self.now = 0  # the simulated present: the newest landing, epoch milliseconds
        self._fold = Fold()
        for topic in jobs.SCHEMAS:
            self._fold.add(topic, whole=True)
        self._wall = Clock().wall
        self.began = time.monotonic()

    def poll(self) -> None:
        """Read the new records."""
        wall = self._wall()
        for record in self._observer.poll():
            self._fold.take(record, wall)
            if isinstance(record, Data) and record.value is not None:
                row = self._codecs[record.topic].decode(record.value)
                self._rows[record.topic].append(row)
                self.now = max(self.now, row.get("landed", 0))
        seconds = time.monotonic() - self.began
        if self.now and (not self.present or self.now > self.present[-1][1]):
            self.present.append((seconds, self.now))
        for topic, tracker in self._observer.trackers.items():
            watermark = tracker.advance()
            if watermark is not None and watermark != END_OF_TIME:
                self.lines[topic].append((seconds, watermark))

    def rows(self, topic: str) -> pd.DataFrame:
        """Return the data of a topic in the order of reading."""
        return pd.DataFrame(self._rows[topic])

    def moment(self, doing: str, total: int) -> Moment:
        """Return the progress now.  The newest result need not be the last one read: partitions are read in turn."""
        newest = max(self._rows[jobs.DAYS], key=itemgetter("window_start"), default=None)
        return Moment(doing, total, self.counts(), self.now, self._fold.board(self._wall()), newest)

    def counts(self) -> dict[str, int]:
        """Return the number of data records read from each topic."""
        return {topic: counts["data"] for topic, counts in self._observer.counts.items()}

    def records(self) -> dict[str, int]:
        """Return the number of records of any kind read from each topic."""
        return {topic: sum(counts.values()) for topic, counts in self._observer.counts.items()}

    def ended(self, topic: str) -> bool:
        """Tell whether all sources of a topic have ended."""
        return self._observer.trackers[topic].ended

    def close(self) -> None:
        """Close the consumer."""
        self._observer.close()


def run(options: Options, show: Callable[[Moment], None]) -> tuple[Outcome, Watch]:
    """Run the demo, and return its outcome and the observer."""
    began, directory = time.monotonic(), options.directory
    with ExitStack() as stack:
        stack.enter_context(_claimed(directory))
        java()
        show(Moment("fetching jars (once)", 0))
        local_jars(*(("iceberg",) if options.table else ()))
        _clear(directory)
        every = source.load(options.days)
        landed = source.landed(every)
        show(Moment("starting Kafka", len(landed)))
        if not options.keep:
            stack.callback(_clear_state, directory)
        kafka = EmbeddedKafka(directory / "kafka")  # only the address; it does not run yet
        servers = options.bootstrap_servers or kafka.bootstrap_servers
        children = stack.enter_context(Children(directory, servers))
        pace = {"seconds": options.seconds, "ready_file": directory / _READY, "start_file": directory / _START}
        for origin in source.ORIGINS:  # they load their flights while Kafka starts
            children.start(f"source-{origin}", source.__name__, origin=origin, days=options.days, **pace)
        if options.bootstrap_servers is None:
            stack.enter_context(kafka)
        stack.callback(children.close)  # before the broker
        config = {"bootstrap.servers": servers}
        used = existing_topics(config) & set(jobs.SCHEMAS)
        if used:
            reason = f"topics {', '.join(sorted(used))} exist already; delete them, or use another cluster"
            raise UsageError(reason=reason)
        create_topics(config, dict.fromkeys(jobs.SCHEMAS, _PARTITIONS))
        (directory / _READY).write_text(f"{time.time()}\n", encoding="ascii")
        watch = Watch(config)
        stack.callback(watch.close)
        flow = _Flow(options, watch, children, len(landed), show)
        flow.stream()
        guesses = flow.guess()
        result = flow.compare(every, landed, guesses)
    result.seconds = round(time.monotonic() - began, 1)
    return result, watch


@contextmanager
def _claimed(directory: Path) -> Iterator[None]:
    """Lock the directory against other demos; the end of the process unlocks it, too.

    Its files will be deleted, so it must be empty, or have the file that marks the directory of a demo.
    """
    directory.mkdir(parents=True, exist_ok=True)
    marker = directory / _CLAIM
    if any(directory.iterdir()) and not marker.exists():
        raise UsageError(reason=f"{directory} holds files that are not the demo's: name a new folder with --directory")
    with marker.open("w", encoding="ascii") as claim:
        try:
            fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            reason = f"another demo uses the directory {directory}: wait for its end, or choose one with --directory"
            raise UsageError(reason=reason) from None
        yield


def _clear(directory: Path) -> None:
    """Remove the files of an earlier run."""
    _clear_state(directory)
    shutil.rmtree(directory / _LAKE, ignore_errors=True)
    for pattern in ("*.jsonl", "*.log", _READY, _START):
        for file in directory.glob(pattern):
            file.unlink()


def _clear_state(directory: Path) -> None:
    for folder in ("checkpoints", "guesses", "kafka"):
        shutil.rmtree(directory / folder, ignore_errors=True)


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
        # The sources first, so that the demo soon shows numbers: the start of the Spark jobs takes half a minute.
        self._until(lambda: self.watch.now > 0, "starting three sources")
        table = {"lake": self.options.directory / _LAKE} if self.options.table else {}
        first, second = self._start_job(jobs.WAVES), self._start_job(jobs.DAYS, **table)
        # The first batch of a Spark job takes seconds: both jobs run theirs while the sources are slow.
        both_run = "starting two Spark jobs, sources are slow"
        self._until(lambda: len(first.lines()) > 1 and len(second.lines()) > 1, both_run)
        self.watch.started = time.monotonic() - self.watch.began
        (self.options.directory / _START).write_text(f"{time.time() + 1}\n", encoding="ascii")
        if self.options.crash:
            self._crash(first, 0.4)
            self._crash(second, 0.6)
        self._until(lambda: self.watch.ended(jobs.DAYS), "streaming")
        self._until(self.children.check, "stopping the jobs")

    def _crash(self, child: Child, share: float) -> None:
        """Kill and restart a job when this share of the flights is in the topic."""
        self._until(lambda: self.watch.counts()[source.TOPIC] >= share * self.total, "streaming")
        child.crash()
        self.crashes += 1

    def guess(self) -> list[Guess]:
        """Run plain ``withWatermark`` over the same topic."""
        work, minutes = self.options.directory / "guesses", self.options.gap / timedelta(minutes=1)
        options = {"work": work, "gap_minutes": minutes, "days": min(self.options.days, guessed_delay.DAYS)}
        child = self.children.start("guessed-delay", guessed_delay.__name__, **options)
        self._until(lambda: child.finished, "trying plain withWatermark on the same topic")
        return [Guess(**json.loads(line)) for line in child.lines()]

    def compare(self, every: pd.DataFrame, landed: pd.DataFrame, guesses: list[Guess]) -> Outcome:
        """Compare the stream with the batch computation."""
        watch = self.watch
        self.show(watch.moment("comparing with a batch computation", self.total))
        waves = outcome.waves(landed, self.options.gap)
        daily = outcome.daily(waves, jobs.DAY)
        streamed = watch.rows(jobs.DAYS).sort_values("window_start").reset_index(drop=True)
        summaries = [self._summary(name) for name in (jobs.WAVES, jobs.DAYS)]
        rows_read = dict(zip(jobs.SCHEMAS, (summary["numInputRows"] for summary in summaries), strict=False))
        lag = max(self._summary(f"source-{origin}")["median_lag"] for origin in source.ORIGINS)
        never_departed = int(every["departed"].isna().sum())
        return Outcome(
            days=self.options.days,
            flights=len(landed),
            cancelled=never_departed,
            lost=len(every) - len(landed) - never_departed,
            waves=len(waves),
            windows=len(daily),
            differing_waves=outcome.differences(watch.rows(jobs.WAVES), waves),
            differing_windows=outcome.differences(streamed, daily),
            late=sum(summary["late"] for summary in summaries),
            unreadable=sum(summary["unreadable"] + summary["unreadable_marks"] for summary in summaries),
            records=watch.records(),
            rows_read=None if self.crashes else rows_read,
            crashes=self.crashes,
            lag_hours=round(lag / _HOUR, 1),
            guesses=guesses,
            seconds=0,
            picture=str(self.options.directory / "demo.png"),
            results=streamed,
            table=read_days(self.options.directory / _LAKE, daily) if self.options.table else None,
        )

    def _start_job(self, name: str, **more: Path) -> Child:
        place, minutes = self.options.directory / "checkpoints" / name, self.options.gap / timedelta(minutes=1)
        return self.children.start(
            name, jobs.__name__, name=name, checkpoint_location=place, gap_minutes=minutes, **more
        )

    def _summary(self, child: str) -> dict[str, Any]:
        return dict(json.loads(self.children.all[child].lines()[-1]))

    def _until(self, condition: Callable[[], bool], doing: str) -> None:
        while not condition():
            self.children.check()
            self.watch.poll()
            moment = self.watch.moment(doing, self.total)
            self.show(moment)
            if time.monotonic() - self.began > self.options.timeout:
                raise DeadlineError(
                    what=f"the demo ({doing}) did not finish", seconds=self.options.timeout, last_seen=moment.counts
                )

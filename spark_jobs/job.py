"""A running job, as its user holds it: wait for it, ask it, stop it."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from floodmark.producers.clients.metrics import Metrics, delay
from floodmark.schemas.errors import DeadlineError, FloodmarkError, JobFailedError
from floodmark.schemas.tracker import Hold
from floodmark.spark_jobs.batch.handler import BatchHandler
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

_log = logging.getLogger(__name__)
_POLL: Final = 0.05
_SHOWN: Final = 500
_TRACEBACK: Final = "Traceback (most recent call last):"


def cause(text: str) -> str:
    r"""Return, of all that Spark says of an error, the line that names its cause.

    >>> trace = "Traceback (most recent call last):\n  File 'job.py', line 3, in f\nValueError: no such user\n"
    >>> cause("An error occurred: org.apache.spark.SparkException: aborted: " + trace + "\n\tat org.apache.spark")
    'ValueError: no such user'
    >>> cause("org.apache.spark.SparkException: [SOME_CLASS] what it is\n\tat org.apache.spark")
    'org.apache.spark.SparkException: [SOME_CLASS] what it is'
    """
    _, found, trace = text.rpartition(_TRACEBACK)
    if found:
        last = [line for line in trace.splitlines() if line.strip() and not line.startswith((" ", "\t"))]
        if last:
            return last[0][:_SHOWN]
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("\t")]
    return (" ".join(line for line in lines if "Exception" in line) or text)[:_SHOWN]


class Job:
    """A running job.  `awaitTermination` is what most programs end with."""

    def __init__(self, query: StreamingQuery, handler: BatchHandler, *, available_now: bool = False) -> None:
        """Wrap a started query; with ``available_now`` it stops by itself when it has worked off what was there."""
        self.query: Final = query
        self._handler = handler
        self._available_now = available_now

    @property
    def name(self) -> str:
        """The job's name, which is its source id in the output topic."""
        return self._handler.identity.job

    @property
    def watermark(self) -> int | None:
        """The input watermark, epoch milliseconds."""
        return self._handler.watermark

    @property
    def ended(self) -> bool:
        """Whether all input has ended and every result is out."""
        return self._handler.ended

    @property
    def counts(self) -> dict[str, int]:
        """Totals since the checkpoint began: records, marks, late, unreadable, replayed, fenced, ..."""
        return self._handler.counts

    def metrics(self) -> Metrics:
        """Return what is measured of this job since its checkpoint began."""
        counts = self.counts
        return Metrics(
            "job",
            self.name,
            records=counts["records"],
            late_events=counts["late"],
            unreadable=counts["unreadable"] + counts["missing_event_time"] + counts["unreadable_marks"],
            lost=counts["lost"],
            surplus=counts["surplus"],
            fenced=counts.get("fenced", 0) + counts.get("retired", 0),
            watermark_delay_seconds=delay(time.time_ns() // 1_000_000, self.watermark),
        )

    def holders(self) -> list[Hold]:
        """Say why the watermark is where it is: who holds it, and since when."""
        return self._handler.holders()

    def awaitTermination(self, timeout: float | None = None) -> None:
        """Wait until all sources have ended and every result is out, then stop.

        With the trigger ``availableNow``: until all that was there is worked off; `ended` tells whether that was all.

        Args:
            timeout: seconds; ``None``: as long as it takes.

        Raises:
            DeadlineError: where that takes longer; names what holds the watermark.  The job goes on.
            JobFailedError, or the error of Floodmark that failed the job.
        """
        self._await(lambda: self.ended or self._worked_off(), timeout, "the end of all input")
        if not self.ended:
            _log.warning("job %s has worked off what was there; its input has not ended: %s", self.name, self._held())
        self.stop()

    def processAllAvailable(self, timeout: float | None = None) -> None:
        """Wait until all that is in the topics now has been worked off.

        Args:
            timeout: seconds; ``None``: as long as it takes.

        Raises:
            DeadlineError: where that takes longer.  The job goes on.
            JobFailedError, or the error of Floodmark that failed the job.
        """
        self.raise_failure()
        waiting = threading.Thread(target=self._process_all, daemon=True)
        waiting.start()
        done = lambda: not waiting.is_alive()  # noqa: E731
        self._await(done, timeout, "the work", stoppable=True)
        self.raise_failure()

    def _process_all(self) -> None:
        try:
            self.query.processAllAvailable()
        except PySparkException as error:  # raise_failure tells it better
            _log.debug("job %s: %s", self.name, error)

    def _worked_off(self) -> bool:
        return self._available_now and not self.query.isActive and self.query.exception() is None

    def _await(
        self, condition: Callable[[], bool], timeout: float | None, what: str, *, stoppable: bool = False
    ) -> None:
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            self.raise_failure()
            if condition():
                return
            if deadline is not None and time.monotonic() > deadline:
                raise DeadlineError(what=f"job {self.name!r}: {what}", seconds=timeout, last_seen=self._held())
            if not stoppable and not self.query.isActive and not condition():
                self.raise_failure()
                raise JobFailedError(job=self.name, reason="the query was stopped before its input had ended")
            time.sleep(_POLL)

    def _held(self) -> str:
        if self._handler.stopping.last_batch is None:
            return "no batch yet"
        return "; ".join(map(str, self.holders()[:3])) or f"watermark {self.watermark}, held by no source"

    def raise_failure(self) -> None:
        """Raise what failed the job, if anything did: Floodmark's own errors as they were."""
        inner = self._handler.failure
        if isinstance(inner, FloodmarkError):
            raise inner
        if inner is not None:
            raise JobFailedError(job=self.name, reason=f"{type(inner).__name__}: {cause(str(inner))}") from inner
        failure: StreamingQueryException | None = self.query.exception()
        if failure is not None:
            raise JobFailedError(job=self.name, reason=cause(str(failure))) from failure

    def stop(self) -> None:
        """Stop between two batches; a later start goes on from there."""
        self._handler.stopping.stop(self.query)
        self._handler.close()

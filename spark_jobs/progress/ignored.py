"""The processes whose marks a job ignores while it reads their rows: each is reported once.  Pure."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from floodmark.schemas.classify import Mark
from floodmark.schemas.records import Verdict
from floodmark.schemas.tracker import Tracker

_WHAT: Final = {Verdict.FENCED: "epoch", Verdict.RETIRED: "membership"}


class IgnoredProcess(NamedTuple):
    """A process whose marks are ignored, because its source has a higher epoch or membership."""

    topic: str
    source: str
    what: str
    older: int
    newer: int

    def __str__(self) -> str:
        advice = "stop it" if self.what == "epoch" else "give it the newer membership"
        return (
            f"source {self.source} of topic {self.topic}: marks of {self.what} {self.older} are ignored, because "
            f"{self.what} {self.newer} counts. Rows of their process are read, and no watermark waits for them. If it "
            f"still runs, {advice}"
        )


@dataclass(slots=True)
class Ignored:
    """The marks that a job has ignored since it started.

    >>> from floodmark.producers.testing import mark
    >>> tracker, ignored = Tracker({"t"}), Ignored()
    >>> for offset, (epoch, sequence) in enumerate([(2, 0), (1, 7), (2, 1), (1, 8)]):
    ...     found = Mark("t", 0, offset, 0, mark("web", 5, sequence, epoch=epoch))
    ...     ignored.take(found, tracker.apply(found.record, topic="t", partition=0, log_time=0), tracker)
    >>> [(one.older, one.newer) for one in ignored.news()], ignored.news(), ignored.writes_to("t", 0)
    ([(1, 2)], [], True)
    """

    _marks: Counter[tuple[str, int, str, str, int]] = field(default_factory=Counter)
    _places: set[tuple[str, int]] = field(default_factory=set)
    _reported: dict[IgnoredProcess, bool] = field(default_factory=dict)

    def take(self, mark: Mark, verdict: Verdict, tracker: Tracker) -> None:
        """Note an ignored mark; a single one is the last mark of a replaced process, and is not reported.

        Neither is one of an older membership in a partition where no mark of the newer one was read yet: the partitions
        of a backlog are read one after the other.
        """
        what, record = _WHAT.get(verdict), mark.record
        if what is None or (verdict is Verdict.RETIRED and not tracker.has_reports(mark.topic, mark.partition)):
            return
        older = record.epoch if what == "epoch" else record.membership.version
        self._marks[mark.topic, mark.partition, record.source, what, older] += 1
        if self._marks[mark.topic, mark.partition, record.source, what, older] > 1:
            version, epoch = tracker.version_and_epoch(record.source, topic=mark.topic, partition=mark.partition)
            newer = epoch if what == "epoch" else version
            self._reported.setdefault(IgnoredProcess(mark.topic, record.source, what, older, newer), False)
            self._places.add((mark.topic, mark.partition))

    def news(self) -> list[IgnoredProcess]:
        """Return the processes that were not reported yet."""
        found = [process for process, reported in self._reported.items() if not reported]
        self._reported.update(dict.fromkeys(found, True))
        return found

    def writes_to(self, topic: str, partition: int) -> bool:
        """Tell whether a reported process has written to a partition, which explains surplus rows there."""
        return (topic, partition) in self._places

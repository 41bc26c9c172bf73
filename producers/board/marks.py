"""What the marks of one topic have said: its state, and the history of each source.  Pure."""

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from floodmark.producers.board.history import History
from floodmark.schemas.classify import Mark
from floodmark.schemas.source_state import Verdict
from floodmark.schemas.topic_state import TopicState


@dataclass(slots=True, eq=False)
class TopicMarks:
    """What the marks of one topic have said."""

    state: TopicState = field(default_factory=TopicState)
    histories: dict[tuple[int, str], History] = field(default_factory=dict)
    """By partition and source."""
    inputs: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """Of each job that writes to it: the topics that its marks have named."""
    whole: bool = False
    """Whether all of its records were read, from the first one."""
    read_until: int | None = None
    """The reader's clock when all that stood in it was read; ``None``: always."""

    def take(self, mark: Mark, counts: Counter[str], read_at: int | None) -> None:
        """Take a mark; see `Fold.take`."""
        record, number = mark.record, mark.partition
        verdict = self.state.apply(record, number, mark.log_time, counts)
        history = self.histories.get((number, record.source))
        if history is None:
            history = self.histories[number, record.source] = History()
        history.take(record, mark.log_time, read_at, retired=verdict is Verdict.RETIRED)
        if record.holder is not None:
            self.inputs[record.source].add(record.holder.topic)

    def members(self, number: int) -> list[str]:
        """Return the sources that have spoken in a partition under the newest membership."""
        part, version = self.state.partitions.get(number), self.state.roster.version
        return [] if part is None else sorted(n for n, source in part.sources.items() if source.version == version)

    def retired(self, now: int) -> dict[int, list[str]]:
        """Return by partition the sources that still write there, under an older membership alone."""
        found: defaultdict[int, list[str]] = defaultdict(list)
        for (number, name), history in sorted(self.histories.items()):
            if history.retired and history.lives(now):
                found[number].append(name)
        return found

    def front(self, now: int) -> int | None:
        """Return the highest watermark of those sources that still write; ``None``: there is none."""
        counted = [history for history in self.histories.values() if history.is_active and not history.retired]
        return max((h.watermark for h in counted if h.watermark is not None and h.lives(now)), default=None)

    def lacks(self, number: int, *, since: bool) -> bool:
        """Tell whether more of the past is needed; see `Fold.lacking`."""
        part = self.state.partitions.get(number) or self.state.empty(number)
        found = [self.histories[number, name] for name in self.members(number)]
        settled = sum(history.is_settled and (history.since_exact or not since) for history in found)
        return settled + len(part.absent()) < max(self.state.roster.size, 1)

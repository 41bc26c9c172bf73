"""Read the marks of a chain of topics, from near their ends, and then follow them.  A thin shell around `Observer`."""

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from heapq import merge
from itertools import accumulate
from operator import attrgetter, itemgetter
from typing import Final

from confluent_kafka import KafkaException
from floodmark.producers.board.causes import Cause
from floodmark.producers.board.fold import KEPT, Fold, Point
from floodmark.producers.board.model import Board, State
from floodmark.producers.board.why import trace
from floodmark.producers.clients.admin import (
    TIMEOUT,
    Config,
    admin_client,
    described,
    first_since,
    hidden_records,
    offset_bounds,
)
from floodmark.producers.clients.clock import Clock, Deadline
from floodmark.producers.clients.consumers import Closing
from floodmark.producers.readers.observer import Observer
from floodmark.producers.readers.receipts import receipts_topic, waiting_shards
from floodmark.producers.readers.replay import REACHES, BackwardReader, read_until_end
from floodmark.producers.tables.table_stage import Tables
from floodmark.schemas.classify import Classified, Data, Mark, Partition, Place
from floodmark.schemas.errors import (
    BrokerUnavailableError,
    CorruptSnapshotError,
    DeletedRecordsError,
    MissingRightError,
    RecreatedTopicError,
    UnknownTopicError,
    UsageError,
)
from floodmark.schemas.records import Holder
from floodmark.schemas.timestamps import milliseconds
from floodmark.schemas.tracker import UNMARKED, Hold

Bounds = Mapping[Partition, tuple[int, int]]
"""The first offset and the end of each partition."""
_STARTS: Final = 8  # the most starts to look behind, the last ones
_OLDEST: Final = 10 * 365 * 86_400_000  # milliseconds; an epoch before that is no time of a start
_SILENT: Final = {Cause.SILENT, Cause.SILENT_HERE, Cause.SHARDS, Cause.HIDDEN, Cause.RENAMED}
_LATELY: Final = 10_000  # milliseconds
_FAR: Final = 20_000  # records of a partition to read at most, for the start of a stall or for the past
_MOST: Final = 200_000  # records of a topic to read at most for the past


class ChainReader(Closing):
    """The marks of some topics, and of the topics upstream that their marks name.

    It reads what came in the last `KEPT`, for `points` and to see sources that a membership does not count, but less
    in topics with many records.  ``since``: read further back, up to a limit, to find since when a watermark has not
    moved.  ``progress`` is called with each topic.  ``tables``: the tables that jobs of the chain write, see
    `open_table`.
    """

    def __init__(
        self,
        config: Config,
        topics: Iterable[str],
        *,
        since: bool = False,
        clock: Clock = Clock(),
        progress: Callable[[str], None] = lambda _topic: None,
        tables: Collection[str] = (),
    ) -> None:
        self._config = config
        self._since = since
        self._clock = clock
        self._fold = Fold()
        self._ends: dict[str, dict[Partition, int]] = {}
        self._observers: dict[str, Observer] = {}
        self._unanswered = False
        self._admin = admin_client(config)
        self._tables = Tables(tables)
        self._read({*topics, *self._tables.read()}, progress)

    def _read(self, topics: set[str], progress: Callable[[str], None] = lambda _topic: None) -> None:
        """Read topics, and then those that their marks name, until there are no new ones.

        It reads a topic again, further back, for a source that a job waits for.
        """
        while topics := topics or self._fold.named() or self._fold.again(self._tables.awaited()):
            for topic in self._observers.keys() & topics:  # they are read again, from further back
                self._observers.pop(topic).close()
            for topic in sorted(topics):
                progress(topic)
                try:
                    self._read_topic(topic)
                except (MissingRightError, UnknownTopicError):
                    self._fold.refuse(topic, "it does not exist, or you have no right to describe it")
                except UsageError as error:  # a mark may name anything
                    self._fold.refuse(topic, error.reason)
                except BrokerUnavailableError as error:
                    if not self._is_answered(topic):
                        raise
                    self._fold.refuse(topic, str(error))  # of one partition alone, such as one without a leader
                except KafkaException as error:
                    self._fold.refuse(topic, error.args[0].str())
            topics = set()

    def _read_topic(self, topic: str) -> None:
        began = self._clock.wall()
        topic_id, _ = described(self._admin, [topic], self._config.get("bootstrap.servers"))[topic]
        bounds = offset_bounds(self._config, topic)
        past = BackwardReader(self._config, bounds)
        kept: defaultdict[Partition, list[Classified]] = defaultdict(list)
        lacking, trial = set(bounds), Fold([topic])
        numbers = [number for _, number in bounds]
        for reach in REACHES:
            places = list(filter(past.unread, lacking))
            if not places:
                break
            found: defaultdict[Partition, list[Classified]] = defaultdict(list)
            for record in past.stretch(places, reach):
                if not isinstance(record, Data):
                    found[topic, record.partition].append(record)
            for place, records in found.items():
                kept[place] = records + kept[place]
            trial = Fold([topic])
            for record in _in_turn(kept):
                trial.take(record)
            since = self._since and reach < _FAR
            lacking = {(topic, number) for number in trial.lacking(topic, numbers, since=since)}
            sought = trial.unseen(self._fold.sought)
            lacking |= {place for place in bounds if any(place == (one.topic, one.partition) for one in sought)}
            if reach < _FAR and 10 * reach * len(bounds) <= _MOST:
                oldest = began - milliseconds(KEPT)
                lacking |= {place for place in bounds if kept[place] and kept[place][0].log_time > oldest}
        for record in self._around_starts(topic, bounds, trial) if not past.whole else ():
            kept[topic, record.partition].append(record)
        begins = {number: low for (_, number), (low, _) in bounds.items()}
        self._fold.add(topic, whole=past.whole, begins=begins, topic_id=topic_id)
        for record in _in_turn({place: _by_offset(records) for place, records in kept.items()}):
            self._fold.take(record)
        self._fold.read_until(topic, began)
        self._ends[topic] = {place: high for place, (_, high) in bounds.items()}

    def _around_starts(self, topic: str, bounds: Bounds, read: Fold) -> Iterator[Mark]:
        """Yield marks of unknown sources from just before the known ones started, by the times in their epochs.

        A process that starts again under another name takes a place in the membership, and readers wait for the old
        name, whose marks may be far back.  They stop waiting for a source with a lease.

        Also yield marks of a source that is ahead of the clock: those around its starts show whether it always was.
        """
        known, began = read.sources(topic), self._clock.wall()
        ahead = read.unexplained(topic, began)
        starts = sorted((name in ahead, epoch, name) for name, epoch in known.items())[-_STARTS:]
        looks = 2 * _STARTS
        while starts and looks:
            looks -= 1
            is_ahead, start, name = starts.pop()
            if not began - _OLDEST < start < began:
                continue
            since, reach = first_since(self._config, bounds, start), REACHES[is_ahead]
            begins = {place: max(low, since[place] - reach) for place, (low, _) in bounds.items()}
            ends = {place: min(high, since[place] + is_ahead * reach) for place, (_, high) in bounds.items()}
            marks = [one for one in read_until_end(self._config, begins, ends) if isinstance(one, Mark)]
            yield from (one for one in marks if one.record.lease is None and one.record.source not in known)
            own = [one for one in marks if is_ahead and one.record.source == name]
            yield from own
            before = min((one.record.epoch for one in own), default=start)
            if before < start:
                starts.append((is_ahead, before, name))

    def poll(self, seconds: float) -> None:
        """Read new marks for ``seconds``, also of topics that are named for the first time, or exist now."""
        self._open()
        began, quiet = self._clock.wall(), set(self._observers)
        deadline = Deadline(seconds)
        while (left := deadline.left) > 0:
            if not self._observers:
                time.sleep(left)
            for topic in sorted(self._observers):
                if self._follow(topic, min(left, 0.1) / max(1, len(self._observers))):
                    quiet.discard(topic)
        self._unanswered = bool(quiet) and not self._is_answered(min(quiet))
        # A quiet topic is up to date only if Kafka answers, and all its earlier records were read.
        for topic, observer in self._observers.items():
            if not (self._unanswered and topic in quiet) and observer.ends.keys() >= self._ends[topic].keys():
                self._fold.read_until(topic, began)
        if not self._unanswered:
            self._read_new()

    def _read_new(self) -> None:
        """Read what is named for the first time, or exists now; if Kafka does not answer, the next call tries again."""
        try:
            self._read(self._fold.named() | self._fold.unread | self._tables.read() - self._fold.topics)
        except BrokerUnavailableError:
            self._unanswered = True

    def _open(self) -> None:
        """Start to follow the topics that were read."""
        for topic in self._ends.keys() & self._fold.topics - self._observers.keys():
            try:
                self._observers[topic] = Observer(self._config, [topic], offsets=self._ends[topic])
            except UnknownTopicError:
                self._fold.refuse(topic, "it no longer exists, or you have no right to describe it")
            except BrokerUnavailableError:
                continue  # the next call tries again

    def _follow(self, topic: str, seconds: float) -> bool:
        """Apply the new records of a topic; return whether there were any."""
        came = False
        if topic not in self._observers:  # another topic's marks lead back to it
            return came
        try:
            for record in self._observers[topic].poll(seconds):
                self._fold.take(record, self._clock.wall())
                came = True
        except BrokerUnavailableError:
            return False
        except (DeletedRecordsError, KafkaException, RecreatedTopicError, UnknownTopicError) as error:
            self._observers.pop(topic).close()
            self._fold.refuse(topic, error.args[0].str() if isinstance(error, KafkaException) else str(error))
            if isinstance(error, (DeletedRecordsError, RecreatedTopicError)):
                with suppress(BrokerUnavailableError):  # the next call of `poll` tries again
                    self._read({topic})  # from near its end, as at the start
        return came

    def _is_answered(self, topic: str) -> bool:
        """Tell whether a broker answers."""
        try:
            self._admin.list_topics(topic, timeout=1.0)
        except KafkaException:
            return False
        return True

    def board(self) -> Board:
        """Return the board of what was read."""
        now, answered = self._clock.wall(), not self._unanswered
        board = self._fold.board(now, answered=answered)
        if answered and self._explain_silence(board):
            board = self._fold.board(now, answered=answered)
        return self._tables.on(board, self._fold.timeline.last_rise)

    def _explain_silence(self, board: Board) -> bool:
        """Look for what else Kafka shows of silent sources; return whether there are any."""
        rows = [row for topic in board.topics() for row in topic.sources()]
        silent = [
            row for row in rows if row.cause in _SILENT or (row.cause is Cause.WAITS and row.state is State.SILENT)
        ]
        for topic, job in sorted({(row.topic, row.source) for row in silent if row.inputs and row.source}):
            shards = 0, 0
            with suppress(BrokerUnavailableError, CorruptSnapshotError, KafkaException, UnknownTopicError):
                shards = waiting_shards(self._config, receipts_topic(job, topic))
            self._fold.await_shards(topic, job, shards)
        for topic in sorted({row.topic for row in silent}):
            hidden: Mapping[int, Place] = {}
            with suppress(BrokerUnavailableError, KafkaException, UnknownTopicError):
                # If a record that is much newer than a source's last mark can be read, the transaction is newer.
                lately = board.now - _LATELY
                since = {row.partition: min((row.last or 0) + _LATELY, lately) for row in silent if row.topic == topic}
                timeout = 1 if self._observers else TIMEOUT  # the first look may be the only one
                hidden = hidden_records(self._admin, self._config, topic, since, timeout)
            self._fold.hide(topic, hidden)
        return bool(silent)

    def points(self) -> dict[str, list[Point]]:
        """Return the watermark of each topic over the last minutes."""
        return self._fold.timeline.points(self._clock.wall())

    def close(self) -> None:
        """Close all consumers."""
        for observer in self._observers.values():
            observer.close()
        self._observers.clear()


def root_holders(config: Config, topics: Collection[str]) -> list[Hold]:
    """Return the sources that hold some topics, each at the start of its chain, or raise BrokerUnavailableError."""
    with ChainReader(config, topics, since=True) as reader:
        board = reader.board()
    found: dict[Holder, Hold] = {}
    for topic in sorted(topics):
        last = trace(board, topic).steps[-1]
        row = last.held_by
        if row is None:
            holder = Holder(last.topic)
            reason = UNMARKED if last.unmarked else "no source holds it"
            found[holder] = Hold(holder, None, last.unread or reason)
        else:
            holder = Holder(last.topic, row.partition, row.source)
            found[holder] = Hold(holder, row.watermark, row.reason or "lowest watermark", row.since)
    return list(found.values())


def _by_offset(records: Iterable[Classified]) -> list[Classified]:
    return sorted({one.offset: one for one in records}.values(), key=attrgetter("offset"))


def _in_turn(kept: Mapping[Partition, list[Classified]]) -> Iterator[Classified]:
    """Yield the records of all partitions by log time, and those of each partition in their order."""
    latest = [
        zip(accumulate((one.log_time for one in records), max), records, strict=True) for records in kept.values()
    ]
    return (record for _, record in merge(*latest, key=itemgetter(0)))

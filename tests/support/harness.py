"""What several tests need: a small real stream with a perfect watermark, and its batch result."""

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from itertools import zip_longest
from typing import Any

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions
from floodmark.producers import (
    Data,
    EmbeddedKafka,
    Generator,
    Observer,
    Strategy,
    WatermarkedProducer,
    create_topics,
    explicit,
)
from floodmark.producers.event_times.formats import JsonField
from floodmark.producers.readers.check import checker_of, findings
from floodmark.schemas import AvroCodec, Membership
from floodmark.schemas.codec import without_logical_types

LASTING = "-XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m -Djdk.lang.Process.launchMechanism=VFORK"
"""Options of the JVM of many tests.

Hadoop starts a ``chmod`` for each file, some fifteen a second: the JVM does so without a helper process.
"""
QUICK = f"{LASTING} -XX:TieredStopAtLevel=1"
"""Options of a short-lived JVM, which save a third of the work of a program with Spark.

It compiles quickly rather than well.  Such a JVM has room for 48 MB of compiled code by default; many queries need
more, and it would throw code away and compile it again.
"""
SMALL_BATCHES = {
    "spark.driver.extraJavaOptions": QUICK,
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    "spark.sql.dataFrameQueryContext.enabled": "false",
    "spark.sql.streaming.pollingDelay": "50ms",
}
"""Spark's settings for small batches.

- An operator with state is one task.  Spark interprets expressions, since to compile them takes longer.
- Spark does not look up the line of Python in which each column is made, which takes some ten calls of the JVM.
- An idle query asks Kafka for new records 20 times a second, not 100 times.
"""

TIME = {"type": "long", "logicalType": "timestamp-millis"}


def record_schema(name: str, **types: Any) -> dict[str, Any]:  # Avro's types
    return {"type": "record", "name": name, "fields": [{"name": field, "type": kind} for field, kind in types.items()]}


EVENT = record_schema("Event", user="string", at=["null", TIME])
COUNT = record_schema("Count", user="string", ended=TIME, n="long")
events = AvroCodec(without_logical_types(EVENT))
counts = AvroCodec(without_logical_types(COUNT))


@dataclass(frozen=True, slots=True)
class Stream:
    """Some sources' events, out of order, each source with a perfect watermark.

    ``steps``: per source a list of (event times sent, the watermark after them), milliseconds.
    """

    steps: dict[str, list[tuple[list[int], int]]]

    @classmethod
    def seeded(cls, seed: int, sources: int = 2, steps: int = 8, per_step: int = 40) -> "Stream":
        """Make one up: events within a second behind or two before the watermark of their step."""
        chance = random.Random(seed)  # noqa: S311  # a repeatable stream
        made = {}
        for number in range(sources):
            watermark, script = 10_000, []
            for _ in range(steps):
                times = [chance.randrange(watermark, watermark + 30_000) for _ in range(per_step)]
                watermark += chance.randrange(2_000, 9_000)
                script.append((times, watermark))
            made[f"source-{number}"] = script
        return cls(made)

    @property
    def times(self) -> list[int]:
        return [time_ for script in self.steps.values() for times, _ in script for time_ in times]

    @property
    def size(self) -> int:
        return len(self.times)

    def producers(self, config: dict[str, object], topic: str, interval: timedelta) -> dict[str, WatermarkedProducer]:
        options = {"strategy": explicit(), "membership": Membership(version=1, size=len(self.steps)), "topic": topic}
        options |= {"interval": interval, "on_late": "raise", "background": False}
        return {name: WatermarkedProducer(config, source=name, **options) for name in self.steps}

    def produce(self, config: dict[str, str], topic: str, *, end: bool = True, encode: Any = events.encode) -> None:
        """Write it, the sources' steps interleaved; ``encode`` makes the value of a user and a time as ``at``."""
        producers = self.producers(config, topic, timedelta(hours=1)).values()
        for steps in zip_longest(*self.steps.values(), fillvalue=([], None)):
            for producer, (times, watermark) in zip(producers, steps, strict=True):
                self.produce_step(producer, times, encode)
                if watermark is not None:
                    producer.advance(watermark)
                    producer.flush()
        for producer in producers if end else ():
            producer.end()

    @staticmethod
    def produce_step(producer: WatermarkedProducer, times: list[int], encode: Any = events.encode) -> None:
        for time_ in times:
            user = f"u{time_ % 5}"
            producer.produce(encode({"user": user, "at": time_}), event_time=time_, key=user)

    def windows(self, width: int) -> Counter[tuple[str, int]]:
        """Count events per user and tumbling window end: the batch result."""
        return Counter((f"u{time_ % 5}", time_ // width * width + width) for time_ in self.times)


def until(condition: Callable[[], bool], what: str, seconds: float = 60) -> None:
    deadline, worked = time.monotonic() + seconds, time.thread_time()
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen within {seconds} s"
        worked, before = time.thread_time(), worked
        time.sleep(min(1, max(0.05, 4 * (worked - before))))  # leave the processor to what it waits for


def read_to_end(config: Mapping[str, Any], topic: str, seconds: float = 60) -> tuple[list[Any], Observer]:
    """Read a topic until its sources have ended; returns its records and the observer, closed."""
    records: list[Any] = []
    with Observer(dict(config), [topic]) as observer:
        tracker = observer.trackers[topic]

        def ended() -> bool:
            records.extend(observer.poll())
            tracker.advance()
            return tracker.ended

        until(ended, f"the end of {topic}", seconds)
    return records, observer


def drain(config: dict[str, str], topic: str, seconds: float = 60) -> tuple[list[bytes], Observer]:
    """Read the data values of a topic until its sources have ended; returns the observer, too."""
    records, observer = read_to_end(config, topic, seconds)
    return [record.value for record in records if isinstance(record, Data) and record.value is not None], observer


def records_by_partition(config: dict[str, str], topic: str) -> dict[int, list[Any]]:
    found = {}
    for record in read_to_end(config, topic)[0]:
        found.setdefault(record.partition, []).append(record)
    return found


def grow(config: dict[str, str], topic: str, partitions: int) -> None:
    """Give a topic more partitions, and wait until clients see them."""
    admin = AdminClient(config)
    admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(30)
    until(lambda: len(admin.list_topics(topic, timeout=30).topics[topic].partitions) == partitions, "growth")


def delete_before(config: dict[str, str], topic: str, offset: int, partitions: int = 2) -> None:
    """Let Kafka delete the records before an offset in each partition, as retention does."""
    admin = AdminClient(config)
    for done in admin.delete_records([TopicPartition(topic, n, offset) for n in range(partitions)]).values():
        done.result(15)


def delete_topic(config: dict[str, str], topic: str) -> None:
    admin = AdminClient(config)
    admin.delete_topics([topic])[topic].result(15)
    until(lambda: topic not in admin.list_topics(timeout=30).topics, f"the end of {topic}")


class Stumbling(Generator):
    """A strategy of a user that fails as often as ``stumbles`` says."""

    stumbles = 0

    def watermark(self) -> None:
        if self.stumbles:
            self.stumbles -= 1
            raise ZeroDivisionError


class StumblingStrategy(Strategy):
    def build(self) -> Generator:
        return Stumbling()


def recreate(config: dict[str, str], topic: str, partitions: int) -> None:
    delete_topic(config, topic)
    create_topics(config, {topic: partitions})


def window_counts(values: list[bytes]) -> Counter[tuple[str, int]]:
    """Add up the windows in a topic; a duplicate row shows as a count too high."""
    total = Counter()
    for row in map(counts.decode, values):
        total[row["user"], row["ended"]] += row["n"]
    return total


def record(event_time: int) -> bytes:
    return json.dumps({"at": event_time}).encode()


def faults(kafka: EmbeddedKafka, target: str) -> list[str]:
    """Return what `check` finds wrong with a topic of such records."""
    return list(map(str, findings(kafka.config, target, JsonField("at"), checker_of(kafka.config, target))))


def until_promised(kafka: EmbeddedKafka, target: str, watermark: int) -> None:
    with Observer(kafka.config, [target]) as observer:
        tracker = observer.trackers[target]
        until(lambda: list(observer.poll()) and tracker.advance() == watermark, f"the watermark {watermark}")

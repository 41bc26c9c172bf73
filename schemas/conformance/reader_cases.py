"""What a reader is given, and what it has to answer: the vectors, the table of rules, and random histories.  Pure."""

import json
import random
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any, Final

from floodmark.schemas.classify import Classified, Data, Mark, classify
from floodmark.schemas.codec import decode_watermark, encode_watermark
from floodmark.schemas.records import Membership, Status, Verdict, WatermarkRecord, mark_key
from floodmark.schemas.timestamps import END_OF_TIME
from floodmark.schemas.tracker import Tracker, apply_mark

Line = dict[str, Any]
"""One line of JSON, to or from a program."""
Entry = WatermarkRecord | str | None
"""A mark, the source of a mark that cannot be read, or a data record."""
Record = tuple[str, int, Entry, int, int]
"""Topic, partition, entry, offset, log time."""
HISTORIES: Final = 400
_FILES: Final = files("floodmark.schemas")
_VECTORS: Final = json.loads(_FILES.joinpath("vectors.json").read_text(encoding="utf-8"))
_ANY: Final = decode_watermark(*(bytes.fromhex(_VECTORS["accepted"][0][name]) for name in ("key", "value")))
TABLE: Final = tomllib.loads(_FILES.joinpath("conformance", "cases.toml").read_text(encoding="utf-8"))["case"]


@dataclass(frozen=True, slots=True)
class ReaderCase:
    """The topics of a stage, its records, and what a reader has to answer to each.

    >>> case = ReaderCase("data", ["t"], [line_of("t", 0, None, 0, 0)], [{"is": "data"}])
    >>> print(case.fault([{"is": "mark"}]))
    step 1 of 1: t/0@0, Data
    expected {"is": "data"}
    found    {"is": "mark"}
    """

    name: str
    topics: Sequence[str]
    steps: Sequence[Line]
    expected: Sequence[Line]

    @property
    def begin(self) -> list[Line]:
        """The lines before its steps, which have no answer."""
        return [{"topics": list(self.topics)}]

    def fault(self, answers: Sequence[Line]) -> str | None:
        """Return the first answer that differs, and what was expected; ``None``: all are right."""
        for number, (step, expected, answer) in enumerate(zip(self.steps, self.expected, answers, strict=True), 1):
            found = {name: answer.get(name, "missing") for name in expected}
            if found.get("partition_is") in ("unknown", "idle", "ended"):
                found["partition_is"] = None
            if found != expected:
                record = record_of(step)
                shown = record.record if isinstance(record, Mark) else type(record).__name__
                place = f"step {number} of {len(self.steps)}: {record.place}, {shown}"
                return f"{place}\nexpected {json.dumps(expected)}\nfound    {json.dumps(found)}"
        return None


def record_of(line: Line) -> Classified:
    """Return the record of a line, whose key and value are in hex."""
    key, value = (None if line[name] is None else bytes.fromhex(line[name]) for name in ("key", "value"))
    headers = [(name, text.encode()) for name, text in line.get("headers", {}).items()]
    return classify(line["topic"], line["partition"], line["offset"], line["log_time"], key, value, headers)


def line_of(topic: str, partition: int, entry: Entry, offset: int, log_time: int) -> Line:
    """Return the line of a record."""
    key, value = b"key", b"value"
    if entry is not None:
        key = mark_key(entry if isinstance(entry, str) else entry.source)
        value = b"?" if isinstance(entry, str) else encode_watermark(entry)
    place = {"topic": topic, "partition": partition, "offset": offset, "log_time": log_time}
    return place | {"key": key.hex(), "value": value.hex()}


def told(tracker: Tracker, record: Classified) -> Line:
    """Apply a record to a tracker, and return what a reader has to answer."""
    kind = "data"
    if not isinstance(record, Data):
        verdict = apply_mark(tracker, record)
        accepted = verdict in {Verdict.ACCEPTED, Verdict.REGRESSED}
        kind = "mark" if accepted else "unreadable" if verdict is None else "ignored"
        tracker.advance()
    partition = tracker.partition_watermark(record.topic, record.partition)
    return {"is": kind, "watermark": tracker.watermark, "partition_is": partition}


def reader_cases() -> Iterator[ReaderCase]:
    """Return all cases."""
    for vector in _VECTORS["accepted"] + _VECTORS["refused"]:
        step = {
            "topic": "t",
            "partition": 0,
            "offset": 0,
            "log_time": 0,
            "key": vector["key"],
            "value": vector["value"],
        }
        expected = {"is": "mark", "mark": vector["record"]} if "record" in vector else {"is": "unreadable"}
        yield ReaderCase(f"vector: {vector['name']}", ["t"], [step], [expected])
    for case in TABLE:
        highest, steps, watermarks = None, [], []
        for offset, (partition, entry, log_time, out) in enumerate(table_records(case)):
            highest = highest if out is None else out
            steps.append(line_of("t", partition, entry, offset, log_time))
            watermarks.append({"watermark": highest})
        yield ReaderCase(f"table: {case['name']}", ["t"], steps, watermarks)
    for seed in range(HISTORIES):
        topics, history = _history(seed)
        yield history_case(f"history {seed}", topics, [*history, *history[: seed % 60]])


def history_case(name: str, topics: Sequence[str], records: Iterable[Record]) -> ReaderCase:
    """Return a case that expects the answers of Floodmark's own reader."""
    tracker, steps = Tracker(topics), [line_of(*record) for record in records]
    return ReaderCase(name, topics, steps, [told(tracker, record_of(step)) for step in steps])


def table_records(case: Line) -> Iterator[tuple[int, WatermarkRecord | str, int, int | None]]:
    """Return each step's partition, mark (of an unreadable one: its source), log time and expected output."""
    sequences: dict[tuple[int, str, int], int] = {}
    for step in case["steps"]:
        partition, source, epoch = step.get("partition", 0), step.get("source", "a"), step.get("epoch", 1)
        log_time, expected = step.get("log_time", 0), {"none": None, "end": END_OF_TIME}.get(step["out"], step["out"])
        if step.get("corrupt"):
            yield partition, source, log_time, expected
            continue
        place = (partition, source, epoch)
        sequence = step.get("sequence", sequences.get(place, 0))
        sequences[place] = sequence + 1
        record = replace(
            _ANY,
            source=source,
            watermark={"end": END_OF_TIME}.get(step.get("watermark"), step.get("watermark")),
            sequence=sequence,
            epoch=epoch,
            status=Status(step.get("status", "ACTIVE")),
            membership=Membership(step.get("version", 1), step.get("size", case.get("size", 1))),
            partitions=step.get("partitions", case.get("partitions", 1)),
            lease=step.get("lease"),
        )
        yield partition, record, log_time, expected


def _history(seed: int) -> tuple[Sequence[str], list[Record]]:
    """Draw a history in which any record may stand anywhere: zombies, old versions, contradicting sizes."""
    chance = random.Random(seed)  # noqa: S311  # a repeatable history
    topics, sources = ("t", "u")[: chance.choice([1, 1, 2])], "abc"[: chance.choice([1, 2, 3])]
    most, odd, leases = chance.choice([1, 2, 2, 3]), chance.choice([0.02, 0.1, 0.3]), chance.choice([1, 2, 3])
    epochs, sizes, history, now = dict.fromkeys(sources, 1), [len(sources)], list[Record](), 0

    def rarely(usual: Any, *others: Any) -> Any:  # noqa: ANN401  # any field
        return chance.choice(others) if chance.random() < odd else usual

    for offset in range(90):
        source = chance.choice(sources)
        now += chance.choice([0, 3, 9])
        if rarely(False, chance.random() < 0.2):  # noqa: FBT003, PLR2004  # what is usual
            sizes.append(chance.randint(1, len(sources)))
        epochs[source] += rarely(0, 0, 1)
        version = rarely(len(sizes), chance.randint(1, len(sizes)))
        record = replace(
            _ANY,
            source=source,
            watermark=rarely(offset + chance.randint(0, 9), None, 0, END_OF_TIME),
            sequence=rarely(offset, chance.randint(0, offset)),
            epoch=rarely(epochs[source], chance.randint(0, epochs[source])),
            status=rarely(Status.ACTIVE, *Status),
            membership=Membership(version, rarely(sizes[version - 1], chance.randint(1, 3))),
            partitions=rarely(most, chance.randint(1, most)),
            lease=chance.choice([None, 5, 20][:leases]),
        )
        entry = rarely(record, record, source, "stranger", None)
        history.append((chance.choice(topics), chance.randrange(most), entry, offset, rarely(now, now + 1_000, 0)))
    return topics, history

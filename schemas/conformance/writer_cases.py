"""What a writer is told to do, and how the records of its answers are judged: random scripts of one source.  Pure."""

import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from floodmark.schemas.checker import Checker
from floodmark.schemas.classify import Data, Mark
from floodmark.schemas.conformance.reader_cases import Line, record_of
from floodmark.schemas.records import HEADER, KEY_PREFIX, TIME_HEADER, Status, WatermarkRecord, header_time, is_mark_key

SCRIPTS: Final = 100


@dataclass(frozen=True, slots=True)
class WriterCase:
    """What one source is told to do."""

    name: str
    steps: Sequence[Line]
    begin: Sequence[Line] = ()

    def fault(self, answers: Sequence[Line]) -> str | None:
        """Return the first wrong answer, and what was expected; ``None``: all are right."""
        judge = _Judge()
        for number, (step, answer) in enumerate(zip(self.steps, answers, strict=True), 1):
            try:
                fault = next(judge.faults(step, answer), None)
            except (AttributeError, LookupError, TypeError, ValueError) as error:
                fault = f"its answer has another form than SPEC.md says: {type(error).__name__}: {error}"
            if fault is not None:
                return f"step {number} of {len(self.steps)}: {json.dumps(step, ensure_ascii=False)}\n{fault}"
        return None


class _Judge:
    """The topic so far, and what the next marks have to say."""

    def __init__(self) -> None:
        self._checker, self._offsets = Checker(), Counter[int]()

    def faults(self, step: Line, answer: Line) -> Iterator[str]:
        key = None if step.get("key") is None else step["key"].encode()
        if is_mark_key(key):
            if "refused" not in answer:
                yield 'expected {"refused": ...}: no data record may have the key of a mark'
            return
        self._follow(step)
        data = 0
        for line in answer["records"]:
            place = {"topic": "t", "offset": self._offsets[line["partition"]], "log_time": 0}
            record = record_of(line | place)
            self._offsets[record.partition] += 1
            if record.partition not in range(self._told["partitions"]):
                yield f"a record in partition {record.partition}, which does not exist"
            if isinstance(record, Data):
                data += 1
                yield from self._data_faults(record, step, key)
            else:
                yield from self._mark_faults(record)
        expected = int(step["do"] == "send")
        if data != expected:
            yield f"expected {expected} data record(s), found {data}"
        if self._told["status"] is not None:
            for number in range(self._told["partitions"]):
                found = _said(self._marks.get(number))
                if found != self._told:
                    told = f"expected {json.dumps(self._told)}\nfound    {json.dumps(found)}"
                    yield f"the last mark of partition {number} is wrong\n{told}"

    def _follow(self, step: Line) -> None:
        """Note what the marks after a step have to say."""
        match step["do"]:
            case "start":
                self._told = {name: step[name] for name in ("source", "epoch", "version", "size", "partitions")}
                self._told |= {"watermark": None, "status": None}
                self._marks: dict[int, WatermarkRecord] = {}
                self._sequences, self._rows = Counter[int](), Counter[int]()
            case "send":
                self._told["status"] = "ACTIVE"
            case "watermark":
                self._told |= {"status": "ACTIVE", "watermark": step["time"]}
            case "members" | "grow":
                self._told |= {name: value for name, value in step.items() if name != "do"}
            case do:
                self._told["status"] = {"idle": "IDLE", "end": "ENDED"}[do]

    def _data_faults(self, record: Data, step: Line, key: bytes | None) -> Iterator[str]:
        number, headers = record.partition, dict(record.headers or ())
        active = {number for number, mark in self._marks.items() if mark.status is Status.ACTIVE}
        if missing := sorted({*range(self._told["partitions"])} - active):
            yield f"a data record before the mark of partition(s) {', '.join(map(str, missing))}"
        sent = number, record.key, record.value, header_time(record.headers, TIME_HEADER), HEADER in headers
        time = step["time"] if step["header"] else None
        expected = step["partition"], key, step["value"].encode(), time, False
        if sent != expected:
            yield f"partition, key, value, header {TIME_HEADER}, has {HEADER}\nexpected {expected}\nfound    {sent}"
        self._rows[number] += 1
        yield from map(str, self._checker.data(number, record.offset, step["time"]))

    def _mark_faults(self, record: Any) -> Iterator[str]:  # noqa: ANN401  # as the checker takes it
        yield from map(str, self._checker.mark(record))
        if isinstance(record, Mark):
            mark, number = record.record, record.partition
            numbers = mark.sequence, mark.records
            expected = self._sequences[number], None if mark.records is None else self._rows[number]
            if numbers != expected:
                yield f"sequence and records of a mark in partition {number}: expected {expected}, found {numbers}"
            self._sequences[number] += 1
            self._marks[number] = mark


def _said(mark: WatermarkRecord | None) -> Line | None:
    if mark is None:
        return None
    told = {name: getattr(mark, name) for name in ("source", "epoch", "partitions", "watermark")}
    return told | {"version": mark.membership.version, "size": mark.membership.size, "status": mark.status.value}


def writer_cases() -> Iterator[WriterCase]:
    """Return all cases."""
    for seed in range(SCRIPTS):
        yield WriterCase(f"script {seed}", list(_script(seed)))


def _script(seed: int) -> Iterator[Line]:
    """Draw what a source does: records out of order, idleness, restarts, other members, more partitions."""
    chance = random.Random(seed)  # noqa: S311  # a repeatable script
    source, least = chance.choice(["a", "Zürich ✈"]), chance.choice([0, -10_000, 1_763_712_000_000])
    partitions, version, size = chance.randint(1, 3), 1, chance.randint(1, 3)
    for epoch in range(1, 2 + chance.randint(0, 2)):
        marked = False
        numbers = {"epoch": epoch, "partitions": partitions, "version": version, "size": size}
        yield {"do": "start", "topic": "t", "source": source, **numbers}
        for _ in range(chance.randint(5, 20)):
            do = chance.choice([*["send"] * 6, *["watermark"] * 3, "idle", *["members", "grow"] * marked])
            if do == "send":
                prefix = KEY_PREFIX.decode()
                key = chance.choice([None, "key", "Schlüssel", prefix[:-1], *[f"{prefix}a"] * marked])
                time, header = least + chance.randint(0, 90), chance.random() < 1 / 4
                place = {"partition": chance.randrange(partitions), "key": key, "value": f'{{"at": {time}}}'}
                yield {"do": do, **place, "time": time, "header": header}
            elif do == "watermark":
                least += chance.choice([0, 1, 30])
                yield {"do": do, "time": least}
            elif do == "members":
                version, size = version + 1, chance.randint(1, 3)
                yield {"do": do, "version": version, "size": size}
            elif do == "grow":
                partitions += 1
                yield {"do": do, "partitions": partitions}
            else:
                yield {"do": do}
            marked = True
        if chance.random() < 1 / 2:
            yield {"do": "end"}

"""The marks and data of a topic as text, with characters escaped that could control the terminal."""

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any, Final

from confluent_kafka import OFFSET_END
from floodmark.producers.clients.admin import Config, offset_bounds
from floodmark.producers.readers.observer import Observer
from floodmark.schemas.classify import Classified, Data, Mark, Unreadable
from floodmark.schemas.completeness.position import TopicUser
from floodmark.schemas.errors import UnreadableValueError
from floodmark.schemas.errors.base import iso, printable
from floodmark.schemas.records import Status, Verdict

_WIDTH: Final = 100

Decode = Callable[[bytes], Any]  # decodes a value to show, or raises UnreadableValueError


def tail_lines(  # options of a command
    config: Config,
    topic: str,
    decode: Decode | None = None,
    *,
    offset: int | None = None,
    until_end: bool = False,
    marks_only: bool = False,
    as_json: bool = False,
    note: Callable[[str], None] = lambda _text: None,
) -> Iterator[str]:
    """Yield a line per record, from ``offset`` of each partition (negative: from its end; ``None``: new records).

    ``note`` gets the number of records if ``marks_only`` has shown no line, or where the topic ends if there was none.
    """
    bounds = offset_bounds(config, topic)
    starts = {} if offset == 0 else {place: _start(offset, *at) for place, at in bounds.items()}
    with Observer(config, [topic], offsets=starts, user=TopicUser("tail", "Start it again")) as observer:
        tracker, records, shown = observer.trackers[topic], 0, False
        try:
            while True:
                for record in observer.poll(0.2):
                    records += 1
                    moved = tracker.advance() if isinstance(record, Mark) else None
                    if not (marks_only and isinstance(record, Data)):
                        shown = True
                        yield _json(record, decode, moved) if as_json else _line(record, decode, moved)
                if until_end and all(observer.ends.get(place, -1) >= end for place, (_, end) in bounds.items()):
                    return
        finally:
            if marks_only and not shown and (records or not until_end):
                note(f"{topic}: no marks in {records:,} records")
            elif not shown and until_end:
                ends = ", ".join(f"{number} at {end}" for (_, number), (_, end) in bounds.items())
                note(f"{topic}: no records to show; its partitions end at these offsets: {ends}")


def _start(offset: int | None, begin: int, end: int) -> int:
    if offset is None:
        return OFFSET_END
    return min(max(begin, offset if offset >= 0 else end + offset), end)


def _verdict(mark: Mark) -> str | None:
    return None if mark.verdict is None else mark.verdict.value


def _value(value: bytes | None, decode: Decode | None) -> Any:  # noqa: ANN401  # whatever the schema says
    if value is None:
        return None
    if decode is not None:
        try:
            return decode(value)
        except UnreadableValueError as error:
            return f"unreadable: {error}"
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.hex()


def _line(record: Classified, decode: Decode | None, moved: int | None) -> str:
    place = f"{record.partition:>3} @ {record.offset:<8}"
    if isinstance(record, Unreadable):
        return f"{place} ! unreadable mark: {printable(record.reason)}"
    if isinstance(record, Data):
        key = "" if record.key is None else f"{_value(record.key, None)}: "
        text = printable(f"{place}   {key}{_value(record.value, decode)}"[: _WIDTH + 1])
        return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 3]}..."
    mark = record.record
    said = [printable(mark.source), iso(mark.watermark)]
    said += [] if mark.status is Status.ACTIVE else [mark.status.value]
    said += [] if record.verdict in {None, Verdict.ACCEPTED} else [f"({_verdict(record)})"]
    line = f"{place} # {' '.join(said)}  epoch {mark.epoch} sequence {mark.sequence}"
    line += "" if mark.records is None else f" records {mark.records}"
    line += f" membership {mark.membership.version}/{mark.membership.size}"
    return line if moved is None else f"{line}  ==> topic {iso(moved)}"


def _json(record: Classified, decode: Decode | None, moved: int | None) -> str:
    time = record.log_time or None
    place: dict[str, Any] = {"partition": record.partition, "offset": record.offset, "log_time": time}
    place["log_time_utc"] = None if time is None else iso(time)
    if isinstance(record, Unreadable):
        return json.dumps({**place, "kind": "unreadable", "reason": record.reason})
    if isinstance(record, Data):
        key, value = _value(record.key, None), _value(record.value, decode)
        headers = [[name, _value(content, None)] for name, content in record.headers or ()]
        return json.dumps({**place, "kind": "data", "key": key, "value": value, "headers": headers}, default=str)
    fields = asdict(record.record)
    fields["status"] = record.record.status.value
    said = {"kind": "mark", "verdict": _verdict(record), **fields, "topic_watermark": moved}
    times = {"watermark_utc": record.record.watermark, "topic_watermark_utc": moved}
    return json.dumps({**place, **said, **{name: None if time is None else iso(time) for name, time in times.items()}})

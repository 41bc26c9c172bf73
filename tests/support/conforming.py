"""A reader and a writer with Floodmark's own code, for the check of conformance; a second word gives them a fault."""

import json
import signal
import sys
from dataclasses import asdict

from floodmark.producers.strategies.basic import explicit
from floodmark.producers.strategies.emitter import Emitter
from floodmark.producers.strategies.numbering import Identity
from floodmark.schemas import Membership, Status, Tracker, partition_state
from floodmark.schemas.classify import Mark, mark_record
from floodmark.schemas.conformance.reader_cases import record_of, told
from floodmark.schemas.records import TIME_HEADER, is_mark_key

FAULT = sys.argv[2:]


def read(lines):
    for line in lines:
        if "topics" in line:
            tracker = Tracker(line["topics"])
            continue
        record = record_of(line)
        answer = told(tracker, record)
        if isinstance(record, Mark):
            answer["mark"] = asdict(record.record) | {"status": record.record.status.value}
        yield answer


def write(lines):
    for line in lines:
        key = None if line.get("key") is None else line["key"].encode()
        if is_mark_key(key):
            yield {"refused": "the key of a mark"}
        elif line["do"] == "start":
            identity = Identity(line["source"], line["epoch"], Membership(line["version"], line["size"]))
            emitter = Emitter(identity, explicit().build(), line["partitions"])
            yield {"records": []}
        else:
            yield {"records": list(written(emitter, line, key))}


def written(emitter, line, key):
    do = line["do"]
    if do == "send" and emitter.status is Status.IDLE:
        emitter.mark_active()
    match do:
        case "watermark":
            emitter.advance(line["time"])
        case "members":
            emitter.change_membership(Membership(line["version"], line["size"]))
        case "grow":
            emitter.grow(line["partitions"])
        case "idle":
            emitter.mark_idle()
        case "end":
            emitter.end()
    if do != "send" or not (emitter.registered or FAULT == ["unmarked"]):
        for partition, mark in emitter.marks(now=0):
            record = mark_record(mark)
            yield as_line(partition, record.key, record.value, {name: text.decode() for name, text in record.headers})
    if do == "send":
        emitter.send(line["partition"], line["time"]).ack()
        headers = {TIME_HEADER: str(line["time"])} if line["header"] else {}
        yield as_line(line["partition"], key, line["value"].encode(), headers)


def as_line(partition, key, value, headers):
    return {"partition": partition, "key": key and key.hex(), "value": value.hex(), "headers": headers}


if __name__ == "__main__":
    if FAULT == ["maximum"]:
        partition_state.lowest = lambda watermarks: None if None in watermarks else max(watermarks)
    for number, answer in enumerate({"read": read, "write": write}[sys.argv[1]](map(json.loads, sys.stdin))):
        if FAULT == ["dies"] and number == 7:
            sys.exit(3)
        if FAULT == ["hangs"] and number == 7:
            signal.pause()
        said = {"nonsense": "Hello", "form": '{"records": [{}]}'}.get((FAULT or [""])[0]) if number == 7 else None
        print(said or json.dumps(answer), flush=True)  # noqa: T201  # its answer

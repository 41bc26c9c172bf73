"""The cases of `conformance/cases.toml`, as records."""

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from floodmark.producers.testing import mark
from floodmark.schemas import END_OF_TIME, Status

_FILE = Path(__file__).with_name("cases.toml")
CASES: list[dict[str, Any]] = tomllib.loads(_FILE.read_text(encoding="utf-8"))["case"]


def records(case: dict[str, Any]) -> Iterator[tuple[int, Any, int, int | None]]:
    """Give each step's partition, record (of a corrupt one: its source), log time and expected output."""
    sequences = {}
    for step in case["steps"]:
        partition, source, epoch = step.get("partition", 0), step.get("source", "a"), step.get("epoch", 1)
        log_time, expected = step.get("log_time", 0), {"none": None, "end": END_OF_TIME}.get(step["out"], step["out"])
        if step.get("corrupt"):
            yield partition, source, log_time, expected
            continue
        place = (partition, source, epoch)
        sequence = step.get("sequence", sequences.get(place, 0))
        sequences[place] = sequence + 1
        record = mark(
            source,
            {"end": END_OF_TIME}.get(step.get("watermark"), step.get("watermark")),
            sequence,
            epoch=epoch,
            status=Status(step.get("status", "ACTIVE")),
            version=step.get("version", 1),
            size=step.get("size", case.get("size", 1)),
            partitions=step.get("partitions", case.get("partitions", 1)),
            lease=step.get("lease"),
        )
        yield partition, record, log_time, expected

"""The golden table of the time policy, for the pure test and for the one through Kafka and Spark."""

import tomllib
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from floodmark.producers import TimePolicy

_DAY = 1_700_006_400_000  # midnight, UTC
_RULES = {"late": timedelta(minutes=5), "out_of_order": timedelta(minutes=2)}
POLICIES = {
    "policy": TimePolicy(early=timedelta(minutes=5), **_RULES),
    "without_early": TimePolicy(early=None, **_RULES),
    "substreams": TimePolicy(early=timedelta(minutes=5), **_RULES),
}


@dataclass(frozen=True)
class Event:
    """One line of the table; times in epoch milliseconds, ``None``: dropped."""

    n: int
    time: int
    arrival: int
    device: str
    expected: int | None


def clock(text: str) -> int | None:
    """Turn ``12:07`` into epoch milliseconds of one day."""
    if text == "dropped":
        return None
    hours, minutes = map(int, text.split(":"))
    return _DAY + (hours * 60 + minutes) * 60_000


def golden(variant: str) -> list[Event]:
    """Read the table with what one variant expects."""
    table = tomllib.loads(Path(__file__).with_name("golden.toml").read_text(encoding="utf-8"))["event"]
    return [
        Event(line["n"], clock(line["time"]), clock(line["arrival"]), line["device"], clock(line[variant]))
        for line in table
    ]

"""The values of options that name a choice.  Pure, and quick to import for the help of commands."""

from collections.abc import Mapping
from typing import Final, Literal

Unit = Literal["s", "ms", "us", "ns"]

Action = Literal["adjust", "drop"]  # what a time policy does with an event that is late or out of order

CHANGEFEEDS: Final[Mapping[str, str]] = {
    "cockroachdb": "CockroachDb",
    "ticdc-canal": "TiCdcCanal",
    "ticdc-open": "TiCdcOpen",
}
"""The changefeeds, and their classes in `changefeeds`."""

"""What is chosen by name: units, what becomes of events, changefeeds.  Pure, and quick to import: a command's help."""

from typing import Literal

Unit = Literal["s", "ms", "us", "ns"]
"""What a number that is a time counts, since 1970."""

Action = Literal["adjust", "drop"]
"""What a time policy does with an event that is late or out of order."""

Changefeed = Literal["cockroachdb", "ticdc-canal", "ticdc-open"]
"""The changefeeds whose own promises are understood."""

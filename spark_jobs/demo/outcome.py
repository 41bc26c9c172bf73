"""What the demo found, to print, to draw, or to hand on as JSON."""

import json
from dataclasses import asdict, dataclass

import pandas as pd


@dataclass(slots=True)
class Guess:
    """What plain ``withWatermark`` did with one guessed delay, on the first days of the topic."""

    guess: str
    days: int
    flights: int
    dropped: int
    waves: int
    wrong: int

    @property
    def share_dropped(self) -> float:
        """Which part of the flights it dropped."""
        return self.dropped / max(1, self.flights)

    @property
    def share_wrong(self) -> float:
        """Which part of the waves it got wrong."""
        return self.wrong / max(1, self.waves)


@dataclass(slots=True)
class Outcome:
    """All that the demo found."""

    days: int
    flights: int
    cancelled: int
    lost: int
    waves: int
    windows: int
    differing_waves: int
    differing_windows: int
    late: int
    unreadable: int
    records: dict[str, int]
    rows_read: dict[str, int] | None
    crashes: int
    lag_hours: float
    guesses: list[Guess]
    seconds: float
    picture: str
    results: pd.DataFrame

    @property
    def equal(self) -> bool:
        """Whether the stream equals the batch computation, row by row, with nothing late and one scan."""
        exact = not (self.differing_waves or self.differing_windows or self.late or self.unreadable)
        scanned = self.rows_read is None or all(
            self.rows_read[topic] == self.records[topic] for topic in self.rows_read
        )
        return exact and scanned

    def to_json(self) -> str:
        """Return it as JSON, the results included."""
        results = self.results.to_dict("records")
        return json.dumps({"equal": self.equal, **asdict(self), "results": results}, default=str)

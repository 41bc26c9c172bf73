"""The demo's outcome, and a batch computation of the same data in pandas, which the stream must equal row by row.

It shares no code with the jobs, on purpose.
"""

import json
from dataclasses import asdict, dataclass
from datetime import timedelta

import pandas as pd

_KEY = ["airline", "origin"]


def waves(flights: pd.DataFrame, gap: timedelta) -> pd.DataFrame:
    """Return the waves per airline and airport, sorted, in epoch milliseconds; a pause of exactly the gap ends none."""
    milliseconds = (flights["departed"] - pd.Timestamp(0, tz="UTC")) // pd.Timedelta(milliseconds=1)
    rows = flights.assign(departed=milliseconds).sort_values([*_KEY, "departed"])
    pause = rows.groupby(_KEY)["departed"].diff()
    width = gap // timedelta(milliseconds=1)
    number = (pause.isna() | (pause > width)).cumsum()
    grouped = rows.groupby(number).agg(
        airline=("airline", "first"),
        origin=("origin", "first"),
        started=("departed", "min"),
        last=("departed", "max"),
        flights=("departed", "size"),
    )
    grouped["ended"] = grouped["last"] + width
    grouped["length"] = grouped["last"] - grouped["started"]
    columns = [*_KEY, "started", "ended", "length", "flights"]
    return grouped[columns].sort_values([*_KEY, "started"]).reset_index(drop=True)


def daily(waves: pd.DataFrame, window: timedelta) -> pd.DataFrame:
    """Return the count, flights, largest and mean length of the waves that ended in each window, sorted."""
    width = window // timedelta(milliseconds=1)
    grouped = waves.groupby(waves["ended"] // width * width)
    result = grouped.agg(
        waves=("length", "size"), flights=("flights", "sum"), largest=("flights", "max"), total=("length", "sum")
    ).reset_index(names="window_start")
    result["window_end"] = result["window_start"] + width
    result["mean_length"] = result["total"] / result["waves"]
    columns = ["window_start", "window_end", "waves", "flights", "largest", "mean_length"]
    return result[columns].sort_values("window_start").reset_index(drop=True)


def differences(streamed: pd.DataFrame, batch: pd.DataFrame) -> int:
    """Count the rows that only one of the two has, with their multiplicity."""
    columns = list(batch.columns)
    left = streamed[columns].value_counts()
    right = batch[columns].value_counts()
    return int(left.sub(right, fill_value=0).abs().sum())


@dataclass(slots=True)
class Guess:
    """The losses of plain ``withWatermark`` with a guessed delay, on the first days of the topic."""

    guess: str
    days: int
    flights: int
    dropped: int
    waves: int
    wrong: int

    @property
    def share_dropped(self) -> float:
        """The share of the flights that it dropped."""
        return self.dropped / max(1, self.flights)

    @property
    def share_wrong(self) -> float:
        """The share of the waves that it got wrong."""
        return self.wrong / max(1, self.waves)


@dataclass(slots=True)
class DaysTable:
    """What pyiceberg finds in the table of the daily results."""

    folder: str
    rows: int
    differing: int
    """Rows that only the table or only the batch computation has."""
    complete_until: str


@dataclass(slots=True)
class Outcome:
    """What the demo prints, draws, or writes as JSON."""

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
    table: DaysTable | None = None

    @property
    def equal(self) -> bool:
        """Whether the stream equals the batch computation, row by row, with nothing late and one scan."""
        differing = self.differing_waves + self.differing_windows + (0 if self.table is None else self.table.differing)
        exact = not (differing or self.late or self.unreadable)
        scanned = all(rows == self.records[topic] for topic, rows in (self.rows_read or {}).items())
        return exact and scanned

    def to_json(self) -> str:
        """Return it as JSON, the results included."""
        results = self.results.to_dict("records")
        return json.dumps({"equal": self.equal, **asdict(self), "results": results}, default=str)

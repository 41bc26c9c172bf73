from floodmark.spark_jobs.demo.flights import InTheAir, landed, load
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

"""The demo's batch computation against loops that need no pandas."""

from datetime import timedelta

import pandas as pd
from floodmark.spark_jobs.demo import outcome
from hypothesis import given, settings
from hypothesis import strategies as st

_MINUTE = 60_000
_AIRPORTS = (("UA", "EWR"), ("UA", "JFK"), ("DL", "JFK"))
flights = st.lists(st.tuples(st.sampled_from(_AIRPORTS), st.integers(0, 300)), min_size=1, max_size=30)


def frame(rows):
    times = [pd.Timestamp(minute * _MINUTE, unit="ms", tz="UTC") for _, minute in rows]
    airlines, origins = zip(*(key for key, _ in rows), strict=True)
    return pd.DataFrame({"airline": airlines, "origin": origins, "departed": times})


def naive(rows, gap):
    found = []
    for key in sorted({key for key, _ in rows}):
        runs = []
        for minute in sorted(minute for other, minute in rows if other == key):
            if runs and minute - runs[-1][-1] <= gap:
                runs[-1].append(minute)
            else:
                runs.append([minute])
        found += [(*key, run[0] * _MINUTE, (run[-1] + gap) * _MINUTE, len(run)) for run in runs]
    return found


@settings(deadline=None)
@given(flights, st.integers(1, 60))
def test_waves_are_the_runs_with_no_pause_longer_than_the_gap(rows, gap):
    found = outcome.waves(frame(rows), timedelta(minutes=gap))
    columns = found[["airline", "origin", "started", "ended", "flights"]]
    assert [tuple(row) for row in columns.itertuples(index=False)] == naive(rows, gap)


@settings(deadline=None)
@given(flights)
def test_days_account_for_every_flight(rows):
    waves = outcome.waves(frame(rows), timedelta(minutes=20))
    days = outcome.daily(waves, timedelta(minutes=30))
    assert days["flights"].sum() == len(rows)
    assert days["waves"].sum() == len(waves)
    assert (days["mean_length"] * days["waves"]).sum().round() == waves["length"].sum()
    assert days["largest"].max() == waves["flights"].max()


def test_differences_count_rows_on_either_side_and_duplicates():
    batch_ = pd.DataFrame({"a": [1, 2], "b": [1, 1]})
    assert outcome.differences(batch_.iloc[::-1], batch_) == 0
    assert outcome.differences(pd.concat([batch_, batch_.head(1)]), batch_) == 1
    assert outcome.differences(batch_.assign(b=[1, 2]), batch_) == 2

"""The demo's batch computation against loops that need no pandas."""

from datetime import timedelta

import pandas as pd
from floodmark.spark_jobs.demo import batch
from hypothesis import given, settings
from hypothesis import strategies as st

_MINUTE = 60_000
flights = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 300)), min_size=1, max_size=30)


def frame(rows):
    times = [pd.Timestamp(minute * _MINUTE, unit="ms", tz="UTC") for _, minute in rows]
    return pd.DataFrame({"aircraft": [aircraft for aircraft, _ in rows], "departed": times})


def naive(rows, gap):
    found = []
    for aircraft in sorted({aircraft for aircraft, _ in rows}):
        runs = []
        for minute in sorted(minute for name, minute in rows if name == aircraft):
            if runs and minute - runs[-1][-1] <= gap:
                runs[-1].append(minute)
            else:
                runs.append([minute])
        found += [(aircraft, run[0] * _MINUTE, (run[-1] + gap) * _MINUTE, len(run)) for run in runs]
    return found


@settings(deadline=None)
@given(flights, st.integers(1, 60))
def test_sessions_are_the_runs_with_no_pause_longer_than_the_gap(rows, gap):
    found = batch.sessions(frame(rows), timedelta(minutes=gap))
    columns = found[["aircraft", "started", "ended", "flights"]]
    assert [tuple(row) for row in columns.itertuples(index=False)] == naive(rows, gap)


@settings(deadline=None)
@given(flights)
def test_means_account_for_every_flight(rows):
    sessions = batch.sessions(frame(rows), timedelta(minutes=20))
    means = batch.means(sessions, timedelta(minutes=30))
    assert means["flights"].sum() == len(rows)
    assert means["sessions"].sum() == len(sessions)
    assert (means["mean_length"] * means["sessions"]).sum().round() == sessions["length"].sum()


def test_differences_count_rows_on_either_side_and_duplicates():
    batch_ = pd.DataFrame({"a": [1, 2], "b": [1, 1]})
    assert batch.differences(batch_.iloc[::-1], batch_) == 0
    assert batch.differences(pd.concat([batch_, batch_.head(1)]), batch_) == 1
    assert batch.differences(batch_.assign(b=[1, 2]), batch_) == 2

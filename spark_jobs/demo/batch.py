"""The same results as a batch computation over the same data, in pandas: what the stream must equal, row by row.

Written apart from the jobs on purpose: it shares no code with them.
"""

from datetime import timedelta

import pandas as pd

_KEY = ["airline", "origin"]


def waves(flights: pd.DataFrame, gap: timedelta) -> pd.DataFrame:
    """Return the departure waves of the landed flights per airline and airport, times in epoch milliseconds, sorted.

    Spark joins a departure to a wave when it is not later than its end, so a pause of exactly the gap joins.
    """
    rows = flights.assign(departed=_epoch_milliseconds(flights["departed"])).sort_values([*_KEY, "departed"])
    pause = rows.groupby(_KEY)["departed"].diff()
    width = gap // timedelta(milliseconds=1)
    number = (pause.isna() | (pause > width)).cumsum()
    found = rows.groupby(number).agg(
        airline=("airline", "first"),
        origin=("origin", "first"),
        started=("departed", "min"),
        last=("departed", "max"),
        flights=("departed", "size"),
    )
    found["ended"] = found["last"] + width
    found["length"] = found["last"] - found["started"]
    columns = [*_KEY, "started", "ended", "length", "flights"]
    return found[columns].sort_values([*_KEY, "started"]).reset_index(drop=True)


def daily(found: pd.DataFrame, window: timedelta) -> pd.DataFrame:
    """Return the count, flights, largest and mean length of the waves that ended in each window, sorted."""
    width = window // timedelta(milliseconds=1)
    grouped = found.groupby(found["ended"] // width * width)
    result = grouped.agg(
        waves=("length", "size"), flights=("flights", "sum"), largest=("flights", "max"), total=("length", "sum")
    ).reset_index(names="window_start")
    result["window_end"] = result["window_start"] + width
    result["mean_length"] = result["total"] / result["waves"]
    columns = ["window_start", "window_end", "waves", "flights", "largest", "mean_length"]
    return result[columns].sort_values("window_start").reset_index(drop=True)


def differences(streamed: pd.DataFrame, batch: pd.DataFrame) -> int:
    """Count the rows that are in one and not in the other, as often as they are."""
    columns = list(batch.columns)
    left = streamed[columns].value_counts()
    right = batch[columns].value_counts()
    return int(left.sub(right, fill_value=0).abs().sum())


def _epoch_milliseconds(times: pd.Series) -> pd.Series:
    return (times - pd.Timestamp(0, tz="UTC")) // pd.Timedelta(milliseconds=1)

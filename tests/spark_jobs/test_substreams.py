"""Windows by the watermark of each key: what the state of one key does with rows, without Spark."""

import json
from collections import UserDict
from types import SimpleNamespace

import pandas as pd
import pytest
from floodmark.schemas.errors import SubstreamError, UsageError
from floodmark.spark_jobs import substreams
from pyspark.sql.types import LongType, StructType


class Windows(UserDict):
    """Spark's map of a key."""

    containsKey = UserDict.__contains__  # noqa: N815  # Spark's own name
    getValue = UserDict.__getitem__  # noqa: N815  # the same
    updateValue = UserDict.__setitem__  # noqa: N815  # the same
    removeKey = UserDict.__delitem__  # noqa: N815  # the same


class Value:
    """Spark's value of a key."""

    stored = None

    def get(self):
        return self.stored

    def update(self, value):
        self.stored = value

    def clear(self):
        self.stored = None


def state_of_key(aggregate):
    """Give one key's state for windows of 10 ms: its processor, its stored watermark and its timers."""
    processor = substreams._Windows("key", 10, aggregate, StructType().add("n", LongType()))  # noqa: SLF001  # Spark calls it
    value, timers = Value(), set()
    processor.init(
        SimpleNamespace(getMapState=lambda *_: Windows(), getValueState=lambda *_: value, registerTimer=timers.add)
    )
    return processor, value, timers


def taking(processor):
    """Return a function that takes rows of a batch (time, watermark)."""

    def batch(*rows):
        names = ["floodmark_time", "floodmark_watermark", "floodmark_row"]
        frame = pd.DataFrame([(*row, json.dumps(row)) for row in rows], columns=names)
        found = processor.handleInputRows(("a",), iter([frame]), None)
        return [(row.window_end, row.n) for given in found for row in given.itertuples()]

    return batch


@pytest.fixture
def take():
    return taking(state_of_key(lambda rows: {"n": len(rows)})[0])


def test_a_window_is_out_once_the_key_says_that_it_is_complete(take):
    assert take((3, 3), (8, 8)) == []
    assert take((12, 12), (5, 12)) == [(10, 3)]
    assert take((25, 25)) == [(20, 1)]


def test_a_row_behind_a_window_that_is_out_is_refused_by_name(take):
    """Where the records of a key are in two partitions, each says how complete its own are."""
    take((3, 3), (12, 12))
    with pytest.raises(SubstreamError, match=r"key 'a' at .*\.004.* behind .*\.012.* one partition") as refused:
        take((4, 4))
    assert (refused.value.key, refused.value.event_time, refused.value.watermark) == ("a", 4, 12)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ({"m": 1}, r"missing \['n'\], surplus \['m'\]"),
        ({}, r"missing \['n'\], surplus \[\]"),
        ({"n": 1, "m": 1}, r"missing \[\], surplus \['m'\]"),
    ],
)
def test_results_with_other_columns_than_the_schema_are_refused(result, message):
    """Pandas fills missing columns with nulls, and leaves out surplus ones."""
    with pytest.raises(UsageError, match=message):
        taking(state_of_key(lambda _rows: result)[0])((3, 12))


def test_a_silent_key_leaves_no_state_once_all_keys_have_come_as_far():
    """A key's watermark can be far ahead of that of all keys, which then still lets later rows of the key pass."""
    processor, value, timers = state_of_key(lambda rows: {"n": len(rows)})
    taking(processor)((3, 3), (12, 12), (15, 35))
    assert value.stored == (35,)
    for all_keys, stored in [(21, (35,)), (35, None)]:  # as Spark fires the timers that are due
        due = {timer for timer in timers if timer < all_keys}
        assert due, "a timer is left that forgets the key"
        timers -= due
        for _ in due:
            at = SimpleNamespace(getCurrentWatermarkInMs=lambda all_keys=all_keys: all_keys - 1)
            assert list(processor.handleExpiredTimer(("a",), at, None)) == []
        assert value.stored == stored
    assert not timers


def test_large_whole_numbers_are_exact_although_another_window_has_none():
    large = 1_786_000_000_000_000_001
    take = taking(state_of_key(lambda rows: {"n": large if len(rows) > 1 else None})[0])
    assert take((3, 3), (12, 12), (13, 25)) == [(10, None), (20, large)]

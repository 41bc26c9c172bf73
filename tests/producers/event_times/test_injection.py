"""What an injection refuses before it begins."""

from datetime import timedelta

import pytest
from floodmark.producers.event_times.changefeeds import CockroachDb
from floodmark.producers.event_times.formats import JsonField, substream_key
from floodmark.producers.event_times.injection import Injection
from floodmark.producers.event_times.time_policy import TimePolicy
from floodmark.schemas.errors import UsageError


@pytest.mark.parametrize("slip", [0, True, "3", None, (1, 3)])
def test_a_membership_that_is_none_is_refused(slip):
    with pytest.raises(UsageError, match=r"expected a number of sources, or Membership\(version=1, size=3\)"):
        Injection("raw", "marked", JsonField("at"), membership=slip)


def test_an_interval_for_which_kafka_keeps_no_transaction_open_is_refused():
    assert Injection("raw", "marked", JsonField("at"), interval=timedelta(minutes=10)).interval
    with pytest.raises(UsageError, match=r"the interval is 0:15:00, .* expected at most 10 minutes"):
        Injection("raw", "marked", JsonField("at"), interval=timedelta(minutes=15))


@pytest.mark.parametrize("topic", ["raw", "marked"])
def test_dropped_records_return_neither_to_the_input_nor_to_the_output(topic):
    with pytest.raises(UsageError, match="use a topic of its own"):
        Injection("raw", "marked", JsonField("at"), dropped_to=topic)


@pytest.mark.parametrize(
    ("fmt", "unused", "said"),
    [
        (CockroachDb(), {"policy": TimePolicy(on_late="drop")}, "leave out the time policy"),
        (CockroachDb(), {"policy": TimePolicy(late=timedelta(seconds=9))}, "leave out the time policy"),
        (CockroachDb(), {"substream_by": substream_key}, "leave out the time policy"),
        (JsonField("at"), {"drop_late": True}, "for a time policy, use on_late"),
    ],
)
def test_what_a_format_does_not_use_is_refused(fmt, unused, said):
    with pytest.raises(UsageError, match=said):
        Injection("raw", "marked", fmt, **unused)

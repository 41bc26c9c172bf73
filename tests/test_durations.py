"""Every public parameter that is a duration refuses a bare number, which has no unit, and says what to write."""

import inspect
from contextlib import nullcontext
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from floodmark import producers, spark_jobs
from floodmark.producers import (
    Alignment,
    LogFolder,
    SourcePool,
    WatermarkedConsumer,
    WatermarkedProducer,
    adaptive,
    ascending,
    bounded_out_of_orderness,
    complete,
    percentile,
    testing,
    with_idleness,
)
from floodmark.producers.clients.clock import Clock
from floodmark.producers.event_times.formats import JsonField
from floodmark.producers.event_times.injection import Injection
from floodmark.producers.event_times.time_policy import TimePolicy
from floodmark.schemas.errors import UsageError
from floodmark.schemas.records import Membership
from floodmark.spark_jobs import (
    Start,
    WriteOptions,
    delta,
    drop_duplicates_within,
    event_time,
    iceberg,
    json,
    preview,
    read,
    windows_per_key,
)

NOWHERE = {"bootstrap.servers": "127.0.0.1:1"}
producing = partial(WatermarkedProducer, NOWHERE, topic="t", source="a", strategy=ascending())
injecting = partial(Injection, "a", "b", JsonField("at"))
POOL = SimpleNamespace(
    topic="t",
    _config=NOWHERE,
    _clock=Clock(),
    _interval=timedelta(seconds=1),
    _channel=SimpleNamespace(lock=nullcontext(), raise_failure=lambda: None, stopped=False),
    _sources={},
    _membership=SimpleNamespace(current=Membership(), grown=lambda _now, _more: Membership()),
    _open_emitters=list,
    _speaker=None,
)
joining = partial(SourcePool.join, POOL, "a", strategy=ascending())
SLIPS = {
    ("SourcePool", "interval"): lambda: SourcePool(NOWHERE, topic="t", interval=5),
    ("SourcePool.join", "lease"): lambda: joining(lease=5),
    ("SourcePool.join", "early"): lambda: joining(early=5),
    ("WatermarkedProducer", "interval"): lambda: producing(interval=5),
    ("WatermarkedProducer", "lease"): lambda: producing(lease=5),
    ("WatermarkedProducer", "early"): lambda: producing(early=5),
    ("WatermarkedProducer", "alignment"): lambda: producing(alignment=5),
    ("Alignment", "bound"): lambda: Alignment(5),
    ("Alignment", "patience"): lambda: Alignment(timedelta(0), patience=5),
    ("WatermarkedConsumer.windows", "width"): lambda: WatermarkedConsumer.windows(None, 60),
    ("complete", "early"): lambda: complete(NOWHERE, "t", 0, 1, len, early=5),
    ("iceberg", "commit_every"): lambda: iceberg("a.b.c", commit_every=5),
    ("delta", "commit_every"): lambda: delta("a", commit_every=5),
    ("bounded_out_of_orderness", "bound"): lambda: bounded_out_of_orderness(5),
    ("with_idleness", "timeout"): lambda: with_idleness(ascending(), 5),
    ("percentile", "bound"): lambda: percentile(5.0),
    ("adaptive", "least"): lambda: adaptive(least=5),
    ("adaptive", "most"): lambda: adaptive(most=5),
    ("LogFolder", "quiet"): lambda: LogFolder(Path(), len, quiet=5),
    ("TimePolicy", "early"): lambda: TimePolicy(early=5),
    ("TimePolicy", "late"): lambda: TimePolicy(late=5),
    ("TimePolicy", "out_of_order"): lambda: TimePolicy(out_of_order=5),
    ("Injection", "interval"): lambda: injecting(interval=5),
    ("Injection", "align"): lambda: injecting(align=5),
    ("ManualClock.advance", "duration"): lambda: testing.ManualClock().advance(5),
    ("WriteOptions", "watermark_hold"): lambda: WriteOptions(watermark_hold=5),
    ("WriteOptions", "lookahead"): lambda: WriteOptions(lookahead=0),
    ("Start", "early"): lambda: Start(early=5),
    ("Start", "largest_window"): lambda: Start(largest_window=5),
    ("read", "shift"): lambda: read(
        None, topics="t", value=json("at TIMESTAMP"), event_time="at", bootstrap_servers="127.0.0.1:1", shift=60
    ),
    ("event_time", "shift"): lambda: event_time(None, "at", shift=60),
    ("preview", "wait"): lambda: preview(None, wait=30),
    ("drop_duplicates_within", "within"): lambda: drop_duplicates_within(None, ["user"], 60),
    ("windows_per_key", "width"): lambda: windows_per_key(
        None, key="user", event_time="at", substream="behind", width=60, aggregate=dict, schema="n INT"
    ),
}


def parameters():
    """Yield the parameters of all public classes and functions, so that a new one cannot be forgotten."""
    shown = {name: getattr(module, name) for module in (producers, spark_jobs) for name in module.__all__}
    shown |= {"Injection": Injection, "TimePolicy": TimePolicy}
    shown |= {name: kind for name, kind in vars(testing).items() if getattr(kind, "__module__", "") == testing.__name__}
    for name, what in shown.items():
        if not callable(what):
            continue
        calls = {name: what}
        if inspect.isclass(what):
            methods = inspect.getmembers(what, inspect.isfunction)
            calls |= {f"{name}.{method}": call for method, call in methods if not method.startswith("_")}
        for label, call in calls.items():
            for parameter in inspect.signature(call).parameters.values():
                yield label, call, parameter


def durations():
    found = [(label, one.name) for label, _, one in parameters() if "timedelta" in str(one.annotation)]
    return [one for one in found if one != ("Batch", "duration")]  # jobs make batches, users only read them


def test_each_duration_has_its_slip():
    assert set(durations()) == set(SLIPS)


def test_a_number_of_seconds_is_the_timeout_of_a_call_as_in_confluent_kafka_and_spark():
    numbers = [(label, call, one) for label, call, one in parameters() if one.annotation in {float, float | None}]
    timeouts = {label: inspect.getdoc(call) for label, call, one in numbers if one.name == "timeout"}
    assert {one.name for _, _, one in numbers} == {"timeout", "share", "margin"}
    assert [label for label, text in timeouts.items() if "seconds" not in text] == []


@pytest.mark.parametrize("place", SLIPS, ids=".".join)
def test_a_bare_number_is_refused(place):
    with pytest.raises(UsageError, match=r"expected a timedelta: write timedelta\(seconds=\.\.\.\)"):
        SLIPS[place]()

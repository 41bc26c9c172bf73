"""What `read` keeps for `write`: no longer than its session, and secrets as the places where they are."""

import gc
import sys
import uuid
from types import ModuleType

import pytest
from support.counting import read_events

pytestmark = pytest.mark.spark


def texts_in_floodmark():
    """Return all strings that can be reached from Floodmark's modules, but over other modules."""
    names = [name for name in sys.modules if name.partition(".")[0] == "floodmark"]
    others = {id(vars(module)) for name, module in sys.modules.items() if name not in names}
    found, left = set[int](), [vars(sys.modules[name]) for name in names]
    texts = set[str]()
    while left:
        thing = left.pop()
        if id(thing) in found or id(thing) in others or isinstance(thing, ModuleType):
            continue
        found.add(id(thing))
        if isinstance(thing, str):
            texts.add(thing)
        left += gc.get_referents(thing)
    return texts


def test_nothing_that_was_read_outlives_its_session(spark, kafka, topic):
    name, secret = topic(1), uuid.uuid4().hex
    session = spark.newSession()
    rows = read_events(session, kafka.bootstrap_servers, name, client={"client.id": secret}).select("user")
    assert {name, secret} <= texts_in_floodmark()
    del rows, session
    spark.newSession()  # PySpark itself keeps the one made last
    gc.collect()
    assert not {name, secret} & texts_in_floodmark()


def test_a_secret_that_stands_elsewhere_is_looked_up_and_not_kept(spark, kafka, topic, monkeypatch):
    secret = uuid.uuid4().hex
    monkeypatch.setenv("FLOODMARK_TEST_SECRET", secret)
    client = {"client.id": "${env:FLOODMARK_TEST_SECRET}"}
    rows = read_events(spark, kafka.bootstrap_servers, topic(1), client=client)
    assert rows.isStreaming
    texts = texts_in_floodmark()
    assert client["client.id"] in texts
    assert secret not in texts

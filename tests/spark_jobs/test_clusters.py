"""Jobs between two Kafkas, one of which asks for a password: each side is asked with its own settings."""

from pathlib import Path

import pytest
from floodmark.producers import create_topics
from floodmark.schemas.errors import BrokerUnavailableError, UsageError
from floodmark.spark_jobs import avro, read
from support.counting import WIDTH, counted, read_events, windowed
from support.guarded import GuardedKafka, jaas, login
from support.harness import COUNT, Stream, drain, window_counts

pytestmark = pytest.mark.spark

_LIMIT = 120
PASSWORD = login("us")
SPARK_PASSWORD = {
    "kafka.security.protocol": "SASL_PLAINTEXT",
    "kafka.sasl.mechanism": "PLAIN",
    "kafka.sasl.jaas.config": f"{jaas('us')};",
}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    with GuardedKafka(tmp_path_factory.mktemp("guarded")) as broker:
        yield broker


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_from_a_guarded_cluster_to_an_open_one_and_back(spark, kafka, guarded, tmp_path, delivery):
    """The same topic name on both sides; a lost snapshot is rebuilt from the side it belongs to."""
    name, back = f"same-{delivery}", f"back-{delivery}"
    for config, topics in ((guarded.config, {name: 2, back: 1}), (kafka.config, {name: 1})):
        create_topics(config, topics)
    stream = Stream.seeded(21)
    stream.produce(guarded.config, name)

    def start():
        rows = read_events(
            spark,
            guarded.bootstrap_servers,
            name,
            client=PASSWORD,
            max_offsets_per_trigger=150,
        )
        target = {"bootstrap_servers": kafka.bootstrap_servers, "delivery": delivery, "rebuild": True}
        return counted(windowed(rows), name, str(tmp_path / "there"), job="count", **target)

    start().awaitTermination(_LIMIT)
    for snapshot in Path(tmp_path, "there", "floodmark").glob("[0-9]*.json"):
        snapshot.unlink()
    start().awaitTermination(_LIMIT)
    values, _ = drain(kafka.config, name)
    assert window_counts(values) == stream.windows(WIDTH)

    rows = read(spark, topics=name, value=avro(COUNT), event_time="ended", bootstrap_servers=kafka.bootstrap_servers)
    target = {"bootstrap_servers": guarded.bootstrap_servers, "client": PASSWORD, "delivery": delivery}
    counted(rows, back, str(tmp_path / "back"), **target).awaitTermination(_LIMIT)
    assert window_counts(drain(guarded.config, back)[0]) == stream.windows(WIDTH)


def test_within_a_guarded_cluster_the_settings_of_read_do_for_write(spark, guarded, checkpoint, monkeypatch):
    create_topics(guarded.config, {"in": 2, "out": 1})
    stream = Stream.seeded(22)
    stream.produce(guarded.config, "in")
    rows = read_events(spark, guarded.bootstrap_servers, "in", client=PASSWORD)
    with pytest.raises(UsageError, match="both input and output"):
        counted(windowed(rows), "in", checkpoint)
    counted(windowed(rows), "out", checkpoint).awaitTermination(_LIMIT)
    assert window_counts(drain(guarded.config, "out")[0]) == stream.windows(WIDTH)
    monkeypatch.setattr("floodmark.producers.clients.admin.TIMEOUT", 2.0)
    with pytest.raises(BrokerUnavailableError):
        read_events(spark, guarded.bootstrap_servers, "in", source_options=SPARK_PASSWORD)


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_settings_are_given_once_and_no_plan_shows_a_secret(spark, guarded, tmp_path, capsys, delivery):
    secret = tmp_path / "password"
    secret.write_text("open", encoding="utf-8")
    client = {**PASSWORD, "sasl.password": f"${{directory:{tmp_path}:password}}"}
    name, out = f"once-{delivery}", f"out-{delivery}"
    create_topics(guarded.config, {name: 2, out: 1})
    stream = Stream.seeded(23)
    stream.produce(guarded.config, name)
    rows = windowed(read_events(spark, guarded.bootstrap_servers, name, client=lambda: client))
    rows.explain(True)  # noqa: FBT003  # Spark's own
    plan = capsys.readouterr().out
    assert f'password="${{directory:{tmp_path}:password}}"' in plan
    assert '"open"' not in plan
    counted(rows, out, str(tmp_path / "checkpoint"), delivery=delivery).awaitTermination(_LIMIT)
    assert window_counts(drain(guarded.config, out)[0]) == stream.windows(WIDTH)


def test_a_place_without_a_secret_is_named(spark, kafka, tmp_path, monkeypatch):
    monkeypatch.delenv("FLOODMARK_NOTHING", raising=False)
    (tmp_path / "a.properties").write_text("# none\nname = value\n", encoding="utf-8")
    for place in ("env:FLOODMARK_NOTHING", f"directory:{tmp_path}:nothing", f"file:{tmp_path}/a.properties:nothing"):
        with pytest.raises(UsageError, match=r"'sasl\.password': nothing is found at"):
            read_events(spark, kafka.bootstrap_servers, "t", client={"sasl.password": f"${{{place}}}"})

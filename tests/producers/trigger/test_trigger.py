"""``floodmark trigger`` on a real Kafka, with real targets."""

import http.client
import http.server
import io
import json
import os
import shutil
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from datetime import timedelta
from urllib.parse import parse_qs, urlsplit

import pyarrow as pa
import pytest
from benchmarks.trigger_kills import kill
from confluent_kafka import Producer
from deltalake import CommitProperties, write_deltalake
from floodmark.producers import WatermarkedProducer, create_topics, explicit
from floodmark.producers.cli.firing import target_of
from floodmark.producers.cli.main import app
from floodmark.producers.clients.admin import existing_topics
from floodmark.producers.embedded.broker import free_port
from floodmark.producers.tables.table_mark import TableMark
from floodmark.producers.trigger.http_targets import AirflowAsset, DagsterAsset, Endpoint, HttpHook
from floodmark.producers.trigger.local_targets import CommandTarget
from floodmark.producers.trigger.plan.periods import Pattern, duration
from floodmark.producers.trigger.plan.schedule import Rules
from floodmark.producers.trigger.plan.trigger_event import TriggerEvent
from floodmark.producers.trigger.position_topic import PositionTopic, create_position_topic, read_position
from floodmark.producers.trigger.table_input import TableInput
from floodmark.producers.trigger.target import Delivery, RefusedError
from floodmark.producers.trigger.topic_input import TopicInput
from floodmark.producers.trigger.trigger_loop import TriggerLoop
from floodmark.schemas.errors import CorruptSnapshotError, FencedError, UsageError
from floodmark.schemas.records import TIME_HEADER, Holder
from floodmark.schemas.timestamps import END_OF_TIME
from support.harness import delete_before, until
from support.injection import open_transaction
from support.permissions import obey_permissions
from typer.testing import CliRunner

HOUR = 3_600_000
COMMAND = [sys.executable, "-m", "floodmark.producers.cli.main", "trigger"]
EVENT = TriggerEvent("daily", ("flights",), "complete", 0, HOUR, HOUR)


class Hook(http.server.ThreadingHTTPServer):
    """A server that keeps the requests, and answers the first ones with errors."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests, self.answers, self.body = [], [], b""
        threading.Thread(target=self.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server_port}/hook"


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append((self.headers, body))
        self.send_response(self.server.answers.pop(0) if self.server.answers else 204)
        self.send_header("Location", "/elsewhere")
        self.end_headers()
        self.wfile.write(self.server.body)

    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"assets": [{"name": "clicks", "uri": "clicks", "id": 3}]}')

    def log_message(self, *_):
        pass


@pytest.fixture
def hook():
    """Give a server."""
    with Hook() as server:
        yield server
        server.shutdown()


class Source:
    """One source of a topic whose watermark a test advances."""

    def __init__(self, kafka, topic, name="web", size=1, epoch=None):
        more = {} if epoch is None else {"epoch": epoch}
        self.producer = WatermarkedProducer(
            kafka.config,
            topic=topic,
            source=name,
            strategy=explicit(),
            membership=size,
            interval=timedelta(hours=1),
            background=False,
            **more,
        )

    def write(self, *times):
        """Write a JSON row for each event time."""
        for time in times:
            self.producer.produce(json.dumps({"at": time}), event_time=time)

    def reach(self, watermark):
        """Advance the watermark, and wait until Kafka has it."""
        self.producer.advance(watermark)
        self.producer.flush(30)


def floodmark(kafka, *arguments, **environment):
    return subprocess.run(
        [*COMMAND, *map(str, arguments), "--bootstrap-servers", kafka.bootstrap_servers],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
        env={**os.environ, **environment},
    )


def events_of(done):
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.kafka
def test_an_input_that_can_fire_nothing_is_told(kafka, topic):
    unmarked, positions = topic(1), "positions-of-nothing"
    plain = Producer(kafka.config)
    plain.produce(unmarked, b"{}")
    plain.flush()
    options = ["--every", "1h", "--run", "true", "--position-topic", positions]
    wrong = floodmark(kafka, "not-there", *options)
    assert (wrong.returncode, "does not exist" in wrong.stderr) == (2, True)
    assert positions not in existing_topics(kafka.config)
    Source(kafka, unreadable := topic(1)).write(HOUR, 2 * HOUR)
    typo = floodmark(kafka, unreadable, *options, "--json-field", "att", "--until-end")
    assert (typo.returncode, "none of its 2 data record(s) has a readable event time" in typo.stderr) == (2, True)
    for more in ("--dry-run", "--until-end"):
        assert "no watermark record" in floodmark(kafka, unmarked, *options, more).stderr


@pytest.mark.kafka
def test_each_complete_period_is_fired_once_at_each_target(kafka, topic, tmp_path, hook):
    flights, orders = topic(2), topic(1)
    first, second = Source(kafka, flights), Source(kafka, orders)
    for source in (first, second):
        source.write(10, HOUR + 5, 2 * HOUR + 7)
        source.reach(3 * HOUR + 1)
    run = [flights, "--every", "1h", "--json", "--until-end"]
    http = [*run, "--http", hook.url, "--name", "hook", "--from", "earliest", "--json-field", "at"]
    shown = floodmark(kafka, *http, "--dry-run", "--position-topic", "not-there")
    assert [event["start_ms"] for event in events_of(shown)] == [0, HOUR, 2 * HOUR]
    assert hook.requests == []

    shown = floodmark(kafka, *http, FLOODMARK_TRIGGER_TOKEN="${env:HUSH}", HUSH="hunter2")  # noqa: S106  # where it is
    assert "first period begins at 1970-01-01T00:00:00Z.\n" in shown.stderr, "no hint to what was given"
    assert "hunter2" not in shown.stderr
    fired = events_of(shown)
    assert [body for _, body in hook.requests] == fired
    assert [headers["Idempotency-Key"] for headers, _ in hook.requests] == [event["key"] for event in fired]
    assert {headers["Authorization"] for headers, _ in hook.requests} == {"Bearer hunter2"}
    assert [(event["start"], event["complete"], event["watermark_ms"]) for event in fired] == [
        (f"1970-01-01T0{hour}:00:00Z", True, 3 * HOUR + 1) for hour in range(3)
    ]
    assert events_of(floodmark(kafka, *http)) == [], "its position is stored"

    # Two topics are complete when both are, and a command gets the event in its variables.
    both = [flights, orders, *run[1:], "--from", "1970-01-01T00:00Z"]
    command = [*both, "--run", f"echo $FLOODMARK_KEY $FLOODMARK_TOPICS $FLOODMARK_COMPLETE >> {tmp_path}/ran"]
    first.reach(5 * HOUR)
    assert [event["start_ms"] for event in events_of(floodmark(kafka, *http))] == [3 * HOUR, 4 * HOUR]
    assert len(events_of(floodmark(kafka, *command))) == 3
    name = "+".join(sorted([flights, orders]))
    ran = [f"{name}/1970-01-01T0{hour}:00:00Z/complete {','.join(sorted([flights, orders]))} true" for hour in range(3)]
    assert tmp_path.joinpath("ran").read_text().splitlines() == ran

    # The end of a topic completes the period of its last row.
    first.write(5 * HOUR + 30)
    first.producer.end()
    folder = f"{tmp_path}/out/{{start:%Y-%m-%d}}/hour={{start:%H}}"
    done = floodmark(
        kafka, *run, "--success", folder, "--name", "files", "--from", "1970-01-01T04:00Z", "--json-field", "at"
    )
    assert [event["start_ms"] for event in events_of(done)] == [4 * HOUR, 5 * HOUR]
    assert "The topics have ended" not in done.stderr
    written = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("out/*/*/*"))
    assert written == ["out/1970-01-01/hour=04/_SUCCESS", "out/1970-01-01/hour=05/_SUCCESS"]
    assert json.loads(tmp_path.joinpath(written[0]).read_text())["end_ms"] == 5 * HOUR
    done = floodmark(kafka, *run, "--run", "true", "--name", "past")
    assert events_of(done) == []
    assert "its input has ended: nothing will fire" in done.stderr
    done = floodmark(kafka, *run, "--run", "true", "--name", "past", "--from", "earliest")
    assert len(events_of(done)) == 3, "the rows before the first mark, at 3 h, are not read; no position was stored"
    assert (
        "begins at 1970-01-01T03:00:00Z. It is by the first watermark. To begin with the earliest row, add"
        in done.stderr
    )
    assert "last rows are not read: no period from 1970-01-01T06:00:00Z on fires" in done.stderr

    # A new run after the end of all: a new trigger reads both, one that has ended refuses it.
    again = Source(kafka, flights, "JFK", 1)
    again.write(7 * HOUR + 30)
    again.producer.end()
    done = floodmark(kafka, *run, "--run", "true", "--name", "files")
    assert (done.returncode, "1 record(s) that will not be read: " + flights in done.stderr) == (2, True)
    done = floodmark(kafka, *run, "--run", "true", "--name", "new", "--from", "1970-01-01T05:00Z", "--json-field", "at")
    assert [event["start_ms"] for event in events_of(done)] == [5 * HOUR, 6 * HOUR, 7 * HOUR]


@pytest.mark.kafka
def test_a_first_period_that_is_too_late_is_told_and_another_begin_does_not_move_it(kafka, topic):
    Source(kafka, flights := topic(1)).reach(3 * HOUR)
    run = [flights, "--every", "1h", "--run", "true", "--until-end", "--from"]
    told = floodmark(kafka, *run, "1971-01-01T00:30Z").stderr
    assert "begins at 1971-01-01T00:00:00Z, later than the watermark (1970-01-01T03:00:00Z). It does not fire" in told
    assert "nothing fired; no complete period yet from 1971-01-01T00:00:00Z on; watermark 1970" in told
    told = floodmark(kafka, *run, "1970-01-01T00:00Z").stderr
    assert "continues: its next complete period begins at 1971-01-01T00:00:00Z. --from is not used" in told
    other = floodmark(kafka, topic(1), *run[1:], "now", "--name", flights)
    assert (other.returncode, "choose another --name for another trigger" in other.stderr) == (2, True), other.stderr


@pytest.mark.kafka
def test_a_new_trigger_says_that_it_waits_for_the_first_watermark(kafka, topic):
    Source(kafka, flights := topic(1), size=2).reach(3 * HOUR)
    run = [flights, "--every", "1h", "--run", "true", "--until-end"]
    limited = [*run, "--deadline", "1s"]
    waits, held = "waits for the first watermark", f"Held by {flights}/0: 1 of 2 sources of membership 1"
    told = floodmark(kafka, *limited).stderr
    assert (told.count(waits), told.count(held), "no deadline counts until then" in told) == (1, 1, True), told
    assert f"{waits} to know its first period. To begin" in floodmark(kafka, *run, "--name", "unlimited").stderr
    assert waits not in floodmark(kafka, *limited, "--from", "1970-01-01T00:00Z").stderr


@pytest.mark.kafka
def test_a_new_trigger_says_that_its_first_periods_may_lack_rows_that_kafka_has_deleted(kafka, topic):
    web = Source(kafka, flights := topic(1))
    web.write(5, HOUR + 5)
    web.reach(2 * HOUR)
    run = [flights, "--every", "1h", "--run", "true", "--until-end", "--from", "1970-01-01T00:00Z", "--name"]
    lacks = f"may lack rows, since Kafka has deleted {flights}/0 before offset 2"
    assert lacks not in floodmark(kafka, *run, f"{flights}-whole").stderr
    delete_before(kafka.config, flights, 2, partitions=1)
    for number in range(2):
        assert floodmark(kafka, *run, f"{flights}-cut").stderr.count(lacks) == (number == 0)


@pytest.mark.kafka
def test_a_deadline_names_who_is_missing_and_late_rows_fire_a_repair(kafka, topic, tmp_path):
    flights = topic(1)
    here, missing = Source(kafka, flights, "JFK", 2), Source(kafka, flights, "EWR", 2)
    lines, port = tmp_path / "fired", free_port()
    begin = 1_000_000 * 1_000  # long ago: each deadline after the first start counts
    here.reach(begin)
    missing.reach(begin)
    with lines.open("w") as output:
        options = ["--every", "1s", "--from", "now", "--json", "--json-field", "at", "--repair-after", "1ms"]
        run = ["--run", "true", "--deadline", "1s", "--bootstrap-servers", kafka.bootstrap_servers]
        run += ["--metrics-port", str(port)]
        process = subprocess.Popen([*COMMAND, flights, *options, *run], stdout=output)

    def fired():
        return [json.loads(line) for line in lines.read_text().splitlines()]

    def metric(name):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            (line,) = (one for one in answer.read().decode().splitlines() if one.startswith(f"floodmark_{name}{{"))
        return float(line.rpartition(" ")[2])

    try:
        until(lambda: any(event["kind"] == "incomplete" for event in fired()), "an incomplete period")
        (place, *_) = fired()[0]["missing"]
        assert not fired()[0]["complete"]
        assert (place["topic"], place["partition"], place["source"]) == (flights, 0, "EWR")
        here.reach(begin + 3_000)
        missing.reach(begin + 2_000)
        until(lambda: Counter(event["kind"] for event in fired())["complete"] == 2, "two complete periods")
        here.write(begin + 1_500, begin + 1_501)
        here.producer.flush(30)
        until(lambda: sum(event["late_rows"] for event in fired()) == 2, "the repair of the late rows")
        until(lambda: metric("late_events_total") == 2, "the metrics of the late rows")
        assert metric("watermark_timestamp_seconds") == begin / 1_000 + 2
        assert (metric("local_lag_seconds"), metric("failed_records")) == (0, 0)
        until(lambda: metric("records_total") == len(fired()), "the metric of the events")
    finally:
        process.terminate()
        assert process.wait(30) == 0
    repairs = [event for event in fired() if event["kind"] == "repair"]
    assert {event["start_ms"] for event in repairs} == {begin + 1_000}
    assert [event["repair"] for event in repairs] == list(range(1, len(repairs) + 1))


@pytest.mark.kafka
def test_a_failing_target_stops_the_trigger_and_the_position_does_not_move(kafka, topic, hook):
    flights = topic(1)
    source = Source(kafka, flights)
    source.write(10)
    source.reach(2 * HOUR)
    run = [flights, "--every", "1h", "--json", "--until-end", "--http", hook.url, "--from", "1970-01-01T00:00Z"]
    hook.answers = [500] * 9
    done = floodmark(kafka, *run, "--retry-for", "1s")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"did not take {flights}/1970-01-01T00:00:00Z/complete: HTTP 500" in done.stderr
    assert "the position has not moved" in done.stderr
    assert len(done.stderr.splitlines()) <= 5, "the same failure is logged once a minute"
    hook.answers = [302]  # a redirect would lose the event
    assert len(events_of(floodmark(kafka, *run))) == 2
    keys = [headers["Idempotency-Key"] for headers, _ in hook.requests]
    assert len(set(keys[:-1])) == 1
    assert keys[-1].endswith("/1970-01-01T01:00:00Z/complete")


@pytest.mark.kafka
def test_a_trigger_that_is_killed_misses_no_period_and_fires_the_last_event_again_with_its_key(kafka, topic, tmp_path):
    assert kill(kafka.config, topic(1), tmp_path, kills=3) == ""


@pytest.mark.kafka
def test_a_second_process_with_the_name_fences_the_first(kafka, topic):
    flights = topic(1)
    source = Source(kafka, flights)
    source.reach(HOUR)
    positions = f"positions-of-{flights}"
    assert create_position_topic(kafka.config, positions)
    fired = []

    class Target:
        about = "list"

        def fire(self, event):
            fired.append(event.start)
            return "taken"

    def loop():
        position = PositionTopic(kafka.config, positions, "hourly")
        stored = None if position.state is None else position.state["input"]
        read = TopicInput(kafka.config, [flights], None, stored)
        rules = Rules("hourly", (flights,), HOUR)
        return TriggerLoop(rules, read, Delivery(Target(), 1, lambda *_: None), position, begin=0)

    old = loop()
    old.run(stop=lambda: False, until_end=True)
    hourly = ["--name", "hourly", "--position-topic", positions, "--run", "true"]
    for wrong in ([topic(1), "--every", "1h"], [flights, "--every", "2h"]):
        assert "its position was stored for" in floodmark(kafka, *wrong, *hourly).stderr
    old.run(stop=lambda: False, until_end=True)  # a refused start does not stop it
    new = loop()
    source.reach(3 * HOUR)
    with pytest.raises(FencedError):
        old.run(stop=lambda: False, until_end=True)
    assert fired == [0], "an event that cannot be stored is not fired"
    new.run(stop=lambda: False, until_end=True)
    assert fired == [0, HOUR, 2 * HOUR]
    for one in (old, new):
        one.source.close()
    with pytest.raises(UsageError, match="is not compacted"):
        create_position_topic(kafka.config, flights)
    deleting = f"{flights}-both"
    create_topics(kafka.config, {deleting: 1}, {"cleanup.policy": "compact,delete"})
    with pytest.raises(UsageError, match="is not compacted alone"):
        create_position_topic(kafka.config, deleting)


@pytest.mark.kafka
def test_a_restart_reads_what_another_writer_s_open_transaction_hides(kafka, topic):
    positions = f"positions-of-{topic(1)}"
    create_position_topic(kafka.config, positions)
    first = PositionTopic(kafka.config, positions, "hourly")
    first.store({"input": 1})
    other = open_transaction(kafka, positions)
    first.store({"input": 2})
    threading.Timer(1, other.abort).start()
    assert PositionTopic(kafka.config, positions, "hourly").state["input"] == 2


@pytest.mark.kafka
def test_a_damaged_record_counts_only_if_it_is_the_last_one(kafka, topic):
    create_position_topic(kafka.config, positions := f"positions-of-{topic(1)}")
    position, plain = PositionTopic(kafka.config, positions, "hourly"), Producer(kafka.config)
    for batch in range(2):
        plain.produce(positions, b"{", key=b"hourly")
        plain.flush()
        with pytest.raises(CorruptSnapshotError, match="of trigger 'hourly'"):
            read_position(kafka.config, positions, "hourly")
        position.store({"input": batch})
        assert read_position(kafka.config, positions, "hourly")["input"] == batch


@pytest.mark.kafka
def test_rows_whose_unit_is_longer_are_told_and_refused(kafka, topic):
    Source(kafka, orders := topic(1)).write(1_763_712_000_000)
    run = [orders, "--every", "1h", "--run", "true", "--until-end", "--json-field", "at", "--unit"]
    done = floodmark(kafka, *run, "ns")
    said = (
        "read as JSON with a time in 'at' (ns), its event time is 1970-01-01T00:29:23.712+00:00: pass a longer --unit"
    )
    assert (done.returncode, said in done.stderr) == (2, True)
    assert floodmark(kafka, *run, "ms").returncode == 0


@pytest.mark.kafka
def test_rows_that_an_injector_adjusted_do_not_confirm_a_unit(kafka, topic):
    times = Source(kafka, orders := topic(1))
    times.write(1_763_712_000_000)
    plain, time = Producer(kafka.config), (TIME_HEADER, b"1763712000001")
    plain.produce(orders, b'{"at": 1763711000000}', headers=[time])
    plain.flush()
    times.write(1_763_712_000_002)
    times.reach(1_763_712_000_002)
    run = [orders, "--every", "1h", "--run", "true", "--until-end", "--from", "earliest", "--json-field", "at"]
    done = floodmark(kafka, *run, "--unit", "ns")
    assert (done.returncode, "pass a longer --unit" in done.stderr, done.stdout) == (2, True, "")
    assert floodmark(kafka, *run, "--unit", "ms").returncode == 0


@pytest.mark.kafka
def test_a_row_with_its_time_in_a_header_confirms_the_format_and_rows_without_one_are_counted(kafka, topic):
    web = Source(kafka, orders := topic(1))
    web.producer.produce(b"{}", event_time=5, headers=[("floodmark-time", b"5")])
    for _ in range(2):
        web.producer.produce(b"{}", event_time=5)
    web.reach(HOUR)
    done = floodmark(kafka, orders, "--every", "1h", "--run", "true", "--until-end", "--json-field", "at")
    assert (done.returncode, done.stderr.count("no event time")) == (0, 1), done.stderr
    assert "; 2 row(s) without a readable event time\n" in done.stderr, done.stderr


def test_a_target_refuses_what_it_cannot_reach():
    for host in ("127.0.0.1", "[::1]", "ä.invalid"):
        with pytest.raises(RefusedError):
            HttpHook(Endpoint(f"http://{host}:1/a?b", None)).fire(EVENT)
    with pytest.raises(RefusedError, match="exit status 3"):
        CommandTarget("exit 3").fire(EVENT)


def test_an_error_with_a_cut_body_is_refused_as_others_and_a_token_that_no_header_can_have_at_once(monkeypatch):
    class Cut(io.RawIOBase):
        def read(self, *_):
            raise http.client.IncompleteRead(b"")

    def cut(*_, **__):
        raise urllib.error.HTTPError("http://h", 502, "Bad Gateway", {}, Cut())

    endpoint = Endpoint("http://127.0.0.1:1", None)
    monkeypatch.setattr(endpoint._opener, "open", cut)  # noqa: SLF001  # a proxy that closes
    with pytest.raises(RefusedError, match="HTTP 502 Bad Gateway"):
        HttpHook(endpoint).fire(EVENT)
    for token in ("a\nb", "\ufefftoken", "5€"):
        with pytest.raises(UsageError, match="no HTTP header"):
            Endpoint("http://127.0.0.1:1", token)


def test_an_asset_is_found_among_many_with_longer_names(monkeypatch):
    longer = [{"name": f"clicks-{n}", "uri": "", "id": n} for n in range(100)]
    pages = [longer, [{"name": "clicks", "uri": "", "id": 7}]]
    target = AirflowAsset(Endpoint("http://127.0.0.1:1", None), "clicks", Pattern("{start}", "--partition", HOUR))

    def ask(path, *_):
        return {"assets": pages[int(parse_qs(urlsplit(path).query)["offset"][0]) // 100]}

    monkeypatch.setattr(target._endpoint, "ask_json", ask)  # noqa: SLF001  # Airflow's answers
    assert target._asset_id() == 7  # noqa: SLF001


@pytest.mark.parametrize("assets", [None, 3, ["x"], {"x": 1}, [{"id": 3}], [{"name": "a"}], [{"name": "a", "id": "b"}]])
def test_assets_that_are_none_are_refused_as_other_answers(monkeypatch, assets):
    target = AirflowAsset(Endpoint("http://127.0.0.1:1", None), "clicks", Pattern("{start}", "--partition", HOUR))
    monkeypatch.setattr(target._endpoint, "ask_json", lambda *_: {"assets": assets})  # noqa: SLF001  # Airflow's answer
    with pytest.raises(RefusedError, match="no assets with 'name' and 'id'"):
        target.fire(EVENT)


@pytest.mark.parametrize(
    ("body", "airflow", "dagster"),
    [
        (b"<html>login</html>", "no JSON object, .*login", "no JSON object, .*login"),
        (b"[]", "no JSON object", "no JSON object"),
        (b"{}", "no 'id'", None),
        (b'{"id": 7}', None, None),
    ],
)
def test_an_answer_of_another_program_does_not_count_as_accepted(hook, body, airflow, dagster):
    hook.body, hook.answers = body, [200, 200]
    for kind, reason in ((AirflowAsset, airflow), (DagsterAsset, dagster)):
        target = kind(Endpoint(hook.url, None), "clicks", Pattern("{start:%Y-%m-%d}", "--partition", 24 * HOUR))
        with nullcontext() if reason is None else pytest.raises(RefusedError, match=reason):
            target.fire(EVENT)


@pytest.mark.parametrize(
    ("places", "asset", "partition", "said"),
    [
        ({"--http": None, "--run": None}, None, None, "use one of --http, --run"),
        ({"--http": "http://h", "--run": "true"}, None, None, "use one of"),
        ({"--airflow": "http://h"}, None, None, "need --asset"),
        ({"--run": "true"}, "flights", None, "only for them"),
        ({"--dagster": "ftp://h"}, "flights", None, "expected http"),
        ({"--run": " "}, None, None, "--run is empty"),
        ({"--success": "s3://bucket/dt={start:%Y-%m-%dT%H}"}, None, None, "not a URL"),
        ({"--success": "out"}, None, None, "the same name"),
        ({"--success": "out/{start:%Y}/{day}"}, None, None, "expected only fields"),
        ({"--success": "out/{start[0]}"}, None, None, "expected only fields"),
        ({"--dagster": "http://h"}, "a", "{start:%H}", "the same name"),
        ({"--success": "out/%%s/{start:%Y-%m-%dT%H%%s}-{end:%-s}"}, None, None, "the time zone of this machine for %s"),
        *(
            ({"--http": url}, None, None, r"^(?!.*hunter2).*(pass --token instead|no URL of a server)")
            for url in ("http://me:hunter2@h/x", "htps://me:hunter2@h", "me:hunter2@h/x", "http://me:hunter2@h:x")
        ),
        ({"--http": "http://h:99999"}, None, None, "no URL of a server: Port out of range"),
        ({"--http": "http://[h"}, None, None, "no URL of a server: Invalid"),
        ({"--http": f"http://{'h' * 64}"}, None, None, "no URL of a server: .*label"),
        ({"--http": "http://h/ä"}, None, None, "no URL of a server: write its path and query in ASCII"),
        ({"--http": "http://h/?a=ä"}, None, None, "no URL of a server: write its path and query in ASCII"),
    ],
)
def test_options_that_name_no_target_are_refused(places, asset, partition, said):
    with pytest.raises(UsageError, match=said):
        target_of(places, asset, partition, None, HOUR)


@pytest.mark.parametrize(
    ("every", "text", "unique"),
    [
        ("1h", "{start:%Y-%m-%dT%H}", True),
        ("1h", "%s{start:%Y-%m-%dT%H%%s}", True),
        ("1h", "{start:%Y-%m-%d-%I}", False),
        ("1h", "{start:%Y-%m-%d-%I%p}", True),
        ("1h", "{start:%Y-%d-%H}", False),
        ("1h", "{start.year}-{start.month}{start.day}{start.hour}", False),
        ("7h", "{start:%Y-%m-%dT%H}", True),
        ("7h", "{start:%A-%H}", False),
        ("15min", "{start:%Y-%m-%d}/{start:%M}", False),
        ("90s", "{start:%Y-%m-%dT%H}-{start:%S}", False),
        ("61s", "{end:%Y-%m-%dT%H:%M}", True),
        ("1d", "{start:%Y/%j}", True),
        ("1d", "{start:%m-%d}", False),
        ("1d", "{start:%m-%d-%a}", False),
        ("1d", "{start:%y-%m-%d}", False),
        ("1d", "{start:%G-%V-%u}", True),
        ("1d", "{start:%Y-%V-%u}", False),
        ("1d", "{start:%G-%m-%d}", False),
        ("6d", "{start:%G-%V}", False),
        ("7d", "{start:%G-%V}", True),
        ("7d", "{start:%Y-%d}", False),
        ("31d", "{start:%Y-%m}", True),
        ("30d", "{start:%Y-%m}", False),
    ],
)
def test_a_pattern_gives_each_period_a_name_of_its_own_or_is_refused(every, text, unique):
    with nullcontext() if unique else pytest.raises(UsageError, match="gives two periods the same name"):
        Pattern(text, "--success", duration(every, "--every"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--table", "a", "--column", "c", "--json-field", "at"], "late rows of tables are not seen"),
        (["orders", "--repair-after", "5min"], "--repair-after needs --json-field"),
        (["orders", "--schema", "file"], "to read event times, pass --event-time with --schema"),
        (["orders", "--every", "36501d"], "--every is '36501d', expected a duration"),
        (["orders", "--from", "0001-01-01T00:00+14:00"], "expected 'now', 'earliest', or a time"),
    ],
)
def test_options_that_are_not_used_or_wrong_are_refused(arguments, said):
    more = ["--every", "1h", "--run", "true", "--bootstrap-servers", "127.0.0.1:1"]
    with pytest.raises(UsageError, match=said):
        CliRunner().invoke(app, ["trigger", *more, *arguments], catch_exceptions=False)


def commit(place, batch, watermark, *times):
    said = TableMark(job="daily", epoch=1, batch=batch, watermark=watermark, holder=Holder("clicks", 0, "web"))
    properties = CommitProperties(custom_metadata={"userMetadata": said.as_json()})
    rows = pa.table({"at": pa.array(times, pa.timestamp("ms", "UTC"))})
    write_deltalake(place, rows, mode="append", commit_properties=properties)


def test_the_lowest_of_tables_holds_them_and_of_a_period_all_that_have_not_reached_its_end(tmp_path):
    """Also before 1970."""
    places = [tmp_path / name for name in ("a", "b", "c")]
    for place, watermark in zip(places, (-3, -2, 5), strict=True):
        commit(place, 0, watermark, -9)
    with TableInput(list(map(str, places)), "at", None) as source:
        source.poll(0, print)
        assert [hold.watermark for hold in source.holders()] == [-3]
        assert [hold.watermark for hold in source.holders(5)] == [-3, -2]


def test_a_table_that_is_deleted_is_looked_at_until_it_is_created_again(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("floodmark.producers.trigger.table_input._PAUSE", 0)
    place = tmp_path / "table"
    for batch in range(3):
        commit(place, batch, (batch + 1) * HOUR, batch * HOUR)
    with TableInput([str(place)], "at", None) as source:
        source.poll(0, print)
        shutil.rmtree(place)
        source.poll(0, print)
        assert (source.watermark, "cannot be opened: TableNotFoundError" in caplog.text) == (3 * HOUR, True)
        commit(place, 0, HOUR, 5)
        for _ in range(2):
            source.poll(0, print)
        assert source.watermark == HOUR
        again = "use another --name with --from 1970-01-01T01:00:00Z"
        assert caplog.text.count(again) == 1
    with TableInput([str(place)], "at", source.state()) as restarted:
        for _ in range(2):
            restarted.poll(0, print)
        assert caplog.text.count(again) == 2, "a restart tells it once, too"


def test_a_table_without_a_watermark_tells_why_and_a_damaged_commit_once(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("floodmark.producers.trigger.table_input._PAUSE", 0)
    place, rows = tmp_path / "table", pa.table({"at": pa.array([5], pa.timestamp("ms", "UTC"))})
    damaged = CommitProperties(custom_metadata={"userMetadata": '{"floodmark.job": 3}'})
    write_deltalake(place, rows, commit_properties=damaged)
    with TableInput([str(place)], "at", None) as source:
        for _ in range(2):
            source.poll(0, print)
        (hold,) = source.holders()
        assert "property floodmark.job of a commit is 3, expected the name of a job" in hold.reason
        assert hold.reason.endswith(". Upgrade Floodmark, or write a new table")
        assert caplog.text.count("commit 0 is ignored") == 1
        commit(place, 1, None)
        source.poll(0, print)
        assert [one.reason for one in source.holders()] == ["its job has not committed a watermark"]


@pytest.mark.kafka
def test_no_period_is_missed_while_a_file_of_a_table_or_a_right_is_missing(kafka, topic, tmp_path, monkeypatch, caplog):
    place, out, name = tmp_path / "table", tmp_path / "out", topic(1)
    run = ["--table", place, "--column", "at", "--name", name, "--every", "1h", "--json", "--until-end"]
    run += ["--success", f"{out}/{{start:%Y-%m-%d}}-{{start:%H}}", "--retry-for", "1ms"]
    commit(place, 0, HOUR + 10, 5, HOUR + 20)
    out.mkdir(mode=0o555)
    with ThreadPoolExecutor(1, initializer=obey_permissions) as user:
        refused = user.submit(floodmark, kafka, *run, "--from", "1970-01-01T00:00Z").result()
    assert (refused.returncode, refused.stdout) == (2, "")
    assert f"did not take {name}/1970-01-01T00:00:00Z/complete: [Errno 13] Permission denied" in refused.stderr
    assert "Traceback" not in refused.stderr
    out.chmod(0o755)
    assert [event["start_ms"] for event in events_of(floodmark(kafka, *run))] == [0]

    monkeypatch.setattr("floodmark.producers.trigger.table_input._PAUSE", 0)
    with TableInput([str(place)], "at", None) as source:
        source.poll(0, print)
        commit(place, 1, END_OF_TIME, 3 * HOUR + 5)
        moved = [path.rename(tmp_path / path.name) for path in place.glob("*.parquet")]
        source.poll(0, print)
        assert (source.watermark, source.ended) == (HOUR + 10, False), "the end waits for the rows"
        assert "Check that it exists, and your rights" in caplog.text
        refused = floodmark(kafka, *run)
        assert (refused.returncode, refused.stdout, "Traceback" in refused.stderr) == (2, "", False)
        assert f"table {place.as_uri()}/ cannot be read: " in refused.stderr
        for path in moved:
            path.rename(place / path.name)
        source.poll(0, print)
        assert source.ended
    assert [event["start_ms"] for event in events_of(floodmark(kafka, *run))] == [HOUR, 2 * HOUR, 3 * HOUR]


def test_a_token_that_is_away_for_a_moment_is_tried_again_and_a_misspelt_one_refused_at_once(tmp_path):
    (tmp_path / "secrets").write_text("token=hunter2\n")
    endpoint = Endpoint("http://127.0.0.1:1", f"${{file:{tmp_path}/secrets:token}}")
    with pytest.raises(RefusedError, match="refused"):
        endpoint.ask()
    (tmp_path / "secrets").unlink()
    with pytest.raises(RefusedError, match="'--token': nothing is found at"):
        endpoint.ask()
    with pytest.raises(UsageError, match="'--token': nothing is found at"):
        Endpoint("http://127.0.0.1:1", "${env:HUSH_HUSH}")


@pytest.mark.kafka
def test_each_complete_period_of_a_table_is_fired_once(kafka, topic, tmp_path):
    place, name = tmp_path / "table", topic(1)
    run = ["--table", place, "--column", "at", "--name", name, "--every", "1h", "--run", "true"]
    run += ["--json", "--until-end"]
    commit(place, 0, HOUR + 10, 5, HOUR + 20)
    refused = floodmark(kafka, *run, "--from", "earliest")
    assert (refused.returncode, "a table has no --from earliest: pass 'now', or a time" in refused.stderr) == (2, True)
    for slip in (["a-topic", *run], run[:2] + run[4:]):
        assert "name topics, or --table with --column, and not both" in floodmark(kafka, *slip).stderr
    assert "the table has no column 'when'" in floodmark(kafka, *[*run[:3], "when", *run[4:]]).stderr
    assert [event["start_ms"] for event in events_of(floodmark(kafka, *run, "--from", "1970-01-01T00:00Z"))] == [0]
    as_topic = floodmark(kafka, topic(1), "--name", name, "--every", "1h", "--run", "true", "--until-end")
    assert (as_topic.returncode, f"stored for --every 1h of table {place}, and now" in as_topic.stderr) == (2, True)
    with TableInput([str(place)], "at", None) as source:
        source.poll(0, print)
        assert [str(hold) for hold in source.holders()] == [f"clicks/0/web: it holds table {place}"]
    commit(place, 1, END_OF_TIME, 3 * HOUR + 5)
    ended = events_of(floodmark(kafka, *run))
    assert [event["start_ms"] for event in ended if event["complete"]] == [HOUR, 2 * HOUR, 3 * HOUR]
    assert "nothing will fire. For the past, use --from TIME." in floodmark(kafka, *run, "--name", f"{name}-2").stderr
    assert events_of(floodmark(kafka, *run)) == []

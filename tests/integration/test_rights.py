"""The rights that programs need: each runs with those of its row in the page, where all else is refused."""

import itertools
import json
import os
import re
import signal
import subprocess
import sys
from contextlib import closing, suppress
from datetime import timedelta
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from floodmark.producers import WatermarkedConsumer, WatermarkedProducer, ascending, create_topics
from floodmark.schemas.errors import MissingRightError
from floodmark.spark_jobs import ReadOptions, WriteOptions, read, write
from floodmark.spark_jobs import json as json_values
from support.guarded import GuardedKafka, login
from support.harness import until
from support.processes import Process

_PAGE = Path(__file__).parents[2] / "producers" / "OPERATING.md"
_LIMIT = 180
_numbers = itertools.count()
_TIMES = [1_600_000_000_000 + second * 1_000 for second in range(100)]
_VALUES = [json.dumps({"at": time}).encode() for time in _TIMES]


def rights():
    """Return the rows of the table: program -> rights on what it reads and writes, its transactional id, a group."""
    table = _PAGE.read_text(encoding="utf-8").split("| program |")[1].split("\n\n")[0]
    rows = [line[1:-1].split("|") for line in table.splitlines()[2:]]
    return {row[0].strip(): [re.findall(r"`(\w+)`", cell) for cell in row[1:]] for row in rows}


def rights_on_receipts():
    """Return what the page says of the receipts of a job whose executors write."""
    (line,) = (line for line in _PAGE.read_text(encoding="utf-8").splitlines() if "floodmark-receipts-" in line)
    return re.findall(r"`([A-Z]\w+)`", line)


PROGRAMS = list(rights())
USERS = {program: f"user{number}" for number, program in enumerate(PROGRAMS)}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    with GuardedKafka(
        tmp_path_factory.mktemp("guarded"), [*USERS.values(), "reader", "writer"], authorized=True
    ) as broker:
        yield broker


@pytest.fixture
def grant(guarded):
    """Make two topics, and give the user of a program the rights of its row on them; return the user's settings."""
    admin = AdminClient(guarded.config)

    def give(program, incoming, outgoing, *identities, group="-", receipts="-"):
        topics, (one_id, its_group) = rights()[program][:2], rights()[program][2:]
        places = [
            *zip([(ResourceType.TOPIC, incoming), (ResourceType.TOPIC, outgoing)], topics, strict=True),
            *(((ResourceType.TRANSACTIONAL_ID, identity), one_id) for identity in identities),
            ((ResourceType.GROUP, group), its_group),
            ((ResourceType.TOPIC, receipts), rights_on_receipts()),
        ]
        bindings = [
            AclBinding(
                *(*place, ResourcePatternType.LITERAL, f"User:{USERS[program]}", "*"),
                *(AclOperation[right.upper()], AclPermissionType.ALLOW),
            )
            for place, names in places
            for right in names
        ]
        for future in admin.create_acls(bindings).values():
            future.result(30)
        whose = AclBindingFilter(
            *(ResourceType.ANY, None, ResourcePatternType.ANY, f"User:{USERS[program]}", None),
            *(AclOperation.ANY, AclPermissionType.ANY),
        )
        until(lambda: set(bindings) <= set(admin.describe_acls(whose).result(30)), "the rights")
        return {"bootstrap.servers": guarded.bootstrap_servers, **login(USERS[program])}

    return give


def topics(guarded):
    """Make two topics."""
    number = next(_numbers)
    names = [f"{side}-{number}" for side in ("in", "out")]
    create_topics(guarded.config, dict.fromkeys(names, 2))
    return names


def fill(config, topic):
    """Write the records, with marks, and end."""
    with WatermarkedProducer(config, topic=topic, source="web", strategy=ascending()) as web:
        for time, value in zip(_TIMES, _VALUES, strict=True):
            web.produce(value, event_time=time)
        web.end()


def read_all(config, topic):
    """Read a topic to its end, as a consumer of complete rows."""
    values = []
    with WatermarkedConsumer(config, [topic], lambda record: json.loads(record.value)["at"]) as consumer:
        until(lambda: values.extend(row.value for _, row in consumer.rows()) or consumer.ended, "the end")
    return values


def command(config, folder, *arguments):
    """Return a command with the settings of a user."""
    settings = folder / "kafka.properties"
    settings.write_text("".join(f"{name}={value}\n" for name, value in config.items()), encoding="utf-8")
    return [sys.executable, "-m", "floodmark.producers.cli.main", *arguments, "--config", str(settings)]


def floodmark(config, folder, *arguments):
    """Run it to its end."""
    line = command(config, folder, *arguments)
    return subprocess.run(line, capture_output=True, text=True, timeout=_LIMIT, check=False)


@pytest.mark.kafka
def test_the_broker_refuses_who_was_given_nothing(guarded):
    incoming, _ = topics(guarded)
    stranger = {"bootstrap.servers": guarded.bootstrap_servers, **login(USERS[PROGRAMS[1]])}
    refused = []
    producer = Producer(stranger)
    producer.produce(incoming, b"x", on_delivery=lambda error, _: refused.append(error))
    producer.flush(30)
    assert "TOPIC_AUTHORIZATION_FAILED" in str(refused[0].name())


@pytest.mark.kafka
def test_a_producer_and_a_consumer(guarded, grant, caplog):
    written, back = "`WatermarkedProducer`", "`WatermarkedConsumer`"
    topic, _ = topics(guarded)
    fill(grant(written, "-", topic), topic)
    assert "cannot be read" not in caplog.text
    assert read_all(grant(back, topic, "-"), topic) == _VALUES


@pytest.mark.kafka
@pytest.mark.parametrize(
    ("program", "arguments"),
    [
        ("`floodmark tail`", ["tail", "--from-beginning", "--until-end"]),
        ("`floodmark check`", ["check", "--json-field", "at"]),
        ("`floodmark board`, `floodmark why`", ["board", "--once"]),
        ("`floodmark board`, `floodmark why`", ["why"]),
    ],
    ids=["tail", "check", "board", "why"],
)
def test_a_command_that_reads(guarded, grant, tmp_path, program, arguments):
    topic, _ = topics(guarded)
    fill(guarded.config, topic)
    name, *options = arguments
    done = floodmark(grant(program, topic, "-"), tmp_path, name, topic, *options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "not read" not in done.stdout


@pytest.fixture
def only(guarded):
    """Give a user one right on a topic; return the user's settings."""
    admin = AdminClient(guarded.config)

    def give(user, topic, right):
        place = ResourceType.TOPIC, topic, ResourcePatternType.LITERAL
        binding = AclBinding(*place, f"User:{user}", "*", AclOperation[right.upper()], AclPermissionType.ALLOW)
        admin.create_acls([binding])[binding].result(30)
        settings = {"bootstrap.servers": guarded.bootstrap_servers, **login(user)}
        client = AdminClient(settings)
        until(lambda: topic in client.list_topics(timeout=30).topics, "the right")
        return settings

    return give


@pytest.mark.kafka
def test_a_producer_without_write_says_so(guarded, only):
    topic, _ = topics(guarded)
    web = WatermarkedProducer(only("reader", topic, "Read"), topic=topic, source="web", strategy=ascending())
    with suppress(MissingRightError):  # if the broker has already answered
        web.produce(b"x", event_time=_TIMES[0])
    for call in (web.flush, lambda: web.produce(b"y", event_time=_TIMES[1]), web.poll, web.close):
        with pytest.raises(MissingRightError, match=f'writing to topic {topic!r}.*see "Rights"'):
            call()


@pytest.mark.kafka
def test_a_producer_without_read_warns_also_in_a_new_topic(guarded, only, caplog):
    topic, _ = topics(guarded)
    with WatermarkedProducer(only("writer", topic, "Write"), topic=topic, source="web", strategy=ascending()) as web:
        web.produce(b"x", event_time=_TIMES[0])
        web.flush()
        web.end()
    (warning,) = (record for record in caplog.records if record.levelname == "WARNING")
    assert f"whether a second process writes to topic {topic!r} is not known" in warning.getMessage()


@pytest.mark.kafka
def test_a_missing_right_is_named_with_its_topic_or_group(guarded, grant, fed, only, tmp_path):
    raw, marked = fed
    config = grant("`floodmark inject`", raw, marked, f"floodmark-inject-{raw}-{marked}")
    options = ("--from", raw, "--to", marked, "--json-field", "at", "--until-end")
    assert floodmark(config, tmp_path, "inject", *options).returncode == 0
    for arguments, said in (
        (("inject", *options, "--reset"), f"deleting the records of {marked!r}"),
        (("catch-up", raw, "--group", "strangers"), "the offsets of group 'strangers', which need its right Describe"),
    ):
        done = floodmark(config, tmp_path, *arguments)
        assert (done.returncode, said in done.stderr) == (2, True), done.stderr
    done = floodmark(only("writer", raw, "Write"), tmp_path, "tail", raw, "--from-beginning", "--until-end")
    assert f"topic {raw!r}: " in done.stderr


@pytest.mark.kafka
def test_catch_up_with_a_group(guarded, grant, tmp_path):
    topic, _ = topics(guarded)
    fill(guarded.config, topic)
    with closing(Consumer({**guarded.config, "group.id": "readers"})) as readers:
        readers.commit(offsets=[TopicPartition(topic, number, 1) for number in (0, 1)], asynchronous=False)
    config = grant("`floodmark catch-up --group`", topic, "-", group="readers")
    done = floodmark(config, tmp_path, "catch-up", topic, "--group", "readers", "--rate", "10", "--json")
    assert json.loads(done.stdout)["unread"] > 0, done.stderr


@pytest.fixture
def fed(guarded):
    """Make two topics, the first of them full of records without marks."""
    raw, marked = topics(guarded)
    producer = Producer(guarded.config)
    for time, value in zip(_TIMES, _VALUES, strict=True):
        producer.produce(raw, value, timestamp=time)
    assert producer.flush(30) == 0
    return raw, marked


@pytest.mark.kafka
def test_a_member_of_a_group_of_injectors(guarded, grant, fed, tmp_path):
    raw, marked = fed
    identities = [f"floodmark-inject-{raw}-{marked}/{number}" for number in (0, 1)]
    config = grant("`floodmark inject --group`", raw, marked, *identities, group="members")
    options = ["--from", raw, "--to", marked, "--json-field", "at", "--group", "members", "--json"]
    member = Process("member", command(config, tmp_path, "inject", *options), tmp_path)
    try:
        until(lambda: member.poll() is not None or '"records": 100' in "".join(member.lines()), "the last record")
        os.kill(member.pid, signal.SIGTERM)
        until(lambda: member.poll() is not None, "its end")
    finally:
        member.kill()
    assert member.poll() == 0, member.log()
    assert "100 records read" in member.log()


@pytest.mark.kafka
def test_a_trigger_starts_again_though_it_may_not_read_the_settings_of_its_position_topic(guarded, grant, tmp_path):
    incoming, positions = topics(guarded)[0], f"positions-{next(_numbers)}"
    create_topics(guarded.config, {positions: 1}, {"cleanup.policy": "compact"})
    fill(guarded.config, incoming)
    config = grant("`floodmark trigger`", incoming, positions, f"floodmark-hourly-{positions}")
    options = ["--name", "hourly", "--position-topic", positions, "--every", "1h", "--run", "true", "--until-end"]
    for _ in range(2):
        done = floodmark(config, tmp_path, "trigger", incoming, *options)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.kafka
def test_the_injector(grant, fed, tmp_path):
    program = "`floodmark inject`"
    raw, marked = fed
    config = grant(program, raw, marked, f"floodmark-inject-{raw}-{marked}")
    options = ("--from", raw, "--to", marked, "--json-field", "at", "--until-end")
    done = floodmark(config, tmp_path, "inject", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "100 records read" in done.stderr


@pytest.mark.spark
@pytest.mark.parametrize("delivery", ["exactly-once", "exactly-once-executors", "at-least-once"])
def test_a_job(spark, guarded, grant, tmp_path, delivery):
    program = f'a job, `delivery="{delivery}"`'
    incoming, outgoing = topics(guarded)
    fill(guarded.config, incoming)
    name, more = f"{outgoing}-{outgoing}", {}
    identities = [f"floodmark-{name}"]
    if delivery == "exactly-once-executors":
        identities += [f"floodmark-{name}/{shard}" for shard in range(spark.sparkContext.defaultParallelism)]
        more["receipts"] = f"floodmark-receipts-{name}"
    config = grant(program, incoming, outgoing, *identities, **more)
    servers = config.pop("bootstrap.servers")
    value = json_values("at TIMESTAMP", unit="ms")
    options = ReadOptions(client=config)
    rows = read(spark, topics=incoming, value=value, event_time="at", bootstrap_servers=servers, options=options)
    job = write(
        rows,
        topic=outgoing,
        value=value,
        event_time="at",
        checkpoint_location=str(tmp_path),
        options=WriteOptions(delivery=delivery, lookahead=timedelta(seconds=1)),
    )
    job.awaitTermination(_LIMIT)
    found = [json.loads(value)["at"] for value in read_all(guarded.config, outgoing)]
    assert sorted(found) == _TIMES

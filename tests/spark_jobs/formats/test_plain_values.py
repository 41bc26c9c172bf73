"""JSON values: what is read as what, what is unreadable, and what is written."""

import json
from contextlib import nullcontext
from datetime import UTC, datetime

import pytest
from floodmark.producers.event_times.formats import JsonField
from floodmark.schemas import AvroCodec
from floodmark.schemas.errors import InvalidEventTimeError, UnreadableValueError, UsageError
from floodmark.spark_jobs import formats
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention
from pyspark.sql.types import StructType

pytestmark = pytest.mark.spark

SCHEMA = "user STRING, at TIMESTAMP, n BIGINT, payload STRUCT<at: TIMESTAMP, tags: ARRAY<STRING>>"
UNREADABLE = "unreadable"


@pytest.fixture(scope="module")
def decoded(spark):
    """Decode values; each is a dict, or ``UNREADABLE``."""

    def decode(values, schema=SCHEMA, **options):
        frame = spark.createDataFrame([(number, value) for number, value in enumerate(values)], "id INT, raw BINARY")
        struct = formats.json(schema, **options).decode(F.col("raw"))
        rows = frame.select("id", struct.alias("value")).orderBy("id").collect()
        return [UNREADABLE if row.value is None else row.value.asDict(recursive=True) for row in rows]

    return decode


def local(text):
    """Spark gives its timestamps as naive times of this machine."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC).astimezone().replace(tzinfo=None)


def test_what_is_no_object_of_the_schema_is_unreadable(decoded):
    values = [
        *(b"{", b"[]", b"null", b"", b" ", b"5", b'"x"', b'[{"user": "u"}]', b"\xff", b'{"user": "\xff"}'),
        *(b'{"user": "u"} rest}', b'{"user": "u"}}', b'{"user": "u"};{"user": "v"}', b'{"user": "u"} {"user": "v"}'),
        *(b'{"user": "u"} rest', b'{"at": "nonsense"}', b'{"at": "2024-13-01T00:00:00Z"}', b'{"at": true}'),
        *(b'{"at": "12:00:03"}', b'{"at": " T12:00:03Z"}', b'{"at": "12:00:03-05:00"}'),
        *(b'{"user": "u"}\n{"user": "v"}', b'{"user": "u"}{"user": "v"}', b'{"user": "u"}, {"user": "v"}'),
        *(b'{"at": {"x": 1}}', b'{"at": NaN}', b'{"at": 1e999}', b'{"n": "x"}', b'{"n": 1.5}', b'{"n": 1e30}'),
        *(
            b'{"payload": 5}',
            b'{"payload": {"at": "x"}}',
            b'{"payload": {"tags": "x"}}',
            b'{"at": 1' + b"0" * 40 + b"}",
        ),
    ]
    for unit in (None, "ms"):
        options = {} if unit is None else {"unit": unit}
        found = decoded(values, **options)
        assert {value: one for value, one in zip(values, found, strict=True) if one != UNREADABLE} == {}


def test_what_is_missing_or_null_is_null_in_a_row_that_can_be_read(decoded):
    nothing = {"user": None, "at": None, "n": None, "payload": None}
    assert decoded([b"{}", b'{"at": null, "other": 1}', b' {"n": null} \n']) == [nothing] * 3


@pytest.mark.parametrize(
    ("unit", "number"),
    [(None, "1700000000.25"), ("s", "1700000000.25"), ("ms", "1700000000250"), ("us", "1700000000250000")],
)
def test_numbers_count_in_the_unit_and_text_is_iso(decoded, unit, number):
    texts = [number, '"2023-11-14T22:13:20.25Z"', '"2023-11-14T23:13:20.25+01:00"', f'"{number}"']
    values = [b'{"at": %s, "payload": {"at": %s}}' % (text.encode(), text.encode()) for text in texts]
    expected = local("2023-11-14T22:13:20.250")
    options = {} if unit is None else {"unit": unit}
    assert [(one["at"], one["payload"]["at"]) for one in decoded(values, **options)] == [(expected, expected)] * 4


def test_a_zone_in_the_text_counts_in_any_session(decoded, spark):
    spark.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        (row,) = decoded([b'{"at": "2026-10-25T00:00:00+02:00"}'], "at TIMESTAMP_LTZ")
    finally:
        spark.conf.unset("spark.sql.timestampType")
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert row["at"] == local("2026-10-24T22:00:00")


@pytest.mark.parametrize("unit", ["s", "ms", "us"])
def test_an_injector_reads_the_same_times_from_the_same_values(decoded, unit):
    """Otherwise it copies a record without judging it, and the job finds it late."""
    texts = [
        *(
            "2026-01-05T09:30:00Z",
            "2026-01-05T09:30:00.25+01:00",
            "2026-01-05 09:30:00",
            "2026-01-05",
            "2026-01-05T09:30",
        ),
        *("2026-01-05T09:30Z", "2026-01-05T09:30+01:00", "2026-01-05T09:30-05:30", "2026-01-05 9:3:7", "2026-1-5"),
        *(" 2026-01-05T09:30:00Z ", "2026-01-05 09:30:00 UTC", "2026-01-05T09:30:00+1", "2026-01-05T09:30:00 GMT"),
        *("2026-01-05T09:30:00.123456789Z", "2026-01-05T09:30:00.5", "2026-02-30T00:00:00Z", "2026-01-05T25:00:00Z"),
        *(
            "20260105",
            "1767605400",
            "1767605400.25",
            "-12.5",
            "+7",
            ".5",
            "5.",
            "1e3",
            "1.5e3",
            "1e99",
            "",
            " ",
            " 12",
            "x",
        ),
        *("1.2.3", "--1", "e3", "0x10", "Infinity", "NaN", "2026-01-05T09:30:00X", "2026-01-05T", "12:00:03"),
    ]
    values = [json.dumps({"at": text}).encode() for text in texts]
    values += [b'{"at": %s}' % number for number in (b"12", b"12.5", b"-3", b"1e3", b"true", b"[1]")] + [b"{'at': 5}"]

    def injected(value):
        try:
            return JsonField("at", unit).read(None, value, 0)
        except (InvalidEventTimeError, UnreadableValueError):
            return UNREADABLE

    def milliseconds(row):
        return row if row == UNREADABLE else row["at"].astimezone(UTC).timestamp() * 1_000 // 1

    found = {value: milliseconds(row) for value, row in zip(values, decoded(values, unit=unit), strict=True)}
    assert found == {value: injected(value) for value in values}


def test_objects_within_an_array_are_of_one_record(decoded):
    values = [b'{"items": [{"n": 1}, {"n": 2}]}', b'{"items": [{"n": NaN}\n, {"n": 2}]}', b'{"items": ["}, {"]}']
    found = decoded(values, "items ARRAY<STRING>")
    assert [len(one["items"]) for one in found] == [2, 2, 1]


def test_an_avro_value_that_is_cut_is_unreadable(spark):
    kinds = {"n": "long", "name": ["null", "string"]}
    fields = [{"name": name, "type": kind} for name, kind in kinds.items()]
    codec = AvroCodec({"type": "record", "name": "Event", "fields": fields[::-1]})
    whole = codec.encode({"n": 5, "name": None})
    values = [(1, whole), (2, whole[:-1]), (3, codec.encode({"n": 5, "name": "longer"})[:-3]), (4, b"")]
    struct = formats.avro(codec.schema_json).decode(F.col("raw"))
    rows = spark.createDataFrame(values, "id INT, raw BINARY").select("id", struct.alias("value")).collect()
    assert {row.id: row.value and row.value.n for row in rows} == {1: 5, 2: None, 3: None, 4: None}
    assert [row.id for row in rows if row.value is None] == [2, 3, 4]


def test_no_number_comes_back_as_another_time(spark):
    """Seconds times a million wrap around in Spark's own reading of large numbers."""
    numbers = [sign * 10**power + add for power in range(30) for add in (0, 7) for sign in (1, -1)]
    frame = spark.createDataFrame([(str(n), json.dumps({"at": n}).encode()) for n in numbers], "n STRING, raw BINARY")
    time = formats.json("at TIMESTAMP").decode(F.col("raw"))["at"]
    rows = frame.select("n", F.unix_micros(time).alias("micros")).collect()
    found = {int(row.n): row.micros for row in rows}
    assert found == {n: n * 1_000_000 if abs(n) * 1_000_000 < 2**63 else None for n in numbers}


def test_only_the_fields_of_the_schema_are_written(spark):
    frame = spark.sql("SELECT 'u' AS user, 7 AS secret, TIMESTAMP '2024-01-01T00:00:05Z' AS at")
    written = frame.select(formats.json("at TIMESTAMP, user STRING").encode(F.struct("*")).alias("raw")).first()
    assert json.loads(written.raw) == {"at": "2024-01-01T00:00:05.000Z", "user": "u"}
    assert formats.json("at TIMESTAMP, user STRING").fields == ("at", "user")


@pytest.mark.parametrize(("unit", "at"), [("s", 1704067205.25), ("ms", 1704067205250), ("us", 1704067205250000)])
def test_what_is_written_in_a_unit_is_read_in_it(spark, unit, at):
    schema = "at TIMESTAMP, inner STRUCT<at: TIMESTAMP>"
    frame = spark.sql("SELECT TIMESTAMP '2024-01-01T00:00:05.25Z' AS at, named_struct('at', at) AS inner")
    form = formats.json(schema, unit=unit)
    both = frame.select("*", form.encode(F.struct("*")).alias("raw")).withColumn("back", form.decode(F.col("raw")))
    row = both.first()
    assert json.loads(row.raw) == {"at": at, "inner": {"at": at}}
    assert (row.back.at, row.back.inner.at) == (row.at, row.inner.at)


def test_a_column_is_refused_exactly_if_its_json_cannot_be_read_back(spark):
    samples = {
        "SMALLINT": "32767",
        "INT": "2147483647",
        "BIGINT": "5000000000",
        "DOUBLE": "5.5D",
        "DECIMAL(9,0)": "999999999",
        "BOOLEAN": "true",
        "STRING": "'2026-01-01'",
        "BINARY": "'abcd'",
        "DATE": "'2026-01-01'",
        "TIMESTAMP": "'2026-01-01'",
        "TIMESTAMP_NTZ": "'2026-01-01'",
        "ARRAY<INT>": "array(5)",
        "MAP<STRING, INT>": "map('a', 5)",
    }
    frame = spark.range(1).selectExpr(*(f"CAST({text} AS {kind}) AS `{kind}`" for kind, text in samples.items()))
    pairs = [(formats.json(f"x {wanted}"), found) for wanted in samples for found in frame.schema]
    written = [form.encode(F.struct(F.col(f"`{found.name}`").alias("x"))) for form, found in pairs]
    read = frame.select(*(form.decode(value).isNotNull() for (form, _), value in zip(pairs, written, strict=True)))
    for (form, found), readable in zip(pairs, read.first(), strict=True):
        with nullcontext() if readable else pytest.raises(UsageError, match="column 'x' is a"):
            form.require(StructType().add("x", found.dataType))


def test_wrong_use_is_named(spark):
    with pytest.raises(UsageError, match="expected one of s, ms, us"):
        formats.json("at TIMESTAMP", unit="minutes")
    with pytest.raises(UsageError, match="ARRAY"):
        _ = formats.json("all ARRAY<TIMESTAMP>", unit="ms").fields

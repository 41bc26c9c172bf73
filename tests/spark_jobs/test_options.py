"""The rarer settings of `read` and `write` are checked where they are made, not when the job has run for a while."""

from dataclasses import FrozenInstanceError
from datetime import timedelta

import pytest
from floodmark.schemas.errors import UsageError
from floodmark.spark_jobs import ReadOptions, WriteOptions


@pytest.mark.parametrize(
    ("kind", "wrong", "message"),
    [
        (ReadOptions, {"percentile": 0}, "percentile is 0, expected 1 to 100"),
        (ReadOptions, {"percentile": 101}, "percentile is 101, expected 1 to 100"),
        (ReadOptions, {"max_offsets_per_trigger": 0}, "max_offsets_per_trigger is 0, expected 1 or more"),
        (ReadOptions, {"max_offsets_per_trigger": "all"}, "max_offsets_per_trigger is 'all', expected 1 or more"),
        *(
            (ReadOptions, {"source_options": {name: "other"}}, rf"source option {name}: .*read\(topics=\)")
            for name in ("subscribe", "subscribePattern", "Assign")
        ),
        (
            ReadOptions,
            {"source_options": {"kafka.isolation.level": "read_uncommitted"}},
            "kafka.isolation.level is 'read_uncommitted', expected 'read_committed': .* aborted transactions",
        ),
        (ReadOptions, {"source_options": {"includeheaders": "false"}}, "is 'false': rows have times in their headers"),
        (ReadOptions, {"source_options": {"kafka.bootstrap.servers": "k:9092"}}, "pass the address as read"),
        *(
            (ReadOptions, {"source_options": {name: "latest"}}, f"source option {name}: .* Correct the name")
            for name in ("startingOffset", "max.poll.records")
        ),
        (WriteOptions, {"sink_options": {"Topic": "t"}}, r"sink option Topic: pass the topic as write\(topic=\)"),
        (
            WriteOptions,
            {"sink_options": {"kafka.bootstrap.servers": "k:9092"}},
            r"as WriteOptions\(bootstrap_servers=\)",
        ),
        (WriteOptions, {"watermark_hold": timedelta(seconds=-1)}, "watermark_hold is .*, expected 0 or more"),
        (
            WriteOptions,
            {"membership": "3"},
            r"the membership is '3', expected a number of sources, or Membership",
        ),
        (WriteOptions, {"delivery": "at-most-once"}, "delivery is 'at-most-once', expected 'exactly-once', "),
        (WriteOptions, {"start": "continue"}, r"start is a value of type str, expected Start\(.*'continue'"),
        (WriteOptions, {"on_batch": "print"}, "on_batch is a value of type str, expected a function"),
        (WriteOptions, {"on_batch": dict}, "on_batch is the class dict, expected an instance"),
        (WriteOptions, {"windows_close": "before"}, "windows_close is 'before', expected 'after' or 'at'"),
    ],
)
def test_an_option_out_of_its_bounds_is_refused_when_it_is_made(kind, wrong, message):
    with pytest.raises(UsageError, match=message):
        kind(**wrong)


def test_options_cannot_be_changed_behind_a_job_and_show_no_secret():
    options = ReadOptions(client={"sasl.password": "open"}, source_options={"kafka.sasl.jaas.config": "open"})
    assert "open" not in repr(options)
    assert "open" not in repr(WriteOptions(client={"sasl.password": "open"}, sink_options={"a": "open"}))
    with pytest.raises(FrozenInstanceError):
        options.percentile = 50

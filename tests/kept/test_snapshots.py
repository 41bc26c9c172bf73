"""Snapshots of 0.1.0 are taken up: equal watermarks and holders, and equal behaviour after."""

import gzip
import json
from pathlib import Path

import pytest
from floodmark.schemas import Tracker, decode_watermark
from floodmark.schemas.completeness.position import TopicIds
from floodmark.spark_jobs.progress.progress import Progress
from floodmark.spark_jobs.progress.published import Published, StoredPosition

KEPT = json.loads(gzip.decompress((Path(__file__).parent / "snapshots.json.gz").read_bytes()))


def as_text(snapshot):
    return json.loads(json.dumps(snapshot))


def places(holders):
    """Return which topics, partitions and sources hold a watermark; the words after them are not stored."""
    return [holder.partition(": ")[0] for holder in holders]


def assert_says(tracker, kept):
    assert (tracker.watermark, tracker.ended) == (kept["watermark"], kept["ended"])
    assert places(map(str, tracker.holders())) == places(kept["holders"])


def apply(tracker, topic, partition, offset, log_time, found):
    """Take in a mark (as hex), or the name of a source whose mark cannot be read."""
    where = {"topic": topic, "partition": partition, "log_time": log_time}
    try:
        value = bytes.fromhex(found)
    except ValueError:
        value = b""
    if len(value) < 10:  # "a" is hex, too
        return tracker.apply_unreadable(found, offset=offset, **where)
    source = next(name for name in "abc" if value[11:12] == name.encode())
    return tracker.apply(decode_watermark(b"__floodmark__/" + source.encode(), value), **where).value


@pytest.mark.parametrize("kept", KEPT["trackers"])
def test_a_kept_tracker_goes_on_as_it_would_have(kept):
    tracker = Tracker.restore(kept["snapshot"])
    assert as_text(tracker.snapshot()) == kept["snapshot"]
    assert_says(tracker, kept)
    for step, verdict, advanced in kept["then"]:
        assert apply(tracker, *step) == verdict
        assert tracker.advance() == advanced
    assert as_text(tracker.snapshot()) == kept["at_last"]


@pytest.mark.parametrize("kept", KEPT["progress"])
def test_kept_progress_is_restored_whole(kept):
    """With percentiles, promises for late rows, record counts, and tallies of records without a time."""
    progress = Progress.restore(kept["snapshot"], "here")
    assert as_text(progress.snapshot()) == kept["snapshot"]
    assert progress.output == kept["output"]
    assert progress.watermark == kept["watermark"]
    assert places(map(str, progress.holders())) == places(kept["holders"])


def test_the_kept_position_of_a_store_is_read():
    text = (
        '{"checkpoint_id":"5d1","batch_id":4,"output_watermark":30,"earlier_checkpoints":{"a7c":9},"format":1,'
        '"input_offsets":{"clicks":{"0":7}},"batch_watermark":12,"topic_ids":{"clicks":"Xq3"}}'
    )
    published = Published({("clicks", 0): 7}, 12, TopicIds(clicks="Xq3"))
    assert StoredPosition.of(text) == StoredPosition("5d1", 4, 30, published, {"a7c": 9})
    assert StoredPosition.of(text).text == text


def test_the_kept_snapshots_have_all_parts():
    """Each part that can be empty is there in one of them."""
    snapshots = [kept["snapshot"] for kept in KEPT["progress"]]
    for name in snapshots[0]:
        assert any(snapshot[name] not in (None, {}, []) for snapshot in snapshots), name
    topics = [topic for kept in KEPT["trackers"] for topic in kept["snapshot"]["topics"].values()]
    parts = [part for topic in topics for part in topic["partitions"].values()]
    for name in ("membership", "partition_count", "unreadable_offsets", "partitions"):
        assert any(topic[name] for topic in topics), name
    for name in ("log_time", "clocks", "unreadable", "sources"):
        assert any(part[name] for part in parts), name

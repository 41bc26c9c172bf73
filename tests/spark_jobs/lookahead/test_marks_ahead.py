"""What lies ahead: it never gives more than the job knows once it has read the marks."""

from floodmark.schemas import Membership, Status, Tracker
from floodmark.schemas.classify import Mark
from floodmark.schemas.records import WatermarkRecord
from floodmark.spark_jobs.lookahead.marks_ahead import Ahead, MarksAhead
from floodmark.spark_jobs.progress.offsets import to_spark
from floodmark.spark_jobs.progress.progress import Progress
from hypothesis import given, settings
from hypothesis import strategies as st

PARTITIONS, SOURCES = 2, ("a", "b")

said = st.tuples(st.sampled_from(SOURCES), st.integers(0, 20), st.sampled_from(["", "", "", "idle", "again", "epoch"]))
logs = st.lists(st.lists(said, max_size=8), min_size=PARTITIONS, max_size=PARTITIONS)


def marks_of(partition, entries):
    """Write a partition's marks: offsets have holes, as data and transactions leave them."""
    found, epochs, numbers = [], dict.fromkeys(SOURCES, 1), dict.fromkeys(SOURCES, 0)
    for place, (source, watermark, kind) in enumerate(entries):
        if kind == "epoch":
            epochs[source] += 1
            numbers[source] = 0
        record = WatermarkRecord(
            source=source,
            epoch=epochs[source],
            sequence=numbers[source],
            watermark=watermark,
            partitions=PARTITIONS,
            emitted_at=0,
            status=Status.IDLE if kind == "idle" else Status.ACTIVE,
            membership=Membership(1, len(SOURCES)),
        )
        numbers[source] += kind != "again"
        found.append(Mark("t", partition, offset=3 * place, log_time=0, record=record))
    return found


def tracked(marks):
    progress = Progress(Tracker({"t"}))
    progress.apply(marks)
    return progress


@given(logs, st.data())
@settings(max_examples=200, deadline=None)
def test_the_job_comes_as_far_with_just_what_it_rests_on(entries, data):
    partitions = [marks_of(number, log) for number, log in enumerate(entries)]
    cut = [data.draw(st.integers(0, len(log))) for log in partitions]
    ahead_to = [data.draw(st.integers(at, len(log))) for at, log in zip(cut, partitions, strict=True)]
    end = {("t", number): 3 * at for number, at in enumerate(cut)}
    read = [mark for at, log in zip(cut, partitions, strict=True) for mark in log[:at]]
    job = tracked(read)

    marks_ahead = MarksAhead()
    # It has looked from an earlier place before, and sees some marks that the job has read already.
    marks_ahead.start_from(Tracker({"t"}), {})
    order = data.draw(st.permutations([n for n, to in enumerate(ahead_to) for _ in range(to)]))
    taken = [0] * PARTITIONS
    early = data.draw(st.integers(0, len(order)))
    for count, number in enumerate(order):
        if count == early:
            marks_ahead.start_from(job.tracker_copy(), end)
        marks_ahead.add_mark(partitions[number][taken[number]])
        taken[number] += 1
    marks_ahead.start_from(job.tracker_copy(), end)
    ahead = marks_ahead.ahead()

    if ahead is None:
        return
    assert job.watermark is None or ahead.watermark > job.watermark
    just = {number: ahead.positions.get(("t", number), 0) for number in range(PARTITIONS)}
    rest = [mark for log in partitions for mark in log if mark not in read]
    enough = [mark for mark in rest if mark.offset < just[mark.partition]]
    exactly = job.tracker_copy()
    for mark in enough:
        exactly.apply(mark.record, topic="t", partition=mark.partition, log_time=0)
    assert exactly.advance() == ahead.watermark
    for batch in (enough, rest):
        again = Progress.restore(
            {**job.snapshot(), "lookahead": {"watermark": ahead.watermark, "positions": to_spark(ahead.positions)}}, ""
        )
        again.apply(batch)
        assert again.is_at_least(ahead.watermark)
        assert again.ahead is None


def test_it_counts_what_lies_ahead_and_forgets_it_when_told():
    marks_ahead = MarksAhead()
    marks_ahead.start_from(Tracker(["t"]), {("t", 0): 10})
    marks_ahead.note_offset(("t", 0), 12)
    marks_ahead.note_offset(("t", 1), 0)
    assert marks_ahead.records_ahead == 4
    marks_ahead.clear()
    assert (marks_ahead.records_ahead, marks_ahead.ahead()) == (0, None)


def test_what_it_rests_on_must_all_be_read():
    ahead = Ahead(30, {("t", 0): 7, ("t", 1): 1})
    assert not ahead.is_covered({("t", 0): 7}), "a partition is gone"
    assert not ahead.is_covered({("u", 0): 9, ("u", 1): 9}), "a topic is gone"
    assert ahead.is_covered({("t", 0): 7, ("t", 1): 1, ("t", 2): 0})

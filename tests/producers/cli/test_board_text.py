"""The board and `why` as people read them."""

import json
from dataclasses import replace

from floodmark.producers.board.fold import Fold
from floodmark.producers.board.why import trace
from floodmark.producers.cli.board_page import page_view
from floodmark.producers.cli.board_text import board_lines, board_table, why_text
from floodmark.producers.testing import mark
from floodmark.schemas.classify import Mark
from floodmark.schemas.records import READ_HEADER, Holder, Status
from floodmark.schemas.timestamps import END_OF_TIME
from rich.console import Console

SECOND, DAY = 1_000, 86_400_000
BEGIN = 1_790_000_000_000
NOW = BEGIN + 60 * SECOND


def printed(shown):
    console = Console(width=300)
    with console.capture() as captured:
        console.print(shown)
    return captured.get()


def board(*sources, partitions=1, ahead=-5 * SECOND, end=Status.ACTIVE):
    """Return a board of sources that mark once a second, each up to a second."""
    fold, offset = Fold(), 0
    for second in range(60):
        for name, until in sources:
            status = end if second == until - 1 else Status.ACTIVE
            said = mark(
                name, BEGIN + second * SECOND + ahead, second, size=len(sources), partitions=partitions, status=status
            )
            for number in range(partitions) if second < until else ():
                fold.take(Mark("clicks", number, offset, BEGIN + second * SECOND, said))
                offset += 1
    return fold.board(NOW)


def test_partitions_are_counted_as_partitions_and_other_sources_are_named():
    found = board(("web-2", 20), ("phone", 21), ("web-1", 22), ("tv", 60), partitions=3)
    text = printed(why_text(trace(found, "clicks"), NOW))
    assert "clicks/0/web-2 (3 partitions)  STOP" in text
    assert "2 more hold it or fail: phone, web-1\n" in text
    assert "clicks/0/web-2 (3 partitions), 2 more hold it or fail" in printed(board_table(found, 300))
    equal = board(("web-1", 60), ("web-2", 60), partitions=3)
    assert "OK" in (text := printed(why_text(trace(equal, "clicks"), NOW)))
    assert "; 1 more holds it: web-2\n" in text
    (step,) = page_view(found)["paths"]["clicks"]["steps"]
    assert (step["source"], step["others"]) == ("clicks/0/web-2 (3 partitions)", "2 more hold it or fail: phone, web-1")
    assert [one["place"] for one in page_view(found)["sources"]] == [
        f"clicks/0,1,2/{name}" for name in ("phone", "web-1", "web-2")
    ]


def test_long_work_is_told_where_nothing_is_stuck():
    def told(last, status=Status.ACTIVE, pause=1):
        fold = Fold()
        for offset in range(60):
            at = BEGIN + offset * pause * SECOND
            read = replace(mark("totals", at - 130 * SECOND, offset), processing_time_watermark=at - 120 * SECOND)
            read = replace(read, holder=Holder("clicks", 0, "web"))
            for topic, said in (("clicks", mark("web", at, offset, status=status)), ("counts", read)):
                fold.take(Mark(topic, 0, offset, at, said))
        now = BEGIN + 60 * pause * SECOND
        return printed(why_text(trace(fold.board(now), last), now))

    assert "nothing is stuck; processing is 2 min 1 s behind: see floodmark catch-up\n" in told("counts")
    assert "nothing is stuck\n" in told("counts", Status.IDLE)
    assert "nothing is stuck\n" in told("clicks", pause=90), "a source between two marks"


def test_a_watermark_ahead_of_the_clock_is_said_to_be_ahead():
    found = board(("web", 60), ahead=DAY)
    assert "(23 h 59 min ahead of the clock)" in printed(why_text(trace(found, "clicks"), NOW))
    assert "nothing is stuck" in printed(why_text(trace(found, "clicks"), NOW))
    assert "23 h 59 min ahead of the clock" in board_lines(found)[0]
    assert "  23 h 59 min ahead  " in printed(board_table(found, 300))


def test_the_clock_of_a_writer_that_is_ahead_is_said_to_be_ahead():
    fold = Fold()
    for second in range(20):
        at = BEGIN + second * SECOND
        said = replace(mark("web", at, second), processing_time_watermark=at + DAY)
        fold.take(Mark("clicks", 0, second, at, said))
    found = fold.board(BEGIN + 20 * SECOND)
    assert "processing 23 h 59 min ahead" in printed(why_text(trace(found, "clicks"), NOW))
    assert "23 h 59 min ahead" in printed(board_table(found, 300))
    unanswered = printed(board_table(replace(found, answered=False), 300)).splitlines()[0]
    assert unanswered.endswith("Kafka does not answer: this was read last")


def test_why_says_that_what_has_ended_has_ended_and_no_year():
    """The watermark of a table is then the end of time."""
    found = replace(trace(board(("web", 20), end=Status.ENDED), "clicks"), watermark=END_OF_TIME)
    assert printed(why_text(found, NOW)).startswith("clicks: ended\n")


def test_a_source_that_has_ended_says_so():
    found = board(("web", 20), end=Status.ENDED)
    assert "OK  clicks/0/web  14:13:34Z ended" in printed(board_table(found, 300, every=True))


def test_a_job_shows_its_input_its_operators_and_its_output():
    fold = Fold()
    for second in range(20):
        at = BEGIN + second * SECOND
        fold.take(Mark("clicks", 0, second, at, mark("web", at, second)))
        said = replace(mark("counts", at - 9 * SECOND, second), holder=Holder("clicks", 0, "web"))
        read = json.dumps({"batch_watermark": at - 3 * SECOND - 1}).encode()
        fold.take(Mark("counts", 0, second, at, said, [(READ_HEADER, read)]))
    found = fold.board(BEGIN + 20 * SECOND)
    head, clicks, counts = (line.split() for line in printed(board_table(found, 150)).splitlines()[1:4])
    assert head[2:5] == ["input", "batch", "watermark"]
    assert clicks[2:5] == ["-", "-", "14:13:39Z"]
    assert counts[2:5] == ["14:13:39Z", "14:13:36Z", "14:13:30Z"]
    shown = page_view(found)["topics"][1]
    end = BEGIN + 19 * SECOND
    assert [shown[name] for name in ("input", "batch", "watermark")] == [end, end - 3 * SECOND, end - 9 * SECOND]

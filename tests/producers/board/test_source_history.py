"""The verdict on a source, rule by rule."""

from dataclasses import replace
from itertools import accumulate
from random import Random

import pytest
from floodmark.producers.board.causes import Cause, cause_of
from floodmark.producers.board.source_history import WINDOW, Health, History
from floodmark.producers.testing import mark
from floodmark.schemas.records import Holder, Status

SECOND = 1_000
NOW = 20_000


def history(watermarks, every=SECOND, epoch=1, into=None, **fields):
    """Return a source that has marked once a second; watermarks count from the first mark."""
    found = into or History()
    start = 0 if into is None else into.seen + every
    for number, watermark in enumerate(watermarks):
        found.take(mark("web", watermark, number, epoch=epoch, **fields), start + number * every)
    return found


def moving(count, behind=5_000, every=SECOND, start=0):
    return [start + number * every - behind for number in range(count)]


def test_it_is_ok_while_it_rises_at_the_pace_of_the_clock():
    assert history(moving(30)).verdict(29_500) is Health.OK


def test_too_few_marks_do_not_tell():
    assert History().verdict(5) is None
    assert history([-5]).verdict(10**9) is None
    assert history([-5, -5]).verdict(1_500) is None
    assert history([None, None]).verdict(1_500) is None


def test_it_stalls_when_its_marks_come_and_its_watermark_stands():
    stands = history([*moving(20), *[14_000] * WINDOW])
    assert stands.verdict(29_500) is Health.STALL
    assert (stands.since, stands.since_exact) == (19_000, True)
    assert history([*moving(20), *[14_000] * (WINDOW - 2)]).verdict(27_500) is Health.WARN


def test_it_does_not_stall_in_a_pause_as_long_as_its_pauses_are():
    """Events come once in half a minute, marks once a second."""
    steps = [number // 30 * 30_000 - 60_000 for number in range(300)]
    source = History()
    verdicts = set()
    for number, watermark in enumerate(steps):
        source.take(mark("web", watermark, number), number * SECOND)
        verdicts.add(source.verdict(number * SECOND)) if number > 65 else None
    assert verdicts == {Health.OK}


def test_it_stops_when_nothing_comes_for_longer_than_ten_marks_took():
    source = history(moving(30))
    assert source.verdict(29_000 + 9_000) is Health.OK
    assert source.verdict(29_000 + 9_001) is Health.STOP


def test_a_burst_of_marks_does_not_make_a_pause_a_stop():
    source = History()
    for number in range(40):
        source.take(mark("web", number * 100 - 9_000, number), number // 10 * 5_000 + number % 10)
    assert source.verdict(15_009 + 9_900) is not Health.STOP
    assert source.verdict(15_009 + 10_000) is Health.STOP


def test_it_warns_when_the_lag_grew():
    slow = [number * 500 - 5_000 for number in range(30)]
    assert history(slow).verdict(29_500) is Health.WARN
    slow[25:] = [watermark + 3_000 for watermark in slow[25:]]
    assert history(slow).verdict(29_500) is Health.OK
    assert history([number * 800 for number in range(12)]).verdict(11_500) is Health.OK, "it has just begun"


@pytest.mark.parametrize("steps", [(1_100, 100, 1_100, 600), (0, 1_400), (0, 0, 2_000)])
def test_it_warns_at_each_mark_though_the_lag_shrinks_at_some(steps):
    """As of a job that is slower than its input, and whose batches do not advance the watermark alike."""
    watermarks = [-20_000, *(steps[number % len(steps)] for number in range(60))]
    source, verdicts = History(), set()
    for number, watermark in enumerate(accumulate(watermarks)):
        source.take(mark("web", watermark, number), number * SECOND)
        verdicts.add(source.verdict(number * SECOND)) if number > 20 else None
    assert verdicts == {Health.WARN}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("gap", [2, 3, 5, 8])
def test_it_seldom_warns_between_events_that_are_irregular(gap, seed):
    """Of a source that is not slow: its watermark is five seconds below its last event."""
    source, chance, event, warned = History(), Random(f"{gap}/{seed}"), 0, 0  # noqa: S311  # no secret
    for number in range(1_000):
        event = number * SECOND if chance.random() < 1 / gap else event
        source.take(mark("web", event - 5_000, number), number * SECOND)
        warned += source.verdict(number * SECOND) is Health.WARN
    assert warned < 30


@pytest.mark.parametrize(("ahead", "verdict"), [(300_000, Health.OK), (300_001, Health.TIME)])
def test_an_event_more_than_five_minutes_ahead_of_the_clock_is_told(ahead, verdict):
    source = history(moving(20), records=1)
    source.take(mark("web", 20_000 + ahead, 20, records=2), 20_000)
    assert source.verdict(20_000) is verdict


@pytest.mark.parametrize("every", [2, 3, 5, 7, 9, 12])
def test_it_does_not_warn_between_events_that_are_rare(every):
    source, verdicts = History(), set()
    for number in range(120):
        source.take(mark("web", number // every * every * SECOND - 60_000, number), number * SECOND)
        verdicts.add(source.verdict(number * SECOND)) if number > 40 else None
    assert verdicts == {Health.OK}


def test_it_catches_up_while_the_lag_shrinks_at_every_step():
    assert history([number * 3_000 - 200_000 for number in range(12)]).gains
    assert not history(moving(12)).gains


def test_a_lower_promise_of_a_new_epoch_is_a_rewind_until_it_is_made_good():
    source = history(moving(20))
    history(moving(3, behind=15_000, start=20_000), epoch=2, into=source)
    assert source.verdict(22_500) is Health.REWIND
    assert source.verdict(22_000 + 60_000) is Health.STOP, "it sends no marks any more"
    history(moving(3, behind=5_000, start=23_000), epoch=3, into=source)
    assert source.verdict(25_500) is Health.OK


def test_a_restart_that_changes_nothing_does_not_begin_the_standstill_anew():
    source = history([1_000, 2_000, *[3_000] * 18])
    assert (source.since, source.verdict(20_000)) == (2_000, Health.STALL)
    history([None, 3_000, 3_000], epoch=2, into=source)
    assert (source.since, source.since_exact, source.verdict(23_000)) == (2_000, True, Health.OK)
    history([3_000, 4_000], epoch=3, into=source)
    assert source.since == source.seen


def test_a_source_that_restarts_again_and_again_is_told_and_a_deployment_is_not():
    kept = History()
    for epoch in range(1, 5):
        history(moving(6, start=kept.seen), epoch=epoch, into=kept)
        now = kept.seen + SECOND
        often = epoch == 4
        assert kept.restarts_often(now) is often
        assert (kept.verdict(now) is Health.WARN) is often
        assert (cause_of(kept, kept.verdict(now), now) is Cause.RESTARTS) is often
    assert not kept.restarts_often(now + 120 * SECOND)
    history([NOW, NOW], epoch=5, into=kept)
    unknown = kept.verdict(kept.seen + 100)
    assert (unknown, cause_of(kept, unknown, kept.seen + 100)) == (None, Cause.RESTARTS), "not told to be well"
    history([None, None], epoch=6, into=kept)
    assert cause_of(kept, kept.verdict(kept.seen + 100), kept.seen + 100) is Cause.RESTARTS, "it dies at each start"


@pytest.mark.parametrize("status", [Status.ENDED, Status.IDLE])
def test_short_runs_that_end_or_go_idle_are_no_restarts(status):
    kept = History()
    for epoch in range(1, 8):
        history(moving(3, start=kept.seen), epoch=epoch, into=kept)
        kept.take(mark("web", kept.watermark, 3, epoch=epoch, status=status), kept.seen + SECOND)
    assert not kept.restarts_often(kept.seen)


def test_what_is_not_behind_the_clock_is_well():
    assert history([50_000] * 20).verdict(40_000) is Health.OK


def test_a_watermark_in_another_century_is_no_forecast():
    placeholder, decades = 253_370_764_700_000, 40 * 365 * 86_400_000
    for watermark, verdict in ((placeholder, Health.TIME), (decades, Health.OK)):
        source = history([watermark] * 20)
        assert source.verdict(NOW) is verdict
    assert cause_of(history([placeholder]), history([placeholder]).verdict(NOW), NOW) is Cause.FUTURE


@pytest.mark.parametrize("status", [Status.IDLE, Status.ENDED])
def test_who_is_not_waited_for_is_well(status):
    source = history(moving(20))
    source.take(mark("web", 14_000, 20, status=status), 20_000)
    assert source.verdict(10**9) is Health.OK


def test_one_long_outage_is_forgotten():
    source = History()
    for number in range(20):
        source.take(mark("web", number, number), number * SECOND)
    for number in range(20, 200):
        source.take(mark("web", number, number), number * SECOND + 3_600_000)
    last = 199 * SECOND + 3_600_000
    assert source.verdict(last + 9_500) is Health.STOP


def test_replays_and_zombies_say_nothing():
    source = history(moving(20), epoch=2)
    before = (source.watermark, source.since, source.verdict(20_000))
    source.take(mark("web", 1, 5, epoch=2), 20_000)
    source.take(mark("web", 10**6, 99, epoch=1), 20_000)
    assert (source.watermark, source.since, source.verdict(20_000)) == before


def test_the_cause_tells_no_events_from_no_promises():
    assert cause_of(history([*moving(5), *[-1_000] * 12]), Health.STALL, NOW) is Cause.NO_EVENTS
    counting = History()
    for number in range(20):
        counting.take(mark("web", -9_000, number, records=number), number * SECOND)
    assert cause_of(counting, Health.STALL, NOW) is Cause.NO_PROMISE
    assert cause_of(history([None] * 3), None, NOW) is Cause.NOTHING_PROMISED


@pytest.mark.parametrize("watermark", [None, 5])
def test_a_source_that_died_right_after_its_start_is_not_waited_for(watermark):
    source = History()
    source.take(mark("web", watermark, 0), NOW)
    assert [cause_of(source, None, NOW + after) is Cause.ONE_MARK for after in (60_000, 60_001)] == [False, True]
    source.take(mark("web", watermark, 1), NOW + 200_000)
    assert cause_of(source, None, NOW + 300_000) is not Cause.ONE_MARK


def test_the_cause_tells_a_record_that_waits_from_data_that_is_late():
    """Both promise nothing for ten marks: one has waited since then, the other works off what comes."""
    stuck, late, buffers = History(), History(), History()
    for number in range(20):
        said = mark("web", -9_000, number, records=number, emitted_at=number * SECOND)
        stuck.take(replace(said, processing_time_watermark=4_000), number * SECOND)
        late.take(replace(said, processing_time_watermark=number * SECOND - 5), number * SECOND)
        job = replace(said, processing_time_watermark=number * SECOND - 5, holder=Holder("clicks"))
        buffers.take(job, number * SECOND)
    assert (stuck.works_off, late.works_off) == (False, True)
    assert [cause_of(one, Health.STALL, NOW) for one in (stuck, late, buffers)] == [
        Cause.NOT_ACKNOWLEDGED,
        Cause.NO_PROMISE,
        Cause.BUFFERED,
    ]

import pandas as pd
import pytest
from floodmark.producers.board.fold import Fold
from floodmark.producers.testing import mark
from floodmark.schemas.classify import Mark
from floodmark.schemas.records import Status
from floodmark.spark_jobs.demo.outcome import Guess, Outcome
from floodmark.spark_jobs.demo.run import Moment
from floodmark.spark_jobs.demo.show import _panel, conclusion
from rich.console import Console


def test_a_topic_that_has_ended_says_so_rather_than_that_nothing_is_known():
    fold = Fold(["flights", "daily-waves"])
    fold.take(Mark("flights", 0, 0, 0, mark("EWR", 9, sequence=0, status=Status.ENDED)))
    fold.take(Mark("daily-waves", 0, 0, 0, mark("daily", 1_357_000_000_000, sequence=0)))
    counts = {"flights": 5, "daily-waves": 0}
    console = Console(width=120)
    with console.capture() as shown:
        console.print(_panel(Moment("streaming", 5, counts, 1_357_003_600_000, fold.board(now=2_000_000_000_000)), 1))
    lines = {name: line for line in shown.get().splitlines() for name in counts if line.strip().startswith(name)}
    assert list(lines) == list(counts), "the topics stand in the order of the stages, each at the beginning of a line"
    assert any(line.strip().startswith("topic") for line in shown.get().splitlines())
    assert "ended" in lines["flights"]
    assert "unknown" not in lines["flights"]
    assert "2013-01-01 00:26:40Z" in lines["daily-waves"]
    assert "1.0 h" in lines["daily-waves"]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (0, "row by row."),
        (3, "withWatermark('10 minutes') on the first 7 days of the same topic dropped 35% of the flights and got 60%"),
    ],
)
def test_the_end_says_what_a_guess_loses_where_it_does(wrong, said):
    guesses = [Guess("10 minutes", 7, 100, 35, 5, wrong), Guess("12 hours", 7, 100, 0, 5, 0)]
    outcome = Outcome(
        days=7,
        flights=100,
        cancelled=0,
        lost=0,
        waves=5,
        windows=7,
        differing_waves=0,
        differing_windows=0,
        late=0,
        unreadable=0,
        records={},
        rows_read=None,
        crashes=0,
        lag_hours=5,
        guesses=guesses,
        seconds=1,
        picture="",
        results=pd.DataFrame(),
    )
    assert said in conclusion(outcome)
    assert ("withWatermark" in conclusion(outcome)) == (wrong > 0)

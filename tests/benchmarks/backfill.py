"""What a row of a backfill costs with marks, against plain Spark with the same query.

PYTHONPATH=tests python tests/benchmarks/backfill.py --help
"""

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer
from benchmarks.full_topic import ROCKSDB, TABLE_WAYS, WAYS, Place, Run, Way, fill, measure
from benchmarks.job_chain import median
from benchmarks.progress import progress, spark_settings
from floodmark.producers import EmbeddedKafka
from floodmark.producers.cli.command_line import run_command
from floodmark.spark_jobs import local_session
from floodmark.spark_jobs.demo.days_table import lake_settings
from rich.console import Console

_FIGURES = ("wall", "cpu", "jvm", "python")


def main(  # noqa: PLR0913  # the options of the command line
    *,
    rows: Annotated[int, typer.Option(min=2, help="Rows in the topic.")] = 4_000_000,
    batch: Annotated[int, typer.Option(min=1, help="The most records of a batch; fewer than --rows.")] = 500_000,
    partitions: Annotated[int, typer.Option(min=1, help="Of the topic.")] = 4,
    rounds: Annotated[int, typer.Option(min=1, help="Times that all ways take their turn; shown are medians.")] = 3,
    warm_up: Annotated[int, typer.Option(min=0, help="Rounds before those, which are left out.")] = 1,
    only: Annotated[
        str, typer.Option(help="Ways to run, by parts of their names with commas between them; default: all.")
    ] = "",
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting of the Spark session; may be repeated."),
    ] = None,
    every_row: Annotated[bool, typer.Option(help="Let each row be a result, without operators.")] = False,
    tables: Annotated[bool, typer.Option(help="Write into Iceberg and Delta tables, a commit a batch.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="A line of JSON for each way.")] = False,
) -> None:
    """Measure what a row of a backfill costs with marks, against plain Spark with the same query.

    A broker of its own, a topic that is full before any query starts, one Spark session on two cores with RocksDB.
    The query sums up rows per user and two minutes; twelve rows make a result.  All ways take turns, each with a new
    checkpoint and a new output topic: a function that writes to nowhere (plain Spark: foreachBatch), and a Kafka topic
    (plain Spark: its Kafka sink; Floodmark: at least once, exactly once through the driver, from the executors).  With
    --tables: an Iceberg and a Delta table (plain Spark: their streaming sinks).

    Shown are microseconds a row, after the first batch, which starts the query.  wall: of the batches.  cpu: processor
    time of Spark's JVM and of the driver's Python together; other load on the machine changes it least.  The last two
    columns compare with plain Spark and the same sink: ratios of the medians.

    Exit status: 0; 1 where a way read or wrote another number of rows than there are.
    """
    if batch >= rows:
        raise typer.BadParameter(f"--batch is {batch}, expected less than --rows ({rows}): the first batch is left out")
    ways = [way for way in (TABLE_WAYS if tables else WAYS) if any(part in way.name for part in only.split(","))]
    settings = {**ROCKSDB, **spark_settings(set_ or [])}
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    found: dict[str, list[Run]] = {way.name: [] for way in ways}
    wrong = False
    with tempfile.TemporaryDirectory() as folder, EmbeddedKafka(Path(folder, "kafka")) as kafka:
        with progress(console, f"{rows:,} rows") as report:
            fill(kafka.config, rows, partitions, report)
        lake = {**lake_settings(Path(folder)), "spark.sql.warehouse.dir": folder} if tables else {}
        spark = local_session("backfill", tables=("iceberg", "delta") if tables else (), settings={**lake, **settings})
        for number in range(warm_up + rounds):
            for position, way in enumerate(ways):
                title = f"{way.name}, round {number + 1} of {warm_up + rounds}" + " (warm-up)" * (number < warm_up)
                place = Place(spark, kafka, batch, Path(folder, f"backfill-{number}-{position}"), every_row)
                with progress(console, title) as report:
                    report("starting")
                    run = measure(way, place, rows, report)
                console.print(f"{title}: {run.wall:.2f} us a row, processor {run.cpu:.2f}", *run.wrong, sep="; ")
                wrong |= bool(run.wrong)
                if number >= warm_up:
                    found[way.name].append(run)
        spark.stop()
    lines = [_row(way, found) for way in ways]
    sys.stdout.write("".join(f"{json.dumps(line)}\n" for line in lines) if as_json else _table(lines, rounds))
    raise typer.Exit(int(wrong))


def _row(way: Way, found: dict[str, list[Run]]) -> dict[str, Any]:
    def middle(name: str, figure: str) -> float:
        return median([getattr(run, figure) for run in found[name]])

    like = {
        f"{figure}_to_plain": round(middle(way.name, figure) / middle(way.like, figure), 3)
        for figure in ("wall", "cpu")
        if way.like in found
    }
    each = {
        f"{figure}_of_each_round": [round(getattr(run, figure), 3) for run in found[way.name]]
        for figure in ("wall", "cpu")
    }
    return {
        "way": way.name,
        **{figure: round(middle(way.name, figure), 3) for figure in _FIGURES},
        **like,
        **each,
        "wrong": [text for run in found[way.name] for text in run.wrong],
    }


def _table(lines: list[dict[str, Any]], rounds: int) -> str:
    head = "".join(f"{name:>8}" for name in _FIGURES)
    text = [f"{os.cpu_count()} cores; us a row, medians of {rounds} rounds", "", f"{'':26}{head}   wall, cpu to plain"]
    for line in lines:
        figures = "".join(f"{line[name]:8.2f}" for name in _FIGURES)
        ratios = "".join(f"{line[name]:8.2f}" for name in ("wall_to_plain", "cpu_to_plain") if name in line)
        text.append(f"{line['way']:26}{figures}   {ratios}")
    return "\n".join(text) + "\n"


if __name__ == "__main__":
    run_command(main)

"""How long a closed window takes through a chain of jobs, with marks and in plain Spark, and what a batch spends.

PYTHONPATH=tests python tests/benchmarks/latency.py --help
"""

import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from benchmarks.job_chain import STEPS, Chain, Floodmark, Plain, Plan, Run, measure, median, quantile
from benchmarks.progress import progress, spark_settings
from floodmark.producers import EmbeddedKafka
from floodmark.producers.cli.command_line import run_command
from floodmark.spark_jobs import local_session
from matplotlib.figure import Figure
from rich.console import Console

_CORES = 2
_REMEMBERED = "spark.sql.streaming.numRecentProgressUpdates"  # batches
_PHASES = ("latestOffset", "walCommit", "queryPlanning", "addBatch", *STEPS, "commitOffsets", "commitBatch")
_SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


def main(
    *,
    jobs: Annotated[str, typer.Option(help="Lengths of the chains, in jobs.")] = "1,2,4,8",
    seconds: Annotated[int, typer.Option(min=1, help="Windows measured in each run, a second each.")] = 60,
    warm_up: Annotated[int, typer.Option(min=0, help="Windows before those, which are left out.")] = 20,
    runs: Annotated[int, typer.Option(min=1, help="Runs of each chain; shown are medians over them.")] = 3,
    plain: Annotated[bool, typer.Option(help="Run the same chains in plain Spark, too, in turns.")] = True,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting of the Spark session; may be repeated."),
    ] = None,
    picture: Annotated[
        Path | None, typer.Option(help="Draw which share of the windows was out after how long (PNG or SVG).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="A line of JSON for each chain.")] = False,
) -> None:
    """Measure the watermark latency of chains of Spark jobs: from the end of a window to its row in the last topic.

    A broker of its own, one Spark session on two cores, and a producer that follows the wall clock: 100 rows a second
    for ten users, a mark every 100 ms.  Each job counts rows per user in windows of a second, reads the topic of the
    job before and marks its own.  A window is closed, so its row is final, and a reader of committed records sees it.

    Then the same chain in plain Spark: withWatermark without a delay and the Kafka sink.  There a window closes when a
    row of a later one has been read, which behind the first job comes a second later for each job.

    A batch: milliseconds by Spark's own phases, median over all batches of all jobs; addBatch holds the steps of the
    handler: consume (the rows are worked out), snapshot, commit (the transaction), rest, and what Spark does around
    it.  CPU: seconds for each batch of the JVM (with the processes that it forks) and of Python; compiled: classes
    that Spark compiled anew for each batch; busy: the share of all cores that worked, for the broker, the producer and
    strangers, too.  load: of the machine in the minute before.

    Before all that, a chain of one job of each kind warms up the session, for `--warm-up` windows.  To compare
    settings, run it twice with different --set.

    Exit status: 0; 1 where a chain with marks lost, doubled or miscounted a window.
    """
    lengths, settings = _lengths(jobs), spark_settings(set_ or [])
    plan = Plan(warm_up, seconds)
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    found: dict[tuple[int, str], list[Run]] = {}
    with tempfile.TemporaryDirectory() as place, EmbeddedKafka(Path(place, "kafka")) as kafka, Floodmark() as marked:
        chains: list[Chain] = [marked, Plain()] if plain else [marked]
        spark = local_session("latency", cores=_CORES, settings={**settings, _REMEMBERED: "100000"})
        for chain in chains if warm_up else []:
            with progress(console, f"{chain.name}, 1 job, for the session to get warm") as report:
                folder = Path(place, f"{chain.name.lower()}-warm")
                measure(chain, 1, Plan(0, warm_up), kafka=kafka, spark=spark, folder=folder, report=report)
        for length in lengths:
            for number in range(1, runs + 1):
                for chain in chains:
                    title = f"{chain.name}, {length} job{'s' * (length > 1)}, run {number} of {runs}"
                    folder = Path(place, f"{chain.name.lower()}-{length}-{number}")
                    with progress(console, title) as report:
                        run = measure(chain, length, plan, kafka=kafka, spark=spark, folder=folder, report=report)
                    found.setdefault((length, chain.name), []).append(run)
                    console.print(f"{title}: {_latencies(run)}")
        spark.stop()
    rows = [_row(length, name, ran, settings) for (length, name), ran in found.items()]
    sys.stdout.write("".join(f"{json.dumps(row)}\n" for row in rows) if as_json else _tables(rows))
    if picture is not None:
        _draw(found, picture)
    raise typer.Exit(int(not all(run.exact for (_, name), ran in found.items() if name == marked.name for run in ran)))


def _lengths(jobs: str) -> list[int]:
    lengths = [int(length) for length in jobs.split(",") if length.strip().isdecimal()]
    if len(lengths) != len(jobs.split(",")) or not all(lengths):
        raise typer.BadParameter(f"--jobs is {jobs!r}, expected numbers of 1 or more with commas between them")
    return lengths


def _latencies(run: Run) -> str:
    times = ", ".join(f"{name} {quantile(run.latencies, share):.2f} s" for name, share in _SHARES.items())
    trouble = "" if run.exact else f"; {run.missing} missing, {run.doubled} doubled, {run.wrong} wrong"
    return f"{times}; {median(run.phases['triggerExecution']):.0f} ms a batch; load {run.load:.1f}{trouble}"


def _row(jobs: int, chain: str, runs: Sequence[Run], settings: dict[str, str]) -> dict[str, Any]:
    """Return what is known of a chain: of each figure the median over its runs."""
    names = ("triggerExecution", *_PHASES)
    phases = {
        name: round(median([median(run.phases[name]) for run in runs]), 1)
        for name in names
        if all(run.phases.get(name) for run in runs)
    }
    latencies = {
        name: round(median([quantile(run.latencies, share) for run in runs]), 3) for name, share in _SHARES.items()
    }
    verdict = {name: sum(getattr(run, name) for run in runs) for name in ("windows", "missing", "doubled", "wrong")}
    return {
        "chain": chain,
        "jobs": jobs,
        "runs": len(runs),
        **latencies,
        "p50_of_each_run": [round(quantile(run.latencies, 0.5), 3) for run in runs],
        "batch_ms": phases,
        "batches": sum(run.batches for run in runs),
        "cpu_seconds_a_batch": {
            "jvm": round(median([run.jvm for run in runs]), 3),
            "python": round(median([run.python for run in runs]), 3),
        },
        "compiled_a_batch": round(median([run.compiled for run in runs]), 2),
        "busy": round(median([run.busy for run in runs]), 3),
        "load": [round(run.load, 2) for run in runs],
        **verdict,
        "settings": settings,
    }


def _tables(rows: Sequence[dict[str, Any]]) -> str:
    lines = [
        f"{os.cpu_count()} cores; medians over {rows[0]['runs']} runs; settings: {rows[0]['settings'] or 'none'}",
        "",
        "chain      jobs   p50 s   p95 s   p99 s          results   a batch: JVM s  Python s  compiled   busy   load",
    ]
    for row in rows:
        latencies = "".join(f"{row[name]:8.2f}" for name in _SHARES)
        wrong = [f"{row[name]} {name}" for name in ("missing", "doubled", "wrong") if row[name]]
        windows = ", ".join(wrong) or f"{row['windows']:,} exact"
        cpu = row["cpu_seconds_a_batch"]
        load = f"{min(row['load']):.1f} to {max(row['load']):.1f}"
        lines.append(
            f"{row['chain']:10} {row['jobs']:4}{latencies}   {windows:>15}   {cpu['jvm']:14.2f}  {cpu['python']:8.2f}"
            f"{row['compiled_a_batch']:10.1f}{row['busy']:7.0%}   {load}"
        )
    heads = [name for name in _PHASES if any(name in row["batch_ms"] for row in rows)]
    lines += ["", "ms a batch   jobs   whole   " + "  ".join(heads), ""]
    for row in rows:
        phases = row["batch_ms"]
        cells = "  ".join(f"{phases[name]:{len(name)}.0f}" if name in phases else " " * len(name) for name in heads)
        lines.append(f"{row['chain']:12} {row['jobs']:4} {phases['triggerExecution']:7.0f}   {cells}")
    return "\n".join(lines) + "\n"


def _draw(found: dict[tuple[int, str], list[Run]], path: Path) -> None:
    """Draw the share of all windows that was out after so many seconds, over all runs of each chain."""
    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.subplots()
    lengths = sorted({length for length, _ in found})
    for (length, name), runs in found.items():
        times = sorted(latency for run in runs for latency in run.latencies)
        shares = [(number + 1) / len(times) for number in range(len(times))]
        style = "-" if name == Floodmark.name else "--"
        axes.step(times, shares, where="post", ls=style, color=f"C{lengths.index(length)}", label=f"{name}, {length}")
    axes.set_xlabel("seconds from the end of a window to its row in the last topic")
    axes.set_ylabel("share of the windows")
    axes.set_xlim(left=0)
    axes.set_ylim(0, 1)
    axes.legend(title="chain, jobs", frameon=False)
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    run_command(main)

"""The process of ``killed.py``: some kinds of jobs in one session, each of which looks ahead in every other start."""

import json
import random
import sys
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Final

import typer
from floodmark.producers.cli.command_line import run_command
from floodmark.spark_jobs import local_session
from support import operators as ops
from support import recipes
from support.harness import SMALL_BATCHES
from support.trial import frames, start

KINDS: Final = {
    "mixed": {
        "windows": ops.Query(ops.one, (ops.tumbling(5_000),)),
        "sessions": ops.Query(ops.one, (ops.session(900),)),
        "join": ops.Query(ops.joined("left", 700)),
        "function": ops.Query(ops.one, (ops.pandas_state(5_000),)),
        "duplicates": ops.Query(ops.one, (ops.deduplicated,)),
    },
    "temporal": {
        "looked-back": ops.Query(ops.one, (recipes.looked_back,)),
        "sliding": ops.Query(ops.one, (recipes.sliding_sums,)),
        "inner": ops.Query(recipes.temporal_join),
        "outer-left": ops.Query(ops.joined("left", 700)),
        "outer-right": ops.Query(ops.joined("right", 700)),
        "outer-full": ops.Query(ops.joined("full", 700)),
    },
}
"""Sets of jobs: name, also of the output topic, to query."""


def say(**fields: object) -> None:
    """Write a line of JSON."""
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


Text = Annotated[str, typer.Option()]


def main(bootstrap_servers: Text, directory: Text, kinds: Text) -> None:
    """Run them until all have ended."""
    spark = local_session("killed", settings=SMALL_BATCHES)
    chance = random.SystemRandom()
    jobs = {}
    for name, query in KINDS[kinds].items():
        ahead = chance.random() < 0.5
        given = frames(
            spark.newSession(), bootstrap_servers, ["left", "right"][: query.source.inputs], None if ahead else 200
        )
        jobs[name] = start(
            query.spark(given),
            name,
            str(Path(directory, name)),
            watermark_hold=query.given_hold,
            lookahead=timedelta(seconds=ahead),
        )
        say(kind=name, ahead=ahead)
    say(started=len(jobs))
    for job in jobs.values():
        job.awaitTermination()
    say(counts={name: job.counts for name, job in jobs.items()})


if __name__ == "__main__":
    run_command(main)

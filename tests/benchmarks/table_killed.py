"""Kill a job that writes a table, again and again, and compare the table with a batch computation.

    PYTHONPATH=tests python tests/benchmarks/table_killed.py [KILLS] [KIND] [MODE] [SEED]

KILLS (default 50): so often the job and Spark's JVM are ended by SIGKILL, each time at a step of a batch or a commit
that is drawn by chance, see `crashing_job`.  KIND: "iceberg" (default) or "delta".  MODE:
"append" (default), or "update" for a table with a key (MERGE).  Ends with status 0 only if
the table equals the batch computation row by row, and no watermark was above the truth or went back.
"""

import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from floodmark.producers import EmbeddedKafka, create_topics
from support.counting import WIDTH
from support.crashing_job import TABLE_STEPS, run
from support.harness import Stream
from support.lake import assert_true_marks, counts_in, opened, place_of, rows_of


def main(kills: int = 50, kind: str = "iceberg", mode: str = "append", seed: int = 1) -> int:
    """Run, kill, compare."""
    chance, stream = random.Random(seed), Stream.seeded(seed, steps=8 + 3 * kills)  # noqa: S311  # a repeatable run
    began, killed = time.monotonic(), Counter[str]()
    with tempfile.TemporaryDirectory() as folder, EmbeddedKafka(Path(folder, "kafka")) as kafka:
        create_topics(kafka.config, {"given": 2})
        stream.produce(kafka.config, "given")
        place = place_of(kind, Path(folder, "lake"), "totals")
        job = kafka.bootstrap_servers, "given", str(place), f"{folder}/checkpoint"
        for number in range(kills):
            step, batches = chance.choice(list(TABLE_STEPS)), str(chance.randrange(1, 4))
            commits = TABLE_STEPS[step][1] == "commit"
            every = chance.choice(["0", "0", "1"] if commits else ["0", "1", "3600"])
            code = run(*job, step, batches, delivery=kind, COMMIT_EVERY=every, OUTPUT_MODE=mode).returncode
            killed[step] += code == -signal.SIGKILL
            sys.stdout.write(f"{time.monotonic() - began:5.0f} s  {number + 1}: {step}, status {code}\n")
            sys.stdout.flush()
        done = run(*job, "none", delivery=kind, COMMIT_EVERY="0", OUTPUT_MODE=mode, PER_BATCH="600")
        sys.stdout.write(done.stderr[-2_000:] if done.returncode else "")
        table = opened(kind, place)
        found, expected, rows = counts_in(table), stream.windows(WIDTH), len(rows_of(table))
        assert_true_marks(table)
    missing, more = expected - found, found - expected
    sys.stdout.write(
        f"{killed.total()} SIGKILLs ({dict(killed)}), {time.monotonic() - began:.0f} s; {rows:,} rows: "
        f"{missing.total()} missing, {more.total()} too many\n"
    )
    return int(bool(missing or more or rows != len(expected) or done.returncode))


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:2]), *sys.argv[2:4], *map(int, sys.argv[4:5])))

"""What marks cost by the number of sources and partitions: each source apart, and merged in 100 pools with ``source=``.

    python tests/benchmarks/sources.py [--most 100000] [--to FILE]

Each source sends one record of 100 bytes and one round of marks a second.  No broker: the marks are made by the
product's writers, and read by its tracker and by the driver of a job (from Spark's metrics to a snapshot, in batches
of a second).  Each line is measured in a process of its own: seconds of processor time for each second of the topic.
Lines with more than ``--most`` marks a second are measured with fewer partitions and multiplied, and say so.
"""

import argparse
import base64
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from floodmark.producers import ascending
from floodmark.producers.strategies.emitter import Emitter
from floodmark.producers.strategies.merged import JoinedEmitter, MergedEmitter
from floodmark.producers.strategies.numbering import Identity
from floodmark.schemas import Membership, Tracker
from floodmark.schemas.classify import MarkRecord, classify, round_records
from floodmark.schemas.tracker import apply_mark
from floodmark.spark_jobs.progress.progress import Progress
from floodmark.spark_jobs.progress.reconcile import BatchMarks

SOURCES = 100, 1_000, 10_000
PARTITIONS = 10, 100, 1_000
POOLS = 100
DATA = 100  # bytes of a record
JOB = 100_000  # marks that a job reads at most, to be multiplied
BEGIN = 1_767_225_600_000


class Writers:
    """The emitters of all sources, and of the pools that merge them."""

    def __init__(self, sources: int, partitions: int, *, merged: bool) -> None:
        size = Membership(1, POOLS if merged else sources)
        build = ascending().build
        self.speaking: list[Emitter] = []
        self.writing: list[Emitter] = []
        if not merged:
            self.writing = self.speaking = [
                Emitter(Identity(f"device-{number}", 1, size), build(), partitions) for number in range(sources)
            ]
            return
        for number in range(POOLS):
            pool = MergedEmitter(Identity(f"gateway-{number}", 1, size), partitions)
            joined = [
                JoinedEmitter(Identity(f"device-{device}", 1, size), build(), pool)
                for device in range(number, sources, POOLS)
            ]
            pool.join(joined)
            self.speaking.append(pool)
            self.writing += joined

    def rounds(self, now: int) -> Iterator[tuple[list[tuple[int, MarkRecord]], float]]:
        """Let each source write a record; yield the marks of each writer, and their processor time."""
        for number, emitter in enumerate(self.writing):
            emitter.send(number % emitter.partitions, now, now).ack()
        for emitter in self.speaking:
            began = time.process_time()
            marks = emitter.marks(now)
            records = round_records(marks)
            took = time.process_time() - began
            yield [(number.partition, record) for number, record in zip(marks.numbers, records, strict=True)], took


def resident() -> int:
    """Return the memory of this process, bytes."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def measure(sources: int, partitions: int, merged: bool, most: int) -> dict[str, Any]:  # noqa: FBT001  # from JSON
    """Measure one line of the table."""
    speaking = POOLS if merged else sources
    marks, measured = speaking * partitions, min(partitions, max(1, most // speaking))
    times = marks / (speaking * measured)
    writers, before = Writers(sources, measured, merged=merged), resident()
    tracker = Tracker({"t"})
    text: list[dict[str, object]] = []
    for now in (BEGIN, BEGIN + 1_000):  # the second second is measured, when all is known
        writing = reading = 0.0
        size = 0
        for speaker, (records, took) in enumerate(writers.rounds(now)):
            writing += took
            began = time.process_time()
            for partition, record in records:
                mark = classify("t", partition, speaker, now, *record)
                apply_mark(tracker, mark)  # type: ignore[arg-type]  # it is one
            reading += time.process_time() - began
            size += sum(len(record.key) + len(record.value) + len("floodmark1") for _, record in records)
            if now == BEGIN:
                continue
            for partition, record in records[: JOB - len(text)]:
                key, value = (base64.b64encode(part).decode() for part in (record.key, record.value))
                place = {"topic": "t", "partition": partition, "offset": speaker, "log_time": now}
                text.append({**place, "key": key, "value": value})
        began = time.process_time()
        tracker.advance()
        reading += time.process_time() - began
    assert tracker.watermark == now, "each source has promised what it sent"
    memory = resident() - before
    began = time.process_time()
    snapshot = json.dumps(tracker.snapshot(), separators=(",", ":"))
    stored = time.process_time() - began
    metrics = json.dumps(text)
    progress = Progress(Tracker({"t"}))
    began = time.process_time()
    batch = BatchMarks.of([(metrics, {("t", partition): speaking for partition in range(measured)})])
    progress.apply(batch.marks)
    progress.reconcile(batch, {}, {}, ["t"])
    judged = (time.process_time() - began) * speaking * measured / len(text)
    return {
        "sources": sources,
        "partitions": partitions,
        "merged": merged,
        "marks_per_second": marks,
        "multiplied_by": times,
        "bytes_per_data_byte": size * times / (sources * DATA),
        "writers_seconds": writing * times,
        "tracker_seconds": reading * times,
        "job_seconds": (judged + stored) * times,
        "snapshot_bytes": len(snapshot) * times,
        "snapshot_ms": stored * times * 1000,
        "memory_mib": memory * times / 2**20,
    }


def shown(line: dict[str, Any]) -> str:
    """Return a line of the table."""
    return (
        f"{line['sources']:>7,} {line['partitions']:>6,} {'100 pools' if line['merged'] else 'apart':>10} "
        f"{line['marks_per_second']:>11,} {line['bytes_per_data_byte']:>9.2f} {line['writers_seconds']:>8.2f} "
        f"{line['tracker_seconds']:>8.2f} {line['job_seconds']:>8.2f} {line['snapshot_bytes'] / 1e6:>9.2f} "
        f"{line['snapshot_ms']:>9,.0f} {line['memory_mib']:>8,.0f}{'  *' if line['multiplied_by'] > 1 else ''}\n"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--most", type=int, default=100_000, help="Largest number of marks a second to measure.")
    parser.add_argument("--to", type=Path, help="File for the figures, JSON.")
    parser.add_argument("--line", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.line:
        sys.stdout.write(json.dumps(measure(*json.loads(given.line))))
        return
    sys.stdout.write(
        "sources   part.             marks a s    bytes  writers  tracker      job  snapshot  snapshot   memory\n"
        "                                      per byte        s        s        s        MB        ms      MiB\n"
    )
    lines = []
    for sources in SOURCES:
        for partitions in PARTITIONS:
            for merged in (False, True):
                line = json.dumps([sources, partitions, merged, given.most])
                command = [sys.executable, __file__, "--line", line]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                lines.append(json.loads(done.stdout))
                sys.stdout.write(shown(lines[-1]))
                sys.stdout.flush()
    sys.stdout.write("* measured with fewer partitions, and multiplied\n")
    if given.to is not None:
        commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
        machine = {"cores": os.cpu_count(), "python": platform.python_version(), "load": os.getloadavg()}
        given.to.write_text(json.dumps({"commit": commit, **machine, "lines": lines}, indent=1) + "\n")


if __name__ == "__main__":
    main()

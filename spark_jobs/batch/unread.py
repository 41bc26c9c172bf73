"""Records that were written to topics after a job had read them to their end."""

from collections.abc import Mapping
from itertools import islice
from typing import Final

from floodmark.producers.clients.admin import Config, begin_offsets, end_offsets
from floodmark.producers.readers.replay import read_until_end
from floodmark.schemas.classify import Data
from floodmark.schemas.errors import UnreadInputError
from floodmark.spark_jobs.progress.reconcile import Offsets

_MOST: Final = 100_000
"""How many records are looked at."""


def refuse_unread(job: str, inputs: Mapping[str, Config], offsets: Offsets) -> None:
    """Refuse to pass over data records that an ended job will not read; watermark records alone change nothing.

    Args:
        job: the job, which has ended.
        inputs: the topics that it reads, and the confluent-kafka settings to read each with.
        offsets: topic to partition (as text) to the offset that it reads next.

    Raises:
        UnreadInputError: names the places.
        BrokerUnavailableError: where the topics cannot be read.
    """
    count, looked, places = 0, 0, []
    for topic, config in inputs.items():
        read, begins = offsets.get(topic) or {}, begin_offsets(config, [topic])
        ends = {(topic, number): end for number, end in end_offsets(config, topic).items()}
        starts = {place: max(read.get(str(place[1]), 0), begins.get(place, 0)) for place in ends}
        starts = {place: start for place, start in starts.items() if start < ends[place]}
        first: dict[int, int] = {}
        for record in islice(read_until_end(config, starts, ends), _MOST - looked):
            looked += 1
            if isinstance(record, Data):
                count += 1
                first.setdefault(record.partition, record.offset)
        places += [f"{topic}/{number} from offset {offset} on" for number, offset in sorted(first.items())]
    if count:
        records = f"at least {count}" if looked >= _MOST else str(count)
        raise UnreadInputError(job=job, records=records, places=", ".join(places))

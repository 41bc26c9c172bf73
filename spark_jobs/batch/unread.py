"""Records that were written to topics after a job had read them to their end."""

from collections.abc import Mapping
from itertools import islice
from typing import Final

from floodmark.producers.clients.admin import Config, offset_bounds
from floodmark.producers.readers.replay import read_until_end
from floodmark.schemas.classify import Data, Offsets
from floodmark.schemas.errors import UnreadInputError

_MOST: Final = 100_000
"""How many records are looked at."""


def refuse_unread(job: str, inputs: Mapping[str, Config], offsets: Offsets) -> None:
    """Refuse to pass over data records that an ended job will not read; watermark records alone change nothing.

    Raises:
        UnreadInputError: names the places.
        BrokerUnavailableError: where the topics cannot be read.
    """
    count, looked, places = 0, 0, []
    for topic, config in inputs.items():
        bounds = offset_bounds(config, topic)
        starts = {place: max(offsets.get(place, 0), begin) for place, (begin, _) in bounds.items()}
        ends = {place: end for place, (_, end) in bounds.items()}
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

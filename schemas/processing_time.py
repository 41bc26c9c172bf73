"""How far sources and stages are by the clock: what has waited longest is not older than this.  Pure.

Theory of operation
-------------------
Beside its watermark, which speaks of event times, a mark speaks of processing time: *every record that its writer, or
a stage before it, took in before this time was worked off before the mark was written*.  Worked off means: acknowledged
by Kafka, for a source; handed on, dropped, or held in state for its event time, for a stage.  The difference tells a
stuck system, whose processing time stands, from late data, which is worked off and waits for its event time alone
("Streaming Systems", ch. 3).

- A source with nothing under way is as far as its mark.
- A stage is as far as the minimum over the sources that count in its inputs: the same rule, over the same sources, as
  for the watermark.  So the time of the last stage speaks for the whole chain.
- Whoever says nothing holds it, and what was handed on is never taken back.

The times come from the clocks of those who write them.  They are for people, and no result depends on them.
"""

from floodmark.schemas.records import WatermarkRecord
from floodmark.schemas.timestamps import EARLIEST


def processing_time_of(record: WatermarkRecord) -> int | None:
    """Return up to when the writer of a mark has worked off what came to it; ``None``: it does not say.

    >>> from dataclasses import replace
    >>> from floodmark.schemas.records import Holder
    >>> mark = WatermarkRecord(source="web", epoch=1, sequence=0, watermark=90, partitions=1, emitted_at=500)
    >>> waits = replace(mark, processing_time_watermark=420)
    >>> processing_time_of(mark), processing_time_of(waits), processing_time_of(replace(mark, holder=Holder("clicks")))
    (500, 420, None)
    """
    said = record.processing_time_watermark
    if said is not None:
        return None if said == EARLIEST else said
    return record.emitted_at if record.holder is None else None

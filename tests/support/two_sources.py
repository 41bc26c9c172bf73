"""Two sources that write a topic of JSON."""

import random
from datetime import timedelta

from floodmark.producers import WatermarkedProducer, explicit

LAST = 40_000  # the watermark at the end, where the sources do not end


def write(config: dict[str, str], topic: str, *, end: bool) -> list[tuple[int, str]]:
    """Write events of five keys, out of order, up to different watermarks; return the (time, key) of each."""
    chance, sent = random.Random(1), []  # noqa: S311  # a repeatable stream
    options = {"strategy": explicit(), "membership": 2, "interval": timedelta(hours=1), "background": False}
    sources = [WatermarkedProducer(config, topic=topic, source=name, **options) for name in ("a", "b")]
    for step in range(8):
        for number, source in enumerate(sources):
            watermark = step * 5_000 + number * 1_000
            for _ in range(20):
                time, key = watermark + chance.randrange(20_000), f"k{chance.randrange(5)}"
                source.produce(b'{"at": %d}' % time, key=key, event_time=time)
                sent.append((time, key))
            source.advance(watermark + 5_000)
            source.flush()
    for source in sources:
        if end:
            source.end()
        else:
            source.close()
    return sent

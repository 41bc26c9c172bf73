"""What tests of producers write, and what readers then know: records of JSON, the faults of a topic, its watermark."""

import json

from floodmark.producers import EmbeddedKafka, Observer
from floodmark.producers.event_times.formats import JsonField
from floodmark.producers.readers.check import checker_of, findings
from support.harness import until


def record(event_time: int) -> bytes:
    """Return a record whose field ``at`` is its event time."""
    return json.dumps({"at": event_time}).encode()


def faults(kafka: EmbeddedKafka, target: str) -> list[str]:
    """Return what `check` finds wrong with a topic of such records."""
    return list(map(str, findings(kafka.config, target, JsonField("at"), checker_of(kafka.config, target))))


def until_promised(kafka: EmbeddedKafka, target: str, watermark: int) -> None:
    """Wait until readers know of a watermark."""
    with Observer(kafka.config, [target]) as observer:
        tracker = observer.trackers[target]
        until(lambda: list(observer.poll()) and tracker.advance() == watermark, f"the watermark {watermark}")

"""From events to watermark records in Kafka, and back.

`strategies` decide the watermarks and are pure; users write with `producer` and read with `readers`.  `embedded` has a
real broker for first steps and tests; `testing` is for tests without a broker.
"""

from floodmark.producers.lazy import lazy_names

_PLACES, __getattr__ = lazy_names(__name__)
__all__ = list(_PLACES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""From events to watermark records: who promises what, when, and how it gets into Kafka beside the data.

`strategies` decide and are pure; `producer` is the shell a user writes with, `readers` are what a user reads with.
`embedded` holds a real broker for first steps and tests; `testing` is for tests without one.
"""

from floodmark.producers.lazy import lazy_names

_PLACES, __getattr__ = lazy_names(__name__)
__all__ = list(_PLACES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

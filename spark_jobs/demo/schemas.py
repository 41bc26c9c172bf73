"""The schemas of the demo's three topics, which stand in this folder."""

import json
from importlib.resources import files
from typing import Any

from floodmark.schemas.codec import AvroCodec, without_logical_types


def load_schema(name: str) -> dict[str, Any]:
    """Read a schema of the demo: ``flight``, ``departure_wave`` or ``daily_waves``.

    >>> load_schema("flight")["name"]
    'Flight'
    """
    return dict(json.loads(files("floodmark.spark_jobs.demo").joinpath(f"{name}.avsc").read_text(encoding="utf-8")))


def codec_of(name: str) -> AvroCodec:
    """Return the codec of a schema of the demo; times are epoch milliseconds.

    >>> codec_of("daily_waves").name
    'DailyWaves'
    """
    return AvroCodec(without_logical_types(load_schema(name)))

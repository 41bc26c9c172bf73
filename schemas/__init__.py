"""The contract: what a watermark record is, on the wire and in meaning, and how records combine.  Pure Python.

`records` defines the watermark record (*mark* for short), `codec` turns it to bytes and back, `classify` tells it from
data, `tracker` combines marks, `counts` and `checker` hold them against the log, `errors` names what can go wrong.
``SPEC.md`` in this folder says the same without a programming language, ``vectors.json`` as bytes.
"""

from floodmark.schemas import errors
from floodmark.schemas.codec import AvroCodec, decode_watermark, encode_watermark, watermark_schema
from floodmark.schemas.errors import FloodmarkError
from floodmark.schemas.records import (
    FORMAT_VERSION,
    HEADER,
    KEY_PREFIX,
    Holder,
    Membership,
    Status,
    Verdict,
    WatermarkRecord,
    is_mark_key,
    mark_key,
)
from floodmark.schemas.timestamps import END_OF_TIME, event_time_of, from_datetime, is_late, milliseconds, to_datetime
from floodmark.schemas.tracker import Hold, Tracker

__all__ = [
    "END_OF_TIME",
    "FORMAT_VERSION",
    "HEADER",
    "KEY_PREFIX",
    "AvroCodec",
    "FloodmarkError",
    "Hold",
    "Holder",
    "Membership",
    "Status",
    "Tracker",
    "Verdict",
    "WatermarkRecord",
    "decode_watermark",
    "encode_watermark",
    "errors",
    "event_time_of",
    "from_datetime",
    "is_late",
    "is_mark_key",
    "mark_key",
    "milliseconds",
    "to_datetime",
    "watermark_schema",
]

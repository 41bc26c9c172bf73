"""What the options of the commands say of values: where their times stand, and what describes them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from floodmark.producers.cli.settings import REGISTRY, settings_file, text_file
from floodmark.producers.clients.framed import FramedValues
from floodmark.producers.clients.registry import Registry
from floodmark.producers.event_times.changefeeds import CockroachDb, TiCdcCanal, TiCdcOpen
from floodmark.producers.event_times.formats import (
    AvroField,
    FramedField,
    InputFormat,
    JsonField,
    LogTime,
    SubstreamKey,
    substream_json,
    substream_key,
)
from floodmark.schemas.codec import AvroCodec, without_logical_types
from floodmark.schemas.errors import UsageError

_CHANGEFEEDS: Final[dict[str, Callable[[], InputFormat]]] = {
    "cockroachdb": CockroachDb,
    "ticdc-canal": TiCdcCanal,
    "ticdc-open": TiCdcOpen,
}


def registry_of(url: str | None, config: Path | None) -> Registry | None:
    """Return the registry that the options name; ``None``: none.

    Its settings stand in the file of settings: ``schema.registry.url``, ``schema.registry.basic.auth.user.info`` and
    whatever else confluent-kafka's client takes, behind the same words.

    Raises:
        UsageError: where a setting is none that the client knows, or the client is not installed.
    """
    found = settings_file(config).items()
    settings = {name.removeprefix(REGISTRY): value for name, value in found if name.startswith(REGISTRY)}
    address = settings.pop("url", None) if url is None else url
    if address is None:
        return None
    settings.pop("url", None)
    try:
        return Registry(address, settings)
    except ImportError as error:
        raise UsageError(reason=str(error)) from error


def decoder_of(schema: Path | None, registry: Registry | None) -> Callable[[bytes], Any] | None:
    """Return what shows values: by a schema, or by those of a registry; ``None``: nothing is known of them."""
    if schema is not None:
        return AvroCodec(without_logical_types(text_file(schema))).decode
    return None if registry is None else FramedValues(registry).decode


def input_format(  # options of a command
    changefeed: str | None,
    json_field: str | None,
    unit: str | None,
    schema: Path | None,
    event_time: str | None,
    registry: Registry | None,
    *,
    log_time: bool,
) -> InputFormat:
    """Return what the options of ``inject`` say of time.

    Raises:
        UsageError: where they say nothing, or two things.
    """
    given = [changefeed is not None, json_field is not None, event_time is not None, log_time]
    if sum(given) != 1 or (event_time is None and schema is not None):
        reason = (
            "inject needs one of --json-field, --event-time with --schema or --registry, --log-time and --changefeed"
        )
        raise UsageError(reason=reason)
    if unit is not None and json_field is None and event_time is None:
        raise UsageError(reason="--unit is the unit of a field: of --json-field, or of --event-time")
    if changefeed is not None:
        if changefeed not in _CHANGEFEEDS:
            raise UsageError(reason=f"changefeed {changefeed!r}: expected one of {', '.join(_CHANGEFEEDS)}")
        return _CHANGEFEEDS[changefeed]()
    if json_field is not None:
        return JsonField(json_field, unit or "ms")  # type: ignore[arg-type]  # it checks the unit
    if event_time is None:
        return LogTime()
    if schema is not None:
        return AvroField(text_file(schema), event_time, unit)  # type: ignore[arg-type]  # the same
    if registry is None:
        raise UsageError(reason="--event-time is a field of what --schema or --registry describes: name one of them")
    return FramedField(FramedValues(registry).decode, event_time, unit or "ms")  # type: ignore[arg-type]  # the same


def judged_values(
    json_field: str | None, unit: str, schema: Path | None, event_time: str | None, registry: Registry | None
) -> InputFormat | None:
    """Return what the options of ``check`` say of time; ``None``: nothing.

    Raises:
        UsageError: where they say two things, or half of one.
    """
    if json_field is None and schema is None and event_time is None:
        return None
    if (event_time is None) == (json_field is None) or (event_time is None and schema is not None):
        reason = "check needs --event-time with --schema or --registry, or --json-field, or none of them"
        raise UsageError(reason=reason)
    return input_format(None, json_field, unit, schema, event_time, registry, log_time=False)


def substreams(substream_by: str | None) -> SubstreamKey | None:
    """Return what ``--substream-by`` names: ``key``, or a JSON field."""
    if substream_by is None:
        return None
    return substream_key if substream_by == "key" else substream_json(substream_by)

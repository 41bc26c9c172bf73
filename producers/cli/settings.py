"""From the options of commands to Kafka settings, input formats, decoders and registries."""

import math
import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from floodmark.producers.cli.command_line import REGISTRY_VARIABLE
from floodmark.producers.clients.admin import QUIET, without_secrets
from floodmark.producers.clients.registry import FramedValues, Registry
from floodmark.producers.clients.secrets import properties, resolved
from floodmark.producers.event_times import changefeeds, formats
from floodmark.producers.event_times.option_values import CHANGEFEEDS
from floodmark.producers.readers.alignment import Alignment
from floodmark.schemas.codec import AvroCodec, without_logical_types
from floodmark.schemas.errors import UsageError

REGISTRY: Final = "schema.registry."  # prefix of the registry's settings in the file, as in Kafka's Java clients


def kafka_settings(bootstrap_servers: str | None, config: Path | None) -> dict[str, str]:
    """Return the confluent-kafka settings of a command; UsageError if there is no address, or a setting is unknown."""
    found = settings_file(config)
    settings = {name: value for name, value in found.items() if not name.startswith(REGISTRY)}
    if bootstrap_servers is not None:
        settings["bootstrap.servers"] = bootstrap_servers
    try:
        AdminClient(dict[str, Any](settings), logger=QUIET)
    except (KafkaException, ValueError, TypeError) as error:
        where = "Kafka setting" if config is None else f"Kafka setting in {config}"
        reason = error.args[0].str() if isinstance(error, KafkaException) else str(error)
        raise UsageError(reason=f"{where}: {without_secrets(reason, settings)}") from None
    if not settings.get("bootstrap.servers"):
        reason = "no Kafka address: pass --bootstrap-servers, or set FLOODMARK_BOOTSTRAP_SERVERS, or set"
        raise UsageError(reason=f"{reason} bootstrap.servers in the file of --config")
    return settings


def settings_file(path: Path | None) -> dict[str, str]:
    """Read Kafka settings from a file, which may refer to secrets, see `secrets`; a UsageError names no value."""
    if path is None:
        return {}
    settings = properties(text_file(path), path)
    try:
        return resolved(settings)
    except UsageError as error:
        raise UsageError(reason=f"{path}: {error.reason}") from error


def text_file(path: Path) -> str:
    """Return the text of a file, or raise `UsageError`."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(reason=f"{path} is no UTF-8 text") from error
    except OSError as error:
        raise UsageError(reason=f"{path} cannot be read: {error.strerror}") from error


def seconds(value: float, option: str) -> timedelta:
    """Return the duration of an option in seconds, or raise `UsageError`."""
    if not math.isfinite(value) or abs(value) > timedelta.max.total_seconds() / 2:
        raise UsageError(reason=f"{option} is {value:g}, expected a number of seconds")
    return timedelta(seconds=value)


def alignment_of(topic: str | None, bound: float | None) -> Alignment | None:
    """Return the alignment of two options; UsageError if only one of them is given."""
    if topic is None and bound is None:
        return None
    if topic is None or bound is None:
        raise UsageError(reason="--align-topic and --align-bound work only together: pass both")
    return Alignment(seconds(bound, "--align-bound"), topic)


def registry_of(url: str | None, config: Path | None) -> Registry | None:
    """Return the registry of --registry or ``schema.registry.url``, with other settings of that prefix in the file."""
    found = settings_file(config).items()
    settings = {name.removeprefix(REGISTRY): value for name, value in found if name.startswith(REGISTRY)}
    address = settings.pop("url", None) if url is None else url
    try:
        return None if address is None else Registry(address, settings)
    except ImportError as error:
        raise UsageError(reason=str(error)) from error


def _is_typed(registry: str | None) -> bool:
    """Tell whether --registry is on the command line; its variable may be set for other commands."""
    return registry is not None and registry != os.environ.get(REGISTRY_VARIABLE)


def decoder_of(schema: Path | None, url: str | None, config: Path | None) -> Callable[[bytes], Any] | None:
    """Return the decoder of values with this schema or registry; ``None``: neither is given."""
    if schema is not None and _is_typed(url):
        raise UsageError(reason="--schema and --registry each say how to decode values: pass only one of them")
    if schema is not None:
        return AvroCodec(without_logical_types(text_file(schema))).decode
    registry = registry_of(url, config)
    return None if registry is None else FramedValues(registry).decode


class FieldOptions(NamedTuple):
    """The options of a command that name the field with the event time, and say how to read it."""

    json_field: str | None = None
    unit: str | None = None
    schema: Path | None = None
    event_time: str | None = None
    registry: str | None = None
    config: Path | None = None


def input_format(changefeed: str | None, options: FieldOptions, *, log_time: bool) -> formats.InputFormat:
    """Return the input format of the options of ``inject``; `UsageError` if they name none, or more than one."""
    json_field, unit, schema, event_time, registry, config = options
    values = {
        "--json-field": json_field,
        "--event-time": event_time,
        "--log-time": log_time,
        "--changefeed": changefeed,
    }
    given = [name for name, value in values.items() if value not in {None, False}]
    if len(given) > 1:
        raise UsageError(reason=f"{' and '.join(given)} each say how to read event times: pass only one of them")
    if event_time is None and (not given or schema is not None):
        names = "--json-field, --event-time with --schema or --registry, --log-time and --changefeed"
        other = f"; --schema does not go with {given[0]}" if given else ""
        raise UsageError(reason=f"inject needs one of {names}{other}")
    if _is_typed(registry) and (event_time is None or schema is not None):
        raise UsageError(reason="--registry describes the values of --event-time: pass these two, and no --schema")
    if unit is not None and json_field is None and event_time is None:
        raise UsageError(reason="--unit is the unit of a field: of --json-field, or of --event-time")
    if changefeed is not None:
        if changefeed not in CHANGEFEEDS:
            raise UsageError(reason=f"changefeed {changefeed!r}: expected one of {', '.join(CHANGEFEEDS)}")
        feed: formats.InputFormat = getattr(changefeeds, CHANGEFEEDS[changefeed])()
        return feed
    if json_field is not None:
        return formats.JsonField(json_field, unit or "ms")  # type: ignore[arg-type]  # it checks the unit
    if event_time is None:
        return formats.LogTime()
    return _described_field(event_time, unit, schema, registry_of(registry, config))


def _described_field(
    event_time: str, unit: str | None, schema: Path | None, registry: Registry | None
) -> formats.InputFormat:
    if schema is not None:
        return formats.AvroField(text_file(schema), event_time, unit)  # type: ignore[arg-type]  # it checks the unit
    if registry is None:
        raise UsageError(reason="--event-time is a field of what --schema or --registry describes: name one of them")
    return formats.FramedField(FramedValues(registry).decode, event_time, unit or "ms")  # type: ignore[arg-type]  # the same


def judged_values(options: FieldOptions) -> formats.InputFormat | None:
    """Return the input format of ``check`` or ``trigger``; ``None``: options name none; UsageError: only a part."""
    json_field, unit, schema, event_time, registry, _ = options
    if {json_field, unit, schema, event_time} == {None} and not _is_typed(registry):
        return None
    if (event_time is None) == (json_field is None) or (event_time is None and schema is not None):
        names = "--event-time with --schema or --registry, or --json-field"
        raise UsageError(reason=f"to read event times, pass {names}; else pass none of them, and no --unit")
    return input_format(None, options, log_time=False)


def substreams(substream_by: str | None) -> formats.SubstreamKey | None:
    """Return the substream of ``--substream-by``: the Kafka key, or a JSON field."""
    if substream_by is None:
        return None
    return formats.substream_key if substream_by == "key" else formats.substream_json(substream_by)

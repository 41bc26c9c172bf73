"""Kafka settings and other values from the options of a command."""

import math
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from floodmark.producers.clients.admin import QUIET, redacted
from floodmark.producers.clients.secrets import properties, resolved
from floodmark.schemas.errors import UsageError

REGISTRY: Final = "schema.registry."
"""Prefix of the schema registry's settings in the config file, as in Kafka's Java clients."""


def kafka_settings(bootstrap_servers: str | None, config: Path | None) -> dict[str, str]:
    """Return the confluent-kafka settings of a command, checked; ``bootstrap_servers`` overrides the file.

    Raises:
        UsageError: there is no address, or confluent-kafka does not know a setting.
    """
    found = settings_file(config)
    settings = {name: value for name, value in found.items() if not name.startswith(REGISTRY)}
    if bootstrap_servers is not None:
        settings["bootstrap.servers"] = bootstrap_servers
    if not settings.get("bootstrap.servers"):
        reason = "no Kafka address: pass --bootstrap-servers, or set FLOODMARK_BOOTSTRAP_SERVERS, or set"
        raise UsageError(reason=f"{reason} bootstrap.servers in the file of --config")
    try:
        AdminClient(dict[str, Any](settings), logger=QUIET)
    except (KafkaException, ValueError, TypeError) as error:
        where = "Kafka setting" if config is None else f"Kafka setting in {config}"
        raise UsageError(reason=f"{where}: {_without_secrets(_reason(error), settings)}") from None
    return settings


def _reason(error: Exception) -> str:
    return error.args[0].str() if isinstance(error, KafkaException) else str(error)


def _without_secrets(text: str, settings: dict[str, str]) -> str:
    for name, shown in redacted(settings).items():
        if shown != settings[name] and settings[name]:
            text = text.replace(settings[name], shown)
    return text


def settings_file(path: Path | None) -> dict[str, str]:
    """Read Kafka settings from a file, so that secrets need not be on the command line.

    The file has one ``name=value`` per line, as for Kafka's own tools, and may refer to secrets, see `secrets`.

    Raises:
        UsageError: the file, a line or a secret cannot be read; the message never contains a value.
    """
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
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(reason=f"{path} is no UTF-8 text") from error
    except OSError as error:
        raise UsageError(reason=f"{path} cannot be read: {error.strerror}") from error


def seconds(value: float, option: str) -> timedelta:
    """Return the duration of an option in seconds, or raise `UsageError`.

    >>> seconds(1.5, "--late")
    datetime.timedelta(seconds=1, microseconds=500000)
    """
    if not math.isfinite(value) or abs(value) > timedelta.max.total_seconds() / 2:
        raise UsageError(reason=f"{option} is {value:g}, expected a number of seconds")
    return timedelta(seconds=value)

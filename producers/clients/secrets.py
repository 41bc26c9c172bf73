"""References to secrets in Kafka settings, as in Kafka's own config providers.

``${env:NAME}``, ``${file:/path/to.properties:name}`` and ``${directory:/path:file}``; a ``$`` without ``{`` stays.
"""

import os
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from floodmark.schemas.errors import UsageError

PLACE: Final = re.compile(r"\$\{(env|file|directory):(?:([^}]*):)?([^:}]*)\}")


def resolved(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Replace references by the secrets; a `UsageError` names a setting with another reference, or without a secret.

    >>> os.environ["USER_OF_KAFKA"] = "us"
    >>> resolved({"sasl.username": "${env:USER_OF_KAFKA}", "sasl.password": "$5", "retries": 3})
    {'sasl.username': 'us', 'sasl.password': '$5', 'retries': 3}
    """
    return {name: _resolved(name, value) if isinstance(value, str) else value for name, value in settings.items()}


def _resolved(name: str, value: str) -> str:
    if "${" in PLACE.sub("", value):
        known = "${env:NAME}, ${file:PATH:NAME} and ${directory:PATH:FILE}"
        reason = (
            f"setting {name!r}: it has a '${{' that begins none of {known}. A secret with '${{' must be in one of them"
        )
        raise UsageError(reason=reason)
    return PLACE.sub(partial(_look_up, name), value)


def _look_up(setting: str, place: re.Match[str]) -> str:
    provider, path, key = place.groups()
    try:
        if provider == "env":
            return os.environ[key]
        if provider == "directory":
            return Path(path, key).read_text(encoding="utf-8")
        return properties(Path(path).read_text(encoding="utf-8"), path)[key]
    except (KeyError, OSError, TypeError, UnicodeDecodeError) as error:
        why = "it is not set" if isinstance(error, KeyError) else f"it cannot be read: {type(error).__name__}"
        reason = f"setting {setting!r}: nothing is found at {place.group()}: {why}"
        raise UsageError(reason=reason) from error


def properties(text: str, path: object) -> dict[str, str]:
    r"""Read the ``name=value`` lines of a properties file; ``#`` or ``!`` starts a comment; errors show no value.

    >>> properties("# ours\nname = value=1", "a file")
    {'name': 'value=1'}
    """
    found = {}
    for number, line in enumerate(map(str.strip, text.splitlines()), start=1):
        name, equals, value = line.partition("=")
        if line.startswith(("#", "!")) or not line:
            continue
        if not equals or not name.strip():
            raise UsageError(reason=f"{path} line {number}: expected name=value")
        found[name.strip()] = value.strip()
    return found

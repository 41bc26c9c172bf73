"""Security settings, given once: confluent-kafka's, converted to the names of Spark's Kafka client.

A setting may name the place of a secret, see `secrets`.  confluent-kafka gets the secret.  Spark gets the place, which
its Kafka clients look up on every machine, so Spark's plans show no secrets.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from floodmark.producers.clients.secrets import PLACE
from floodmark.schemas.errors import UsageError

Client = Mapping[str, Any] | Callable[[], Mapping[str, Any]]
"""confluent-kafka settings, or a function that returns them."""

_PROVIDERS: Final = {
    "env": "org.apache.kafka.common.config.provider.EnvVarConfigProvider",
    "file": "org.apache.kafka.common.config.provider.FileConfigProvider",
    "directory": "org.apache.kafka.common.config.provider.DirectoryConfigProvider",
}
_SAME: Final = (
    "security.protocol",
    "sasl.kerberos.service.name",
    "ssl.key.password",
    "ssl.keystore.location",
    "ssl.keystore.password",
)
_LOGIN: Final = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_READ: Final = {
    *(*_SAME, "sasl.mechanism", "sasl.mechanisms", "sasl.username", "sasl.password", "sasl.kerberos.kinit.cmd"),
    *("ssl.ca.location", "ssl.ca.pem", "ssl.certificate.location", "ssl.certificate.pem", "ssl.key.location"),
    *("ssl.key.pem", "ssl.endpoint.identification.algorithm", "sasl.kerberos.min.time.before.relogin"),
}
"""Security settings that are converted, or that Spark's Kafka client does not need."""
_JAVA_KINDS: Final = {"https.": "ssl.", "oauth_cb": "sasl."}  # where the kind of a setting has another name in Java


def settings_of(client: Client | None) -> dict[str, Any]:
    """Return the settings as given."""
    return dict((client() if callable(client) else client) or {})


def spark_options(settings: Mapping[str, Any], own: Mapping[str, str]) -> dict[str, str]:
    """Convert the security settings of confluent-kafka to options of Spark's Kafka source and writer.

    It refuses a security setting that it cannot convert, unless ``own`` has one of its kind (``kafka.sasl.*`` or
    ``kafka.ssl.*``): Spark's client would connect without it, or fail with an error that does not name it.

    >>> secret = {"sasl.mechanism": "PLAIN", "sasl.username": "us", "sasl.password": "${env:PASSWORD}"}
    >>> options = spark_options({"security.protocol": "SASL_SSL", **secret, "ssl.ca.location": "/ca.pem"}, {})
    >>> options["kafka.sasl.jaas.config"].partition(" ")[2]
    'required username="us" password="${env:PASSWORD}";'
    >>> options["kafka.ssl.truststore.location"], options["kafka.config.providers"]
    ('/ca.pem', 'env')
    """
    for name in sorted(settings.keys() - _READ):
        _require_own(name, own)
    java = {name: str(settings[name]) for name in _SAME if name in settings}
    mechanism = settings.get("sasl.mechanism", settings.get("sasl.mechanisms"))
    if mechanism is not None:
        java["sasl.mechanism"] = str(mechanism)
        if mechanism not in {*_LOGIN, "GSSAPI"}:
            _require_own(f"sasl.mechanism={mechanism}", own)
        if mechanism in _LOGIN and "sasl.username" in settings:
            user, password = (_quoted(settings.get(f"sasl.{part}", "")) for part in ("username", "password"))
            java["sasl.jaas.config"] = f"{_LOGIN[mechanism]} required username={user} password={password};"
    java |= _tls(settings)
    used = {place.group(1) for value in java.values() for place in PLACE.finditer(value)}
    if used:
        java["config.providers"] = ",".join(sorted(used))
        java |= {f"config.providers.{name}.class": _PROVIDERS[name] for name in used}
    return {f"kafka.{name}": value for name, value in java.items()} | dict(own)


def _tls(settings: Mapping[str, Any]) -> dict[str, str]:
    java = {}
    if "ssl.keystore.location" in settings:
        java["ssl.keystore.type"] = "PKCS12"
    if "ssl.ca.location" in settings:
        java |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(settings["ssl.ca.location"])}
    elif "ssl.ca.pem" in settings:
        java |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": str(settings["ssl.ca.pem"])}
    for name, java_name in (("ssl.certificate", "ssl.keystore.certificate.chain"), ("ssl.key", "ssl.keystore.key")):
        pem, location = settings.get(f"{name}.pem"), settings.get(f"{name}.location")
        if pem is not None or location is not None:
            java |= {"ssl.keystore.type": "PEM", java_name: str(pem) if pem is not None else _file(str(location))}
    if settings.get("ssl.endpoint.identification.algorithm") == "none":
        java["ssl.endpoint.identification.algorithm"] = ""
    return java


def _require_own(setting: str, own: Mapping[str, str]) -> None:
    """Refuse a setting that cannot be converted, unless the user gives Spark options of its kind."""
    found = re.search(r"\b(?:sasl\.|ssl\.|https\.|oauth_cb)", setting)
    kind = None if found is None else _JAVA_KINDS.get(found[0], found[0])
    if kind is not None and not any(name.lower().startswith(f"kafka.{kind}") for name in own):
        reason = (
            f"setting {setting!r} does not reach Spark's Kafka client, which has another name for it: "
            f"pass Java's setting as well, as a Spark option 'kafka.{kind}...' (source_options, sink_options)"
        )
        raise UsageError(reason=reason)


def _quoted(value: object) -> str:
    escaped = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _file(location: str) -> str:
    """Return the place of a whole file."""
    path = Path(location)
    return f"${{directory:{path.parent}:{path.name}}}"

"""A schema registry, and values with the id of one of its schemas.  Needs ``floodmark[registry]``."""

import json
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, Literal, TypeVar
from urllib.parse import urlsplit, urlunsplit

from floodmark.producers.clients.admin import without_secrets
from floodmark.producers.clients.clock import Deadline
from floodmark.producers.event_times.formats import json_object
from floodmark.schemas.errors import (
    IncompatibleSchemaError,
    RegistryError,
    SchemaError,
    UnreadableValueError,
    UnregisteredSchemaError,
    UsageError,
)
from floodmark.schemas.registered_values import AvroBody, Schema, message_path, unframed
from typing_extensions import override

Kind = Literal["AVRO", "PROTOBUF", "JSON"]
_T = TypeVar("_T")

_NOT_FOUND: Final = 404
_RETRY_PAUSES: Final = (0.0, 0.2, 0.6)  # seconds; a replica of a registry may be a moment behind
_MOST_RETRIED: Final = 5  # missing ids
_MOST_REMEMBERED: Final = 10_000  # missing ids
_Decode = Callable[[bytes], dict[str, Any]]


class Registry:
    """A schema registry with Confluent's interface; its `repr` shows no secret.

    It stores settings, because clients cannot be pickled: each Python worker of Spark makes its own client once.

    Args:
        url: of the registry; with several, separated by commas, the client tries each in turn.
        config: settings of confluent-kafka's ``SchemaRegistryClient``, such as ``basic.auth.user.info``, passed
            through; ``timeout`` defaults to 10 seconds.  `UsageError` if the client does not know one.
        identity: of this registry and its copies in other processes; the default is new.
    """

    def __init__(self, url: str, config: Mapping[str, Any] | None = None, *, identity: str | None = None) -> None:
        if not all(one.strip().startswith(("http://", "https://")) for one in url.split(",")):
            shown = url.rpartition("@")[2]  # without a password
            raise UsageError(reason=f"schema registry {shown!r}: expected a URL that begins with http:// or https://")
        self.config: Final[dict[str, Any]] = {"timeout": 10, "max.retries": 2, **(config or {}), "url": url}
        self.url: Final = ",".join(map(_without_user, url.split(",")))
        self._identity: Final = identity or uuid.uuid4().hex  # for a function: no text of it is the same in each copy
        self.key: Final = json.dumps(self.config, sort_keys=True, default=lambda _: self._identity)
        """Identifies the registry in this process; it contains secrets."""
        try:
            _ = self._clients
        except (ValueError, TypeError) as error:
            names = ", ".join(sorted(config or {})) or "none"
            reason = f"schema registry {self.url}: it cannot be used with the settings {names}: {type(error).__name__}"
            raise UsageError(reason=reason) from None

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        url = self.config["url"]
        others = {name: value for name, value in self.config.items() if name != "url"}
        return partial(Registry, identity=self._identity), (url, others)

    @override
    def __repr__(self) -> str:
        return f"Registry({self.url!r})"

    def schema(self, schema_id: int) -> Schema | None:
        """Return the schema of an id, ``None`` if the registry has none.

        Raises RegistryError if the registry does not answer, or lacks a schema to which this one refers.
        """
        missing = self._clients.missing
        remembered = missing.get(schema_id)
        if remembered is not None and not remembered.passed:
            return None
        with self._clients.asking:
            # Garbage may have any number of ids: it must cost neither time nor memory.
            for known in [known for known, again in missing.items() if again.passed]:
                del missing[known]
            for pause in _RETRY_PAUSES if len(missing) < _MOST_RETRIED else _RETRY_PAUSES[:1]:
                time.sleep(pause)
                found = self._fetch(schema_id)
                if found is not None:
                    missing.pop(schema_id, None)
                    return self._with_references(found)
            if len(missing) >= _MOST_REMEMBERED:
                missing.clear()
            missing[schema_id] = Deadline(10.0)
            return None

    def _fetch(self, schema_id: int) -> Any:  # noqa: ANN401  # the client's class, of an extra
        clients, action = self._clients, f"give schema {schema_id}"
        found = self._answer(action, lambda: clients.client.get_schema(schema_id))
        if found is None or found.schema_type != "PROTOBUF":
            return found
        # A client caches a schema in one format, so the Protobuf format needs a second client.
        return self._answer(action, lambda: clients.protobuf_client.get_schema(schema_id, fmt="serialized")) or found

    def _with_references(self, found: Any) -> Schema:  # noqa: ANN401  # as above
        kind = str(found.schema_type or "AVRO")
        asked: dict[str, Any] = {"fmt": "serialized"} if kind == "PROTOBUF" else {}
        references = []
        for one in found.references or []:
            ask = partial(self._clients.client.get_version, one.subject, one.version, **asked)
            references.append((str(one.name), self._with_references(self._referenced(one, ask).schema)))
        return Schema(kind, str(found.schema_str), tuple(references))

    def _referenced(self, one: Any, ask: Callable[[], Any]) -> Any:  # noqa: ANN401  # as above
        """Return a schema to which another refers; without it, `RegistryError`: records by the other are no garbage."""
        action = f"give version {one.version} of subject {one.subject!r}, to which a schema refers"
        for pause in _RETRY_PAUSES:
            time.sleep(pause)
            found = self._answer(action, ask)
            if found is not None:
                return found
        raise self._failure(action, "it has no such version. If it was deleted, register it again")

    def latest(self, subject: str) -> str:
        """Return the text of a subject's newest schema, for example as a reader's schema.

        Raises UnregisteredSchemaError if the subject does not exist, RegistryError if the registry does not answer.
        """
        found = self._answer(f"give subject {subject!r}", lambda: self._clients.client.get_latest_version(subject))
        if found is None:
            reason = "there is none, or no such version; check the name"
            raise UnregisteredSchemaError(url=self.url, subject=subject, reason=reason)
        return str(found.schema.schema_str)

    def id_for(self, subject: str, kind: Kind, text: str, *, register: bool) -> int:
        """Return the id of a schema in a subject, usually ``<topic>-value``; ``register``: add it if it is not there.

        Raises IncompatibleSchemaError, UnregisteredSchemaError, or RegistryError if the registry does not answer.
        """
        from confluent_kafka.schema_registry import Schema as Asked  # noqa: PLC0415  # only an extra brings it

        asked, client = Asked(text, kind), self._clients.client
        if register:
            found = self._answer("register a schema", lambda: client.register_schema(subject, asked), subject)
        else:
            found = self._answer("find a schema", lambda: client.lookup_schema(subject, asked).schema_id, subject)
        if found is None:
            reason = "the schema to write by is not registered; register it, or leave that to auto_register=True"
            raise UnregisteredSchemaError(url=self.url, subject=subject, reason=reason)
        return int(found)

    def require(self) -> None:
        """Raise `RegistryError` if the registry does not answer."""
        self._answer("say which types of schema it knows", self._clients.client.get_schema_types)

    @property
    def _clients(self) -> "_Clients":
        if self.key not in _clients_by_key:
            _clients_by_key[self.key] = _Clients(self.config)
        return _clients_by_key[self.key]

    def _answer(self, action: str, ask: Callable[[], _T], subject: str = "") -> _T | None:
        """Return the answer; ``None``: the schema or subject does not exist."""
        from confluent_kafka.schema_registry.error import SchemaRegistryError  # noqa: PLC0415  # as above

        try:
            return ask()
        except SchemaRegistryError as error:
            # Any other 404 does not come from a registry: the address is wrong.
            if error.http_status_code == _NOT_FOUND and error.error_code in (40401, 40402, 40403):
                return None
            if subject and error.http_status_code in (409, 422):  # conflict, invalid
                raise IncompatibleSchemaError(schema=f"subject {subject!r}", reason=str(error)) from error
            raise self._failure(action, str(error)) from error
        except Exception as error:  # of the client's HTTP library, depending on its version
            raise self._failure(action, f"{type(error).__name__}: {error}") from error

    def _failure(self, action: str, reason: str) -> RegistryError:
        reason = without_secrets(reason.replace(str(self.config["url"]), self.url), self.config)
        return RegistryError(url=self.url, action=action, reason=reason)


def registry_of(given: Registry | Mapping[str, Any]) -> Registry:
    """Return a registry, also for the settings of a ``SchemaRegistryClient``; a `UsageError` if they have no ``url``.

    >>> registry_of({"url": "http://localhost:8081", "basic.auth.user.info": "me:secret"})
    Registry('http://localhost:8081')
    """
    if isinstance(given, Registry):
        return given
    url, others = given.get("url"), {name: value for name, value in given.items() if name != "url"}
    if not isinstance(url, str):
        raise UsageError(reason=f"the settings of a schema registry name no url, but {', '.join(others) or 'nothing'}")
    return Registry(url, others)


class _Clients:
    """The clients of a registry in this process, and the ids that it does not have."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        try:
            from confluent_kafka.schema_registry import SchemaRegistryClient  # noqa: PLC0415  # only an extra brings it
        except ImportError as error:
            advice = "a schema registry needs confluent-kafka's client: pip install '.[registry]' in the checkout"
            raise ImportError(f"{advice} ({error})", name=error.name) from error
        self.client = SchemaRegistryClient(dict(config))
        self.protobuf_client = SchemaRegistryClient(dict(config))
        self.missing: dict[int, Deadline] = {}  # when to ask for an id again
        self.asking = threading.Lock()


_clients_by_key: dict[str, _Clients] = {}


def _without_user(url: str) -> str:
    """Remove the name and password from an address."""
    parts = urlsplit(url.strip())
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


class FramedValues:
    """Decodes Confluent-framed values by the schema that wrote each: Avro, Protobuf and JSON Schema, also mixed.

    Times become aware datetimes if the schema declares them.  ``registry`` may be settings of ``SchemaRegistryClient``.
    ``kind``: the one kind of schemas to read; values of others are unreadable.
    """

    def __init__(self, registry: Registry | Mapping[str, Any], kind: Kind | None = None) -> None:
        self._registry, self._kind = registry_of(registry), kind
        self._decoders: dict[int, _Decode] = {}

    def decode(self, value: bytes) -> dict[str, Any]:
        """Return a record's fields.

        Raises UnreadableValueError if the value has no frame, or no known schema that fits, and RegistryError if the
        registry does not answer.
        """
        schema_id, body = unframed(value)
        decode = self._decoders.get(schema_id)
        if decode is None:
            schema = self._registry.schema(schema_id)
            if schema is None:
                raise _unreadable(value, f"the registry has no schema {schema_id}")
            if self._kind not in {None, schema.kind}:
                raise _unreadable(value, f"schema {schema_id} is {schema.kind}, expected {self._kind}")
            try:
                decode = _decoder(schema)
            except SchemaError as error:
                if schema.kind == "PROTOBUF":  # the registry did not return all descriptors
                    action = f"give the descriptor of schema {schema_id}"
                    raise RegistryError(url=self._registry.url, action=action, reason=error.reason) from error
                raise _unreadable(value, f"schema {schema_id} cannot be used: {error}") from error
            self._decoders[schema_id] = decode
        return decode(body)


def _unreadable(value: bytes, reason: str) -> UnreadableValueError:
    return UnreadableValueError(size=len(value), schema="a framed value", reason=reason)


def _decoder(schema: Schema) -> _Decode:
    if schema.kind == "AVRO":
        return AvroBody(schema.text, schema.referenced).decode
    if schema.kind == "JSON":
        return json_object
    if schema.kind == "PROTOBUF":
        from floodmark.producers.clients.messages import Messages  # noqa: PLC0415  # only an extra brings its library

        messages = Messages(schema)
        return lambda body: messages.fields(*message_path(body))
    raise SchemaError(schema=schema.kind, reason="it is neither AVRO nor PROTOBUF nor JSON")

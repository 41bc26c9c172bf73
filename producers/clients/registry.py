"""A schema registry, asked through confluent-kafka's client.  Needs ``floodmark[registry]``."""

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar
from urllib.parse import urlsplit, urlunsplit

from floodmark.producers.clients.admin import redacted
from floodmark.producers.clients.clock import Deadline
from floodmark.schemas.errors import IncompatibleSchemaError, RegistryError, UnregisteredSchemaError, UsageError
from typing_extensions import override

Kind = Literal["AVRO", "PROTOBUF", "JSON"]
_T = TypeVar("_T")
_DEFAULTS: Final = {"timeout": 10, "max.retries": 2}
"""The client's own timeout is for ever."""

_NOT_FOUND: Final = 404
_ABSENT: Final = (40401, 40402, 40403)  # subject, version, schema
_CONFLICT: Final = 409
_INVALID: Final = 422
_PATIENCE: Final = (0.0, 0.2, 0.6)  # seconds; a replica of a registry may be a moment behind
_REMEMBERED: Final = 10.0
_FEW: Final = 5
_MANY: Final = 10_000


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema as a registry has it."""

    kind: str
    """``AVRO``, ``PROTOBUF`` or ``JSON``."""
    text: str
    """In Protobuf the file descriptor, serialized and in base64."""
    references: tuple[tuple[str, "Schema"], ...] = ()
    """What it names of other subjects, by the name that it uses."""

    @property
    def referenced(self) -> list[str]:
        """The texts of all that it names, each before those that name it."""
        found: dict[str, None] = {}
        for _, schema in self.references:
            found |= dict.fromkeys([*schema.referenced, schema.text])
        return list(found)


class Registry:
    """A schema registry with Confluent's interface.

    It is the settings of a ``SchemaRegistryClient`` rather than a client, because a client cannot be pickled: each of
    Spark's Python workers makes its own, once.  The client keeps schemas, for an id never changes its meaning.  The
    `repr` shows no secret.

    Args:
        url: its address; several, with commas between them, are tried in turn.
        config: settings of confluent-kafka's ``SchemaRegistryClient``, for example ``basic.auth.user.info``.  All pass
            through; ``timeout`` is 10 seconds where nothing else is said.

    Raises:
        UsageError: if a setting is none that the client knows.
        ImportError: if the client is not installed.
    """

    def __init__(self, url: str, config: Mapping[str, Any] | None = None) -> None:
        self.config: Final[dict[str, Any]] = {**_DEFAULTS, **(config or {}), "url": url}
        self.url: Final = ",".join(map(_without_user, url.split(",")))
        self.key: Final = json.dumps(self.config, sort_keys=True, default=repr)
        """What tells it from others; it holds secrets."""
        try:
            _known(self.key, self)
        except (ValueError, TypeError) as error:
            names = ", ".join(sorted(config or {})) or "none"
            reason = f"schema registry {self.url}: it cannot be used with the settings {names}: {type(error).__name__}"
            raise UsageError(reason=reason) from None

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        url = self.config["url"]
        return Registry, (url, {name: value for name, value in self.config.items() if name != "url"})

    @override
    def __repr__(self) -> str:
        return f"Registry({self.url!r})"

    def schema(self, schema_id: int) -> Schema | None:
        """Return the schema of an id; ``None``: the registry has none.

        Raises:
            RegistryError: if it does not say.
        """
        known = _known(self.key, self)
        remembered = known.missing.get(schema_id)
        if remembered is not None and not remembered.passed:
            return None
        with known.asking:
            # Garbage may name any number of schemas: it must cost neither patience nor memory.
            patience = _PATIENCE if len(known.missing) < _FEW else _PATIENCE[:1]
            schema = self._ask_for(schema_id, patience)
            if schema is None:
                if len(known.missing) >= _MANY:
                    known.missing.clear()
                known.missing[schema_id] = Deadline(_REMEMBERED)
            else:
                known.missing.pop(schema_id, None)
        return schema

    def _ask_for(self, schema_id: int, patience: Sequence[float]) -> Schema | None:
        for pause in patience:
            time.sleep(pause)
            found = self._schema(schema_id, serialized=False)
            if found is not None:
                if found.schema_type == "PROTOBUF":
                    found = self._schema(schema_id, serialized=True) or found
                return self._whole(found)
        return None

    def _schema(self, schema_id: int, *, serialized: bool) -> Any:  # noqa: ANN401  # the client's class, of an extra
        known = _known(self.key, self)
        # A client keeps what it was given, in whatever format; and a format for Protobuf alone is not asked of Avro.
        client, asked = (known.second, {"fmt": "serialized"}) if serialized else (known.client, {})
        return self._answer(f"give schema {schema_id}", lambda: client.get_schema(schema_id, **asked))

    def _whole(self, found: Any) -> Schema:  # noqa: ANN401  # as above
        kind = str(found.schema_type or "AVRO")
        references = [
            (str(one.name), self._whole(self._version(kind, str(one.subject), int(one.version))))
            for one in found.references or []
        ]
        return Schema(kind, str(found.schema_str), tuple(references))

    def _version(self, kind: str, subject: str, version: int) -> Any:  # noqa: ANN401  # as above
        asked = {"fmt": "serialized"} if kind == "PROTOBUF" else {}
        return self._subject(subject, lambda: self._client.get_version(subject, version, **asked)).schema

    def latest(self, subject: str) -> str:
        """Return the text of a subject's newest schema, for example as a reader's schema.

        Raises:
            UnregisteredSchemaError: if there is no such subject.
            RegistryError: if the registry does not answer.
        """
        found = self._subject(subject, lambda: self._client.get_latest_version(subject))
        return str(found.schema.schema_str)

    def _subject(self, subject: str, ask: Callable[[], _T]) -> _T:
        found = self._answer(f"give subject {subject!r}", ask)
        if found is None:
            raise UnregisteredSchemaError(
                url=self.url, subject=subject, reason="there is none, or no such version; check the name"
            )
        return found

    def id_for(self, subject: str, kind: Kind, text: str, *, register: bool) -> int:
        """Return the id of a schema in a subject, to write by it.

        Args:
            subject: as the registry names it: ``<topic>-value``.
            kind: of schema.
            text: the schema.
            register: register it where it is not there yet.

        Raises:
            UnregisteredSchemaError: if it is not there, and is not to be registered.
            IncompatibleSchemaError: if the subject's rules, or the registry, do not take it.
            RegistryError: if the registry does not answer.
        """
        from confluent_kafka.schema_registry import Schema as Asked  # noqa: PLC0415  # only an extra brings it

        asked, client = Asked(text, kind), self._client
        if register:
            found = self._answer("register a schema", lambda: client.register_schema(subject, asked), subject)
        else:
            found = self._answer("find a schema", lambda: client.lookup_schema(subject, asked).schema_id, subject)
        if found is None:
            reason = "the schema to write by is not registered; register it, or leave that to auto_register=True"
            raise UnregisteredSchemaError(url=self.url, subject=subject, reason=reason)
        return int(found)

    def require(self) -> None:
        """Make sure that it answers.

        Raises:
            RegistryError: if it does not.
        """
        self._answer("say which types of schema it knows", self._client.get_schema_types)

    @property
    def _client(self) -> Any:  # noqa: ANN401  # it may not be installed
        return _known(self.key, self).client

    def _answer(self, action: str, ask: Callable[[], _T], subject: str = "") -> _T | None:
        """Return the answer; ``None``: there is no such schema or subject."""
        from confluent_kafka.schema_registry.error import SchemaRegistryError  # noqa: PLC0415  # as above

        try:
            return ask()
        except SchemaRegistryError as error:
            # Another 404 is none of the registry's: the address is wrong.
            if error.http_status_code == _NOT_FOUND and error.error_code in _ABSENT:
                return None
            if subject and error.http_status_code in (_CONFLICT, _INVALID):
                raise IncompatibleSchemaError(schema=f"subject {subject!r}", reason=str(error)) from error
            raise RegistryError(url=self.url, action=action, reason=self._shown(error)) from error
        except Exception as error:  # what the client's own client raises depends on its version
            reason = f"{type(error).__name__}: {self._shown(error)}"
            raise RegistryError(url=self.url, action=action, reason=reason) from error

    def _shown(self, error: Exception) -> str:
        """Return what an error says, without what must not be shown."""
        text = str(error).replace(str(self.config["url"]), self.url)
        for name, shown in redacted(self.config).items():
            if shown != self.config[name] and self.config[name]:
                text = text.replace(str(self.config[name]), str(shown))
        return text


def registry_of(given: Registry | Mapping[str, Any]) -> Registry:
    """Return a registry, also from the settings that ``SchemaRegistryClient`` takes.

    Raises:
        UsageError: if the settings name no ``url``.

    >>> registry_of({"url": "http://localhost:8081", "basic.auth.user.info": "me:secret"})
    Registry('http://localhost:8081')
    """
    if isinstance(given, Registry):
        return given
    url, others = given.get("url"), {name: value for name, value in given.items() if name != "url"}
    if not isinstance(url, str):
        raise UsageError(reason=f"the settings of a schema registry name no url, but {', '.join(others) or 'nothing'}")
    return Registry(url, others)


class _Known:
    """What this process knows of a registry."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        try:
            from confluent_kafka.schema_registry import SchemaRegistryClient  # noqa: PLC0415  # only an extra brings it
        except ImportError as error:
            advice = "a schema registry needs confluent-kafka's client: pip install 'floodmark[registry]'"
            raise ImportError(f"{advice} ({error})", name=error.name) from error
        self.client, self.second = SchemaRegistryClient(dict(config)), SchemaRegistryClient(dict(config))
        self.missing: dict[int, Deadline] = {}
        """Until when an id is not asked for again."""
        self.asking = threading.Lock()


_processes: dict[str, _Known] = {}


def _known(key: str, registry: Registry) -> _Known:
    found = _processes.get(key)
    if found is None:
        found = _processes[key] = _Known(registry.config)
    return found


def _without_user(url: str) -> str:
    """Return an address without the name and password that may stand in it.

    >>> _without_user("http://me:secret@localhost:8081/x")
    'http://localhost:8081/x'
    """
    parts = urlsplit(url.strip())
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))

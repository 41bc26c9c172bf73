"""Targets that are reached over HTTP: a hook, Airflow, and Dagster."""

import http.client
import json
import urllib.error
import urllib.request
from contextlib import suppress
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

from floodmark.producers.clients.secrets import resolved
from floodmark.producers.trigger.plan.periods import Pattern
from floodmark.producers.trigger.plan.trigger_event import TriggerEvent
from floodmark.producers.trigger.target import RefusedError
from floodmark.schemas.errors import UsageError
from typing_extensions import override

_TIMEOUT: Final = 30.0
"""Seconds to wait for an answer."""
_SHOWN: Final = 300
_PAGE: Final = 100


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirected POST would become a GET without the event."""

    @override
    def redirect_request(self, *_: object) -> None:
        return None


class Endpoint:
    """A server that takes and gives JSON.

    Args:
        url: of the server, ``http`` or ``https``.
        token: sent as ``Authorization: Bearer``; may refer to a secret, see `secrets`, which each request reads again.
    """

    def __init__(self, url: str, token: str | None) -> None:
        shown = url.rpartition("@")[2]  # without a password
        try:
            parts = urlsplit(url)
            port = f":{parts.port}" if parts.port else ""
            (parts.hostname or "").encode("idna")
        except ValueError as error:
            why = "" if "@" in url else f": {error}"  # which may have the password
            raise UsageError(reason=f"{shown!r} is no URL of a server{why}") from error
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise UsageError(reason=f"{shown!r} is no URL of a server: expected http://... or https://...")
        if "@" in parts.netloc:
            raise UsageError(reason=f"the URL of {shown!r} has a user or a password before @: pass --token instead")
        if not (parts.path + parts.query).isascii():
            raise UsageError(
                reason=f"{shown!r} is no URL of a server: write its path and query in ASCII, as %C3%A4 for ä"
            )
        self._url, self._token = url.rstrip("/"), token
        self._authorization()  # a reference that never works is refused at once
        self._opener = urllib.request.build_opener(_NoRedirects)
        self.about: Final = f"{parts.scheme}://{parts.hostname}{port}{parts.path}"

    def _authorization(self) -> dict[str, str]:
        if self._token is None:
            return {}
        token = resolved({"--token": self._token})["--token"].strip()
        if not (token.isascii() and token.isprintable()):
            raise UsageError(reason="--token has characters that no HTTP header can have")
        return {"Authorization": f"Bearer {token}"}

    def ask(self, path: str = "", body: Any = None, headers: dict[str, str] | None = None) -> tuple[int, bytes]:  # noqa: ANN401  # JSON
        """Send a POST with ``body`` (``None``: a GET); return status and answer.  `RefusedError` if it is not 2xx."""
        sent = {"Content-Type": "application/json", "Accept": "application/json", **(headers or {})}
        try:
            sent |= self._authorization()
        except UsageError as error:  # its file may be away for a moment, while it is replaced
            raise RefusedError(error.reason) from error
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data, sent)  # noqa: S310  # its scheme is checked
        try:
            with self._opener.open(request, timeout=_TIMEOUT) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            said = ""
            with suppress(OSError, http.client.HTTPException):  # its body is cut
                said = error.read(_SHOWN).decode(errors="replace").strip()
            raise RefusedError(f"HTTP {error.code} {error.reason} {said}".strip()) from error
        except (urllib.error.URLError, http.client.HTTPException) as error:
            raise RefusedError(str(getattr(error, "reason", "") or repr(error))) from error

    def ask_json(self, path: str, body: Any = None, headers: dict[str, str] | None = None) -> dict[str, Any]:  # noqa: ANN401  # JSON
        """Do the same, and return the JSON object of the answer; `RefusedError` if it is none."""
        _, answer = self.ask(path, body, headers)
        with suppress(ValueError, RecursionError):
            found = json.loads(answer)
            if isinstance(found, dict):
                return found
        shown = answer[:_SHOWN].decode(errors="replace").strip()
        raise RefusedError(f"the answer is no JSON object, so another program may have sent it: {shown!r}")


class HttpHook:
    """Sends the event's JSON in a POST, with its key in the header ``Idempotency-Key``."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self.about: Final = endpoint.about

    def fire(self, event: TriggerEvent) -> str:
        """Send the event; any answer 2xx means that it is taken."""
        status, _ = self._endpoint.ask("", event.as_dict(), {"Idempotency-Key": event.key})
        return f"HTTP {status}"


class AirflowAsset:
    """Creates an event of an asset in Airflow 3, with the period as its partition key.

    Args:
        endpoint: of Airflow's API server.
        asset: name or URI of the asset, which a Dag must know.
        partition: the key of a period.
    """

    def __init__(self, endpoint: Endpoint, asset: str, partition: Pattern) -> None:
        self._endpoint, self._asset, self._partition = endpoint, asset, partition
        self.about: Final = f"asset {asset!r} of Airflow at {endpoint.about}"

    def fire(self, event: TriggerEvent) -> str:
        """Create the asset event; the event's JSON is its ``extra``."""
        key = self._partition.of(event.start)
        body = {"asset_id": self._asset_id(), "partition_key": key, "extra": event.as_dict()}
        answer = self._endpoint.ask_json("/api/v2/assets/events", body, {"Idempotency-Key": event.key})
        if "id" not in answer:
            raise RefusedError(f"the answer has no 'id', so another program may have sent it: {str(answer)[:_SHOWN]}")
        return f"asset event {answer['id']} of partition {key}"

    def _asset_id(self) -> int:
        """Look up the number of the asset; it may change, so each event does."""
        for field in ("name", "uri"):  # the pattern also finds longer ones
            offset = 0
            while found := self._page(field, offset):  # Airflow may return fewer than asked for
                offset += len(found)
                for asset, number in found:
                    if asset == self._asset:
                        return number
        raise RefusedError(f"Airflow knows no active asset {self._asset!r}")

    def _page(self, field: str, offset: int) -> list[tuple[Any, int]]:
        """Return some assets, each with this field and its number."""
        query = urlencode({f"{field}_pattern": self._asset, "limit": _PAGE, "offset": offset})
        answer = self._endpoint.ask_json(f"/api/v2/assets?{query}")
        try:
            return [(asset[field], int(asset["id"])) for asset in answer.get("assets", ())]
        except (LookupError, TypeError, ValueError) as error:
            reason = f"the answer has no assets with {field!r} and 'id', so another program may have sent it"
            raise RefusedError(f"{reason}: {str(answer)[:_SHOWN]}") from error


class DagsterAsset:
    """Reports a materialization of an asset to Dagster, with the period as its partition.

    An incomplete period is reported as an observation, which is no materialization.

    Args:
        endpoint: of Dagster's webserver.
        asset: key of the asset; slashes separate its parts.
        partition: the key of a period.
    """

    def __init__(self, endpoint: Endpoint, asset: str, partition: Pattern) -> None:
        self._endpoint, self._asset, self._partition = endpoint, asset, partition
        self.about: Final = f"asset {asset!r} of Dagster at {endpoint.about}"

    def fire(self, event: TriggerEvent) -> str:
        """Report the event; its JSON is the metadata."""
        key = self._partition.of(event.start)
        what = "observation" if event.kind == "incomplete" else "materialization"
        body = {"partition": key, "metadata": {f"floodmark/{name}": value for name, value in event.as_dict().items()}}
        self._endpoint.ask_json(f"/report_asset_{what}/{quote(self._asset)}", body, {"Idempotency-Key": event.key})
        return f"{what} of partition {key}"

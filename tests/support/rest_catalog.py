"""A REST catalog of Iceberg: pyiceberg's catalog in SQLite behind HTTP, which can conflict, forbid, or go away."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

from floodmark.producers.embedded.broker import free_port
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.table import CommitTableRequest, Table


class RestCatalog:
    """The catalog; it answers as long as it is `running`."""

    def __init__(self, folder: Path) -> None:
        self.tables = SqlCatalog("rest", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}")
        self.tables.create_namespace("db")
        self.port = free_port()
        self.troubles: list[str] = []
        """What happens to the next commits: "conflict", "forbidden", or "lost": it is made, without an answer."""

    def settings(self, name: str) -> dict[str, str]:
        """Return the settings of Spark."""
        place, address = f"spark.sql.catalog.{name}", f"http://127.0.0.1:{self.port}"
        settings = {"type": "rest", "uri": address, "rest-metrics-reporting-enabled": "false"}
        chosen = {f"{place}.{key}": value for key, value in settings.items()}
        return {place: "org.apache.iceberg.spark.SparkCatalog", **chosen}

    @contextmanager
    def running(self) -> Iterator[Callable[[], None]]:
        """Answer; what it gives ends that earlier."""
        handler = type("Handler", (_Handler,), {"catalog": self})
        with HTTPServer(("127.0.0.1", self.port), handler) as server:
            thread = threading.Thread(target=server.serve_forever, args=[0.05])
            thread.start()

            def stop() -> None:
                server.shutdown()
                server.server_close()

            try:
                yield stop
            finally:
                stop()
                thread.join()


class _Handler(BaseHTTPRequestHandler):
    catalog: ClassVar[RestCatalog]

    def log_message(self, *_: object) -> None:
        """Stay silent."""

    def do_GET(self) -> None:
        _, *place = self.path.partition("?")[0].strip("/").split("/")
        if len(place) == 4:
            self._of_table(".".join(place[1::2]), None)
        else:
            named = {"namespace": place[1:2], "properties": {}}
            self._answer(200, {"defaults": {}, "overrides": {}} if place == ["config"] else named)

    do_HEAD = do_GET  # noqa: N815  # its name in http.server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        place = self.path.strip("/").split("/")
        identifier = {"namespace": [place[2]], "name": place[4]}
        self._of_table(f"{place[2]}.{place[4]}", CommitTableRequest(**{**body, "identifier": identifier}))

    def _of_table(self, name: str, change: CommitTableRequest | None) -> None:
        tables = self.catalog.tables
        try:
            table = tables.load_table(name)
            if change is not None:
                trouble = self.catalog.troubles.pop(0) if self.catalog.troubles else ""
                if trouble == "forbidden":
                    return self._refuse(403, "ForbiddenException", "no right to commit")
                if trouble == "conflict":
                    _write_nothing(tables.load_table(name))
                tables.commit_table(table, change.requirements, change.updates)
                if trouble == "lost":
                    return None
                table = tables.load_table(name)
        except NoSuchTableError as error:
            return self._refuse(404, "NoSuchTableException", str(error))
        except CommitFailedException as error:
            return self._refuse(409, "CommitFailedException", str(error))
        metadata = json.loads(table.metadata.model_dump_json())
        return self._answer(200, {"metadata-location": table.metadata_location, "metadata": metadata, "config": {}})

    def _refuse(self, code: int, kind: str, message: str) -> None:
        self._answer(code, {"error": {"message": message, "type": kind, "code": code}})

    def _answer(self, code: int, body: dict[str, Any]) -> None:
        text = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)


def _write_nothing(table: Table) -> None:
    """Commit a snapshot without rows, as another writer."""
    table.append(table.schema().as_arrow().empty_table())

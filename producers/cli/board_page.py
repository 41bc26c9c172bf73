"""The board as a web page: served on loopback, read-only, without scripts from elsewhere."""

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from json import dumps
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

import typer
from floodmark.producers.board.fold import Point
from floodmark.producers.board.model import STATUSES, Board, SourceView, Stage, TopicView
from floodmark.producers.board.source_history import Health
from floodmark.producers.board.why import trace
from floodmark.producers.cli.board_text import groups, held_by, others_of, place, place_of, places, reason_of
from floodmark.producers.clients.consumers import Closing
from floodmark.producers.readers.chain import ChainReader
from floodmark.schemas.errors import UsageError
from typing_extensions import override

_HOST: Final = "127.0.0.1"
_FILES: Final = {
    "/": ("board.html", "text/html; charset=utf-8"),
    "/board.css": ("board.css", "text/css; charset=utf-8"),
    "/board.js": ("board.js", "text/javascript; charset=utf-8"),
}
_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; img-src data:; "
    + "; ".join(f"{kind}-src 'self'" for kind in ("style", "script", "connect")),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
_SHOWN: Final = 50  # so many sources that are not well are named at most


def page_view(board: Board) -> dict[str, Any]:
    """Return what the page shows of a board, as JSON values, with the sources that are not well.  Times: epoch ms."""
    bad = groups(row for topic in board.topics() for row in topic.sources() if row.verdict is not Health.OK)
    return {
        "now": board.now,
        "status": STATUSES[board.exit_status],
        "answered": board.answered,
        "topics": [_topic(board, stage, topic) for stage in board.stages for topic in stage.topics],
        "sources": [_source(group, board.now) for group in bad[:_SHOWN]],
        "more": max(0, len(bad) - _SHOWN),
        "paths": {topic.topic: _path(board, topic.topic) for topic in board.topics()},
        "notes": [*(f"{name}: {reason}" for name, reason in board.unread), *board.notes],
    }


def _topic(board: Board, stage: Stage, topic: TopicView) -> dict[str, Any]:
    return {
        "stage": stage.name,
        "topic": topic.topic,
        "input": topic.input_watermark,
        "batch": topic.batch_watermark,
        "watermark": topic.watermark,
        "state": topic.state,
        "verdict": topic.verdict,
        "wall": topic.lags.wall,
        "processing": topic.lags.processing,
        "local": topic.lags.local,
        "global": topic.lags.root,
        "held by": held_by(board, topic),
        "since": topic.since,
        "exact": topic.since_exact,
    }


def _source(group: Sequence[SourceView], now: int) -> dict[str, Any]:
    row = group[0]
    return {"place": places(group), "verdict": row.verdict, "state": row.state, "reason": reason_of(row, now)}


def _path(board: Board, topic: str) -> dict[str, Any]:
    """Return the way from a topic to what holds it."""
    answer = trace(board, topic)
    steps = [
        {
            "topic": step.topic,
            "source": place_of(step) or None,
            "verdict": None if step.held_by is None else step.held_by.verdict,
            "watermark": None if step.held_by is None else step.held_by.watermark,
            "others": others_of(step),
            "unread": step.unread,
        }
        for step in answer.steps
    ]
    cause = None if answer.cause is None else f"{place(answer.cause)}: {reason_of(answer.cause, board.now)}"
    return {"steps": steps, "cause": cause, "advice": answer.advice}


class BoardPage(Closing):
    """Serve a page that shows a board; `show` gives it a new one.  `UsageError` if the port is taken.

    ``interval``: the seconds between two boards; the page says so when none has come for much longer.
    """

    def __init__(self, port: int, interval: float) -> None:
        self._same = {"run": uuid4().hex, "interval": interval * 1_000}
        self._points: Mapping[str, Sequence[Point]] = {}
        self._view: dict[str, Any] = {}
        self._lock = threading.Lock()
        handler = type("Handler", (_Handler,), {"answer": staticmethod(self._answer)})
        try:
            self._server = _Server((_HOST, port), handler)
        except OSError as error:
            raise UsageError(reason=f"the page cannot be served on port {port}: {error}; choose another") from error
        self.url = f"http://{_HOST}:{self._server.server_port}/"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True, name="floodmark-board-page")
        self._thread.start()

    def show(self, board: Board, points: Mapping[str, Sequence[Point]]) -> None:
        """Show this board, and these points of each topic's line, from now on."""
        view = {**page_view(board), **self._same}
        with self._lock:
            self._view, self._points = view, points

    def _answer(self, after: int) -> bytes:
        """Return the view with the points whose number is higher than ``after``."""
        with self._lock:
            view, points = self._view, self._points
        last = max((line[-1].number for line in points.values() if line), default=0)
        new = {
            topic: [(point.at, point.watermark) for point in line if point.number > after]
            for topic, line in points.items()
        }
        return dumps({**view, "lines": new, "last": last}).encode()

    @override
    def close(self) -> None:
        """Serve no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    @override
    def handle_error(self, request: Any, client_address: Any) -> None:
        # A browser that was closed while it was answered is no news.
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    """Answer GET and HEAD of four paths, and nothing else."""

    server_version = "floodmark"
    sys_version = ""
    answer: Callable[[int], bytes]

    def do_GET(self) -> None:
        """Send a file of the page, or the board."""
        # A page from elsewhere may not read it under a name of its own that points to this machine.
        if urlsplit(f"//{self.headers.get('Host', '')}").hostname not in {_HOST, "localhost"}:
            self.send_error(HTTPStatus.FORBIDDEN, explain=f"The Host header must be {_HOST} or localhost")
            return
        asked = urlsplit(self.path)
        if asked.path == "/board.json":
            after = parse_qs(asked.query).get("after", ["0"])[0]
            self._send(self.answer(int(after) if after.isascii() and after.isdigit() else 0), "application/json")
        elif asked.path in _FILES:
            name, kind = _FILES[asked.path]
            self._send(files("floodmark.producers.cli").joinpath(name).read_bytes(), kind)
        else:
            self.send_error(HTTPStatus.NOT_FOUND)

    do_HEAD = do_GET  # noqa: N815  # the same

    def _send(self, body: bytes, kind: str) -> None:
        self.send_response(HTTPStatus.OK)
        for name, value in {**_HEADERS, "Content-Type": kind, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    @override
    def log_message(self, format: str, *args: object) -> None:
        """Write no line for each request."""


def serve(reader: ChainReader, interval: float, port: int) -> None:
    """Serve the board as a web page, updated every ``interval`` seconds."""
    with BoardPage(port, interval) as page:
        typer.echo(f"floodmark: the board is at {page.url}; Ctrl-C ends it", err=True)
        while True:
            page.show(reader.board(), reader.points())
            reader.poll(interval)

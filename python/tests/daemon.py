"""A small HTTP server on an abstract Unix socket: a daemon that answers, or fails, as a test says."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import socket
import threading
from collections import deque
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingUnixStreamServer
from typing import Any, Callable

Reply = tuple[int, dict[str, str], bytes]
_NUMBERS = itertools.count()


def answer(body: Any = None, status: int = 200, **headers: str) -> Reply:
    """A reply of JSON, or of bytes as they are."""
    data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    return status, headers, data


class Daemon:
    """Replies by `routes`: (method, path) to a reply, or to a function of the body and the headers.

    `faults` are used up first, one for each request: functions of the connection, which they leave broken.
    """

    def __init__(self, name: str | None = None) -> None:
        self.name = name or f"copperfs-test-{os.getpid()}-{next(_NUMBERS)}"
        self.routes: dict[tuple[str, str], Any] = {}
        self.faults: deque[Callable[[socket.socket], None]] = deque()
        self.requests: list[tuple[str, str, bytes]] = []
        self.connections = 0
        self._open: list[socket.socket] = []
        self._start()

    def _start(self) -> None:
        daemon = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                # Unix sockets have no address to show.
                self.client_address = ("local", 0)
                daemon.connections += 1
                daemon._open.append(self.request)
                super().setup()

            def do_GET(self) -> None:
                daemon.requests.append((self.command, self.path, self._body()))
                if daemon.faults:
                    daemon.faults.popleft()(self.request)
                    self.close_connection = True
                    return
                reply = daemon.routes.get((self.command, self.path.partition("?")[0]))
                if callable(reply):
                    reply = reply(daemon.requests[-1][2], self.headers)
                status, headers, body = reply or answer(
                    {"error": f"nothing is served at {self.path}", "advice": "GET /openapi.json"}, 404
                )
                self.send_response(status)
                for key, value in headers.items():
                    self.send_header(key, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_POST = do_GET

            def _body(self) -> bytes:
                return self.rfile.read(int(self.headers.get("Content-Length", 0)))

            def log_message(self, *_: Any) -> None:
                pass

        class Server(ThreadingUnixStreamServer):
            daemon_threads = True

            def handle_error(self, *_: Any) -> None:
                """Faults end connections in the middle."""

        self._server = Server("\0" + self.name, Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        for link in self._open:
            # Shut down rather than closed: another thread reads from it.
            with contextlib.suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)
        self._open.clear()

    def restart(self) -> None:
        self.stop()
        self._start()

    def asked(self, path: str) -> list[bytes]:
        """The bodies of the requests for a path."""
        return [body for _, at, body in self.requests if at.partition("?")[0] == path]

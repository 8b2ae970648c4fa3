"""The HTTP server of the metrics endpoint: its clients can be slow or say nothing, but hold up neither each other nor the end of the job.

Each client has a thread. No thread waits for a client after the client's connection is shut down. So the server shuts a connection down in
order to end its thread, and then joins that thread: when the request has taken :data:`REQUEST_SECONDS`, when there are too many clients,
and when the server is closed. None of these three waits for what a client does.

prometheus_client's own server cannot do this: a thread of it outlives the server if its client says nothing, and no thread may live when
MXNet shuts down (:mod:`prophet_mx.runtime`). Before version 0.19 it cannot be closed at all.
"""

import logging
import socket
import socketserver
import threading
import time
from dataclasses import dataclass
from typing import Any, List
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from ..runtime import start_thread

logger = logging.getLogger("prophet_mx")

POLL_SECONDS = 0.1  # between two looks at the clients
REQUEST_SECONDS = 5.0  # for a whole request: to say it, and to take the answer
MAX_CLIENTS = 16  # at a time; a further one takes the place of the oldest


@dataclass(frozen=True)
class _Client:
    """A connection, the thread that answers it, and since when (monotonic clock)."""

    connection: socket.socket
    thread: threading.Thread
    since: float


class EndpointServer(WSGIServer):
    """Answers each client in a thread of its own, without tracebacks on stderr, and without a DNS look-up of its own name, which can take
    long.

    Only the thread that runs ``serve_forever`` uses the list of clients; ``server_close`` uses it after that thread has been joined.
    """

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        self._clients: List[_Client] = []
        super().__init__(*arguments, **keywords)

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]    # a text, for TCP
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a new client. KVStoreError, which the caller reports to :meth:`handle_error`, if its thread cannot be started."""
        if len(self._clients) >= MAX_CLIENTS:
            self._end(self._clients[0])
        thread = start_thread("metrics-client", self._answer, request, client_address)
        self._clients.append(_Client(request, thread, time.monotonic()))

    def service_actions(self) -> None:
        """Called after each request, and every :data:`POLL_SECONDS`: forget the clients that have their answer, and end overdue ones."""
        overdue = time.monotonic() - REQUEST_SECONDS
        for client in list(self._clients):
            if not client.thread.is_alive() or client.since <= overdue:
                self._end(client)

    def server_close(self) -> None:
        super().server_close()
        for client in list(self._clients):
            self._end(client)

    def handle_error(self, request: Any, client_address: Any) -> None:
        logger.debug("metrics: a request from %s failed", client_address, exc_info=True)

    def _answer(self, request: socket.socket, client_address: Any) -> None:
        """In the client's thread. It leaves the connection open: once closed, its number could be that of another file when :meth:`_end`
        uses it."""
        try:
            self.finish_request(request, client_address)
        except Exception:  # whatever a client sends
            self.handle_error(request, client_address)
        _shut_down(request, socket.SHUT_WR)

    def _end(self, client: _Client) -> None:
        _shut_down(client.connection, socket.SHUT_RDWR)
        client.thread.join()
        self._clients.remove(client)
        client.connection.close()


class QuietHandler(WSGIRequestHandler):
    """Without a line on stderr per request."""

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nothing."""


def _shut_down(connection: socket.socket, how: int) -> None:
    try:
        connection.shutdown(how)
    except OSError:
        pass  # the client is gone

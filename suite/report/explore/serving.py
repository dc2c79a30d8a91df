"""Serving of the page: on which address, and to whom."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from reference_runs.errors import InputError

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

LOCAL = ("localhost", "127.0.0.1", "[::1]")


def listening_socket(host: str, port: int) -> socket.socket:
    """A socket that listens there.

    Raises:
        InputError: no such address, or a port that is in use.
    """
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise InputError(f"no address of this machine: {error}", got=repr(host), where="--host") from error
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(where)
        listening.listen()
    except OSError as error:
        listening.close()
        got = f"{host}, port {port}"
        raise InputError(f"cannot listen: {error.strerror}", got=got, where="--host, --port") from error
    return listening


def serve(application: Any, listening: socket.socket) -> None:
    """Serve a Dash application there until Ctrl-C; its terminal shows mistakes alone, no line for each request."""
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    host, port = listening.getsockname()[:2]
    make_server(host, port, application.server, threaded=True, fd=listening.fileno()).serve_forever()


def for_hosts(application: WSGIApplication, hosts: Iterable[str]) -> WSGIApplication:
    """The application for requests that name one of these hosts; another site's name may lead here too (DNS rebinding).

    Args:
        hosts: names without port, of IPv6 in brackets.
    """
    known = {host.casefold() for host in hosts}

    def answered(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        asked = str(environ.get("HTTP_HOST", ""))
        if name_of(asked).casefold() in known:
            return application(environ, start_response)
        allowed = ", ".join(sorted(known))
        text = f"not served under this name; got {asked!r}, allowed: {allowed}; another: --allow-host NAME\n"
        start_response("403 Forbidden", [("Content-Type", "text/plain; charset=utf-8")])
        return [text.encode(errors="replace")]

    return answered


def name_of(host: str) -> str:
    """The name in a Host header, without its port."""
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdigit() else host


def bracketed(host: str) -> str:
    """A host as an address has it: IPv6 in brackets."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host

from __future__ import annotations

import socket
from typing import Any

import pytest

from reference_runs.errors import InputError
from suite.report.explore.serving import LOCAL, bracketed, for_hosts, listening_socket


def asked(host: str | None, *more: str) -> tuple[str, bytes]:
    """Status and body of a request that names this host."""
    statuses: list[str] = []

    def page(_environ: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", [])
        return [b"the page"]

    environ = {} if host is None else {"HTTP_HOST": host}
    body = for_hosts(page, (*LOCAL, *more))(environ, lambda status, _headers: statuses.append(status))
    return statuses[0], b"".join(body)


@pytest.mark.parametrize("host", ["localhost", "localhost:8050", "127.0.0.1:1", "[::1]", "[::1]:8050", "LocalHost:80"])
def test_this_machines_own_names_are_answered(host: str) -> None:
    assert asked(host) == ("200 OK", b"the page")


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8050", "localhost.evil.example", "127.0.0.1.evil.example:80", "::1", "", None],
)
def test_another_name_is_refused_with_the_option_that_allows_it(host: str | None) -> None:
    status, body = asked(host)
    assert status == "403 Forbidden"
    assert b"--allow-host NAME" in body
    assert b"the page" not in body


def test_a_name_that_is_allowed_is_answered() -> None:
    assert asked("node7.example:8050", "node7.example")[0] == "200 OK"
    assert bracketed("fd00::7") == bracketed("[fd00::7]") == "[fd00::7]"
    assert bracketed("node7") == "node7"


def test_a_port_in_use_and_an_address_of_no_machine_are_one_line() -> None:
    with listening_socket("127.0.0.1", 0) as first:
        assert isinstance(first, socket.socket)
        with pytest.raises(InputError, match="--host, --port: cannot listen: Address already in use"):
            listening_socket("127.0.0.1", first.getsockname()[1])
    for host in ("192.0.2.7", "no such name", "a" * 300):
        with pytest.raises(InputError, match="--host"):
            listening_socket(host, 0)

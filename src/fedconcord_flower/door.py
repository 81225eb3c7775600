"""Who may ask a SuperLink what: sites, whose keys it checks, from anywhere; operators from their networks alone.

Flower's SuperLink without an identity provider (accounts are of its commercial extensions) takes runs from whoever
reaches its port, and hands the server's tasks to whoever asks: `/v1/control` and `/v1/runtime` know no password.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from contextlib import closing
from http.client import HTTPSConnection
from pathlib import Path
from ssl import create_default_context
from typing import Any, NamedTuple

from fedconcord.support.errors import LostError, UserError

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
HERE = "127.0.0.0/8,::1"
THERE = "/fedconcord/door"  # answered by the door itself
FOR_SITES = ("/v1/fleet/", "/v1/control/list-nodes", "/health")  # which a site asks whether it is known


def networks(text: str) -> list[Network]:
    """This machine, and the addresses and networks in a list separated by commas.

    Raises:
        UserError: one is neither.
    """
    every = [part.strip() for part in f"{HERE},{text}".split(",") if part.strip()]
    try:
        return [ipaddress.ip_network(part) for part in every]
    except ValueError as wrong:
        raise UserError(f"--operators has addresses or networks, as in 10.0.0.5,10.1.0.0/16: {wrong}") from None


def check(address: str, authority: Path) -> None:
    """Look whether a SuperLink at host:port has a door, which another version of Flower might not take.

    Raises:
        LostError: it has none.
    """
    with closing(HTTPSConnection(address, timeout=30, context=create_default_context(cafile=authority))) as connection:
        connection.request("GET", THERE)
        if connection.getresponse().status != 204:
            raise LostError("this version of flwr lets everybody submit runs; install flwr==1.41.0")


class Door(NamedTuple):
    """A SuperLink's application (ASGI) behind the question who asks."""

    app: Callable[[Scope, Receive, Send], Awaitable[None]]
    operators: Sequence[Network]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 403."""
        if scope.get("path") == THERE:
            await send({"type": "http.response.start", "status": 204, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        if scope["type"] == "lifespan" or self.lets_in(str(scope["path"]), (scope.get("client") or ("",))[0]):
            await self.app(scope, receive, send)
            return
        text = b"only operators may ask this; the server's --operators names their networks"
        await send({"type": "http.response.start", "status": 403, "headers": [(b"content-type", b"text/plain")]})
        await send({"type": "http.response.body", "body": text})

    def lets_in(self, path: str, host: str) -> bool:
        """Whether somebody at this address may ask for this path."""
        if path == FOR_SITES[1] or path == FOR_SITES[2] or path.startswith(FOR_SITES[0]):
            return True
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return False
        address = getattr(address, "ipv4_mapped", None) or address
        return any(address in network for network in self.operators)

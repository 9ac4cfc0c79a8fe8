"""Tell who asks: the address that a client has, the name it calls the server by, and the page it comes from."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Collection, Iterable
from typing import TypeAlias
from urllib.parse import urlsplit

from aiohttp import hdrs, web

Network: TypeAlias = "ipaddress.IPv4Network | ipaddress.IPv6Network"
Address: TypeAlias = "ipaddress.IPv4Address | ipaddress.IPv6Address"


def networks(addresses: Collection[str]) -> list[Network]:
    """Return addresses, and networks such as `10.0.0.0/8`, parsed."""
    return [ipaddress.ip_network(address, strict=False) for address in addresses]


def client_address(request: web.Request, proxies: Collection[Network] = ()) -> str | None:
    """Return whom a request comes from, as far as limits go.

    Args:
        proxies: what they, and those on this machine, say in `X-Forwarded-For` is believed. Each adds whom it was asked by, so
            the last one that isn't a proxy itself is the client; what comes before it anybody could write.

    Returns:
        An IPv4 address; of IPv6 the network of 64 bits, since a single customer has all addresses in it; None for this machine
        itself.
    """
    client = _address(request.remote or "")
    forwarded = ",".join(request.headers.getall(hdrs.X_FORWARDED_FOR, ())).split(",")
    while client is not None and (client.is_loopback or any(client in network for network in proxies)) and forwarded:
        before = _address(forwarded.pop())
        if before is None:
            break
        client = before
    return _counted(client)


def peer_address(remote: str) -> str | None:
    """Return the same for a connection from an address, without proxies."""
    return _counted(_address(remote))


def _counted(client: Address | None) -> str | None:
    if client is None or client.is_loopback:
        return None
    return str(client) if client.version == 4 else str(ipaddress.ip_network((client, 64), strict=False))


def local_hosts(host: str, origins: Collection[str] = ()) -> set[str] | None:
    """Return the names of a server that listens on some address, if only this machine reaches it; else None, for any.

    Args:
        origins: whose pages may connect. Where a reverse proxy stands before the server, that is its own name.
    """
    try:
        is_local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_local = host == "localhost"
    if not is_local:
        return None
    named = {_name(origin.partition("://")[2]) for origin in origins if origin != "*"}
    return {"localhost", "127.0.0.1", "::1", host, *named} - {""}


def check_host(request: web.Request, hosts: Collection[str] | None) -> None:
    """Refuse requests to a server of another name: pages may have their own name lead to this machine (DNS rebinding)."""
    if hosts is None:
        return
    host = _host(request)
    if not _name(host):
        raise web.HTTPBadRequest(text=f"the Host should be a name, with or without a port, got {host!r}\n")
    if _name(host) not in hosts:
        raise web.HTTPForbidden(text=f"this server isn't called {host!r}; --origin, or hosts= of make_app, tell it its names\n")


def check_origin(request: web.Request, origins: Collection[str]) -> None:
    """Check whose page connects, as browsers say: only the server's own may, and those that are named."""
    origin = request.headers.get(hdrs.ORIGIN)
    if origin is None or "*" in origins or origin in origins:
        return
    try:
        page = urlsplit(origin).netloc.lower()
    except ValueError:  # brackets without an end, and the like
        page = ""
    if not page or page != _host(request).lower():
        raise web.HTTPForbidden(text=f"pages of {origin!r} may not connect\n")


class Keys:
    """Keys of the API, of which requests have to name one; none at all lets everybody in. Only their hashes are kept."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self._hashes = [_hash(key) for key in keys]
        self.are_needed = bool(self._hashes)

    def check(self, request: web.Request) -> None:
        """Refuse a request without a key: `Authorization: Bearer KEY`, or, as browsers can't say that to a websocket, a
        subprotocol `openai-insecure-api-key.KEY`."""
        if not self._hashes:
            return
        scheme, _, named = request.headers.get(hdrs.AUTHORIZATION, "").partition(" ")
        given = [named.strip()] if scheme.lower() == "bearer" else []
        given += [name.removeprefix(IN_PROTOCOL) for name in subprotocols(request) if name.startswith(IN_PROTOCOL)]
        # All are compared, each in constant time: how long it takes tells nothing.
        if not any([hmac.compare_digest(_hash(key), known) for key in given[:2] for known in self._hashes]):
            raise web.HTTPUnauthorized(
                text="a key is needed, as Authorization: Bearer KEY\n", headers={"WWW-Authenticate": "Bearer"}
            )


IN_PROTOCOL, BETA = "openai-insecure-api-key.", "openai-beta.realtime-v1"  # what browsers say as subprotocols, not as headers


def subprotocols(request: web.Request) -> list[str]:
    """Return the subprotocols that a websocket offers."""
    return [name.strip() for name in request.headers.get(hdrs.SEC_WEBSOCKET_PROTOCOL, "").split(",") if name.strip()]


def _hash(key: str) -> bytes:
    return hashlib.sha256(key.encode(errors="surrogateescape")).digest()


def allow_origin(request: web.Request, response: web.StreamResponse, origins: Collection[str]) -> None:
    """Have browsers let a page of one of some origins read the answer (CORS)."""
    origin = request.headers.get(hdrs.ORIGIN)
    if origin is not None and ("*" in origins or origin in origins) and not response.prepared:
        response.headers[hdrs.ACCESS_CONTROL_ALLOW_ORIGIN] = origin
        response.headers[hdrs.VARY] = hdrs.ORIGIN


def preflight(request: web.Request) -> web.Response:
    """Answer a browser that asks what pages of other origins may send; `allow_origin` says which."""
    return web.Response(
        status=204,
        headers={
            hdrs.ACCESS_CONTROL_ALLOW_METHODS: "GET, POST",
            hdrs.ACCESS_CONTROL_ALLOW_HEADERS: request.headers.get(hdrs.ACCESS_CONTROL_REQUEST_HEADERS, "authorization")[:1000],
            hdrs.ACCESS_CONTROL_MAX_AGE: "600",
        },
    )


def _host(request: web.Request) -> str:
    return request.headers.get(hdrs.HOST, "")  # request.host would look up a name where there is none


def _name(host: str) -> str:
    """Return a host without its port; nothing if it can't be read."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _address(text: str) -> Address | None:
    """Return an address, with or without a port; None for what isn't one. IPv4 within IPv6 is IPv4."""
    for written in (text.strip(), _name(text.strip())):
        try:
            address = ipaddress.ip_address(written)
        except ValueError:
            continue
        return getattr(address, "ipv4_mapped", None) or address
    return None

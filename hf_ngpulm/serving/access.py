"""Control access to the server. The checks concern a request's address, key, page (origin) and host name."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias
from urllib.parse import urlsplit

from aiohttp import hdrs, web

Network: TypeAlias = "ipaddress.IPv4Network | ipaddress.IPv6Network"
Address: TypeAlias = "ipaddress.IPv4Address | ipaddress.IPv6Address"
IN_PROTOCOL = "openai-insecure-api-key."  # prefix of a key in a subprotocol: browsers can't send a key as a header


@dataclass(frozen=True)
class Access:
    """Hold the rules about who may use a server.

    Args:
        origins: other origins (`https://example.org`) with pages that may connect; `"*"` allows all origins. The server's own
            pages may always connect. Clients that aren't browsers send no origin, and may always connect.
        hosts: the host names that a request may use; None allows any name. This check refuses requests from a foreign page
            whose host name resolves to this machine (DNS rebinding). `local_hosts` returns the names of this machine.
        proxies: addresses or networks (`10.0.0.0/8`) of reverse proxies. For requests of a proxy, `Limits.clients_per_address`
            uses the address in the header `X-Forwarded-For`. Proxies on this machine needn't be listed. If a request from this
            machine lacks this header, `Limits.clients_per_address` doesn't count its client. All clients of any other unlisted
            proxy count as one address.
        keys: accepted keys. Requests for pages, `/health` and `/ready` need no key. Every other request needs a key. If the
            list is empty, no request needs a key.

    Raises:
        ValueError: an entry of `proxies` isn't an address or a network.
    """

    origins: Collection[str] = ()
    hosts: Collection[str] | None = None
    proxies: Collection[str] = ()
    keys: Collection[str] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        _ = self.networks

    @cached_property
    def networks(self) -> list[Network]:
        """Return the proxies' addresses as networks."""
        return [ipaddress.ip_network(address, strict=False) for address in self.proxies]

    def is_proxy(self, address: Address) -> bool:
        return any(address in network for network in self.networks)

    @cached_property
    def _hashes(self) -> list[bytes]:
        return [_hash(key) for key in self.keys]

    @property
    def needs_key(self) -> bool:
        return bool(self.keys)

    def address(self, request: web.Request) -> str | None:
        """Return the client's address, converted as in `counted_address`.

        Each proxy appends the address of its own client to `X-Forwarded-For`. So the last address that isn't a proxy is the
        address of the client. Earlier entries are ignored, because the client could have forged them.
        """
        client = _address(request.remote or "")
        forwarded = ",".join(request.headers.getall(hdrs.X_FORWARDED_FOR, ())).split(",")
        while client is not None and (client.is_loopback or self.is_proxy(client)) and forwarded:
            before = _address(forwarded.pop())
            if before is None:
                break
            client = before
        return _counted(client)

    def check_host(self, request: web.Request) -> None:
        """Refuse a request if its Host header isn't in `hosts`."""
        if self.hosts is None:
            return
        host = _host(request)
        if not _name(host):
            raise web.HTTPBadRequest(text=f"the Host should be a name, with or without a port, got {host!r}\n")
        if _name(host) not in self.hosts:
            raise web.HTTPForbidden(
                text=f"this server isn't called {host!r}; --origin, or hosts= of Access, tells it its names\n"
            )

    def check_origin(self, request: web.Request) -> None:
        """Refuse a request from a page unless the page's origin is the server's own origin, or is in `origins`."""
        origin = request.headers.get(hdrs.ORIGIN)
        if origin is None or "*" in self.origins or origin in self.origins:
            return
        try:
            page = urlsplit(origin).netloc.lower()
        except ValueError:  # for example a bracket that isn't closed
            page = ""
        if not page or page != _host(request).lower():
            raise web.HTTPForbidden(text=f"pages of {origin!r} may not connect\n")

    def check_key(self, request: web.Request) -> None:
        """Refuse a request without a valid key.

        Clients send a key as `Authorization: Bearer KEY` or as the subprotocol `openai-insecure-api-key.KEY`.
        """
        if self.keys:
            self.key(request)

    def key(self, request: web.Request) -> str:
        """Return the valid key of a request. Raises HTTPUnauthorized if the request sends no valid key."""
        scheme, _, named = request.headers.get(hdrs.AUTHORIZATION, "").partition(" ")
        tried = [named.strip()] if scheme.lower() == "bearer" else []
        tried += [name.removeprefix(IN_PROTOCOL) for name in subprotocols(request) if name.startswith(IN_PROTOCOL)]
        # Every key is compared, each in constant time, so that the duration reveals nothing about the keys.
        valid = [key for key in tried[:2] if any([hmac.compare_digest(_hash(key), known) for known in self._hashes])]
        if not valid:
            raise web.HTTPUnauthorized(
                text="a key is needed, as Authorization: Bearer KEY\n", headers={"WWW-Authenticate": "Bearer"}
            )
        return valid[0]

    def allow_origin(self, request: web.Request, response: web.StreamResponse) -> None:
        """Add a header to a response, so that pages of an allowed origin can read the response (CORS)."""
        origin = request.headers.get(hdrs.ORIGIN)
        if origin is not None and ("*" in self.origins or origin in self.origins) and not response.prepared:
            response.headers[hdrs.ACCESS_CONTROL_ALLOW_ORIGIN] = origin
            response.headers[hdrs.VARY] = hdrs.ORIGIN


def preflight(request: web.Request) -> web.Response:
    """Answer a CORS preflight request with the allowed methods and headers. `Access.allow_origin` adds the allowed origin."""
    return web.Response(
        status=204,
        headers={
            hdrs.ACCESS_CONTROL_ALLOW_METHODS: "GET, POST, DELETE",
            hdrs.ACCESS_CONTROL_ALLOW_HEADERS: request.headers.get(hdrs.ACCESS_CONTROL_REQUEST_HEADERS, "authorization")[:1000],
            hdrs.ACCESS_CONTROL_MAX_AGE: "600",
        },
    )


def subprotocols(request: web.Request) -> list[str]:
    """Return the subprotocols that a websocket offers."""
    return [name.strip() for name in request.headers.get(hdrs.SEC_WEBSOCKET_PROTOCOL, "").split(",") if name.strip()]


def counted_address(remote: str) -> str | None:
    """Return the address or the network of a client. Limits per address count the clients that have the same result.

    An IPv4 address stays unchanged. An IPv6 address becomes its /64 network, because one customer owns the whole network. If an
    address belongs to this machine or can't be parsed, the result is None, and the client isn't counted.
    """
    return _counted(_address(remote))


def local_hosts(host: str, origins: Collection[str] = ()) -> set[str] | None:
    """Return the host names of a server on a loopback address. For another address, return None, so that any name is allowed.

    Args:
        host: the address that the server listens on.
        origins: origins whose pages may connect. The result has these origins' host names, because a reverse proxy may send
            such a name.
    """
    try:
        is_local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_local = host == "localhost"
    if not is_local:
        return None
    named = {_name(origin.partition("://")[2]) for origin in origins if origin != "*"}
    return {"localhost", "127.0.0.1", "::1", host, *named} - {""}


def _counted(client: Address | None) -> str | None:
    if client is None or client.is_loopback:
        return None
    return str(client) if client.version == 4 else str(ipaddress.ip_network((client, 64), strict=False))


def _hash(key: str) -> bytes:
    return hashlib.sha256(key.encode(errors="surrogateescape")).digest()


def _host(request: web.Request) -> str:
    return request.headers.get(hdrs.HOST, "")  # without the header, request.host would look up a name


def _name(host: str) -> str:
    """Return a host without the port. If the host can't be parsed, return an empty string."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _address(text: str) -> Address | None:
    """Parse an address with or without a port. If the text isn't an address, return None. If an IPv6 address represents an IPv4
    address ("::ffff:"), return the IPv4 address.
    """
    for written in (text.strip(), _name(text.strip())):
        try:
            address = ipaddress.ip_address(written)
        except ValueError:
            continue
        return getattr(address, "ipv4_mapped", None) or address
    return None

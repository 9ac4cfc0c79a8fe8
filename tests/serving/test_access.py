"""Whom requests come from, and what they call the server."""

from __future__ import annotations

import pytest

pytest.importorskip("aiohttp")
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from hf_ngpulm.serving.access import Access, local_hosts


def asked(remote="192.0.2.1", **headers):
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    return make_mocked_request("GET", "/", headers=headers).clone(remote=remote)


@pytest.mark.parametrize(
    "remote, forwarded, found",
    [
        ("192.0.2.1", None, "192.0.2.1"),
        ("192.0.2.1", "198.51.100.1", "192.0.2.1"),  # anybody can write that
        ("10.1.2.3", "198.51.100.1", "198.51.100.1"),
        ("10.1.2.3", "203.0.113.9, 198.51.100.1", "198.51.100.1"),  # what the client itself has sent comes before
        ("10.1.2.3", "198.51.100.1, 10.9.9.9", "198.51.100.1"),  # two proxies
        ("10.1.2.3", None, "10.1.2.3"),
        ("10.1.2.3", "unknown", "10.1.2.3"),
        ("10.1.2.3", "198.51.100.1:5000", "198.51.100.1"),
        ("10.1.2.3", "[2001:db8:1:2:3::4]:5000", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::1", None, "2001:db8:1:2::/64"),
        ("::ffff:192.0.2.1", None, "192.0.2.1"),
        ("fe80::1%eth0", None, "fe80::/64"),
        ("127.0.0.1", None, None),
        ("::1", None, None),
        ("127.0.0.1", "198.51.100.1", "198.51.100.1"),
        ("127.0.0.1", "[", None),
        ("", None, None),  # a socket that is a file
    ],
)
def test_whom_a_request_comes_from(remote, forwarded, found):
    headers = {} if forwarded is None else {"X_Forwarded_For": forwarded}
    assert Access(proxies=["10.0.0.0/8"]).address(asked(remote, **headers)) == found


def test_proxies_are_addresses():
    found = Access(proxies=["192.0.2.1", "::1", "10.1.0.0/16"]).networks
    assert [str(network) for network in found] == ["192.0.2.1/32", "::1/128", "10.1.0.0/16"]
    with pytest.raises(ValueError, match=r"proxy\.example"):
        Access(proxies=["proxy.example"])


def test_names_of_a_server():
    assert local_hosts("0.0.0.0") is None and local_hosts("example.org", ["https://example.org"]) is None
    local = {"localhost", "127.0.0.1", "::1"}
    assert local_hosts("::1") == local_hosts("localhost") == local_hosts("localhost", ["*"]) == local
    assert local_hosts("127.0.0.2") == local | {"127.0.0.2"}
    # Pages that may connect may do so through a proxy of their own name.
    origins = ["https://Example.org:8443", "http://[2001:db8::1]", "*"]
    assert local_hosts("::1", origins) == local | {"example.org", "2001:db8::1"}
    assert local_hosts("::1", ["http://[", "null", "example.org"]) == local


@pytest.mark.parametrize(
    "host, error",
    [
        ("localhost:8765", None),
        ("LOCALHOST", None),
        ("[::1]:8765", None),
        ("evil.example", web.HTTPForbidden),
        ("localhost.evil.example", web.HTTPForbidden),
        *((bad, web.HTTPBadRequest) for bad in ("[", "[::1", "]", "", ":80", "//", "[v1.x", "\u2100")),
    ],
)
def test_what_the_server_is_called(host, error):
    request = asked(Host=host)
    Access().check_host(request)
    if error is None:
        Access(hosts=local_hosts("::1")).check_host(request)
    else:
        with pytest.raises(error):
            Access(hosts=local_hosts("::1")).check_host(request)


def test_who_says_no_host():
    with pytest.raises(web.HTTPBadRequest):
        Access(hosts=local_hosts("::1")).check_host(asked())
    with pytest.raises(web.HTTPForbidden):
        Access().check_origin(asked(Origin="null"))


@pytest.mark.parametrize(
    "origin, origins, allowed",
    [
        (None, (), True),
        ("http://localhost:8765", (), True),
        ("http://LOCALHOST:8765", (), True),
        ("https://friend.example", ["https://friend.example"], True),
        ("https://friend.example", ["https://friend.example:1"], False),
        ("https://evil.example", ["*"], True),
        ("http://localhost", (), False),
        *((bad, (), False) for bad in ("http://[", "http://[::1", "null", "", "http://", "http://\u2100")),
    ],
)
def test_whose_pages_may_connect(origin, origins, allowed):
    request = asked(Host="localhost:8765", **({} if origin is None else {"Origin": origin}))
    if allowed:
        Access(origins).check_origin(request)
    else:
        with pytest.raises(web.HTTPForbidden):
            Access(origins).check_origin(request)


def test_keys_are_not_shown():
    assert "secret" not in repr(Access(keys=["secret"]))

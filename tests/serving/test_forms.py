"""Forms that are compressed, damaged, or more than there is room for."""

from __future__ import annotations

import asyncio
import gzip
import json

import pytest

pytest.importorskip("aiohttp")
from serving_clients import serving
from test_transcriptions import PATH, ask, wav

from hf_ngpulm.serving import Limits
from hf_ngpulm.serving.forms import Forms

FORM = {"Content-Type": "multipart/form-data; boundary=a"}
FILE = b'--a\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n'


async def posted(server, body, status, **headers):
    async with server.session.post(server.at + PATH, data=body, headers={**FORM, **headers}) as response:
        assert response.status == status, await response.text()
        return json.loads(await response.text())["error"]["message"], response.headers.get("Retry-After")


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "gzip, identity"])
def test_compressed_forms_are_refused_before_they_are_read(demo, coding):
    """400 MiB of zeros are 400 KiB on their way."""

    async def talk():
        async with serving(demo.recognizer(1), Limits(clients=1)) as server:
            body = gzip.compress(FILE + b"\r\n" + bytes(1_000_000) + b"\r\n--a--\r\n")
            said, _ = await posted(server, body, 415, **{"Content-Encoding": coding})
            assert "Content-Encoding" in said and repr(coding) in said

    asyncio.run(talk())


@pytest.mark.parametrize("header", ["Content-Encoding: gzip", "Content-Transfer-Encoding: base64"])
def test_parts_are_sent_as_they_are(demo, header):
    """A part that is coded would be taken for audio, or for phrases, in that form."""

    async def talk():
        async with serving(demo.recognizer(1), Limits(clients=1)) as server:
            said, _ = await posted(server, FILE + header.encode() + b"\r\n\r\nUklGRg==\r\n--a--\r\n", 415)
            assert header.partition(":")[0] in said
            plain = FILE + b"Content-Transfer-Encoding: binary\r\n\r\n" + wav(demo.clips[0]) + b"\r\n--a--\r\n"
            async with server.session.post(
                server.at + PATH, data=plain, headers={**FORM, "Content-Encoding": "identity"}
            ) as ok:
                assert ok.status == 200

    asyncio.run(talk())


@pytest.mark.parametrize(
    "body, headers",
    [
        (b"--a\r\nno header at all\r\n\r\nx\r\n--a--\r\n", {}),
        (b"--a\r\nContent-Disposition: form-data; name=\x00\x01\r\n\r\nx\r\n--a--\r\n", {}),
        (b"--a\r\n" + b"X: y\r\n" * 20_000 + b"\r\nx\r\n--a--\r\n", {}),
        (b"--a\r\nX: " + b"y" * 100_000 + b"\r\n\r\nx\r\n--a--\r\n", {}),
        (b"--a\r\nX : y\r\n\r\nx\r\n--a--\r\n", {}),
        (FILE + b"\r\nx", {}),  # without an end
        (FILE + b"Content-Type: multipart/mixed\r\n\r\nx\r\n--a--\r\n", {}),
        (b"x", {"Content-Type": "multipart/form-data; boundary=" + "a" * 100}),
        (b"x", {"Content-Type": "multipart/form-data; boundary="}),
        (b"x", {"Content-Type": "multipart/form-data"}),
    ],
    ids=lambda value: str(value)[:50],
)
def test_damaged_forms_are_the_clients_fault(demo, body, headers, caplog):
    async def talk():
        async with serving(demo.recognizer(1), Limits(clients=1)) as server:
            said, _ = await posted(server, body, 400, **headers)
            assert len(said) < 300 and "\n" not in said

    asyncio.run(talk())
    assert not caplog.records


def test_all_recordings_together_have_so_much_room(demo, monkeypatch):
    """One that comes while another's fill the room is told to come later; the room is given back."""
    made = []
    own = Forms.__init__
    monkeypatch.setattr(Forms, "__init__", lambda self, limits: (own(self, limits), made.append(self))[0])
    size = 300_000

    async def talk():
        limits = Limits(clients=1, upload_bytes=size, spool_bytes=size, upload_memory=1000)
        async with serving(demo.recognizer(1), limits) as server:
            _, writer = await asyncio.open_connection("127.0.0.1", int(server.at.rsplit(":", 1)[1]))
            head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Type: {FORM['Content-Type']}\r\nContent-Length: {size}\r\n\r\n"
            writer.write(head.encode() + FILE + b"\r\n" + bytes(size // 2))
            await writer.drain()
            while made[0]._spooled < size // 4:
                await asyncio.sleep(0.02)
            said, later = await posted(server, FILE + b"\r\n" + bytes(size * 3 // 4) + b"\r\n--a--\r\n", 503)
            assert "leave no room" in said and later == "1"
            writer.transport.abort()
            while made[0]._spooled:
                await asyncio.sleep(0.02)
            assert (await ask(server, wav(demo.clips[0][:16000])))["text"] is not None and not made[0]._spooled

    asyncio.run(asyncio.wait_for(talk(), 60))


def test_the_room_is_large_enough_for_one():
    with pytest.raises(ValueError, match=r"spool_bytes \(--max-spool\), 1,000, should leave room"):
        Limits(spool_bytes=1000)

"""Drive Chromium as a person would use it, by the DevTools protocol over pipes: nothing is installed but the browser.

    with Chromium("--window-size=1280,800") as browser:
        browser.open("http://127.0.0.1:7860")
        browser.wait("document.querySelector('button')")
        browser.evaluate("document.querySelector('button').click()")
        browser.screenshot("page.png")

https://chromedevtools.github.io/devtools-protocol/
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
MISSING = "no Chromium: on Debian apt-get install chromium"


def find() -> str | None:
    return next(filter(None, map(shutil.which, NAMES)), None)


class Chromium:
    """A headless browser with one page, from entry to exit of the `with` block."""

    def __init__(self, *flags: str) -> None:
        self.flags = flags

    def __enter__(self) -> Chromium:
        program = find()
        assert program is not None, MISSING
        self.profile = tempfile.mkdtemp()
        theirs_in, self.to = os.pipe()
        self.answers, theirs_out = os.pipe()
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--remote-debugging-pipe", *self.flags]
        # The protocol is spoken on descriptors 3 and 4.
        command = ["bash", "-c", f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}', "bash", program]
        self.process = subprocess.Popen(
            [*command, *flags, f"--user-data-dir={self.profile}", "about:blank"],
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self.received, self.number, self.session = b"", 0, None
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait(30)
        os.close(self.to)
        os.close(self.answers)
        shutil.rmtree(self.profile, ignore_errors=True)

    def call(self, method: str, seconds: float = 180, **parameters: Any) -> Any:
        """Send a command; returns what it gives."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        message |= {"sessionId": self.session} if self.session else {}
        os.write(self.to, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + seconds
        while True:
            while b"\0" not in self.received:
                ready, _, _ = select.select([self.answers], [], [], max(0, end - time.monotonic()))
                chunk = os.read(self.answers, 1 << 20) if ready else b""
                assert chunk, f"{method}: no answer" if not ready else f"{method}: the browser has ended"
                self.received += chunk
            text, _, self.received = self.received.partition(b"\0")
            answer = json.loads(text)
            if answer.get("id") == self.number:
                assert "error" not in answer, answer["error"]
                return answer["result"]

    def size(self, width: int, height: int, *, mobile: bool = False) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile
        )  # fmt: skip

    def open(self, address: str) -> None:
        self.call("Page.navigate", url=address)
        self.wait(f"location.href.startsWith({json.dumps(address)}) && document.readyState === 'complete'")

    def evaluate(self, script: str) -> Any:
        """Return what an expression of the page gives; a promise is waited for."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True, userGesture=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, condition: str, seconds: float = 180) -> Any:
        """Wait until an expression gives what is true; returns that."""
        end = time.monotonic() + seconds
        while (found := self.evaluate(f"({condition}) || null")) is None:
            assert time.monotonic() < end, f"not within {seconds} s: {condition}\n{self.evaluate('document.body.innerText')}"
            time.sleep(0.1)
        return found

    def screenshot(self, path: str | Path, *, whole: bool = False) -> None:
        picture = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        Path(path).write_bytes(base64.b64decode(picture["data"]))

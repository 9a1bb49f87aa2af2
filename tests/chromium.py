"""Chromium over its debugging pipe (JSON ending in NUL on descriptors 3 and 4), with the standard library alone."""

import base64
import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BINARY = next((p for n in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(n))), None)
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--remote-debugging-pipe",
)  # fmt: skip


class Page:
    """One tab. `events` holds every event since the last `open`."""

    def __init__(self, write: int, read: int) -> None:
        self._write, self._read = write, read
        self._buffer, self._number, self._session = b"", 0, ""
        self.events: list[dict[str, Any]] = []
        target = self._send("Target.createTarget", {"url": "about:blank"}, browser=True)["targetId"]
        attached = self._send("Target.attachToTarget", {"targetId": target, "flatten": True}, browser=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._send(f"{domain}.enable")

    def open(self, path: Path, *, width: int, height: int = 900, dark: bool = False, script: bool = True) -> None:
        """Load a file at a width in CSS pixels; with `script` off the page's own script does not run."""
        self._send("Emulation.setScriptExecutionDisabled", {"value": not script})
        mobile = width < 760
        self._send("Emulation.setDeviceMetricsOverride",
                   {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile})  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._send("Emulation.setEmulatedMedia", {"media": "screen", "features": [scheme]})
        self.events.clear()
        self._send("Page.navigate", {"url": path.resolve().as_uri()})
        self._until(lambda event: event["method"] == "Page.loadEventFired")

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        answer = self._send("Runtime.evaluate", {"expression": script, "returnByValue": True, "awaitPromise": True})
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def screenshot(self, path: Path) -> None:
        """The whole page as PNG."""
        size = self._send("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        shot = self._send("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip})
        path.write_bytes(base64.b64decode(shot["data"]))

    def pdf(self) -> bytes:
        """The page as it prints."""
        self._send("Emulation.setEmulatedMedia", {"media": "print", "features": []})
        return base64.b64decode(self._send("Page.printToPDF", {"preferCSSPageSize": True})["data"])

    def close(self) -> None:
        self._send("Browser.close", browser=True)

    def _send(self, method: str, params: dict[str, Any] | None = None, *, browser: bool = False) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params or {}}
        if not browser:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        answer = self._until(lambda event: event.get("id") == message["id"])
        assert "error" not in answer, (method, answer["error"])
        return answer["result"]

    def _until(self, wanted: Any) -> dict[str, Any]:
        seen = [e for e in self.events if "id" not in e and wanted(e)]
        if seen:
            return seen[0]
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            while b"\0" not in self._buffer:
                chunk = os.read(self._read, 1 << 16)
                assert chunk, "the browser has gone"
                self._buffer += chunk
            raw, _, self._buffer = self._buffer.partition(b"\0")
            event = {"method": "", **json.loads(raw)}
            if "id" not in event:
                self.events.append(event)
            if wanted(event):
                return event
        raise TimeoutError("the browser did not answer within 60 s")


@contextlib.contextmanager
def browser() -> Iterator[Page]:
    """A running browser with one tab and its own profile; ended, and only this one, on leaving."""
    assert BINARY is not None
    ends = [fd for pair in (os.pipe(), os.pipe()) for fd in pair]
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 20) for fd in ends]
    for fd in ends:
        os.close(fd)
    child_read, write, read, child_write = high

    def place() -> None:
        os.dup2(child_read, 3)
        os.dup2(child_write, 4)

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen([BINARY, *FLAGS, f"--user-data-dir={profile}", "about:blank"], preexec_fn=place,
                                   pass_fds=(3, 4), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
        os.close(child_read)
        os.close(child_write)
        try:
            page = Page(write, read)
            yield page
            page.close()
            process.wait(timeout=20)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
            os.close(write)
            os.close(read)

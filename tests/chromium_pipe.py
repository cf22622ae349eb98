"""A page in headless Chromium, over the two pipes of its DevTools protocol: no port, no package.

Enough to look at a page as a reader does: open it, press keys, ask what is there, take a picture,
and know of every error it reported and every address it asked for.
"""

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
MISSING = f"no browser: none of {', '.join(NAMES)} is on the path (Debian: apt install chromium)"
LONGEST_S = 60.0  # for one answer; a browser that says nothing for so long has failed
_FLAGS = [
    "--remote-debugging-pipe",
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--hide-scrollbars",
]
# The browser reads from descriptor 3 and writes to 4. Put there in a process of its own, since
# what runs between fork and exec must not be Python of a process with threads.
_START = "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); " + (
    "os.execv(sys.argv[3], sys.argv[3:])"
)


def browser() -> str | None:
    """The path of a Chromium on this machine."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class ChromiumPage:
    """One page of one browser, which is ended on leaving."""

    def __init__(self, program: str) -> None:
        self.errors: list[str] = []  # exceptions, and what the page or the browser logged as wrong
        self.requests: list[str] = []
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        ours, theirs = os.pipe(), os.pipe()
        # Above 4, so that neither is overwritten while they are put in place.
        ends = [fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (ours[0], theirs[1])]
        command = [sys.executable, "-c", _START, *map(str, ends), program, *_FLAGS]
        folder = f"--user-data-dir={self._profile.name}"
        self._process = subprocess.Popen(
            [*command, folder], pass_fds=ends, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        for fd in (ours[0], theirs[1], *ends):
            os.close(fd)
        self._to, self._from, self._held = ours[1], theirs[0], b""
        self._session: str | None = None
        self._last_id = 0
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._to)  # which is how such a browser is told to end
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._from)
        self._profile.cleanup()

    def open(self, address: str) -> None:
        """Load a page, to its end."""
        self.send("Page.navigate", url=address)
        self._until(lambda message: message.get("method") == "Page.loadEventFired")

    def look(self, *, width: int = 1280, height: int = 800, scheme: str = "light") -> None:
        """See the page in a window of this size, on a `light` or a `dark` system."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.send("Emulation.setDeviceMetricsOverride", **size)
        wished = [{"name": "prefers-color-scheme", "value": scheme}]
        self.send("Emulation.setEmulatedMedia", features=wished)

    def press(self, key: str) -> None:
        """Press and release one key that writes a character."""
        self.send("Input.dispatchKeyEvent", type="keyDown", key=key, text=key)
        self.send("Input.dispatchKeyEvent", type="keyUp", key=key)

    def value(self, expression: str) -> Any:
        """What a JavaScript expression gives, as JSON."""
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in answer:
            raise AssertionError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def picture(self, path: Path) -> None:
        """Write what is in sight as a PNG file."""
        data = self.send("Page.captureScreenshot", format="png")["data"]
        path.write_bytes(base64.b64decode(data))

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """The result of one command of the protocol."""
        self._last_id += 1
        own = self._last_id
        command = {"id": own, "method": method, "params": params}
        command |= {"sessionId": self._session} if self._session else {}
        os.write(self._to, json.dumps(command).encode() + b"\0")
        answer = self._until(lambda message: message.get("id") == own)
        assert "result" in answer, f"{method}: {answer}"
        return answer["result"]

    def _until(self, is_wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        while True:
            message = self._message()
            self._note(message.get("method", ""), message.get("params", {}))
            if is_wanted(message):
                return message

    def _note(self, method: str, params: dict[str, Any]) -> None:
        is_logged = method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning")
        if method in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled") or is_logged:
            self.errors.append(json.dumps(params))
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])

    def _message(self) -> dict[str, Any]:
        deadline = time.monotonic() + LONGEST_S
        while b"\0" not in self._held:
            left = deadline - time.monotonic()
            assert select.select([self._from], [], [], max(left, 0))[0], "the browser is silent"
            read = os.read(self._from, 1 << 20)
            assert read, f"the browser ended with code {self._process.poll()}"
            self._held += read
        first, _, self._held = self._held.partition(b"\0")
        return json.loads(first)

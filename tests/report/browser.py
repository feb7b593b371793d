"""A headless Chromium, driven by chromedriver over the WebDriver protocol (w3.org/TR/webdriver2), with the standard
library alone."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
MISSING = None if CHROMIUM and DRIVER else "chromium and chromedriver are not installed (apt install chromium-driver)"

KEYS = {"Escape": "\ue00c", "Enter": "\ue007", "Tab": "\ue004", "Up": "\ue013", "Down": "\ue015"}
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
_ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)


class Browser:
    """One window. `size` is that of its page in pixels."""

    def __init__(self) -> None:
        assert CHROMIUM
        assert DRIVER
        self._folder = tempfile.TemporaryDirectory()
        self._process = subprocess.Popen([DRIVER, "--port=0"], stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        line = next(line for line in self._process.stdout if "started successfully on port" in line)
        self._base = f"http://127.0.0.1:{line.split('port ')[1].strip().rstrip('.')}"
        options = {"binary": CHROMIUM, "args": [*_ARGUMENTS, f"--user-data-dir={self._folder.name}"]}
        wanted = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        made = self._call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._base += f"/session/{made['sessionId']}"

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._base + path, data, {"Content-Type": "application/json"}, method=method)
        # Not through a proxy that the environment names.
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=300) as answer:
            return json.loads(answer.read())["value"]

    def close(self) -> None:
        try:
            self._call("DELETE", "")
        finally:
            self._process.terminate()
            self._process.wait(30)
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._folder.cleanup()

    def open(self, path: Path, *, width: int = 1440, height: int = 900, dark: bool = False, media: str = "") -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.devtools("Emulation.setDeviceMetricsOverride", metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.devtools("Emulation.setEmulatedMedia", {"media": media, "features": [scheme]})
        self._call("POST", "/url", {"url": "about:blank"})
        self._call("POST", "/url", {"url": path.resolve().as_uri()})
        # A large page may still be read.
        loaded = "document.readyState === 'complete' ? done() : addEventListener('load', done)"
        self.run(f"return new Promise(done => {loaded})")

    def devtools(self, command: str, parameters: dict[str, Any]) -> Any:
        return self._call("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def run(self, script: str, *arguments: Any) -> Any:
        """What `return ...` in it gives."""
        return self._call("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def click(self, selector: str) -> None:
        """With the mouse, in the middle of the first such element."""
        place = "arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})"
        found = self._call("POST", "/element", {"using": "css selector", "value": selector})
        self.run(place, found)
        move = {"type": "pointerMove", "duration": 0, "x": 0, "y": 0, "origin": {_ELEMENT: found[_ELEMENT]}}
        presses = [{"type": "pointerDown", "button": 0}, {"type": "pointerUp", "button": 0}]
        mouse = {"type": "pointer", "id": "mouse", "actions": [move, *presses]}
        self._call("POST", "/actions", {"actions": [mouse]})

    def press(self, *keys: str) -> None:
        """Names of keys, or texts, one after the other."""
        typed = [character for key in keys for character in (KEYS.get(key) or key)]
        strokes = [{"type": kind, "value": key} for key in typed for kind in ("keyDown", "keyUp")]
        self._call("POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": strokes}]})

    def log(self) -> list[str]:
        """What the console has said since it was last asked."""
        return [f"{line['level']}: {line['message']}" for line in self._call("POST", "/se/log", {"type": "browser"})]

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self._call("GET", "/screenshot")))

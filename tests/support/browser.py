"""A real browser without a window, over a pipe (DevTools protocol): what a page shows, says and asks for."""

import base64
import json
import os
import pathlib
import select
import shutil
import subprocess
import tempfile
import time

EXECUTABLE = shutil.which("chromium") or shutil.which("google-chrome")


class Browser:
    """One tab. `console`: what scripts complained of; `requests`: every address that was asked for."""

    def __init__(self) -> None:
        self.profile = tempfile.mkdtemp(prefix="foreshock-browser-")
        to_browser, our_end = os.pipe()
        self.answers, from_browser = os.pipe()
        for end in (to_browser, from_browser):
            os.set_inheritable(end, True)
        words = [EXECUTABLE, "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--no-first-run"]
        words += ["--disable-background-networking", "--disable-component-update", f"--user-data-dir={self.profile}"]
        # The browser reads from descriptor 3 and writes to 4.
        shell = f'exec 3<&{to_browser} 4>&{from_browser}; exec "$@"'
        self.process = subprocess.Popen(
            ["bash", "-c", shell, "browser", *words, "about:blank"],
            pass_fds=(to_browser, from_browser), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_browser)
        os.close(from_browser)
        self.commands = our_end
        self.buffer = b""
        self.number = 0
        self.console: list[str] = []
        self.requests: list[str] = []
        targets = self.call("Target.getTargets", session=None)["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        self.session = self.call("Target.attachToTarget", session=None, targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def read(self, seconds: float) -> dict | None:
        """The next message, or None."""
        end = time.monotonic() + seconds
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.answers], [], [], max(0, end - time.monotonic()))
            if not ready:
                return None
            chunk = os.read(self.answers, 1 << 16)
            assert chunk, "the browser has ended"
            self.buffer += chunk
        message, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(message)

    def note(self, message: dict) -> None:
        what, facts = message.get("method"), message.get("params", {})
        if what == "Network.requestWillBeSent":
            self.requests.append(facts["request"]["url"])
        elif what == "Runtime.exceptionThrown":
            self.console.append(json.dumps(facts["exceptionDetails"])[:500])
        elif what == "Runtime.consoleAPICalled" and facts["type"] in ("error", "warning", "assert"):
            self.console.append(json.dumps(facts["args"])[:500])
        elif what == "Log.entryAdded":
            self.console.append(facts["entry"]["text"])

    def call(self, method: str, session: str | None = "", **parameters: object) -> dict:
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = self.session
        os.write(self.commands, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + 120
        while time.monotonic() < end:
            answer = self.read(end - time.monotonic())
            if answer is None:
                break
            if answer.get("id") == self.number:
                assert "error" not in answer, answer["error"]
                return answer["result"]
            self.note(answer)
        raise AssertionError(f"{method}: the browser does not answer")

    def open(self, address: str, width: int = 1280, height: int = 900, dark: bool = False, calm: bool = False) -> None:
        """`calm`: the reader has asked for less motion."""
        self.leave()
        self.console.clear()
        self.requests.clear()
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        motion = {"name": "prefers-reduced-motion", "value": "reduce" if calm else "no-preference"}
        self.call("Emulation.setEmulatedMedia", features=[scheme, motion])
        self.call("Page.navigate", url=address)

    def leave(self) -> None:
        """Ends the page, so that it asks nobody any more."""
        self.call("Page.navigate", url="about:blank")
        self.wait_for("location.href === 'about:blank'")

    def value(self, script: str) -> object:
        """Of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait_for(self, script: str, seconds: float = 120) -> object:
        end = time.monotonic() + seconds
        guarded = f"(() => {{ try {{ return Boolean({script}); }} catch (error) {{ return null; }} }})()"
        while not (result := self.value(guarded)):
            assert time.monotonic() < end, f"in vain: {script}; console: {self.console}"
            time.sleep(0.1)
        return result

    def texts(self, selector: str) -> list[str]:
        return self.value(f"[...document.querySelectorAll({json.dumps(selector)})].map((e) => e.textContent)")

    def press(self, key: str, shift: bool = False) -> None:
        number = {"Tab": 9}.get(key, 0)  # without it the focus stays where it is
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=number,
                modifiers=8 if shift else 0,
            )  # fmt: skip

    def screenshot(self, path: pathlib.Path, whole: bool = True) -> None:
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    def close(self) -> None:
        os.close(self.commands)
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.answers)
        shutil.rmtree(self.profile, ignore_errors=True)


def layout_problems(tab: Browser) -> list[str]:
    """Texts that cover each other, parts wider than the page, and empty panels."""
    return tab.value(pathlib.Path(__file__).with_name("layout_problems.js").read_text())

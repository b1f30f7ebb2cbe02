"""``trioserve serve`` as a process of its own, for programs that speak to it over the network.

Owns: ServerProcess, how it is started and ended, and what may be left in it after all clients have gone.
Must not know: what clients ask.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import attrs

IDLE_SECONDS: Final = 10.0
"""That a server may take to give up what clients have left."""
_END_SECONDS: Final = 60.0
_ADDRESS: Final = re.compile(r"http://[^\s,]+")


@attrs.frozen
class ServerProcess:
    """A running server, and where it writes its log."""

    url: str
    """Such as http://127.0.0.1:8000."""
    log: Path
    key: str | None
    """What it wants to be shown."""
    process: subprocess.Popen[str]

    def get(self, path: str) -> Any:
        """The JSON at ``path``.

        Raises:
            OSError: it does not answer, or not with 200.
        """
        headers = {} if self.key is None else {"Authorization": f"Bearer {self.key}"}
        request = urllib.request.Request(self.url + path, headers=headers)
        with urllib.request.urlopen(request, timeout=IDLE_SECONDS) as response:
            return json.load(response)

    def faults(self) -> list[str]:
        """What is wrong with a server whose clients have gone: requests that still run, errors in its log, its end."""
        try:
            running = self._wait_until_idle()
        except OSError as error:
            running = [f"it does not answer: {error}"]
        if self.process.poll() is not None:
            running.append(f"it has ended with {self.process.returncode}")
        lines = self.log.read_text(errors="replace").splitlines()
        return [*running, *[line for line in lines if re.search(r"\[(error|critical) |^Traceback|^Fatal", line)]]

    def _wait_until_idle(self) -> list[str]:
        limit = time.monotonic() + IDLE_SECONDS
        while True:
            running = self.get("/v1/engine")["requests"]
            if not running or time.monotonic() > limit:
                return [f"still running after {IDLE_SECONDS:.0f} s: {request}" for request in running]
            time.sleep(0.1)


@contextmanager
def serving_process(model: str, log: Path, *flags: str, key: str | None = None) -> Iterator[ServerProcess]:
    """A block with a server of ``model`` on a free port.

    Args:
        model: as ``trioserve serve`` takes it.
        log: a file for what the server writes on standard error.
        flags: more of the command line.
        key: an API key that the server shall want.

    Raises:
        RuntimeError: it ended instead of serving.
    """
    # if it crashes, the log says where
    command = [sys.executable, "-X", "faulthandler", "-m", "trioserve", "serve", model, "--port", "0", *flags]
    if key is not None:
        command += ["--api-key", key]
    with log.open("w") as err:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=err, text=True)
    assert process.stdout is not None
    try:
        # it says where it is once it serves
        found = next((match for match in map(_ADDRESS.search, process.stdout) if match), None)
        if found is None:
            raise RuntimeError(f"the server has ended:\n{log.read_text(errors='replace')}")
        yield ServerProcess(found[0], log, key, process)
    finally:
        process.terminate()
        try:
            process.wait(_END_SECONDS)
        finally:
            process.kill()
            process.stdout.close()

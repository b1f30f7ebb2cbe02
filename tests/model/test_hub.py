"""The real library against a server of our own on this machine."""

from __future__ import annotations

import hashlib
import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from trioserve.abc import no_progress
from trioserve.errors import ModelError
from trioserve.model.hub import HuggingFaceHub, download_repo

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = {"config.json": b'{"a": 1}', "model.safetensors": b"12345678" * 1000, "README.md": b"#"}


class Handler(BaseHTTPRequestHandler):
    """Serves org/llama; org/gated and every other repo are refused as Hugging Face refuses them."""

    def log_message(self, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def answer(self, body: bool) -> None:
        path = urlsplit(self.path).path
        api = path.removeprefix("/api/models/org/llama")
        if path.startswith("/api/") and "gated" in path:
            self.reply(403, {"X-Error-Code": "GatedRepo", "X-Error-Message": "restricted"}, b"{}", body)
        elif path.startswith("/api/") and not path.startswith("/api/models/org/llama"):
            self.reply(404, {"X-Error-Code": "RepoNotFound", "X-Error-Message": "not found"}, b"{}", body)
        elif api.startswith("/tree/"):
            entries = [
                {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                for name, data in FILES.items()
            ]
            self.reply(200, {}, json.dumps(entries).encode(), body)
        elif path.startswith("/api/"):
            siblings = [{"rfilename": name, "size": len(data)} for name, data in FILES.items()]
            info = {"id": "org/llama", "sha": COMMIT, "siblings": siblings, "tags": []}
            self.reply(200, {}, json.dumps(info).encode(), body)
        else:
            data = FILES[path.rpartition("/")[2]]
            etag = hashlib.sha1(data).hexdigest()
            self.reply(200, {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT}, data, body)

    def reply(self, status: int, headers: dict[str, str], data: bytes, body: bool) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), "Content-Type": "application/json", **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(data)


@pytest.fixture(scope="module")
def hub() -> Iterator[HuggingFaceHub]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield HuggingFaceHub(f"http://127.0.0.1:{server.server_port}")
        server.shutdown()
        thread.join()


def test_a_repo_is_fetched(hub: HuggingFaceHub, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    seen: list[tuple[str, int, int | None]] = []

    download_repo(hub, "org/llama", None, tmp_path, lambda *step: seen.append(step))

    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        name: FILES[name] for name in ("config.json", "model.safetensors")
    }
    assert seen[-1] == ("downloading", 8008, 8008)
    assert capfd.readouterr().err == ""  # no bars of the library's own


def test_one_file_of_a_repo_is_fetched(hub: HuggingFaceHub, tmp_path: Path) -> None:
    download_repo(hub, "org/llama", "README.md", tmp_path, no_progress)

    assert [path.name for path in tmp_path.iterdir()] == ["README.md"]


@pytest.mark.parametrize(
    ("repo", "message"),
    [
        ("org/gated", "the Hugging Face repo 'org/gated' is gated: accept its terms on its page, then run"),
        ("org/other", "there is no Hugging Face repo 'org/other'; if it is a private one, run"),
        ("org/a--b", "'org/a--b' can't be fetched: HFValidationError: "),
    ],
)
def test_a_repo_that_can_not_be_had(hub: HuggingFaceHub, tmp_path: Path, repo: str, message: str) -> None:
    with pytest.raises(ModelError) as caught:
        download_repo(hub, repo, None, tmp_path, no_progress)

    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_without_a_network_the_message_says_what_happened(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        hub = HuggingFaceHub(f"http://127.0.0.1:{taken.getsockname()[1]}")

        with pytest.raises(ModelError, match=r"^'org/llama' can't be fetched: Connect\w*Error: ") as caught:
            download_repo(hub, "org/llama", None, tmp_path, no_progress)

    assert "\n" not in str(caught.value)

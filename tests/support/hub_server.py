"""A server of this process that speaks as the hub does, and commands that talk to it."""

import base64
import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlparse


class _Handler(BaseHTTPRequestHandler):
    """The part of the hub's interface that uploading needs, and reading the uploaded files."""

    stored: dict[str, bytes]
    objects: dict[str, bytes]
    failures: list[int]
    commits: list[int]

    def _answer(self, content, status=200):
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _answer_file(self, path):
        content = self.stored.get(path)
        if content is None:
            self.send_response(404)
            self.send_header("X-Error-Code", "EntryNotFound")
            self.send_header("X-Repo-Commit", "1" * 40)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        begin, end = 0, len(content)
        if wanted := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or ""):
            begin, end = int(wanted[1]), min(end, int(wanted[2] or end) + 1)
        whole, content = len(content), content[begin:end]
        self.send_response(206 if wanted else 200)
        if wanted:
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{whole}")
        self.send_header("ETag", f'"{_git_sha1(self.stored[path])}"')
        self.send_header("X-Repo-Commit", "1" * 40)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def _body(self):
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        if len(body) < length:
            raise ConnectionError("the client ended")
        return body

    def handle(self):
        with suppress(ConnectionError):
            super().handle()

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        if "/resolve/" in self.path:
            self._answer_file(unquote(urlparse(self.path).path.split("/resolve/")[1].split("/", 1)[1]))
            return
        if "/tree/" not in self.path:
            names = [{"rfilename": path} for path in self.stored]
            known = "/someone/nothing" not in self.path
            about = {"id": "someone/set", "sha": "1" * 40, "siblings": names}
            self._answer(about if known else {"error": "Repository not found"}, 200 if known else 404)
            return
        url = urlparse(self.path)
        folder = unquote(url.path.split("/tree/")[1].partition("/")[2])
        prefix = f"{folder}/" if folder else ""
        inside = [path for path in self.stored if path.startswith(prefix)]
        if "recursive=true" not in url.query.lower():
            inside = list(dict.fromkeys(prefix + path.removeprefix(prefix).split("/")[0] for path in inside))
        self._answer([self._entry(path) for path in inside])

    def _entry(self, path):
        if path not in self.stored:
            return {"type": "directory", "path": path, "oid": _git_sha1(path.encode())}
        content = self.stored[path]
        entry = {"type": "file", "path": path, "size": len(content), "oid": _git_sha1(content)}
        if path.endswith((".parquet", ".safetensors")):
            sha = hashlib.sha256(content).hexdigest()
            entry["lfs"] = {"oid": sha, "size": len(content), "pointerSize": 130}
        return entry

    def do_PUT(self):
        self.objects[urlparse(self.path).path.rpartition("/")[2]] = self._body()
        self._answer({})

    def do_POST(self):
        body = self._body()
        path = urlparse(self.path).path
        if path.endswith("/validate-yaml"):
            self._answer({"errors": [], "warnings": []})
        elif "/paths-info/" in path:
            asked = json.loads(body)["paths"] if body.startswith(b"{") else parse_qs(body.decode()).get("paths", [])
            known = [one for one in asked if any(path == one or path.startswith(f"{one}/") for path in self.stored)]
            self._answer([self._entry(one) for one in known])
        elif "/branch/" in path:
            self._answer({})
        elif path.endswith("/create"):
            self._answer({"url": f"http://{self.headers['Host']}/datasets/someone/set"})
        elif "/preupload/" in path:
            files = json.loads(body)["files"]
            modes = [
                {
                    "path": file["path"],
                    "uploadMode": "lfs" if file["path"].endswith((".parquet", ".safetensors")) else "regular",
                    "shouldIgnore": False,
                }
                for file in files
            ]
            self._answer({"files": modes})
        elif path.endswith("/objects/batch"):
            objects = json.loads(body)["objects"]
            host = f"http://{self.headers['Host']}"
            for entry in objects:
                entry["actions"] = {"upload": {"href": f"{host}/objects/{entry['oid']}"}}
            self._answer({"transfer": "basic", "objects": objects})
        elif "/commit/" in path:
            if self.failures:
                self._answer({"error": "busy"}, self.failures.pop())
                return
            added = {}
            for line in body.splitlines():
                entry = json.loads(line)
                value = entry["value"]
                if entry["key"] == "file":
                    added[value["path"]] = base64.b64decode(value["content"])
                elif entry["key"] == "lfsFile":
                    added[value["path"]] = self.objects[value["oid"]]
            self.stored.update(added)
            host = f"http://{self.headers['Host']}"
            self._answer({"commitUrl": f"{host}/datasets/someone/set/commit/1", "commitOid": "1", "success": True})
            self.commits.append(len(self.stored))
        else:
            self._answer({"error": path}, 404)

    def log_message(self, *_): ...


def _git_sha1(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@dataclass(frozen=True)
class ServedHub:
    """A data set `someone/set` on that server."""

    stored: dict[str, bytes]
    commits: list[int]
    """Files that were there after each commit."""
    environment: dict[str, str]

    def start(self, *words: str) -> subprocess.Popen[str]:
        """A command of the package that knows no other hub."""
        command = [sys.executable, "-m", "pretrainkit", *words]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(command, env=self.environment, text=True, start_new_session=True, **pipes)

    def command(self, *words: str, seconds: int = 100) -> subprocess.CompletedProcess[str]:
        """The same, waited for."""
        command = [sys.executable, "-m", "pretrainkit", *words]
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=seconds)


@contextmanager
def served_hub(folder: Path, failures: Sequence[int] = ()) -> Iterator[ServedHub]:
    """`failures`: answers to the first commits, which are then tried again. `folder`: for what clients keep."""
    state = {"stored": {}, "objects": {}, "failures": list(failures), "commits": []}
    handler = type("Handler", (_Handler,), state)
    server = ThreadingHTTPServer(("localhost", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    environment = os.environ | {
        "HF_ENDPOINT": f"http://localhost:{server.server_port}",
        "HF_HUB_OFFLINE": "0",
        "HF_TOKEN": "none",
        "HF_HUB_DISABLE_XET": "1",
        "HF_HOME": str(folder / "home"),
        "NO_PROXY": "localhost",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    try:
        yield ServedHub(handler.stored, handler.commits, environment)
    finally:
        server.shutdown()

"""A web server of this process that serves a folder, and requested parts of its files."""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlparse


@dataclass
class ServedFolder:
    """A folder behind `address`."""

    address: str = ""
    requests: list[tuple[str, str, str]] = field(default_factory=list)
    """Method, path and range of each request."""
    num_bytes: int = 0
    """Bytes of files that were sent."""
    failures: list[int] = field(default_factory=list)
    """Status codes of the next answers to GET."""
    has_ranges: bool = True
    """False: a request for a part is answered with the whole file."""


@contextmanager
def served_folder(folder: Path) -> Iterator[ServedFolder]:
    served = ServedFolder()
    counting = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.do_GET()

        def do_GET(self):
            wanted = self.headers.get("Range", "")
            served.requests.append((self.command, self.path, wanted))
            path = folder / unquote(urlparse(self.path).path).lstrip("/")
            if served.failures and self.command == "GET":
                self.send_error(served.failures.pop(0))
                return
            if not path.is_file():
                self.send_error(404)
                return
            content = path.read_bytes()
            begin, end = 0, len(content)
            is_part = served.has_ranges and (match := re.fullmatch(r"bytes=(\d+)-(\d*)", wanted))
            if is_part:
                begin, end = int(match[1]), min(end, int(match[2] or end) + 1)
            self.send_response(206 if is_part else 200)
            if is_part:
                self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(content)}")
            self.send_header("ETag", f'"{path.stat().st_mtime_ns}"')
            self.send_header("Content-Length", str(end - begin))
            self.end_headers()
            if self.command == "GET":
                with counting:  # before the client has the answer and continues
                    served.num_bytes += end - begin
                self.wfile.write(content[begin:end])

        def log_message(self, *_): ...

    server = ThreadingHTTPServer(("localhost", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    served.address = f"http://localhost:{server.server_port}"
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()

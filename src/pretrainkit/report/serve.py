"""A live report: a small web server, only for this machine, whose page follows runs during training."""

import secrets
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from pretrainkit.errors import DataError, InputError
from pretrainkit.report.comparison import compared_runs, render_comparison
from pretrainkit.report.markup import tag
from pretrainkit.report.page import Refresh, html_page, render
from pretrainkit.report.run_folder import read_run

ADDRESS = "127.0.0.1"


def live_page(folders: list[Path], seconds: int) -> str:
    """Return the page of one or several runs as they are now. If a run has not logged anything yet,
    return a page that waits for it."""
    refresh = Refresh(seconds, time.strftime("%H:%M:%S"))
    try:
        if len(folders) == 1:
            return render(read_run(folders[0]), refresh)
        return render_comparison(compared_runs(folders), refresh)
    except DataError as error:
        wait = [tag("h1", "Nothing to show yet"), *(tag("p", line) for line in str(error).split("\n"))]
        return html_page("waiting", wait, has_charts=True, refresh=refresh)


def open_server(page: Callable[[], str], port: int) -> tuple[ThreadingHTTPServer, str]:
    """Return a server that answers with `page()`, and the address of the page. Its path is a random token, so that
    other users of this machine and web pages cannot read it. Raises InputError if the port is in use."""
    path = f"/{secrets.token_urlsafe(16)}/"

    class Handler(BaseHTTPRequestHandler):
        server_version, sys_version = "pretrainkit", ""

        def do_GET(self) -> None:
            if not secrets.compare_digest(self.path.encode(), path.encode()):
                self.send_error(404, "not found: use the whole address that pretrainkit printed")
                return
            content = page().encode()
            self.send_response(200)
            headers = {"Content-Type": "text/html; charset=utf-8", "Content-Length": str(len(content))}
            for name, value in {**headers, "Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Print nothing, because the page sends a request every few seconds."""

    try:
        server = ThreadingHTTPServer((ADDRESS, port), Handler)
    except OSError as error:
        raise InputError(
            f"cannot listen on port {port} of this machine: {error.strerror}\n  give another port; --port 0 uses a "
            "free port"
        ) from None
    return server, f"http://{ADDRESS}:{server.server_address[1]}{path}"

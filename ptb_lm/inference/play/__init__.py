"""A local web page to try a trained model: its server, for this machine's own browser alone."""

import dataclasses
import errno
import re
import socketserver
import sys
import threading
from collections.abc import Collection
from http import HTTPStatus
from http.client import HTTP_PORT
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs

from typing_extensions import override

from ptb_lm.common.errors import DivergenceError, UserError
from ptb_lm.inference.language_model import LanguageModel
from ptb_lm.inference.play import page
from ptb_lm.inference.play.page import PageContent, write_page

HOST = "127.0.0.1"
FORMS = {"/read": "text", "/continue": "prompt"}  # where each button sends the form; the field that it is for
LARGEST = 100_000  # bytes of a form
DISCARD_LIMIT = 100 * LARGEST  # bytes of a larger form that are read all the same, so that its answer is seen
_LENGTH = re.compile("[0-9]{1,18}")
SECONDS = 30  # that each part of a request may take to come in
SECURITY = {
    # The page has a style of its own, and sends its forms here; no more.
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    # "no-referrer" would make a browser say Origin: null of the page's own forms.
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Server(socketserver.ThreadingTCPServer):  # HTTPServer would ask a name server who 127.0.0.1 is
    """Listens on 127.0.0.1 as soon as it is made; answers once it has a model.

    A browser opens connections that it does not use yet, so that each has a thread; the model answers one at
    a time.

    Args:
        port: 0: any that is free.

    Raises:
        UserError: The port is taken or not allowed.
    """

    allow_reuse_address = True  # also while connections of an earlier server are being closed
    daemon_threads = True  # a request that is not answered yet does not hold up the end
    request_queue_size = 128  # connections that wait for a thread; more at once are reset
    model: LanguageModel
    description: str
    first_response: PageContent

    def __init__(self, port: int) -> None:
        self.model_lock = threading.Lock()
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise UserError(
                    f"port {port} is in use; --port chooses another, 0 any that is free"
                ) from None
            if error.errno == errno.EACCES:
                raise UserError(f"port {port} is not allowed; --port chooses another") from None
            raise

    def use(self, model: LanguageModel) -> None:
        """Answer with a model from now on, and show a sentence that it has read already."""
        self.model, self.description = model, page.description(model)
        text = page.write_opening(model)
        response, _ = self.respond("/read", {"text": text}) if text else (PageContent(field="text"), None)
        self.first_response = dataclasses.replace(response, is_opening=bool(text))

    def respond(self, path: str, fields: dict[str, str]) -> tuple[PageContent, HTTPStatus]:
        """Return the response to the form, which was sent to one of FORMS."""
        shown: dict[str, Any] = {
            name: fields[name] for name in ("text", "prompt", "length", "temperature") if name in fields
        }
        try:
            with self.model_lock:
                if path == "/continue":
                    shown["continuation"] = page.continue_prompt(self.model, fields)
                else:
                    shown["words"] = page.read(self.model, fields.get("text", ""))
        except (UserError, DivergenceError) as error:
            field = error.field if isinstance(error, page.FieldError) else FORMS[path]
            return PageContent(**shown, field=field, problem=str(error)), HTTPStatus.BAD_REQUEST
        return PageContent(**shown, field=FORMS[path]), HTTPStatus.OK

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self.server_address[1])

    @override
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a browser that went away. Any other error is a bug and keeps its traceback."""
        if not isinstance(sys.exc_info()[1], (ConnectionError, TimeoutError)):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: Server
    timeout = SECONDS

    @override
    def version_string(self) -> str:
        return "ptb_lm"

    @override
    def log_message(self, format: str, *args: Any) -> None:
        """Keep typed text out of the terminal."""

    def do_GET(self) -> None:
        # A form leaves its address in the browser's line, where Enter asks for it again.
        path = self.path.partition("?")[0]
        response = self._refusal(path, ("/", *FORMS)) or (self.server.first_response, HTTPStatus.OK)
        self._show(*response)

    do_HEAD = do_GET

    def do_POST(self) -> None:
        # Read first, whatever the answer is: a browser that still sends when the connection ends loses it.
        content = self._content()
        try:
            response = self._refusal(self.path, FORMS) or self.server.respond(self.path, _fields(content))
        except UserError as error:
            response = PageContent(problem=str(error)), HTTPStatus.BAD_REQUEST
        self._show(*response)

    def _refusal(self, path: str, pages: Collection[str]) -> tuple[PageContent, HTTPStatus] | None:
        """Return the answer to a request for a path that is none of some pages; None if it is one.

        Another host name than this machine's is refused: another site's name may lead here.
        """
        names = {f"{name}:{self.server.port}" for name in (HOST, "localhost")}
        if self.server.port == HTTP_PORT:  # which browsers leave out
            names |= {HOST, "localhost"}
        origin = self.headers.get("Origin")
        if self.headers.get("Host") not in names or origin not in {None, *(f"http://{n}" for n in names)}:
            return PageContent(problem="this page answers only at its own address"), HTTPStatus.FORBIDDEN
        if path not in pages:
            return PageContent(problem=f"there is no page {self.path}"), HTTPStatus.NOT_FOUND
        return None

    def _content(self) -> bytes | None:
        """Return what was sent, or more than LARGEST bytes of it; None if its length is missing or wrong."""
        given = self.headers.get("Content-Length", "")
        if not _LENGTH.fullmatch(given):
            return None
        length = int(given)
        content = self.rfile.read(most := min(length, LARGEST + 1))
        left = min(length, DISCARD_LIMIT) - len(content)
        while left > 0 and (piece := self.rfile.read(min(left, LARGEST))):
            left -= len(piece)
        return content if len(content) == most else None

    def _show(self, content: PageContent, status: HTTPStatus) -> None:
        body = write_page(content, model=self.server.description).encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        for name, value in SECURITY.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _fields(content: bytes | None) -> dict[str, str]:
    """Return the fields of a form.

    Raises:
        UserError: Its length is missing or wrong, it is too long, or it is not a form.
    """
    if content is None:
        raise UserError("the request does not say how long it is, or ends sooner")
    if len(content) > LARGEST:
        raise UserError(f"the text is too long: at most {LARGEST:,} bytes")
    try:
        fields = parse_qs(content.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=10)
    except ValueError:  # UnicodeDecodeError is one
        raise UserError("the request is not a form in UTF-8") from None
    return {name: values[-1].replace("\r\n", "\n") for name, values in fields.items()}

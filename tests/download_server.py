"""A server on this machine with a small corpus in the place of Penn Treebank's; it answers in every way."""

import contextlib
import hashlib
import io
import tarfile
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

FILES = {
    "ptb.train.txt": b" the made up file <unk> \n" * 4000,
    "ptb.valid.txt": b" another one \n" * 70,
    "ptb.test.txt": b" and a third \n" * 90,
}
EXPECTED = {name: hashlib.sha256(content).hexdigest() for name, content in FILES.items()}

Answer = bytes | Callable[["Handler"], None]


class Handler(BaseHTTPRequestHandler):
    """Answers by the server's routes: bytes are a body; a function answers in its own way."""

    server: "Server"

    def do_GET(self) -> None:
        self.server.requests.append((self.path, self.headers["User-Agent"]))
        answer = self.server.routes.get(self.path)
        if answer is None:
            self.send_error(404)
        elif callable(answer):
            answer(self)
        else:
            self.start(len(answer))
            self.wfile.write(answer)

    def start(self, length: int | None) -> None:
        self.send_response(200)
        if length is not None:
            self.send_header("Content-Length", str(length))
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.routes: dict[str, Answer] = {}
        self.requests: list[tuple[str, str]] = []
        self.reached, self.released = threading.Event(), threading.Event()
        self.url = f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, *_: object) -> None:
        pass  # a client that hung up: several tests are about that

    def folder(self, name: str, files: Mapping[str, Answer]) -> str:
        self.routes |= {f"/{name}/{file}": answer for file, answer in files.items()}
        return f"{self.url}/{name}"

    def archive(self, name: str, answer: Answer) -> str:
        self.routes[f"/{name}.tgz"] = answer
        return f"{self.url}/{name}.tgz"


@contextlib.contextmanager
def serving() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.released.set()
            server.shutdown()
            thread.join()


def pack(members: list[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for member, content in members:
            archive.addfile(member, io.BytesIO(content) if content else None)
    return packed.getvalue()


def plain(path: str, content: bytes) -> tuple[tarfile.TarInfo, bytes]:
    member = tarfile.TarInfo(path)
    member.size = len(content)
    return member, content


def link(path: str, target: str, kind: bytes) -> tuple[tarfile.TarInfo, bytes]:
    member = tarfile.TarInfo(path)
    member.type, member.linkname = kind, target
    return member, b""


# As in the original archive: other folders, and in one a file of the same name, here of the same size too.
MEMBERS = [
    plain("./simple-examples/README", b"read me"),
    *[plain(f"./simple-examples/data/{name}", content) for name, content in FILES.items()],
    plain("./simple-examples/temp/ptb.train.txt", FILES["ptb.train.txt"].upper()),
]


def members_with(path: str, *instead: tuple[tarfile.TarInfo, bytes]) -> list[tuple[tarfile.TarInfo, bytes]]:
    """Return MEMBERS with others, or none, in the place of one."""
    at = [member.name for member, _ in MEMBERS].index(path)
    return [*MEMBERS[:at], *instead, *MEMBERS[at + 1 :]]


def cut_off(handler: Handler) -> None:
    handler.start(len(FILES["ptb.train.txt"]))
    handler.wfile.write(FILES["ptb.train.txt"][:1000])


def hang(handler: Handler) -> None:
    cut_off(handler)
    handler.wfile.flush()
    handler.server.reached.set()
    handler.server.released.wait()


def endless(block: bytes) -> Callable[[Handler], None]:
    def answer(handler: Handler) -> None:
        handler.start(None)
        with contextlib.suppress(OSError):
            while not handler.server.released.is_set():
                handler.wfile.write(block)

    return answer


def drip(handler: Handler) -> None:
    """Send a byte at a time; each comes in time for the timeout of a silent server."""
    handler.start(1000)
    while not handler.server.released.wait(0.01):
        handler.wfile.write(b"x")


def not_http(handler: Handler) -> None:
    handler.wfile.write(b"SSH-2.0\x1b[31m\r\nnonsense\r\n\r\n")

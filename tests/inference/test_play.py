"""The page to play with: its numbers are the model's, by plain requests and in a real browser."""

import contextlib
import http.client
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import browser
import pytest
import runs
from support import ROOT

import ptb_lm
from ptb_lm import play
from ptb_lm.common.errors import DivergenceError, UserError
from ptb_lm.data.preparation import SPACE

pytest.importorskip("torch")

from ptb_lm.inference.play import LARGEST, Server
from ptb_lm.inference.play import page as play_page
from ptb_lm.training import tensors

pytestmark = pytest.mark.slow

EVIL = "<b>w1</b> \"&amp;' </textarea><script>alert(1)</script>"


@pytest.fixture(scope="module")
def run(plain_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shutil.copytree(plain_run, tmp_path_factory.mktemp("play") / "a <b>run")


@pytest.fixture(scope="module")
def model(run: Path) -> Any:
    return ptb_lm.load(run)


@contextlib.contextmanager
def serve(server: Server, model: Any) -> Iterator[int]:
    with server:
        server.use(model)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def port(model: Any) -> Iterator[int]:
    with serve(Server(0), model) as port:
        yield port


def ask(
    port: int, path: str = "/", fields: dict[str, str] | None = None, **headers: str
) -> tuple[int, str, dict[str, str]]:
    """Send a request as a browser does; return the status, the page and the headers."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        if fields is None:
            connection.request("GET", path, headers=headers)
        else:
            headers = {"Content-Type": "application/x-www-form-urlencoded", **headers}
            connection.request("POST", path, urlencode(fields), headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), dict(answer.getheaders())
    finally:
        connection.close()


def problem_of(page: str) -> str:
    (problem,) = re.findall(r'<p class="wrong" role="alert" id="problem">(.*?)</p>', page)
    return unescape(problem)


def focused_field(page: str) -> str:
    """The name of the field that has the focus. It alone says that it is wrong, if there is a problem."""
    fields = re.findall(r"<(?:textarea|input)[^>]*>", page)
    focused = [field for field in fields if "autofocus" in field]
    wrong = [field for field in fields if 'aria-invalid="true" aria-describedby="problem"' in field]
    assert wrong == (focused if 'role="alert"' in page else [])
    return "".join(name for field in focused for name in re.findall('name="(.*?)"', field))


def rows_of(page: str) -> list[list[str]]:
    """The cells of each row of the table, as text."""
    body = page.partition("<tbody>")[2].partition("</tbody>")[0]
    rows = re.findall(r"<tr>(.*?)</tr>", body)
    return [[unescape(re.sub(r"<[^>]+>", "", cell)) for cell in re.findall(r"<td.*?</td>", r)] for r in rows]


@pytest.mark.parametrize("text", ["w1\n\nw2\n", "w1\x0bw2\u2028w3\x85", "\n w1", "w1\r\n\r\nw2\r\n\r\n"])
def test_the_perplexity_is_that_of_score(text: str, model: Any) -> None:
    found = play_page.read(model, text)
    perplexity = 2 ** (math.fsum(word.bits for word in found) / len(found))
    assert perplexity == pytest.approx(model.perplexity(text), rel=1e-5)
    assert [word.word for word in found] == [word for line in model.score(text) for word in line.words]


def test_each_word_has_its_surprisal_and_the_likeliest(port: int, model: Any) -> None:
    status, page, _ = ask(port, "/read", {"text": "w1 zebra zebra\r\n\r\nw2"})
    assert status == 200
    words = ["w1", "zebra", "zebra", "<eos>", "<eos>", "w2", "<eos>"]
    rows = rows_of(page)
    assert [row[0] for row in rows] == words
    expected = [
        -log_p
        for sentence in model.score("w1 <unk> <unk>\n\nw2", unit="bits", carry_state=True)
        for log_p in sentence.log_probabilities
    ]
    model.state = None
    assert [float(row[1]) for row in rows] == pytest.approx(expected, abs=0.051)
    perplexity = 2 ** (math.fsum(expected) / 7)
    assert f"Perplexity {perplexity:.1f} (7 words" in page
    assert re.search(r"; 2 not in .*: zebra\)", page)
    (coloured,) = re.findall(r'<p class="words">(.*?)</p>', page, flags=re.DOTALL)
    spoken = unescape(re.sub("<[^>]+>", "", coloured.replace("<br>", "\n"))).split()
    assert spoken == [part for row in rows for part in row[:2]]
    assert focused_field(page) == "text"
    for index, prefix in enumerate(["", "w1", "w1 zebra"]):
        shown = re.findall(r"(\S+) ([\d.]+)\xa0%", rows[index][2])
        likeliest = model.predict(prefix, 5)
        assert [word for word, _ in shown] == [word for word, _ in likeliest]
        assert [float(each) for _, each in shown] == pytest.approx(
            [100 * probability for _, probability in likeliest], abs=0.051
        )


@pytest.mark.parametrize("text", ["w1 " * 500, "w1\n" * 250])
def test_the_longest_text_is_read(text: str, model: Any) -> None:
    found = play_page.read(model, text)
    assert len([word for word in found if word.word == "w1"]) == text.count("w1")


def test_a_perplexity_beyond_the_largest_float_is_said() -> None:
    words = [
        play_page.ReadWord(word="w1", unknown=False, bits=bits, likeliest=()) for bits in (1030.0, 1040.0)
    ]
    answer = play_page.write_page(play_page.PageContent(text="w1 w1", words=words), model="")
    assert re.search("Perplexity .* largest float .2 words", answer)


def test_a_prompt_is_continued(port: int, model: Any) -> None:
    fields = {"prompt": "w1 zebra", "length": "12", "temperature": "0"}
    status, page, _ = ask(port, "/continue", fields)
    assert status == 200
    (written,) = re.findall(r'<p class="written">(.*?)</p>', page, flags=re.DOTALL)
    words = [*model.generate("w1 zebra", 12, temperature=0)]
    text = re.sub(r"<[^>]+>", "", written)
    assert unescape(text).replace("\n", " <eos> ").split() == ["w1", "zebra", *words]
    assert "&lt;unk&gt;: zebra." in page
    assert 'value="12"' in page
    assert focused_field(page) == "prompt"
    assert ask(port, "/continue", {**fields, "prompt": ""})[0] == 200


def test_the_space_after_a_prompt_is_read_among_characters(tmp_path: Path) -> None:
    words = ("a", "<eos>", "b", "<unk>", SPACE)
    model = ptb_lm.load(runs.write_run(tmp_path / "run", words, data="text", tokenize="characters"))
    fields = {"prompt": "ab ", "length": "1", "temperature": "0"}
    spaced = dict(model.predict("ab ", 5))
    del spaced["<unk>"]  # it is not drawn
    likeliest = max(spaced, key=spaced.__getitem__)
    assert play_page.continue_prompt(model, fields).text == likeliest.replace(SPACE, " ")
    without = ptb_lm.load(
        runs.write_run(tmp_path / "without", words[:-1], data="text", tokenize="characters")
    )
    assert play_page.continue_prompt(without, fields).unknown == (SPACE,)
    assert (
        play_page.continue_prompt(without, {**fields, "prompt": "ab\na"}).unknown == ()
    )  # between is an <eos>
    with pytest.raises(UserError, match="501 words"):
        play_page.continue_prompt(model, {**fields, "prompt": "ab" * 250 + " "})


def test_it_opens_with_a_sentence_that_is_read_already(port: int, run: Path, model: Any) -> None:
    _, page, _ = ask(port)
    (text,) = re.findall(r'<textarea id="text".*?>\n(.*?)</textarea>', page, flags=re.DOTALL)
    words = text.split()
    assert len(words) >= 5
    rows = rows_of(page)
    assert [row[0] for row in rows] == [*words, "<eos>"]
    expected = -model.score(text, unit="bits")[0].log_probabilities
    assert [float(row[1]) for row in rows] == pytest.approx(expected, abs=0.051)
    assert f", test perplexity {runs.result(run)['test_perplexity']:.2f}<" in page
    assert "wrote this sentence" in page
    assert "wrote this sentence" not in ask(port, "/read", {"text": text})[1]


def test_a_run_without_its_metrics_is_shown(run: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(run, tmp_path / "copy")
    (copy / "metrics.jsonl").unlink()
    found = play_page.description(ptb_lm.load(copy))
    assert f", test perplexity {runs.result(run)['test_perplexity']:.2f}" in found


@pytest.mark.parametrize("often", ["<eos>", "b"])
def test_a_run_that_has_not_ended_and_writes_no_sentence_is_shown_all_the_same(
    often: str, tmp_path: Path
) -> None:
    """One always ends its sentence, one never does; they know no other words than theirs."""
    words = ("a", "<eos>", "b")
    run = runs.write_run(tmp_path / "run", words, data="text")
    weights, metadata = tensors.load(run / "weights.safetensors")
    weights["softmax.bias"][words.index(often)] = 100
    tensors.save(run / "weights.safetensors", weights, metadata)
    with serve(Server(0), ptb_lm.load(run)) as port:
        page = ask(port)[1]
    assert [row[0] for row in rows_of(page)] == ([] if often == "<eos>" else [*"b" * 40, "<eos>"])
    assert not [row[1] for row in rows_of(page) if row[1].startswith("-")]
    assert re.search(r"3 words\. .*: a, b<", page)


def test_unusable_weights_are_told(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_: object) -> None:
        raise DivergenceError("unusable")

    monkeypatch.setattr(play_page, "read", read)
    status, page, _ = ask(port, "/read", {"text": "w1"})
    assert (status, problem_of(page)) == (400, "unusable")


def test_nothing_is_kept_between_requests(port: int) -> None:
    empty = ask(port)[1]
    first = ask(port, "/read", {"text": "w1 w2 w3"})[1]
    ask(port, "/continue", {"prompt": "w5 w9", "length": "5", "temperature": "1"})
    assert ask(port, "/read", {"text": "w1 w2 w3"})[1] == first
    # The address of an answer shows the page again.
    assert [ask(port, path)[:2] for path in ("/", "/read", "/continue")] == [(200, empty)] * 3


def test_requests_that_come_at_once_are_all_answered(model: Any) -> None:
    """The system makes the connections of those that the server has not taken yet."""
    with Server(0) as server, contextlib.ExitStack() as opened:
        address = ("127.0.0.1", server.port)
        early = [opened.enter_context(socket.create_connection(address, timeout=30)) for _ in range(60)]
        with serve(server, model):
            for connection in early:
                connection.sendall(f"GET / HTTP/1.0\r\nHost: 127.0.0.1:{server.port}\r\n\r\n".encode())
            assert {connection.recv(12) for connection in early} == {b"HTTP/1.0 200"}


def test_no_name_server_is_asked(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that does not answer would hold up the page."""
    monkeypatch.setattr(socket, "getfqdn", lambda *_: pytest.fail("a name was looked up"))
    with serve(Server(0), model) as port:
        assert ask(port)[0] == 200


def test_typed_text_stays_text(port: int) -> None:
    for path, fields in (
        ("/read", {"text": EVIL}),
        ("/continue", {"prompt": EVIL, "length": "<i>", "temperature": '"><i>'}),
        ("/continue", {"prompt": EVIL, "length": "3", "temperature": "1"}),
        ("/<script>", None),
    ):
        page = ask(port, path, fields)[1]
        without = re.sub(r"<style>.*?</style>", "", page, flags=re.DOTALL)
        assert not re.search(r"<script|<b>|<i>|alert\(1\)<", without)
        assert page.count("</textarea>") == 2
        if fields:
            assert EVIL in unescape(without)


@pytest.mark.parametrize(
    ("path", "fields", "nouns", "wrong"),
    [
        ("/read", {"text": " \n "}, "no word .* sentence", "text"),
        ("/read", {}, "no word .* sentence", "text"),
        ("/read", {"text": "w1 " * 501}, "501 words .* 500", "text"),
        ("/read", {"text": "w1" + "\n" * 501}, "501 words .* 500", "text"),
        ("/read", {"text": "w1\n" * 251}, "501 words .* 500", "text"),
        ("/read", {"text": "w" * LARGEST}, f"text .* {LARGEST:,} bytes", ""),
        ("/continue", {"prompt": "w1"}, "how many words: ''", "length"),
        ("/continue", {"length": "ten", "temperature": "1"}, "how many words: 'ten'", "length"),
        ("/continue", {"length": "2.5", "temperature": "1"}, "how many words: .* 300", "length"),
        ("/continue", {"length": "301", "temperature": "1"}, "how many words: .* 300", "length"),
        ("/continue", {"length": "5", "temperature": "nan"}, "temperature: 'nan'", "temperature"),
        ("/continue", {"length": "5", "temperature": "-1"}, "temperature.* -1.0", "temperature"),
        ("/continue", {"prompt": "w1 " * 501, "length": "5", "temperature": "1"}, "501 words", "prompt"),
        ("/elsewhere", {"text": "w1"}, "page /elsewhere", ""),
        ("/continue?x", {"prompt": "w1", "length": "5", "temperature": "1"}, r"page /continue\?x", ""),
    ],
)
def test_bad_input_is_answered_in_a_sentence(
    path: str, fields: dict[str, str], nouns: str, wrong: str, port: int
) -> None:
    status, page, _ = ask(port, path, fields)
    assert status in (400, 404)
    assert re.search(nouns, problem_of(page))
    assert focused_field(page) == wrong


@pytest.mark.parametrize(
    ("length", "content", "problem"),
    [
        (None, b"", "request .* long"),
        ("-3", b"", "request .* long"),
        ("9" * 5000, b"", "request .* long"),
        ("100", b"text=w1+", "request .* ends sooner"),
        ("6", b"text=\xff", "form in UTF-8"),
        ("8", b"text=%ff", "form in UTF-8"),
    ],
)
def test_a_broken_request_is_answered_in_a_sentence(
    length: str | None, content: bytes, problem: str, port: int
) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        head = f"POST /read HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\n"
        head += f"Content-Length: {length}\r\n" if length is not None else ""
        connection.sendall(head.encode() + b"\r\n" + content)
        connection.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: connection.recv(65536), b"")).decode()
    assert answer.startswith("HTTP/1.0 400 ")
    assert re.search(problem, problem_of(answer))


@pytest.mark.parametrize(
    ("path", "headers", "problem"),
    [
        ("/read", {}, f"text .* {LARGEST:,} bytes"),
        ("/elsewhere", {}, "page /elsewhere"),
        ("/read", {"Host": "evil.example"}, "address"),
    ],
)
def test_a_large_request_gets_its_answer(path: str, headers: dict[str, str], problem: str, port: int) -> None:
    """It is more than the kernel holds for a server that does not read."""
    _, page, _ = ask(port, path, {"text": "w" * 9_000_000}, **headers)
    assert re.search(problem, problem_of(page))


def test_on_port_80_an_address_has_no_number(model: Any, port: int) -> None:
    class OnPort80(Server):
        port = 80  # which only an administrator may open

    with serve(OnPort80(0), model) as opened:
        for name in ("127.0.0.1", "localhost", "localhost:80"):
            assert ask(opened, Host=name)[0] == 200
            assert ask(opened, "/read", {"text": "w1"}, Host=name, Origin=f"http://{name}")[0] == 200
        assert ask(opened, Host="evil.example")[0] == 403
        assert ask(opened, Host="localhost", Origin="http://evil.example")[0] == 403
    assert ask(port, Host="127.0.0.1")[0] == 403


def test_only_this_machine_is_answered(port: int) -> None:
    """Neither another address nor a name of elsewhere that leads here, nor a form on a page of elsewhere."""
    for status, headers in (
        (403, {"Host": "evil.example"}),
        (403, {"Host": f"evil.example:{port}"}),
        (403, {"Origin": "http://evil.example"}),
        (403, {"Origin": "null"}),
        (200, {"Origin": f"http://127.0.0.1:{port}"}),
        (200, {"Host": f"localhost:{port}"}),
    ):
        assert ask(port, "/read", {"text": "w1"}, **headers)[0] == status
        assert "Origin" in headers or ask(port, **headers)[0] == status
    with Server(0) as server:
        assert server.server_address[0] == "127.0.0.1"


def test_the_page_asks_for_nothing_from_elsewhere(port: int) -> None:
    _, page, headers = ask(port)
    assert headers["Content-Security-Policy"].startswith("default-src 'none'; ")
    assert headers["Cache-Control"] == "no-store"
    assert not re.search(r"https?://|src=|@import|url\(", page)
    assert ask(port, "/favicon.ico")[0] == 404


def test_every_colour_is_readable() -> None:
    """The contrast of WCAG 2 between text and background: at least 4.5, in both modes."""
    for colours, text in (
        (play_page.LIGHT, play_page.TEXT["light"]),
        (play_page.DARK, play_page.TEXT["dark"]),
    ):
        assert len(colours) == len(play_page.BOUNDS) + 1 == len(set(colours))
        for colour in colours:
            assert contrast(text, colour) >= 4.5, colour


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_the_colours_go_with_the_surprisal() -> None:
    shades = [play_page.shade(bits) for bits in (0, 1.99, 2, 5, 7, 9, 12, 13, 40)]
    assert shades == [0, 0, 1, 2, 3, 4, 5, 6, 6]


def test_a_taken_port_is_one_sentence(port: int, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    problem = runs.refusal(capsys, play, run, "--port", port)
    assert problem.startswith(f"port {port} ")
    assert re.search("--port .* 65535.* 65536", runs.refusal(capsys, play, run, "--port", 65536))
    assert "does not exist" in runs.refusal(capsys, play, run / "gone", "--port", 0)


def test_the_command_says_where_and_ends_quietly_with_ctrl_c(run: Path, tmp_path: Path) -> None:
    """The run's name is not UTF-8."""
    named = shutil.copytree(run, tmp_path / os.fsdecode(b"run-\xff"))
    command = [sys.executable, "-m", "ptb_lm.play", str(named), "--port", "0"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=ROOT, text=True, **pipes) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            match = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/ .* Ctrl-C .*\n", line)
            assert match, line
            status, page, _ = ask(int(match[1]), "/read", {"text": "w1"})
            assert (status, len(rows_of(page))) == (200, 2)
            assert "run-\\udcff: " in page
            process.send_signal(signal.SIGINT)
            assert process.communicate(timeout=60) == ("", "")
            assert process.returncode == 0
        finally:
            process.kill()  # else a failure would be waited for


def test_another_signal_ends_it_with_a_sentence(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, serve_forever = threading.Event(), Server.serve_forever

    def serve(server: Server) -> None:
        begun.set()
        serve_forever(server)

    def stop() -> None:
        begun.wait(60)
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Server, "serve_forever", serve)
    thread = threading.Thread(target=stop)
    thread.start()
    assert runs.run_command(play, run, "--port", 0) == 128 + signal.SIGTERM
    thread.join()
    assert runs.sentence(capsys.readouterr().err, play) == "ended by SIGTERM"


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    driver = browser.start(tmp_path_factory.mktemp("chromium"))
    yield driver
    driver.quit()


def press(driver: Any, name: str) -> None:
    """Click a button, and wait for the page that comes of it."""
    await_page(driver, driver.find_element("xpath", f"//button[text()='{name}']").click)


def await_page(driver: Any, act: Callable[[], object]) -> None:
    """Do what opens another page, and wait for that."""
    from selenium.common.exceptions import WebDriverException
    from selenium.webdriver.support import expected_conditions, ui

    # While the page changes, a question about the old one may fail with an "unhandled inspector error".
    wait = ui.WebDriverWait(driver, 60, ignored_exceptions=[WebDriverException])
    before = driver.find_element("tag name", "main")
    act()
    wait.until(expected_conditions.staleness_of(before))
    wait.until(lambda driver: driver.execute_script("return document.readyState") == "complete")


def write(driver: Any, port: int, text: str) -> None:
    """Open the page, and write a text in place of the one that it opens with."""
    driver.get(f"http://127.0.0.1:{port}/")
    driver.find_element("id", "text").clear()
    driver.find_element("id", "text").send_keys(text)


def mode(driver: Any, name: str, width: int = 900) -> None:
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    features = [{"name": "prefers-color-scheme", "value": name}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def colour(element: Any, kind: str) -> str:
    """A colour as #rrggbb, of an element's CSS property."""
    parts = re.findall(r"\d+", element.value_of_css_property(kind))
    return "#" + bytes(map(int, parts[:3])).hex()


def test_in_a_browser_a_text_is_read_and_a_prompt_continued(driver: Any, port: int) -> None:
    mode(driver, "light")
    write(driver, port, "w1 w2 <b>bold</b> zebra")
    press(driver, "Read")
    rows = driver.find_elements("css selector", "tbody tr")
    assert [row.find_element("css selector", "td").text for row in rows] == [
        *("w1", "w2", "<b>bold</b>", "zebra", "<eos>")
    ]
    assert rows[0].find_elements("css selector", "td")[2].text.count("%") == 5
    assert driver.find_element("id", "text").get_attribute("value") == "w1 w2 <b>bold</b> zebra"
    driver.find_element("id", "prompt").send_keys("w1 w2")
    press(driver, "Continue")
    # The property, since a browser's visible text ends before the sentence ends that the model may draw last.
    written = driver.find_element("class name", "written").get_property("textContent")
    assert written.startswith("w1 w2")
    assert len(written.replace("\n", " <eos> ").split()) == 42
    assert driver.find_elements("css selector", "main b, script") == []
    assert driver.get_log("browser") == []
    script = "return performance.getEntriesByType('resource').map(each => each.name)"
    assert [name for name in driver.execute_script(script) if not name.startswith("data:")] == []


def test_in_a_browser_no_button_loses_what_was_typed(driver: Any, port: int) -> None:
    def field(name: str) -> Any:
        return driver.find_element("name", name)

    typed = {"text": "w1 w2\nw3", "prompt": "w4\nw5", "length": "7", "temperature": "0.5"}
    driver.get(f"http://127.0.0.1:{port}/")
    for name, value in typed.items():
        field(name).clear()
        field(name).send_keys(value)
    for act, answer, focused in (
        (lambda: press(driver, "Read"), "words", "text"),
        (lambda: press(driver, "Continue"), "written", "prompt"),
        (lambda: press(driver, "Read"), "words", "text"),
        # Enter does what the button beside the field does.
        (lambda: await_page(driver, lambda: field("length").send_keys("\n")), "written", "prompt"),
        (lambda: press(driver, "Read"), "words", "text"),
        (lambda: await_page(driver, lambda: field("temperature").send_keys("\n")), "written", "prompt"),
    ):
        act()
        assert {name: field(name).get_property("value") for name in typed} == typed
        assert len(driver.find_elements("css selector", ".words, .written")) == 1
        assert driver.find_elements("class name", answer)
        assert driver.switch_to.active_element.get_attribute("name") == focused


@pytest.mark.parametrize("name", ["light", "dark"])
def test_in_a_browser_the_edge_of_a_field_is_seen(name: str, driver: Any, port: int) -> None:
    """The contrast of WCAG 2 for the parts of a control: at least 3."""
    mode(driver, name)
    driver.get(f"http://127.0.0.1:{port}/")
    for field in driver.find_elements("css selector", "textarea, input"):
        assert contrast(colour(field, "border-top-color"), colour(field, "background-color")) >= 3


@pytest.mark.parametrize(("name", "colours"), [("light", play_page.LIGHT), ("dark", play_page.DARK)])
def test_in_a_browser_words_have_the_colour_of_their_surprisal(
    name: str, colours: tuple[str, ...], driver: Any, port: int
) -> None:
    mode(driver, name)
    write(driver, port, "w1 w20 w3 w1")
    press(driver, "Read")
    words = driver.find_elements("css selector", ".words .word")
    assert len(words) == 5
    for word in words:
        bits = float(word.find_element("css selector", "small").text)
        near = {play_page.shade(bits - 0.05), play_page.shade(bits + 0.05)}  # the number is rounded
        assert colour(word, "background-color") in {colours[each] for each in near}
    body = driver.find_element("css selector", "body")
    assert (luminance(colour(body, "background-color")) > 0.5) == (name == "light")


def test_in_a_browser_nothing_is_wider_than_a_telephone(driver: Any, port: int) -> None:
    mode(driver, "light", width=400)
    write(driver, port, "w1 " + "x" * 200 + " w2 w3")
    press(driver, "Read")
    inner, scroll = driver.execute_script(
        "const root = document.documentElement; return [root.clientWidth, root.scrollWidth]"
    )
    assert scroll <= inner
    mode(driver, "light")

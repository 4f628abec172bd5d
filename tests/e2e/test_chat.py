"""`baton chat` at a terminal and at a pipe, and the commands around it."""

import json
import os
import pty
import re
import signal
import socket
import subprocess
import termios
import threading
import time

import pytest

from baton_server import BIN, Server, metrics_text, wait_until


@pytest.fixture(scope="module")
def aggregated():
    with Server("--mode", "aggregated") as running:
        yield running


def baton(*args, **options):
    return subprocess.run([BIN, *args], capture_output=True, text=True, timeout=60, **options)


def asked(server):
    """Requests that the server has had, those that run included."""
    names = ("baton_requests_total", "baton_requests_running", "baton_requests_waiting")
    pattern = rf"^(?:{'|'.join(names)})(?:{{[^}}]*}})? (\S+)$"
    return sum(float(value) for value in re.findall(pattern, metrics_text(server.router), re.M))


class Terminal:
    """A chat at a pseudo-terminal of its own, which Ctrl-C reaches as a key."""

    def __init__(self, *args, program=BIN):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execv(program, [program, *args])
        self.seen = b""
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        while True:
            try:
                piece = os.read(self.fd, 4096)
            except OSError:
                return
            if not piece:
                return
            self.seen += piece

    def text(self):
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.seen.decode(errors="replace"))

    def type(self, keys):
        os.write(self.fd, keys.encode())

    def waits(self, text, limit_s=60):
        wait_until(lambda: text in self.text(), limit_s, f"{text!r} in {self.text()!r}")

    def edits(self):
        """Waits until it takes single keys: those that come while a terminal changes its mode can
        be lost, and all after them."""
        is_raw = lambda: not termios.tcgetattr(self.fd)[3] & termios.ICANON  # noqa: E731
        wait_until(is_raw, 60, f"an editor; {self.text()!r}")

    def exit_code(self, limit_s=60):
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.05)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        raise AssertionError(f"the chat still runs: {self.text()!r}")


def test_ctrl_c_stops_the_answer_and_not_the_chat(aggregated):
    chat = Terminal("chat", "--url", aggregated.router["http"])
    chat.waits("/help")
    chat.type("Count from one to one thousand, each number in words.\r")
    wait_until(lambda: len(chat.text()) > 200, 60, "an answer")
    chat.type("\x03")
    chat.waits("(stopped)")
    before = asked(aggregated)
    accounts = chat.text().count("tok/s")
    chat.type("Say hi.\r")
    wait_until(lambda: asked(aggregated) > before, 60, "the next question")
    wait_until(lambda: chat.text().count("tok/s") > accounts, 60, "the end of its answer")
    chat.type("\x03")
    chat.waits("Ctrl-C again")
    chat.type("\x03")
    assert chat.exit_code() == 0


def test_ctrl_c_drops_what_was_typed_and_ends_an_empty_prompt():
    chat = Terminal("chat", "--url", "127.0.0.1:1")
    chat.edits()
    for number, text in enumerate(("one", "two", "three"), start=1):
        chat.type(text)
        chat.waits(text)
        chat.type("\x03")
        wait_until(lambda n=number: chat.text().count("Ctrl-C again") == n, 60, "a hint each time")
        chat.edits()
    chat.type("/nosuch\r")
    chat.waits('no command "/nosuch"')  # nothing of the dropped lines is in front of it
    chat.type("\x03")
    wait_until(lambda: chat.text().count("Ctrl-C again") == 4, 60, "a hint at the empty prompt")
    chat.type("\x03")
    assert chat.exit_code() == 0


def test_commands_are_not_asked(aggregated):
    chat = Terminal("chat", "--url", aggregated.http)
    chat.waits("/help")
    before = asked(aggregated)
    for line, answer in (
        ("/help", "/system TEXT"),
        ("/nosuch", 'no command "/nosuch"'),
        ("/clera", "did you mean /clear?"),
        ("/set temperature 101", "[0, 100]"),
        ("/HELP", "/set seed N"),
        ("/", "/help lists them"),
        ("/system Be brief.", "is set"),
    ):
        chat.type(line + "\r")
        chat.waits(answer)
    assert asked(aggregated) == before
    chat.type("\x04")
    assert chat.exit_code() == 0


def test_a_pipe_gets_answers_only(aggregated):
    url = aggregated.router["http"]
    run = baton("chat", "--url", url, "--max-tokens", "4", input="/help\nSay hi.\n")
    assert run.returncode == 0, run.stderr
    assert "/system" not in run.stdout and "tokens (" not in run.stdout and run.stdout.strip()
    assert "/system" in run.stderr and "tokens (" in run.stderr
    run = baton("chat", "--url", url, input="/nosuch\n")
    assert run.returncode == 1 and "/nosuch" in run.stderr


def test_a_file_or_pipe_joins_the_prompt(aggregated, tmp_path):
    url = aggregated.router["http"]
    ask = ("chat", "--url", url, "--max-tokens", "4", "--json", "--prompt", "Say hi.")

    def prompt_tokens(run):
        assert run.returncode == 0, run.stderr
        return json.loads(run.stdout)["usage"]["prompt_tokens"]

    def through_a_pipe(text):
        """All of it is in the pipe before the chat begins to wait for a part."""
        read_end, write_end = os.pipe()
        with os.fdopen(write_end, "wb") as full:
            full.write(text)
        with os.fdopen(read_end) as stdin:
            return baton(*ask, stdin=stdin)

    alone = prompt_tokens(baton(*ask, stdin=subprocess.DEVNULL))
    assert prompt_tokens(through_a_pipe(b"")) == alone
    more = "one two three four five six seven\n" * 4
    piped = prompt_tokens(through_a_pipe(more.encode()))
    assert piped > alone + 20
    (tmp_path / "more.txt").write_text(more)
    with open(tmp_path / "more.txt") as file:
        assert prompt_tokens(baton(*ask, stdin=file)) == piped
    # A pipe that somebody holds open without a word is not waited for.
    held_end, silent_end = os.pipe()
    with os.fdopen(held_end) as silent:
        run = baton(*ask, stdin=silent)
    os.close(silent_end)
    assert prompt_tokens(run) == alone and "silent pipe" in run.stderr
    run = through_a_pipe(b"a\xff")
    assert run.returncode == 2 and "standard input: byte 0xff" in run.stderr


def test_json_is_one_line_an_answer(aggregated, tmp_path):
    url = aggregated.router["http"]
    run = baton("chat", "--url", url, "--max-tokens", "4", "--json", input="Say hi.\nAgain.\n")
    lines = [json.loads(line) for line in run.stdout.splitlines()]
    assert run.returncode == 0 and len(lines) == 2
    for line in lines:
        assert line["usage"]["completion_tokens"] == 4 and line["finish_reason"] == "length"
        assert line["timings"]["path"] == "local" and line["request_id"] and line["content"]
    schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 9}}}
    schema.update(required=["n"], additionalProperties=False)
    (tmp_path / "schema.json").write_text(json.dumps(schema))
    for form in (json.dumps(schema), str(tmp_path / "schema.json")):
        run = baton("chat", "--url", url, "--json", "--json-schema", form, "--prompt", "A digit.")
        assert run.returncode == 0, run.stderr
        assert isinstance(json.loads(json.loads(run.stdout)["content"])["n"], int)
    for form in ("{", "[]", "no/such/file", ""):
        run = baton("chat", "--url", url, "--json-schema", form, "--prompt", "hi")
        assert run.returncode == 2 and "--json-schema" in run.stderr, (form, run.stderr)


def test_a_chat_of_many_lines_is_saved_and_goes_on(aggregated, tmp_path):
    file = tmp_path / "talk.json"
    chat = Terminal("chat", "--url", aggregated.http, "--max-tokens", "4")
    chat.waits("/help")
    for line in ('"""one', "/exit", 'two"""'):
        chat.type(line + "\r")
    chat.waits("tok/s")
    for line, answer in (
        ("/stats", "1 answers"),
        ("/trace", "baton why --admin"),
        ("/model", "* smollm2:135m"),
        ("/model nosuch", "has no \"nosuch\"; it has "),
        (f"/save {file}", "2 messages are in"),
        ("/clear", "forgotten"),
        (f"/load {file}", "2 messages of"),
        ("/split on", "split is on"),
    ):
        chat.type(line + "\r")
        chat.waits(answer)
    assert json.loads(file.read_text())["messages"][0]["content"] == "one\n/exit\ntwo"
    # No prefill worker is there: the server says so, and the chat goes on.
    chat.type("Say hi.\r")
    chat.waits("the server answered 400")
    chat.type("/exit\r")
    assert chat.exit_code() == 1


@pytest.mark.parametrize("form", ["", "--json"])
def test_answers_that_go_to_a_file_have_no_other_line_between_them(aggregated, tmp_path, form):
    """Standard input and standard error are the terminal, and standard output is not."""
    file = tmp_path / "answers"
    shell = f'exec "$0" chat --url "$1" {form} --max-tokens 4 > "$2"'
    chat = Terminal("-c", shell, BIN, aggregated.http, str(file), program="/bin/sh")
    chat.waits("/help")
    chat.type("Say hi.\r")
    wait_until(lambda: file.read_text().endswith("\n"), 60, "an answer")
    if not form:
        chat.waits("tokens (")
    chat.type("/show\r")
    chat.waits("max-tokens   4")
    chat.type("\x03")
    chat.waits("Ctrl-C again")
    chat.type("\x03")
    assert chat.exit_code() == 0
    text = file.read_text()
    if form:
        assert json.loads(text)["usage"]["completion_tokens"] <= 4, text
    else:
        assert text.strip() and "tokens (" not in text and "\x1b" not in text, text


def test_what_is_no_utf8_is_not_asked():
    for line in (b"\xff hi\n", b"sch\xf6n\n", b"/system \xc3\n", b"cut \xe2\x82\n"):
        args = [BIN, "chat", "--url", "127.0.0.1:1"]
        run = subprocess.run(args, capture_output=True, input=line, timeout=60)
        assert run.returncode == 1 and b"is no UTF-8; nothing was sent" in run.stderr, run.stderr
        assert b"connect" not in run.stderr
    chat = Terminal("chat", "--url", "127.0.0.1:1")
    chat.waits("/help")
    for line in (b"\xff hi\r", b"sch\xf6n\r", b"cut \xe2\x82\r"):
        before = chat.text().count("is no UTF-8")
        os.write(chat.fd, line)
        wait_until(lambda n=before: chat.text().count("is no UTF-8") > n, 60, line)
    chat.type("\x04")
    assert chat.exit_code() == 0
    assert chat.text().count("cannot connect") == 1, "the warning at the start, and no question"
    for flag in (b"--prompt", b"--system"):
        run = subprocess.run([BIN, "chat", flag, b"a\xff"], capture_output=True, timeout=60)
        assert run.returncode == 2 and flag + b": byte 0xff at place 1" in run.stderr, run.stderr


def test_one_form_of_address_for_all_commands(aggregated):
    admin = aggregated.router["admin"]
    for form in (admin, f"http://{admin}", f"http://{admin}/"):
        assert baton("topo", "--admin", form).returncode == 0, form
        assert baton("top", "--once", "--admin", form).returncode == 0, form
    for command in ("top", "topo", "why", "trace"):
        run = baton(command, "--url", f"http://{admin}")
        assert run.returncode == 2 and "--admin" in run.stderr, run.stderr
    for command in (("topo",), ("why",), ("trace",)):
        run = baton(*command, "--admin", "127.0.0.1:1")
        assert run.returncode == 1 and "--admin HOST:PORT is" in run.stderr, run.stderr


def test_what_other_servers_call_otherwise():
    for args, hint in (
        (("serve", "m", "--port", "1"), "--http"),
        (("serve", "m", "--host=0.0.0.0"), "--http"),
        (("serve", "m", "--api-key", "k"), "--api-keys"),
        (("chat", "hello"), "--prompt"),
        (("ls",), "baton list"),
        (("start", "m"), "baton serve MODEL"),
        (("-v",), "baton version"),
        (("login",), "not supported in this build"),
        (("srve",), "did you mean serve?"),
        (("help", "srve"), "did you mean serve?"),
        ((" ",), "baton --help"),
    ):
        run = baton(*args)
        assert run.returncode == 2 and hint in run.stderr, run.stderr
        assert len(run.stderr.strip().splitlines()) == 1
    groups = re.findall(r"(?m)^([A-Z][^:\n]*):$", baton("serve", "--help").stdout)
    assert len(groups) >= 6, groups
    for args in (("serve",), ("bench", "model"), ("version",)):
        assert baton("help", *args).stdout == baton(*args, "--help").stdout != ""
    for args in ((), ("help",), ("--help",)):
        assert baton("help", *args).stdout == baton("--help").stdout


def test_models_and_servers_are_listed(tmp_path):
    models = tmp_path / "models"
    models.mkdir()
    (models / "tiny.gguf").write_bytes(b"GGUF")
    env = {**os.environ, "BATON_HOME": str(tmp_path)}
    assert "tiny.gguf" in baton("list", env=env).stdout
    assert "no server" in baton("ps", env=env).stdout
    run = baton("inspect", "tiny", env=env)
    assert run.returncode == 1 and "no file" not in run.stderr, "its id finds it"
    run = baton("rm", "tiny.ggu", env=env)
    assert run.returncode == 1 and "did you mean tiny.gguf?" in run.stderr
    assert baton("rm", "tiny.gguf", env=env).returncode == 0
    assert not (models / "tiny.gguf").exists()


def test_a_busy_port_does_not_hide_a_broken_model(tmp_path):
    model = tmp_path / "broken.gguf"
    model.write_bytes(b"GGUF" + bytes(60))
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        run = baton("serve", str(model), "--http", f"127.0.0.1:{port}", "--grpc", "127.0.0.1:0",
                    "--admin", "127.0.0.1:0", "--run-dir", str(tmp_path / "run"))
    assert run.returncode == 1, run.stderr
    line = run.stderr.strip().splitlines()[-1]
    assert f":{port} is in use" in line and 'broken.gguf": ' in line, run.stderr


def test_an_address_that_cannot_be_bound_is_named_truly():
    for address, reason in (
        ("192.0.2.7:0", "this host has no address"),
        ("no-such-host.invalid:0", "cannot be resolved"),
    ):
        for flag in ("--grpc", "--http", "--admin"):
            flags = {"--grpc": "127.0.0.1:0", "--http": "127.0.0.1:0", "--admin": "127.0.0.1:0"}
            flags[flag] = address
            run = baton("router", *(word for pair in flags.items() for word in pair))
            assert run.returncode == 1 and reason in run.stderr, run.stderr
            assert flag in run.stderr and "in use" not in run.stderr

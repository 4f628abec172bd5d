"""One server for all tests of this folder. BATON_BIN: the program; the model is smollm2:135m."""

import json
import os
import signal
import subprocess
import time
import urllib.request

import pytest

BIN = os.environ["BATON_BIN"]


class Server:
    def __init__(self, folder):
        self.run_dir = folder / "run"
        self.process = subprocess.Popen(
            [BIN, "serve", "smollm2:135m", "--http=127.0.0.1:0", "--grpc=127.0.0.1:0",
             "--admin=127.0.0.1:0", f"--run-dir={self.run_dir}"],
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        row = self.wait_for(self.router_row)
        self.url, self.grpc, self.admin = "http://" + row["http"], row["grpc"], row["admin"]
        self.wait_for(self.is_ready)

    def wait_for(self, condition):
        end = time.monotonic() + 120
        while time.monotonic() < end:
            assert self.process.poll() is None, "the server has ended"
            found = condition()
            if found:
                return found
            time.sleep(0.1)
        raise AssertionError("the server is not ready after 120 s")

    def router_row(self):
        try:
            rows = json.loads((self.run_dir / "topology.json").read_text())["processes"]
        except (OSError, ValueError):
            return None
        return next((row for row in rows if row["role"] == "router" and row["http"]), None)

    def is_ready(self):
        try:
            with urllib.request.urlopen(self.url + "/health", timeout=5) as answer:
                return answer.status == 200
        except OSError:
            return False

    def complete(self, prompt):
        body = json.dumps({"prompt": prompt, "max_tokens": 4}).encode()
        request = urllib.request.Request(self.url + "/v1/completions", body,
                                         {"Content-Type": "application/json"})  # fmt: skip
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)


@pytest.fixture(scope="session", name="server")
def fixture_server(tmp_path_factory):
    started = Server(tmp_path_factory.mktemp("server"))
    yield started
    started.process.send_signal(signal.SIGINT)
    started.process.wait(timeout=60)

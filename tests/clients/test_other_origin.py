"""A page of another origin in Chromium: it reads answers where --cors-origins names it, else none.

Environment: BATON_CHROMIUM, the browser's path.
"""

import functools
import hashlib
import http.server
import json
import os
import shutil
import threading

import pytest
from baton_server import Server, metric

pytestmark = [pytest.mark.client("chromium"), pytest.mark.undisturbed]
KEY = "key-of-the-page"
# A page uses OpenAI's API: a stream with a key, a list, an error that it can read.
ASK = """
async ([url, key]) => {
  const headers = { 'Content-Type': 'application/json', Authorization: `Bearer ${key}` };
  const ask = async (body) => {
    const answer = await fetch(`${url}/v1/chat/completions`, {
      method: 'POST', headers, body: JSON.stringify(body),
    });
    let text = '';
    let pieces = 0;
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      text += part.value;
      pieces += 1;
    }
    return { status: answer.status, id: answer.headers.get('X-Request-Id'), text, pieces };
  };
  const messages = [{ role: 'user', content: 'Why is the sky blue?' }];
  try {
    const body = { messages, max_tokens: 20, temperature: 0, stream: true };
    const stream = await ask(body);
    const wrong = await ask({ messages, top_p: 7 });
    const models = await (await fetch(`${url}/v1/models`, { headers })).json();
    return { stream, wrong, models };
  } catch (error) {
    return { refused: String(error) };
  }
}
"""


class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        text = b"<!doctype html><title>another origin</title>"
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *args):
        pass


@pytest.fixture(name="origin", scope="module")
def fixture_origin():
    """The URL of a page that is not the server's own."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture(name="ask", scope="module")
def fixture_ask(origin):
    """What the page is told by a server."""
    playwright = pytest.importorskip("playwright.sync_api")
    chromium = os.environ.get("BATON_CHROMIUM") or shutil.which("chromium")
    if chromium is None:
        pytest.skip("chromium is missing")
    with playwright.sync_playwright() as driver:
        # Chromium's sandbox does not start for root.
        arguments = ["--no-sandbox"] if os.getuid() == 0 else []
        browser = driver.chromium.launch(executable_path=chromium, args=arguments)
        page = browser.new_page()
        page.goto(origin)
        yield lambda server, key: page.evaluate(ASK, [server.http, key])
        browser.close()


@pytest.fixture(name="serve", scope="module")
def fixture_serve(tmp_path_factory):
    path = tmp_path_factory.mktemp("keys") / "keys.json"
    digest = hashlib.sha256(KEY.encode()).hexdigest()
    path.write_text(json.dumps([{"tenant": "page", "sha256": digest}]))
    return functools.partial(Server, "--mode", "aggregated", "--api-keys", str(path))


def test_a_page_that_is_allowed_streams_and_reads_errors(serve, ask, origin):
    with serve("--cors-origins", origin) as server:
        told = ask(server, KEY)
        assert told["stream"]["status"] == 200 and told["stream"]["pieces"] > 1, told
        assert told["stream"]["id"] and told["stream"]["text"].endswith("data: [DONE]\n\n")
        assert told["wrong"]["status"] == 400 and "top_p" in told["wrong"]["text"]
        assert [model["id"] for model in told["models"]["data"]] == ["smollm2:135m"]
        refused = ask(server, "another-key")
        assert refused["stream"]["status"] == 401, "the page may read why"
        assert "invalid_api_key" in refused["stream"]["text"]


def test_a_page_that_is_not_allowed_gets_nothing_and_computes_nothing(serve, ask):
    with serve() as server:
        assert "Failed to fetch" in ask(server, KEY)["refused"]
        assert metric(server.router, "baton_prompt_tokens_total") == 0

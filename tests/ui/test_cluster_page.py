"""Tests the live cluster of /ui in a browser: what it shows, faults, looks and accessibility."""

import base64
import os
import signal
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe

from baton_server import wait_until
from cut_proxy import CutProxy
from fixed_data import HELLO, SCENE, WORKERS, chunk, cluster, event, fix_answer, fix_events
from fixed_data import fix_models, handoff
from test_chat_page import ask, wait_answers

SHOTS = Path(__file__).parent / "shots"
LOOKS = {
    "desk": {"color_scheme": "light"},
    "dark": {"color_scheme": "dark"},
    "phone": {"color_scheme": "light", "width": 360, "height": 740},
}


def open_scene(new_page, url, events=None, **options):
    page = new_page(**options)
    fix_models(page)
    fix_events(page, events or SCENE)
    text = "Two lines:\n\n```python\nx = 1\n```\n\n- a\n- b"
    fix_answer(page, [chunk({"content": text})])
    page.goto(url + "/ui")
    page.wait_for_selector("#map .worker >> nth=0", state="attached")
    return page


def refuse_events(page, status, error):
    page.route("**/v1/cluster/events", lambda route: route.fulfill(status=status, json=error))


def violations(page):
    found = Axe().run(page).response["violations"]
    return [(v["id"], [node["html"][:100] for node in v["nodes"]]) for v in found]


def test_an_answer_is_seen_in_the_cluster(page):
    ask(page, "What is a hand-off?")
    wait_answers(page, 1)
    page.wait_for_selector("#answers li:has-text('yours')")
    assert page.locator("#handoffs tr").count() >= 1
    row = page.inner_text("#handoffs tr >> nth=0")
    assert "prefill-0" in row and "decode-" in row and "ms" in row
    assert "prompt tokens" in page.inner_text("#prefix-text")
    names = page.locator("#map .worker b").all_inner_texts()
    assert "prefill-0" in names and "decode-0" in names
    assert page.locator("#links line").count() >= 1


def test_a_stream_that_is_cut_is_taken_up_again(new_page, url):
    host, port = url.removeprefix("http://").rsplit(":", 1)
    proxy = CutProxy(host, int(port))
    try:
        page = new_page()
        page.goto(f"http://{proxy.address}/ui")
        page.wait_for_selector("#status:text-is('ready')")
        proxy.refuses = True
        proxy.cut()
        page.wait_for_selector("#status:text-is('connecting again')")
        page.wait_for_timeout(2000)
        proxy.refuses = False
        page.wait_for_selector("#status:text-is('ready')")
    finally:
        proxy.close()


def test_a_proxy_that_holds_the_events_back_is_named(new_page, url):
    host, port = url.removeprefix("http://").rsplit(":", 1)
    proxy = CutProxy(host, int(port))
    proxy.holds = True
    try:
        page = new_page()
        page.goto(f"http://{proxy.address}/ui")
        page.wait_for_selector("#cluster-note:has-text('a proxy on the way may hold it back')")
    finally:
        proxy.close()


def busy_decode_worker(server):
    """The row of /v1/topology, which workers tell a few times a second."""
    workers = server.get("/v1/topology")[2]["processes"]
    return next((p for p in workers if p["role"] == "decode" and p["running"]), None)


def test_a_killed_worker_is_noticed_and_the_stream_goes_on(page, server):
    if server is None:
        pytest.skip("BATON_UI_URL: its processes are not ours to kill")
    ask(page, "Tell a long story.", tokens=300)
    page.wait_for_selector(".turn.assistant p")
    busy = wait_until(lambda: busy_decode_worker(server), 30, "a worker says that it runs it")
    os.kill(busy["pid"], signal.SIGKILL)
    name = busy["worker_id"]
    page.wait_for_selector(f"#notices li:has-text('{name}')")
    page.wait_for_selector("#send:text-is('Send')")
    assert page.locator(".turn.assistant .bad-text").count() == 0
    page.wait_for_selector(f"#map .worker:has-text('{name}') .pill:text-is('ready')")


def test_show_me_measures_both_paths(page, server):
    if server is None:
        pytest.skip("BATON_UI_URL: it may not know the field path")
    page.click("#show-me")
    page.select_option("#show-size", "300")
    page.click("#show-run")
    page.wait_for_selector("#show-run:text-is('Run')", timeout=180_000)
    assert "p99" in page.inner_text("#text-disagg") and "(path disagg)" in page.inner_text(
        "#text-disagg"
    )
    assert "(path local)" in page.inner_text("#text-local")
    assert "split and" in page.inner_text("#show-result")
    assert page.locator("#lane-local rect.during").count() > 0


def test_a_router_without_workers_says_so(new_page, url):
    page = new_page()
    fix_models(page)
    fix_events(page, [HELLO, cluster([])])
    page.goto(url + "/ui")
    page.wait_for_selector("#cluster-note:has-text('No worker has joined this router.')")
    page.wait_for_selector("#prefill:has-text('no worker')")


def test_too_many_viewers_and_older_servers_are_told(new_page, url):
    error = {"error": {"message": "200 viewers watch.", "code": "too_many_connections"}}
    for status, words in ((503, "200 viewers watch."), (404, "has no /v1/cluster/events")):
        page = new_page()
        fix_models(page)
        refuse_events(page, status, error)
        page.goto(url + "/ui")
        page.wait_for_selector(f"#cluster-note:has-text('{words}')")


def test_events_of_later_releases_are_left_out(new_page, url):
    page = open_scene(new_page, url, [HELLO, event("rocket", fuel=1), cluster(WORKERS)])
    assert page.locator("#map .worker").count() == 3
    page = new_page()
    fix_models(page)
    fix_events(page, [{**HELLO, "version": 2}])
    page.goto(url + "/ui")
    page.wait_for_selector("#cluster-note:has-text('version 2')")


def test_a_router_that_was_started_again_is_noticed(new_page, url):
    again = {**HELLO, "incarnation": "bb"}
    page = open_scene(new_page, url, [HELLO, cluster(WORKERS), again, cluster(WORKERS)])
    page.wait_for_selector("#notices li:has-text('router was started again')")


def test_handoffs_cross_their_link_and_stand_still_with_reduced_motion(new_page, url):
    crossing = {**handoff(9), "time_ms": HELLO["time_ms"] + 1}
    events = [HELLO, cluster(WORKERS), crossing]
    for motion, num_dots in (("no-preference", 1), ("reduce", 0)):
        page = open_scene(new_page, url, events, reduced_motion=motion)
        page.wait_for_selector("#links text:has-text('3.0 MiB 12 ms')")
        assert page.locator("#links circle").count() == num_dots, motion
        assert page.locator("#links line.used").count() == 1


def test_keys_reach_what_the_mouse_does(page):
    page.focus("#log")
    page.keyboard.press("/")
    assert page.evaluate("() => document.activeElement.id") == "input"
    page.keyboard.type("one")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("two")
    assert page.input_value("#input") == "one\ntwo"
    page.click("#help-button")
    page.keyboard.press("Escape")
    assert page.locator("dialog[open]").count() == 0
    page.keyboard.press("Alt+n")
    assert page.evaluate("() => document.activeElement.id") == "input"


def test_the_theme_is_chosen_and_kept(page):
    for theme in ("light", "dark"):
        page.click("#theme")
        assert page.inner_text("#theme") == f"Theme: {theme}"
    page.reload()
    assert page.inner_text("#theme") == "Theme: dark"
    back = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
    assert back == "rgb(20, 21, 24)"


@pytest.mark.parametrize("look", LOOKS)
def test_nobody_is_shut_out(new_page, url, look):
    page = open_scene(new_page, url, **LOOKS[look])
    ask(page, "Hi")
    page.wait_for_selector(".turn.assistant .acts")
    assert violations(page) == []
    if look == "phone":
        assert page.evaluate("() => document.documentElement.scrollWidth") == 360
        page.click("#view-cluster")
        assert page.evaluate("() => document.documentElement.scrollWidth") == 360
        assert violations(page) == []
    for button, dialog in (("#help-button", "#help-dialog"), ("#show-me", "#show-dialog")):
        page.click(button)
        page.wait_for_selector(dialog + "[open]")
        assert violations(page) == []
        page.keyboard.press("Escape")


# The share of pixels that differ by more than a shade, of two PNGs of one size; 1 for others.
COMPARE = """async ([a, b]) => {
  const load = async (data) => {
    const bytes = Uint8Array.from(atob(data), (c) => c.charCodeAt(0));
    const image = await createImageBitmap(new Blob([bytes], { type: "image/png" }));
    const canvas = new OffscreenCanvas(image.width, image.height);
    const context = canvas.getContext("2d");
    context.drawImage(image, 0, 0);
    return context.getImageData(0, 0, image.width, image.height);
  };
  const [x, y] = [await load(a), await load(b)];
  if (x.width !== y.width || x.height !== y.height) return 1;
  let count = 0;
  for (let i = 0; i < x.data.length; i += 4) {
    const far = [0, 1, 2].some((c) => Math.abs(x.data[i + c] - y.data[i + c]) > 48);
    if (far) count += 1;
  }
  return count / (x.width * x.height);
}"""


@pytest.mark.parametrize("look", LOOKS)
def test_the_page_looks_as_it_did(new_page, url, look):
    """BATON_UI_SHOTS=DIR writes the pictures there; DIR = tests/ui/shots makes them the rule."""
    page = open_scene(new_page, url, reduced_motion="reduce", **LOOKS[look])
    if look == "phone":
        page.click("#view-cluster")
    page.evaluate("() => { cluster.itl = []; watching?.abort(); setStatus('ready', 'good'); }")
    picture = page.screenshot(animations="disabled", caret="hide")
    folder = os.environ.get("BATON_UI_SHOTS")
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        (Path(folder) / f"{look}.png").write_bytes(picture)
    before = (SHOTS / f"{look}.png").read_bytes()
    blank = new_page()
    blank.goto("about:blank")
    both = [base64.b64encode(data).decode() for data in (picture, before)]
    assert blank.evaluate(COMPARE, both) < 0.02

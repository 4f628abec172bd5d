"""Tests the chat of /ui in a browser: sending, branches, what is kept, and that no text is code."""

from fixed_data import chunk, fix_answer, fix_events, fix_models, HELLO


def ask(page, text, tokens=24):
    page.evaluate("n => { document.getElementById('param-max_tokens').value = n; }", tokens)
    page.evaluate("() => { document.getElementById('param-temperature').value = 0; }")
    page.fill("#input", text)
    page.press("#input", "Enter")


def wait_answers(page, count):
    page.wait_for_selector("#send:text-is('Send')")
    assert page.locator(".turn.assistant .acts").count() == count


def ask_fixed(new_page, url, chunks):
    page = new_page()
    fix_models(page)
    fix_events(page, [HELLO])
    fix_answer(page, chunks)
    page.goto(url + "/ui")
    ask(page, "Hello")
    page.wait_for_selector(".turn.assistant .acts")
    return page


def test_an_answer_streams_and_says_where_it_was_computed(page):
    ask(page, "Name three colours.")
    wait_answers(page, 1)
    text = page.inner_text(".turn.assistant")
    assert "tokens/s" in text and "prefill-0 to decode-" in text
    assert "prefill" in page.get_attribute(".turn.assistant .stack", "aria-label")


def test_stop_keeps_what_has_come(page):
    ask(page, "Tell a very long story.", tokens=1000)
    page.wait_for_selector(".turn.assistant p")
    page.keyboard.press("Escape")
    wait_answers(page, 1)
    assert "Stopped." in page.inner_text(".turn.assistant")


def test_again_and_edit_make_branches_that_stay(page):
    ask(page, "Say one word.", tokens=4)
    wait_answers(page, 1)
    page.click(".turn.assistant button:text-is('Again')")
    wait_answers(page, 1)
    assert "2/2" in page.inner_text(".turn.assistant .acts")
    page.click("[aria-label='Version before']")
    assert "1/2" in page.inner_text(".turn.assistant .acts")
    page.click(".turn.user button:text-is('Edit')")
    page.fill("#text-input", "Say two words.")
    page.click("#text-ok")
    page.wait_for_selector(".turn.user:has-text('Say two words.')")
    wait_answers(page, 1)
    assert "2/2" in page.inner_text(".turn.user .acts")
    page.click("#new")
    assert page.locator(".turn").count() == 0
    page.select_option("#conversations", index=1)
    page.reload()
    page.wait_for_selector(".turn.user:has-text('Say two words.')")
    page.click(".turn.user [aria-label='Version before']")
    assert "Say one word." in page.inner_text(".turn.user")


def test_tokens_show_their_probabilities(page):
    page.click("#settings summary")
    page.check("#logprobs")
    page.click("#settings summary")
    ask(page, "Count to five.", tokens=8)
    wait_answers(page, 1)
    page.click(".turn.assistant button:text-is('Tokens')")
    assert page.locator(".tokens button").count() >= 2
    page.click(".tokens button >> nth=1")
    assert "likeliest:" in page.inner_text(".turn.assistant [role=status]")


def test_a_file_goes_with_the_message(page):
    sent = []
    page.on("request", lambda r: sent.append(r.post_data) if r.method == "POST" else None)
    files = [
        {"name": "notes.txt", "mimeType": "text/plain", "buffer": b"alpha beta"},
        {"name": "photo.png", "mimeType": "image/png", "buffer": b"\x89PNG\xff\xfe"},
    ]
    page.set_input_files("#attach", files)
    page.wait_for_selector("#files li:has-text('notes.txt')")
    page.wait_for_selector("#notice:has-text('photo.png is no text in UTF-8.')")
    ask(page, "What is in it?", tokens=4)
    wait_answers(page, 1)
    assert "alpha beta" in sent[0] and "notes.txt" in sent[0] and "photo" not in sent[0]
    assert page.locator("#files li").count() == 0


def test_a_wrong_parameter_is_told_in_the_server_s_words(page):
    page.click("#settings summary")
    page.fill("#param-top_p", "7")
    ask(page, "Hi")
    page.wait_for_selector(".turn.assistant:has-text('top_p')")
    assert "at most 1" in page.inner_text(".turn.assistant .bad-text")


HOSTILE = (
    "<img src=x onerror=alert(1)> <script>alert(1)</script>\n\n"
    "[click](javascript:alert(1)) [data](data:text/html,x) [good](https://example.com/a)\n\n"
    "![picture](https://example.com/p.png)\n\n"
    "```html\n<b>code</b>\n```\n\n- one\n- **two**\n\n| a | b |\n|---|---|\n| 1 | 2 |\n"
)


def test_a_model_s_text_is_never_code(new_page, url):
    asked = []
    page = ask_fixed(new_page, url, [chunk({"role": "assistant"}), chunk({"content": HOSTILE})])
    page.on("request", lambda request: asked.append(request.url))
    turn = page.locator(".turn.assistant")
    assert turn.locator("img, script, iframe, b:text-is('code')").count() == 0
    links = turn.locator("a").evaluate_all("all => all.map(a => [a.href, a.rel, a.target])")
    assert [href for href, _, _ in links] == ["https://example.com/a", "https://example.com/p.png"]
    assert all("noopener" in rel and target == "_blank" for _, rel, target in links)
    assert turn.locator("pre code").inner_text() == "<b>code</b>"
    assert turn.locator("li").all_inner_texts() == ["one", "two"]
    assert turn.locator("td").all_inner_texts() == ["1", "2"]
    assert "<img src=x onerror=alert(1)>" in turn.inner_text()
    assert not [where for where in asked if "example.com" in where]


def test_markdown_of_any_shape_is_drawn_soon(new_page, url):
    shapes = ["*" * 20_000, "[" * 20_000, "> " * 5_000, "`" * 20_000, "- " * 5_000, "_a " * 9_000]
    text = "\n\n".join(shapes)
    page = ask_fixed(new_page, url, [chunk({"content": text})])
    took_ms = page.evaluate(
        "() => { const t = performance.now(); showConversation(); return performance.now() - t; }"
    )
    assert took_ms < 3000


def test_reasoning_is_folded_and_tool_calls_are_shown(new_page, url):
    call = {"index": 0, "id": "call_1", "function": {"name": "weather", "arguments": '{"city":'}}
    rest = {"index": 0, "function": {"arguments": '"Rome"}'}}
    chunks = [
        chunk({"role": "assistant"}),
        chunk({"reasoning_content": "I should ask."}),
        chunk({"content": "Let me look."}),
        chunk({"tool_calls": [call]}),
        chunk({"tool_calls": [rest]}, finish_reason="tool_calls"),
    ]
    page = ask_fixed(new_page, url, chunks)
    assert page.locator("details.thoughts[open]").count() == 0
    page.click("details.thoughts summary")
    assert "I should ask." in page.inner_text("details.thoughts")
    assert "Calls weather" in page.inner_text(".tool")
    assert '"city": "Rome"' in page.inner_text(".tool pre")
    bodies = []
    page.on("request", lambda r: bodies.append(r.post_data_json) if r.method == "POST" else None)
    page.click(".tool button")
    page.fill("#text-input", "sunny")
    page.click("#text-ok")
    page.wait_for_selector(".turn.tool:has-text('sunny')")
    page.wait_for_selector("#send:text-is('Send')")
    assistant, tool = bodies[0]["messages"][-2:]
    assert assistant["tool_calls"][0]["function"]["arguments"] == '{"city":"Rome"}'
    assert (tool["role"], tool["tool_call_id"], tool["content"]) == ("tool", "call_1", "sunny")


def test_an_error_amid_an_answer_is_shown_beside_what_has_come(new_page, url):
    error = {"error": {"message": "A worker was lost.", "code": "worker_lost"}}
    page = ask_fixed(new_page, url, [chunk({"content": "Half an"}), error])
    text = page.inner_text(".turn.assistant")
    assert "Half an" in text and "A worker was lost." in text


def test_the_key_is_asked_for_once_and_kept_by_the_tab(new_page, url):
    page = new_page()
    refused = {"error": {"message": "no key", "code": "invalid_api_key"}}

    def guard(route):
        if route.request.headers.get("authorization") == "Bearer right":
            return route.continue_()
        return route.fulfill(status=401, json=refused)

    page.route("**/v1/**", guard)
    page.goto(url + "/ui")
    page.wait_for_selector("#key-dialog[open]")
    page.fill("#key-input", "wrong")
    page.keyboard.press("Enter")
    page.wait_for_selector("#key-why:has-text('refuses this key')")
    page.fill("#key-input", "right")
    page.keyboard.press("Enter")
    page.wait_for_selector("#status:text-is('ready')")
    ask(page, "Hi", tokens=2)
    wait_answers(page, 1)
    page.reload()
    page.wait_for_selector("#status:text-is('ready')")
    assert page.locator("#key-dialog[open]").count() == 0
    assert page.evaluate("() => JSON.stringify(localStorage)").find("right") == -1


def test_a_browser_that_keeps_nothing_still_chats(new_page, url):
    page = new_page()
    page.add_init_script(
        "Storage.prototype.setItem = () => { throw new DOMException('', 'QuotaExceededError'); };"
    )
    fix_models(page)
    fix_answer(page, [chunk({"content": "Yes."})])
    page.goto(url + "/ui")
    ask(page, "Hi")
    page.wait_for_selector(".turn.assistant:has-text('Yes.')")
    page.wait_for_selector("#notice:has-text('keeps no more')")


def test_an_answer_without_events_ends(new_page, url):
    page = ask_fixed(new_page, url, [])
    assert page.inner_text("#send") == "Send"


def test_two_tabs_keep_each_other_s_conversations(new_page, url):
    first = ask_fixed(new_page, url, [chunk({"content": "One."})])
    second = first.context.new_page()
    fix_models(second)
    fix_events(second, [HELLO])
    fix_answer(second, [chunk({"content": "Two."})])
    second.goto(url + "/ui")
    second.click("#new")
    ask(second, "In the second tab")
    second.wait_for_selector(".turn.assistant:has-text('Two.')")
    ask(first, "In the first tab")
    first.wait_for_selector(".turn.user:has-text('In the first tab')")
    wait_answers(first, 2)
    first.reload()
    titles = first.locator("#conversations option").all_inner_texts()
    assert sorted(titles) == ["Hello", "In the second tab"]

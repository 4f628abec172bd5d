#include "src/api/chat_page.h"

namespace baton::api {

const std::string_view kChatPage = R"html(<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Baton chat</title>
<style>
  :root { color-scheme: light dark; }
  body { font: 16px/1.5 system-ui, sans-serif; max-width: 46rem; margin: 0 auto; padding: 1rem;
         display: flex; flex-direction: column; height: 100vh; box-sizing: border-box; }
  header { display: flex; flex-wrap: wrap; gap: .25rem 1rem; align-items: baseline;
           border-bottom: 1px solid #8886; padding-bottom: .5rem; }
  h1 { font-size: 1.1rem; margin: 0; }
  header input { width: 4.5rem; font: inherit; }
  header select { font: inherit; max-width: 16rem; }
  header details { flex-basis: 100%; }
  header textarea { width: 100%; box-sizing: border-box; }
  #log { flex: 1; overflow-y: auto; }
  .turn { white-space: pre-wrap; margin: .5rem 0; padding: .5rem .75rem; border-radius: .5rem; }
  .user { background: #8883; }
  .error { color: #c33; }
  .stats { color: #888; font-size: .8rem; }
  .thoughts { color: #888; font-style: italic; }
  form { display: flex; gap: .5rem; padding-top: .5rem; }
  textarea { flex: 1; font: inherit; resize: vertical; }
  button { font: inherit; }
</style>
</head>
<body>
<header>
  <h1>Baton</h1>
  <label>Model <select id="model"></select></label>
  <label>Temperature
    <input id="temperature" type="number" min="0" max="100" step="0.1" value="1"></label>
  <label id="keyed" hidden>API key
    <input id="key" type="password" autocomplete="off" style="width: 12rem"></label>
  <details><summary>System text</summary>
    <textarea id="system" rows="3" aria-label="System text"
              placeholder="What the model is told before the conversation"></textarea></details>
</header>
<div id="log" role="log" aria-live="polite"></div>
<form id="form">
  <textarea id="input" rows="2" placeholder="Message" aria-label="Message" autofocus></textarea>
  <button id="send">Send</button>
</form>
<script>
"use strict";
const log = document.getElementById("log");
const input = document.getElementById("input");
const button = document.getElementById("send");
const model = document.getElementById("model");
const temperature = document.getElementById("temperature");
const system = document.getElementById("system");
const keyed = document.getElementById("keyed");
const key = document.getElementById("key");
const messages = [];
let running = null;

function add(kind, text) {
  const element = document.createElement("div");
  element.className = "turn " + kind;
  element.textContent = text;
  log.append(element);
  log.scrollTop = log.scrollHeight;
  return element;
}

function stats(t, tokens, first, total) {
  const rate = total > first ? (1000 * (tokens - 1) / (total - first)).toFixed(1) : "-";
  const head = `${tokens} tokens, first after ${first.toFixed(0)} ms, ${rate} tokens/s, `;
  return head + `path ${t.path}, ${t.prefill_worker} to ${t.decode_worker}, ` +
         `${t.kv_bytes} KV bytes over ${t.transport}`;
}

// The key lives as long as the page; no URL and no cookie has it.
function headers(fields = {}) {
  return key.value ? { ...fields, "Authorization": "Bearer " + key.value } : fields;
}

// The served models; without an answer the server's only one is asked. A server that has keys gets
// the page to show its field for one.
async function listModels() {
  try {
    const response = await fetch("/v1/models", { headers: headers() });
    if (response.status === 401) keyed.hidden = false;
    const answer = await response.json();
    model.replaceChildren();
    for (const { id } of answer.data) model.add(new Option(id, id));
  } catch { /* the first question says what is wrong */ }
}

function requestBody() {
  const body = { messages: [...messages], stream: true };
  if (system.value.trim()) body.messages.unshift({ role: "system", content: system.value });
  if (model.value) body.model = model.value;
  if (temperature.value !== "") body.temperature = Number(temperature.value);
  return JSON.stringify(body);
}

// Calls onEvent with each `data:` payload of a server-sent event stream.
async function readEvents(response, onEvent) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) if (event.startsWith("data: ")) onEvent(event.slice(6));
  }
}

async function ask(text) {
  messages.push({ role: "user", content: text });
  add("user", text);
  let thoughts = null;
  const answer = add("assistant", "");
  const start = performance.now();
  let first = 0, tokens = 0, timings = null, failure = null;
  running = new AbortController();
  button.textContent = "Stop";
  try {
    const response = await fetch("/v1/chat/completions", {
      method: "POST", headers: headers({ "Content-Type": "application/json" }),
      signal: running.signal, body: requestBody() });
    if (response.status === 401) keyed.hidden = false;
    if (!response.ok) throw new Error((await response.json()).error.message);
    await readEvents(response, (data) => {
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error) { failure = chunk.error.message; return; }
      const delta = chunk.choices[0]?.delta ?? {};
      const isToken = delta.content !== undefined || delta.reasoning_content !== undefined;
      if (isToken && !delta.role) {
        if (tokens++ === 0) first = performance.now() - start;
        if (delta.reasoning_content) {
          if (!thoughts) { thoughts = add("thoughts", ""); log.insertBefore(thoughts, answer); }
          thoughts.textContent += delta.reasoning_content;
        }
        answer.textContent += delta.content ?? "";
        log.scrollTop = log.scrollHeight;
      }
      if (chunk.timings) timings = chunk.timings;
    });
    if (failure) throw new Error(failure);
    if (timings) add("stats", stats(timings, tokens, first, performance.now() - start));
    messages.push({ role: "assistant", content: answer.textContent });
  } catch (error) {
    // A question that failed before its answer is not sent again with the next question.
    if (answer.textContent) messages.push({ role: "assistant", content: answer.textContent });
    else messages.pop();
    add(error.name === "AbortError" ? "stats" : "error",
        error.name === "AbortError" ? "stopped" : error.message);
  } finally {
    running = null;
    button.textContent = "Send";
  }
}

listModels();
key.addEventListener("change", listModels);
document.getElementById("form").addEventListener("submit", (event) => {
  event.preventDefault();
  if (running) { running.abort(); return; }
  const text = input.value.trim();
  if (!text) return;
  input.value = "";
  ask(text);
});
input.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey) {
    event.preventDefault();
    document.getElementById("form").requestSubmit();
  }
});
</script>
</body>
</html>
)html";

}  // namespace baton::api

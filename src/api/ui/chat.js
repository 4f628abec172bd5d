// ---- The chat.

const PARAMS = [  // name, label, step, placeholder
  ["temperature", "Temperature", "0.1", "1"],
  ["top_p", "Top p", "0.05", "1"],
  ["top_k", "Top k", "1", "all"],
  ["min_p", "Min p", "0.01", "0"],
  ["max_tokens", "Most tokens", "1", "what fits"],
  ["seed", "Seed", "1", "random"],
  ["repetition_penalty", "Repetition penalty", "0.05", "1"],
  ["presence_penalty", "Presence penalty", "0.1", "0"],
  ["frequency_penalty", "Frequency penalty", "0.1", "0"],
];
const MAX_FILE = 512 * 1024;
const STAGES = [["queue", "queue"], ["prefill", "prefill"], ["transfer", "transfer"],
                ["wait", "wait"], ["first_step", "first step"], ["decode", "decode"]];

let running = null;       // the AbortController of the answer that is being written
let attached = [];        // files of the next message
const tokensOf = new Map();  // node id -> tokens with probabilities; not kept

const bytesText = (n) => n < 1024 ? `${n} B` : n < 1048576 ? `${(n / 1024).toFixed(0)} KiB`
    : n < 1073741824 ? `${(n / 1048576).toFixed(1)} MiB` : `${(n / 1073741824).toFixed(2)} GiB`;
const msText = (ms) => ms < 10 ? `${ms.toFixed(1)} ms` : ms < 10000 ? `${ms.toFixed(0)} ms`
    : `${(ms / 1000).toFixed(1)} s`;

function say(text) { byId("live").textContent = text; }
function note(text) { byId("notice").textContent = text; }

// A bar of the six stages, with the numbers as its name.
function stageBar(stages) {
  const total = STAGES.reduce((sum, [name]) => sum + (stages[name] ?? 0), 0);
  const bar = make("div", "stack");
  bar.setAttribute("role", "img");
  STAGES.forEach(([name], i) => {
    const part = make("span", `s${i}`);
    part.style.width = `${total > 0 ? 100 * (stages[name] ?? 0) / total : 0}%`;
    bar.append(part);
  });
  const words = STAGES.map(([name, label]) => `${label} ${msText(stages[name] ?? 0)}`).join(", ");
  bar.setAttribute("aria-label", words);
  bar.title = words;
  return bar;
}

function stagesOfTimings(t) {
  return { queue: t.queue_ms, prefill: t.prefill_ms, transfer: t.kv_wait_ms, wait: 0,
           first_step: t.first_step_ms, decode: t.decode_ms };
}

// ---- Showing messages.

function contentOf(node) {
  const files = (node.files ?? []).map((f) => `File ${f.name}:\n\n\`\`\`\n${f.text}\n\`\`\`\n\n`);
  return files.join("") + node.content;
}

function thoughtsOf(node) {
  const details = make("details", "thoughts", "", make("summary", "", "Reasoning"),
                       make("div", "", node.reasoning));
  details.open = Boolean(node.thinking);
  return details;
}

function toolCallOf(node, call) {
  let pretty = call.arguments;
  try { pretty = JSON.stringify(JSON.parse(call.arguments), null, 2); } catch { }
  const box = make("div", "tool", "", make("b", "", `Calls ${call.name}`), make("pre", "", pretty));
  const isOpen = !node.writing && !store.childrenOf(node.id)
      .some((n) => n.role === "tool" && n.call === call.id);
  if (isOpen) {
    box.append(actButton("Give its result", `Give the result of ${call.name}`, async () => {
      const result = await askForText(`Result of ${call.name}`, "What the tool answers", "");
      if (result === null) return;
      const last = store.path().at(-1);
      store.append(last.id, { role: "tool", content: result, call: call.id, name: call.name });
      const given = store.path().filter((n) => n.role === "tool").map((n) => n.call);
      if (node.calls.every((c) => given.includes(c.id))) answer(store.path().at(-1));
      else showConversation();
    }));
  }
  return box;
}

// Tokens as buttons: each tells its probability and what else was likely.
function tokensView(tokens) {
  const detail = make("p", "quiet", "Choose a token.");
  detail.setAttribute("role", "status");
  const row = make("div", "tokens");
  const share = (logprob) => `${(100 * Math.exp(logprob)).toFixed(1)} %`;
  for (const token of tokens) {
    const p = Math.exp(token.logprob);
    const button = make("button", p < 0.2 ? "p0" : p < 0.6 ? "p1" : "p2",
                        token.token.replace(/\n/g, "\\n"));
    button.type = "button";
    button.title = share(token.logprob);
    button.addEventListener("click", () => {
      const others = (token.top_logprobs ?? []).map((t) =>
          `${JSON.stringify(t.token)} ${share(t.logprob)}`);
      detail.textContent = `${JSON.stringify(token.token)} ${share(token.logprob)}` +
          (others.length ? `; likeliest: ${others.join(", ")}` : "");
    });
    row.append(button);
    if (token.token.includes("\n")) row.append(make("br"));
  }
  return make("div", "", "", row, detail);
}

function actsOf(node, turn) {
  const acts = make("div", "acts");
  const brothers = store.childrenOf(node.parent).filter((n) => n.role === node.role);
  if (brothers.length > 1) {
    const at = brothers.indexOf(node);
    const step = (by, text, label) => {
      const button = actButton(text, label, () => { store.choose(brothers[at + by]); keep(); });
      button.disabled = !brothers[at + by];
      return button;
    };
    acts.append(step(-1, "\u2039", "Version before"),
                make("span", "quiet", `${at + 1}/${brothers.length}`),
                step(1, "\u203a", "Next version"));
  }
  const copy = actButton("Copy", "Copy the message", () => copyText(node.content, copy));
  acts.append(copy);
  if (node.role === "user") {
    acts.append(actButton("Edit", "Edit the message", async () => {
      const text = await askForText("Edit the message", "A new branch begins here", node.content);
      if (text === null || running) return;
      answer(store.append(node.parent, { role: "user", content: text, files: node.files }));
    }));
  } else if (node.role === "assistant") {
    acts.append(actButton("Again", "Generate this answer again", () => {
      if (!running) answer(store.current.nodes[node.parent]);
    }));
    acts.append(actButton("Tokens", "Show tokens with probabilities", () => {
      const tokens = tokensOf.get(node.id);
      const shown = turn.querySelector(".tokens");
      if (shown) return shown.parentNode.remove();
      if (!tokens) return note("Set \u201cToken probabilities\u201d and take the answer again.");
      turn.append(tokensView(tokens));
    }));
  }
  return acts;
}

function fillTurn(turn, node) {
  const names = { user: "You", assistant: "Answer", tool: `Result of ${node.name}` };
  turn.className = `turn ${node.role}`;
  turn.replaceChildren(make("div", "who", names[node.role]));
  if (node.reasoning) turn.append(thoughtsOf(node));
  for (const file of node.files ?? []) turn.append(make("span", "file", file.name));
  const body = make("div", node.role === "assistant" ? "" : "plain-text");
  if (node.role === "assistant") body.append(renderMarkdown(node.content));
  else body.textContent = node.content;
  turn.append(body);
  for (const call of node.calls ?? []) turn.append(toolCallOf(node, call));
  if (node.failure) turn.append(make("p", "bad-text", node.failure));
  if (node.cut) {
    turn.append(make("p", "warn-text", "Cut: the most tokens, or the end of the context."));
  }
  if (node.stats) turn.append(make("p", "quiet", node.stats));
  if (node.stages) turn.append(stageBar(node.stages));
  if (!node.writing) turn.append(actsOf(node, turn));
}

function showConversation() {
  const log = byId("log");
  log.replaceChildren();
  for (const node of store.path()) {
    const turn = make("article");
    turn.dataset.node = node.id;
    fillTurn(turn, node);
    log.append(turn);
  }
  if (!log.children.length) {
    log.append(make("p", "quiet", "Ask something. The cluster shows what your answer does."));
  }
  log.scrollTop = log.scrollHeight;
  const select = byId("conversations");
  select.replaceChildren(...store.conversations.map((c) => new Option(c.title || "New", c.id)));
  select.value = store.current.id;
  byId("system").value = store.current.system ?? "";
}

// Saves and shows.
function keep() {
  if (!store.save()) note("This browser keeps no more: delete a conversation.");
  showConversation();
}

function askForText(title, label, value) {
  return new Promise((resolve) => {
    const dialog = byId("text-dialog"), form = dialog.querySelector("form");
    byId("text-title").textContent = title;
    byId("text-label").textContent = label;
    byId("text-input").value = value;
    const onSubmit = (event) => { event.preventDefault(); dialog.close("given"); };
    form.addEventListener("submit", onSubmit);
    dialog.addEventListener("close", () => {
      form.removeEventListener("submit", onSubmit);
      resolve(dialog.returnValue === "given" ? byId("text-input").value : null);
    }, { once: true });
    dialog.returnValue = "";
    dialog.showModal();
    byId("text-input").focus();
  });
}

// ---- Sending.

function messageOf(node) {
  if (node.role === "tool") {
    return { role: "tool", content: node.content, tool_call_id: node.call, name: node.name };
  }
  const message = { role: node.role, content: contentOf(node) };
  if (node.calls?.length) {
    message.tool_calls = node.calls.map((c) => ({ id: c.id, type: "function",
        function: { name: c.name, arguments: c.arguments } }));
  }
  return message;
}

// The body of a request for the answer to `last`; throws for settings that are none.
function requestBody(last) {
  const path = store.path();
  const messages = path.slice(0, path.indexOf(last) + 1).map(messageOf);
  if (store.current.system?.trim()) {
    messages.unshift({ role: "system", content: store.current.system });
  }
  const body = { messages, stream: true, stream_options: { include_usage: true } };
  if (byId("model").value) body.model = byId("model").value;
  for (const [name] of PARAMS) {
    const value = byId(`param-${name}`).value;
    if (value !== "") body[name] = Number(value);
  }
  const stop = byId("param-stop").value;
  if (stop) body.stop = stop.split("|").map((s) => s.replaceAll("\\n", "\n"));
  if (byId("param-path").value !== "auto") body.path = byId("param-path").value;
  if (byId("logprobs").checked) Object.assign(body, { logprobs: true, top_logprobs: 5 });
  const tools = byId("tools").value.trim();
  if (tools) {
    try { body.tools = JSON.parse(tools); } catch (error) {
      throw new Error(`The tools are no JSON: ${error.message}`);
    }
  }
  return JSON.stringify(body);
}

// Adds what one chunk brings to the message.
function addDelta(node, choice) {
  const delta = choice.delta ?? {};
  if (delta.reasoning_content) node.reasoning = (node.reasoning ?? "") + delta.reasoning_content;
  if (delta.content) node.content += delta.content;
  node.thinking = Boolean(node.reasoning) && !node.content;
  for (const part of delta.tool_calls ?? []) {
    node.calls ??= [];
    const call = node.calls[part.index ?? 0] ??= { id: "", name: "", arguments: "" };
    call.id = part.id ?? call.id;
    call.name += part.function?.name ?? "";
    call.arguments += part.function?.arguments ?? "";
  }
  if (choice.logprobs?.content) {
    const tokens = tokensOf.get(node.id) ?? [];
    tokens.push(...choice.logprobs.content);
    tokensOf.set(node.id, tokens);
  }
  if (choice.finish_reason === "length") node.cut = true;
}

function statsOf(timings, usage, times) {
  const first = times[0] ?? 0, last = times.at(-1) ?? 0;
  const parts = [`${usage?.completion_tokens ?? times.length} tokens`,
                 `first after ${msText(first)}`];
  if (times.length > 1) {
    parts.push(`${(1000 * (times.length - 1) / (last - first)).toFixed(1)} tokens/s`);
  }
  if (timings) {
    parts.push(timings.path === "disagg"
        ? `split: ${timings.prefill_worker} to ${timings.decode_worker}, ` +
          `${bytesText(timings.kv_bytes)} over ${timings.transport}`
        : `unsplit on ${timings.decode_worker}`);
    if (timings.cached_tokens) parts.push(`${timings.cached_tokens} prompt tokens from the cache`);
    if (timings.resumes) parts.push(timings.resumes === 1 ? "resumed once"
                                                        : `resumed ${timings.resumes} times`);
  }
  return parts.join(", ");
}

// Writes the answer to `last`, which becomes a new child of it.
async function answer(last) {
  const conversation = store.current;
  let body;
  try { body = requestBody(last); } catch (error) { keep(); return note(error.message); }
  const node = store.append(last.id, { role: "assistant", content: "", writing: true });
  keep();
  const turn = byId("log").querySelector(`[data-node="${node.id}"]`);
  const start = performance.now(), times = [];
  let timings = null, usage = null, drawn = 0;
  running = new AbortController();
  byId("send").textContent = "Stop";
  note("");
  say("The answer is being written.");
  const draw = () => {
    if (drawn || store.current !== conversation) return;
    // A long text is drawn less often: each drawing takes the whole text.
    drawn = setTimeout(() => requestAnimationFrame(() => {
      drawn = 0;
      if (!node.writing) return;
      const log = byId("log");
      const follows = log.scrollHeight - log.scrollTop - log.clientHeight < 60;
      fillTurn(turn, node);
      if (follows) log.scrollTop = log.scrollHeight;
    }), Math.min(500, node.content.length / 100));
  };
  try {
    const response = await request("/v1/chat/completions", {
      method: "POST", headers: { "Content-Type": "application/json" }, body,
      signal: running.signal });
    if (!response.ok) throw await errorOf(response);
    const ignored = response.headers.get("X-Baton-Ignored-Fields");
    if (ignored) note(`The server ignored: ${ignored}`);
    await readEvents(response, (data) => {
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Error(chunk.error.message);
      node.answer = chunk.id;
      const choice = chunk.choices?.[0];
      if (choice) {
        const delta = choice.delta ?? {};
        if (!delta.role && (delta.content !== undefined || delta.reasoning_content !== undefined)) {
          times.push(performance.now() - start);
        }
        addDelta(node, choice);
      }
      timings = chunk.timings ?? timings;
      usage = chunk.usage ?? usage;
      draw();
    });
  } catch (error) {
    node.failure = error.name === "AbortError" ? "Stopped." : failureText(error);
  }
  running = null;
  byId("send").textContent = "Send";
  delete node.writing;
  delete node.thinking;
  if (times.length) node.stats = statsOf(timings, usage, times);
  if (timings) node.stages = stagesOfTimings(timings);
  clearTimeout(drawn);
  store.touch(conversation);
  keep();
  say(node.failure ?? `The answer is complete: ${times.length} tokens.`);
}

function send() {
  if (running) return running.abort();
  const input = byId("input"), text = input.value.trim();
  if (!text && !attached.length) return;
  input.value = "";
  const last = store.path().at(-1);
  const node = store.append(last?.id ?? "root", { role: "user", content: text, files: attached });
  attached = [];
  showFiles();
  answer(node);
}

function again() {
  const last = store.path().at(-1);
  if (running || !last) return;
  answer(last.role === "assistant" ? store.current.nodes[last.parent] : last);
}

// ---- Attached files.

function showFiles() {
  byId("files").replaceChildren(...attached.map((file, i) => make("li", "", `${file.name} `,
      actButton("\u00d7", `Leave out ${file.name}`, () => {
        attached.splice(i, 1);
        showFiles();
      }))));
}

async function attach(files) {
  for (const file of files) {
    if (file.size > MAX_FILE) {
      note(`${file.name} has ${bytesText(file.size)}; at most ${bytesText(MAX_FILE)} can be sent.`);
      continue;
    }
    try {
      const bytes = await file.arrayBuffer();
      const text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
      if (text.includes("\0")) throw new Error();
      attached.push({ name: file.name, text });
    } catch { note(`${file.name} is no text in UTF-8.`); }
  }
  showFiles();
}

function buildSettings() {
  const grid = byId("params");
  const add = (name, label, input) => {
    input.id = `param-${name}`;
    input.value = settings.all[name] ?? input.value;
    input.addEventListener("change", () => settings.set(name, input.value));
    grid.append(make("label", "", label, input));
  };
  for (const [name, label, step, placeholder] of PARAMS) {
    const input = make("input");
    Object.assign(input, { type: "number", step, placeholder });
    add(name, label, input);
  }
  const stop = make("input");
  stop.placeholder = "texts, parted by |";
  add("stop", "Stop at", stop);
  const path = make("select");
  path.append(new Option("as the server decides", "auto"), new Option("split", "disagg"),
              new Option("unsplit", "local"));
  add("path", "Path", path);
  for (const id of ["logprobs", "tools"]) {
    const input = byId(id), field = input.type === "checkbox" ? "checked" : "value";
    input[field] = settings.all[id] ?? input[field];
    input.addEventListener("change", () => settings.set(id, input[field]));
  }
}


// ---- The live cluster: what /v1/cluster/events says.

const BLOCK_GROUPS = [  // shown as one colour each; every other state is "moving"
  ["busy", "in use", ["bound", "computing"]],
  ["moving", "moving", ["exported", "reserved", "receiving"]],
  ["cached", "cached", ["cached"]],
  ["away", "draining", ["draining", "quarantined"]],
  ["free", "free", ["free"]],
];
const KNOWN_STATES = new Set(BLOCK_GROUPS.flatMap(([, , states]) => states));
const MAX_ROWS = 10, MAX_NOTICES = 50, MAX_POINTS = 120;
const QUIET_MS = 12000;  // the server says something every 5 s
const NOTICES = {  // kind: what it says, and whether it is bad
  worker_joined: ["joined", ""], worker_left: ["left after its drain", ""],
  worker_lost: ["is lost", "bad"], worker_restarted: ["was started again", "warn"],
  worker_ready: ["is ready", ""], worker_not_ready: ["is not ready", "warn"],
  drain_began: ["drains", "warn"], link_up: ["link is up", ""], link_down: ["link is down", "bad"],
  placed_again: ["goes on", "warn"], router_ready: ["serves", ""],
  router_not_ready: ["serves nothing", "bad"],
};

const cluster = { incarnation: "", itl: [], prompt: 0, cached: 0, begin_ms: 0, workers: [],
                  answers: 0 };
const reducedMotion = matchMedia("(prefers-reduced-motion: reduce)");

function shape(tag) {
  return byId("shapes").content.querySelector(tag).cloneNode(true);
}

function setStatus(text, kind) {
  const pill = byId("status");
  if (pill.textContent !== text) pill.textContent = text;
  pill.className = `pill ${kind}`;
}

function clusterNote(text) {
  if (byId("cluster-note").textContent !== text) byId("cluster-note").textContent = text;
}

// ---- Workers and their blocks.

function blocksOf(worker) {
  const counts = {};
  for (const [state, count] of Object.entries(worker.blocks)) {
    const [group] = BLOCK_GROUPS.find(([, , states]) => states.includes(state)) ?? ["moving"];
    counts[group] = (counts[group] ?? 0) + count;
  }
  return counts;
}

function fillWorker(card, worker) {
  const counts = blocksOf(worker);
  const total = Object.values(worker.blocks).reduce((a, b) => a + b, 0);
  const [state, kind] = worker.draining ? ["draining", "warn"]
      : worker.ready ? ["ready", "good"] : ["not ready", "bad"];
  const pill = card.querySelector(".pill");
  pill.textContent = state;
  pill.className = `pill ${kind}`;
  const words = Object.entries(worker.blocks).filter(([, n]) => n > 0)
      .map(([name, n]) => `${n} ${name}`).join(", ");
  const used = total - (worker.blocks.free ?? 0);
  // A pool that is nearly empty fills a bar of fewer blocks, and the text says of how many.
  let range = Math.max(total, 1);
  while (range > 64 && used < range / 4) range = Math.ceil(range / 2);
  counts.free = range - used;
  for (const part of card.querySelectorAll(".stack span")) {
    part.style.width = `${100 * (counts[part.dataset.group] ?? 0) / range}%`;
  }
  const stack = card.querySelector(".stack");
  stack.setAttribute("aria-label", `Blocks: ${words || "none"}`);
  stack.title = words;
  card.querySelector("p").textContent = `${used} of ${total} blocks` +
      (range < total ? ` (bar: ${range})` : "") +
      `, ${worker.running} running, ${worker.waiting} waiting`;
}

function newWorkerCard(worker) {
  const card = make("div", "worker", "", make("span", "pill"), make("b", "", worker.id));
  const stack = make("div", "stack");
  stack.setAttribute("role", "img");
  for (const [group] of BLOCK_GROUPS) {
    const part = make("span", `b-${group}`);
    part.dataset.group = group;
    stack.append(part);
  }
  card.append(stack, make("p"));
  card.dataset.worker = worker.id;
  return card;
}

function cardOf(id) {
  return [...document.querySelectorAll("#map .worker")].find((c) => c.dataset.worker === id);
}

function showWorkers() {
  for (const role of ["prefill", "decode"]) {
    const pool = byId(role);
    const workers = cluster.workers.filter((w) => w.role === role);
    const ids = new Set(workers.map((w) => w.id));
    for (const card of [...pool.children]) {
      if (!ids.has(card.dataset.worker)) card.remove();
    }
    for (const worker of workers) {
      let card = cardOf(worker.id);
      if (!card) pool.append(card = newWorkerCard(worker));
      fillWorker(card, worker);
    }
    if (!workers.length) {
      pool.append(Object.assign(make("p", "worker", "no worker"), { id: "" }));
    }
  }
  drawLinks();
}

// ---- Links and hand-offs.

// The ends of a link, in pixels of the map.
function endsOf(from, to) {
  const map = byId("map").getBoundingClientRect();
  const a = cardOf(from)?.getBoundingClientRect(), b = cardOf(to)?.getBoundingClientRect();
  if (!a || !b || !map.width) return null;
  return { x1: a.right - map.left, y1: a.top + a.height / 2 - map.top,
           x2: b.left - map.left, y2: b.top + b.height / 2 - map.top };
}

function drawLinks() {
  const svg = byId("links");
  const wanted = new Map();
  for (const worker of cluster.workers) {
    for (const link of worker.links) wanted.set(`${worker.id}>${link.to}`, [worker.id, link]);
  }
  for (const line of svg.querySelectorAll("line")) {
    if (!wanted.has(line.dataset.link)) line.remove();
  }
  for (const [name, [from, link]] of wanted) {
    const ends = endsOf(from, link.to);
    let line = [...svg.querySelectorAll("line")].find((l) => l.dataset.link === name);
    if (!ends) { line?.remove(); continue; }
    if (!line) {
      line = shape("line");
      line.dataset.link = name;
      svg.prepend(line);
    }
    for (const [key, value] of Object.entries(ends)) line.setAttribute(key, value);
    line.classList.toggle("down", !link.up);
  }
}

// KV crosses: a dot goes over the link, with its bytes and milliseconds.
function showCrossing(event) {
  const ends = endsOf(event.from, event.to);
  if (!ends) return;
  const svg = byId("links"), name = `${event.from}>${event.to}`;
  const line = [...svg.querySelectorAll("line")].find((l) => l.dataset.link === name);
  line?.classList.add("used");
  const label = shape("text");
  label.textContent = `${bytesText(event.bytes)} ${msText(event.ms)}`;
  label.setAttribute("x", (ends.x1 + ends.x2) / 2);
  const row = svg.querySelectorAll("text").length % 3;
  label.setAttribute("y", (ends.y1 + ends.y2) / 2 - 8 - 12 * row);
  svg.append(label);
  if (!reducedMotion.matches) {
    const dot = shape("circle");
    svg.append(dot);
    const at = (x, y) => `translate(${x}px, ${y}px)`;
    dot.animate([{ transform: at(ends.x1, ends.y1) }, { transform: at(ends.x2, ends.y2) }],
                { duration: Math.min(1500, Math.max(500, event.ms)), easing: "ease-in-out" })
        .finished.then(() => dot.remove(), () => dot.remove());
  }
  setTimeout(() => {
    label.remove();
    if (![...svg.querySelectorAll("text")].length) line?.classList.remove("used");
  }, 2200);
}

function pushRow(list, row, limit) {
  list.prepend(row);
  while (list.children.length > limit) list.lastChild.remove();
}

function onHandoff(event, isPast) {
  const cells = [event.from, event.to, event.transport, bytesText(event.bytes), msText(event.ms)];
  pushRow(byId("handoffs"), make("tr", "", "", ...cells.map((c) => make("td", "", c))), MAX_ROWS);
  if (!isPast) showCrossing(event);
}

// ---- Answers, notices, rates.

function onAnswer(event) {
  const own = Object.values(store.current.nodes)
      .find((n) => n.answer && n.answer.split(/[-_]/).at(-1).startsWith(event.id));
  const where = event.path === "disagg" ? `${event.prefill_worker} to ${event.decode_worker}`
      : event.path === "local" ? event.decode_worker : "no worker";
  const parts = [own ? "yours" : event.id, where, `${event.output_tokens} tokens`];
  if (event.itl_ms !== null) parts.push(`ITL ${msText(event.itl_ms)}`);
  if (event.cached_tokens) parts.push(`${event.cached_tokens} of ${event.prompt_tokens} cached`);
  const isBad = event.status !== 200 && event.status !== 499;
  if (event.status === 499) parts.push("stopped by its client");
  else if (isBad) parts.push(`status ${event.status}`);
  const resumes = Object.keys(event.resumes);
  if (resumes.length) parts.push(`placed again: ${resumes.join(", ")}`);
  pushRow(byId("answers"), make("li", isBad ? "bad-text" : "", parts.join(", "),
                                stageBar(event.stages_ms)), MAX_ROWS);
  if (event.status !== 200 || !event.path) return;
  cluster.answers += 1;
  cluster.prompt += event.prompt_tokens;
  cluster.cached += event.cached_tokens;
  const share = cluster.prompt ? 100 * cluster.cached / cluster.prompt : 0;
  byId("prefix-bar").style.width = `${share}%`;
  byId("prefix-text").textContent = `${cluster.cached} of ${cluster.prompt} prompt tokens ` +
      `(${share.toFixed(0)} %) of ${cluster.answers} answers`;
}

function onNotice(event) {
  const [words, kind] = NOTICES[event.kind] ?? [event.kind, ""];
  const parts = [new Date(event.time_ms).toLocaleTimeString()];
  if (event.id) parts.push(`request ${event.id}`);
  if (event.worker) parts.push(event.id ? `on ${event.worker}` : event.worker);
  if (event.to) parts.push(`to ${event.to}`);
  parts.push(words);
  const text = parts.join(" ") + (event.why ? `: ${event.why}` : "");
  pushRow(byId("notices"), make("li", kind ? `${kind}-text` : "", text), MAX_NOTICES);
}

function showRates(event) {
  cluster.itl.push(event.itl_ms);
  if (cluster.itl.length > MAX_POINTS) cluster.itl.shift();
  const known = cluster.itl.filter((v) => v !== null);
  const top = Math.max(...known, 1);
  const points = cluster.itl.map((v, i) => v === null ? null
      : `${(240 * i / (MAX_POINTS - 1)).toFixed(1)},${(46 - 44 * v / top).toFixed(1)}`);
  byId("itl").querySelector("polyline").setAttribute("points", points.filter(Boolean).join(" "));
  const text = event.itl_ms === null
      ? known.length ? `No stream runs; at most ${msText(top)} before.` : "No stream runs."
      : `${msText(event.itl_ms)} now, at most ${msText(top)}`;
  if (byId("itl-text").textContent !== text) byId("itl-text").textContent = text;
  byId("itl").setAttribute("aria-label", `Time between tokens: ${text}`);
  const gaps = event.requests.map((r) => r.longest_gap_ms);
  byId("rates").textContent = `${event.num_live} request${event.num_live === 1 ? "" : "s"}` +
      (event.num_unplaced ? ` (${event.num_unplaced} wait)` : "") +
      `, ${event.tokens_per_s.toFixed(0)} tokens/s` +
      (gaps.length ? `, longest gap ${msText(Math.max(...gaps))}` : "");
}

function onCluster(event) {
  cluster.workers = event.workers;
  showWorkers();
  showRates(event);
  if (event.models !== cluster.models) {
    cluster.models = event.models;
    listModels();
  }
  setStatus(event.ready ? "ready" : "no worker is ready", event.ready ? "good" : "bad");
  clusterNote(event.workers.length ? "" :
      "No worker has joined this router. Requests are answered 503 until one does.");
}

function onEvent(event) {
  if (event.version !== 1) {
    return clusterNote(`The events have version ${event.version}; this page reads version 1.`);
  }
  switch (event.type) {
    case "hello":
      if (cluster.incarnation && cluster.incarnation !== event.incarnation) {
        onNotice({ kind: "router was started again", time_ms: event.time_ms });
      }
      if (cluster.incarnation !== event.incarnation) {
        Object.assign(cluster, { itl: [], prompt: 0, cached: 0, answers: 0, models: undefined });
      }
      // The last events come again: those that are there already are left out.
      cluster.past_ms = cluster.incarnation === event.incarnation ? cluster.last_ms ?? 0 : 0;
      cluster.incarnation = event.incarnation;
      cluster.begin_ms = event.time_ms;
      return;
    case "cluster": return onCluster(event);
    case "handoff": case "answer": case "notice": break;
    case "end": return setStatus("the router leaves", "warn");
    default: return;  // of a later release
  }
  const isPast = event.time_ms < cluster.begin_ms;
  if (isPast && event.time_ms <= (cluster.past_ms ?? 0)) return;
  cluster.last_ms = Math.max(cluster.last_ms ?? 0, event.time_ms);
  if (event.type === "handoff") onHandoff(event, isPast);
  else if (event.type === "answer") onAnswer(event);
  else onNotice(event);
}

// ---- The connection: one at a time, again after it ends, none while nobody sees the page.

let watching = null;

async function watchOnce() {
  watching = new AbortController();
  let heard = performance.now(), hasEvent = false;
  const watchdog = setInterval(() => {
    const silent = performance.now() - heard;
    if (!hasEvent && silent > 5000) {
      clusterNote("The stream is open and no event has come: a proxy on the way may hold it back " +
                  "(nginx: proxy_buffering off).");
    }
    if (hasEvent && silent > QUIET_MS) watching?.abort();
  }, 1000);
  try {
    const response = await request("/v1/cluster/events", { signal: watching.signal });
    if (response.status === 404) {
      setStatus("no events here", "warn");
      clusterNote("This server has no /v1/cluster/events. The chat works without.");
      return false;
    }
    if (!response.ok) throw await errorOf(response);
    heard = performance.now();
    await readEvents(response, (data) => { hasEvent = true; onEvent(JSON.parse(data)); },
                     () => { heard = performance.now(); });
  } catch (error) {
    if (error.name !== "AbortError") clusterNote(failureText(error));
  } finally {
    clearInterval(watchdog);
    watching = null;
  }
  return hasEvent;
}

async function watchCluster() {
  let wait = 500;
  for (;;) {
    if (document.hidden) {
      await new Promise((r) => document.addEventListener("visibilitychange", r, { once: true }));
      continue;
    }
    const worked = await watchOnce();
    if (!document.hidden) setStatus("connecting again", "warn");
    wait = worked ? 500 : Math.min(8000, wait * 2);
    await new Promise((r) => setTimeout(r, wait * (0.75 + Math.random() / 2)));
  }
}

function buildLegends() {
  const entry = (className, text) => make("span", "", "", make("i", className), text);
  byId("legend").append("Blocks: ", ...BLOCK_GROUPS.map(([g, text]) => entry(`b-${g}`, text)));
  byId("stage-legend").append(...STAGES.map(([, text], i) => entry(`s${i}`, text)));
}


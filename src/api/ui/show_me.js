// ---- "Show me": a long prompt while a stream runs, split and unsplit.

const WORDS = ("river stone amber cloud engine paper garden signal copper winter lantern orchard " +
    "harbor velvet meadow cipher thunder basket mirror canyon").split(" ");
const WARM_TOKENS = 24, COOL_TOKENS = 12, MAX_STREAM = 1500;

// Words that no cache has seen: the first ones are new each time.
function longPrompt(count) {
  const words = [`${newId()} ${newId()}`];
  for (let i = 0; i < count; ++i) words.push(WORDS[Math.floor(Math.random() * WORDS.length)]);
  return `Repeat the last word. ${words.join(" ")}`;
}

function percentile(values, share) {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.ceil(share * sorted.length) - 1)] ?? 0;
}

function showBody(path, content, more) {
  const body = { messages: [{ role: "user", content }], path, temperature: 0, ...more };
  if (byId("model").value) body.model = byId("model").value;
  return { method: "POST", headers: { "Content-Type": "application/json" },
           body: JSON.stringify(body) };
}

function drawLane(lane, gaps, top) {
  const svg = byId(`lane-${lane}`);
  const width = 400 / Math.max(gaps.length, 40);
  svg.replaceChildren(...gaps.map((gap, i) => {
    const bar = shape("rect"), height = Math.max(1, 116 * Math.min(1, gap.ms / top));
    bar.setAttribute("x", i * width);
    bar.setAttribute("width", Math.max(width * 0.8, 0.5));
    bar.setAttribute("y", 120 - height);
    bar.setAttribute("height", height);
    if (gap.during) bar.setAttribute("class", "during");
    return bar;
  }));
}

// One measurement: {gaps, path, prompt_tokens, long_ms}; throws what the server says against it.
async function measureLane(path, words, signal, onGap) {
  const gaps = [];
  let timings = null, last = 0, left = COOL_TOKENS, isDone = false, long = null, failure = null;
  const stream = new AbortController();
  signal.addEventListener("abort", () => stream.abort());
  const sendLong = async () => {
    const begin = performance.now();
    const response = await request("/v1/chat/completions", {
      ...showBody(path, longPrompt(words), { max_tokens: 1 }), signal });
    if (!response.ok) throw await errorOf(response);
    const answer = await response.json();
    timings = answer.timings;
    return { ms: performance.now() - begin, tokens: answer.usage?.prompt_tokens ?? 0 };
  };
  let done = null;
  try {
    const response = await request("/v1/chat/completions", {
      ...showBody(path, "Tell a long story.",
                  { stream: true, max_tokens: MAX_STREAM, ignore_eos: true }),
      signal: stream.signal });
    if (!response.ok) throw await errorOf(response);
    if ((response.headers.get("X-Baton-Ignored-Fields") ?? "").includes("path")) {
      throw new Error("This server does not let a request choose its path (field path).");
    }
    await readEvents(response, (data) => {
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Error(chunk.error.message);
      if (chunk.choices?.[0]?.delta?.content === undefined || chunk.choices[0].delta.role) return;
      const now = performance.now();
      if (last) {
        gaps.push({ ms: now - last, during: Boolean(long) && !isDone });
        onGap(gaps);
      }
      last = now;
      if (!long && gaps.length >= WARM_TOKENS) {
        long = sendLong();
        done = long.then((result) => { isDone = true; return result; },
                         (error) => { isDone = true; failure = error; });
      }
      if (isDone && --left <= 0) stream.abort();
    });
  } catch (error) {
    if (error.name !== "AbortError" || signal.aborted) throw error;
  }
  if (!done) throw new Error("The stream ended before the long prompt could be sent.");
  const result = await done;
  if (failure) throw failure;
  return { gaps, path: timings?.path ?? "", prompt_tokens: result.tokens, long_ms: result.ms };
}

function laneText(result) {
  const during = result.gaps.filter((g) => g.during).map((g) => g.ms);
  const calm = result.gaps.filter((g) => !g.during).map((g) => g.ms);
  const list = during.length ? during : calm;
  const p99 = percentile(list, 0.99);
  const text = `p99 ${msText(p99)}, longest ${msText(Math.max(...list))}, ` +
      `median ${msText(percentile(list, 0.5))} over ${list.length} tokens while a prompt of ` +
      `${result.prompt_tokens} tokens was computed in ${msText(result.long_ms)} ` +
      `(path ${result.path}); otherwise median ${msText(percentile(calm, 0.5))}.`;
  return { p99, path: result.path, text };
}

let showing = null;

async function runShow() {
  if (showing) return showing.abort();
  showing = new AbortController();
  byId("show-run").textContent = "Stop";
  byId("show-result").textContent = "Measuring the split path, then the unsplit one.";
  const words = Number(byId("show-size").value), found = {}, gapsOf = {};
  for (const lane of ["disagg", "local"]) byId(`lane-${lane}`).replaceChildren();
  const draw = () => {
    const all = Object.values(gapsOf).flat().map((g) => g.ms);
    const top = Math.max(...all, 1);
    for (const [lane, gaps] of Object.entries(gapsOf)) drawLane(lane, gaps, top);
  };
  for (const lane of ["disagg", "local"]) {
    const text = byId(`text-${lane}`);
    text.textContent = "Measuring.";
    try {
      const result = await measureLane(lane, words, showing.signal, (gaps) => {
        gapsOf[lane] = gaps;
        draw();
      });
      found[lane] = laneText(result);
      text.textContent = found[lane].text;
      if (result.path && result.path !== lane) text.textContent += " It ran on the other path.";
      byId(`lane-${lane}`).setAttribute("aria-label", found[lane].text);
    } catch (error) {
      text.textContent = error.name === "AbortError" ? "Stopped." : failureText(error);
      if (showing.signal.aborted) break;
    }
  }
  const { disagg, local } = found;
  byId("show-result").textContent = disagg?.path === "disagg" && local?.path === "local"
      ? `While the long prompt was computed, the p99 of the time between tokens was ` +
        `${msText(disagg.p99)} split and ${msText(local.p99)} unsplit.`
      : "There is no comparison: the two did not run one split and one unsplit.";
  byId("show-run").textContent = "Run";
  showing = null;
}


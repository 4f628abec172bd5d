// ---- The page.

async function listModels() {
  try {
    const response = await request("/v1/models");
    if (!response.ok) return;
    const select = byId("model"), before = select.value || settings.all.model;
    const ids = (await response.json()).data.map((m) => m.id);
    select.replaceChildren(...ids.map((id) => new Option(id, id)));
    if (ids.includes(before)) select.value = before;
  } catch { /* the first question says what is wrong */ }
}

const THEMES = ["system", "light", "dark"];

function showTheme() {
  const theme = THEMES.includes(settings.all.theme) ? settings.all.theme : "system";
  document.documentElement.dataset.theme = theme;
  byId("theme").textContent = `Theme: ${theme}`;
}

function showView(view) {
  document.body.dataset.view = view;
  for (const name of ["chat", "cluster"]) {
    byId(`view-${name}`).setAttribute("aria-pressed", String(name === view));
  }
  drawLinks();
}

function onKey(event) {
  const isTyping = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName);
  if (document.querySelector("dialog[open]")) return;
  if (event.key === "Escape" && running) running.abort();
  else if (event.key === "/" && !isTyping) byId("input").focus();
  else if (event.altKey && event.code === "KeyN") byId("new").click();
  else if (event.altKey && event.code === "KeyR") again();
  else if (event.altKey && event.code === "KeyC") {
    showView(document.body.dataset.view === "chat" ? "cluster" : "chat");
  } else return;
  event.preventDefault();
}

function connectChat() {
  byId("form").addEventListener("submit", (event) => { event.preventDefault(); send(); });
  byId("input").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    if (!running) send();
  });
  byId("attach").addEventListener("change", (event) => {
    attach([...event.target.files]);
    event.target.value = "";
  });
  byId("system").addEventListener("change", (event) => {
    store.current.system = event.target.value;
    store.touch();
    store.save();
  });
  byId("conversations").addEventListener("change", (event) => {
    running?.abort();
    store.current = store.conversations.find((c) => c.id === event.target.value);
    keep();
  });
  byId("new").addEventListener("click", () => {
    running?.abort();
    if (store.path().length) store.add();
    keep();
    byId("input").focus();
  });
  byId("rename").addEventListener("click", async () => {
    const title = await askForText("Rename the conversation", "Name", store.current.title);
    if (title === null) return;
    store.current.title = title.replace(/\s+/g, " ").trim().slice(0, 80);
    store.touch();
    keep();
  });
  byId("delete").addEventListener("click", () => {
    running?.abort();
    store.remove(store.current);
    keep();
  });
}

function connectBar() {
  byId("theme").addEventListener("click", () => {
    const at = THEMES.indexOf(settings.all.theme ?? "system");
    settings.set("theme", THEMES[(at + 1) % THEMES.length]);
    showTheme();
  });
  byId("model").addEventListener("change", (e) => settings.set("model", e.target.value));
  byId("key-button").addEventListener("click", () => askForKey("").then((given) => {
    if (given) watching?.abort();
  }));
  byId("help-button").addEventListener("click", () => byId("help-dialog").showModal());
  byId("show-me").addEventListener("click", () => byId("show-dialog").showModal());
  byId("show-run").addEventListener("click", runShow);
  byId("show-dialog").addEventListener("close", () => showing?.abort());
  for (const button of document.querySelectorAll("[data-close]")) {
    button.addEventListener("click", () => button.closest("dialog").close());
  }
  for (const view of ["chat", "cluster"]) {
    byId(`view-${view}`).addEventListener("click", () => showView(view));
  }
  document.addEventListener("keydown", onKey);
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) watching?.abort();
  });
  addEventListener("resize", drawLinks);
}

settings.load();
store.load();
buildSettings();
buildLegends();
showTheme();
showConversation();
connectChat();
connectBar();
listModels();
watchCluster();

// ---- Conversations, kept in this browser. A conversation is a tree of messages: an edited message
// and a regenerated answer are brothers of the one before, and `chosen` says which one is shown.

const STORE = "baton.conversations.1";
const newId = () => Math.random().toString(36).slice(2, 12);

const store = {
  conversations: [],
  current: null,
  removed: new Set(),  // ids, of this tab

  // What the browser has: {list, current}.
  read() {
    try {
      const kept = JSON.parse(localStorage.getItem(STORE) ?? "{}");
      const list = (kept.list ?? []).filter((c) => c && c.id && c.nodes && c.chosen);
      return { list: list.filter((c) => !this.removed.has(c.id)), current: kept.current };
    } catch { return { list: [] }; }
  },

  load() {
    const kept = this.read();
    this.conversations = kept.list;
    this.current = kept.list.find((c) => c.id === kept.current) ?? kept.list[0] ?? this.add();
    for (const node of this.conversations.flatMap((c) => Object.values(c.nodes))) {
      if (!node.writing) continue;  // its tab was closed
      delete node.writing;
      delete node.thinking;
    }
  },

  // False: the browser keeps nothing more. What another tab has written since stays.
  save() {
    for (const kept of this.read().list) {
      const at = this.conversations.findIndex((c) => c.id === kept.id);
      if (at < 0) this.conversations.push(kept);
      else if ((kept.changed ?? 0) > (this.conversations[at].changed ?? 0)) {
        if (this.current === this.conversations[at]) this.current = kept;
        this.conversations[at] = kept;
      }
    }
    const list = this.conversations.filter((c) => Object.keys(c.nodes).length || c.system);
    try {
      localStorage.setItem(STORE, JSON.stringify({ list, current: this.current.id }));
      return true;
    } catch { return false; }
  },

  add() {
    const conversation = { id: newId(), title: "", system: this.current?.system ?? "",
                           nodes: {}, chosen: {} };
    this.conversations.unshift(conversation);
    this.current = conversation;
    return conversation;
  },

  // Every change of a conversation is marked: the latest of two tabs wins.
  touch(conversation = this.current) { conversation.changed = Date.now(); },

  remove(conversation) {
    this.removed.add(conversation.id);
    this.conversations = this.conversations.filter((c) => c !== conversation);
    this.current = this.conversations[0] ?? this.add();
  },

  childrenOf(parent, conversation = this.current) {
    return Object.values(conversation.nodes).filter((n) => n.parent === parent);
  },

  // The messages shown, from the first to the last.
  path(conversation = this.current) {
    const path = [];
    for (let at = conversation.chosen.root; at && conversation.nodes[at];
         at = conversation.chosen[at]) {
      path.push(conversation.nodes[at]);
    }
    return path;
  },

  // Puts a message below `parent` ("root" or an id) and shows it.
  append(parent, fields, conversation = this.current) {
    const node = { id: newId(), parent, ...fields };
    conversation.nodes[node.id] = node;
    this.touch(conversation);
    conversation.chosen[parent] = node.id;
    if (!conversation.title && node.role === "user") {
      conversation.title = (node.content || node.files?.[0]?.name || "").slice(0, 48);
    }
    return node;
  },

  choose(node) {
    this.current.chosen[node.parent] = node.id;
    this.touch();
  },
};

// Settings that are no part of a conversation.
const settings = {
  all: {},
  load() {
    try { this.all = JSON.parse(localStorage.getItem("baton.settings.1") ?? "{}"); } catch { }
  },
  set(name, value) {
    this.all[name] = value;
    try { localStorage.setItem("baton.settings.1", JSON.stringify(this.all)); } catch { }
  },
};

// ---- Requests. The key is asked for when the server wants one, and kept by this tab.

let keyQuestion = null;

function askForKey(why) {
  if (keyQuestion) return keyQuestion;
  keyQuestion = new Promise((resolve) => {
    const dialog = byId("key-dialog"), input = byId("key-input");
    if (why) byId("key-why").textContent = why;
    input.value = sessionStorage.getItem("baton.key") ?? "";
    const onSubmit = (event) => {
      event.preventDefault();
      const key = input.value.trim();
      if (key) sessionStorage.setItem("baton.key", key);
      else sessionStorage.removeItem("baton.key");
      dialog.returnValue = "given";
      dialog.close("given");
    };
    const form = dialog.querySelector("form");
    form.addEventListener("submit", onSubmit);
    dialog.addEventListener("close", () => {
      form.removeEventListener("submit", onSubmit);
      keyQuestion = null;
      resolve(dialog.returnValue === "given");
    }, { once: true });
    dialog.returnValue = "";
    dialog.showModal();
    input.focus();
  });
  return keyQuestion;
}

// fetch with the tab's key. On 401 the person is asked once; others who wait use the answer.
async function request(path, options = {}) {
  for (let tries = 0;; ++tries) {
    const key = sessionStorage.getItem("baton.key");
    const headers = { ...options.headers };
    if (key) headers.Authorization = `Bearer ${key}`;
    const response = await fetch(path, { ...options, headers, credentials: "same-origin" });
    if (response.status !== 401) return response;
    const changed = key !== sessionStorage.getItem("baton.key");
    if (changed && tries < 3) continue;
    const why = key ? "The server refuses this key. Another one?"
                    : "This server wants an API key. This tab keeps it until it is closed.";
    if (tries >= 3 || !await askForKey(why)) return response;
  }
}

// The sentence of an answer that is no success.
async function errorOf(response) {
  const text = await response.text().catch(() => "");
  try {
    const error = JSON.parse(text).error;
    return Object.assign(new Error(error.message), { code: error.code, param: error.param });
  } catch {
    return new Error(`The server answered ${response.status} ${response.statusText}.`);
  }
}

// What a person is told of a request that failed.
function failureText(error) {
  return error instanceof TypeError ? "The connection to the server failed." : error.message;
}

// Calls onEvent with the data of each event; onBytes with every piece, comments too.
async function readEvents(response, onEvent, onBytes = () => {}) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    onBytes();
    const events = (rest + value.replaceAll("\r", "")).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      const data = event.split("\n").filter((l) => l.startsWith("data:"))
          .map((l) => l.slice(5).replace(/^ /, "")).join("\n");
      if (data) onEvent(data);
    }
  }
}


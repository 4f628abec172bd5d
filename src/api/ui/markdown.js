"use strict";

const byId = (id) => document.getElementById(id);

// An element with a class, a text and children; a text is never read as HTML.
function make(tag, className = "", text = "", ...children) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text) element.textContent = text;
  element.append(...children);
  return element;
}

function actButton(text, label, onClick) {
  const button = make("button", "small", text);
  button.type = "button";
  if (label) button.setAttribute("aria-label", label);
  button.addEventListener("click", onClick);
  return button;
}

async function copyText(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {  // without HTTPS a browser has no clipboard for pages
    const area = make("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  const before = button.textContent;
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = before; }, 1200);
}

// ---- Markdown. Every text becomes a text node; links open elsewhere and nothing is loaded.

const INLINE = new RegExp([
  "(`+)([^`]|[^`][\\s\\S]*?[^`])\\1(?!`)",           // 1, 2: code
  "\\*\\*(?=\\S)([^\\n]*?\\S)\\*\\*",                // 3: strong
  "\\*(?=\\S)([^*\\n]*?\\S)\\*",                     // 4: emphasis
  "(?<![\\w])_(?=\\S)([^_\\n]*?\\S)_(?!\\w)",        // 5: emphasis
  "~~(?=\\S)([^\\n]*?\\S)~~",                        // 6: deleted
  "!?\\[([^\\]\\n]*)\\]\\(([^)\\s]+)\\)",            // 7, 8: link, and an image as one
  "(https?:\\/\\/[^\\s<>\"')\\]]+)",                 // 9: a bare address
  "\\\\([\\\\`*_{}\\[\\]()#+\\-.!|~>])",             // 10: an escaped mark
].join("|"), "g");
const MAX_INLINE = 20000;  // longer paragraphs stay plain: the search is quadratic at worst

function isSafeAddress(address) { return /^(?:https?:\/\/|mailto:)/i.test(address); }

function link(text, address) {
  if (!isSafeAddress(address)) return document.createTextNode(text);
  const anchor = make("a", "", text);
  anchor.href = address;
  anchor.target = "_blank";
  anchor.rel = "noopener noreferrer nofollow";
  return anchor;
}

function inline(parent, text) {
  if (text.length > MAX_INLINE) return parent.append(text);
  let at = 0;
  for (const found of text.matchAll(INLINE)) {
    if (found.index < at) continue;
    parent.append(text.slice(at, found.index));
    at = found.index + found[0].length;
    const [, , code, strong, emphasis, other, gone, label, address, bare, mark] = found;
    if (code !== undefined) parent.append(make("code", "", code.replace(/^ (.*) $/s, "$1")));
    else if (label !== undefined) parent.append(link(label || address, address));
    else if (bare !== undefined) parent.append(link(bare, bare));
    else if (mark !== undefined) parent.append(mark);
    else {
      const element = make(strong !== undefined ? "strong" : gone !== undefined ? "del" : "em");
      inline(element, strong ?? emphasis ?? other ?? gone);
      parent.append(element);
    }
  }
  parent.append(text.slice(at));
}

function codeBlock(language, text) {
  const copy = actButton("Copy", "Copy the code", () => copyText(text, copy));
  const pre = make("pre", "", "", make("code", "", text));
  pre.tabIndex = 0;  // a wide one is scrolled by keys
  return make("div", "code", "", make("div", "", "", make("span", "", language || "code"), copy),
              pre);
}

const cellsOf = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((c) => c.trim());

function tableBlock(lines) {
  const table = make("table");
  lines.forEach((line, number) => {
    if (number === 1) return;  // the rule below the head
    const row = make("tr");
    for (const cell of cellsOf(line)) {
      const element = make(number === 0 ? "th" : "td");
      inline(element, cell);
      row.append(element);
    }
    table.append(row);
  });
  return table;
}

const ITEM = /^(\s*)(?:[-*+]|(\d{1,9})[.)])\s+(.*)$/;

// A list whose items may hold deeper lists.
function listBlock(lines) {
  const first = lines[0].match(ITEM);
  const list = make(first[2] ? "ol" : "ul");
  if (first[2]) list.start = Number(first[2]);
  const indent = first[1].length;
  let item = null, rest = [];
  const close = () => {
    if (item && rest.length) item.append(blocks(rest));
    rest = [];
  };
  for (const line of lines) {
    const found = line.match(ITEM);
    if (found && found[1].length <= indent + 1) {
      close();
      item = make("li");
      inline(item, found[3]);
      list.append(item);
    } else {
      rest.push(line.replace(/^(?: {2,4}|\t)/, ""));
    }
  }
  close();
  return list;
}

// The block elements of some lines.
function blocks(lines, depth = 0) {
  const out = document.createDocumentFragment();
  let at = 0;
  // Takes lines while they fit.
  const take = (fits) => {
    const from = at;
    while (at < lines.length && fits(lines[at])) ++at;
    return lines.slice(from, at);
  };
  while (at < lines.length) {
    const line = lines[at];
    const fence = line.match(/^ {0,3}(`{3,}|~{3,})\s*([^`\s]*)/);
    const heading = line.match(/^(#{1,6})\s+(.*?)#*\s*$/);
    if (!line.trim()) {
      ++at;
    } else if (fence) {
      ++at;
      const body = take((l) => !(l.trim().startsWith(fence[1]) && !l.trim().slice(fence[1].length)
          .replaceAll(fence[1][0], "")));
      ++at;
      out.append(codeBlock(fence[2], body.join("\n")));
    } else if (heading) {
      const element = make(heading[1].length < 3 ? "h3" : "h4");
      inline(element, heading[2]);
      out.append(element);
      ++at;
    } else if (/^ {0,3}([-*_])(\s*\1){2,}\s*$/.test(line)) {
      out.append(make("hr"));
      ++at;
    } else if (/^\s*>/.test(line) && depth < 8) {
      const body = take((l) => /^\s*>/.test(l)).map((l) => l.replace(/^\s*> ?/, ""));
      out.append(make("blockquote", "", "", blocks(body, depth + 1)));
    } else if (ITEM.test(line) && depth < 8) {
      out.append(listBlock(take((l) => ITEM.test(l) || /^\s{2,}\S/.test(l))));
    } else if (line.includes("|") && /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/
        .test(lines[at + 1] ?? "") && (lines[at + 1] ?? "").includes("-")) {
      out.append(tableBlock(take((l) => l.includes("|"))));
    } else {
      const paragraph = make("p");
      const from = at++;
      take((l) => l.trim() && !/^ {0,3}(```|~~~|#{1,6}\s|>)/.test(l) && !ITEM.test(l));
      lines.slice(from, at).forEach((l, i) => {
        if (i) paragraph.append(make("br"));
        inline(paragraph, l.trim());
      });
      out.append(paragraph);
    }
  }
  return out;
}

function renderMarkdown(text) { return blocks(text.replace(/\r\n?/g, "\n").split("\n")); }


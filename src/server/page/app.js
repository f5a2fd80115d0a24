/* The page of `deepinfer serve`: a chat and a live view of the engine.
 * What the model writes reaches the page as text only (textContent), never as markup. */
"use strict";

const $ = (id) => document.getElementById(id);

function make(tag, className, text) {
  const e = document.createElement(tag);
  if (className) e.className = className;
  if (text !== undefined) e.textContent = text;
  return e;
}

/* ---- chat ---- */

let model = "";
let messages = [];   // of the conversation, as the interface has them
let running = null;  // AbortController of the answer that is coming

function headers() {
  const h = { "content-type": "application/json" };
  if ($("p-key").value) h.authorization = "Bearer " + $("p-key").value;
  return h;
}

function follow() {
  const log = $("log");
  log.scrollTop = log.scrollHeight;
}

/* Keep at the end only for those who are there. */
function atEnd() {
  const log = $("log");
  return log.scrollHeight - log.scrollTop - log.clientHeight < 60;
}

const suggestions = ["Write a Python function that counts the words of a file.",
  "Why is the sky blue? Answer in two sentences.", "Tell me a short story about the sea."];

function showEmpty() {
  const box = make("div", "empty"), list = make("div", "suggestions");
  box.append(make("h2", "", "What would you like to know?"),
    make("p", "", "What you write goes to the model of this server and nowhere else."));
  for (const text of suggestions) {
    const b = make("button", "", text);
    b.type = "button";
    b.addEventListener("click", () => { $("input").value = text; send(); });
    list.append(b);
  }
  box.append(list);
  $("log").replaceChildren(box);
}

function addMessage(role, text) {
  const log = $("log"), box = make("article", "message " + role);
  if (log.querySelector(".empty")) log.replaceChildren();
  box.append(make("h3", role === "user" ? "hidden" : "", role === "user" ? "You" : model || "Model"));
  const body = make("div", "text", text);
  box.append(body);
  log.append(box);
  follow();
  return { box, body };
}

/* An answer while it comes. */
class Answer {
  constructor() {
    const { box, body } = addMessage("assistant", "");
    this.box = box;
    this.body = body;
    this.content = "";
    this.reasoning = "";
    this.calls = [];
    this.usage = null;
    this.finish = null;
    this.start = performance.now();
    this.first = 0;
  }

  think(text) {
    if (!this.thinking) {
      const fold = make("details", "thinking busy");
      this.fold = fold;
      this.title = make("summary", "", "Thinking");
      fold.append(this.title);
      this.thinking = make("div", "text");
      fold.append(this.thinking);
      this.box.insertBefore(fold, this.body);
    }
    this.reasoning += text;
    this.thinking.textContent = this.reasoning;
  }

  thought() {
    if (!this.thinking || !this.fold.classList.contains("busy")) return;
    this.fold.classList.remove("busy");
    const s = (performance.now() - this.first) / 1000;
    this.title.textContent = s < 0.1 ? "Thought" : "Thought for " + s.toFixed(1) + " s";
  }

  say(text) {
    this.thought();
    this.content += text;
    this.draw();
  }

  /* Once per picture of the screen, however many pieces came. */
  draw() {
    if (this.drawing) return;
    this.drawing = true;
    requestAnimationFrame(() => {
      const stay = atEnd();
      this.drawing = false;
      showText(this.body, this.content);
      if (stay) follow();
    });
  }

  call(part) {
    let c = this.calls[part.index];
    if (!c) {
      c = this.calls[part.index] = { id: part.id, name: "", args: "", box: make("div", "call") };
      c.title = make("strong");
      c.text = make("pre");
      c.box.append(c.title, c.text);
      this.box.append(c.box);
    }
    const f = part.function || {};
    c.name += f.name || "";
    c.args += f.arguments || "";
    c.title.textContent = "Calls " + c.name;
    c.text.textContent = c.args;
  }

  take(data) {
    const stay = atEnd(), choice = (data.choices || [])[0];
    if (data.error) throw new Error(data.error.message);
    if (data.usage) this.usage = data.usage;
    if (!choice) return;
    const d = choice.delta || {};
    if (!this.first && (d.content || d.reasoning_content || d.tool_calls)) this.first = performance.now();
    if (d.reasoning_content) this.think(d.reasoning_content);
    if (d.content) this.say(d.content);
    for (const part of d.tool_calls || []) this.call(part);
    if (choice.finish_reason) this.finish = choice.finish_reason;
    if (stay) follow();
  }

  message() {
    const m = { role: "assistant", content: this.content };
    if (this.reasoning) m.reasoning_content = this.reasoning;
    if (this.calls.length)
      m.tool_calls = this.calls.map((c) => ({ id: c.id, type: "function", function: { name: c.name, arguments: c.args } }));
    return m;
  }

  foot(note) {
    const parts = [];
    if (note) parts.push(note);
    if (this.usage) {
      const n = this.usage.completion_tokens, s = (performance.now() - this.first) / 1000;
      parts.push(n + " tokens");
      if (n > 1 && this.first) parts.push((n / s).toFixed(1) + " per second");
      const hit = (this.usage.prompt_tokens_details || {}).cached_tokens;
      if (hit) parts.push(hit + " of " + this.usage.prompt_tokens + " prompt tokens from the cache");
    }
    if (this.first) parts.push("first after " + ((this.first - this.start) / 1000).toFixed(2) + " s");
    if (this.finish === "length") parts.push("cut: longest answer reached");
    const foot = make("div", "foot");
    foot.append(make("span", "", parts.join(" · ")));
    if (this.content) foot.append(copyButton(() => this.content));
    this.box.append(foot);
    follow();
  }

  /* Boxes for the results of the calls. */
  askResults() {
    const areas = this.calls.map((c) => {
      const label = make("label", "", "Result of " + c.name), area = make("textarea");
      area.rows = 2;
      label.append(area);
      c.box.append(label);
      return area;
    });
    const send = make("button", "", this.calls.length > 1 ? "Send results" : "Send result");
    send.type = "button";
    send.addEventListener("click", () => {
      send.remove();
      this.calls.forEach((c, i) => {
        areas[i].disabled = true;
        messages.push({ role: "tool", tool_call_id: c.id, content: areas[i].value });
      });
      answer();
    });
    this.box.append(send);
    areas[0].focus();
    follow();
  }
}

function parameters() {
  const p = {};
  for (const name of ["temperature", "top_p", "max_tokens", "seed"])
    if ($("p-" + name).value !== "") p[name] = Number($("p-" + name).value);
  if ($("p-thinking").value) p.reasoning_effort = $("p-thinking").value;
  if ($("p-tools").value.trim()) p.tools = JSON.parse($("p-tools").value);
  return p;
}

/* The "data:" payloads of a stream, as they come. */
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines)
      if (line.startsWith("data: ")) yield line.slice(6);
  }
}

async function request(signal) {
  const system = $("p-system").value.trim();
  const all = system ? [{ role: "system", content: system }, ...messages] : messages;
  const response = await fetch("/v1/chat/completions", {
    method: "POST", headers: headers(), signal,
    body: JSON.stringify({ model, messages: all, stream: true,
      stream_options: { include_usage: true }, ...parameters() }),
  });
  if (!response.ok) {
    const text = await response.text();
    let message = response.status + " " + response.statusText;
    try { message = JSON.parse(text).error.message; } catch { /* not ours: keep the status */ }
    throw new Error(message);
  }
  return response;
}

function setRunning(on) {
  $("send").hidden = on;
  $("stop").hidden = !on;
  $("status").textContent = on ? "The model is answering" : "";
}

async function answer() {
  const a = new Answer();
  let note = "";
  running = new AbortController();
  setRunning(true);
  try {
    for await (const data of events(await request(running.signal))) {
      if (data === "[DONE]") break;
      a.take(JSON.parse(data));
    }
  } catch (e) {
    note = e.name === "AbortError" ? "stopped" : "";
    if (!note) a.box.append(make("p", "failed", e.message));
  }
  running = null;
  setRunning(false);
  a.thought();
  showText(a.body, a.content); /* also when no picture was drawn since: the page may be hidden */
  if (a.content || a.reasoning || a.calls.length) messages.push(a.message());
  if (a.finish === "tool_calls") a.askResults();
  else $("input").focus();
  if (a.content || a.reasoning || a.calls.length) a.foot(note);
}

/* As high as its text, for browsers that do not do it by themselves (field-sizing). */
function fit() {
  const box = $("input");
  box.style.height = "auto";
  box.style.height = Math.min(box.scrollHeight + 2, window.innerHeight * 0.4) + "px";
}

function send() {
  const text = $("input").value;
  if (running || !text.trim()) return;
  $("input").value = "";
  fit();
  messages.push({ role: "user", content: text });
  addMessage("user", text);
  answer();
}

function stop() {
  if (running) running.abort();
}

$("input").addEventListener("input", fit);
$("form").addEventListener("submit", (e) => { e.preventDefault(); send(); });
$("stop").addEventListener("click", stop);
$("input").addEventListener("keydown", (e) => {
  if (e.key === "Enter" && !e.shiftKey && !e.isComposing) { e.preventDefault(); send(); }
});
document.addEventListener("keydown", (e) => { if (e.key === "Escape") stop(); });
$("new").addEventListener("click", () => {
  stop();
  messages = [];
  showEmpty();
  $("input").focus();
});
$("show-engine").addEventListener("click", () => {
  const on = document.body.classList.toggle("engine");
  $("show-engine").setAttribute("aria-expanded", String(on));
  $("show-engine").textContent = on ? "Chat" : "Engine";
});

/* ---- engine ---- */

const KEEP = 60;  // samples of a trend
const views = [
  { name: "Running", value: (m) => m.deepinfer_requests_running, text: (v) => v, trend: true },
  { name: "Waiting", value: (m) => m.deepinfer_requests_waiting, text: (v) => v, trend: true },
  { name: "Tokens per second", value: (m, d, s) => d("deepinfer_generation_tokens_total") / s,
    text: (v) => v.toFixed(v < 100 ? 1 : 0), trend: true },
  { name: "Prompt tokens per second", value: (m, d, s) => d("deepinfer_prompt_tokens_total") / s,
    text: (v) => v.toFixed(0), trend: true },
  { name: "Drafts accepted", value: (m, d) => share(d("deepinfer_draft_accepted_total"), d("deepinfer_draft_verified_total")),
    text: percent, trend: true, max: 1 },
  { name: "KV blocks in use", value: (m) => m.deepinfer_kv_usage_ratio, text: percent, trend: true, max: 1 },
  { name: "Prompt from the cache", value: (m) => share(m.deepinfer_cached_tokens_total, m.deepinfer_prompt_tokens_total),
    text: percent },
  { name: "Idle between steps", value: (m, d) => share(d("deepinfer_idle_seconds_total"),
    d("deepinfer_idle_seconds_total") + d("deepinfer_busy_seconds_total")), text: percent },
  { name: "Connections", value: (m) => m.deepinfer_http_connections, text: (v) => v },
];

function share(a, b) { return b > 0 ? a / b : NaN; }
function percent(v) { return Number.isNaN(v) ? "–" : (100 * v).toFixed(0) + " %"; }

function svg(tag, attributes) {
  const e = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [k, v] of Object.entries(attributes)) e.setAttribute(k, v);
  return e;
}

for (const v of views) {
  const row = make("div");
  v.out = make("dd", "", "–");
  row.append(make("dt", "", v.name), v.out);
  if (v.trend) {
    const box = svg("svg", { class: "trend", viewBox: "0 0 59 30", preserveAspectRatio: "none", "aria-hidden": "true" });
    v.area = svg("path", { class: "area" });
    v.line = svg("path", {});
    v.history = new Array(KEEP).fill(0);
    box.append(v.area, v.line);
    row.append(box);
  }
  $("numbers").append(row);
}

function draw(v, value) {
  v.history.push(Number.isNaN(value) ? 0 : value);
  v.history.shift();
  const top = v.max || Math.max(1, ...v.history);
  const line = v.history.map((y, i) => (i ? "L" : "M") + i + " " + (29 - 28 * y / top).toFixed(1)).join("");
  v.line.setAttribute("d", line);
  v.area.setAttribute("d", line + "L59 30L0 30Z");
}

function parseMetrics(text) {
  const m = {};
  for (const line of text.split("\n")) {
    const cut = line.lastIndexOf(" ");
    if (cut > 0 && line[0] !== "#") m[line.slice(0, cut)] = Number(line.slice(cut + 1));
  }
  return m;
}

let last = null, lastTime = 0;

async function refresh() {
  if (document.hidden) return;
  try {
    const now = performance.now();
    const m = parseMetrics(await (await fetch("/metrics")).text());
    const before = last || m, seconds = last ? (now - lastTime) / 1000 : 1;
    const delta = (name) => (m[name] || 0) - (before[name] || 0);
    for (const v of views) {
      const value = v.value(m, delta, seconds);
      v.out.textContent = v.text(value);
      if (v.trend) draw(v, value);
    }
    last = m;
    lastTime = now;
    $("engine-note").textContent = "the last minute";
    $("dot").className = m.deepinfer_requests_running > 0 ? "busy" : "idle";
  } catch {
    $("engine-note").textContent = "The server does not answer.";
    $("dot").className = "gone";
  }
}

async function findModel() {
  try {
    const response = await fetch("/v1/models", { headers: headers() });
    model = response.ok ? (await response.json()).data[0].id : "";
    $("model").textContent = model || "give your API key under Parameters";
  } catch {
    $("model").textContent = "the server does not answer";
  }
}

$("p-key").addEventListener("change", findModel);
showEmpty();
findModel();
refresh();
setInterval(refresh, 1000);

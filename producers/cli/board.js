// Draw the board anew each second.  No library and no script from elsewhere: the page works offline.
"use strict";

const KEPT = 15 * 60 * 1000;
const COLORS = 6;
const COLUMNS = [
  ["stage"], ["topic"], ["input", moment], ["batch", moment], ["watermark", moment],
  ["wall", wall], ["processing", wall], ["local", span], ["global", span],
  ["state"], ["verdict"], ["held by"], ["since", heldFor],
];
const NUMBERS = new Set(["wall", "processing", "local", "global", "since"]);
const TITLES = { wall: "wall lag", since: "for" };
const HINTS = {
  input: "watermark of the job's inputs",
  batch: "watermark that the operators of the job ran with in its last batch",
  wall: "clock minus watermark",
  processing: "age of the oldest unfinished work, in this stage and all stages before it",
  local: "watermark of the job's inputs minus its own",
  global: "watermark of the first topics of the chain minus its own",
  verdict: "follows from the last ten marks",
  "held by": "the source that the watermark waits for",
  since: "how long the watermark of the topic has not advanced",
};
const SECOND = 1000, MINUTE = 60 * SECOND, HOUR = 60 * MINUTE, DAY = 24 * HOUR;
const ROUND = [
  100, 200, 500, ...[1, 2, 5, 10, 15, 30].map((n) => n * SECOND), ...[1, 2, 5, 10, 15, 30].map((n) => n * MINUTE),
  ...[1, 2, 3, 6, 12].map((n) => n * HOUR), ...[1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000].map((n) => n * DAY),
];
const WORDS = { ok: "all is well", stuck: "stuck or failing", unknown: "unknown" };

const lines = new Map();
let run = null, last = 0;
let sorted = { by: null, down: false };
let chosen = null, clicked = false;
let view = null;
let changed = 0;  // when `view` last came with another time, by the clock of `performance`
let failure = null;

const byId = (id) => document.getElementById(id);

function element(name, text, kind) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (kind) made.className = kind;
  return made;
}

function drawn(name, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function span(milliseconds) {
  if (milliseconds === null) return "-";
  if (milliseconds < 0) return "-" + span(-milliseconds);
  if (milliseconds < 10000) return (milliseconds / 1000).toFixed(1) + " s";
  const seconds = Math.floor(milliseconds / 1000);
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return twoUnits(seconds, 60, "min", 1, "s");
  if (seconds < 86400) return twoUnits(seconds, 3600, "h", 60, "min");
  return twoUnits(seconds, 86400, "d", 3600, "h");
}

function wall(lag) {
  return lag !== null && lag < 0 ? span(-lag) + " ahead" : span(lag);
}

function heldFor(since, { exact }) {
  return since === null ? "-" : (exact ? "" : "over ") + span(Math.max(0, view.now - since));
}

function twoUnits(seconds, large, largeName, small, smallName) {
  const rest = Math.floor(seconds % large / small);
  return `${Math.floor(seconds / large)} ${largeName}` + (rest ? ` ${rest} ${smallName}` : "");
}

function moment(time) {
  if (time === null) return "-";
  const text = new Date(time).toISOString();
  const today = new Date(view.now).toISOString().slice(0, 10);
  return text.slice(0, 10) === today ? text.slice(11, 19) + "Z" : text.slice(0, 19).replace("T", " ") + "Z";
}

function kindOf(verdict) {
  if (verdict === null || verdict === undefined || verdict === "WARN") return "unknown";
  return verdict === "OK" ? "ok" : "stuck";
}

function troubleOf({ interval, answered }) {
  const age = performance.now() - changed;
  if (age > Math.max(10 * SECOND, 3 * interval)) return `not updated for ${span(age - age % (10 * SECOND))}`;
  return answered ? null : "Kafka does not answer";
}

function showHead() {
  const trouble = failure ?? (view && troubleOf(view));
  const text = trouble ? `${trouble}${view ? ": this is what was seen last" : ""}` : view ? WORDS[view.status] : "reading";
  byId("status").textContent = text;
  byId("status").className = trouble ? "stuck" : view?.status ?? "";
  byId("clock").textContent = view ? moment(view.now) : "";
  document.title = `Floodmark: ${text}`;
}

function showPath() {
  const path = view.paths[chosen];
  byId("chosen").textContent = chosen ?? "";
  byId("path").replaceChildren(...(path ? path.steps : []).map((step) => {
    const item = element("li", step.topic, step.unread ? "unknown" : step.source === null ? "" : kindOf(step.verdict));
    const others = step.others ? `; ${step.others}` : "";
    const held = step.source === null ? "nothing holds it" : `${step.source}, ${moment(step.watermark)}${others}`;
    item.append(element("small", step.unread ? `could not be read: ${step.unread}` : held));
    return item;
  }));
  byId("cause").textContent = path?.cause ?? "";
  byId("advice").textContent = path?.advice ?? "";
}

function choose(topic) {
  [chosen, clicked] = [topic, true];
  show();
}

function headOf([name]) {
  const head = element("th", undefined, NUMBERS.has(name) ? "number" : "");
  head.title = HINTS[name] ?? "";
  const button = element("button", TITLES[name] ?? name);
  button.addEventListener("click", () => {
    sorted = { by: name, down: sorted.by === name && !sorted.down };
    if (view) show();
  });
  head.append(button);
  return head;
}

function newRow() {
  const row = element("tr");
  row.tabIndex = 0;
  row.addEventListener("click", () => choose(row.dataset.topic));
  row.addEventListener("keydown", (event) => { if (event.key === "Enter") choose(row.dataset.topic); });
  for (const [name] of COLUMNS) row.insertCell().dataset.name = TITLES[name] ?? name;
  return row;
}

// The rows are places that stay, and their texts change: a row that is made anew loses the focus, and a click that has begun.
function showTable() {
  COLUMNS.forEach(([name], n) => {
    const order = sorted.by !== name ? "none" : sorted.down ? "descending" : "ascending";
    byId("heads").cells[n].setAttribute("aria-sort", order);
  });
  const topics = [...view.topics];
  if (sorted.by) topics.sort((a, b) => compare(a[sorted.by], b[sorted.by]) * (sorted.down ? -1 : 1));
  const body = byId("topics");
  while (body.rows.length > topics.length) body.deleteRow(-1);
  while (body.rows.length < topics.length) body.append(newRow());
  topics.forEach((topic, at) => {
    const row = body.rows[at];
    row.dataset.topic = topic.topic;
    row.setAttribute("aria-selected", String(topic.topic === chosen));
    COLUMNS.forEach(([name, shown], n) => {
      const value = topic[name];
      const text = name === "verdict" ? value ?? "?" : shown ? shown(value, topic) : value;
      const kind = name === "verdict" ? kindOf(value) : NUMBERS.has(name) ? "number" : name === "held by" ? "long" : "";
      row.cells[n].textContent = text;
      row.cells[n].className = kind;
    });
  });
}

function compare(a, b) {
  if (a === null || b === null) return (a === null) - (b === null);
  return a < b ? -1 : a > b ? 1 : 0;
}

function showSources() {
  const items = view.sources.map((source) => {
    const item = element("li", `${source.verdict ?? "?"} `, kindOf(source.verdict));
    item.append(element("span", `${source.place} (${source.state}): ${source.reason}`));
    return item;
  });
  if (view.more) items.push(element("li", `and ${view.more} more`));
  byId("sources").replaceChildren(...items);
  byId("notes").replaceChildren(...view.notes.map((note) => element("li", note)));
}

// The multiples of a round number of seconds, minutes, hours or days between two times, at most `most` of them.
function roundSteps(low, high, most) {
  const step = ROUND.find((size) => (high - low) / size <= most) ?? ROUND.at(-1);
  const steps = [];
  for (let at = Math.ceil(low / step) * step; at <= high; at += step) steps.push(at);
  return steps;
}

// A line for each topic, its name at its end; names that would meet are pushed apart, and so are equal lines.
function chart(svg, value, label, clock) {
  const width = svg.clientWidth, height = svg.clientHeight;
  const right = 112, top = 10, bottom = 22;
  const shown = view.topics.map(({ topic, state, watermark }, number) => {
    const points = (lines.get(topic) ?? []).filter(([at]) => at <= view.now);
    const holds = watermark !== null && !["idle", "ended"].includes(state);
    return [topic, holds && points.length ? [...points, [view.now, watermark]] : points, number % COLORS];
  });
  const all = shown.flatMap(([, points]) => points);
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.replaceChildren();
  if (!all.length) return;
  const first = all.reduce((least, [at]) => Math.min(least, at), view.now - MINUTE);
  const values = all.map(value);
  let low = values.reduce((a, b) => Math.min(a, b)), high = values.reduce((a, b) => Math.max(a, b));
  const room = Math.max(SECOND, (high - low) * 0.05);
  if (clock && view.now < high + 2 * (high - low)) high = Math.max(high, view.now);
  low = clock || low < 0 ? low - room : 0;
  high += room;
  const steps = roundSteps(low, high, 5);
  const left = Math.max(74, ...steps.map((of) => label(of).length * 7 + 12));
  const x = (at) => left + (at - first) / (view.now - first) * (width - left - right);
  const y = (of) => height - bottom - (of - low) / (high - low) * (height - top - bottom);
  for (const of of steps) {
    svg.append(drawn("line", { class: "grid", x1: left, x2: width - right, y1: y(of), y2: y(of) }));
    svg.append(drawn("text", { x: left - 6, y: y(of) + 4, "text-anchor": "end" }, label(of)));
  }
  for (const ago of roundSteps(0, view.now - first, width > 480 ? 5 : 2)) {
    const text = ago ? "-" + span(ago).replace(".0", "") : "now";
    svg.append(drawn("text", { x: x(view.now - ago), y: height - 6, "text-anchor": "middle" }, text));
  }
  const names = [];
  if (clock && view.now < high) {
    const from = Math.max(first, low), until = Math.min(view.now, high);
    svg.append(drawn("path", { class: "clock", d: `M${x(from)},${y(from)}L${x(until)},${y(until)}` }));
    names.push({ topic: "clock", at: y(until) });
  }
  shown.forEach(([topic, points, color], number) => {
    if (!points.length) return;
    const apart = shown.length > COLORS ? 0 : 2.5 * (number - (shown.length - 1) / 2);
    const place = (point) => `${x(point[0]).toFixed(1)},${(y(value(point)) + apart).toFixed(1)}`;
    const path = points.map((point, n) => `${n ? "L" : "M"}${place(point)}`);
    svg.append(drawn("path", { class: `s${color}`, d: path.join("") }));
    names.push({ topic, color, at: y(value(points.at(-1))) + apart });
  });
  names.sort((a, b) => a.at - b.at);
  names.forEach((name, n) => { if (n) name.at = Math.max(name.at, names[n - 1].at + 14); });
  const over = Math.max(0, (names.at(-1)?.at ?? 0) - (height - bottom));
  for (const { topic, color, at } of names) {
    const text = topic.length > 16 ? topic.slice(0, 15) + "\u2026" : topic;
    const kind = color === undefined ? "" : `s${color}`;  // the clock has no color
    svg.append(drawn("text", { class: kind, x: width - right + 6, y: at - over + 4 }, text));
  }
}

function show() {
  if (!clicked || !(chosen in view.paths)) {
    const stuck = view.topics.findLast(({ verdict }) => kindOf(verdict) === "stuck");
    chosen = (stuck ?? view.topics.at(-1))?.topic ?? null;
  }
  showHead();
  showPath();
  showTable();
  showSources();
  chart(byId("watermarks"), ([, watermark]) => watermark, (of) => moment(Math.round(of)), true);
  chart(byId("lags"), ([at, watermark]) => at - watermark, (of) => wall(Math.round(of)), false);
}

function keep(next) {
  if (next.run !== run) {
    run = next.run;
    lines.clear();
    if (last) {  // the command was started again: ask for all of its points
      last = 0;
      return;
    }
  }
  for (const [topic, points] of Object.entries(next.lines)) {
    // A writer's clock that is behind replaces the points of one that is ahead.
    const first = points[0]?.[0] ?? Infinity;
    const kept = [...(lines.get(topic) ?? []).filter(([at]) => at < first), ...points];
    lines.set(topic, kept.filter(([at]) => at >= next.now - KEPT));
  }
  last = next.last;
}

async function look() {
  try {
    const answer = await fetch(`board.json?after=${last}`, { signal: AbortSignal.timeout(30 * SECOND) });
    const next = await answer.json();
    failure = null;
    if (next.now !== undefined) {
      if (next.now !== view?.now) changed = performance.now();
      view = next;
      keep(next);
      show();
    }
  } catch (error) {
    failure = error.name === "TimeoutError" ? "the board does not answer" : "the board has ended";
  }
  showHead();
  setTimeout(look, 1000);
}

byId("heads").append(...COLUMNS.map(headOf));
addEventListener("resize", () => { if (view) show(); });
look();

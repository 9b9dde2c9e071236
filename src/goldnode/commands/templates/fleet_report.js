"use strict";
// The list of nodes, the page of one node, and the charts. Everything comes from the element `data`; nothing is fetched.
const data = JSON.parse(document.getElementById("data").textContent);
const by = (id) => document.getElementById(id);
const PAGE = 100;

// A row of `data.nodes` is [name, state, class, cohort, seconds, history]; state, class and cohort are indexes.
const text = (value) => (value === null ? "-" : value);
const time = (seconds) => (seconds === null ? "-" : new Date(seconds * 1000).toISOString().slice(0, 19) + "Z");
const element = (name, attributes = {}, ...children) => {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
};
const tag = (state) => element("span", { class: "tag " + (data.tags[state] || "unknown") }, data.words[state] || state);

// Node -> indexes of what names it. Nodes of a cause are ranges of indexes.
const each = (ranges, work) => { for (const [low, high] of ranges) for (let i = low; i <= high; i += 1) work(i); };
const named = (items) => {
  const found = data.nodes.map(() => []);
  items.forEach((item, place) => each(item.nodes, (i) => found[i].push(place)));
  return found;
};
const causesOf = named(data.causes);
const changesOf = named(data.changed);
const mixedOf = named(data.mixed);
const rows = data.nodes.map((node, index) => ({
  index,
  name: node[0],
  state: data.states[node[1]],
  class: data.classes[node[2]],
  cohort: node[3] === null ? null : data.cohorts[node[3]],
  seconds: node[4],
  history: node[5],
  causes: causesOf[index],
  topics: causesOf[index].map((place) => data.causes[place].topic).join(", "),
}));
for (const row of rows) row.search = [row.name, row.class, row.cohort || "", row.topics].join(" ").toLowerCase();

// --- the list
const collator = new Intl.Collator("en", { numeric: true });
const ranks = new Map([...new Set(rows.flatMap((row) => [row.name, row.class, row.cohort || "", row.topics]))].sort(collator.compare).map((name, rank) => [name, rank]));
const worst = new Map(data.order.map((state, rank) => [state, rank]));
const KEYS = [
  (row) => ranks.get(row.name),
  (row) => worst.get(row.state),
  (row) => ranks.get(row.class),
  (row) => ranks.get(row.cohort || ""),
  (row) => row.seconds || 0,
  (row) => -row.causes.length,
];
let shown = rows;
let limit = PAGE;
let sorted = { column: 1, down: false };

const cell = (label, child, empty = false) => element("td", empty ? { "data-label": label, class: "empty" } : { "data-label": label }, child);
const line = (row) => element("tr", {},
  element("th", { scope: "row" }, element("a", { class: "name", href: "#node=" + encodeURIComponent(row.name) }, row.name)),
  cell("State", tag(row.state)),
  cell("Class", element("span", {}, row.class)),
  cell("Cohort", element("span", {}, text(row.cohort)), row.cohort === null),
  cell("Last capture", element("span", {}, time(row.seconds)), row.seconds === null),
  cell("Causes", element("span", {}, row.topics || "-"), !row.topics));

const draw = () => {
  by("list").tBodies[0].replaceChildren(...shown.slice(0, limit).map(line));
  by("shown").textContent = `${shown.length} of ${rows.length} nodes`;
  by("more").hidden = shown.length <= limit;
};
const select = () => {
  const words = by("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const state = by("state").value;
  const group = by("class").value;
  shown = rows.filter((row) => (!state || row.state === state) && (!group || row.class === group) && words.every((word) => row.search.includes(word)));
  const key = KEYS[sorted.column];
  const sign = sorted.down ? -1 : 1;
  shown.sort((a, b) => sign * (key(a) - key(b)) || KEYS[0](a) - KEYS[0](b));
  limit = PAGE;
  draw();
};
document.querySelectorAll("[data-column]").forEach((button) => button.addEventListener("click", () => {
  const column = Number(button.dataset.column);
  sorted = { column, down: sorted.column === column && !sorted.down };
  document.querySelectorAll("#list thead th").forEach((th) => th.removeAttribute("aria-sort"));
  button.parentElement.setAttribute("aria-sort", sorted.down ? "descending" : "ascending");
  select();
}));
by("filter").addEventListener("input", select);
by("state").addEventListener("change", select);
by("class").addEventListener("change", select);
by("more").addEventListener("click", () => { limit += PAGE; draw(); });
document.querySelector("form.filter").addEventListener("submit", (event) => event.preventDefault());

// --- charts
const style = getComputedStyle(document.documentElement);
const colour = (name) => style.getPropertyValue(name).trim();
const COLOURS = { ok: "--ok", warn: "--warn", block: "--block", unknown: "--unknown" };
const axis = (more) => ({ stroke: colour("--soft"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line") }, ...more });
const dates = axis({ values: (u, splits) => splits.map((one) => new Date(one * 1000).toISOString().slice(5, 10)), incrs: [1, 2, 7, 14].map((one) => one * 86400), space: 60 });
const charts = [];
const plot = (place, options, values) => {
  place.replaceChildren();
  const made = new uPlot({ width: Math.max(place.clientWidth - 18, 240), height: 220, tzDate: (ts) => uPlot.tzDate(new Date(ts * 1000), "Etc/UTC"), cursor: { drag: { x: false, y: false } }, legend: { live: false }, ...options }, values, place);
  charts.push([place, made]);
};
addEventListener("resize", () => charts.forEach(([place, made]) => { if (place.clientWidth) made.setSize({ width: Math.max(place.clientWidth - 18, 240), height: 220 }); }));

const days = [...new Set(data.days.map((day) => day[0]))].sort((a, b) => a - b);
if (days.length) {
  const states = data.order.filter((state) => data.days.some((day) => day[1] === state));
  const sums = states.map((state) => days.map((day) => data.days.filter((one) => one[0] === day && one[1] === state).reduce((sum, one) => sum + one[2], 0)));
  plot(by("days-chart"), {
    axes: [dates, axis({ size: 56 })],
    scales: { y: { range: (u, low, high) => [0, Math.max(high * 1.05, 1)] } },
    series: [{}, ...states.map((state, place) => ({ label: data.words[state] || state, stroke: colour(COLOURS[data.tags[state]] || "--unknown"), width: 2, dash: place % 2 ? [6, 4] : undefined, points: { show: days.length < 40 } }))],
  }, [days, ...sums]);
} else by("days-chart").hidden = true;

// --- one node
const heading = (words) => element("h2", {}, words);
const list = (items) => element("ul", {}, ...items.map((item) => element("li", {}, ...item)));
const value = (one) => (one === null ? element("span", { class: "none" }, "none") : element("code", {}, one === "" ? "empty" : one));
const differences = (item) => item.changes.flatMap(([key, part, before, after]) => [element("span", { class: "change" }, element("span", { class: "key" }, part ? `${key} ${part} ` : `${key} `), value(before), " → ", value(after))]);
const about = (row) => {
  const parts = [element("dl", { class: "facts" },
    element("dt", {}, "State"), element("dd", {}, tag(row.state)),
    element("dt", {}, "Class"), element("dd", { class: "name" }, row.class),
    element("dt", {}, "Cohort"), element("dd", { class: "name" }, text(row.cohort)),
    element("dt", {}, "Last capture"), element("dd", {}, time(row.seconds)))];
  parts.push(heading("Drift and faults"));
  parts.push(row.causes.length ? list(row.causes.map((place) => [element("b", {}, data.causes[place].topic), " ", element("span", { class: "source" }, data.causes[place].evidence), ...differences(data.causes[place])])) : element("p", { class: "none" }, row.state === "stale" || row.state === "silent" ? "Not known: the node has not reported." : "None."));
  const changed = changesOf[row.index];
  if (changed.length) parts.push(heading("Changed since " + data.compared), list(changed.map((place) => [element("b", {}, data.changed[place].topic), ...differences(data.changed[place])])));
  const mixed = mixedOf[row.index];
  if (mixed.length) parts.push(heading("In mixed groups"), list(mixed.map((place) => [data.mixed[place].text])));
  const lines = data.lines[row.index] || [];
  if (lines.length) parts.push(heading("Speed, counters, repeated faults"), list(lines.map((one) => [one])));
  return parts;
};
const history = (row) => {
  const events = row.history.map(([seconds, status, booted, changed]) => ({ seconds, status: data.statuses[status], booted, changed }));
  if (!events.length) return [element("p", { class: "none" }, "No capture in 30 days.")];
  const words = events.map((event, place) => {
    const what = [];
    if (place === 0) what.push("first capture of the 30 days");
    if (event.booted) what.push("booted");
    if (event.changed) what.push("another class document");
    return [element("time", { datetime: time(event.seconds) }, time(event.seconds)), " ", tag(event.status), what.length ? " " + what.join(", ") : ""];
  });
  return [heading("History of 30 days"), list(words.reverse())];
};
const nodeChart = (row) => {
  const place = by("node-chart");
  place.hidden = !row.history.length;
  if (place.hidden) return;
  const end = row.seconds || data.at;
  const events = [...row.history, [end, row.history.at(-1)[1]]];
  const level = (status) => ({ ok: 2, warn: 1, block: 0 })[data.tags[data.statuses[status]]];
  plot(place, {
    height: 150,
    axes: [dates, axis({ size: 90, splits: () => [0, 1, 2], values: () => ["drain", "degraded", "healthy"] })],
    scales: { y: { range: [-0.3, 2.3] }, x: { range: [data.at - 30 * 86400, data.at] } },
    legend: { show: false },
    series: [{}, { stroke: colour("--link"), width: 2, paths: uPlot.paths.stepped({ align: 1 }), points: { show: true } }],
  }, [events.map((event) => event[0]), events.map((event) => level(event[1]) ?? null)]);
};

// --- the address: #node=NAME, #state=STATE, #class=CLASS
const index = new Map(rows.map((row) => [row.name, row]));
const show = () => {
  const [key, ...rest] = location.hash.slice(1).split("=");
  const name = decodeURIComponent(rest.join("="));
  const row = key === "node" ? index.get(name) : undefined;
  by("fleet").hidden = Boolean(row);
  by("node").hidden = !row;
  if (row) {
    by("node-name").textContent = row.name;
    by("node-content").replaceChildren(...about(row));
    by("node-history").replaceChildren(...history(row));
    nodeChart(row);
    scrollTo(0, 0);
    by("node-name").focus();
    return;
  }
  if (key === "state" || key === "class") {
    by(key).value = name;
    select();
  }
  if (["state", "class", "nodes"].includes(key)) {
    by("nodes").scrollIntoView();
    by("nodes").focus({ preventScroll: true });
  }
};
addEventListener("hashchange", show);
select();
show();

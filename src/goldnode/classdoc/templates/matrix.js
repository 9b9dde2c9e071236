// A link to a row's notes opens them.
const open = () => { const d = document.getElementById(decodeURIComponent(location.hash.slice(1))); if (d && d.tagName === "DETAILS") { d.hidden = false; d.open = true; d.scrollIntoView(); } };
addEventListener("hashchange", open);

const form = document.getElementById("filter"), rows = [...document.querySelectorAll("tbody tr")];
const asked = new URLSearchParams(location.search);
if (asked.has("embed")) document.body.classList.add("embedded");
const parts = (text) => text.split(/[^0-9]+/).filter(Boolean).map(Number);
const order = (a, b) => { const x = parts(a), y = parts(b); for (let i = 0; i < Math.max(x.length, y.length); i++) if ((x[i] || 0) !== (y[i] || 0)) return (x[i] || 0) - (y[i] || 0); return a < b ? -1 : +(a > b); };
const values = (row, facet) => (row.dataset[facet] || "").split("|").filter(Boolean);
// These are lower bounds: a newer version is good too.
const bounds = new Set(["cuda", "framework"]);
const selects = [...form.querySelectorAll("select")];
for (const select of selects) {
  const known = [...new Set(rows.flatMap((row) => values(row, select.name)))].sort(order);
  if (!known.length) select.parentElement.hidden = true;
  for (const value of known) select.add(new Option(value, value));
  if (known.includes(asked.get(select.name))) select.value = asked.get(select.name);
}
form.q.value = asked.get("q") || "";
const fits = (row, select) => {
  const own = values(row, select.name);
  return bounds.has(select.name) ? own.some((value) => order(value, select.value) >= 0) : own.includes(select.value);
};
// Tables without GPUs, the measured builds, follow the stacks that are left: their release and driver.
const indirect = new Set(["gpu", "cuda", "framework"]);
const has = (row, select) => row.closest("table").querySelector(`tr[data-${select.name}]`) !== null;
const pair = (row) => `${row.dataset.os} ${row.dataset.driver}`;
const text = new Map(rows.map((row) => [row, row.textContent.toLowerCase()]));
const filter = () => {
  const words = form.q.value.toLowerCase().split(/\s+/).filter(Boolean), chosen = selects.filter((select) => select.value);
  const follows = chosen.some((select) => indirect.has(select.name)), left = new Set();
  let shown = 0;
  for (const row of rows) {
    const direct = chosen.filter((select) => has(row, select));
    const found = words.every((word) => text.get(row).includes(word)) && direct.every((select) => fits(row, select));
    const isBuild = !chosen.filter((select) => indirect.has(select.name)).every((select) => has(row, select));
    row.hidden = !found || (follows && isBuild && !left.has(pair(row)));
    if (!row.hidden) { shown++; left.add(pair(row)); }
    const name = row.querySelector("a.name");
    const notes = name && document.getElementById(name.textContent);
    if (notes && notes.tagName === "DETAILS") notes.hidden = row.hidden;
  }
  for (const section of document.querySelectorAll("section")) if (section.querySelector("table")) section.hidden = !section.querySelector("tbody tr:not([hidden])");
  document.getElementById("count").value = `${shown} of ${rows.length} rows`;
  const state = new URLSearchParams([["q", form.q.value], ...chosen.map((select) => [select.name, select.value])].filter(([, value]) => value));
  if (asked.has("embed")) state.set("embed", "");
  try { history.replaceState(null, "", `${location.pathname}${state.size ? `?${state}` : ""}${location.hash}`); } catch { /* a page from a file may not have another address */ }
};
form.addEventListener("input", filter);
form.addEventListener("submit", (event) => event.preventDefault());
form.addEventListener("reset", () => setTimeout(filter));
form.hidden = false;
filter();
open();

// The rules of a library: the details of a rule are unpacked when it is opened; rows are filtered.
"use strict";
(() => {
  const filters = document.querySelector(".filters");
  const rows = [...document.querySelectorAll(".rule")];
  const unpacked = new Map(); // the details of each section's rules, as HTML

  async function unpack(section) {
    const packed = Uint8Array.from(atob(section.querySelector("script").textContent), (c) => c.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
    return JSON.parse(await new Response(stream).text());
  }

  async function fill(row) {
    if (row.querySelector(".card")) return;
    const section = row.closest("section");
    if (!unpacked.has(section)) unpacked.set(section, unpack(section));
    const cards = await unpacked.get(section);
    if (row.querySelector(".card")) return;
    row.insertAdjacentHTML("beforeend", cards[[...section.querySelectorAll(".rule")].indexOf(row)]);
  }

  // `toggle` does not bubble.
  document.addEventListener("toggle", ({ target }) => {
    if (target.matches(".rule") && target.open) fill(target);
  }, true);

  function follow() {
    let target = null;
    try { target = document.getElementById(decodeURIComponent(location.hash.slice(1))); } catch { return; }
    const inside = target?.closest("section");
    if (!inside) return;
    if (target.hidden || inside.hidden) { filters.reset(); filter(); }
    if (target.matches(".rule")) target.open = true;
    target.scrollIntoView();
  }

  // --- filter --------------------------------------------------------------------------------------

  const textOf = new Map(rows.map((row) => [row, row.querySelector("summary").textContent.toLowerCase()]));

  function addOptions(select, valuesOf) {
    const counts = new Map();
    for (const row of rows)
      for (const value of valuesOf(row)) counts.set(value, (counts.get(value) ?? 0) + 1);
    for (const value of [...counts.keys()].sort())
      select.add(new Option(`${value} (${counts.get(value)})`, value));
  }

  const keys = {
    file: (row) => [row.closest("section").dataset.file],
    operator: (row) => row.dataset.operators.split(" ").filter(Boolean),
    float: (row) => [row.dataset.float],
    tier: (row) => [row.dataset.tier],
  };
  for (const [name, valuesOf] of Object.entries(keys)) addOptions(filters.elements[name], valuesOf);

  function filter() {
    const words = filters.elements.text.value.toLowerCase().split(/\s+/).filter(Boolean);
    const wanted = Object.entries(keys).filter(([name]) => filters.elements[name].value);
    let count = 0;
    for (const row of rows) {
      const shown = words.every((word) => textOf.get(row).includes(word))
        && wanted.every(([name, valuesOf]) => valuesOf(row).includes(filters.elements[name].value));
      row.hidden = !shown;
      count += shown;
    }
    for (const section of document.querySelectorAll("section"))
      section.hidden = !section.querySelector(".rule:not([hidden])");
    filters.querySelector("output").textContent = `${count.toLocaleString("en")} of ${rows.length.toLocaleString("en")} rules`;
  }

  filters.addEventListener("input", filter);
  filters.addEventListener("reset", () => setTimeout(filter));
  filters.addEventListener("submit", (event) => event.preventDefault());
  filters.hidden = false;
  filter();
  for (const row of document.querySelectorAll(".rule[open]")) fill(row);
  window.addEventListener("hashchange", follow);
  follow();
})();

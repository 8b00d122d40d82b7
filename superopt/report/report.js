// The graphs of a report: zoom, pan, search, and what is known of a node. The page reads without it.
"use strict";
(() => {
  const section = document.getElementById("graphs");
  if (!section) return;
  const MIN_SCALE = 0.05, MAX_SCALE = 3, ZOOM_STEP = 1.25, DRAG_PIXELS = 4;
  const views = [...section.querySelectorAll(".view")].map((element) => {
    const svg = element.querySelector("svg");
    return { element, svg, width: svg.width.baseVal.value, height: svg.height.baseVal.value, scale: 1 };
  });
  const nodes = [...section.querySelectorAll("svg .node")];
  const facts = section.querySelector(".facts-of");
  const query = section.querySelector("input[type=search]");
  const found = section.querySelector("output");
  const stepTitles = new Map();
  for (const row of document.querySelectorAll("[id^=step-]"))
    stepTitles.set(row.id.slice(5), row.dataset.rule);
  let matches = [], place = -1, chosenStep = "";

  // --- zoom and pan ------------------------------------------------------------------------------

  function setScale(view, wanted, x = view.element.clientWidth / 2, y = view.element.clientHeight / 2) {
    const { element, svg } = view;
    const scale = Math.min(MAX_SCALE, Math.max(MIN_SCALE, wanted));
    const across = (element.scrollLeft + x) / view.scale, down = (element.scrollTop + y) / view.scale;
    view.scale = scale;
    svg.setAttribute("width", view.width * scale);
    svg.setAttribute("height", view.height * scale);
    element.scrollLeft = across * scale - x;
    element.scrollTop = down * scale - y;
  }

  function fit(view, whole) {
    const across = (view.element.clientWidth - 16) / view.width;
    const down = (view.element.clientHeight - 16) / view.height;
    setScale(view, whole ? Math.min(across, down, 1) : 1);
  }

  for (const view of views) {
    const { element } = view;
    element.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return; // plain scrolling pans
      event.preventDefault();
      const box = element.getBoundingClientRect();
      setScale(view, view.scale * Math.exp(-event.deltaY / 300), event.clientX - box.x, event.clientY - box.y);
    }, { passive: false });
    element.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key === "+" || event.key === "=") setScale(view, view.scale * ZOOM_STEP);
      else if (event.key === "-") setScale(view, view.scale / ZOOM_STEP);
      else if (event.key === "0") fit(view, true);
      else if (event.key === "1") fit(view, false);
    });
    let start = null, moved = false;
    element.addEventListener("pointerdown", (event) => {
      if (event.pointerType !== "mouse" || event.button !== 0) return; // touch pans by itself
      start = [event.clientX + element.scrollLeft, event.clientY + element.scrollTop];
      moved = false;
    });
    element.addEventListener("pointermove", (event) => {
      if (!start) return;
      const left = start[0] - event.clientX, top = start[1] - event.clientY;
      moved ||= Math.hypot(left - element.scrollLeft, top - element.scrollTop) > DRAG_PIXELS;
      if (!moved) return;
      if (!element.hasPointerCapture(event.pointerId)) element.setPointerCapture(event.pointerId);
      element.scrollTo(left, top);
    });
    for (const name of ["pointerup", "pointercancel"])
      element.addEventListener(name, () => { start = null; });
    element.addEventListener("dragstart", (event) => event.preventDefault());
    element.addEventListener("click", (event) => {
      const node = event.target.closest(".node[id]");
      if (moved || !node) { if (moved) event.preventDefault(); moved = false; return; }
      event.preventDefault();
      chosenStep = "";
      choose([node]);
    });
  }

  // --- nodes -------------------------------------------------------------------------------------

  function show(node) {
    const element = node.closest(".view");
    const box = node.getBoundingClientRect(), around = element.getBoundingClientRect();
    element.scrollBy(
      box.x + box.width / 2 - around.x - around.width / 2,
      box.y + box.height / 2 - around.y - around.height / 2);
  }

  function mark(some, name) {
    for (const node of section.querySelectorAll(`.${name}`)) node.classList.remove(name);
    for (const node of some) node.classList.add(name);
  }

  // Show the first node of each graph among `some`, mark them all, and tell what is known of them.
  function choose(some, isStep = false) {
    mark(some, "chosen");
    for (const { element } of views) {
      const first = some.find((node) => element.contains(node));
      if (first) show(first);
    }
    tell(some, isStep);
  }

  function add(parent, tag, text = "", properties = {}) {
    const element = Object.assign(document.createElement(tag), properties);
    element.append(text);
    parent.append(element);
    return element;
  }

  function linkTo(parent, id, text) {
    const link = add(parent, "a", text, { href: `#${id}` });
    link.addEventListener("click", (event) => {
      const node = document.getElementById(id);
      if (!node.matches(".node")) return;
      event.preventDefault();
      choose([node]);
    });
  }

  function tell(some, isStep) {
    facts.replaceChildren();
    if (isStep) {
      const line = add(facts, "p");
      add(line, "b", `Step ${chosenStep}: ${stepTitles.get(chosenStep) ?? ""} `);
      linkTo(line, `step-${chosenStep}`, "back to the step");
      const count = (view) => some.filter((node) => view.element.contains(node)).length;
      const [before, after] = views.map(count);
      add(facts, "p", `${before} of the original's nodes and ${after} of the result's, marked in the graphs.`);
      return;
    }
    const node = some[0];
    if (!node) return;
    const [head, ...rest] = node.querySelector("title").textContent.split("\n");
    add(add(facts, "p"), "b", head);
    for (const text of rest) add(facts, "p", text);
    const line = document.createElement("p");
    for (const step of (node.dataset.steps ?? "").split(" ").filter(Boolean)) {
      linkTo(line, `step-${step}`, `step ${step}: ${stepTitles.get(step) ?? ""}`);
      line.append(" ");
    }
    if (node.dataset.twin) linkTo(line, node.dataset.twin, "the same in the other graph");
    if (line.childNodes.length) facts.append(line);
    const members = node.querySelector("desc");
    if (members) add(facts, "pre", members.textContent);
  }

  // --- search ------------------------------------------------------------------------------------

  const textOf = new Map(nodes.map((node) =>
    [node, [...node.querySelectorAll("title, desc, text")].map((e) => e.textContent).join("\n").toLowerCase()]));

  function search() {
    const words = query.value.toLowerCase().split(/\s+/).filter(Boolean);
    matches = words.length ? nodes.filter((node) => words.every((word) => textOf.get(node).includes(word))) : [];
    place = -1;
    mark(matches, "match");
    found.textContent = words.length ? `${matches.length} found` : "";
    if (matches.length) next(1);
  }

  function next(step) {
    if (!matches.length) return;
    place = (place + step + matches.length) % matches.length;
    found.textContent = `${place + 1} of ${matches.length}`;
    chosenStep = "";
    choose([matches[place]]);
  }

  query.addEventListener("input", search);
  query.addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    event.preventDefault();
    next(event.shiftKey ? -1 : 1);
  });

  // --- links -------------------------------------------------------------------------------------

  function follow() {
    let id = "";
    try { id = decodeURIComponent(location.hash.slice(1)); } catch { return; }
    const target = document.getElementById(id);
    if (!target) return;
    if (!target.matches(".node")) {
      for (let e = target.closest("details"); e; e = e.parentElement.closest("details")) e.open = true;
      target.scrollIntoView();
      return;
    }
    section.scrollIntoView();
    const steps = (target.dataset.steps ?? "").split(" ");
    if (!steps.includes(chosenStep)) chosenStep = "";
    choose(chosenStep ? nodes.filter((n) => (n.dataset.steps ?? "").split(" ").includes(chosenStep)) : [target],
      chosenStep !== "");
  }

  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-step]");
    if (!link) return;
    chosenStep = link.dataset.step;
    if (link.hash === location.hash) { event.preventDefault(); follow(); }
  });
  window.addEventListener("hashchange", follow);

  const actions = {
    in: () => views.forEach((view) => setScale(view, view.scale * ZOOM_STEP)),
    out: () => views.forEach((view) => setScale(view, view.scale / ZOOM_STEP)),
    whole: () => views.forEach((view) => fit(view, true)),
    actual: () => views.forEach((view) => fit(view, false)),
    next: () => next(1),
    previous: () => next(-1),
  };
  for (const button of section.querySelectorAll("button"))
    button.addEventListener("click", actions[button.name]);
  section.classList.add("live");
  if (location.hash) follow();
  else for (const { element } of views) {
    const touched = element.querySelector(".replaced, .new");
    if (touched) show(touched);
    else element.scrollLeft = (element.scrollWidth - element.clientWidth) / 2;
  }
})();

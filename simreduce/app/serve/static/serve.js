"use strict";
(() => {
  const here = (id) => document.getElementById(id);
  const form = here("question");
  const NAMES = [...form.elements].map((each) => each.name).filter(Boolean);
  const STEPS = ["0.5", "0.1", "0"];
  const FACTORS = { 0.75: "75%", 0.5: "50%", 0.25: "25%", 0.1: "10%", 0: "cut" };
  const SLOW_MS = 400;
  const LEAST_PX = 14; // of any text of the picture, which is scrolled where it has no room
  const MOST = 64;
  let links = new Map();
  let asking = null;

  /* The state is the query of the URL; the form and the picture show it. */
  function read(query) {
    const found = new URLSearchParams(query);
    links = new Map(found.getAll("link").map((text) => [text.slice(0, text.lastIndexOf("=")), text.slice(text.lastIndexOf("=") + 1)]));
    for (const name of NAMES) {
      const [field, value] = [form.elements[name], found.get(name) ?? (name === "machine" && found.get("jobs") ? "" : USUAL[name]) ?? ""];
      if (field.tagName === "SELECT" && ![...field.options].some((option) => option.value === value)) field.append(new Option(value, value));
      field.value = value;
    }
    fit();
  }
  const USUAL = { machine: "dgx1v", size: "64MiB", algo: "usual" };

  /* Fields that jobs have no use for: their file says what they repeat. */
  const beside = (field) => form.elements.jobs.value && field.closest("[data-alone]");

  function query() {
    const found = new URLSearchParams();
    for (const name of NAMES) {
      const value = beside(form.elements[name]) ? "" : form.elements[name].value.trim();
      if (value && (value !== USUAL[name] || name === "machine")) found.set(name, value);
    }
    if (form.elements.model.value) found.delete("size");
    links.forEach((factor, name) => found.append("link", name + "=" + factor));
    return found.toString();
  }

  /* What depends on other fields, and the slider. */
  function fit() {
    form.querySelectorAll("[data-alone]").forEach((each) => { each.hidden = Boolean(beside(each)); });
    here("sized").hidden ||= Boolean(form.elements.model.value);
    const power = Math.log2(bytes(form.elements.size.value));
    if (Number.isFinite(power)) here("slide").value = Math.round(power);
    here("slide").setAttribute("aria-valuetext", form.elements.size.value);
    if (NAMES.slice(NAMES.indexOf("NCCL_ALGO")).some((name) => form.elements[name].value)) here("more").open = true;
    if (form.elements.mesh.value) here("meshed").open = true;
    here("shipped").value = form.elements.machine.value;
    if (here("shipped").selectedIndex < 0) here("shipped").selectedIndex = 0;
    listLinks();
    markLinks();
  }
  const UNITS = { b: 1, k: 1 << 10, m: 1 << 20, g: 1 << 30, t: 2 ** 40, kb: 1e3, mb: 1e6, gb: 1e9, tb: 1e12, tib: 2 ** 40, kib: 1 << 10, mib: 1 << 20, gib: 1 << 30 };
  function bytes(text) {
    const found = /^([0-9.]+) *([a-z]*)$/i.exec(text.trim());
    return found ? Number(found[1]) * (UNITS[found[2].toLowerCase() || "b"] ?? NaN) : NaN;
  }
  const sizeText = (power) => 2 ** (power % 10) + ["B", "KiB", "MiB", "GiB"][Math.floor(power / 10)];

  /* Links: those that are changed, and how. */
  function setLink(name, factor) {
    if (factor === null) links.delete(name);
    else links.set(name, factor);
    changed(true);
  }
  const nextFactor = (name) => (links.has(name) ? STEPS[STEPS.indexOf(links.get(name)) + 1] ?? null : STEPS[0]);
  const stateOf = (name) => (links.has(name) ? FACTORS[links.get(name)] ?? links.get(name) + " times" : "whole");

  function listLinks() {
    here("links").replaceChildren(...[...links].map(([name, factor]) => {
      const item = document.createElement("li");
      const label = document.createElement("label");
      label.textContent = name.replace("<>", " \u2194 ") + " ";
      const choice = document.createElement("select");
      choice.dataset.link = name;
      if (!(factor in FACTORS)) choice.append(new Option(factor + " times", factor));
      Object.entries(FACTORS).sort((a, b) => b[0] - a[0]).forEach(([value, words]) => choice.append(new Option(words, value)));
      choice.value = factor;
      choice.addEventListener("change", () => setLink(name, choice.value));
      label.append(choice);
      const whole = document.createElement("button");
      whole.type = "button";
      whole.textContent = "Mend";
      whole.setAttribute("aria-label", "Mend " + name);
      whole.addEventListener("click", () => { setLink(name, null); here("wire").focus(); });
      item.append(label, whole);
      return item;
    }));
  }

  /* The names of a group of the picture: the pairs of nodes that it joins. */
  const namesOf = (group) => group.dataset.name.split("\n");
  function markLinks() {
    here("picture").querySelectorAll("[data-name]").forEach((group) => {
      const states = namesOf(group).map(stateOf);
      group.classList.toggle("cut", states.every((state) => state === "cut"));
      group.classList.toggle("slow", states.some((state) => state !== "whole") && !states.every((state) => state === "cut"));
      group.setAttribute("aria-label", namesOf(group).join(", ").replaceAll("<>", " to ") + ": " + states[0]);
    });
  }
  function turn(group) {
    const names = namesOf(group);
    const factor = nextFactor(names[0]);
    if (factor !== null && new Set([...links.keys(), ...names]).size > MOST) {
      say(`This line stands for ${names.length} links, and at most ${MOST} can be changed: choose one in the list below the picture`);
      return;
    }
    names.forEach((name) => (factor === null ? links.delete(name) : links.set(name, factor)));
    changed(true);
  }
  let drawn = "";
  function showMachine({ svg, words, wires, loaded }) {
    const same = drawn === words + wires;
    if (same && !loaded) return; // the loads that are shown stay until there are others
    drawn = words + wires;
    const focused = document.activeElement?.closest?.("#picture [data-name]")?.dataset.name;
    here("picture").innerHTML = svg;
    const [image, sizes] = [here("picture").firstElementChild, [...here("picture").querySelectorAll("text")].map((text) => Number(text.getAttribute("font-size")))];
    image.style.minWidth = (image.viewBox.baseVal.width * LEAST_PX) / Math.min(LEAST_PX, ...sizes) + "px";
    here("words").textContent = words;
    here("picture").querySelectorAll("[data-name]").forEach((group) => {
      group.setAttribute("tabindex", "0");
      group.setAttribute("role", "button");
      group.querySelectorAll("path").forEach((path) => {
        const wide = path.cloneNode();
        wide.setAttribute("class", "hit");
        path.after(wide);
      });
      if (group.dataset.name === focused) group.focus();
    });
    if (!same) here("wire").replaceChildren(new Option("choose a link", ""), ...wires.slice(0, 5000).map((name) => new Option(name.replace("<>", " \u2194 "), name)));
    markLinks();
  }

  /* The answer, part by part: one that says the same as before stays as it is; in others, what was
     open stays open, and what had the focus has it again. */
  const shown = new Map();
  function showPage({ title, parts, strategies, look }) {
    const place = here("answer-here");
    const focused = document.activeElement?.closest?.("[data-chart]")?.dataset.chart;
    document.title = title;
    const charts = Object.assign({}, ...parts.map((part) => part.charts));
    let last = null;
    for (const { key, html, charts } of parts) {
      const text = html + JSON.stringify(charts);
      const before = shown.get(key);
      if (before?.text === text) {
        last = before.section;
        continue;
      }
      const section = document.createRange().createContextualFragment(html).querySelector("section");
      if (before) {
        const open = [...before.section.querySelectorAll("details")].map((each) => each.open);
        section.querySelectorAll("details").forEach((each, i) => { each.open = Boolean(open[i]); });
        before.section.replaceWith(section);
      } else if (last) last.after(section);
      else place.prepend(section);
      shown.set(key, { text, section });
      last = section;
    }
    for (const key of [...shown.keys()].filter((each) => !parts.some((part) => part.key === each))) {
      shown.get(key).section.remove();
      shown.delete(key);
    }
    const choice = form.elements.look;
    choice.replaceChildren(new Option("what is recommended", ""), ...strategies.map((name) => new Option(name, name)));
    choice.value = look;
    here("preview").replaceChildren();
    simreduceCharts.show(charts);
    if (focused && !document.activeElement?.dataset.chart) place.querySelector(`[data-chart="${focused}"]`)?.focus();
  }

  function showFaults(faults, whole = false) {
    here("faults").replaceChildren(...faults.map((text) => Object.assign(document.createElement("p"), { textContent: text })));
    here("main").classList.toggle("old", faults.length > 0 && !whole);
  }
  function showPreview(lines) {
    const words = Object.assign(document.createElement("p"), { textContent: "Best so far:" });
    const list = Object.assign(document.createElement("pre"), { textContent: lines.join("\n"), tabIndex: 0 });
    here("preview").replaceChildren(words, list);
  }
  function say(text) {
    here("state").textContent = text;
    far();
  }
  /* How far it is: not read aloud, as it changes all the time. */
  function far(text = "", done = 0, total = 0) {
    here("far").textContent = text;
    here("progress").hidden = !total;
    here("progress").value = total ? done / total : 0;
  }

  /* Questions: only the last one is of interest, and the one before is dropped. */
  async function ask() {
    asking?.abort();
    asked = query();
    const mine = (asking = new AbortController());
    let begun = performance.now();
    const slow = () => performance.now() - begun > SLOW_MS;
    const working = setTimeout(() => { say("Computing"); here("main").classList.add("old"); }, SLOW_MS);
    document.documentElement.dataset.asked = String(Number(document.documentElement.dataset.asked ?? 0) + 1);
    delete document.documentElement.dataset.answered;
    here("stop").hidden = false;
    let [any, ended] = [null, false];
    const act = {
      machine: showMachine,
      page: (page) => {
        clearTimeout(working);
        showFaults([]);
        showPage(page);
        if (any === null) {
          any = performance.now() - begun;
          say(`Answered in ${any < 9999 ? Math.round(any) + " ms" : Math.round(any / 1000) + " s"}`);
          begun = performance.now();
        } else far();
      },
      faults: (faults) => {
        ended = true;
        here("preview").replaceChildren();
        showFaults(faults, any !== null);
        say(any === null ? "Not possible" : "Not complete");
      },
      progress: ([done, total, text]) => slow() && far(`${done} of ${total} ${text}`, done, total),
      preview: (lines) => any === null && lines.length > 0 && slow() && showPreview(lines),
    };
    try {
      for await (const message of messages(mine.signal)) {
        if (mine !== asking) return;
        for (const [kind, value] of Object.entries(message)) act[kind]?.(value);
      }
      if (mine === asking && !ended && any === null) say("No answer");
    } catch (error) {
      if (mine !== asking) return;
      if (error.name === "AbortError") say(any === null ? "Stopped" : "Stopped; what stands below is right, and something is missing");
      else { showFaults([String(error.message)], any !== null); say("Not answered"); }
    } finally {
      clearTimeout(working);
      if (mine === asking) {
        here("stop").hidden = true;
        document.documentElement.dataset.answered = document.documentElement.dataset.asked;
      }
    }
  }
  async function* messages(signal) {
    const gone = (error) => { throw error.name === "AbortError" ? error : new Error("simreduce serve has ended. Start it again: " + command()); };
    const response = await fetch("answer" + location.search, { signal }).catch(gone);
    if (!response.ok) throw new Error(await response.text());
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read().catch(gone);
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      yield* lines.filter(Boolean).map((line) => JSON.parse(line));
    }
  }

  const FILES = JSON.parse(document.body.dataset.files);
  const command = () => "simreduce serve " + (FILES[form.elements.machine.value] ?? "") + (FILES[form.elements.jobs.value] ?? "") + "'" + query().replace(/%(3C|3E|2C|3A|3D|2F)/g, decodeURIComponent) + "'";
  let asked = "";
  let due = 0;
  function changed(step) {
    fit();
    const next = "?" + query();
    if (next === location.search) return;
    if (step) history.pushState(null, "", next);
    else history.replaceState(null, "", next);
    cancelAnimationFrame(due);
    due = requestAnimationFrame(ask);
  }

  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("change", ({ target }) => {
    moving = false;
    if (["machine", "jobs"].includes(target.name)) links.clear(); // those of another machine
    if (target.name === "jobs") form.elements.machine.value = target.value ? "" : USUAL.machine;
    if (target.id !== "slide") changed(true);
  });
  /* One movement of the slider is one step of Back. */
  let moving = false;
  here("slide").addEventListener("input", () => {
    form.elements.size.value = sizeText(Number(here("slide").value));
    changed(!moving);
    moving = true;
  });
  here("shipped").addEventListener("change", () => {
    form.elements.machine.value = here("shipped").value;
    form.elements.machine.dispatchEvent(new Event("change", { bubbles: true }));
  });
  here("wire").addEventListener("change", () => { const name = here("wire").value; here("wire").value = ""; if (name) setLink(name, STEPS[0]); });
  here("picture").addEventListener("click", (event) => { const group = event.target.closest("[data-name]"); if (group) turn(group); });
  here("picture").addEventListener("keydown", (event) => {
    const group = event.target.closest("[data-name]");
    if (!group || !["Enter", " "].includes(event.key)) return;
    event.preventDefault();
    turn(group);
  });
  here("stop").addEventListener("click", () => asking?.abort());
  here("copy").addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(command());
      say("Copied");
    } catch {
      say(command());
    }
  });
  addEventListener("popstate", () => { read(location.search); if (query() !== asked) ask(); });
  read(location.search || "?" + document.body.dataset.first);
  if (!location.search) history.replaceState(null, "", "?" + query());
  ask();
})();

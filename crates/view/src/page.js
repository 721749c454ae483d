// The episode browser. Everything it shows comes from the policy, so it is only ever set as text, never as markup.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("episode-data").textContent);
  const at = (id) => document.getElementById(id);
  const make = (tag, text, name) => {
    const node = document.createElement(tag);
    node.textContent = text;
    if (name) node.className = name;
    return node;
  };
  // As the program's own `visible`: control characters and invisible ones are shown, not obeyed.
  const visible = (text) =>
    text
      .replace(/[\u0000-\u0008\u000b-\u001f]/g, (c) => String.fromCharCode(0x2400 + c.charCodeAt(0)))
      .replace(/\u007f/g, "\u2421")
      .replace(
        /[\u0080-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\u{e0000}-\u{e007f}]/gu,
        (c) => "\u27e8U+" + c.codePointAt(0).toString(16).toUpperCase().padStart(4, "0") + "\u27e9",
      );
  const textOf = (id) => visible(Object.hasOwn(data.texts, id) ? data.texts[id] : "\u27e8" + id + "\u27e9");
  const short = (v) => (v === null || v === undefined ? "none" : String(Number(v.toPrecision(5))));

  const stepSelect = at("step"), taskSelect = at("task"), sampleSelect = at("sample");
  const colours = at("colours"), readout = at("readout"), tokens = at("tokens");
  let colour = "log-prob";

  const fill = (select, labels) => {
    const before = select.selectedIndex;
    select.replaceChildren(...labels.map((label) => make("option", label)));
    select.selectedIndex = Math.min(Math.max(before, 0), labels.length - 1);
  };
  const step = () => data.steps[stepSelect.selectedIndex];
  const group = () => step()?.groups[taskSelect.selectedIndex];
  const episode = () => group()?.episodes[sampleSelect.selectedIndex];

  const ending = (e) => {
    const o = e.outcome;
    if (o.kind === "graded") return "reward " + short(o.reward);
    if (o.kind === "failed") return "failed in " + o.stage + ": " + visible(o.cause.class);
    return "cancelled";
  };
  const names = (e) => [...new Set(e.sequences.flatMap((s) => Object.keys(s.values)))].sort();
  const valuesOf = (s, name) => (name === "log-prob" ? s.logp : s.values[name]) ?? [];

  const largest = (name) => {
    let most = 0;
    for (const e of group().episodes)
      for (const s of e.sequences) for (const v of valuesOf(s, name)) if (v !== null) most = Math.max(most, Math.abs(v));
    return most;
  };
  const paint = (name, value, most) => {
    if (value === null || value === undefined) return "";
    // A log-prob is coloured by how unlikely the token was; other values by sign, scaled to the task's largest.
    if (name === "log-prob") return "rgba(var(--orange)," + (0.62 * (1 - Math.exp(value))).toFixed(3) + ")";
    if (most === 0 || value === 0) return "";
    return "rgba(var(--" + (value > 0 ? "blue" : "orange") + ")," + (0.08 + 0.54 * Math.abs(value) / most).toFixed(3) + ")";
  };

  const show = () => {
    const g = group(), e = episode();
    tokens.replaceChildren();
    colours.replaceChildren();
    readout.textContent = "Point at a token to read its values.";
    if (!e) { at("asked").textContent = ""; at("ended").textContent = "No episode is stored."; return; }
    at("asked").textContent = g.prompt.map((m) => m.role + ": " + visible(m.content)).join("\n")
      + "\ngold: " + visible(typeof g.gold === "string" ? g.gold : JSON.stringify(g.gold));
    const detail = e.outcome.kind === "failed" ? " (" + visible(e.outcome.cause.detail) + ")" : "";
    at("ended").textContent = ending(e) + detail + " \u00b7 stopped by " + e.stop + " \u00b7 " + e.n_sampled + " tokens sampled";

    const choices = ["log-prob", ...names(e)];
    const current = choices.includes(colour) ? colour : "log-prob";
    for (const choice of choices) {
      const button = make("button", choice);
      button.type = "button";
      button.setAttribute("aria-pressed", String(choice === current));
      button.addEventListener("click", () => { colour = choice; show(); });
      colours.append(button);
    }
    const most = largest(current);
    const legend = make("span", "", "legend"), bar = make("i", "");
    const ends = current === "log-prob" ? ["likely", "unlikely"] : ["\u2212" + short(most), "+" + short(most)];
    bar.style.background = current === "log-prob"
      ? "linear-gradient(90deg, transparent, rgba(var(--orange),.62))"
      : "linear-gradient(90deg, rgba(var(--orange),.62), transparent, rgba(var(--blue),.62))";
    legend.append(make("span", ends[0]), bar, make("span", ends[1]));
    colours.append(legend);

    e.sequences.forEach((s, n) => {
      if (n > 0) tokens.append(make("span", "sequence " + (n + 1) + ": here the context was not an extension of what came before", "cut"));
      s.tokens.forEach((id, i) => {
        const text = textOf(id);
        const node = make("span", text, s.sampled[i] ? "token" : "token given");
        const parts = ["\u201c" + text.replace(/\n/g, "\u23ce") + "\u201d", "id " + id];
        if (s.sampled[i]) {
          parts.push("log-prob " + short(s.logp[i]));
          for (const name of names(e)) parts.push(name + " " + short(valuesOf(s, name)[i]));
        } else parts.push("not sampled");
        const label = parts.join(" \u00b7 ");
        node.title = label;
        node.addEventListener("mouseenter", () => { readout.textContent = label; });
        const background = s.sampled[i] ? paint(current, valuesOf(s, current)[i], most) : "";
        if (background) node.style.background = background;
        tokens.append(node);
      });
      if (s.n_left_out > 0) tokens.append(make("span", s.n_left_out + " more tokens are not in this page", "cut"));
    });
  };
  const changed = () => {
    const s = step();
    fill(taskSelect, (s?.groups ?? []).map((g) => g.task));
    fill(sampleSelect, (group()?.episodes ?? []).map((e) => e.sample + ": " + ending(e)));
    at("of").textContent = s && s.n_groups > s.groups.length ? "showing " + s.groups.length + " of " + s.n_groups + " tasks" : "";
    show();
  };
  const move = (by) => {
    const last = sampleSelect.options.length - 1;
    sampleSelect.selectedIndex = Math.min(Math.max(sampleSelect.selectedIndex + by, 0), last);
    show();
  };
  fill(stepSelect, data.steps.map((s) => "step " + s.step));
  for (const select of [stepSelect, taskSelect, sampleSelect]) select.addEventListener("change", changed);
  at("previous").addEventListener("click", () => move(-1));
  at("next").addEventListener("click", () => move(1));
  changed();
})();

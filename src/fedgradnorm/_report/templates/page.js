"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const pressed = (button) => button.getAttribute("aria-pressed") === "true";
  const press = (button, on) => button.setAttribute("aria-pressed", String(on));
  const touch = matchMedia("(hover: none)").matches;
  const hidden = { method: new Set(), task: new Set() };
  const drawn = new Set(), near = new Set(); // plots as they should be; plots near the window

  // A name is text for Plotly only if none of its own markup is left in it.
  const text = (name) => name.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function faded(colour, opacity) {
    const hex = colour.length === 4 ? colour.replace(/[0-9a-f]/gi, "$&$&") : colour;
    const part = (at) => parseInt(hex.slice(at, at + 2), 16);
    return `rgba(${part(1)},${part(3)},${part(5)},${opacity})`;
  }

  // ---- figures -------------------------------------------------------------------------------
  const LOOK = {
    main: { width: 2, dash: "solid", band: 0.16 },
    heldout: { width: 2, dash: "solid", band: 0.16 },
    train: { width: 1.6, dash: "dot", band: 0.07 },
    target: { width: 1.6, dash: "dot", band: 0 },
    sweep: { width: 1.8, dash: "solid", band: 0 },
  };
  const ROLE = { train: ", training", target: ", target" };

  // Along the highest seeds and back along the lowest.
  function band(series, colour) {
    const there = series.x.map((_, i) => i).filter((i) => series.lo[i] !== null), back = [...there].reverse();
    return { x: [...there, ...back].map((i) => series.x[i]),
             y: [...there.map((i) => series.hi[i]), ...back.map((i) => series.lo[i])],
             mode: "none", fill: "toself", fillcolor: colour, hoverinfo: "skip" };
  }

  // A long label on several lines: a panel is narrow.
  function broken(name) {
    const lines = [""];
    for (const word of name.split(/(?<= )/)) {
      if (lines.at(-1) && lines.at(-1).length + word.length > 34) lines.push("");
      lines[lines.length - 1] += word;
    }
    return lines.join("<br>");
  }

  function traces(panel, off) {
    const made = [], left = data.methods.length - hidden.method.size;
    const many = left > 4 ? 0 : 1; // bands upon bands hide the lines
    for (const [number, series] of panel.series.entries()) {
      if ((series.arms || [series.method]).every((n) => hidden.method.has(n)) || off.has(series.role)) continue;
      const look = LOOK[series.role], swept = series.role === "sweep";
      const colour = css(`--c${swept ? series.colour : data.colours[series.method]}`);
      const dash = swept ? data.strokes[series.dash] : data.dashes[series.method];
      const name = text(series.name || data.methods[series.method]) + (ROLE[series.role] || "");
      const shown = panel.percent ? "%{y:.1%}" : "%{y:.4g}", place = panel.x ? `${text(panel.x.title)} %{x}` : "epoch %{x:.3g}";
      if (series.lo && look.band * many > 0) made.push({ uid: `band${number}`, ...band(series, faded(colour, look.band * many)) });
      made.push({
        uid: `line${number}`, // what it is, not where it stands: else Plotly keeps strokes of another
        x: series.x, y: series.y, mode: swept ? (panel.x.lines ? "lines+markers" : "markers")
          : series.x.length > 2 ? "lines" : "markers", // of two ends nobody knows what lies between
        name, text: series.x.map(() => broken(name)),
        line: { color: colour, width: look.width,
                dash: (look.dash === "solid" && dash) || look.dash },
        marker: { color: colour, size: 7 },
        error_y: swept ? { type: "data", symmetric: false, thickness: 1, width: 2, color: colour,
                           array: series.hi.map((v, i) => v - series.y[i]), arrayminus: series.lo.map((v, i) => series.y[i] - v) } : {},
        hovertemplate: `%{text}<br>${shown} at ${place}<extra></extra>`,
      });
    }
    return made;
  }

  function layout(panel, element) {
    const axis = { gridcolor: css("--grid"), linecolor: css("--faint"), zeroline: false,
                   tickfont: { size: 11, color: css("--soft") }, fixedrange: touch };
    const y = { ...axis, range: panel.range, type: panel.log ? "log" : "linear", nticks: 5 };
    if (panel.percent) y.tickformat = ".0%";
    if (panel.ticks && panel.ticks.length > 1) {
      Object.assign(y, { tickvals: panel.ticks, ticktext: panel.ticks.map((tick) => String(Number(tick.toPrecision(6)))) });
    }
    const level = panel.reference;
    const rule = { type: "line", xref: "paper", x0: 0, x1: 1, y0: level, y1: level, layer: "below",
                   line: { color: css("--soft"), width: 1, dash: "3px,3px" } };
    const below = (title) => ({ text: text(title) + (data.synthetic ? ` (${data.synthetic.toLowerCase()})` : ""),
                               standoff: 4, font: { size: 11, color: css("--soft") } });
    const along = { ...axis, nticks: 6, rangemode: "tozero", showgrid: false, ticks: "outside", ticklen: 3,
                    tickcolor: css("--faint"), title: below("epoch") };
    if (panel.x) {
      Object.assign(along, { type: panel.x.log ? "log" : "linear", rangemode: "normal", tickvals: panel.x.values, ticktext: panel.x.names, tickangle: -45 });
      along.title = below(panel.x.title);
    }
    return {
      width: element.clientWidth, height: element.clientHeight,
      margin: { l: 46, r: 6, t: 8, b: panel.x ? 56 : 34 }, showlegend: false, hovermode: "closest", hoverdistance: 40,
      dragmode: touch ? false : "zoom", paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: 11, color: css("--ink") },
      hoverlabel: { bgcolor: css("--paper"), bordercolor: css("--faint"), font: { color: css("--ink") }, namelength: -1 },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: css("--soft"), activecolor: css("--ink") },
      xaxis: along,
      yaxis: y, shapes: level === null || level === undefined ? [] : [rule],
    };
  }

  const BUTTONS = { displaylogo: false, displayModeBar: touch ? false : "hover",
                    modeBarButtons: [["resetScale2d"]] };

  function panelOf(element) {
    const section = element.closest("section"), task = Number(element.closest("figure").dataset.task);
    const chosen = all(".views button", section).find(pressed);
    const panels = data.sections[section.dataset.section].filter((panel) => panel.task === task);
    return { section, task, chosen, panel: panels.find((one) => one.view === (chosen ? chosen.dataset.view : one.view)) };
  }

  function draw(element) {
    const { section, task, chosen, panel } = panelOf(element);
    const note = element.closest("figure").querySelector("small");
    drawn.add(element);
    if (!panel) {
      Plotly.purge(element);
      note.textContent = chosen && chosen.dataset.view === `with ${data.tasks[task]}` ? "itself" : "not recorded";
      return;
    }
    note.textContent = [panel.unit, panel.log ? "log scale" : ""].filter(Boolean).join(", ");
    const off = new Set(all(".roles button", section).filter((b) => !pressed(b)).map((b) => b.dataset.role));
    Plotly.react(element, traces(panel, off), layout(panel, element), BUTTONS);
  }

  const visible = (element) => element.offsetParent !== null;
  // What is out of sight is drawn again when it comes back.
  function redraw(root = document) {
    all(".plot", root).forEach((e) => (near.has(e) && visible(e) ? draw(e) : drawn.delete(e)));
  }
  const drawAll = () => all(".plot").filter(visible).forEach(draw);

  // ---- switches ------------------------------------------------------------------------------
  const numbers = (list) => (list || "").split(" ").filter(Boolean).map(Number);

  // What stands for several methods goes with the last of them, what is about two tasks with either.
  function sift(element) {
    const methods = numbers(element.dataset.methods), tasks = numbers(element.dataset.tasks);
    const gone = (methods.length > 0 && methods.every((n) => hidden.method.has(n))) || tasks.some((n) => hidden.task.has(n));
    element.classList.toggle(element.matches("table.grouped td, table.ranked tr") ? "mute" : "off", gone);
  }

  // A method is off when any of its switches is: its own, or that of its point of a sweep.
  function apply() {
    const off = (kind) => all(`.toggles button[data-${kind}]`).filter((b) => !pressed(b)).flatMap((b) => numbers(b.dataset.which));
    hidden.method = new Set([...off("method"), ...off("point")]);
    hidden.task = new Set(off("task"));
    all("main [data-methods], main [data-tasks]").forEach(sift);
    all("table.grouped").forEach(mark);
    count();
    all("figure[data-task]").forEach((f) => f.classList.toggle("off", hidden.task.has(Number(f.dataset.task))));
    if (window.Plotly) redraw();
  }

  // How many of many are shown, on the button that opens their list.
  function count() {
    for (const row of all(".picker")) {
      const group = all("button[data-which]", row);
      row.querySelector(".shown").textContent = `${group.filter(pressed).length} of ${group.length} shown`;
    }
  }
  count();

  const choose = (group, wanted) => { group.forEach((b) => press(b, wanted(b))); apply(); };
  for (const row of all(".toggles")) {
    const group = all("button[data-which]", row), search = row.querySelector("input");
    group.forEach((b) => b.addEventListener("click", () => { press(b, !pressed(b)); apply(); }));
    all(".only", row).forEach((o) => o.addEventListener("click", () => choose(group, (b) => b === o.previousElementSibling)));
    all("[data-all], [data-none]", row).forEach((t) => t.addEventListener("click", () => choose(group, () => "all" in t.dataset)));
    if (!search) continue;
    const fits = (b) => b.textContent.toLowerCase().includes(search.value.trim().toLowerCase());
    search.addEventListener("input", () => group.forEach((b) => b.parentElement.classList.toggle("off", !fits(b))));
    search.addEventListener("keydown", (e) => { if (e.key === "Enter") choose(group, fits); });
  }
  all(".switch button").forEach((button) => button.addEventListener("click", () => {
    const group = all("button", button.parentElement);
    if (button.dataset.view) group.forEach((one) => press(one, one === button));
    else if (!pressed(button) || group.filter(pressed).length > 1) press(button, !pressed(button));
    if (window.Plotly) redraw(button.closest("section"));
  }));
  data.off.forEach((role) => all(`.roles button[data-role="${role}"]`).forEach((b) => press(b, false)));

  // ---- the table -----------------------------------------------------------------------------
  const place = new Map(all("tbody tr").map((row, number) => [row, number])); // ties keep their order

  function value(row, column) {
    const given = row.cells[column].dataset.value;
    return given === undefined || given === "" ? null : Number(given);
  }

  // Within a task, or a measure: numbers of another one say nothing. The better the smaller.
  function sort(heading) {
    const table = heading.closest("table"), body = table.tBodies[0], column = heading.cellIndex;
    const up = heading.getAttribute("aria-sort") !== "ascending";
    all("th[aria-sort]", table).forEach((h) => h.setAttribute("aria-sort", "none"));
    heading.setAttribute("aria-sort", up ? "ascending" : "descending");
    const rows = all("tr", body).sort((a, b) => {
      const one = value(a, column), other = value(b, column);
      const order = place.get(a) - place.get(b), within = a.dataset.within - b.dataset.within;
      if (column > 0 && within) return within;
      if (one === null || other === null) return (one === null) - (other === null) || order;
      return (up ? one - other : other - one) || order;
    });
    body.append(...rows);
    mark(table);
  }

  // What rows in a row share, a task or a method, is named once, in the first of them that is shown.
  function mark(table) {
    const column = all("th[aria-sort]", table).findIndex((h) => h.getAttribute("aria-sort") !== "none");
    let before = null;
    for (const row of all("tbody tr:not(.off)", table)) {
      const group = (one) => column > 0 ? one.dataset.within : one.dataset.group;
      row.classList.toggle("first", before !== null && group(row) !== group(before));
      row.classList.toggle("again", before !== null && row.cells[0].textContent === before.cells[0].textContent);
      before = row;
    }
  }

  all("th[aria-sort]").forEach((h) => h.querySelector("button").addEventListener("click", () => sort(h)));
  all("table.grouped").forEach(mark);
  if (data.hidden.length) {
    const off = new Set(data.hidden);
    all(".toggles button[data-method]").forEach((b) => press(b, !numbers(b.dataset.which).every((n) => off.has(n))));
    apply();
  }

  /* saving.js */

  // A link to what is folded opens it.
  const unfold = () => {
    for (let e = location.hash && document.getElementById(location.hash.slice(1)); e; e = e.parentElement) if ("open" in e) e.open = true;
  };
  addEventListener("hashchange", unfold);
  unfold();

  // ---- opening, printing, changing size and colours ------------------------------------------
  async function unpack(id) {
    const packed = atob(document.getElementById(id).textContent), bytes = new Uint8Array(packed.length);
    for (let i = 0; i < packed.length; i++) bytes[i] = packed.charCodeAt(i);
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.textContent = await new Response(stream).text();
    document.head.append(script);
  }

  function printing(on) {
    document.documentElement.classList.toggle("printing", on);
    all("details:not(.picker)").forEach((d) => { if (on) d.open = true; });
    drawAll();
  }

  function start() {
    const seen = new IntersectionObserver((entries) => {
      for (const { isIntersecting, target } of entries) {
        near[isIntersecting ? "add" : "delete"](target);
        if (isIntersecting && !drawn.has(target)) draw(target);
      }
      document.documentElement.dataset.ready ||= String(Math.round(performance.now()));
    }, { rootMargin: "100px" });
    all(".plot").forEach((plot) => seen.observe(plot));
    let wait = 0, width = innerWidth;
    addEventListener("resize", () => {
      if (innerWidth === width) return; // a phone's address bar comes and goes
      width = innerWidth;
      clearTimeout(wait);
      wait = setTimeout(redraw, 120);
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => redraw());
    addEventListener("beforeprint", () => printing(true));
    addEventListener("afterprint", () => printing(false));
    if (!all(".plot").length) document.documentElement.dataset.ready = "0";
  }

  unpack("plotly").then(start, () => {
    const trouble = document.getElementById("trouble");
    trouble.textContent = "The figures could not be unpacked: this browser is too old (2023 or later is needed). The tables are complete.";
    trouble.hidden = false;
  });
})();

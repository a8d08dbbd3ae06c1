"use strict";
// Shows what /events sends. Names of runs and clients are only ever set as text, never as HTML.

const MOST_SHOWN = 8, AUTOMATIC = innerWidth < 760 ? 2 : 4, MOST_POINTS = 3000; // of a curve; the server shows as many runs
const DASHES = [[], [7, 3], [2, 3], [9, 3, 2, 3]];
const QUANTITIES = [
  { id: "loss", title: "Training loss", keys: ["loss", "train"], log: true },
  { id: "held", title: "Held-out loss", keys: ["held test", "held validation"], log: true },
  { id: "score", title: "Held-out score", keys: ["score test", "score validation"] },
  { id: "weight", title: "Weight", keys: ["weight"], log: true },
  { id: "ratio", title: "Loss ratio", keys: ["loss_ratio"], log: true, without: "loss" },
  { id: "norm", title: "Gradient norm", keys: ["grad_norm"], log: true, without: "loss" },
  { id: "epsilon", title: "Epsilon spent", keys: ["epsilon"] },
];

const $ = (id) => document.getElementById(id);
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function element(tag, given = {}, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(given)) {
    if (key in made) made[key] = value;
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}
function write(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// ---- what is shown, kept in the address ------------------------------------------------------
const state = {};
function readState() {
  const given = new URLSearchParams(location.hash.slice(1));
  const zoom = (given.get("zoom") || "").split("-").map(Number);
  Object.assign(state, {
    runs: given.has("runs") ? given.getAll("runs").filter(Boolean).slice(0, MOST_SHOWN) : null,
    off: new Set(given.getAll("off")),
    view: given.get("view") === "client" ? "client" : "quantity",
    sort: given.get("sort") || "",
    log: given.get("log") !== "0",
    smooth: Math.max(0, Number(given.get("smooth")) || 0),
    zoom: zoom.length === 2 && zoom[0] < zoom[1] ? zoom : null,
  });
}
function saveState() {
  const kept = new URLSearchParams();
  if (state.runs) (state.runs.length ? state.runs : [""]).forEach((run) => kept.append("runs", run));
  state.off.forEach((client) => kept.append("off", client));
  if (state.view !== "quantity") kept.set("view", state.view);
  if (state.sort) kept.set("sort", state.sort);
  if (!state.log) kept.set("log", "0");
  if (state.smooth) kept.set("smooth", state.smooth);
  if (state.zoom) kept.set("zoom", state.zoom.map((x) => Number(x.toFixed(1))).join("-"));
  history.replaceState(null, "", `#${kept}`);
  changed();
}

// ---- what the server sends -------------------------------------------------------------------
let runs = [], boards = [], offset = 0, source = null, asked = "";
const data = new Map(); // by run: its clients, and its curves by client and quantity
const pace = new Map(); // by run: when which round was seen

const shownRuns = () => state.runs || runs.slice(0, AUTOMATIC).map((run) => run.id);
const now = () => Date.now() / 1000 + offset;

function connect(again = false) {
  const wanted = new URLSearchParams(shownRuns().map((run) => ["run", run])).toString();
  if (!again && source && wanted === asked) return;
  if (source) source.close();
  asked = wanted;
  source = new EventSource(`/events?${wanted}`);
  source.onopen = () => { // all points come again
    for (const run of [...data.keys()]) if (!shownRuns().includes(run)) data.delete(run);
    data.forEach((one) => { one.stale = true; });
    say("live", "connected");
  };
  source.onerror = () => {
    say("lost", `Connection lost; trying again. If watch was stopped, start it with --port ${location.port}.`);
    if (source.readyState === EventSource.CLOSED) setTimeout(() => connect(true), 2000);
  };
  const on = (name, take) => source.addEventListener(name, (event) => {
    const content = JSON.parse(event.data);
    if (content.now) offset = content.now - Date.now() / 1000;
    take(content);
    changed();
  });
  on("runs", takeRuns);
  on("boards", (content) => { boards = content.boards; });
  on("points", takePoints);
}

function takeRuns(listing) {
  runs = listing.runs;
  write($("place"), listing.place);
  document.title = `${listing.place} · fedgradnorm watch`;
  $("more").hidden = listing.all <= runs.length;
  write($("more"), `The ${runs.length} newest of ${listing.all} runs are listed.`);
  for (const run of runs) {
    const seen = (pace.get(run.id) || []).filter(([when]) => now() - when < 60);
    if (!seen.length || seen[seen.length - 1][1] !== run.round) seen.push([now(), run.round]);
    pace.set(run.id, seen.slice(-120));
  }
  connect();
}

function takePoints({ run, reset, clients, curves }) {
  let mine = data.get(run);
  if (!mine || reset || mine.stale) data.set(run, mine = { clients: {}, curves: new Map() });
  Object.assign(mine.clients, clients);
  for (const [client, quantity, x, y] of curves) {
    const key = `${client}\n${quantity}`;
    if (!mine.curves.has(key)) mine.curves.set(key, { client, quantity, x: [], y: [] });
    const curve = mine.curves.get(key);
    for (let i = 0; i < x.length; i++) { curve.x.push(x[i]); curve.y.push(y[i]); }
    while (curve.x.length >= MOST_POINTS) thin(curve);
  }
}

// Of every four points the lowest and the highest, and the last of all.
function thin(curve) {
  const kept = [], { x, y } = curve, last = x.length - 1;
  for (let start = 0; start <= last; start += 4) {
    let low = start, high = start;
    for (let i = start; i < Math.min(start + 4, last + 1); i++) {
      if (value(y[i]) < value(y[low])) low = i;
      if (value(y[i]) > value(y[high])) high = i;
    }
    kept.push(...new Set([Math.min(low, high), Math.max(low, high)]));
  }
  if (kept[kept.length - 1] !== last) kept.push(last);
  curve.x = kept.map((i) => x[i]);
  curve.y = kept.map((i) => y[i]);
}
const value = (y) => (y === null ? -Infinity : y);

function say(kind, text) {
  $("connection").className = kind;
  write($("connection"), text);
}

// ---- numbers and times in words --------------------------------------------------------------
function number(y, percent) {
  if (y === null || y === undefined) return "–";
  if (percent) return `${(100 * y).toFixed(1)}%`;
  const size = Math.abs(y);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return y.toExponential(1).replace("e+", "e");
  return String(Number(y.toPrecision(4)));
}
const shortName = (metric) => (metric.length <= 5 ? metric.toUpperCase() : metric.replaceAll("_", " "));
function duration(seconds) {
  if (!(seconds >= 0)) return "?";
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${(seconds / 3600).toFixed(1)} h` : `${(seconds / 86400).toFixed(1)} days`;
}
function timeLeft(run) {
  const seen = pace.get(run.id) || [], first = seen[0], last = seen[seen.length - 1];
  let rate = run.round / (run.changed - run.started); // since its start, until we have seen enough
  if (first && last[1] > first[1] && last[0] - first[0] >= 3) rate = (last[1] - first[1]) / (last[0] - first[0]);
  return rate > 0 && run.rounds ? (run.rounds - run.round) / rate : NaN;
}
function stateOf(run) {
  const quiet = now() - run.changed;
  if (run.state === "running") {
    if (quiet > 15) return ["", `running, no new points for ${duration(quiet)}`];
    return ["good", run.round ? `running, ${duration(timeLeft(run))} left` : "starting"];
  }
  if (run.state === "stopped") return ["bad", `stopped, no new points for ${duration(quiet)}`];
  if (run.state === "diverged") return ["bad", "finished, diverged"];
  return ["", run.seconds ? `${run.state} in ${duration(run.seconds)}` : run.state];
}

// ---- the list of runs ------------------------------------------------------------------------
const runRows = new Map();
const runColour = (id) => `--c${Math.max(0, shownRuns().indexOf(id)) % 8}`;

function runRow(run) {
  const part = (name) => element("span", { className: name });
  const row = { item: element("li"), box: element("input", { type: "checkbox" }), swatch: part("swatch"),
                name: part("name"), method: part("method"), bar: element("progress", { max: 1 }),
                round: part("round"), state: part("state"), problem: part("problem") };
  row.item.append(element("label", {}, row.box, row.swatch, row.name, row.method, row.bar, row.round, row.state, row.problem));
  row.box.addEventListener("change", () => {
    const chosen = shownRuns().filter((id) => id !== run.id);
    state.runs = row.box.checked ? [...chosen, run.id] : chosen;
    saveState();
    connect();
  });
  return row;
}
function showRuns() {
  $("none").hidden = runs.length > 0;
  const chosen = shownRuns(), list = $("runs");
  for (const id of [...runRows.keys()]) {
    if (!runs.some((run) => run.id === id)) { runRows.get(id).item.remove(); runRows.delete(id); pace.delete(id); }
  }
  runs.forEach((run, place) => {
    if (!runRows.has(run.id)) runRows.set(run.id, runRow(run));
    const row = runRows.get(run.id), on = chosen.includes(run.id), [kind, words] = stateOf(run);
    if (list.children[place] !== row.item) list.insertBefore(row.item, list.children[place] || null);
    row.box.checked = on;
    row.box.disabled = !on && chosen.length >= MOST_SHOWN;
    row.swatch.style.background = on ? `var(${runColour(run.id)})` : "none";
    write(row.name, run.name);
    write(row.method, run.method + (run.seed === null ? "" : `, seed ${run.seed}`));
    row.bar.value = run.rounds ? run.round / run.rounds : 0;
    row.bar.setAttribute("aria-label", `progress of ${run.name}`);
    write(row.round, `round ${run.round}${run.rounds ? ` of ${run.rounds}` : ""}`);
    row.state.className = `state ${kind}`;
    write(row.state, words);
    row.problem.hidden = !run.problem;
    write(row.problem, run.problem);
  });
}

// ---- federations: what the server's own status file says --------------------------------------
const BOARD = [
  ["connected", (one, silent) => (silent ? "unknown" : one.connected ? "yes" : "no")],
  ["last seen", (one) => (one.seen === null ? "–" : `${duration(Math.max(0, now() - one.seen))} ago`)],
  ["round time", (one) => (one.seconds === null ? "–" : `${one.seconds.toFixed(2)} s`)],
  ["MB", (one) => (one.bytes / 1e6).toFixed(2)], ["rounds", (one) => String(one.rounds)],
  ["weight", (one) => number(one.weight)], ["left out", (one) => String(one.left_out)],
  ["refused", (one) => String(one.refused)], ["bounded", (one) => String(one.bounded)], ["state", (one) => one.state || "–"],
];
function showBoards() {
  const place = $("boards");
  place.hidden = !boards.length;
  const shape = JSON.stringify(boards.map((board) => [board.federation, board.clients.length]));
  if (place.dataset.shape !== shape) {
    place.dataset.shape = shape;
    place.replaceChildren(...boards.flatMap((board, n) => [
      element("h2", { id: `board-${n}`, textContent: "Federation" }), element("p", { className: "soft" }),
      element("div", { className: "scroll", tabIndex: 0, role: "region", "aria-labelledby": `board-${n}` }, element("table", {},
        element("thead", {}, element("tr", {}, ...["client", ...BOARD.map(([name]) => name)].map(
          (name, k) => element("th", { scope: "col", textContent: name, className: k > 1 && k < 10 ? "num" : "" })))),
        element("tbody", {}, ...board.clients.map(() => element("tr", {}, element("th", { scope: "row" }),
          ...BOARD.map((_, k) => element("td", { className: k > 0 && k < 9 ? "num" : "" }))))))),
    ]));
  }
  boards.forEach((board, n) => {
    const here = board.federation === "." ? "" : ` ${board.federation}`;
    write(place.querySelector(`#board-${n}`), `Federation${here}`);
    // The server writes after every round: while it waits for a client, it is as silent as when it has stopped.
    const age = Math.max(0, now() - board.seconds_since_1970), done = board.round >= board.rounds;
    const silent = !done && age > Math.max(15, 3 * Math.max(0, ...board.clients.map((one) => one.seconds)));
    const stage = done ? "finished" : silent ? "no news: the server waits for a client, or has stopped" : board.stage;
    place.children[3 * n + 1].className = silent ? "bad" : "soft";
    write(place.children[3 * n + 1], `${stage}: round ${board.round} of ${board.rounds}; status written ` +
      `${duration(age)} ago`);
    board.clients.forEach((one, k) => {
      const cells = place.children[3 * n + 2].querySelectorAll("tbody tr")[k].children;
      write(cells[0], one.client);
      BOARD.forEach(([, text], column) => write(cells[column + 1], text(one, silent)));
    });
  });
}

// ---- curves -----------------------------------------------------------------------------------
function curveOf(run, client, quantity) {
  const curves = data.get(run) ? data.get(run).curves : new Map();
  return quantity.keys.map((key) => curves.get(`${client}\n${key}`)).find(Boolean);
}
const metricOf = (run, client) => (data.get(run) ? data.get(run).clients[client] : null);
const nameOf = (run) => (runs.find((one) => one.id === run) || { name: run }).name;

function allClients() {
  const found = new Set();
  for (const run of shownRuns()) for (const curve of data.get(run) ? data.get(run).curves.values() : []) found.add(curve.client);
  return [...found];
}
const look = (number) => ({ colour: `--c${number % 8}`, dash: DASHES[Math.floor(number / 8) % DASHES.length] });

// Blocks of panels: a block per quantity with a panel per run, or a block per client.
function layout() {
  const clients = allClients(), chosen = shownRuns().filter((run) => data.has(run));
  const on = sorted(clients.filter((client) => !state.off.has(client)));
  const has = (id) => clients.some((c) => chosen.some((r) => curveOf(r, c, QUANTITIES.find((q) => q.id === id))));
  const blocks = [];
  for (const quantity of QUANTITIES.filter((q) => !q.without || !has(q.without))) {
    const lines = on.flatMap((client) => chosen.map((run) => ({ run, client, curve: curveOf(run, client, quantity) }))).filter((l) => l.curve);
    for (const line of lines) line.metric = quantity.id === "score" ? metricOf(line.run, line.client) : null;
    for (const metric of [...new Set(lines.map((line) => (line.metric ? line.metric.metric : "")))]) {
      const these = lines.filter((line) => (line.metric ? line.metric.metric : "") === metric);
      const title = metric ? `Held-out ${shortName(metric)}` : quantity.title, percent = metric === "accuracy";
      const panel = (key, label, mine, by) => ({
        key: `${state.view} ${quantity.id} ${metric} ${key}`, label, percent, log: quantity.log || (metric !== "" && !percent), group: `${quantity.id} ${metric}`,
        constant: by === "run" && mine[0].metric ? mine[0].metric.constant : null, title,
        lines: mine.map((line) => ({ curve: line.curve, label: by === "run" ? nameOf(line.run) : line.client,
          ...look(by === "run" ? shownRuns().indexOf(line.run) : clients.indexOf(line.client)) })),
      });
      if (state.view === "quantity") {
        blocks.push({ title, panels: chosen.map((run) => [run, these.filter((line) => line.run === run)]).filter(([, mine]) => mine.length)
          .map(([run, mine]) => panel(run, chosen.length > 1 ? nameOf(run) : "", mine, "client")) });
      } else {
        for (const client of on) {
          const mine = these.filter((line) => line.client === client);
          if (!mine.length) continue;
          let block = blocks.find((one) => one.client === client);
          if (!block) blocks.push(block = { client, title: client, panels: [] });
          block.panels.push({ ...panel(client, title, mine, "run"), group: `${quantity.id} ${client}` });
        }
      }
    }
  }
  if (state.view === "client") blocks.sort((a, b) => on.indexOf(a.client) - on.indexOf(b.client));
  return { clients, blocks };
}

const plots = new Map(), sections = new Map(), visible = new Set(); // by their keys, and canvases in sight
const sight = new IntersectionObserver((entries) => {
  entries.forEach((entry) => visible[entry.isIntersecting ? "add" : "delete"](entry.target));
  draw();
}, { rootMargin: "200px" });
const resized = new ResizeObserver(() => draw());

// Children in this order; what is in its place already is not touched.
function arrange(parent, children) {
  children.forEach((child, place) => {
    if (parent.children[place] !== child) parent.insertBefore(child, parent.children[place] || null);
  });
  while (parent.children.length > children.length) parent.lastElementChild.remove();
}
function plotOf(panel) {
  if (!plots.has(panel.key)) {
    const canvas = element("canvas", { className: "plot", tabIndex: 0, role: "img" }), caption = element("figcaption");
    plots.set(panel.key, { canvas, caption, figure: element("figure", {}, caption, canvas) });
    listen(canvas, panel.key);
    sight.observe(canvas);
    resized.observe(canvas);
  }
  const plot = plots.get(panel.key), label = panel.label && panel.label !== panel.title ? `, ${panel.label}` : "";
  const last = panel.lines.slice(0, 8).map(({ label: name, curve }) => `${name} ${number(curve.y[curve.y.length - 1], panel.percent)}`);
  plot.panel = panel;
  write(plot.caption, panel.label);
  plot.canvas.setAttribute("aria-label", `${panel.title}${label}: ${last.join(", ")}`);
  return plot;
}
function showCurves() {
  const { clients, blocks } = layout();
  $("curves-section").hidden = $("table-section").hidden = !clients.length;
  showLegend(clients);
  const wanted = new Set(blocks.flatMap((block) => block.panels.map((panel) => panel.key)));
  plots.forEach(({ canvas }, key) => {
    if (wanted.has(key)) return;
    sight.unobserve(canvas);
    resized.unobserve(canvas);
    visible.delete(canvas);
    plots.delete(key);
  });
  arrange($("blocks"), blocks.map((block) => {
    const key = `${state.view} ${block.title}`;
    if (!sections.has(key)) {
      sections.set(key, element("div", {}, element("h3", { textContent: block.title }), element("div", { className: "panels" })));
    }
    arrange(sections.get(key).lastElementChild, block.panels.map((panel) => plotOf(panel).figure));
    return sections.get(key);
  }));
  for (const [key, section] of sections) if (!section.isConnected) sections.delete(key);
  draw();
}

function showLegend(clients) {
  const legend = $("legend"), byClient = state.view === "quantity";
  const shape = JSON.stringify([clients, byClient]);
  if (legend.dataset.shape !== shape) {
    legend.dataset.shape = shape;
    const all = (name, off) => {
      const button = element("button", { type: "button", textContent: name });
      button.addEventListener("click", () => { state.off = new Set(off); saveState(); });
      return button;
    };
    legend.replaceChildren(...clients.map((client, n) => {
      const key = element("canvas", { width: 44, height: 16, "aria-hidden": "true" }), button = element("button", { type: "button" });
      button.append(...(byClient ? [key] : []), client);
      button.dataset.number = n;
      button.addEventListener("click", () => {
        state.off[state.off.has(client) ? "delete" : "add"](client);
        saveState();
      });
      return button;
    }), ...(clients.length > 2 ? [all("all", []), all("none", clients)] : []));
  }
  for (const button of legend.querySelectorAll("[data-number]")) {
    button.setAttribute("aria-pressed", String(!state.off.has(clients[button.dataset.number])));
    const key = button.querySelector("canvas");
    if (key) stroke(key, look(Number(button.dataset.number)));
  }
}
function stroke(canvas, { colour, dash }) {
  const pen = canvas.getContext("2d");
  pen.clearRect(0, 0, 44, 16);
  pen.lineWidth = 5;
  pen.strokeStyle = css(colour);
  pen.setLineDash(dash.map((length) => 2 * length));
  pen.beginPath();
  pen.moveTo(0, 8);
  pen.lineTo(44, 8);
  pen.stroke();
}

// An average over about so many rounds; distances count, because old points are fewer.
function smoothed({ x, y }) {
  if (!state.smooth) return y;
  let mean = null, before = 0;
  return y.map((one, i) => {
    if (one === null) return null;
    const keep = mean === null ? 0 : Math.exp(-(x[i] - before) / state.smooth);
    mean = keep * (mean ?? 0) + (1 - keep) * one;
    before = x[i];
    return mean;
  });
}

const EDGE = { left: 52, right: 10, top: 8, bottom: 24 };
const cursor = { x: null, from: null, to: null };

function range() {
  if (state.zoom) return state.zoom;
  let end = 1;
  plots.forEach(({ panel }) => panel && panel.lines.forEach(({ curve }) => { end = Math.max(end, curve.x[curve.x.length - 1] || 0); }));
  return [0, end];
}
function heights(panels, [low, high]) {
  let least = Infinity, most = -Infinity;
  for (const panel of panels) {
    for (const { curve } of panel.lines) {
      curve.y.forEach((y, i) => {
        if (y === null || curve.x[i] < low || curve.x[i] > high || (panel.log && state.log && y <= 0)) return;
        if (y < least) least = y;
        if (y > most) most = y;
      });
    }
  }
  return least <= most ? [least, most] : [0.5, 1];
}
function ticks(low, high, count) {
  const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= rough);
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-9; at += step) found.push(Number(at.toPrecision(12)));
  return found;
}
function logTicks(low, high) {
  const found = [], decades = Math.log10(high / low), factors = decades > 3 ? [1] : decades > 0.9 ? [1, 2, 5] : null;
  if (!factors) return ticks(low, high, 4).filter((tick) => tick > 0);
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
    found.push(...factors.map((f) => Number((f * 10 ** power).toPrecision(3))).filter((t) => t >= low && t <= high));
  }
  const step = Math.ceil(found.length / 6);
  return found.filter((_, i) => i % step === 0);
}

let drawing = false;
function draw() {
  if (drawing) return;
  drawing = true;
  requestAnimationFrame(() => { drawing = false; drawNow(); });
}
function drawNow() {
  const xs = range(), groups = new Map();
  plots.forEach(({ panel }) => panel && groups.set(panel.group, [...(groups.get(panel.group) || []), panel]));
  const colours = { ink: css("--ink"), soft: css("--soft"), grid: css("--grid"), faint: css("--faint"), tint: css("--c0") };
  const font = getComputedStyle(document.body).fontFamily, ends = new Map();
  plots.forEach((plot) => {
    if (!plot.panel || !visible.has(plot.canvas)) return;
    const { group } = plot.panel;
    if (!ends.has(group)) ends.set(group, heights(groups.get(group), xs));
    drawPlot(plot, xs, ends.get(group), colours, font);
  });
}
function drawPlot(plot, [x0, x1], [least, most], colours, font) {
  const { canvas, panel } = plot, ratio = window.devicePixelRatio || 1, width = canvas.clientWidth, height = canvas.clientHeight;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const pen = canvas.getContext("2d"), log = panel.log && state.log && least > 0;
  const right = width - EDGE.right, bottom = height - EDGE.bottom;
  let [low, high] = [least, most];
  if (log) { const pad = (high / low) ** 0.06 + 0.01; low /= pad; high *= pad; }
  else { const pad = 0.06 * (high - low) || Math.abs(high) * 0.1 || 0.1; low -= pad; high += pad; }
  const flat = log ? Math.log : (y) => y;
  const px = (x) => EDGE.left + ((x - x0) / (x1 - x0)) * (right - EDGE.left);
  const py = (y) => bottom - ((flat(y) - flat(low)) / (flat(high) - flat(low))) * (bottom - EDGE.top);
  plot.toRound = (pixel) => x0 + ((pixel - EDGE.left) / (right - EDGE.left)) * (x1 - x0);
  plot.toPixel = px;
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  pen.font = `11px ${font}`;
  pen.lineWidth = 1;
  const rule = (ax, ay, bx, by, colour, dash = []) => {
    pen.strokeStyle = colour; pen.setLineDash(dash); pen.beginPath(); pen.moveTo(ax, ay); pen.lineTo(bx, by); pen.stroke();
  };
  pen.fillStyle = colours.soft;
  pen.textAlign = "right"; pen.textBaseline = "middle";
  for (const tick of log ? logTicks(low, high) : ticks(low, high, 4)) {
    rule(EDGE.left, py(tick), right, py(tick), colours.grid);
    pen.fillText(panel.percent ? `${Number((100 * tick).toPrecision(4))}%` : number(tick), EDGE.left - 6, py(tick));
  }
  pen.textBaseline = "top";
  ticks(x0, x1, Math.max(2, Math.floor(width / 90))).filter(Number.isInteger).forEach((tick, i) => {
    const at = px(tick), first = i === 0 && at < EDGE.left + 20;
    pen.textAlign = first ? "left" : at > right - 20 ? "right" : "center";
    pen.fillText(i === 0 ? `round ${tick}` : String(tick), first ? EDGE.left - 6 : Math.min(at, right), bottom + 6);
  });
  rule(EDGE.left, bottom, right, bottom, colours.faint);
  pen.save();
  pen.beginPath();
  pen.rect(EDGE.left, 0, right - EDGE.left, bottom + 1);
  pen.clip();
  if (panel.constant !== null && (!log || panel.constant > 0)) rule(EDGE.left, py(panel.constant), right, py(panel.constant), colours.soft, [3, 3]);
  for (const line of panel.lines) {
    const smooth = smoothed(line.curve);
    pen.strokeStyle = pen.fillStyle = css(line.colour);
    if (smooth !== line.curve.y) { pen.globalAlpha = 0.25; trace(pen, line.curve.x, line.curve.y, px, py, log, [], 1); pen.globalAlpha = 1; }
    trace(pen, line.curve.x, smooth, px, py, log, line.dash, 1.8);
    if (line.curve.x.length <= 25) {
      line.curve.x.forEach((x, i) => { if (smooth[i] !== null) { pen.beginPath(); pen.arc(px(x), py(smooth[i]), 2.5, 0, 7); pen.fill(); } });
    }
  }
  if (cursor.x !== null) rule(px(cursor.x), EDGE.top, px(cursor.x), bottom, colours.soft, [2, 2]);
  if (cursor.from !== null && cursor.to !== null) {
    pen.globalAlpha = 0.18; pen.fillStyle = colours.tint;
    pen.fillRect(px(Math.min(cursor.from, cursor.to)), EDGE.top, Math.abs(px(cursor.to) - px(cursor.from)), bottom - EDGE.top);
    pen.globalAlpha = 1;
  }
  pen.restore();
}
function trace(pen, x, y, px, py, log, dash, width) {
  pen.setLineDash(dash);
  pen.lineWidth = width;
  pen.lineJoin = "round";
  pen.beginPath();
  let open = false;
  for (let i = 0; i < x.length; i++) {
    if (y[i] === null || (log && y[i] <= 0)) { open = false; continue; }
    pen[open ? "lineTo" : "moveTo"](px(x[i]), py(y[i]));
    open = true;
  }
  pen.stroke();
}

// ---- the tooltip and zoom ---------------------------------------------------------------------
function nearest({ x }, at) {
  let low = 0, high = x.length - 1;
  while (high - low > 1) { const middle = (low + high) >> 1; if (x[middle] < at) low = middle; else high = middle; }
  return Math.abs(x[low] - at) <= Math.abs(x[high] - at) ? low : high;
}
function showTip(plot, left, top) {
  const tip = $("tip"), { panel } = plot;
  const rows = panel.lines.map((line) => [line, line.curve.y[nearest(line.curve, cursor.x)]]);
  rows.sort((a, b) => value(b[1]) - value(a[1]));
  tip.replaceChildren(element("b", { textContent: `${panel.title}, round ${Math.round(cursor.x)}` }), ...rows.slice(0, 12).map(([line, y]) => {
    const swatch = element("span", { className: "swatch" });
    swatch.style.background = `var(${line.colour})`;
    return element("div", {}, swatch, element("span", { textContent: line.label }), element("span", { className: "value", textContent: number(y, panel.percent) }));
  }));
  if (rows.length > 12) tip.append(element("div", { textContent: `and ${rows.length - 12} more` }));
  if (panel.constant !== null) tip.append(element("div", { textContent: `constant baseline ${number(panel.constant, panel.percent)}` }));
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, left + 16 + width > innerWidth ? left - width - 16 : left + 16)}px`;
  tip.style.top = `${Math.max(4, Math.min(top + 12, innerHeight - height - 4))}px`;
}
function hideTip() {
  $("tip").hidden = true;
  cursor.x = cursor.from = cursor.to = null;
  draw();
}
function zoom(low, high) {
  state.zoom = high - low >= 1 ? [Math.max(0, low), high] : null;
  saveState();
}
function listen(canvas, key) {
  const plot = plots.get(key);
  const at = (event) => {
    const [low, high] = range();
    return Math.min(Math.max(plot.toRound(event.clientX - canvas.getBoundingClientRect().left), low), high);
  };
  canvas.addEventListener("pointermove", (event) => {
    if (!plot.toRound) return;
    cursor.x = at(event);
    if (cursor.from !== null) cursor.to = cursor.x;
    showTip(plot, event.clientX, event.clientY);
    draw();
  });
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button || !plot.toRound) return;
    cursor.from = at(event);
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointerup", () => {
    const { from, to } = cursor, [low, high] = range();
    cursor.from = cursor.to = null;
    if (from !== null && to !== null && Math.abs(to - from) > (high - low) / 100) zoom(Math.min(from, to), Math.max(from, to));
  });
  canvas.addEventListener("pointerleave", hideTip);
  canvas.addEventListener("pointercancel", hideTip);
  canvas.addEventListener("blur", hideTip);
  canvas.addEventListener("dblclick", () => { state.zoom = null; saveState(); });
  canvas.addEventListener("keydown", (event) => {
    const [low, high] = range(), here = cursor.x ?? (low + high) / 2, step = Math.max(1, Math.round((high - low) / 50));
    const moved = { ArrowLeft: here - step, ArrowRight: here + step, Home: low, End: high }[event.key];
    const factor = { "+": 0.5, "=": 0.5, "-": 2 }[event.key];
    if (event.key === "Escape") { hideTip(); state.zoom = null; saveState(); return; }
    if ((moved === undefined && !factor) || !plot.toPixel) return;
    event.preventDefault();
    cursor.x = moved === undefined ? here : Math.min(Math.max(moved, low), high);
    if (factor) { const half = ((high - low) * factor) / 2; zoom(cursor.x - half, cursor.x + half); }
    const box = canvas.getBoundingClientRect();
    showTip(plot, box.left + plot.toPixel(cursor.x), box.top + 20);
    draw();
  });
}

// ---- the table of latest values ----------------------------------------------------------------
const COLUMNS = [
  ["client", "client"], ["run", "run"], ["score", "held-out score"], ["constant", "constant baseline"],
  ["held", "held-out loss"], ["loss", "training loss"], ["ratio", "loss ratio"], ["weight", "weight"],
];
function latest(run, client) {
  const metric = metricOf(run, client);
  const last = (id) => {
    const curve = curveOf(run, client, QUANTITIES.find((quantity) => quantity.id === id));
    return curve ? curve.y[curve.y.length - 1] : null;
  };
  return { client, run, name: metric ? metric.metric : "", loss: last("loss"), held: last("held"), score: last("score"), ratio: last("ratio"),
           constant: metric && metric.metric !== "loss" ? metric.constant : null, weight: last("weight") };
}
function compare(a, b) {
  const [column, direction] = state.sort.split(":"), sign = direction === "down" ? -1 : 1;
  if (!COLUMNS.some(([id]) => id === column)) return 0;
  if (typeof a[column] === "string") return sign * (column === "run" ? nameOf(a.run) : a[column]).localeCompare(column === "run" ? nameOf(b.run) : b[column]);
  return (a[column] === null) - (b[column] === null) || sign * (a[column] - b[column]);
}
let order = [];
function sorted(clients) { // by the first run that has them; nothing moves under a pointer
  const of = (client) => latest(shownRuns().find((run) => metricOf(run, client)) || shownRuns()[0], client);
  const still = cursor.x !== null && clients.length === order.length && clients.every((client) => order.includes(client));
  if (!still) order = state.sort && !state.sort.startsWith("run") ? clients.map(of).sort(compare).map((one) => one.client) : clients;
  return order;
}
const valueRows = new Map();
function showTable() {
  const head = $("table").tHead.rows[0], body = $("table").tBodies[0];
  if (!head.cells.length) {
    head.append(...COLUMNS.map(([id, name], k) => {
      const button = element("button", { type: "button", textContent: name });
      button.addEventListener("click", () => { state.sort = state.sort === `${id}:up` ? `${id}:down` : `${id}:up`; saveState(); });
      return element("th", { scope: "col", className: k > 1 ? "num" : "" }, button);
    }));
  }
  const [by, direction] = state.sort.split(":");
  COLUMNS.forEach(([id], k) => head.cells[k].setAttribute("aria-sort", id !== by ? "none" : direction === "down" ? "descending" : "ascending"));
  const rows = allClients().filter((client) => !state.off.has(client))
    .flatMap((client) => shownRuns().filter((run) => data.has(run)).map((run) => latest(run, client))).sort(compare);
  const wanted = new Set(rows.map((row) => `${row.client}\n${row.run}`));
  for (const key of [...valueRows.keys()]) if (!wanted.has(key)) { valueRows.get(key).remove(); valueRows.delete(key); }
  rows.forEach((row, place) => {
    const key = `${row.client}\n${row.run}`;
    if (!valueRows.has(key)) {
      valueRows.set(key, element("tr", {}, element("th", { scope: "row", textContent: row.client }),
        element("td", {}, element("span", { className: "swatch" }), element("span", { className: "of" })), ...COLUMNS.slice(2).map(() => element("td", { className: "num" }))));
    }
    const tr = valueRows.get(key), percent = row.name === "accuracy";
    if (body.rows[place] !== tr) body.insertBefore(tr, body.rows[place] || null);
    tr.cells[1].firstChild.style.background = `var(${runColour(row.run)})`;
    write(tr.cells[1].lastChild, nameOf(row.run));
    const score = row.score === null ? "–" : `${percent ? "" : `${shortName(row.name)} `}${number(row.score, percent)}`;
    [score, number(row.constant, percent), number(row.held), number(row.loss), number(row.ratio), number(row.weight)].forEach((text, k) => write(tr.cells[k + 2], text));
  });
  // A federation's server knows no losses, and a run here needs no ratios.
  const known = (id) => rows.some((row) => row[id] !== null);
  COLUMNS.slice(2).forEach(([id], k) => {
    const gone = !known(id) || (id === "ratio" && known("loss"));
    for (const tr of [head, ...body.rows]) tr.cells[k + 2].hidden = gone;
  });
}

// ---- everything, at most once per frame --------------------------------------------------------
let due = false;
function changed() {
  if (due) return;
  due = true;
  setTimeout(() => { due = false; show(); }, 50);
}
function show() {
  for (const button of document.querySelectorAll("[data-view]")) button.setAttribute("aria-pressed", String(button.dataset.view === state.view));
  $("log").setAttribute("aria-pressed", String(state.log));
  $("smooth").value = String(state.smooth);
  $("unzoom").hidden = !state.zoom;
  showRuns();
  showBoards();
  showCurves();
  showTable();
  document.documentElement.dataset.ready = "yes";
}
document.querySelectorAll("[data-view]").forEach((button) => button.addEventListener("click", () => { state.view = button.dataset.view; saveState(); }));
$("log").addEventListener("click", () => { state.log = !state.log; saveState(); });
$("smooth").addEventListener("change", () => { state.smooth = Number($("smooth").value); saveState(); });
$("unzoom").addEventListener("click", () => { state.zoom = null; saveState(); });
addEventListener("hashchange", () => { readState(); connect(); changed(); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { $("legend").dataset.shape = ""; changed(); });
setInterval(() => { showRuns(); showBoards(); }, 1000);
readState();
connect();
changed();

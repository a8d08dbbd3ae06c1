  // ---- files of tables and figures -----------------------------------------------------------
  // A spreadsheet takes a text that starts like a formula for one; a quote before it makes it text.
  const guarded = (cell) => (/^[=+\-@\t\r]/.test(cell) && cell !== "-" && !Number.isFinite(Number(cell)) ? `'${cell}` : cell);
  const quoted = (cell) => (/[",\n]/.test(cell) ? `"${cell.replaceAll('"', '""')}"` : cell);
  const csv = (rows) => rows.map((row) => row.map((cell) => quoted(guarded(String(cell ?? "").trim()))).join(",")).join("\n") + "\n";

  function save(content, kind, name) {
    const link = document.createElement("a");
    link.href = content instanceof Blob ? URL.createObjectURL(content) : URL.createObjectURL(new Blob([content], { type: kind }));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }

  const plain = (name) => name.replace(/[^\w.=+-]+/g, "-").replace(/^-+|-+$/g, "").toLowerCase() || "table";

  function figureRows(panel) {
    const rows = [["method", "role", panel.x ? panel.x.title : "epoch", panel.unit || panel.view, "lowest", "highest"]];
    for (const s of panel.series) s.x.forEach((x, i) => rows.push([s.name || data.methods[s.method], s.role, x, s.y[i], s.lo?.[i], s.hi?.[i]]));
    return rows;
  }

  // Every number in a column of its own, with the ends of its interval, as in the files of `compare`.
  const shownRows = (table) => all("tr", table).filter((r) => !r.matches(".off")).map((r) => [...r.cells].flatMap((c) => JSON.parse(c.dataset.csv)));

  // The figure with what the page around it says: title, unit and a legend.
  async function saveFigure(plot, name) {
    if (!drawn.has(plot)) draw(plot);
    const { section, panel } = panelOf(plot), seen = new Set();
    const traces = plot.data.map((t) => {
      const label = t.name && t.fill !== "toself" ? t.name : "";
      const shown = Boolean(label) && !seen.has(label);
      seen.add(label);
      return { ...t, showlegend: shown };
    });
    const title = `${text(section.querySelector("h2").textContent)}: ${text(data.tasks[panel.task])}`;
    const unit = panel.percent ? `${panel.unit} (%)` : panel.unit || panel.view;
    const layout = { ...plot.layout, width: 720, height: 460 + 12 * seen.size, showlegend: true,
                     title: { text: title, font: { size: 16 } }, margin: { l: 70, r: 20, t: 50, b: 60 },
                     legend: { orientation: "h", y: -0.2 }, paper_bgcolor: css("--paper"), plot_bgcolor: css("--paper"),
                     yaxis: { ...plot.layout.yaxis, title: { text: text(unit) } } };
    Plotly.downloadImage({ data: traces, layout }, { format: "png", width: layout.width, height: layout.height, scale: 2, filename: name });
  }

  // The table as it stands, on a canvas: texts, keys and intervals.
  function tablePicture(table) {
    const box = table.getBoundingClientRect(), two = 2, canvas = document.createElement("canvas");
    canvas.width = two * (box.width + 16); canvas.height = two * (box.height + 36);
    const pen = canvas.getContext("2d");
    pen.scale(two, two);
    pen.fillStyle = css("--paper"); pen.fillRect(0, 0, box.width + 16, box.height + 36);
    pen.textBaseline = "middle"; pen.translate(8 - box.left, 8 - box.top);
    for (const cell of all("th, td", table)) {
      const at = cell.getBoundingClientRect(), style = getComputedStyle(cell);
      if (!at.height || style.color === "rgba(0, 0, 0, 0)") continue;
      const words = cell.innerText.trim(), mark = cell.querySelector("svg.key");
      pen.font = `${style.fontWeight} ${style.fontSize} ${style.fontFamily}`; pen.fillStyle = style.color;
      const right = style.textAlign === "right";
      pen.textAlign = right ? "right" : "left";
      const from = right ? at.right - parseFloat(style.paddingRight) : mark ? mark.getBoundingClientRect().right + 8 : at.left + parseFloat(style.paddingLeft);
      pen.fillText(words.replace(/\s+/g, " "), from, at.top + at.height / 2);
    }
    for (const shape of all("svg line, svg circle", table)) {
      const on = shape.ownerSVGElement.getBoundingClientRect(), style = getComputedStyle(shape), number = (a) => Number(shape.getAttribute(a));
      if (!on.height) continue;
      pen.beginPath(); pen.globalAlpha = Number(style.opacity);
      if (shape.tagName === "circle") { pen.fillStyle = style.fill; pen.arc(on.left + number("cx"), on.top + number("cy"), number("r"), 0, 7); pen.fill(); }
      else { pen.strokeStyle = style.stroke; pen.lineWidth = parseFloat(style.strokeWidth);
             pen.moveTo(on.left + number("x1"), on.top + number("y1")); pen.lineTo(on.left + number("x2"), on.top + number("y2")); pen.stroke(); }
      pen.globalAlpha = 1;
    }
    pen.fillStyle = css("--soft"); pen.font = "11px sans-serif"; pen.textAlign = "left";
    pen.fillText(data.synthetic, box.left, box.bottom + 14);
    return canvas;
  }

  function offer(place, name, asCsv, asPng) {
    for (const [title, make] of [["CSV", asCsv], ["PNG", asPng]]) {
      const button = document.createElement("button");
      button.type = "button"; button.textContent = title; button.setAttribute("aria-label", `${title} of ${name}`);
      button.addEventListener("click", make);
      place.append(button);
    }
  }

  function offerFiles() {
    for (const plot of all(".plot")) {
      const name = plain(plot.getAttribute("aria-label"));
      offer(plot.closest("figure").querySelector(".tools"), name,
        () => save(csv(figureRows(panelOf(plot).panel)), "text/csv", `${name}.csv`), () => saveFigure(plot, name));
    }
    for (const table of all("table[data-name]")) {
      const name = plain(table.dataset.name);
      offer(table.parentElement.previousElementSibling, name,
        () => save(csv(shownRows(table)), "text/csv", `${name}.csv`),
        () => tablePicture(table).toBlob((blob) => save(blob, "image/png", `${name}.png`)));
    }
  }
  offerFiles();

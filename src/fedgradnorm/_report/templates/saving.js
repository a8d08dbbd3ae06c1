  // ---- files of tables and figures -----------------------------------------------------------
  // A spreadsheet takes a text that starts like a formula for one; a quote before it makes it text.
  const guarded = (cell) => (/^[=+\-@\t\r]/.test(cell) && cell !== "-" && !Number.isFinite(Number(cell)) ? `'${cell}` : cell);
  const quoted = (cell) => (/[",\n]/.test(cell) ? `"${cell.replaceAll('"', '""')}"` : cell);
  const csv = (rows) => rows.map((row) => row.map((cell) => quoted(guarded(String(cell ?? "").trim()))).join(",")).join("\n") + "\n";

  function save(content, kind, name) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([content], { type: kind }));
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

  function offer(place, name, makes) {
    for (const [title, make] of Object.entries(makes)) {
      const button = document.createElement("button");
      button.type = "button"; button.textContent = title; button.setAttribute("aria-label", `${title} of ${name}`);
      button.addEventListener("click", make);
      place.append(button);
    }
  }

  function offerFiles() {
    for (const plot of all(".plot")) {
      const name = plain(plot.getAttribute("aria-label"));
      offer(plot.closest("figure").querySelector(".tools"), name, {
        CSV: () => save(csv(figureRows(panelOf(plot).panel)), "text/csv", `${name}.csv`),
        PNG: () => saveFigure(plot, name),
      });
    }
    for (const table of all("table[data-name]")) {
      const name = plain(table.dataset.name);
      offer(table.parentElement.previousElementSibling, name,
        { CSV: () => save(csv(shownRows(table)), "text/csv", `${name}.csv`) });
    }
  }
  offerFiles();

  // ---- files of tables and figures -----------------------------------------------------------
  const quoted = (cell) => (/[",\n]/.test(cell) ? `"${cell.replaceAll('"', '""')}"` : cell);
  const csv = (rows) => rows.map((row) => row.map((cell) => quoted(String(cell ?? "").trim())).join(",")).join("\n") + "\n";

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

  const shownRows = (table) => all("tr", table).filter((r) => !r.matches(".off")).map((r) => [...r.cells].map((c) => c.textContent));

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
    const box = document.createElement("span");
    box.className = "take";
    for (const [title, make] of [["CSV", asCsv], ["PNG", asPng]]) {
      const button = document.createElement("button");
      button.type = "button"; button.textContent = title; button.setAttribute("aria-label", `${title} of ${name}`);
      button.addEventListener("click", (event) => { event.preventDefault(); make(); });
      box.append(button);
    }
    place.append(box);
  }

  function offerFiles() {
    for (const plot of all(".plot")) {
      const name = plain(plot.getAttribute("aria-label"));
      offer(plot.closest("figure").querySelector("figcaption"), name, () => save(csv(figureRows(panelOf(plot).panel)), "text/csv", `${name}.csv`),
        () => { if (!drawn.has(plot)) draw(plot); Plotly.downloadImage(plot, { format: "png", width: plot.clientWidth, height: plot.clientHeight, scale: 3, filename: name }); });
    }
    for (const table of all(".scroll > table")) {
      const fold = table.closest("details, figure"), heading = fold?.querySelector("summary, figcaption") || table.closest("section")?.querySelector("h2");
      if (!heading) continue;
      const name = plain(heading.textContent);
      offer(heading, name, () => save(csv(shownRows(table)), "text/csv", `${name}.csv`), () => {
        if (fold && "open" in fold) fold.open = true;
        tablePicture(table).toBlob((blob) => save(blob, "image/png", `${name}.png`));
      });
    }
  }
  offerFiles();

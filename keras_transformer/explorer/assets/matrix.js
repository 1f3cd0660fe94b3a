// Attention as matrices: one with numbers, and a small one for each head of each layer.

/** Makes a table of the mean of some heads' weights. */
function drawMatrix(rows, columns, heads) {
  const isLarge = columns.length > 24 || rows.length > 40;
  const body = rows.map((row, i) =>
    element(
      "tr",
      {},
      element("th", { scope: "row", textContent: row.text }),
      ...columns.map((column, j) => {
        const weight = heads.reduce((sum, { weights }) => sum + weights[i][j], 0) / (heads.length || 1);
        return element("td", {
          textContent: Math.round(100 * weight) || "",
          title: `${row.text} → ${column.text} ${percent(weight)}`,
          className: weight > 0.5 ? "strong" : "",
          style: `--weight: ${(100 * weight).toFixed(1)}%`,
        });
      }),
    ),
  );
  const header = columns.map((column) =>
    element("th", { scope: "col" }, element("span", { textContent: column.text })),
  );
  return element(
    "table",
    { className: isLarge ? "matrix large" : "matrix", "aria-label": "Mean of the heads shown, in percent" },
    element("thead", {}, element("tr", {}, element("td", { style: "visibility: hidden" }), ...header)),
    element("tbody", {}, ...body),
  );
}

/** Makes a grid of all layers and heads; `choose(layer, head)` is called for the one clicked on. */
function drawOverview(attention, shownLayer, shownHeads, hue, choose) {
  const grid = element("div", {
    className: "overview",
    style: `grid-template-columns: auto repeat(${attention.heads}, auto)`,
  });
  grid.append(element("span"));
  for (let head = 0; head < attention.heads; head++) grid.append(element("span", { textContent: head + 1 }));
  for (let layer = 0; layer < attention.layers; layer++) {
    grid.append(element("span", { textContent: `layer ${layer + 1}` }));
    for (let head = 0; head < attention.heads; head++) {
      const button = element(
        "button",
        {
          type: "button",
          className: "head",
          "aria-label": `Layer ${layer + 1}, head ${head + 1}`,
          "aria-pressed": layer === shownLayer && shownHeads.has(head),
          style: `--hue: ${hue(head)}`,
          onclick: () => choose(layer, head),
        },
        paint(attention, layer, head),
      );
      grid.append(button);
    }
  }
  return grid;
}

function paint(attention, layer, head) {
  const width = attention.columns.length;
  const height = attention.rows.length;
  const canvas = element("canvas", { width, height });
  const context = canvas.getContext("2d");
  const image = context.createImageData(width, height);
  const [red, green, blue] = accentColor();
  for (let i = 0; i < height; i++) {
    for (let j = 0; j < width; j++) {
      const alpha = 255 * Math.sqrt(attention.at(layer, head, i, j));
      image.data.set([red, green, blue, alpha], 4 * (i * width + j));
    }
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

function accentColor() {
  const probe = element("span", { style: "color: var(--accent)" });
  document.body.append(probe);
  const numbers = getComputedStyle(probe).color.match(/[\d.]+/g).slice(0, 3).map(Number);
  probe.remove();
  return numbers;
}

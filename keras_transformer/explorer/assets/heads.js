// A table of what each head does.

const SHARES = { previous: "previous", diagonal: "same place", next: "next", end: "end" };
const NUMBERS = { entropy: "entropy, bits", distance: "mean distance" };

/**
 * Makes the table, sorted by one of its columns.
 *
 * @param statistics name -> [layer][head]
 * @param end what the share "end" is of: "EOS" or "BOS"
 * @param sorting {column}, changed by a click on a header; null means the order of the heads
 * @param choose called with the layer and head that were clicked on
 */
function drawStatistics(statistics, end, shownLayer, shownHeads, hue, sorting, choose) {
  const names = { ...SHARES, end, ...NUMBERS };
  const rows = statistics.entropy.flatMap((heads, layer) =>
    heads.map((_, head) => {
      const values = Object.fromEntries(Object.keys(names).map((name) => [name, statistics[name][layer][head]]));
      return { layer, head, values };
    }),
  );
  if (sorting.column) rows.sort((a, b) => b.values[sorting.column] - a.values[sorting.column]);
  const table = element("table");
  const redraw = () =>
    table.closest(".statistics").replaceWith(
      drawStatistics(statistics, end, shownLayer, shownHeads, hue, sorting, choose),
    );
  const header = (name, text) => {
    const sort = () => {
      sorting.column = name;
      const scroller = table.closest(".model");
      redraw();
      scroller.querySelector(`[data-column="${name ?? ""}"]`).focus();
    };
    const button = element("button", { type: "button", textContent: text, onclick: sort, "data-column": name ?? "" });
    const cell = element("th", { scope: "col" }, button);
    if (sorting.column === name) cell.setAttribute("aria-sort", name ? "descending" : "ascending");
    return cell;
  };
  const body = rows.map(({ layer, head, values }) => {
    const button = element("button", {
      type: "button",
      className: "head",
      style: `--hue: ${hue(head)}`,
      textContent: `${layer + 1}.${head + 1}`,
      onclick: () => choose(layer, head),
      "aria-label": `Layer ${layer + 1}, head ${head + 1}: show it alone`,
    });
    const shares = Object.keys(SHARES).map((name) =>
      element("td", {
        className: "share",
        textContent: percent(values[name]),
        style: `--share: ${100 * values[name]}%`,
      }),
    );
    const numbers = Object.keys(NUMBERS).map((name) => element("td", { textContent: values[name].toFixed(2) }));
    return element(
      "tr",
      { className: layer === shownLayer && shownHeads.has(head) ? "shown" : "" },
      element("th", { scope: "row" }, button),
      element("td", { className: "role", textContent: describeHead(values, end) }),
      ...shares,
      ...numbers,
    );
  });
  const headers = Object.entries(names).map(([name, text]) => header(name, text));
  table.append(
    element("caption", {
      textContent: `Means over all tokens of the sentences here. "Same place" is the diagonal of the matrix, from corner to corner; a distance is from there, in tokens.`,
    }),
    element("thead", {}, element("tr", {}, header(null, "layer.head"), element("th", { scope: "col", textContent: "mostly" }), ...headers)),
    element("tbody", {}, ...body),
  );
  return element("div", { className: "scroll statistics", tabIndex: 0, role: "region", "aria-label": "What each head does" }, table);
}

/** Says in words what a head does: where half of its weight is, or over how many tokens it spreads. */
function describeHead(values, end) {
  const names = { previous: "previous token", diagonal: "same place", next: "next token", end };
  const [best] = Object.keys(names).sort((a, b) => values[b] - values[a]);
  if (values[best] >= 0.5) return names[best];
  const count = 2 ** values.entropy;
  return `spread over ${count.toFixed(count < 9.5 ? 1 : 0)} tokens`;
}

// The soft dependency graph: arcs between words, one color for each head.

const GAPS = [16, 52]; // between words: the least, and the most
const WIDTH = 640; // that the words of short sentences fill
const TOKEN_HEIGHT = 26;

/**
 * Draws the arcs of some heads.
 *
 * @param rows, columns groups of tokens; the same object for self-attention
 * @param heads [{head, hue, weights}], weights as rows
 * @param threshold the least weight that is drawn
 * @param read called with text that says what is under the pointer or the focus
 */
function drawGraph(rows, columns, heads, threshold, read) {
  const isSelf = rows === columns;
  const columnPlaces = placeTokens(columns);
  const rowPlaces = isSelf ? columnPlaces : placeTokens(rows);
  const arcs = listArcs(heads, threshold, rowPlaces, columnPlaces);
  const [above, below] = isSelf ? roomFor(arcs) : [18, 18];
  const top = above; // of the row of columns
  const bottom = isSelf ? top : top + 190;
  const width = Math.max(rowPlaces.width, columnPlaces.width) + 8;
  const height = bottom + TOKEN_HEIGHT + below;
  const svg = shape("svg", { width, height, role: "group", "aria-label": "Soft dependency graph" });
  for (const arc of arcs) {
    const text = `Head ${arc.head + 1}: ${rows[arc.i].text} → ${columns[arc.j].text} ${percent(arc.weight)}`;
    arc.path = shape("path", {
      d: isSelf ? selfArc(arc, top) : crossArc(arc, top + TOKEN_HEIGHT, bottom),
      class: "arc head",
      style: `--hue: ${arc.hue}`,
      "stroke-width": 0.8 + 4.2 * arc.weight,
      "stroke-opacity": 0.3 + 0.7 * arc.weight,
      "aria-hidden": true,
    });
    arc.path.addEventListener("pointerenter", () => read(text));
    arc.path.addEventListener("pointerleave", () => read(""));
    svg.append(arc.path);
  }

  const show = (keep, text) => {
    for (const arc of arcs) arc.path.classList.toggle("dim", !keep(arc));
    read(text);
  };
  const showAll = () => show(() => true, "");
  const tokenRow = (groups, place, y, ends, say) => {
    const made = groups.map((group, index) => {
      const token = drawToken(group.text, place.centers[index], place.widths[index], y, say(index));
      const focus = () => show((each) => each[ends] === index, say(index));
      token.addEventListener("pointerenter", focus);
      token.addEventListener("focus", focus);
      token.addEventListener("pointerleave", showAll);
      token.addEventListener("blur", showAll);
      return token;
    });
    useArrowKeys(made, (index, key) => index + ({ ArrowRight: 1, ArrowLeft: -1 }[key] ?? NaN));
    svg.append(...made);
  };
  const reads = (i) => `${rows[i].text} reads ${ranked(heads.map(({ weights }) => weights[i]), columns)}`;
  const isRead = (j) =>
    `${columns[j].text} is read by ${ranked(heads.map(({ weights }) => weights.map((row) => row[j])), rows)}`;
  if (isSelf) {
    tokenRow(rows, rowPlaces, top, "i", reads);
  } else {
    tokenRow(columns, columnPlaces, top, "j", isRead);
    tokenRow(rows, rowPlaces, bottom, "i", reads);
    svg.append(shape("text", { x: 4, y: 12, class: "row-name" }, "source"));
    svg.append(shape("text", { x: 4, y: height - 4, class: "row-name" }, "translation"));
  }
  return svg;
}

function placeTokens(groups) {
  const widths = groups.map((group) => Math.max(textWidth(group.text), 10) + 6);
  const total = widths.reduce((sum, width) => sum + width, 0);
  const gap = Math.min(GAPS[1], Math.max(GAPS[0], (WIDTH - total) / groups.length));
  let left = 8;
  const centers = widths.map((width) => {
    const center = left + width / 2;
    left += width + gap;
    return center;
  });
  return { widths, centers, width: left - gap };
}

/** Returns the arcs of all heads, those of one pair of words side by side. */
function listArcs(heads, threshold, rowPlaces, columnPlaces) {
  return heads.flatMap(({ head, hue, weights }, index) => {
    const shift = (index - (heads.length - 1) / 2) * Math.min(2.4, 14 / heads.length);
    return weights.flatMap((row, i) =>
      row.flatMap((weight, j) =>
        weight < threshold
          ? []
          : { head, hue, index, weight, i, j, from: rowPlaces.centers[i] + shift, to: columnPlaces.centers[j] + shift },
      ),
    );
  });
}

/** Returns the height that arcs need above and below the words. */
function roomFor(arcs) {
  const most = (some) => some.reduce((height, arc) => Math.max(height, rise(arc) + 8), 16);
  return [most(arcs.filter(({ i, j }) => j <= i)), most(arcs.filter(({ i, j }) => j > i))];
}

function rise({ i, j, from, to, index }) {
  return i === j ? 12 + 2.5 * index : 16 + 210 * (1 - Math.exp(-Math.abs(from - to) / 500));
}

/** An arc above the words to an earlier one, below them to a later one, a loop to itself. */
function selfArc(arc, top) {
  const { i, j, from, to } = arc;
  const y = j <= i ? top : top + TOKEN_HEIGHT;
  const control = y + ((j <= i ? -1 : 1) * rise(arc)) / 0.75; // a curve reaches 3/4 of the way to it
  const lean = i === j ? 3 + 0.8 * arc.index : 0;
  return `M${from - lean} ${y} C${from - 3 * lean} ${control} ${to + 3 * lean} ${control} ${to + lean} ${y}`;
}

function crossArc({ from, to }, top, bottom) {
  const middle = (top + bottom) / 2;
  return `M${from} ${bottom} C${from} ${middle} ${to} ${middle} ${to} ${top}`;
}

function drawToken(text, center, width, y, label) {
  return shape(
    "g",
    { class: "token", role: "img", "aria-label": label },
    shape("rect", { x: center - width / 2, y, width, height: TOKEN_HEIGHT, rx: 5 }),
    shape("text", { x: center, y: y + 18, "text-anchor": "middle" }, text),
  );
}

/** Says what the mean of some heads' weights is largest for: "a 52%, horse 31%". */
function ranked(rows, groups) {
  if (!rows.length) return "nothing: no head is shown";
  return groups
    .map((group, index) => [rows.reduce((sum, row) => sum + row[index], 0) / rows.length, group.text])
    .sort(([a], [b]) => b - a)
    .slice(0, 4)
    .filter(([weight]) => weight >= 0.005)
    .map(([weight, text]) => `${text} ${percent(weight)}`)
    .join(", ");
}

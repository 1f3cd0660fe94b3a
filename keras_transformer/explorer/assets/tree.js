// The search for a translation: a column for each step, a node for each hypothesis that was open.

const NODE_HEIGHT = 34;
const NODE_GAP = 8;
const EDGE = 26;

/** Makes the drawing, the list of translations, and the table of a hypothesis's candidates. */
function drawTree(tree) {
  const nodes = layOut(tree);
  const visible = nodes.filter((node) => node.outcome !== "dropped");
  const width = Math.max(...visible.map((node) => node.x + node.width)) + 8;
  const height = Math.max(...visible.map((node) => node.y)) + NODE_HEIGHT + 8;
  const svg = shape("svg", { width, height, class: "tree", role: "group", "aria-label": "Search tree" });
  const candidates = element("div", { "aria-live": "polite" });

  for (const node of visible) {
    if (!node.parent) continue;
    const [x1, y1] = [node.parent.x + node.parent.width, node.parent.y + NODE_HEIGHT / 2];
    const [x2, y2] = [node.x, node.y + NODE_HEIGHT / 2];
    const middle = x2 - EDGE / 2;
    node.edge = shape("path", { class: "edge", d: `M${x1} ${y1} H${x2 - EDGE} C${middle} ${y1} ${middle} ${y2} ${x2} ${y2}` });
    svg.append(node.edge);
  }
  const choose = (node) => {
    for (const each of visible) each.group.classList.toggle("focus", each === node);
    candidates.replaceChildren(listCandidates(node));
  };
  for (const node of visible) {
    node.group = drawNode(node);
    node.group.addEventListener("pointerenter", () => choose(node));
    node.group.addEventListener("focus", () => choose(node));
    svg.append(node.group);
  }
  useArrowKeys(
    visible.map((node) => node.group),
    (index, key) => visible.indexOf(neighbor(visible[index], key, visible)),
  );
  const highlight = (leaf) => {
    const path = new Set();
    for (let node = nodes[leaf]; node; node = node.parent) path.add(node);
    for (const node of visible) {
      node.group.classList.toggle("on", path.has(node));
      node.edge?.classList.toggle("on", path.has(node));
    }
    for (const node of path) if (node.edge) svg.prepend(node.edge);
    for (const node of [...path]) if (node.edge) node.edge.parentNode.insertBefore(node.edge, visible[0].group);
  };
  const list = listTranslations(tree.translations, highlight);
  highlight(tree.translations[0].node);
  choose(nodes[0]);
  return [
    element("div", { className: "scroll", tabIndex: -1 }, svg),
    element("div", { className: "below" }, candidates, list),
  ];
}

/** Gives nodes their parents, children and places: hypotheses as the beam ranks them, then those that ended. */
function layOut(tree) {
  const nodes = tree.nodes.map(([parent, token, logProb, outcome], index) => ({ index, parent, token, logProb, outcome, children: [] }));
  const steps = [];
  for (const node of nodes) {
    node.parent = nodes[node.parent];
    node.parent?.children.push(node);
    node.step = node.parent ? node.parent.step + 1 : 0;
    node.total = node.parent ? node.parent.total + node.logProb : 0;
    node.text = node.parent ? textInWord(node) : "start";
    if (node.outcome !== "dropped") (steps[node.step] ??= []).push(node);
  }
  let x = 4;
  for (const step of steps) {
    step.sort((a, b) => (a.outcome === "finished") - (b.outcome === "finished") || b.total - a.total);
    const width = Math.max(...step.map((node) => textWidth(node.text, 14)), 30) + 16;
    step.forEach((node, rank) => Object.assign(node, { x, width, y: 4 + rank * (NODE_HEIGHT + NODE_GAP) }));
    x += width + EDGE;
  }
  return nodes;
}

/** A token's text, with a dot before one that continues a word. */
function textInWord({ parent, token }) {
  const continues = isContinuation([parent.parent ? parent.token : "<s>", token], 1);
  return (continues ? "·" : "") + (token.replace(WORD_START, "") || "␣");
}

function drawNode(node) {
  const { x, y, width } = node;
  const group = shape("g", { class: `node ${node.outcome}`, role: "img", "aria-label": describeNode(node) });
  group.append(
    shape("rect", { x, y, width, height: NODE_HEIGHT, rx: 6 }),
    shape("text", { x: x + width / 2, y: y + (node.parent ? 16 : 22), "text-anchor": "middle" }, node.text),
  );
  if (node.parent) {
    const chance = percent(Math.exp(node.logProb));
    group.append(shape("text", { x: x + width / 2, y: y + 29, "text-anchor": "middle", class: "chance" }, chance));
  }
  return group;
}

function textOf(node) {
  const tokens = [];
  for (let each = node; each.parent; each = each.parent) tokens.unshift(each.token);
  return tokens.join("").replaceAll(WORD_START, " ").trim();
}

function describeNode(node) {
  if (!node.parent) return "Start of the search";
  const what = node.outcome === "finished" ? "ended" : "open";
  return `Step ${node.step}, ${what}: ${textOf(node)}, ${percent(Math.exp(node.logProb))}`;
}

function listCandidates(node) {
  const outcomes = { kept: "in the beam", finished: "translation", dropped: "dropped" };
  const rows = node.children.map((child) =>
    element(
      "tr",
      { className: child.outcome },
      element("th", { scope: "row", textContent: child.text }),
      element("td", { textContent: percent(Math.exp(child.logProb)) }),
      element("td", {}, element("span", { className: "bar", style: `width: ${(7 * Math.exp(child.logProb)).toFixed(2)}rem` })),
      element("td", { textContent: outcomes[child.outcome] }),
      element("td", { textContent: child.total.toFixed(2) }),
    ),
  );
  let title = node.parent ? `After “${textOf(node)}”` : "First token";
  if (!rows.length) title += node.outcome === "finished" ? ": complete" : ": open when the search was done";
  const header = ["token", "probability", "", "outcome", "log-probability of all"];
  const head = element("thead", {}, element("tr", {}, ...header.map((text) => element("th", { scope: "col", textContent: text }))));
  const table = element("table", { className: "candidates" }, element("caption", { textContent: title }));
  if (rows.length) table.append(head, element("tbody", {}, ...rows));
  return table;
}

let lists = 0; // of translations, for the names of their radio buttons

function listTranslations(translations, highlight) {
  const name = `translation-${lists++}`;
  const items = translations.map(({ text, score, node }, index) =>
    element(
      "li",
      {},
      element(
        "label",
        {},
        element("input", { type: "radio", name, checked: index === 0, onchange: () => highlight(node) }),
        element("span", { className: "score", textContent: score.toFixed(2) }),
        element("span", { textContent: text || "(empty)" }),
      ),
    ),
  );
  return element(
    "div",
    {},
    element("p", { className: "faint", textContent: "Translations with their scores; the path of one is shown in green." }),
    element("ol", { className: "n-best" }, ...items),
  );
}

function neighbor(node, key, visible) {
  const column = visible.filter((other) => other.step === node.step).sort((a, b) => a.y - b.y);
  const rank = column.indexOf(node);
  const best = node.children.filter((child) => child.outcome !== "dropped").sort((a, b) => a.y - b.y);
  return { ArrowLeft: node.parent, ArrowRight: best[0], ArrowUp: column[rank - 1], ArrowDown: column[rank + 1] }[key];
}

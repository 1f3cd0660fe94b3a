// The page: its controls, and a card for each model.

const KINDS = { encoder: "Encoder", decoder: "Decoder", cross: "Cross" };
const HINTS = {
  encoder: "Each source word reads others of the source: above the words an earlier one, below them a later one.",
  decoder: "Each word that the decoder has read so far reads earlier ones; <s> stands before the first.",
  cross: "Each word of the translation reads the source, at the moment when it is predicted.",
};
const byId = (id) => document.getElementById(id);

let content = null;
const unpacked = new Map(); // view and kind -> weights
const shown = { sentence: null, kind: "cross", layer: 0, heads: new Set(), joined: true, sorting: { column: null } };

const views = () => content.views.filter((view) => view.sentence === shown.sentence);
const attentionOf = (view, kind = shown.kind) => unpacked.get(view)[kind];
const threshold = () => Number(byId("threshold").value) / 100;

/** The hue of a head's color: neighbors are far apart. */
function hueOf(head) {
  return (25 + head * 137.508) % 360;
}

async function load(newContent) {
  content = newContent;
  unpacked.clear();
  for (const view of content.views) {
    const entries = Object.entries(view.attentions).map(async ([kind, packed]) => [kind, await unpack(packed)]);
    unpacked.set(view, Object.fromEntries(await Promise.all(entries)));
  }
  shown.sentence = content.sentences[0];
  const kinds = Object.keys(KINDS).filter((kind) => content.views.some((view) => view.attentions[kind]));
  if (!kinds.includes(shown.kind)) shown.kind = kinds[0];
  byId("main").hidden = false;
  chips("sentences", content.sentences.map((text) => [text, text]), () => shown.sentence, (text) => (shown.sentence = text));
  byId("sentences").hidden = content.sentences.length < 2;
  chips("kinds", kinds.map((kind) => [kind, KINDS[kind]]), () => shown.kind, chooseKind);
  const pieces = content.views.flatMap((view) => Object.values(view.attentions));
  byId("words").hidden = !pieces.some(({ rows }) => rows.some((_, index) => isContinuation(rows, index)));
  chooseKind(shown.kind);
  render();
}

/** Fills a fieldset with radio buttons. */
function chips(id, choices, current, choose) {
  const made = choices.map(([value, text]) => {
    const input = element("input", { type: "radio", name: id, value, checked: value === current() });
    input.addEventListener("change", () => {
      choose(value);
      render();
    });
    return element("label", { className: "chip", title: text }, input, element("span", { textContent: text }));
  });
  byId(id).replaceChildren(byId(id).firstElementChild, ...made);
}

function chooseKind(kind) {
  shown.kind = kind;
  const shapes = content.views.filter((view) => view.attentions[kind]).map((view) => attentionOf(view));
  const layers = Math.max(...shapes.map((each) => each.layers));
  const heads = Math.max(...shapes.map((each) => each.heads));
  if (shown.layer >= layers || shown.layer === null) shown.layer = layers - 1;
  const old = [...shown.heads].filter((head) => head < heads);
  shown.heads = new Set(old.length ? old : Array.from({ length: heads }).keys());
  chips("layers", Array.from({ length: layers }, (_, layer) => [layer, String(layer + 1)]), () => shown.layer, (layer) => (shown.layer = layer));
  headChips(heads);
}

function headChips(count) {
  const boxes = Array.from({ length: count }, (_, head) => {
    const input = element("input", { type: "checkbox", value: head, checked: shown.heads.has(head) });
    input.addEventListener("change", () => {
      shown.heads[input.checked ? "add" : "delete"](head);
      render();
    });
    const label = element("span", { textContent: head + 1 });
    return element("label", { className: "chip head", style: `--hue: ${hueOf(head)}` }, input, label);
  });
  const all = element("button", { type: "button", textContent: "all" });
  all.addEventListener("click", () => {
    const isAll = shown.heads.size === count;
    shown.heads = new Set(isAll ? [] : Array(count).keys());
    headChips(count);
    byId("heads").querySelector("button").focus();
    render();
  });
  if (shown.heads.size === count) all.textContent = "none";
  byId("heads").replaceChildren(byId("heads").firstElementChild, ...boxes, ...(count > 1 ? [all] : []));
}

/** Shows one head alone. */
function chooseHead(layer, head) {
  shown.layer = layer;
  shown.heads = new Set([head]);
  chooseKind(shown.kind);
  render();
}

function render() {
  byId("threshold-value").textContent = `${byId("threshold").value}% of a word’s attention`;
  const places = [...document.querySelectorAll(".scroll")].map((each) => [each.scrollLeft, each.scrollTop]);
  byId("models").replaceChildren(...views().map(drawModel));
  document.querySelectorAll(".scroll").forEach((each, index) => {
    if (places[index]) [each.scrollLeft, each.scrollTop] = places[index];
  });
}

function drawModel(view) {
  const card = element("section", { className: "model", "aria-label": view.model });
  card.append(
    element("h2", { textContent: view.model }),
    element("p", { className: "faint sentence", textContent: view.sentence }),
    element("p", { className: "translation", textContent: view.translation }),
  );
  const attention = attentionOf(view);
  if (attention && shown.layer < attention.layers) card.append(...drawAttention(view, attention));
  else card.append(element("p", { className: "faint", textContent: "This model has no such attention." }));
  for (const [side, counts] of Object.entries(view.steps)) card.append(drawSteps(view, side, counts));
  if (view.tree) {
    card.append(
      element("h3", { textContent: "Search" }),
      element("p", {
        className: "faint",
        textContent: "A column for each step: the hypotheses in the beam, the most probable at the top, each with the probability of its last token. A dashed frame ends a translation.",
      }),
      ...drawTree(view.tree),
    );
  }
  return card;
}

function drawAttention(view, attention) {
  const rows = groupTokens(attention.rows, shown.joined);
  const columns = shown.kind === "cross" ? groupTokens(attention.columns, shown.joined) : rows;
  const heads = [...shown.heads]
    .filter((head) => head < attention.heads)
    .sort((a, b) => a - b)
    .map((head) => ({ head, hue: hueOf(head), weights: groupWeights(attention, shown.layer, head, rows, columns) }));
  const reading = element("p", { className: "faint reading", role: "status" });
  const hint = `${HINTS[shown.kind]} Point at a word or an arc, or move between words with the arrow keys.`;
  // One by one: a call takes no more than some 100,000 arguments.
  const largest = heads.flatMap(({ weights }) => weights.flat()).reduce((most, weight) => Math.max(most, weight), 0);
  const tooFaint = `The largest weight is ${percent(largest)}: lower “Hide weights below” to see arcs.`;
  const read = (text) => (reading.textContent = text || (largest < threshold() ? tooFaint : hint));
  read("");
  const statistics = content.models.find(({ name }) => name === view.model).heads[shown.kind];
  const end = shown.kind === "decoder" ? "BOS" : "EOS";
  const graph = drawGraph(rows, columns, heads, threshold(), read);
  const overview = drawOverview(attention, shown.layer, shown.heads, hueOf, chooseHead);
  const table = drawStatistics(statistics, end, shown.layer, shown.heads, hueOf, shown.sorting, chooseHead);
  return [
    element(
      "div",
      { className: "side-by-side" },
      part("Soft dependency graph", element("div", { className: "scroll" }, graph), reading),
      part(
        "Matrix",
        element("p", { className: "faint", textContent: "Mean of the heads shown, in percent; a row for each word that reads." }),
        element("div", { className: "scroll" }, drawMatrix(rows, columns, heads)),
      ),
    ),
    element(
      "div",
      { className: "side-by-side" },
      part("All layers and heads", element("div", { className: "scroll" }, overview)),
      part("What each head does", table),
    ),
  ];
}

/** Draws how many steps each token took before it halted. */
function drawSteps(view, side, counts) {
  const { rows } = attentionOf(view, side === "source" ? "encoder" : "decoder");
  const cells = rows.map((token, index) =>
    element(
      "td",
      { style: `--share: ${counts[index] / Math.max(...counts)}` },
      element("span", { textContent: token.replace(WORD_START, "") || "␣" }),
      element("strong", { textContent: counts[index] }),
    ),
  );
  const table = element("table", { className: "steps" }, element("tr", {}, ...cells));
  return part(`Steps of each token of the ${side}`, element("div", { className: "scroll" }, table));
}

function part(title, ...children) {
  return element("div", {}, element("h3", { textContent: title }), ...children);
}

byId("controls").addEventListener("submit", (event) => event.preventDefault());
byId("threshold").addEventListener("input", render);
byId("join").addEventListener("change", () => {
  shown.joined = byId("join").checked;
  render();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => content && render());

load(JSON.parse(byId("data").textContent));

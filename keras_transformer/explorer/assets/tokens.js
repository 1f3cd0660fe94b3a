// Tokens and weights, and elements to show them.

const WORD_START = "▁";

/** Turns packed weights into {shape, rows, columns, at(layer, head, row, column)}. */
async function unpack(packed) {
  const bytes = Uint8Array.from(atob(packed.data), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const values = new Uint8Array(await new Response(stream).arrayBuffer());
  const [layers, heads, rows, columns] = packed.shape;
  const at = (layer, head, row, column) =>
    values[((layer * heads + head) * rows + row) * columns + column] / 255;
  return { layers, heads, rows: packed.rows, columns: packed.columns, at };
}

function isContinuation(tokens, index) {
  const token = tokens[index];
  const isSpecial = /^<.*>$/.test(token) || /^<.*>$/.test(tokens[index - 1] ?? "<>");
  if (isSpecial || /^\p{P}+$/u.test(token)) return false;
  return !token.startsWith(WORD_START) || tokens[index - 1].endsWith("@@");
}

/** Returns the groups of tokens to show, each {text, members}. */
function groupTokens(tokens, joined) {
  const groups = [];
  tokens.forEach((token, index) => {
    const continues = isContinuation(tokens, index);
    const text = token.replace(WORD_START, "");
    if (continues && joined) {
      const last = groups.at(-1);
      last.text = last.text.replace(/@@$/, "") + text;
      last.members.push(index);
    } else {
      groups.push({ text: (continues && !joined ? "·" : "") + (text || "␣"), members: [index] });
    }
  });
  return groups;
}

/** Returns weights between groups as rows: sums over what is read, means over what reads. */
function groupWeights(attention, layer, head, rows, columns) {
  return rows.map((row) =>
    columns.map((column) => {
      let sum = 0;
      for (const i of row.members) for (const j of column.members) sum += attention.at(layer, head, i, j);
      return sum / row.members.length;
    }),
  );
}

function percent(weight) {
  return `${(100 * weight).toFixed(weight < 0.1 ? 1 : 0)}%`;
}

/** Makes an HTML element; properties that start with "aria", "data" or "style" are attributes. */
function element(name, properties = {}, ...children) {
  return fill(document.createElement(name), properties, children);
}

/** Makes an SVG element. */
function shape(name, attributes = {}, ...children) {
  const made = document.createElementNS(document.getElementById("svg").namespaceURI, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function fill(made, properties, children) {
  for (const [key, value] of Object.entries(properties)) {
    if (/^(aria-|data-|style$|role$|scope$|colspan$)/.test(key)) made.setAttribute(key, value);
    else made[key] = value;
  }
  made.append(...children);
  return made;
}

const textMeasure = document.createElement("canvas").getContext("2d");

function textWidth(text, size = 14) {
  textMeasure.font = `${size}px ${getComputedStyle(document.body).fontFamily}`;
  return textMeasure.measureText(text).width;
}

/** Lets arrow keys move between elements of which one at a time can be reached with Tab. */
function useArrowKeys(elements, move) {
  elements.forEach((each, index) => {
    each.setAttribute("tabindex", index === 0 ? 0 : -1);
    each.addEventListener("keydown", (event) => {
      const target = elements[move(index, event.key)];
      if (!target) return;
      event.preventDefault();
      elements.forEach((other) => other.setAttribute("tabindex", other === target ? 0 : -1));
      target.focus();
    });
  });
}

"use strict";
// Pictures of pixels and of codes, in the colors of the style sheet.

const CODE_COLUMNS = 6;

const colors = new Map();  // reading a style makes the browser compute the layout again

function color(name) {
  if (!colors.has(name))
    colors.set(name, getComputedStyle(document.documentElement).getPropertyValue(name).trim());
  return colors.get(name);
}

/** Returns the cleared context of a canvas in the pixels of the screen, and its width and height. */
function sized(canvas) {
  const width = Math.max(1, Math.round(canvas.clientWidth * devicePixelRatio));
  const height = Math.max(1, Math.round(canvas.clientHeight * devicePixelRatio));
  if (canvas.width !== width || canvas.height !== height) [canvas.width, canvas.height] = [width, height];
  const context = canvas.getContext("2d");
  context.clearRect(0, 0, width, height);
  return { context, width, height };
}

function channels(name) {
  const hex = color(name);
  return [1, 3, 5].map(at => parseInt(hex.slice(at, at + 2), 16));
}

/** Returns the color between two variables of the style sheet. */
function mixed(from, to, share) {
  const ends = [channels(from), channels(to)];
  return `rgb(${ends[0].map((value, channel) => Math.round(value + share * (ends[1][channel] - value))).join(" ")})`;
}

/** Draws rows of square cells, each with the color `fill(index)`. `gap`: pixels of the screen between cells. */
function drawCells(canvas, columns, rows, fill, gap = 0) {
  const { context, width, height } = sized(canvas), side = Math.min(width / columns, height / rows);
  const edge = number => Math.round(number * side);
  for (let row = 0; row < rows; row++) {
    for (let column = 0; column < columns; column++) {
      context.fillStyle = fill(row * columns + column);
      const [x, y] = [edge(column), edge(row)];
      context.fillRect(x, y, edge(column + 1) - x - gap, edge(row + 1) - y - gap);
    }
  }
}

const withoutValue = () => color("--sheet");  // only the gaps are seen

function drawPixels(canvas, pixels) {
  if (!pixels) return drawCells(canvas, SIDE, SIDE, withoutValue, devicePixelRatio);
  const shades = Array.from({ length: 65 }, (_, number) => mixed("--sheet", "--ink", number / 64));
  drawCells(canvas, SIDE, SIDE, at => shades[Math.round(pixels[at] * 64)]);
}

/** Returns the color of a number of a code: blue below 0, orange above. `limit` has the full color. */
function colorOf(value, limit) {
  return mixed("--sheet", value < 0 ? "--below" : "--above", Math.min(1, Math.abs(value) / limit));
}

function drawCode(canvas, code, limits) {
  if (!code) return drawCells(canvas, CODE_COLUMNS, limits.length / CODE_COLUMNS, withoutValue, devicePixelRatio);
  drawCells(canvas, CODE_COLUMNS, code.length / CODE_COLUMNS, at => colorOf(code[at], limits[at]), devicePixelRatio);
}

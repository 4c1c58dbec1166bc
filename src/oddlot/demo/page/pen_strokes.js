"use strict";
// From pen strokes to the 784 pixels of the network, centered and scaled as the digits of MNIST.

const BOX = 20;  // the digit fits into this many pixels, and keeps its aspect
const PEN = 2.4;  // width of the pen in pixels, as in MNIST
const SMALLEST = 0.12;  // a smaller drawing, such as a dot, is not enlarged further

function boundsOf(strokes) {
  const points = strokes.flat(), [xs, ys] = [points.map(([x]) => x), points.map(([, y]) => y)];
  const [left, right, top, bottom] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
  return { x: (left + right) / 2, y: (top + bottom) / 2, extent: Math.max(right - left, bottom - top) };
}

function distance(x, y, [ax, ay], [bx, by]) {
  const dx = bx - ax, dy = by - ay, square = dx * dx + dy * dy;
  const along = square ? Math.min(1, Math.max(0, ((x - ax) * dx + (y - ay) * dy) / square)) : 0;
  return Math.hypot(x - ax - along * dx, y - ay - along * dy);
}

/** Returns the anti-aliased pixels of strokes with coordinates in pixels. */
function inked(strokes) {
  const pixels = new Float32Array(SIDE * SIDE), reach = PEN / 2 + 0.5;
  const range = (one, other) => [
    Math.max(0, Math.floor(Math.min(one, other) - reach)),
    Math.min(SIDE - 1, Math.ceil(Math.max(one, other) + reach)),
  ];
  for (const stroke of strokes) {
    stroke.forEach((end, number) => {
      const start = stroke[Math.max(0, number - 1)];
      const [left, right] = range(start[0], end[0]), [top, bottom] = range(start[1], end[1]);
      for (let row = top; row <= bottom; row++) {
        for (let column = left; column <= right; column++) {
          const ink = Math.min(1, Math.max(0, reach - distance(column + 0.5, row + 0.5, start, end)));
          const at = row * SIDE + column;
          if (ink > pixels[at]) pixels[at] = ink;
        }
      }
    });
  }
  return pixels;
}

function centerOfMass(pixels) {
  let sum = 0, x = 0, y = 0;
  pixels.forEach((ink, at) => {
    sum += ink;
    x += ink * (at % SIDE + 0.5);
    y += ink * (Math.floor(at / SIDE) + 0.5);
  });
  return sum ? [x / sum, y / sum] : [SIDE / 2, SIDE / 2];
}

/** Returns the 784 pixels of strokes with coordinates from 0 to 1, or null without strokes. */
function pixelsOf(strokes) {
  if (!strokes.some(stroke => stroke.length)) return null;
  const { x, y, extent } = boundsOf(strokes), scale = (BOX - PEN) / Math.max(extent, SMALLEST);
  const placed = strokes.map(stroke => stroke.map(
    ([px, py]) => [(px - x) * scale + SIDE / 2, (py - y) * scale + SIDE / 2]));
  const [right, down] = centerOfMass(inked(placed)).map(at => SIDE / 2 - at);
  return inked(placed.map(stroke => stroke.map(([px, py]) => [px + right, py + down])));
}

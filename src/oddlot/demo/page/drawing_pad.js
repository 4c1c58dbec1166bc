"use strict";
// The pad: pen strokes by mouse, pen, finger or keyboard.

const PEN_SHARE = 0.062;  // width of the line, relative to the pad
const LEAST_MOVE = 0.004;  // shorter moves are joined
const KEY_STEP = 1 / 28;
const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

class DrawingPad {
  /** `onChange(isDone)` is called after each change. `isDone` is false during a stroke. */
  constructor(canvas, onChange) {
    this.canvas = canvas;
    this.onChange = onChange;
    this.strokes = [];
    this.pointer = null;
    this.keyPen = { at: [0.5, 0.3], isDown: false, isShown: false };
    canvas.addEventListener("pointerdown", event => this.start(event));
    canvas.addEventListener("pointermove", event => this.extend(event));
    for (const kind of ["pointerup", "pointercancel", "lostpointercapture"])
      canvas.addEventListener(kind, event => this.finish(event));
    canvas.addEventListener("dragstart", event => event.preventDefault());
    canvas.addEventListener("contextmenu", event => this.pointer !== null && event.preventDefault());
    canvas.addEventListener("keydown", event => this.useKey(event));
    canvas.addEventListener("blur", () => this.hideKeyPen());
    new ResizeObserver(() => this.draw()).observe(canvas);
  }

  get isEmpty() {
    return this.strokes.length === 0;
  }

  show(strokes) {
    this.pointer = null;
    this.strokes = strokes.map(stroke => stroke.map(([x, y]) => [x, y]));
    this.hideKeyPen();
    this.changed(true);
  }

  clear() {
    this.show([]);
  }

  undo() {
    this.show(this.strokes.slice(0, -1));
  }

  changed(isDone) {
    this.draw();
    this.onChange(isDone);
  }

  // --- pointers ------------------------------------------------------------------------------

  pointOf(event) {
    const box = this.canvas.getBoundingClientRect(), inside = value => Math.min(1, Math.max(0, value));
    return [inside((event.clientX - box.left) / box.width), inside((event.clientY - box.top) / box.height)];
  }

  start(event) {
    if (this.pointer !== null || event.button !== 0) return;
    this.hideKeyPen();
    getSelection()?.removeAllRanges();  // selected text would be dragged instead
    this.pointer = event.pointerId;
    this.canvas.setPointerCapture(event.pointerId);
    this.strokes.push([this.pointOf(event)]);
    this.changed(false);
  }

  extend(event) {
    if (event.pointerId !== this.pointer) return;
    const parts = event.getCoalescedEvents?.() ?? [];
    for (const part of parts.length ? parts : [event]) this.add(this.pointOf(part));
    this.changed(false);
  }

  add([x, y]) {
    const stroke = this.strokes.at(-1), [lastX, lastY] = stroke.at(-1);
    if (Math.hypot(x - lastX, y - lastY) >= LEAST_MOVE) stroke.push([x, y]);
  }

  finish(event) {
    if (event.pointerId !== this.pointer) return;
    this.pointer = null;
    this.changed(true);
  }

  // --- keyboard ------------------------------------------------------------------------------

  useKey(event) {
    const pen = this.keyPen, arrow = ARROWS[event.key];
    if (event.ctrlKey || event.metaKey || event.altKey || this.pointer !== null || (!arrow && event.key !== " ")) return;
    event.preventDefault();
    pen.isShown = true;
    if (arrow) {
      pen.at = pen.at.map((value, axis) => Math.min(0.96, Math.max(0.04, value + arrow[axis] * KEY_STEP)));
      if (pen.isDown) this.strokes.at(-1).push(pen.at);
    } else {
      pen.isDown = !pen.isDown;
      if (pen.isDown) this.strokes.push([pen.at]);
    }
    this.changed(!pen.isDown);
  }

  hideKeyPen() {
    const wasShown = this.keyPen.isShown;
    this.keyPen.isShown = this.keyPen.isDown = false;
    if (wasShown) this.draw();
  }

  // --- drawing -------------------------------------------------------------------------------

  draw() {
    const { context, width: size } = sized(this.canvas);
    context.lineWidth = PEN_SHARE * size;
    context.lineCap = context.lineJoin = "round";
    context.strokeStyle = color("--ink");
    for (const stroke of this.strokes) {
      const points = stroke.map(([x, y]) => [x * size, y * size]);
      context.beginPath();
      context.moveTo(...points[0]);
      for (let number = 1; number < points.length - 1; number++) {  // curves through the middles are smooth
        const [[x, y], [nextX, nextY]] = [points[number], points[number + 1]];
        context.quadraticCurveTo(x, y, (x + nextX) / 2, (y + nextY) / 2);
      }
      context.lineTo(...points.at(-1));
      context.stroke();
    }
    if (this.keyPen.isShown) this.drawKeyPen(context, size);
  }

  drawKeyPen(context, size) {
    const [x, y] = this.keyPen.at.map(value => value * size);
    context.beginPath();
    context.arc(x, y, PEN_SHARE * size * 0.75, 0, 2 * Math.PI);
    context.lineWidth = 3;
    context.strokeStyle = context.fillStyle = color("--accent");
    context.stroke();
    if (this.keyPen.isDown) context.fill();
  }
}

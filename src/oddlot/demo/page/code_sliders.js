"use strict";
// A slider for each number of the code.

const STEPS = 100;
const MARGIN = 1.5;  // limit of a slider, relative to the largest number in the codes of the examples

/** Returns the limit of each slider: usual codes are well inside. */
function limitsOf(codes) {
  const largest = Array.from(codes[0], (_, at) => Math.max(...codes.map(code => Math.abs(code[at]))));
  const mean = largest.reduce((one, other) => one + other, 0) / largest.length;
  return largest.map(value => MARGIN * Math.max(value, mean / 2, 1e-6));
}

class CodeSliders {
  /** `onInput(code)` is called with the new code when a slider is moved. */
  constructor(group, limits, onInput) {
    this.limits = limits;
    this.sliders = limits.map((_, at) => this.make(group, at));
    for (const { input } of this.sliders) {
      input.addEventListener("input", () => {
        this.paint();
        onInput(this.code);
      });
    }
    this.show(new Float32Array(limits.length));
  }

  make(group, at) {
    const label = document.createElement("label"), value = document.createElement("span");
    const name = document.createElement("b"), input = document.createElement("input");
    name.textContent = at + 1;
    value.className = "value";
    Object.assign(input, { type: "range", step: "any" });
    input.setAttribute("aria-label", `Number ${at + 1} of the code`);
    input.addEventListener("keydown", event => this.useKey(event, input));
    label.append(name, value, input);
    group.append(label);
    return { label, value, input };
  }

  /** Moves the slider in steps: the browser's steps of a slider with any value are too small. */
  useKey(event, input) {
    const steps = {
      ArrowLeft: -2, ArrowDown: -2, ArrowRight: 2, ArrowUp: 2, PageDown: -10, PageUp: 10, Home: -STEPS, End: STEPS,
    }[event.key];
    if (!steps || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    input.value = Number(input.value) + steps * (input.max - input.min) / STEPS;
    input.dispatchEvent(new Event("input", { bubbles: true }));
  }

  get code() {
    return Float32Array.from(this.sliders, ({ input }) => Number(input.value));
  }

  show(code) {
    this.sliders.forEach(({ input }, at) => {
      const limit = Math.max(this.limits[at], Math.abs(code[at]));
      if (Number(input.max) !== limit) Object.assign(input, { min: -limit, max: limit });
      input.value = code[at];
    });
    this.paint();
  }

  paint() {
    this.sliders.forEach(({ label, value, input }, at) => {
      const number = Number(input.value), text = (Math.abs(number) < 0.05 ? 0 : number).toFixed(1);
      value.textContent = text.replace("-", "−");
      input.setAttribute("aria-valuetext", text);
      label.style.setProperty("--is", colorOf(number, this.limits[at]));
    });
  }
}

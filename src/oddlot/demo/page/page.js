"use strict";
// Joins the drawing pad, the network and the pictures.

const get = id => document.getElementById(id);
const percent = share => share > 0.995 && share < 1 ? ">\u00a099\u00a0%" : `${Math.round(100 * share)}\u00a0%`;
const indexOfLargest = values => values.indexOf(Math.max(...values));

/** Loads the description and the weights. Browsers do not fetch files of a page from a disk, but run its scripts. */
async function loadData() {
  if (location.protocol === "file:") {
    await new Promise((resolve, reject) => {
      const script = Object.assign(document.createElement("script"), { src: "data.js", onload: resolve });
      script.onerror = () => reject(new ModelError("data.js is missing"));
      document.head.append(script);
    });
    const { description, weights, strip } = globalThis.DIGIT_DATA;
    return { description, strip, weights: Uint8Array.from(atob(weights), letter => letter.charCodeAt(0)).buffer };
  }
  const load = async name => {
    const response = await fetch(name);
    if (!response.ok) throw new ModelError(`${name} cannot be loaded (status ${response.status})`);
    return response;
  };
  const [description, strip] = await Promise.all(["model.json", "strip.json"].map(async name => (await load(name)).json()));
  return { description, strip, weights: await (await load(description.file)).arrayBuffer() };
}

class Page {
  constructor(network) {
    this.network = network;
    this.pixels = this.code = this.shownCode = null;
    this.isWaiting = false;  // for the next frame
    this.isDone = true;  // no stroke is being drawn
    this.bars = Array.from({ length: 10 }, (_, digit) => this.makeBar(digit));
    this.pad = new DrawingPad(get("pad"), isDone => this.drawn(isDone));
    const limits = limitsOf(EXAMPLES.map(strokes => network.encode(pixelsOf(strokes))));
    this.sliders = new CodeSliders(get("sliders"), limits, code => this.showCode(code));
    this.listen();
    this.update();
  }

  makeBar(digit) {
    const row = document.createElement("li"), [name, track, bar, value] = ["b", "div", "i", "span"].map(
      tag => document.createElement(tag));
    name.textContent = digit;
    track.className = "track";
    track.append(bar);
    row.append(name, track, value);
    get("bars").append(row);
    return { row, bar, value };
  }

  listen() {
    get("clear").addEventListener("click", () => this.pad.clear());
    get("undo").addEventListener("click", () => this.pad.undo());
    get("return").addEventListener("click", () => {
      get("pad").focus();  // the button is disabled afterwards
      this.update();
    });
    EXAMPLES.forEach((strokes, digit) => {
      const button = Object.assign(document.createElement("button"), { type: "button", textContent: digit });
      button.setAttribute("aria-label", `Example ${digit}`);
      button.setAttribute("aria-keyshortcuts", digit);
      button.addEventListener("click", () => this.pad.show(strokes));
      get("examples").append(button);
    });
    document.addEventListener("keydown", event => this.useKey(event));
    for (const query of ["(prefers-color-scheme: dark)", `(resolution: ${devicePixelRatio}dppx)`])
      matchMedia(query).addEventListener("change", () => this.repaint());
    new ResizeObserver(() => this.paint()).observe(get("decoded"));
  }

  useKey(event) {
    const isCommand = event.ctrlKey || event.metaKey;
    if (event.altKey || (isCommand && (event.shiftKey || event.key.toLowerCase() !== "z"))) return;
    if (isCommand) this.pad.undo();
    else if (["Escape", "Delete", "Backspace"].includes(event.key)) this.pad.clear();
    else if (/^[0-9]$/.test(event.key)) this.pad.show(EXAMPLES[event.key]);
    else return;
    event.preventDefault();
  }

  /** Updates the page at most once per frame. */
  drawn(isDone) {
    get("undo").disabled = this.pad.isEmpty;
    get("hint").hidden = !this.pad.isEmpty;
    this.isDone = isDone;
    if (this.isWaiting) return;
    this.isWaiting = true;
    requestAnimationFrame(() => {
      this.isWaiting = false;
      this.update();
    });
  }

  update() {
    this.pixels = pixelsOf(this.pad.strokes);
    this.code = this.pixels && this.network.encode(this.pixels);
    const certainties = this.pixels && this.network.certainties(this.pixels);
    this.showCertainties(certainties);
    this.sliders.show(this.code ?? new Float32Array(this.network.codeSize));
    this.showCode(this.code);
  }

  showCertainties(certainties) {
    const digit = certainties && indexOfLargest(certainties);
    this.bars.forEach(({ row, bar, value }, number) => {
      const share = certainties ? certainties[number] : 0;
      row.className = number === digit ? "best" : "";
      bar.style.setProperty("--share", share);
      value.textContent = certainties ? percent(share) : "";
    });
    get("recognition").classList.toggle("empty", !certainties);
    get("digit").textContent = certainties ? digit : "";
    get("certainty").textContent = certainties ? `${percent(certainties[digit])} certain` : "Nothing drawn";
    if (this.isDone)
      get("spoken").value = certainties ? `Recognized as ${digit}, ${percent(certainties[digit])} certain` : "";
  }

  /** Shows a code and its decoded digit: the code of the drawing, or of the sliders. */
  showCode(code) {
    this.shownCode = code;
    this.decoded = code && this.network.decode(code);
    const isChanged = code !== this.code;
    get("return").disabled = !isChanged;
    get("code").classList.toggle("changed", isChanged);
    if (this.decoded) {
      const certainties = this.network.certainties(this.decoded), digit = indexOfLargest(certainties);
      get("reads").textContent = `Decoded: reads as ${digit}`;
    } else get("reads").textContent = "Decoded";
    this.paint();
  }

  paint() {
    drawPixels(get("seen"), this.pixels);
    drawCode(get("numbers"), this.shownCode, this.sliders.limits);
    drawPixels(get("decoded"), this.decoded);
  }

  repaint() {
    colors.clear();
    this.pad.draw();
    this.sliders.paint();
    this.paint();
  }
}

function describe({ about: { name, source, accuracy }, widths }) {
  const tested = accuracy !== undefined ? `, recognizes ${(100 * accuracy).toFixed(1)} % of its test digits` : "";
  return `Model: ${name} (${widths})${tested}. ${source ?? ""} The page loads nothing from other hosts.`;
}

function licenseLink({ license }) {
  return license ? [" ", Object.assign(document.createElement("a"), { href: license, textContent: "License" })] : [];
}

async function main() {
  try {
    const { description, weights, strip } = await loadData();
    const network = new DigitNetwork(description, weights);
    globalThis.page = new Page(network);
    get("model").replaceChildren(describe(network), ...licenseLink(network.about));
    get("untested").hidden = network.about.accuracy !== undefined;
    if (strip) showStrip(strip);
    document.body.dataset.ready = "yes";
  } catch (error) {
    get("problem").textContent = `The model cannot be used: ${error.message}. Reload the page, or create it again with oddlot demo digits.`;
    get("problem").hidden = false;
    document.body.dataset.ready = "failed";
    if (!(error instanceof ModelError)) throw error;
  }
}

main();

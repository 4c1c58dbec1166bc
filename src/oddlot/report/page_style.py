"""The style sheet and the script of a report page."""

from base64 import b64encode
from hashlib import sha256

STATES = {
    "starting": "#a78bfa",
    "working": "#2563eb",
    "wasted": "#ea580c",
    "waiting": "#cbd5e1",
    "leaving": "#eab308",
    "left": "#a8a29e",
    "lost": "#fca5a5",
}
MARKS = """
svg { overflow: visible; }
.area path { vector-effect: non-scaling-stroke; }
.grid { stroke: var(--grid); fill: none; } .tick { font-size: 11px; fill: var(--dim); color: var(--dim); }
.name { font-size: 12px; fill: var(--dim); } .mark { fill: var(--is); }
.mark.line { fill: none; stroke: var(--is); stroke-width: 1.8; stroke-linejoin: round; }
.mark.point { stroke-width: 6; stroke-linecap: round; }
.mark.dashed { stroke-dasharray: 5 4; }
"""
"""Style of the lines, axes and labels of a plot."""
LIGHT = "--ink: #1f2937; --dim: #6b7280; --grid: #e5e7eb; --paper: #ffffff;"
DARK = "--ink: #e5e7eb; --dim: #9ca3af; --grid: #374151; --paper: #111827;"
PALETTE = f"""
:root {{ color-scheme: light dark; {LIGHT} }}
@media (prefers-color-scheme: dark) {{ :root {{ {DARK} }} }}
"""
"""Colors of all pages, in light and dark mode."""
STYLE = (
    PALETTE
    + """
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 900px;
  margin: 2em auto; padding: 0 1em; overflow-wrap: anywhere; }
h1 { font-size: 1.5em; } .verdict { font-size: 1.1em; }
h2 { font-size: 1.15em; margin: 2.2em 0 .8em; border-bottom: 1px solid var(--grid); }
h3 { font-size: 1em; margin: 1.2em 0 0; }
summary { cursor: pointer; font-weight: 600; margin-top: 1em; } details h2:first-of-type { margin-top: 1em; }
dl { display: flex; flex-wrap: wrap; gap: .6em 2.5em; margin: 1.2em 0; } dl div { min-width: 5em; }
dt { font-size: 13px; color: var(--dim); } dd { margin: 0; font-size: 1.35em; font-weight: 600; }
dd small { display: block; max-width: 17em; font-size: 13px; font-weight: 400; color: var(--dim); }
table { border-collapse: collapse; width: 100%; } th { text-align: left; font-weight: 600; }
td, th { padding: .25em .8em .25em 0; vertical-align: top; border-bottom: 1px solid var(--grid); }
th:first-child { overflow-wrap: normal; } .one th { width: 10em; } code { font-size: .92em; }
.many { overflow-x: auto; width: max-content; max-width: calc(100vw - 3em); min-width: 100%; position: relative;
  left: 50%; transform: translateX(-50%); } .many td { max-width: 16em; } .many td[data-run] { min-width: 9em; }
td.number { text-align: right; font-variant-numeric: tabular-nums; overflow-wrap: normal; }
td.ratio, th.ratio { text-align: right; color: var(--dim); white-space: nowrap; }
figure { margin: 1.2em 0; min-width: 0; } figcaption { font-weight: 600; }
svg.plot { display: block; margin-left: var(--left); width: calc(100% - var(--left) - 14px); }
.pairs { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 380px), 1fr)); gap: 0 1.5em;
  align-items: end; }
.pairs > * { min-width: 0; } .group { grid-column: 1 / -1; }
.multiples { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 250px), 1fr)); gap: 0 1em; }
.multiples figure { margin: .4em 0; } .multiples figcaption { font-weight: 400; font-size: 13px; }
.bars { display: grid; grid-template-columns: fit-content(35%) minmax(4em, 1fr) fit-content(45%); gap: 2px 8px;
  align-items: center; line-height: 1.3; margin-top: .4em; }
.bars .of { text-align: right; } .track { display: flex; height: 12px; }
.track i { background: var(--is); min-width: 1px; }
.empty { color: var(--dim); font-size: 13px; } .bad { color: #dc2626; font-weight: 600; }
.legend { font-size: 13px; color: var(--dim); } .training { --is: var(--dim); }
.legend span { margin-right: 1.2em; display: inline-block; }
.swatch { display: inline-block; width: 1em; height: .6em; margin-right: .4em; background: var(--is); }
.swatch.line, .swatch.dashed { background: none; height: 0; border-top: 2px solid var(--is); vertical-align: middle; }
.swatch.dashed { border-top-style: dashed; }
.shared { position: sticky; top: 0; z-index: 1; background: var(--paper); padding: .5em 0; }
.mark.dot { fill: none; stroke: var(--is); stroke-width: 9; stroke-linecap: round; }
.mark.whisker { fill: none; stroke: var(--is); stroke-width: 1.2; opacity: .55; }
.label { font-size: 12px; font-weight: 600; fill: var(--ink); }
.feasible { --is: #2563eb; } .infeasible { --is: #ea580c; } .rough-estimate { --is: #9ca3af; }
.frontier { --is: var(--ink); }
.moment { --is: #db2777; } .mark.moment { fill: none; stroke: var(--is); stroke-dasharray: 2 3; }
.matrix { overflow-x: auto; } .matrix td, .matrix th { padding: .2em .5em .2em 0; }
.options { overflow-x: auto; }
.options td:last-child { min-width: 13em; } .options th.number { text-align: right; }
.options td, .options th { overflow-wrap: normal; }
.options td { white-space: nowrap; } .options td:last-child { white-space: normal; }
.segments { overflow-x: auto; } .segments th { overflow-wrap: normal; }
.fault { --is: #111827; } @media (prefers-color-scheme: dark) { .fault { --is: #f9fafb; } }
#tip { position: fixed; z-index: 2; pointer-events: none; white-space: pre-line; font-size: 12px; padding: .2em .5em;
  max-width: 60vw; background: var(--paper); border: 1px solid var(--grid); box-shadow: 0 1px 4px #0004; }
@media (max-width: 700px) {
  td, th { padding-right: .5em; } .one th { width: 6em; } .shared { position: static; }
  .runs table, .runs tbody { display: block; } .runs tr.head, .runs td:empty { display: none; }
  .runs tr { display: grid; grid-template-columns: 1fr auto; padding: .35em 0; border-bottom: 1px solid var(--grid); }
  .many td[data-run] { min-width: 0; }
  .runs th { grid-column: 1 / -1; } .runs td { grid-column: 1; max-width: none; } .runs td.ratio { grid-column: 2; }
  .runs th, .runs td { border: 0; padding: 0; } .runs td.ratio { padding-left: 1em; }
  .runs td[data-run]::before { content: attr(data-run) ": "; color: var(--dim); font-weight: 400; }
  .many { width: auto; max-width: none; left: 0; transform: none; }
  .options table, .options tbody { display: block; } .options tr.head, .options td:empty { display: none; }
  .options tr { display: grid; grid-template-columns: 1.5em repeat(3, auto); gap: .35em .8em; padding: .5em 0;
    border-bottom: 1px solid var(--grid); }
  .options td { grid-column: auto; border: 0; padding: 0; text-align: left; white-space: normal; }
  .options td:first-child { grid-column: 1; grid-row: 1 / span 4; font-weight: 600; }
  .options td.why { grid-column: 2 / -1; color: var(--dim); }
  .options td[data-column]::before { content: attr(data-column); display: block; font-size: 13px; color: var(--dim); }
}
"""
    + MARKS
)
SCRIPT = """
const tip = document.body.appendChild(document.createElement("output"));
tip.id = "tip";
tip.hidden = true;
const pair = text => text.split(" ").map(Number), short = value => String(Number(value.toPrecision(4)));
const between = (share, [low, high]) => low + share * (high - low);
for (const plot of document.querySelectorAll("svg[data-x]")) {
  const area = plot.querySelector(".area"), [, , width, height] = area.getAttribute("viewBox").split(" ").map(Number);
  for (const title of plot.querySelectorAll("title")) {  // the browser would show it too
    title.parentNode.dataset.told = title.textContent;
    title.remove();
  }
  const drawn = [...area.querySelectorAll(".line")].map(line =>
    ({ name: line.dataset.told, points: line.getAttribute("d").match(/[0-9.]+ [0-9.-]+/g).map(pair) }));
  const near = (points, x) => points.reduce((a, b) => Math.abs(b[0] - x) > Math.abs(a[0] - x) ? a : b);
  const value = y => short(between(1 - y / height, pair(plot.dataset.y)));
  const show = event => {
    const box = area.getBoundingClientRect(), share = Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
    const at = `${short(between(share, pair(plot.dataset.x)))} ${plot.querySelector(".name").textContent}`;
    const values = drawn.map(({ name, points }) => `${name}: ${value(near(points, share * width)[1])}`);
    tip.textContent = [at, ...values, event.target.dataset.told].filter((told, number, all) =>
      told ? all.findIndex(each => String(each).startsWith(told)) === number : false).join("\\n");
    tip.hidden = false;
    tip.style.left = `${Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 4)}px`;
    tip.style.top = `${Math.max(4, event.clientY - tip.offsetHeight - 10)}px`;
  };
  for (const kind of ["pointermove", "pointerdown"]) plot.addEventListener(kind, show);
  plot.addEventListener("pointerleave", () => { tip.hidden = true; });
}
"""
"""Shows the values under the pointer. Without the script, lines and lanes have tooltips with their names."""


def state_colors() -> str:
    """Return the rules that set the color `--is` for the classes of `STATES`."""
    return " ".join(f".{state} {{ --is: {color}; }}" for state, color in STATES.items())


def hash_of(script: str) -> str:
    """Return the source expression of an inline script for a content security policy."""
    return f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'"

"use strict";
// The strip of a training: a lane for each machine, with its merged and its lost parts over time.

const SVG = "http://www.w3.org/2000/svg";
const LANE = 20;  // height of a lane in its drawing

const counted = (count, noun) => `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;
const readable = name => name.replaceAll("_", " ");
const listed = names => names.length > 1 ? `${names.slice(0, -1).join(", ")} and ${names.at(-1)}` : names.join();

function duration(seconds) {
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.round(seconds % 60)} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

function element(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text) made.append(Object.assign(document.createElementNS(SVG, "title"), { textContent: text }));
  return made;
}

/** Returns the samples of a column of full height. A few columns may have more, and are cut off. */
function samplesOfFullHeight(strip) {
  const counts = strip.lanes.flatMap(lane => lane.merged).filter(Boolean).sort((one, other) => one - other);
  return 1.1 * (counts[Math.floor(0.95 * counts.length)] ?? 1);
}

function laneOf(lane, strip, full) {
  const columns = lane.merged.length;
  const drawn = element("svg", { viewBox: `0 0 ${columns} ${LANE}`, preserveAspectRatio: "none", "aria-hidden": "true" });
  const column = (kind, x, samples, height, verb) => {
    const from = duration(x * strip.seconds / columns), text = `${lane.machine}, from ${from}: ${counted(samples, "sample")} ${verb}`;
    if (samples) drawn.append(element("rect", { class: kind, x, y: LANE - height, width: 0.86, height }, text));
  };
  lane.merged.forEach((samples, x) =>
    column("working", x, samples, Math.min(LANE, Math.max(1, LANE * samples / full)), "merged"));
  lane.lost.forEach((samples, x) => column("wasted", x, samples, LANE, "lost"));
  const row = document.createElement("div"), name = document.createElement("b"), share = document.createElement("span");
  const track = document.createElement("div");
  row.className = "lane";
  track.className = "track";
  name.textContent = lane.machine;
  share.textContent = `${(100 * lane.samples / Math.max(1, strip.merged_samples)).toFixed(0)} %`;
  share.title = `${counted(lane.samples, "sample")} merged`;
  const starts = strip.stages.slice(1).map(stage => {
    const line = Object.assign(document.createElement("i"), { className: "start" });
    line.style.left = `${100 * stage.seconds / strip.seconds}%`;
    return line;
  });
  track.append(drawn, ...starts, ...losses(lane).map(end => crossOf(end, strip)));
  row.append(name, track, share);
  return row;
}

function losses(lane) {
  return lane.ends.filter(end => end.as === "lost");
}

/** Returns a row with the name of each stage at its time. Names that do not fit are cut off: the summary has all. */
function stagesOf(strip) {
  const row = document.createElement("div");
  row.className = "stages";
  strip.stages.forEach(({ name, seconds }, number) => {
    const end = strip.stages[number + 1]?.seconds ?? strip.seconds, label = document.createElement("span");
    Object.assign(label, { textContent: readable(name), title: `${readable(name)}, from ${duration(seconds)}` });
    label.style.width = `${100 * (end - seconds) / strip.seconds}%`;
    row.append(label);
  });
  return row;
}

function crossOf(end, strip) {
  const cross = document.createElement("i");
  Object.assign(cross, { className: "cross", textContent: "×", title: `${end.worker} was lost after ${duration(end.seconds)}` });
  cross.style.left = `${100 * end.seconds / strip.seconds}%`;
  return cross;
}

function axisOf(strip) {
  const axis = document.createElement("div");
  axis.className = "axis";
  for (const share of [0, 0.5, 1]) {
    const tick = document.createElement("span");
    tick.textContent = share ? duration(share * strip.seconds) : "0";
    axis.append(tick);
  }
  return axis;
}

function summaryOf(strip) {
  const again = [...new Set(strip.lost.flatMap(part => part.again))].sort();
  const stages = strip.stages.length ? ` Stages: ${listed(strip.stages.map(({ name }) => readable(name)))}.` : "";
  const merged = `${counted(strip.machines, "worker")} computed ${counted(strip.merged_samples, "sample")} in ${duration(strip.seconds)}.${stages}`;
  if (!strip.lost_tasks) return `${strip.title}: ${merged} No part was lost.`;
  const lost = `${counted(strip.lost_tasks, "task")} with ${counted(strip.lost_samples, "sample")} ${strip.lost_tasks === 1 ? "was" : "were"} lost`;
  return `${strip.title}: ${merged} ${lost}${again.length ? `, and computed again by ${listed(again)}` : ""}.`;
}

function lostText(part) {
  const what = `${duration(part.seconds)}: ${counted(part.samples, "sample")} of epoch ${part.epoch + 1}, computed by ${part.worker}`;
  return `${what} (${part.reason})${part.again.length ? `; again by ${listed(part.again)}` : ""}`;
}

function showStrip(strip) {
  const more = strip.machines - strip.lanes.length;
  get("training").hidden = false;
  get("training-summary").textContent = summaryOf(strip) + (more > 0 ? ` ${more} more workers are not shown.` : "");
  const full = samplesOfFullHeight(strip);
  get("strip").replaceChildren(
    ...(strip.stages.length ? [stagesOf(strip)] : []), ...strip.lanes.map(lane => laneOf(lane, strip, full)), axisOf(strip));
  get("legend-wasted").hidden = !strip.lost_tasks;
  get("legend-cross").hidden = !strip.lanes.some(lane => losses(lane).length);
  get("lost-parts").hidden = !strip.lost.length;
  const first = strip.lost.length < strip.lost_tasks ? `first ${strip.lost.length} ` : "";
  get("lost-parts").querySelector("summary").textContent = `The ${first}lost tasks`;
  get("lost-parts").querySelector("ul").replaceChildren(...strip.lost.map(part => {
    return Object.assign(document.createElement("li"), { textContent: lostText(part) });
  }));
}

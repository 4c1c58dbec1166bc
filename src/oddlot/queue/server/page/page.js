"use strict";

const EVERY = 2000;
const MOST_ENDED = 50;
const MOST_OUTPUT = 50000;
const KEY = "oddlot queue token";
const find = id => document.getElementById(id);
let token = null;
let timer = 0;
let shown = null;

// --- text ----------------------------------------------------------------------------------------

function duration(seconds) {
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${String(Math.floor(seconds % 60)).padStart(2, "0")} s`;
  if (seconds < 172800) return `${Math.floor(seconds / 3600)} h ${String(Math.floor(seconds / 60) % 60).padStart(2, "0")} min`;
  return `${(seconds / 86400).toFixed(1)} days`;
}

function clock(at, now) {
  const time = new Date(at * 1000);
  const sameDay = time.toDateString() === new Date(now * 1000).toDateString();
  const digits = { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false };
  if (sameDay) return time.toLocaleTimeString("en-GB", digits);
  return time.toLocaleString("en-GB", { day: "2-digit", month: "short", hour: "2-digit", minute: "2-digit", hour12: false });
}

function nameOf(job) {
  return (job.name || "").trim() || `job ${job.id}`;
}

function needs(job) {
  const parts = [];
  if (job.gpus) parts.push(`${job.gpus} GPU${job.gpus > 1 ? "s" : ""}`);
  if (job.cpus || !job.gpus) parts.push(`${job.cpus} core${job.cpus === 1 ? "" : "s"}`);
  return parts.join(", ");
}

// --- elements ------------------------------------------------------------------------------------

function element(name, text = "", className = "") {
  const made = document.createElement(name);
  if (text !== "") made.textContent = text;
  if (className) made.className = className;
  return made;
}

function cell(content, className = "", label = "") {
  const made = element("td", "", className);
  if (label) made.dataset.label = label;
  if (content instanceof Node) made.append(content);
  else made.textContent = content;
  return made;
}

function jobCells(job) {
  const open = element("a", nameOf(job));
  open.href = `#job=${job.id}`;
  return [
    cell(String(job.id), "number"), cell(element("span", job.state, `state ${job.state}`), "is-state"), cell(open, "name"),
    cell(job.user), cell(needs(job)), cell(duration(job.waiting_seconds), "", "waited"),
  ];
}

function rangeOf(times, now) {
  const made = element("span", times ? clock(times[1], now) : "unknown");
  if (times && times[2] - times[0] >= 1) made.append(element("small", `${clock(times[0], now)} to ${clock(times[2], now)}`));
  return made;
}

function bar(from, to, first, last, className) {
  const made = element("i", "", className);
  const share = at => Math.min(1, Math.max(0, (at - first) / (last - first)));
  made.style.setProperty("--from", share(from));
  made.style.setProperty("--length", share(to) - share(from));
  return made;
}

function runOf(job, now, first, last) {
  const made = element("div", "", "run");
  if (!job.expected_end) return made;
  const isRunning = job.state !== "pending";
  made.append(bar(isRunning ? now : job.expected_start[0], job.expected_end[2], first, last, "range"));
  made.append(bar(isRunning ? job.started : job.expected_start[1], job.expected_end[1], first, last, `bar ${job.state}`));
  return made;
}

// --- the page ------------------------------------------------------------------------------------

function show(queue) {
  const { now, jobs } = queue;
  const focused = document.activeElement?.closest("tr")?.dataset.job;
  const waiting = jobs.filter(job => job.state === "pending").length;
  find("about").textContent = `${jobs.length - waiting} running, ${waiting} waiting; policy ${queue.policy}, user ${queue.user}`;
  find("machine-list").replaceChildren(...queue.machines.map(machineItem));
  const first = Math.min(now, ...jobs.map(job => (job.state !== "pending" && job.started) || now));
  const ends = jobs.filter(job => job.expected_end).map(job => job.expected_end[1]);
  const last = Math.max(now + 10, ...ends.map(end => end + (end - now) * 0.15));
  find("scale").textContent = jobs.length ? `(${clock(first, now)} to ${clock(last, now)})` : "";
  find("jobs").tBodies[0].replaceChildren(...jobs.map(job => {
    const row = element("tr");
    row.dataset.job = job.id;
    row.append(...jobCells(job), cell(rangeOf(job.expected_end, now), "", "ends"), cell(runOf(job, now, first, last), "when"));
    return row;
  }));
  find("jobs").hidden = find("legend").hidden = jobs.length === 0;
  find("none").hidden = jobs.length > 0;
  find("ended").tBodies[0].replaceChildren(...queue.ended.map(job => {
    const row = element("tr");
    row.dataset.job = job.id;
    row.append(...jobCells(job), cell(job.started ? duration(job.ran_seconds) : "", "", "ran"),
      cell(clock(job.ended, now), "", "ended"), cell(job.exit === null ? "" : String(job.exit), "", "exit"), cell(job.reason, "reason"));
    return row;
  }));
  find("recent").hidden = queue.ended.length === 0;
  find("older").hidden = queue.ended.length < MOST_ENDED;
  if (focused) document.querySelector(`tr[data-job="${focused}"] a`)?.focus();
}

function machineItem(machine) {
  const made = element("li");
  made.append(element("b", machine.id));
  for (const [name, all, free] of [["GPUs", machine.gpus, machine.free_gpus], ["Cores", machine.cpus, machine.free_cpus]]) {
    if (!all) continue;
    const line = element("div", "", "use");
    const track = element("div", "", "track");
    const filled = element("i");
    filled.style.setProperty("--share", Math.min(1, (all - free) / all));
    track.append(filled);
    line.append(element("span", name), track, element("span", `${all - free} of ${all}`));
    made.append(line);
  }
  return made;
}

function report(problem) {
  find("problem").textContent = problem;
  find("problem").hidden = problem === "";
}

function askForToken(problem) {
  clearTimeout(timer);
  token = null;
  find("job").close();
  sessionStorage.removeItem(KEY);
  document.querySelector("main").hidden = true;
  find("login").hidden = false;
  find("about").textContent = "";
  report(problem);
  document.body.dataset.ready = "login";
}

// --- requests ------------------------------------------------------------------------------------

async function request(path, method = "GET") {
  const headers = { Authorization: `Bearer ${token}` };
  return fetch(path, { method, headers, body: method === "POST" ? "{}" : undefined, signal: AbortSignal.timeout(20000) });
}

async function update() {
  clearTimeout(timer);
  if (!/^[!-~]+$/.test(token)) return askForToken("The queue does not accept this token.");
  try {
    const reply = await request(`api/queue?ended=${MOST_ENDED}`);
    if (reply.status === 401) return askForToken("The queue does not accept this token.");
    if (!reply.ok) throw new Error(`status ${reply.status}`);
    const queue = await reply.json();
    find("login").hidden = true;
    document.querySelector("main").hidden = false;
    report("");
    show(queue);
    document.body.dataset.ready = "queue";
    if (shown === null) showJob();
    else await updateJob();
  } catch (error) {
    report(`The server does not reply (${error.message}). Trying again.`);
  }
  timer = setTimeout(update, EVERY);
}

function jobInAddress() {
  const found = /^#job=([0-9]{1,15})$/.exec(location.hash);
  return found ? Number(found[1]) : null;
}

function showJob() {
  const job = jobInAddress();
  if (job === shown) return;
  shown = job;
  if (job === null) return find("job").close();
  find("job-title").textContent = `Job ${job}`;
  find("facts").replaceChildren();
  find("cancel").hidden = true;
  showOutput("", "", 0);
  reportJob("");
  if (!find("job").open) find("job").showModal();
  updateJob().catch(error => reportJob(`The server does not reply (${error.message}).`));
}

function reportJob(problem) {
  find("job-problem").textContent = problem;
  find("job-problem").hidden = problem === "";
}

function showOutput(text, missing, skipped) {
  const box = find("output");
  const isAtEnd = box.scrollTop + box.clientHeight >= box.scrollHeight - 4;
  box.textContent = text;
  box.dataset.missing = missing;
  find("cut").textContent = `The first ${skipped.toLocaleString("en")} bytes are left out. oddlot queue logs ${shown} prints all.`;
  find("cut").hidden = skipped === 0;
  if (isAtEnd) box.scrollTop = box.scrollHeight;
}

async function updateJob() {
  const number = shown;
  const reply = await request(`api/jobs/${number}`);
  const job = await reply.json();
  if (shown !== number) return;
  if (!reply.ok) return reportJob(job.error);
  find("job-title").textContent = `Job ${number}: ${nameOf(job)}`;
  find("cancel").hidden = !["pending", "running"].includes(job.state) || !job.command;
  const facts = [["State", job.exit === null ? job.state : `${job.state}, exit code ${job.exit}`], ["Reason", job.reason],
    ["User", job.user], ["Virtual cluster", job.virtual_cluster], ["Needs", needs(job)],
    ["Predicted", `${duration(job.predicted_seconds)} (${job.predicted_range.map(duration).join(" to ")})`],
    ["Command", (job.command || []).join(" ")], ["Folder", job.cwd || ""],
    ["Limits", Object.entries(job.limits || {}).map(([name, value]) => `${name} ${value}`).join(", ")],
    ["Starts", job.attempts.map(one => `${one.attempt}: ${one.state}`).join(", ")]];
  find("facts").replaceChildren(...facts.filter(fact => fact[1]).flatMap(([name, value]) => [element("dt", name), element("dd", value)]));
  if (!job.command) return showOutput("", `hidden: this job belongs to ${job.user}`, 0);
  const output = await request(`api/jobs/${number}/output?start=-${MOST_OUTPUT}`);
  if (!output.ok) return;
  const content = await output.arrayBuffer();
  if (shown !== number) return;
  const skipped = Number(output.headers.get("x-end")) - content.byteLength;
  showOutput(new TextDecoder().decode(content), job.ended ? "none" : "none yet", Math.max(0, skipped));
}

async function cancelJob() {
  const number = shown;
  try {
    const reply = await request(`api/jobs/${number}/cancel`, "POST");
    reportJob(reply.ok ? "" : (await reply.json()).error);
  } catch (error) {
    reportJob(`The server does not reply (${error.message}).`);
  }
  await update();
}

function closeJob() {
  if (find("job").open) return;
  if (token && jobInAddress() !== null) history.pushState(null, "", location.pathname);
  shown = null;
}

function readAddress() {
  if (jobInAddress() !== null || location.hash.length <= 1) return false;
  sessionStorage.setItem(KEY, location.hash.slice(1));
  history.replaceState(null, "", location.pathname);
  return true;
}

// --- start ---------------------------------------------------------------------------------------

find("login").addEventListener("submit", event => {
  event.preventDefault();
  token = find("token").value.trim();
  find("token").value = "";
  sessionStorage.setItem(KEY, token);
  update();
});
find("job").addEventListener("close", closeJob);
find("close").addEventListener("click", () => find("job").close());
find("cancel").addEventListener("click", cancelJob);
addEventListener("hashchange", () => {
  if (readAddress()) start();
  else if (token) showJob();
});

function start() {
  token = sessionStorage.getItem(KEY);
  if (token) update();
  else askForToken("");
}

readAddress();
start();

// The page for operators: shows each state that comes.

import {
  History, at, bar, count, fill, follow, graph, mark, megabytes, say, size, some, span,
} from "./page.js";

const all = new History();
const byRow = new Map();

const share = (part) => `${((part || 0) * 100).toFixed(0)} %`;

function show(state) {
  if (state.uptime_seconds < (show.uptime ?? 0)) forget();
  show.uptime = state.uptime_seconds;
  all.add(state.time_ms, state.numbers);
  const { numbers } = state;
  document.title = numbers.coded_bytes === undefined ? "ncpeer" : "ncserverd";
  say(document.querySelector("h1"), document.title);
  say(at("about"), `${location.host}, version ${state.version}, up ${span(state.uptime_seconds)}`);
  say(at("status"), state.status.replace("-", " "));
  mark(at("status"), `pill ${state.status}`);
  showReasons(state);
  for (const card of document.querySelectorAll("[data-needs]")) {
    card.hidden = numbers[card.dataset.needs] === undefined;
  }
  showNumbers(numbers);
  showStreams(state);
  showDevices(state);
  showSources(state);
  showFleet(state);
}

function forget() {
  all.clear();
  byRow.clear();
}

function showReasons({ status, attention: reasons }) {
  const list = at("reasons");
  mark(list, `reasons ${status}`);
  const key = JSON.stringify(reasons);
  if (list.dataset.key !== key) {
    list.dataset.key = key;
    list.replaceChildren(...reasons.map(({ part, reason, advice }) => {
      const [item, complaint, help] = ["li", "p", "p"].map((name) => document.createElement(name));
      const name = document.createElement("strong");
      name.textContent = part;
      complaint.append(name, `: ${reason}`);
      help.append("What to do: ", ...words(advice), ".");
      item.append(complaint, help);
      return item;
    }));
  }
  say(at("no-reasons"), reasons.length ? "" : "Nothing: every part serves, every origin answers.");
}

// A text with the names between its backquotes as code.
function words(text) {
  return text.split("`").map((part, index) => {
    if (index % 2 === 0) return part;
    const code = document.createElement("code");
    code.textContent = part;
    return code;
  });
}

function showNumbers(numbers) {
  const text = (id, value) => say(at(id), value);
  for (const [id, key, name] of [
    ["encode", "coded_bytes", "Encode"], ["egress", "sent_bytes", "Egress"],
  ]) {
    text(id, megabytes(all.rate(key)));
    graph(at(`${id}-graph`), name, all.rates(key));
  }
  text("viewers", count(numbers.viewers));
  text("sessions", `${some(numbers.sessions, "session")} open`);
  text("connections", count(numbers.connections));
  text("connections-note", `of ${count(numbers.connections_max)}; ` +
    `${some(numbers.waiting_peers, "peer")} waiting for admission`);
  text("late", all.lastMinute("late"));
  text("late-note", `in the last minute; ${count(numbers.late)} since the start, of ` +
    `${count(numbers.requests)}`);
  text("repaired", all.lastMinute("repaired"));
  text("repaired-note", `blocks in the last minute; ${count(numbers.repaired)} since the start. ` +
    `Peers lost ${some(numbers.lost_datagrams, "datagram")}`);
  text("busy", share(numbers.busy));
  text("wait", `of the workers' time; blocks wait ` +
    `${((numbers.wait_seconds || 0) * 1e3).toFixed(0)} ms`);
  const ring = numbers.ring_used / numbers.ring_capacity;
  text("ring", share(ring));
  bar(at("ring-bar"), ring);
  text("ring-note", `${size(numbers.ring_used)} of ${size(numbers.ring_capacity)}, full ` +
    `${some(all.growth("ring_full", 60e3).grown, "time")} in the last minute`);
  const store = numbers.store_used / numbers.store_budget;
  text("store", share(store));
  bar(at("store-bar"), store);
  text("store-note", `${size(numbers.store_used)} of ${size(numbers.store_budget)}, ` +
    `${some(numbers.store_segments, "segment")}`);
  text("fetched", megabytes(all.rate("fetched_bytes")));
  text("fetched-note", `${count(numbers.fetched_blocks)} blocks; ` +
    `${count(numbers.fetch_repaired)} of ${count(numbers.fetch_lost)} lost ones repaired`);
  text("memory", size(numbers.memory_bytes));
  text("cpu", `of memory, ` +
    `${(all.rate("cpu_seconds", undefined, 60e3) ?? 0).toFixed(2)} cores in the last minute`);
}

// The history of a row, and the row's key.
function historyOf(table, { labels, numbers }, time) {
  const key = JSON.stringify([table, labels]);
  if (!byRow.has(key)) byRow.set(key, new History());
  const history = byRow.get(key);
  history.add(time, numbers);
  return [key, history];
}

const notable = (text, name) => ({ text, mark: text === "0" ? "" : name });

function showStreams({ streams, streams_left_out: leftOut, origins, time_ms: time }) {
  const faults = new Map(origins.map(({ stream, fault }) => [stream, fault]));
  const origin = (name) => {
    if (!faults.has(name)) return "";
    const fault = faults.get(name);
    return fault ? { text: fault, mark: "error" } : { text: "answers", mark: "good" };
  };
  const name = ({ labels }) => labels.stream;
  // Names that are configured nowhere count as `other`, which is empty as a rule.
  const isShown = (row) => name(row) !== "other" || faults.has("other")
    || Object.values(row.numbers).some((value) => value > 0);
  const rows = streams.filter(isShown).sort((one, other) => (name(one) < name(other) ? -1 : 1));
  fill(at("streams"), rows.map((row) => {
    const [key, history] = historyOf("streams", row, time);
    return [key, [
      name(row), count(row.numbers.viewers), megabytes(history.rate("sent_bytes")),
      history.lastMinute("repaired"), notable(history.lastMinute("late"), "warning"),
      notable(history.lastMinute("refused"), "warning"), origin(name(row)),
    ]];
  }));
  const more = leftOut ? `${count(leftOut)} more streams with fewer viewers.` : "";
  say(at("streams-note"), rows.length ? more : "None.");
}

function showDevices({ devices, time_ms: time }) {
  fill(at("devices"), devices.map((row) => {
    const [key, history] = historyOf("devices", row, time);
    const { labels, numbers } = row;
    const device = labels.device === labels.backend ? "" : ` ${labels.device}`;
    const memory = numbers.memory_total
      ? `${size(numbers.memory_free)} of ${size(numbers.memory_total)} free` : "of the process";
    return [key, [
      labels.backend + device, labels.kernel, megabytes(history.rate("coded_bytes")),
      count(numbers.in_flight), count(numbers.segments), memory,
      notable(count(numbers.failures), "error"),
    ]];
  }));
  say(at("devices-note"), devices.length ? "" : "None.");
}

function showSources({ sources, faults, time_ms: time }) {
  fill(at("sources"), sources.map((row) => {
    const [key, history] = historyOf("sources", row, time);
    const { numbers } = row;
    return [key, [
      row.labels.source, megabytes(history.rate("bytes")), count(numbers.fetches),
      count(numbers.requests), count(numbers.not_modified), count(numbers.retries),
    ]];
  }));
  const failed = Object.entries(faults).map(([kind, times]) => `${kind} ${count(times)}`);
  say(at("faults"), failed.length ? `Failed fetches since the start: ${failed.join(", ")}.`
    : "No fetch has failed since the start.");
}

// A server without a fleet has no such table.
function showFleet({ members, numbers }) {
  at("fleet").closest("section").hidden = members.length < 2 && numbers.engine_up !== 0;
  fill(at("fleet"), members.map(({ labels, numbers }) => [labels.server, [
    labels.server, numbers.draining ? { text: "draining", mark: "warning" } : "serving",
    count(numbers.viewers), count(numbers.viewers_max), share(numbers.busy),
  ]]));
  const more = numbers.members - members.length;
  say(at("fleet-note"), more > 0 ? `${count(more)} more servers.` : "");
}

function showEvents(events) {
  fill(at("events"), events.map(({ time_ms: time, level, text, count: times }) => {
    const when = new Date(time).toLocaleTimeString("en-GB");
    return [`${level} ${text}`, [when, { text: level, mark: level }, text, count(times)]];
  }));
  at("no-events").hidden = events.length > 0;
}

follow("updates", { state: show, events: showEvents });

// The gateway's page: shows each state that comes.

import {
  History, at, count, fill, follow, graph, mark, megabytes, say, size, span,
} from "./page.js";

const all = new History();
const bySource = new Map();

function show(state) {
  if (state.uptime_seconds < (show.uptime ?? 0)) {
    all.clear();
    bySource.clear();
  }
  show.uptime = state.uptime_seconds;
  all.add(state.time_ms, state.numbers);
  say(at("about"), `${location.host}, version ${state.version}, up ${span(state.uptime_seconds)}`);
  say(at("status"), state.status === "ready" ? "connected" : "no server is connected");
  mark(at("status"), `pill ${state.status}`);
  showNumbers(state.numbers);
  showPlayed(state);
  showSources(state);
}

function showNumbers(numbers) {
  say(at("received"), megabytes(all.rate("payload_bytes")));
  graph(at("received-graph"), "Received", all.rates("payload_bytes"));
  say(at("lost"), all.lastMinute("lost"));
  say(at("lost-note"), `datagrams in the last minute; ${count(numbers.lost)} since the start`);
  say(at("repaired"), all.lastMinute("repaired"));
  say(at("repaired-note"), `of them replaced in the last minute; ${count(numbers.repaired)} since ` +
    `the start. ${count(numbers.ahead)} blocks came ahead of need, and ` +
    `${count(numbers.ahead_used)} were needed`);
  say(at("useless"), all.lastMinute("useless"));
  say(at("useless-note"), `blocks in the last minute; ${count(numbers.useless)} since the start, ` +
    `beside ${count(numbers.innovative)} innovative ones`);
  say(at("verified"), count(numbers.verified));
  say(at("verified-note"), `segments; ${count(numbers.corrupt)} wrong, ${count(numbers.mended)} ` +
    `mended, ${count(numbers.wrong)} wrong blocks; ${count(numbers.reconnects)} reconnects`);
}

function showPlayed({ played }) {
  fill(at("played"), played.map(({ path, begun_ms: begun, ended_ms: ended, bytes }) => {
    const state = ended === null
      ? { text: "under way", mark: "good" } : `took ${((ended - begun) / 1e3).toFixed(1)} s`;
    return [`${begun} ${path}`, [
      path, new Date(begun).toLocaleTimeString("en-GB"), state, size(bytes),
    ]];
  }));
  at("no-played").hidden = played.length > 0;
}

function showSources({ sources, time_ms: time }) {
  const marks = { connected: "good", dropped: "error" };
  fill(at("sources"), sources.map((source) => {
    const { server } = source;
    if (!bySource.has(server)) bySource.set(server, new History());
    const history = bySource.get(server);
    history.add(time, source);
    return [server, [
      server, { text: source.state, mark: marks[source.state] ?? "warning" },
      megabytes(history.rate("payload_bytes")), `${source.rtt_ms.toFixed(1)} ms`,
      `${(source.loss * 100).toFixed(1)} %`, count(source.innovative), count(source.useless),
      count(source.lost), count(source.wrong),
    ]];
  }));
}

follow("status-updates", { state: show });

// What the pages for people share: texts, tables, graphs, and the stream of states. Everything that
// comes from the server becomes text or a number, never markup.

export const at = (id) => document.getElementById(id);

// Changes a text only where it is another one, so that screen readers and selections are left alone.
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function mark(element, name) {
  if (element.className !== name) element.className = name;
}

// A number of things that are counted.
export const some = (value, thing) => `${count(value)} ${thing}${value === 1 ? "" : "s"}`;

export const count = (value) => (value ?? 0).toLocaleString("en", { maximumFractionDigits: 0 });

export function megabytes(rate) {
  if (rate === undefined) return "–";
  const value = rate / 1e6;
  return value.toLocaleString("en", {
    minimumFractionDigits: value < 100 ? 1 : 0, maximumFractionDigits: value < 100 ? 1 : 0,
  });
}

export function size(bytes) {
  let value = bytes ?? 0;
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (value < 1024) return `${value.toFixed(value < 10 && unit !== "B" ? 1 : 0)} ${unit}`;
    value /= 1024;
  }
  return `${value.toFixed(1)} TiB`;
}

export function span(seconds) {
  const [days, hours] = [Math.floor(seconds / 86400), Math.floor(seconds / 3600) % 24];
  const minutes = Math.floor(seconds / 60) % 60;
  if (days > 0) return `${days} d ${hours} h`;
  if (hours > 0) return `${hours} h ${minutes} min`;
  return minutes > 0 ? `${minutes} min` : `${Math.floor(seconds)} s`;
}

// Shows rows of [key, cells] in a table's body; a cell is a text, or { text, mark }. The first cell
// is the row's header. Rows stay where they are.
export function fill(body, rows) {
  const known = new Map([...body.rows].map((row) => [row.dataset.key, row]));
  const shown = new Set();
  const heads = body.parentElement.tHead.rows[0].cells;
  let next = body.firstElementChild;
  for (const [key, cells] of rows) {
    const row = known.get(key) ?? newRow(key, heads);
    known.delete(key);
    shown.add(row);
    if (row === next) next = next.nextElementSibling;
    else body.insertBefore(row, next);
    cells.forEach((cell, index) => {
      const { text, mark: name = "" } = typeof cell === "object" ? cell : { text: cell };
      const element = row.cells[index];
      say(element, text);
      mark(element, `${heads[index].className} ${name}`.trim());
    });
  }
  for (const row of [...body.rows]) if (!shown.has(row)) row.remove();
}

function newRow(key, heads) {
  const row = document.createElement("tr");
  row.dataset.key = key;
  for (let index = 0; index < heads.length; index += 1) {
    const cell = document.createElement(index === 0 ? "th" : "td");
    if (index === 0) cell.scope = "row";
    row.append(cell);
  }
  return row;
}

// The samples of the last minutes, and rates between them.
export class History {
  samples = [];

  add(time, numbers) {
    const last = this.samples.at(-1);
    if (last && time <= last.time) this.samples = [];
    this.samples.push({ time, numbers });
    while (this.samples[0].time < time - MINUTES * 60e3) this.samples.shift();
  }

  clear() {
    this.samples = [];
  }

  // What a total grew by in the time before a sample, and that time in seconds.
  growth(key, milliseconds, index = this.samples.length - 1) {
    const last = this.samples[index];
    let first = index;
    while (first > 0 && last.time - this.samples[first].time < milliseconds) first -= 1;
    const { time, numbers } = this.samples[first];
    const grown = (last.numbers[key] ?? 0) - (numbers[key] ?? 0);
    return { grown: Math.max(grown, 0), seconds: (last.time - time) / 1e3 };
  }

  rate(key, index, milliseconds = SMOOTH) {
    const { grown, seconds } = this.growth(key, milliseconds, index);
    return seconds > 0 ? grown / seconds : undefined;
  }

  lastMinute(key) {
    return count(this.growth(key, 60e3).grown);
  }

  rates(key) {
    return this.samples
      .map((sample, index) => ({ time: sample.time, value: this.rate(key, index) }))
      .filter(({ value }) => value !== undefined);
  }
}

// Draws points of { time, value } as a line, and says them as a text.
export function graph(svg, name, points) {
  const end = points.at(-1)?.time ?? 0;
  const width = Math.max(end - (points[0]?.time ?? 0), 60e3);
  const values = points.map(({ value }) => value);
  const top = Math.max(...values, 1) * 1.1;
  const place = ({ time, value }) =>
    `${(300 - ((end - time) / width) * 300).toFixed(1)},${(60 - (value / top) * 58).toFixed(1)}`;
  const line = points.map(place).join(" ");
  const start = place({ time: points[0]?.time ?? 0, value: 0 });
  if (svg.childElementCount === 0) {
    svg.setAttribute("viewBox", "0 0 300 60");
    svg.setAttribute("preserveAspectRatio", "none");
    svg.append(shape("polygon", { class: "area" }), shape("polyline", { class: "line" }));
  }
  svg.children[0].setAttribute("points", points.length ? `${start} ${line} 300,60` : "");
  svg.children[1].setAttribute("points", line);
  const label = points.length
    ? `${name} over the last ${span((end - points[0].time) / 1e3)}: from ` +
      `${megabytes(Math.min(...values))} to ${megabytes(Math.max(...values))} MB/s`
    : "no data yet";
  if (svg.getAttribute("aria-label") !== label) svg.setAttribute("aria-label", label);
}

// Draws a part of a whole.
export function bar(svg, part) {
  if (svg.childElementCount === 0) {
    svg.setAttribute("viewBox", "0 0 100 1");
    svg.setAttribute("preserveAspectRatio", "none");
    const whole = { class: "full", width: 100, height: 1 };
    svg.append(shape("rect", whole), shape("rect", { class: "used", height: 1 }));
  }
  svg.children[1].setAttribute("width", (Math.min(Math.max(part || 0, 0), 1) * 100).toFixed(1));
}

function shape(name, attributes) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}

// Hands the events of a stream to handlers by their names, for as long as the page is visible, and
// says whether they come.
export function follow(url, handlers) {
  const link = at("link");
  let source, timer, heard = performance.now();
  const tell = (text, name) => {
    say(link, text);
    mark(link, name);
  };
  const close = () => {
    clearTimeout(timer);
    source?.close();
  };
  const open = () => {
    close();
    source = new EventSource(url);
    for (const [name, handle] of Object.entries(handlers)) {
      source.addEventListener(name, (event) => {
        heard = performance.now();
        tell("live", "on");
        handle(JSON.parse(event.data));
      });
    }
    source.onerror = () => {
      // The browser connects again by itself, unless it was refused.
      if (source.readyState === EventSource.CLOSED) timer = setTimeout(open, REFUSED_PAUSE);
    };
  };
  document.addEventListener("visibilitychange", () => {
    heard = performance.now();
    if (document.hidden) close();
    else open();
  });
  setInterval(() => {
    if (performance.now() - heard > SILENCE) tell("connection lost: figures are old", "off");
  }, 1000);
  open();
}

// The minutes of a graph, and the milliseconds over which rates are smoothed, after which silence
// is told, and after which a refused stream is tried again.
const MINUTES = 5;
const SMOOTH = 4500;
const SILENCE = 5000;
const REFUSED_PAUSE = 5000;

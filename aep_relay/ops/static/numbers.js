// What is counted: throughput, consumers, links, readiness.

import { arrange, byId, bytes, clean, el, number, put, quoted, span } from "./text.js";

const WIDTH = 600;
const HEIGHT = 120;
const WINDOW = 600;
const SVG = "http://www.w3.org/2000/svg";

export class Numbers {
  constructor() {
    this.plots = [plot("Received", 1, "received"), plot("Delivered", 2, "delivered"), plot("Dropped", 3, "dropped")];
    byId("plots").append(...this.plots.map(({ element }) => element));
    this.rows = new Map();
  }

  render(overview) {
    for (const { draw } of this.plots) draw(overview.throughput);
    this.#rates(overview.throughput);
    this.#facts(overview);
    this.#consumers(overview);
    this.#links(overview);
    counts("disconnects", overview.disconnects, "Nobody.");
    counts("refusals", overview.refusals, "Nothing.");
    byId("checks").replaceChildren(
      ...Object.entries(overview.readiness.checks).map(([name, problem]) =>
        el("li", { "data-ok": problem === "ok" }, `${clean(name, 40)}: ${clean(problem, 160)}`),
      ),
    );
  }

  #rates(samples) {
    const minutes = new Map();
    for (const [age, ...values] of samples) {
      const minute = Math.floor(age / 60);
      if (!minutes.has(minute)) minutes.set(minute, []);
      minutes.get(minute).push(values);
    }
    byId("rates").replaceChildren(
      ...[...minutes].reverse().map(([minute, all]) => {
        const mean = [0, 1, 2].map((index) => all.reduce((sum, values) => sum + values[index], 0) / all.length);
        return el("tr", {}, el("th", { scope: "row" }, String(minute)), ...mean.map((value) => el("td", { class: "num" }, number(value))));
      }),
    );
  }

  #facts({ counters, loop_latency_seconds: late }) {
    const facts = [
      ["Events received", number(counters.received_events)],
      ["Delivered", number(counters.delivered_events)],
      ["Dropped", number(counters.dropped_events)],
      ["Held for replay", `${number(counters.buffered_events)} · ${bytes(counters.buffered_bytes)}`],
      ["Commands routed", number(counters.routed_commands)],
      ["Event loop late by", `${number(late * 1000)} ms`],
    ];
    byId("numbers").replaceChildren(...facts.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
  }

  #consumers({ consumers, counters }) {
    byId("consumers-empty").hidden = consumers.length > 0;
    byId("consumers-table").hidden = consumers.length === 0;
    const total = `${number(counters.subscriptions)} subscriptions, ${number(counters.consumers_behind)} consumers behind`;
    put(byId("consumers-sub"), total);
    const shown = new Set(consumers.map((consumer) => consumer.id));
    for (const id of this.rows.keys()) if (!shown.has(id)) this.rows.delete(id);
    arrange(
      byId("consumers"),
      consumers.map((consumer) => {
        const cells = this.rows.get(consumer.id) ?? newConsumer(consumer);
        this.rows.set(consumer.id, cells);
        put(cells.filter, filters(consumer));
        put(cells.state, stateOf(consumer));
        put(cells.lag, consumer.queued_bytes ? bytes(consumer.queued_bytes) : "–");
        put(cells.delivered, number(consumer.delivered_events));
        put(cells.dropped, number(consumer.dropped_events));
        cells.row.dataset.state = consumer.queued_bytes ? "behind" : "live";
        cells.row.dataset.dropped = consumer.dropped_events > 0;
        return cells.row;
      }),
    );
  }

  #links({ links }) {
    byId("links-empty").hidden = links.length > 0;
    byId("links-table").hidden = links.length === 0;
    byId("links").replaceChildren(
      ...links.map((link) =>
        el(
          "tr",
          { "data-state": link.state === "up" ? "live" : "behind" },
          el("th", { scope: "row" }, quoted(link.name, 80)),
          el("td", {}, quoted(link.kind ?? "", 20)),
          el("td", {}, el("span", { class: "state" }, clean(link.state, 40))),
          el("td", {}, quoted(link.detail ?? link.url ?? "", 160)),
        ),
      ),
    );
  }
}

function newConsumer(consumer) {
  const cells = Object.fromEntries(["filter", "state"].map((name) => [name, el("span", { class: name === "filter" ? "filter-text" : name })]));
  for (const name of ["lag", "delivered", "dropped"]) cells[name] = el("td", { class: `num ${name}` });
  const who = consumer.agent ? [quoted(consumer.agent, 40), " "] : [];
  const name = el("th", { scope: "row" }, ...who, el("span", { class: "hint" }, `#${consumer.id} ${consumer.binding} ${clean(consumer.remote, 60)}`));
  cells.row = el("tr", {}, name, el("td", {}, cells.filter), el("td", {}, cells.state), cells.lag, cells.delivered, cells.dropped);
  return cells;
}

function filters({ subscriptions, subscription_count: count }) {
  const shown = subscriptions.slice(0, 3).map(({ filter }) => (filter === "{}" ? "everything" : clean(filter, 120)));
  if (count > shown.length) shown.push(`${count - shown.length} more`);
  return shown.join("; ");
}

function stateOf(consumer) {
  if (consumer.closing) return `closing: ${clean(consumer.closing, 40)}`;
  if (consumer.queued_bytes) return consumer.stalled_seconds >= 1 ? `takes nothing for ${span(consumer.stalled_seconds)}` : "behind";
  return consumer.subscriptions.some(({ replaying }) => replaying) ? "replaying" : "live";
}

function counts(id, values, none) {
  const items = Object.entries(values).sort(([, a], [, b]) => b - a);
  byId(id).replaceChildren(...(items.length ? items.map(([name, count]) => el("li", {}, `${clean(name, 60)} ${number(count)}`)) : [el("li", { class: "hint" }, none)]));
}

function shape(tag, attributes) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

/** A plot of one rate over the last ten minutes; its scale is its own and stands beside it. */
function plot(name, index, kind) {
  const line = shape("polyline", { class: "line", fill: "none", "vector-effect": "non-scaling-stroke" });
  const area = shape("polygon", { class: "area" });
  const svg = shape("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" });
  for (const part of [1, 2, 3]) svg.append(shape("line", { class: "grid", x1: 0, x2: WIDTH, y1: (HEIGHT * part) / 4, y2: (HEIGHT * part) / 4, "vector-effect": "non-scaling-stroke" }));
  svg.append(area, line);
  const now = el("strong", {});
  const most = el("span", { class: "hint" });
  const element = el("figure", { class: `plot ${kind}` }, el("figcaption", {}, `${name} `, now, " ", most), svg, el("div", { class: "axis hint", "aria-hidden": "true" }, el("span", {}, "10 min"), el("span", {}, "5 min"), el("span", {}, "now")));

  function draw(samples) {
    const top = Math.max(1, ...samples.map((sample) => sample[index]));
    const points = samples.map((sample) => `${(WIDTH * (1 - sample[0] / WINDOW)).toFixed(1)},${(HEIGHT - 2 - (HEIGHT - 6) * (sample[index] / top)).toFixed(1)}`);
    line.setAttribute("points", points.join(" "));
    const first = points[0]?.split(",")[0] ?? WIDTH;
    const last = points.at(-1)?.split(",")[0] ?? WIDTH;
    area.setAttribute("points", points.length ? `${first},${HEIGHT} ${points.join(" ")} ${last},${HEIGHT}` : "");
    const current = samples.at(-1)?.[index] ?? 0;
    put(now, `${number(current)}/s`);
    const peak = samples.length ? Math.max(...samples.map((sample) => sample[index])) : 0;
    put(most, `peak ${number(peak)}/s`);
    svg.setAttribute("aria-label", `${name}: ${number(current)} Events per second now, at most ${number(peak)} in the last ten minutes`);
  }

  return { element, draw };
}

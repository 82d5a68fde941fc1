// One Event as a row: the same in the tail and in a timeline.

import { clean, clock, el, quoted } from "./text.js";
import { show } from "./position.js";

/** A few words on what an Event says. */
export function summary(event) {
  const data = event.data && typeof event.data === "object" ? event.data : {};
  const parts = [];
  const add = (value) => {
    if (typeof value === "string" || typeof value === "number" || typeof value === "boolean") parts.push(String(value));
  };
  add(data.tool?.name ?? event.subject);
  add(data.prompt);
  add(data.message);
  add(data.error?.message ?? data.error?.type);
  add(data.reason);
  add(data.status ?? data.state ?? data.resolution);
  add(data.answer?.option ?? data.answer?.text);
  add(data.phase);
  if (Number.isFinite(data.percent)) parts.push(`${data.percent} %`);
  add(data.task?.title ?? data.name ?? data.trigger);
  if (Number.isFinite(data.duration_ms)) parts.push(`${data.duration_ms} ms`);
  return parts.slice(0, 4).join(" · ");
}

export function severityOf(event) {
  return event.severity ?? "info";
}

/** The Event's own text, with line breaks and indentation between its tokens and not a character changed. */
export function indented(raw) {
  let out = "";
  let depth = 0;
  const line = () => `\n${"  ".repeat(depth)}`;
  for (const [token] of raw.matchAll(/"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g)) {
    if (token === "{" || token === "[") {
      depth += 1;
      out += token + line();
    } else if (token === "}" || token === "]") {
      depth -= 1;
      // An empty pair stays together.
      out = /[{[]\s*$/.test(out.slice(-200)) ? out.trimEnd() + token : out + line() + token;
    } else if (token === ",") out += token + line();
    else out += token === ":" ? ": " : token;
  }
  return out;
}

/** A list item that shows `event` and, opened, all of it. `actions` are buttons to show with the whole. */
export function row(event, raw, position, { actions = () => [], session = true } = {}) {
  const severity = severityOf(event);
  const body = el("div", { class: "whole" });
  const details = el(
    "details",
    {
      ontoggle: () => {
        if (details.open && !body.firstChild) body.append(...actions(), el("pre", {}, clean(indented(raw), 20000)));
      },
    },
    el(
      "summary",
      {},
      el("time", { datetime: clean(event.time, 40), title: clean(event.time, 40) }, clock(event.time)),
      el("span", { class: "severity" }, severity),
      el("span", { class: "type" }, clean(event.type, 80)),
      session ? el("span", { class: "who" }, quoted(event.agent, 40), event.session === undefined ? "" : " / ", quoted(event.session, 60)) : null,
      session ? null : el("span", { class: "seq" }, show(position)),
      el("span", { class: "words" }, quoted(summary(event), 240)),
    ),
    body,
  );
  return el("li", { class: "event", "data-severity": severity }, details);
}

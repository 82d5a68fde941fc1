// One session's history in its own order, and for each Event what caused it and what it caused.

import { arrange, byId, clean, clock, el, number, put, quoted } from "./text.js";
import { compare } from "./position.js";
import { obstacle } from "./commands.js";
import { row, summary } from "./rows.js";

const MAX_KEPT = 10000;
const PAGE = 200;
const RENDER_EVERY = 250;
const MAX_CHAIN = 50;
const SECOND_PRESS_WITHIN = 4000;
const COMMANDS = [
  ["control.pause", "Pause"],
  ["control.resume", "Resume"],
  ["control.cancel", "Cancel run"],
];

export class Timeline {
  constructor({ feedFor, commands, entriesOf, overview }) {
    Object.assign(this, { feedFor, commands, entriesOf, overview });
    this.dialog = byId("timeline");
    byId("timeline-close").addEventListener("click", () => this.dialog.close());
    this.dialog.addEventListener("close", () => this.#close());
    byId("timeline-earlier").addEventListener("click", () => {
      this.shown += PAGE;
      this.dirty = true;
      this.#render();
    });
  }

  /** Show `session` of `source`, with `chosen`'s causes if that is the id of an Event. */
  open(session, source, chosen = null) {
    this.#close();
    Object.assign(this, { session, source, chosen, entries: [], known: new Map(), effects: new Map(), rows: new Map(), shown: PAGE, dirty: true, note: "" });
    byId("timeline-title").replaceChildren("Session ", quoted(session, 80));
    byId("timeline-sub").replaceChildren("emitted by ", quoted(source ?? "", 160));
    byId("timeline-list").replaceChildren();
    byId("chain-box").hidden = true;
    this.#buttons();
    this.feed = this.feedFor({
      event: (event, raw, position) => this.#take(event, raw, position),
      exhausted: () => {
        this.note = "Earlier Events of this session are gone from the relay's buffer.";
        this.dirty = true;
      },
    });
    this.feed.start({ filter: { session }, from: "all" });
    this.timer = setInterval(() => this.#render(), RENDER_EVERY);
    if (!this.dialog.open) this.dialog.showModal();
  }

  #close() {
    this.feed?.stop();
    this.feed = null;
    clearInterval(this.timer);
  }

  #take(event, raw, position) {
    // Of two sources that share the name, the other one's Events are another session; a command or a routing note
    // comes from a source of its own.
    if (position && this.source !== null && event.source !== this.source) return;
    const before = this.entries.at(-1);
    const entry = { event, raw, position, order: position ?? before?.order ?? { epoch: "0", seq: "0" } };
    let at = this.entries.length;
    if (position) while (at > 0 && compare(this.entries[at - 1].order, position) > 0) at -= 1;
    this.entries.splice(at, 0, entry);
    this.known.set(event.id, entry);
    if (event.cause !== undefined) {
      if (!this.effects.has(event.cause)) this.effects.set(event.cause, new Set());
      this.effects.get(event.cause).add(event.id);
    }
    if (this.entries.length > MAX_KEPT) this.#forget(this.entries.shift().event);
    this.dirty = true;
  }

  #forget({ id, cause }) {
    this.known.delete(id);
    const siblings = this.effects.get(cause);
    siblings?.delete(id);
    if (siblings?.size === 0) this.effects.delete(cause);
  }

  #render() {
    this.#buttons();
    if (!this.dirty) return;
    this.dirty = false;
    const shown = this.entries.slice(-this.shown);
    const kept = new Map();
    for (const entry of shown) kept.set(entry, this.rows.get(entry) ?? this.#row(entry));
    this.rows = kept;
    arrange(byId("timeline-list"), [...kept.values()]);
    const hiddenCount = this.entries.length - shown.length;
    byId("timeline-earlier").hidden = hiddenCount === 0;
    put(byId("timeline-earlier"), `Show ${number(Math.min(PAGE, hiddenCount))} earlier Events (${number(hiddenCount)} not shown)`);
    put(byId("timeline-note"), [this.note, `${number(this.entries.length)} Events.`].filter(Boolean).join(" "));
    this.#chain();
  }

  #row(entry) {
    return row(entry.event, entry.raw, entry.position, {
      session: false,
      actions: () => [el("button", { type: "button", onclick: () => this.#choose(entry.event.id) }, "Cause chain")],
    });
  }

  #choose(id) {
    this.chosen = id;
    this.#chain();
    byId("chain-box").scrollIntoView({ block: "nearest" });
  }

  /** The ids from the first known cause of the chosen Event to the Event itself. */
  #causes() {
    const chain = [];
    for (let id = this.chosen; id !== undefined && id !== null && !chain.includes(id) && chain.length < MAX_CHAIN; id = this.known.get(id)?.event.cause) chain.unshift(id);
    return chain;
  }

  #chain() {
    const chosen = this.known.get(this.chosen);
    byId("chain-box").hidden = !chosen;
    if (!chosen) return;
    const causes = this.#causes();
    const effects = [...(this.effects.get(this.chosen) ?? [])].slice(0, MAX_CHAIN);
    byId("chain").replaceChildren(...causes.map((id) => this.#link(id, "cause")), ...effects.map((id) => this.#link(id, "effect")));
    const linked = new Set([...causes, ...effects]);
    for (const [entry, element] of this.rows) {
      element.classList.toggle("linked", linked.has(entry.event.id));
      element.classList.toggle("chosen", entry.event.id === this.chosen);
    }
  }

  #link(id, kind) {
    const event = this.known.get(id)?.event;
    const current = id === this.chosen;
    const words = event ? [`${clock(event.time)} `, clean(event.type, 80), " ", quoted(summary(event), 120)] : ["an Event that is not in this session's history: ", quoted(id, 80)];
    return el("li", { class: kind, "aria-current": current ? "true" : null }, event && !current ? el("button", { type: "button", class: "linklike", onclick: () => this.#choose(id) }, ...words) : el("span", {}, ...words));
  }

  #buttons() {
    const box = byId("timeline-commands");
    if (!box.firstChild || box.dataset.session !== this.session) {
      box.dataset.session = this.session;
      box.replaceChildren(
        ...COMMANDS.map(([type, label]) =>
          el("button", { type: "button", "data-type": type, onclick: (click) => this.#pressed(click.currentTarget, type, label) }, label),
        ),
      );
    }
    const entries = this.entriesOf(this.session);
    const reasons = new Set();
    for (const button of box.children) {
      const why = obstacle(button.dataset.type, entries, this.overview());
      button.disabled = Boolean(why);
      button.title = why;
      if (why) reasons.add(why);
    }
    const record = [...this.commands.records.values()].reverse().find((sent) => sent.session === this.session);
    const outcome = record ? `${record.label}: ${record.status}${record.detail ? ` (${clean(record.detail, 160)})` : ""}. ` : "";
    put(byId("timeline-why"), outcome + [...reasons].join(" "));
  }

  /** What ends a run is sent on the second press only. */
  #pressed(button, type, label) {
    if (type === "control.cancel" && !button.dataset.armed) {
      button.dataset.armed = "yes";
      put(button, "Really cancel the run?");
      setTimeout(() => {
        delete button.dataset.armed;
        put(button, label);
      }, SECOND_PRESS_WITHIN);
      return;
    }
    this.commands.submit(type, this.session, label, type === "control.cancel" ? { data: { scope: "run" } } : {});
    this.#buttons();
  }
}

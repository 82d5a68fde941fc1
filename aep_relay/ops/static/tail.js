// The live tail: newest first, a filter the relay evaluates, a search over what is shown.

import { byId, clean, el, number, put, say } from "./text.js";
import { row, summary } from "./rows.js";

const RENDER_EVERY = 250;
const MAX_KEPT = 1000;
const MAX_SHOWN = 200;

export class Tail {
  constructor({ feed, open }) {
    this.feed = feed;
    this.open = open;
    this.kept = []; // Oldest first: [event, raw, position].
    this.pending = 0; // How many at the end of `kept` are not shown yet.
    this.skipped = 0;
    this.paused = false;
    this.count = 0;
    this.rates = [];
    byId("tail-form").addEventListener("submit", (submit) => this.#apply(submit));
    byId("tail-pause").addEventListener("click", () => this.#pause(!this.paused));
    byId("tail-clear").addEventListener("click", () => this.#clear());
    byId("tail-search").addEventListener("input", () => this.#again());
    setInterval(() => this.#render(), RENDER_EVERY);
    setInterval(() => this.#rate(), 1000);
  }

  take(event, raw, position) {
    this.count += 1;
    this.kept.push([event, raw, position]);
    this.pending += 1;
    if (this.kept.length > 2 * MAX_KEPT) {
      this.kept.splice(0, MAX_KEPT);
      if (this.pending > this.kept.length) {
        this.skipped += this.pending - this.kept.length;
        this.pending = this.kept.length;
      }
    }
  }

  async #apply(submit) {
    submit.preventDefault();
    const input = byId("tail-filter");
    try {
      const filter = parse(input.value);
      await this.feed.change({ filter, from: null });
      this.#problem("");
      this.#clear();
      say("Filter applied.");
    } catch (error) {
      this.#problem(error.message);
    }
  }

  #problem(text) {
    const box = byId("tail-error");
    box.hidden = !text;
    put(box, clean(text, 400));
    if (text) byId("tail-filter").setAttribute("aria-invalid", "true");
    else byId("tail-filter").removeAttribute("aria-invalid");
  }

  #pause(paused) {
    this.paused = paused;
    const button = byId("tail-pause");
    button.setAttribute("aria-pressed", String(paused));
    put(button, paused ? "Resume" : "Pause");
    this.#render();
  }

  #clear() {
    this.kept = [];
    this.pending = this.skipped = 0;
    this.#again();
  }

  #again() {
    byId("tail").replaceChildren();
    this.pending = this.kept.length;
    this.skipped = 0;
    this.#show();
    this.#note();
  }

  #render() {
    if (document.hidden) return;
    if (this.pending && !this.paused) this.#show();
    this.#note();
  }

  #show() {
    const words = byId("tail-search").value.trim().toLowerCase();
    const fresh = this.pending ? this.kept.slice(-this.pending) : [];
    const found = words ? fresh.filter((entry) => matches(entry, words)) : fresh;
    const shown = found.slice(-MAX_SHOWN);
    this.skipped += found.length - shown.length;
    this.pending = 0;
    const list = byId("tail");
    list.prepend(...shown.reverse().map(([event, raw, position]) => row(event, raw, position, { actions: () => this.#actions(event) })));
    for (let child = list.lastElementChild, spare = list.childElementCount - MAX_SHOWN; child && spare > 0; spare -= 1) {
      const gone = child;
      child = child.previousElementSibling;
      // What is being read stays.
      if (!gone.querySelector("details[open]")) gone.remove();
    }
    byId("tail-empty").hidden = list.childElementCount > 0;
  }

  #actions(event) {
    if (event.session === undefined) return [];
    return [el("button", { type: "button", onclick: () => this.open(event.session, event.source, event.id) }, "Timeline and cause chain")];
  }

  #note() {
    const note = this.paused
      ? `Paused; ${number(this.pending + this.skipped)} newer.`
      : this.skipped
        ? `${number(this.skipped)} passed too fast to be shown: narrow the filter or pause.`
        : "";
    put(byId("tail-note"), note);
  }

  #rate() {
    this.rates.push(this.count);
    this.count = 0;
    if (this.rates.length > 5) this.rates.shift();
    put(byId("tail-rate"), `${number(this.rates.reduce((sum, count) => sum + count, 0) / this.rates.length)}/s match`);
  }
}

function matches([event, raw], words) {
  return summary(event).toLowerCase().includes(words) || raw.toLowerCase().includes(words);
}

/** The filter in the box. Throws an error that says what is wrong with it. */
function parse(text) {
  if (!text.trim()) return {};
  let filter;
  try {
    filter = JSON.parse(text);
  } catch (error) {
    throw new Error(`This is not JSON: ${error.message}. A filter looks like {"type": "tool.*"}.`);
  }
  if (typeof filter !== "object" || filter === null || Array.isArray(filter)) {
    throw new Error('A filter is a JSON object, such as {"severity": {"gte": "warning"}}.');
  }
  return filter;
}

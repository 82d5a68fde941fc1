// Agents and sessions at a glance.

import { ago, arrange, byId, clean, el, number, put, quoted } from "./text.js";
import { ORDER, STATES, stateOf } from "./fleet.js";

const MAX_ROWS = 100;
const MAX_AGENTS = 30;
const WORDS = { waiting: "waiting for a human", running: "running", failed: "failed", idle: "idle", ended: "ended", silent: "tells no state" };

export class Sessions {
  constructor({ fleet, open }) {
    Object.assign(this, { fleet, open });
    this.rows = new Map();
    this.agents = new Map();
    this.only = null;
    this.tiles = Object.fromEntries(STATES.map((state) => [state, this.#tile(state)]));
    byId("tiles").append(...STATES.map((state) => this.tiles[state].element));
    byId("sessions-find").addEventListener("input", () => this.render());
  }

  #tile(state) {
    const count = el("span", { class: "value" }, "0");
    const button = el("button", { type: "button", "aria-pressed": "false", onclick: () => this.#toggle(state) }, count, el("span", { class: "name" }, WORDS[state]));
    return { count, button, element: el("li", { "data-state": state }, button) };
  }

  #toggle(state) {
    this.only = this.only === state ? null : state;
    for (const name of STATES) this.tiles[name].button.setAttribute("aria-pressed", String(name === this.only));
    this.render();
  }

  render() {
    const counts = this.fleet.counts();
    for (const state of STATES) put(this.tiles[state].count, number(counts[state]));
    const words = byId("sessions-find").value.trim().toLowerCase();
    const found = [...this.fleet.sessions.values()].filter(
      (session) =>
        (!this.only || stateOf(session) === this.only) &&
        (!words || session.name.toLowerCase().includes(words) || session.agent.toLowerCase().includes(words)),
    );
    found.sort((a, b) => ORDER.indexOf(stateOf(a)) - ORDER.indexOf(stateOf(b)) || (b.since || 0) - (a.since || 0));
    this.#rows(found.slice(0, MAX_ROWS));
    const any = this.fleet.sessions.size > 0;
    byId("sessions-table").hidden = !any;
    byId("sessions-empty").hidden = any;
    const more = byId("sessions-more");
    more.hidden = found.length <= MAX_ROWS;
    put(more, `${number(found.length - MAX_ROWS)} more: find them by name, or choose a state above.`);
    this.#agents();
  }

  #rows(sessions) {
    const shown = new Set(sessions.map((session) => session.key));
    for (const key of this.rows.keys()) if (!shown.has(key)) this.rows.delete(key);
    const rows = sessions.map((session) => {
      let cells = this.rows.get(session.key);
      if (!cells) this.rows.set(session.key, (cells = this.#row(session)));
      const state = stateOf(session);
      cells.row.dataset.state = state;
      const detail = session.detail && (state === "failed" || state === "ended") ? `: ${clean(session.detail, 40)}` : "";
      put(cells.state, WORDS[state] + detail);
      put(cells.since, ago(session.since));
      put(cells.last, clean(session.last?.type ?? "", 60));
      return cells.row;
    });
    arrange(byId("sessions"), rows);
  }

  #row(session) {
    const state = el("span", { class: "state" });
    const since = el("td", { class: "num" });
    const last = el("td", { class: "type spare" });
    const name = el("button", { type: "button", class: "linklike", onclick: () => this.open(session.name, session.source) }, quoted(session.name, 60));
    const row = el(
      "tr",
      {},
      el("th", { scope: "row" }, name, el("span", { class: "under hint" }, quoted(session.agent, 40))),
      el("td", { class: "spare" }, quoted(session.agent, 40)),
      el("td", {}, state),
      since,
      last,
    );
    return { row, state, since, last };
  }

  #agents() {
    const names = [...this.fleet.agents.keys()].sort().slice(0, MAX_AGENTS);
    const counts = new Map();
    for (const session of this.fleet.sessions.values()) {
      const state = stateOf(session);
      if (session.silent) continue;
      if (!counts.has(session.agent)) counts.set(session.agent, {});
      counts.get(session.agent)[state] = (counts.get(session.agent)[state] ?? 0) + 1;
    }
    const items = names.map((name) => {
      const agent = this.fleet.agents.get(name);
      let item = this.agents.get(name);
      if (!item) this.agents.set(name, (item = { words: el("span", { class: "hint" }) }));
      item.element ??= el("li", {}, el("strong", {}, quoted(name, 40)), " ", item.words);
      const words = STATES.filter((state) => counts.get(name)?.[state]).map((state) => `${counts.get(name)[state]} ${state}`);
      if (typeof agent.presence === "string") words.push(clean(agent.presence, 20));
      if (agent.health?.status && agent.health.status !== "ok") words.push(clean(agent.health.status, 20), clean(agent.health.detail ?? "", 60));
      if (agent.idleSince) words.push(`idle since ${ago(agent.idleSince)}`);
      put(item.words, words.filter(Boolean).join(", "));
      return item.element;
    });
    for (const name of this.agents.keys()) if (!this.fleet.agents.has(name)) this.agents.delete(name);
    arrange(byId("agents"), items);
    byId("agents").hidden = items.length === 0;
  }
}

// What the page knows of agents, sessions and open questions, folded from their Events.

import { compare } from "./position.js";

const MAX_SESSIONS = 5000;
const MAX_CLOSED = 2000;
const MAX_REQUESTS = 1000;
const MAX_RUNS = 200; // Of one session.

/** The Events this fold wants: what says how a session is doing, not what it does in detail. */
export const LIFECYCLE = {
  type: ["session.*", "run.*", "attention.*", "error.*", "control.*", "delegation.*", "agent.*"],
};

export const STATES = ["waiting", "running", "failed", "idle", "ended"];
export const ORDER = [...STATES, "silent"];

export class Fleet {
  constructor() {
    this.sessions = new Map(); // By source and name: two sources that share a name are two sessions.
    this.agents = new Map();
    this.requests = new Map(); // Open questions by the id of their Event.
    this.closed = new Set();
    this.changes = 0;
  }

  take(event, position) {
    this.changes += 1;
    if (event.type.startsWith("agent.")) this.#agent(event);
    else if (position) this.#session(event, position);
  }

  /** Sessions the relay holds. Of one that has told nothing of how it is doing, its name is all there is to know. */
  hold(names) {
    const known = new Set(Array.from(this.sessions.values(), (session) => session.name));
    for (const name of names) {
      if (known.has(name)) continue;
      this.#newSession(`\n${name}`, { session: name, source: null, agent: "" }).silent = true;
      this.changes += 1;
    }
  }

  counts() {
    const counts = Object.fromEntries(STATES.map((state) => [state, 0]));
    for (const session of this.sessions.values()) if (!session.silent) counts[stateOf(session)] += 1;
    return counts;
  }

  #agent(event) {
    const agent = this.#agentOf(event.agent);
    agent.time = Date.parse(event.time);
    const data = event.data ?? {};
    if (event.type === "agent.presence") agent.presence = data.state;
    else if (event.type === "agent.health") agent.health = data;
    else if (event.type === "agent.idle") agent.idleSince = agent.time - (Number(data.since_ms) || 0);
  }

  #agentOf(name) {
    let agent = this.agents.get(name);
    if (!agent) {
      if (this.agents.size >= MAX_SESSIONS) this.agents.delete(this.agents.keys().next().value);
      this.agents.set(name, (agent = { name }));
    }
    return agent;
  }

  #session(event, position) {
    const key = `${event.source}\n${event.session}`;
    let session = this.sessions.get(key);
    if (!session) {
      session = this.#newSession(key, event);
      this.sessions.delete(`\n${event.session}`);
    } else if (compare(position, session.position) <= 0) {
      // A backfill says what was; only a question in it may still be open.
      if (event.type.startsWith("attention.")) this.#attention(event, session);
      return;
    }
    if (session.position && session.position.epoch !== position.epoch) this.#restarted(session);
    session.position = position;
    session.last = event;
    const time = Date.parse(event.time);
    const before = stateOf(session);
    RULES[event.type]?.(session, event);
    if (event.type.startsWith("attention.")) this.#attention(event, session);
    else if (/^(run\.(finished|failed|cancelled)|session\.ended)$/.test(event.type)) this.#moot(session, event);
    if (stateOf(session) !== before || session.since === undefined) session.since = time;
    this.#agentOf(event.agent);
  }

  #newSession(key, event) {
    if (this.sessions.size >= MAX_SESSIONS) this.#forget(this.sessions.keys().next().value);
    const session = {
      key,
      name: event.session,
      source: event.source,
      agent: event.agent,
      runs: new Set(),
      questions: new Set(),
      outcome: null,
      ended: false,
    };
    this.sessions.set(key, session);
    return session;
  }

  #forget(key) {
    for (const id of this.sessions.get(key).questions) this.requests.delete(id);
    this.sessions.delete(key);
  }

  #restarted(session) {
    session.runs.clear();
    session.outcome = null;
    session.ended = false;
    for (const id of session.questions) this.#close(id);
  }

  #attention(event, session) {
    if (event.type === "attention.requested") {
      if (this.closed.has(event.id) || session.ended) return;
      if (this.requests.size >= MAX_REQUESTS) this.#close(this.requests.keys().next().value);
      this.requests.set(event.id, { id: event.id, event, session });
      session.questions.add(event.id);
    } else if (event.type !== "attention.routed") {
      this.#close(event.subject ?? event.cause);
    }
  }

  #close(id) {
    const request = this.requests.get(id);
    this.requests.delete(id);
    request?.session.questions.delete(id);
    this.closed.add(id);
    if (this.closed.size > MAX_CLOSED) this.closed.delete(this.closed.values().next().value);
  }

  #moot(session, event) {
    for (const id of [...session.questions]) {
      const run = this.requests.get(id)?.event.run;
      if (event.type === "session.ended" || (run !== undefined && run === event.run)) this.#close(id);
    }
  }
}

export function stateOf(session) {
  if (session.silent) return "silent";
  if (session.ended) return "ended";
  if (session.questions.size) return "waiting";
  if (session.runs.size) return "running";
  return session.outcome === "failed" ? "failed" : "idle";
}

function runEnds(outcome) {
  return (session, event) => {
    if (event.run === undefined) session.runs.clear();
    else session.runs.delete(event.run);
    session.outcome = outcome;
    session.detail = outcome === "failed" ? event.data?.reason : undefined;
  };
}

const RULES = {
  "session.started"(session, event) {
    session.ended = false;
    session.label = event.data?.label;
    session.model = event.data?.["gen_ai.request.model"];
  },
  "session.ended"(session, event) {
    session.ended = true;
    session.runs.clear();
    session.detail = event.data?.reason;
  },
  "run.started"(session, event) {
    session.ended = false;
    if (session.runs.size >= MAX_RUNS) session.runs.delete(session.runs.values().next().value);
    session.runs.add(event.run ?? "");
    session.outcome = null;
    session.detail = undefined;
  },
  "run.finished": runEnds("finished"),
  "run.failed": runEnds("failed"),
  "run.cancelled": runEnds("cancelled"),
  "error.raised"(session, event) {
    if (event.data?.fatal === true) session.outcome = "failed";
  },
};

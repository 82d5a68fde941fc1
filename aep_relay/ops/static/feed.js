// One WebSocket to the relay's data port with one standing request. It reconnects by itself and resumes exactly:
// after the last position of every session it knows, and from the start in sessions it has not heard of.

import { positionOf, compare, resumeText } from "./position.js";
import { randomId } from "./text.js";

const FIRST_PAUSE = 500;
const LONGEST_PAUSE = 30000;
const STABLE = 10000;
const SILENCE = 95000; // The relay pings every 30 s.
const MAX_NAMES = 500; // Sessions named in one request.
const MAX_SEEN = 20000;
const MAX_POSITIONS = 10000;

export class Feed {
  /**
   * `target()` answers `{url, token}`. `held()` answers a map from the sessions the relay holds to their last position.
   * `on` may have `event(event, raw)`, `status({state, ...})`, `error(frame)` and `exhausted(frame)`.
   */
  constructor({ name, target, held, on }) {
    this.name = name;
    this.target = target;
    this.held = held;
    this.on = on;
    this.request = null;
    this.live = false;
    this.positions = new Map();
    this.fresh = new Set();
    this.stale = new Set();
    this.resuming = false;
    this.failures = 0;
    this.waiting = new Map();
    this.rest = [];
    this.retry = this.retry.bind(this);
  }

  /** Connect and subscribe with `request`: `{filter, from}`; `from` is "all" or null. */
  start(request) {
    this.request = request;
    addEventListener("online", this.retry);
    this.#connect();
  }

  stop() {
    removeEventListener("online", this.retry);
    clearTimeout(this.timer);
    this.request = null;
    this.#drop();
  }

  /** Connect now if that is being waited for. */
  retry() {
    if (this.request && !this.socket) {
      clearTimeout(this.timer);
      this.#connect();
    }
  }

  /** Ask for something else; resolves when the relay agrees, else rejects with its reason and nothing changes. */
  async change(request) {
    if (this.live) {
      await this.#begin(request);
      for (const id of this.rest.splice(0)) this.#frame({ type: "unsubscribe", id });
    } else {
      this.resuming = false;
    }
    this.request = request;
  }

  /** Send one frame or Event; false when there is no connection that could take it. */
  send(text) {
    if (!this.live) return false;
    this.socket.send(text);
    return true;
  }

  /** Ask for the roster; resolves with its entries. */
  async roster() {
    const answer = await this.#ask({ type: "roster", id: `roster-${randomId()}` });
    return answer.entries ?? [];
  }

  #connect() {
    const { url, token } = this.target();
    this.on.status?.({ state: "connecting" });
    let socket;
    try {
      socket = new WebSocket(token ? `${url}?access_token=${encodeURIComponent(token)}` : url);
    } catch (error) {
      this.#later(String(error));
      return;
    }
    this.socket = socket;
    this.reason = "";
    socket.onopen = () => {
      const identity = { agent: "aep-relay-dashboard", instance: this.name };
      socket.send(JSON.stringify({ type: "hello", versions: ["0.1"], role: "consumer", identity, capabilities: {} }));
    };
    socket.onmessage = (message) => socket === this.socket && this.#received(message.data);
    socket.onclose = (closed) => socket === this.socket && this.#later(this.reason || closed.reason);
    this.#heard();
  }

  #drop() {
    const socket = this.socket;
    this.socket = null;
    this.live = false;
    clearTimeout(this.silence);
    clearTimeout(this.stable);
    for (const { reject } of this.waiting.values()) reject(new Error("the connection was lost"));
    this.waiting.clear();
    this.rest = [];
    if (socket) {
      socket.onopen = socket.onmessage = socket.onclose = null;
      socket.close();
    }
  }

  #later(reason) {
    this.#drop();
    if (!this.request) return;
    const longest = Math.min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** this.failures);
    this.failures = Math.min(this.failures + 1, 10);
    const pause = 200 + Math.random() * longest;
    this.on.status?.({ state: "waiting", reason, retryAt: Date.now() + pause });
    this.timer = setTimeout(this.retry, pause);
  }

  #heard() {
    const now = Date.now();
    if (this.silence && now - this.heardAt < 5000) return;
    this.heardAt = now;
    clearTimeout(this.silence);
    this.silence = setTimeout(() => this.#later("the relay has fallen silent"), SILENCE);
  }

  #frame(frame) {
    this.socket?.send(JSON.stringify(frame));
  }

  #ask(frame) {
    return this.#askText(frame.id, JSON.stringify(frame));
  }

  #askText(id, text) {
    return new Promise((resolve, reject) => {
      if (!this.socket) {
        reject(new Error("there is no connection"));
        return;
      }
      this.waiting.set(id, { resolve, reject });
      this.socket.send(text);
    });
  }

  #subscribe(id, filter, from) {
    const head = JSON.stringify({ type: "subscribe", id, filter });
    return this.#askText(id, from === null ? head : `${head.slice(0, -1)},"from":${from}}`);
  }

  #received(raw) {
    this.#heard();
    const message = JSON.parse(raw);
    if (message.type.includes(".")) this.#event(message, raw);
    else HANDLERS[message.type]?.call(this, message);
  }

  #event(event, raw) {
    const position = positionOf(event, raw);
    if (position?.exact) {
      const last = this.positions.get(event.session);
      if (!last || compare(position, last) > 0) {
        if (!last && this.positions.size >= MAX_POSITIONS) this.positions.delete(this.positions.keys().next().value);
        this.positions.set(event.session, position);
      }
    }
    const key = `${event.source}\n${event.id}`;
    if (this.fresh.has(key) || this.stale.has(key)) return;
    this.fresh.add(key);
    if (this.fresh.size >= MAX_SEEN) {
      this.stale = this.fresh;
      this.fresh = new Set();
    }
    this.on.event(event, raw, position);
  }

  async greeted() {
    this.live = true;
    this.stable = setTimeout(() => (this.failures = 0), STABLE);
    try {
      if (this.resuming) await this.#resume();
      else await this.#begin(this.request);
      this.resuming = true;
      this.on.status?.({ state: "live" });
    } catch (error) {
      if (this.live) this.#later(error.message);
    }
  }

  /** Subscribe for the first time. Without a replay, what is held by now counts as known when it resumes. */
  async #begin({ filter, from }) {
    const known = from ? new Map() : await this.held();
    await this.#subscribe("main", filter, from ? JSON.stringify(from) : null);
    this.positions = known;
  }

  async #resume() {
    const { filter } = this.request;
    const known = new Map(this.positions);
    const wanted = [...known.keys()].filter((session) => wants(filter, session));
    try {
      await this.#subscribe("main", filter, this.#from(wanted.slice(0, MAX_NAMES)));
    } catch (error) {
      if (error.code !== "limit-exceeded") throw error;
      // The relay resumes fewer sessions at once: what it repeats is recognised.
      await this.#subscribe("main", filter, '"all"');
      return;
    }
    for (const part of parts(wanted.slice(MAX_NAMES))) await this.#also(part, this.#from(part));
    // Asked for after the subscription: a session that begins later is delivered live from its start.
    const held = await this.held();
    const unknown = [...held.keys()].filter((session) => !known.has(session) && wants(filter, session));
    for (const part of parts(unknown)) await this.#also(part, '"all"');
  }

  async #also(sessions, from) {
    const id = `rest-${this.rest.length}`;
    await this.#subscribe(id, { ...this.request.filter, session: sessions }, from);
    this.rest.push(id);
  }

  #from(sessions) {
    return `[${sessions.map((session) => resumeText(session, this.positions.get(session))).join(",")}]`;
  }
}

function parts(names) {
  return Array.from({ length: Math.ceil(names.length / MAX_NAMES) }, (_, i) => names.slice(i * MAX_NAMES, (i + 1) * MAX_NAMES));
}

function wants(filter, session) {
  return filter.session === undefined || [filter.session].flat().includes(session);
}

function answered(frame) {
  const asked = this.waiting.get(frame.id);
  this.waiting.delete(frame.id);
  asked?.resolve(frame);
}

const HANDLERS = {
  hello() {
    this.greeted();
  },
  subscribed: answered,
  roster: answered,
  ping(frame) {
    this.socket?.send(JSON.stringify({ type: "pong", t: frame.t }));
  },
  closing(frame) {
    this.reason = frame.reason;
  },
  error(frame) {
    const asked = this.waiting.get(frame.id);
    if (asked) {
      this.waiting.delete(frame.id);
      asked.reject(Object.assign(new Error(frame.detail || frame.code), { code: frame.code }));
    } else {
      this.reason = frame.detail || frame.code;
      this.on.error?.(frame);
    }
  },
  "replay-exhausted"(frame) {
    this.on.exhausted?.(frame);
  },
};

// Commands: built once, sent again with the same id until they are acknowledged, refused or timed out (AEP-0004 §3).

import { randomId } from "./text.js";

const ATTEMPTS = 3;
const DEFAULT_WINDOW = 10000;
const MAX_RECORDS = 50;

export class Commands {
  /** `send(text)` answers whether it went out; `entriesOf(session)` answers the roster's entries for a session. */
  constructor({ instance, send, entriesOf, changed }) {
    this.source = `aep://dashboard/${instance}`;
    this.send = send;
    this.entriesOf = entriesOf;
    this.changed = changed;
    this.records = new Map();
  }

  /** Send a command; returns its record, whose `status` tells how it fares. */
  submit(type, session, label, { capture = "metadata", ...attributes } = {}) {
    const event = {
      aep: "0.1",
      id: randomId(),
      type,
      time: new Date().toISOString(),
      source: this.source,
      agent: "aep-relay-dashboard",
      session,
      ...attributes,
      capture,
    };
    const record = { id: event.id, type, session, label, about: attributes.subject, text: JSON.stringify(event), attempts: 0 };
    this.records.set(record.id, record);
    if (this.records.size > MAX_RECORDS) this.#forget(this.records.keys().next().value);
    this.#attempt(record);
    return record;
  }

  retry(record) {
    record.attempts = 0;
    this.#attempt(record);
  }

  /** Send what could not be sent for want of a connection. */
  connected() {
    for (const record of this.records.values()) if (record.status === "unsent") this.#attempt(record);
  }

  takeEvent(event) {
    if (event.type === "control.accepted") this.#settle(event.cause, "accepted", "");
    else if (event.type === "control.rejected") {
      const { reason = "", detail = "" } = event.data ?? {};
      this.#settle(event.cause, "rejected", [reason, detail].filter((part) => typeof part === "string" && part).join(": "));
    }
  }

  /** An error frame on the connection commands are sent on. */
  takeError(frame) {
    this.#settle(frame.cause, "refused", `${frame.code}: ${frame.detail ?? ""}`);
  }

  #attempt(record) {
    clearTimeout(record.timer);
    if (!this.send(record.text)) {
      this.#mark(record, "unsent", "waiting for the connection");
      return;
    }
    record.attempts += 1;
    this.#mark(record, "sent", record.attempts > 1 ? `attempt ${record.attempts} of ${ATTEMPTS}` : "");
    const window = this.entriesOf(record.session)[0]?.control?.ack_window_ms;
    const patience = Number.isFinite(window) && window > 0 ? Math.min(window, 120000) : DEFAULT_WINDOW;
    record.timer = setTimeout(() => {
      if (record.attempts < ATTEMPTS) this.#attempt(record);
      else this.#mark(record, "timed out", `no acknowledgement within ${Math.round(patience / 1000)} s, ${ATTEMPTS} times`);
    }, patience);
  }

  #settle(id, status, detail) {
    const record = this.records.get(id);
    if (!record || record.status === "accepted") return;
    clearTimeout(record.timer);
    this.#mark(record, status, detail);
  }

  #mark(record, status, detail) {
    record.status = status;
    record.detail = detail;
    this.changed(record);
  }

  #forget(id) {
    clearTimeout(this.records.get(id).timer);
    this.records.delete(id);
  }
}

/** Why `type` can't be sent to `session`, or "" when it can: what the relay and the roster allow. */
export function obstacle(type, entries, overview) {
  if (!overview?.token) return "This relay has no token, and commands need one.";
  if (entries.length === 0) return "No live connection emits this session, so nothing reaches it.";
  if (entries.length > 1) return `${entries.length} live connections claim this session: the relay would not know which is meant.`;
  const accepts = entries[0].control?.accepts;
  if (!Array.isArray(accepts) || !accepts.includes(type)) return `The agent does not accept ${type}.`;
  return "";
}

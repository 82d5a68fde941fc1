// The operator plane's pages, with the token of this tab.

import { parseExact, position } from "./position.js";

const KEY = "aep-relay-token";
const PATIENCE = 10000;

/** The token is missing, unknown, or grants too little. */
export class Unauthorized extends Error {}

// A link may bring the token along, as `aep-relay demo` prints one: no fragment is ever sent, and it leaves the address.
const given = new URLSearchParams(location.hash.slice(1)).get("token");
if (given) {
  sessionStorage.setItem(KEY, given);
  history.replaceState(null, "", location.pathname + location.search);
}

export const token = {
  get() {
    return sessionStorage.getItem(KEY);
  },
  set(value) {
    sessionStorage.setItem(KEY, value);
  },
  forget() {
    sessionStorage.removeItem(KEY);
  },
};

async function get(path) {
  const headers = token.get() ? { Authorization: `Bearer ${token.get()}` } : {};
  const response = await fetch(path, { headers, cache: "no-store", signal: AbortSignal.timeout(PATIENCE) });
  if (response.ok) return response.text();
  const problem = await response.json().catch(() => ({}));
  const detail = problem.detail ?? `${path}: ${response.status}`;
  const kind = response.status === 401 || response.status === 403 ? Unauthorized : Error;
  throw Object.assign(new kind(detail), { status: response.status });
}

export async function overview() {
  return JSON.parse(await get("overview"));
}

/** A map from the name of every session the relay holds to its last position. */
export async function held() {
  const { sessions } = parseExact(await get("sessions"));
  const found = new Map();
  for (const { session, latest } of sessions) {
    const last = latest && position(latest);
    if (last?.exact) found.set(session, last);
  }
  return found;
}

/** The data port's WebSocket for this page. */
export function socketUrl(urls) {
  const url = urls.find((candidate) => location.protocol !== "https:" || candidate.startsWith("https:")) ?? urls[0];
  return url && `${url.replace(/^http/, "ws")}/socket`;
}

// The dashboard: puts the parts together and keeps them supplied.

import { Unauthorized, held, overview as getOverview, socketUrl, token } from "./api.js";
import { Commands } from "./commands.js";
import { Feed } from "./feed.js";
import { Fleet, LIFECYCLE } from "./fleet.js";
import { Inbox, renderOutcomes } from "./inbox.js";
import { Numbers } from "./numbers.js";
import { Sessions } from "./sessions.js";
import { Tail } from "./tail.js";
import { Timeline } from "./timeline.js";
import { byId, clean, put, randomId, say, span } from "./text.js";

const POLL_EVERY = 2000;
const RENDER_EVERY = 400;
const ROSTER_EVERY = 5000;
const HELD_EVERY = 10000;

const instance = randomId();
const fleet = new Fleet();
let overview = null;
let roster = [];
let rosterAt = 0;
let drawn = -1;
const links = { state: { state: "connecting" }, tail: { state: "connecting" } };

const target = () => ({ url: socketUrl(overview.urls), token: token.get() });
const entriesOf = (session) => roster.filter((entry) => entry.session === session);

const state = new Feed({
  name: `${instance}/state`,
  target,
  held,
  on: {
    event(event, raw, position) {
      fleet.take(event, position);
      commands.takeEvent(event);
      if (event.type === "attention.requested" || event.type === "session.started") rosterAt = 0;
    },
    status(status) {
      links.state = status;
      showLink();
      if (status.state === "live") {
        rosterAt = 0;
        commands.connected();
        setTimeout(refreshHeld, 1000);
      }
    },
    error(frame) {
      commands.takeError(frame);
    },
  },
});

const commands = new Commands({
  instance,
  send: (text) => state.send(text),
  entriesOf,
  changed(record) {
    renderOutcomes(commands);
    if (record.status !== "sent") say(`${record.label}: ${record.status}`);
    drawn = -1;
  },
});

const tailFeed = new Feed({
  name: `${instance}/tail`,
  target,
  held,
  on: {
    event: (event, raw, position) => tail.take(event, raw, position),
    status(status) {
      links.tail = status;
      showLink();
    },
  },
});
const timeline = new Timeline({
  feedFor: (on) => new Feed({ name: `${instance}/timeline`, target, held, on }),
  commands,
  entriesOf,
  overview: () => overview,
});
const open = (session, source, id) => timeline.open(session, source ?? null, id);
const tail = new Tail({ feed: tailFeed, open });
const sessions = new Sessions({ fleet, open });
const inbox = new Inbox({ fleet, commands, entriesOf, overview: () => overview, open });
const numbers = new Numbers();

function showLink() {
  const { state: name, reason, retryAt } = links.state.state === "live" ? links.tail : links.state;
  const words = {
    live: "live",
    connecting: "connecting",
    waiting: `reconnecting in ${span(((retryAt ?? 0) - Date.now()) / 1000)}${reason ? `: ${clean(reason, 80)}` : ""}`,
    down: "not connected",
  };
  byId("link").dataset.state = name;
  put(byId("link-text"), words[name]);
}

function banner(text) {
  byId("banner").hidden = !text;
  put(byId("banner"), text);
}

function askForToken(problem) {
  const dialog = byId("token");
  byId("token-problem").hidden = !problem;
  put(byId("token-problem"), problem);
  if (!dialog.open) dialog.showModal();
}

byId("token-form").addEventListener("submit", (submit) => {
  submit.preventDefault();
  token.set(byId("token-value").value.trim());
  byId("token-value").value = "";
  byId("token").close();
  poll();
});
byId("token").addEventListener("cancel", (cancel) => cancel.preventDefault());
byId("forget").addEventListener("click", () => {
  token.forget();
  location.reload();
});

async function poll() {
  clearTimeout(poll.timer);
  try {
    const before = overview;
    overview = await getOverview();
    // The page may connect to where the relay was when it was loaded, and nowhere else.
    if (before && String(before.urls) !== String(overview.urls)) location.reload();
    banner("");
    byId("forget").hidden = !token.get();
    put(byId("facts"), `${clean(overview.version, 20)} · up ${span(overview.uptime_seconds)} · ${overview.counters.connections} connections`);
    numbers.render(overview);
    if (!before) connect();
  } catch (error) {
    if (error instanceof Unauthorized) {
      const explain = token.get() !== null || error.status === 403;
      token.forget();
      askForToken(explain ? `The relay says: ${clean(error.message, 120)}.` : "");
      return;
    }
    banner("The relay's operator plane does not answer; the numbers below are as they were last.");
  }
  poll.timer = setTimeout(poll, POLL_EVERY);
}

function connect() {
  if (!socketUrl(overview.urls)) {
    links.state = { state: "down" };
    showLink();
    banner("The data port can't be reached from a browser: it has no TCP address. Numbers are shown, Events are not.");
    return;
  }
  if (overview.token && !overview.query_token) {
    banner("This relay takes no token in URLs (auth.query_token), and a browser has no other way to send it: Events are not shown.");
    return;
  }
  state.start({ filter: LIFECYCLE, from: "all" });
  tailFeed.start({ filter: {}, from: null });
}

async function refreshRoster() {
  if (!state.live || Date.now() - rosterAt < ROSTER_EVERY) return;
  rosterAt = Date.now();
  try {
    roster = await state.roster();
    drawn = -1;
  } catch {
    rosterAt = 0; // The connection was lost; the next one asks again.
  }
}

async function refreshHeld() {
  if (!state.live || document.hidden) return;
  try {
    fleet.hold((await held()).keys());
  } catch {
    // The overview's poll says what is wrong.
  }
}

function render() {
  if (document.hidden) return;
  // Ages change by themselves, a second at a time.
  const due = fleet.changes + Math.floor(Date.now() / 1000) / 1e9;
  if (due === drawn) return;
  drawn = due;
  sessions.render();
  inbox.render();
  showLink();
  const waiting = fleet.requests.size;
  document.title = waiting ? `(${waiting}) aep-relay` : "aep-relay";
}

const THEMES = ["system", "light", "dark"];

function theme(name) {
  if (name === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  put(byId("theme"), `Theme: ${name}`);
  byId("theme").dataset.name = name;
}

byId("theme").addEventListener("click", () => {
  const next = THEMES[(THEMES.indexOf(byId("theme").dataset.name) + 1) % THEMES.length];
  localStorage.setItem("aep-relay-theme", next);
  theme(next);
});
theme(THEMES.find((name) => name === localStorage.getItem("aep-relay-theme")) ?? "system");

document.addEventListener("visibilitychange", () => {
  if (!document.hidden) for (const feed of [state, tailFeed]) feed.retry();
});
setInterval(render, RENDER_EVERY);
setInterval(refreshRoster, 500);
setInterval(refreshHeld, HELD_EVERY);
poll();

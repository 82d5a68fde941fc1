// Text from outside becomes text nodes and nothing else: this module is the only one that fills elements.

const UNSEEN =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;

/** `value` as text of at most `max` characters; characters that are not seen, or turn others around, are spelled out. */
export function clean(value, max = 300) {
  let text = typeof value === "string" ? value : value === undefined || value === null ? "" : JSON.stringify(value);
  if (text.length > max) text = `${text.slice(0, max)}… (${text.length} characters)`;
  return text.replace(UNSEEN, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

/** A new element. Children are elements or text; attributes named on… are listeners. */
export function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** What somebody else wrote, kept apart from the page's own words in direction and looks. */
export function quoted(value, max) {
  return el("bdi", { class: "quoted" }, clean(value, max));
}

/** Put `text` into `element` if it is not there already. */
export function put(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function byId(id) {
  return document.getElementById(id);
}

/** Have a screen reader say `text` when it is done with what it is saying. */
export function say(text) {
  put(byId("say"), text);
}

const UNITS = [
  [86400, "d"],
  [3600, "h"],
  [60, "min"],
];

/** A duration in its largest unit: `42 s`, `3 min`. */
export function span(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  for (const [size, unit] of UNITS) if (whole >= size) return `${Math.floor(whole / size)} ${unit}`;
  return `${whole} s`;
}

export function ago(milliseconds) {
  return Number.isFinite(milliseconds) ? span((Date.now() - milliseconds) / 1000) : "";
}

const NUMBER = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const COMPACT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export function number(value) {
  return Math.abs(value) < 10000 ? NUMBER.format(value) : COMPACT.format(value);
}

export function bytes(value) {
  for (const [size, unit] of [
    [2 ** 30, "GiB"],
    [2 ** 20, "MiB"],
    [2 ** 10, "KiB"],
  ])
    if (value >= size) return `${NUMBER.format(value / size)} ${unit}`;
  return `${value} B`;
}

export function clock(time) {
  const date = new Date(time);
  return Number.isNaN(date.getTime()) ? clean(time, 32) : date.toLocaleTimeString("en-GB");
}

/** Make the children of `parent` be `elements`, moving as little as possible so that focus stays where it is. */
export function arrange(parent, elements) {
  let next = parent.firstChild;
  for (const element of elements) {
    if (element === next) next = next.nextSibling;
    else parent.insertBefore(element, next);
  }
  while (next) {
    const gone = next;
    next = next.nextSibling;
    gone.remove();
  }
}

/** A random identifier; `crypto.randomUUID` is there on secure origins only. */
export function randomId() {
  const random = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(random, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

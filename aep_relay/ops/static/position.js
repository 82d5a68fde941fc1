// Positions, exactly: an epoch may be a timestamp in nanoseconds, which no JavaScript number holds.

/** The decimal digits of a JSON number that is a whole number of at least 0; null when it is not one. */
function digits(source) {
  const parts = /^(\d+)(?:\.(\d+))?(?:[eE]([+-]?\d+))?$/.exec(source);
  if (!parts) return null;
  const [, whole, fraction = "", exponent = "0"] = parts;
  const shift = Number(exponent) - fraction.length;
  if (Math.abs(shift) > 400) return null;
  let text = whole + fraction;
  if (shift >= 0) text += "0".repeat(shift);
  else {
    if (!/^0*$/.test(text.slice(shift))) return null;
    text = text.slice(0, shift);
  }
  return text.replace(/^0+(?=\d)/, "") || "0";
}

/** `JSON.parse`, with whole numbers that a JavaScript number does not hold exactly as BigInt where the browser can. */
export function parseExact(raw) {
  return JSON.parse(raw, (name, value, context) => {
    if (typeof value !== "number" || Number.isSafeInteger(value) || context?.source === undefined) return value;
    const text = digits(context.source);
    return text === null ? value : BigInt(text);
  });
}

function wholeNumber(value) {
  return typeof value === "bigint" || Number.isSafeInteger(value);
}

/** `{epoch, seq, exact}` in decimal digits; not exact where the browser rounded a number. Null for what is none. */
export function position({ epoch = 0, seq }) {
  const parts = [epoch, seq];
  const exact = parts.every(wholeNumber);
  if (!exact && !parts.every((part) => typeof part === "bigint" || Number.isInteger(part))) return null;
  return { epoch: String(BigInt(epoch)), seq: String(BigInt(seq)), exact };
}

/** The position of `event`, whose JSON text is `raw`; null when it has none. */
export function positionOf(event, raw) {
  if (event.seq === undefined || event.session === undefined) return null;
  return wholeNumber(event.seq) && wholeNumber(event.epoch ?? 0) ? position(event) : position(parseExact(raw));
}

function compareDigits(a, b) {
  return a.length - b.length || (a < b ? -1 : a > b ? 1 : 0);
}

export function compare(a, b) {
  return compareDigits(a.epoch, b.epoch) || compareDigits(a.seq, b.seq);
}

/** A resume position as JSON text. */
export function resumeText(session, position) {
  return `{"session":${JSON.stringify(session)},"epoch":${position.epoch},"seq":${position.seq}}`;
}

export function show(position) {
  return position ? (position.epoch === "0" ? position.seq : `${position.epoch}:${position.seq}`) : "";
}

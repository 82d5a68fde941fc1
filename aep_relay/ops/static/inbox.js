// The attention inbox: what each agent asks, in its own words, and what it takes for an answer.

import { ago, arrange, byId, clean, el, put, quoted, say, span } from "./text.js";
import { obstacle } from "./commands.js";

export const RESPOND = "control.attention.respond";
const MAX_CARDS = 50;
const MAX_ITEMS = 100; // Options, fields and choices of one request.

export class Inbox {
  constructor({ fleet, commands, entriesOf, overview, open }) {
    Object.assign(this, { fleet, commands, entriesOf, overview, open });
    this.cards = new Map();
  }

  render() {
    const requests = [...this.fleet.requests.values()].reverse();
    // What can be answered here comes first, the newest before the others.
    requests.sort((a, b) => Boolean(this.#why(a.event)) - Boolean(this.#why(b.event)));
    const shown = requests.slice(0, MAX_CARDS);
    for (const id of this.cards.keys()) if (!this.fleet.requests.has(id)) this.cards.delete(id);
    for (const request of shown) {
      if (!this.cards.has(request.id)) {
        this.cards.set(request.id, this.#card(request));
        if (this.settled) say(`${clean(request.event.agent, 40)} asks for attention.`);
      }
      this.#update(request);
    }
    this.settled = true;
    arrange(byId("inbox"), shown.map((request) => this.cards.get(request.id).element));
    put(byId("inbox-count"), String(requests.length));
    byId("inbox-count").dataset.some = requests.length > 0;
    byId("inbox-empty").hidden = requests.length > 0;
  }

  #card({ id, event, session }) {
    const data = object(event.data);
    const age = el("span", {});
    const why = el("p", { class: "hint" });
    const outcome = el("p", { class: "outcome", role: "status" });
    const answers = el("div", { class: "answers" });
    const card = { age, why, outcome, controls: [] };
    this.#answers(card, answers, data, (label, answer, capture) => {
      card.record = this.commands.submit(RESPOND, event.session, label, {
        subject: id,
        cause: id,
        ...(event.run === undefined ? {} : { run: event.run }),
        capture,
        data: { answer },
      });
      this.#update({ id, event, session });
    });
    card.element = el(
      "li",
      { class: "card" },
      el(
        "article",
        { "aria-label": `Question of ${clean(event.agent, 40)}` },
        el(
          "p",
          { class: "asks" },
          el("strong", {}, quoted(event.agent, 60)),
          " asks ",
          el("span", { class: "kind" }, clean(data.kind ?? "attention", 40)),
          event.subject === undefined ? null : quoted(event.subject, 120),
        ),
        el("blockquote", { class: "prompt" }, quoted(data.prompt ?? "", 4000)),
        el(
          "p",
          { class: "origin" },
          "written by ",
          quoted(event.source, 120),
          ` · ${event.capture ?? "metadata"} · `,
          el("button", { type: "button", class: "linklike", onclick: () => this.open(event.session, event.source, id) }, "session ", quoted(event.session, 60)),
          " · ",
          age,
        ),
        data.context === undefined ? null : el("details", {}, el("summary", {}, "Context"), el("pre", {}, clean(JSON.stringify(data.context, null, 2), 20000))),
        answers,
        why,
        outcome,
      ),
    );
    return card;
  }

  #answers(card, box, data, send) {
    const options = list(data.options);
    const fields = list(data.fields);
    for (const option of options) {
      if (typeof object(option).id !== "string") continue;
      const label = clean(option.label ?? option.id, 80);
      const button = el("button", { type: "button", class: "answer", onclick: () => send(label, { option: option.id }, "metadata") }, quoted(option.label ?? option.id, 80));
      card.controls.push(button);
      box.append(button);
    }
    if (fields.length) box.append(this.#form(card, fields, send));
    else if (!options.length) box.append(this.#words(card, send));
  }

  #words(card, send) {
    const input = el("textarea", { rows: 2, required: true, "aria-label": "Answer in words" });
    const button = el("button", { type: "submit", class: "primary" }, "Send answer");
    card.controls.push(input, button);
    return el(
      "form",
      {
        onsubmit: (submit) => {
          submit.preventDefault();
          // What a person types has gone through no redaction, and the label has to say so.
          send("answer in words", { text: input.value }, "full");
        },
      },
      input,
      button,
    );
  }

  #form(card, fields, send) {
    const readers = [];
    const form = el("form", {
      class: "form",
      onsubmit: (submit) => {
        submit.preventDefault();
        const values = {};
        for (const [id, read] of readers) {
          const value = read();
          if (value !== undefined) values[id] = value;
        }
        const wordy = Object.values(values).some((value) => typeof value === "string" || Array.isArray(value));
        send("form", { values }, wordy ? "full" : "metadata");
      },
    });
    for (const field of fields) {
      if (typeof object(field).id !== "string") continue;
      const [element, read] = fieldOf(field);
      readers.push([field.id, read]);
      form.append(element);
    }
    const button = el("button", { type: "submit", class: "primary" }, "Send answers");
    form.append(button);
    card.controls.push(...form.querySelectorAll("input, select"), button);
    return form;
  }

  #update({ id, event }) {
    const card = this.cards.get(id);
    if (!card) return;
    const why = this.#why(event);
    put(card.why, why);
    card.why.hidden = !why;
    const expires = Date.parse(object(event.data).expires_at);
    const left = Number.isNaN(expires) ? "" : expires > Date.now() ? ` · expires in ${span((expires - Date.now()) / 1000)}` : " · expired";
    put(card.age, `${ago(Date.parse(event.time))} ago${left}`);
    const record = card.record;
    const busy = record && ["sent", "unsent", "accepted"].includes(record.status);
    for (const control of card.controls) control.disabled = Boolean(why) || Boolean(busy);
    put(card.outcome, record ? `${record.label}: ${record.status}${record.detail ? ` (${clean(record.detail, 200)})` : ""}` : "");
    card.outcome.dataset.status = record?.status ?? "";
  }

  #why(event) {
    const via = object(event.data).respond_via;
    if (Array.isArray(via) && !via.includes("control")) {
      return `The agent takes no answer from here; it names ${clean(via.join(", ") || "nothing", 100)}.`;
    }
    return obstacle(RESPOND, this.entriesOf(event.session), this.overview());
  }
}

function object(value) {
  return value !== null && typeof value === "object" && !Array.isArray(value) ? value : {};
}

function list(value) {
  return Array.isArray(value) ? value.slice(0, MAX_ITEMS) : [];
}

/** The element for one form field, and what reads its value: undefined for none. */
function fieldOf(field) {
  const label = () => [el("span", {}, quoted(field.label ?? field.id, 120), field.required === true ? " (required)" : "")];
  const choices = list(field.choices).filter((choice) => typeof object(choice).id === "string");
  if (field.type === "boolean") {
    const input = el("input", { type: "checkbox" });
    return [el("label", { class: "check" }, input, " ", ...label()), () => input.checked];
  }
  if (choices.length && field.multi) return several(field, choices, label);
  if (choices.length) return one(field, choices, label);
  const numeric = field.type === "number" || field.type === "integer";
  const input = el("input", {
    type: numeric ? "number" : "text",
    step: field.type === "number" ? "any" : null,
    min: numeric && Number.isFinite(field.min) ? field.min : null,
    max: numeric && Number.isFinite(field.max) ? field.max : null,
    required: field.required === true,
    autocomplete: "off",
  });
  return [
    el("label", {}, ...label(), input),
    () => (input.value === "" ? undefined : numeric ? input.valueAsNumber : input.value),
  ];
}

function one(field, choices, label) {
  const other = el("input", { type: "text", autocomplete: "off", "aria-label": `${clean(field.label ?? field.id, 120)}: other` });
  const select = el(
    "select",
    { required: field.required === true && field.other !== true },
    el("option", { value: "" }, "choose…"),
    ...choices.map((choice, index) => el("option", { value: index }, clean(choice.label ?? choice.id, 120))),
  );
  const element = el("div", { class: "fieldset" }, el("label", {}, ...label(), select), field.other === true ? el("label", {}, "Other ", other) : null);
  return [element, () => other.value || (select.value === "" ? undefined : choices[Number(select.value)].id)];
}

function several(field, choices, label) {
  const other = el("input", { type: "text", autocomplete: "off" });
  const boxes = choices.map((choice) => [el("input", { type: "checkbox" }), choice]);
  const element = el(
    "fieldset",
    {},
    el("legend", {}, ...label()),
    ...boxes.map(([box, choice]) => el("label", { class: "check" }, box, " ", quoted(choice.label ?? choice.id, 120))),
    field.other === true ? el("label", {}, "Other ", other) : null,
  );
  return [
    element,
    () => {
      const chosen = boxes.filter(([box]) => box.checked).map(([, choice]) => choice.id);
      if (other.value) chosen.push(other.value);
      return chosen.length || field.required ? chosen : undefined;
    },
  ];
}

/** The list of commands sent from this page, with what became of them. */
export function renderOutcomes(commands) {
  const records = [...commands.records.values()].reverse().slice(0, 8);
  byId("outcomes-box").hidden = records.length === 0;
  byId("outcomes").replaceChildren(
    ...records.map((record) =>
      el(
        "li",
        { "data-status": record.status },
        el("span", { class: "state" }, record.status),
        ` ${record.type} `,
        el("span", { class: "quoted" }, record.label),
        " to ",
        quoted(record.session, 60),
        record.detail ? el("span", { class: "hint" }, ` ${clean(record.detail, 200)}`) : null,
        record.status === "timed out" ? el("button", { type: "button", onclick: () => commands.retry(record) }, "Try again") : null,
      ),
    ),
  );
}

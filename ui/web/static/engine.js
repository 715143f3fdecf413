// The engine's part of the page: its state and pace in the header, the strip, and the token budget.
import { json, poll, setText } from "./poll.js";
import { Strip } from "./strip.js";

const WORDS = { starting: "Engine starting", running: "Engine running", other: "Backend answering", down: "Engine down" };
const TONES = { starting: "warn", running: "good", other: "good", down: "bad" };
const NOTES = {
  starting: "The engine is loading its model. Its steps appear here as soon as it runs.",
  other: "This backend is not Watchword's engine: it shows no steps and takes no budget. Captions and chat work as usual.",
  down: "The engine does not answer. Pictures go on; captions and chat come back with it.",
};
const MAX_STEPS = 300;

export function start() {
  const strip = new Strip(document.querySelector(".strip-plot"));
  const budget = new Budget(document.querySelector(".budget"));
  let steps = [];
  let generation = null;
  return poll(200, async () => {
    const since = steps.length ? steps.at(-1).step_id : -1;
    const live = await json(`live/engine?since=${since}&generation=${generation ?? -1}`);
    steps = (live.generation === generation ? steps.concat(live.steps) : live.steps).slice(-MAX_STEPS);
    generation = live.generation;
    showHead(live, steps.at(-1));
    budget.show(live);
    setText(document.querySelector(".strip-note"), NOTES[live.state] ?? (steps.length ? "" : "No step yet: the engine rests until somebody asks."));
    strip.show(steps, live.settings?.max_num_batched_tokens ?? null);
  });
}

function showHead(live, last) {
  const head = document.querySelector(".ww-engine");
  const state = head.querySelector(".state");
  state.dataset.tone = TONES[live.state];
  setText(state, WORDS[live.state]);
  const running = live.state === "running";
  const show = (name, text) => {
    const rate = head.querySelector(`[data-rate="${name}"]`);
    rate.hidden = !running || text === null;
    if (text !== null) setText(rate.querySelector("b"), text);
  };
  const { tokens_per_s, itl_p50_ms, itl_p99_ms } = live.rates;
  show("pace", tokens_per_s.toFixed(tokens_per_s < 10 ? 1 : 0));
  show("itl", itl_p50_ms === null ? null : `${itl_p50_ms.toFixed(0)} / ${itl_p99_ms.toFixed(0)} ms`);
  show("load", last ? `${last.num_running} running, ${last.num_waiting} waiting` : null);
  show("kv", last ? `${(100 * last.kv_usage).toFixed(0)} %` : null);
}

// A geometric scale: the difference between 32 and 64 tokens matters as much as that between 256 and 512.
class Budget {
  constructor(root) {
    this.input = root.querySelector("input");
    this.output = root.querySelector("output");
    this.hint = root.querySelector(".hint");
    this.said = this.hint.textContent;
    this.touchedAt = -Infinity;
    this.low = this.high = null;
    this.sending = false;
    this.wanted = null;
    this.input.addEventListener("input", () => this.ask(this.valueAt(Number(this.input.value))));
  }

  show(live) {
    const settings = live.settings;
    this.input.disabled = live.state !== "running" || !settings;
    if (!settings) return;
    this.low = Math.max(1, settings.max_num_seqs);
    this.high = settings.max_budget;
    if (performance.now() - this.touchedAt > 1500 && !this.sending) this.put(settings.max_num_batched_tokens);
  }

  valueAt(position) {
    return Math.round(this.low * (this.high / this.low) ** (position / 1000));
  }

  put(tokens) {
    const position = (1000 * Math.log(tokens / this.low)) / Math.log(this.high / this.low);
    this.input.value = String(Math.round(position));
    this.label(tokens);
  }

  label(tokens) {
    setText(this.output, `${tokens} tokens`);
    this.input.setAttribute("aria-valuetext", `${tokens} tokens per step`);
    this.input.style.setProperty("--fill", `${Number(this.input.value) / 10}%`);
  }

  async ask(tokens) {
    this.touchedAt = performance.now();
    this.label(tokens);
    this.wanted = tokens;
    if (this.sending) return; // the newest wish goes out when the last one was answered
    this.sending = true;
    try {
      while (this.wanted !== null) {
        const body = JSON.stringify({ max_num_batched_tokens: this.wanted });
        this.wanted = null;
        const reply = await fetch("live/budget", { method: "PATCH", headers: { "Content-Type": "application/json" }, body });
        const { refused } = await reply.json();
        this.hint.dataset.tone = refused ? "bad" : "";
        setText(this.hint, refused ?? this.said);
      }
    } finally {
      this.sending = false;
    }
  }
}

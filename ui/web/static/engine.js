// The engine's part of the page: its state and pace in the header, the strip, and what can be set.
import { boundsOf, Controls } from "./controls.js";
import { json, poll, setText } from "./poll.js";
import * as shares from "./shares.js";
import { Strip } from "./strip.js";

const WORDS = { starting: "Engine starting", running: "Engine running", other: "Backend answering", down: "Engine down" };
const TONES = { starting: "warn", running: "good", other: "good", down: "bad" };
const NOTES = {
  starting: ["The engine is being started", "Its steps appear here as soon as it runs."],
  other: [
    "This backend is not Watchword's engine",
    "Its steps, its cache, its queue and its settings cannot be shown. Captions, chat and how long they take work as usual.",
  ],
  down: ["The engine does not answer", "Pictures go on; captions and chat come back with it."],
  restarting: ["The engine stopped and is being started again", "Pictures go on; captions and chat come back by themselves."],
  resting: ["No step yet", "The engine rests until somebody asks."],
};
const MAX_STEPS = 300;

export function start() {
  const strip = new Strip(document.querySelector(".strip-plot"));
  const controls = new Controls(document.querySelector(".controls"));
  let steps = [];
  let generation = null;
  return poll(200, async () => {
    const since = steps.length ? steps.at(-1).step_id : -1;
    const live = await json(`live/engine?since=${since}&generation=${generation ?? -1}`);
    steps = (live.generation === generation ? steps.concat(live.steps) : live.steps).slice(-MAX_STEPS);
    generation = live.generation;
    showHead(live, steps.at(-1));
    shares.show(live);
    controls.show(live);
    showNote(document.querySelector(".strip-note"), live, steps);
    document.querySelector(".p-engine").dataset.state = live.state;
    strip.show(steps, live.settings ? boundsOf(live.settings, live.marks) : [], live.marks);
  });
}

function showNote(box, live, steps) {
  const [head, rest] = note(live, steps);
  setText(box.querySelector("b"), head);
  setText(box.querySelector("span"), rest);
  box.hidden = head === "";
}

function note(live, steps) {
  if (live.state === "running") return steps.length ? ["", ""] : NOTES.resting;
  if (live.loading) {
    const { phase, detail, phase_s, elapsed_s } = live.loading;
    const since = `For ${duration(phase_s)} now, ${duration(elapsed_s)} since the start.`;
    return [`The engine is ${phase}`, `${since} ${detail || "Its steps appear here as soon as it runs."}`];
  }
  return NOTES[live.state === "down" && live.is_own ? "restarting" : live.state];
}

function stateInWords({ state, is_own, loading }) {
  if (state === "down" && is_own) return "Engine down, being restarted";
  return loading ? `Engine ${loading.phase}` : WORDS[state];
}

const duration = (seconds) => (seconds < 100 ? `${Math.round(seconds)} s` : `${(seconds / 60).toFixed(1)} min`);

function showHead(live, last) {
  const head = document.querySelector(".ww-engine");
  const state = head.querySelector(".state");
  state.dataset.tone = TONES[live.state];
  setText(state, stateInWords(live));
  const running = live.state === "running";
  const show = (name, text, isKnown = running) => {
    const rate = head.querySelector(`[data-rate="${name}"]`);
    rate.hidden = !isKnown || text === null;
    if (text !== null) setText(rate.querySelector("b"), text);
  };
  const { tokens_per_s, itl_p50_ms, itl_p99_ms, window_s } = live.rates;
  show("pace", tokens_per_s.toFixed(tokens_per_s < 10 ? 1 : 0));
  show("itl", itl_p50_ms === null ? null : `${itl_p50_ms.toFixed(0)} / ${itl_p99_ms.toFixed(0)} ms`);
  show("since", live.loading && duration(live.loading.elapsed_s), live.loading !== null);
  show("window", `last ${window_s} s`);
  show("load", last ? `${last.num_running} running, ${last.num_waiting} waiting` : null);
  show("kv", last ? `${(100 * last.kv_usage).toFixed(0)} %` : null);
}

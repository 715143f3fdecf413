// What a person may set: the token budget, the step policy and its target. What the engine says always wins.
import { patch, setText } from "./poll.js";

const TOUCH_MS = 1500; // a control that was just touched is left alone for as long

// `budget`: whose number bounds a step. "yours" is the slider's; "own" the policy finds itself; "none" is no bound.
const POLICIES = {
  "stall-free": { budget: "yours", say: "Running answers first. A small budget keeps their words steady; a large one loads prompts sooner." },
  "split-fuse": { budget: "yours", say: "Every step takes as many tokens as the budget says, the shortest prompts first." },
  "prefill-first": { budget: "none", say: "Whole prompts first, without a budget; running answers stall meanwhile. Here to compare with." },
  "latency-target": { budget: "own", say: "The engine sizes each step's budget itself, to keep every word within the target." },
};
const UNKNOWN = { budget: "yours", say: "Smaller: steadier words while prompts load. Larger: prompts load sooner." };

export class Controls {
  constructor(root) {
    this.slider = new Slider(root, (tokens) => this.ask({ max_num_batched_tokens: tokens }));
    this.policyBox = root.querySelector(".policy");
    this.policy = root.querySelector("select");
    this.targetBox = root.querySelector(".target");
    this.target = root.querySelector(".target input");
    this.hint = root.querySelector(".hint");
    this.wanted = null;
    this.sending = false;
    this.touchedAt = -Infinity;
    this.policy.addEventListener("change", () => this.ask({ step_policy: this.policy.value }));
    this.target.addEventListener("change", () => {
      if (this.target.valueAsNumber > 0) this.ask({ target_itl_ms: this.target.valueAsNumber });
    });
  }

  show(live) {
    const settings = live.settings;
    const enabled = live.state === "running" && settings !== null;
    this.policy.disabled = this.target.disabled = !enabled;
    if (!enabled) this.slider.input.disabled = true;
    if (!settings || this.sending || performance.now() - this.touchedAt < TOUCH_MS) return;
    const about = POLICIES[settings.step_policy] ?? UNKNOWN;
    this.slider.input.disabled = !enabled || about.budget !== "yours";
    this.slider.show(settings, about.budget);
    this.showPolicy(settings);
    if (this.hint.dataset.tone !== "bad") setText(this.hint, about.say);
  }

  showPolicy(settings) {
    const names = settings.step_policies;
    this.policyBox.hidden = names.length < 2;
    if (this.policy.options.length !== names.length) this.policy.replaceChildren(...names.map((name) => new Option(name)));
    this.policy.value = settings.step_policy;
    this.targetBox.hidden = POLICIES[settings.step_policy]?.budget !== "own";
    if (document.activeElement !== this.target) this.target.value = settings.target_itl_ms === null ? "" : String(Math.round(settings.target_itl_ms));
  }

  async ask(wish) {
    this.touchedAt = performance.now();
    this.wanted = { ...this.wanted, ...wish };
    if (this.sending) return; // the newest wish goes out when the last one was answered
    this.sending = true;
    try {
      while (this.wanted) {
        const wanted = this.wanted;
        this.wanted = null;
        const { refused } = await patch("live/settings", wanted);
        this.hint.dataset.tone = refused ? "bad" : "";
        if (refused) setText(this.hint, refused);
        if (!("max_num_batched_tokens" in wanted)) this.touchedAt = -Infinity; // a slider may still be on its way
      }
    } catch {
      this.wanted = null; // the server is away, and the page's own notice says so
    } finally {
      this.sending = false;
    }
  }
}

// Under which budget steps were made, as [{ after: step_id, tokens }], oldest first; tokens is null where the slider's
// number did not hold. Told backwards from what holds now.
export function boundsOf(settings, marks) {
  const then = { max_num_batched_tokens: settings.max_num_batched_tokens, step_policy: settings.step_policy };
  const bound = (after) => {
    const isYours = (POLICIES[then.step_policy] ?? UNKNOWN).budget === "yours";
    return { after, tokens: isYours ? then.max_num_batched_tokens : null };
  };
  const bounds = [];
  for (const mark of marks.toReversed()) {
    if (!(mark.setting in then)) continue;
    bounds.unshift(bound(mark.step_id));
    then[mark.setting] = mark.before;
  }
  return [bound(-Infinity), ...bounds];
}

// Logarithmic in the distance from the least budget: prompts are some hundred tokens, so most of the travel is there.
class Slider {
  constructor(root, ask) {
    this.input = root.querySelector("input[type=range]");
    this.output = root.querySelector("output");
    this.low = this.high = null;
    this.input.addEventListener("input", () => {
      const tokens = this.valueAt(Number(this.input.value));
      this.label(tokens, `${tokens} tokens`);
      ask(tokens);
    });
  }

  show(settings, whose) {
    this.low = Math.max(1, settings.max_num_seqs);
    this.high = Math.max(this.low + 1, settings.max_budget);
    const shown = (whose === "own" && settings.step_token_budget) || settings.max_num_batched_tokens;
    const position = (1000 * Math.log(Math.max(1, shown - this.low + 1))) / Math.log(this.high - this.low + 1);
    this.input.value = String(Math.round(Math.min(1000, position)));
    this.label(shown, whose === "none" ? "no budget" : whose === "own" ? `now ${shown} tokens` : `${shown} tokens`);
  }

  valueAt(position) {
    return Math.round(this.low - 1 + (this.high - this.low + 1) ** (position / 1000));
  }

  label(tokens, words) {
    setText(this.output, words);
    this.input.setAttribute("aria-valuetext", `${tokens} tokens per step`);
    this.input.style.setProperty("--fill", `${Number(this.input.value) / 10}%`);
  }
}

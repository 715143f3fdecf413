// The engine strip: one column per step. Above, how long it took; then its tokens, under the line of their budget; and in
// a row of their own its encoder slices, which are no tokens. Each of the three has a scale of its own, fitted to what
// is shown.
const COLUMN = 3; // pixels from one step to the next, one of them empty
const GUTTER = 54;
const SLICE_ROW = 22;
const LEAST_TOKENS = 8; // a scale that holds no more than single decodes would make them look like much
const NEAR_BUDGET = 1.6; // a budget that is not higher than this many times the highest column is drawn at its place

export class Strip {
  constructor(root) {
    this.root = root;
    this.canvas = root.querySelector("canvas");
    this.tip = root.querySelector(".strip-tip");
    this.steps = [];
    this.bounds = [];
    this.marks = [];
    this.scale = 1;
    this.ceiling = 1;
    this.pointer = null;
    new ResizeObserver(() => this.draw()).observe(root);
    for (const happening of ["themechange", "resize"]) window.addEventListener(happening, () => this.draw());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => setTimeout(() => this.draw()));
    this.canvas.addEventListener("pointermove", (event) => this.point(event.offsetX));
    this.canvas.addEventListener("pointerleave", () => this.point(null));
  }

  // `bounds`: under which token budget steps were made, as [{ after: step_id, tokens }], oldest first; null is none.
  show(steps, bounds, marks) {
    const changed = JSON.stringify([bounds, marks]) !== JSON.stringify([this.bounds, this.marks]) || steps.length !== this.steps.length || steps.at(-1)?.step_id !== this.steps.at(-1)?.step_id;
    this.steps = steps;
    this.bounds = bounds;
    this.marks = marks;
    if (changed) this.draw();
  }

  point(x) {
    this.pointer = x;
    this.draw();
  }

  draw() {
    const { clientWidth: width, clientHeight: height } = this.root;
    if (!width || !height) return;
    const ratio = window.devicePixelRatio || 1;
    if (this.canvas.width !== Math.round(width * ratio) || this.canvas.height !== Math.round(height * ratio)) {
      this.canvas.width = Math.round(width * ratio);
      this.canvas.height = Math.round(height * ratio);
    }
    const g = this.canvas.getContext("2d");
    g.setTransform(ratio, 0, 0, ratio, 0, 0);
    g.clearRect(0, 0, width, height);
    this.hideTip();
    const style = getComputedStyle(this.root);
    const color = (name) => style.getPropertyValue(`--${name}`).trim();
    g.font = `11px ${style.fontFamily}`;
    const visible = this.steps.slice(-Math.floor((width - GUTTER) / COLUMN));
    this.canvas.dataset.columns = String(visible.length);
    if (!visible.length) return;
    const lineBottom = Math.round(height * 0.32);
    const rowTop = height - 2 - SLICE_ROW;
    const plot = { left: GUTTER, right: width, lineTop: 16, lineBottom, top: lineBottom + 20, bottom: rowTop - 10, rowTop, rowBottom: height - 2 };
    const x = (index) => plot.right - (visible.length - index) * COLUMN;
    this.drawLatency(g, visible, x, plot, color);
    this.drawTokens(g, visible, x, plot, color);
    this.drawSlices(g, visible, x, plot, color);
    this.drawMarks(g, visible, x, plot, color);
    this.drawTip(g, visible, x, plot, color);
  }

  drawLatency(g, steps, x, plot, color) {
    const timed = steps.filter((step) => step.decode_tokens > 0);
    this.ceiling = ease(this.ceiling, niceCeiling(Math.max(1, ...timed.map((step) => step.elapsed_ms))));
    const y = (ms) => plot.lineBottom - (Math.min(ms, this.ceiling) / this.ceiling) * (plot.lineBottom - plot.lineTop);
    this.gridLine(g, y(this.ceiling), this.ceiling < 1000 ? `${this.ceiling} ms` : `${this.ceiling / 1000} s`, plot, color);
    this.gridLine(g, y(0), "0", plot, color);
    g.strokeStyle = color("itl");
    g.lineWidth = 1.4;
    g.lineJoin = "round";
    g.beginPath();
    let joined = false;
    steps.forEach((step, index) => {
      if (step.decode_tokens > 0) {
        const at = [x(index) + 1, y(step.elapsed_ms)];
        joined ? g.lineTo(...at) : g.moveTo(...at);
      }
      joined = step.decode_tokens > 0;
    });
    g.stroke();
    g.fillStyle = color("itl");
    steps.forEach((step, index) => {
      const lonely = step.decode_tokens > 0 && !steps[index - 1]?.decode_tokens && !steps[index + 1]?.decode_tokens;
      if (lonely) g.fillRect(x(index) + 0.5, y(step.elapsed_ms) - 1, 2, 2);
    });
  }

  drawTokens(g, steps, x, plot, color) {
    const tallest = Math.max(LEAST_TOKENS, ...steps.map((step) => step.decode_tokens + step.prefill_tokens));
    const bounds = this.bounds.filter(({ tokens }, index) => tokens !== null && !(this.bounds[index + 1]?.after < steps[0].step_id));
    this.scale = ease(this.scale, Math.max(tallest, ...bounds.map(({ tokens }) => tokens).filter((tokens) => tokens <= tallest * NEAR_BUDGET)));
    const perToken = (plot.bottom - plot.top) / this.scale;
    steps.forEach((step, index) => {
      let base = plot.bottom;
      const stack = (tokens, fill) => {
        if (tokens <= 0) return;
        const tall = Math.max(2, tokens * perToken);
        g.fillStyle = fill;
        g.fillRect(x(index), base - tall, COLUMN - 1, tall);
        base -= tall;
      };
      stack(step.decode_tokens, color("decode"));
      stack(step.prefill_tokens, color("prefill"));
    });
    this.gridLine(g, plot.bottom, "0", plot, color);
    for (const bound of bounds.filter(({ tokens }) => tokens <= this.scale)) {
      this.drawBound(g, steps, x, plot, color, bound, plot.bottom - bound.tokens * perToken);
    }
    const budget = this.bounds.at(-1)?.tokens ?? null;
    this.canvas.dataset.budgetLine = budget === null ? "none" : budget <= this.scale ? "inside" : "above";
    if (this.canvas.dataset.budgetLine === "inside") {
      this.label(g, plot.bottom - budget * perToken, String(budget), plot, color);
      return;
    }
    this.gridLine(g, plot.top, String(Math.round(this.scale)), plot, color);
    g.textAlign = "left";
    g.textBaseline = "bottom";
    if (budget !== null) g.fillText(`↑ budget ${budget}, above all of these`, plot.left, plot.top - 3);
  }

  drawBound(g, steps, x, plot, color, bound, y) {
    const next = this.bounds[this.bounds.indexOf(bound) + 1];
    const edge = (stepId) => {
      const index = steps.findIndex((step) => step.step_id > stepId);
      return index < 0 ? plot.right : x(index) - 1;
    };
    g.strokeStyle = color("faint");
    g.lineWidth = 1;
    g.setLineDash([5, 4]);
    g.beginPath();
    g.moveTo(bound.after < steps[0].step_id ? plot.left - 4 : edge(bound.after), Math.round(y) - 0.5);
    g.lineTo(next ? edge(next.after) : plot.right, Math.round(y) - 0.5);
    g.stroke();
    g.setLineDash([]);
  }

  drawSlices(g, steps, x, plot, color) {
    const most = Math.max(...steps.map((step) => step.encoder_slices));
    this.gridLine(g, plot.rowBottom, most ? "" : "0", plot, color);
    if (!most) {
      g.textAlign = "left";
      g.textBaseline = "bottom";
      g.fillText("No slices: text and pictures seen before need none", plot.left, plot.rowBottom - 5);
      return;
    }
    g.textAlign = "right";
    g.textBaseline = "middle";
    g.fillText(String(most), plot.left - 8, plot.rowTop + 5);
    g.fillStyle = color("encode");
    steps.forEach((step, index) => {
      if (!step.encoder_slices) return;
      const tall = Math.max(3, (SLICE_ROW * step.encoder_slices) / most);
      g.fillRect(x(index), plot.rowBottom - tall, COLUMN - 1, tall);
    });
  }

  // Where somebody changed how steps are made: what is left of the mark was made as before.
  drawMarks(g, steps, x, plot, color) {
    const shown = this.marks.filter((mark) => mark.step_id >= steps[0].step_id - 1);
    this.canvas.dataset.marks = String(shown.length);
    g.textBaseline = "bottom";
    let free = Infinity; // labels go from right to left, the newest first; one without room is left out
    for (const mark of shown.toReversed()) {
      const next = steps.findIndex((step) => step.step_id > mark.step_id);
      const at = Math.min(plot.right - 1, x(next < 0 ? steps.length : next) - 1) + 0.5;
      g.strokeStyle = g.fillStyle = color("accent");
      g.lineWidth = 1;
      g.beginPath();
      g.moveTo(at, plot.lineTop - 3);
      g.lineTo(at, plot.rowBottom);
      g.stroke();
      const words = inWords(mark);
      const half = g.measureText(words).width / 2;
      const middle = Math.max(plot.left + half, Math.min(plot.right - half, at));
      if (middle + half > free) continue;
      g.textAlign = "center";
      g.fillText(words, middle, plot.lineTop - 4);
      free = middle - half - 8;
    }
  }

  gridLine(g, y, label, plot, color) {
    g.strokeStyle = color("line");
    g.lineWidth = 1;
    g.beginPath();
    g.moveTo(plot.left - 4, Math.round(y) - 0.5);
    g.lineTo(plot.right, Math.round(y) - 0.5);
    g.stroke();
    this.label(g, y, label, plot, color);
  }

  label(g, y, label, plot, color) {
    g.fillStyle = color("muted");
    g.textAlign = "right";
    g.textBaseline = y >= plot.bottom ? "bottom" : "middle";
    g.fillText(label, plot.left - 8, y);
  }

  drawTip(g, steps, x, plot, color) {
    if (this.pointer === null) return;
    const index = Math.floor((this.pointer - x(0)) / COLUMN);
    const step = steps[index];
    if (!step) return;
    g.fillStyle = color("muted");
    g.globalAlpha = 0.25;
    g.fillRect(x(index) - 0.5, plot.lineTop, COLUMN, plot.rowBottom - plot.lineTop);
    g.globalAlpha = 1;
    const parts = [`Step ${step.step_id}: ${step.elapsed_ms.toFixed(1)} ms`];
    const part = (count, one, many) => count && parts.push(`${count} ${count === 1 ? one : many}`);
    part(step.decode_tokens, "decode", "decodes");
    part(step.prefill_tokens, "prompt token", "prompt tokens");
    part(step.encoder_slices, "encoder slice", "encoder slices");
    if (step.prefill_tokens && !step.encoder_slices) parts.push("no picture to encode");
    this.tip.textContent = parts.join(" · ");
    this.tip.hidden = false;
    const room = this.root.clientWidth - this.tip.offsetWidth;
    this.tip.style.left = `${Math.max(0, Math.min(room, x(index) - this.tip.offsetWidth / 2))}px`;
  }

  hideTip() {
    this.tip.hidden = true;
  }
}

function inWords(mark) {
  if (mark.setting === "step_policy") return mark.after;
  if (mark.setting === "target_itl_ms") return mark.after === null ? "target by default" : `target ${Math.round(mark.after)} ms`;
  return `budget ${mark.before} → ${mark.after}`;
}

// Grow at once, shrink only when there is much less to show: a scale that breathes is hard to read.
const ease = (before, wanted) => (wanted > before || wanted < before * 0.6 ? wanted : before);

function niceCeiling(value) {
  const unit = 10 ** Math.floor(Math.log10(value));
  return [1, 1.5, 2, 3, 5, 7.5, 10].map((n) => n * unit).find((n) => n >= value);
}

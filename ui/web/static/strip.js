// The engine strip: one column per step, stacked from what it computed, under the line of how long each step took.
const COLUMN = 3; // pixels from one step to the next, one of them empty
const SLICES_PER_BUDGET = 12; // an encoder slice has no tokens: it is drawn as this fraction of the scale
const GUTTER = 54;

export class Strip {
  constructor(root) {
    this.root = root;
    this.canvas = root.querySelector("canvas");
    this.tip = root.querySelector(".strip-tip");
    this.steps = [];
    this.budget = null;
    this.scale = 1;
    this.ceiling = 1;
    this.pointer = null;
    new ResizeObserver(() => this.draw()).observe(root);
    for (const happening of ["themechange", "resize"]) window.addEventListener(happening, () => this.draw());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => setTimeout(() => this.draw()));
    this.canvas.addEventListener("pointermove", (event) => this.point(event.offsetX));
    this.canvas.addEventListener("pointerleave", () => this.point(null));
  }

  show(steps, budget) {
    const changed = budget !== this.budget || steps.length !== this.steps.length || steps.at(-1)?.step_id !== this.steps.at(-1)?.step_id;
    this.steps = steps;
    this.budget = budget;
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
    const plot = { left: GUTTER, right: width, lineTop: 12, lineBottom: Math.round(height * 0.34), top: Math.round(height * 0.34) + 18, bottom: height - 2 };
    const x = (index) => plot.right - (visible.length - index) * COLUMN;
    this.drawLatency(g, visible, x, plot, color);
    this.drawColumns(g, visible, x, plot, color);
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

  drawColumns(g, steps, x, plot, color) {
    const tallest = Math.max(...steps.map((step) => step.decode_tokens + step.prefill_tokens));
    this.scale = ease(this.scale, Math.max(8, tallest, this.budget ?? 0) * 1.12);
    const perToken = (plot.bottom - plot.top) / this.scale;
    const slice = Math.max(4, (plot.bottom - plot.top) / SLICES_PER_BUDGET);
    steps.forEach((step, index) => {
      let base = plot.bottom;
      const stack = (tallness, fill) => {
        if (tallness <= 0) return;
        const tall = Math.max(3, tallness);
        g.fillStyle = fill;
        g.fillRect(x(index), base - tall, COLUMN - 1, tall);
        base -= tall;
      };
      stack(step.decode_tokens * perToken, color("decode"));
      stack(step.prefill_tokens * perToken, color("prefill"));
      for (let n = 0; n < step.encoder_slices && base - slice > plot.top - 8; n++) {
        base -= base < plot.bottom ? 1 : 0;
        stack(slice - 1, color("encode"));
      }
    });
    if (this.budget === null) return;
    const y = plot.bottom - this.budget * perToken;
    g.save();
    g.setLineDash([5, 4]);
    this.gridLine(g, y, String(this.budget), plot, color, "faint");
    g.restore();
    this.gridLine(g, plot.bottom, "0", plot, color);
  }

  gridLine(g, y, label, plot, color, stroke = "line") {
    g.strokeStyle = color(stroke);
    g.lineWidth = 1;
    g.beginPath();
    g.moveTo(plot.left - 4, Math.round(y) - 0.5);
    g.lineTo(plot.right, Math.round(y) - 0.5);
    g.stroke();
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
    g.fillRect(x(index) - 0.5, plot.lineTop, COLUMN, plot.bottom - plot.lineTop);
    g.globalAlpha = 1;
    const parts = [`Step ${step.step_id}: ${step.elapsed_ms.toFixed(1)} ms`];
    const part = (count, one, many) => count && parts.push(`${count} ${count === 1 ? one : many}`);
    part(step.decode_tokens, "decode", "decodes");
    part(step.prefill_tokens, "prompt token", "prompt tokens");
    part(step.encoder_slices, "encoder slice", "encoder slices");
    this.tip.textContent = parts.join(" · ");
    this.tip.hidden = false;
    const room = this.root.clientWidth - this.tip.offsetWidth;
    this.tip.style.left = `${Math.max(0, Math.min(room, x(index) - this.tip.offsetWidth / 2))}px`;
  }

  hideTip() {
    this.tip.hidden = true;
  }
}

// Grow at once, shrink only when there is much less to show: a scale that breathes is hard to read.
const ease = (before, wanted) => (wanted > before || wanted < before * 0.6 ? wanted : before);

function niceCeiling(value) {
  const unit = 10 ** Math.floor(Math.log10(value));
  return [1, 1.5, 2, 3, 5, 7.5, 10].map((n) => n * unit).find((n) => n >= value);
}

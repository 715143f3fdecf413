// The zones of a camera in its dialog: drawn over the current picture, or typed as corners in shares of its width and
// height, from the top left. What is drawn stands in the text at once, and the other way round.
import * as socket from "./socket.js";
import { drawZones } from "./zone_layer.js";

const KINDS = [["include", "counts"], ["exclude", "never counts"]];
const DIGITS = 1000;

export class ZoneEditor {
  constructor(root) {
    this.stage = root.querySelector(".zone-stage");
    this.picture = root.querySelector("canvas");
    this.layer = root.querySelector(".zone-layer");
    this.corners = root.querySelector(".zone-corners");
    this.list = root.querySelector(".zone-list");
    this.hint = root.querySelector(".zone-hint");
    this.undoing = root.querySelector("[data-undo]");
    this.undoing.addEventListener("click", () => this.undo());
    root.querySelector("[data-add-zone]").addEventListener("click", () => {
      this.add();
      this.list.querySelector("li:last-child input").focus();
    });
    this.stage.addEventListener("pointerdown", (event) => this.press(event));
    this.stage.addEventListener("pointermove", (event) => this.drag(event));
    for (const end of ["pointerup", "pointercancel"]) this.stage.addEventListener(end, () => (this.held = null));
    socket.on("picture", (head, jpeg) => this.takePicture(head, jpeg));
    this.open(null);
  }

  // `camera` as the API tells it; null for one that is being added.
  open(camera) {
    this.camera = camera?.name ?? null;
    this.zones = (camera?.zones ?? []).map(({ name, kind, polygon }) => ({ name, kind, polygon, text: inWords(polygon), fault: "" }));
    this.selected = 0;
    this.held = null; // the corner that a pointer holds
    this.past = [];
    this.stage.hidden = true;
    const shown = this.camera && document.querySelector(`.cam[data-camera="${CSS.escape(this.camera)}"] img`);
    if (shown?.naturalWidth) this.paint(shown, shown.naturalWidth, shown.naturalHeight);
    this.show();
  }

  async takePicture(head, jpeg) {
    if (head.camera !== this.camera || !this.hint.checkVisibility()) return;
    const bitmap = await createImageBitmap(jpeg);
    this.paint(bitmap, head.width, head.height);
    bitmap.close();
  }

  paint(image, width, height) {
    if (this.picture.width !== width || this.picture.height !== height) {
      this.picture.width = width;
      this.picture.height = height;
    }
    this.picture.getContext("2d").drawImage(image, 0, 0, width, height);
    this.stage.hidden = false;
    this.say();
  }

  // What is to be saved; null when a text holds no corners, which then is said there.
  values() {
    const wrong = this.zones.findIndex((zone) => zone.fault);
    if (wrong < 0) return this.zones.map(({ name, kind, polygon }) => ({ name: name.trim(), kind, polygon }));
    this.list.children[wrong].querySelector("[data-corners]").focus();
    return null;
  }

  // The server's faults, each at its zone.
  showFaults(faults) {
    for (const row of this.list.children) this.mark(row, "name", "");
    for (const { field, message } of faults) {
      const [, index, part] = /^zones\[(\d+)\](?:\.(\w+))?/.exec(field) ?? [];
      const row = this.list.children[Number(index)];
      if (row) this.mark(row, part === "name" ? "name" : "corners", message);
    }
  }

  mark(row, part, message) {
    for (const input of row.querySelectorAll("input")) {
      const isIt = message && part in input.dataset;
      if (isIt) input.setAttribute("aria-invalid", "true");
      else input.removeAttribute("aria-invalid");
    }
    row.querySelector(".zone-wrong").textContent = message;
  }

  remember() {
    this.past.push(JSON.stringify([this.zones, this.selected]));
    this.undoing.disabled = false;
  }

  // One step back undoes all that was typed in a field since it was entered.
  rememberOnce(input) {
    let isNew = true;
    input.addEventListener("focus", () => (isNew = true));
    input.addEventListener("input", () => {
      if (isNew) this.remember();
      isNew = false;
    });
  }

  undo() {
    if (!this.past.length) return;
    [this.zones, this.selected] = JSON.parse(this.past.pop());
    this.show();
    if (this.undoing.disabled) this.list.parentElement.querySelector("[data-add-zone]").focus();
  }

  add() {
    this.remember();
    const taken = new Set(this.zones.map((zone) => zone.name));
    let number = this.zones.length + 1;
    while (taken.has(`zone-${number}`)) number += 1;
    this.zones.push({ name: `zone-${number}`, kind: "include", polygon: [], text: "", fault: "" });
    this.selected = this.zones.length - 1;
    this.show();
  }

  remove(index) {
    this.remember();
    this.zones.splice(index, 1);
    this.selected = Math.max(0, Math.min(this.selected, this.zones.length - 1));
    this.show();
    this.undoing.focus();
  }

  press(event) {
    event.preventDefault();
    if (event.button) return;
    if (!this.zones.length) this.add();
    this.remember();
    const zone = this.zones[this.selected];
    const corner = event.target.dataset.corner;
    this.held = corner === undefined ? zone.polygon.push(this.place(event)) - 1 : Number(corner);
    this.stage.setPointerCapture(event.pointerId);
    this.drawn(zone);
  }

  drag(event) {
    if (this.held === null) return;
    const zone = this.zones[this.selected];
    zone.polygon[this.held] = this.place(event);
    this.drawn(zone);
  }

  place(event) {
    const { left, top, width, height } = this.stage.getBoundingClientRect();
    const share = (value) => Math.round(DIGITS * Math.max(0, Math.min(1, value))) / DIGITS;
    return [share((event.clientX - left) / width), share((event.clientY - top) / height)];
  }

  drawn(zone) {
    zone.text = inWords(zone.polygon);
    zone.fault = "";
    const row = this.list.children[this.selected];
    row.querySelector("[data-corners]").value = zone.text;
    this.mark(row, "corners", "");
    this.draw();
  }

  typed(zone, row, text) {
    zone.text = text;
    const [polygon, fault] = read(text);
    zone.fault = fault;
    if (!fault) zone.polygon = polygon;
    this.mark(row, "corners", fault);
    this.draw();
  }

  show() {
    this.list.replaceChildren(...this.zones.map((zone, index) => this.row(zone, index)));
    this.undoing.disabled = !this.past.length;
    this.draw();
    this.say();
  }

  draw() {
    drawZones(this.layer, this.zones);
    const chosen = this.zones[this.selected];
    const dots = (chosen?.polygon ?? []).map(([x, y], index) => {
      const dot = document.createElement("i");
      dot.dataset.corner = String(index);
      dot.style.left = `${100 * x}%`;
      dot.style.top = `${100 * y}%`;
      return dot;
    });
    this.corners.replaceChildren(...dots);
    [...this.list.children].forEach((row, index) => row.toggleAttribute("data-selected", index === this.selected));
  }

  say() {
    const how = this.zones.length ? "Click its corners in the picture, drag them, or type them." : "Without a zone people count everywhere.";
    this.hint.textContent = this.stage.hidden ? `${how} The picture stands here once the camera sends one.` : how;
  }

  row(zone, index) {
    const row = document.createElement("li");
    const labelled = (element, words) => {
      element.setAttribute("aria-label", `${words} zone ${index + 1}`);
      return element;
    };
    const name = labelled(Object.assign(document.createElement("input"), { value: zone.name, maxLength: 64 }), "Name of");
    name.dataset.name = "";
    const kind = labelled(document.createElement("select"), "Kind of");
    kind.append(...KINDS.map(([value, words]) => new Option(words, value)));
    kind.value = zone.kind;
    const gone = labelled(Object.assign(document.createElement("button"), { type: "button", className: "quiet", textContent: "Delete" }), "Delete");
    const text = labelled(Object.assign(document.createElement("input"), { value: zone.text, placeholder: "0.1 0.5, 0.9 0.5, 0.9 1" }), "Corners of");
    text.dataset.corners = "";
    const wrong = Object.assign(document.createElement("span"), { className: "zone-wrong", id: `zone-wrong-${index}` });
    for (const input of [name, text]) input.setAttribute("aria-describedby", wrong.id);
    row.append(name, kind, gone, text, wrong);
    for (const input of [name, kind, text]) this.rememberOnce(input);
    row.addEventListener("focusin", () => {
      this.selected = index;
      this.draw();
    });
    name.addEventListener("input", () => {
      zone.name = name.value;
      this.draw();
    });
    kind.addEventListener("change", () => {
      zone.kind = kind.value;
      this.draw();
    });
    text.addEventListener("input", () => this.typed(zone, row, text.value));
    gone.addEventListener("click", () => this.remove(index));
    this.mark(row, "corners", zone.fault);
    return row;
  }
}

const inWords = (polygon) => polygon.map((corner) => corner.join(" ")).join(", ");

// Corners from text, and what is wrong with it.
function read(text) {
  const words = text.split(/[\s,;]+/).filter(Boolean);
  const odd = words.find((word) => !Number.isFinite(Number(word)));
  if (odd !== undefined) return [[], `“${odd.slice(0, 20)}” is no number: each corner is two, from 0 to 1`];
  if (words.length % 2) return [[], "a corner lacks its second number"];
  const numbers = words.map(Number);
  return [Array.from({ length: numbers.length / 2 }, (_, index) => [numbers[2 * index], numbers[2 * index + 1]]), ""];
}

// Adds, changes and removes cameras while the others run. What the server refuses stands at its field.
import { ZoneEditor } from "./zones.js";

const NUMBERS = ["interval_s", "cooldown_s"];
const UNSENT = ["status", "is_saved", "has_password"];

export function start() {
  const dialog = new CameraDialog(document.getElementById("camera-dialog"));
  document.getElementById("edit-cameras").addEventListener("click", () => dialog.open());
  document.getElementById("add-camera").addEventListener("click", async () => {
    await dialog.open();
    dialog.edit(null);
  });
}

class CameraDialog {
  constructor(root) {
    this.root = root;
    this.list = root.querySelector(".dialog-list");
    this.form = root.querySelector("form");
    this.add = root.querySelector("[data-add]");
    this.zones = new ZoneEditor(this.form.querySelector(".zones"));
    this.editing = null; // the camera being changed; null while one is added
    root.querySelector("[data-close]").addEventListener("click", () => root.close());
    root.querySelector("[data-cancel]").addEventListener("click", () => this.showList());
    this.add.addEventListener("click", () => this.edit(null));
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.save();
    });
  }

  async open() {
    this.root.showModal();
    await this.showList();
  }

  async showList() {
    this.form.hidden = true;
    this.add.hidden = false;
    const answer = await this.ask("GET", "");
    if (!answer) return;
    this.list.replaceChildren(...answer.cameras.map((camera) => this.row(camera)));
    const isSaved = answer.cameras.every((camera) => camera.is_saved);
    this.root.querySelector(".dialog-note").textContent = isSaved
      ? ""
      : "Changes hold until Watchword stops; with a configuration file they are kept.";
  }

  row(camera) {
    const row = document.createElement("li");
    const name = document.createElement("b");
    name.textContent = camera.name;
    const source = document.createElement("span");
    source.textContent = camera.source;
    row.append(name, source, button("Edit", camera.name, () => this.edit(camera)), button("Remove", camera.name, (made) => this.remove(made, camera)));
    return row;
  }

  // The first click asks, the second does it.
  async remove(made, camera) {
    if (made.dataset.sure === undefined) {
      made.dataset.sure = "";
      made.textContent = "Really remove";
      made.setAttribute("aria-label", `Really remove ${camera.name}`);
      return;
    }
    if ((await this.ask("DELETE", `/${encodeURIComponent(camera.name)}`)) !== null) await this.showList();
  }

  edit(camera) {
    this.editing = camera;
    this.say("");
    this.form.hidden = false;
    this.add.hidden = true;
    this.list.replaceChildren();
    this.form.reset();
    for (const field of this.fields()) {
      if (field.type === "checkbox") field.checked = Boolean(camera?.[field.name]);
      else field.value = camera?.[field.name] ?? (field.tagName === "SELECT" ? field.options[0].value : "");
    }
    this.zones.open(camera);
    this.form.elements.password.placeholder = camera?.has_password ? "unchanged" : "";
    this.form.elements.name.focus();
  }

  fields() {
    return [...this.form.elements].filter((field) => field.name);
  }

  async save() {
    const wish = Object.fromEntries(Object.entries(this.editing ?? {}).filter(([name]) => !UNSENT.includes(name)));
    for (const field of this.fields()) {
      const value = field.type === "checkbox" ? field.checked : field.value.trim();
      if (value === "") delete wish[field.name];
      else wish[field.name] = NUMBERS.includes(field.name) ? Number(value) : value;
    }
    wish.zones = this.zones.values();
    if (wish.zones === null) return;
    const [method, path] = this.editing ? ["PUT", `/${encodeURIComponent(this.editing.name)}`] : ["POST", ""];
    if ((await this.ask(method, path, wish)) !== null) await this.showList();
  }

  // The answer, or null when there was none to use; why not is then said.
  async ask(method, path, body) {
    this.say("");
    for (const field of this.fields()) field.removeAttribute("aria-invalid");
    this.zones.showFaults([]);
    try {
      const options = body === undefined ? {} : { headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
      const reply = await fetch(`api/cameras${path}`, { method, cache: "no-store", ...options });
      const answer = reply.status === 204 ? {} : await reply.json();
      if (reply.ok) return answer;
      for (const { field } of answer.error?.faults ?? []) {
        this.form.elements.namedItem(String(field).split(/[.[]/)[0])?.setAttribute("aria-invalid", "true");
      }
      this.zones.showFaults(answer.error?.faults ?? []);
      this.form.querySelector("[aria-invalid]")?.focus();
      this.say(answer.error?.message ?? answer.detail ?? `The server answered ${reply.status}.`);
    } catch {
      this.say("Watchword does not answer.");
    }
    return null;
  }

  say(text) {
    this.root.querySelector(".dialog-wrong").textContent = text;
  }
}

function button(words, name, run) {
  const made = document.createElement("button");
  made.type = "button";
  made.className = "quiet";
  made.textContent = words;
  made.setAttribute("aria-label", `${words} ${name}`);
  made.addEventListener("click", () => run(made));
  return made;
}

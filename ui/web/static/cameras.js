// The grid of cameras: one figure each, made and removed as cameras come and go.
import { setText } from "./poll.js";
import * as socket from "./socket.js";
import { drawZones } from "./zone_layer.js";

const TONES = { live: "good", connecting: "warn", stale: "warn", down: "bad", ended: "idle" };
const WORDS = { live: "Live", connecting: "Connecting", stale: "No new picture", down: "Down", ended: "Ended" };
const FILE_WORDS = { live: "Playing", connecting: "Opening" };
const EMPTY = {
  connecting: "Waiting for the first picture …",
  down: "No picture. It is tried again by itself.",
  ended: "The source ended.",
};
const figures = new Map();

export function start() {
  socket.on("cameras", ({ cameras }) => showAll(cameras));
  socket.on("picture", showPicture);
  socket.on("opened", () => {
    for (const figure of figures.values()) drawZones(figure.querySelector(".cam-zones"), []); // all that is comes anew
  });
  socket.on("zones", ({ zones }) => {
    for (const [id, areas] of Object.entries(zones)) drawZones(figures.get(id)?.querySelector(".cam-zones"), areas);
  });
}

export const names = () => [...figures.keys()];

function showAll(cameras) {
  const grid = document.querySelector(".cams");
  const wanted = new Set(cameras.map((camera) => camera.id));
  for (const [id, figure] of figures) {
    if (wanted.has(id)) continue;
    figure.remove();
    figures.delete(id);
  }
  for (const camera of cameras) {
    if (!figures.has(camera.id)) grid.append(makeFigure(camera.id));
    showState(figures.get(camera.id), camera);
  }
  if (grid.dataset.large !== undefined && !grid.querySelector(".cam.large")) delete grid.dataset.large;
  grid.dataset.count = cameras.length > 9 ? "many" : String(cameras.length);
  grid.toggleAttribute("data-dense", cameras.length > 4);
  document.querySelector(".cams-void").hidden = cameras.length > 0;
  const many = cameras.length ? `${cameras.length} cameras` : "Cameras";
  setText(document.getElementById("cameras-title"), cameras.length === 1 ? "Camera" : many);
}

function makeFigure(id) {
  const figure = document.getElementById("camera").content.firstElementChild.cloneNode(true);
  figure.dataset.camera = id;
  figure.querySelector("b").textContent = id;
  figure.querySelector("img").alt = `Live picture of ${id}`;
  const view = figure.querySelector(".cam-view");
  view.setAttribute("aria-label", `${id}: show alone`);
  view.addEventListener("click", () => enlarge(figure));
  figures.set(id, figure);
  return figure;
}

function enlarge(figure) {
  const grid = figure.parentElement;
  const large = !figure.classList.contains("large") && figures.size > 1;
  for (const other of figures.values()) {
    other.classList.toggle("large", large && other === figure);
    other.querySelector(".cam-view").setAttribute("aria-pressed", String(large && other === figure));
  }
  if (large) grid.dataset.large = "";
  else delete grid.dataset.large;
}

function showState(figure, camera) {
  figure.dataset.state = camera.state;
  const state = figure.querySelector(".state");
  state.dataset.tone = TONES[camera.state];
  setText(state, (!camera.is_live && FILE_WORDS[camera.state]) || WORDS[camera.state]);
  const { dense, large } = figure.parentElement.dataset;
  const short = dense !== undefined && large === undefined; // there is room for the numbers alone
  const brief = figures.size > 1 && large === undefined; // and here for few words
  const fps = camera.detector_fps ? `${camera.detector_fps.toFixed(1)} fps` : "";
  setText(figure.querySelector(".cam-age"), short && camera.state === "live" ? age(camera.age_s ?? 0) : freshness(camera, brief));
  setText(figure.querySelector(".cam-fps"), fps && !brief ? `detector ${fps}` : fps);
  setText(figure.querySelector(".cam-people"), people(camera));
  const why = camera.state === "live" ? "" : camera.reason;
  setText(figure.querySelector(".cam-why"), why);
  figure.querySelector(".cam-why").title = why;
  setText(figure.querySelector(".cam-empty"), camera.has_picture ? "" : (EMPTY[camera.state] ?? ""));
}

async function showPicture(head, jpeg) {
  const figure = figures.get(head.camera);
  if (!figure) return;
  const image = figure.querySelector("img");
  const url = URL.createObjectURL(jpeg);
  try {
    await load(image, url);
  } finally {
    URL.revokeObjectURL(url);
  }
  figure.dataset.seq = head.seq;
  figure.querySelector(".cam-view").style.setProperty("--ar", head.width / head.height);
  drawBoxes(figure.querySelector(".cam-boxes"), head);
}

function load(image, url) {
  return new Promise((resolve, reject) => {
    image.onload = resolve;
    image.onerror = reject;
    image.src = url;
  });
}

function drawBoxes(layer, { tracks, width, height }) {
  const boxes = tracks.map(([id, x1, y1, x2, y2]) => {
    const box = document.createElement("span");
    box.className = y1 / height < 0.08 ? "cam-box low" : "cam-box";
    box.style.left = `${(100 * x1) / width}%`;
    box.style.top = `${(100 * y1) / height}%`;
    box.style.width = `${(100 * (x2 - x1)) / width}%`;
    box.style.height = `${(100 * (y2 - y1)) / height}%`;
    const label = document.createElement("span");
    label.textContent = `person ${id}`;
    box.append(label);
    return box;
  });
  layer.replaceChildren(...boxes);
}

const age = (seconds) => (seconds < 1 ? `${Math.round(seconds * 1000)} ms` : `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`);

function freshness(camera, brief) {
  if (camera.state === "live") return camera.age_s === null ? "" : `${brief ? "" : "picture "}${age(camera.age_s)} old`;
  if (camera.state === "connecting") return "";
  const time = new Date(Date.now() - 1000 * camera.state_s).toLocaleTimeString([], { hour12: false });
  return camera.state === "ended" ? `at ${time}; this is its last picture` : `since ${time}`;
}

function people(camera) {
  if (!camera.has_picture || camera.state !== "live") return "";
  const count = camera.num_people;
  return count === 0 ? "nobody in view" : count === 1 ? "1 person" : `${count} people`;
}

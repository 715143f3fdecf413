// Live pictures: each browser asks for the next one when it has shown the last, so a slow one merely sees fewer.
import { json, poll, setText } from "./poll.js";

const TONES = { live: "good", connecting: "warn", stale: "warn", down: "bad", ended: "idle" };
const WORDS = { live: "Live", connecting: "Connecting", stale: "No new picture", down: "Down", ended: "Ended" };
const FILE_WORDS = { live: "Playing", connecting: "Opening" };
const EMPTY = {
  connecting: "Waiting for the first picture …",
  down: "No picture. The camera is being tried again by itself.",
  ended: "The source ended.",
};

export function start() {
  return poll(200, async () => {
    const cameras = await json("live/cameras");
    await Promise.all(cameras.map(showCamera));
  });
}

async function showCamera(camera) {
  const figure = document.querySelector(`[data-camera="${CSS.escape(camera.id)}"]`);
  if (!figure) return;
  figure.dataset.state = camera.state;
  const state = figure.querySelector(".state");
  state.dataset.tone = TONES[camera.state];
  setText(state, (!camera.is_live && FILE_WORDS[camera.state]) || WORDS[camera.state]);
  setText(figure.querySelector(".cam-age"), freshness(camera));
  setText(figure.querySelector(".cam-fps"), camera.detector_fps ? `detector ${camera.detector_fps.toFixed(1)} fps` : "");
  setText(figure.querySelector(".cam-people"), people(camera));
  setText(figure.querySelector(".cam-why"), camera.state === "live" ? "" : camera.reason);
  setText(figure.querySelector(".cam-empty"), camera.seq === null ? (EMPTY[camera.state] ?? "") : "");
  if (camera.seq === null || figure.dataset.seq === String(camera.seq)) return;
  const image = figure.querySelector("img");
  await load(image, `frames/${encodeURIComponent(camera.id)}.jpg?seq=${camera.seq}`);
  figure.dataset.seq = camera.seq;
  figure.querySelector(".cam-view").style.setProperty("--ar", camera.width / camera.height);
  drawBoxes(figure.querySelector(".cam-boxes"), camera);
}

function load(image, url) {
  return new Promise((resolve, reject) => {
    image.onload = resolve;
    image.onerror = reject;
    image.src = url;
  });
}

function drawBoxes(layer, camera) {
  const boxes = camera.tracks.map(([id, x1, y1, x2, y2]) => {
    const box = document.createElement("div");
    box.className = y1 / camera.height < 0.08 ? "cam-box low" : "cam-box";
    box.style.left = `${(100 * x1) / camera.width}%`;
    box.style.top = `${(100 * y1) / camera.height}%`;
    box.style.width = `${(100 * (x2 - x1)) / camera.width}%`;
    box.style.height = `${(100 * (y2 - y1)) / camera.height}%`;
    const label = document.createElement("span");
    label.textContent = `person ${id}`;
    box.append(label);
    return box;
  });
  layer.replaceChildren(...boxes);
}

const age = (seconds) => (seconds < 1 ? `${Math.round(seconds * 1000)} ms` : `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`);

function freshness(camera) {
  if (camera.state === "live") return camera.age_s === null ? "" : `picture ${age(camera.age_s)} old`;
  if (camera.state === "connecting") return "";
  const time = new Date(Date.now() - 1000 * camera.state_s).toLocaleTimeString([], { hour12: false });
  return camera.state === "ended" ? `at ${time}; this is its last picture` : `since ${time}`;
}

function people(camera) {
  if (camera.seq === null || camera.state !== "live") return "";
  const count = camera.tracks.length;
  return count === 0 ? "nobody in view" : count === 1 ? "1 person" : `${count} people`;
}

// How long captions take, stretch by stretch, and which part of the product takes how much of the machine.
const STRETCHES = [
  ["picture_age", "oldest live picture"],
  ["waited", "picture to engine"],
  ["first_word", "first word (TTFT)"],
  ["between_words", "between words"],
  ["glass_to_caption", "glass to caption"],
];
const STAGES = ["engine", "detector", "capture", "page"];

const time = (seconds) => (seconds < 1 ? `${Math.round(1000 * seconds)} ms` : `${seconds.toFixed(1)} s`);

export function show({ latencies, shares, is_own, state }) {
  const stats = [];
  for (const [name, label] of STRETCHES) {
    const value = latencies[name];
    const [median, tail] = Array.isArray(value) ? value : [value, null];
    if (median === null) continue;
    stats.push(line(label, tail === null ? time(median) : `${time(median)} / ${time(tail)}`));
  }
  document.querySelector(".stats").replaceChildren(...stats);
  showShares(shares, is_own || state === "starting");
}

function line(label, value) {
  const box = document.createElement("div");
  box.append(element("dt", label), element("dd", value));
  return box;
}

function element(tag, text) {
  const made = document.createElement(tag);
  made.textContent = text;
  return made;
}

function showShares({ cores, num_cores, gpus }, isOwn) {
  const stages = STAGES.filter((stage) => stage in cores);
  const share = (stage) => (100 * cores[stage]) / num_cores;
  const bar = document.querySelector(".shares-bar");
  if (bar.children.length !== stages.length) bar.replaceChildren(...stages.map(() => document.createElement("i")));
  const words = [];
  stages.forEach((stage, index) => {
    bar.children[index].dataset.stage = stage;
    bar.children[index].style.width = `${Math.min(100, share(stage))}%`;
    const word = document.createElement("span");
    const swatch = document.createElement("i");
    swatch.dataset.stage = stage;
    word.append(swatch, `${stage} ${share(stage).toFixed(0)} %`);
    words.push(word);
  });
  if (stages.length) words.unshift(element("span", `CPU, of ${num_cores} ${num_cores === 1 ? "core" : "cores"}:`));
  if (stages.length && !isOwn) words.push(element("span", "the engine runs elsewhere"));
  for (const [busy, used, total] of gpus) {
    words.push(element("span", `GPU ${Math.round(100 * busy)} %, ${(used / 1024).toFixed(1)} of ${Math.round(total / 1024)} GiB`));
  }
  document.querySelector(".shares-words").replaceChildren(...words);
}

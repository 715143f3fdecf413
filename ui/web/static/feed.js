// The feed of captions: live ones grow at its head, older ones come in pages as the reader scrolls, all of them through
// the filter and the search.
import { json, setText } from "./poll.js";
import * as socket from "./socket.js";

const PAGE = 40;
const MAX_CARDS = 1200; // what a reader scrolled through; the newest of them go first and come back at the head's end
const SPOKEN_S = 5;
const NEAR = 800; // pixels before the end
const TYPED_MS = 250;

export function start() {
  const feed = new Feed(document.querySelector(".p-captions"));
  socket.on("cards", (news) => feed.take(news));
  socket.on("cameras", ({ cameras }) => feed.offer(cameras.map((camera) => camera.id)));
}

class Feed {
  constructor(root) {
    this.scroller = root.querySelector(".feed");
    this.list = root.querySelector(".cards");
    this.empty = root.querySelector(".void");
    this.more = root.querySelector(".more button");
    this.count = root.querySelector("#captions-count");
    this.words = root.querySelector("#find-words");
    this.camera = root.querySelector("#find-camera");
    this.trouble = root.querySelector(".trouble");
    this.spoken = root.querySelector("#spoken");
    this.shown = new Map(); // event id -> article, in no order; the DOM has that
    this.live = new Map(); // event id -> what is known of the newest events, whatever the filter
    this.summary = "";
    this.isLast = false;
    this.asked = 0; // grows with every new filter: answers to an older one are dropped
    this.spokenAt = -Infinity;
    root.querySelector(".find").addEventListener("submit", (event) => event.preventDefault());
    let typing;
    this.words.addEventListener("input", () => {
      clearTimeout(typing);
      typing = setTimeout(() => this.restart(), TYPED_MS);
    });
    this.camera.addEventListener("change", () => this.restart());
    this.more.addEventListener("click", () => this.older());
    this.scroller.addEventListener("scroll", () => this.olderIfNear(), { passive: true });
  }

  // What the server pushes: new and changed events, newest first.
  take({ cards, summary, trouble }) {
    setText(this.trouble, trouble);
    this.summary = summary;
    const isFirst = this.live.size === 0;
    for (const card of cards.toReversed()) {
      this.live.delete(card.id);
      this.live.set(card.id, card);
      const article = this.shown.get(card.id);
      if (article) this.fill(article, card);
      else if (this.wants(card)) this.list.prepend(this.make(card, !isFirst && !card.is_past));
      if (!isFirst && card.state === "ok") this.speak(card);
    }
    while (this.live.size > 2 * PAGE) this.live.delete(this.live.keys().next().value);
    this.settle();
  }

  // The cameras there are, for the filter.
  offer(names) {
    const known = [...this.camera.options].map((option) => option.value);
    for (const name of names) if (!known.includes(name)) this.camera.append(new Option(name, name));
  }

  get isFiltered() {
    return this.camera.value !== "" || this.words.value.trim() !== "";
  }

  wants(card) {
    if (this.camera.value && card.camera !== this.camera.value) return false;
    const words = this.words.value.toLowerCase().split(/\s+/).filter(Boolean);
    return words.every((word) => card.text.toLowerCase().includes(word));
  }

  async restart() {
    this.asked += 1;
    this.list.replaceChildren();
    this.shown.clear();
    this.isLast = false;
    if (!this.words.value.trim()) {
      for (const card of this.live.values()) if (this.wants(card)) this.list.prepend(this.make(card, false));
    }
    this.scroller.scrollTop = 0;
    await this.older(true);
  }

  olderIfNear() {
    const { scrollHeight, scrollTop, clientHeight } = this.scroller;
    if (clientHeight && scrollHeight - scrollTop - clientHeight < NEAR) this.older();
  }

  async older(must = false) {
    if (this.isLast || (this.loading && !must) || (!must && !this.live.size)) return;
    this.loading = true;
    const asked = this.asked;
    try {
      const query = new URLSearchParams({ limit: PAGE });
      const before = [...this.list.children].findLast((article) => article.dataset.final)?.dataset.event;
      if (before) query.set("before", before);
      if (this.camera.value) query.set("camera", this.camera.value);
      if (this.words.value.trim()) query.set("words", this.words.value.trim());
      const { events, is_last } = await json(`live/events?${query}`);
      if (asked !== this.asked) return;
      this.isLast = is_last;
      this.list.append(...events.filter((card) => !this.shown.has(card.id)).map((card) => this.make(card, false)));
    } catch {
      this.more.hidden = false; // the server is away; the button asks again
      return;
    } finally {
      if (asked === this.asked) this.loading = false;
    }
    this.settle();
    requestAnimationFrame(() => this.olderIfNear()); // the reader may have gone on meanwhile
  }

  make(card, fresh) {
    const article = document.getElementById("card").content.firstElementChild.cloneNode(true);
    article.dataset.event = card.id;
    article.classList.toggle("fresh", fresh);
    const picture = article.querySelector("img");
    picture.src = `events/${card.id}.jpg`;
    picture.alt = `The picture described, ${card.camera} at ${card.when}`;
    picture.addEventListener("error", () => picture.replaceWith("no picture"));
    for (const link of article.querySelectorAll("a")) link.href = `event/${card.id}`;
    article.querySelector(".when").setAttribute("aria-label", `Event of ${card.when}, ${card.camera}`);
    this.shown.set(card.id, article);
    this.fill(article, card);
    return article;
  }

  fill(article, card) {
    article.dataset.state = card.state;
    if (card.is_final) article.dataset.final = "yes";
    article.setAttribute("aria-busy", String(!card.is_final));
    const put = (name, text) => setText(article.querySelector(name), text);
    put(".why", card.why);
    put(".notable", card.is_notable ? "notable" : "");
    put(".cam-name", card.zone ? `${card.camera}, ${card.zone}` : card.camera);
    put(".past", card.is_past ? "earlier run" : "");
    put("time", card.when);
    article.querySelector("time").dateTime = card.iso;
    put(".card-text", card.text);
    put(".card-doubt", card.contradicts);
    put(".state", card.word);
    article.querySelector(".state").dataset.tone = card.tone;
    put(".took", card.latency);
    put(".beside", card.detail);
  }

  settle() {
    const articles = this.list.children;
    if (articles.length > MAX_CARDS && this.scroller.scrollTop < 200) {
      for (const article of [...articles].slice(PAGE)) {
        this.shown.delete(article.dataset.event);
        article.remove();
      }
      this.isLast = false;
    }
    const isEmpty = articles.length === 0;
    for (const [name, value] of [["role", "feed"], ["aria-label", "Events"]]) {
      if (isEmpty) this.list.removeAttribute(name);
      else this.list.setAttribute(name, value);
    }
    this.empty.hidden = !isEmpty;
    setText(this.empty.querySelector("b"), this.isFiltered ? "Nothing found" : "No captions yet");
    setText(
      this.empty.querySelector("span"),
      this.isFiltered ? "No event matches the search." : "When a person comes into view, the picture and its description appear here.",
    );
    this.more.hidden = this.isLast || isEmpty;
    setText(this.count, this.isFiltered ? `${articles.length}${this.isLast ? "" : " and more"} found` : this.summary);
  }

  // For screen readers, whole captions only, and not in a torrent.
  speak(card) {
    const now = performance.now();
    if (now - this.spokenAt < 1000 * SPOKEN_S) return;
    this.spokenAt = now;
    this.spoken.textContent = `${card.camera}: ${card.text}`;
  }
}

// The chat's part that happens in the browser: scrolling, and the picture that goes with a message.
// Keeps the newest words of the conversation in sight, errors included, unless the reader scrolled back.
const NEAR = 40;

export function start() {
  follow();
  pictures();
}

function follow() {
  const talk = document.querySelector(".talk");
  let following = true;
  talk.addEventListener("scroll", () => {
    following = talk.scrollHeight - talk.scrollTop - talk.clientHeight < NEAR;
  });
  new MutationObserver((changes) => {
    const asked = changes.some((change) => [...change.addedNodes].some((node) => node.classList?.contains("mine")));
    following ||= asked;
    if (following) talk.scrollTop = talk.scrollHeight;
  }).observe(talk, { childList: true, subtree: true, characterData: true, attributes: true });
}

const MAX_BYTES = 16 * 2 ** 20;
const TYPES = /^image\/(jpeg|png|webp|bmp|gif)$/;

function pictures() {
  const form = document.querySelector(".ask");
  const input = form.querySelector("#add-picture");
  const added = form.querySelector(".added");
  const wrong = (text) => {
    form.querySelector(".ask-wrong").textContent = text;
  };
  const forget = () => {
    delete form.dataset.picture;
    added.hidden = true;
    input.value = "";
  };
  const add = async (file) => {
    forget();
    wrong("");
    if (!TYPES.test(file.type)) return wrong("This file is no picture that can be read: JPEG, PNG, WebP, BMP or GIF.");
    if (file.size > MAX_BYTES) return wrong("This file has more than 16 MB.");
    form.dataset.busy = "";
    try {
      const reply = await fetch("live/chat/pictures", { method: "POST", body: file, headers: { "Content-Type": file.type } });
      const { id, detail } = await reply.json();
      if (!reply.ok) return wrong(detail);
      form.dataset.picture = id;
      added.querySelector("img").src = `live/chat/pictures/${id}.jpg`;
      added.hidden = false;
      form.querySelector("textarea").focus();
    } catch {
      wrong("The picture could not be sent.");
    } finally {
      delete form.dataset.busy;
    }
  };
  input.addEventListener("change", () => input.files[0] && add(input.files[0]));
  added.querySelector("button").addEventListener("click", forget);
  form.addEventListener("sent", forget);
  const panel = form.closest(".panel");
  panel.addEventListener("dragover", (event) => event.preventDefault());
  panel.addEventListener("drop", (event) => {
    event.preventDefault();
    if (event.dataTransfer.files[0]) add(event.dataTransfer.files[0]);
  });
  panel.addEventListener("paste", (event) => {
    const file = [...event.clipboardData.files].find(({ type }) => type.startsWith("image/"));
    if (!file) return;
    event.preventDefault();
    add(file);
  });
}

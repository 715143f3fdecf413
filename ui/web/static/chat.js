// Keeps the newest words of the conversation in sight, errors included, unless the reader scrolled back.
const NEAR = 40;

export function start() {
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

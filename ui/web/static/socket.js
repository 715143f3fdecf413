// The page's one WebSocket: pictures as binary messages, states and captions as text. Comes back by itself.
const listeners = { cards: [], cameras: [], zones: [], picture: [], opened: [] };
const decoder = new TextDecoder();

export function on(kind, listener) {
  listeners[kind].push(listener);
}

export function start() {
  let pause = 500;
  const connect = () => {
    const socket = new WebSocket(new URL("live/socket", document.baseURI.replace(/^http/, "ws")));
    socket.binaryType = "arraybuffer";
    socket.onopen = () => {
      pause = 500;
      tell("opened");
    };
    socket.onmessage = (event) => {
      if (typeof event.data === "string") {
        const message = JSON.parse(event.data);
        tell(message.kind, message);
      } else {
        showPicture(event.data, (camera) => socket.readyState === WebSocket.OPEN && socket.send(camera));
      }
    };
    socket.onclose = () => {
      setTimeout(connect, pause);
      pause = Math.min(2 * pause, 8000);
    };
  };
  connect();
}

// The next picture of a camera comes when this one is on the page; a page that nobody looks at asks for none.
function showPicture(data, acknowledge) {
  const size = new DataView(data).getUint16(0);
  const head = JSON.parse(decoder.decode(new Uint8Array(data, 2, size)));
  const jpeg = new Blob([new Uint8Array(data, 2 + size)], { type: "image/jpeg" });
  const shown = listeners.picture.map((listener) => listener(head, jpeg));
  Promise.allSettled(shown).then(() => whenVisible(() => acknowledge(head.camera)));
}

function whenVisible(run) {
  if (!document.hidden) run();
  else document.addEventListener("visibilitychange", () => whenVisible(run), { once: true });
}

function tell(kind, message) {
  for (const listener of listeners[kind] ?? []) listener(message);
}

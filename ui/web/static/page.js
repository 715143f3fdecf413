// Starts what moves on the page once NiceGUI has mounted it.
import * as cameras from "./cameras.js";
import * as chat from "./chat.js";
import * as dialog from "./dialog.js";
import * as engine from "./engine.js";
import * as feed from "./feed.js";
import * as socket from "./socket.js";
import * as theme from "./theme.js";

function whenMounted(run) {
  if (document.querySelector(".ww")) run();
  else requestAnimationFrame(() => whenMounted(run));
}

// A browser that is logged out shows nothing of before, so the whole page goes.
async function leave() {
  await fetch("logout", { method: "POST" });
  location.assign("login");
}

whenMounted(() => {
  document.getElementById("leave")?.addEventListener("click", leave);
  theme.start();
  cameras.start();
  feed.start();
  socket.start();
  chat.start();
  dialog.start();
  engine.start();
});

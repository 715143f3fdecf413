// The arrow keys go from one event to the next; the theme is the one a person chose on the main page.
const kept = localStorage.getItem("watchword-theme");
if (kept) {
  document.body.classList.remove("alone");
  document.body.classList.toggle("body--dark", kept === "dark");
  document.body.style.margin = "0";
}
document.addEventListener("keydown", (event) => {
  if (event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
  const rel = { ArrowLeft: "prev", ArrowRight: "next" }[event.key];
  document.querySelector(`a[rel="${rel}"]`)?.click();
});

// Light or dark: the system's choice until a person makes one, which this browser then remembers.
const KEY = "watchword-theme";

export function start() {
  const kept = localStorage.getItem(KEY);
  if (kept) setDark(kept === "dark");
  document.addEventListener("click", (event) => {
    if (!event.target.closest("#theme")) return;
    const dark = !document.body.classList.contains("body--dark");
    localStorage.setItem(KEY, dark ? "dark" : "light");
    setDark(dark);
    window.dispatchEvent(new Event("themechange"));
  });
}

// Ask the server again and again, never twice at once, and rest while nobody looks.
export async function poll(interval, ask) {
  for (;;) {
    if (!document.hidden) {
      try {
        await ask();
      } catch {
        // The server is away; the page's own notice says so, and the next turn asks again.
      }
    }
    await new Promise((resolve) => setTimeout(resolve, interval));
  }
}

export async function json(path) {
  const reply = await fetch(path, { cache: "no-store" });
  if (!reply.ok) throw new Error(`${path}: ${reply.status}`);
  return reply.json();
}

export function setText(element, text) {
  if (element && element.textContent !== text) element.textContent = text;
}

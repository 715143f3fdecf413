// Ask the server again and again, never twice at once, and rest while nobody looks.
export async function poll(interval, ask) {
  for (;;) {
    let pause = interval;
    try {
      if (!document.hidden) await ask();
    } catch {
      pause = 2000; // the server is away, and the page's own notice says so
    }
    await new Promise((resolve) => setTimeout(resolve, pause));
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

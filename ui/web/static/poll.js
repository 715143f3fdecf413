// Ask the server again and again, never twice at once, and rest while nobody looks.
export async function poll(interval, ask) {
  for (;;) {
    let pause = interval;
    try {
      if (!document.hidden) await ask();
    } catch {
      pause = 1000; // the server is away, and the page's own notice says so
    }
    await new Promise((resolve) => setTimeout(resolve, pause));
  }
}

// Every answer and every silence of the server passes here, so this is what the page's notice goes by.
export async function json(path, options) {
  let reply;
  try {
    reply = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(10_000), ...options });
  } catch (error) {
    document.body.dataset.lost = "";
    throw error;
  }
  delete document.body.dataset.lost;
  if (reply.status === 401) location.assign("login"); // the session ended
  if (!reply.ok) throw new Error(`${path}: ${reply.status}`);
  return reply.json();
}

export function patch(path, body) {
  return json(path, { method: "PATCH", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
}

export function setText(element, text) {
  if (element && element.textContent !== text) element.textContent = text;
}

"""The page itself: header, cameras, captions, engine strip and chat, laid out for a desk and for a phone.

Static structure is built here; pictures, captions and the strip are drawn by the scripts in `static`, the chat by
NiceGUI. Knows nothing of where anything comes from.
"""

from __future__ import annotations

from collections.abc import Callable

from nicegui import ui

from ui.web.camera_dialog import DIALOG, OPENER
from ui.web.elements import Text, box, trusted

HEAD = """
<meta name="referrer" content="same-origin">
<link rel="stylesheet" href="static/style.css">
<script type="module" src="static/page.js"></script>
"""


def build_page(chat: Callable[[], object], *, has_password: bool) -> None:
    """Everything one browser sees, `chat` being what builds its chat box. Called once per page view."""
    ui.add_head_html(HEAD)
    with box("div", "ww"):
        trusted(_HEADER.format(leave=_LEAVE if has_password else ""))
        with box("div", "ww-grid"):
            with box("section", "panel p-cameras", aria_labelledby="cameras-title"):
                with box("div", "panel-head"):
                    Text("h2", "Cameras", id="cameras-title")
                    trusted(OPENER)
                trusted(_CAMERAS, "cams-box")
            trusted(_CAPTIONS, "panel p-captions")
            trusted(_ENGINE, "panel p-engine")
            chat()
        trusted(DIALOG)


_HEADER = """
<header class="ww-head">
  <div class="ww-brand"><img src="static/favicon.svg" alt=""><h1>Watchword</h1></div>
  <div class="ww-engine num" role="group" aria-label="Engine">
    <span class="state" role="status" data-tone="warn">Engine starting</span>
    <span class="rate" data-rate="since" hidden><b></b> since the start</span>
    <span class="rate" data-rate="pace" hidden><b></b> tokens/s</span>
    <span class="rate" data-rate="itl" hidden title="Time of the steps that decoded: median and 99th percentile">
      <b></b> between tokens, median / p99</span>
    <span class="rate window" data-rate="window" hidden title="What the numbers before this are of"><b></b></span>
    <span class="rate" data-rate="load" hidden title="Requests in the engine"><b></b></span>
    <span class="rate" data-rate="kv" hidden title="Share of the KV cache in use"><b></b> KV cache</span>
    <span class="state lost" role="status" data-tone="bad">Watchword stopped – trying to reconnect</span>
  </div>
  {leave}<button class="ww-theme" id="theme" type="button" aria-label="Light or dark" title="Light or dark">
    <svg viewBox="0 0 16 16" aria-hidden="true">
      <circle cx="8" cy="8" r="6.25" fill="none" stroke="currentColor" stroke-width="1.5"/>
      <path d="M8 1.75a6.25 6.25 0 0 1 0 12.5Z" fill="currentColor"/></svg>
  </button>
</header>
"""

_LEAVE = """<button class="quiet" id="leave" type="button">Log out</button>"""

_CAMERAS = """
<div class="cams" data-count="0"></div>
<div class="void cams-void" hidden><b>No camera yet</b>
  <span>A camera's address, a video file, a folder of pictures or a webcam's number is all it takes.</span>
  <div class="chips"><button type="button" class="chip" id="add-camera">Add a camera</button></div></div>
<template id="camera">
  <figure class="cam" data-state="connecting">
    <button type="button" class="cam-view" aria-pressed="false">
      <span class="cam-frame"><img alt=""><span class="cam-zones" aria-hidden="true"></span><span
        class="cam-boxes" aria-hidden="true"></span></span>
      <span class="cam-empty">Waiting for the first picture …</span>
    </button>
    <figcaption class="num">
      <b></b><span class="state" data-tone="warn">Connecting</span>
      <span class="cam-people"></span><span class="cam-age" title="How old the newest picture is"></span><span
        class="cam-fps" title="Pictures a second that the detector looks at"></span>
      <span class="cam-why" role="status"></span>
    </figcaption>
  </figure>
</template>
"""

_CAPTIONS = """
<section class="panel-in" aria-labelledby="captions-title">
  <div class="panel-head"><h2 id="captions-title">Captions</h2><span class="aside num" id="captions-count"></span></div>
  <form class="find" role="search">
    <label class="sr" for="find-words">Search captions</label>
    <input id="find-words" type="search" maxlength="200" placeholder="Search captions …" autocomplete="off">
    <label class="sr" for="find-camera">Camera</label>
    <select id="find-camera"><option value="">All cameras</option></select>
  </form>
  <p class="trouble" role="alert"></p>
  <div class="feed" tabindex="0" role="region" aria-label="Captions, newest first">
    <div class="void"><b>No captions yet</b>
      <span>When a person comes into view, the picture and its description appear here.</span></div>
    <div class="cards"></div>
    <div class="more"><button type="button" class="quiet" hidden>Show older captions</button></div>
  </div>
  <div class="sr" id="spoken" aria-live="polite"></div>
</section>
<template id="card">
  <article class="card">
    <a class="card-pic" target="_blank" rel="noopener"><img loading="lazy" decoding="async" alt=""></a>
    <div class="card-body">
      <div class="card-meta num"><span class="why"></span><span class="notable"></span><span
        class="cam-name"></span><span
        class="past"></span><a class="when" target="_blank" rel="noopener"><time></time></a></div>
      <p class="card-text"></p>
      <div class="card-doubt"></div>
      <div class="card-foot num"><span class="state"></span><b class="took"></b><span class="beside"></span></div>
    </div>
  </article>
</template>
"""

_ENGINE = """
<div class="panel-head">
  <h2>Engine steps</h2>
  <div class="legend" aria-label="What the colors mean" role="group">
    <span><i class="line" style="background: var(--itl)"></i>time per step</span>
    <span><i style="background: var(--decode)"></i>decodes</span>
    <span><i style="background: var(--prefill)"></i>prompt chunks</span>
    <span title="Work on pictures. A picture seen before comes from the encoder cache and costs nothing."><i
      style="background: var(--encode)"></i>encoder slices</span>
    <span><i class="dash"></i>token budget</span>
  </div>
</div>
<div class="strip">
  <div class="strip-plot">
    <canvas role="img" aria-label="The engine's last steps, one column per step: how long each took, its decodes and
      prompt chunks under their budget, and its encoder slices"></canvas>
    <div class="strip-note"><b></b><span></span></div>
    <div class="strip-tip num" hidden></div>
  </div>
  <dl class="stats num" aria-label="How long things take, median and 99th percentile"></dl>
  <div class="shares num" role="group" aria-label="Who takes how much of this machine">
    <div class="shares-bar" aria-hidden="true"></div><div class="shares-words"></div>
  </div>
  <div class="controls num">
    <div class="budget">
      <label for="budget">Token budget</label>
      <input id="budget" type="range" min="0" max="1000" step="10" value="0" disabled aria-describedby="settings-hint">
      <output for="budget">–</output>
    </div>
    <div class="policy" hidden>
      <label for="policy">Policy</label><select id="policy" disabled aria-describedby="settings-hint"></select>
    </div>
    <div class="target" hidden>
      <label for="target">Target</label><input id="target" type="number" min="1" step="1" placeholder="auto" disabled
        aria-describedby="settings-hint">ms
    </div>
    <span class="hint" id="settings-hint"></span>
  </div>
</div>
"""

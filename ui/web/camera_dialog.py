"""The dialog in which cameras are added, changed and removed; `static/dialog.js` fills it over `/api/cameras`."""

from __future__ import annotations

OPENER = '<button type="button" class="quiet" id="edit-cameras">Edit cameras</button>'

DIALOG = """
<dialog id="camera-dialog" class="dialog" aria-labelledby="dialog-title">
  <div class="panel-head"><h2 id="dialog-title">Cameras</h2>
    <button type="button" class="quiet" data-close>Close</button></div>
  <p class="dialog-wrong" role="alert"></p>
  <ul class="dialog-list"></ul>
  <p class="dialog-note"></p>
  <form class="dialog-form" novalidate hidden>
    <label>Name <input name="name" maxlength="64" autocomplete="off" required></label>
    <label>Source <input name="source" maxlength="4096" autocomplete="off" required
      placeholder="rtsp://camera/live, a file, a folder, or a webcam's number"></label>
    <div class="pair"><label>User <input name="username" maxlength="256" autocomplete="off"></label>
      <label>Password <input name="password" type="password" maxlength="1024" autocomplete="new-password"></label></div>
    <div class="pair"><label>RTSP transport <select name="transport"><option value="">automatic</option>
        <option>tcp</option><option>udp</option></select></label>
      <label>Picture <select name="picture"><option value="crop">cut to the people</option>
        <option value="full">whole</option></select></label></div>
    <div class="pair"><label>Describe again after, s <input name="interval_s" type="number" min="1" step="any"></label>
      <label>Not before, s <input name="cooldown_s" type="number" min="0" step="any"></label></div>
    <label>Prompt <textarea name="prompt" rows="2" maxlength="4000"
      placeholder="Describe the image."></textarea></label>
    <fieldset class="zones"><legend>Zones</legend>
      <p class="zone-hint"></p>
      <div class="zone-stage" aria-hidden="true" hidden><canvas></canvas><div class="zone-layer"></div>
        <div class="zone-corners"></div></div>
      <ul class="zone-list"></ul>
      <div class="zone-do"><button type="button" class="quiet" data-add-zone>Add a zone</button>
        <button type="button" class="quiet" data-undo disabled>Undo</button></div>
    </fieldset>
    <label class="check"><input type="checkbox" name="loop"> Start a file over at its end</label>
    <div class="dialog-do"><button type="button" class="quiet" data-cancel>Cancel</button>
      <button type="submit" class="send">Save</button></div>
  </form>
  <button type="button" class="send" data-add>Add a camera</button>
</dialog>
"""

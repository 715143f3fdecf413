// Zones over a picture: areas in shares of its width and height, each with its name.
const SVG = "http://www.w3.org/2000/svg";

// Draws `zones`, as [{ name, kind, polygon }], in `layer`, an element as large as the picture.
export function drawZones(layer, zones) {
  if (!layer) return; // its camera was removed meanwhile
  const drawing = document.createElementNS(SVG, "svg");
  drawing.setAttribute("viewBox", "0 0 1 1");
  drawing.setAttribute("preserveAspectRatio", "none");
  const names = [];
  for (const { name, kind, polygon } of zones) {
    if (!polygon.length) continue;
    const area = document.createElementNS(SVG, "polygon");
    area.setAttribute("points", polygon.map((corner) => corner.join(",")).join(" "));
    area.setAttribute("class", kind);
    drawing.append(area);
    if (polygon.length >= 3) names.push(nameOf(name, kind, polygon));
  }
  layer.replaceChildren(drawing, ...names);
}

// At the area's highest corner, inside the picture.
function nameOf(name, kind, polygon) {
  const [x, y] = polygon.reduce((best, corner) => (corner[1] < best[1] ? corner : best));
  const label = document.createElement("span");
  label.className = `zone-name ${kind}`;
  label.textContent = kind === "exclude" ? `not ${name}` : name;
  label.style.left = `${100 * Math.min(x, 0.8)}%`;
  label.style.top = `${100 * Math.min(y, 0.9)}%`;
  return label;
}

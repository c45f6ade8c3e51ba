// Draws a plot at a width in pixels: {svg, hits}.  A hit is a mark that can be pointed
// at: {x, y, point, distance(x, y)}, in the picture's pixels.

const seriesColors = 8;
const markerShapes = [
  (r) => `M${-r},0a${r},${r} 0 1,0 ${2 * r},0a${r},${r} 0 1,0 ${-2 * r},0z`,
  (r) => `M${-r * 0.9},${-r * 0.9}h${r * 1.8}v${r * 1.8}h${-r * 1.8}z`,
  (r) => `M0,${-r * 1.2}L${r * 1.15},${r * 0.8}H${-r * 1.15}z`,
  (r) => `M0,${-r * 1.3}L${r * 1.3},0L0,${r * 1.3}L${-r * 1.3},0z`,
  (r) => `M0,${r * 1.2}L${r * 1.15},${-r * 0.8}H${-r * 1.15}z`,
  (r) => `M${-r * 1.3},${-r * 0.45}h${r * 0.85}v${-r * 0.85}h${r * 0.9}v${r * 0.85}h${r * 0.85}v${r * 0.9}h${-r * 0.85}` +
    `v${r * 0.85}h${-r * 0.9}v${-r * 0.85}h${-r * 0.85}z`,
  (r) => `M0,${-r * 1.4}L${r * 0.4},${-r * 0.4}L${r * 1.4},0L${r * 0.4},${r * 0.4}L0,${r * 1.4}L${-r * 0.4},${r * 0.4}L${-r * 1.4},0L${-r * 0.4},${-r * 0.4}z`,
];

// The group of a series' marks, in its colour: one of a set, or along a ramp.
function seriesGroup(model, index) {
  if (!model.steps) return svg('g', {class: `series s${index % seriesColors}${index < seriesColors ? '' : ' again'}`});
  const share = Math.round(100 * index / (model.names.length - 1));
  return svg('g', {class: 'series', style: `color: color-mix(in oklch, var(--last) ${share}%, var(--first))`});
}

function marker(index, x, y, radius) {
  return svg('path', {class: 'mark', d: markerShapes[index % markerShapes.length](radius), transform: `translate(${round(x)},${round(y)})`});
}

function round(pixels) {
  return Math.round(pixels * 100) / 100;
}

function line(x1, y1, x2, y2, name) {
  return svg('line', {x1: round(x1), y1: round(y1), x2: round(x2), y2: round(y2), class: name});
}

function label(text, x, y, name, anchor = 'middle') {
  return svg('text', {x: round(x), y: round(y), class: name, 'text-anchor': anchor}, text);
}

// Ticks whose texts do not touch, for an axis along the bottom; of categories, every
// second or every third.
function sparse({ticks, map, band}) {
  if (band) {
    const stride = Math.ceil((widest(ticks.map((t) => t.text)) + 8) / band);
    return ticks.filter((_, i) => i % stride === 0);
  }
  const kept = [];
  let end = -Infinity;
  for (const tick of ticks) {
    const half = textWidth(tick.text) / 2;
    if (map(tick.value) - half < end) continue;
    kept.push(tick);
    end = map(tick.value) + half + 8;
  }
  return kept;
}

// Grid and texts of the axis along the left; of categories, texts alone.
function leftAxis(scale, box) {
  const group = svg('g', {class: 'axis'});
  for (const {value, text} of scale.ticks) {
    const y = scale.map(value);
    if (!scale.band) group.append(line(box.left, y, box.right, y, 'grid'));
    group.append(label(scale.band ? fitted(text, box.left - 12) : text, box.left - 8, y + 4, 'tick', 'end'));
  }
  return group;
}

function bottomAxis(scale, box, grid) {
  const group = svg('g', {class: 'axis'});
  for (const {value, text} of sparse(scale)) {
    const x = scale.map(value);
    group.append(grid ? line(x, box.top, x, box.bottom, 'grid') : line(x, box.bottom, x, box.bottom + 4, 'baseline'));
    group.append(label(text, x, box.bottom + 18, 'tick'));
  }
  return group;
}

function axisTitles(box, leftText, bottomText) {
  return svg('g', {},
    label(`↑ ${leftText}`, 2, 12, 'axis-title', 'start'),
    label(`${bottomText} →`, box.right, box.bottom + 38, 'axis-title', 'end'));
}

function referenceLines(model, x, y, box) {
  const group = svg('g', {class: 'references'});
  const across = referenceOf(model.y);
  if (across && model.yScale !== 'log' && across.value >= y.low && across.value <= y.high) {
    group.append(line(box.left, y.map(across.value), box.right, y.map(across.value), 'reference'));
    if (across.text) group.append(label(across.text, box.right - 2, y.map(across.value) - 4, 'reference-text', 'end'));
  }
  const along = model.kind === 'scatter' && !model.categorical && !model.logX ? referenceOf(model.x) : null;
  if (along && along.value >= x.low && along.value <= x.high) {
    group.append(line(x.map(along.value), box.top, x.map(along.value), box.bottom, 'reference'));
  }
  if (model.twins && !model.logX && model.yScale === 'linear') {
    const low = Math.max(x.low, y.low), high = Math.min(x.high, y.high);
    if (low < high) group.append(line(x.map(low), y.map(low), x.map(high), y.map(high), 'reference dashed'));
  }
  return group;
}

// Runs of points that follow each other without a gap.
function runsOf(points, has) {
  const runs = [[]];
  for (const point of points) {
    if (has(point)) runs.at(-1).push(point);
    else if (runs.at(-1).length > 0) runs.push([]);
  }
  return runs.filter((run) => run.length > 0);
}

function pathThrough(places) {
  return 'M' + places.map(([x, y]) => `${round(x)},${round(y)}`).join('L');
}

function whisker(from, to, place, transpose) {
  const stroke = (x1, y1, x2, y2) => (transpose ? line(y1, x1, y2, x2, 'whisker') : line(x1, y1, x2, y2, 'whisker'));
  return svg('g', {class: 'interval'},
    stroke(place, from, place, to), stroke(place - 3, from, place + 3, from), stroke(place - 3, to, place + 3, to));
}

function drawLine(group, points, px, py) {
  for (const run of runsOf(points, (p) => p.shown && p.low !== null && p.high !== null)) {
    if (run.length === 1) group.append(whisker(py(run[0].low), py(run[0].high), px(run[0]), false));
    const edge = (side) => run.map((p) => [px(p), py(p[side])]);
    if (run.length > 1) group.append(svg('path', {class: 'band', d: pathThrough([...edge('high'), ...edge('low').reverse()]) + 'Z'}));
  }
  for (const run of runsOf(points, (p) => p.shown)) {
    if (run.length > 1) group.append(svg('path', {class: 'line', d: pathThrough(run.map((p) => [px(p), py(p.y)]))}));
  }
}

// Writes the points' labels where they cover neither a point nor each other.
function pointLabels(shown, px, py, box) {
  const group = svg('g', {class: 'labels'});
  const taken = shown.map((p) => ({left: px(p) - 3, right: px(p) + 3, top: py(p.y) - 3, bottom: py(p.y) + 3}));
  for (const point of shown) {
    const text = fitted(point.label, 140), wide = textWidth(text) * 0.92;
    const [x, y] = [px(point), py(point.y)];
    const places = [[x + 7, y + 4], [x - 7 - wide, y + 4], [x - wide / 2, y - 8], [x - wide / 2, y + 17]];
    for (const [left, base] of text === '' ? [] : places) {
      const area = {left, right: left + wide, top: base - 10, bottom: base + 3};
      if (area.left < box.left || area.right > box.right || area.top < box.top - 8 || area.bottom > box.bottom) continue;
      if (taken.some((t) => t.left < area.right && t.right > area.left && t.top < area.bottom && t.bottom > area.top)) continue;
      taken.push(area);
      group.append(label(text, left, base, 'point-label', 'start'));
      break;
    }
  }
  return group;
}

function verticalScale(model, place) {
  const makers = {linear: linearScale, log: logScale, symlog: symlogScale};
  return makers[model.yScale]({...yRange(model), ...place, style: model.y.style, values: yValues(model.points)});
}

function drawPoints(model, width, hidden) {
  const height = Math.round(Math.min(Math.max(width * 0.5, 275), 400));
  const box = {top: 32, bottom: height - 46, right: width - 22};
  const y = verticalScale(model, {from: box.bottom, to: box.top, count: (box.bottom - box.top) / 32});
  box.left = Math.ceil(widest(y.ticks.map((t) => t.text))) + 14;
  const x = model.categorical
    ? categoryScale({categories: model.categories, from: box.left, to: box.right, text: categoryText})
    : (model.logX ? logScale : linearScale)({
      ...xRange(model), from: box.left, to: box.right, count: (box.right - box.left) / 80, style: model.x.style});
  const px = (p) => x.map(model.categorical ? p.category : p.x);
  const picture = svg('svg', {viewBox: `0 0 ${width} ${height}`},
    leftAxis(y, box), bottomAxis(x, box, model.kind === 'scatter'),
    line(box.left, box.bottom, box.right, box.bottom, 'baseline'),
    axisTitles(box, axisLabel(model.y, width - 30), axisLabel(model.x, width - 40)),
    referenceLines(model, x, y, box));

  const hits = [];
  const total = model.points.length;
  if (total > 600) picture.classList.add('many');
  if (model.names.length > 5) picture.classList.add('crowded');
  const radius = total > 600 ? 2 : total > 150 ? 3 : 4;
  model.series.forEach((series, index) => {
    if (hidden.has(index)) return;
    const group = seriesGroup(model, index);
    const place = (p) => (model.categorical ? px(p) : p.x);
    const points = model.kind === 'line' ? [...series].sort((a, b) => place(a) - place(b)) : series;
    if (model.kind === 'line') drawLine(group, points, px, y.map);
    const marked = model.kind === 'scatter' || series.length * 10 <= width;
    for (const point of points.filter((p) => p.shown)) {
      const [mx, my] = [px(point), y.map(point.y)];
      if (model.kind === 'scatter' && point.low !== null && point.high !== null) {
        group.append(whisker(y.map(point.low), y.map(point.high), mx, false));
      }
      if (marked || series.length === 1) group.append(marker(index, mx, my, radius));
      hits.push({x: mx, y: my, point, distance: (atX, atY) => Math.hypot(atX - mx, atY - my)});
    }
    picture.append(group);
  });
  if (model.labelled && hits.length <= 60) picture.append(pointLabels(hits.map((hit) => hit.point), px, y.map, box));
  return {svg: picture, hits};
}

function drawBars(model, width, hidden) {
  const texts = model.categories.map(categoryText);
  const start = baseOf(model);
  const groups = Math.max(model.names.length - hidden.size, 1);
  const lying = !model.x.numeric && texts.length <= 60 && widest(texts) + 8 > (width - 60) / texts.length;
  const box = {top: lying ? 6 : 32, right: width - 16};
  const height = lying ? texts.length * Math.max(22, groups * 13 + 9) + 52 : Math.round(Math.min(Math.max(width * 0.48, 260), 360));
  box.bottom = height - 46;
  const valueScale = (from, to, count) => verticalScale(model, {from, to, count, edge: start.value});
  let values, places;
  if (lying) {
    box.left = Math.ceil(Math.min(widest(texts), width * 0.4)) + 14;
    values = valueScale(box.left, box.right - 10, (box.right - box.left) / 90);
    places = categoryScale({categories: model.categories, from: box.top, to: box.bottom, text: categoryText});
  } else {
    values = valueScale(box.bottom, box.top, (box.bottom - box.top) / 32);
    box.left = Math.ceil(widest(values.ticks.map((t) => t.text))) + 14;
    places = categoryScale({categories: model.categories, from: box.left, to: box.right, text: categoryText});
  }
  const picture = svg('svg', {viewBox: `0 0 ${width} ${height}`});
  const title = axisLabel(model.y, width - 120) + (start.text && model.yScale !== 'log' ? `, from ${start.text}` : '');
  if (lying) {
    picture.append(bottomAxis(values, box, true), leftAxis(places, box),
      label(`${title} →`, box.right, box.bottom + 38, 'axis-title', 'end'));
  } else {
    picture.append(leftAxis(values, box), bottomAxis(places, box, false),
      axisTitles(box, title, axisLabel(model.x, width - 40)));
  }

  const base = values.map(model.yScale === 'log' ? values.low : start.value);
  const thick = Math.min(places.band * 0.78 / groups, 44);
  const hits = [];
  let slot = 0;
  model.series.forEach((series, index) => {
    if (hidden.has(index)) return;
    const group = seriesGroup(model, index);
    for (const point of series.filter((p) => p.shown)) {
      const middle = places.map(point.category) + (slot - (groups - 1) / 2) * thick;
      const end = values.map(point.y);
      const across = [middle - thick * 0.46, thick * 0.92], along = [Math.min(base, end), Math.abs(end - base)];
      const [h, v] = lying ? [along, across] : [across, along];
      group.append(svg('rect', {class: 'mark', x: round(h[0]), y: round(v[0]), width: round(h[1]), height: round(v[1])}));
      if (point.low !== null && point.high !== null) {
        group.append(whisker(values.map(point.low), values.map(point.high), middle, lying));
      }
      const distance = (x, y) => Math.abs((lying ? y : x) - middle);
      hits.push({x: lying ? end : middle, y: lying ? middle : end, point, distance});
    }
    slot += 1;
    picture.append(group);
  });
  picture.append(lying ? line(base, box.top, base, box.bottom, 'baseline') : line(box.left, base, box.right, base, 'baseline'));
  return {svg: picture, hits};
}

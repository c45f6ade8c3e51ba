// A plot on the page: picture, legend, and what pointing at a mark tells.

const redraws = [];

// "3.2 % (2.9 % to 3.6 %)"
function valueWithInterval(model, point) {
  const text = model.y.text(point.y);
  if (point.low === null || point.high === null) return text;
  return `${text} (${model.y.text(point.low)} to ${model.y.text(point.high)})`;
}

function factsOf(model, point) {
  const facts = [];
  if (model.seriesColumn) facts.push([model.seriesTitle || 'of', point.series]);
  facts.push([humanName(model.x.name), model.x.text(point.x)], [humanName(model.y.name), valueWithInterval(model, point)]);
  return facts;
}

function showTooltip(model, hit, picture) {
  fillTooltip(hit.point.label, factsOf(model, hit.point));
  const area = picture.getBoundingClientRect();
  const scale = area.width / picture.viewBox.baseVal.width;
  placeTooltip(area.left + hit.x * scale, area.top + hit.y * scale);
}

function fillTooltip(title, facts) {
  document.getElementById('tooltip').replaceChildren(
    ...(title ? [h('strong', {}, title)] : []),
    h('dl', {}, ...facts.flatMap(([name, value]) => [h('dt', {}, name), h('dd', {}, value)])));
}

// Beside a place in the window, inside it.
function placeTooltip(x, y) {
  const tooltip = document.getElementById('tooltip');
  tooltip.hidden = false;
  const {offsetWidth: wide, offsetHeight: high} = tooltip;
  const left = x + 14 + wide < innerWidth ? x + 14 : Math.max(4, x - 14 - wide);
  tooltip.style.left = `${left}px`;
  tooltip.style.top = `${Math.min(Math.max(4, y - high - 10), innerHeight - high - 4)}px`;
}

function hideTooltip() {
  document.getElementById('tooltip').hidden = true;
}

// Pointing, touching and the arrow keys move a ring over the marks.
function makeInteractive(picture, model, hits) {
  const ring = svg('circle', {class: 'ring', r: 7, visibility: 'hidden'});
  picture.append(ring);
  const inOrder = [...hits].sort((a, b) => a.x - b.x || a.y - b.y);
  let current = -1;
  const select = (hit) => {
    ring.setAttribute('visibility', hit ? 'visible' : 'hidden');
    if (!hit) return hideTooltip();
    ring.setAttribute('cx', round(hit.x));
    ring.setAttribute('cy', round(hit.y));
    current = inOrder.indexOf(hit);
    showTooltip(model, hit, picture);
  };
  const point = (event) => {
    const area = picture.getBoundingClientRect();
    const scale = picture.viewBox.baseVal.width / area.width;
    const [x, y] = [(event.clientX - area.left) * scale, (event.clientY - area.top) * scale];
    let nearest = null, least = 40;
    for (const hit of hits) {
      const distance = hit.distance(x, y);
      if (distance < least) [nearest, least] = [hit, distance];
    }
    select(nearest);
  };
  const step = (event) => {
    const moves = {ArrowRight: current + 1, ArrowLeft: current - 1, Home: 0, End: hits.length - 1};
    if (event.key === 'Escape') return select(null);
    if (!(event.key in moves) || hits.length === 0) return;
    event.preventDefault();
    const hit = inOrder[Math.min(Math.max(moves[event.key], 0), hits.length - 1)];
    select(hit);
    const facts = factsOf(model, hit.point).map(([name, value]) => `${name} ${value}`);
    document.getElementById('announcer').textContent = [hit.point.label, ...facts].filter(Boolean).join(', ');
  };
  build(picture, {pointermove: point, pointerdown: point, pointerleave: () => select(null), keydown: step, blur: () => select(null)}, []);
}

function swatch(model, index) {
  const picture = svg('svg', {class: 'swatch', viewBox: '0 0 22 12', 'aria-hidden': 'true'});
  const group = seriesGroup(model, index);
  if (model.kind === 'line') group.append(svg('path', {class: 'line', d: 'M1,6H21'}));
  group.append(model.kind === 'bar' ? svg('rect', {class: 'mark', x: 5, y: 0, width: 12, height: 12}) : marker(index, 11, 6, 4));
  picture.append(group);
  return picture;
}

// Buttons that take a series out of the picture and bring it back.
function legendOf(model, hidden, redraw) {
  if (!model.seriesColumn || model.names.length === 0) return null;
  const entries = model.names.map((name, index) => h('button', {
    type: 'button',
    'aria-pressed': 'true',
    click: (event) => {
      if (!hidden.delete(index)) hidden.add(index);
      event.currentTarget.setAttribute('aria-pressed', String(!hidden.has(index)));
      redraw();
    },
  }, swatch(model, index), name === '' ? '–' : name));
  return h('div', {class: 'legend', role: 'group', 'aria-label': model.seriesTitle || 'Series'},
    model.seriesTitle === '' ? null : h('span', {class: 'legend-title'}, model.seriesTitle), ...entries);
}

function describePlot(model) {
  const kind = {line: 'Line plot', bar: 'Bar chart', scatter: 'Scatter plot'}[model.kind];
  const count = model.points.filter((p) => p.shown).length;
  const series = model.seriesColumn ? ` in ${model.names.length} series` : '';
  return `${kind} of ${humanName(model.y.name)} against ${humanName(model.x.name)}: ${count} values${series}. ` +
    'The arrow keys read them out; the table below holds them too.';
}

function axisNotes(model) {
  const axis = model.yScale === 'symlog' ? ' The axis is logarithmic away from zero.' : '';
  if (model.lost === 0) return axis;
  const reason = model.logX ? 'no value, or none above zero for a logarithmic axis' : 'no value';
  return `${axis} ${model.lost} ${model.lost === 1 ? 'row has' : 'rows have'} ${reason}.`;
}

function renderPlot(raw, tables, index) {
  const model = readPlot(raw, tables);
  const hidden = new Set();
  const canvas = h('div', {class: 'canvas'});
  const ids = [`plot-${index}-title`, `plot-${index}-description`];
  let width = 0;
  const redraw = () => {
    if (model.points.every((p) => !p.shown)) {
      canvas.replaceChildren(h('p', {class: 'empty'}, 'There are no values to plot.'));
      return;
    }
    const {svg: picture, hits} = drawPlot(model, width, hidden);
    build(picture, {role: 'img', tabindex: 0, 'aria-labelledby': ids.join(' ')}, []);
    picture.prepend(svg('title', {id: ids[0]}, model.title), svg('desc', {id: ids[1]}, describePlot(model)));
    makeInteractive(picture, model, hits);
    canvas.replaceChildren(picture);
  };
  const fit = (pixels) => {
    const next = Math.max(Math.round(pixels), 240);
    if (next === width) return;
    width = next;
    redraw();
  };
  redraws.push({canvas, fit});
  return h('figure', {class: `plot ${model.kind}-plot`},
    h('h3', {}, model.title),
    legendOf(model, hidden, redraw),
    canvas,
    h('figcaption', {}, model.caption, axisNotes(model), ' ',
      h('a', {href: `#${model.table.id}`}, 'See the numbers')));
}

function drawPlot(model, width, hidden) {
  return model.kind === 'bar' ? drawBars(model, width, hidden) : drawPoints(model, width, hidden);
}

// Keeps every plot as wide as its place, also on paper.
function keepPlotsFitting() {
  const fitAll = () => redraws.forEach(({canvas, fit}) => fit(canvas.clientWidth));
  fitAll();
  new ResizeObserver(fitAll).observe(document.getElementById('page'));
  addEventListener('beforeprint', () => redraws.forEach(({fit}) => fit(640)));
  addEventListener('afterprint', fitAll);
}

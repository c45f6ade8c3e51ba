// What a plot shows, taken from its table:
// {kind, x, y, points, series, categories, …}; see draw.js for how.

function plotKind(kind) {
  const word = textOf(kind).toLowerCase().replace(/^kind_/, '');
  return ['line', 'bar'].includes(word) ? word : 'scatter';
}

function columnOf(table, name, role) {
  if (!name) return null;
  const column = table.columns.find((c) => c.name === name);
  if (!column) throw new Error(`table “${table.name}” has no column “${name}” for ${role}`);
  return column;
}

// The value that means "nothing" in a column such as this one: no change, equal, chance.
function referenceOf(column) {
  const says = (word) => new RegExp(`\\b${word}\\b`, 'i').test(humanName(column.name)) || new RegExp(`^(the )?${word}\\b`, 'i').test(column.description);
  if (says('AUC')) return {value: 0.5, text: 'chance'};
  if (says('ratio') || says('speed.?up')) return {value: 1, text: ''};
  if (column.style.signed || column.values.some((v) => isNumber(v) && v < 0)) return {value: 0, text: ''};
  return null;
}

// Two columns that measure the same thing on two sides: "delta_1" and "delta_2".
function areTwins(a, b) {
  const stem = (column) => column.name.replace(/_?(\d+|a|b|x|y|first|second)$/, '');
  return a.name !== b.name && stem(a) !== '' && stem(a) === stem(b);
}

// The key of a category: its text, and which of the rows that share it this is.
function categoryKey(text, count) {
  return `${text}\u0000${count}`;
}

function categoryText(key) {
  return key.slice(0, key.lastIndexOf('\u0000'));
}

// Gives the points of a plot whose x is no axis of numbers their categories.
function assignCategories(points, x) {
  const seen = new Map();
  const places = new Map();
  for (const point of points) {
    const text = x.text(point.x);
    const mine = JSON.stringify([text, point.series]);
    seen.set(mine, (seen.get(mine) ?? 0) + 1);
    point.category = categoryKey(text, seen.get(mine));
    if (!places.has(point.category)) places.set(point.category, isNumber(point.x) ? point.x : Infinity);
  }
  const keys = [...places.keys()];
  return x.numeric ? keys.sort((a, b) => places.get(a) - places.get(b)) : keys;
}

// All y of the points shown, and the ends of their intervals.
function yValues(points) {
  return points.filter((p) => p.shown).flatMap((p) => [p.y, p.low, p.high].filter((v) => v !== null));
}

// A logarithmic axis that meets values at or below zero is one away from zero alone.  So
// is that of bars of very different sizes, of which a plain axis would show the largest.
function yScaleKind(kind, y, points, wanted) {
  const values = yValues(points);
  if (wanted) return values.every((v) => v > 0) ? 'log' : 'symlog';
  if (kind !== 'bar' || (referenceOf(y)?.value ?? 0) !== 0) return 'linear';
  const sizes = points.filter((p) => p.shown && p.y !== 0).map((p) => Math.abs(p.y)).sort((a, b) => a - b);
  return sizes.length > 3 && sizes.at(-1) > 60 * sizes[sizes.length >> 1] ? 'symlog' : 'linear';
}

function readPlot(raw, tables) {
  const table = tables.find((t) => t.name === raw.table);
  if (!table) throw new Error(`the report has no table “${textOf(raw.table)}”`);
  const column = (role) => columnOf(table, textOf(raw[role]), role);
  const [x, y, low, high, series, label] = ['x', 'y', 'low', 'high', 'series', 'label'].map(column);
  if (!x || !y) throw new Error('it names no columns for x and y');
  if (!y.numeric) throw new Error(`column “${y.name}” holds no numbers`);
  const kind = plotKind(raw.kind);
  const categorical = kind === 'bar' || !x.numeric;
  const logX = Boolean(raw.log_x) && !categorical;
  const placed = (row) => categorical || (isNumber(x.values[row]) && (!logX || x.values[row] > 0));
  const end = (of, row) => (of && isNumber(of.values[row]) ? of.values[row] : null);

  const points = [];
  let lost = 0;
  for (let row = 0; row < table.rows; ++row) {
    const shown = isNumber(y.values[row]) && placed(row);
    if (!shown) ++lost;
    if (!placed(row)) continue;
    points.push({
      row,
      shown,
      x: x.values[row],
      y: y.values[row],
      low: end(low, row),
      high: end(high, row),
      series: series ? series.text(series.values[row]) : '',
      seriesValue: series ? series.values[row] : null,
      label: label ? label.text(label.values[row]) : '',
    });
  }
  const categories = categorical ? assignCategories(points, x) : [];
  if (series && series.numeric) points.sort((a, b) => (a.seriesValue ?? Infinity) - (b.seriesValue ?? Infinity));
  const names = [...new Set(points.map((p) => p.series))];
  return {
    kind, table, x, y, logX, categorical, points, categories, lost,
    title: textOf(raw.title) || capitalized(`${humanName(y.name)} by ${humanName(x.name)}`),
    caption: textOf(raw.caption),
    seriesColumn: series,
    seriesTitle: series && series.name !== 'series' ? humanName(series.name) : '',
    steps: areSteps(names),
    labelled: label !== null,
    series: names.map((name) => points.filter((p) => p.series === name)),
    names,
    yScale: yScaleKind(kind, y, points, Boolean(raw.log_y)),
    twins: kind === 'scatter' && !categorical && areTwins(x, y),
  };
}

// [low, high] of an axis, with the reference where it is not far off.
function rangeOf(values, reference, always) {
  let low = Infinity, high = -Infinity;
  for (const value of values) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  if (low > high) return null;
  const span = high - low || Math.abs(high);
  if (reference && (always || (reference.value > low - span && reference.value < high + span))) {
    low = Math.min(low, reference.value);
    high = Math.max(high, reference.value);
  }
  return {low, high};
}

// Where bars begin.
function baseOf(model) {
  return referenceOf(model.y) ?? {value: 0, text: ''};
}

function yRange(model) {
  const values = yValues(model.points);
  if (model.yScale === 'log') return rangeOf(values, null, false);
  return model.kind === 'bar' ? rangeOf(values, baseOf(model), true) : rangeOf(values, referenceOf(model.y), false);
}

function xRange(model) {
  const values = model.points.filter((p) => p.shown).map((p) => p.x);
  return rangeOf(values, model.kind === 'scatter' && !model.logX ? referenceOf(model.x) : null, false);
}

// What an axis says of itself: the name, and the description where there is room.
function axisLabel(column, room) {
  const name = humanName(column.name);
  for (const description of [column.description.replace(/\.$/, ''), column.description.replace(/[.,;:(].*$/s, '').trim()]) {
    const text = description.toLowerCase().includes(name.toLowerCase()) ? description : `${name}: ${description}`;
    if (description !== '' && textWidth(text) <= room) return text;
  }
  return fitted(name, room);
}

// Whether series are steps of one thing, such as layers, too many for colours of their own.
function areSteps(names) {
  const stems = new Set(names.map((name) => name.replace(/[\d.,]+/, '#')));
  return names.length > 8 && stems.size === 1 && /\d/.test(names[0]);
}

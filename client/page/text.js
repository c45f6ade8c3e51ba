// Elements and numbers.  Text of a report reaches the page through text nodes and
// attributes that hold text, never as markup.

function build(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === 'function') element.addEventListener(name, value);
    else if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

// h('p', {class: 'note', click: f}, 'text', element): functions are event listeners.
function h(tag, attributes = {}, ...children) {
  return build(document.createElement(tag), attributes, children);
}

function svg(tag, attributes = {}, ...children) {
  return build(document.createElementNS('http://www.w3.org/2000/svg', tag), attributes, children);
}

function textOf(value) {
  return value === null || value === undefined ? '' : String(value);
}

function listOf(value) {
  return Array.isArray(value) ? value : [];
}

// Text such as a token, with what could not be seen made visible: spaces at its ends,
// line breaks, control characters and those that reorder text.
function visible(value) {
  return textOf(value)
    .replace(/^ +| +$/g, (spaces) => '␣'.repeat(spaces.length))
    .replace(/\r?\n/g, '⏎')
    .replace(/\t/g, '⇥')
    .replace(/[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g,
      (c) => '\\u' + c.charCodeAt(0).toString(16).padStart(4, '0'));
}

const spellings = {auc: 'AUC', ce: 'CE', flops: 'FLOPs', id: 'ID', kl: 'KL', mlp: 'MLP', pca: 'PCA', r2: 'R²'};

// "linear_cost" -> "linear cost"
function humanName(name) {
  return textOf(name).split('_').map((word) => spellings[word] ?? word).join(' ').trim();
}

function capitalized(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

function isNumber(value) {
  return typeof value === 'number' && Number.isFinite(value);
}

const numberFormats = new Map();

function plainNumber(value, decimals, grouped) {
  const key = `${decimals} ${grouped}`;
  if (!numberFormats.has(key)) {
    numberFormats.set(key, new Intl.NumberFormat('en-US',
      {minimumFractionDigits: decimals, maximumFractionDigits: decimals, useGrouping: grouped}));
  }
  return numberFormats.get(key).format(value).replace('-', '−');
}

// 1.5e-7 -> "1.5·10⁻⁷"
function scientific(value) {
  const [digits, exponent] = value.toExponential(1).split('e');
  const raised = String(Number(exponent)).replace(/./g, (c) => '⁰¹²³⁴⁵⁶⁷⁸⁹'[c] ?? '⁻');
  const mantissa = digits.replace(/\.0$/, '').replace('-', '−');
  return (mantissa === '1' ? '' : mantissa === '−1' ? '−' : mantissa + '·') + '10' + raised;
}

const percentSign = '\u202f%';

// The decimals that write a number in full: 2 for 0.25.
function decimalsOf(value) {
  const [digits, exponent] = String(Number(value.toPrecision(12))).split('e');
  return Math.max(0, (digits.split('.')[1] ?? '').length - Number(exponent ?? 0));
}

// How the numbers of a column are written, from its description and its values:
// {scale, suffix, decimals, signed, grouped}.
function numberStyle(name, description, values) {
  const text = `${humanName(name)} ${description}`;
  const inPercent = /\bin (percent|%)/i.test(description);
  const part = /\b(share|fraction|proportion)\b/i.test(text);
  const share = !inPercent && (part || /\brelative\b/i.test(text));
  const scale = share ? 100 : 1;
  const sizes = values.filter((v) => isNumber(v) && v !== 0).map((v) => Math.abs(v) * scale).sort((a, b) => a - b);
  let decimals = 0;
  if (sizes.length > 0) {
    const wanted = (size) => (share || inPercent ? 1 : size >= 1 ? 3 : 2) - Math.floor(Math.log10(size));
    // As the smaller ones need it, but not absurdly many for the largest.
    decimals = Math.min(wanted(sizes[sizes.length >> 2]), wanted(sizes.at(-1)) + 2);
    decimals = Math.min(Math.max(decimals, 1), 6, Math.max(...sizes.map(decimalsOf)));
  }
  return {
    scale,
    suffix: share || inPercent ? percentSign : '',
    decimals,
    signed: !part && /\b(change|difference|increase|decrease)\b|[Δδ]/i.test(text),
    grouped: !/(^|_)(id|ids|seed|layer|neuron|index|year)$/.test(name),
  };
}

function formatNumber(value, style) {
  if (!isNumber(value)) return '–';
  const scaled = value * style.scale;
  const size = Math.abs(scaled);
  const sign = style.signed && scaled > 0 ? '+' : '';
  const vanishes = size !== 0 && size < 0.5 * 10 ** -style.decimals;
  if (size >= 1e15 || (vanishes && size < 1e-4)) return sign + scientific(scaled) + style.suffix;
  if (vanishes) return sign + plainNumber(scaled, Math.ceil(-Math.log10(size)), false) + style.suffix;
  return sign + plainNumber(scaled, style.decimals, style.grouped && size >= 10000) + style.suffix;
}

// A column of a table as the rest of the page uses it.  One without any value counts as
// numbers.
function readColumn(raw) {
  const values = listOf(raw.values);
  const name = textOf(raw.name);
  const description = textOf(raw.description);
  const numeric = values.every((v) => v === null || typeof v === 'number');
  return {
    name,
    description,
    values,
    numeric,
    style: numeric ? numberStyle(name, description, values) : null,
    text(value) {
      return this.numeric ? formatNumber(value, this.style) : visible(value);
    },
  };
}

function readTable(raw, index) {
  const columns = listOf(raw.columns).map(readColumn);
  // The ends of an interval, "cost_low" and "cost_high", are written like "cost", beside it.
  for (const column of columns.filter((c) => c.numeric)) {
    const ends = ['low', 'high'].map((end) => columns.find((c) => c.numeric && c.name === `${column.name}_${end}`));
    if (!ends[0] || !ends[1]) continue;
    column.interval = ends;
    for (const end of ends) Object.assign(end, {style: column.style, isEnd: true});
  }
  return {
    id: `table-${index}`,
    name: textOf(raw.name),
    title: textOf(raw.title) || humanName(raw.name),
    description: textOf(raw.description),
    columns,
    rows: Math.max(0, ...columns.map((c) => c.values.length)),
  };
}

// Scales map values to pixels: {map(value), ticks: [{value, text}]}; those of categories
// also have `band`, the pixels of one.

// Between 2 and about `count` + 1 round numbers from low to high.
function niceStep(low, high, count) {
  const rough = (high - low) / Math.max(count, 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  return power * ([1, 2, 2.5, 5].find((m) => m * power >= rough * 0.999) ?? 10);
}

function multiplesOf(step, low, high) {
  const ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9 && ticks.length < 100; ++i) ticks.push(i * step);
  return ticks;
}

function tickText(value, style, step) {
  const scaled = value * style.scale;
  const size = Math.abs(scaled);
  if (size < Math.abs(step * style.scale) * 1e-9) return '0' + style.suffix;
  if (size >= 1e7 || size < 1e-4) return scientific(scaled) + style.suffix;
  const written = Number((step * style.scale).toPrecision(6)).toString();
  const decimals = /e-/.test(written) ? 6 : (written.split('.')[1] ?? '').length;
  return (style.signed && scaled > 0 ? '+' : '') + plainNumber(scaled, decimals, style.grouped && size >= 10000) + style.suffix;
}

// There is some room beyond low and high, except beyond `edge`.
function linearScale({low, high, from, to, count, style, edge = null}) {
  if (!(high > low)) {
    const room = Math.abs(low) * 0.1 || 1;
    [low, high] = [low - room, high + room];
  }
  const step = niceStep(low, high, count);
  const room = (high - low) * 0.04;
  [low, high] = [low === edge ? low : low - room, high === edge ? high : high + room];
  return {
    low,
    high,
    map: (value) => from + (to - from) * ((value - low) / (high - low)),
    ticks: multiplesOf(step, low, high).map((value) => ({value, text: tickText(value, style, step)})),
  };
}

function logTicks(low, high, count) {
  const decades = Math.log10(high / low);
  if (decades < 1) return multiplesOf(niceStep(low, high, count), low, high).filter((v) => v > 0);
  const digits = decades * 3 < count * 1.6 ? [1, 2, 5] : decades * 2 < count * 1.6 ? [1, 3] : [1];
  const stride = Math.max(1, Math.ceil(decades / (count * 1.6)));
  const ticks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); ++power) {
    if (power % stride !== 0) continue;
    ticks.push(...digits.map((d) => d * 10 ** power).filter((v) => v >= low * 0.999 && v <= high * 1.001));
  }
  return ticks;
}

function logScale({low, high, from, to, count, style}) {
  const room = high > low ? (high / low) ** 0.04 : 2;
  [low, high] = [low / room, high * room];
  return {
    low,
    high,
    map: (value) => from + (to - from) * (Math.log(value / low) / Math.log(high / low)),
    ticks: logTicks(low, high, count).map((value) => ({value, text: tickText(value, style, value)})),
  };
}

// Linear near zero and logarithmic away from it, where most of `values` lie.
function symlogScale({low, high, from, to, count, style, values}) {
  const sizes = values.filter((v) => v !== 0).map(Math.abs).sort((a, b) => a - b);
  if (sizes.length === 0) return linearScale({low, high, from, to, count, style});
  [low, high] = [Math.min(low, 0), Math.max(high, 0)];
  const largest = sizes.at(-1);
  // Ten decades at most, so that tiny values do not take the axis.
  const unit = 10 ** Math.ceil(Math.log10(Math.min(Math.max(sizes[sizes.length >> 2], largest * 1e-10), largest / 10)));
  const bend = (value) => Math.sign(value) * Math.log10(1 + Math.abs(value) / unit);
  const room = (bend(high) - bend(low)) * 0.04;
  const [first, last] = [bend(low) - (low < 0 ? room : 0), bend(high) + (high > 0 ? room : 0)];
  const decades = Math.ceil(Math.log10(largest / unit) + 1e-9);
  const stride = Math.ceil((last - first) / (count * 1.4));
  const powers = Array.from({length: Math.ceil((decades + 1) / stride)}, (_, i) => unit * 10 ** (i * stride));
  const map = (value) => from + (to - from) * ((bend(value) - first) / (last - first));
  const fits = (v) => bend(v) >= first && bend(v) <= last && (v === 0 || Math.abs(map(v) - map(0)) > 15);
  const ticks = [...powers.map((v) => -v).reverse(), 0, ...powers].filter(fits);
  return {low, high, map, ticks: ticks.map((value) => ({value, text: tickText(value, style, value || unit)}))};
}

// `categories` in order; a category's place is the middle of its band.
function categoryScale({categories, from, to, text}) {
  const band = (to - from) / Math.max(categories.length, 1);
  const places = new Map(categories.map((value, i) => [value, from + band * (i + 0.5)]));
  return {
    band: Math.abs(band),
    map: (value) => places.get(value),
    ticks: categories.map((value) => ({value, text: text(value)})),
  };
}

let measuring = null;

// Pixels of a text in the plots' font.
function textWidth(text) {
  if (measuring === null) {
    measuring = document.createElement('canvas').getContext('2d');
    measuring.font = `12px ${getComputedStyle(document.body).fontFamily}`;
  }
  return measuring.measureText(text).width;
}

function widest(texts) {
  return Math.max(0, ...texts.map(textWidth));
}

// The text, cut to `room` pixels.
function fitted(text, room) {
  if (textWidth(text) <= room) return text;
  const letters = Array.from(text);
  while (letters.length > 1 && textWidth(letters.join('') + '…') > room) letters.pop();
  return letters.join('') + '…';
}

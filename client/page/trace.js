// A text, token by token: coloured by nonlinearity at a chosen layer, with the heat map of
// all layers, the neurons that fire, and where the gates would send each token.

const percent = {scale: 100, suffix: percentSign, decimals: 1, signed: false, grouped: true};
const change = {...percent, decimals: 2, signed: true};
const decimals = (count) => ({scale: 1, suffix: '', decimals: count, signed: false, grouped: true});

function plural(count, noun) {
  return `${plainNumber(count, 0, count >= 10000)} ${noun}${count === 1 ? '' : 's'}`;
}

const routeWords = {
  linear: 'linear', full: 'full', sink: 'full: one of the first positions', outside: 'full: the layer is not gated',
  unknown: 'not known',
};

// [name, value] pairs about a token in a layer.
function traceFacts(trace, state, token, layerIndex) {
  const layer = trace.layers[layerIndex];
  const score = at(token.scores, layerIndex), percentile = percentileOf(layer, score);
  const p = at(token.gates, layerIndex), norm = at(token.norms, layerIndex), path = at(token.paths, layerIndex);
  const {level, of, fired, exceptions} = trace.consensusAt(token, layerIndex);
  const silent = layer.consensus.filter((neuron) => !fired.includes(neuron));
  const route = trace.route(token, layerIndex, state);
  return [
    ['token', `${token.index}${token.generated ? ', generated' : ''}`],
    ['layer', `${layer.layer}${layer.gateable ? ', gateable' : ''}`],
    ['nonlinearity', isNumber(score) ? `${formatNumber(score, decimals(2))}, P${Math.floor(percentile * 100)}` : '–'],
    ['regime', regimeOf(percentile)],
    ...(isNumber(norm) ? [['‖y‖', formatNumber(norm, decimals(2))]] : []),
    ...(of > 0 ? [['consensus', level === null ? 'not known' : `${level} of ${of} fire`]] : []),
    ...(of > 0 && level !== null && fired.length > 0 ? [['fire', fired.join(', ')]] : []),
    ...(of > 0 && level !== null && silent.length > 0 ? [['silent', silent.join(', ')]] : []),
    ...(exceptions.length > 0 ? [['exception', exceptions.join(', ')]] : []),
    ['p of the gate', isNumber(p) ? formatNumber(p, decimals(4)) : '–'],
    [`at ${state.threshold.toFixed(2)}`, routeWords[route]],
    ...(path !== null && path !== 'full' ? [['took', textOf(path)]] : []),
    ...(token.logprob === null ? [] : [['probability', formatNumber(Math.exp(token.logprob), percent)]]),
  ];
}

// The text as paragraphs of marked tokens, which change with the layer and the threshold.
class TraceText {
  constructor(trace, state) {
    Object.assign(this, {trace, state, marks: [], paragraph: null});
    this.element = h('div', {class: 'trace-text', tabindex: 0, role: 'group', 'aria-label': 'The text; the arrow keys read out its tokens'});
  }

  append(tokens) {
    for (const token of tokens) {
      if (this.paragraph === null) {
        this.paragraph = h('p');
        this.element.append(this.paragraph);
      }
      const mark = h('span', {class: 't', 'data-i': token.index}, tokenText(token.text));
      this.paragraph.append(mark);
      this.marks.push(mark);
      if (/\n/.test(token.text)) this.paragraph = null;
    }
    this.update(tokens);
  }

  update(tokens = this.trace.tokens) {
    const {layer} = this.state;
    for (const token of tokens) {
      const shade = token.shades[layer] ?? -1;
      const linear = this.trace.route(token, layer, this.state) === 'linear';
      const name = `t${shade < 0 ? ' dim' : ` q${shade}`}${linear ? ' lin' : ''}${token.generated ? ' new' : ''}`;
      const mark = this.marks[token.index];
      if (mark.className !== name) mark.className = name;
    }
  }

  tokenAt(event) {
    const mark = event.target.closest?.('.t');
    return mark ? this.trace.tokens[Number(mark.dataset.i)] : null;
  }

  point(index) {
    this.element.querySelector('.at')?.classList.remove('at');
    this.marks[index]?.classList.add('at');
  }
}

// "1,204 of 5,520 decisions in the 6 gateable layers (21.8 %) would go linear: …"
function routesSentence(trace, state) {
  const {linear, chosen, decisions} = trace.count(state);
  const gated = state.all ? trace.layers.length : trace.gateable.size;
  if (gated === 0) return 'The calibration calls no layer gateable, so every token would run in full.';
  if (decisions === 0) return 'Nothing is known of the gates yet.';
  const where = state.all ? plural(gated, 'layer') : plural(gated, 'gateable layer');
  const share = (part, whole) => formatNumber(whole === 0 ? 0 : part / whole, percent);
  return `${plainNumber(linear, 0, true)} of ${plural(chosen, 'decision')} in ${where} would go linear (${share(linear, chosen)}), ` +
    `${share(linear, decisions)} of all token × layer decisions.`;
}

// The measured thresholds as buttons that move the slider there.
function measuredButtons(trace, state, choose) {
  const runs = trace.measured.filter((run) => isNumber(run?.perplexity) && (run.layers === 'all') === state.all);
  if (runs.length === 0) return null;
  const full = runs.find((run) => run.threshold === 1);
  const nearest = runs.reduce((best, run) => (Math.abs(run.threshold - state.threshold) < Math.abs(best.threshold - state.threshold) ? run : best));
  const item = (run) => h('button', {
    type: 'button', class: 'run', 'aria-pressed': String(run === nearest && Math.abs(run.threshold - state.threshold) < 0.005),
    click: () => choose(run.threshold),
  }, h('span', {class: 'run-name'}, run.threshold === 1 ? '1 · full' : run.threshold === 0 ? '0 · linear' : String(run.threshold)),
    h('strong', {}, formatNumber(run.perplexity, decimals(2))),
    h('span', {}, run === full || !full ? '' : formatNumber(run.perplexity / full.perplexity - 1, change)),
    h('span', {class: 'run-share'}, `${formatNumber(run.linear_fraction, percent)} linear`));
  return h('div', {class: 'runs', role: 'group', 'aria-label': 'Perplexity measured at these thresholds'},
    h('p', {class: 'runs-title'}, 'Perplexity of real runs at these thresholds, where later layers read what the gated ones before them made'), ...runs.map(item));
}

// "gateable · made linear it costs +0.31 % · 5 consensus neurons"
function aboutLayer(layer) {
  const parts = [layer.gateable ? 'gateable' : 'not gateable'];
  if (layer.cost !== null) parts.push(`made linear it costs ${formatNumber(layer.cost, change)}`);
  parts.push(layer.consensus.length > 0 ? plural(layer.consensus.length, 'consensus neuron') : 'no consensus neuron');
  if (layer.exception.length > 0) parts.push(plural(layer.exception.length, 'exception neuron'));
  return parts.join(' · ');
}

// Each consensus and exception neuron of the layer, and the tokens at which an exception
// neuron fires.
function neuronList(trace, layerIndex) {
  const layer = trace.layers[layerIndex];
  if (layer.consensus.length + layer.exception.length === 0) {
    return h('p', {class: 'about'}, `The calibration found no consensus and no exception neuron in layer ${layer.layer}.`);
  }
  const seen = trace.tokens.filter((token) => at(token.scores, layerIndex) !== null || trace.consensusAt(token, layerIndex).level !== null);
  const row = (kind, neuron, tokens) => h('tr', {},
    h('th', {scope: 'row'}, `${kind} ${neuron}`), h('td', {class: 'number'}, `${tokens.length} of ${seen.length}`),
    h('td', {class: 'fires-at'}, kind === 'consensus' ? '' : tokens.slice(0, 24).map((t) => `“${visible(t.text)}”`).join('  ') + (tokens.length > 24 ? ' …' : '')));
  const firing = (neuron, list) => trace.tokens.filter((token) => trace.consensusAt(token, layerIndex)[list].includes(neuron));
  return h('div', {class: 'scroll neurons', tabindex: 0, role: 'region', 'aria-label': 'Neurons'}, h('table', {},
    h('thead', {}, h('tr', {}, ...['neuron', 'fires at', 'tokens'].map((name) => h('th', {scope: 'col'}, name)))),
    h('tbody', {}, ...layer.exception.map((neuron) => row('exception', neuron, firing(neuron, 'exceptions'))),
      ...layer.consensus.map((neuron) => row('consensus', neuron, firing(neuron, 'fired'))))));
}

function routeKey(name, text) {
  return h('span', {}, h('i', {class: `key ${name}`}), text);
}

function routeLegend() {
  return h('div', {class: 'heat-legend'}, h('span', {class: 'legend-title'}, 'Routes'), routeKey('route-linear', 'linear'), routeKey('route-full', 'full'),
    routeKey('route-sink', 'first positions, always full'), routeKey('route-outside', 'layer not gated'));
}

function heatLegend() {
  const regimes = [['q0', 'linear (below P25)'], ['q1', 'P25–P50'], ['q3', 'barely (P50–P70)'], ['q5', 'P70–P95'], ['q8', 'high (above P95)']];
  return h('div', {class: 'heat-legend'}, h('span', {class: 'legend-title'}, 'Nonlinearity'),
    ...regimes.map(([name, text]) => h('span', {}, h('i', {class: `key ${name}`}), text)),
    h('span', {}, h('i', {class: 'key lin'}, 'ab'), 'would go linear'));
}

// A trace on the page: {element, add(tokens)}.
function makeTraceView(section, follow = false) {
  const trace = new Trace(section);
  if (trace.layers.length === 0) throw new Error('it has no layers');
  const state = {
    layer: trace.mostNonlinear(), all: trace.gateable.size === 0, cursor: null,
    threshold: isNumber(section.threshold) ? section.threshold : 0.5,
  };
  const text = new TraceText(trace, state);
  const sentence = h('p', {class: 'routes-sentence', role: 'status'});
  const runs = h('div');
  const neurons = h('div');
  const map = new TokenMap(trace, state, (token, layer, event) => show(token, layer, event), (token, layer) => {
    if (token) choose({layer, cursor: {token: token.index, row: layer}});
  });

  const select = h('select', {'aria-label': 'Layer', change: () => choose({layer: Number(select.value)})},
    ...trace.layers.map((layer, i) => h('option', {value: i}, `Layer ${layer.layer}${layer.gateable ? ', gateable' : ''}`)));
  const slider = h('input', {type: 'range', min: 0, max: 1, step: 0.01, 'aria-label': 'Threshold', input: () => choose({threshold: Number(slider.value)})});
  const about = h('p', {class: 'about-layer'});
  const number = h('output', {class: 'threshold'});
  const everyLayer = h('input', {type: 'checkbox', change: () => choose({all: everyLayer.checked})});
  const step = (by) => () => choose({layer: Math.min(Math.max(state.layer + by, 0), trace.layers.length - 1)});

  // A finger that is lifted leaves what it showed.
  const leave = (event) => {
    if (event.pointerType !== 'touch') hideTooltip();
  };
  const show = (token, layer, event) => {
    if (!token) return leave(event);
    fillTooltip(token.text === '' ? '–' : `“${visible(token.text)}”`, traceFacts(trace, state, token, layer));
    placeTooltip(event.clientX, event.clientY);
  };
  const refreshRoutes = () => {
    sentence.textContent = routesSentence(trace, state);
    runs.replaceChildren(measuredButtons(trace, state, (threshold) => choose({threshold})) ?? '');
  };
  const refresh = () => {
    select.parentNode.dataset.layer = `Layer ${trace.layers[state.layer].layer}`;  // for paper
    select.value = String(state.layer);
    slider.value = String(state.threshold);
    about.textContent = aboutLayer(trace.layers[state.layer]);
    number.textContent = state.threshold.toFixed(2);
    everyLayer.checked = state.all;
    refreshRoutes();
    text.update();
    if (state.cursor) text.point(state.cursor.token);
    map.canvas.setAttribute('aria-label', `Heat map of ${plural(trace.tokens.length, 'token')} and ${plural(trace.layers.length, 'layer')}; the arrow keys read it out`);
    map.redraw();
  };
  const choose = (changes) => {
    const layer = state.layer;
    Object.assign(state, changes);
    if (layer !== state.layer) neurons.replaceChildren(neuronList(trace, state.layer));
    refresh();
  };

  // The arrow keys move over tokens and layers, and say what is there.
  const key = (event) => {
    const moves = {ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1], Home: [-Infinity, 0], End: [Infinity, 0]};
    if (event.key === 'Escape') {
      hideTooltip();
      return choose({cursor: null});
    }
    if (!(event.key in moves) || trace.tokens.length === 0) return;
    event.preventDefault();
    const [across, down] = moves[event.key];
    const bounded = (value, most) => Math.min(Math.max(value, 0), most);
    const from = state.cursor ?? {token: across > 0 ? -1 : 0, row: state.layer};
    const cursor = {token: bounded(from.token + across, trace.tokens.length - 1), row: bounded(from.row + down, trace.layers.length - 1)};
    choose({cursor, layer: cursor.row});
    map.reveal(cursor.token);
    const token = trace.tokens[cursor.token];
    const facts = traceFacts(trace, state, token, cursor.row);
    document.getElementById('announcer').textContent = [`“${visible(token.text)}”`, ...facts.map(([name, value]) => `${name} ${value}`)].join(', ');
    const box = text.marks[cursor.token].getBoundingClientRect();
    fillTooltip(`“${visible(token.text)}”`, facts);
    if (event.currentTarget === text.element) return placeTooltip(box.right, box.top);
    const area = map.canvas.getBoundingClientRect();
    placeTooltip(area.left + mapGutter + (cursor.token + 1) * map.cell - map.scroller.scrollLeft, area.top + mapHeading + cursor.row * map.rowHeight);
  };
  for (const place of [text.element, map.canvas]) build(place, {keydown: key, blur: hideTooltip}, []);
  build(text.element, {
    pointermove: (event) => show(text.tokenAt(event), state.layer, event),
    pointerdown: (event) => show(text.tokenAt(event), state.layer, event),
    pointerleave: leave,
    click: (event) => {
      const token = text.tokenAt(event);
      if (token) choose({cursor: {token: token.index, row: state.layer}});
    },
  }, []);

  redraws.push({canvas: map.element, fit: (width) => map.fit(Math.round(width))});
  addEventListener('beforeprint', () => map.drawBands(640));
  addEventListener('pointerdown', (event) => {
    if (!text.element.contains(event.target) && event.target !== map.canvas) hideTooltip();
  });
  addEventListener('scroll', hideTooltip, {passive: true});
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => map.redraw());

  const element = h('section', {class: 'trace'},
    h('div', {class: 'trace-controls'},
      h('div', {class: 'control'}, h('span', {class: 'control-name'}, 'Layer'),
        h('div', {class: 'layer-choice'}, h('button', {type: 'button', class: 'action', 'aria-label': 'Layer before', click: step(-1)}, '‹'), select,
          h('button', {type: 'button', class: 'action', 'aria-label': 'Layer after', click: step(1)}, '›')), about),
      h('div', {class: 'control wide'}, h('span', {class: 'control-name'}, 'Threshold: a token goes linear where p exceeds ', number),
        slider, h('label', {class: 'every-layer'}, everyLayer, ' Gate every layer, not only those the calibration calls gateable')),
      sentence),
    heatLegend(), text.element, map.element, routeLegend(),
    h('div', {class: 'caveat'},
      h('p', {}, textOf(section.caveat) || 'These are the decisions of the full run: what each gate says where everything before it was computed in full. ' +
        'Sending an earlier layer linear changes what later layers read, so a gated run decides differently.'),
      runs),
    h('h3', {class: 'neurons-title'}, 'Neurons of the layer'), neurons);

  let pending = 0;
  text.append(trace.tokens);
  neurons.replaceChildren(neuronList(trace, state.layer));
  refresh();
  return {
    element,
    trace,
    add(raw) {
      const first = trace.tokens.length === 0;
      const added = trace.add(raw);
      if (first) state.layer = trace.mostNonlinear();
      text.append(added);
      // Once a frame, however fast they come.
      if (pending !== 0) return;
      const stay = follow && map.atEnd();
      pending = requestAnimationFrame(() => {
        pending = 0;
        refresh();
        map.draw();
        if (stay) map.scroller.scrollLeft = map.run.offsetWidth;
      });
    },
    finish() {
      neurons.replaceChildren(neuronList(trace, state.layer));
      refresh();
    },
  };
}

// The section of a report.
function renderTrace(section, {tables}) {
  const {element} = makeTraceView(section);
  if (!tables.some((table) => table.name === 'perplexity')) return element;
  element.append(h('div', {class: 'plots'}, renderPlot({
    kind: 'line', title: 'Measured perplexity by threshold', table: 'perplexity', x: 'threshold', y: 'perplexity', series: 'layers',
    caption: 'Each point is a run of its own over the same text, in which the gates decided.'}, tables, 'trace')));
  return element;
}

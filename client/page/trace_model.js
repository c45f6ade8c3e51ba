// What a trace knows: of every token and layer of one run the nonlinearity, the neurons
// that fire and what the gate says.  Tokens may be added while it is shown.

// Where each of the ten shades of a heat map begins, as a percentile of the calibration's
// tokens: fine where the tokens are that a linear map explains worst.
const shadeStarts = [0, 0.25, 0.5, 0.6, 0.7, 0.8, 0.88, 0.95, 0.975, 0.99];

// Exact at the percentiles that are known, straight lines between them; above P95 it comes
// near 1 as the score grows.
function percentileOf(layer, score) {
  if (!isNumber(score)) return null;
  const knots = [[0, 0], [layer.p25, 0.25], [layer.p50, 0.5], [layer.p70, 0.7], [layer.p95, 0.95]];
  for (let i = 1; i < knots.length; ++i) {
    const [[low, lowShare], [high, highShare]] = [knots[i - 1], knots[i]];
    if (score < high) return lowShare + (highShare - lowShare) * (Math.max(score, low) - low) / (high - low);
  }
  return score > 0 ? 1 - 0.05 * layer.p95 / score : 0.95;
}

// −1 where there is no percentile.
function shadeOf(percentile) {
  if (percentile === null) return -1;
  let shade = shadeStarts.length - 1;
  while (percentile < shadeStarts[shade]) --shade;
  return shade;
}

function regimeOf(percentile) {
  if (percentile === null) return 'not known: the MLP was not computed in full';
  if (percentile < 0.25) return 'linear';
  if (percentile < 0.5) return 'P25 to P50';
  if (percentile < 0.7) return 'barely nonlinear';
  return percentile < 0.95 ? 'P70 to P95' : 'high';
}

// The text of a token among others: line breaks and what could not be seen made visible,
// spaces as they are.
function tokenText(text) {
  const [, before, inner, after] = /^( *)(.*?)( *)$/s.exec(text);
  return before + visible(inner) + after;
}

function at(values, index) {
  return listOf(values)[index] ?? null;
}

function readLayer(raw, index) {
  const number = (value) => (isNumber(value) ? value : 0);
  return {
    layer: isNumber(raw.layer) ? raw.layer : index,
    p25: number(raw.p25), p50: number(raw.p50), p70: number(raw.p70), p95: number(raw.p95),
    gateable: raw.gateable === true,
    cost: isNumber(raw.linear_cost) ? raw.linear_cost : null,
    consensus: listOf(raw.consensus).filter(isNumber),
    exception: listOf(raw.exception).filter(isNumber),
  };
}

function readToken(raw, index, layers) {
  return {
    index,
    id: raw.id,
    text: textOf(raw.text),
    position: isNumber(raw.position) ? raw.position : null,
    logprob: isNumber(raw.logprob) ? raw.logprob : null,
    generated: raw.generated === true,
    scores: listOf(raw.nonlinearity),
    norms: listOf(raw.output_norm),
    gates: listOf(raw.gate_probability),
    paths: listOf(raw.paths),
    consensus: listOf(raw.consensus),
    shades: layers.map((layer, i) => shadeOf(percentileOf(layer, at(raw.nonlinearity, i)))),
  };
}

class Trace {
  constructor(section) {
    this.layers = listOf(section.layers).map((layer, i) => readLayer(layer ?? {}, i));
    this.sinks = isNumber(section.sink_positions) ? section.sink_positions : 0;
    this.measured = listOf(section.measured);
    this.tokens = [];
    this.add(listOf(section.tokens));
    this.gateable = new Set([...this.layers.keys()].filter((i) => this.layers[i].gateable));
  }

  // Returns the new ones.
  add(raw) {
    const first = this.tokens.length;
    this.tokens.push(...raw.map((token, i) => readToken(token ?? {}, first + i, this.layers)));
    return this.tokens.slice(first);
  }

  isSink(token) {
    return token.position !== null && token.position < this.sinks;
  }

  chosen(layer, all) {
    return all || this.gateable.has(layer);
  }

  // What the gate's p means at a threshold: 'linear' or 'full'; 'sink' for positions that
  // always run in full, 'outside' in layers that are not gated, 'unknown' without p.  The
  // server compares in single precision.
  route(token, layer, {threshold, all}) {
    const p = at(token.gates, layer);
    if (!isNumber(p)) return 'unknown';
    if (!this.chosen(layer, all)) return 'outside';
    if (this.isSink(token)) return 'sink';
    return Math.fround(p) > Math.fround(threshold) ? 'linear' : 'full';
  }

  // Decisions that would go linear, those in the chosen layers, and all.
  count(state) {
    let linear = 0, chosen = 0, decisions = 0;
    for (const token of this.tokens) {
      for (let layer = 0; layer < this.layers.length; ++layer) {
        const route = this.route(token, layer, state);
        if (route === 'unknown') continue;
        ++decisions;
        if (route !== 'outside') ++chosen;
        if (route === 'linear') ++linear;
      }
    }
    return {linear, chosen, decisions};
  }

  // The layer with the most highly nonlinear tokens.
  mostNonlinear() {
    const counts = this.layers.map((_, layer) => this.tokens.filter((t) => t.shades[layer] >= 7 && !this.isSink(t)).length);
    return Math.max(0, counts.indexOf(Math.max(...counts)));
  }

  // Of one token in one layer: {level, of, fired, exceptions}; level is null where unknown.
  consensusAt(token, layer) {
    const entry = token.consensus[layer]?.layer === layer ? token.consensus[layer] : token.consensus.find((c) => c?.layer === layer) ?? {};
    return {
      level: isNumber(entry.level) ? entry.level : null,
      of: this.layers[layer].consensus.length,
      fired: listOf(entry.fired),
      exceptions: listOf(entry.exceptions_fired),
    };
  }
}

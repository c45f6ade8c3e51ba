// The heat map of a trace, tokens across: how nonlinear each layer is, what each gate would
// say, and the neurons of the chosen layer.  Only what can be seen is drawn, so that a long
// text scrolls as well as a short one.

const mapGutter = 44;     // pixels left of the columns
const mapHeading = 22;    // pixels above a panel
const stripHeight = 42;   // of the consensus levels

// Colours of the page as a canvas needs them.
function mapColors() {
  const style = getComputedStyle(document.documentElement);
  const color = (name) => style.getPropertyValue(name).trim();
  return {
    shades: shadeStarts.map((_, i) => color(`--q${i}`)),
    paper: color('--paper'), ink: color('--ink'), muted: color('--muted'), rule: color('--rule'), grid: color('--grid'),
    linear: color('--s0'), level: color('--s2'), exception: color('--s1'), accent: color('--accent'),
    font: style.getPropertyValue('--sans'),
  };
}

class TokenMap {
  // `onPoint(token, layer, event)` hears of the cell pointed at, null for none, and
  // `onChoose(token, layer)` of a click.
  constructor(trace, state, onPoint, onChoose) {
    Object.assign(this, {trace, state, width: 0, frame: 0});
    this.canvas = h('canvas', {tabindex: 0, role: 'img', class: 'token-map'});
    this.run = h('div', {class: 'map-run'}, this.canvas);
    this.scroller = h('div', {class: 'map-scroll', scroll: () => this.redraw()}, this.run);
    this.bands = h('div', {class: 'map-bands', 'aria-hidden': 'true'});
    this.element = h('div', {class: 'map'}, this.scroller, this.bands);
    const hear = (heard) => (event) => {
      const hit = this.hit(event);
      heard(hit?.token ?? null, hit?.layer ?? null, event);
    };
    build(this.canvas, {pointermove: hear(onPoint), pointerdown: hear(onPoint), pointerleave: (event) => onPoint(null, null, event), click: hear(onChoose)}, []);
  }

  get rowHeight() {
    const layers = this.trace.layers.length;
    return layers <= 8 ? 18 : layers <= 12 ? 14 : layers <= 26 ? 10 : 7;
  }

  // Panels from the top: {name, top, rows, height}.
  panels() {
    const rows = this.trace.layers.length;
    const neurons = this.trace.layers[this.state.layer];
    const panels = [];
    let top = 0;
    const add = (name, count, height, title) => {
      panels.push({name, title, rows: count, height, top: top + mapHeading});
      top += mapHeading + count * height + 8;
    };
    add('scores', rows, this.rowHeight, 'Nonlinearity, layer by layer');
    add('routes', rows, this.rowHeight, `Where each token would go at threshold ${this.state.threshold.toFixed(2)}`);
    if (neurons.consensus.length > 0) add('levels', 1, stripHeight, `Consensus at layer ${this.state.layer}: how many of ${neurons.consensus.length} fire`);
    const shown = Math.min(neurons.exception.length, 8);
    if (shown > 0) add('exceptions', shown, 12, `Exception neurons at layer ${this.state.layer}`);
    return {panels, height: top + 16};
  }

  // Columns are as wide as there is room for, but never too narrow to see.
  cellFor(width) {
    return Math.min(Math.max((width - mapGutter) / Math.max(this.trace.tokens.length, 1), 6), 20);
  }

  hit(event) {
    const area = this.canvas.getBoundingClientRect();
    const x = event.clientX - area.left - mapGutter + this.scroller.scrollLeft, y = event.clientY - area.top;
    const token = this.trace.tokens[Math.floor(x / this.cell)];
    if (!token || event.clientX - area.left < mapGutter) return null;
    const panel = this.panels().panels.find((p) => y >= p.top && y < p.top + p.rows * p.height);
    if (!panel) return null;
    const row = Math.floor((y - panel.top) / panel.height);
    return {token, layer: panel.rows === this.trace.layers.length && panel.name !== 'exceptions' ? row : this.state.layer};
  }

  fit(width) {
    this.width = width;
    this.redraw();
  }

  redraw() {
    if (this.frame === 0) this.frame = requestAnimationFrame(() => { this.frame = 0; this.draw(); });
  }

  draw() {
    if (this.width <= 0) return;
    const {height} = this.panels();
    this.cell = this.cellFor(this.width);
    const columns = this.trace.tokens.length * this.cell;
    this.run.style.width = `${Math.max(mapGutter + columns, this.width)}px`;
    const left = this.scroller.scrollLeft;
    const first = Math.max(0, Math.floor(left / this.cell));
    const last = Math.min(this.trace.tokens.length, Math.ceil((left + this.width - mapGutter) / this.cell));
    this.paint(this.canvas, {width: this.width, height, cell: this.cell, first, last, shift: left});
  }

  // The same on paper, in as many bands as it takes.
  drawBands(width) {
    const {height} = this.panels();
    const cell = Math.max(4, Math.min(this.cellFor(width), 14));
    const each = Math.floor((width - mapGutter) / cell);
    this.bands.replaceChildren();
    for (let first = 0; first < this.trace.tokens.length && this.bands.children.length < 60; first += each) {
      const canvas = h('canvas');
      this.paint(canvas, {width, height, cell, first, last: Math.min(first + each, this.trace.tokens.length), shift: first * cell});
      this.bands.append(canvas);
    }
  }

  paint(canvas, view) {
    const scale = Math.max(window.devicePixelRatio || 1, 1);
    canvas.width = Math.round(view.width * scale);
    canvas.height = Math.round(view.height * scale);
    canvas.style.width = `${view.width}px`;
    canvas.style.height = `${view.height}px`;
    const context = canvas.getContext('2d');
    const colors = mapColors();
    context.scale(scale, scale);
    context.clearRect(0, 0, view.width, view.height);
    const {panels, height} = this.panels();
    for (const panel of panels) {
      this.paintLabels(context, colors, panel);
      context.save();
      context.beginPath();
      context.rect(mapGutter, panel.top, view.width - mapGutter, panel.rows * panel.height);
      context.clip();
      for (let i = view.first; i < view.last; ++i) {
        this.paintColumn(context, colors, panel, this.trace.tokens[i], mapGutter + i * view.cell - view.shift, view.cell);
      }
      context.restore();
    }
    this.paintRuler(context, colors, view, height);
    this.paintCursor(context, colors, view, panels);
  }

  paintLabels(context, colors, panel) {
    const text = (words, x, y, align, color, weight = 400) => {
      context.font = `${weight} ${Math.min(12, Math.max(panel.height + 1, 9))}px ${colors.font}`;
      [context.textAlign, context.fillStyle] = [align, color];
      context.fillText(words, x, y);
    };
    context.textBaseline = 'middle';
    context.font = `600 12px ${colors.font}`;
    [context.textAlign, context.fillStyle] = ['left', colors.ink];
    context.fillText(panel.title, 0, panel.top - mapHeading / 2);
    const middle = (row) => panel.top + (row + 0.5) * panel.height;
    if (panel.name === 'levels') {
      text(String(this.trace.layers[this.state.layer].consensus.length), mapGutter - 8, panel.top + 6, 'right', colors.muted);
      text('0', mapGutter - 8, panel.top + panel.height - 6, 'right', colors.muted);
      return;
    }
    const stride = panel.height < 9 ? 2 : 1;
    for (let row = 0; row < panel.rows; row += stride) {
      const exception = panel.name === 'exceptions';
      const mine = !exception && row === this.state.layer;
      const name = exception ? this.trace.layers[this.state.layer].exception[row] : this.trace.layers[row].layer;
      text(String(name), mapGutter - 8, middle(row) + 0.5, 'right', mine ? colors.accent : colors.muted, mine ? 700 : 400);
    }
    if (panel.rows !== this.trace.layers.length || panel.name === 'exceptions') return;
    context.fillStyle = colors.accent;
    context.fillRect(mapGutter - 5, panel.top + this.state.layer * panel.height, 3, panel.height);
  }

  paintColumn(context, colors, panel, token, x, cell) {
    const gap = cell >= 5 ? 1 : 0, wide = cell - gap;
    if (panel.name === 'levels') {
      const {level, of} = this.trace.consensusAt(token, this.state.layer);
      context.fillStyle = level === null ? colors.rule : colors.level;
      const tall = level === null ? 1 : Math.max(1.5, panel.height * level / of);
      context.fillRect(x, panel.top + panel.height - tall, wide, tall);
      return;
    }
    for (let row = 0; row < panel.rows; ++row) {
      const y = panel.top + row * panel.height;
      if (panel.name === 'exceptions') {
        const {exceptions} = this.trace.consensusAt(token, this.state.layer);
        const fires = exceptions.includes(this.trace.layers[this.state.layer].exception[row]);
        context.fillStyle = fires ? colors.exception : colors.grid;
        if (fires) context.fillRect(x, y + 1, wide, panel.height - 2);
        else context.fillRect(x, y + panel.height / 2 - 0.5, wide, 1);
      } else if (panel.name === 'scores') {
        const shade = token.shades[row];
        context.fillStyle = shade < 0 ? colors.grid : colors.shades[shade];
        if (shade < 0) context.fillRect(x, y + panel.height / 2 - 0.5, wide, 1);
        else context.fillRect(x, y, wide, panel.height - gap);
      } else {
        this.paintRoute(context, colors, this.trace.route(token, row, this.state), x, y, wide, panel.height);
      }
    }
  }

  // Told apart by shape as well as colour: linear fills its cell, full is a line in it, a
  // sink is hollow.
  paintRoute(context, colors, route, x, y, wide, high) {
    if (route === 'linear') {
      context.fillStyle = colors.linear;
      context.fillRect(x, y, wide, high - 1);
    } else if (route === 'full') {
      context.fillStyle = colors.rule;
      context.fillRect(x, y, wide, high - 1);
    } else if (route === 'sink') {
      context.strokeStyle = colors.muted;
      context.strokeRect(x + 1, y + 1, Math.max(wide - 2, 1), Math.max(high - 3, 1));
    } else if (route === 'outside') {
      context.fillStyle = colors.grid;
      context.fillRect(x, y + high / 2 - 1, wide, 1);
    }
  }

  paintRuler(context, colors, view, height) {
    const step = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000].find((s) => s * view.cell >= 44) ?? 2000;
    context.font = `11px ${colors.font}`;
    [context.textAlign, context.textBaseline, context.fillStyle] = ['left', 'middle', colors.muted];
    for (let i = Math.ceil(view.first / step) * step; i < view.last; i += step) {
      const x = mapGutter + i * view.cell - view.shift;
      if (x < mapGutter - 1 || x > view.width - 12) continue;
      context.fillRect(x, height - 16, 1, 4);
      context.fillText(String(i), x + 3, height - 8);
    }
  }

  paintCursor(context, colors, view, panels) {
    const {token, row} = this.state.cursor ?? {};
    if (token === undefined || token < view.first || token >= view.last) return;
    const x = mapGutter + token * view.cell - view.shift;
    if (x + view.cell < mapGutter) return;
    context.strokeStyle = colors.ink;
    context.lineWidth = 1;
    const bottom = panels.at(-1).top + panels.at(-1).rows * panels.at(-1).height;
    context.strokeRect(x - 1, panels[0].top - 1, view.cell + 1, bottom - panels[0].top + 2);
    context.lineWidth = 2;
    for (const panel of panels.slice(0, 2)) context.strokeRect(x - 1, panel.top + row * panel.height - 1, view.cell + 1, panel.height + 1);
    context.lineWidth = 1;
  }

  // Scrolls so that the token can be seen.
  reveal(token) {
    const x = token * this.cell, room = this.width - mapGutter;
    if (x < this.scroller.scrollLeft) this.scroller.scrollLeft = x - this.cell * 4;
    if (x + this.cell > this.scroller.scrollLeft + room) this.scroller.scrollLeft = x - room + this.cell * 5;
  }

  atEnd() {
    return this.scroller.scrollLeft + this.width >= this.run.offsetWidth - 40;
  }
}

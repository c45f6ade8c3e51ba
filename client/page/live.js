// The live page's form, and the trace that grows while the server generates.

// The events of a newline-delimited JSON answer.
async function* eventsOf(response) {
  const decoder = new TextDecoder();
  let rest = '';
  for (const reader = response.body.getReader(); ;) {
    const {done, value} = await reader.read();
    const lines = (rest + (done ? decoder.decode() : decoder.decode(value, {stream: true}))).split('\n');
    rest = done ? '' : lines.pop();
    yield* lines.filter((line) => line.trim() !== '').map((line) => JSON.parse(line));
    if (done) return;
  }
}

function field(name, input, wide = false) {
  return h('label', {class: wide ? 'field wide' : 'field'}, h('span', {}, name), input);
}

function failureText({code, field: name, message}) {
  return `${code}: ${name && !textOf(message).includes(name) ? `${name}: ` : ''}${message}`;
}

function endText(summary) {
  const reasons = {length: 'at its length', eos: "at the model's end of text", stop_string: 'at a stop string', stop_token: 'at a stop token'};
  const seconds = summary.timing.prefill_seconds + summary.timing.decode_seconds;
  return `${plural(summary.prompt_tokens, 'prompt token')} and ${plural(summary.generated_tokens, 'token')} generated in ` +
    `${formatNumber(seconds, decimals(2))} s, ended ${reasons[summary.finish_reason] ?? ''}; ` +
    `${formatNumber(summary.routing.linear_fraction, percent)} of the decisions went linear, ` +
    `${formatNumber(summary.routing.mlp_work_saved, percent)} of the MLP work saved.` +
    listOf(summary.routing.notes).map((note) => ` ${capitalized(textOf(note))}.`).join('');
}

const gatedCaveat = 'This run was itself gated: where a token went linear its neurons do not exist, and what a gate says depends on what the layers before it did. ' +
  'The slider shows what the gates of this run would say at another threshold.';

function renderLive(section) {
  const models = listOf(section.models);
  const option = (value, text = value) => h('option', {value}, text);
  const prompt = h('textarea', {rows: 4, required: '', maxlength: 200000, spellcheck: 'false', placeholder: 'A prompt, such as: The captain of the ship'});
  const model = h('select', {}, ...models.map((m) => option(m.name, m.calibration ? m.name : `${m.name} (not calibrated)`)));
  const tokens = h('input', {type: 'number', min: 1, max: 100000, value: 48, required: ''});
  const gating = h('select', {}, option('full', 'full: every MLP'), option('gated', 'gated: as each gate says'), option('linear', 'linear: every surrogate'));
  const threshold = h('input', {type: 'number', min: 0, max: 1, step: 'any', value: 0.5, required: ''});
  const temperature = h('input', {type: 'number', min: 0, max: 10, step: 'any', value: 0.8, required: ''});
  const start = h('button', {type: 'submit', class: 'start'}, 'Generate');
  const stop = h('button', {type: 'button', class: 'action', disabled: '', click: () => running?.abort()}, 'Stop');
  const status = h('p', {class: 'live-status', role: 'status'});
  const place = h('div');
  let running = null;

  const request = () => ({
    model: model.value,
    prompt: prompt.value,
    max_tokens: Number(tokens.value),
    temperature: Number(temperature.value),
    gating: gating.value,
    ...(gating.value === 'gated' ? {threshold: Number(threshold.value)} : {}),
  });

  const take = (event, view) => {
    if (event.event === 'start') {
      const trace = {...event.trace, ...(gating.value === 'full' ? {} : {caveat: gatedCaveat}),
        ...(gating.value === 'gated' ? {threshold: Number(threshold.value)} : {})};
      const made = makeTraceView(trace, true);
      redraws.splice(0, redraws.length - 1);
      place.replaceChildren(made.element);
      redraws.forEach(({canvas, fit}) => fit(canvas.clientWidth));
      return made;
    }
    if (event.event === 'tokens') {
      view.add(event.tokens);
      status.textContent = `${plural(view.trace.tokens.length, 'token')} …`;
    }
    if (event.event === 'end') status.textContent = endText(event.summary);
    if (event.event === 'error') {
      status.textContent = failureText(event.error);
      status.classList.add('failure');
    }
    return view;
  };

  const run = async () => {
    running = new AbortController();
    [start.disabled, stop.disabled] = [true, false];
    status.textContent = 'Waiting for the server …';
    status.classList.remove('failure');
    let view = null;
    try {
      const response = await fetch('trace', {
        method: 'POST', headers: {'Content-Type': 'application/json'}, body: JSON.stringify(request()), signal: running.signal, cache: 'no-store'});
      for await (const event of eventsOf(response)) view = take(event.error && !event.event ? {event: 'error', ...event} : event, view);
    } catch (error) {
      const stopped = error.name === 'AbortError';
      status.textContent = stopped ? 'Stopped.' : `The server did not answer: ${error.message}`;
      status.classList.toggle('failure', !stopped);
    }
    view?.finish();
    [start.disabled, stop.disabled] = [false, true];
    running = null;
  };

  const form = h('form', {class: 'live-form', submit: (event) => {
    event.preventDefault();
    if (running === null) run();
  }},
    field('Prompt', prompt, true),
    h('div', {class: 'live-fields'}, field('Model', model), field('Tokens at most', tokens), field('Temperature', temperature), field('Gating', gating), field('Threshold', threshold)),
    h('div', {class: 'live-buttons'}, start, stop, status));
  const follow = () => { threshold.disabled = gating.value !== 'gated'; };
  gating.addEventListener('change', follow);
  prompt.addEventListener('keydown', (event) => {
    if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
  follow();
  return h('section', {class: 'live'}, form, place);
}

renderers.live = renderLive;

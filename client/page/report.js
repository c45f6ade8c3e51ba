// The page: sections one after another, each drawn by the renderer of its kind.

function paragraphs(text, name) {
  return textOf(text).split(/\n\s*\n/).filter((part) => part.trim() !== '').map((part) => h('p', {class: name}, part));
}

function facts(pairs) {
  const present = pairs.filter(([, value]) => textOf(value) !== '');
  return h('dl', {class: 'facts'}, ...present.map(([name, value]) => h('div', {}, h('dt', {}, name), h('dd', {}, value))));
}

// A model or a corpus, and the digest that identifies it.
function source(name, about, digestName, digest) {
  if (!name) return null;
  return h('div', {class: 'source'}, h('strong', {}, textOf(name)), ` ${textOf(about)}`,
    digest ? h('code', {}, `${digestName} ${textOf(digest)}`) : null);
}

// RFC 3339 to the minute: "2026-11-29 19:16 UTC".
function timeText(created) {
  const parts = /^(\d{4}-\d\d-\d\d)T(\d\d:\d\d):\d\d(?:\.\d+)?Z$/.exec(textOf(created));
  return parts ? `${parts[1]} ${parts[2]} UTC` : textOf(created);
}

// What must not take the rest of the page with it when it cannot be shown.
function guarded(what, make) {
  try {
    return make();
  } catch (error) {
    return h('p', {class: 'failure'}, `${what} cannot be shown: ${error.message}.`);
  }
}

// Section kind -> function of (section, context) that returns an element or null.  A
// report's own `sections` ({kind, …}) stand between the plots and the tables.
const renderers = {
  heading: (section, {report}) => h('header', {},
    h('p', {class: 'kind'}, humanName(report.kind)),
    h('h1', {}, textOf(report.title) || capitalized(humanName(report.kind)) || 'Report'),
    ...paragraphs(report.summary, 'summary'),
    facts([['Model', report.model], ['Precision', report.dtype], ['Made', timeText(report.created)]])),

  plots: (section, {report, tables}) => {
    const plots = listOf(report.plots);
    return plots.length === 0 ? null : h('section', {class: 'plots', 'aria-label': 'Figures'}, ...plots.map((plot, index) =>
      guarded(`The plot “${textOf(plot.title)}”`, () => renderPlot(plot, tables, index))));
  },

  trace: renderTrace,

  notes: (section, {report}) => {
    const notes = listOf(report.notes);
    return notes.length === 0 ? null : h('section', {class: 'notes'},
      h('h2', {}, 'How to read this'), h('ul', {}, ...notes.map((note) => h('li', {}, textOf(note)))));
  },

  tables: (section, {tables}) => (tables.length === 0 ? null : h('section', {},
    h('h2', {}, 'Numbers'), ...tables.map((table) => guarded(`The table “${table.title}”`, () => renderTable(table))))),

  protocol: (section, {report}) => (report.kind === 'live' ? null : h('section', {class: 'protocol'},
    h('h2', {}, 'Protocol'),
    source(report.model, report.dtype, 'fingerprint', report.model_fingerprint),
    ...listOf(report.corpora).map((corpus) =>
      source(corpus.label, `${plainNumber(Number(corpus.tokens) || 0, 0, true)} tokens`, 'sha256', corpus.sha256)),
    facts([['Made', report.created], ...listOf(report.settings).map((setting) => [humanName(setting.name), setting.value])]))),

  closing: (section, {report}) => (report.kind === 'live' ? null : h('footer', {},
    h('p', {}, 'Written by Gatehouse. This page holds all of its data and loads nothing.'),
    copyButton('Copy the report as JSON', () => JSON.stringify(report, null, 1)))),
};

function renderSection(section, context) {
  const kind = textOf(section.kind);
  return guarded(`The part “${kind}”`, () => {
    if (!Object.hasOwn(renderers, kind)) throw new Error('this page does not know its kind');
    return renderers[kind](section, context);
  });
}

function renderReport(report) {
  const tables = listOf(report.tables).map(readTable);
  const sections = [{kind: 'heading'}, {kind: 'plots'}, ...listOf(report.sections), {kind: 'notes'}, {kind: 'tables'},
    {kind: 'protocol'}, {kind: 'closing'}];
  return sections.map((section) => renderSection(section, {report, tables})).filter((element) => element !== null);
}

function showReport() {
  const page = document.getElementById('page');
  let report = null;
  try {
    report = JSON.parse(document.getElementById('report').textContent);
    if (report === null || typeof report !== 'object' || Array.isArray(report)) throw new Error('it is no object');
  } catch (error) {
    page.append(h('h1', {}, 'This report cannot be read'), h('p', {class: 'failure'}, error.message));
    return;
  }
  if (report.title) document.title = textOf(report.title);
  page.append(...renderReport(report));
  keepPlotsFitting();
  openGlossariesForPrint();
}

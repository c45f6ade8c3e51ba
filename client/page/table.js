// A table on the page: real, sortable, and to be taken away as CSV.

function csvCell(value) {
  const text = textOf(value);
  return /[",\r\n]|^\s|\s$/.test(text) ? `"${text.replace(/"/g, '""')}"` : text;
}

function csvOf(table) {
  const lines = [table.columns.map((c) => csvCell(c.name))];
  for (let row = 0; row < table.rows; ++row) lines.push(table.columns.map((c) => csvCell(c.values[row])));
  return lines.map((cells) => cells.join(',')).join('\r\n') + '\r\n';
}

// Where the page may not use the clipboard, a selection does.
async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = h('textarea', {class: 'unseen'});
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand('copy');
    area.remove();
    return done;
  }
}

function copyButton(name, text) {
  return h('button', {
    type: 'button',
    class: 'action',
    click: async (event) => {
      const button = event.currentTarget;
      button.textContent = await copyText(text()) ? 'Copied' : 'The browser forbids copying';
      setTimeout(() => { button.textContent = name; }, 1500);
    },
  }, name);
}

// Rows without a value come last whichever way the others go.
function compareCells(a, b, descending) {
  const missing = (v) => v === null || v === undefined;
  if (missing(a) || missing(b)) return missing(a) - missing(b);
  const order = typeof a === 'number' ? a - b : textOf(a).localeCompare(textOf(b), 'en', {numeric: true});
  return descending ? -order : order;
}

// A click sorts upward, a second downward, a third restores the report's own order.
function sortBy(column, header, body, rows) {
  const next = {none: 'ascending', ascending: 'descending', descending: 'none'}[header.getAttribute('aria-sort')];
  for (const other of header.parentNode.children) other.setAttribute('aria-sort', 'none');
  header.setAttribute('aria-sort', next);
  const order = [...rows.keys()];
  if (next !== 'none') order.sort((a, b) => compareCells(column.values[a], column.values[b], next === 'descending') || a - b);
  body.append(...order.map((i) => rows[i]));
}

function headerCell(column, body, rows) {
  const header = h('th', {scope: 'col', 'aria-sort': 'none', class: column.numeric ? 'number' : null},
    h('button', {type: 'button', title: column.description || null, click: () => sortBy(column, header, body, rows)},
      humanName(column.name)));
  return header;
}

// " +2.5 to +3.7" beside a value.
function intervalText(column, row) {
  const values = listOf(column.interval).map((end) => end.values[row]);
  if (values.length === 0 || !values.every(isNumber)) return null;
  return h('span', {class: 'range'}, values.map((v) => formatNumber(v, {...column.style, suffix: ''})).join(' to '));
}

function tableRow(table, row) {
  return h('tr', {}, ...table.columns.map((column, i) => {
    const text = column.text(column.values[row]);
    const title = text.length > 25 ? text : null;
    return h(i === 0 ? 'th' : 'td', {scope: i === 0 ? 'row' : null, class: column.numeric ? 'number' : null, title},
      text, intervalText(column, row));
  }));
}

function columnGlossary(table) {
  const described = table.columns.filter((c) => c.description !== '');
  if (described.length === 0) return null;
  return h('details', {class: 'glossary'}, h('summary', {}, 'What the columns mean'),
    h('dl', {}, ...described.flatMap((c) => [h('dt', {}, humanName(c.name)), h('dd', {}, c.description)])));
}

// Paper shows what the columns mean, opened or not.
function openGlossariesForPrint() {
  const closed = () => document.querySelectorAll('.glossary:not([open])');
  let opened = [];
  addEventListener('beforeprint', () => {
    opened = [...closed()];
    opened.forEach((glossary) => glossary.setAttribute('open', ''));
  });
  addEventListener('afterprint', () => opened.forEach((glossary) => glossary.removeAttribute('open')));
}

function renderTable(table) {
  // Some columns say again, for the plots, what others say; ends of intervals stand beside their value.
  const shown = {...table, columns: table.columns.filter((c) => !c.isEnd && !c.description.endsWith(', for plots'))};
  const rows = Array.from({length: table.rows}, (_, row) => tableRow(shown, row));
  const body = h('tbody', {}, ...rows);
  const heads = shown.columns.map((column) => headerCell(column, body, rows));
  const size = `${plainNumber(table.rows, 0, true)} ${table.rows === 1 ? 'row' : 'rows'}`;
  return h('section', {class: shown.columns.length > 9 ? 'table broad' : 'table', id: table.id},
    h('div', {class: 'table-head'}, h('h3', {}, table.title), h('span', {class: 'size'}, size), copyButton('Copy as CSV', () => csvOf(table))),
    table.description === '' ? null : h('p', {class: 'about'}, table.description),
    table.rows === 0 ? h('p', {class: 'empty'}, 'This table has no rows.') : null,
    h('div', {class: 'scroll', tabindex: 0, role: 'region', 'aria-label': table.title},
      h('table', {}, h('caption', {class: 'unseen'}, table.title), h('thead', {}, h('tr', {}, ...heads)), body)),
    columnGlossary(table));
}

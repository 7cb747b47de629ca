// Filters and sorts the one table of a page, which is whole without it.
const table = document.querySelector('.wide table'), heads = [...table.tHead.rows[0].cells]
const rows = [...table.tBodies[0].rows], filter = document.querySelector('input[type=search]')
filter.parentElement.hidden = false
filter.oninput = () => {
  const words = filter.value.toLowerCase().split(/\s+/)
  for (const row of rows) row.hidden = !words.every(word => row.textContent.toLowerCase().includes(word))
  document.querySelector('output').value = filter.value && rows.filter(row => !row.hidden).length + ' of ' + rows.length
}
const ranks = ['✗', '–', '=', '✓', '']
const units = {ms: 1, s: 1000, m: 60000, h: 3600000}
function key(row, column) {
  const text = (row.cells[column].querySelector('a, b') ?? row.cells[column]).textContent
  if (ranks.includes(text)) return ranks.indexOf(text)
  if (!/^([\d.]+ ?(ms|[smh]))+$/.test(text)) return text
  return [...text.matchAll(/([\d.]+) ?(ms|[smh])/g)].reduce((sum, [, number, unit]) => sum + number * units[unit], 0)
}
const order = (a, b) => typeof a == 'number' && typeof b == 'number' ? a - b : String(a).localeCompare(b, undefined, {numeric: true})
heads.forEach((head, column) => {
  const button = document.createElement('button')
  button.append(...head.childNodes)
  head.append(button)
  button.onclick = () => {
    const sign = head.ariaSort == 'ascending' ? -1 : 1
    for (const other of heads) other.ariaSort = null
    head.ariaSort = sign > 0 ? 'ascending' : 'descending'
    rows.sort((a, b) => sign * order(key(a, column), key(b, column)))
    table.tBodies[0].append(...rows)
  }
})

// Puts the parts that the hub sends in the place of the old ones. The page is whole without it.
const events = document.body.dataset.events, log = document.getElementById('log'), away = document.getElementById('away')
const mostLog = 2 << 20 // characters, so that a tab can stay open
let source, again, wait = 1000

// Changes an element to be as another. What a person has focused or opened stays.
function become(old, now) {
  if (old.nodeName != now.nodeName || old.id != now.id) return old.replaceWith(now)
  if (!old.attributes) {
    if (old.data != now.data) old.data = now.data
    return
  }
  for (const { name } of [...old.attributes]) if (!now.hasAttribute(name) && name != 'open') old.removeAttribute(name)
  for (const { name, value } of now.attributes) if (old.getAttribute(name) != value) old.setAttribute(name, value)
  const have = [...old.childNodes]
  const want = [...now.childNodes]
  want.forEach((node, i) => have[i] ? become(have[i], node) : old.append(node))
  have.slice(want.length).forEach(node => node.remove())
}

function follow() {
  clearTimeout(again)
  source = new EventSource(events + (log ? '&log=' + log.dataset.next : ''))
  source.onopen = () => { away.hidden = true, wait = 1000 }
  source.onerror = () => {
    away.hidden = false
    if (source.readyState == EventSource.CLOSED) again = setTimeout(follow, wait = Math.min(2 * wait, 30000))
  }
  source.addEventListener('part', event => {
    const part = JSON.parse(event.data), now = document.createElement('template')
    now.innerHTML = part.html
    const old = document.getElementById(part.id)
    if (old) become(old, now.content.firstElementChild)
  })
  source.addEventListener('log', event => {
    if (Number(event.lastEventId) <= Number(log.dataset.next)) return
    const atEnd = log.scrollTop + log.clientHeight + 40 >= log.scrollHeight
    log.dataset.next = event.lastEventId
    log.append(JSON.parse(event.data))
    while (log.childNodes.length > 1 && log.textContent.length > mostLog) log.firstChild.remove()
    if (atEnd) log.scrollTop = log.scrollHeight
  })
}

if (events) {
  document.addEventListener('visibilitychange', () => {
    source?.close()
    clearTimeout(again)
    if (!document.hidden) follow()
  })
  if (!document.hidden) follow()
}

// A link of "slipway hub open" has its secret where no server and no log sees it.
const secret = document.querySelector('input[name=secret]')
if (secret && location.hash) {
  secret.value = location.hash.slice(1)
  history.replaceState(null, '', location.pathname)
}

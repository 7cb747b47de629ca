package page

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"slipway/ci/fleet"
	"slipway/ci/hub/access"
	"slipway/ci/hub/hubtest"
	"slipway/ci/job"
	"slipway/ci/report"
	"slipway/layers/progress"
)

// shots is where screenshots are kept, "" for nowhere.
var shots = os.Getenv("SLIPWAY_SHOTS")

// sharedName is a name that several hubs have.
const sharedName = "hub.test"

// browser is a chromium, with what its pages asked for and complained of.
type browser struct {
	context.Context
	t *testing.T

	mu        sync.Mutex
	asked     []string
	complains []string
}

// newBrowser starts chromium.
func newBrowser(t *testing.T) *browser {
	t.Helper()
	program, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("needs chromium: apt-get install chromium")
	}
	opts := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(program), chromedp.NoSandbox, chromedp.IgnoreCertErrors,
		chromedp.UserDataDir(t.TempDir()), chromedp.WindowSize(1280, 900), chromedp.Env("HOME="+t.TempDir()), chromedp.Flag("host-resolver-rules", "MAP "+sharedName+" 127.0.0.1"), chromedp.WSURLReadTimeout(time.Minute))
	ctx, cancel := chromedp.NewExecAllocator(context.Background(), opts...)
	b := &browser{t: t}
	var closeAll context.CancelFunc
	b.Context, closeAll = chromedp.NewContext(ctx)
	t.Cleanup(func() {
		_ = chromedp.Cancel(b.Context) // waits until chromium has ended
		closeAll()
		cancel()
	})
	if err := chromedp.Listen(b.Context, b.note); err != nil {
		t.Fatal(err)
	}
	call(b, network.Enable, network.EnableParams{})
	call(b, log.Enable, cdp.Empty{})
	return b
}

func (b *browser) note(e any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := e.(type) {
	case *network.EventRequestWillBeSent:
		b.asked = append(b.asked, e.Request.URL)
	case *runtime.EventExceptionThrown:
		b.complains = append(b.complains, fmt.Sprintf("%+v", e.ExceptionDetails))
	case *log.EventEntryAdded:
		text := fmt.Sprintf("%s: %s %s", e.Entry.Level, e.Entry.Text, e.Entry.URL)
		if !strings.HasPrefix(text, "info: ") { // such as that a test clicks before the field has the focus
			b.complains = append(b.complains, text)
		}
	}
}

func (b *browser) do(actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	get(b, chromedp.Steps(actions...))
}

// get runs an action and returns its value.
func get[T any](b *browser, a chromedp.Action[T]) T {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.Context, 2*time.Minute)
	defer cancel()
	value, err := chromedp.Run(ctx, a)
	if err != nil {
		b.t.Fatal(err)
	}
	return value
}

// call runs a command of the DevTools protocol.
func call[P, R any](b *browser, command cdp.Command[P, R], params P) {
	b.t.Helper()
	if _, err := chromedp.Call(b.Context, command, params); err != nil {
		b.t.Fatal(err)
	}
}

// signIn opens the link of "slipway hub open".
func (b *browser) signIn(s *site, who string) {
	b.t.Helper()
	call(b, network.ClearBrowserCookies, cdp.Empty{})
	b.do(chromedp.Navigate("https://"+s.address+"/in#"+who), chromedp.WaitReady(chromedp.CSS(`input[name=secret]`)), chromedp.Click(chromedp.CSS(`button`)), chromedp.WaitVisible(chromedp.CSS(`#needs`)))
}

func (b *browser) open(s *site, path, ready string) {
	b.t.Helper()
	b.do(chromedp.Navigate("https://"+s.address+path), chromedp.WaitVisible(chromedp.CSS(ready)))
}

// is waits until a script's value is true.
func (b *browser) is(script string) {
	b.t.Helper()
	get(b, chromedp.Poll[bool](script, chromedp.WithPollingInterval(20*time.Millisecond), chromedp.WithPollingTimeout(time.Minute)))
}

func (b *browser) text(script string) string {
	b.t.Helper()
	return get(b, chromedp.Evaluate[string](script, chromedp.EvalAwaitPromise))
}

// shoot keeps a screenshot of the whole page, if somebody wants them.
func (b *browser) shoot(name string) {
	b.t.Helper()
	if shots == "" {
		return
	}
	png := get(b, chromedp.FullScreenshot(100))
	if err := os.WriteFile(filepath.Join(shots, name+".png"), png, 0o644); err != nil {
		b.t.Fatal(err)
	}
}

func secretOf(t *testing.T, s *site, role job.Role, name string) string {
	t.Helper()
	c := s.admin
	if name != "ada" {
		c = s.invite(role, name)
	}
	return request[job.Invitation](t, c, job.VerbOpen, none{}).Secret
}

// lively makes a hub with something of everything, and returns the job that runs.
func lively(t *testing.T, s *site) (station, job.Change) {
	t.Helper()
	evil := lab("lab-2")
	evil.Labels = []string{`<img src=x onerror=alert(1)>`}
	st := s.station("bench-1", lab("lab-1"), evil, lab("lab-3"), job.Board{V: 1, Name: "sdy", Board: "block", Device: "usb:9-9", Open: true, Does: []job.Do{}, Shows: "Stick 77, 4.0 GB: empty", Note: "it has no name here, and takes no job"})
	s.invite(job.AStation, "bench-9")
	request[job.Change](t, s.admin, job.VerbJobAdd, smokeJob("bench-1", "lab-3"))
	failed := st.claim()
	st.report(failed.Job, report.Report{Board: `<script>parent.document.title = "taken"</script>`})
	st.endAs(failed, job.Result{Result: fleet.Result{Host: "lab-3", Kind: fleet.Checks, Saw: "2 of 14 checks failed: gpu, nvme", Passed: 12, Checks: 14}, Attempts: 1, Line: "slipway fleet smoke orin-lab one.yml", Steps: []job.StepResult{{Do: job.Smoke, Status: 1, ElapsedMS: 73000}}})
	request[job.Change](t, s.admin, job.VerbJobAdd, smokeJob("bench-1", "lab-1"))
	c := st.claim()
	request[job.Change](t, s.admin, job.VerbJobAdd, smokeJob("bench-1", "lab-1"))
	st.log(c.Job, "first \x1b[31mred\x1b[0m <b>line</b>\n")
	st.note(c.Job, progress.Event{Step: "connect", State: progress.Done, Detail: "10.0.0.7", ElapsedMS: 800})
	st.note(c.Job, progress.Event{Step: "write", State: progress.Running, Count: 40 << 20, Total: 200 << 20, Unit: progress.Bytes, PerSecond: 20 << 20, ElapsedMS: 2000})
	return st, c
}

// The page in a browser: B1 to B5 and B7 to B10 of the design. TestOneNameOfHubs is B6.
func TestBrowser(t *testing.T) {
	b := newBrowser(t)
	s := newSite(t)
	st, c := lively(t, s)
	b.signIn(s, secretOf(t, s, job.Admin, "ada"))
	t.Run("flash", func(t *testing.T) { b.t = t; testFlash(b, s, st) })
	r := request[job.RolloutState](t, s.admin, job.VerbRolloutAdd, rolloutOf(job.Deploy))
	t.Run("rollout", func(t *testing.T) { b.t = t; testRollout(b, s, st, r.ID) })
	t.Run("follows", func(t *testing.T) { b.t = t; testFollows(b, s, st, c) })
	t.Run("quiet", func(t *testing.T) { b.t = t; testQuiet(b, s, c, r.ID) })
	t.Run("hidden", func(t *testing.T) { b.t = t; testHidden(b, s) })
	t.Run("restart", func(t *testing.T) { b.t = t; testRestart(b, s) })
	t.Run("other origin", func(t *testing.T) { b.t = t; testOtherOrigin(b, s) })
	t.Run("viewer", func(t *testing.T) { b.t = t; testViewer(b, s) })
	st.note(c.Job, progress.Event{Step: "write", State: progress.Running, Count: 140 << 20, Total: 200 << 20, Unit: progress.Bytes, PerSecond: 20 << 20, ElapsedMS: 2000})
	t.Run("looks", func(t *testing.T) { b.t = t; testLooks(b, s, c, r.ID) })
	t.Run("keyboard without script", func(t *testing.T) { b.t = t; testWithoutScript(b, s) })
	t.Run("many boards", func(t *testing.T) { b.t = t; testManyBoards(b, newSite(t)) })
	t.Run("places", func(t *testing.T) { b.t = t; testPlaces(b, t) }) // the last: its hub takes the cookie
}

// A person opens the link of "slipway hub open", flashes a board, sees the bar rise, and reads the
// report (B1). The station's child is simulated.
func testFlash(b *browser, s *site, st station) {
	b.signIn(s, secretOf(b.t, s, job.Admin, "ada"))
	b.open(s, "/boards/bench-1/lab-2", "#begin")
	b.text(`document.querySelector('#begin details').open = true, ''`)
	b.do(chromedp.SendKeys(chromedp.CSS(`#begin input[name=artifact]`), "hub:orin-lab@sha256:"+strings.Repeat("a", 64)),
		chromedp.Click(chromedp.CSS(`#begin input[name=token]`)), chromedp.Click(chromedp.CSS(`#begin button`)), chromedp.WaitVisible(chromedp.CSS(`#steps`)))
	c := st.claimNext(func(j job.Job) bool { return j.Name == "lab-2" })
	if c.Job.Steps[0] != (job.Step{Do: job.Flash, Token: "T-1421"}) {
		b.t.Fatalf("the job has the steps %+v", c.Job.Steps)
	}
	for i := range 6 {
		st.note(c.Job, progress.Event{Step: "write", State: progress.Running, Count: int64(10+30*i) << 20, Total: 200 << 20, Unit: progress.Bytes})
		b.is(fmt.Sprintf(`document.querySelector('#steps progress')?.value == %d`, int64(10+30*i)<<20))
	}
	b.shoot("flash-at-work")
	st.report(c.Job, report.Report{Board: "orin-lab", Target: "lab-2", Suites: []report.SuiteResult{{Name: "base", Checks: []report.CheckResult{{Name: "gpu", Status: report.Passed, Saw: "one GPU"}}}}})
	st.endAs(c, job.Result{Result: fleet.Result{Host: "lab-2", Kind: fleet.Passed, Passed: 1, Checks: 1}, Attempts: 1})
	b.is(`document.querySelector('#job').textContent.includes('passed')`)
	b.open(s, "/boards/bench-1/lab-2", "#report")
	b.do(chromedp.Click(chromedp.CSS(`#report summary`)), chromedp.WaitVisible(chromedp.CSS(`iframe`)))
	b.hasFrame("/report", "one GPU")
	b.shoot("flash-report")
}

// A person pauses and resumes a rollout, and the wave's numbers follow (B10).
func testRollout(b *browser, s *site, st station, id string) {
	b.open(s, "/rollouts/"+id, "#waves")
	b.is(`document.querySelector('#waves').textContent.includes('0 of 1')`)
	b.do(chromedp.Click(chromedp.CSS(`button[value=pause]`)), chromedp.WaitVisible(chromedp.CSS(`button[value=go]`)))
	b.is(`document.querySelector('#band').textContent.includes('paused')`)
	if r := request[job.RolloutState](b.t, s.admin, job.VerbRolloutShow, job.RolloutWish{ID: id}); r.Wish != job.Pause || r.WishBy != "ada" {
		b.t.Errorf("after Pause the rollout is %+v", r)
	}
	b.do(chromedp.Click(chromedp.CSS(`button[value=go]`)), chromedp.WaitVisible(chromedp.CSS(`button[value=pause]`)))
	for i, kind := range []fleet.Kind{fleet.Passed, fleet.Checks, fleet.Passed} {
		c := st.claimNext(ofRollout)
		b.is(`document.querySelector('#boards').textContent.includes('running')`)
		st.endAs(c, job.Result{Result: fleet.Result{Host: c.Job.Name, Kind: kind, Saw: "no GPU on " + c.Job.Name}, Attempts: 1})
		wave := []string{"canaries", "wave 1", "wave 2"}[i]
		b.is(`[...document.querySelectorAll('#waves tr')].some(e => e.textContent.includes('` + wave + `') && e.textContent.includes('1 of 1') && e.querySelector('progress').value == 1)`)
	}
	b.is(`document.querySelector('#band').textContent.includes('ended')`)
	b.is(`document.querySelector('#causes').textContent.includes('no GPU on')`)
	b.open(s, "/rollouts/"+id, "#waves") // the form is no live part
	b.is(`!!document.querySelector('input[name=back]')`)
}

// A bar and a log follow a job, whose text is text (B9).
func testFollows(b *browser, s *site, st station, c job.Change) {
	b.open(s, "/jobs/"+c.Job.ID, "#log")
	b.is(`document.querySelector('#log').textContent.includes('first red <b>line</b>')`)
	for i := range 5 {
		st.note(c.Job, progress.Event{Step: "write", State: progress.Running, Count: int64(60+20*i) << 20, Total: 200 << 20, Unit: progress.Bytes})
		b.is(fmt.Sprintf(`document.querySelector('progress').value == %d`, int64(60+20*i)<<20))
	}
	st.log(c.Job, "second\n")
	b.is(`document.querySelector('#log').textContent.endsWith('second\n')`)
	b.open(s, "/boards/bench-1/lab-2", "#board")
	b.is(`document.querySelector('#board').textContent.includes('<img src=x onerror=alert(1)>') && !document.querySelector('#board img')`)
	b.open(s, "/boards/bench-1/lab-3", "#report")
	b.do(chromedp.Click(chromedp.CSS(`#report summary`)), chromedp.WaitVisible(chromedp.CSS(`iframe`)))
	b.hasFrame("/report", "parent.document.title")
	if title := b.text(`document.title`); title != "lab-3" {
		b.t.Errorf("the report's script changed the page: %s", title)
	}
}

// Nothing is asked of elsewhere, and the browser has nothing to complain of (B2), but for the script
// in a report, which it must not run.
func testQuiet(b *browser, s *site, c job.Change, rollout string) {
	for _, path := range []string{"/", "/boards", "/boards/bench-1/lab-1", "/stations", "/stations/bench-1", "/jobs/" + c.Job.ID, "/rollouts", "/rollouts/" + rollout, "/people", "/log"} {
		b.open(s, path, "footer")
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, url := range b.asked {
		if !strings.HasPrefix(url, "https://"+s.address+"/") && !strings.HasPrefix(url, "data:,") {
			b.t.Errorf("the page asks for %s", url)
		}
	}
	for _, text := range b.complains {
		b.t.Errorf("the browser says: %s", text)
	}
	if len(b.asked) < 20 {
		b.t.Errorf("the browser asked only for %v", b.asked)
	}
}

// A hidden tab has no stream.
func testHidden(b *browser, s *site) {
	b.open(s, "/", "#jobs")
	b.is(`source.readyState == 1`)
	b.text(`Object.defineProperty(document, 'hidden', {value: true, configurable: true}); document.dispatchEvent(new Event('visibilitychange')); ''`)
	b.is(`source.readyState == 2`)
	b.text(`Object.defineProperty(document, 'hidden', {value: false}); document.dispatchEvent(new Event('visibilitychange')); ''`)
	b.is(`source.readyState == 1`)
}

// The page lives again after the hub did, without a reload, and no part is there twice (B5).
func testRestart(b *browser, s *site) {
	b.open(s, "/", "#stations")
	b.is(`source.readyState == 1`)
	b.text(`window.kept = 'yes'; ''`)
	s.end()
	b.is(`!document.getElementById('away').hidden`)
	s.start()
	began := time.Now()
	b.is(`document.getElementById('away').hidden && source.readyState == 1`)
	b.t.Logf("live %v after the hub", time.Since(began).Round(time.Millisecond))
	s.station("bench-2")
	b.is(`document.querySelector('#stations').textContent.includes('bench-2')`)
	if got := b.text(`window.kept + [...document.querySelectorAll('section')].map(e => e.id)`); got != "yesneeds,jobs,stations" {
		b.t.Errorf("after the hub's restart the page is %q", got)
	}
	b.mu.Lock()
	b.complains = nil // that the hub was away
	b.mu.Unlock()
}

// Another page cannot use the reader's cookie (B4).
func testOtherOrigin(b *browser, s *site) {
	before := len(request[job.Changes](b.t, s.admin, job.VerbJobList, none{}).Jobs)
	target := "https://" + s.address + "/boards/bench-1/lab-1"
	other := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(w, `<form method="post" action="%s"><input name="do" value="smoke"><input name="board" value="orin-lab"></form><img src="%s?do=smoke&board=orin-lab">`, target, target)
	}))
	defer other.Close()
	for _, host := range []string{other.URL, strings.Replace(other.URL, "127.0.0.1", "localhost", 1)} { // the same site, and another
		b.do(chromedp.Navigate(host))
		answer := b.text(`fetch('` + target + `', {method: 'POST', credentials: 'include', mode: 'no-cors', body: new URLSearchParams({do: 'smoke', board: 'orin-lab'})}).then(a => a.type, e => 'refused')`)
		if answer != "refused" && answer != "opaque" {
			b.t.Errorf("a fetch of %s = %q", host, answer)
		}
		b.text(`document.forms[0].submit(), ''`)
		b.do(chromedp.WaitVisible(chromedp.CSS(`.failure`)))
		if text := b.text(`document.body.textContent`); !strings.Contains(text, "another page sent this request") {
			b.t.Errorf("a form of %s = %q", host, text)
		}
	}
	if after := len(request[job.Changes](b.t, s.admin, job.VerbJobList, none{}).Jobs); after != before {
		b.t.Errorf("another page made %d jobs", after-before)
	}
}

// A viewer has no buttons but to sign out, and the same request is refused and written down (B3).
func testViewer(b *browser, s *site) {
	b.signIn(s, secretOf(b.t, s, job.Viewer, "vera"))
	b.open(s, "/boards/bench-1/lab-1", "#board")
	if got := b.text(`[...document.querySelectorAll('button')].map(e => e.textContent).join()`); got != "Sign out" {
		b.t.Errorf("a viewer has the buttons %s", got)
	}
	if got := b.text(`fetch(location.pathname, {method: 'POST', body: new URLSearchParams({do: 'smoke', board: 'orin-lab'})}).then(a => String(a.status))`); got != "403" {
		b.t.Errorf("a viewer's request = %s; want 403", got)
	}
	records := request[struct {
		Records []struct{ Who, Verb, Refused string }
	}](b.t, s.admin, job.VerbAudit, none{}).Records
	if last := records[len(records)-1]; last.Who != "vera" || last.Verb != job.VerbJobAdd || last.Refused == "" {
		b.t.Errorf("the audit ends with %+v", last)
	}
}

// No page is wider than a phone, light or dark (B8).
func testLooks(b *browser, s *site, c job.Change, rollout string) {
	b.signIn(s, secretOf(b.t, s, job.Admin, "ada"))
	paths := map[string]string{"first": "/", "boards": "/boards", "board": "/boards/bench-1/lab-1", "failed": "/boards/bench-1/lab-3", "stations": "/stations", "station": "/stations/bench-1", "job": "/jobs/" + c.Job.ID, "people": "/people", "log": "/log", "rollouts": "/rollouts", "rollout": "/rollouts/" + rollout, "device": "/boards/bench-1/sdy"}
	for name, path := range paths {
		b.open(s, path, "footer")
		b.text(`document.querySelectorAll('#begin details').forEach(e => e.open = true), ''`)
		if frame := map[string]string{"failed": "#report", "rollout": "#outcome"}[name]; frame != "" && shots != "" {
			b.do(chromedp.Click(chromedp.CSS(frame+` summary`)), chromedp.WaitVisible(chromedp.CSS(`iframe`)), chromedp.Sleep(300*time.Millisecond))
		}
		for _, look := range []struct {
			name   string
			width  int64
			scheme string
		}{{"desktop", 1280, "light"}, {"phone", 360, "light"}, {"dark", 1280, "dark"}} {
			call(b, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: look.width, Height: 800, DeviceScaleFactor: 1, Mobile: look.width < 400})
			call(b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: look.scheme}}})
			b.is(fmt.Sprintf(`innerWidth == %d`, look.width))
			if got := b.text(`String(document.documentElement.scrollWidth - document.documentElement.clientWidth)`); got != "0" {
				b.t.Errorf("%s is %s px too wide for %s", path, got, look.name)
			}
			if got := b.text(`getComputedStyle(document.body).backgroundColor`); (got == "rgb(15, 18, 22)") != (look.scheme == "dark") {
				b.t.Errorf("%s has the ground %s when %s", path, got, look.name)
			}
			b.shoot(look.name + "-" + name)
		}
	}
	call(b, emulation.ClearDeviceMetricsOverride, cdp.Empty{})
	call(b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{})
}

// Without a script and with the keyboard alone, a person signs in, begins a job and stops it (B8).
func testWithoutScript(b *browser, s *site) {
	secret := secretOf(b.t, s, job.Admin, "ada")
	call(b, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
	call(b, network.ClearBrowserCookies, cdp.Empty{})
	b.do(chromedp.Navigate("https://"+s.address+"/in"), chromedp.WaitReady(chromedp.CSS(`input[name=secret]`)))
	b.do(chromedp.KeyEvent(secret), chromedp.KeyEvent(kb.Enter), chromedp.WaitVisible(chromedp.CSS(`#needs`))) // the field has the focus
	b.shoot("plain-first")
	b.open(s, "/boards/bench-1/lab-2", "#begin")
	b.tabTo("SUMMARY", "smoke")
	b.do(chromedp.KeyEvent(kb.Enter))
	b.tabTo("BUTTON", "Begin: smoke")
	b.do(chromedp.KeyEvent(kb.Enter), chromedp.WaitVisible(chromedp.CSS(`#steps`)))
	b.shoot("plain-job")
	b.tabTo("BUTTON", "Stop")
	b.do(chromedp.KeyEvent(kb.Enter))
	b.do(chromedp.WaitNotPresent(chromedp.CSS(`#job button`)))
	text := get(b, chromedp.Text(chromedp.CSS(`#job`)))
	if !strings.Contains(text, "stopped by ada") {
		b.t.Errorf("the job is %q", text)
	}
	call(b, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{})
}

// hasFrame waits for a frame of the page that shows a text. A sandboxed frame is a target of its own.
func (b *browser) hasFrame(address, text string) {
	b.t.Helper()
	for b.Err() == nil {
		all, err := chromedp.Targets(b.Context)
		if err != nil {
			b.t.Fatal(err)
		}
		for _, info := range all {
			if info.Type == "iframe" && strings.HasSuffix(info.URL, address) {
				ctx, cancel := chromedp.NewContext(b.Context, chromedp.WithTargetID(info.TargetID), chromedp.WithDetachOnCancel())
				defer cancel()
				frame := &browser{Context: ctx, t: b.t}
				if got := frame.text(`document.body.textContent`); !strings.Contains(got, text) {
					b.t.Errorf("the frame shows %q", got)
				}
				return
			}
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// tabTo presses Tab until an element with this text has the focus.
func (b *browser) tabTo(element, text string) {
	b.t.Helper()
	for range 60 {
		b.do(chromedp.KeyEvent(kb.Tab))
		if got := b.text(`document.activeElement.tagName + ' ' + document.activeElement.textContent.trim()`); got == element+" "+text {
			return
		}
	}
	b.t.Fatalf("Tab does not reach the %s %q", element, text)
}

// Many boards, and many tabs: B7.
func testManyBoards(b *browser, s *site) {
	t := b.t
	stations, each := 2, 150
	if os.Getenv("SLIPWAY_LONG") != "" {
		stations, each = 10, 1000
	}
	var last station
	for i := range stations {
		var boards []job.Board
		for j := range each {
			boards = append(boards, lab(fmt.Sprintf("lab-%d-%03d", i, j)))
		}
		last = s.station(fmt.Sprintf("bench-%d", i), boards...)
	}
	b.signIn(s, secretOf(t, s, job.Admin, "ada"))
	b.open(s, "/boards", "#boards")
	took := b.text(`String(Math.round(performance.getEntriesByType('navigation')[0].loadEventEnd))`)
	t.Logf("the first page of %d boards took %s ms", each*stations, took)
	if !strings.Contains(b.text(`document.querySelector('#boards').textContent`), fmt.Sprintf("1 to 200 of %d", each*stations)) {
		t.Errorf("the page is not of %d boards", each*stations)
	}
	var open []*events // each a tab in front
	reader := s.signIn(s.admin)
	for i := range 100 {
		open = append(open, reader.follow([]string{"/", "/boards?from=200", "/boards?q=007"}[i%3], ""))
	}
	request[job.Change](t, s.admin, job.VerbJobAdd, smokeJob(last.Name, fmt.Sprintf("lab-%d-007", stations-1)))
	last.claim()
	began := time.Now()
	for i, tab := range open {
		switch i % 3 {
		case 0:
			tab.part("jobs", "-007: smoke")
		case 2:
			tab.part("boards", "at work")
		}
	}
	t.Logf("100 tabs knew it after %v", time.Since(began).Round(time.Millisecond))
}

// A place is read from three metres: its ports, the counts, the rows that are left, and that it is
// not heard. It lives without a reload, and has no buttons.
func testPlaces(b *browser, t *testing.T) {
	s := newSite(t)
	flashing := job.Board{V: 1, Name: "line-1", Board: "raspberrypi5", Does: []job.Do{job.Place}, Shows: "what is plugged in at left, middle", Image: "https://example.com/disk.wic.zst"}
	idle := flashing
	idle.Name = "line-2"
	st := s.station("bench-1", flashing, idle)
	b.signIn(s, secretOf(t, s, job.Operator, "otto"))
	b.open(s, "/boards/bench-1/line-1", "#begin summary")
	b.do(chromedp.Click(chromedp.CSS(`#begin summary`)), chromedp.WaitVisible(chromedp.CSS(`input[name=count]`)), chromedp.SendKeys(chromedp.CSS(`input[name=count]`), "200"), chromedp.Click(chromedp.CSS(`#begin input[type=checkbox]`)), chromedp.Click(chromedp.CSS(`#begin button`)), chromedp.WaitVisible(chromedp.CSS(`#steps`)))
	c := st.claim()
	if step := c.Job.Steps[0]; step.Do != job.Place || step.Count != 200 || c.Job.By != "otto" || c.Job.LimitMS != 30*24*3600*1000 {
		t.Fatalf("the page began %+v", c.Job)
	}
	show := func(step, detail string, percent int64) {
		st.note(c.Job, progress.Event{Step: step, State: progress.Running, Detail: detail, Count: percent, Total: 100})
	}
	for i, port := range []string{"PASS: n07; 1.1 GB in 41 s", "FAIL: n08; lies about its size", "REFUSED: it holds something else: ext4; overwrite: true in place.yml allows that", "EMPTY: ", "READ BACK: n09", "CLOSED: 3 failures in a row, the last: worn out", "KNOWN: written 30 November 09:12 at left, row n03"} {
		show([]string{"left", "middle", "right", "slot 4", "slot 5", "slot 6", "slot 7"}[i], port, map[int]int64{4: 65}[i])
	}
	show("slot 8 <b>", "WRITE: n10", 40)
	show("the place", "12 GOOD, 2 BAD, 1 REFUSED today, 38 rows left, 84 an hour, one in 43s; 1 × lies about its size", 0)
	b.open(s, "/places", "#places .ports")
	b.is(`document.querySelectorAll('.ports li').length == 8 && document.querySelector('#places').textContent.includes('38 rows left')`)
	b.is(`[...document.querySelectorAll('.ports b')].every(e => e.scrollWidth <= e.parentElement.clientWidth) && document.querySelectorAll('#places button, #places form').length == 0`)
	b.is(`document.querySelectorAll('.place')[1].textContent.includes('not running')`)
	show("slot 4", "PASS: n11", 0)
	b.is(`[...document.querySelectorAll('.ports li.good')].some(e => e.textContent.includes('slot 4') && e.textContent.includes('PASS'))`)
	b.shoot("places")
	call(b, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: 1920, Height: 1080, DeviceScaleFactor: 1})
	b.open(s, "/places?place=bench-1/line-1", "#places .ports")
	b.is(`document.querySelectorAll('.place').length == 1 && document.documentElement.scrollHeight <= 1080`)
	b.is(`parseFloat(getComputedStyle(document.querySelector('.ports b')).fontSize) > 70`) // 2 cm on a screen of 24 inches
	b.shoot("places-3m")
	request[none](t, st.Client, job.VerbAway, job.Alive{Instance: "i"})
	b.is(`document.querySelector('.now')?.textContent.includes('not heard')`)
	call(b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: "dark"}}})
	b.shoot("places-cut-off")
}

// front leads connections to the first address where somebody listens, as a name with several addresses
// does. It returns its own port.
func front(t *testing.T, to []string) (port string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			browser, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() { pass(browser, to) })
		}
	})
	t.Cleanup(all.Wait)
	t.Cleanup(func() { l.Close() })
	_, port, _ = net.SplitHostPort(l.Addr().String())
	return port
}

// pass passes what a browser sends to the first address where somebody listens, and the answers back,
// until one of both closes.
func pass(browser net.Conn, to []string) {
	defer browser.Close()
	for _, address := range to {
		hub, err := net.Dial("tcp", address)
		if err != nil {
			continue
		}
		defer hub.Close()
		done := make(chan struct{}, 2)
		for _, pair := range [][2]net.Conn{{browser, hub}, {hub, browser}} {
			go func() {
				_, _ = io.Copy(pair[0], pair[1]) // until one of both ends
				done <- struct{}{}
			}()
		}
		<-done
		return
	}
}

// Three hubs have one more name, which leads to a hub that lives. The hub that has a page's stream is
// killed: the page continues at another one, with the same cookie and without a reload (B6).
func TestOneNameOfHubs(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	hubs, address, token := hubtest.Start(t, 0, sharedName)
	var pages []string
	for _, h := range hubs {
		pages = append(pages, h.Page)
	}
	s := &site{t: t, address: address}
	s.admin = s.join(token)
	s.address = net.JoinHostPort(sharedName, front(t, pages))
	b := newBrowser(t) // ends before the front does
	b.signIn(s, secretOf(t, s, job.Admin, "ada"))
	b.is(`source.readyState == 1`)
	b.text(`window.kept = 'yes'; ''`)
	hubs[0].Kill()
	b.is(`!document.getElementById('away').hidden`)
	began := time.Now()
	b.is(`document.getElementById('away').hidden && source.readyState == 1`)
	t.Logf("live %v after the loss of a hub", time.Since(began).Round(time.Millisecond))
	invited, err := access.AskOn[job.Invitation](t.Context(), s.admin, job.VerbInvite, job.Person{Name: "bench-2", Role: job.AStation})
	if err != nil {
		t.Fatal(err)
	}
	id, err := access.Join(t.Context(), hubs[1].Page, access.Token(invited.Secret, []byte(s.admin.Authority)))
	if err != nil {
		t.Fatal(err)
	}
	bench, err := id.Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer bench.Close()
	if _, err := access.AskOn[job.Lease](t.Context(), bench, job.VerbHello, job.Hello{Station: job.Station{V: 1, Name: "bench-2", Instance: "i"}}); err != nil {
		t.Fatal(err)
	}
	b.is(`document.querySelector('#stations').textContent.includes('bench-2')`)
	if got := b.text(`window.kept + [...document.querySelectorAll('section')].map(e => e.id)`); got != "yesneeds,jobs,stations" {
		t.Errorf("at the other hub the page is %q", got)
	}
	b.open(s, "/boards", "#boards")
	if text := b.text(`document.querySelector('nav').textContent`); !strings.Contains(text, "ada, admin") {
		t.Errorf("at the other hub the reader is %q", text)
	}
}

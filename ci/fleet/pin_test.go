package fleet

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"

	"slipway/ci/report"
	"slipway/images"
)

// withoutSSH hides ssh, which ignores HOME, so that the user's known_hosts is the one below HOME.
func withoutSSH(t *testing.T) (knownHosts string) {
	t.Helper()
	t.Setenv("PATH", t.TempDir())
	return filepath.Join(os.Getenv("HOME"), ".ssh", "known_hosts")
}

func countStates(met []Contact) map[State]int {
	n := map[State]int{}
	for _, c := range met {
		n[c.State]++
	}
	return n
}

// The new keys are listed, confirmed by one question, and pinned. Then boards can be reached.
func TestPin(t *testing.T) {
	p := simulate(t, 1, faultNewKey, faultNewKey, faultOtherKey, faultRefused)
	knownHosts := withoutSSH(t)
	var out strings.Builder
	var asked []string
	no := errors.New("no")
	confirm := func(question string) error {
		asked = append(asked, question)
		return no
	}
	met, err := Pin(t.Context(), &out, p.opt, p.spec, p.request, confirm)
	if _, none := os.Stat(knownHosts); !errors.Is(err, no) || none == nil || len(asked) != 1 || countStates(met)[New] != 2 {
		t.Fatalf("%v, asked %q, %v\n%s\nwant one question, and nothing pinned", err, asked, met, out.String())
	}
	confirm = func(question string) error {
		if !strings.Contains(question, "Pin 2 keys in "+knownHosts) {
			t.Errorf("asked %q", question)
		}
		return nil
	}
	met, err = Pin(t.Context(), &out, p.opt, p.spec, p.request, confirm)
	if n := countStates(met); !errors.Is(err, report.ErrUnreachable) || !strings.Contains(err.Error(), "\nnext: ssh-keyscan -p ") || n[Pinned] != 2 || n[Known] != 5 || n[Unmet] != 2 {
		t.Errorf("%v, %v; want 2 pinned, and the two that showed another key or none named", err, n)
	}
	for i, c := range met {
		switch fault := p.Boards[i].Fault; {
		case c.Host != p.Boards[i].Name:
			t.Errorf("%s is at the place of %s", c.Host, p.Boards[i].Name)
		case fault == faultNewKey && (!strings.Contains(out.String(), c.Fingerprint) || c.Key == ""):
			t.Errorf("the key of %s was not shown:\n%s", c.Host, out.String())
		case fault == faultOtherKey && !strings.HasPrefix(c.Saw, string(HostKey)), fault == faultRefused && !strings.HasPrefix(c.Saw, string(Refused)):
			t.Errorf("%s: %s", c.Host, c.Saw)
		}
	}
	outcome, _ := p.runPlan(t.Context())
	if n := outcome.countKinds(); n[Passed] != 7 || n[HostKey] != 1 || n[Refused] != 1 {
		t.Errorf("after that: %s; want all new boards to pass", n)
	}
}

// The next step after a changed key of known_hosts removes that key.
func TestPinAfterChange(t *testing.T) {
	p := simulate(t, 0, faultNewKey)
	knownHosts := withoutSSH(t)
	p.request.DryRun, p.request.Limit = true, p.Boards[0].Name
	met, err := Pin(t.Context(), &strings.Builder{}, p.opt, p.spec, p.request, nil)
	if err != nil {
		t.Fatal(err)
	}
	other, err := newKey()
	if err == nil {
		err = os.MkdirAll(filepath.Dir(knownHosts), 0o700)
	}
	if err == nil {
		err = os.WriteFile(knownHosts, []byte(met[0].unknown.Name()+" "+string(ssh.MarshalAuthorizedKey(other.PublicKey()))), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	_, err = Pin(t.Context(), &strings.Builder{}, p.opt, p.spec, p.request, nil)
	if err == nil || !strings.Contains(err.Error(), "\nnext: ssh-keygen -R ") || !strings.Contains(err.Error(), " -f "+knownHosts+"  # if you know") {
		t.Errorf("Pin = %v; want a next step that removes the old key", err)
	}
}

// A board counts as not met if there is no key to log in with.
func TestPinWithoutAKeyToLogIn(t *testing.T) {
	p := simulate(t, 0, faultNewKey)
	withoutSSH(t)
	if err := os.WriteFile(filepath.Join(filepath.Dir(p.Inventory), "id"), []byte("no key"), 0o600); err != nil {
		t.Fatal(err)
	}
	p.request.DryRun = true
	met, err := Pin(t.Context(), &strings.Builder{}, p.opt, p.spec, p.request, nil)
	if n := countStates(met); err != nil || n[New] != 1 || n[Known] != 1 {
		t.Errorf("%v, %v; want one new board, and the one that the inventory has a key of", met, err)
	}
}

// Keys that were pinned are reported as pinned even if a later one cannot be. A name that
// is a pattern cannot be pinned, as it would be trusted for other machines.
func TestPinRefusesPatterns(t *testing.T) {
	p := simulate(t, 0, faultNewKey, faultNewKey)
	knownHosts := withoutSSH(t)
	plan, _, err := newPlan(t.Context(), p.opt, p.spec, p.request)
	if err != nil {
		t.Fatal(err)
	}
	defer plan.close()
	for _, j := range plan.jobs {
		if _, err := j.resolveHost(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	plan.jobs[2].resolved.HostKeyAlias = "*.lab"
	met := plan.initialContacts()
	plan.fetchHostKeys(t.Context(), plan.jobs, met)
	_, err = plan.pinNew(&strings.Builder{}, plan.jobs, met, func(string) error { return nil })
	if n := countStates(met); err == nil || !strings.Contains(err.Error(), "pattern") || n[Pinned] != 1 || n[New] != 1 {
		t.Errorf("%v, %v; want one pinned, and the other refused", err, n)
	}
	if text, _ := os.ReadFile(knownHosts); strings.Contains(string(text), "*") || len(text) == 0 {
		t.Errorf("%s holds %q", knownHosts, text)
	}
}

// Boards that were not reached before a Ctrl-C are listed with their names.
func TestPinStopped(t *testing.T) {
	p := simulate(t, 2)
	withoutSSH(t)
	plan, _, err := newPlan(t.Context(), p.opt, p.spec, p.request)
	if err != nil {
		t.Fatal(err)
	}
	defer plan.close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	met := plan.initialContacts()
	plan.fetchHostKeys(ctx, plan.jobs, met)
	var out strings.Builder
	if err := writeContacts(ctx, &out, met); err == nil || countStates(met)[Unmet] != 2 || met[0].Host != p.Boards[0].Name || !strings.Contains(out.String(), "2 not met") {
		t.Errorf("%+v, %v\n%s\nwant two boards, not met", met, err, out.String())
	}
}

func TestPinDryRun(t *testing.T) {
	p := simulate(t, 0, faultNewKey)
	knownHosts := withoutSSH(t)
	p.request.DryRun = true
	var out strings.Builder
	met, err := Pin(t.Context(), &out, p.opt, p.spec, p.request, func(string) error { return errors.New("asked") })
	if _, none := os.Stat(knownHosts); err != nil || none == nil || countStates(met)[New] != 1 || !strings.Contains(out.String(), met[0].Fingerprint) {
		t.Errorf("%v, %v\n%s\nwant the key shown, and nothing else", err, met, out.String())
	}
}

// simulateNewKeys simulates boards with unknown keys and returns their contacts.
func simulateNewKeys(t *testing.T) (*simulation, []Contact) {
	t.Helper()
	p := simulate(t, 0, faultNewKey, faultNewKey)
	withoutSSH(t)
	p.request.DryRun = true
	met, err := Pin(t.Context(), &strings.Builder{}, p.opt, p.spec, p.request, nil)
	if err != nil {
		t.Fatal(err)
	}
	return p, met
}

// One key of several machines causes a warning. Two keys of one name are not pinned.
func TestPinTellsCopiesFromClashes(t *testing.T) {
	_, met := simulateNewKeys(t)
	copied := []Contact{met[0], met[2]}
	copied[1].Key = copied[0].Key
	var out strings.Builder
	if err := writeNewKeys(&out, markConflicts(copied)); err != nil || !strings.Contains(out.String(), "one key is shown by 2 machines") {
		t.Errorf("%v:\n%s\nwant a warning", err, out.String())
	}
	clashing := []Contact{met[0], met[0]}
	clashing[1].Key = met[2].Key
	if fresh := markConflicts(clashing); len(fresh) != 0 || clashing[0].State != Unmet || clashing[1].State != Unmet {
		t.Errorf("of two keys for one name %v would be pinned", fresh)
	}
}

// A fleet accepts the host keys that a single board accepts: those that a flash recorded,
// also under the serial of the inventory.
func TestFlashedKeysCount(t *testing.T) {
	p, met := simulateNewKeys(t)
	text, err := os.ReadFile(p.request.Inventory)
	if err != nil {
		t.Fatal(err)
	}
	with := strings.Replace(string(text), "board-000:\n", "board-000:\n      slipway_serial: SN-board-000\n", 1)
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	state, err := p.opt.StateDir(p.spec)
	if err != nil {
		t.Fatal(err)
	}
	flashed := "SN-board-000 " + met[0].Key + "\n" + met[2].unknown.Name() + " " + met[2].Key + "\n"
	for file, text := range map[string]string{p.request.Inventory: with, images.KnownHostsPath(state): flashed} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	p.request.DryRun, p.spec.SSH.HostCA = false, met[0].Key
	plan, _, err := newPlan(t.Context(), p.opt, p.spec, p.request)
	if err != nil {
		t.Fatal(err)
	}
	if a, err := plan.resolveAddress(t.Context(), plan.jobs[0]); err != nil || a.HostCA != met[0].Key || a.HostKeyAlias != "SN-board-000" {
		t.Errorf("resolveAddress = %+v, %v; want who signs keys, and the serial", a, err)
	}
	outcome, _ := p.runPlan(t.Context())
	if n := outcome.countKinds(); n[Passed] != 3 || n[NewKey] != 1 {
		t.Errorf("%s; want all to pass but the one that has no alias", n)
	}
}

package flash

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"
	"golang.org/x/sync/errgroup"

	"slipway/images"
)

// Flashes that run at once have one client key, and each one's host key is kept.
func TestIdentitiesAtOnce(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	ids := make([]Identity, maxPins)
	var all errgroup.Group
	for i := range ids {
		all.Go(func() (err error) {
			if ids[i], err = NewIdentity(dir); err == nil {
				err = ids[i].Pin("toy")
			}
			return err
		})
	}
	if err := all.Wait(); err != nil {
		t.Fatal(err)
	}
	known := string(read(t, images.KnownHostsPath(ids[0].dir)))
	for i, id := range ids {
		pin := knownhosts.Line([]string{"toy"}, id.host)
		if !bytes.Equal(id.client.Marshal(), ids[0].client.Marshal()) || !strings.Contains(known, pin+"\n") {
			t.Errorf("flash %d: the client key is another one, or its host key is lost", i)
		}
	}
	if want := string(ssh.MarshalAuthorizedKey(ids[0].client)); string(read(t, images.ClientKeyPath(ids[0].dir)+".pub")) != want {
		t.Errorf("%s.pub is of another key", images.ClientKeyPath(ids[0].dir))
	}
}

// A flash waits while another one has the folder's files, and then keeps what that wrote.
func TestIdentityWaitsForAnother(t *testing.T) {
	dir := t.TempDir()
	lock, err := lockFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	var id Identity
	var other errgroup.Group
	other.Go(func() (err error) { id, err = NewIdentity(dir); return err })
	time.Sleep(50 * time.Millisecond) // without the lock it ends meanwhile
	key, err := newClientKey(images.ClientKeyPath(dir))
	if err := errors.Join(err, lock.Close(), other.Wait()); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(id.client.Marshal(), key.Marshal()) {
		t.Error("the client key is another one than the first flash made")
	}
	if lock, err = lockFolder(dir); err != nil {
		t.Fatal(err)
	}
	other.Go(func() error { return id.Pin("toy") })
	time.Sleep(50 * time.Millisecond)
	err = os.WriteFile(images.KnownHostsPath(id.dir), []byte("toy ssh-ed25519 FIRST\n"), 0o644)
	if err := errors.Join(err, lock.Close(), other.Wait()); err != nil {
		t.Fatal(err)
	}
	if got, want := string(read(t, images.KnownHostsPath(id.dir))), "toy ssh-ed25519 FIRST\n"+knownhosts.Line([]string{"toy"}, id.host)+"\n"; got != want {
		t.Errorf("known_hosts = %q; want %q", got, want)
	}
}

func TestNewIdentity(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "ssh")
	first, err := NewIdentity(dir)
	if err != nil {
		t.Fatal(err)
	}
	second, err := NewIdentity(dir)
	if err != nil {
		t.Fatal(err)
	}
	if first.Fingerprint() == second.Fingerprint() {
		t.Error("two flashes got the same host key")
	}
	if a, b := ssh.FingerprintSHA256(first.client), ssh.FingerprintSHA256(second.client); a != b {
		t.Errorf("client's key = %s, then %s; want it kept", a, b)
	}
	info, err := os.Stat(images.ClientKeyPath(first.dir))
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode() != 0o600 {
		t.Errorf("mode of the client's key = %v; want 0600", info.Mode())
	}
	if err := os.WriteFile(images.ClientKeyPath(first.dir), []byte("no key"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := NewIdentity(dir); err == nil || !strings.Contains(err.Error(), "remove it") {
		t.Errorf("NewIdentity with a broken key = %v; want an error with the next step", err)
	}
}

func TestPin(t *testing.T) {
	dir := t.TempDir()
	const other = "other ssh-ed25519 AAAA\ntoy2 ssh-ed25519 AAAA\nTOY ssh-ed25519 AAAA\nother,toy ssh-ed25519 AAAA"
	if err := os.WriteFile(filepath.Join(dir, "known_hosts"), []byte("toy ssh-ed25519 OLD\n"+other), 0o644); err != nil {
		t.Fatal(err)
	}
	id, err := NewIdentity(dir)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := id.Pin("toy"); err != nil {
			t.Fatal(err)
		}
	}
	got := string(read(t, images.KnownHostsPath(id.dir)))
	want := other + "\ntoy ssh-ed25519 OLD\ntoy " + string(ssh.MarshalAuthorizedKey(id.host))
	if got != want {
		t.Errorf("known_hosts = %q; want %q", got, want)
	}
}

// Each disk of a board has a host key of its own, and an earlier one may be started again.
func TestPinsOfSeveralDisks(t *testing.T) {
	dir := t.TempDir()
	var all []string
	for range maxPins + 2 {
		id, err := NewIdentity(dir)
		if err != nil {
			t.Fatal(err)
		}
		if err := id.Pin("toy"); err != nil {
			t.Fatal(err)
		}
		all = append(all, "toy "+string(ssh.MarshalAuthorizedKey(id.host)))
	}
	got, want := string(read(t, filepath.Join(dir, "known_hosts"))), strings.Join(all[2:], "")
	if got != want {
		t.Errorf("known_hosts = %q; want the keys of the last %d flashes, %q", got, maxPins, want)
	}
}

package localfile

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	open := func() *os.File {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	first, second := open(), open()
	if err := TryLock(first); err != nil {
		t.Fatal(err)
	}
	if err := TryLock(second); !errors.Is(err, ErrLocked) {
		t.Errorf("a second Lock = %v; want %v", err, ErrLocked)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	tired := errors.New("tired")
	cancel(tired)
	if err := WaitLock(ctx, second); !errors.Is(err, tired) {
		t.Errorf("Wait, ended = %v; want %v", err, tired)
	}
	if f, err := LockNow(path, 0o644); f != nil || !errors.Is(err, ErrLocked) {
		t.Errorf("LockNow = %v, %v; want %v", f, err, ErrLocked)
	}
	time.AfterFunc(3*lockEvery, func() { first.Close() })
	third, err := Lock(t.Context(), path, 0o644)
	if err != nil {
		t.Fatalf("Lock = %v; want the lock once it is free", err)
	}
	time.AfterFunc(3*lockEvery, func() { third.Close() })
	if err := WaitLock(t.Context(), second); err != nil {
		t.Errorf("Wait = %v; want the lock once it is free", err)
	}
	second.Close()
	if err := WaitLock(t.Context(), second); err == nil || errors.Is(err, ErrLocked) {
		t.Errorf("Wait of a closed file = %v; want why it cannot be had", err)
	}
}

func TestLockInAFoldersPlace(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "a lock")
	if err := os.Mkdir(name, 0o755); err != nil {
		t.Fatal(err)
	}
	want := name + " is no regular file, and Slipway keeps a lock there\nnext: mv '" + name + "' '" + name + ".old'"
	if _, err := OpenLock(name, 0o600); err == nil || err.Error() != want {
		t.Errorf("Open of a folder = %v; want %s", err, want)
	}
	if f, err := OpenLock(filepath.Join(name, "b"), 0o600); err != nil {
		t.Error(err)
	} else {
		f.Close()
	}
	for where, make := range map[string]func(string) error{
		"file": func(name string) error { return os.WriteFile(name, nil, 0o600) },
		"link": func(name string) error { return os.Symlink("nowhere", name) },
	} {
		at := filepath.Join(dir, where)
		if err := make(at); err != nil {
			t.Fatal(err)
		}
		want := at + " is no folder, and Slipway needs one there\nnext: mv " + at + " " + at + ".old"
		for _, below := range []string{at, filepath.Join(at, "c/d")} {
			if err := MkdirAll(below); err == nil || err.Error() != want {
				t.Errorf("MkdirAll(%s) = %v; want %s", below, err, want)
			}
		}
	}
}

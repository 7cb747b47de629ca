package engine

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
	if err := Lock(first); err != nil {
		t.Fatal(err)
	}
	if err := Lock(second); !errors.Is(err, ErrLocked) {
		t.Errorf("a second Lock = %v; want %v", err, ErrLocked)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	tired := errors.New("tired")
	cancel(tired)
	if err := AwaitLock(ctx, second); !errors.Is(err, tired) {
		t.Errorf("AwaitLock, ended = %v; want %v", err, tired)
	}
	time.AfterFunc(3*lockEvery, func() { first.Close() })
	if err := AwaitLock(t.Context(), second); err != nil {
		t.Errorf("AwaitLock = %v; want the lock once it is free", err)
	}
	second.Close()
	if err := AwaitLock(t.Context(), second); err == nil || errors.Is(err, ErrLocked) {
		t.Errorf("AwaitLock of a closed file = %v; want why it cannot be had", err)
	}
}

package lzma2

import (
	"crypto/sha256"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
)

type counted int64

func (c *counted) Write(p []byte) (int, error) { *c += counted(len(p)); return len(p), nil }
func (c *counted) SkipZeros(n int64) error     { *c += counted(n); return nil }

type at struct{ f *os.File; off int64 }
func (a *at) Write(p []byte) (int, error) { n, err := a.f.WriteAt(p, a.off); a.off += int64(n); return n, err }
func (a *at) SkipZeros(n int64) error     { a.off += n; return nil }

func TestTmp(t *testing.T) {
	f, _ := os.Open("/tmp/w/a2data/img.xz")
	st, _ := f.Stat()
	x, err := Open(f, st.Size())
	if err != nil { t.Fatal(err) }
	fmt.Println(len(x.Blocks))
	o, _ := os.Create("/tmp/w/a2data/out")
	for i, b := range x.Blocks {
		a := &at{o, b.Off}
		if err := x.Decode(i, a); err != nil { t.Fatal(err) }
		if a.off != b.Off+b.Len { t.Fatal(a.off) }
	}
	o.Truncate(1<<30)
	o.Close()
	_ = sha256.New
}

func BenchmarkXZ(b *testing.B) {
	for b.Loop() {
	f, _ := os.Open("/tmp/w/a2data/img.xz")
	st, _ := f.Stat()
	x, err := Open(f, st.Size())
	if err != nil { b.Fatal(err) }
	var next atomic.Int64
	var wg sync.WaitGroup
	w := 2
	if os.Getenv("W") == "1" { w = 1 }
	for range w { wg.Go(func() { for { i := int(next.Add(1)-1); if i >= len(x.Blocks) { return }; var n counted; if err := x.Decode(i, &n); err != nil { b.Error(err) } } }) }
	wg.Wait()
	b.SetBytes(1<<30)
	}
}

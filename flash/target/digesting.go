package target

import (
	"context"
	"fmt"
	"io"
)

// A board takes a second and more for the digest of a GiB. It is computed while the rest
// is on its way, of as much as lies there from the beginning without a gap.
const (
	digestingBlock  = 4 << 20
	digestingAtOnce = 4 // blocks; each time a program is started
)

// digestingScript is fixed text; the file is its argument. It reads how many blocks more
// are there, and ends with the list.
var digestingScript = fmt.Sprintf(`at=0
while read -r n; do
	dd if="$1" bs=%d skip="$at" count="$n" 2>/dev/null || exit
	at=$((at + n))
done | if openssl version >/dev/null 2>&1; then openssl dgst -sha256 -r; else sha256sum; fi`, digestingBlock)

// digesting is a digest that the board computes as a file arrives.
type digesting struct {
	lines  *io.PipeWriter
	digest chan string
	cancel context.CancelFunc
}

// digestAlong begins with the digest of a file that has to be brought by q, if that is worth
// it. Who calls it calls stop.
func (c *Conn) digestAlong(ctx context.Context, name string, size int64, q *queue) *digesting {
	out, in := io.Pipe()
	telling, cancel := context.WithCancel(ctx)
	f := &digesting{lines: in, digest: make(chan string, 1), cancel: cancel}
	if size < resumeBytes {
		close(f.digest)
		return f
	}
	go func() {
		r, err := c.Feed(ctx, out, "sh", "-c", digestingScript, "sh", argument(name))
		out.CloseWithError(io.ErrClosedPipe) // whatever it was, nobody reads any more
		m := digestPattern.FindSubmatch(r.Stdout)
		if err != nil || r.Status != 0 || m == nil {
			m = [][]byte{nil, nil}
		}
		f.digest <- string(m[1])
	}()
	go f.tell(telling, size, q)
	return f
}

// tell says how many blocks are there until all of them are.
func (f *digesting) tell(ctx context.Context, size int64, q *queue) {
	var said int64
	for more := true; more; {
		more = q.moved(ctx)
		there := q.front(size) / digestingBlock
		if !more {
			there = (size + digestingBlock - 1) / digestingBlock
		}
		if n := there - said; n >= digestingAtOnce || !more && n > 0 {
			if _, err := fmt.Fprintln(f.lines, n); err != nil {
				return
			}
			said = there
		}
	}
	f.lines.Close()
}

// end is the digest of the file when all of it is there, and "" where there is none.
func (f *digesting) end(ctx context.Context) string {
	select {
	case digest := <-f.digest:
		return digest
	case <-ctx.Done():
		return ""
	}
}

// stop ends the program on the board, which reads to the end.
func (f *digesting) stop() {
	f.cancel()
	f.lines.Close()
}

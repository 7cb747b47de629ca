package files

import (
	"bytes"
	"context"
	"fmt"
	"io"

	"slipway/flash/boardssh"
)

// A board needs over a second for a GiB. So it digests what came without a gap during the upload.
const (
	digestingBlock  = 64 << 10                  // block size of dd; a larger buffer costs page faults and cache
	digestingAtOnce = 16 << 20 / digestingBlock // blocks for one start of dd
)

// digestingScript prints the digest of the file $1. It reads from its input how many more blocks
// have arrived, and ends with that list. It then prints "part" if $2 has parts of other versions.
var digestingScript = fmt.Sprintf(`at=0
while read -r n; do
	dd if="$1" bs=%d skip="$at" count="$n" 2>/dev/null || exit
	at=$((at + n))
done | if openssl version >/dev/null 2>&1; then openssl dgst -sha256 -r; else sha256sum; fi
`, digestingBlock) + eachPart + "echo part && break\ndone; true"

// boardDigest is a digest that the board computes while a file arrives.
type boardDigest struct {
	lines  *io.PipeWriter
	digest chan digestAnswer
	cancel context.CancelFunc
	stale  bool // the file was created again while it was digested
}

// digestAnswer is the board's answer about a file.
type digestAnswer struct {
	digest string
	others bool // parts of other versions exist on the board
}

// startBoardDigest starts digestingScript on the board for the file name, whose pieces q sends. The
// script also looks for part files of other versions of remote. For a file under resumeBytes, no
// script starts. The caller calls stopProgram.
func startBoardDigest(ctx context.Context, c *boardssh.Conn, name, remote string, size int64, q *pieceQueue) *boardDigest {
	out, in := io.Pipe()
	telling, cancel := context.WithCancel(ctx)
	f := &boardDigest{lines: in, digest: make(chan digestAnswer, 1), cancel: cancel}
	if size < resumeBytes {
		close(f.digest)
		return f
	}
	go func() {
		r, err := c.Feed(ctx, out, "sh", "-c", digestingScript, "sh", pathArgument(name), hiddenPrefix(remote))
		out.CloseWithError(io.ErrClosedPipe) // the program has ended, so tellProgress must stop
		m := digestPattern().FindSubmatch(r.Stdout)
		if err != nil || r.Status != 0 || m == nil {
			m = [][]byte{nil, nil}
		}
		f.digest <- digestAnswer{string(m[1]), bytes.Contains(r.Stdout, []byte("\npart\n"))}
	}()
	go f.tellProgress(telling, size, q)
	return f
}

// tellProgress writes to the board's program how many more blocks have arrived. When no more will
// come, it counts all blocks as arrived, and closes the program's input.
func (f *boardDigest) tellProgress(ctx context.Context, size int64, q *pieceQueue) {
	var said int64
	for more := true; more; {
		more = q.waitForArrival(ctx)
		there := q.contiguousBytes(size) / digestingBlock
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

// waitForDigest waits for the board's digest of the whole file. Without one, the answer is empty.
func (f *boardDigest) waitForDigest(ctx context.Context) digestAnswer {
	if f.stale {
		return digestAnswer{}
	}
	select {
	case a := <-f.digest:
		return a
	case <-ctx.Done():
		return digestAnswer{}
	}
}

// stopProgram ends the program on the board.
func (f *boardDigest) stopProgram() {
	f.cancel()
	f.lines.Close()
}

package offload

import (
	"cmp"
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"strings"

	"slipway/images"
	"slipway/layers/plaintext"
)

// senderProgram sends the frames that are written before it, one a line in hexadecimal. It
// stays on one processor, because the kernel may reorder the frames of several.
const senderProgram = `
import os, socket, sys, time
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
out = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
out.bind((sys.argv[1], 0))
for line in frames.split():
    out.send(bytes.fromhex(line))
    time.sleep(0.001)
`

// sendFrames sends frames from a peer. Its Python reads the program from standard input. The
// command line has only plain words, because a peer's run may be ssh, which passes them to a
// shell.
func (t *traffic) sendFrames(ctx context.Context, p images.Peer, frames [][]byte) error {
	var program strings.Builder
	program.WriteString("frames = \"\"\"\n")
	for _, frame := range frames {
		fmt.Fprintln(&program, hex.EncodeToString(frame))
	}
	program.WriteString("\"\"\"" + senderProgram)
	errs := &outputWatcher{seen: make(chan struct{})}
	status, err := t.Stream(ctx, strings.NewReader(program.String()), io.Discard, errs, peerCommand(p, "python3", "-", p.Interface)...)
	if err == nil && status != 0 {
		err = fmt.Errorf("python3 exited with %d: %s", status, cmp.Or(plaintext.CleanTail(errs.String(), 500), "no output"))
	}
	if err != nil {
		err = fmt.Errorf("send %d packets by %s: %w", len(frames), p.Interface, err)
	}
	return err
}

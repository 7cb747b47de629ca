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

// senderProgram is the Python program that sends frames. sendFrames prepends the variable frames,
// with one frame a line in hexadecimal. The program stays on one CPU, because the kernel may
// reorder frames that several CPUs send.
const senderProgram = `
import os, socket, sys, time
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
out = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
out.bind((sys.argv[1], 0))
for line in frames.split():
    out.send(bytes.fromhex(line))
    time.sleep(0.001)
`

// sendFrames sends Ethernet frames from a peer's interface. It starts python3 on the peer and
// writes senderProgram, with the frames in it, to its standard input. The arguments are plain
// words, because the peer's command may be ssh, which passes them to a shell.
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

package diskend

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"slipway/layers/run"
)

// Ext4 checks and repairs the file system at an offset of f, resizes it to sizeBytes and checks it
// again. 0 is the smallest size and a tenth more, 16 MiB at least. Ext4 returns the size, in whole
// MiB. resize2fs cuts a regular file off at that size. A device must not be open exclusively.
func Ext4(ctx context.Context, f *os.File, offset, sizeBytes int64) (int64, error) {
	at := fmt.Sprintf("/proc/self/fd/3?offset=%d", offset) // e2fsprogs' own form; fd 3 is f
	output := func(argv ...string) ([]byte, error) {
		out, err := run.Output(ctx, run.Command{Argv: argv, Hold: f, Env: []string{"LC_ALL=C"}})
		if errors.Is(err, exec.ErrNotFound) {
			err = fmt.Errorf("%w (Debian package e2fsprogs)", err)
		}
		return out, err
	}
	_, err := output("e2fsck", "-f", "-p", at)
	if f, _ := errors.AsType[*run.Failure](err); err != nil && (f == nil || f.Status != "exit status 1") { // 1: repaired
		return 0, err
	}
	if sizeBytes == 0 {
		out, err := output("resize2fs", "-P", at)
		if err != nil {
			return 0, err
		}
		_, text, _ := strings.Cut(string(out), "minimum size of the filesystem: ")
		blocks, err := strconv.ParseUint(strings.TrimSpace(text), 10, 40)
		block := make([]byte, 4)
		if _, wrong := f.ReadAt(block, offset+1024+24); errors.Join(err, wrong) != nil {
			return 0, fmt.Errorf("resize2fs -P says %.80q: %w", out, errors.Join(err, wrong))
		}
		least := int64(blocks) << (10 + min(le.Uint32(block), 6))
		sizeBytes = RoundUp(least + max(least/10, 16<<20))
	}
	if _, err := output("resize2fs", at, fmt.Sprintf("%dK", sizeBytes>>10)); err != nil {
		return 0, err
	}
	_, err = output("e2fsck", "-f", "-n", at)
	return sizeBytes, err
}

package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"slipway/layers/run"
)

// A folder like that of an application on a board, of which a release changed a few
// files: most are small, one is a program that was built again, and one is new.
const (
	deltaFiles      = 1000
	deltaFileBytes  = 48 << 10
	deltaProgram    = 3 << 20
	deltaChanged    = 12 // of the small ones
	deltaFolderSize = 40 // files
)

// measureDelta counts the bytes that a link carries until a folder on the board equals the
// local one.
func (b *deployBench) measureDelta(ctx context.Context, w io.Writer, only *regexp.Regexp) (_ []Ratio, err error) {
	if !only.MatchString("delta") {
		return nil, nil
	}
	before, after, there := filepath.Join(b.dir, "before"), filepath.Join(b.dir, "after"), filepath.Join(b.dir, "there")
	if err := makeRelease(ctx, before, after); err != nil {
		return nil, err
	}
	line, err := newSlowLink(ctx, 0, farMTU)
	if err != nil {
		return nil, err
	}
	defer line.close()
	s, err := b.startServer(ctx, line)
	if err != nil {
		return nil, err
	}
	defer s.server.Stop()
	tools := []struct {
		name    string
		command run.Command
	}{
		{"ours", b.senderCommand(s, "folder", after, there)},
		{"rsync", run.Command{Argv: []string{"rsync", "-a", "--delete", "-e", s.sshCommand(), after + "/", serverAddress + ":" + there}}},
	}
	sums := map[string]int64{}
	for _, tool := range tools {
		if sums[tool.name], err = b.countBytes(ctx, s, before, after, there, tool.command); err != nil {
			return nil, fmt.Errorf("%s: %w", tool.name, err)
		}
		fmt.Fprintf(w, "delta: %s carried %.2f MiB for %d files of %d that differ\n", tool.name, float64(sums[tool.name])/(1<<20), deltaChanged+2, deltaFiles+2)
	}
	return []Ratio{{"delta_ours_over_rsync", float64(sums["ours"]) / float64(sums["rsync"])}}, nil
}

// countBytes restores the folder on the board, then counts the bytes that a tool sends.
func (b *deployBench) countBytes(ctx context.Context, s *deployServer, before, after, there string, c run.Command) (int64, error) {
	err := os.RemoveAll(there)
	if err == nil {
		err = run.Run(ctx, run.Command{Argv: []string{"cp", "-a", before, there}})
	}
	if err != nil {
		return 0, err
	}
	from := s.line.carried.Load()
	if err := s.runIn(ctx, c); err != nil {
		return 0, err
	}
	return s.line.carried.Load() - from, run.Run(ctx, run.Command{Argv: []string{"diff", "-r", after, there}})
}

func makeRelease(ctx context.Context, before, after string) error {
	if err := os.Mkdir(before, 0o755); err != nil {
		return err
	}
	small := func(i int) string {
		return fmt.Sprintf("lib-%02d/part-%03d.so", i/deltaFolderSize, i)
	}
	for i := range deltaFiles {
		name := filepath.Join(before, small(i))
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		if err := makeFile(name, byte(i), deltaFileBytes+int64(i)); err != nil {
			return err
		}
	}
	if err := makeFile(filepath.Join(before, "program"), 1, deltaProgram); err != nil {
		return err
	}
	if err := run.Run(ctx, run.Command{Argv: []string{"cp", "-a", before, after}}); err != nil {
		return err
	}
	for i := range deltaChanged {
		i *= deltaFiles / deltaChanged
		if err := makeAgain(filepath.Join(after, small(i)), byte(i+1), deltaFileBytes+int64(i)); err != nil {
			return err
		}
	}
	return errors.Join(makeAgain(filepath.Join(after, "program"), 2, deltaProgram), makeAgain(filepath.Join(after, "new"), 3, deltaFileBytes))
}

// makeAgain makes a file that is an hour younger, as rsync assumes that files with the same
// second and size are equal.
func makeAgain(name string, seed byte, size int64) error {
	if err := makeFile(name, seed, size); err != nil {
		return err
	}
	later := time.Now().Add(time.Hour)
	return os.Chtimes(name, later, later)
}

package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"slipway/flash/target/sshd"
	"slipway/layers/host"
	"slipway/layers/run"
)

const (
	deployMiB    = 1024
	deployRounds = 5

	// farDelay is for one direction, so a round trip takes twice that. The packets are
	// large, since this process carries each.
	farDelay = 10 * time.Millisecond
	farMTU   = 60000

	// At a round trip of 20 ms a client that waits for each answer sends about 1.4 MiB/s.
	// Its time for the whole file is computed from that for a part.
	partMiB = 8
)

// Deploy measures how long a program takes to send a file to an OpenSSH server at the other
// end of a link, from its start to its end. Slipway's time includes fsync and the check of
// the digest on the server, the times of the others do not. One link is as fast as the
// kernel, the other delays packets by 10 ms in each direction. Deploy also counts the bytes
// on the wire for a folder of which a few files differ, beside rsync's.
func Deploy(ctx context.Context, w io.Writer, o Options) (err error) {
	o = o.withDefaults(deployRounds, deployMiB)
	only, err := compileOnly(o.Only, deployNames())
	if err != nil {
		return err
	}
	if err := host.Ensure(ctx, w, "build/bench/apt.log", "openssh-server", "openssh-client", "rsync", "iproute2"); err != nil {
		return err
	}
	b, err := newDeployBench(ctx, int64(o.MiB)<<20)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.dir)) }()
	var all []Ratio
	for _, line := range deployLines {
		ratios, err := b.measureLine(ctx, w, line, o.Rounds, only)
		if err != nil {
			return fmt.Errorf("%s: %w", line.name, err)
		}
		all = append(all, ratios...)
	}
	delta, err := b.measureDelta(ctx, w, only)
	if err != nil {
		return fmt.Errorf("delta: %w", err)
	}
	return printRatios(w, append(all, delta...))
}

// deployNames are what --only chooses from.
func deployNames() (names []string) {
	for _, line := range deployLines {
		all, _ := (&deployBench{}).listVariants(nil, line, regexp.MustCompile(""))
		for _, v := range all {
			names = append(names, line.name+" "+v.Name)
		}
	}
	return append(names, "delta")
}

// deployLine is a link to measure on.
type deployLine struct {
	name, about string
	make        func(context.Context) (*link, error)
}

var deployLines = []deployLine{
	{"plain", "veth", newPlainLink},
	{"far", "round trip 20 ms", func(ctx context.Context) (*link, error) { return newSlowLink(ctx, farDelay, farMTU) }},
}

// deployBench is a folder with a file to send.
type deployBench struct {
	dir           string
	local, remote string
	part          string // the beginning of the file, for slow programs
	size          int64
	sender        string // the program that sends as Slipway does
}

// memory is a folder in RAM, so that no disk is measured.
const memory = "/dev/shm"

func newDeployBench(ctx context.Context, size int64) (_ *deployBench, err error) {
	parent := memory
	if _, err := os.Stat(memory); err != nil {
		parent = ""
	}
	dir, err := os.MkdirTemp(parent, "slipway-bench-deploy-")
	if err != nil {
		return nil, err
	}
	in := func(name string) string { return filepath.Join(dir, name) }
	b := &deployBench{dir: dir, local: in("local"), remote: in("remote"), part: in("part"), size: size, sender: in("sender")}
	err = errors.Join(
		makeFile(b.local, 0, size), makeFile(b.part, 0, min(size, partMiB<<20)),
		run.Run(ctx, run.Command{Argv: []string{"go", "build", "-o", b.sender, "./ci/dev/bench/sender"}}),
	)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return b, nil
}

// makeFile fills a file with data that does not compress. No tool here compresses, but a
// file of zeros would not be realistic.
func makeFile(name string, seed byte, size int64) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := io.CopyN(f, rand.NewChaCha8([32]byte{seed}), size); err != nil {
		return err
	}
	return f.Close()
}

// deployServer is an SSH server at one end of a link, with what its clients need.
type deployServer struct {
	line     *link
	server   *sshd.Server
	address  string
	pinned   string
	identity string
}

const deployPort = "2222" // in a namespace where nothing else listens

func (b *deployBench) startServer(ctx context.Context, line *link) (*deployServer, error) {
	keys, err := os.MkdirTemp(b.dir, "server-")
	if err != nil {
		return nil, err
	}
	server, err := sshd.New(keys,
		"Subsystem sftp /usr/lib/openssh/sftp-server", // as Debian's own configuration has it
		"ClientAliveInterval 5",                       // connections of a killed bench end by themselves
		"ListenAddress "+serverAddress+":"+deployPort)
	if err != nil {
		return nil, err
	}
	known, err := os.ReadFile(server.KnownHosts)
	if err != nil {
		return nil, err
	}
	_, key, _ := strings.Cut(string(known), " ")
	s := &deployServer{line: line, server: server, address: serverAddress + ":" + deployPort, pinned: filepath.Join(keys, "pinned"), identity: server.Identity}
	if err := os.WriteFile(s.pinned, []byte("["+serverAddress+"]:"+deployPort+" "+key), 0o600); err != nil {
		return nil, err
	}
	return s, line.server.runOnThread(func() error { return server.Start(ctx) })
}

// runIn runs a program at the client's end of the link.
func (s *deployServer) runIn(ctx context.Context, c run.Command) error {
	return s.line.client.runOnThread(func() error { return run.Run(ctx, c) })
}

// deployTool is a program that sends a file.
type deployTool struct {
	name    string
	command func(b *deployBench, s *deployServer) run.Command
}

var deployTools = []deployTool{
	{"ours", func(b *deployBench, s *deployServer) run.Command {
		return b.senderCommand(s, "file", b.local, b.remote)
	}},
	{"sftp", func(b *deployBench, s *deployServer) run.Command {
		return run.Command{
			Argv:  slices.Concat([]string{"sftp", "-q", "-b", "-", "-P", deployPort}, s.sshOptions(), []string{serverAddress}),
			Stdin: strings.NewReader(fmt.Sprintf("put %s %s\n", b.local, b.remote)),
		}
	}},
	{"scp", func(b *deployBench, s *deployServer) run.Command {
		return run.Command{Argv: slices.Concat([]string{"scp", "-q", "-P", deployPort}, s.sshOptions(), []string{b.local, serverAddress + ":" + b.remote})}
	}},
	{"rsync -W", func(b *deployBench, s *deployServer) run.Command {
		return run.Command{Argv: []string{"rsync", "-W", "-e", s.sshCommand(), b.local, serverAddress + ":" + b.remote}}
	}},
	{"ssh cat", func(b *deployBench, s *deployServer) run.Command {
		script := `exec ssh "$@" <"$0"`
		return run.Command{Argv: slices.Concat([]string{"sh", "-c", script, b.local, "-q", "-p", deployPort}, s.sshOptions(), []string{serverAddress, "cat >" + b.remote})}
	}},
}

func (s *deployServer) sshOptions() []string {
	return []string{"-F", "none", "-i", s.identity, "-o", "IdentitiesOnly=yes", "-o", "UserKnownHostsFile=" + s.pinned, "-o", "BatchMode=yes"}
}

// sshCommand returns the command that rsync starts. None of our paths has a space.
func (s *deployServer) sshCommand() string {
	return strings.Join(append([]string{"ssh", "-p", deployPort}, s.sshOptions()...), " ")
}

func (b *deployBench) senderCommand(s *deployServer, what, local, remote string) run.Command {
	return run.Command{Argv: []string{b.sender, what, s.address, s.pinned, s.identity, local, remote}}
}

// libraryName is the row of pkg/sftp with its defaults.
const libraryName = "pkg/sftp, defaults"

func (b *deployBench) measureLine(ctx context.Context, w io.Writer, kind deployLine, rounds int, only *regexp.Regexp) (_ []Ratio, err error) {
	line, err := kind.make(ctx)
	if err != nil {
		return nil, err
	}
	defer line.close()
	s, err := b.startServer(ctx, line)
	if err != nil {
		return nil, err
	}
	defer s.server.Stop()
	variants, sent := b.listVariants(s, kind, only)
	if len(variants) == 0 {
		return nil, nil
	}
	rows, err := MeasureShuffled(ctx, rounds, variants...)
	if err != nil {
		return nil, err
	}
	for i := range rows {
		for j := range rows[i].Times {
			rows[i].Times[j] = time.Duration(float64(rows[i].Times[j]) * float64(b.size) / float64(sent[rows[i].Name]))
		}
	}
	fmt.Fprintf(w, "%s (%s): %d MiB to sshd, files in %s\n", kind.name, kind.about, b.size>>20, filepath.Dir(b.dir))
	return deployRatios(rows, kind.name), PrintTable(w, rows)
}

// listVariants returns the matching tools, and how many bytes each sends.
func (b *deployBench) listVariants(s *deployServer, kind deployLine, only *regexp.Regexp) (variants []Variant, sent map[string]int64) {
	sent = map[string]int64{}
	add := func(name string, size int64, command func() run.Command) {
		if !only.MatchString(kind.name + " " + name) {
			return
		}
		sent[name] = size
		variants = append(variants, Variant{
			Name:    name,
			Prepare: func(context.Context) error { return b.removeFile() },
			Run: func(ctx context.Context) error {
				if err := s.runIn(ctx, command()); err != nil {
					return err
				}
				return b.checkArrived(size)
			},
		})
	}
	for _, tool := range deployTools {
		add(tool.name, b.size, func() run.Command { return tool.command(b, s) })
	}
	local, size := b.local, b.size
	if kind.name == "far" {
		local, size = b.part, min(b.size, partMiB<<20)
	}
	add(libraryName, size, func() run.Command { return b.senderCommand(s, "library", local, b.remote) })
	return variants, sent
}

// removeFile removes the file of the last round.
func (b *deployBench) removeFile() error {
	err := os.Remove(b.remote)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// checkArrived checks the size of the file that arrived.
func (b *deployBench) checkArrived(size int64) error {
	info, err := os.Stat(b.remote)
	if err == nil && info.Size() != size {
		err = fmt.Errorf("%s has %d bytes, not %d", b.remote, info.Size(), size)
	}
	return err
}

// deployRatios returns the ratios of the measured rows.
func deployRatios(rows []Row, line string) (ratios []Ratio) {
	find := func(name string) (Row, bool) {
		i := slices.IndexFunc(rows, func(r Row) bool { return r.Name == name })
		if i < 0 {
			return Row{}, false
		}
		return rows[i], true
	}
	ours, ok := find("ours")
	if !ok {
		return nil
	}
	peers := slices.DeleteFunc(slices.Clone(rows), func(r Row) bool { return r.Name == "ours" || r.Name == libraryName })
	if len(peers) > 0 {
		best := slices.MinFunc(peers, func(a, b Row) int { return cmp.Compare(a.Median(), b.Median()) })
		name := map[string]string{"plain": "plain_best_over_ours", "far": "far_best_single_over_ours"}[line]
		ratios = append(ratios, TimeRatio(name, best, ours))
	}
	if library, ok := find(libraryName); ok {
		ratios = append(ratios, TimeRatio(line+"_default_over_ours", library, ours))
	}
	return ratios
}

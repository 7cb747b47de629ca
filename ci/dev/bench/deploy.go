package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"slipway/flash/target/sshd"
	"slipway/layers/run"
)

// farDelay is the delay of the slow line in each direction: a round trip takes 20 ms.
const farDelay = 10 * time.Millisecond

const sshOptions = "-F none -i {key} -o IdentitiesOnly=yes -o UserKnownHostsFile={known} -o BatchMode=yes"

// deployTools send a file. Slipway's time includes fsync and the check of the digest on the
// server, the times of the others do not.
var deployTools = []struct{ name, command string }{
	{"ours", "{program} {port} {known} {key} {local} {remote}"},
	{"sftp", "sftp -q -b {batch} -P {port} " + sshOptions + " 127.0.0.1"},
	{"scp", "scp -q -P {port} " + sshOptions + " {local} 127.0.0.1:{remote}"},
	{"rsync -W", "rsync -W -e 'ssh -p {port} " + sshOptions + "' {local} 127.0.0.1:{remote}"},
	{"ssh cat", `sh -c "exec ssh -q -p {port} ` + sshOptions + ` 127.0.0.1 'cat >{remote}' <{local}"`},
}

var deployLines = []string{"plain", "far"}

func deployNames() (names []string) {
	for _, line := range deployLines {
		for _, tool := range deployTools {
			names = append(names, line+" "+tool.name)
		}
	}
	return names
}

var deployRatios = []ratio{
	{name: "plain_best_over_ours", over: "plain sftp|plain scp|plain rsync -W|plain ssh cat", under: "plain ours"},
	{name: "far_best_single_over_ours", over: "far sftp|far scp|far rsync -W|far ssh cat", under: "far ours"},
}

// measureDeploy measures how long programs take to send a file to an OpenSSH server, from
// their start to their end: directly, and over a line with a delay. The files lie in memory.
func measureDeploy(ctx context.Context, s *session) (err error) {
	dir, err := os.MkdirTemp("/dev/shm", "slipway-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	at := func(name string) string { return filepath.Join(dir, name) }
	size := int64(s.MiB) << 20
	err = errors.Join(
		makeFile(at("local"), 0, size),
		os.WriteFile(at("batch"), fmt.Appendf(nil, "put %s %s\n", at("local"), at("remote")), 0o600),
		s.buildProgram(ctx, ".", "./ci/dev/bench/sender"),
	)
	if err != nil {
		return err
	}
	server, err := startServer(ctx, at("server"))
	if err != nil {
		return err
	}
	defer server.Stop()
	var variants []variant
	for i, delay := range []time.Duration{0, farDelay} {
		port := server.Port
		if delay > 0 {
			far, err := listenLine(port, delay)
			if err != nil {
				return err
			}
			defer far.Close()
			port = far.port()
		}
		values, err := serverValues(server, port)
		if err != nil {
			return err
		}
		words := strings.NewReplacer(append(values, "{local}", at("local"), "{remote}", at("remote"), "{batch}", at("batch"))...)
		for _, tool := range deployTools {
			variants = append(variants, variant{
				name: deployLines[i] + " " + tool.name, command: words.Replace(tool.command),
				prepare: func(context.Context, variant) error { return os.RemoveAll(at("remote")) },
				check: func(ctx context.Context) error {
					return run.Run(ctx, run.Command{Argv: []string{"cmp", at("local"), at("remote")}})
				},
			})
		}
	}
	rows, err := s.measure(ctx, variants)
	if err != nil {
		return err
	}
	fmt.Fprintf(s.w, "%d MiB to sshd, plain: loopback, far: a round trip of %s, files in memory\n", s.MiB, 2*farDelay)
	return s.print(rows, deployRatios)
}

// startServer starts an SSH server with Debian's sftp-server.
func startServer(ctx context.Context, dir string) (*sshd.Server, error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	// Connections of a killed bench end by the interval.
	server, err := sshd.New(dir, "Subsystem sftp /usr/lib/openssh/sftp-server", "ClientAliveInterval 5")
	if err != nil {
		return nil, err
	}
	return server, server.Start(ctx)
}

// serverValues returns what a client's command needs to reach the server through a port, as
// arguments of strings.NewReplacer.
func serverValues(server *sshd.Server, port int) ([]string, error) {
	known, err := os.ReadFile(server.KnownHosts)
	if err != nil {
		return nil, err
	}
	_, key, _ := strings.Cut(string(known), " ")
	file := fmt.Sprintf("%s.%d", server.KnownHosts, port)
	values := []string{"{port}", strconv.Itoa(port), "{known}", file, "{key}", server.Identity}
	return values, os.WriteFile(file, fmt.Appendf(nil, "[127.0.0.1]:%d %s", port, key), 0o600)
}

// makeFile fills a file with data that does not compress.
func makeFile(name string, seed byte, size int64) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	_, err = io.CopyN(f, rand.NewChaCha8([32]byte{seed}), size)
	return errors.Join(err, f.Close())
}

package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"slipway/flash/boardssh/sshd"
)

const sshOptions = "-F none -i {key} -o IdentitiesOnly=yes -o UserKnownHostsFile={known} -o BatchMode=yes"

// deployTools send a file. Only Slipway's time includes fsync and a check of the server's digest.
var deployTools = [][2]string{
	{"ours", "{program} {at} {known} {key} {memory}/local {memory}/remote"},
	{"sftp", "sftp -q -b {memory}/batch -P {at} " + sshOptions + " 127.0.0.1"},
	{"scp", "scp -q -P {at} " + sshOptions + " {memory}/local 127.0.0.1:{memory}/remote"},
	{"rsync -W", "rsync -W -e 'ssh -p {at} " + sshOptions + "' {memory}/local 127.0.0.1:{memory}/remote"},
	{"ssh cat", `sh -c "exec ssh -q -p {at} ` + sshOptions + ` 127.0.0.1 'cat >{memory}/remote' <{memory}/local"`},
}

// deploy measures how long programs take, with their start, to send a file to an OpenSSH server:
// directly, and over a line with a delay.
var deploy = area{
	rounds: 5, mib: 1024,
	packages: []string{"openssh-server", "openssh-client", "rsync"},
	delay:    10 * time.Millisecond,
	begin:    startServer,
	about:    "{mib} MiB to sshd, plain: loopback, far: a round trip of 20 ms, files in memory",
	variants: append(deployVariants("plain", "{port}"), deployVariants("far", "{far}")...),
	ratios: []ratio{
		{name: "plain_best_over_ours", over: "plain sftp|plain scp|plain rsync -W|plain ssh cat", under: "plain ours"},
		{name: "far_best_single_over_ours", over: "far sftp|far scp|far rsync -W|far ssh cat", under: "far ours"},
	},
}

// deployVariants returns a variant "LINE TOOL" of each of deployTools, which connects to port.
func deployVariants(line, port string) (all []variant) {
	for _, tool := range deployTools {
		all = append(all, variant{name: line + " " + tool[0], command: strings.ReplaceAll(tool[1], "{at}", port), prepare: "prepare", check: "check"})
	}
	return all
}

// startServer starts sshd with Debian's sftp-server, connects the delayed line to it, and sets
// port, key and known in s.words. known_hosts has the direct and the delayed port.
func startServer(ctx context.Context, s *session) error {
	dir := filepath.Join(s.dir, "server")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	// Connections of a killed bench end by the interval.
	server, err := sshd.New(dir, "Subsystem sftp /usr/lib/openssh/sftp-server", "ClientAliveInterval 5")
	if err != nil {
		return err
	}
	s.line.to.Store(int64(server.Port))
	s.words["port"], s.words["key"], s.words["known"] = fmt.Sprint(server.Port), server.Identity, server.KnownHosts
	known, err := os.ReadFile(server.KnownHosts)
	if err != nil {
		return err
	}
	known = append(known, strings.Replace(string(known), s.words["port"], s.words["far"], 1)...)
	return errors.Join(os.WriteFile(server.KnownHosts, known, 0o600), server.Start(ctx))
}

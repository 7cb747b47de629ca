package hubstest

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"slipway/ci/fleet"
	"slipway/ci/job"
	"slipway/flash/boardssh/sshd"
	"slipway/images"
	"slipway/layers/localfile"
	"slipway/layers/run"
)

// sshKind is the kind of boards that are servers of OpenSSH. Their suite writes the board's file.
const sshKind = "openssh"

// makeProject writes the kind's files and an artifact below the desk, sends that to the hub, and returns
// its place there. Stations read the kind from there, too.
func (l *Lab) makeProject(ctx context.Context) (place string, err error) {
	const content = "an image"
	artifact, err := json.Marshal(images.Artifact{Board: sshKind, Arch: "arm64", Key: "0102030405060708", Files: []images.File{{Kind: "disk", Name: "disk.img", SizeBytes: int64(len(content)), SHA256: fmt.Sprintf("%x", sha256.Sum256([]byte(content)))}}})
	if err != nil {
		return "", err
	}
	for name, text := range map[string]string{
		"boards/" + sshKind + "/board.yml":    "extends: raspberrypi5\nsuites: [work]\n",
		"suites/work.yml":                     "command:\n  work:\n    exec: echo begin >>\"$HOME\"/file; sleep 0.3; echo end >>\"$HOME\"/file\n    exit-status: 0\n",
		"build/" + sshKind + "/disk.img":      content,
		"build/" + sshKind + "/artifact.json": string(artifact),
	} {
		name = filepath.Join(l.desk.Dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), 0o600)); err != nil {
			return "", err
		}
	}
	out, err := l.desk.Run(ctx, "push", sshKind, "hub:"+sshKind, "--json")
	if err != nil {
		return "", err
	}
	pushed, err := decode[struct{ Digest string }]([]byte(out))
	return "hub:" + sshKind + "@" + pushed.Digest, err
}

// startServers starts an SSH server for each board of a station, in its namespace, and writes their
// inventory.
func (l *Lab) startServers(ctx context.Context, m *Machine) (inventory string, err error) {
	var text strings.Builder
	for _, board := range m.Boards {
		dir := filepath.Dir(l.BoardFile(board))
		s, err := sshd.New(dir)
		if err != nil {
			return "", err
		}
		key, err := os.ReadFile(s.KnownHosts)
		if err != nil {
			return "", err
		}
		_, pinned, _ := strings.Cut(strings.TrimSpace(string(key)), " ")
		fmt.Fprintf(&text, "%s ansible_host=127.0.0.1 ansible_port=%d ansible_user=root ansible_ssh_private_key_file=%s slipway_board=%s slipway_host_key='%s'\n", board, s.Port, s.Identity, sshKind, pinned)
		cmd := run.Prepare(context.WithoutCancel(ctx), m.command(sshd.Program, "-D", "-e", "-f", filepath.Join(dir, "config")))
		if err := cmd.Start(); err != nil {
			return "", err
		}
	}
	inventory = l.inventoryOf(m)
	return inventory, os.WriteFile(inventory, []byte(text.String()), 0o600)
}

func (l *Lab) inventoryOf(m *Machine) string { return filepath.Join(l.Dir, m.Name+".hosts") }

// checkServers checks the boards' files: one work at a time, and at least as often as jobs passed. A
// killed one has no end.
func (l *Lab) checkServers(jobs []job.Change) error {
	passed := map[string]int{}
	var broken []error
	for _, c := range jobs {
		switch {
		case c.Job.State != job.Ended || c.Job.Result == nil:
			broken = append(broken, fmt.Errorf("job %s is %s without an end", c.Job.ID, c.Job.State))
		case c.Job.Result.Kind == fleet.Passed:
			passed[c.Job.Name]++
		}
	}
	for _, m := range l.Stations {
		for _, name := range m.Boards {
			data, err := localfile.Read(l.BoardFile(name), 1<<20)
			words, ends := strings.Fields(string(data)), 0
			for i, word := range words {
				if word == "end" {
					ends++
				}
				if word == "end" && (i == 0 || words[i-1] != "begin") {
					err = fmt.Errorf("%s: two works at once: %v", name, words)
				}
			}
			if ends < passed[name] {
				err = fmt.Errorf("%s: %d jobs passed, and it worked %d times", name, passed[name], ends)
			}
			broken = append(broken, err)
		}
	}
	return errors.Join(broken...)
}

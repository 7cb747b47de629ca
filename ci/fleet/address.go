package fleet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"slipway/ci/reach"
	"slipway/ci/report"
	"slipway/flash/boardssh"
	"slipway/images"
	"slipway/layers/plaintext"
	"slipway/layers/progress"
)

const knownHostsName = "known_hosts"

// resolveAddress returns the SSH address of a board, from the inventory and ~/.ssh/config, or that of
// the virtual board if the host has its name. If the
// inventory has a host key, it accepts only that key, and writes it to a known_hosts file. Else it
// adds the keys of reach.AddHostKeys, also the one that a flash recorded under the board's serial.
func (p *plan) resolveAddress(ctx context.Context, j *job) (boardssh.Address, error) {
	if p.spec.Machine != nil && j.host.Name == p.spec.Board { // it has another port after each start
		return reach.AddressOf(ctx, p.opt, p.spec, j.host.Name)
	}
	a, err := j.resolveHost(ctx)
	if err != nil {
		return a, err
	}
	if j.access.HostKey != "" {
		dir := p.hostDir(j)
		a.HostKeyAlias, a.KnownHosts = j.host.Name, []string{filepath.Join(dir, knownHostsName)}
		return a, writeFile(dir, knownHostsName, []byte(j.host.Name+" "+j.access.HostKey+"\n"))
	}
	if j.access.Serial != "" && p.spec.Board != "" && a.HostKeyAlias == "" {
		dir, err := p.opt.StateDir(p.spec)
		if err != nil {
			return a, err
		}
		flashed, err := boardssh.HasRecorded(images.KnownHostsPath(dir), j.access.Serial)
		if err != nil {
			return a, err
		}
		if flashed {
			a.HostKeyAlias = j.access.Serial
		}
	}
	err = reach.AddHostKeys(p.opt, p.spec, &a)
	return a, err
}

// dial connects to a board and asks the user nothing. If the inventory's key is not the board's,
// the error names the inventory, not the file of resolveAddress.
func (p *plan) dial(ctx context.Context, j *job) (*boardssh.Conn, error) {
	a, err := p.resolveAddress(ctx, j)
	if err != nil {
		return nil, err
	}
	conn, err := boardssh.DialUnattended(ctx, a)
	if written := filepath.Join(p.hostDir(j), knownHostsName); errors.Is(err, boardssh.ErrHostKey) && strings.Contains(err.Error(), written) {
		saw, _ := report.SplitNext(err, "")
		names := strings.NewReplacer(written+":1", hostKeyVariable+" in "+p.request.Inventory, "forget the old key", "change "+hostKeyVariable)
		err = kindError{HostKey, fmt.Errorf("%s\nnext: ssh-keyscan -p %d %s", names.Replace(saw), a.Port, plaintext.Quote(a.Host))}
	}
	return conn, err
}

// resolveHost returns the host's address, by ssh -G and the inventory, and keeps it in j.resolved.
func (j *job) resolveHost(ctx context.Context) (a boardssh.Address, err error) {
	if j.resolved.Host != "" {
		return j.resolved, nil
	}
	name := j.access.Host
	if j.access.Port > 0 {
		name = net.JoinHostPort(name, strconv.Itoa(j.access.Port))
	}
	if j.access.User != "" {
		name = j.access.User + "@" + name
	}
	if len(j.access.Jump) > 0 {
		a, err = boardssh.ResolveThrough(ctx, name, strings.Join(j.access.Jump, ","))
	} else {
		a, err = boardssh.Resolve(ctx, name)
	}
	if err != nil {
		return a, err
	}
	if j.access.Identity != "" {
		if _, err := os.Stat(j.access.Identity); err != nil {
			return a, kindError{Login, fmt.Errorf("the key that the inventory names: %w", err)}
		}
		a.Identities = append([]string{j.access.Identity}, a.Identities...)
	}
	a.Become = j.access.Become
	j.resolved = a
	return a, nil
}

// unlockKeys resolves all hosts, with failures ignored, and asks the user for the passphrases of
// their keys and the sudo password. It does nothing without a terminal. If the inventory names a
// key, it unlocks only that.
func (p *plan) unlockKeys(ctx context.Context) error {
	if !boardssh.Attended() {
		return nil
	}
	step := progress.Start(ctx, "keys", int64(len(p.jobs)), progress.Tasks)
	forEachJob(ctx, p.request.Parallel, p.jobs, func(j *job) {
		_, _ = j.resolveHost(ctx) // the attempt reports the error
		step.Add(1)
	})
	step.End(fmt.Sprintf("%d boards looked up", len(p.jobs)), nil)
	var all []boardssh.Address
	for _, j := range p.jobs {
		a := j.resolved
		if j.access.Identity != "" {
			a.Identities, a.IdentitiesOnly = []string{j.access.Identity}, true
		}
		all = append(all, a)
	}
	return boardssh.UnlockKeys(ctx, all)
}

// Package cache lets builds on several machines share their work. It tells bitbake the addresses of
// another machine's sstate, hash equivalence server, PR server and downloads. It serves this
// machine's own with bitbake's servers. The cache is outside: Slipway limits its answers, and
// writes only its addresses into bitbake's configuration.
package cache

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"slipway/images/bitbake"
	"slipway/layers/localfile"
	"slipway/layers/progress"
)

// Cache holds the addresses of a cache's servers and folders.
type Cache struct {
	From      string  // the setting's place
	Bitbake   Version // of its servers
	Sstate    string  // URL
	Hashserv  string  // host:port
	PRServ    string  // host:port
	Downloads string  // URL
	Fill      string  // the folder that is served, where this machine's builds fill it; "" builds from it
	Closed    string  // the same, where this build may not write there
}

// Request describes the build that Prepare works for.
type Request struct {
	Setting Setting
	Bitbake string // the folder that holds bin/bitbake
	File    string // for the configuration that bitbake reads first

	Env map[string]*string // the project's values for variables that the user's environment does not set
}

// BitbakeOptions are the options of bitbake for a cache. They are empty without a cache.
type BitbakeOptions struct {
	Pre    string // a file for bitbake to read first
	Shared string // the folder of the downloads and shared state; "" is the usual one
}

// Prepare checks that the cache's servers answer and that this bitbake can use them, prints
// warnings, and writes bitbake's configuration, but not without a cache or for a too old bitbake.
func Prepare(ctx context.Context, r Request) (BitbakeOptions, error) {
	if r.Setting.isNone() {
		return BitbakeOptions{}, nil
	}
	var given BitbakeOptions
	err := progress.Run(ctx, "cache", func(s *progress.Step) (string, error) {
		plan, err := r.makePlan(ctx, s)
		if ctx.Err() != nil { // nothing is wrong with the cache then
			return "", context.Cause(ctx)
		}
		if err != nil {
			return "", err
		}
		for _, w := range plan.Warnings {
			progress.Warn(ctx, w)
		}
		given, err = plan.writeConf(r.File)
		return plan.Summary, err
	})
	return given, err
}

// makePlan checks the cache, and returns bitbake's settings. A too old bitbake gets only a warning.
func (r Request) makePlan(ctx context.Context, s *progress.Step) (plan, error) {
	version, err := VersionOf(r.Bitbake)
	if err != nil {
		return plan{}, err
	}
	if !version.atLeast(oldest) {
		return plan{
			Summary:  "not used",
			Warnings: []string{fmt.Sprintf("%s: bitbake %s cannot share its work (%s and later can): it builds without the cache", r.Setting.From, version, oldest)},
		}, nil
	}
	s.Detail("asking " + r.Setting.Server)
	c, err := resolveCache(ctx, r.Setting)
	if err != nil {
		return plan{}, err
	}
	if err := c.checkParts(ctx, version); err != nil {
		return plan{}, err
	}
	p := newPlan(c, version)
	if own := r.variable("BBPRECONF"); own != "" {
		p.Warnings = append(p.Warnings, fmt.Sprintf("BBPRECONF: Slipway sets it for the cache, so bitbake does not read %s; write \"require %[1]s\" into conf/site.conf", own))
	}
	for _, name := range []string{"DL_DIR", "SSTATE_DIR"} {
		if folder := r.variable(name); folder != "" && c.Fill != "" {
			p.Warnings = append(p.Warnings, fmt.Sprintf("%s: this build writes to %s, and not to the cache; unset it to fill the cache", name, folder))
		}
	}
	if c.Closed != "" {
		p.Warnings = append(p.Warnings, fmt.Sprintf("%s: this machine serves %s, where this build may not write: it takes from the cache and adds nothing; run cache serve as the user who builds", c.From, c.Closed))
	}
	return p, nil
}

// variable returns a variable of the user's environment, or else of the project's.
func (r Request) variable(name string) string {
	if value, set := os.LookupEnv(name); set || r.Env[name] == nil {
		return value
	}
	return *r.Env[name]
}

// resolveCache asks a cache serve for its addresses, and for its folder if that is on this machine.
func resolveCache(ctx context.Context, s Setting) (Cache, error) {
	d, err := fetchDescriptor(ctx, s.Server)
	if err != nil {
		return Cache{}, fmt.Errorf("%s: cache %s: %w; start it there with cache serve, or build without it (SLIPWAY_CACHE=off)", s.From, s.Server, err)
	}
	c := Cache{
		From: s.From, Bitbake: d.version, Sstate: s.Server + "/sstate", Downloads: s.Server + "/downloads",
		Hashserv: s.serverPort(d.Hashserv), PRServ: s.serverPort(d.PRServ), Fill: d.writableFolder(),
	}
	if c.Fill == "" && d.isLocal() {
		c.Closed = d.Folder
	}
	return c, nil
}

// isLocal reports whether the folder that the cache serve names is a served one on this machine.
func (d descriptor) isLocal() bool {
	if !filepath.IsAbs(d.Folder) || !validAddress(d.Folder) {
		return false
	}
	return localfile.Exists(filepath.Join(d.Folder, stateDir))
}

// writableFolder returns the served folder if it is on this machine, holds the server's key, and
// this user may write in it; otherwise "".
func (d descriptor) writableFolder() string {
	if !d.isLocal() {
		return ""
	}
	key, err := os.ReadFile(filepath.Join(d.Folder, stateDir, "key"))
	if err != nil || d.Key == "" || string(key) != d.Key {
		return ""
	}
	for _, path := range []string{"sstate-cache", "downloads", filepath.Join(stateDir, writerSocket)} {
		if unix.Access(filepath.Join(d.Folder, path), unix.W_OK) != nil {
			return ""
		}
	}
	return d.Folder
}

// checkParts checks that bitbake v can use the servers of the cache, and that both answer. The
// server of files has answered already: it gave the descriptor.
func (c Cache) checkParts(ctx context.Context, v Version) error {
	if err := c.checkServers(v); err != nil {
		return err
	}
	if err := probePort(ctx, c.Hashserv); err != nil {
		return c.explainPart("hashserv", c.Hashserv, err)
	}
	if err := probePort(ctx, c.PRServ); err != nil {
		return c.explainPart("prserv", c.PRServ, err)
	}
	return nil
}

// explainPart adds the server's name, its address and the next step to an error.
func (c Cache) explainPart(part, at string, err error) error {
	return fmt.Errorf("%s: %s of the cache, %s: %w; fix it, or build without the cache (SLIPWAY_CACHE=off)", c.From, part, at, err)
}

// Version is a version of bitbake.
type Version [2]int

// The features of bitbake, by the first version that has them.
var (
	oldest       = Version{2, 0} // that is kirkstone's
	existsStream = Version{2, 7} // queries hash equivalence servers for known hashes, and speaks websockets
	historyPR    = Version{2, 9} // every question to a PR server says whether values may go back
)

func (v Version) String() string { return fmt.Sprintf("%d.%d", v[0], v[1]) }

func (v Version) atLeast(since Version) bool { return slices.Compare(v[:], since[:]) >= 0 }

// VersionOf returns the version of the bitbake in a folder.
func VersionOf(dir string) (Version, error) {
	v, err := parseVersion(bitbake.Tree{Programs: filepath.Join(dir, "bin")}.Version())
	if err != nil {
		return v, fmt.Errorf("%s: its lib/bb/__init__.py names no version; is this bitbake's folder?", dir)
	}
	return v, nil
}

func parseVersion(text string) (v Version, err error) {
	_, err = fmt.Sscanf(text, "%d.%d", &v[0], &v[1])
	return v, err
}

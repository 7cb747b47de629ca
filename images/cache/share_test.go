package cache

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"slipway/images/bitbake/bitbaketest"
	"slipway/layers/plaintext"
)

// The test binary is also the slipway of a second machine: it prepares a build there.
func TestMain(m *testing.M) {
	request := os.Getenv("CACHE_TEST_PREPARE")
	if request == "" {
		os.Exit(m.Run())
	}
	var r Request
	if err := json.Unmarshal([]byte(request), &r); err != nil {
		panic(err)
	}
	given, err := Prepare(context.Background(), r)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if err := json.NewEncoder(os.Stdout).Encode(given); err != nil {
		panic(err)
	}
}

// machine is a folder with a build of its own, in a network of its own, which has its
// own checkouts: it shares nothing with others but what it fetches from a cache.
type machine struct {
	t       *testing.T
	dir     string
	bitbake string
	enter   []string // the program and arguments that enter its network; nil: the host's
	builder *syscall.Credential
}

func newMachine(t *testing.T, pair [2]string, enter []string) machine {
	m := machine{t: t, bitbake: bitbakeOf(t, pair[0]), enter: enter, builder: bitbaketest.Builder(t)}
	oecore := os.Getenv("SLIPWAY_OECORE")
	if oecore == "" {
		t.Skip("SLIPWAY_OECORE is not set: it names a git clone of openembedded-core with its branches")
	}
	m.dir = bitbaketest.Unpack(t, []string{oecore}, pair[1], "meta", ":(exclude)meta/recipes-*")
	if err := os.CopyFS(filepath.Join(m.dir, "meta-shared"), os.DirFS("testdata/meta-shared")); err != nil {
		t.Fatal(err)
	}
	write(t, m.path("build/conf/bblayers.conf"), fmt.Sprintf("BBPATH = \"${TOPDIR}\"\nBBFILES ?= \"\"\nBBLAYERS = \"%s %s\"\n", m.path("meta"), m.path("meta-shared")))
	write(t, m.path("build/conf/local.conf"), "MACHINE = \"qemux86-64\"\nINHERIT_DISTRO = \"sstate license\"\nBB_NUMBER_THREADS = \"2\"\nCONNECTIVITY_CHECK_URIS = \"\"\n")
	bitbaketest.Own(t, m.dir, m.builder)
	return m
}

func (m machine) path(name string) string { return filepath.Join(m.dir, name) }

// prepare is Prepare on that machine.
func (m machine) prepare(setting Setting) BitbakeOptions {
	m.t.Helper()
	r := Request{Setting: setting, Bitbake: m.bitbake, File: m.path("build/cache.conf")}
	text, err := json.Marshal(r)
	if err != nil {
		m.t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		m.t.Fatal(err)
	}
	argv := append(m.enter[:len(m.enter):len(m.enter)], self)
	cmd := exec.CommandContext(m.t.Context(), argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), "CACHE_TEST_PREPARE="+string(text), "no_proxy=*") // the developer's proxy does not reach it
	cmd.Stderr = m.t.Output()
	out, err := cmd.Output()
	if err != nil {
		m.t.Fatalf("prepare: %v", err)
	}
	var given BitbakeOptions
	if err := json.Unmarshal(out, &given); err != nil {
		m.t.Fatal(err)
	}
	return given
}

// build runs bitbake and returns what it says.
func (m machine) build(given BitbakeOptions) string {
	m.t.Helper()
	said := m.run(given, "library-native")
	for line := range strings.Lines(said) {
		if strings.HasPrefix(line, "WARNING: ") && strings.Contains(line, "MIRROR") {
			m.t.Errorf("bitbake minds what it is told of the cache: %s", line)
		}
	}
	return telling(said)
}

// run runs bitbake with the arguments, and returns all that it says.
func (m machine) run(given BitbakeOptions, args ...string) string {
	m.t.Helper()
	argv := append(m.enter[:len(m.enter):len(m.enter)], filepath.Join(m.bitbake, "bin/bitbake"))
	credential := m.builder
	if m.enter != nil && credential != nil { // entering takes root
		drop := []string{"setpriv", fmt.Sprintf("--reuid=%d", credential.Uid), fmt.Sprintf("--regid=%d", credential.Gid), "--clear-groups"}
		argv = append(append(m.enter[:len(m.enter):len(m.enter)], drop...), argv[len(m.enter):]...)
		credential = nil
	}
	cmd := exec.CommandContext(m.t.Context(), argv[0], append(argv[1:], args...)...)
	cmd.Dir = m.path("build")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: credential}
	pass := "BB_ENV_PASSTHROUGH_ADDITIONS"
	if strings.HasPrefix(m.version(), "1.") {
		pass = "BB_ENV_EXTRAWHITE"
	}
	cmd.Env = append([]string{
		"PATH=" + filepath.Join(m.bitbake, "bin") + ":/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=en_US.UTF-8", "HOME=" + m.dir,
		"BBPATH=" + m.path("build"), "BUILDDIR=" + m.path("build"), pass + "=SSTATE_DIR DL_DIR",
	}, environmentOf(given)...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		m.t.Fatalf("bitbake: %v\n%s", err, out)
	}
	return string(out)
}

// environmentOf is what a Tree makes of the options.
func environmentOf(given BitbakeOptions) (env []string) {
	if given.Pre != "" {
		env = append(env, "BBPRECONF="+given.Pre)
	}
	if given.Shared != "" {
		env = append(env, "DL_DIR="+filepath.Join(given.Shared, "downloads"), "SSTATE_DIR="+filepath.Join(given.Shared, "sstate-cache"))
	}
	return env
}

// telling are the lines of bitbake's that say what was found and what was made.
func telling(said string) string {
	var kept strings.Builder
	for line := range strings.Lines(said) {
		if strings.Contains(line, "Sstate summary") || strings.Contains(line, ": Started") && (strings.Contains(line, "setscene") || strings.Contains(line, "do_compile")) {
			kept.WriteString(line)
		}
	}
	return kept.String()
}

func (m machine) version() string {
	v, err := VersionOf(m.bitbake)
	if err != nil {
		m.t.Fatal(err)
	}
	return v.String()
}

// twoNetworks returns this machine's address in a network of two, and how to enter
// the other machine's.
func twoNetworks(t *testing.T) (address string, enter []string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("two machines are two network namespaces, which takes root")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("ip is not installed (Debian package iproute2)")
	}
	name := fmt.Sprintf("slw%d", os.Getpid())
	run := func(args ...string) {
		t.Helper()
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			t.Skipf("no network namespace here: ip %v: %v: %s", args, err, out)
		}
	}
	run("netns", "add", name)
	t.Cleanup(func() { _ = exec.Command("ip", "netns", "del", name).Run() })
	run("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
	run("addr", "add", "198.51.100.1/30", "dev", name)
	run("link", "set", name, "up")
	run("-n", name, "addr", "add", "198.51.100.2/30", "dev", "eth0")
	run("-n", name, "link", "set", "eth0", "up")
	run("-n", name, "link", "set", "lo", "up")
	return "198.51.100.1", []string{"ip", "netns", "exec", name}
}

var wanted = plaintext.Regexp(`Sstate summary: Wanted (\d+) (?:Found|Local (\d+) Mirrors) (\d+) Missed (\d+)`)

// A second machine builds from the first one's work: it finds all of it. A third one,
// whose recipe differs, gets the recipe's source and finds what depends on its result,
// since that is the same. Two minutes for each of bitbake's releases, of which all are
// tried where SLIPWAY_ALL_RELEASES is set.
func TestSecondMachine(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: builds with openembedded-core on two machines")
	}
	pairs := [][2]string{{"2.8", "scarthgap"}}
	if os.Getenv("SLIPWAY_ALL_RELEASES") != "" {
		pairs = [][2]string{{"2.0", "kirkstone"}, {"2.8", "scarthgap"}, {"2.18", "wrynose"}, {"master", "master"}}
	}
	for _, pair := range pairs {
		t.Run(pair[1], func(t *testing.T) { shareBetween(t, pair) })
	}
}

func shareBetween(t *testing.T, pair [2]string) {
	address, enter := twoNetworks(t)
	first, second := newMachine(t, pair, nil), newMachine(t, pair, enter)
	served := bitbaketest.PublicDir(t)
	status, stop := serving(t, ServeOptions{Dir: served, Bitbake: first.bitbake, Listen: freeAddress(t, address)})
	write(t, filepath.Join(served, "downloads/tool-1.0.txt"), "a source\n")
	bitbaketest.Own(t, served, first.builder)
	setting, err := parseSetting(Environment, status.Cache)
	if err != nil {
		t.Fatal(err)
	}

	given := first.prepare(setting)
	if given.Shared != served {
		t.Errorf("the serving machine is given %q; want %s", given.Shared, served)
	}
	if said := first.build(given); !strings.Contains(said, "do_compile: Started") {
		t.Errorf("the first machine compiled nothing:\n%s", said)
	}

	said := second.build(second.prepare(setting))
	m := wanted().FindStringSubmatch(said)
	if m == nil || m[1] == "0" || m[1] != m[3] || m[2] != "" && m[2] != "0" || m[4] != "0" {
		t.Errorf("the second machine's summary is %q; want all from the mirror\n%s", m, said)
	}
	if strings.Contains(said, "do_compile: Started") {
		t.Errorf("the second machine compiled:\n%s", said)
	}
	t.Logf("bitbake %s: %s", first.version(), m[0])

	third := newMachine(t, pair, enter)
	edit(t, third.path("meta-shared/recipes/tool-native.bb"), "do_compile() {\n", "do_compile() {\n    : another way\n")
	said = third.build(third.prepare(setting))
	if !strings.Contains(said, "tool-native-1.0-r0: task do_compile: Started") || strings.Contains(said, "library-native-1.0-r0: task do_compile: Started") {
		t.Errorf("the third machine should compile the tool, which it makes differently, and find the library by its equivalent hash:\n%s", said)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

func edit(t *testing.T, path, old, replacement string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil || !strings.Contains(string(text), old) {
		t.Fatalf("%s: %v, or it lacks %q", path, err, old)
	}
	write(t, path, strings.Replace(string(text), old, replacement, 1))
}

// A line of the user's own with = overrides the cache's, the defaults of layers do not, and the
// cache's mirror of downloads comes before all others. bitbake would ask servers that it is given.
func TestOwnSettingsOverrideTheCache(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: parses the configuration of four releases")
	}
	for _, pair := range [][2]string{{"2.0", "kirkstone"}, {"2.8", "scarthgap"}, {"2.18", "wrynose"}, {"master", "master"}} {
		t.Run(pair[1], func(t *testing.T) {
			m := newMachine(t, pair, nil)
			version, err := VersionOf(m.bitbake)
			if err != nil {
				t.Fatal(err)
			}
			p := newPlan(Cache{Sstate: "http://b:8600/sstate", Hashserv: "b:8601", Downloads: "http://b:8600/downloads"}, version)
			given, err := p.writeConf(m.path("build/cache.conf"))
			if err != nil {
				t.Fatal(err)
			}
			edit(t, m.path("meta/conf/bitbake.conf"), "BB_SIGNATURE_HANDLER ?= ", "PRSERV_HOST ??= \"layer:1\"\nSSTATE_MIRRORS ?= \"layer\"\nBB_SIGNATURE_HANDLER ?= ")
			write(t, m.path("build/conf/site.conf"), "BB_HASHSERVE_UPSTREAM = \"\"\nPREMIRRORS = \"https://.*/.* http://own/\"\nSSTATE_DIR = \"/own\"\nHOSTTOOLS = \"sh\"\n")
			given.Shared = "/cache"
			said := m.run(given, "-e")
			for _, want := range []string{
				`BB_HASHSERVE_UPSTREAM=""`, `SSTATE_DIR="/own"`, `DL_DIR="/cache/downloads"`, `PRSERV_HOST=""`,
				`BB_SIGNATURE_HANDLER="OEEquivHash"`, `SSTATE_MIRRORS="file://.* http://b:8600/sstate/PATH;downloadfilename=PATH"`,
			} {
				if !strings.Contains(said, "\n"+want+"\n") && !strings.Contains(said, "\nexport "+want+"\n") {
					t.Errorf("bitbake %s lacks %s", m.version(), want)
				}
			}
			_, mirrors, _ := strings.Cut(said, "\nPREMIRRORS=\"")
			mirrors, _, _ = strings.Cut(mirrors, "\n")
			if cache, own := strings.Index(mirrors, "http://b:8600/downloads/"), strings.Index(mirrors, "http://own/"); cache != strings.Index(mirrors, "http://") || own < cache {
				t.Errorf("bitbake %s has PREMIRRORS %.300s; want the cache's first, then the own", m.version(), mirrors)
			}
		})
	}
}

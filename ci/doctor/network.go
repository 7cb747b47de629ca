package doctor

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"slipway/images/cache"
	"slipway/images/lint"
	"slipway/layers"
	"slipway/layers/plaintext"
)

// How long a server may take. Those behind a proxy of a company are slow.
const patience = 15 * time.Second

// repositories asks each of the project's git servers.
func repositories(ctx context.Context, p patient) []Finding {
	if p.Build.Offline {
		return []Finding{ok("git", "not asked (offline)")}
	}
	all, err := layers.Reach(ctx, p.project, p.ws, patience)
	if err != nil {
		return []Finding{{"git", Stops, err.Error(), "layers are fetched with git", "fix what it says"}}
	}
	var findings []Finding
	here, answered := 0, 0
	for _, r := range all {
		if r.Here {
			here++
		}
		if r.Err == nil {
			answered++
			continue
		}
		findings = append(findings, unreached(r))
	}
	if answered > 0 || len(all) == 0 {
		findings = append(findings, ok("git", "%d of %d servers answer; %d commits are here already", answered, len(all), here))
	}
	return findings
}

func unreached(r layers.Reached) Finding {
	url := plaintext.Quote(r.Repo.URL) // people copy it into a shell
	f := Finding{
		"git", Stops, fmt.Sprintf("%s: %s does not answer: %s", r.Repo.ID, r.Repo.URL, brief(r.Err)), "the layer is fetched from there",
		"GIT_TERMINAL_PROMPT=0 git ls-remote " + url + " HEAD\nshows why; where a mirror has it: git config --global url.MIRROR.insteadOf " + url,
	}
	if r.Here {
		f.State, f.Why = Warning, "the commit is here already, so that the build begins; a newer one could not be fetched"
	}
	return f
}

// nvidia asks the servers that the branch of meta-tegra downloads from, and by the way
// what time it is.
func nvidia(ctx context.Context, p patient) []Finding {
	findings := pastClock(time.Now())
	d, known := p.layers.DownloadsOf()
	switch {
	case p.Build.Offline || os.Getenv("BB_NO_NETWORK") == "1":
		return append(findings, ok("nvidia", "not asked (offline, or BB_NO_NETWORK is set)"))
	case !known:
		return findings
	}
	state := Stops
	if entries, err := os.ReadDir(p.downloads()); p.mirrored() || err == nil && len(entries) > 0 {
		state = Warning // what is needed may be there
	}
	var answered []string
	for _, host := range d.Hosts {
		skew, err := headOf(ctx, "https://"+host+"/")
		if err != nil {
			findings = append(findings, Finding{
				"nvidia", state, host + " does not answer: " + brief(err), "L4T " + d.L4T + ", CUDA and the libraries are downloaded from there, and no mirror of Yocto's has them",
				"curl -I https://" + host + "/\nshows why; another machine's build/downloads serves too: DL_DIR=FOLDER, or PREMIRRORS in " + p.siteConf(),
			})
			continue
		}
		answered = append(answered, host)
		findings = append(findings, skewed(host, skew)...)
	}
	if len(answered) > 0 {
		findings = append(findings, ok("nvidia", "L4T %s: %s answer", d.L4T, strings.Join(answered, " and ")))
	}
	return findings
}

// mirrored is true where the project, the user or the cache names other places for
// sources than their own servers.
func (p patient) mirrored() bool {
	if c, err := cache.Choose(p.spec.Cache); err == nil && !c.Off && (c.Server != "" || c.Downloads != "" && c.Downloads != "none") {
		return true
	}
	return slices.ContainsFunc([]string{"PREMIRRORS", "PREMIRRORS:prepend", "PREMIRRORS_prepend", "SOURCE_MIRROR_URL"}, func(name string) bool {
		value, err := p.setting(name)
		return err == nil && value != ""
	})
}

// headOf asks a server for no more than its time, and returns by how much it is ahead.
func headOf(ctx context.Context, address string) (time.Duration, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("no answer within %v", patience))
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodHead, address, nil)
	if err != nil {
		return 0, err
	}
	client := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := client.Do(req)
	if err != nil {
		return 0, errors.Join(context.Cause(ctx), err)
	}
	resp.Body.Close()
	date, err := http.ParseTime(resp.Header.Get("Date"))
	if err != nil {
		return 0, nil // it answered, and that is what was asked
	}
	return time.Until(date), nil
}

// A certificate that is days old is refused by a clock that is days late.
const (
	anySkew     = 5 * time.Minute
	stoppedSkew = 24 * time.Hour
)

func skewed(host string, skew time.Duration) []Finding {
	state := Warning
	switch {
	case skew.Abs() < anySkew:
		return nil
	case skew.Abs() > stoppedSkew:
		state = Stops
	}
	return []Finding{{"clock", state, fmt.Sprintf("it differs by %v from that of %s", skew.Round(time.Second), host), "servers' certificates count as not yet or no longer valid, and make takes new files for old ones", setClock}}
}

const setClock = "sudo timedatectl set-ntp true"

// written is when this was: a clock before it is wrong, whatever servers say.
var written = time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)

func pastClock(now time.Time) []Finding {
	if now.After(written) {
		return nil
	}
	return []Finding{{"clock", Stops, "it says " + now.Format(time.DateOnly) + ", which is past", "servers' certificates count as not yet valid, and no download succeeds", setClock}}
}

func (p patient) downloads() string {
	return p.folder("DL_DIR", p.Build.DownloadDir())
}

const devnet = "NVIDIA_DEVNET_MIRROR"

// manualDownloads looks for files that no server gives without a login: those of
// branches up to L4T R32.4.2.
func manualDownloads(_ context.Context, p patient) []Finding {
	d, known := p.layers.DownloadsOf()
	if !known || len(d.SDKManager) == 0 {
		return nil
	}
	var files []string
	for _, file := range d.SDKManager {
		files = append(files, p.placed(file))
	}
	value, err := p.setting(devnet)
	f := Finding{"sdk manager", Warning, "", "bitbake skips the recipes that need these files (CUDA, cuDNN, TensorRT and more), and an image with one of them stops", ""}
	dir, local := strings.CutPrefix(value, "file://")
	switch {
	case err != nil:
		f.Saw, f.Fix = err.Error(), "fix what it says"
	case value == "":
		f.Saw, f.Fix = fmt.Sprintf("%s is not set, and L4T %s has %d files from SDK Manager alone", devnet, d.L4T, len(files)), p.getting(files)
	case !local:
		f = ok("sdk manager", "%s is %s", devnet, value)
	default:
		missing := slices.DeleteFunc(files, func(file string) bool {
			_, err := os.Stat(filepath.Join(p.expanded(dir), file))
			return err == nil
		})
		if len(missing) == 0 {
			return []Finding{ok("sdk manager", "all %d files are in %s", len(d.SDKManager), dir)}
		}
		f.Saw, f.Fix = fmt.Sprintf("%s lacks %d of %d files", dir, len(missing), len(files)), p.getting(missing)
	}
	return []Finding{f}
}

func (p patient) getting(files []string) string {
	return "download them with NVIDIA's SDK Manager, and set in " + p.siteConf() + "\n" + devnet +
		" = \"file:///home/NAME/Downloads/nvidia/sdkm_downloads\"\nThe files, below that folder:\n" + strings.Join(files, "\n")
}

// setting is what bitbake will see of a variable: of the environment what the project
// passes on, and the configuration.
func (p patient) setting(name string) (string, error) {
	if otherwise, passed := p.project.Env[name]; passed {
		if value, set := os.LookupEnv(name); set || otherwise == nil {
			return value, nil
		}
		return *otherwise, nil
	}
	return lint.Setting(p.project, p.bitbake(), name, "")
}

func (p patient) expanded(dir string) string {
	return os.Expand(dir, func(name string) string {
		if name == "TOPDIR" {
			return p.bitbake()
		}
		return os.Getenv(name)
	})
}

// placed is where a file of TensorRT must lie. Those for Xavier have the same names as
// those for the other boards, and other contents.
func (p patient) placed(file string) string {
	if rest, ok := strings.CutPrefix(file, "NoDLA/"); ok && strings.Contains(p.project.Machine, "xavier") {
		return "DLA/" + rest
	}
	return file
}

// proxies looks for settings that one of the programs does not know of.
func proxies(_ context.Context, p patient) []Finding {
	var findings []Finding
	for _, name := range []string{"http_proxy", "https_proxy", "no_proxy", "all_proxy"} {
		if upper := strings.ToUpper(name); os.Getenv(upper) != "" && os.Getenv(name) == "" {
			findings = append(findings, Finding{"proxy", Warning, upper + " is set and " + name + " is not", "wget and bitbake know the name in small letters alone", `export ` + name + `="$` + upper + `"`})
		}
	}
	if os.Getenv("https_proxy") == "" && os.Getenv("all_proxy") == "" {
		return findings
	}
	for _, r := range p.project.Repos {
		scheme := schemeOf(r.URL)
		if scheme != "ssh" && scheme != "git" {
			continue
		}
		if os.Getenv("GIT_SSH_COMMAND") == "" && os.Getenv("GIT_PROXY_COMMAND") == "" {
			findings = append(findings, Finding{
				"proxy", Warning, fmt.Sprintf("a proxy is set, and %s is fetched by %s", r.ID, scheme), "git goes past the proxy for it",
				"git config --global url.https://SERVER/.insteadOf " + plaintext.Quote(r.URL) + ", or a ProxyCommand for the server in ~/.ssh/config, or git config core.gitProxy",
			})
		}
	}
	return findings
}

// schemeOf is how git fetches from an address. One without a scheme is a server's where
// a colon stands before any slash, as in host:path, and a folder otherwise.
func schemeOf(address string) string {
	if scheme, _, ok := strings.Cut(address, "://"); ok {
		return scheme
	}
	if host, _, ok := strings.Cut(address, ":"); ok && !strings.Contains(host, "/") {
		return "ssh"
	}
	return "file"
}

// configuration looks for names in the project's configuration that its layers lack.
func configuration(_ context.Context, p patient) []Finding {
	found, err := lint.Project(p.project, p.ws, p.bitbake())
	if err != nil {
		return []Finding{{"configuration", Warning, err.Error(), "it cannot be told whether the names in it exist", "fix what it says"}}
	}
	if p.layers.Checkout == nil {
		return linted(found, withoutCheckouts)
	}
	return linted(found, "no name in it that the layers lack")
}

// withoutCheckouts is said where the tables of Slipway alone were asked.
const withoutCheckouts = "no name in it that Slipway knows to be missing on its branch; other names need the layers' checkouts"

func linted(found []lint.Finding, none string) []Finding {
	var all []Finding
	for _, f := range found {
		state := Warning
		if f.Stops {
			state = Stops
		}
		all = append(all, Finding{"configuration", state, f.Where + ": " + f.What, f.Why, f.Fix})
	}
	if len(all) == 0 {
		return []Finding{ok("configuration", "%s", none)}
	}
	return all
}

package doctor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"slipway/images/cache"
	"slipway/images/lint"
	"slipway/layers"
	"slipway/layers/localfile"
	"slipway/layers/plaintext"
	"slipway/layers/run"
)

// patience is how long a server may take to answer. Servers behind a company's proxy are slow.
const patience = 15 * time.Second

// checkRepositories asks each git server of the project's layers, unless the build is offline.
func checkRepositories(ctx context.Context, p boardBuild) []Finding {
	if p.Build.Offline {
		return []Finding{okFinding("git", "not asked (offline)")}
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
		findings = append(findings, unreachedFinding(r))
	}
	if answered > 0 || len(all) == 0 {
		findings = append(findings, okFinding("git", "%d of %d servers answer; %d commits are here already", answered, len(all), here))
	}
	return findings
}

// unreachedFinding returns the finding for a silent git server, a warning if the commit is here.
func unreachedFinding(r layers.Reached) Finding {
	url := plaintext.Quote(r.Repo.URL) // people copy it into a shell
	f := Finding{
		"git", Stops, fmt.Sprintf("%s: %s does not answer: %s", r.Repo.ID, r.Repo.URL, plaintext.OneLine(r.Err.Error())), "the layer is fetched from there",
		"GIT_TERMINAL_PROMPT=0 git ls-remote " + url + " HEAD\nshows why; where a mirror has it: git config --global url.MIRROR.insteadOf " + url,
	}
	if r.Here {
		f.State, f.Why = Warning, "the commit is here already, so that the build begins; a newer one could not be fetched"
	}
	return f
}

// checkNVIDIA asks, unless offline, the servers that meta-tegra's branch, if known, uses. A server
// without an answer is only a warning if mirrors are set or something was downloaded before.
func checkNVIDIA(ctx context.Context, p boardBuild) []Finding {
	d, known := p.layers.DownloadsOf()
	switch {
	case p.Build.Offline || os.Getenv("BB_NO_NETWORK") == "1":
		return []Finding{okFinding("nvidia", "not asked (offline, or BB_NO_NETWORK is set)")}
	case !known:
		return nil
	}
	state := Stops
	if entries, err := os.ReadDir(p.downloadsDir()); p.hasMirrors() || err == nil && len(entries) > 0 {
		state = Warning // what is needed may be there
	}
	var findings []Finding
	var answered []string
	for _, host := range d.Hosts {
		if _, err := askServer(ctx, noRedirects, http.MethodHead, "https://"+host+"/"); err != nil {
			findings = append(findings, Finding{
				"nvidia", state, host + " does not answer: " + run.LastLine(err), "L4T " + d.L4T + ", CUDA and the libraries are downloaded from there, and no mirror of Yocto's has them",
				"curl -I https://" + host + "/\nshows why; another machine's build/downloads serves too: DL_DIR=FOLDER, or PREMIRRORS in " + p.siteConf(),
			})
			continue
		}
		answered = append(answered, host)
	}
	if len(answered) > 0 {
		findings = append(findings, okFinding("nvidia", "L4T %s: %s answer", d.L4T, strings.Join(answered, " and ")))
	}
	return findings
}

// hasMirrors reports whether the cache or the configuration names mirrors for sources.
func (p boardBuild) hasMirrors() bool {
	if c, err := cache.Choose(p.spec.Cache); err == nil && c.Server != "" {
		return true
	}
	return slices.ContainsFunc([]string{"PREMIRRORS", "PREMIRRORS:prepend", "PREMIRRORS_prepend", "SOURCE_MIRROR_URL"}, func(name string) bool {
		value, err := p.effectiveSetting(name)
		return err == nil && value != ""
	})
}

func (p boardBuild) downloadsDir() string {
	return p.variableFolder("DL_DIR", p.Build.DownloadDir())
}

const devnet = "NVIDIA_DEVNET_MIRROR"

// checkManualDownloads warns if NVIDIA_DEVNET_MIRROR is unset, or a folder that lacks files which
// NVIDIA gives only after a login. Branches up to L4T R32.4.2 need them. It asks no server.
func checkManualDownloads(_ context.Context, p boardBuild) []Finding {
	d, known := p.layers.DownloadsOf()
	if !known || len(d.SDKManager) == 0 {
		return nil
	}
	var files []string
	for _, file := range d.SDKManager {
		files = append(files, p.expectedPath(file))
	}
	value, err := p.effectiveSetting(devnet)
	f := Finding{"sdk manager", Warning, "", "bitbake skips the recipes that need these files (CUDA, cuDNN, TensorRT and more), and an image with one of them stops", ""}
	dir, local := strings.CutPrefix(value, "file://")
	switch {
	case err != nil:
		f.Saw, f.Fix = err.Error(), "fix what it says"
	case value == "":
		f.Saw, f.Fix = fmt.Sprintf("%s is not set, and L4T %s has %d files from SDK Manager alone", devnet, d.L4T, len(files)), p.downloadHint(files)
	case !local:
		f = okFinding("sdk manager", "%s is %s", devnet, value)
	default:
		missing := slices.DeleteFunc(files, func(file string) bool { return localfile.Exists(filepath.Join(p.expandPath(dir), file)) })
		if len(missing) == 0 {
			return []Finding{okFinding("sdk manager", "all %d files are in %s", len(d.SDKManager), dir)}
		}
		f.Saw, f.Fix = fmt.Sprintf("%s lacks %d of %d files", dir, len(missing), len(files)), p.downloadHint(missing)
	}
	return []Finding{f}
}

func (p boardBuild) downloadHint(files []string) string {
	return "download them with NVIDIA's SDK Manager, and set in " + p.siteConf() + "\n" + devnet +
		" = \"file:///home/NAME/Downloads/nvidia/sdkm_downloads\"\nThe files, below that folder:\n" + strings.Join(files, "\n")
}

// effectiveSetting returns bitbake's value of a variable. If the project passes it on, its value in
// the environment, or else the project's default, comes before ?= in the configuration.
func (p boardBuild) effectiveSetting(name string) (string, error) {
	given := ""
	if otherwise, passed := p.project.Env[name]; passed {
		value, set := os.LookupEnv(name)
		if given = value; !set && otherwise != nil {
			given = *otherwise
		}
	}
	return lint.Setting(p.project, p.bitbakeDir(), name, given)
}

// expandPath replaces $TOPDIR in a path by the build folder, other variables by the environment's.
func (p boardBuild) expandPath(dir string) string {
	return os.Expand(dir, func(name string) string {
		if name == "TOPDIR" {
			return p.bitbakeDir()
		}
		return os.Getenv(name)
	})
}

// expectedPath returns a file's path relative to the downloads. For Xavier it replaces the folder
// NoDLA by DLA: TensorRT's files in both have the same names.
func (p boardBuild) expectedPath(file string) string {
	if rest, ok := strings.CutPrefix(file, "NoDLA/"); ok && strings.Contains(p.project.Machine, "xavier") {
		return "DLA/" + rest
	}
	return file
}

// checkProxies warns of proxy variables set only in capitals, which wget and bitbake ignore.
func checkProxies(context.Context, boardBuild) []Finding {
	var findings []Finding
	for _, name := range []string{"http_proxy", "https_proxy", "no_proxy", "all_proxy"} {
		if upper := strings.ToUpper(name); os.Getenv(upper) != "" && os.Getenv(name) == "" {
			findings = append(findings, Finding{"proxy", Warning, upper + " is set and " + name + " is not", "wget and bitbake know the name in small letters alone", `export ` + name + `="$` + upper + `"`})
		}
	}
	return findings
}

// checkLayers finds layers that the checkouts lack. Those of missing checkouts are not known yet.
func checkLayers(_ context.Context, p boardBuild) (findings []Finding) {
	for _, missing := range p.project.MissingLayers(p.ws) {
		findings = append(findings, Finding{"layers", Stops, missing, "bitbake reads the layers first", "correct its name in the project file"})
	}
	return findings
}

// checkConfiguration finds names in the project's bitbake configuration that no layer has.
func checkConfiguration(_ context.Context, p boardBuild) []Finding {
	found, err := lint.Project(p.project, p.ws, p.bitbakeDir())
	if err != nil {
		return []Finding{{"configuration", Warning, err.Error(), "it cannot be told whether the names in it exist", "fix what it says"}}
	}
	return lintFindings(found, plaintext.Either(p.layers.Checkout == nil, withoutCheckouts, "no name in it that the layers lack"+unchecked))
}

// unchecked ends the text of a good finding.
const unchecked = "; not checked: packages and providers that no branch of the usual layers had"

// withoutCheckouts is the text of a good finding if only Slipway's own tables were compared.
const withoutCheckouts = "no wrong name in it by Slipway's own tables" + unchecked + ", and features and versions, which need the layers' checkouts"

// lintFindings converts lint's findings. Without any it returns one good finding, okText.
func lintFindings(found []lint.Finding, okText string) (all []Finding) {
	for _, f := range found {
		all = append(all, Finding{"configuration", plaintext.Either(f.Stops, Stops, Warning), f.Where + ": " + f.What, f.Why, f.Fix})
	}
	if len(all) == 0 {
		return []Finding{okFinding("configuration", "%s", okText)}
	}
	return all
}

const connectivityCheck = "CONNECTIVITY_CHECK_URIS"

// defaultConnectivity is the default of CONNECTIVITY_CHECK_URIS in openembedded-core.
var defaultConnectivity = "https://www.yoctoproject.org/connectivity.html"

// checkConnectivity fetches the pages of CONNECTIVITY_CHECK_URIS, as bitbake does before the first
// build in a folder, past all mirrors. It skips addresses that are not http or have variables in
// them, and checks nothing offline or without openembedded-core.
func checkConnectivity(ctx context.Context, p boardBuild) []Finding {
	if _, there := p.layers.Branch["openembedded-core"]; !there {
		return nil
	}
	noNetwork, err := p.effectiveSetting("BB_NO_NETWORK")
	if p.Build.Offline || err == nil && noNetwork == "1" || os.Getenv("BB_NO_NETWORK") == "1" {
		return []Finding{okFinding("connectivity", "not asked (offline, or BB_NO_NETWORK is set)")}
	}
	addresses, err := lint.Setting(p.project, p.bitbakeDir(), connectivityCheck, defaultConnectivity)
	if set, _ := p.effectiveSetting(connectivityCheck); set != "" {
		addresses = set
	}
	if err != nil {
		return []Finding{{"connectivity", Warning, err.Error(), "it cannot be told which server bitbake asks first", "correct what it says"}}
	}
	var findings []Finding
	for _, address := range strings.Fields(addresses) {
		address, _, _ = strings.Cut(address, ";")
		if !strings.HasPrefix(address, "http") || strings.Contains(address, "$") {
			continue
		}
		// As for bitbake, an error page of a proxy does not count.
		resp, err := askServer(ctx, http.DefaultClient, http.MethodGet, address)
		if err == nil && resp.StatusCode >= http.StatusBadRequest {
			err = errors.New(resp.Status)
		}
		if err != nil {
			findings = append(findings, Finding{
				"connectivity", Stops, address + " does not answer: " + run.LastLine(err),
				"bitbake asks it before the first build in a folder, past all mirrors, and stops (" + connectivityCheck + ")",
				"where mirrors have all sources, set in " + p.siteConf() + "\n" + connectivityCheck + ` = ""`,
			})
		}
	}
	if len(findings) == 0 {
		return []Finding{okFinding("connectivity", "%s", plaintext.Either(strings.TrimSpace(addresses) == "", "not asked: "+connectivityCheck+" is empty", strings.TrimSpace(addresses)+" answers"))}
	}
	return findings
}

// noRedirects takes a redirect for an answer.
var noRedirects = &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}

// askServer returns an HTTP server's answer of any status, its body closed. It waits 15 s at most.
func askServer(ctx context.Context, client *http.Client, method, address string) (*http.Response, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("no answer within %v", patience))
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, address, nil)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, errors.Join(context.Cause(ctx), err)
	}
	defer resp.Body.Close()
	_, _ = io.CopyN(io.Discard, resp.Body, 1<<16)
	return resp, nil
}

package lint

import (
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"testing"

	"slipway/layers/plaintext"

	"github.com/google/go-cmp/cmp"
)

var (
	l4tVersion = plaintext.Regexp(`(?m)^L4T_VERSION \??= "([0-9.]+)"`)
	fromNVIDIA = plaintext.Regexp(`(?m)^\s*[A-Z0-9_:]*(?:URI|SRC|FEED|BASE|DEB)[A-Za-z0-9_:]*\s*\??\??[+.:]*=.*?https?://([a-z.-]*nvidia\.com)/`)
)

// The file is what meta-tegra's clone holds; see TestNames for how to write it anew.
func TestDownloads(t *testing.T) {
	clone := clonesOf(os.Getenv("SLIPWAY_LAYER_CLONES"))["meta-tegra"]
	if clone == "" {
		t.Skip("SLIPWAY_LAYER_CLONES has no meta-tegra: it is NAME=FOLDER,... with git clones")
	}
	var b strings.Builder
	b.WriteString("# Written by TestDownloads: a branch of meta-tegra, its L4T, NVIDIA's servers, the files that SDK Manager alone gives.\n")
	files := &blobs{t: t, clone: clone, seen: map[string]string{}}
	for _, branch := range origins[0].branches {
		if strings.Contains(branch, "=") {
			continue
		}
		f := files.branch(branch)
		var hosts, sdk []string
		l4t := "unknown"
		for file, id := range f.ids {
			text := files.seen[id]
			if m := l4tVersion().FindStringSubmatch(text); m != nil {
				l4t = m[1]
			}
			for _, m := range fromNVIDIA().FindAllStringSubmatch(text, -1) {
				hosts = append(hosts, hostMark+m[1])
			}
			sdk = append(sdk, f.manual(file)...)
		}
		slices.Sort(hosts)
		slices.Sort(sdk)
		fmt.Fprintln(&b, strings.Join(slices.Concat([]string{branch, l4t}, slices.Compact(hosts), slices.Compact(sdk)), " "))
	}
	if *update {
		if err := os.WriteFile("downloads.txt", []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile("downloads.txt")
	if diff := cmp.Diff(string(have), b.String()); diff != "" || err != nil {
		t.Errorf("downloads.txt is not what the clone holds; look at the difference and run this with -update: %v (-file +clone)\n%s", err, diff)
	}
}

// manual are the files that a recipe takes from NVIDIA_DEVNET_MIRROR.
func (f branchFiles) manual(file string) (all []string) {
	if path.Ext(file) != ".bb" {
		return nil
	}
	pn, pv, _ := strings.Cut(strings.TrimSuffix(path.Base(file), ".bb"), "_")
	const mark = "file://devnet"
	r := recipe{files: f, vars: map[string]string{"PN": pn, "BPN": pn, "PV": pv, "NVIDIA_DEVNET_MIRROR": mark}, weak: map[string]bool{}, read: map[string]bool{}}
	r.file(file)
	for name, value := range r.vars {
		if !strings.HasPrefix(name, "SRC_URI") && !strings.HasPrefix(name, "SRC_DEBPKG") {
			continue
		}
		for _, uri := range strings.Fields(r.expand(value)) {
			if rest, ok := strings.CutPrefix(uri, mark+"/"); ok {
				rest, _, _ = strings.Cut(rest, ";")
				all = append(all, rest)
			}
		}
	}
	return all
}

func TestDownloadsOf(t *testing.T) {
	for branch, want := range map[string]int{"zeus-l4t-r32.3.1": 21, "dunfell-l4t-r32.4.2": 3, "kirkstone-l4t-r32.7.x": 0, "scarthgap": 0} {
		d, known := on(branch).DownloadsOf()
		if !known || len(d.SDKManager) != want || !slices.Contains(d.Hosts, "developer.nvidia.com") && !slices.Contains(d.Hosts, "developer.download.nvidia.com") {
			t.Errorf("%s: %+v, %v; want %d files of SDK Manager and NVIDIA's server", branch, d, known, want)
		}
	}
}

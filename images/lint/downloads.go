package lint

import (
	_ "embed"
	"strings"
	"sync"
)

// downloads.txt holds a line for each branch of meta-tegra: its release of L4T, the
// servers of NVIDIA that it downloads from, and the files that only SDK Manager downloads.
// TestDownloads writes it.
//
//go:embed downloads.txt
var downloadsText string

// Downloads lists what a branch of meta-tegra downloads from NVIDIA.
type Downloads struct {
	L4T   string
	Hosts []string
	// SDKManager are files that the servers send to nobody: a person downloads them with
	// NVIDIA's SDK Manager, and NVIDIA_DEVNET_MIRROR names their folder. Paths are below it.
	SDKManager []string
}

var downloads = sync.OnceValue(func() map[string]Downloads {
	all := map[string]Downloads{}
	for line := range strings.Lines(downloadsText) {
		fields := strings.Fields(line)
		if len(fields) < 2 || strings.HasPrefix(line, "#") {
			continue
		}
		d := Downloads{L4T: fields[1]}
		for _, f := range fields[2:] {
			if host, ok := strings.CutPrefix(f, hostMark); ok {
				d.Hosts = append(d.Hosts, host)
			} else {
				d.SDKManager = append(d.SDKManager, f)
			}
		}
		all[fields[0]] = d
	}
	return all
})

const hostMark = "https://"

// DownloadsOf returns what the layers' branch of meta-tegra downloads, if there is one.
func (l Layers) DownloadsOf() (Downloads, bool) {
	d, known := downloads()[l.Branch["meta-tegra"]]
	return d, known
}

// Release returns the Yocto release of the layers, "" if it is unknown.
func (l Layers) Release() string { return seriesOf(l.releaseBranch()) }

package choose

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Board holds the properties of a board that images may require; "" is unknown.
type Board struct {
	L4T     string `json:"l4t,omitempty"`
	JetPack string `json:"jetpack,omitempty"`
	CUDA    string `json:"cuda,omitempty"` // the newest version that the driver supports
	Arch    string `json:"arch,omitempty"` // CUDA's compute capability
	Driver  string `json:"driver,omitempty"`
	SoC     string `json:"soc,omitempty"`
}

// releases are L4T releases with their JetPack and CUDA. A release that is not listed has those of
// the last release before it with the same major number.
var releases = []struct{ l4t, jetpack, cuda string }{
	{"32.1", "4.2", "10.0"},
	{"32.2", "4.2.1", "10.0"},
	{"32.2.1", "4.2.2", "10.0"},
	{"32.2.3", "4.2.3", "10.0"},
	{"32.3.1", "4.3", "10.0"},
	{"32.4.2", "4.4", "10.2"},
	{"32.4.4", "4.4.1", "10.2"},
	{"32.5", "4.5", "10.2"},
	{"32.5.1", "4.5.1", "10.2"},
	{"32.6.1", "4.6", "10.2"},
	{"32.7.1", "4.6.1", "10.2"},
	{"32.7.2", "4.6.2", "10.2"},
	{"32.7.3", "4.6.3", "10.2"},
	{"32.7.4", "4.6.4", "10.2"},
	{"32.7.5", "4.6.5", "10.2"},
	{"32.7.6", "4.6.6", "10.2"},
	{"34.1", "5.0", "11.4"},
	{"34.1.1", "5.0.1", "11.4"},
	{"35.1", "5.0.2", "11.4"},
	{"35.2.1", "5.1", "11.4"},
	{"35.3.1", "5.1.1", "11.4"},
	{"35.4.1", "5.1.2", "11.4"},
	{"35.5", "5.1.3", "11.4"},
	{"35.6", "5.1.4", "11.4"},
	{"35.6.1", "5.1.5", "11.4"},
	{"35.6.4", "5.1.6", "11.4"},
	{"36.2", "6.0", "12.2"},
	{"36.4", "6.1", "12.6"},
	{"36.4.3", "6.2", "12.6"},
	{"36.4.4", "6.2.1", "12.6"},
	{"36.5", "6.2.2", "12.6"},
	{"36.5.2", "6.2.3", "12.6"},
	{"38.2", "7.0", "13.0"},
	{"38.4", "7.1", "13.0"},
	{"39.2", "7.2", "13.2"},
	{"39.2.1", "7.2.1", "13.2"},
}

// archs maps SoCs, as the device tree names them, to compute capabilities.
var archs = map[string]string{
	"tegra210": "5.3",
	"tegra186": "6.2",
	"tegra194": "7.2",
	"tegra234": "8.7",
	thor:       "11.0",
}

// thor is the first SoC whose GPU is on a PCI bus.
const thor = "tegra264"

// readSoC returns the first SoC of archs in the board's device tree, such as tegra234, or "".
func readSoC(root string) string {
	for _, name := range strings.Split(readStart(filepath.Join(root, "/proc/device-tree/compatible")), "\x00") {
		if soc := strings.TrimPrefix(name, "nvidia,"); archs[soc] != "" {
			return soc
		}
	}
	return ""
}

// ReadBoard reads the properties of the board at root. Those that it cannot read stay empty.
func ReadBoard(root string) Board {
	b := Board{
		L4T:    parseL4T(readStart(filepath.Join(root, "/etc/nv_tegra_release"))),
		Driver: parseDriver(readStart(filepath.Join(root, "/proc/driver/nvidia/version"))),
		SoC:    readSoC(root),
	}
	b.JetPack, b.CUDA = findRelease(b.L4T)
	b.Arch = archs[b.SoC]
	return b
}

// Folders of CUDA driver libraries in images. Those for Orin's driver have their own.
const (
	compatDir  = "/usr/local/cuda/compat"
	compatOrin = compatDir + "_orin"
)

// CompatDir returns the folder where images have newer CUDA driver libraries for the board. It is
// "" for a Tegra board whose driver cannot use them, as on Jetsons before JetPack 6.
func (b Board) CompatDir() string {
	switch {
	case b.SoC == "" || b.SoC == thor:
		return compatDir
	case b.SoC == "tegra234" && !Newer("36", b.L4T) && b.L4T != "":
		return compatOrin
	}
	return ""
}

// nvmlPaths are paths of NVIDIA's driver for servers and desktops, whose libraries report GPUs.
var nvmlPaths = []string{
	"/proc/driver/nvidia/version", "/usr/bin/nvidia-smi", "/usr/sbin/nvidia-smi", "/usr/lib/libnvidia-ml.so.1",
	"/usr/lib64/libnvidia-ml.so.1", "/usr/lib/aarch64-linux-gnu/libnvidia-ml.so.1", "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1",
}

// WithoutLists reports whether the board at root needs no CSV lists: its driver has NVML, which
// NVIDIA's toolkit queries. Jetsons up to Orin have that driver too, but need lists.
func WithoutLists(root string) bool {
	soc := readSoC(root)
	return (soc == "" || soc == thor) && slices.ContainsFunc(nvmlPaths, func(p string) bool {
		_, err := os.Lstat(filepath.Join(root, p))
		return err == nil
	})
}

// parseL4T returns the version, such as 35.4.1 for the line "# R35 (release), REVISION: 4.1, …" of
// nv_tegra_release; "" if the first line is another.
func parseL4T(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	major, rest, ok := strings.Cut(strings.TrimPrefix(line, "# R"), " (release), REVISION: ")
	minor, _, more := strings.Cut(rest, ",")
	version := major + "." + strings.TrimSpace(minor)
	if _, err := parseVersion(version); err != nil || !ok || !more {
		return ""
	}
	return version
}

// parseDriver returns the first version with a dot in the first line, "NVRM version: … 540.3.0 …".
func parseDriver(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	for _, word := range strings.Fields(line) {
		if _, err := parseVersion(word); err == nil && strings.Contains(word, ".") {
			return word
		}
	}
	return ""
}

// findRelease returns JetPack and CUDA of the last release up to l4t with its major number, or "".
func findRelease(l4t string) (jetpack, cuda string) {
	have, err := parseVersion(l4t)
	if err != nil {
		return "", ""
	}
	for _, r := range releases {
		since, err := parseVersion(r.l4t)
		if err == nil && since[0] == have[0] && since.compare(have) <= 0 {
			jetpack, cuda = r.jetpack, r.cuda
		}
	}
	return jetpack, cuda
}

func (b Board) propertyValue(property string) string {
	return map[string]string{"arch": b.Arch, "cuda": b.CUDA, "driver": b.Driver, "jetpack": b.JetPack}[property]
}

// describeFor returns text with the board's values of all properties in r. A brand is always none.
func (b Board) describeFor(r requirement) string {
	var out []string
	for _, conditions := range r.alternatives {
		for _, c := range conditions {
			value := cmp.Or(b.propertyValue(c.property), "unknown")
			if c.property == "brand" {
				value = "none"
			}
			if text := c.property + " " + value; !slices.Contains(out, text) {
				out = append(out, text)
			}
		}
	}
	return strings.Join(out, ", ")
}

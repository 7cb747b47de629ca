package images

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"slipway/images/bitbake/bitbaketest"
	"slipway/layers/plaintext"
)

// seriesBranches are the branches of bitbake for each series that a layer can claim.
var seriesBranches = map[string]string{"kirkstone": "2.0", "scarthgap": "2.8", "wrynose": "2.18"}

// A machine with the tune of a BlueField and little else of it. What both build must be the same,
// or a distribution cannot have both. openembedded-core itself builds matchbox-panel-2 differently
// for acpi. With linux-dummy it packages each recipe that recommends kernel modules differently.
const plainMachine = `require conf/machine/include/arm/%s.inc
PREFERRED_PROVIDER_virtual/kernel = "linux-yocto"
COMPATIBLE_MACHINE:pn-linux-yocto = ".*"
KERNEL_IMAGETYPE = "Image"
MACHINE_FEATURES = "acpi efi"
`

// Each layer passes each test of yocto-check-layer with the series that it claims. The
// test tries the last of them, and each one where SLIPWAY_ALL_RELEASES is set. It parses
// openembedded-core three times for a distribution, seven for a BSP: go test -timeout=2h.
func TestYoctoCheckLayer(t *testing.T) {
	clones := bitbaketest.Checkouts(t)
	oecore := os.Getenv("SLIPWAY_OECORE")
	if oecore == "" {
		t.Skip("SLIPWAY_OECORE is not set: it names a git clone of openembedded-core with its branches")
	}
	if testing.Short() {
		t.Skip("-short: yocto-check-layer reads all recipes of openembedded-core many times")
	}
	for _, layer := range []string{"meta-slipway", "meta-slipway-bsp"} {
		claims := seriesOf(t, layer)
		if os.Getenv("SLIPWAY_ALL_RELEASES") == "" {
			claims = claims[len(claims)-1:]
		}
		for _, series := range claims {
			t.Run(layer+"/"+series, func(t *testing.T) {
				branch, known := seriesBranches[series]
				if !known {
					t.Fatalf("layers/%s/conf/layer.conf claims %s, which this test does not know: add its branch to seriesBranches", layer, series)
				}
				c := layerCheck{
					bitbake: bitbaketest.Unpack(t, clones, branch),
					core:    bitbaketest.Unpack(t, []string{oecore}, series),
					dir:     metadata(t, series),
					builder: bitbaketest.Builder(t),
				}
				bitbaketest.Own(t, c.dir, c.builder)
				c.checkLayer(t, layer)
			})
		}
	}
}

var compatible = plaintext.Regexp(`(?m)^LAYERSERIES_COMPAT_\S+ = "(.+)"$`)

func seriesOf(t *testing.T, layer string) []string {
	t.Helper()
	conf, err := os.ReadFile("../layers/" + layer + "/conf/layer.conf")
	if err != nil {
		t.Fatal(err)
	}
	claims := compatible().FindSubmatch(conf)
	if claims == nil {
		t.Fatalf("layers/%s/conf/layer.conf has no LAYERSERIES_COMPAT", layer)
	}
	return strings.Fields(string(claims[1]))
}

// metadata copies what both layers read to a folder that the builder may enter. It puts a
// layer with two plain machines beside it.
func metadata(t *testing.T, series string) string {
	t.Helper()
	dir := bitbaketest.PublicDir(t)
	for _, part := range []string{"layers/meta-slipway", "layers/meta-slipway-bsp", "recipes", "images", "runtime-hook"} {
		if err := os.CopyFS(filepath.Join(dir, "slipway", part), os.DirFS("../"+part)); err != nil {
			t.Fatal(err)
		}
	}
	machines := filepath.Join(dir, "meta-plain/conf/machine")
	if err := os.MkdirAll(machines, 0o755); err != nil {
		t.Fatal(err)
	}
	for path, text := range map[string]string{
		"../layer.conf":  "BBPATH .= \":${LAYERDIR}\"\nBBFILE_COLLECTIONS += \"plain\"\nBBFILE_PATTERN_plain = \"^${LAYERDIR}/\"\nLAYERSERIES_COMPAT_plain = \"" + series + "\"\n",
		"plain-a72.conf": fmt.Sprintf(plainMachine, "armv8a/tune-cortexa72"),
		"plain-a78.conf": fmt.Sprintf(plainMachine, "armv8-2a/tune-cortexa78"),
	} {
		if err := os.WriteFile(filepath.Join(machines, path), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// layerCheck is a folder for a run of yocto-check-layer.
type layerCheck struct {
	bitbake, core, dir string
	builder            *syscall.Credential
}

// checkLayer has openembedded-core make the build folder, as everybody does.
func (c layerCheck) checkLayer(t *testing.T, layer string) {
	t.Helper()
	const script = `. "$1/oe-init-build-env" "$2" > /dev/null && shift 2 && exec yocto-check-layer "$@"`
	argv := []string{"-c", script, "bash", c.core, filepath.Join(c.dir, "build"), filepath.Join(c.dir, "slipway/layers", layer)}
	if layer == "meta-slipway-bsp" {
		argv = append(argv, "--additional-layers", filepath.Join(c.dir, "meta-plain"), "--machines", "bluefield2", "bluefield3", "plain-a72", "plain-a78")
	}
	cmd := exec.CommandContext(t.Context(), "bash", argv...)
	cmd.Dir = c.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: c.builder}
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + c.dir, "LC_ALL=en_US.UTF-8", "BITBAKEDIR=" + c.bitbake, "BB_NO_NETWORK=1"}
	out, err := cmd.CombinedOutput()
	if err != nil || !regexp.MustCompile(`(?m)^INFO: `+layer+` \.\.\. PASS$`).Match(out) {
		t.Fatalf("yocto-check-layer %s: %v\n%s", layer, err, out)
	}
	t.Logf("%s", out)
}

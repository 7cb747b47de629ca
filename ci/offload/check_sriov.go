package offload

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"path"
	"strings"

	"slipway/ci/report"
	"slipway/ci/suite"
	"slipway/ci/suite/match"
	"slipway/layers/plaintext"
)

// sriov is the check of a physical function: its virtual functions and the mode of its
// switch.
type sriov struct {
	pf   string // its network interface
	vfs  match.Matcher
	mode string // of the embedded switch: switchdev or legacy
}

func readSRIOV(e *suite.Entry) suite.Probe {
	s := sriov{pf: e.Text("pf", e.Name), vfs: e.Matcher("vfs", match.Number), mode: e.Text("mode", "switchdev")}
	if !plainInterface().MatchString(s.pf) {
		e.Fail(e.Key, "pf %q is no name of a network interface", s.pf)
	}
	return s
}

var plainInterface = plaintext.Regexp(`^[A-Za-z0-9][A-Za-z0-9._-]{0,14}$`)

func (s sriov) Next() string {
	return "on the board: devlink dev eswitch show; cat /sys/class/net/" + s.pf + "/device/sriov_numvfs; ip -d link. The recipe dpu-sriov sets both as the board starts"
}

func (c sriov) Inspect(ctx context.Context, s *suite.Session) (f suite.Finding, err error) {
	if err := s.RequireProgram(ctx, "devlink"); err != nil {
		return f, err
	}
	device, err := s.Output(ctx, "readlink", "-f", "/sys/class/net/"+c.pf+"/device")
	if err != nil {
		return f, suite.Missing("there is no interface " + c.pf + " of a PCI device")
	}
	address := path.Base(strings.TrimSpace(device))
	if err := c.checkSwitchMode(ctx, &f, s, address); err != nil {
		return f, err
	}
	// On a DPU's own cores the host's functions have representors too.
	out, err := s.Output(ctx, "sh", "-c", "grep -H . /sys/class/net/*/phys_port_name /sys/class/net/*/phys_switch_id 2>/dev/null; :")
	if err != nil {
		return f, err
	}
	reps := parseRepresentors(out, c.pf)
	f.ExpectMatch("VFs", c.vfs, len(reps), fmt.Sprintf("%d VFs with a representor on the switch of %s: %s", len(reps), c.pf, strings.Join(reps, ", ")))
	f.Proves = report.ProvesParts
	return f, nil
}

// checkSwitchMode compares the mode of the device's embedded switch with the wanted one.
func (c sriov) checkSwitchMode(ctx context.Context, f *suite.Finding, s *suite.Session, address string) error {
	out, err := s.Output(ctx, "devlink", "-j", "dev", "eswitch", "show", "pci/"+address)
	if err != nil {
		return err
	}
	mode, err := parseEswitch(out, "pci/"+address)
	if err != nil {
		return err
	}
	f.Expect(mode == c.mode, "the switch of "+address+" in mode "+c.mode, "the switch of "+address+" is in mode "+cmp.Or(mode, "none"))
	return nil
}

// parseEswitch reads the mode of a device's switch from the output of devlink -j.
func parseEswitch(text, device string) (string, error) {
	var shown struct {
		Dev map[string]struct {
			Mode string `json:"mode"`
		} `json:"dev"`
	}
	if err := json.Unmarshal([]byte(text), &shown); err != nil {
		return "", fmt.Errorf("devlink answered %q: %w", plaintext.Clean(text, 200), err)
	}
	return plaintext.Clean(shown.Dev[device].Mode, 50), nil
}

var vfPort = plaintext.Regexp(`^(?:c\d{1,3})?pf\d{1,3}vf\d{1,4}$`)

// maxRepresentors is far above the virtual functions that a device can have.
const maxRepresentors = 4096

// parseRepresentors returns the interfaces of virtual functions that are on the switch of
// another interface, from lines of "file:value" below /sys/class/net.
func parseRepresentors(text, pf string) (all []string) {
	ports, switches := map[string]string{}, map[string]string{}
	var order []string
	for _, line := range plaintext.Lines(text) {
		file, value, _ := strings.Cut(line, ":")
		name := path.Base(path.Dir(file))
		switch path.Base(file) {
		case "phys_port_name":
			if ports[name] == "" {
				order = append(order, name)
			}
			ports[name] = value
		case "phys_switch_id":
			switches[name] = value
		}
	}
	for _, name := range order {
		if vfPort().MatchString(ports[name]) && switches[name] != "" && switches[name] == switches[pf] && len(all) < maxRepresentors {
			all = append(all, name)
		}
	}
	return all
}

package choose

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"slipway/runtime-hook/internal/plan"
	"slipway/runtime-hook/internal/regular"
)

// GPU is one GPU of a board.
type GPU struct {
	Index   int
	UUID    string   // "" if the board does not report one
	Address string   // on the PCI bus; "" for the GPU of the SoC
	Nodes   []string // device nodes in the plan, by path in the container
	Lacks   string   // set if the plan has devices but none of this GPU: the first missing node
}

// String returns "GPU N (UUID)", or "GPU N" without a UUID.
func (g GPU) String() string {
	s := fmt.Sprintf("GPU %d", g.Index)
	if g.UUID != "" {
		s += " (" + g.UUID + ")"
	}
	return s
}

// gpuName is a container's name for a GPU.
type gpuName struct {
	index int // -1 if the name is a UUID
	uuid  string
}

// maxNames limits the GPU names that an image may request. No board has as many GPUs.
const maxNames = 256

// NotListed returns the error for a GPU whose node is in no list.
func (g GPU) NotListed() error {
	return fmt.Errorf("%v: the board's lists give no %s; next: add the line \"dev, %s\" to a list", g, g.Lacks, g.Lacks)
}

// parseNames parses NVIDIA_VISIBLE_DEVICES. gpus is nil for all GPUs, and empty for none; without a
// GPU the container still gets the files that need none. wants is false for an empty value or void.
func parseNames(value string) (gpus []gpuName, wants bool, err error) {
	if err := checkLength(visibleDevices, value); err != nil {
		return nil, false, err
	}
	everything, none := false, false
	words := strings.Split(value, ",")
	if len(words) > maxNames {
		return nil, false, fmt.Errorf("NVIDIA_VISIBLE_DEVICES names more than %d devices; use all", maxNames)
	}
	for _, word := range words {
		word = strings.TrimSpace(word)
		switch word {
		case "":
			continue
		case "void":
			return nil, false, nil
		case "none":
			wants, none = true, true
			continue
		}
		n, isAll, err := parseName(word)
		if err != nil {
			return nil, false, err
		}
		wants, everything = true, everything || isAll
		gpus = append(gpus, n)
	}
	switch {
	case none:
		gpus = []gpuName{}
	case everything:
		gpus = nil
	}
	return gpus, wants, nil
}

// cdiKinds are the CDI kinds of whole GPUs in NVIDIA's toolkits.
var cdiKinds = []string{"nvidia.com/gpu", "runtime.nvidia.com/gpu", "k8s.device-plugin.nvidia.com/gpu"}

// parseName parses one GPU name: all, an index, a UUID, or one of these after a CDI kind and "=".
func parseName(word string) (n gpuName, isAll bool, err error) {
	id := word
	if kind, device, ok := strings.Cut(word, "="); ok {
		if strings.HasSuffix(kind, "/mig") {
			return gpuName{}, false, migError(word)
		}
		if !slices.Contains(cdiKinds, kind) {
			return gpuName{}, false, gpuNameError(word)
		}
		id = device
	}
	switch {
	case id == "all":
		return gpuName{}, true, nil
	case strings.HasPrefix(id, "MIG-") || strings.Contains(id, ":"):
		return gpuName{}, false, migError(word)
	case isUUID(strings.TrimPrefix(id, "GPU-")):
		return gpuName{index: -1, uuid: "GPU-" + strings.TrimPrefix(id, "GPU-")}, false, nil
	}
	index, err := strconv.ParseUint(id, 10, 16)
	if err != nil {
		return gpuName{}, false, gpuNameError(word)
	}
	return gpuName{index: int(index)}, false, nil
}

func migError(word string) error {
	return fmt.Errorf("NVIDIA_VISIBLE_DEVICES names %.80q, a part of a GPU (MIG), which Jetson boards do not have; name the GPU, or use all", word)
}

func gpuNameError(word string) error {
	return fmt.Errorf("NVIDIA_VISIBLE_DEVICES names %.80q, which is no name of a GPU; use all, none, an index, a UUID, or one of these after nvidia.com/gpu=", word)
}

// isUUID reports whether s has the form of a UUID, in digits of either case, without prefix.
func isUUID(s string) bool {
	parts := strings.Split(s, "-")
	if len(parts) != 5 {
		return false
	}
	for i, size := range []int{8, 4, 4, 4, 12} {
		if len(parts[i]) != size || strings.Trim(parts[i], "0123456789abcdefABCDEF") != "" {
			return false
		}
	}
	return true
}

// unchosenNodes returns the device nodes of the GPUs that the container did not choose. A GPU that
// the board or its lists do not have is an error. On a board with one GPU, each index means that
// GPU, and so does each UUID if the driver reports none.
func (s Selection) unchosenNodes(root string, p plan.Plan) (map[string]bool, error) {
	if s.gpus == nil {
		return nil, nil
	}
	gpus := GPUs(root, p)
	if len(s.gpus) == 0 {
		// Also the nodes of GPUs that the driver does not report, and of display GPUs.
		gpus = append(gpusByNode(p), gpus...)
	} else if len(gpus) < 2 {
		return nil, s.checkUUIDs(gpus)
	}
	chosen := map[int]bool{}
	for _, n := range s.gpus {
		i := slices.IndexFunc(gpus, n.matches)
		if i < 0 {
			return nil, n.missingGPUError(gpus)
		}
		if gpus[i].Lacks != "" {
			return nil, fmt.Errorf("NVIDIA_VISIBLE_DEVICES names %w", gpus[i].NotListed())
		}
		chosen[i] = true
	}
	others := map[string]bool{}
	for i, g := range gpus {
		for _, node := range g.Nodes {
			if !chosen[i] {
				others[node] = true
			}
		}
	}
	return others, nil
}

// checkUUIDs returns an error for a UUID that is not the only GPU's, if that GPU's UUID is known.
func (s Selection) checkUUIDs(gpus []GPU) error {
	for _, n := range s.gpus {
		for _, g := range gpus {
			if n.index < 0 && g.UUID != "" && !n.matches(g) {
				return n.missingGPUError(gpus)
			}
		}
	}
	return nil
}

// missingGPUError returns the error that n is none of gpus, which it lists.
func (n gpuName) missingGPUError(gpus []GPU) error {
	var have []string
	for _, g := range gpus {
		have = append(have, g.String())
	}
	return fmt.Errorf("NVIDIA_VISIBLE_DEVICES names GPU %v; the board has %s", n, strings.Join(have, ", "))
}

// matches reports whether the name is g's index, or its UUID in any case of letters.
func (n gpuName) matches(g GPU) bool {
	if n.index >= 0 {
		return n.index == g.Index
	}
	return g.UUID != "" && strings.EqualFold(n.uuid, g.UUID)
}

// String returns the index, or else the UUID.
func (n gpuName) String() string {
	if n.index >= 0 {
		return strconv.Itoa(n.index)
	}
	return n.uuid
}

// GPUs returns the GPUs of the board at root with their nodes in p, in NVIDIA's order: the SoC's
// own first, then by PCI address. Nodes that all GPUs share are in no GPU's list. If neither /proc
// nor the SoC has a GPU, GPUs makes them from the device nodes in p.
func GPUs(root string, p plan.Plan) []GPU {
	gpus := readPCI(root)
	own := ownNodes(p)
	switch {
	case len(gpus) == 0 && len(own) == 0:
		gpus = gpusByNode(p)
	case len(gpus) > 0 && len(own) > 0 && readSoC(root) == thor: // whose own GPU is the first on a PCI bus
		gpus[0].Nodes = append(gpus[0].Nodes, own...)
	case len(own) > 0:
		gpus = append([]GPU{{Nodes: own}}, gpus...)
	}
	cards := drmAddresses(root, gpus)
	for i := range gpus {
		gpus[i].keepListed(p)
		gpus[i].Index = i
		for _, d := range p.Devices {
			if cards[d.Path] == gpus[i].Address && gpus[i].Address != "" {
				gpus[i].Nodes = append(gpus[i].Nodes, d.Path)
			}
		}
	}
	return gpus
}

// keepListed removes the nodes from g that p does not have. If none is left, it sets g.Lacks,
// unless p has no devices at all, because then the board's settings turn devices off.
func (g *GPU) keepListed(p plan.Plan) {
	listed := slices.DeleteFunc(slices.Clone(g.Nodes), func(node string) bool {
		return !slices.ContainsFunc(p.Devices, func(d plan.Device) bool { return d.Path == node })
	})
	if len(listed) == 0 && len(g.Nodes) > 0 && len(p.Devices) > 0 {
		g.Lacks = g.Nodes[0]
	}
	g.Nodes = listed
}

// maxGPUs is the NVIDIA driver's own limit.
const maxGPUs = 32

// readPCI reads the GPUs that the NVIDIA driver reports below /proc. It reports neither the GPU of
// a SoC before Thor, nor a GPU that is only a display, though the latter has a /dev/nvidia<N> too.
func readPCI(root string) []GPU {
	dir := filepath.Join(root, "/proc/driver/nvidia/gpus")
	found, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	var gpus []GPU
	for _, f := range found[:min(len(found), maxGPUs)] {
		about := readPairs(filepath.Join(dir, f.Name(), "information"))
		g := GPU{UUID: about["GPU UUID"], Address: f.Name()}
		// The driver shows question marks for a GPU that it has not queried, because it sleeps.
		if strings.Contains(g.UUID, "?") {
			g.UUID = ""
		}
		if minor, err := strconv.ParseUint(about["Device Minor"], 10, 16); err == nil {
			g.Nodes = []string{fmt.Sprintf("/dev/nvidia%d", minor)}
		}
		gpus = append(gpus, g)
	}
	return gpus
}

// readPairs returns the lines "Name: value" of the file as a map; none if it cannot read the file.
func readPairs(file string) map[string]string {
	out := map[string]string{}
	for _, line := range strings.Split(readStart(file), "\n") {
		if key, value, ok := strings.Cut(line, ":"); ok {
			out[strings.TrimSpace(key)] = strings.TrimSpace(value)
		}
	}
	return out
}

// readStart returns the first 4 KiB of a regular file, "" if there is none.
func readStart(file string) string {
	data, _, _ := regular.Read(file, 4<<10)
	return string(data)
}

// ownNodes returns the nodes of the GPU that is part of a SoC, up to Orin.
func ownNodes(p plan.Plan) (nodes []string) {
	for _, d := range p.Devices {
		if ok, _ := path.Match("/dev/nvhost-*gpu", d.Path); ok || strings.HasPrefix(d.Path, "/dev/nvgpu/") {
			nodes = append(nodes, d.Path)
		}
	}
	return nodes
}

// gpusByNode returns a GPU for each /dev/nvidia<N> in the plan, sorted by N.
func gpusByNode(p plan.Plan) (gpus []GPU) {
	for _, d := range p.Devices {
		if number, ok := strings.CutPrefix(d.Path, "/dev/nvidia"); ok && number != "" && strings.Trim(number, "0123456789") == "" {
			gpus = append(gpus, GPU{Nodes: []string{d.Path}})
		}
	}
	slices.SortFunc(gpus, func(a, b GPU) int {
		return len(a.Nodes[0])*1000 - len(b.Nodes[0])*1000 + strings.Compare(a.Nodes[0], b.Nodes[0])
	})
	return gpus
}

// drmAddresses returns the PCI address of each node in /dev/dri, by the node's path, from the links
// in sysfs. With fewer than two GPUs it returns nil, as all nodes belong to the one GPU.
func drmAddresses(root string, gpus []GPU) map[string]string {
	if len(gpus) < 2 {
		return nil
	}
	found, err := os.ReadDir(filepath.Join(root, "/sys/class/drm"))
	if err != nil {
		return nil
	}
	cards := map[string]string{}
	for _, f := range found {
		device, err := os.Readlink(filepath.Join(root, "/sys/class/drm", f.Name(), "device"))
		if err == nil {
			cards["/dev/dri/"+f.Name()] = path.Base(device)
		}
	}
	return cards
}

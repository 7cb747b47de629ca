package choose

import (
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"slipway/runtime-hook/internal/plan"
)

// GPU is one GPU of a board.
type GPU struct {
	Index   int
	UUID    string   // "" if the board does not report one
	Address string   // on the PCI bus; "" for the SoC's own
	Nodes   []string // of the plan, by path in the container
	Lacks   string   // the node of the GPU that the plan does not have, though it has others
}

func (g GPU) String() string {
	s := fmt.Sprintf("GPU %d", g.Index)
	if g.UUID != "" {
		s += " (" + g.UUID + ")"
	}
	return s
}

// gpuName is a container's name for a GPU.
type gpuName struct {
	index int // -1 if it is a UUID
	uuid  string
}

// maxNames is more than any board has, and bounds what an image may request.
const maxNames = 256

// NotListed returns the error that no list names the GPU's node.
func (g GPU) NotListed() error {
	return fmt.Errorf("%v: the board's lists give no %s; next: add the line \"dev, %s\" to a list", g, g.Lacks, g.Lacks)
}

// parseNames reads NVIDIA_VISIBLE_DEVICES. Nil is all GPUs. An empty list is no GPU:
// the container still gets what the driver does without one.
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

// cdiKinds are the CDI kinds under which toolkits name whole GPUs.
var cdiKinds = []string{"nvidia.com/gpu", "runtime.nvidia.com/gpu", "k8s.device-plugin.nvidia.com/gpu"}

func parseName(word string) (n gpuName, isAll bool, err error) {
	id := word
	if kind, device, ok := strings.Cut(word, "="); ok {
		if strings.HasSuffix(kind, "/mig") {
			return gpuName{}, false, noMIG(word)
		}
		if !slices.Contains(cdiKinds, kind) {
			return gpuName{}, false, noGPU(word)
		}
		id = device
	}
	switch {
	case id == "all":
		return gpuName{}, true, nil
	case strings.HasPrefix(id, "MIG-") || strings.Contains(id, ":"):
		return gpuName{}, false, noMIG(word)
	case isUUID(strings.TrimPrefix(id, "GPU-")):
		return gpuName{index: -1, uuid: "GPU-" + strings.TrimPrefix(id, "GPU-")}, false, nil
	}
	index, err := strconv.ParseUint(id, 10, 16)
	if err != nil {
		return gpuName{}, false, noGPU(word)
	}
	return gpuName{index: int(index)}, false, nil
}

func noMIG(word string) error {
	return fmt.Errorf("NVIDIA_VISIBLE_DEVICES names %.80q, a part of a GPU (MIG), which Jetson boards do not have; name the GPU, or use all", word)
}

func noGPU(word string) error {
	return fmt.Errorf("NVIDIA_VISIBLE_DEVICES names %.80q, which is no name of a GPU; use all, none, an index, a UUID, or one of these after nvidia.com/gpu=", word)
}

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

// unchosenNodes returns the nodes of the GPUs that the container did not choose. On a
// board with one GPU every number means that one, and so does a UUID if the driver reports
// none.
func (s Selection) unchosenNodes(root string, p plan.Plan) (map[string]string, error) {
	if s.gpus == nil {
		return nil, nil
	}
	gpus := GPUs(root, p)
	if len(s.gpus) == 0 {
		// Also the nodes of GPUs that the driver does not report, and of a display.
		gpus = append(gpusByNode(p), gpus...)
	} else if len(gpus) < 2 {
		return nil, s.checkUUIDs(gpus)
	}
	chosen := map[int]bool{}
	for _, n := range s.gpus {
		i := slices.IndexFunc(gpus, n.matches)
		if i < 0 {
			return nil, n.notThere(gpus)
		}
		if gpus[i].Lacks != "" {
			return nil, fmt.Errorf("NVIDIA_VISIBLE_DEVICES names %w", gpus[i].NotListed())
		}
		chosen[i] = true
	}
	others := map[string]string{}
	for i, g := range gpus {
		for _, node := range g.Nodes {
			if !chosen[i] {
				others[node] = g.String()
			}
		}
	}
	return others, nil
}

// checkUUIDs refuses each UUID that is not the one that the driver reports of the only GPU.
func (s Selection) checkUUIDs(gpus []GPU) error {
	for _, n := range s.gpus {
		for _, g := range gpus {
			if n.index < 0 && g.UUID != "" && !n.matches(g) {
				return n.notThere(gpus)
			}
		}
	}
	return nil
}

func (n gpuName) notThere(gpus []GPU) error {
	return fmt.Errorf("NVIDIA_VISIBLE_DEVICES names GPU %v; the board has %s", n, gpuList(gpus))
}

func (n gpuName) matches(g GPU) bool {
	if n.index >= 0 {
		return n.index == g.Index
	}
	return g.UUID != "" && strings.EqualFold(n.uuid, g.UUID)
}

func (n gpuName) String() string {
	if n.index >= 0 {
		return strconv.Itoa(n.index)
	}
	return n.uuid
}

func gpuList(gpus []GPU) string {
	var out []string
	for _, g := range gpus {
		out = append(out, g.String())
	}
	return strings.Join(out, ", ")
}

// GPUs returns the GPUs of the board whose file tree is root, in NVIDIA's order: the
// SoC's own, then by address. Nodes of the plan that belong to none of them serve all.
func GPUs(root string, p plan.Plan) []GPU {
	gpus := readPCI(root)
	own := ownNodes(p)
	switch {
	case len(gpus) == 0 && len(own) == 0:
		gpus = gpusByNode(p)
	case len(gpus) > 0 && len(own) > 0 && ownOnPCI(root):
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

// keepListed keeps those of the GPU's nodes that p has. If p has no devices at all, the
// board's settings leave them to others.
func (g *GPU) keepListed(p plan.Plan) {
	all := g.Nodes
	g.Nodes = nil
	for _, node := range all {
		if slices.ContainsFunc(p.Devices, func(d plan.Device) bool { return d.Path == node }) {
			g.Nodes = append(g.Nodes, node)
		}
	}
	if len(g.Nodes) == 0 && len(all) > 0 && len(p.Devices) > 0 {
		g.Lacks = all[0]
	}
}

// maxGPUs is the limit of the NVIDIA driver.
const maxGPUs = 32

// readPCI reads the NVIDIA driver's report of its GPUs. The driver has no entry for the GPU
// of a SoC before Thor, nor for a GPU that is only a display, though that has a /dev/nvidia<N> too.
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
		// The driver has not queried a GPU that sleeps, and shows question marks.
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

// readPairs reads lines of "Name: value".
func readPairs(file string) map[string]string {
	out := map[string]string{}
	for _, line := range strings.Split(readStart(file), "\n") {
		if key, value, ok := strings.Cut(line, ":"); ok {
			out[strings.TrimSpace(key)] = strings.TrimSpace(value)
		}
	}
	return out
}

// readStart returns the first bytes of a small file of the board, "" if there is none.
func readStart(file string) string {
	info, err := os.Stat(file)
	if err != nil || !info.Mode().IsRegular() {
		return ""
	}
	f, err := os.Open(file)
	if err != nil {
		return ""
	}
	defer f.Close()
	data, _ := io.ReadAll(io.LimitReader(f, 4096))
	return string(data)
}

// ownOnPCI reports whether the SoC's GPU is the first one on a PCI bus, as Thor's is:
// nodes that older boards have would then belong to it.
func ownOnPCI(root string) bool {
	return parseSoC(readStart(filepath.Join(root, compatible))) == thor
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

// gpusByNode counts each /dev/nvidia<N> as a GPU, if nothing else tells.
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

// drmAddresses returns the PCI addresses of the nodes of /dev/dri. Each name in sysfs
// links to its device, and the link ends in the address.
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

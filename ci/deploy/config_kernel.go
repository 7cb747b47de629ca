package deploy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	goyaml "go.yaml.in/yaml/v4"

	"slipway/ci/report"
	"slipway/flash/boardssh/undo"
	"slipway/layers/plaintext"
	"slipway/layers/yaml"
)

// maxConfigLines limits the entries of a section.
const maxConfigLines = 500

// modules is the section modules: kernel modules to load now, and at each boot by modules-load.d.
type modules []string

var modulePattern = plaintext.Regexp(`^[A-Za-z0-9_][A-Za-z0-9_-]{0,63}$`)

// readModules parses the section modules: a list of 1 to maxConfigLines names.
func readModules(f *configFile, n *goyaml.Node) (configPart, error) {
	e := &yaml.Entry{File: f.name, Fields: map[string]*goyaml.Node{"modules": n}}
	m := modules(e.List("modules"))
	for i, name := range m {
		if !modulePattern().MatchString(name) {
			e.Fail(n.Content[i], "%q is no name of a kernel module", name)
		}
	}
	if len(m) == 0 || len(m) > maxConfigLines {
		e.Fail(n, "modules needs a list of 1 to %d names", maxConfigLines)
	}
	return m, e.Err
}

// plan adds a setting for each module that is not loaded, and the drop-in file for the next boots.
func (m modules) plan(ctx context.Context, p *configPlan) error {
	for _, name := range m {
		if err := p.addSetting(ctx, undo.Module, name, "loaded"); err != nil {
			return err
		}
	}
	p.addDropIn("/etc/modules-load.d/slipway.conf", m...)
	return nil
}

// sysctl is one kernel setting, which is set now, and at each boot by sysctl.d.
type sysctl struct{ name, value string }

type sysctls struct {
	file *configFile
	node *goyaml.Node
	all  []sysctl
}

var (
	sysctlPattern = plaintext.Regexp(`^[a-z0-9_][A-Za-z0-9_@:-]*([./][A-Za-z0-9_@:-]+){1,11}$`)
	sysctlValue   = plaintext.Regexp(`^[!-~]([ -~]{0,998}[!-~])?$`)
)

// readSysctls parses the section sysctl, names and values. It refuses two spellings of one name.
func readSysctls(f *configFile, n *goyaml.Node) (configPart, error) {
	s := sysctls{file: f, node: n}
	if n.Kind != goyaml.MappingNode || len(n.Content) == 0 || len(n.Content) > 2*maxConfigLines {
		return nil, f.errorAt(n, "sysctl must be a mapping of 1 to %d names and values, such as net.core.rmem_max: 26214400", maxConfigLines)
	}
	places := seenKeys{}
	for key, value := range yaml.Pairs(n) {
		if !sysctlPattern().MatchString(key.Value) {
			return nil, f.errorAt(key, "%q is no name of a sysctl", key.Value)
		}
		if err := places.addOnce(f, sysctl{name: key.Value}.procPath(), key); err != nil {
			return nil, err
		}
		words := strings.Join(strings.Fields(value.Value), " ")
		if value.Kind != goyaml.ScalarNode || !sysctlValue().MatchString(words) {
			return nil, f.errorAt(value, "%s must be a number or a text, not %s", key.Value, yaml.KindOf(value))
		}
		s.all = append(s.all, sysctl{key.Value, words})
	}
	return s, nil
}

// procPath returns the setting's path, /proc/sys/NAME. Dots in the name become slashes, and slashes
// dots. As with sysctl(8), a name whose first separator is a slash is already a path.
func (s sysctl) procPath() string {
	if i := strings.IndexAny(s.name, "./"); s.name[i] == '/' {
		return "/proc/sys/" + s.name
	}
	return "/proc/sys/" + strings.NewReplacer(".", "/", "/", ".").Replace(s.name)
}

// plan adds the settings, and a drop-in file for next boots, to p. It fails if the board lacks one.
func (s sysctls) plan(ctx context.Context, p *configPlan) error {
	var lines []string
	for _, one := range s.all {
		err := p.addSetting(ctx, undo.KernelValue, one.procPath(), one.value)
		if errors.Is(err, undo.ErrNoSetting) {
			err = s.file.errorAt(s.node, "%s: %v; if a module brings it, deploy that first", one.name, err)
		}
		if err != nil {
			return err
		}
		lines = append(lines, one.name+" = "+one.value)
	}
	p.addDropIn("/etc/sysctl.d/90-slipway.conf", lines...)
	return nil
}

// hugepages is the section hugepages: counts of pages by size. At each boot, sysctl.d sets the
// count of the default size, and tmpfiles.d the others.
type hugepages struct {
	file  *configFile
	sizes []hugepageSize
}

type hugepageSize struct {
	node  *goyaml.Node
	text  string
	kib   int64
	count string
}

const maxHugepages = 1 << 30

var hugepageUnits = map[string]int64{"k": 1, "M": 1 << 10, "G": 1 << 20}

// readHugepages parses the section hugepages: counts of pages by size, such as 2M, each size once.
func readHugepages(f *configFile, n *goyaml.Node) (configPart, error) {
	h := hugepages{file: f}
	if n.Kind != goyaml.MappingNode || len(n.Content) == 0 {
		return nil, f.errorAt(n, "hugepages must be a mapping of sizes and counts, such as {2M: 512, 1G: 4}")
	}
	sizes := seenKeys{}
	for key, value := range yaml.Pairs(n) {
		size := strings.TrimRight(key.Value, "kMG")
		number, err := strconv.ParseInt(size, 10, 32)
		unit, known := hugepageUnits[strings.TrimPrefix(key.Value, size)]
		if err != nil || !known || number < 1 || number*unit > 1<<30 {
			return nil, f.errorAt(key, "%q is no size of a page, such as 64k, 2M or 1G", key.Value)
		}
		if err := sizes.addOnce(f, strconv.FormatInt(number*unit, 10), key); err != nil {
			return nil, err
		}
		count, err := strconv.ParseInt(value.Value, 10, 64)
		if err != nil || value.ShortTag() != "!!int" || count < 0 || count > maxHugepages {
			return nil, f.errorAt(value, "%s must be a count of pages, from 0 to %d, not %s", key.Value, maxHugepages, yaml.KindOf(value))
		}
		h.sizes = append(h.sizes, hugepageSize{key, key.Value, number * unit, strconv.FormatInt(count, 10)})
	}
	return h, nil
}

// pagesScript prints the default page size and the sizes that the kernel has.
const pagesScript = `sed -n 's/^Hugepagesize: *\([0-9]*\) kB$/\1/p' /proc/meminfo; echo
for d in /sys/kernel/mm/hugepages/hugepages-*kB; do d=${d##*-}; echo "${d%kB}"; done`

// plan adds the counts to the plan, with the drop-in files for the next boots. It fails if the
// board's kernel lacks a size, or if a drop-in file needs systemd-tmpfiles and the board lacks it.
func (h hugepages) plan(ctx context.Context, p *configPlan) error {
	r, err := p.conn.Ask(ctx, "sh", "-c", pagesScript)
	if err != nil {
		return err
	}
	normal, sizes, _ := strings.Cut(string(r.Stdout), "\n\n")
	has := slices.DeleteFunc(strings.Fields(sizes), func(kib string) bool { return kib == "*" })
	var sysctlLines, tmpfileLines []string
	for _, s := range h.sizes {
		kib := strconv.FormatInt(s.kib, 10)
		if !slices.Contains(has, kib) {
			return h.file.errorAt(s.node, "the board's kernel has no pages of %s (has these of KiB: %s)", s.text, plaintext.Clean(strings.Join(has, ", "), report.MaxSawBytes))
		}
		place := "/sys/kernel/mm/hugepages/hugepages-" + kib + "kB/nr_hugepages"
		if err := p.addSetting(ctx, undo.KernelValue, place, s.count); err != nil {
			return err
		}
		p.hints[place] = s.text + ": if it is fewer, memory is not free in pieces of this size (restart the board and deploy soon after, or ask for fewer); if it is more, programs use them"
		if kib == strings.TrimSpace(normal) {
			sysctlLines = append(sysctlLines, "vm.nr_hugepages = "+s.count)
		} else {
			tmpfileLines = append(tmpfileLines, "w "+place+" - - - - "+s.count)
		}
	}
	if len(sysctlLines) > 0 {
		p.addDropIn("/etc/sysctl.d/90-slipway-hugepages.conf", sysctlLines...)
	}
	if len(tmpfileLines) == 0 {
		return nil
	}
	p.addDropIn("/etc/tmpfiles.d/slipway-hugepages.conf", tmpfileLines...)
	return p.wantProgram(ctx, "systemd-tmpfiles", "hugepages of another size than the board's own are set by it at each boot")
}

// wantProgram returns an error, with the reason why, if the board lacks a program.
func (p *configPlan) wantProgram(ctx context.Context, program, why string) error {
	r, err := p.conn.Ask(ctx, "sh", "-c", `command -v "$1"`, "sh", program)
	if err == nil && r.Status != 0 {
		err = fmt.Errorf("the board has no %s: %s", program, why)
	}
	return err
}

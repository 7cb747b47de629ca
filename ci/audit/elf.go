package audit

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"path"
	"slices"
	"strings"
)

// program is what an audit needs of an ELF file's headers.
type program struct {
	machine         elf.Machine
	class           elf.Class
	kind            elf.Type
	interpreter     string
	needed          []string
	rpath, runpath  []string
	needs           map[string][]string // versions of symbols, by library
	defines         []string            // versions of symbols
	executableStack bool
	textRelocations bool
	sms             []string // for which GPUs it has code
	vermagic        string   // of a kernel module
}

// architectures are Debian's names of the machines that boards have.
var architectures = map[elf.Machine]string{
	elf.EM_X86_64: "amd64", elf.EM_AARCH64: "arm64", elf.EM_ARM: "armhf", elf.EM_386: "i386", elf.EM_RISCV: "riscv64", elf.EM_PPC64: "ppc64el", elf.EM_S390: "s390x",
}

// readProgram parses the headers of an ELF file and finds its GPU code. It returns nil if the file
// is no ELF file, or its headers are damaged or cut off.
func readProgram(data []byte) *program {
	if !bytes.HasPrefix(data, []byte(elf.ELFMAG)) {
		return nil
	}
	f, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		return nil
	}
	p := &program{machine: f.Machine, class: f.Class, kind: f.Type, needs: map[string][]string{}, sms: readCubins(data)}
	for _, prog := range f.Progs {
		switch prog.Type {
		case elf.PT_INTERP:
			if prog.Filesz < 4096 && prog.Off+prog.Filesz <= uint64(len(data)) {
				p.interpreter = strings.TrimRight(string(data[prog.Off:prog.Off+prog.Filesz]), "\x00")
			}
		case elf.PT_GNU_STACK:
			p.executableStack = prog.Flags&elf.PF_X != 0
		}
	}
	p.needed, _ = f.DynString(elf.DT_NEEDED)
	p.rpath = splitPaths(f, elf.DT_RPATH)
	p.runpath = splitPaths(f, elf.DT_RUNPATH)
	if flags, err := f.DynValue(elf.DT_FLAGS); err == nil && len(flags) > 0 {
		p.textRelocations = flags[0]&uint64(elf.DF_TEXTREL) != 0
	}
	if rel, err := f.DynValue(elf.DT_TEXTREL); err == nil && len(rel) > 0 {
		p.textRelocations = true
	}
	if needs, err := f.DynamicVersionNeeds(); err == nil {
		for _, lib := range needs {
			for _, need := range lib.Needs {
				if need.Flags&elf.VER_FLG_WEAK == 0 {
					p.needs[lib.Name] = append(p.needs[lib.Name], need.Dep)
				}
			}
		}
	}
	if defines, err := f.DynamicVersions(); err == nil {
		for _, v := range defines {
			p.defines = append(p.defines, v.Name)
		}
	}
	p.readGPUCode(f)
	if s := f.Section(".modinfo"); s != nil && s.Size < 1<<20 && f.Type == elf.ET_REL {
		if info, err := s.Data(); err == nil {
			for field := range bytes.SplitSeq(info, []byte{0}) {
				if value, ok := bytes.CutPrefix(field, []byte("vermagic=")); ok {
					p.vermagic, _, _ = strings.Cut(string(value), " ")
				}
			}
		}
	}
	return p
}

// splitPaths returns all folders of a dynamic tag such as RPATH, which colons separate.
func splitPaths(f *elf.File, tag elf.DynTag) (paths []string) {
	all, _ := f.DynString(tag)
	for _, list := range all {
		paths = append(paths, strings.Split(list, ":")...)
	}
	return paths
}

// readGPUCode adds to p.sms the GPUs for which the program's fat binaries (by nvcc) have code.
func (p *program) readGPUCode(f *elf.File) {
	for _, s := range f.Sections {
		if s.Name != ".nv_fatbin" || s.Size > maxFileBytes {
			continue
		}
		if data, err := s.Data(); err == nil {
			p.sms = append(p.sms, readFatbins(data)...)
		}
	}
	slices.Sort(p.sms)
	p.sms = slices.Compact(p.sms)
}

// cubinMachine is the machine of a cubin, an ELF file for a GPU.
const cubinMachine = 190

// readCubins returns the GPUs ("87") of all cubins in a cubin, program or TensorRT plan, sorted.
func readCubins(data []byte) (sms []string) {
	le := binary.LittleEndian
	for at := 0; ; at += len(elf.ELFMAG) {
		i := bytes.Index(data[at:], []byte(elf.ELFMAG+"\x02\x01")) // of 64 bits, little endian
		if i < 0 || len(data)-at-i < 64 {
			break
		}
		at += i
		if head := data[at:]; le.Uint16(head[18:]) == cubinMachine {
			flags := le.Uint32(head[48:])
			if head[8] >= 8 { // the ABI of CUDA 12.8 and later
				flags >>= 8
			}
			sms = append(sms, fmt.Sprint(flags&0xff))
		}
	}
	slices.Sort(sms)
	return slices.Compact(sms)
}

const fatbinMagic = 0xba55ed50

// readFatbins returns the GPUs of the fat binaries in data: "87" for machine code, or "ptx72" for
// PTX, which the driver compiles for GPUs of 7.2 and newer. It stops at a damaged header.
func readFatbins(data []byte) (sms []string) {
	le := binary.LittleEndian
	for len(data) >= 16 {
		if le.Uint32(data) != fatbinMagic {
			data = data[min(8, len(data)):] // padding
			continue
		}
		header, size := uint64(le.Uint16(data[6:])), le.Uint64(data[8:])
		if header < 16 || header+size < header || header+size > uint64(len(data)) {
			return sms
		}
		for entries := data[header : header+size]; len(entries) >= 64; {
			kind, head, length, sm := le.Uint16(entries), uint64(le.Uint32(entries[4:])), le.Uint64(entries[8:]), le.Uint32(entries[28:])
			if head < 64 || head+length < head || head+length > uint64(len(entries)) {
				break
			}
			switch kind {
			case 1:
				sms = append(sms, fmt.Sprintf("ptx%d", sm))
			case 2:
				sms = append(sms, fmt.Sprint(sm))
			}
			entries = entries[head+length:]
		}
		data = data[header+size:]
	}
	return sms
}

// foreign are folders whose ELF files do not run on the board's CPU under Linux.
var foreign = []string{"lib/firmware/", "usr/lib/firmware/", "usr/lib/grub/", "usr/share/", "boot/"}

// commonArch returns the architecture of most ELF files (not below foreign: firmware, boot and the
// like), the first by name of equally many, or "" if none has a known one.
func (a *auditor) commonArch() string {
	count := map[string]int{}
	best := ""
	for name, p := range a.programs {
		if arch := architectures[p.machine]; arch != "" && !isBelow(name, foreign) {
			if count[arch]++; count[arch] > count[best] || count[arch] == count[best] && arch < best {
				best = arch
			}
		}
	}
	return best
}

// checkProgram checks an ELF file: GPU code, then (not below foreign) architecture, kernel version,
// interpreter, hardening, search path, libraries. It stops at a wrong architecture or interpreter.
func (a *auditor) checkProgram(name string, p *program) {
	a.checkGPU(name, p.sms)
	if isBelow(name, foreign) {
		return
	}
	arch := architectures[p.machine]
	if arch == "" {
		return // of a GPU, or for the kernel's own virtual machine
	}
	if arch != a.report.Arch {
		a.addFinding("architecture", name, "it is for %s; the board is %s", arch, a.report.Arch)
		return
	}
	if p.vermagic != "" {
		if _, rest, ok := strings.Cut("/"+name, "/lib/modules/"); ok {
			if kernel, _, _ := strings.Cut(rest, "/"); kernel != p.vermagic {
				a.addFinding("kernel module", name, "it is for Linux %s, in the folder of %s", p.vermagic, kernel)
			}
		}
	}
	if p.kind == elf.ET_REL || p.kind == elf.ET_CORE {
		return
	}
	if p.interpreter != "" && !a.tree.exists(p.interpreter) {
		a.addFinding("interpreter", name, "it wants %s, which is not there", p.interpreter)
		return
	}
	if p.executableStack {
		a.addFinding("executable stack", name, "its stack may hold code")
	}
	if p.textRelocations {
		a.addFinding("text relocations", name, "the loader must write into its code")
	}
	for _, dir := range slices.Concat(p.rpath, p.runpath) {
		if !strings.HasPrefix(dir, "/") && !strings.HasPrefix(dir, "$ORIGIN") && !strings.HasPrefix(dir, "${ORIGIN}") || strings.HasPrefix(dir, "/tmp") || strings.HasPrefix(dir, "/home/") || a.buildFolder(dir) != "" {
			a.addFinding("search path", name, "it looks for libraries in %q", dir)
		}
	}
	a.checkLibraries(name, p)
}

// checkLibraries finds needed libraries that the loader would not find, or that lack a symbol's
// version (not with musl). A file without an interpreter may need a library of any folder.
func (a *auditor) checkLibraries(name string, p *program) {
	dirs := a.searchPath(name, p)
	musl := strings.Contains(p.interpreter, "ld-musl")
	for _, lib := range p.needed {
		found := a.findLibrary(lib, dirs, p)
		if found == nil {
			if p.interpreter == "" && a.isAnywhere(lib, p) {
				continue
			}
			a.addFinding("library", name, "it needs %s, which no folder of libraries has", lib)
			continue
		}
		for _, version := range p.needs[lib] {
			if !musl && len(found.defines) > 0 && !slices.Contains(found.defines, version) {
				a.addFinding("library version", name, "it needs %s of %s, which has no such version", version, lib)
			}
		}
	}
}

// findLibrary returns the library that the loader would load: the first in dirs that has the
// machine and class of p, or nil. A name with a slash is a path.
func (a *auditor) findLibrary(lib string, dirs []string, p *program) *program {
	if strings.Contains(lib, "/") {
		dirs = []string{""}
	}
	for _, dir := range dirs {
		real, ok := a.tree.resolve(path.Join(dir, lib))
		if !ok {
			continue
		}
		if found := a.programs[real]; found != nil && found.machine == p.machine && found.class == p.class {
			return found
		}
	}
	return nil
}

// isAnywhere reports whether the image has this library in any folder, for p's machine and class. A
// plugin may rely on libraries that its program has already loaded from its own folders.
func (a *auditor) isAnywhere(lib string, p *program) bool {
	if a.private == nil {
		a.private = map[string][]*program{}
		for name, other := range a.programs {
			a.private[path.Base(name)] = append(a.private[path.Base(name)], other)
		}
	}
	return slices.ContainsFunc(a.private[lib], func(o *program) bool { return o.machine == p.machine && o.class == p.class })
}

// searchPath returns the folders in which the loader looks for a program's libraries: its RUNPATH
// or RPATH, then the system's folders, which it reads once into a.libraries.
func (a *auditor) searchPath(name string, p *program) []string {
	dirs := p.runpath
	if len(p.runpath) == 0 {
		dirs = p.rpath
	}
	var all []string
	for _, dir := range dirs {
		all = append(all, strings.NewReplacer("$ORIGIN", "/"+path.Dir(name), "${ORIGIN}", "/"+path.Dir(name), "$LIB", "lib").Replace(dir))
	}
	if a.libraries == nil {
		a.libraries = a.readLinkerConf("etc/ld.so.conf", 0)
		for _, dir := range []string{"lib", "usr/lib", "lib64", "usr/lib64", "usr/local/lib"} {
			a.libraries = append(a.libraries, dir)
			for _, triplet := range []string{"x86_64-linux-gnu", "aarch64-linux-gnu", "arm-linux-gnueabihf", "i386-linux-gnu", "riscv64-linux-gnu"} {
				if a.tree.exists(path.Join(dir, triplet)) {
					a.libraries = append(a.libraries, path.Join(dir, triplet))
				}
			}
		}
	}
	return append(all, a.libraries...)
}

// readLinkerConf returns the folders of ld.so.conf (depth 0) and of its includes, down to depth 5.
func (a *auditor) readLinkerConf(file string, depth int) (dirs []string) {
	if depth > 5 {
		return nil
	}
	for line := range strings.Lines(a.tree.readText(file)) {
		line, _, _ = strings.Cut(line, "#")
		line = strings.TrimSpace(line)
		if pattern, ok := strings.CutPrefix(line, "include "); ok {
			pattern = strings.TrimPrefix(path.Join("/etc", strings.TrimSpace(pattern)), "/etc/")
			for _, name := range a.tree.names() {
				if ok, _ := path.Match("etc/"+pattern, name); ok {
					dirs = append(dirs, a.readLinkerConf(name, depth+1)...)
				}
			}
		} else if strings.HasPrefix(line, "/") {
			dirs = append(dirs, line)
		}
	}
	return dirs
}

// checkGPU adds a finding if opt.SM is set, a file has GPU code, and none of it runs on that GPU.
func (a *auditor) checkGPU(name string, sms []string) {
	if a.opt.SM == "" || len(sms) == 0 {
		return
	}
	for _, sm := range sms {
		ptx, isPTX := strings.CutPrefix(sm, "ptx")
		if sm == a.opt.SM || isPTX && len(ptx) <= len(a.opt.SM) && (len(ptx) < len(a.opt.SM) || ptx <= a.opt.SM) || !isPTX && sameGeneration(sm, a.opt.SM) {
			return
		}
	}
	a.addFinding("GPU code", name, "it has code for %s; the board has sm_%s", strings.ReplaceAll("sm_"+strings.Join(sms, ", sm_"), "sm_ptx", "compute_"), a.opt.SM)
}

// sameGeneration reports whether machine code for one GPU runs on another: both have the same major
// number, and the minor number of the code is not larger.
func sameGeneration(code, gpu string) bool {
	return len(code) == len(gpu) && len(code) > 1 && code[:len(code)-1] == gpu[:len(gpu)-1] && code <= gpu
}

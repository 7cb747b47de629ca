package bfb

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// mkbfb runs the real mlx-mkbfb.
type mkbfb struct {
	folder
	script string
}

func needMkbfb(t *testing.T) mkbfb {
	t.Helper()
	script := os.Getenv("SLIPWAY_MKBFB")
	if script == "" {
		t.Skip("SLIPWAY_MKBFB does not name the mlx-mkbfb of Mellanox/bfscripts")
	}
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("python3 is missing (Debian package python3)")
	}
	return mkbfb{newFolder(t), script}
}

func (m mkbfb) runMkbfb(args ...string) (string, error) {
	cmd := exec.CommandContext(m.Context(), "python3", append([]string{m.script}, args...)...)
	cmd.Dir = m.dir
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (m mkbfb) must(args ...string) string {
	m.Helper()
	out, err := m.runMkbfb(args...)
	if err != nil {
		m.Fatalf("mlx-mkbfb %q: %v\n%s", args, err, out)
	}
	return out
}

// compare makes a stream in both ways.
func (m mkbfb) compare(what string, r Recipe, args ...string) []byte {
	m.Helper()
	for _, p := range r.Parts {
		value := p.path
		if value == "" {
			value = "=" + p.text
		}
		args = append(args, fmt.Sprintf("--%s-v%d", p.kind.name, p.version), value)
	}
	args = append(args, r.Bases...)
	m.must(append(args, "theirs.bfb")...)
	if _, err := Make(m.Context(), m.path("ours.bfb"), r); err != nil {
		m.Fatalf("%s: %v", what, err)
	}
	ours, theirs := m.read("ours.bfb"), m.read("theirs.bfb")
	if !bytes.Equal(ours, theirs) {
		m.Errorf("%s: our stream of %d bytes is not theirs of %d; args %q", what, len(ours), len(theirs), args)
	}
	return ours
}

// some makes parts of random kinds, versions and sizes.
func (m mkbfb) some(random *rand.Rand, name string) []Part {
	parts := make([]Part, 1+random.IntN(12))
	for i := range parts {
		p := Part{kind: kinds[random.IntN(len(kinds))], version: random.IntN(maxVersion + 1), text: strings.Repeat("é=,", random.IntN(9))}
		if random.IntN(3) > 0 {
			p.path, p.text = m.random(name+strconv.Itoa(i), random.IntN(5000)), ""
		}
		parts[i] = p
	}
	return parts
}

func TestMakeAsMkbfb(t *testing.T) {
	m := needMkbfb(t)
	random := rand.New(rand.NewPCG(3, 4))
	for n := range 3 {
		what := fmt.Sprint("round ", n)
		one := m.compare(what, Recipe{Parts: m.some(random, "one")})
		m.save("one.bfb", one)
		m.save("two.bfb", m.compare(what+", expert", Recipe{Parts: m.some(random, "two"), Expert: true}, "-e"))
		bases := []string{m.path("one.bfb"), m.path("two.bfb")}
		m.compare(what+", copied", Recipe{Bases: bases[:1]})
		m.save("both.bfb", m.compare(what+", joined", Recipe{Bases: bases, Parts: m.some(random, "more")}))
		m.compareFilters(what)
		m.compareReading(what, "both.bfb")
	}
}

func (m mkbfb) save(name string, data []byte) {
	m.Helper()
	if err := os.WriteFile(m.path(name), data, 0o644); err != nil {
		m.Fatal(err)
	}
}

func (m mkbfb) compareFilters(what string) {
	m.Helper()
	base := []string{m.path("both.bfb")}
	for version := range maxVersion + 1 {
		v := strconv.Itoa(version)
		m.compare(what+", filtered for "+v, Recipe{Bases: base, Hardware: &version}, "-f", v)
	}
}

// compareReading compares both programs' lists and extracted images of a stream.
func (m mkbfb) compareReading(what, name string) {
	m.Helper()
	data := m.read(name)
	s, err := Read(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		m.Fatal(err)
	}
	var list, fields strings.Builder
	if err := s.List(&list); err != nil {
		m.Fatal(err)
	}
	for _, i := range s.Images {
		fmt.Fprintln(&fields, formatFields(i))
	}
	for option, ours := range map[string]string{"-d": list.String(), "-dv": fields.String()} {
		if diff := cmp.Diff(m.must(option, name), ours); diff != "" {
			m.Errorf("%s: list with %s (-theirs +ours):\n%s", what, option, diff)
		}
	}
	m.compareExtracted(what, name, s, data, nil)
	m.compareExtracted(what, name, s, data, []string{s.Images[0].Name, s.Images[len(s.Images)-1].Name})
}

// formatFields prints all fields of an image's header as mlx-mkbfb -dv does.
func formatFields(i Image) string {
	text := fmt.Sprintf("Ver: %d.%d Len: %d ID: %d ImLen: %d ImCRC: 0x%x FolIm: 0x%x", major, i.Minor, headerBytes, i.ID, i.SizeBytes, i.CRC32, i.Following)
	if i.Minor >= 2 {
		text += fmt.Sprintf(" NxImVr: %d ImVr: %d", i.NextVersion, i.Version)
	}
	return text
}

func (m mkbfb) compareExtracted(what, name string, s Stream, data []byte, names []string) {
	m.Helper()
	ours, theirs := m.TempDir(), m.TempDir()
	if _, err := s.Extract(m.Context(), bytes.NewReader(data), ours+"/x-", names); err != nil {
		m.Fatal(err)
	}
	m.must("-x", "-p", theirs+"/x-", "-n", strings.Join(names, " "), name)
	if diff := cmp.Diff(contents(m.T, theirs), contents(m.T, ours)); diff != "" {
		m.Errorf("%s: extracted %q (-theirs +ours):\n%s", what, names, diff)
	}
}

func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		all[filepath.Base(f)] = string(data)
	}
	return all
}

// TestCheckAsMkbfb changes bytes. Check must refuse every stream that mlx-mkbfb
// refuses.
func TestCheckAsMkbfb(t *testing.T) {
	m := needMkbfb(t)
	good := usual(t)
	random := rand.New(rand.NewPCG(5, 6))
	for range 40 {
		data := bytes.Clone(good)
		// Mostly in the first header and shortly after it.
		at := random.IntN(headerBytes + 8)
		data[at] ^= 1 << random.IntN(8)
		m.save("changed.bfb", data)
		_, theirs := m.runMkbfb("-c", "changed.bfb")
		ours := check(t.Context(), data)
		if theirs != nil && ours == nil {
			t.Errorf("with byte %d changed, mlx-mkbfb refuses the stream and we do not", at)
		}
		reserved := at == 5 || at >= 16 && at < headerBytes // bits that it does not look at
		if theirs == nil && ours != nil && !reserved && at != 6 && at != 7 {
			t.Errorf("with byte %d changed, mlx-mkbfb takes the stream; we do not: %v", at, ours)
		}
	}
}

func check(ctx context.Context, data []byte) error {
	s, err := Read(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		return err
	}
	return s.Check(ctx, bytes.NewReader(data), nil)
}

// TestDPUImageAsMkbfb makes the boot stream of a DPU's image of dummy parts, as the class
// slipway-bfb does: NVIDIA's default.bfb with a capsule, kernel, initramfs, arguments and
// path of the kernel put to it. Each program takes what the other made, and refuses it
// once it was damaged.
func TestDPUImageAsMkbfb(t *testing.T) {
	m := needMkbfb(t)
	firmware := m.parts("default.bfb", "bl2=bl2.bin,bl31=bl31.bin,bl33=bl33.bin,boot-path==VenHw(0)/Image")
	image := m.parts("", "capsule=boot_update2.cap,image=Image,initramfs=initramfs,"+
		"boot-args-v0==console=hvc0 console=ttyAMA0 earlycon=pl011,0x01000000 initrd=initramfs,"+
		"boot-args-v2==console=hvc0 console=ttyAMA0 earlycon=pl011,0x13010000 initrd=initramfs,"+
		"boot-path==VenHw(F019E406-8C9C-11E5-8797-001ACA00BFC4)/Image,boot-desc==Slipway's installer")
	m.compare("default.bfb", Recipe{Parts: firmware})
	m.save("default.bfb", m.read("theirs.bfb"))
	m.compare("the image", Recipe{Bases: []string{m.path("default.bfb")}, Parts: image})

	for _, name := range []string{"ours.bfb", "theirs.bfb"} {
		m.must("-c", name)
		if err := check(t.Context(), m.read(name)); err != nil {
			t.Errorf("Check(%s) = %v", name, err)
		}
		m.compareReading(name, name)
		m.refused(name)
	}
}

// parts are parts of files with something in them.
func (m mkbfb) parts(name, list string) []Part {
	m.Helper()
	parts, err := ParseParts(list)
	if err != nil {
		m.Fatalf("%s: %v", name, err)
	}
	for i := range parts {
		if parts[i].path != "" {
			parts[i].path = m.random(parts[i].path, 5000+i)
		}
	}
	return parts
}

// refused changes one byte of each image.
func (m mkbfb) refused(name string) {
	m.Helper()
	whole := m.read(name)
	s, err := Read(bytes.NewReader(whole), int64(len(whole)))
	if err != nil {
		m.Fatal(err)
	}
	for _, i := range s.Images {
		data := bytes.Clone(whole)
		data[i.OffsetBytes+i.SizeBytes/2] ^= 1
		m.save("changed.bfb", data)
		if out, err := m.runMkbfb("-c", "changed.bfb"); err == nil {
			m.Errorf("%s with a damaged %s: mlx-mkbfb takes it: %s", name, i.Name, out)
		}
		if err := check(m.Context(), data); err == nil {
			m.Errorf("%s with a damaged %s: Check takes it", name, i.Name)
		}
	}
}

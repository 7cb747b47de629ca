package images

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const slotFiles = "../recipes/dynamic-layers/rauc/slipway-slots/files/"

// A real grub-editenv reads the block that a board repairs, and the one that it leaves
// for GRUB to fall back on.
func TestGrubenvOfRecipes(t *testing.T) {
	if _, err := exec.LookPath("grub-editenv"); err != nil {
		t.Skip("grub-editenv is not installed (Debian package grub-common)")
	}
	valid := grubBlock("ORDER=B A\nB_OK=1\nB_TRY=0\nA_OK=1\nA_TRY=2\n")
	onlyB := "ORDER=B A\nB_OK=1\nB_TRY=0\nA_OK=0\nA_TRY=0\n"
	for _, tt := range []struct{ name, do, block, env, good string }{
		{"whole", "repair", valid, "same", "none"},
		{"empty", "repair", "", onlyB, "none"},
		{"half", "repair", valid[:512], onlyB, "none"},
		{"zeros", "repair", strings.Repeat("\x00", 1024), onlyB, "none"},
		{"without what it is for", "repair", grubBlock("A=B\n"), onlyB, "none"},
		{"too long", "repair", valid + "#", onlyB, "none"},
		{"missing", "repair", "none", onlyB, "none"},
		{"kept", "keep", valid, "same", onlyB},
		{"on trial", "keep", grubBlock("ORDER=B A\nB_OK=1\nB_TRY=1\n"), "same", "none"},
		{"no slot", "fail", valid, "same", "none"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			env := filepath.Join(dir, "grubenv")
			if tt.block != "none" {
				write(t, env, tt.block)
			}
			line := "quiet rauc.slot=B panic=10\n"
			if tt.do == "fail" {
				line = "quiet\n"
			}
			write(t, filepath.Join(dir, "cmdline"), line)
			text, err := os.ReadFile(slotFiles + "grubenv")
			if err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Join(dir, "script"), strings.NewReplacer("/boot/env", dir, "/proc", dir).Replace(string(text)))
			out, err := exec.Command("sh", filepath.Join(dir, "script"), tt.do).CombinedOutput()
			if (err == nil) != (tt.do != "fail") {
				t.Errorf("%v\n%s", err, out)
			}
			if tt.env == "same" {
				tt.env = grubenv(t, tt.block)
			}
			for name, want := range map[string]string{env: tt.env, env + ".good": tt.good} {
				got := "none"
				if data, err := os.ReadFile(name); err == nil {
					got = grubenv(t, string(data))
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("%s (-want +got):\n%s", filepath.Base(name), diff)
				}
			}
		})
	}
}

func grubBlock(content string) string {
	content = "# GRUB Environment Block\n" + content
	return content + strings.Repeat("#", 1024-len(content))
}

func write(t *testing.T, name, content string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

// grubenv is what a block says.
func grubenv(t *testing.T, block string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "grubenv")
	write(t, name, block)
	out, err := exec.Command("grub-editenv", name, "list").CombinedOutput()
	if err != nil || len(block) != 1024 {
		t.Errorf("grub-editenv list: %v, %s; of %d bytes, want 1024", err, out, len(block))
	}
	return string(out)
}

// systemd names a unit after the path, and silently ignores one that is not there.
func TestMountsAreCheckedFirst(t *testing.T) {
	if _, err := exec.LookPath("systemd-escape"); err != nil {
		t.Skip("systemd-escape is not installed (Debian package systemd)")
	}
	mounts, err := filepath.Glob(slotFiles + "*.mount")
	if err != nil || len(mounts) != 2 {
		t.Fatalf("mounts: %v, %v; want two", mounts, err)
	}
	for _, mount := range mounts {
		text, err := os.ReadFile(mount)
		if err != nil {
			t.Fatal(err)
		}
		value := func(key string) string {
			m := regexp.MustCompile(`(?m)^` + key + `=(.*)$`).FindSubmatch(text)
			if m == nil {
				t.Fatalf("%s lacks %s", mount, key)
			}
			return string(m[1])
		}
		escape := func(arg ...string) string {
			out, err := exec.Command("systemd-escape", arg...).Output()
			if err != nil {
				t.Fatal(err)
			}
			return strings.TrimSpace(string(out))
		}
		if want := escape("-p", "--suffix=mount", value("Where")); filepath.Base(mount) != want {
			t.Errorf("%s is mounted where its name must be %s", mount, want)
		}
		want := escape("-p", "--template=systemd-fsck@.service", value("What"))
		if value("Requires") != want || value("After") != want {
			t.Errorf("%s requires %s, after %s; want %s", mount, value("Requires"), value("After"), want)
		}
	}
}

// A Debian board puts what GRUB keeps in the place of a damaged block, and leaves any other.
func TestGrubenvOfDebianBoards(t *testing.T) {
	if _, err := exec.LookPath("grub-editenv"); err != nil {
		t.Skip("grub-editenv is not installed (Debian package grub-common)")
	}
	unit, err := os.ReadFile("boards/virt/overlay/usr/lib/systemd/system/rauc-still-good.service")
	if err != nil {
		t.Fatal(err)
	}
	_, script, _ := strings.Cut(string(unit), "\nExecStartPre=-/bin/sh -c '")
	script, _, found := strings.Cut(script, "'\n")
	if !found {
		t.Fatalf("the unit has no script:\n%s", unit)
	}
	valid, kept := grubBlock("ORDER=A B\nA_OK=1\n"), grubBlock("ORDER=B A\nB_OK=1\n")
	for name, block := range map[string]string{"whole": valid, "empty": "", "zeros": strings.Repeat("\x00", 1024), "without an order": grubBlock("")} {
		dir := t.TempDir()
		write(t, filepath.Join(dir, "grubenv"), block)
		write(t, filepath.Join(dir, "grubenv.good"), kept)
		out, err := exec.Command("/bin/sh", "-c", strings.ReplaceAll(script, "/boot/env", dir)).CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
		want := kept
		if name == "whole" {
			want = valid
		}
		if got, err := os.ReadFile(filepath.Join(dir, "grubenv")); err != nil || string(got) != want {
			t.Errorf("%s: the block is %q, %v; want %q", name, got, err, want)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) != 2 {
			t.Errorf("%s: %v, %v; want two files", name, left, err)
		}
	}
}

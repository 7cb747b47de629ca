package trust

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"slipway/flash/sealed"
)

// tree makes files, and links: "name -> target".
func tree(t *testing.T, names ...string) string {
	t.Helper()
	root := t.TempDir()
	for _, name := range names {
		name, target, link := strings.Cut(name, " -> ")
		path := filepath.Join(root, name)
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		switch {
		case link:
			err = errors.Join(err, os.Symlink(strings.ReplaceAll(target, "ROOT", root), path))
		default:
			err = errors.Join(err, os.WriteFile(path, []byte("x\n"), 0o644))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// Whoever supplies the folder dl must not supply the list, whatever way leads to it.
func TestRefuseBeside(t *testing.T) {
	root := tree(t, "dl/list", "dl/sub/deep/list", "keys/list", "home/.config/slipway/allowed_signers", "home/list", "other/x",
		"to-dl -> dl", "to-list -> dl/list", "to-link -> to-list", "hop -> dl/out", "dl/out -> ../keys/list", "dl/up -> ../other",
		"dl/abs -> ROOT/keys/list", "via -> dl/sub", "loop -> loop", "keys/own -> list")
	t.Setenv("XDG_CONFIG_HOME", root+"/home/.config")
	for _, tt := range []struct {
		folder, file string
		refused      bool
	}{
		{"dl", "dl/list", true},
		{"dl", "dl/sub/deep/list", true},
		{"dl", "to-dl/list", true},
		{"to-dl", "dl/list", true},
		{"dl", "to-list", true},
		{"dl", "to-link", true},
		{"dl", "hop", true},                // by a link in dl, to what is good today
		{"dl", "dl/out", true},             // the same
		{"dl", "dl/abs", true},             // the same
		{"dl", "dl/up/../keys/list", true}, // the same, in the middle
		{"dl", "via/deep/list", true},
		{"dl", "keys/../dl/list", true},
		{"dl", "dl/../dl/list", true},
		{"dl", "to-dl/../dl/list", true},
		{"dl", "loop", true},
		{"dl", "dl/none", true},
		{"dl/sub", "dl/sub/deep/list", true},
		{"dl", "keys/list", false},
		{"dl", "keys/own", false},
		{"dl", "dl/../keys/list", false},
		{"dl/sub", "dl/list", false}, // above it
		{"none", "keys/list", false},
		{"home", "home/list", true},
		{"home", "home/.config/slipway/allowed_signers", false}, // a file to prove lies in the home folder
		{"home/.config/slipway", "home/.config/slipway/allowed_signers", true},
	} {
		err := RefuseBeside(filepath.Join(root, tt.folder), root+"/"+tt.file)
		if (err != nil) != tt.refused || err != nil && !strings.Contains(err.Error(), "it lies beside the files") {
			t.Errorf("RefuseBeside(%s, %s) = %v; want it refused: %v", tt.folder, tt.file, err, tt.refused)
		}
	}
	t.Chdir(filepath.Join(root, "dl"))
	for file, refused := range map[string]bool{"list": true, "./list": true, "../dl/list": true, "../keys/list": false, "sub/../list": true, "../to-dl/list": true} {
		if err := RefuseBeside(".", file); (err != nil) != refused {
			t.Errorf("RefuseBeside(., %s) = %v; want it refused: %v", file, err, refused)
		}
	}
}

// A list is named, or the user's own. What was named and names nobody is an error.
func TestNamed(t *testing.T) {
	if _, err := exec.LookPath("ssh-keygen"); err != nil {
		t.Skip("ssh-keygen is missing (Debian package openssh-client)")
	}
	root := tree(t, "empty/list", "config/slipway/allowed_signers")
	t.Setenv("XDG_CONFIG_HOME", root+"/config")
	t.Setenv(SignersVariable, "")
	if out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", root+"/key").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	public, err := os.ReadFile(root + "/key.pub")
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"ann": "ann " + string(public), "comments": "# ann " + string(public), "blank": " \n\n", "config/slipway/allowed_signers": "own " + string(public)} {
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if lists, err := Named(""); err != nil || lists != nil {
		t.Errorf("Named = %v, %v; want none", lists, err)
	}
	for _, from := range []string{"--signers", SignersVariable} {
		for name, want := range map[string]string{"ann": "", "comments": "it names no signer", "blank": "it names no signer", "none": "no such file", "empty": "is a directory", "key": "a secret key"} {
			option := ""
			if path := filepath.Join(root, name); from == "--signers" {
				option = path
				t.Setenv(SignersVariable, "/nowhere")
			} else {
				t.Setenv(SignersVariable, path)
			}
			lists, err := Named(option)
			if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("%s=%s: %v; want %q", from, name, err, want)
			}
			if err == nil && (len(lists) != 1 || lists[0].From != from || lists[0].File != filepath.Join(root, "ann")) {
				t.Errorf("%s=%s: %+v", from, name, lists)
			}
		}
	}
	t.Setenv(SignersVariable, "")
	if lists, err := Own(); err != nil || len(lists) != 1 || lists[0].File != root+"/config/slipway/allowed_signers" {
		t.Errorf("Own = %v, %v; want the user's own", lists, err)
	}
	t.Run("no home folder", func(t *testing.T) {
		t.Chdir(filepath.Join(root, "config", "slipway")) // a list there is not the user's own
		t.Setenv("XDG_CONFIG_HOME", "")
		t.Setenv("HOME", "")
		if lists, err := Own(); err == nil || !strings.Contains(err.Error(), "find who may sign: ") || !strings.Contains(err.Error(), "HOME") {
			t.Errorf("Own = %v, %v; want an error about the home folder", lists, err)
		}
	})
	// The signature lies beside the file, and the list does not.
	ann, err := Named(root + "/ann")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ann.Verify(t.Context(), Folder(root+"/empty"), root+"/empty/list", Bytes("x\n")); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "list is not signed, and --signers wants that: there is no "+root+"/empty/list.sig\nnext: ") {
		t.Errorf("Verify = %v; want the missing signature", err)
	}
	if out, err := exec.Command("ssh-keygen", "-q", "-Y", "sign", "-f", root+"/key", "-n", "file", root+"/empty/list").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if signers, err := (Lists{}).Verify(t.Context(), Folder(root+"/empty"), root+"/empty/list", Bytes("x\n")); err == nil {
		t.Errorf("Verify without a list of signers = %v; want an error", signers)
	}
	signers, err := ann.Verify(t.Context(), Folder(root+"/empty"), root+"/empty/list", Bytes("x\n"))
	if err != nil || len(signers) != 1 || signers[0].Name != "ann" {
		t.Errorf("Verify = %v, %v; want ann", signers, err)
	}
	if _, err := ann.Verify(t.Context(), Folder(root+"/empty"), root+"/empty/list", Bytes("y\n")); err == nil || !strings.Contains(err.Error(), "list.sig (--signers): the signature is not of this file") {
		t.Errorf("Verify = %v; want another content refused", err)
	}
	if err := os.Rename(root+"/ann", root+"/empty/ann"); err != nil {
		t.Fatal(err)
	}
	if ann, err = Named(root + "/empty/ann"); err != nil {
		t.Fatal(err)
	}
	if _, err := ann.Verify(t.Context(), Folder(root+"/empty"), root+"/empty/list", Bytes("x\n")); err == nil || !strings.Contains(err.Error(), "it lies beside the files") {
		t.Errorf("Verify = %v; want the list refused", err)
	}
}

// A program that verifies may say who signed before it has read all of a file. Slipway reads
// the rest all the same, so that nobody can change what was signed afterwards.
func TestSignedFileIsReadToItsEnd(t *testing.T) {
	dir := t.TempDir()
	path, bin := filepath.Join(dir, "disk.img"), filepath.Join(dir, "bin")
	const key = "9A6FB5551A88E8947EEF04E8AE3F0304B679FC9D"
	early := fmt.Sprintf(`#!/bin/sh
head -c 1 >/dev/null
printf x | dd of=%s conv=notrunc 2>/dev/null
echo '[GNUPG:] GOODSIG AE3F0304B679FC9D Ann'
echo '[GNUPG:] VALIDSIG %s 2026-11-23 1795474104 0 4 0 22 8 00 %[2]s'
`, path, key)
	content := bytes.Repeat([]byte("good"), 256<<10)
	if err := errors.Join(os.Mkdir(bin, 0o755), os.WriteFile(filepath.Join(bin, "gpgv"), []byte(early), 0o755), os.WriteFile(path, content, 0o644), os.WriteFile(path+".asc", nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	ring, err := Parse("--signers", "ring", append([]byte{0x98}, make([]byte, 50)...))
	if err != nil {
		t.Fatal(err)
	}
	f, err := sealed.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := (Lists{ring}).Verify(t.Context(), Folder(dir), path, f); err != nil {
		t.Fatal(err)
	}
	p := make([]byte, 4)
	if _, err := f.ReadAt(p, 0); !errors.Is(err, sealed.ErrChanged) {
		t.Errorf("ReadAt of what changed after it was read = %q, %v", p, err)
	}
	if _, err := f.ReadAt(p, int64(len(content)-4)); err != nil || string(p) != "good" {
		t.Errorf("ReadAt of the end = %q, %v", p, err)
	}
}

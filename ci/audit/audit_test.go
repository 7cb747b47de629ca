package audit

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// planter makes a small root file system and plants faults in it.
type planter struct {
	t    *testing.T
	dir  string
	user int
}

func (p *planter) write(name, text string, mode fs.FileMode) string {
	p.t.Helper()
	file := filepath.Join(p.dir, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o644), os.Chmod(file, mode)); err != nil {
		p.t.Fatal(err)
	}
	return file
}

func (p *planter) read(name string) string {
	p.t.Helper()
	data, err := os.ReadFile(filepath.Join(p.dir, name))
	if err != nil {
		p.t.Fatal(err)
	}
	return string(data)
}

func (p *planter) link(name, target string) {
	p.t.Helper()
	file := filepath.Join(p.dir, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.Symlink(target, file)); err != nil {
		p.t.Fatal(err)
	}
}

// run runs a program of this machine.
func (p *planter) run(argv ...string) {
	p.t.Helper()
	if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
		p.t.Fatalf("%q: %v\n%s", argv, err, out)
	}
}

// compile compiles C to a file of the root.
func (p *planter) compile(name, source string, args ...string) {
	p.t.Helper()
	file := p.write(name, "", 0o755)
	c := filepath.Join(p.t.TempDir(), "a.c")
	if err := os.WriteFile(c, []byte(source), 0o644); err != nil {
		p.t.Fatal(err)
	}
	p.run(append([]string{"gcc", "-o", file, c}, args...)...)
}

const aProgram = "#include <stdio.h>\nint main(void) { puts(\"x\"); return 0; }\n"

// plantBase makes a root file system without a fault: a program with its libraries,
// accounts, and what distributions have too.
func plantBase(t *testing.T) *planter {
	t.Helper()
	for _, program := range []string{"gcc", "mke2fs", "debugfs", "openssl"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("needs %s (Debian packages gcc, libc6-dev, e2fsprogs, openssl)", program)
		}
	}
	p := &planter{t: t, dir: t.TempDir(), user: os.Geteuid()}
	p.compile("usr/bin/good", aProgram)
	program, err := elf.Open(filepath.Join(p.dir, "usr/bin/good"))
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	out, err := exec.Command("ldd", filepath.Join(p.dir, "usr/bin/good")).Output()
	if err != nil {
		t.Fatal(err)
	}
	for word := range strings.FieldsSeq(string(out)) {
		if strings.HasPrefix(word, "/") {
			data, err := os.ReadFile(word)
			if err != nil {
				t.Fatal(err)
			}
			p.write(strings.TrimPrefix(word, "/"), string(data), 0o755)
		}
	}
	p.write("usr/bin/env", "x", 0o755)
	passwd := "root:x:0:0::/root:/bin/sh\n"
	if p.user != 0 {
		passwd += fmt.Sprintf("tester:x:%d:%d::/home/tester:/bin/sh\n", p.user, os.Getegid())
	}
	p.write("etc/passwd", passwd, 0o644)
	p.write("etc/group", fmt.Sprintf("root:x:0:\ntester:x:%d:\n", os.Getegid()), 0o644)
	p.write("etc/shadow", "root:*:19000:0:99999:7:::\ntester:!:19000:0:99999:7:::\n", 0o640)
	p.write("etc/machine-id", "", 0o444)
	p.write("etc/ssh/sshd_config", "#PermitRootLogin yes\nPermitRootLogin prohibit-password\nPermitRootLogin yes\nMatch User x\n  PermitEmptyPasswords yes\n", 0o644)
	p.write("usr/bin/python3.11", "x", 0o755)
	p.link("usr/bin/python3", "python3.11")
	p.write("usr/bin/su", "x", fs.ModeSetuid|0o755)
	p.write("tmp/.keep", "", 0o644)
	if err := os.Chmod(filepath.Join(p.dir, "tmp"), fs.ModeSticky|0o777); err != nil {
		t.Fatal(err)
	}
	p.write("usr/lib/python3.11/__pycache__/good.cpython-311.pyc", bytecode(3495, 0xe3), 0o644)
	p.write("usr/lib/own/__pycache__/future.cpython-399.pyc", bytecode(9999, 0xe3), 0o644)
	p.write("etc/examples", "keys of the users are in /home/*/.ssh, as /home/USER/.ssh/x\n", 0o644)
	p.write("usr/lib/models/good.plan", "ftrt"+cubin(7, 0x340557), 0o644)
	p.write("usr/bin/run-good", "#!/usr/bin/env python3\n", 0o755)
	return p
}

func bytecode(magic uint16, first byte) string {
	text := binary.LittleEndian.AppendUint16(nil, magic)
	return string(append(text, "\r\n\x00\x00\x00\x00xxxxyyyy"...)) + string([]byte{first, 0, 0, 0, 0})
}

// fatbin returns a fat binary with code for one GPU, as nvcc lays it out.
func fatbin(kind uint16, sm uint32) []byte {
	entry := make([]byte, 64+8)
	le := binary.LittleEndian
	le.PutUint16(entry, kind)
	le.PutUint32(entry[4:], 64)
	le.PutUint64(entry[8:], 8)
	le.PutUint32(entry[28:], sm)
	head := make([]byte, 16)
	le.PutUint32(head, fatbinMagic)
	le.PutUint16(head[4:], 1)
	le.PutUint16(head[6:], 16)
	le.PutUint64(head[8:], uint64(len(entry)))
	return append(head, entry...)
}

// cubin returns the head of a cubin, with flags as ptxas writes them: 0x340557 is of ptxas
// 11.8 for sm_87.
func cubin(abi byte, flags uint32) string {
	head := make([]byte, 64)
	copy(head, "\x7fELF\x02\x01\x01\x33")
	head[8] = abi
	binary.LittleEndian.PutUint16(head[18:], cubinMachine)
	binary.LittleEndian.PutUint32(head[20:], 1)
	binary.LittleEndian.PutUint32(head[48:], flags)
	binary.LittleEndian.PutUint16(head[52:], 64)
	return string(head)
}

// asmBytes writes data as an assembler's list of bytes.
func asmBytes(data []byte) string {
	var list []string
	for _, b := range data {
		list = append(list, fmt.Sprint(b))
	}
	return strings.Join(list, ",")
}

// planted is a fault, and what the audit must say of it.
type planted struct {
	rule, path string
	plant      func(p *planter)
}

const aKey = "PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASC\n"

var faults = []planted{
	{"architecture", "/usr/bin/for-arm", func(p *planter) {
		text := []byte(p.read("usr/bin/good"))
		binary.LittleEndian.PutUint16(text[18:], uint16(elf.EM_ARM))
		p.write("usr/bin/for-arm", string(text), 0o755)
	}},
	{"interpreter", "/usr/bin/by-ld", func(p *planter) {
		p.compile("usr/bin/by-ld", aProgram, "-Wl,--dynamic-linker,/lib/ld64.so.1")
	}},
	{"library", "/usr/bin/without-library", func(p *planter) {
		p.write("usr/bin/without-library", strings.Replace(p.read("usr/bin/good"), "libc.so.6\x00", "libq.so.6\x00", 1), 0o755)
	}},
	{"library version", "/usr/bin/too-new", func(p *planter) {
		p.write("usr/bin/too-new", strings.Replace(p.read("usr/bin/good"), "GLIBC_2.2.5\x00", "GLIBC_2.9.9\x00", 1), 0o755)
	}},
	{"search path", "/usr/bin/rpath-home", func(p *planter) {
		p.compile("usr/bin/rpath-home", aProgram, "-Wl,-rpath,/home/builder/lib")
	}},
	{"search path", "/usr/bin/rpath-here", func(p *planter) { p.compile("usr/bin/rpath-here", aProgram, "-Wl,-rpath,lib") }},
	{"executable stack", "/usr/bin/stack", func(p *planter) { p.compile("usr/bin/stack", aProgram, "-z", "execstack") }},
	{"text relocations", "/usr/lib/libtextrel.so", func(p *planter) {
		p.compile("usr/lib/libtextrel.so", "int data;\n__asm__(\".text\\n.quad data\\n\");\n", "-shared", "-nostdlib", "-Wl,-z,notext")
	}},
	{"python bytecode", "/usr/lib/python3.11/__pycache__/old.cpython-311.pyc", func(p *planter) {
		p.write("usr/lib/python3.11/__pycache__/old.cpython-311.pyc", bytecode(3425, 0xe3), 0o644)
	}},
	{"python bytecode", "/usr/lib/python3.11/__pycache__/bad.cpython-311.pyc", func(p *planter) {
		p.write("usr/lib/python3.11/__pycache__/bad.cpython-311.pyc", bytecode(3495, 0), 0o644)
	}},
	{"python bytecode", "/usr/lib/python3.11/__pycache__/cut.cpython-311.pyc", func(p *planter) {
		p.write("usr/lib/python3.11/__pycache__/cut.cpython-311.pyc", bytecode(3495, 0xe3)[:12], 0o644)
	}},
	{"python bytecode", "/opt/app/__pycache__/new.cpython-312.pyc", func(p *planter) {
		p.write("opt/app/__pycache__/new.cpython-312.pyc", bytecode(3531, 0xe3), 0o644)
	}},
	{"python bytecode", "/usr/lib/python3.11/__pycache__/magic.cpython-311.pyc", func(p *planter) {
		p.write("usr/lib/python3.11/__pycache__/magic.cpython-311.pyc", bytecode(9999, 0xe3), 0o644)
	}},
	{"python bytecode", "/srv/app/main.pyc", func(p *planter) { p.write("srv/app/main.pyc", bytecode(3571, 0xe3), 0o644) }},
	{"GPU code", "/usr/bin/kernel", func(p *planter) {
		p.compile("usr/bin/kernel", aProgram+"__asm__(\".section .nv_fatbin,\\\"a\\\"\\n.byte "+asmBytes(append(fatbin(2, 72), fatbin(1, 90)...))+"\\n.text\\n\");\n")
	}},
	{"GPU code", "/usr/lib/models/old.plan", func(p *planter) {
		p.write("usr/lib/models/old.plan", "ftrt"+cubin(7, 0x340548)+cubin(7, 0x34053e), 0o644)
	}},
	{"GPU code", "/usr/share/app/kernel.cubin", func(p *planter) {
		p.write("usr/share/app/kernel.cubin", cubin(8, 0x6405), 0o644)
	}},
	{"damaged", "/usr/bin/empty", func(p *planter) { p.write("usr/bin/empty", "", 0o755) }},
	{"damaged", "/usr/lib/libempty.so.2", func(p *planter) { p.write("usr/lib/libempty.so.2", "", 0o644) }},
	{"damaged", "/usr/bin/half", func(p *planter) { p.write("usr/bin/half", p.read("usr/bin/good")[:5000], 0o755) }},
	{"kernel module", "/usr/lib/modules/6.1.0-1/x.ko", func(p *planter) {
		p.compile("usr/lib/modules/6.1.0-1/x.ko", "__attribute__((section(\".modinfo\"))) const char v[] = \"vermagic=6.6.1 SMP\";\n", "-c")
	}},
	{"build path", "/etc/app.conf", func(p *planter) {
		p.write("etc/app.conf", "prefix=/srv/yocto/tmp/work/cortexa78/app/1.0/image\n", 0o644)
	}},
	{"build path", "/usr/lib/pkgconfig/app.pc", func(p *planter) {
		p.write("usr/lib/pkgconfig/app.pc", "libdir=/home/builder/project/out\n", 0o644)
	}},
	{"build path", "/usr/lib/app", func(p *planter) { p.link("usr/lib/app", "/srv/yocto/tmp/work/x/app") }},
	{"script", "/usr/bin/no-interpreter", func(p *planter) { p.write("usr/bin/no-interpreter", "#!/opt/perl/bin/perl\n", 0o755) }},
	{"script", "/usr/bin/no-env", func(p *planter) { p.write("usr/bin/no-env", "#!/usr/bin/env ruby\n", 0o755) }},
	{"script", "/usr/bin/windows", func(p *planter) { p.write("usr/bin/windows", "#!/usr/bin/good\r\necho x\r\n", 0o755) }},
	{"script", "/opt/app/run.sh", func(p *planter) { p.write("opt/app/run.sh", "#!/bin/zsh\n", 0o755) }},
	{"unit", "/etc/systemd/system/multi-user.target.wants/app.service", func(p *planter) {
		p.write("usr/lib/systemd/system/app.service", "[Service]\nExecStart=@/opt/app/run run --now\n", 0o644)
		p.link("etc/systemd/system/multi-user.target.wants/app.service", "/usr/lib/systemd/system/app.service")
	}},
	{"unit", "/etc/systemd/system/multi-user.target.wants/gone.service", func(p *planter) {
		p.link("etc/systemd/system/multi-user.target.wants/gone.service", "/usr/lib/systemd/system/gone.service")
	}},
	{"link", "/usr/lib/libgone.so.1", func(p *planter) { p.link("usr/lib/libgone.so.1", "libgone.so.1.2.3") }},
	{"link", "/usr/bin/vi", func(p *planter) { p.link("usr/bin/vi", "/etc/alternatives/vi") }},
	{"private key", "/etc/app/account.json", func(p *planter) {
		p.write("etc/app/account.json", "{\"private_key\": \"-----BEGIN "+strings.ReplaceAll(aKey, "\n", "\\n")+"\"}\n", 0o600)
	}},
	{"private key", "/etc/app/locked.key", func(p *planter) {
		p.write("etc/app/locked.key", "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n", 0o600)
	}},
	{"private key", "/root/secret.asc", func(p *planter) {
		p.write("root/secret.asc", "-----BEGIN PGP PRIVATE KEY BLOCK-----\n\nlQVYBGNabcdefghijklmno\n", 0o600)
	}},
	{"private key", "/etc/wireguard/wg0.conf", func(p *planter) {
		p.write("etc/wireguard/wg0.conf", "[Interface]\nPrivateKey = "+strings.Repeat("aB1", 14)+"c=\n", 0o600)
	}},
	{"private key", "/etc/app/tls.key", func(p *planter) { p.write("etc/app/tls.key", "-----BEGIN RSA "+aKey, 0o600) }},
	{"host key", "/etc/ssh/ssh_host_ed25519_key", func(p *planter) {
		p.write("etc/ssh/ssh_host_ed25519_key", "-----BEGIN OPENSSH "+aKey, 0o600)
	}},
	{"machine id", "/etc/machine-id", func(p *planter) {
		if err := os.Remove(filepath.Join(p.dir, "etc/machine-id")); err != nil {
			p.t.Fatal(err)
		}
		p.write("etc/machine-id", "0123456789abcdef0123456789abcdef\n", 0o444)
	}},
	{"password", "/etc/shadow", func(p *planter) { p.write("etc/shadow", p.read("etc/shadow")+"empty::19000:0:99999:7:::\n", 0o640) }},
	{"password", "/etc/shadow", func(p *planter) {
		hash, err := exec.Command("openssl", "passwd", "-6", "-salt", "abcdefgh", "ubuntu").Output()
		if err != nil {
			p.t.Fatal(err)
		}
		p.write("etc/shadow", p.read("etc/shadow")+"known:"+strings.TrimSpace(string(hash))+":19000:0:99999:7:::\n", 0o640)
	}},
	{"password", "/etc/shadow", func(p *planter) {
		p.write("etc/shadow", p.read("etc/shadow")+"shared:$y$j9T$abc$def:19000:0:99999:7:::\n", 0o640)
	}},
	{"password", "/etc/shadow", func(p *planter) { // DES, whose salt is xy
		p.write("etc/shadow", p.read("etc/shadow")+"old:xyT8PmbPe.zpY:19000:0:99999:7:::\n", 0o640)
	}},
	{"root login", "/etc/ssh/sshd_config", func(p *planter) {
		p.write("etc/ssh/sshd_config", "PermitRootLogin=yes\n", 0o644)
	}},
	{"root login", "/etc/ssh/sshd_config.d/lab.conf", func(p *planter) {
		p.write("etc/ssh/sshd_config.d/lab.conf", "PermitEmptyPasswords yes\n", 0o644)
	}},
	{"access", "/root/.ssh/authorized_keys", func(p *planter) {
		p.write("root/.ssh/authorized_keys", "# lab\nssh-ed25519 AAAA lab\n", 0o600)
	}},
	{"access", "/etc/passwd", func(p *planter) {
		p.write("etc/passwd", p.read("etc/passwd")+"toor:x:0:0::/root:/bin/sh\n", 0o644)
	}},
	{"access", "/etc/sudoers.d/lab", func(p *planter) { p.write("etc/sudoers.d/lab", "tester ALL=(ALL) NOPASSWD: ALL\n", 0o440) }},
	{"access", "/etc/systemd/system/getty@tty1.service.d/own.conf", func(p *planter) {
		p.write("etc/systemd/system/getty@tty1.service.d/own.conf", "[Service]\nExecStart=-/sbin/agetty --autologin root %I\n", 0o644)
	}},
	{"readable", "/etc/shadow-", func(p *planter) { p.write("etc/shadow-", "root:*:19000:0:99999:7:::\n", 0o644) }},
	{"setuid", "/opt/app/su", func(p *planter) { p.write("opt/app/su", "x", fs.ModeSetuid|0o755) }},
	{"setuid", "/usr/bin/helper", func(p *planter) { p.write("usr/bin/helper", "x", fs.ModeSetuid|0o755) }},
	{"setuid", "/usr/bin/mount", func(p *planter) { p.write("usr/bin/mount", "#!/usr/bin/good\n", fs.ModeSetuid|0o755) }},
	{"writable", "/etc/app/state", func(p *planter) { p.write("etc/app/state", "x", 0o666) }},
	{"writable", "/var/spool/app", func(p *planter) {
		p.write("var/spool/app/.keep", "", 0o644)
		if err := os.Chmod(filepath.Join(p.dir, "var/spool/app"), 0o777); err != nil {
			p.t.Fatal(err)
		}
	}},
	{"credentials", "/root/.netrc", func(p *planter) { p.write("root/.netrc", "machine a login b password c\n", 0o600) }},
	{"credentials", "/root/.docker/config.json", func(p *planter) {
		p.write("root/.docker/config.json", `{"auths": {"a": {"auth": "YTpi"}}}`, 0o600)
	}},
	{"credentials", "/etc/app/token", func(p *planter) { p.write("etc/app/token", "ghp_"+strings.Repeat("a1B2", 9)+"\n", 0o600) }},
	{"credentials", "/etc/app/cloud", func(p *planter) { p.write("etc/app/cloud", "id = AKIA"+strings.Repeat("A1", 8)+"\n", 0o600) }},
	{"credentials", "/root/.aws/credentials", func(p *planter) {
		p.write("root/.aws/credentials", "aws_secret_access_key = "+strings.Repeat("aB1/", 10)+"\n", 0o600)
	}},
	{"credentials", "/root/.kube/config", func(p *planter) {
		p.write("root/.kube/config", "users:\n- user:\n    token: abcdef\n", 0o600)
	}},
	{"credentials", "/etc/hostapd/hostapd.conf", func(p *planter) {
		p.write("etc/hostapd/hostapd.conf", "wpa_passphrase=lab\n", 0o600)
	}},
	{"credentials", "/etc/app/chat", func(p *planter) {
		p.write("etc/app/chat", "token: xoxb-123456789012-abcdefABCDEF\n", 0o600)
	}},
	{"credentials", "/etc/wpa_supplicant/wpa_supplicant.conf", func(p *planter) {
		p.write("etc/wpa_supplicant/wpa_supplicant.conf", "network={\n  psk=\"lab\"\n}\n", 0o600)
	}},
	{"credentials", "/etc/apt/sources.list.d/own.list", func(p *planter) {
		p.write("etc/apt/sources.list.d/own.list", "deb https://me:secret@deb.example.com stable main\n", 0o644)
	}},
	{"credentials", "/root/.bash_history", func(p *planter) { p.write("root/.bash_history", "mount /dev/sda1\n", 0o600) }},
}

// image makes an ext4 image of the root file system, with the commands of debugfs.
func (p *planter) image(commands ...string) string {
	p.t.Helper()
	file := filepath.Join(p.t.TempDir(), "root.ext4")
	p.run("mke2fs", "-q", "-t", "ext4", "-d", p.dir, file, "32M")
	script := filepath.Join(p.t.TempDir(), "script")
	if err := os.WriteFile(script, []byte(strings.Join(commands, "\n")+"\n"), 0o644); err != nil {
		p.t.Fatal(err)
	}
	p.run("debugfs", "-w", "-f", script, file)
	return file
}

func auditOne(t *testing.T, trees []*tree, err error, opt Options) Report {
	t.Helper()
	if err != nil || len(trees) != 1 {
		t.Fatalf("%d root file systems, %v", len(trees), err)
	}
	defer trees[0].Close()
	r, err := Run(t.Context(), trees[0], opt)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func say(found []Finding) (said []string) {
	for _, f := range found {
		said = append(said, f.Rule+" "+f.Path)
	}
	slices.Sort(said)
	return said
}

// Each planted fault is found, in a folder and in an image, and nothing else.
func TestFaults(t *testing.T) {
	p := plantBase(t)
	opt := Options{SM: "87"}
	folder, err := openFolder(p.dir)
	if r := auditOne(t, []*tree{folder}, err, opt); len(r.Findings) > 0 || r.Findings == nil || r.Programs < 3 {
		t.Fatalf("without a fault: %+v", r) // nil would be null in JSON
	}
	trees, err := openImage(p.image())
	if r := auditOne(t, trees, err, opt); len(r.Findings) > 0 || r.Programs < 3 {
		t.Fatalf("without a fault, as an image: %+v", r)
	}
	var want []string
	for _, f := range faults {
		f.plant(p)
		want = append(want, f.rule+" "+f.path)
	}
	slices.Sort(want)
	folder, err = openFolder(p.dir)
	r := auditOne(t, []*tree{folder}, err, opt)
	if diff := cmp.Diff(want, say(r.Findings)); diff != "" {
		t.Errorf("in a folder (-want +got):\n%s", diff)
	}
	for _, f := range r.Findings {
		if want := "it has code for sm_72, compute_90; the board has sm_87"; f.Path == "/usr/bin/kernel" && f.Saw != want {
			t.Errorf("%s: %s; want %s", f.Path, f.Saw, want)
		}
		if f.Next == "" || f.Saw == "" {
			t.Errorf("%+v says too little", f)
		}
	}
	want = append(want, "device /etc/null", "owner /etc/app.conf")
	slices.Sort(want)
	trees, err = openImage(p.image("cd /etc", "mknod null c 1 3", "set_inode_field app.conf uid 4242"))
	r = auditOne(t, trees, err, opt)
	if diff := cmp.Diff(want, say(r.Findings)); diff != "" {
		t.Errorf("in an image (-want +got):\n%s", diff)
	}
}

// A sparse file of an image does not stop the audit.
func TestSparse(t *testing.T) {
	p := plantBase(t)
	for name, at := range map[string]int64{"var/log/lastlog": 0, "var/lib/middle": 1 << 20} {
		file, err := os.OpenFile(p.write(name, "x", 0o644), os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		_, err = file.WriteAt([]byte("end"), at)
		if err := errors.Join(err, file.Truncate(2<<20), file.Close()); err != nil {
			t.Fatal(err)
		}
	}
	trees, err := openImage(p.image())
	if r := auditOne(t, trees, err, Options{}); len(r.Findings) > 0 || r.Programs < 3 {
		t.Errorf("%+v", r)
	}
}

// A reader of file systems that panics gives an error.
func TestPanicOfReader(t *testing.T) {
	damaged := &tree{files: map[string]entry{"x": {size: 1}}, bytes: 1, open: func(string) (io.ReadCloser, error) { panic("out of range") }}
	if _, err := damaged.read("x"); err == nil || err.Error() != "its file system is damaged: out of range" {
		t.Errorf("read = %v; want the panic as an error", err)
	}
}

// A finding that is wanted is named by rule and path.
func TestAllow(t *testing.T) {
	p := plantBase(t)
	p.write("usr/bin/helper", "x", fs.ModeSetuid|0o755)
	p.write("usr/bin/other", "x", fs.ModeSetuid|0o755)
	folder, err := openFolder(p.dir)
	r := auditOne(t, []*tree{folder}, err, Options{Allow: []string{"setuid /usr/bin/help*", "writable /usr/bin/other"}})
	if diff := cmp.Diff([]string{"setuid /usr/bin/other"}, say(r.Findings)); diff != "" {
		t.Error(diff)
	}
}

func TestFatbins(t *testing.T) {
	both := append(fatbin(2, 87), fatbin(1, 87)...)
	if got := readFatbins(both); !slices.Equal(got, []string{"87", "ptx87"}) {
		t.Errorf("readFatbins = %q", got)
	}
	if got := readCubins([]byte("ftrt" + cubin(8, 0x6405) + "x" + cubin(7, 0x340557) + "\x7fELF\x02\x01")); !slices.Equal(got, []string{"100", "87"}) {
		t.Errorf("readCubins = %q", got)
	}
	for _, tt := range []struct {
		sms  []string
		gpu  string
		runs bool
	}{
		{[]string{"87"}, "87", true},
		{[]string{"80"}, "87", true},
		{[]string{"72"}, "87", false},
		{[]string{"90"}, "87", false},
		{[]string{"72", "ptx72"}, "87", true},
		{[]string{"ptx90"}, "87", false},
		{[]string{"ptx87"}, "110", true},
		{[]string{"87"}, "110", false},
		{[]string{"ptx110"}, "87", false},
	} {
		a := &auditor{opt: Options{SM: tt.gpu}, report: &Report{}}
		a.checkGPU("x", tt.sms)
		if runs := len(a.report.Findings) == 0; runs != tt.runs {
			t.Errorf("code for %q on sm_%s: found runs %v; want %v", tt.sms, tt.gpu, runs, tt.runs)
		}
	}
}

// FuzzProgram: no file makes the readers of programs panic.
func FuzzProgram(f *testing.F) {
	f.Add(append(fatbin(2, 87), fatbin(1, 90)...))
	f.Add([]byte("\x7fELF\x02\x01\x01"))
	if data, err := os.ReadFile("/bin/true"); err == nil {
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		readFatbins(data)
		readCubins(data)
		if p := readProgram(data); p != nil && !bytes.HasPrefix(data, []byte(elf.ELFMAG)) {
			t.Error("no ELF file is a program")
		}
		a := &auditor{tree: &tree{files: map[string]entry{"usr/bin/x": {mode: 0o755}}}, report: &Report{}}
		a.checkContent("usr/bin/x", data)
		a.checkContent("usr/lib/python3.11/x.pyc", data)
	})
}

// imageToAudit makes this test binary audit an image, for the process that isolates it.
const imageToAudit = "SLIPWAY_IMAGE_TO_AUDIT"

func TestMain(m *testing.M) {
	if image := os.Getenv(imageToAudit); image != "" {
		if err := Answer(context.Background(), os.Stdout, Target{Image: image}, Options{}); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// isolate audits an image in a process of its own.
func isolate(t *testing.T, image string) ([]Report, error) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return Isolate(t.Context(), []string{self}, []string{imageToAudit + "=" + image})
}

// tinyImage returns a small image of ext4.
func tinyImage(t testing.TB) []byte {
	t.Helper()
	if _, err := exec.LookPath("mke2fs"); err != nil {
		t.Skip("needs mke2fs (Debian package e2fsprogs)")
	}
	dir := t.TempDir()
	if err := errors.Join(os.MkdirAll(filepath.Join(dir, "root/etc"), 0o755), os.WriteFile(filepath.Join(dir, "root/etc/passwd"), []byte("root:x:0:0\n"), 0o644), os.Symlink("etc", filepath.Join(dir, "root/bin"))); err != nil {
		t.Fatal(err)
	}
	image := filepath.Join(dir, "image")
	if out, err := exec.Command("mke2fs", "-q", "-t", "ext4", "-O", "^has_journal,^resize_inode", "-N", "32", "-d", filepath.Join(dir, "root"), image, "256k").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	good, err := os.ReadFile(image)
	if err != nil {
		t.Fatal(err)
	}
	return good
}

// An image whose reader wants memory without end is an error, as is one that is no image.
func TestIsolate(t *testing.T) {
	good := tinyImage(t)
	greedy := bytes.Clone(good)
	le := binary.LittleEndian
	le.PutUint32(greedy[1024+0x64:], le.Uint32(greedy[1024+0x64:])&^0x400) // no checksums
	le.PutUint32(greedy[1024+0x60:], le.Uint32(greedy[1024+0x60:])|0x80)   // large numbers of blocks
	le.PutUint32(greedy[1024+0x150:], 0xffff)
	for _, tt := range []struct {
		name  string
		image []byte
		want  string // of the error
	}{
		{"good", good, ""},
		{"greedy", greedy, "its file system is damaged"},
		{"no image", []byte(strings.Repeat("text", 1000)), "image: "},
	} {
		file := filepath.Join(t.TempDir(), "image")
		if err := os.WriteFile(file, tt.image, 0o600); err != nil {
			t.Fatal(err)
		}
		reports, err := isolate(t, file)
		if tt.want == "" && (err != nil || len(reports) != 1 || reports[0].Files != 3) || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: %+v, %v; want %q", tt.name, reports, err, tt.want)
		}
	}
}

// FuzzImage: a damaged image gives a report or an error.
func FuzzImage(f *testing.F) {
	good := tinyImage(f)
	f.Add(uint32(0), []byte{})
	f.Add(uint32(1024+0x38), []byte{0, 0})
	f.Add(uint32(1024+0x18), []byte{0xff, 0xff, 0xff, 0x7f})
	f.Fuzz(func(t *testing.T, at uint32, change []byte) {
		damaged := bytes.Clone(good)
		copy(damaged[int(at)%len(damaged):], change)
		file := filepath.Join(t.TempDir(), "image")
		if err := os.WriteFile(file, damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		if reports, err := isolate(t, file); err == nil && len(reports) == 0 {
			t.Error("neither a report nor an error")
		}
	})
}

func TestMatchPath(t *testing.T) {
	for _, tt := range []struct {
		pattern, where string
		want           bool
	}{
		{"/usr/bin/x", "/usr/bin/x", true},
		{"/usr/bin/x", "/usr/bin/xy", false},
		{"/usr/*", "/usr/bin/deep/x", true},
		{"/usr/*", "/usr", false},
		{"*", "/a/b", true},
		{"/usr/*/q.so", "/usr/lib/x/q.so", true},
		{"/usr/*/q.so", "/usr/q.so", false},
		{"/a*a", "/a", false},
		{"/a*b*c", "/a/b/b/c", true},
		{"/a*b*c", "/a/c/b", false},
		{"/opt/[a]", "/opt/[a]", true},
		{"/usr/*", "/opt/usr/x", false},
		{"/*b*b", "/xb", false},
	} {
		if got := matchPath(tt.pattern, tt.where); got != tt.want {
			t.Errorf("matchPath(%q, %q) = %v; want %v", tt.pattern, tt.where, got, tt.want)
		}
	}
}

func TestCheckAllowed(t *testing.T) {
	for pattern, want := range map[string]string{
		"setuid /usr/*":     "",
		"host key /etc/ssh": "",
		"setiud /usr/*":     `no rule "setiud": did you mean setuid? (have GPU code, `,
		"setuid":            `--allow="setuid": want "RULE /PATH"`,
		"setuid usr/bin/x":  `want "RULE /PATH"`,
		"/usr/bin/x":        `no rule "/usr/bin/x"`,
		" /usr/bin/x":       `no rule ""`,
	} {
		if err := CheckAllowed([]string{"setuid /a", pattern}); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("CheckAllowed(%q) = %v; want %q", pattern, err, want)
		}
	}
}

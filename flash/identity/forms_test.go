package identity

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/crypto/ssh"

	"slipway/flash"
	"slipway/flash/flashtest"
)

// Values that would be something else in YAML, TOML, ini files or a shell.
const nasty = `a": b, 'c' #d {e} [f] $(g) %h \n \" & ` + "`i`"

const testKey = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIB0mV1vqCzXJ2JaYp1yKXkN0nDsPDWDnV2+3l2w2r5bD"

func fullConfig(form string) Config {
	return Config{
		Form: form, Hostname: "{{host}}", Address: "192.0.2.7/24", Gateway: "192.0.2.1", DNS: []string{"192.0.2.2", "{{dns}}"},
		User:  User{Name: "{{user}}", PasswordHash: "{{hash}}", Keys: []string{testKey + " {{text}}"}},
		Wifi:  Wifi{SSID: "{{ssid}}", Password: "{{wifi}}", Country: "DE"},
		Files: map[string]string{"etc/motd": "I am {{host}}\nand {{text}}\n"},
	}
}

const testHash = "$6$abcdefgh$0123456789012345678901234567890123456789"

// fullTable is a table for fullConfig.
func fullTable(host, ssid, text string) string {
	quoted := func(s string) string { return `"` + strings.ReplaceAll(s, `"`, `""`) + `"` }
	return "host,user,hash,ssid,wifi,dns,text\n" + strings.Join([]string{quoted(host), "worker", testHash, quoted(ssid), "planted wifi", "2001:db8::1", quoted(text)}, ",") + "\n"
}

func filesOf(t testing.TB, p *Plan) Files {
	t.Helper()
	f, err := p.Files(t.Context(), p.table.rows[0], nil)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// write writes the files below a new folder.
func write(t testing.TB, files map[string][]byte) string {
	t.Helper()
	dir := t.TempDir()
	for name, data := range files {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// python runs a script that prints JSON, with the file as its argument; it skips without a module.
func python(t testing.TB, script, file string) (v map[string]any) {
	t.Helper()
	cmd := exec.Command("python3", "-c", script, file)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if strings.Contains(stderr.String(), "ModuleNotFoundError") || cmd.ProcessState == nil {
		t.Skipf("%s (Debian packages python3, python3-yaml)", &stderr)
	}
	if err != nil || json.Unmarshal(out, &v) != nil {
		t.Fatalf("%s: %v\n%s%s", file, err, &stderr, out)
	}
	return v
}

const (
	readYAML = "import json,sys,yaml; print(json.dumps(yaml.safe_load(open(sys.argv[1]))))"
	readTOML = "import json,sys,tomllib; print(json.dumps(tomllib.load(open(sys.argv[1],'rb'))))"
)

// checkHostKey fails the test unless the private key has the fingerprint.
func checkHostKey(t testing.TB, private []byte, fingerprint string) {
	t.Helper()
	signer, err := ssh.ParsePrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	if got := ssh.FingerprintSHA256(signer.PublicKey()); got != fingerprint {
		t.Errorf("the host key's fingerprint = %s; want %s", got, fingerprint)
	}
}

// psk is what wpa_passphrase prints for the network "My Net" and "planted wifi".
const psk = "f63e42469ece2cf37750f6693b7f7843aaab679bcfa2a97b83de1cfadab6e066"

func TestCloud(t *testing.T) {
	for _, form := range []string{"nocloud", "raspberrypi"} {
		f := filesOf(t, planOf(t, fullTable("pi-1", nasty[:30], nasty), fullConfig(form)))
		dir := write(t, f.Files)
		user := python(t, readYAML, filepath.Join(dir, "user-data"))
		checkHostKey(t, []byte(user["ssh_keys"].(map[string]any)["ed25519_private"].(string)), f.HostKey)
		delete(user, "ssh_keys")
		written := user["write_files"].([]any)
		if want := map[string]int{"nocloud": 1, "raspberrypi": 3}[form]; len(written) != want {
			t.Errorf("%s: %d files; want %d", form, len(written), want)
		}
		delete(user, "write_files")
		want := map[string]any{"hostname": "pi-1", "manage_etc_hosts": "localhost", "user": map[string]any{
			"name": "worker", "shell": "/bin/bash", "sudo": nil, "lock_passwd": false, "hashed_passwd": testHash, "ssh_authorized_keys": []any{testKey},
		}}
		if form == "raspberrypi" {
			want["runcmd"] = []any{[]any{"systemctl", "enable", "--now", "ssh"}}
		}
		if diff := cmp.Diff(want, user); diff != "" {
			t.Errorf("%s: user-data (-want +got):\n%s", form, diff)
		}
		if meta := python(t, readYAML, filepath.Join(dir, "meta-data")); meta["local-hostname"] != "pi-1" || len(meta["instance-id"].(string)) < 40 || len(meta) != 2 {
			t.Errorf("meta-data = %v", meta)
		}
		network := python(t, readYAML, filepath.Join(dir, "network-config"))
		if wired := network["ethernets"].(map[string]any)["eth0"].(map[string]any); wired["optional"] != true || wired["dhcp4"] != true {
			t.Errorf("beside Wi-Fi, ethernet = %v; want it optional, with DHCP", wired)
		}
		points := network["wifis"].(map[string]any)["wlan0"].(map[string]any)["access-points"].(map[string]any)
		if point, ok := points[nasty[:30]].(map[string]any); !ok || len(points) != 1 || len(point["password"].(string)) != 64 {
			t.Errorf("access-points = %v; want %q", points, nasty[:30])
		}
	}
}

func TestNetworkConfig(t *testing.T) {
	link := map[string]any{"addresses": []any{"192.0.2.7/24"}, "routes": []any{map[string]any{"to": "0.0.0.0/0", "via": "192.0.2.1"}}, "nameservers": map[string]any{"addresses": []any{"192.0.2.2", "2001:db8::1"}}}
	for _, test := range []struct {
		change func(*Config)
		want   map[string]any
	}{
		{func(c *Config) { c.Wifi = Wifi{} }, link},
		{func(c *Config) { c.Wifi, c.Address, c.Gateway, c.DNS = Wifi{}, "", "", nil }, map[string]any{"dhcp4": true}},
		{func(c *Config) { c.Wifi, c.Address, c.Gateway, c.DNS = Wifi{}, "dhcp", "", nil }, map[string]any{"dhcp4": true}},
		{func(c *Config) { c.Wifi, c.Address, c.Gateway, c.DNS = Wifi{}, "2001:db8::7/64", "2001:db8::1", nil }, map[string]any{
			"addresses": []any{"2001:db8::7/64"}, "routes": []any{map[string]any{"to": "::/0", "via": "2001:db8::1"}},
		}},
	} {
		c := fullConfig("nocloud")
		test.change(&c)
		f := filesOf(t, planOf(t, fullTable("a", "b", "c"), c))
		network := python(t, readYAML, filepath.Join(write(t, f.Files), "network-config"))
		test.want["match"] = map[string]any{"name": "e*"}
		if diff := cmp.Diff(map[string]any{"version": 2.0, "ethernets": map[string]any{"eth0": test.want}}, network); diff != "" {
			t.Errorf("network-config (-want +got):\n%s", diff)
		}
	}
}

// cloud-init's own schema takes the files, if cloud-init is there.
func TestCloudSchema(t *testing.T) {
	if _, err := exec.LookPath("cloud-init"); err != nil {
		t.Skip("cloud-init is missing (Debian package cloud-init; do not leave it on a machine that boots)")
	}
	for _, form := range []string{"nocloud", "raspberrypi"} {
		dir := write(t, filesOf(t, planOf(t, fullTable("pi-1", nasty[:30], nasty), fullConfig(form))).Files)
		if out := flashtest.MustRun(t, "cloud-init", "schema", "--config-file", filepath.Join(dir, "user-data")); !strings.Contains(out, "Valid") {
			t.Errorf("%s: %s", form, out)
		}
	}
}

func TestRaspberryPi(t *testing.T) {
	f := filesOf(t, planOf(t, fullTable("pi-1", nasty[:30], nasty), fullConfig("raspberrypi")))
	got := python(t, readTOML, filepath.Join(write(t, f.Files), "custom.toml"))
	wlan := got["wlan"].(map[string]any)
	if key, _ := wlan["password"].(string); len(key) != 64 {
		t.Errorf("wlan's key = %q; want 64 digits", key)
	}
	delete(wlan, "password")
	want := map[string]any{
		"config_version": 1.0, "system": map[string]any{"hostname": "pi-1"},
		"user": map[string]any{"name": "worker", "password": testHash, "password_encrypted": true},
		"ssh":  map[string]any{"enabled": true, "password_authentication": false, "authorized_keys": []any{testKey}},
		"wlan": map[string]any{"ssid": nasty[:30], "password_encrypted": true, "country": "DE"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("custom.toml (-want +got):\n%s", diff)
	}
	small := filesOf(t, planOf(t, "host\na\n", Config{Form: "raspberrypi", User: User{Name: "pi"}}))
	if got := python(t, readTOML, filepath.Join(write(t, small.Files), "custom.toml")); len(got["ssh"].(map[string]any)["authorized_keys"].([]any)) != 0 {
		t.Errorf("custom.toml without keys = %v", got)
	}
}

// applied returns the files that systemd's programs make of tmpfiles and sysusers in a new root.
func applied(t *testing.T, tmpfiles, sysusers []byte, credentials string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: systemd-tmpfiles sets owners")
	}
	root := t.TempDir()
	flashtest.Put(t, filepath.Join(root, "etc/passwd"), "root:x:0:0:root:/root:/bin/sh\n")
	flashtest.Put(t, filepath.Join(root, "etc/group"), "root:x:0:\n")
	flashtest.Put(t, filepath.Join(root, "proc/sys/kernel/hostname"), "old\n")
	for _, run := range []struct {
		argv []string
		text []byte
	}{{[]string{"systemd-sysusers", "--root=" + root}, sysusers}, {[]string{"systemd-tmpfiles", "--create", "--root=" + root}, tmpfiles}} {
		file := filepath.Join(t.TempDir(), "lines.conf")
		flashtest.Put(t, file, string(run.text))
		if _, err := exec.LookPath(run.argv[0]); err != nil {
			t.Skipf("%s is missing (Debian package systemd)", run.argv[0])
		}
		cmd := exec.Command(run.argv[0], append(run.argv[1:], file)...)
		cmd.Env = append(os.Environ(), "CREDENTIALS_DIRECTORY="+credentials)
		if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 && !strings.HasPrefix(string(out), "Creating ") {
			t.Errorf("%s: %v\n%s", run.argv, err, out)
		}
	}
	return root
}

// checkRoot fails the test unless the files of fullConfig are in the root.
func checkRoot(t *testing.T, root string) {
	t.Helper()
	for name, want := range map[string]struct {
		mode os.FileMode
		text string
	}{
		"etc/hostname":             {0o644, "board-1\n"},
		"proc/sys/kernel/hostname": {0o644, "board-1"},
		"etc/motd":                 {0o644, "I am board-1\nand " + nasty + "\n"},
		"etc/wpa_supplicant/wpa_supplicant-wlan0.conf": {0o600, fmt.Sprintf("country=DE\nnetwork={\n\tssid=%x\n\tpsk=%s\n}\n", "My Net", psk)},
		"home/worker/.ssh/authorized_keys":             {0o600, testKey + "\n"},
	} {
		info, err := os.Stat(filepath.Join(root, name))
		if err != nil {
			t.Error(err)
			continue
		}
		text, _ := os.ReadFile(filepath.Join(root, name))
		if info.Mode() != want.mode || string(text) != want.text {
			t.Errorf("%s = %v %q; want %v %q", name, info.Mode(), text, want.mode, want.text)
		}
	}
	shadow, _ := os.ReadFile(filepath.Join(root, "etc/shadow"))
	passwd, _ := os.ReadFile(filepath.Join(root, "etc/passwd"))
	if !strings.Contains(string(shadow), "worker:"+testHash+":") || !strings.Contains(string(passwd), ":/home/worker:/bin/sh\n") {
		t.Errorf("passwd = %q, shadow = %q; want the user worker with its hash", passwd, shadow)
	}
}

const testNetwork = "[Match]\nName=wl*\n\n[Network]\nAddress=192.0.2.7/24\nGateway=192.0.2.1\nDNS=192.0.2.2\nDNS=2001:db8::1\n"

func TestSlipwayForm(t *testing.T) {
	id, err := flash.NewIdentity(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	p := planOf(t, fullTable("board-1", "My Net", nasty), fullConfig("slipway"))
	f, err := p.Files(t.Context(), p.table.rows[0], &id)
	if err != nil {
		t.Fatal(err)
	}
	checkHostKey(t, f.Files["ssh/ssh_host_ed25519_key"], id.Fingerprint())
	if got := f.Files["ssh/authorized_keys"]; !bytes.Equal(got, id.Admitted()) || f.HostKey != id.Fingerprint() {
		t.Errorf("authorized_keys = %q, host key %s; want the identity's", got, f.HostKey)
	}
	if other := filesOf(t, p); other.Files["ssh/authorized_keys"] != nil || other.HostKey == f.HostKey {
		t.Errorf("without an identity: %q, host key %s; want no root's keys, and a new host key", other.Files["ssh/authorized_keys"], other.HostKey)
	}
	dir := write(t, f.Files)
	root := applied(t, f.Files["identity/tmpfiles.conf"], f.Files["identity/sysusers.conf"], filepath.Join(dir, "identity/credentials"))
	checkRoot(t, root)
	const name = "etc/systemd/network/05-identity.network"
	if text, err := os.ReadFile(filepath.Join(root, name)); err != nil || strings.TrimSpace(string(text)) != strings.TrimSpace(testNetwork) {
		t.Errorf("%s = %q, %v; want %q", name, text, err, testNetwork)
	}
}

func TestSystemdForm(t *testing.T) {
	f := filesOf(t, planOf(t, fullTable("board-1", "My Net", nasty), fullConfig("systemd")))
	dir, got := write(t, f.Files), map[string]string{}
	if _, err := exec.LookPath("systemd-creds"); err != nil {
		t.Skip("systemd-creds is missing (Debian package systemd)")
	}
	credentials := t.TempDir()
	for path := range f.Files {
		name, _ := strings.CutSuffix(filepath.Base(path), ".cred")
		// The generators of systemd take no base64, and its services nothing else.
		if binary := bytes.ContainsRune(f.Files[path], 0); binary != strings.HasPrefix(name, "systemd.") {
			t.Errorf("%s: binary is %v", path, binary)
		} else if binary {
			flashtest.Put(t, filepath.Join(dir, path), base64.StdEncoding.EncodeToString(f.Files[path]))
		}
		cmd := exec.Command("systemd-creds", "decrypt", "--name="+name, filepath.Join(dir, path), filepath.Join(credentials, name))
		if out, err := cmd.CombinedOutput(); err != nil || filepath.Dir(path) != "loader/credentials" {
			t.Fatalf("%s: %v %s", path, err, out)
		}
		text, err := os.ReadFile(filepath.Join(credentials, name))
		if err != nil {
			t.Fatal(err)
		}
		got[name] = string(text)
	}
	root := applied(t, []byte(got["tmpfiles.extra"]), []byte(got["sysusers.extra"]), credentials)
	checkRoot(t, root)
	private, _ := os.ReadFile(filepath.Join(root, "etc/ssh/ssh_host_ed25519_key"))
	checkHostKey(t, private, f.HostKey)
	delete(got, "tmpfiles.extra")
	delete(got, "sysusers.extra")
	if diff := cmp.Diff(map[string]string{"systemd.unit-dropin.systemd-sysusers.service": "[Service]\nImportCredential=passwd.hashed-password.worker\n", "passwd.hashed-password.worker": testHash, "network.network.05-identity": testNetwork}, got); diff != "" {
		t.Errorf("credentials (-want +got):\n%s", diff)
	}
}

func TestPlainPassword(t *testing.T) {
	c := fullConfig("slipway")
	c.PlainPasswords = true
	p := planOf(t, strings.Replace(fullTable("board-1", "x", ""), testHash, "planted secret", 1), c)
	if _, err := exec.LookPath("openssl"); err != nil {
		t.Skip("openssl is missing (Debian package openssl)")
	}
	hash := string(filesOf(t, p).Files["identity/credentials/passwd.hashed-password.worker"])
	if !strings.HasPrefix(hash, "$6$") || strings.Contains(hash, "planted") || !slices.Equal(cryptHash().FindStringSubmatch(hash)[:1], []string{hash}) {
		t.Errorf("the hash = %q", hash)
	}
}

// The boards' unit reads the files of the form slipway. Yocto's recipe has a copy of it.
func TestUnitsAreEqual(t *testing.T) {
	const name = "slipway-identity.service"
	unit, err := os.ReadFile("../../images/boards/virt/overlay/usr/lib/systemd/system/" + name)
	if err != nil {
		t.Fatal(err)
	}
	recipe, err := os.ReadFile("../../recipes/dynamic-layers/rauc/slipway-slots/files/" + name)
	if err != nil || !bytes.Equal(unit, recipe) {
		t.Errorf("the recipe's %s differs from the virtual board's, %v", name, err)
	}
	for _, path := range forms["slipway"].files {
		if folder := filepath.Dir(path); !strings.Contains(string(unit), "/data/"+path+"\n") && !strings.Contains(string(unit), "/data/"+folder+"\n") {
			t.Errorf("%s does not read %s", name, path)
		}
	}
}

package audit

import (
	"os/exec"
	"path"
	"strconv"
	"strings"

	"slipway/layers/plaintext"
)

// accounts are the numeric IDs of the image's users and groups.
type accounts struct{ users, groups map[int]bool }

// readAccounts returns the sets of IDs in etc/passwd and etc/group. Both have root and nobody.
func (a *auditor) readAccounts() accounts {
	read := func(file string) map[int]bool {
		ids := map[int]bool{0: true, 65534: true}
		for line := range strings.Lines(a.tree.readText(file)) {
			if fields := strings.Split(line, ":"); len(fields) > 2 {
				if id, err := strconv.Atoi(fields[2]); err == nil {
					ids[id] = true
				}
			}
		}
		return ids
	}
	return accounts{read("etc/passwd"), read("etc/group")}
}

func (c accounts) known(e entry) bool { return c.users[e.uid] && c.groups[e.gid] }

// commonPasswords are what people try first. checkPassword also tries the account's name.
var commonPasswords = []string{"root", "toor", "password", "passwd", "admin", "1234", "12345", "123456", "changeme", "default", "test", "user", "ubuntu", "debian", "raspberry", "nvidia", "jetson", "bluefield", "yocto", "oelinux123", "slipway", "linux"}

// checkSystem checks passwords, accounts, SSH and sudo settings, authorized keys, machine IDs, and
// who may read etc/shadow, etc/gshadow and etc/sudoers.
func (a *auditor) checkSystem() {
	for line := range strings.Lines(a.tree.readText("etc/shadow")) {
		if fields := strings.Split(strings.TrimSpace(line), ":"); len(fields) > 1 {
			a.checkPassword("etc/shadow", fields[0], fields[1])
		}
	}
	for line := range strings.Lines(a.tree.readText("etc/passwd")) {
		fields := strings.Split(strings.TrimSpace(line), ":")
		if len(fields) < 3 {
			continue
		}
		if fields[1] != "x" {
			a.checkPassword("etc/passwd", fields[0], fields[1])
		}
		if fields[2] == "0" && fields[0] != "root" {
			a.addFinding("access", "etc/passwd", "%s is root by another name", plaintext.Clean(fields[0], 100))
		}
	}
	for _, name := range []string{"etc/shadow", "etc/gshadow", "etc/shadow-", "etc/sudoers"} {
		if mode := a.tree.files[name].mode; mode.IsRegular() && mode.Perm()&0o004 != 0 {
			a.addFinding("readable", name, "%s, which every account may read", mode)
		}
	}
	for _, name := range []string{"etc/machine-id", "var/lib/dbus/machine-id"} {
		if a.tree.files[name].mode.IsRegular() && machineID().MatchString(a.tree.readText(name)) {
			a.addFinding("machine id", name, "each board of this image would have it")
		}
	}
	for _, name := range a.tree.names() {
		if !a.tree.files[name].mode.IsRegular() {
			continue
		}
		switch base := path.Base(name); {
		case strings.HasSuffix(name, ".ssh/authorized_keys") || strings.HasSuffix(name, ".ssh/authorized_keys2"):
			if line := firstLine(a.tree.readText(name)); line != "" {
				a.addFinding("access", name, "who has this key may log in to each board: %s", line)
			}
		case name == "etc/ssh/sshd_config" || path.Dir(name) == "etc/ssh/sshd_config.d" && strings.HasSuffix(base, ".conf"):
			a.checkSSHD(name)
		case name == "etc/sudoers" || path.Dir(name) == "etc/sudoers.d":
			for line := range strings.Lines(a.tree.readText(name)) {
				if strings.Contains(line, "NOPASSWD") && !strings.HasPrefix(strings.TrimSpace(line), "#") {
					a.addFinding("access", name, "root without a password: %s", plaintext.Clean(strings.TrimSpace(line), 200))
				}
			}
		}
	}
}

var machineID = plaintext.Regexp(`^[0-9a-f]{32}\n?$`)

// firstLine returns the first 80 characters of the first line that is not blank and no comment.
func firstLine(text string) string {
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			return plaintext.Clean(line, 80)
		}
	}
	return ""
}

// checkSSHD finds sshd settings, up to the first Match, that let root or empty passwords log in. Of
// two lines with one setting, sshd uses the first.
func (a *auditor) checkSSHD(name string) {
	seen := map[string]bool{}
	for line := range strings.Lines(a.tree.readText(name)) {
		words := strings.Fields(strings.ToLower(strings.ReplaceAll(line, "=", " ")))
		if len(words) > 0 && words[0] == "match" {
			return
		}
		if len(words) < 2 || seen[words[0]] {
			continue
		}
		seen[words[0]] = true
		if words[1] == "yes" && (words[0] == "permitrootlogin" || words[0] == "permitemptypasswords") {
			a.addFinding("root login", name, "%s", strings.TrimSpace(line))
		}
	}
}

// checkPassword adds a finding if an account has no password, a common password, or any other that
// all boards of the image would share. Locked accounts and the hash "x" pass.
func (a *auditor) checkPassword(file, account, hash string) {
	shown := plaintext.Clean(account, 100)
	if hash == "" {
		a.addFinding("password", file, "%s logs in without a password", shown)
		return
	}
	if strings.ContainsAny(hash[:1], "*!") || hash == "x" || account == "" { // x: shadow has the hash
		return
	}
	for _, password := range append([]string{account}, commonPasswords...) {
		if matchesHash(password, hash) {
			a.addFinding("password", file, "the password of %s is %q", shown, password)
			return
		}
	}
	a.addFinding("password", file, "%s has the same password on each board of this image", shown)
}

var saltedHash = plaintext.Regexp(`^\$([156])\$([A-Za-z0-9./]{1,16})\$`)

// matchesHash reports whether openssl makes this MD5, SHA-256 or SHA-512 hash of a password.
func matchesHash(password, hash string) bool {
	found := saltedHash().FindStringSubmatch(hash)
	if found == nil {
		return false
	}
	cmd := exec.Command("openssl", "passwd", "-"+found[1], "-salt", found[2], "-stdin")
	cmd.Stdin = strings.NewReader(password + "\n")
	out, err := cmd.Output()
	return err == nil && strings.TrimSpace(string(out)) == hash
}

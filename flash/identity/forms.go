package identity

import (
	"context"
	"crypto/pbkdf2"
	"crypto/sha1"
	"embed"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"
	"text/template"

	"slipway/flash"
	"slipway/layers/run"
)

// Files is what one board's partition gets.
type Files struct {
	Partitions []string          // names of the partition: the first that the image has counts
	Files      map[string][]byte // by their paths in the partition
	HostKey    string            // the fingerprint of the board's new host key
}

// forms are the ways in which images read an identity: names of the partition, and paths of its
// files. The template of a file has its path's last part as name. USER is the user's name.
var forms = map[string]struct{ partitions, files []string }{
	"slipway": {[]string{"data"}, []string{
		"identity/tmpfiles.conf", "identity/sysusers.conf", "identity/credentials/passwd.hashed-password.USER",
	}},
	"nocloud":     {[]string{"cidata", "system-boot", "boot"}, cloud},
	"raspberrypi": {[]string{"bootfs"}, append(slices.Clone(cloud), "custom.toml")},
	"systemd": {[]string{"esp", "ESP", "efi", "EFI", "EFI System Partition", "boot"}, []string{
		credentials + "sysusers.extra.cred", credentials + "tmpfiles.extra.cred", credentials + "network.network.05-identity.cred",
		credentials + "passwd.hashed-password.USER.cred", credentials + "systemd.unit-dropin.systemd-sysusers.service.cred",
	}},
}

const credentials = "loader/credentials/"

var cloud = []string{"user-data", "meta-data", "network-config"}

//go:embed forms
var sources embed.FS

var templates = sync.OnceValue(func() *template.Template {
	return template.Must(template.New("").Funcs(template.FuncMap{
		"json":     func(v any) (string, error) { text, err := json.Marshal(v); return string(text), err },
		"b64":      func(text string) string { return base64.StdEncoding.EncodeToString([]byte(text)) },
		"contains": strings.Contains,
	}).ParseFS(sources, "forms/*"))
})

// card is what the templates get: the filled values and the host key.
type card struct {
	Config
	flash.HostKey
}

// Include returns what a template makes of c.
func (c card) Include(name string) (string, error) {
	var b strings.Builder
	err := templates().ExecuteTemplate(&b, name, c)
	return b.String(), err
}

// Files makes the row's files, with id's host key, or else a new one. The form slipway also lets
// id's client key in. Files calls openssl to hash a password, and systemd-creds for the form
// systemd.
func (p *Plan) Files(ctx context.Context, row Row, id *flash.Identity) (f Files, err error) {
	var c card
	if c.Config, err = p.fill(row); err != nil {
		return f, err
	}
	if hash := &c.User.PasswordHash; !cryptHash().MatchString(*hash) {
		if *hash, err = convert(ctx, *hash, "openssl", "passwd", "-6", "-stdin"); err != nil {
			return f, err
		}
	}
	// wpa_supplicant's own key, which all programs take in place of the password.
	key, err := pbkdf2.Key(sha1.New, c.Wifi.Password, []byte(c.Wifi.SSID), 4096, 32)
	if err != nil {
		return f, err
	}
	c.Wifi.Password = hex.EncodeToString(key)
	var admitted []byte
	if id != nil {
		c.HostKey, admitted = id.HostKey, id.Admitted()
	} else if c.HostKey, err = flash.NewHostKey(); err != nil {
		return f, err
	}
	f = Files{forms[c.Form].partitions, map[string][]byte{}, c.Fingerprint()}
	if c.Partition != "" {
		f.Partitions = []string{c.Partition}
	}
	if c.Form == "slipway" { // these keys are root's
		f.Files = c.HostKey.Files(admitted)
	}
	for _, file := range forms[c.Form].files {
		text, err := c.Include(strings.TrimSuffix(path.Base(file), ".cred"))
		name := path.Base(strings.ReplaceAll(file, "USER", c.User.Name))
		if sealed, ok := strings.CutSuffix(name, ".cred"); ok && text != "" && err == nil {
			// systemd takes only encrypted ones from an ESP. This key hides and proves nothing.
			text, err = convert(ctx, text, "systemd-creds", "encrypt", "--with-key=tpm2-absent", "--name="+sealed, "-", "-")
			if strings.HasPrefix(sealed, "systemd.") && err == nil { // its generators know no base64
				var raw []byte
				raw, err = base64.StdEncoding.DecodeString(text)
				text = string(raw)
			}
		}
		if err != nil {
			return f, err
		}
		if text != "" {
			f.Files[path.Join(path.Dir(file), name)] = []byte(text)
		}
	}
	return f, nil
}

// convert returns a program's output for a text, without spaces at its ends.
func convert(ctx context.Context, text string, argv ...string) (string, error) {
	out, err := run.Output(ctx, run.Command{Argv: argv, Stdin: strings.NewReader(text)})
	return strings.TrimSpace(string(out)), err
}

// Personal returns f for the first of its partitions that the image has.
func (f Files) Personal(image *flash.Prepared) (own flash.Personal, err error) {
	for _, name := range f.Partitions {
		if own, err = image.Personal(name, f.Files); err == nil {
			return own, nil
		}
	}
	return own, fmt.Errorf("%w; the form of the identity wants %s, and partition: can name another\nnext: devices", err, strings.Join(f.Partitions, " or "))
}

package identity

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha1"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"math"
	"strings"
	"text/template"
	"time"

	"slipway/flash"
	"slipway/layers/run"
)

// Files is what one board's partition gets.
type Files struct {
	Partitions []string          // names of the partition: the first that the image has counts
	Files      map[string][]byte // by their paths in the partition
	HostKey    string            // the fingerprint of the board's new host key
}

// forms are the ways in which images read an identity: the partition, and folders with templates of
// its files. USER in a path is the user's name. An empty file is left out.
var forms = map[string]struct{ partitions, folders []string }{
	"slipway":     {[]string{"data"}, []string{"slipway"}},
	"nocloud":     {[]string{"CIDATA", "cidata", "boot"}, []string{"cloud"}},
	"systemd":     {[]string{"esp", "ESP", "efi", "EFI", "EFI System Partition", "boot", "BOOT"}, []string{"systemd"}},
	"raspberrypi": {[]string{"bootfs"}, []string{"cloud", "raspberrypi"}},
}

//go:embed forms
var templates embed.FS

// card is what the templates get: the filled values and the host key.
type card struct {
	Config
	flash.HostKey
}

// Home is the user's folder.
func (u User) Home() string {
	if u.Name == "root" {
		return "/root"
	}
	return "/home/" + u.Name
}

// IsNew reports whether the image cannot have the user yet.
func (u User) IsNew() bool { return u.Name != "" && u.Name != "root" }

// Lines is the user's authorized_keys.
func (u User) Lines() string { return strings.Join(append(u.Keys, ""), "\n") }

// Pi reports whether the files are for Raspberry Pi OS.
func (c card) Pi() bool { return c.Form == "raspberrypi" }

// ID names the board for cloud-init, which runs once for each.
func (c card) ID() string { return fmt.Sprintf("%x", sha256.Sum256(c.Public()))[:32] }

// Files makes the row's files, with id's host key, or else a new one. The form slipway also lets id's
// client key in. Files calls openssl if it must hash a password.
func (p *Plan) Files(ctx context.Context, row Row, id *flash.Identity) (f Files, err error) {
	var c card
	if c.Config, err = p.fill(row); err != nil {
		return f, err
	}
	if hash := &c.User.PasswordHash; *hash != "" && !cryptHash().MatchString(*hash) {
		out, err := run.Output(ctx, run.Command{Argv: []string{"openssl", "passwd", "-6", "-stdin"}, Stdin: strings.NewReader(*hash)})
		if err != nil {
			return f, fmt.Errorf("hash the password (Debian package openssl): %w", err)
		}
		*hash = strings.TrimSpace(string(out))
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
	return f, f.render(c)
}

// render adds the files of c's form.
func (f Files) render(c card) error {
	t := template.New("")
	t.Funcs(template.FuncMap{
		"json":     func(v any) (string, error) { text, err := json.Marshal(v); return string(text), err },
		"b64":      func(text string) string { return base64.StdEncoding.EncodeToString([]byte(text)) },
		"contains": strings.Contains,
		"include": func(name string, data any) (string, error) {
			var b strings.Builder
			err := t.ExecuteTemplate(&b, name, data)
			return b.String(), err
		},
	})
	template.Must(t.ParseFS(templates, "forms/board.tmpl"))
	for _, folder := range forms[c.Form].folders {
		root, err := fs.Sub(templates, "forms/"+folder)
		if err != nil {
			return err
		}
		err = fs.WalkDir(root, ".", func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			source, err := fs.ReadFile(root, path)
			if err != nil {
				return err
			}
			var b strings.Builder
			if err := template.Must(t.New(path).Parse(string(source))).Execute(&b, c); err != nil {
				return err
			}
			return f.add(strings.ReplaceAll(path, "USER", c.User.Name), b.String())
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// add adds a file that is not empty. systemd takes credentials from an ESP only as systemd-creds
// encrypt writes them: here with a null key, which hides and proves nothing.
func (f Files) add(path, text string) error {
	name, isCredential := strings.CutSuffix(path[strings.LastIndex(path, "/")+1:], ".cred")
	switch {
	case strings.TrimSpace(text) == "":
		return nil
	case !isCredential:
		f.Files[path] = []byte(text)
		return nil
	}
	key := sha256.Sum256(nil)
	block, err := aes.NewCipher(key[:])
	if err != nil {
		return err
	}
	gcm, err := cipher.NewGCM(block)
	if err != nil {
		return err
	}
	// The kind of key, then the sizes of key, block, nonce and tag. Each part is filled up to 8 bytes.
	head, _ := hex.DecodeString("058469daf6f54324800549da0f8ea2fb" + "20000000010000000c00000010000000")
	nonce := make([]byte, gcm.NonceSize())
	rand.Read(nonce)
	head = append(append(head, nonce...), 0, 0, 0, 0)
	meta := binary.LittleEndian.AppendUint64(nil, uint64(time.Now().UnixMicro()))
	meta = binary.LittleEndian.AppendUint64(meta, math.MaxUint64) // never too old
	meta = append(binary.LittleEndian.AppendUint32(meta, uint32(len(name))), name...)
	meta = append(meta, make([]byte, -len(meta)&7)...)
	sealed := append(head, gcm.Seal(nil, nonce, append(meta, text...), head)...)
	f.Files[path] = []byte(base64.StdEncoding.EncodeToString(sealed))
	return nil
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

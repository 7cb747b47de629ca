// Package identity gives each board that is flashed an identity of its own: a row of a table
// becomes the files of one partition, in the form that the board's image reads. Claims records
// which card has which row. The package writes to no device; see flash.Prepared.
package identity

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"slipway/layers/localfile"
	"slipway/layers/plaintext"
	"slipway/layers/yaml"

	"golang.org/x/crypto/ssh"
)

// Config is the section identity of place.yml. Its texts may have {{column}} for a cell of the row.
type Config struct {
	Table     string   `yaml:"table"` // relative to the file's folder; "" is none
	Key       string   `yaml:"key"`
	By        string   `yaml:"by"` // next (also ""), serial or port
	Form      string   `yaml:"form"`
	Partition string   `yaml:"partition"`
	Hostname  string   `yaml:"hostname"`
	Address   string   `yaml:"address"` // 192.0.2.7/24, or dhcp
	Gateway   string   `yaml:"gateway"`
	DNS       []string `yaml:"dns"`
	User      User     `yaml:"user"`
	Wifi      Wifi     `yaml:"wifi"`

	PlainPasswords bool              `yaml:"plain_passwords"` // password_hash may also be a password
	Files          map[string]string `yaml:"files"`           // by their paths on the board, without the first /
	Ahead          int               `yaml:"ahead"`           // rows of a hub's table that a station reserves in advance
}

// User is the person who logs in.
type User struct {
	Name         string   `yaml:"name"`
	PasswordHash string   `yaml:"password_hash"`
	Keys         []string `yaml:"keys"` // lines of authorized_keys
}

// Wifi is a network with WPA2 or WPA3.
type Wifi struct {
	SSID     string `yaml:"ssid"`
	Password string `yaml:"password"`
	Country  string `yaml:"country"`
}

// Plan is a checked Config with its table.
type Plan struct {
	config Config
	table  *Table
	file   string
	places map[string]string
	grows  bool // the table's file may get more rows
}

// Grows says that the table's file is replaced by one with more rows while cards are written.
func (p *Plan) Grows() { p.grows = true }

// NewPlan opens the table, and checks what each of its rows gives. file is the YAML file of c, and
// places has its keys' places, as yaml.Load fills them. Errors have no passwords, keys and files.
func NewPlan(file string, c Config, places map[string]string) (*Plan, error) {
	p := &Plan{config: c, table: &Table{file: file, rows: []Row{{Key: filepath.Base(file)}}}, file: file, places: places}
	if c.Table != "" {
		path := c.Table
		if !filepath.IsAbs(path) {
			path = filepath.Join(filepath.Dir(file), path)
		}
		var err error
		if p.table, err = readTable(path, c.Key); err != nil {
			return nil, err
		}
	}
	if key, err := p.checkChoices(); err != nil {
		return nil, p.errorAt(key, Row{}, err)
	}
	return p, p.checkRows()
}

// checkRows checks what each row gives, and that no two boards get one host name or address.
func (p *Plan) checkRows() error {
	lines := map[any]int{}
	for _, row := range p.table.rows {
		c, err := p.fill(row)
		if err != nil {
			return err
		}
		static, _ := netip.ParsePrefix(c.Address)
		for i, value := range []any{strings.ToLower(c.Hostname), static.Addr()} {
			if before := lines[value]; before > 0 {
				return p.errorAt([]string{"hostname", "address"}[i], row, fmt.Errorf("%v is that of line %d too", value, before))
			}
			lines[value] = row.Line
		}
		delete(lines, "")
		delete(lines, netip.Addr{})
	}
	return nil
}

// ReadOne reads a file with the values of one board. It returns its plan and only row.
func ReadOne(file string) (*Plan, Row, error) {
	var c Config
	places := map[string]string{}
	data, err := readFile(file)
	if err == nil {
		err = yaml.Load(file, data, &c, places)
	}
	if err == nil && c.Table != "" {
		err = fmt.Errorf("%s: table: the file of one board has values, and no table", places["table"])
	}
	if err != nil {
		return nil, Row{}, err
	}
	p, err := NewPlan(file, c, places)
	if err != nil {
		return nil, Row{}, err
	}
	return p, p.table.rows[0], nil
}

// readFile reads a user's file with the limit of a table.
func readFile(name string) ([]byte, error) {
	data, err := localfile.Read(name, maxTableBytes)
	return data, localfile.ExplainUnreadable(name, err)
}

var fileName = plaintext.Regexp(`^[A-Za-z0-9._@+/-]+$`)

// checkChoices checks what is the same for all rows. It returns the wrong key too.
func (p *Plan) checkChoices() (key string, err error) {
	c := &p.config
	c.By = cmp.Or(c.By, "next")
	switch {
	case !slices.Contains([]string{"next", "serial", "port"}, c.By):
		return "by", fmt.Errorf("%s is none of next, serial, port", quote(c.By))
	case forms[c.Form].files == nil:
		return "form", fmt.Errorf("%s is none of %s", quote(c.Form), strings.Join(slices.Sorted(maps.Keys(forms)), ", "))
	case c.Table != "" && c.User.PasswordHash != "" && !strings.Contains(c.User.PasswordHash, "{{"):
		return "user.password_hash", errors.New("all boards would share it: take it from a column")
	}
	for name := range c.Files {
		if !fileName().MatchString(name) || !filepath.IsLocal(name) || filepath.Clean(name) != name {
			return "files", fmt.Errorf("%s is no path without the first /, of letters, digits and . _ @ + -", quote(name))
		}
	}
	if c.By != "next" {
		err = p.table.checkColumn(c.By)
	}
	return "by", err
}

// errorAt returns an error of a key, with the places of the row and the key.
func (p *Plan) errorAt(key string, row Row, err error) error {
	at := cmp.Or(p.places["identity."+key], p.places[key], p.file+":1")
	if row.Line > 0 {
		at = fmt.Sprintf("%s:%d: %s", p.table.file, row.Line, at)
	}
	return fmt.Errorf("%s: %s: %w", at, key, err)
}

type text struct {
	key   string
	value *string
}

// fill returns the config with the row's cells in place of the templates, checked, in one spelling.
func (p *Plan) fill(row Row) (Config, error) {
	c := p.config
	c.DNS, c.User.Keys, c.Files = slices.Clone(c.DNS), append([]string{}, c.User.Keys...), maps.Clone(c.Files)
	texts := []text{
		{"hostname", &c.Hostname},
		{"address", &c.Address},
		{"gateway", &c.Gateway},
		{"user.name", &c.User.Name},
		{"user.password_hash", &c.User.PasswordHash},
		{"wifi.ssid", &c.Wifi.SSID},
		{"wifi.password", &c.Wifi.Password},
		{"wifi.country", &c.Wifi.Country},
	}
	for i := range c.DNS {
		texts = append(texts, text{"dns", &c.DNS[i]})
	}
	for i := range c.User.Keys {
		texts = append(texts, text{"user.keys", &c.User.Keys[i]})
	}
	for name, content := range c.Files {
		filled, err := p.expand(content, row)
		if c.Files[name] = filled; err != nil {
			return c, p.errorAt("files."+name, row, err)
		}
	}
	for _, t := range texts {
		filled, err := p.expand(*t.value, row)
		if err == nil && t.key == "hostname" && *t.value != "" && filled == "" {
			err = errors.New("it is empty")
		}
		if *t.value = filled; err != nil {
			return c, p.errorAt(t.key, row, err)
		}
	}
	key, err := c.check()
	if err != nil {
		err = p.errorAt(key, row, err)
	}
	return c, err
}

// expand replaces each {{column}} of a text by the row's cell.
func (p *Plan) expand(text string, row Row) (string, error) {
	var b strings.Builder
	for {
		before, rest, found := strings.Cut(text, "{{")
		b.WriteString(before)
		if !found {
			return b.String(), nil
		}
		name, after, closed := strings.Cut(rest, "}}")
		if !closed {
			return "", errors.New("a {{ is not closed by }}")
		}
		at := slices.Index(p.table.columns, name)
		if at < 0 {
			return "", fmt.Errorf("the table has no column %s%s", quote(name), plaintext.DidYouMean(name, p.table.columns))
		}
		b.WriteString(row.cells[at])
		text = after
	}
}

const label = `[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?`

var (
	hostName  = plaintext.Regexp(`^(` + label + `(\.` + label + `)*)?$`)
	userName  = plaintext.Regexp(`^([a-z_][a-z0-9_-]{0,30})?$`)
	cryptHash = plaintext.Regexp(`^(\$[0-9a-z]{1,16}\$[./0-9A-Za-z$=,-]{8,400})?$`)
	oneLine   = plaintext.Regexp(`^[^\n\r\x00]*$`)
	network   = plaintext.Regexp(`^[^\x00-\x1f\x7f]{0,32}$`)
	wifiKey   = plaintext.Regexp(`^[ -~]{8,63}$`)
	country   = plaintext.Regexp(`^([A-Z]{2})?$`)
)

// check checks the filled texts, and drops keys' comments and empty items. It returns the wrong key
// too.
func (c *Config) check() (key string, err error) {
	u, hash, secret := &c.User, cryptHash, wifiKey
	isEmpty := func(text string) bool { return text == "" }
	c.DNS, u.Keys = slices.DeleteFunc(c.DNS, isEmpty), slices.DeleteFunc(u.Keys, isEmpty)
	if c.PlainPasswords {
		hash = oneLine
	}
	if c.Wifi.SSID == "" {
		secret = country // nothing
	}
	for _, rule := range []struct {
		key, text string
		pattern   func() *regexp.Regexp
		want      string
	}{
		{"hostname", c.Hostname, hostName, "a host name of RFC 1123 with at most 64 characters"},
		{"user.name", u.Name, userName, "the name of a user, of a-z, 0-9, _ and -"},
		{"user.password_hash", u.PasswordHash, hash, "a hash of crypt(5), or plain_passwords: true\nnext: openssl passwd -6  # make a hash"},
		{"wifi.ssid", c.Wifi.SSID, network, "at most 32 bytes of visible text"},
		{"wifi.password", c.Wifi.Password, secret, "8 to 63 characters of ASCII, and an ssid"},
		{"wifi.country", c.Wifi.Country, country, "a code such as DE"},
	} {
		if !rule.pattern().MatchString(rule.text) {
			return rule.key, errors.New("want " + rule.want)
		}
	}
	if len(c.Hostname) > 64 || len(c.Wifi.SSID) > 32 {
		return plaintext.Either(len(c.Hostname) > 64, "hostname", "wifi.ssid"), errors.New("it is too long")
	}
	if u.Name == "" && (u.PasswordHash != "" || len(u.Keys) > 0) {
		return "user.name", errors.New("it is empty, and the user has a password or keys")
	}
	for i, line := range u.Keys {
		public, _, _, rest, err := ssh.ParseAuthorizedKey([]byte(line))
		if err != nil || len(rest) > 0 {
			return "user.keys", errors.New("want public SSH keys, each a line such as ssh-ed25519 AAAA…\nnext: ls ~/.ssh")
		}
		u.Keys[i] = strings.TrimSpace(string(ssh.MarshalAuthorizedKey(public)))
	}
	return c.checkNetwork()
}

// checkNetwork checks the addresses. It returns the wrong key too.
func (c *Config) checkNetwork() (key string, err error) {
	prefix, err := netip.ParsePrefix(c.Address)
	if c.Address != "" && c.Address != "dhcp" && (err != nil || !prefix.Addr().IsGlobalUnicast()) {
		return "address", fmt.Errorf("%s is neither dhcp nor an address such as 192.0.2.7/24", quote(c.Address))
	}
	if c.Gateway != "" && (c.Address == "" || c.Address == "dhcp") {
		return "gateway", fmt.Errorf("it needs an address, which is %s here", quote(c.Address))
	}
	if gateway, err := netip.ParseAddr(c.Gateway); c.Gateway != "" && (err != nil || !prefix.Contains(gateway) || gateway == prefix.Addr()) {
		return "gateway", fmt.Errorf("%s is no other address in the network of address", quote(c.Gateway))
	}
	for _, server := range c.DNS {
		if addr, err := netip.ParseAddr(server); err != nil || addr.Zone() != "" {
			return "dns", fmt.Errorf("%s is no address", quote(server))
		}
	}
	return "", nil
}

package identity

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"slipway/flash/flashtest"
	"slipway/layers/yaml"
)

func TestParseTable(t *testing.T) {
	for _, test := range []struct{ name, text, key, wantErr string }{
		{"one row", "host\na\n", "", ""},
		{"byte order mark, CRLF, quotes", "\ufeffhost,note\r\na,\"x, y \"\"z\"\"\"\r\n", "host", ""},
		{"another key", "n,host\n1,a\n1,b\n", "host", ""},
		{"nothing", "", "", "t.csv:1: want a line"},
		{"no board", "host\n", "", "t.csv:1: want a line"},
		{"fields", "host,user\na,b\nc\n", "", "t.csv:3: wrong number of fields"},
		{"quotes", "host\n\"a\n", "", "t.csv:2: extraneous or missing"},
		{"a double key", "host,n\na,1\nb,2\na,3\n", "", `t.csv:4: host "a" is that of line 2 too`},
		{"an empty key", "n,host\n1,\n", "host", "t.csv:2: want at most 100000 rows, and 1 to 255 bytes in host"},
		{"a long key", "host\n" + strings.Repeat("k", 256) + "\n", "", "t.csv:2: want at most 100000 rows, and 1 to 255 bytes in host"},
		{"no such column", "host\na\n", "hots", `t.csv:1: no column is called "hots": did you mean host?`},
		{"a double column", "host,host\na,b\n", "", `t.csv:1: column 2, "host": want`},
		{"a wrong column", "host,Two words\na,b\n", "", `t.csv:1: column 2, "Two words": want`},
		{"columns", strings.Repeat("a,", 64) + "a\n", "", "t.csv:1: column 2"},
		{"a line break", "host,n\n\"a\",\"b\nc\"\n", "", "t.csv:2: n: want at most"},
		{"a control character", "host\na\x1b[2J\n", "", "t.csv:2: host: want at most"},
		{"not UTF-8", "host\n\xff\n", "", "t.csv:2: host: want at most"},
		{"a large cell", "host,n\na," + strings.Repeat("x", maxCellBytes+1) + "\n", "", "t.csv:2: n: want at most"},
		{"many rows", "host\n" + strings.Repeat("a\n", maxRows+1), "", "t.csv:100002: want at most 100000 rows"},
	} {
		table, err := parseTable("t.csv", []byte(test.text), test.key)
		checkError(t, test.name, err, test.wantErr)
		if err == nil && table.rows[0].Key != "a" && test.name != "another key" {
			t.Errorf("%s: rows = %+v", test.name, table.rows)
		}
	}
}

// checkError fails the test unless err has the text; "" wants no error.
func checkError(t *testing.T, name string, err error, want string) {
	t.Helper()
	if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
		t.Errorf("%s: %v; want %q", name, err, want)
	}
}

const placeYML = `identity:
  table: boards.csv
  form: slipway
  hostname: "{{host}}"
  address: "{{address}}"
  user: {name: worker, password_hash: "{{hash}}", keys: ["{{key}}"]}
  wifi: {ssid: lab, password: "{{wifi}}"}
`

func TestNewPlan(t *testing.T) {
	good := []string{"host,address,hash,key,wifi,serial", "a,192.0.2.7/24," + testHash + "," + testKey + ",planted wifi,1"}
	for _, test := range []struct {
		name     string
		from, to string // replaced in placeYML
		cells    string // of the second row
		wantErr  string
	}{
		{"good", "", "", "b,dhcp,,,planted wifi,2", ""},
		{"unknown column", "{{host}}", "{{hots}}", "", `boards.csv:2: place.yml:4:3: hostname: the table has no column "hots": did you mean host?`},
		{"one host name", "", "", "A,dhcp,,,planted wifi,2", "boards.csv:3: place.yml:4:3: hostname: a is that of line 2 too"},
		{"one address", "", "", "b,192.0.2.7/25,,,planted wifi,2", "boards.csv:3: place.yml:5:3: address: 192.0.2.7 is that of line 2 too"},
		{"no addresses", "", "", "b,,,,planted wifi,2\nc,,,,planted wifi,3\nd,dhcp,,,planted wifi,4\ne,dhcp,,,planted wifi,5", ""},
		{"unclosed", `"{{host}}"`, `"{{host}"`, "", "place.yml:4:3: hostname: a {{ is not closed by }}"},
		{"empty host name", `"{{host}}"`, `"{{serial}}"`, "b,,,,planted wifi,", "boards.csv:3: place.yml:4:3: hostname: it is empty"},
		{"wrong host name", "", "", "b_c,,,,planted wifi,2", "boards.csv:3: place.yml:4:3: hostname: want a host name"},
		{"long host name", `"{{host}}"`, `"` + strings.Repeat("a.", 40) + `b"`, "", "hostname: it is too long"},
		{"wrong address", "", "", "b,192.0.2.300/24,,,planted wifi,2", "boards.csv:3: place.yml:5:3: address: \"192.0.2.300/24\" is neither dhcp"},
		{"address without a size", "", "", "b,192.0.2.3,,,planted wifi,2", "address: "},
		{"wrong gateway", "  user:", "  gateway: 198.51.100.1\n  user:", "", "gateway: \"198.51.100.1\" is no other address in the network"},
		{"gateway without address", "  user:", "  gateway: 192.0.2.1\n  user:", "b,,,,planted wifi,2", "boards.csv:3: place.yml:6:3: gateway: it needs an address, which is \"\" here"},
		{"gateway with dhcp", "  user:", "  gateway: 192.0.2.1\n  user:", "b,dhcp," + testHash + "," + testKey + ",planted wifi,2", "boards.csv:3: place.yml:6:3: gateway: "},
		{"wrong dns", "  user:", "  dns: [one.example]\n  user:", "", "place.yml:6:3: dns: \"one.example\" is no address"},
		{"dns with a zone", "  user:", "  dns: [\"fe80::1%eth0\"]\n  user:", "", "dns: "},
		{"plain password", "", "", "b,,planted secret,,planted wifi,2", "user.password_hash: want a hash of crypt(5), or plain_passwords: true\nnext: openssl passwd -6"},
		{"shared password", `"{{hash}}"`, `"` + testHash + `"`, "", "user.password_hash: all boards would share it"},
		{"wrong user", "worker", "Worker", "", "user.name: want the name of a user"},
		{"no user", "worker", `""`, "", "user.name: it is empty"},
		{"wrong key", "", "", "b,,,planted key,planted wifi,2", "user.keys: want public SSH keys"},
		{"half a key", "", "", "b,," + testHash + "," + testKey[:40] + ",planted wifi,2", "user.keys: "},
		{"short Wi-Fi password", "", "", "b,,,,short,2", "wifi.password: want 8 to 63"},
		{"Wi-Fi without a name", "ssid: lab, ", "", "", "wifi.password: want 8 to 63"},
		{"long name of Wi-Fi", "ssid: lab", "ssid: " + strings.Repeat("é", 17), "", "wifi.ssid: it is too long"},
		{"country", "{ssid: lab", "{country: Germany, ssid: lab", "", "wifi.country: want a code"},
		{"form", "slipway", "slopway", "", `place.yml:3:3: form: "slopway" is none of nocloud, raspberrypi, slipway, systemd`},
		{"by", "  form:", "  by: name\n  form:", "", `by: "name" is none of next, serial, port`},
		{"by a missing column", "  form:", "  by: port\n  form:", "", "by: the table has no column port"},
		{"by a double serial", "  form:", "  by: serial\n  form:", "b,dhcp," + testHash + "," + testKey + ",planted wifi,1", `serial "1" is that of line 2 too`},
		{"a file above", "  wifi:", "  files: {../etc/x: y}\n  wifi:", "", `files: "../etc/x" is no path`},
		{"a file with a blank", "  wifi:", "  files: {etc/a b: y}\n  wifi:", "", `files: "etc/a b" is no path`},
		{"a file with a wrong column", "  wifi:", "  files: {etc/motd: \"{{x}}\"}\n  wifi:", "", `files.etc/motd: the table has no column`},
		{"a missing table", "boards.csv", "none.csv", "", "none.csv"},
		{"another key", "  form:", "  key: none\n  form:", "", "no column is called"},
	} {
		dir := t.TempDir()
		text := strings.Replace(placeYML, test.from, test.to, 1)
		flashtest.Put(t, filepath.Join(dir, "boards.csv"), strings.TrimSpace(strings.Join(append(good, test.cells), "\n"))+"\n")
		_, err := planFrom(filepath.Join(dir, "place.yml"), text)
		checkError(t, test.name, err, test.wantErr)
		if err != nil && (strings.Contains(err.Error(), "planted") || strings.Contains(err.Error(), testHash)) {
			t.Errorf("%s: the error has a secret: %v", test.name, err)
		}
	}
}

// planFrom decodes place.yml and makes its plan. Its errors name place.yml without the folder.
func planFrom(path, text string) (*Plan, error) {
	var place struct {
		Identity Config `yaml:"identity"`
	}
	places := map[string]string{}
	if err := yaml.Load("place.yml", []byte(text), &place, places); err != nil {
		return nil, err
	}
	return NewPlan(path, place.Identity, places)
}

func TestReadOne(t *testing.T) {
	path := filepath.Join(t.TempDir(), "row.yml")
	flashtest.Put(t, path, "form: slipway\nhostname: lab-7\nuser: {name: worker, password_hash: "+testHash+"}\n")
	p, row, err := ReadOne(path)
	if err != nil {
		t.Fatal(err)
	}
	f, err := p.Files(t.Context(), row, nil)
	if err != nil || string(f.Files["identity/credentials/passwd.hashed-password.worker"]) != testHash || row.Key != "row.yml" {
		t.Errorf("the files of row %q = %q, %v", row.Key, f.Files, err)
	}
	for text, want := range map[string]string{
		"form: slipway\ntable: x.csv\n":         "row.yml:2:1: table: the file of one board has values, and no table",
		"form: slipway\nhostname: \"{{host}}\"": "row.yml:2:1: hostname: the table has no column",
		"form: slipway\nhots: a\n":              "row.yml:2:1: unknown key",
		"hostname: a\n":                         "row.yml:1: form: ",
		"":                                      "row.yml: the file has no values",
	} {
		flashtest.Put(t, path, text)
		_, _, err := ReadOne(path)
		checkError(t, text, err, want)
	}
}

// Each row's own files are those of the row, in the forms' own partitions.
func TestRowsDiffer(t *testing.T) {
	p := planOf(t, "host\na\nb\n", Config{Hostname: "{{host}}", Partition: "own"})
	var all []Files
	for _, row := range p.table.rows {
		f, err := p.Files(t.Context(), row, nil)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, f)
	}
	if all[0].HostKey == all[1].HostKey || fmt.Sprint(all[0].Partitions) != "[own]" || !strings.Contains(string(all[1].Files["identity/tmpfiles.conf"]), "hostname - - - - b\n") {
		t.Errorf("two rows = %q", all)
	}
}

// No cell changes the structure of a file: it has the lines, keys and paths that any other cell
// gives.
func FuzzFill(f *testing.F) {
	f.Add("board-1", "lab", "a", "192.0.2.7/24", uint8(0))
	f.Add("a\nb: c", `x": {}}`, nasty, "192.0.2.7/24\nGateway=1.2.3.4", uint8(1))
	f.Add("{{host}}", "a\x7fb", "\u2028", "fe80::1%eth0/64", uint8(2))
	f.Fuzz(func(t *testing.T, host, ssid, text, address string, form uint8) {
		c := fullConfig([]string{"slipway", "nocloud", "raspberrypi", "systemd"}[form%4])
		c.Address, c.Gateway, c.User.PasswordHash, c.PlainPasswords = "{{address}}", "", "", false
		quoted := func(s string) string { return `"` + strings.ReplaceAll(s, `"`, `""`) + `"` }
		table := func(host, ssid, text, address string) []byte {
			return fmt.Appendf(nil, "host,user,ssid,wifi,dns,text,address\n%s,worker,%s,planted wifi,192.0.2.1,%s,%s\n", quoted(host), quoted(ssid), quoted(text), quoted(address))
		}
		read := func(data []byte) (map[string][]byte, error) {
			rows, err := parseTable("t.csv", data, "")
			if err != nil {
				return nil, err
			}
			p := &Plan{config: c, table: rows, file: "place.yml"}
			files, err := p.Files(t.Context(), rows.rows[0], nil)
			return files.Files, err
		}
		got, err := read(table(host, ssid, text, address))
		if err != nil {
			if strings.Contains(err.Error(), "planted") {
				t.Errorf("the error has a secret: %v", err)
			}
			return
		}
		plain, err := read(table("host", plainIf(ssid), "text", plainAddress(address)))
		if err != nil {
			t.Fatal(err)
		}
		for name := range plain {
			if a, b := strings.Count(string(got[name]), "\n"), strings.Count(string(plain[name]), "\n"); got[name] == nil || a != b {
				t.Errorf("%s has %d lines, and with other cells %d:\n%s", name, a, b, got[name])
			}
		}
		if len(got) != len(plain) {
			t.Errorf("%d files; want %d", len(got), len(plain))
		}
		checkParses(t, got)
	})
}

// plainIf returns a plain text, unless the text is empty.
func plainIf(text string) string {
	return text[:0] + map[bool]string{true: "", false: "lab"}[text == ""]
}

// plainAddress returns an address of the kind that the text is, as far as the number of lines goes.
func plainAddress(text string) string {
	if text == "" || text == "dhcp" {
		return text
	}
	return "192.0.2.7/24"
}

// checkParses fails the test if a line of tmpfiles or of a network's unit is none that forms have.
func checkParses(t *testing.T, files map[string][]byte) {
	t.Helper()
	for line := range strings.Lines(string(files["identity/tmpfiles.conf"])) {
		if fields := strings.Fields(line); len(fields) != 7 && len(fields) > 0 && fields[0] != "#" && !(len(fields) == 6 && fields[0] == "d") {
			t.Errorf("tmpfiles.conf: %q", line)
		}
	}
}

// A table is an error with a line, or rows with different names and as many cells as columns.
func FuzzParseTable(f *testing.F) {
	f.Add([]byte("\ufeffhost,note\r\na,\"x, y \"\"z\"\"\"\r\n\r\nb,\n"), "host")
	f.Add([]byte("host\n\"a\nb\"\n"), "")
	f.Add([]byte("a,b\n1\n"), "b")
	f.Fuzz(func(t *testing.T, data []byte, key string) {
		table, err := parseTable("t.csv", data, key)
		if err != nil {
			if !strings.HasPrefix(err.Error(), "t.csv:") {
				t.Errorf("parseTable = %v; want a place", err)
			}
			return
		}
		if head, keys, lines, err := Lines("t.csv", data); err == nil { // for a hub, and back
			again, keysAgain, _, err := Lines("t.csv", []byte(head+strings.Join(lines, "")))
			if err != nil || again != head || !slices.Equal(keys, keysAgain) {
				t.Errorf("%q %q: %v", head, lines, err)
			}
		}
		seen := map[string]bool{}
		for _, row := range table.rows {
			if seen[row.Key] || row.Key == "" || len(row.cells) != len(table.columns) || row.Line < 2 {
				t.Errorf("row %+v of %d columns", row, len(table.columns))
			}
			seen[row.Key] = true
		}
	})
}

// The examples of the page are taken as they stand, but for what they cut short.
func TestExamplesOfThePage(t *testing.T) {
	page, err := os.ReadFile("../identity.md")
	if err != nil {
		t.Fatal(err)
	}
	dir, forms := t.TempDir(), 0
	flashtest.Put(t, filepath.Join(dir, "boards.csv"), "host,address,hash,key,wifi\na,dhcp,"+testHash+","+testKey+",planted wifi\n")
	for _, block := range strings.Split(string(page), "```yaml\n")[1:] {
		text, _, _ := strings.Cut(block, "```")
		text = strings.NewReplacer("ssh-ed25519 AAAA…", testKey, "$6$…", testHash).Replace(text)
		path := filepath.Join(dir, "example.yml")
		flashtest.Put(t, path, text)
		if strings.HasPrefix(text, "identity:") {
			_, err = planFrom(path, text)
		} else {
			forms++
			_, _, err = ReadOne(path)
		}
		if err != nil {
			t.Errorf("%v\n%s", err, text)
		}
	}
	if forms != 4 {
		t.Errorf("%d examples of forms; want 4", forms)
	}
}

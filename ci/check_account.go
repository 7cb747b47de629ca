package ci

import (
	"context"
	"fmt"
	"strings"

	"slipway/layers/plaintext"
)

// account is a user or a group.
type account struct {
	database string // passwd or group
	name     string
	exists   bool
	fields   []accountField
	groups   matcher // of a user
}

// accountField is one of a line of the database.
type accountField struct {
	name   string
	at     int
	number bool
	want   matcher
}

func readUser(e *entry) probe {
	return readAccount(e, account{database: "passwd", name: e.Text("username", e.Name), groups: e.matcher("groups", listValue), fields: []accountField{
		{"uid", 2, true, e.matcher("uid", numberValue)},
		{"gid", 3, true, e.matcher("gid", numberValue)},
		{"home", 5, false, e.matcher("home", stringValue)},
		{"shell", 6, false, e.matcher("shell", stringValue)},
	}})
}

func readGroup(e *entry) probe {
	return readAccount(e, account{database: "group", name: e.Text("groupname", e.Name), fields: []accountField{
		{"gid", 2, true, e.matcher("gid", numberValue)},
	}})
}

func readAccount(e *entry, a account) probe {
	a.exists = true
	if exists := e.Flag("exists"); exists != nil {
		a.exists = *exists
	}
	if a.name == "" || strings.HasPrefix(a.name, "-") || strings.ContainsAny(a.name, ":\n\x00/") {
		e.Fail(e.Key, "%q is not a name of a user or group", a.name)
	}
	return a
}

// askAccount takes what the board's C library knows; small boards have the file
// alone. getent ends with 2 where there is no such name.
const askAccount = `if command -v getent >/dev/null; then getent "$1" "$2" || test $? = 2; else cat "/etc/$1"; fi`

func (a account) Inspect(ctx context.Context, s *session) (finding, error) {
	var f finding
	out, err := s.output(ctx, "sh", "-c", askAccount, "sh", a.database, a.name)
	if err != nil {
		return f, err
	}
	found := a.line(out)
	f.expect(a.exists == (found != nil), existence(a.name, a.exists), existence(a.name, found != nil))
	if found == nil || !a.exists {
		return f, nil
	}
	for _, field := range a.fields {
		value := any(found[field.at])
		if field.number {
			value = answeredNumber(found[field.at])
		}
		f.match(field.name, field.want, value, field.name+" "+found[field.at])
	}
	if a.groups.empty() {
		return f, nil
	}
	groups, err := s.output(ctx, "id", "-Gn", a.name)
	if err != nil {
		return f, err
	}
	f.match("groups", a.groups, strings.Fields(groups), "groups "+strings.TrimSpace(groups))
	return f, nil
}

// line is the account's line of the database, in its fields, or nil.
func (a account) line(text string) []string {
	least := map[string]int{"passwd": 7, "group": 4}[a.database]
	for _, line := range plaintext.Lines(text) {
		if fields := strings.Split(line, ":"); fields[0] == a.name && len(fields) >= least {
			return fields
		}
	}
	return nil
}

func (a account) Next() string {
	return fmt.Sprintf("on the board: grep %s: /etc/%s; accounts are made when the image is built, by useradd or sysusers.d", a.name, a.database)
}

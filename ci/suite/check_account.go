package suite

import (
	"context"
	"fmt"
	"strings"

	"slipway/ci/suite/match"
	"slipway/layers/plaintext"
)

// account is a user or a group.
type account struct {
	database string // passwd or group
	name     string
	exists   bool
	fields   []accountField
	groups   match.Matcher // of a user
}

// accountField is a field of a line of the database.
type accountField struct {
	name   string
	at     int
	number bool
	want   match.Matcher
}

func readUser(e *Entry) Probe {
	return readAccount(e, account{database: "passwd", name: e.Text("username", e.Name), groups: e.Matcher("groups", match.List), fields: []accountField{
		{"uid", 2, true, e.Matcher("uid", match.Number)},
		{"gid", 3, true, e.Matcher("gid", match.Number)},
		{"home", 5, false, e.Matcher("home", match.String)},
		{"shell", 6, false, e.Matcher("shell", match.String)},
	}})
}

func readGroup(e *Entry) Probe {
	return readAccount(e, account{database: "group", name: e.Text("groupname", e.Name), fields: []accountField{
		{"gid", 2, true, e.Matcher("gid", match.Number)},
	}})
}

func readAccount(e *Entry, a account) Probe {
	a.exists = true
	if exists := e.Flag("exists"); exists != nil {
		a.exists = *exists
	}
	if a.name == "" || strings.HasPrefix(a.name, "-") || strings.ContainsAny(a.name, ":\n\x00/") {
		e.Fail(e.Key, "%q is not a name of a user or group", a.name)
	}
	return a
}

// accountScript prints a line of the database, by getent if the board has it and from the
// file otherwise. getent exits with 2 for an unknown name, which the script prints as "-".
const accountScript = `if command -v getent >/dev/null; then getent "$1" "$2" || { test $? = 2 && echo -; }; else cat "/etc/$1"; fi`

func (a account) Inspect(ctx context.Context, s *Session) (Finding, error) {
	var f Finding
	out, err := s.Output(ctx, "sh", "-c", accountScript, "sh", a.database, a.name)
	if err != nil {
		return f, err
	}
	if strings.TrimSpace(out) == "" {
		return f, fmt.Errorf("read the board's %s: there is no answer", a.database)
	}
	found := a.findLine(out)
	f.Expect(a.exists == (found != nil), describeExistence(a.name, a.exists), describeExistence(a.name, found != nil))
	if found == nil || !a.exists {
		return f, nil
	}
	for _, field := range a.fields {
		value := any(found[field.at])
		if field.number {
			value = match.AnsweredNumber(found[field.at])
		}
		f.ExpectMatch(field.name, field.want, value, field.name+" "+found[field.at])
	}
	if a.groups.Empty() {
		return f, nil
	}
	groups, err := s.Output(ctx, "id", "-Gn", a.name)
	if err != nil {
		return f, err
	}
	f.ExpectMatch("groups", a.groups, strings.Fields(groups), "groups "+strings.TrimSpace(groups))
	return f, nil
}

// findLine returns the fields of the account's line in the database, or nil.
func (a account) findLine(text string) []string {
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

package report

import (
	"slices"
	"testing"
)

// One cause has one group: numbers, addresses and the names of boards differ from board
// to board, the statuses of programs from cause to cause.
func TestGroupCauses(t *testing.T) {
	saw := func(board, text string) BoardFailure {
		return BoardFailure{board, "", Failure{Name: "check", Saw: text}}
	}
	for _, tt := range []struct {
		name string
		all  []BoardFailure
		want []int // boards of each group
	}{
		{"addresses", []BoardFailure{saw("a", "dial 192.0.2.1:22: refused"), saw("b", "dial [2001:db8::1]:2222: refused")}, []int{2}},
		{"own names", []BoardFailure{saw("lab-a", "reach root@lab-a: refused"), saw("lab-b", "reach root@lab-b: refused")}, []int{2}},
		{"names inside words", []BoardFailure{saw("c", "1 of 2 canaries failed"), saw("a", "1 of 2 canaries failed")}, []int{2}},
		{"values", []BoardFailure{saw("a", "hottest: 98.5 °C (cpu)"), saw("b", "hottest: 101 °C (cpu)")}, []int{2}},
		{"fingerprints", []BoardFailure{saw("a", "shows SHA256:3a/Bc+d"), saw("b", "shows SHA256:Zz+y/9")}, []int{2}},
		{"statuses", []BoardFailure{saw("a", "exit status 1"), saw("b", "exit status 127"), saw("c", "exit status 127")}, []int{2, 1}},
		{"words", []BoardFailure{saw("a", "inactive"), saw("b", "failed")}, []int{1, 1}},
		{"checks", []BoardFailure{saw("a", "x"), {"a", "", Failure{Name: "other", Saw: "x"}}}, []int{1, 1}},
		{"none", nil, nil},
	} {
		var got []int
		for _, c := range GroupCauses(tt.all) {
			got = append(got, len(c.Boards))
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: GroupCauses has groups of %v boards; want %v", tt.name, got, tt.want)
		}
	}
}

// A link never leads out of the page's folder or to another scheme.
func TestRelativeLink(t *testing.T) {
	for file, want := range map[string]string{
		"a/report.html": "a/report.html", "a b#c?.html": "a%20b%23c%3F.html", "javascript:x": "./javascript:x", "../x": "", "/etc/passwd": "", "": "",
	} {
		if got := RelativeLink(file); got != want {
			t.Errorf("RelativeLink(%q) = %q; want %q", file, got, want)
		}
	}
}

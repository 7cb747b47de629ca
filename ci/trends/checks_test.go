package trends

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// checkRuns are runs of one check: P passed, F failed, blank for a run without it. Each image
// has per runs.
func checkRuns(ends string, per int) (all []Run) {
	for i, end := range ends {
		r := Run{Board: "b", Name: fmt.Sprint(i), Time: time.Unix(int64(i), 0), Key: fmt.Sprint(i / per)}
		if end != ' ' {
			r.checks = []outcome{{"c", "s", end == 'F'}}
		}
		all = append(all, r)
	}
	return all
}

func TestChecks(t *testing.T) {
	for _, tt := range []struct {
		name, ends string
		per        int
		want       string
	}{
		{"always passed", "PPPPPPPPPP", 1, ""},
		{"always failed", "FFFFFFFFFF", 1, ""},
		{"broke", "PPPPPFFF", 1, "regression at 5: always passed, failed in the last 3 runs"},
		{"broke, with gaps", "PPP PP F FF", 1, "regression at 7: always passed, failed in the last 3 runs"},
		{"failed twice only", "PPPPPPPFF", 1, ""},
		{"too few before", "PPPPFFFF", 1, ""},
		{"passed again", "PPPPPFFFFP", 1, ""},
		{"flips", "PPPFPPPPFPP", 1, "failed 2 of 11 runs, 4 flips"},
		{"one failure", "PPPFPPPP", 1, ""},
		{"failed before, and now", "PPPFPPPPFFFF", 1, "failed 5 of 12 runs, 3 flips, failed in the last 4"},
		{"on the same image", "PPPPPFP", 2, "failed 1 of 7 runs, 2 flips, passed and failed on the same image"},
		{"on two images", "PFPFPP", 2, "failed 2 of 6 runs, 4 flips, passed and failed on 2 images"},
		{"broke in the middle of an image", "PPPPPPPFFF", 2, "regression at 7: always passed, failed in the last 3 runs"},
	} {
		found, err := Of(Runs{All: checkRuns(tt.ends, tt.per)}, Options{Last: 100})
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, c := range found.Changes {
			got += fmt.Sprintf("%s at %s: %s", c.Kind, c.Began, c.Words())
		}
		for _, c := range found.Checks {
			got += c.Words()
		}
		if got != tt.want {
			t.Errorf("%s: %q; want %q", tt.name, got, tt.want)
		}
	}
}

// Two checks of one name in a run are one that fails if any does.
func TestCheckTwice(t *testing.T) {
	runs := checkRuns("PPPPPPPP", 1)
	for i := range runs {
		runs[i].checks = append([]outcome{{"c", "s", i >= 5}}, runs[i].checks...)
	}
	found, err := Of(Runs{All: runs}, Options{Last: 100})
	if err != nil || len(found.Changes) != 1 || found.Changes[0].Began != "5" {
		t.Errorf("%+v, %v; want a regression at 5", found.Changes, err)
	}
}

func TestChoose(t *testing.T) {
	run := func(board, device, branch string, second int64) Run {
		r := Run{Board: board, Device: device, Name: fmt.Sprint(second), Time: time.Unix(second, 0)}
		r.Source.Branch = branch
		return r
	}
	mixed := []Run{run("a", "", "main", 1), run("a", "", "next", 2), run("b", "", "main", 3), run("a", "x", "main", 4), run("a", "x", "main", 5), run("a", "", "", 6)}
	for _, tt := range []struct {
		name    string
		runs    []Run
		opt     Options
		want    string // names of runs
		wantErr string
	}{
		{"the branch of most", mixed, Options{Last: 9}, "1 3 4 5", ""},
		{"fewer than those of no known branch", []Run{run("a", "", "", 1), run("a", "", "", 2), run("a", "", "main", 3)}, Options{Last: 9}, "3", ""},
		{"a branch", mixed, Options{Last: 9, Branch: "next"}, "2", ""},
		{"a board", mixed, Options{Last: 9, Board: "b"}, "3", ""},
		{"the last of each device", mixed, Options{Last: 1}, "1 3 5", ""},
		{"no branch is known", []Run{run("a", "", "", 1), run("a", "", "", 2)}, Options{Last: 9}, "1 2", ""},
		{"none", nil, Options{Last: 9}, "", "no run was found"},
		{"another board", mixed, Options{Last: 9, Board: "c"}, "", `no run of board "c"; there are runs of a, b` + "\nnext: repeat the line with --board=a"},
		{"another branch", mixed, Options{Last: 9, Branch: "x"}, "", `no run of branch "x"; there are runs of main, next` + "\nnext: repeat the line without --branch"},
	} {
		found := Trends{Branch: tt.opt.Branch}
		chosen, err := found.choose(tt.runs, tt.opt)
		var got []string
		for _, r := range chosen {
			got = append(got, r.Name)
		}
		if strings.Join(got, " ") != tt.want || (err == nil) != (tt.wantErr == "") || err != nil && !strings.Contains(err.Error(), tt.wantErr) {
			t.Errorf("%s: choose = %q, %v; want %q, %q", tt.name, got, err, tt.want, tt.wantErr)
		}
	}
}

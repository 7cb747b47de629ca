package trends

import (
	"cmp"
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
)

// planted returns the trends of the pipelines.
func planted(t *testing.T, opt Options) Trends {
	t.Helper()
	dir := t.TempDir()
	t.Chdir(dir)
	if err := writePipelines("runs"); err != nil {
		t.Fatal(err)
	}
	runs, err := Read(t.Context(), []string{"runs"})
	if err != nil {
		t.Fatal(err)
	}
	found, err := Of(runs, opt)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// An artifact counts once, in its first run. The boards of one kind have series of their own.
func TestCollect(t *testing.T) {
	built := value{metric{"build time", "", "s"}, 1, 1}
	run := func(second int64, device string, made int64) *Run {
		return &Run{Board: "b", Device: device, Time: time.Unix(second, 0), built: time.Unix(made, 0), build: []value{built}, device: []value{{metric{"m", "", ""}, 2, 0}}}
	}
	var found Trends
	got := map[string]int{}
	for _, s := range found.collect([]*Run{run(10, "x", 1), run(11, "x", 1), run(12, "y", 1), run(13, "x", 2)}) {
		got[s.Device+" "+s.Name] = len(s.Points)
	}
	if diff := gocmp.Diff(map[string]int{" build time": 2, "x m": 3, "y m": 1}, got); diff != "" {
		t.Errorf("points: (-want +got)\n%s", diff)
	}
}

// The next step of an error names commits, and no other text of a report.
func TestErr(t *testing.T) {
	regressed := func(before, after string) Trends {
		return Trends{Changes: []Change{{Kind: Regression, Range: Range{Before: before, After: after}}, {Kind: Improvement}}}
	}
	for _, tt := range []struct {
		name  string
		found Trends
		want  string
	}{
		{"commits", regressed(commitA, commitB), "1 regression: the runs became worse\nnext: git log " + commitA + ".." + commitB},
		{"no commits", regressed("", ""), "1 regression: the runs became worse\nnext: repeat the line with --html=trends.html  # draws each run; their reports name no commit"},
		{"an option", regressed("--output=x", commitB), "1 regression: the runs became worse\nnext: git log  # for the commits that the lines above name"},
		{"an option after", regressed(commitA, "x;y"), "1 regression: the runs became worse\nnext: git log  # for the commits that the lines above name"},
		{"the same commit", regressed(commitA, commitA), "1 regression: the runs became worse\nnext: git log  # for the commits that the lines above name"},
	} {
		if err := tt.found.Err(); err == nil || err.Error() != tt.want {
			t.Errorf("%s: Err = %v; want %s", tt.name, err, tt.want)
		}
	}
	if err := (Trends{Changes: []Change{{Kind: Improvement}}}).Err(); err != nil {
		t.Errorf("Err of an improvement = %v; want nil", err)
	}
}

// The planted changes are found where they are, and no others.
func TestPlantedChanges(t *testing.T) {
	found := planted(t, Options{Last: 120})
	at := map[string]int{}
	for i := range pipelines {
		at[commitOf(i)] = i
	}
	var got []plantedChange
	for _, c := range found.Changes {
		got = append(got, plantedChange{Kind: c.Kind, Board: c.Board, Name: c.Name, At: at[c.Range.After]})
		if at[c.Range.After] != at[c.Range.Before]+1 {
			t.Errorf("%s: commits %d to %d; want neighbours", c.Title(), at[c.Range.Before], at[c.Range.After])
		}
	}
	want := slices.Clone(allPlanted)
	for _, all := range [][]plantedChange{got, want} {
		slices.SortFunc(all, func(a, b plantedChange) int {
			return cmp.Or(cmp.Compare(b.Kind, a.Kind), cmp.Compare(a.Board, b.Board), cmp.Compare(a.Name, b.Name))
		})
	}
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("-planted +found:\n%s", diff)
	}
	if len(found.Checks) != 1 || found.Checks[0].Name != "link is up" {
		t.Errorf("unsteady checks: %+v; want link is up", found.Checks)
	}
	if found.Branch != "main" || found.Runs != 3*pipelines {
		t.Errorf("%d runs of %q; want all of main", found.Runs, found.Branch)
	}
}

package trends

import (
	"cmp"
	"slices"
	"testing"

	"slipway/ci/trends/trendstest"

	gocmp "github.com/google/go-cmp/cmp"
)

// planted returns the trends of trendstest's runs.
func planted(t *testing.T, opt Options) Trends {
	t.Helper()
	dir := t.TempDir()
	t.Chdir(dir)
	if err := trendstest.Write("runs"); err != nil {
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

// The planted changes are found where they are, and no others.
func TestPlantedChanges(t *testing.T) {
	found := planted(t, Options{Last: 120})
	at := map[string]int{}
	for i := range trendstest.Pipelines {
		at[trendstest.Commit(i)] = i
	}
	var got []trendstest.Planted
	for _, c := range found.Changes {
		got = append(got, trendstest.Planted{Kind: c.Kind, Board: c.Board, Name: c.Name, At: at[c.Range.After]})
		if at[c.Range.After] != at[c.Range.Before]+1 {
			t.Errorf("%s: commits %d to %d; want neighbours", c.Title(), at[c.Range.Before], at[c.Range.After])
		}
	}
	want := slices.Clone(trendstest.All)
	for _, all := range [][]trendstest.Planted{got, want} {
		slices.SortFunc(all, func(a, b trendstest.Planted) int {
			return cmp.Or(cmp.Compare(b.Kind, a.Kind), cmp.Compare(a.Board, b.Board), cmp.Compare(a.Name, b.Name))
		})
	}
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("-planted +found:\n%s", diff)
	}
	if len(found.Checks) != 1 || found.Checks[0].Name != "link is up" {
		t.Errorf("unsteady checks: %+v; want link is up", found.Checks)
	}
	if found.Branch != "main" || found.Runs != 3*trendstest.Pipelines {
		t.Errorf("%d runs of %q; want all of main", found.Runs, found.Branch)
	}
}

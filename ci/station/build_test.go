package station

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"slipway/ci/fleet"
	"slipway/ci/hub/access"
	"slipway/ci/job"
)

// newBuilder is a bench that takes builds, and has no boards.
func (w *world) newBuilder(name string) *bench {
	w.t.Helper()
	b := w.newBench(name, 0, 4)
	b.boards, b.names = filepath.Join(b.state, "boards"), []string{job.Builder}
	err := os.MkdirAll(filepath.Join(b.boards, job.Builder), 0o755)
	if err == nil {
		err = os.WriteFile(b.config, []byte("does: [build]\n"), 0o600)
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return b
}

func newBuild() job.Job {
	return job.Job{V: job.Version, Name: job.Builder, Arch: runtime.GOARCH, Board: "virt", Steps: []job.Step{{Do: job.Build, Targets: "bundle"}}, LimitMS: 60_000, StartWithinMS: 60_000}
}

// addBuild adds a build, once the hub knows a builder.
func (w *world) addBuild() job.Job {
	w.t.Helper()
	var c job.Change
	w.until("the build is added", func() bool {
		var err error
		c, err = access.Ask[job.Change](w.t.Context(), w.admin, job.VerbJobAdd, newBuild())
		return err == nil
	})
	return c.Job
}

// A build is done once, by any builder, and each builder has one at a time. If it is killed, the build
// begins again there.
func TestBuild(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 10*longLease)
	if _, err := access.Ask[job.Change](t.Context(), w.admin, job.VerbJobAdd, newBuild()); err == nil || !strings.Contains(err.Error(), "no station of "+runtime.GOARCH+" takes builds") {
		t.Errorf("a build without a builder: %v", err)
	}
	benches := map[string]*bench{"big-1": w.newBuilder("big-1"), "big-2": w.newBuilder("big-2"), "bench-1": w.newBench("bench-1", 1, 4)}
	for _, name := range []string{"big-1", "big-2"} {
		benches[name].wish(job.Builder, "hold", true)
	}
	for _, b := range benches {
		b.start()
	}
	w.until("both builders are known", func() bool {
		list, n := w.stations(), 0
		for _, s := range list {
			if s.Builds {
				n++
			}
		}
		return n == 2 && len(list) == 3
	})
	jobs := []job.Job{w.addBuild(), w.addBuild(), w.addBuild()}
	one, two := w.running(jobs[0].ID), w.running(jobs[1].ID)
	if one.Station == two.Station || w.get(jobs[2].ID).State != job.Queued {
		t.Errorf("two builds run on %s and %s, and the third is %s; want one on each, and one that waits", one.Station, two.Station, w.get(jobs[2].ID).State)
	}
	killed := benches[one.Station]
	killed.begun(job.Builder, one.ID, 1)
	killed.killChild(one.ID)
	killed.begun(job.Builder, one.ID, 2)
	for _, name := range []string{"big-1", "big-2"} {
		benches[name].wish(job.Builder, "hold", false)
	}
	begins := map[string]int{}
	for _, j := range jobs {
		j = w.ended(j.ID)
		if r := j.Result; r.Kind != fleet.Passed || r.Artifact != simulatedDigest || len(r.Steps) != 1 || r.Steps[0].Do != job.Build || !strings.Contains(r.Line, "push virt hub:builds") {
			t.Errorf("result = %+v; want a build with the digest that the push printed", r)
		}
		for _, b := range benches {
			begins[j.ID] += count(b.events(job.Builder), j.ID, "begin")
		}
		benches[j.Station].checkLog(j.ID)
	}
	if got := []int{begins[jobs[0].ID], begins[jobs[1].ID], begins[jobs[2].ID]}; !slices.Equal(got, []int{2, 1, 1}) {
		t.Errorf("the builds began %v times; want 2, 1, 1", got)
	}
}

// running waits until a job runs.
func (w *world) running(id string) (j job.Job) {
	w.t.Helper()
	w.until("job "+id+" runs", func() bool { j = w.get(id); return j.State == job.Running })
	return j
}

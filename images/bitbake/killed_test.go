package bitbake

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"slipway/images/bitbake/bitbaketest"
)

// asBuild makes this test binary a program that builds in the tree that it names.
const asBuild = "SLIPWAY_BUILD_TREE"

func TestMain(m *testing.M) {
	named := os.Getenv(asBuild)
	if named == "" {
		os.Exit(m.Run())
	}
	var tree Tree
	err := json.Unmarshal([]byte(named), &tree)
	if err == nil {
		_, err = tree.Run(context.Background(), job("tiny-image"))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// A build that is killed, its own process alone, is finished by the next one:
// servers, locks, half event logs and half records are dealt with.
func TestRealBitbakeKilled(t *testing.T) {
	checkouts := bitbaketest.ForUser(t, "../testdata")
	if len(checkouts) == 0 {
		return
	}
	checkout := checkouts[len(checkouts)-1]
	kills := 3
	if testing.Short() {
		kills = 1
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	tree := realTree(t, checkout, t.TempDir())
	began := time.Now()
	must(t, build(t, tree, 0))
	took := time.Since(began)
	want := leftBy(t, tree)
	for range kills {
		must(t, os.RemoveAll(filepath.Join(tree.Build, "tmp")))
		after := time.Duration(random.Int64N(int64(took))) + 1
		_ = build(t, tree, after)
		t.Logf("killed after %v", after)
		if err := build(t, tree, 0); err != nil {
			t.Fatalf("the build after one that was killed after %v: %v", after, err)
		}
		if got := leftBy(t, tree); got != want {
			t.Errorf("after a kill at %v there is\n%s\nwant\n%s", after, got, want)
		}
	}
}

// build runs the tree's build as a process of its own, and kills it after a while, or not for 0.
func build(t *testing.T, tree Tree, after time.Duration) error {
	t.Helper()
	named, err := json.Marshal(tree)
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), asBuild+"="+string(named))
	var said strings.Builder
	cmd.Stderr = &said
	cmd.WaitDelay = 10 * time.Second
	must(t, cmd.Start())
	if after > 0 {
		time.AfterFunc(after, func() { _ = cmd.Process.Kill() })
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("%w: %s", err, said.String())
	}
	return nil
}

// leftBy is what a build left: its image, how its record says that it ended, and no process.
func leftBy(t *testing.T, tree Tree) string {
	t.Helper()
	var b strings.Builder
	images, err := filepath.Glob(filepath.Join(tree.Build, "tmp/deploy/images/*/*"))
	must(t, err)
	for _, image := range images {
		info, err := os.Stat(image)
		must(t, err)
		fmt.Fprintln(&b, filepath.Base(image), info.Size())
	}
	rec, err := Open(tree.Dir)
	must(t, err)
	_, page := os.Stat(filepath.Join(tree.Dir, PageName))
	fmt.Fprintln(&b, rec.State, rec.Exit, rec.Counts.Total, page)
	for until := time.Now().Add(termTimeout); len(processesIn(tree.Dir)) > 0; time.Sleep(exitPoll) {
		if time.Now().After(until) {
			fmt.Fprintln(&b, processesIn(tree.Dir))
			break
		}
	}
	return b.String()
}

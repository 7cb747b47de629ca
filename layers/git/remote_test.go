package git

import (
	"errors"
	"strings"
	"testing"

	"slipway/layers/run"
)

// A person pastes the next line: its URL is quoted once.
func TestNextOfFailedFetch(t *testing.T) {
	r := Remote{ID: "r", URL: "https://example.com/~user/layer?x"}
	err := r.explainFetchError(&run.Failure{})
	if want := "\nnext: git ls-remote 'https://example.com/~user/layer?x'"; err == nil || !strings.HasSuffix(err.Error(), want) {
		t.Errorf("explainFetchError = %v; want it to end with %q", err, want)
	}
}

// The step keeps the folders that the user named.
func TestLocalStep(t *testing.T) {
	for now, want := range map[string]string{"": "r=/d ", "off": "r=/d ", "a=/x": "a=/x,r=/d "} {
		t.Setenv("SLIPWAY_LOCAL", now)
		if got := TreeIn("/d", nil).localStep(Remote{ID: "r"}); !strings.HasPrefix(got, "next: SLIPWAY_LOCAL="+want) {
			t.Errorf("with SLIPWAY_LOCAL=%s: %q; want %q in it", now, got, want)
		}
	}
}

func TestNoErrorSaysNothing(t *testing.T) {
	if DiskFull(nil) || serverRefused(nil) {
		t.Error("DiskFull or serverRefused of no error = true; want false")
	}
}

func TestGitSaid(t *testing.T) {
	for tail, want := range map[string]string{
		"": "git: exit status 128",
		"fatal: Could not read from remote repository.\n\nPlease make sure you have the correct access rights\nand the repository exists.":        "git: exit status 128",
		"ssh: connect to host h port 22: Connection refused\nfatal: Could not read from remote repository.":                                       "ssh: connect to host h port 22: Connection refused",
		"fatal: unable to access 'http://h/x.git/': Failed to connect to h":                                                                       "Failed to connect to h",
		"remote: ====\nremote: \nremote: ERROR: no such project\nremote: ====\nfatal: repository 'h' not found":                                   "remote: ERROR: no such project; repository 'h' not found",
		"remote: Enumerating objects: 5, done.\nremote: Counting objects: 100% (5/5), done.\nfetch-pack: unexpected disconnect\nfatal: early EOF": "fetch-pack: unexpected disconnect; early EOF",
		"a\nb\nc\nd":                  "b; c; d",
		"fatal: unable to access 'h'": "unable to access 'h'",
	} {
		failure := &run.Failure{Argv: []string{"git", "fetch"}, Status: "exit status 128", Tail: tail}
		err := error(&commandError{failure})
		if found := (*run.Failure)(nil); err.Error() != want || !errors.As(err, &found) {
			t.Errorf("commandError(%q) = %v; want %s", tail, err, want)
		}
	}
}

func TestDubiousOwnership(t *testing.T) {
	failure := &run.Failure{Status: "exit status 128", Tail: "fatal: detected dubious ownership in repository at '/r'\nTo add an exception for this directory, call:\n\n\tgit config --global --add safe.directory /r/.git\n"}
	if err := (Remote{ID: "r", URL: "/r"}).explainFetchError(failure); !strings.HasSuffix(err.Error(), "\nnext: git config --global --add safe.directory /r/.git") {
		t.Errorf("explainFetchError = %v; want git's own line", err)
	}
}

package layers

import (
	"strings"
	"testing"

	"slipway/layers/run"
)

// A person pastes the next line: its URL is quoted once.
func TestNextOfFailedFetch(t *testing.T) {
	r := Repo{ID: "r", URL: "https://example.com/~user/layer?x"}
	err := r.explainFetchError(&run.Failure{})
	if want := "\nnext: git ls-remote 'https://example.com/~user/layer?x'"; err == nil || !strings.HasSuffix(err.Error(), want) {
		t.Errorf("explainFetchError = %v; want it to end with %q", err, want)
	}
}

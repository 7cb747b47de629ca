package hub

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"slipway/ci/job"
)

// What another hub answers makes a state folder that a hub can open, or none.
func FuzzKeepShare(f *testing.F) {
	authority, err := newAuthority()
	if err != nil {
		f.Fatal(err)
	}
	good := job.Joined{Name: "h2", Role: job.AHub, Hub: &job.HubShare{Hubs: []string{"h1:6222", "h2:6222", "h3:6222"}, Secret: make([]byte, 32), Authority: string(authority)}}
	data, err := json.Marshal(good)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add([]byte(`{"name": "h2", "hub": {"hubs": ["h2"], "secret": "AAAA", "authority": "x"}}`))
	f.Add([]byte(strings.Replace(string(data), "h2:6222", "../h2:6222", 1)))
	f.Fuzz(func(t *testing.T, data []byte) {
		var j job.Joined
		if json.Unmarshal(data, &j) != nil || j.Hub == nil {
			return
		}
		dir := filepath.Join(t.TempDir(), "hub")
		if err := KeepShare(dir, j); err != nil {
			if left, _ := os.ReadDir(filepath.Dir(dir)); len(left) > 0 {
				t.Errorf("after %v, %v is left", err, left)
			}
			return
		}
		_, err := openFolder(Options{Dir: dir, Names: []string{j.Name}, Cluster: j.Hub.Hubs})
		_, noAuthority := OpenAuthority(dir, []string{j.Name})
		if err != nil || noAuthority != nil {
			t.Errorf("the new folder is refused: %v, %v", err, noAuthority)
		}
	})
}

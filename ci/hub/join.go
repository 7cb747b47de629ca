package hub

import (
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"slipway/ci/hub/access"
	"slipway/ci/job"
	"slipway/layers/bus"
	"slipway/layers/localfile"
	"slipway/layers/plaintext"
)

// maxJoinBytes limits the request of somebody who is not known yet.
const maxJoinBytes = 1 << 10

// serveJoin answers a person, station or hub that has an invitation.
func (r *running) serveJoin(w http.ResponseWriter, q *http.Request) {
	data, err := localfile.ReadAll(q.Body, "the request", maxJoinBytes)
	var in job.Join
	if err == nil {
		err = json.Unmarshal(data, &in)
	}
	var joined job.Joined
	switch h := r.hub.Load(); {
	case err != nil:
	case strings.HasPrefix(in.Secret, access.HubToken):
		joined, err = r.share(in.Secret)
	case h == nil:
		err = r.folder.away()
	default:
		joined, err = h.Join(q.Context(), in)
	}
	if err != nil {
		code := http.StatusForbidden
		if errors.Is(err, bus.ErrAway) {
			code = http.StatusServiceUnavailable
		}
		http.Error(w, plaintext.Printable(strings.TrimSpace(err.Error())), code)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(joined) // or the caller is gone, and is invited again
}

// An invitation of a hub is a file in the state folder of another one, because the first two hubs have
// no engine before the second has joined. So only who may read the folder, and with it the secret of
// all keys, can give that secret away. An admin cannot.

// invitation is such a file. Its name is a hash of the token's secret.
type invitation struct {
	Name  string    `json:"name"`
	Until time.Time `json:"until"`
}

func invitationName(dir, secret string) string {
	return filepath.Join(dir, "invited", hashOf(secret)+".json")
}

// InviteHub makes an invitation for another hub of the cluster, whose state folder this is. It returns
// where the other one is to join, and its token. The hub of the folder may run.
func InviteHub(dir, name string, valid time.Duration) (address, token string, err error) {
	f, _, err := readFolder(dir)
	if err == nil && len(f.Hubs) == 0 {
		err = fmt.Errorf("%s is no state folder of a cluster's hub\nnext: slipway hub --name=h1 --cluster=h1,h2,h3", dir)
	}
	if err == nil && (valid <= 0 || valid > inviteTTL) {
		err = fmt.Errorf("an invitation is valid for at most %v", inviteTTL)
	}
	if err == nil && !slices.Contains(f.others(), name) {
		err = fmt.Errorf("%q is no other hub of this cluster; have %s", name, strings.Join(f.others(), ", "))
	}
	if err != nil {
		return "", "", err
	}
	authority, err := OpenAuthority(dir, []string{f.Name})
	if err != nil {
		return "", "", err
	}
	secret := access.HubToken + rand.Text()
	file := invitationName(dir, secret)
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return "", "", err
	}
	err = localfile.WriteJSON(file, invitation{name, time.Now().Add(valid)}, 0o600)
	return f.Page, access.Token(secret, authority.PEM), errors.Join(err, giveToOwner(dir, filepath.Dir(file), file))
}

// giveToOwner gives files to the owner of a state folder: root may write there for a hub of another user.
func giveToOwner(dir string, names ...string) error {
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	owner, known := info.Sys().(*syscall.Stat_t)
	for _, name := range names {
		if known && err == nil {
			err = os.Lchown(name, int(owner.Uid), int(owner.Gid))
		}
	}
	return err
}

// share takes a hub's invitation, and returns what the hubs of the cluster have in common.
func (r *running) share(secret string) (job.Joined, error) {
	file := invitationName(r.Dir, secret)
	data, err := localfile.Read(file, maxJoinBytes)
	var i invitation
	if err != nil || json.Unmarshal(data, &i) != nil || os.Remove(file) != nil || time.Now().After(i.Until) { // only one request removes it
		return job.Joined{}, errInvitation
	}
	authority, err := localfile.Read(authorityName(r.Dir), maxAuthorityBytes)
	return job.Joined{Name: i.Name, Role: job.AHub, Hub: &job.HubShare{Hubs: r.folder.Hubs, Secret: r.keys.Secret, Authority: string(authority)}}, err
}

// CanJoin returns an error unless a state folder is empty, or not there.
func CanJoin(dir string) error {
	entries, err := os.ReadDir(dir)
	if len(entries) > 0 {
		err = fmt.Errorf("the state folder %s is in use by a hub\nnext: slipway join --state=NEW ADDRESS TOKEN", dir)
	}
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// KeepShare makes the state folder of a hub that has joined. The folder appears whole, or not at all.
func KeepShare(dir string, j job.Joined) error {
	cluster, err := parseCluster(j.Hub.Hubs, []string{j.Name})
	if err == nil {
		_, err = tls.X509KeyPair([]byte(j.Hub.Authority), []byte(j.Hub.Authority))
	}
	if err != nil {
		return fmt.Errorf("read the hub's answer: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
		return err
	}
	part, err := os.MkdirTemp(filepath.Dir(dir), ".new-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(part) // gone already if all went well
	cluster.Joined = true
	if err := errors.Join(
		bus.KeepSecret(part, j.Hub.Secret),
		os.WriteFile(authorityName(part), []byte(j.Hub.Authority), 0o600),
		localfile.WriteJSON(folderName(part), cluster, 0o600),
		localfile.SyncFolder(part),
	); err != nil {
		return err
	}
	return os.Rename(part, dir) // replaces only an empty folder
}
